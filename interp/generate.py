"""Text generation on the key/value cache: one new position a step, everything before it kept."""

from collections.abc import Generator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.cache import Growing, growing_cache
from interp.errors import InputError
from interp.running import Tokens, as_batch
from interp.sight import Sight
from interp.tokens import TokenBatch
from interp.transformer import Transformer


def generate(
    model: Transformer,
    prompt: Tokens,
    max_new_tokens: int = 100,
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    stop: int | None = None,
    seed: int = 0,
) -> Int[Tensor, "prompt position"]:
    """Continue each prompt by up to `max_new_tokens` tokens; returns prompts and continuations together.

    When the context is full the oldest token leaves and the rest is read anew: every position is then one less.

    Args:
        model: a decoder.
        prompt: a text, or prompts of one length as ids.
        max_new_tokens: how many to add at most.
        temperature: 0 takes the likeliest token (greedy); above, logits are divided by it and a token is drawn.
        top_k: draw among the k likeliest only.
        top_p: draw among the fewest tokens whose probabilities add up to p (nucleus sampling, Holtzman 2020).
        stop: end once every prompt has produced this id.
        seed: of the draws.

    Raises:
        InputError: the model is no decoder with an output layer, prompts of different lengths, settings out of range.
    """
    if model.config.decoder is None or model.output is None:
        raise InputError("only a decoder with an output layer can generate text")
    _check(max_new_tokens, temperature, top_k, top_p)
    batch = as_batch(model, prompt)
    if batch.padded:
        raise InputError(
            f"prompts of one length are expected, got lengths {batch.lengths.tolist()}; generate each alone"
        )
    generator = torch.Generator(device=model.device).manual_seed(seed)
    ids, stopped = batch.ids, torch.zeros(len(batch.ids), dtype=torch.bool, device=model.device)
    steps = _last_logits(model, ids)
    logits = next(steps)
    for step in range(max_new_tokens):
        new = choose(logits, temperature=temperature, top_k=top_k, top_p=top_p, generator=generator)
        ids = torch.cat([ids, new[:, None]], 1)
        stopped |= new == stop if stop is not None else False
        if step + 1 == max_new_tokens or bool(stopped.all()):
            break
        logits = steps.send(new)
    return ids


def _check(max_new_tokens: int, temperature: float, top_k: int | None, top_p: float | None) -> None:
    if max_new_tokens < 0:
        raise InputError(f"expected max_new_tokens >= 0, got {max_new_tokens}")
    if not temperature >= 0 or (top_k is not None and top_k < 1) or (top_p is not None and not 0 < top_p <= 1):
        raise InputError(f"expected temperature >= 0, top_k >= 1, 0 < top_p <= 1; got {temperature}, {top_k}, {top_p}")


def _last_logits(model: Transformer, ids: Tensor) -> Generator[Tensor, Tensor, None]:
    """Logits after the last position of `ids`, then after each token that is sent."""
    n_ctx, stack = model.config.n_ctx, model.last
    while True:
        ids = ids[:, -n_ctx:]
        cache: list[Growing] = growing_cache(stack.config)
        first = 0
        while ids.shape[1] <= n_ctx:
            batch = TokenBatch.from_ids(ids)
            sight = Sight.of(batch, causal=True, first=first)
            with torch.no_grad():
                residual = stack.embed(batch.ids[:, first:], sight.positions)
                final = stack.resume(residual, sight, past=cache)
                logits = model.read(final[:, -1:])
            assert logits is not None
            first = ids.shape[1]
            new = yield logits[:, -1]
            ids = torch.cat([ids, new[:, None]], 1)


def choose(
    logits: Float[Tensor, "prompt d_vocab"],
    *,
    temperature: float,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> Int[Tensor, " prompt"]:
    """One next token a row: the likeliest, or a draw from the tempered and cut distribution."""
    if temperature == 0:
        return logits.argmax(-1)
    logits = logits / temperature
    if top_k is not None and top_k < logits.shape[-1]:
        smallest_kept = logits.topk(top_k).values[:, -1:]
        logits = logits.masked_fill(logits < smallest_kept, -torch.inf)
    if top_p is not None:
        ordered, index = logits.sort(descending=True)
        mass_before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
        cut = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, index, mass_before >= top_p)
        logits = logits.masked_fill(cut, -torch.inf)
    return torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]

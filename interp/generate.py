"""Text generation on the key/value cache: one new position a step, everything before it kept.

Where there is an encoder, it reads the prompts once, and each layer of the decoder its keys and values of them once.
"""

from collections.abc import Collection, Generator, Iterable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.cache import Growing, growing_cache
from interp.config import Writing
from interp.errors import InputError
from interp.model import Model
from interp.running import Tokens, as_batch, as_batches
from interp.sight import Sight, Source
from interp.tokens import TokenBatch
from interp.transformer import Transformer


def generate(
    model: Model,
    prompt: Tokens,
    max_new_tokens: int = 100,
    *,
    target: Tokens | None = None,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    stop: int | Collection[int] | None = None,
    seed: int = 0,
) -> Int[Tensor, "prompt position"]:
    """Continue each prompt by up to `max_new_tokens` tokens; returns prompts and continuations together.

    When the context is full the oldest token leaves and the rest is read anew: every position is then one less.

    Where there is an encoder, it reads the prompts, and what is returned is the decoder's text, from the id that it
    begins with. `model.config.writing` is followed: what is written first, last and never, and what ends a text. A text
    also ends when the decoder's context is full. Other strategies that a model's files may name (beams, penalties) are
    not.

    Args:
        model: a decoder, with an encoder or without.
        prompt: a text, or prompts of one length as ids; of any lengths where an encoder reads them.
        max_new_tokens: how many to add at most.
        target: where there is an encoder, what the decoder has written already; by default the id it begins with.
        temperature: 0 takes the likeliest token (greedy); above, logits are divided by it and a token is drawn.
        top_k: draw among the k likeliest only.
        top_p: draw among the fewest tokens whose probabilities add up to p (nucleus sampling, Holtzman 2020).
        stop: ids that end a text, which repeats the one it ended with until all have ended; by default those of
            `model.config.writing`, and none where that names none.
        seed: of the draws.

    Raises:
        InputError: the model has no decoder or no output layer, texts to continue are of different lengths, the
            decoder's start is not known, settings are out of range.
    """
    if model.config.decoder is None or model.config.output == "none":
        raise InputError("only a decoder with an output layer can generate text")
    _check(max_new_tokens, temperature, top_k, top_p)
    read, ids = _begun(model, prompt, target)
    writing = model.config.writing
    room = max_new_tokens if read is None else min(max_new_tokens, model.config.n_ctx - ids.shape[1])
    stops = torch.tensor(_ids(writing.ends if stop is None else stop), dtype=torch.long, device=model.device)
    stopped = torch.zeros(len(ids), dtype=torch.bool, device=model.device)
    generator = torch.Generator(device=model.device).manual_seed(seed)
    by_parts = isinstance(model, Transformer)
    steps = _last_logits(model, ids, read) if by_parts else _last_logits_by_forward(model, ids, read)
    logits = next(steps)
    for step in range(room):
        logits[:, list(writing.never)] = -torch.inf
        new = choose(logits, temperature=temperature, top_k=top_k, top_p=top_p, generator=generator)
        forced = _forced(writing, n_written=ids.shape[1], ends_here=step + 1 == room)
        new = torch.where(stopped, ids[:, -1], new if forced is None else torch.full_like(new, forced))
        ids = torch.cat([ids, new[:, None]], 1)
        stopped |= torch.isin(new, stops)
        if step + 1 == room or bool(stopped.all()):
            break
        logits = steps.send(new)
    return ids


def _begun(model: Model, prompt: Tokens, target: Tokens | None) -> tuple[TokenBatch | None, Tensor]:
    """What an encoder reads, if there is one, and the ids that are to be continued."""
    batch = as_batch(model, prompt)
    if len(model.config.stacks) == 1:
        if target is not None:
            raise InputError("this model has one stack, which continues its prompt: expected no target")
        return None, _of_one_length(batch)
    start = model.config.target_start
    if target is None and start is None:
        raise InputError("this model does not say what its decoder's input begins with: give ids as target=")
    batch, written = as_batches(model, batch, torch.tensor([[start]]) if target is None else target)
    assert written is not None
    return batch, _of_one_length(written)


def _of_one_length(batch: TokenBatch) -> Tensor:
    if batch.padded:
        raise InputError(
            f"prompts of one length are expected, got lengths {batch.lengths.tolist()}; generate each alone"
        )
    return batch.ids


def _ids(given: int | Iterable[int]) -> list[int]:
    return [given] if isinstance(given, int) else list(given)


def _forced(writing: Writing, *, n_written: int, ends_here: bool) -> int | None:
    """What is written here whatever the model says; None where that decides."""
    if n_written == 1 and writing.first is not None:
        return writing.first
    return writing.last if ends_here else None


def _check(max_new_tokens: int, temperature: float, top_k: int | None, top_p: float | None) -> None:
    if max_new_tokens < 0:
        raise InputError(f"expected max_new_tokens >= 0, got {max_new_tokens}")
    if not temperature >= 0 or (top_k is not None and top_k < 1) or (top_p is not None and not 0 < top_p <= 1):
        raise InputError(f"expected temperature >= 0, top_k >= 1, 0 < top_p <= 1; got {temperature}, {top_k}, {top_p}")


def _last_logits(model: Transformer, ids: Tensor, read: TokenBatch | None) -> Generator[Tensor, Tensor, None]:
    """Logits after the last position of `ids`, then after each token that is sent."""
    n_ctx, stack = model.config.n_ctx, model.last
    with torch.no_grad():
        source = None if read is None else Source.of(model.stack("encoder")(read), read)
    while True:
        ids = ids[:, -n_ctx:]
        cache: list[Growing] = growing_cache(stack.config)
        first = 0
        while ids.shape[1] <= n_ctx:
            batch = TokenBatch.from_ids(ids)
            sight = Sight.of(batch, causal=True, first=first)
            with torch.no_grad():
                residual = stack.embed(batch.ids[:, first:], sight.positions)
                final = stack.resume(residual, sight, past=cache, source=source)
                logits = model.read(final[:, -1:])
            assert logits is not None
            first = ids.shape[1]
            new = yield logits[:, -1]
            ids = torch.cat([ids, new[:, None]], 1)


def _last_logits_by_forward(model: Model, ids: Tensor, read: TokenBatch | None) -> Generator[Tensor, Tensor, None]:
    """The same of a model that is run as a whole: everything is read anew for each token."""
    while True:
        batch = TokenBatch.from_ids(ids[:, -model.config.n_ctx :])
        with torch.no_grad():
            logits = model(batch) if read is None else model(read, target=batch)
        assert logits is not None
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

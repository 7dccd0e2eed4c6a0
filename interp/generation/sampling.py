"""Which token comes next: the likeliest, or a draw from a distribution that was tempered and cut."""

from collections.abc import Sequence
from random import Random

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.errors import InputError, whole_number
from interp.tokens import TokenBatch


def check_sampling(
    temperature: float = 0.0, top_k: int | None = None, top_p: float | None = None, repetition_penalty: float = 1.0
) -> None:
    """Refuse settings that are out of range."""
    if not temperature >= 0:
        raise InputError(f"expected temperature >= 0 (0 takes the likeliest token); got {temperature}")
    if top_k is not None:
        whole_number("top_k", top_k, 1)
    if top_p is not None and not 0 < top_p <= 1:
        raise InputError(f"expected 0 < top_p <= 1; got {top_p}")
    if not repetition_penalty > 0:
        raise InputError(f"expected repetition_penalty > 0 (1 is none, above 1 repeats less); got {repetition_penalty}")


def penalised(
    logits: Float[Tensor, "prompt d_vocab"],
    ids: Int[Tensor, "prompt position"],
    mask: Bool[Tensor, "prompt position"],
    penalty: float,
) -> Float[Tensor, "prompt d_vocab"]:
    """Logits of tokens that a text has already divided by `penalty`, or multiplied where below 0 (Keskar 2019)."""
    if penalty == 1:
        return logits
    present = torch.zeros_like(logits).scatter_add(1, ids, mask.to(logits.dtype)) > 0
    most = torch.finfo(logits.dtype).max
    return torch.where(present, torch.where(logits > 0, logits / penalty, logits * penalty).clamp(-most, most), logits)


def streams(seed: int, *texts: TokenBatch) -> list[Random]:
    """A stream of draws for each prompt (of two texts), which it and the seed decide; copies of it have their own."""
    rows = range(len(texts[0].ids))
    prompts = [repr([seed, *(text.ids[at][text.mask[at]].tolist() for text in texts)]) for at in rows]
    return [Random(f"{prompt} {prompts[:at].count(prompt)}") for at, prompt in enumerate(prompts)]


def choose(
    logits: Float[Tensor, "prompt d_vocab"],
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    streams: Sequence[Random] = (),
) -> Int[Tensor, " prompt"]:
    """One next token a row: the likeliest, or a draw from the tempered and cut distribution, by the row's stream."""
    if temperature == 0:
        return logits.argmax(-1)
    logits = logits.float()
    logits = (logits - logits.amax(-1, keepdim=True)) / min(max(temperature, 1e-30), 1e30)  # the likeliest stays 0
    if top_k is not None and top_k < logits.shape[-1]:
        smallest_kept = logits.topk(top_k).values[:, -1:]
        logits = logits.masked_fill(logits < smallest_kept, -torch.inf)
    if top_p is not None:
        ordered, index = logits.sort(descending=True)
        mass_before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
        beyond = (mass_before >= top_p) & (mass_before > 0)  # never the first
        cut = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, index, beyond)
        logits = logits.masked_fill(cut, -torch.inf)
    mass = logits.softmax(-1).cpu().double().cumsum(-1)
    drawn = torch.tensor([[stream.random()] for stream in streams], dtype=mass.dtype)
    return torch.searchsorted(mass, drawn * mass[:, -1:], right=True)[:, 0].to(logits.device)

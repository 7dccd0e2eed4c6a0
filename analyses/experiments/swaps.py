"""Pairs of prompts that differ in one noun, patched both ways: which cells carry the noun to the answer?"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from analyses.causal_tests import NO_OUTPUT
from analyses.experiments.prompts import tokenizer_of, unreadable
from interp import InputError, Pairs, Transformer, logit_difference, sweep
from interp.patching import unreliable
from interp.statistics import Estimate, estimate

Cells = NDArray[np.floating]


@dataclass(frozen=True)
class Swap:
    """A prompt, the same with another noun, and what should follow either."""

    source: str
    clean: str
    corrupt: str
    right: str
    wrong: str


@dataclass(frozen=True)
class Usable:
    """The pairs of one source that a model can use, or why none of them can be."""

    source: str
    pairs: Pairs | None
    refused: str | None = None
    example: str = ""


def usable(model: Transformer, swaps: Sequence[Swap], left_out: Counter[str]) -> list[Usable]:
    """Pairs by source; what cannot be used is counted by reason.

    Raises:
        InputError: the model has no output layer or no tokenizer, or is not causal.
    """
    tokenizer_of(model)
    if model.output is None:
        raise InputError(NO_OUTPUT)
    found = []
    for source in dict.fromkeys(swap.source for swap in swaps):
        offered = [swap for swap in swaps if swap.source == source]
        reasons = [unreadable(model, swap.clean, source) or unreadable(model, swap.corrupt, source) for swap in offered]
        left_out.update(f"pairs with {reason}" for reason in reasons if reason)
        kept = [swap for swap, reason in zip(offered, reasons, strict=True) if reason is None]
        found.append(_paired(model, source, kept, left_out))
    return found


def _paired(model: Transformer, source: str, swaps: Sequence[Swap], left_out: Counter[str]) -> Usable:
    if not swaps:
        return Usable(source, None, "no pair can be read by this model")
    sides = [[getattr(swap, side) for swap in swaps] for side in ("clean", "corrupt", "right", "wrong")]
    try:
        pairs = Pairs.from_texts(model, *sides, drop=True)
    except InputError as error:
        return Usable(source, None, str(error))
    left_out.update({f"pairs where {reason}": count for reason, count in pairs.left_out.items()})
    first = swaps[pairs.kept[0]]
    return Usable(source, pairs, example=f"{first.clean}{first.right} / {first.corrupt}{first.wrong}")


@dataclass(frozen=True)
class BothWays:
    """Effects of cells, mean of both directions (`*cells pair`), the whole effect of each pair, and share answered."""

    effects: Cells
    whole: Cells
    accuracy: float

    @property
    def refused(self) -> str | None:
        """Why shares of the whole mean nothing; None where they mean something."""
        return unreliable(torch.from_numpy(self.whole))

    def shares(self, seed: int) -> tuple[Estimate, NDArray[np.integer]]:
        """Each cell's share of the whole over the pairs where it exists, with its interval; and how many these are."""
        return shares_of(self.effects, self.whole, seed)


def patched(model: Transformer, pairs: Pairs, site: str, by: tuple[str, ...]) -> BothWays:
    """Put each prompt's activations into the other, cell by cell, and read the difference between their answers."""
    ways = [sweep(model, way, logit_difference(), site, by) for way in (pairs, pairs.swapped())]
    effects = np.stack([way.effect().double().cpu().numpy() for way in ways]).mean(0)
    answered = torch.cat([way.clean["logit_difference"] for way in ways]) > 0
    return BothWays(effects, ways[0].difference().double().cpu().numpy(), float(answered.double().mean()))


def shares_of(effects: Cells, whole: Cells, seed: int) -> tuple[Estimate, NDArray[np.integer]]:
    """Sum of effects over sum of wholes, cell by cell (cells in one row), over pairs; missing cells are left out."""
    columns = effects.reshape(-1, effects.shape[-1]).T  # pair cell
    there = ~np.isnan(columns)
    weights, nothing = np.where(there, whole[:, None], 0.0), np.zeros_like(columns)
    found = estimate(np.where(there, columns, 0.0), weights, nothing, nothing + 1, seed=seed)
    return found, there.sum(0)

"""Pairs of prompts that differ in one noun, patched both ways: which cells carry the noun to the answer?"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from analyses.causal_tests import NO_OUTPUT
from analyses.experiments.experiment import Outcome, joined
from analyses.experiments.prompts import readable, tokenizer_of
from interp import InputError, Model, Pairs, logit_difference, sweep
from interp.patching import unreliable
from interp.statistics import Shares, shares

Cells = NDArray[np.floating]
CHANCE = 0.5  # of one of two answers


@dataclass(frozen=True)
class Swap:
    """A prompt, the same with another noun, and what should follow either."""

    source: str
    clean: str
    corrupt: str
    right: str
    wrong: str


@dataclass(frozen=True)
class BothWays:
    """Effects of cells, mean of both directions (`*cells pair`), the whole effect of each pair, and share answered.

    `least` is the lower end of the share's 95% interval.
    """

    effects: Cells
    whole: Cells
    accuracy: float
    least: float


def by_swapping(
    model: Model,
    swaps: Sequence[Swap],
    sites: Mapping[str, tuple[str, ...]],
    rows: Callable[[Pairs, Mapping[str, BothWays]], pd.DataFrame],
    columns: Sequence[str],
) -> Outcome:
    """Patches the pairs of every source that a model can use, and puts together what `rows` makes of each.

    Args:
        model: a causal model with an output layer and a tokenizer.
        swaps: the pairs.
        sites: what is patched, each by its axes.
        rows: makes a table of a source's pairs and of the effects of each site.
        columns: of the table, in order; `source`, `accuracy` (of all prompts, with the lower end of its 95% interval as
            `accuracy_low`) and `example` are added to its rows.

    Raises:
        InputError: no pair can be used; no output layer, no tokenizer, not causal.
    """
    tokenizer_of(model)
    if model.config.output == "none":
        raise InputError(NO_OUTPUT)
    left_out, used, refused, tables = Counter[str](), {}, {}, []
    for source in dict.fromkeys(swap.source for swap in swaps):
        try:
            pairs, example = _paired(model, source, [swap for swap in swaps if swap.source == source], left_out)
        except InputError as error:
            refused[source] = str(error)
            continue
        both = {site: _patched(model, pairs, site, by) for site, by in sites.items()}
        first = next(iter(both.values()))
        if reason := unreliable(torch.from_numpy(first.whole)):
            refused[source] = reason
            continue
        used[source] = len(pairs)
        answered = {"accuracy": first.accuracy, "accuracy_low": first.least}
        found = rows(pairs, both).assign(source=source, **answered, example=example)
        tables.append(found[[*columns]])
    return Outcome(joined(tables), used, left_out, refused)


def _paired(model: Model, source: str, swaps: Sequence[Swap], left_out: Counter[str]) -> tuple[Pairs, str]:
    """The pairs that a model can use, and the first of them as an example."""
    swaps = readable(model, swaps, source, left_out, lambda swap: (swap.clean, swap.corrupt), "pairs")
    if not swaps:
        raise InputError("no pair can be read by this model")
    sides = [[getattr(swap, side) for swap in swaps] for side in ("clean", "corrupt", "right", "wrong")]
    pairs = Pairs.from_texts(model, *sides, drop=True)
    left_out.update({f"pairs where {reason}": count for reason, count in pairs.left_out.items()})
    first = swaps[pairs.kept[0]]
    return pairs, f"{first.clean}{first.right} / {first.corrupt}{first.wrong}"


def _patched(model: Model, pairs: Pairs, site: str, by: tuple[str, ...]) -> BothWays:
    """Put each prompt's activations into the other, cell by cell, and read the difference between their answers."""
    ways = [sweep(model, way, logit_difference(), site, by) for way in (pairs, pairs.swapped())]
    effects = np.stack([way.effect().double().cpu().numpy() for way in ways]).mean(0)
    answered = torch.cat([way.clean["logit_difference"] for way in ways]) > 0
    accuracy = float(answered.double().mean())
    return BothWays(effects, ways[0].difference().double().cpu().numpy(), accuracy, _least(accuracy, len(pairs)))


def _least(share: float, n: int) -> float:
    """The lower end of a share's 95% interval (Wilson 1927): of pairs, since a pair's two prompts are one item."""
    spread = 1.96 * (share * (1 - share) / n + 1.96**2 / (4 * n**2)) ** 0.5
    return (share + 1.96**2 / (2 * n) - spread) / (1 + 1.96**2 / n)


def undone(row: Mapping[str, Any], where: str) -> str:
    """That the model does not do the task, of a row whose accuracy is not shown to be above a coin's; else nothing."""
    if row["accuracy_low"] > CHANCE:
        return ""
    return (
        f"{where} the model does not do the task: of the prompts of {row['n']} pairs such as “{row['example']}” it "
        f"answers {row['accuracy']:.0%} rightly, and a coin 50%; so no share of the difference is quoted"
    )


def shares_of(effects: Cells, whole: Cells, seed: int) -> Shares:
    """Sum of effects over sum of wholes, cell by cell (cells in one row), over pairs; missing cells are left out."""
    return shares(effects.reshape(-1, effects.shape[-1]).T, whole, seed=seed)

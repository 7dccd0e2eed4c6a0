"""What do cells do on average over prompts, and how sure is that? Effects of one number a prompt, as a long table."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from interp.display import DataFrame
from interp.statistics import benjamini_hochberg, estimate, shares

Values = Float[np.ndarray, "prompt cell"]
ESTIMATED = ("effect", "share", "ci_low", "ci_high", "p", "q", "n", "share_low", "share_high")
"""The columns of every table of effects, after those that say where the cell lies."""
_ROUNDING = 16  # an effect of fewer units in the last place of the metric is no effect
POSITIONAL = ("position", "query", "key")


def dust(*metrics: Float[torch.Tensor, " prompt"]) -> Float[torch.Tensor, " prompt"]:
    """What may be rounding: the size of an effect on each prompt up to which it is none."""
    size = torch.stack([each.abs() for each in metrics]).amax(0)
    return _ROUNDING * torch.finfo(size.dtype).eps * size


def cell_rows(
    axes: Sequence[str],
    effect: Float[torch.Tensor, "*cells prompt"],
    least: Float[torch.Tensor, " prompt"],
    whole: Float[torch.Tensor, " prompt"] | None = None,
    *,
    seed: int = 0,
) -> DataFrame:
    """One row a cell: its place on each axis, then `effect`, its interval, p, share, and over how many prompts.

    `effect` is the mean over prompts with its 95% interval (`ci_low`, `ci_high`) and two-sided `p`; `share` its part of
    `whole`, with `share_low` and `share_high`. Missing are shares without a whole, intervals of fewer than three
    prompts, p of a single one, and p of cells that move nothing by more than `least`. Cells that lie in no prompt (NaN)
    are left out.
    """
    import pandas as pd  # noqa: PLC0415 (`import interp` need not wait for it)

    values = effect.detach().double().cpu().flatten(0, -2).T.numpy()  # prompt cell
    small = least.double().cpu().numpy()
    total = None if whole is None else whole.double().cpu().numpy()
    columns = {name: np.full(values.shape[1], np.nan) for name in ESTIMATED if name not in {"q", "n"}}
    there = ~np.isnan(values)
    for kind in np.unique(there, axis=1).T:  # prompts of unequal length: cells that the same prompts reach
        if not kind.any():
            continue
        alike = (there == kind[:, None]).all(0)
        part = estimates(values[kind][:, alike], small[kind], None if total is None else total[kind], seed)
        for name, value in part.items():
            columns[name][alike] = value
    places = np.unravel_index(np.arange(values.shape[1]), effect.shape[:-1])
    rows = pd.DataFrame({**dict(zip(axes, places, strict=True)), **columns, "n": there.sum(0)})
    return rows.loc[there.any(0)].reset_index(drop=True)


def estimates(
    values: Values, least: Float[np.ndarray, " prompt"], whole: Float[np.ndarray, " prompt"] | None, seed: int
) -> dict[str, np.ndarray]:
    """Mean effect and share of each cell with their intervals; `whole` None where shares mean nothing."""
    mean = estimate(values, np.ones_like(values), seed=seed)
    idle = (np.abs(values) <= least[:, None]).all(0)
    p = np.where(idle, np.nan, mean.two_sided)
    found = {"effect": mean.value, "ci_low": mean.low, "ci_high": mean.high, "p": p}
    if whole is None or whole.sum() == 0:
        return found
    share = shares(values, whole, seed=seed)
    return found | {"share": share.value, "share_low": share.low, "share_high": share.high}


def long_table(
    where: Mapping[str, Any],
    rows: Sequence[DataFrame],
    axes: Sequence[str],
    positions: Sequence[str] = (),
    labels: Mapping[str, Sequence[str | None]] | None = None,
) -> DataFrame:
    """Rows of several metrics as one table: what is the same for all first, then the cell and its tokens, then numbers.

    Args:
        where: columns that are the same in every row.
        rows: those of `cell_rows`, with columns of their own (`metric`).
        axes: the cells'.
        positions: the names that position axes count, where they do; these axes then hold the names.
        labels: by column (`token`, `corrupt_token`, of keys with `key_` before it), the token at each place; by axis
            (`sender`, `receiver`) the names that it has instead of numbers.
    """
    import pandas as pd  # noqa: PLC0415 (as above)

    table, labels = pd.concat(rows, ignore_index=True), labels or {}
    named: dict[str, Sequence[str | None] | np.ndarray] = {}
    for axis in {*axes} & {*labels}:
        table[axis] = named_places([int(each) for each in table[axis]], labels[axis])
    for prefix, axis in [("key_" * (axis == "key"), axis) for axis in axes if axis in POSITIONAL]:
        at = [int(each) for each in table[axis]]
        if positions:
            table[axis] = named_places(at, positions)
        named |= {name: named_places(at, labels[name]) for name in labels if name.startswith("key_") == bool(prefix)}
    for name, column in named.items():
        table[name] = pd.Series(column, index=table.index, dtype=object)
    for name, value in where.items():
        table[name] = value
    table["q"] = benjamini_hochberg(table["p"].to_numpy(dtype=float))
    own = [name for name in table.columns if name not in {*where, *axes, *named, *ESTIMATED}]
    numbers = [name for name in ESTIMATED if name in table]
    return table.loc[:, [*where, *axes, *named, *own, *numbers]]


def named_places(at: Sequence[int], positions: Sequence[str | None]) -> np.ndarray:
    """A column with the name of each place."""
    return np.array([positions[each] for each in at], dtype=object)


def cell_label(axes: Sequence[str], place: Sequence[int], positions: Sequence[str] = ()) -> str:
    """`L3.H2 at 4`, `L0 at S2`, `L2.H1 from 5 to 2`: where a cell lies, in short."""
    at = dict(zip(axes, place, strict=True))
    name = ".".join(f"{letter}{at[axis]}" for axis, letter in _LETTERS.items() if axis in at)
    says = {"position": "at", "query": "from", "key": "to"}
    places = [f"{says[axis]} {positions[at[axis]] if positions else at[axis]}" for axis in says if axis in at]
    return " ".join([name, *places]) if name else " ".join(places)


_LETTERS = {"layer": "L", "head": "H", "neuron": "N", "expert": "E"}

"""Which cells of one site carry the difference between two prompts? Exact sweeps, as a table with intervals."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int

from analyses.patch.task_answers import Answers, refusal
from interp import InputError, Model
from interp.patching import (
    Metric,
    Pairs,
    Sweep,
    kl_divergence,
    log_probability,
    logit_difference,
    probability,
    rank,
    sweep,
)
from interp.patching.pairs import Inputs, answers_in
from interp.patching.patch_sites import IN_ATTENTION, PatchSite
from interp.patching.results import Direction
from interp.statistics import benjamini_hochberg, estimate, shares

METRICS: dict[str, Callable[[], Metric]] = {
    "logit_difference": logit_difference,
    "log_probability": log_probability,
    "probability": probability,
    "rank": rank,
    "kl_divergence": kl_divergence,
}
DIRECTIONS: tuple[Direction, ...] = ("denoise", "noise")
NO_OUTPUT = "this model has no output layer, so there are no logits whose change could be measured: choose another"
_ROUNDING = 16  # an effect of fewer units in the last place of the metric is no effect
POSITIONS = ("position", "query", "key")
Values = Float[np.ndarray, "prompt cell"]


@dataclass(frozen=True)
class How:
    """How a site is patched.

    Args:
        by_position: whether positions are patched one by one.
        directions: `denoise`, `noise` or both.
        metrics: names of `METRICS`.
        stack: of a model with an encoder and a decoder which is patched, by default the decoder.
        attention: `self` or `cross`.
    """

    by_position: bool = False
    directions: Sequence[Direction] = DIRECTIONS
    metrics: Sequence[str] = ("logit_difference",)
    stack: str | None = None
    attention: str = "self"


def measure(model: Model, pairs: Pairs, site: str = "z", *, seed: int = 0, **how: Any) -> pd.DataFrame:
    """One row a cell, direction and metric: how far patching the cell moves the metric, and how sure that is.

    Columns are those of `Cells.table`; `how` are fields of `How`.

    Raises:
        InputError: no such site or metric, or a model without an output layer.
    """
    return cells_of(model, pairs, sweeps(model, pairs, site, **how), seed=seed).table


def sweeps(model: Model, pairs: Pairs, site: str, **how: Any) -> list[Sweep]:
    """One sweep a direction; arguments and what is raised as in `measure`."""
    asked = How(**how)
    metrics, where = dict.fromkeys(asked.metrics), {"stack": asked.stack, "attention": asked.attention}
    if model.config.output == "none":
        raise InputError(NO_OUTPUT)
    if unknown := [name for name in metrics if name not in METRICS]:
        raise InputError(f"no metric {', '.join(unknown)}: expected some of {', '.join(METRICS)}")
    axes = PatchSite.of(model, site, ("layer",), asked.stack, asked.attention).axes
    by = ["layer", *(axis for axis in axes if axis == "head" or (asked.by_position and axis in POSITIONS))]
    readers = [METRICS[name]() for name in metrics]
    return [sweep(model, pairs, readers, site, by, direction, **where) for direction in asked.directions]


@dataclass(frozen=True)
class Cells:
    """The cells of one site, patched one by one.

    In `table`, one row a cell, direction and metric: `effect` is the mean over prompts in the metric's unit, with its
    interval (`ci_low`, `ci_high`) and two-sided `p`; `share` is its part of the whole difference between clean and
    corrupted prompts, with `share_low` and `share_high`. Shares are missing where the difference is too small for them
    to mean anything or has the wrong sign, and where the model does the task no better than a coin; missing are also
    intervals of fewer than three pairs, p of a single one, and p of cells that change nothing.
    `q` is over all rows. Where the pairs name positions, `name` (of patterns also `key_name`) is the cell's, and
    `position` the name's place among them.
    """

    table: pd.DataFrame
    share_refused: Mapping[str, str]  # by metric, why there are no shares
    prompts: Mapping[str, Sequence[float]]  # `clean_METRIC` and `corrupt_METRIC` of every pair, unpatched
    answers: Answers | None  # whether the model does the task
    place: str | None  # what figures call the site, in a model of several stacks


def cells_of(model: Model, pairs: Pairs, found: Sequence[Sweep], *, seed: int = 0) -> Cells:
    """The cells of some sweeps of one site."""
    first = found[0]
    where_in = first.stack, "cross" if first.attention == "cross" and first.site in IN_ATTENTION else "self"
    patch_site = PatchSite.of(model, first.site, ("layer",), *where_in)
    answers = Answers.of(model, pairs)
    reasons = {name: refusal(first, name, answers) for name in first.values}
    rows = [_rows(each, name, seed, shared=reasons[name] is None) for each in found for name in each.values]
    rows = pd.concat(rows, ignore_index=True)
    where = [axis for axis in patch_site.axes if axis in POSITIONS]
    place = {"stack": patch_site.stack, "attention": patch_site.attention, "site": patch_site.site}
    cells = pd.DataFrame(place, index=rows.index)
    for axis in ("layer", "head", *where):
        cells[axis] = rows[axis].astype("Int64") if axis in rows else pd.array([pd.NA] * len(rows), dtype="Int64")
    for prefix, axis in zip(("", "key_"), where, strict=False):
        named = bool(first.positions) and axis in rows
        names = [None if not named or pd.isna(at) else first.positions[at] for at in cells[axis].tolist()]
        cells[f"{prefix}name"] = pd.Series(names, index=cells.index, dtype=object)
        for name, inputs in zip(("token", "corrupt_token"), pairs.inputs, strict=True):
            columns = [*pairs.positions.values()] if named else None
            labels = _shared_labels(model, inputs, patch_site.counted(axis), columns)
            cells[prefix + name] = [None if pd.isna(at) else labels[at] for at in cells[axis].tolist()]
    table = pd.concat([cells, rows.drop(columns=list(first.axes))], axis=1)
    table["q"] = benjamini_hochberg(table["p"].to_numpy(dtype=float))
    prompts = {f"clean_{name}": values.tolist() for name, values in first.clean.items()}
    prompts |= {f"corrupt_{name}": values.tolist() for name, values in first.corrupt.items()}
    attending = f"{patch_site.attention}-attention " if patch_site.in_attention else ""
    named = f"{patch_site.stack} {attending}{patch_site.site}" if len(model.config.stacks) > 1 else None
    order = [*cells.columns, "direction", "metric", "effect", "share", "ci_low", "ci_high", "p", "q", "n"]
    refused = {name: reason for name, reason in reasons.items() if reason}
    return Cells(table.loc[:, [*order, "share_low", "share_high"]], refused, prompts, answers, named)


def dust(found: Sweep, metric: str) -> Float[torch.Tensor, " prompt"]:
    """What may be rounding: the size of an effect on each prompt up to which it is none."""
    size = torch.maximum(found.clean[metric].abs(), found.corrupt[metric].abs())
    return _ROUNDING * torch.finfo(size.dtype).eps * size


def all_idle(
    effects: Sequence[Float[torch.Tensor, "*cells prompt"]], least: Float[torch.Tensor, " prompt"]
) -> Bool[torch.Tensor, "*cells"]:
    """Where no effect, of none of some ways to find it, is more than rounding on any prompt."""
    return torch.stack([(each.abs().nan_to_num() <= least).all(-1) for each in effects]).all(0)


def _rows(found: Sweep, metric: str, seed: int, *, shared: bool) -> pd.DataFrame:
    """The cells of one sweep and metric, with their shares, those that lie in no prompt left out."""
    effect = found.effect(metric)
    sizes = effect.shape[:-1]
    values = effect.double().cpu().flatten(0, -2).T.numpy()  # prompt cell
    least = dust(found, metric).double().cpu().numpy()
    whole = found.difference(metric).double().cpu().numpy()
    columns = {name: np.full(values.shape[1], np.nan) for name in _ESTIMATED}
    there = ~np.isnan(values)
    for kind in np.unique(there, axis=1).T:  # prompts of unequal length: cells that the same prompts reach
        if not kind.any():
            continue
        some = (there == kind[:, None]).all(0)
        part = _estimates(values[kind][:, some], least[kind], whole[kind] if shared else None, seed)
        for name, value in part.items():
            columns[name][some] = value
    places = np.unravel_index(np.arange(values.shape[1]), sizes)
    rows = pd.DataFrame({**dict(zip(found.axes, places, strict=True)), **columns, "n": there.sum(0)})
    rows = rows.assign(direction=found.direction, metric=metric)
    return rows.loc[there.any(0)]


_ESTIMATED = ("effect", "ci_low", "ci_high", "p", "share", "share_low", "share_high")


def _estimates(
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


def _shared_labels(
    model: Model, inputs: Inputs, stack: str, named: Sequence[Int[torch.Tensor, " prompt"]] | None = None
) -> list[str | None]:
    """At each position of what a stack reads, or at each `named` one, the token of all prompts; None if they differ."""
    batch, target = inputs
    tokenizer = model.tokenizer
    if target is not None and stack == "decoder":
        batch, tokenizer = target, answers_in(model)
    labels: list[str | None] = []
    for position in range(batch.ids.shape[1]) if named is None else named:
        own = isinstance(position, torch.Tensor)
        there = batch.ids.gather(1, position[:, None]) if own else batch.ids[batch.lengths > position, position]
        present = there.unique().tolist()
        one = len(present) == 1 and tokenizer is not None
        labels.append(tokenizer.label(present[0]) if one and tokenizer is not None else None)
    return labels

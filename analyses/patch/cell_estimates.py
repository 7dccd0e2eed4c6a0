"""How well do gradients foretell what patching measures? Estimates beside exact effects, cell by cell and edge by edge.

Cells: attribution patching (Nanda 2023), its QK fix for queries and keys, and AtP* (Kramár 2024), against the sweep of
the same site. Edges: `analyses.patch.edge_estimates`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy.stats import pearsonr, spearmanr
from torch import Tensor

from analyses.patch.cells import METRICS, How, all_idle, sweeps
from analyses.patch.edge_estimates import EDGE_SITE, edge_rows
from analyses.wording.formats import number
from interp import InputError, Model
from interp.patching import Pairs, Sweep, atp_star, attribution_patching
from interp.patching.cell_tables import POSITIONAL, named_places
from interp.patching.patch_sites import IN_ATTENTION

ATP, QK_FIX, ATP_STAR = "attribution patching", "QK fix", "AtP*"
MAGNITUDES = (ATP_STAR,)  # methods without a sign: held against absolute effects
WITHOUT_GRADIENT = ("rank",)
_FEWEST = 3  # cells that a correlation needs
_NOTHING = 1e-5  # of the largest effect: estimates that are all smaller are a gradient of 0, and their order rounding
_CELL = ("layer", "head", *POSITIONAL)
ESTIMATE_COLUMNS = [
    *("stack", "attention", "site", *_CELL, "sender", "receiver"),
    *("method", "direction", "metric", "exact", "estimate", "idle", "chosen", "n"),
]
Progress = Callable[[str, int], object]


@dataclass(frozen=True)
class Estimates:
    """Estimates beside the exact effects of some sweeps of one site, and of edges where site and model define them.

    In `table`, `exact` and `estimate` are means over `n` prompts, in the metric's unit and with the sign of
    `tables/cells`: what carries all has the whole difference, clean minus corrupted, in both directions. `AtP*` has no
    sign: both are means of absolute values there. `idle` marks what moves nothing beyond rounding, by patching and by
    every estimate. Edges have a `sender` and a `receiver` instead of a layer and head. `chosen` says for each edge why
    it was measured: `all` were, its receiver was drawn by `chance` or among the `strongest`; where it was not (`no`),
    `exact` is missing.
    """

    table: pd.DataFrame
    left_out: Mapping[str, str]  # by method, why it could not be used
    edges: Mapping[str, Any]  # how edges were chosen


def measure(model: Model, pairs: Pairs, site: str = "z", *, seed: int = 0, **how: Any) -> Estimates:
    """One row a cell (or edge, of site `z`), method, direction and metric: `exact` and `estimate` of its effect.

    Raises:
        InputError: as `analyses.patch.measure`, or a metric without a gradient.
    """
    check_metrics(How(**how).metrics)
    return estimates_of(model, pairs, sweeps(model, pairs, site, **how), seed=seed)


def check_metrics(metrics: Sequence[str]) -> None:
    """Whether the metrics have a gradient.

    Raises:
        InputError: one has none.
    """
    if flat := [name for name in metrics if name in WITHOUT_GRADIENT]:
        usable = ", ".join(name for name in METRICS if name not in WITHOUT_GRADIENT)
        raise InputError(f"{', '.join(flat)} has no gradient to estimate effects from: expected some of {usable}")


def estimates_of(
    model: Model, pairs: Pairs, found: Sequence[Sweep], *, seed: int = 0, progress: Progress | None = None
) -> Estimates:
    """Estimates beside the exact effects of some sweeps of one site."""
    tables, left_out = [], {}
    for each in found:
        methods = _methods(model, pairs, each, left_out)
        for metric in each.values:
            tables.append(_rows(each, metric, {method: found[metric] for method, found in methods.items()}))
    edges: dict[str, Any] = {}
    if found[0].site != EDGE_SITE:
        left_out["EAP, EAP-IG"] = f"edges lead from heads and feed-forwards: they come with --site {EDGE_SITE}"
    else:
        try:
            rows, edges = edge_rows(model, pairs, found, seed=seed, progress=progress)
            tables.append(rows)
        except InputError as error:
            left_out["EAP, EAP-IG"] = str(error)
    table = pd.concat([rows for rows in tables if len(rows)], ignore_index=True)
    table = table.assign(stack=found[0].stack, attention=found[0].attention).reindex(columns=ESTIMATE_COLUMNS)
    numbers = [axis for axis in _CELL if axis not in POSITIONAL or not found[0].positions]
    table[numbers] = table[numbers].astype("Int64")
    return Estimates(table, left_out, edges)


def _methods(
    model: Model, pairs: Pairs, found: Sweep, left_out: dict[str, str]
) -> dict[str, dict[str, Float[Tensor, "*cells prompt"]]]:
    """What each method estimates for a sweep's cells, by metric."""
    metrics, site = [METRICS[name]() for name in found.values], found.site
    asked: tuple[Any, ...] = model, pairs, metrics, {site: found.axes}, found.direction
    inside = found.attention if site in IN_ATTENTION else "self"
    where = {"stack": found.stack, "attention": inside}
    plain = {ATP: attribution_patching(*asked, **where)[site]}
    if site in {"q", "k"}:
        plain[QK_FIX] = attribution_patching(*asked, **where, qk_fix=True)[site]
    estimates = {method: {name: each.effect(name) for name in each.values} for method, each in plain.items()}
    try:
        estimates[ATP_STAR] = atp_star(*asked, **where)[site].values
    except InputError as error:  # a single layer
        left_out[ATP_STAR] = str(error)
    return estimates


def _rows(found: Sweep, metric: str, methods: Mapping[str, Float[Tensor, "*cells prompt"]]) -> pd.DataFrame:
    """One row a cell and method, cells that lie in no prompt left out."""
    effect = found.effect(metric)
    idle = all_idle([effect, *methods.values()], found.rounding(metric)).flatten().cpu().numpy()
    places = np.unravel_index(np.arange(len(idle)), effect.shape[:-1])
    n = (~effect.isnan()).sum(-1).flatten().cpu().numpy()
    tables = []
    for method, estimate in methods.items():
        exact = effect.abs() if method in MAGNITUDES else effect
        exact, estimated = (each.double().nanmean(-1).flatten().cpu().numpy() for each in (exact, estimate))
        columns = {"exact": exact, "estimate": estimated, "idle": idle, "n": n}
        rows = pd.DataFrame({**dict(zip(found.axes, places, strict=True)), **columns})
        for axis in {*POSITIONAL} & {*found.axes} if found.positions else ():
            rows[axis] = named_places(rows[axis].tolist(), found.positions)
        tables.append(rows.assign(method=method))
    table = pd.concat(tables).assign(site=found.site, direction=found.direction, metric=metric, chosen="all")
    return table.loc[table["n"] > 0]


def correlations(estimates: pd.DataFrame) -> pd.DataFrame:
    """How well each method agrees with the exact effects: one row a metric, method and direction.

    `spearman` is the rank correlation and `pearson` the linear one, over `n` cells or edges: rows with an exact effect
    that are not `idle` (agreement on what can move nothing is no merit), and of chosen edges only those that chance
    chose, since the others were chosen by estimate. Missing below three, where all effects are alike, and where all
    estimates are nothing (the gradient of KL divergence at the clean prompt).
    """
    rows = []
    for metric, method, direction in product(*(estimates[key].unique() for key in ("metric", "method", "direction"))):
        where = (estimates["metric"] == metric) & (estimates["method"] == method)
        group = estimates.loc[where & (estimates["direction"] == direction)]
        if group.empty:
            continue
        exact, estimate = (group[name].to_numpy(dtype=float) for name in ("exact", "estimate"))
        idle, missing = group["idle"].to_numpy(dtype=bool), np.isnan(exact)
        counted = ~idle & ~missing & (group["chosen"] != "strongest").to_numpy(dtype=bool)
        rank, line = _agreement(exact[counted], estimate[counted])
        of = "edges" if isinstance(group["sender"].iloc[0], str) else "cells"
        found = {"spearman": rank, "pearson": line, "n": int(counted.sum())}
        found |= {"idle": int(idle.sum()), "unmeasured": int(missing.sum())}
        rows.append({"metric": metric, "method": method, "direction": direction, "of": of, **found})
    return pd.DataFrame(rows)


def _agreement(exact: np.ndarray, estimate: np.ndarray) -> tuple[float, float]:
    """Rank and linear correlation."""
    if len(exact) < _FEWEST or np.ptp(exact) == 0 or np.abs(estimate).max() <= _NOTHING * np.abs(exact).max():
        return float("nan"), float("nan")
    rank, line = (np.asarray(tuple(each(estimate, exact))) for each in (spearmanr, pearsonr))
    return float(rank[0]), float(line[0])


def agreement_lines(found: pd.DataFrame | None) -> list[str]:
    """The correlations as lines for a terminal; none where no estimates were made."""
    return [
        f"{row['method']} of {row['metric']}, {row['direction']}: rank correlation {number(row['spearman'])}, "
        f"r {number(row['pearson'])}, {number(row['n'])} {row['of']}"
        for row in ([] if found is None else found.to_dict("records"))
    ]

"""How well do gradients predict what patching measures? We compare estimates with exact effects of cells and edges.

Cells: attribution patching (Nanda 2023), its QK fix for queries and keys, and AtP* (Kramár 2024), against the sweep of
the same site. Edges: EAP (Syed et al. 2023) and EAP-IG (Hanna et al. 2024) score them; path patching of one edge
(Goldowsky-Dill et al. 2023) measures them. Measuring a receiver covers all edges that end there. So if a model has many
edges, we choose receivers: those with the strongest estimates, and as many at random.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from scipy.stats import pearsonr, spearmanr
from torch import Tensor

from analyses.execution import lots
from analyses.measures.definitions import DECLARED
from analyses.patch.cells import METRICS
from analyses.wording.formats import number
from interp import InputError, Model
from interp.patching import Edges, Pairs, Receiver, Sweep, atp_star, attribution_patching, edge_attribution, path_patch
from interp.patching.by_forward import Part, Sender
from interp.patching.patch_sites import IN_ATTENTION
from interp.patching.results import POSITIONAL, Direction, named_places

ATP, QK_FIX, ATP_STAR = "attribution patching", "QK fix", "AtP*"
MAGNITUDES = (ATP_STAR,)  # methods without a sign, compared with absolute effects
WITHOUT_GRADIENT = ("rank",)
_FEWEST = 3  # cells that a correlation needs
_NOTHING = 1e-5  # of the largest effect: if all estimates are below, the gradient is 0 and their order is rounding
_CELL = ("layer", "head", *POSITIONAL)
ESTIMATE_COLUMNS: list[str] = DECLARED["tables"]["estimates"].split()

EAP, EAP_IG = "EAP", "EAP-IG"
STEPS = 5  # of EAP-IG, from one prompt to the other
EDGE_SITE = "z"  # the site whose sweep includes edges, because heads send their z
UNMEASURED = "no"
_FEW = 5000  # with no more edges than this, all are measured
_RECEIVERS = 8  # with more: receivers chosen by estimate, and as many by chance
_SENDERS: dict[Sender, tuple[str, ...]] = {"z": ("layer", "head"), "mlp_out": ("layer",)}


@dataclass(frozen=True)
class Estimates:
    """Estimates beside the exact effects of sweeps of one site, and of edges if site and model define them.

    In `table`, `exact` and `estimate` are means over `n` prompts, in the metric's unit and with the sign of
    `tables/cells`; means of absolute values for `AtP*`, which has no sign. `idle` marks what moves nothing beyond
    rounding, by patching and by every estimate. Edges have a `sender` and a `receiver` instead of a layer and head.
    `chosen` says why an edge was measured: `all` were, or its receiver was drawn by `chance` or is among the
    `strongest`. If it was not measured (`no`), `exact` is missing.
    """

    table: pd.DataFrame
    left_out: Mapping[str, str]  # method: the reason
    edges: Mapping[str, Any]  # how edges were chosen


def check_metrics(metrics: Sequence[str]) -> None:
    """Refuse metrics without a gradient."""
    if flat := [name for name in metrics if name in WITHOUT_GRADIENT]:
        usable = ", ".join(name for name in METRICS if name not in WITHOUT_GRADIENT)
        raise InputError(f"{', '.join(flat)} has no gradient to estimate effects from: expected some of {usable}")


def estimates_of(
    model: Model, pairs: Pairs, sweeps: Sequence[Sweep], *, seed: int = 0, progress: lots.Progress | None = None
) -> Estimates:
    """Estimates beside the exact effects of sweeps of one site, one lot per sweep."""
    left_out, edges, first = {}, {}, sweeps[0]
    results = lots.do(partial(_sweep_estimates, model, pairs, seed), [(sweep,) for sweep in sweeps], progress)
    for _, _, reasons, counts in results:
        left_out |= reasons
        edges |= counts
    tables = [rows for cells, *_ in results for rows in cells] + [rows for _, rows, *_ in results]
    table = pd.concat([rows for rows in tables if len(rows)], ignore_index=True)
    table = table.assign(stack=first.stack, attention=first.attention).reindex(columns=ESTIMATE_COLUMNS)
    numbers = [axis for axis in _CELL if axis not in POSITIONAL or not first.positions]
    table[numbers] = table[numbers].astype("Int64")
    return Estimates(table, left_out, edges)


def _sweep_estimates(
    model: Model, pairs: Pairs, seed: int, sweep: Sweep
) -> tuple[list[pd.DataFrame], pd.DataFrame, dict[str, str], dict[str, Any]]:
    """Rows of cells by metric, rows of edges, reasons for what is missing, and how edges were chosen."""
    left_out: dict[str, str] = {}
    methods = _methods(model, pairs, sweep, left_out)
    cells = [_cell_rows(sweep, name, {each: methods[each][name] for each in methods}) for name in sweep.values]
    try:
        edges, counts = edge_rows(model, pairs, sweep, seed=seed)
    except InputError as error:
        edges, counts = pd.DataFrame(), {}
        left_out["EAP, EAP-IG"] = str(error)
    return cells, edges, left_out, counts


def _methods(
    model: Model, pairs: Pairs, sweep: Sweep, left_out: dict[str, str]
) -> dict[str, dict[str, Float[Tensor, "*cells prompt"]]]:
    metrics, site = [METRICS[name]() for name in sweep.values], sweep.site
    cells: tuple[Any, ...] = model, pairs, metrics, {site: sweep.axes}, sweep.direction
    place = {"stack": sweep.stack, "attention": sweep.attention if site in IN_ATTENTION else "self"}
    signed = {ATP: attribution_patching(*cells, **place)[site]}
    if site in {"q", "k"}:
        signed[QK_FIX] = attribution_patching(*cells, **place, qk_fix=True)[site]
    estimates = {method: {name: each.effects(name) for name in each.values} for method, each in signed.items()}
    try:
        estimates[ATP_STAR] = atp_star(*cells, **place)[site].values
    except InputError as error:  # the model has one layer
        left_out[ATP_STAR] = str(error)
    return estimates


def _idle(effects: Sequence[Float[Tensor, "*cells prompt"]], least: Float[Tensor, " prompt"]) -> Bool[Tensor, "*cells"]:
    """True for cells whose effects all stay within rounding on every prompt."""
    return torch.stack([(each.abs().nan_to_num() <= least).all(-1) for each in effects]).all(0)


def _cell_rows(sweep: Sweep, metric: str, methods: Mapping[str, Float[Tensor, "*cells prompt"]]) -> pd.DataFrame:
    """One row per cell and method, without cells that no prompt reaches."""
    effect = sweep.effects(metric)
    idle = _idle([effect, *methods.values()], sweep.rounding(metric)).flatten().cpu().numpy()
    indices = np.unravel_index(np.arange(len(idle)), effect.shape[:-1])
    n = (~effect.isnan()).sum(-1).flatten().cpu().numpy()
    tables = []
    for method, estimate in methods.items():
        exact = effect.abs() if method in MAGNITUDES else effect
        exact, estimated = (each.double().nanmean(-1).flatten().cpu().numpy() for each in (exact, estimate))
        columns = {"exact": exact, "estimate": estimated, "idle": idle, "n": n}
        rows = pd.DataFrame({**dict(zip(sweep.axes, indices, strict=True)), **columns})
        for axis in {*POSITIONAL} & {*sweep.axes} if sweep.positions else ():
            rows[axis] = named_places(rows[axis].tolist(), sweep.positions)
        tables.append(rows.assign(method=method))
    table = pd.concat(tables).assign(site=sweep.site, direction=sweep.direction, metric=metric, chosen="all")
    return table.loc[table["n"] > 0]


def edge_rows(
    model: Model, pairs: Pairs, sweep: Sweep, *, seed: int = 0, few: int = _FEW
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Rows of `tables/estimates` for all edges, in a sweep's metrics and direction; and how edges were chosen.

    Edges from the embedding only have estimates, because path patching starts at heads and feed-forwards.
    """
    if sweep.site != EDGE_SITE:
        raise InputError(f"edges lead from heads and feed-forwards: they come with --site {EDGE_SITE}")
    tables, reasons = [], {}
    for name in sweep.values:
        score = partial(edge_attribution, model, pairs, METRICS[name](), sweep.direction)
        scored = {EAP: score(steps=1), EAP_IG: score(steps=STEPS)}
        reasons = _receivers(scored, seed, few)
        exact = torch.full_like(scored[EAP].effects(), torch.nan)
        for receiver in reasons:
            for index, effect in _measured(model, pairs, name, sweep.direction, scored[EAP], receiver):
                exact[index, scored[EAP].labels["receiver"].index(receiver)] = effect
        least = sweep.rounding(name)
        idle = _idle([exact.nan_to_num(torch.inf), *(edges.effects() for edges in scored.values())], least)
        for method, edges in scored.items():
            tables.append(_edge_rows(edges, exact, idle, reasons).assign(method=method, metric=name))
    table = pd.concat(tables, ignore_index=True)
    first = table.drop_duplicates(["sender", "receiver"])
    counts = {"edges": len(first), "from_embedding": first["sender"].tolist().count("embed")}
    how = {"sampled": "all" not in reasons.values(), "receivers": _RECEIVERS, "steps": STEPS, "seed": seed}
    return table, counts | how


def _receivers(scored: dict[str, Edges], seed: int, few: int) -> dict[str, str]:
    """Which receivers to measure, with the reason: `all`, by `chance` or as the `strongest`."""
    sizes = torch.stack([edges.effects().mean(-1).abs() for edges in scored.values()])
    size = sizes.amax(0)[1:]  # without the embedding
    names = [str(name) for name in scored[EAP].labels["receiver"]]
    reachable = (~size.isnan()).any(0)
    if int((~size.isnan()).sum()) <= few:
        return {name: "all" for name, real in zip(names, reachable.tolist(), strict=True) if real}
    indices = reachable.nonzero()[:, 0].cpu().numpy()
    sample = np.random.default_rng(seed).choice(indices, min(_RECEIVERS, len(indices)), replace=False)
    best = size.nan_to_num(-1).amax(0).argsort(descending=True, stable=True)[:_RECEIVERS].tolist()
    return {names[index]: "strongest" for index in best} | {names[index]: "chance" for index in sorted(sample.tolist())}


def _measured(
    model: Model, pairs: Pairs, metric: str, direction: Direction, edges: Edges, receiver: str
) -> Iterator[tuple[int, Float[Tensor, " prompt"]]]:
    exists = ~edges.effects()[:, edges.labels["receiver"].index(receiver)].isnan().any(-1)
    match receiver.split("."):  # `1.4.q`, `mlp.1` or `logits`
        case [layer, head, part]:
            end = Receiver(cast(Part, part), int(layer), int(head))
        case ["mlp", layer]:
            end = Receiver("mlp", int(layer))
        case _:
            end = Receiver("logits")
    names = [str(name) for name in edges.labels["sender"]]
    senders = [(index, name) for index, name in enumerate(names) if exists[index] and name != "embed"]
    for site, by in _SENDERS.items():
        if group := [(index, name) for index, name in senders if name.startswith("mlp") == (site == "mlp_out")]:
            effect = path_patch(model, pairs, METRICS[metric](), [end], site, by, "nothing", direction).effects()
            for index, name in group:
                yield index, effect[tuple(map(int, name.removeprefix("mlp.").split(".")))]


def _edge_rows(
    edges: Edges,
    exact: Float[Tensor, "sender receiver prompt"],
    idle: Bool[Tensor, "sender receiver"],
    reasons: dict[str, str],
) -> pd.DataFrame:
    """One row per edge. Scores have the sign of the metric's change; effects are positive towards the other prompt."""
    estimate = edges.effects() if edges.direction == "denoise" else -edges.effects()
    cells = (~estimate.isnan().any(-1)).nonzero(as_tuple=True)
    ends = zip(("sender", "receiver"), cells, strict=True)
    table = pd.DataFrame({end: [str(edges.labels[end][index]) for index in indices.tolist()] for end, indices in ends})
    measured = table["receiver"].map(reasons.get).where(table["sender"] != "embed")
    means = {"exact": exact, "estimate": estimate}
    columns = {name: values[cells].double().mean(-1).cpu().numpy() for name, values in means.items()}
    columns |= {"idle": idle[cells].cpu().numpy(), "chosen": measured.fillna(UNMEASURED), "n": estimate.shape[-1]}
    return table.assign(direction=edges.direction, **columns)


def correlations(estimates: pd.DataFrame) -> pd.DataFrame:
    """How well each method agrees with the exact effects: one row per metric, method and direction.

    `spearman` is the rank correlation and `pearson` the linear one, over the `n` cells or edges with an exact effect.
    Idle ones do not count, because agreeing on them is easy; of sampled edges, only those chosen by chance count. Both
    are missing below three, if all effects are equal, or if all estimates are 0 (KL divergence at the clean prompt).
    """
    rows, keys = [], ("metric", "method", "direction")
    groups = dict(iter(estimates.groupby([*keys], sort=False)))
    for key in product(*(estimates[name].unique() for name in keys)):
        if key not in groups:
            continue
        group = groups[key]
        exact, estimate = (group[name].to_numpy(dtype=float) for name in ("exact", "estimate"))
        idle, missing = group["idle"].to_numpy(dtype=bool), np.isnan(exact)
        counted = ~idle & ~missing & (group["chosen"] != "strongest").to_numpy(dtype=bool)
        rank, line = _agreement(exact[counted], estimate[counted])
        unit = "edges" if isinstance(group["sender"].iloc[0], str) else "cells"
        counts = {"n": int(counted.sum()), "idle": int(idle.sum()), "unmeasured": int(missing.sum())}
        rows.append({**dict(zip(keys, key, strict=True)), "of": unit, "spearman": rank, "pearson": line, **counts})
    return pd.DataFrame(rows)


def _agreement(exact: np.ndarray, estimate: np.ndarray) -> tuple[float, float]:
    if len(exact) < _FEWEST or np.ptp(exact) == 0 or np.abs(estimate).max() <= _NOTHING * np.abs(exact).max():
        return float("nan"), float("nan")
    rank, line = (np.asarray(tuple(each(estimate, exact))) for each in (spearmanr, pearsonr))
    return float(rank[0]), float(line[0])


def agreement_lines(correlations: pd.DataFrame | None) -> list[str]:
    """The correlations as lines for a terminal; empty without estimates."""
    return [
        f"{row['method']} of {row['metric']}, {row['direction']}: rank correlation {number(row['spearman'])}, "
        f"r {number(row['pearson'])}, {number(row['n'])} {row['of']}"
        for row in ([] if correlations is None else correlations.to_dict("records"))
    ]

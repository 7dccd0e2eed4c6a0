"""Which part of this model carries the difference between two prompts? Sweeps of one site, as a table and figures."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float

from analyses import figures, output, report
from interp import InputError, Transformer
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
    unreliable,
)
from interp.patching.results import Direction
from interp.patching.sweeping.oracle import check_site
from interp.statistics import benjamini_hochberg, estimate

METRICS: dict[str, Callable[[], Metric]] = {
    "logit_difference": logit_difference,
    "log_probability": log_probability,
    "probability": probability,
    "rank": rank,
    "kl_divergence": kl_divergence,
}
DIRECTIONS: tuple[Direction, ...] = ("denoise", "noise")
COLUMNS = ("clean", "corrupt", "answer", "wrong")
NO_OUTPUT = "this model has no output layer, so there are no logits whose change could be measured: choose another"
_ROUNDING = 16  # an effect of fewer units in the last place of the metric is no effect
_POSITIONS = ("position", "query", "key")
Values = Float[np.ndarray, "prompt cell"]


def read_pairs(file: Path) -> pd.DataFrame:
    """The table of prompts in a CSV file: columns clean, corrupt, answer and wrong, all text.

    Raises:
        InputError: not a CSV file, a column missing, rows longer than the header, or no rows.
    """
    try:
        table = pd.read_csv(file, dtype=str, keep_default_na=False, encoding="utf-8-sig")
    except pd.errors.EmptyDataError as error:
        raise InputError(f"{file} is empty: expected columns {', '.join(COLUMNS)}") from error
    except (OSError, ValueError) as error:  # what pandas cannot parse or decode is a ValueError too
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot read {file} as CSV: {reason}") from error
    if missing := [name for name in COLUMNS if name not in table.columns]:
        have = ", ".join(map(str, table.columns))
        raise InputError(f"{file} lacks the column {', '.join(missing)}: it has {have}")
    if not isinstance(table.index, pd.RangeIndex):  # pandas takes a surplus field for a name of the row
        raise InputError(f"the rows of {file} have more fields than its header: put quotes around texts with commas")
    if table.empty:
        raise InputError(f"{file} has a header and no rows: expected one pair a row")
    return table.loc[:, list(COLUMNS)].fillna("")


def read_prompts(typed: Mapping[str, str | None], file: Path | None) -> pd.DataFrame:
    """The table of prompts: one typed pair, or those of a file; either, and whole.

    Raises:
        InputError: neither, both, or a part of a typed pair missing; or as `read_pairs`.
    """
    given = {name: text for name, text in typed.items() if text is not None}
    if file is not None:
        if given:
            raise InputError(f"expected one pair or a file of them; got --pairs and --{', --'.join(given)}")
        return read_pairs(file)
    if missing := [name for name in COLUMNS if name not in given]:
        raise InputError(
            "expected --clean, --corrupt, --answer and --wrong, or --pairs FILE.csv; "
            f"--{', --'.join(missing)} {'is' if len(missing) == 1 else 'are'} not given"
        )
    return pd.DataFrame([given], columns=list(COLUMNS))


def with_space(prompt: str, answer: str) -> str:
    """The answer as it continues the prompt: a bare word gets the space that a shell strips."""
    return f" {answer}" if answer[:1].isalpha() and not prompt[-1:].isspace() else answer


def make_pairs(
    model: Transformer, prompts: pd.DataFrame, *, drop: bool = False, as_typed: bool = False, source: str | None = None
) -> Pairs:
    """Pairs from a table of prompts and answers.

    Args:
        model: a transformer with a tokenizer.
        prompts: columns clean, corrupt, answer, wrong.
        drop: leave out and count pairs that cannot be used, instead of raising.
        as_typed: put no space before answers.
        source: the file that they come from; errors then name the row, the first after the header being row 1.

    Raises:
        InputError: a pair that does not align, is identical, or whose answers do not differ.
    """
    clean, corrupt, right, wrong = (prompts[name].tolist() for name in COLUMNS)
    if not as_typed:
        right, wrong = ([*map(with_space, clean, answers)] for answers in (right, wrong))
    if source is not None and not drop:
        for row, texts in enumerate(zip(clean, corrupt, right, wrong, strict=True), 1):
            try:
                Pairs.from_texts(model, *([text] for text in texts))
            except InputError as error:
                raise InputError(f"row {row} of {source}: {error}; --drop leaves such rows out") from error
    return Pairs.from_texts(model, clean, corrupt, right, wrong, drop=drop)


def measure(
    model: Transformer,
    pairs: Pairs,
    site: str = "z",
    *,
    by_position: bool = False,
    directions: Sequence[Direction] = DIRECTIONS,
    metrics: Sequence[str] = ("logit_difference",),
    seed: int = 0,
) -> pd.DataFrame:
    """One row a cell, direction and metric: how far patching the cell moves the metric, and how sure that is.

    `effect` is the mean over prompts in the metric's unit, with its interval (`ci_low`, `ci_high`) and two-sided `p`;
    `share` is its part of the whole difference between clean and corrupted prompts, with `share_low` and `share_high`.
    Shares are missing where the difference is too small for them to mean anything (`attrs["share_refused"]` says why,
    by metric); intervals and p of a single pair are, and p of cells that change nothing. `q` is over all rows.
    `attrs["prompts"]` holds each metric of the unpatched prompts.

    Raises:
        InputError: no such site or metric, or a model without an output layer.
    """
    if model.config.output == "none":
        raise InputError(NO_OUTPUT)
    if unknown := [name for name in metrics if name not in METRICS]:
        raise InputError(f"no metric {', '.join(unknown)}: expected some of {', '.join(METRICS)}")
    axes = check_site(model, site, ("layer",)).axes
    by = ["layer", *(axis for axis in axes if axis == "head" or (by_position and axis in _POSITIONS))]
    readers = [METRICS[name]() for name in dict.fromkeys(metrics)]
    sweeps = [sweep(model, pairs, readers, site, by, direction) for direction in directions]
    found = pd.concat([_rows(each, name, seed) for each in sweeps for name in each.values], ignore_index=True)
    (stack,) = model.config.stacks
    where = [axis for axis in axes if axis in _POSITIONS]
    cells = pd.DataFrame({"stack": stack, "attention": "self", "site": site}, index=found.index)
    for axis in ("layer", "head", *where):
        cells[axis] = found[axis].astype("Int64") if axis in found else pd.array([pd.NA] * len(found), dtype="Int64")
    for prefix, axis in zip(("", "key_"), where, strict=False):
        for name, batch in (("token", pairs.clean), ("corrupt_token", pairs.corrupt)):
            labels = _shared_labels(model, batch.ids, pairs.last)
            cells[prefix + name] = [None if pd.isna(at) else labels[at] for at in cells[axis].tolist()]
    table = pd.concat([cells, found.drop(columns=by)], axis=1)
    table["q"] = benjamini_hochberg(table["p"].to_numpy(dtype=float))
    first = sweeps[0]
    reasons = {name: unreliable(first.difference(name)) for name in first.values}
    table.attrs["share_refused"] = {name: reason for name, reason in reasons.items() if reason}
    prompts = {f"clean_{name}": values.tolist() for name, values in first.clean.items()}
    table.attrs["prompts"] = prompts | {f"corrupt_{name}": values.tolist() for name, values in first.corrupt.items()}
    order = [*cells.columns, "direction", "metric", "effect", "share", "ci_low", "ci_high", "p", "q", "n"]
    return table.loc[:, [*order, "share_low", "share_high"]]


def _rows(found: Sweep, metric: str, seed: int) -> pd.DataFrame:
    """The cells of one sweep and metric, those that lie in no prompt left out."""
    effect = found.effect(metric)
    sizes = effect.shape[:-1]
    values = effect.double().cpu().flatten(0, -2).T.numpy()  # prompt cell
    size = torch.maximum(found.clean[metric].abs(), found.corrupt[metric].abs())
    least = (_ROUNDING * torch.finfo(effect.dtype).eps * size).double().cpu().numpy()
    whole = found.difference(metric).double().cpu().numpy()
    columns = {name: np.full(values.shape[1], np.nan) for name in _ESTIMATED}
    there = ~np.isnan(values)
    for kind in np.unique(there, axis=1).T:  # prompts of unequal length: cells that the same prompts reach
        if not kind.any():
            continue
        some = (there == kind[:, None]).all(0)
        shares = unreliable(found.difference(metric)) is None
        part = _estimates(values[kind][:, some], least[kind], whole[kind] if shares else None, seed)
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
    nothing = np.zeros_like(values)
    mean = estimate(values, nothing + 1, nothing, nothing + 1, seed=seed)
    idle = (np.abs(values) <= least[:, None]).all(0)
    p = np.where(idle, np.nan, 2 * np.minimum(mean.p, 1 - mean.p))
    found = {"effect": mean.value, "ci_low": mean.low, "ci_high": mean.high, "p": p}
    if whole is None or whole.sum() == 0:
        return found
    way = np.sign(whole.sum())
    # `estimate` leaves out groups without weight; a column of its own keeps prompts that differ the other way
    kept = np.full((len(whole), 1), 1 + np.abs(whole).sum() * values.shape[1])
    weights = np.hstack([np.repeat(way * whole[:, None], values.shape[1], 1), kept])
    nothing = np.zeros_like(weights)
    share = estimate(np.hstack([way * values, kept]), weights, nothing, nothing + 1, seed=seed)
    return found | {"share": share.value[:-1], "share_low": share.low[:-1], "share_high": share.high[:-1]}


def _shared_labels(model: Transformer, ids: torch.Tensor, last: torch.Tensor) -> list[str | None]:
    """At each position the token that all prompts reaching it have there; None where they differ."""
    tokenizer = model.tokenizer
    labels: list[str | None] = []
    for position in range(ids.shape[1]):
        present = ids[last >= position, position].unique().tolist()
        one = len(present) == 1 and tokenizer is not None
        labels.append(tokenizer.label(present[0]) if one and tokenizer is not None else None)
    return labels


def build(
    model: Transformer,
    prompts: pd.DataFrame,
    out: Path,
    site: str = "z",
    *,
    by_position: bool = False,
    directions: Sequence[Direction] = DIRECTIONS,
    metrics: Sequence[str] = ("logit_difference",),
    drop: bool = False,
    as_typed: bool = False,
    source: Path | None = None,
    seed: int = 0,
    command: str = "",
    name: str = "",
) -> Path:
    """Sweep, draw and write everything into `out`; returns where it lies. Arguments as in `make_pairs` and `measure`.

    Raises:
        InputError: as `make_pairs` and `measure`, or an output directory that cannot be used.
    """
    started = time.perf_counter()
    with output.writing(out) as new:
        if model.config.output == "none":
            raise InputError(NO_OUTPUT)
        pairs = make_pairs(model, prompts, drop=drop, as_typed=as_typed, source=None if source is None else source.name)
        how: dict[str, Any] = {"by_position": by_position, "directions": directions, "metrics": metrics, "seed": seed}
        cells = measure(model, pairs, site, **how)
        new.table("cells", cells)
        new.table("pairs", _pairs_table(model, prompts, pairs, cells))
        for metric in cells["metric"].unique():
            for kind, figure in figures.sweep_figures(cells, metric).items():
                new.figure(f"{kind}-{metric}", figure)
        new.run(
            {
                "model": report.model_facts(model),
                "name": name or "a model",
                "prompts": {
                    "file": None if source is None else source.name,
                    "sha256": None if source is None else output.digest([source.read_bytes()]),
                    "pairs": len(pairs),
                    "left_out": pairs.left_out,
                },
                "site": site,
                **how,
                "metrics": list(dict.fromkeys(metrics)),
                "share_refused": cells.attrs["share_refused"],
                "command": command,
                "versions": output.versions(),
                "seconds": round(time.perf_counter() - started, 1),
            }
        )
    return Path(out)


def _pairs_table(model: Transformer, prompts: pd.DataFrame, pairs: Pairs, cells: pd.DataFrame) -> pd.DataFrame:
    """The pairs that were used: their texts, the tokens read as answers, and each metric before patching."""
    used = prompts.iloc[list(pairs.kept)].reset_index(drop=True)
    used.insert(0, "row", [place + 1 for place in pairs.kept])
    assert model.tokenizer is not None
    for column, ids in (("answer_token", pairs.right), ("wrong_token", pairs.wrong)):
        assert ids is not None
        used[column] = [model.tokenizer.label(id) for id in ids.tolist()]
    return used.assign(**cells.attrs["prompts"])

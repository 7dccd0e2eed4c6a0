"""Where does the difference between two prompts live? Heat maps of a sweep's cells, and its largest with intervals."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Unpack

import numpy as np
import pandas as pd
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from analyses.figures.kinds import described, draw
from analyses.figures.row_selection import SOURCES, select_rows
from analyses.figures.style import WIDTH, Page, caption, drawn_axes, is_ours, literal, signed_scale, styled, visible
from analyses.measures.findings import DISCOVERY, NOTABLE
from analyses.wording.head_names import head_name

QUESTIONS = {"denoise": "put back (denoise): is it enough?", "noise": "taken out (noise): is it needed?"}
_TICKS = 30  # labels along an axis, at most
_TOKEN = 12  # characters of a token
_FARTHEST = 2  # an interval is drawn up to this many times the largest value beyond the values
_PARTS = ("head", "neuron", "expert", "position", "query", "key", "sender", "term")  # of a layer
PLACE = ("layer", *_PARTS, "receiver", "direction")  # the columns that tell a site's cells apart
_ONE_SITE = (*SOURCES, "site", "stack", "attention")
_NARROW = 4.0  # inches: up to here the axis label has two lines
_FEW = 16  # positions up to which a cell has room for its head's number


def sweep_drawings(cells: pd.DataFrame) -> dict[str, Callable[..., Figure]]:
    """Functions that draw a sweep, by name: `cells`, a map of the effects, and `top`, the largest effects."""
    return {"cells": cell_map, "top": top_cells} if _axes(cells) & {"head", "position", "query"} else {"top": top_cells}


class MapCells(NamedTuple):
    """A sweep as a map: for each direction, layer and place along one axis, the cell with the largest absolute effect.

    `rows` have its `value`, its `column`, and whether it is `clear` of 0; the largest of many heads never is.
    """

    rows: pd.DataFrame
    names: Sequence[str]  # of the columns
    scale: Normalize  # of both directions
    axis: str  # `position`, `query` or `head`; empty for whole layers
    label: str  # what a value is
    is_share: bool


def map_cells(cells: pd.DataFrame, metric: str) -> MapCells:
    """Arrange the cells of one site, rows of `tables/cells`, as a map."""
    rows, quantity, label = _rows_and_value(cells, metric)
    axis = next((name for name in ("position", "query", "head") if _has(rows, name)), "")
    rest = {"head", "key"} & _axes(rows) - {axis}
    names = [*map(str, range(_size(rows, "head")))] if axis == "head" else _token_names(rows, axis) if axis else [""]
    clear = ((rows["ci_low"] > 0) | (rows["ci_high"] < 0)) & (rows["q"] < DISCOVERY)
    clear &= ~(rows["share"].abs() < NOTABLE) & (not rest)
    rows = rows.assign(clear=clear.fillna(value=False), column=rows[axis] if axis else 0)
    best = _by_size(rows).drop_duplicates(["direction", "layer", "column"]).sort_index()
    return MapCells(best, names, _scale(rows), axis, label, quantity == "share")


@styled
def cell_map(cells: pd.DataFrame, metric: str, *, place: str | None = None, **page: Unpack[Page]) -> Figure:
    """Layer x head, or layer x position, with both directions side by side on one scale; layer 0 at the bottom.

    If cells have both a head and a position (`pattern` and `scores`: a query and a key), each layer and position shows
    the head with the largest effect, by number. With many prompts, a dot marks effects whose interval excludes 0, with
    q below 0.05 and at least 0.05 of the whole. `cells` are rows of `tables/cells` of one site; `place` is its name in
    the title.
    """
    rows, names, scale, axis, bar, is_share = map_cells(cells, metric)
    site, by_token, note = str(rows["site"].iloc[0]), axis in {"position", "query"}, ""
    if by_token and _has(rows, "head"):  # the largest of many heads would be marked too often
        if len(names) <= _FEW:
            is_visible = rows["value"].abs() >= 0.1 * float(scale.vmax or 1)
            rows = rows.assign(text=rows["head"].astype(str).where(is_visible, ""))
            note = "in each cell the head with the largest effect, by its number where its effect shows"
    elif _has(rows, "q"):
        rows = rows.assign(dot=rows["clear"])
        note = f"● interval excludes 0, q < {DISCOVERY}" + f", at least {NOTABLE} of the whole" * is_share
    ways = rows["direction"].unique()
    titles = {way: QUESTIONS.get(way, str(way) * (len(ways) > 1)) for way in ways}
    rows = rows.assign(panel=[titles[way] for way in rows["direction"]], bar=bar)
    token = "token" if _has(rows, "token") or _has(rows, "name") else "position"
    text = _caption(rows, metric, f"{'tokens' if by_token else 'heads'} of {place or site}")
    words = {
        "place": f"{'which layer and at which token' if by_token else 'which heads'} does {place or site}",
        "across": token if by_token else f"{'key/value ' * (site in {'k', 'v'})}head",
        "said": text + f" {note[:1].upper()}{note[1:]}." * bool(note),
    }
    layers = [str(layer) for layer in range(_size(rows, "layer"))]
    return draw("cell_map", rows, page, words, note=note or None, scale=scale, names=(layers, [*_literal(names)]))


@styled
def top_cells(
    cells: pd.DataFrame, metric: str, *, top: int = 12, place: str | None = None, **page: Unpack[Page]
) -> Figure:
    """The cells with the largest absolute effects, in both directions, with 95% intervals if there are many prompts.

    Cells that are whole layers are all shown, in order; of other cells the first `top`. Otherwise as in `cell_map`.
    """
    rows, quantity, label = _rows_and_value(cells, metric)
    has_intervals, whole_layers = _has(rows, "ci_low"), not _axes(rows)
    rows = rows.assign(cell=[literal(cell_name(row), 60) for row in rows.to_dict("records")])
    names = [*dict.fromkeys((rows if whole_layers else _by_size(rows))["cell"])]
    names = names[::-1] if whole_layers else names[:top]  # layer 0 at the bottom, otherwise the largest on top
    bounds = ("share_low", "share_high") if quantity == "share" else ("ci_low", "ci_high")
    ways = [QUESTIONS.get(way, f"_{way}") for way in rows["direction"]]
    rows = rows.assign(low=rows[bounds[0]], high=rows[bounds[1]], way=ways)
    n, site = max(rows["n"].tolist()), f" of {place}" if place else ""
    over = f"95% intervals over {n} prompts" if has_intervals else "one pair: no interval" if n == 1 else f"{n} prompts"
    text = _caption(rows, metric, "all layers" if whole_layers else f"the {len(names)} cells with the largest effects")
    label = label.replace("\n", " ") if page.get("width", WIDTH) > _NARROW and "ax" not in page else label
    asks = f"In which layer{site} is" if whole_layers else f"Which cells{site} carry most of"
    words = {"asks": asks, "surely": ", and how certain is it" * has_intervals, "label": label}
    values = rows["value"].to_numpy(dtype=float)
    rules = [{"x": 0}, *([{"x": 1, "ls": ":"}] if quantity == "share" and np.nanmax(np.abs(values)) > 0.5 else [])]
    figure = draw("top_cells", rows.loc[rows["cell"].isin(names)], page, words, names=names, rules=rules)
    ax = drawn_axes(figure, page.get("ax"))[0]
    ends, reach = ax.get_xlim(), _FARTHEST * np.nanmax(np.abs(values))
    if reach:  # so that no wild interval from a few prompts squeezes all dots together
        ax.set_xlim(max(ends[0], np.nanmin(values) - reach), min(ends[1], np.nanmax(values) + reach))
    over += ", some beyond the edge" * (ax.get_xlim() != ends)
    if is_ours(figure) and figure.get_suptitle():  # otherwise the caption says it
        ax.set_xlabel(f"{ax.get_xlabel()} ({over})")
    caption(figure, text, f"Lines are {over}." * has_intervals)
    return figure


@styled
def steps(cells: pd.DataFrame, metric: str, *, plain: float, **page: Unpack[Page]) -> Figure:
    """What the metric falls to as cells are ablated one after the other, with its 95% interval as a band.

    `cells` are rows of an ablation's table, with `step`; `plain` is the metric without ablation.
    """
    rows = select_rows(cells, ["step"], single=_ONE_SITE, metric=metric).sort_values("step")
    names = ["nothing", *(literal(cell_name(row)) for row in rows.to_dict("records"))]
    columns = {"value": "effect", "low": "ci_high", "high": "ci_low"}
    table = {name: plain - np.append(0.0, rows[column].to_numpy(dtype=float)) for name, column in columns.items()}
    n, (quantity, unit) = max(rows["n"].tolist()), metric_unit(metric)
    band = ", the band is the 95% interval of the change" * (n > 2)
    words = {"quantity": quantity, "unit": unit, "n": n, "band": band}
    figure = draw("steps", pd.DataFrame(table).assign(step=range(len(names))), page, words)
    ticks = range(0, len(names), -(-len(names) // _TICKS))
    ax = drawn_axes(figure, page.get("ax"))[0]
    ax.set_xticks(ticks, [names[step] for step in ticks], rotation=90)
    return figure


def _caption(rows: pd.DataFrame, metric: str, cells: str) -> str:
    (quantity, unit), n = metric_unit(metric), max(rows["n"].tolist())
    ways = " and ".join(map(str, rows["direction"].unique()))
    value = f"share of the {quantity}" if _has(rows, "share") else f"effect on the {quantity} ({unit})"
    return f"The {value} of {cells}; {ways}, mean over {n} prompt{'s' if n != 1 else ''}."


def _rows_and_value(cells: pd.DataFrame, metric: str) -> tuple[pd.DataFrame, str, str]:
    """The metric's rows, the column with their value (the share, if defined), and its name.

    Places with names are numbered in order of appearance; their names move to the columns `name` and `key_name`.
    """
    rows = select_rows(cells, PLACE, single=_ONE_SITE, metric=metric)
    for axis in ("position", "query", "key"):
        if _has(rows, axis) and not pd.api.types.is_numeric_dtype(rows[axis]):
            numbers, names = pd.factorize(rows[axis])
            rows = rows.assign(**{axis: numbers, f"{'key_' * (axis == 'key')}name": np.asarray(names)[numbers]})
    name, unit = metric_unit(metric)
    if _has(rows, "share"):
        label = f"share of the\n{'difference in rank' if metric == 'rank' else name}"
        return rows.assign(value=rows["share"]), "share", label
    return rows.assign(value=rows["effect"]), "effect", f"effect on the\n{name}, {unit}"


def metric_unit(metric: str) -> tuple[str, str]:
    """A metric's name in a sentence, and its unit."""
    name, unit = described("metrics").get(metric, (metric, "in its own unit"))
    return name, unit


def _scale(rows: pd.DataFrame) -> Normalize:
    """Colours centred on 0; for shares the scale reaches at least 0.1, in other units it only must not be empty."""
    at_least = 0.1 if _has(rows, "share") else 1e-6
    return signed_scale(rows["value"].abs().to_numpy(dtype=float).max(), at_least=at_least)


def _has(cells: pd.DataFrame, column: str) -> bool:
    """Whether the cells have values in this column."""
    return column in cells and bool(cells[column].notna().any())


def _axes(rows: pd.DataFrame) -> set[str]:
    return {axis for axis in _PARTS if _has(rows, axis)}


def _by_size(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows, the largest absolute value first."""
    return rows.iloc[np.argsort(-rows["value"].abs().to_numpy(dtype=float), kind="stable")]


def _size(rows: pd.DataFrame, axis: str) -> int:
    return int(max(rows[axis].tolist())) + 1


def _token_names(group: pd.DataFrame, axis: str = "position") -> list[str]:
    """The label of each position: its name, its token (above the corrupted one if that differs), or its number."""
    prefix = "key_" if axis == "key" else ""
    first = group.drop_duplicates(axis).set_index(axis)
    names = []
    for place in range(_size(group, axis)):
        row = first.loc[place] if place in first.index else {}
        name = row.get(f"{prefix}name")
        token = _token_name(row.get(f"{prefix}token"), row.get(f"{prefix}corrupt_token"))
        names.append(name if isinstance(name, str) else token or str(place))
    return names


_literal = partial(map, partial(literal, longest=2 * _TOKEN + 1))


def _token_name(clean: object, corrupt: object) -> str | None:
    if not isinstance(clean, str):
        return None
    is_same = not isinstance(corrupt, str) or corrupt == clean
    return "/".join(visible(token, _TOKEN) for token in ([clean] if is_same else [clean, corrupt]))


def cell_name(row: Mapping[Any, Any]) -> str:
    """`L3.H2 at 4 (Lily)`: layer, head and place, as far as the cell has them."""
    if isinstance(row.get("sender"), str):
        return f"{component_name(row['sender'])} → {component_name(row['receiver'])}"
    layer, head = row["layer"], row.get("head", pd.NA)
    if pd.isna(layer):
        return str(row["term"])
    name = f"L{layer}" if pd.isna(head) else head_name(layer, head)
    units = [f"{letter}{row[unit]}" for unit, letter in (("neuron", "N"), ("expert", "E")) if unit in row]
    if isinstance(row.get("part"), str) and row["part"] != "head":  # a term of the stream
        units = ["MLP" if row["part"] == "mlp" else "cross" if row["part"] == "cross_head" else str(row["part"])]
    name = ".".join([name, *units])
    for axis, preposition, prefix in (("position", "at", ""), ("query", "from", ""), ("key", "to", "key_")):
        if axis in row and not pd.isna(row[axis]):
            token = _token_name(row.get(f"{prefix}token"), row.get(f"{prefix}corrupt_token"))
            title = row.get(f"{prefix}name")
            place = title if isinstance(title, str) else row[axis]
            name += f" {preposition} {place}" + (f" ({token})" if token else "")
    return name


def component_name(name: str) -> str:
    """`0.3` as L0.H3, `1.2.q` as L1.H2.q, `mlp.1` as L1.MLP; `embed` and `logits` unchanged."""
    if name.startswith("mlp."):
        return f"L{name.removeprefix('mlp.')}.MLP"
    layer, *rest = name.split(".")
    return ".".join([head_name(int(layer), int(rest[0])), *rest[1:]]) if rest else name

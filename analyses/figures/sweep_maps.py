"""Where does the difference between two prompts live? Heat maps of a sweep's cells, and its largest with intervals."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analyses.figures.attention_lines import literal
from analyses.figures.grids import mark, size
from analyses.figures.row_selection import SOURCES, select_rows
from analyses.figures.style import (
    INK,
    SIGNED,
    Page,
    along,
    caption,
    colour_bar,
    draw_map,
    is_ours,
    keys,
    leftmost,
    panels,
    signed_scale,
    single,
    sized,
    styled,
)
from analyses.findings import DISCOVERY, NOTABLE
from analyses.head_names import head_name

_SAYS = {"denoise": "denoise: is it enough?", "noise": "noise: is it needed?"}
_MARKS: dict[str, dict[str, Any]] = {  # by shape: full and round, or hollow
    "denoise": {"marker": "o", "mfc": INK},
    "noise": {"marker": "D", "mfc": "white"},
}
_UNITS = {
    "logit_difference": ("logit difference", "in logits"),
    "log_probability": ("log-probability", "in nats"),
    "probability": ("probability", "0 to 1"),
    "rank": ("rank", "in places"),
    "kl_divergence": ("KL divergence", "in nats"),
    "loss": ("loss", "in nats a token"),
}
_TICKS, _NUMBERS = 30, 12  # labels along an axis at most, and numbers up one
_TOKEN = 12  # characters of a token
_FARTHEST = 2  # times the largest value: how far beyond the values an interval is drawn
_HEADS = 3  # patterns drawn
_PARTS = ("head", "neuron", "expert", "position", "query", "key", "sender", "term")  # of a layer
PLACE = ("layer", *_PARTS, "receiver", "direction")  # what tells the cells of a site apart
_ONE_SITE = (*SOURCES, "site", "stack", "attention")
_NARROW = 4.0  # inches: up to here what is along an axis has two lines
_FEW = 16  # positions up to which a cell has room for the number of its head


def sweep_figures(cells: pd.DataFrame, metric: str, *, place: str | None = None) -> dict[str, Figure]:
    """All figures that fit a sweep, by name, each as `sweep_drawings` has it drawn.

    `place` names the site where its name alone says too little: in a model of several stacks.
    """
    return {kind: draw(cells, metric, place=place) for kind, draw in sweep_drawings(cells).items()}


def sweep_drawings(cells: pd.DataFrame) -> dict[str, Callable[..., Figure]]:
    """What draws a sweep, by name: `cells`, a map of where the effect is, and `top`, the largest effects."""
    if _has(cells, "query"):
        return {"cells": entry_maps, "top": top_cells}
    has_map = _has(cells, "head") or _has(cells, "position")
    return {**({"cells": cell_map} if has_map else {}), "top": top_cells}


@styled
def cell_map(cells: pd.DataFrame, metric: str, *, place: str | None = None, **page: Unpack[Page]) -> Figure:
    """Layer x head, or layer x position, both directions side by side on one scale; layer 0 at the bottom.

    Where cells have a head and a position, each layer and position shows the head with the largest effect, by number.
    A dot marks what is clear of 0 with q below 0.05 and at least 0.05 of the whole, where prompts are many.

    Args:
        cells: rows of `tables/cells`, of one site.
        metric: which to draw.
        place: what the title calls the site.
        page: how it stands on a page: `title`, `width`, `font_size`, `ax` (`style.Page`).
    """
    rows, quantity, label = _drawn(cells, metric)
    by_position = _has(rows, "position")
    axis = "position" if by_position else "head"
    several = by_position and _has(rows, "head")
    site = str(rows["site"].iloc[0])
    asks = f"In which layer and at which token does {place or site} carry the difference?"
    question = asks if by_position else f"In which heads does {place or site} carry the difference?"
    n_layers = size(rows, "layer")
    directions = list(rows["direction"].unique())
    height = 1.3 + 0.24 * max(n_layers, 4)
    figure, axes = panels(question, len(directions), height=height, columns=2, key=0.5, options=page)
    scale = _scale(rows, quantity)
    called = "token" if _has(rows, "token") or _has(rows, "name") else "position"
    names = _token_names(rows) if by_position else [str(head) for head in range(size(rows, "head"))]
    for ax, direction in zip(axes, directions, strict=True):
        group = rows.loc[rows["direction"] == direction]
        if several:
            group = _largest(group, quantity)
        _map(ax, group, ("layer", axis), quantity, scale, ([str(layer) for layer in range(n_layers)], names))
        ax.invert_yaxis()
        if direction in _SAYS or len(directions) > 1:
            ax.set_title(_SAYS.get(direction, str(direction)))
        ax.set_xlabel(called if by_position else f"{'key/value ' if site in {'k', 'v'} else ''}head")
        if several and len(names) <= _FEW:
            _number_heads(ax, group, quantity, scale)
        elif not several:  # the largest of many heads would be marked too often
            _dots(ax, group, axis)
    for ax in axes:
        if leftmost(figure, ax):
            ax.set_ylabel("layer")
    colour_bar(figure, axes, ScalarMappable(scale, SIGNED), label)
    said, note, means = _caption(rows, metric, f"{'tokens' if by_position else 'heads'} of {place or site}"), None, ""
    if several and len(names) <= _FEW:
        note = "in each cell the head with the largest effect, by its number where its effect shows"
        means = f"{note[0].upper()}{note[1:]}."
    elif _has(rows, "q") and not several:
        of_whole = f", at least {NOTABLE} of the whole" * (quantity == "share")
        note = f"● interval excludes 0, q < {DISCOVERY}{of_whole}"
        means = f"A dot marks what is clear of 0 (95% interval over prompts, q below {DISCOVERY}{of_whole})."
    caption(figure, said, means, note=note)
    return figure


@styled
def entry_maps(cells: pd.DataFrame, metric: str, *, place: str | None = None, **page: Unpack[Page]) -> Figure:
    """Query x key of the heads with the largest single entries, a row of panels a direction, all on one scale.

    Args:
        cells: rows of `tables/cells` of `pattern` or `scores`, by query and key.
        metric: which to draw.
        place: what the title calls the site.
        page: how it stands on a page: `title`, `width`, `font_size`, `ax` (`style.Page`).
    """
    rows, quantity, label = _drawn(cells, metric)
    site = place or str(rows["site"].iloc[0])
    order = rows.iloc[np.argsort(-rows[quantity].abs().to_numpy(dtype=float), kind="stable")]
    best = order[["layer", "head"]].drop_duplicates().head(_HEADS).to_numpy(dtype=int)
    directions = list(rows["direction"].unique())
    question = f"From which token to which does a head's {site} carry the difference?"
    count, columns = len(best) * len(directions), len(best)
    figure, axes = panels(question, count, height=3.0, columns=columns, square=True, options=page)
    scale = _scale(rows, quantity)
    drawn = [(direction, layer, head) for direction in directions for layer, head in best.tolist()]
    for ax, (direction, layer, head) in zip(axes, drawn, strict=True):
        group = rows.loc[(rows["direction"] == direction) & (rows["layer"] == layer) & (rows["head"] == head)]
        names = _token_names(group, "query"), _token_names(group, "key")
        _map(ax, group, ("query", "key"), quantity, scale, names)
        ax.set_title(f"{head_name(layer, head)}, {direction}")
        if not leftmost(figure, ax):  # the tokens of all panels are the same
            ax.set_yticklabels([])
    along(figure, axes, "to token", "from token")
    colour_bar(figure, axes, ScalarMappable(scale, SIGNED), label)
    caption(figure, _caption(rows, metric, f"single entries of {site}, in the heads with the largest"))
    return figure


@styled
def top_cells(
    cells: pd.DataFrame, metric: str, *, top: int = 12, place: str | None = None, **page: Unpack[Page]
) -> Figure:
    """The cells with the largest effects either way, both directions, with 95% intervals where prompts are many.

    Cells that are whole layers are all shown, in their order.

    Args:
        cells: rows of `tables/cells`, of one site.
        metric: which to draw.
        top: how many cells.
        place: what the title calls the site, where it is to name it.
        page: how it stands on a page: `title`, `width`, `font_size`, `ax` (`style.Page`).
    """
    rows, quantity, label = _drawn(cells, metric)
    rows = rows.assign(cell=[cell_name(row) for row in rows.to_dict("records")])
    sure = _has(rows, "ci_low")
    whole_layers = not any(_has(rows, axis) for axis in _PARTS)
    order = rows.iloc[np.argsort(-rows[quantity].abs().to_numpy(dtype=float), kind="stable")]
    names = list(dict.fromkeys(rows["cell"] if whole_layers else order["cell"]))[: None if whole_layers else top]
    of = f" of {place}" if place else ""
    asks = f"In which layer{of} is" if whole_layers else f"Which cells{of} carry most of"
    question = f"{asks} the difference{', and how surely' * sure}?"
    figure, ax = single(question, 1.2 + 0.22 * max(len(names), 3), options=page)
    directions = list(rows["direction"].unique())
    low, high = ("share_low", "share_high") if quantity == "share" else ("ci_low", "ci_high")
    for direction, shift in zip(directions, np.linspace(-0.13, 0.13, len(directions)), strict=True):
        group = rows.loc[rows["direction"] == direction].set_index("cell").reindex(names)
        y = np.arange(len(names)) + (shift if len(directions) > 1 else 0)
        ax.hlines(y, group[low], group[high], colors=INK, lw=1.5)
        ax.plot(group[quantity].to_numpy(dtype=float), y, **_mark_of(direction), label=direction)
    ax.axvline(0, color="0.4", lw=1)
    if quantity == "share" and rows["share"].abs().to_numpy(dtype=float).max() > 0.5:  # else it is far away
        ax.axvline(1, color="0.4", lw=1, ls=":")
    ax.set_yticks(range(len(names)), [literal(name, 60) for name in names])
    below, above = -0.6, len(names) - 0.4
    ax.set_ylim(*((below, above) if whole_layers else (above, below)))  # layer 0 at the bottom, else the largest on top
    cut = _cut_far_intervals(ax, rows[quantity].to_numpy(dtype=float))
    n = max(rows["n"].tolist())
    over = f"95% intervals over {n} prompts" if sure else "one pair: no interval" if n == 1 else f"{n} prompts"
    over += ", some beyond the edge" * cut
    alone = is_ours(figure) and bool(figure.get_suptitle())  # else the caption says it
    wide = is_ours(figure) and figure.get_figwidth() > _NARROW
    ax.set(xlabel=(label.replace("\n", " ") if wide else label) + f" ({over})" * alone, ylabel="")
    entries = {_SAYS[each]: Line2D([], [], **_mark_of(each)) for each in directions if each in _SAYS}
    keys(figure, [ax], entries if alone or len(entries) > 1 else {}, columns=2)
    kind = "all layers" if whole_layers else f"the {len(names)} cells with the largest effects"
    caption(figure, _caption(rows, metric, kind), f"Lines are {over}." * sure)
    return figure


@styled
def steps(cells: pd.DataFrame, metric: str, *, plain: float, **page: Unpack[Page]) -> Figure:
    """What the metric falls to while cells are ablated one after the other, with the band of its 95% interval.

    Args:
        cells: rows of an ablation's table, with `step`.
        metric: which to draw.
        plain: the metric with nothing ablated.
        page: how it stands on a page: `title`, `width`, `font_size`, `ax` (`style.Page`).
    """
    rows = select_rows(cells, ["step"], single=_ONE_SITE, metric=metric).sort_values("step")
    names = ["nothing", *(literal(cell_name(row)) for row in rows.to_dict("records"))]
    columns = [rows[name].to_numpy(dtype=float) for name in ("effect", "ci_high", "ci_low")]
    middle, low, high = (plain - np.concatenate([[0.0], each]) for each in columns)
    figure, ax = single("What is left as one cell after the other is taken away?", 2.6, options=page)
    x = np.arange(len(names))
    ax.plot(x, middle, color=INK, marker="o", ms=4)
    ax.fill_between(x, low, high, color=INK, alpha=0.2, lw=0)
    ax.axhline(0, color="0.4", lw=1)
    shown = x[:: max(1, -(-len(x) // _TICKS))]
    ax.set_xticks(shown, [names[at] for at in shown], rotation=90)
    quantity, unit = metric_unit(metric)
    ax.set(xlabel="ablated too", ylabel=f"{quantity}, {unit}")
    n = max(rows["n"].tolist())
    said = f"The {quantity} ({unit}) as cells are ablated, each with all before it; {n} prompts"
    caption(figure, f"{said}, the band is the 95% interval of the change." if n > 2 else f"{said}.")
    return figure


def _mark_of(direction: str) -> dict[str, Any]:
    """How the dot of a direction looks."""
    return {"ls": "", "ms": 5.5, "mec": INK, **_MARKS.get(direction, _MARKS["denoise"])}


def _caption(rows: pd.DataFrame, metric: str, cells: str) -> str:
    """What is shown, and over how many prompts."""
    quantity, unit = metric_unit(metric)
    ways = " and ".join(str(way) for way in rows["direction"].unique())
    drawn = (
        f"share of the {quantity}" if rows["share"].notna().to_numpy().any() else f"effect on the {quantity} ({unit})"
    )
    n = max(rows["n"].tolist())
    return f"The {drawn} of {cells}; {ways}, mean over {n} prompt{'s' if n != 1 else ''}."


def _cut_far_intervals(ax: Axes, values: np.ndarray) -> bool:
    """Let no wild interval of a few prompts squeeze all dots together; returns whether one was cut."""
    least, most = np.nanmin(values), np.nanmax(values)
    reach = _FARTHEST * max(abs(least), abs(most))
    left, right = ax.get_xlim()
    if not np.isfinite(reach) or reach == 0 or (left >= least - reach and right <= most + reach):
        return False
    ax.set_xlim(max(left, least - reach), min(right, most + reach))
    return True


def _drawn(cells: pd.DataFrame, metric: str) -> tuple[pd.DataFrame, str, str]:
    """The metric's rows, the column that is drawn (shares where they are defined), and what to call it."""
    rows = _numbered(select_rows(cells, PLACE, single=_ONE_SITE, metric=metric))
    name, unit = metric_unit(metric)
    if rows["share"].notna().to_numpy().any():
        return rows, "share", f"share of the\n{'difference in rank' if metric == 'rank' else name}"
    return rows, "effect", f"effect on the\n{name}, {unit}"


def _numbered(rows: pd.DataFrame) -> pd.DataFrame:
    """Places that go by names counted in the order in which the names come; these are then in `name`, `key_name`."""
    for axis in ("position", "query", "key"):
        if _has(rows, axis) and not pd.api.types.is_numeric_dtype(rows[axis]):
            numbers, names = pd.factorize(rows[axis])
            rows = rows.assign(**{axis: numbers, f"{'key_' * (axis == 'key')}name": np.asarray(names)[numbers]})
    return rows


def metric_unit(metric: str) -> tuple[str, str]:
    """What a metric is called in a sentence, and what its numbers count."""
    return _UNITS.get(metric, (metric, "in its own unit"))


def _scale(rows: pd.DataFrame, quantity: str) -> Normalize:
    """Colours centred on 0, that reach at least to a share of a tenth; of other units to anything but nothing."""
    return signed_scale(rows[quantity].abs().to_numpy(dtype=float).max(), at_least=0.1 if quantity == "share" else 1e-6)


def _has(cells: pd.DataFrame, column: str) -> bool:
    """Whether the cells have this axis, or this value."""
    return column in cells and not all(pd.isna(value) for value in cells[column].tolist())


def _largest(group: pd.DataFrame, quantity: str) -> pd.DataFrame:
    """Of each layer and position the head with the largest effect."""
    order = np.argsort(-group[quantity].abs().to_numpy(dtype=float), kind="stable")
    return group.iloc[order].drop_duplicates(["layer", "position"])


def _map(
    ax: Axes,
    group: pd.DataFrame,
    axes: tuple[str, str],
    quantity: str,
    scale: Normalize,
    names: tuple[Sequence[str], Sequence[str]],
) -> None:
    """One heat map, first axis downwards; what does not exist is hatched."""
    down, across = axes
    table = group.assign(**{axis: group[axis].astype(int) for axis in axes})
    table = table.pivot_table(index=down, columns=across, values=quantity, aggfunc="first", dropna=False)
    table = table.reindex(index=range(len(names[0])), columns=range(len(names[1])))
    rows_most = _NUMBERS if all(name.strip().isdigit() for name in names[0]) else _TICKS
    draw_map(ax, table.astype(float), scale, names=names, most=(rows_most, _TICKS))


def _token_names(group: pd.DataFrame, axis: str = "position") -> list[str]:
    """What to write at each position: its name, or token with the corrupted one below where they differ, or number."""
    prefix = "key_" if axis == "key" else ""
    where = group.drop_duplicates(axis).set_index(axis)
    names = []
    for place in range(size(group, axis)):
        clean, corrupt = (
            where.loc[place, f"{prefix}{name}"] if f"{prefix}{name}" in where and place in where.index else None
            for name in ("token", "corrupt_token")
        )
        named = where[f"{prefix}name"].get(place) if f"{prefix}name" in where else None
        shown = named if isinstance(named, str) else _token_name(clean, corrupt) or str(place)
        names.append(literal(shown, 2 * _TOKEN + 1))
    return names


def _token_name(clean: object, corrupt: object) -> str | None:
    if not isinstance(clean, str):
        return None
    shown = _visible(clean)
    return f"{shown}\n{_visible(corrupt)}" if isinstance(corrupt, str) and corrupt != clean else shown


def _visible(token: str) -> str:
    """A token that can be seen: without the space before a word, and with signs for what prints nothing."""
    shown = token.strip() or token.replace(" ", "␣").replace("\n", "\\n").replace("\t", "\\t")
    return shown if len(shown) <= _TOKEN else f"{shown[: _TOKEN - 1]}…"


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
    places = []
    for axis, says, prefix in (("position", "at", ""), ("query", "from", ""), ("key", "to", "key_")):
        if axis in row and not pd.isna(row[axis]):
            token = _token_name(row.get(f"{prefix}token"), row.get(f"{prefix}corrupt_token"))
            named = row.get(f"{prefix}name")
            place = named if isinstance(named, str) else row[axis]
            places.append(f"{says} {place}" + (f" ({token.replace(chr(10), '/')})" if token else ""))
    return " ".join([name, *places])


def component_name(name: str) -> str:
    """`0.3` as L0.H3, `1.2.q` as L1.H2.q, `mlp.1` as L1.MLP; `embed` and `logits` as they are."""
    if name.startswith("mlp."):
        return f"L{name.removeprefix('mlp.')}.MLP"
    layer, *rest = name.split(".")
    return ".".join([head_name(int(layer), int(rest[0])), *rest[1:]]) if rest else name


def _dots(ax: Axes, group: pd.DataFrame, axis: str) -> None:
    """Mark cells whose interval excludes 0, with q below 0.05 and, where shares are defined, a share of 0.05."""
    clear = ((group["ci_low"] > 0) | (group["ci_high"] < 0)) & (group["q"] < DISCOVERY)
    marked = group.loc[clear & ~(group["share"].abs() < NOTABLE)]
    x, y = marked[axis].to_numpy(dtype=float), marked["layer"].to_numpy(dtype=float)
    mark(ax, x, y)


def _number_heads(ax: Axes, group: pd.DataFrame, quantity: str, scale: Normalize) -> None:
    """Write the head into the cells whose colour can be seen."""
    reach = float(scale.vmax or 1)
    for row in group.to_dict("records"):
        share = abs(row[quantity]) / reach
        if share >= 0.1:
            colour = "white" if share > 0.6 else "black"
            x, y = row["position"] + 0.5, row["layer"] + 0.5
            ax.text(x, y, str(row["head"]), ha="center", va="center", fontsize=sized(8), color=colour)

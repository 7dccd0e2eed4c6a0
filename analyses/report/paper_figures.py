"""Which figures can be drawn of a finished run for a paper? Those of its page and more, each by its name.

All come from the run's tables: nothing is measured again and no model is loaded.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple
from warnings import catch_warnings, filterwarnings

import matplotlib.figure
import pandas as pd

from analyses import figures
from analyses.behaviours import ACROSS, OURS
from analyses.compare.compare_page import headline
from analyses.execution.provenance import PICTURES, TEXT_MARK, check_free
from analyses.figures.style import HIGHEST, RoomError, check_font
from analyses.measures.findings import best, notable
from analyses.over_training.training_page import change_steps
from analyses.report.behaviour_sections import head_grids, leading
from analyses.report.report_parts import by_group
from analyses.runs import Joined, RunFolder
from analyses.viewer.passages import KeptPattern
from analyses.viewer.pictures import averaged
from analyses.wording.head_names import Place, kinds
from interp.errors import InputError, one_of
from interp.training.whole_files import drafting, file_above, holding, sweep_beside

Drawing = tuple[str, Callable[..., matplotlib.figure.Figure]]  # a figure's name, and the function that draws it
Format = Literal["pdf", "svg", "png"]
COLUMN, POINTS = 3.3, 8.0  # inches: a column of a two-column paper; points: its text
_WIDTHS, _SIZES = (2, 20), (5, 30)  # inches and points: anything outside is a slip
_KIND = ["stack", "attention"]


class Written(NamedTuple):
    """The files written, each figure before its caption, and by figure the reason it was not drawn."""

    files: list[Path]
    left_out: dict[str, str]


def write(
    run: RunFolder | Joined,
    out: str | Path,
    names: Sequence[str] = (),
    *,
    width: int | float = COLUMN,
    font_size: int | float = POINTS,
    font: str | None = None,
    horizontal: bool | None = None,
    heads: Sequence[str] = (),
    format: Format = "pdf",
    force: bool = False,
) -> Written:
    """Redraw a run's figures without titles, each with its caption in a text file beside it.

    For several runs (`analyses.runs.join`), all heads share one scale, and panels carry the models' names.

    Earlier figures of the same names in `out` are replaced once all are drawn. If one cannot be written, none is.
    With `force`, files of these names that we did not write are replaced too.

    `names` selects from `drawings`, by default all. `width` is in inches, 2 to 20; figures that need more, or that no
    page would hold, are left out. `font_size` is the size of most text, 5 to 30 points; ticks are a ninth smaller.
    `font` and `horizontal` are as in `figures.Page`. `heads` ("L3.H4") selects those of `patterns` and `lines`, by
    default the strongest. Text stays text in pdf (TrueType) and svg; png has 300 dots an inch.
    """
    one_of("format", format, Format)
    inches = f"inches; {COLUMN} is a column of a paper, 6.9 its page"
    ranges = {"width": (width, _WIDTHS, inches), "font_size": (font_size, _SIZES, "points")}
    for name, (value, (low, high), unit) in ranges.items():
        if not low <= value <= high:
            raise InputError(f"{name}: expected {low} to {high} {unit}; got {value:g}")
    check_font(font)
    by_name, folder, runs = drawings(run, heads), Path(out), run.runs if isinstance(run, Joined) else (run,)
    source = ", ".join(str(each.folder) for each in runs)
    if unknown := [name for name in names if name not in by_name]:
        raise InputError(
            f"no figure {', '.join(unknown)} can be drawn from the tables of {source}: expected some of "
            f"{', '.join(by_name) or 'none'}"
        )
    options: dict[str, Any] = {"width": width, "font_size": font_size, "title": None}
    options |= {key: value for key, value in {"font": font, "horizontal": horizontal}.items() if value is not None}
    selection = {name: by_name[name] for name in names or by_name}

    def free(names: Iterable[str]) -> list[str]:
        files = [f"{name}.{ending}" for name in names for ending in (format, "txt")]
        for name in files:
            check_free(folder / name, force=force)
        return files

    if file := folder if folder.is_file() else file_above(folder):
        raise InputError(f"{file} is a file, not a directory: choose another --out")
    run_files = {(each.folder / name).resolve() for each in runs for name in each.facts["files"]}
    if any((folder / f"{name}.{format}").resolve() in run_files for name in selection):
        raise InputError(f"{folder} holds the run's own figures, which its page shows: choose another --out")
    free(selection)
    place = folder / "figures"  # its draft is in `folder`, so that only renames remain
    left_out: dict[str, str] = {}
    try:
        with holding(folder, "draws into"), drafting(place) as draft:
            sweep_beside(place)
            draft.mkdir()
            for name, draw in selection.items():
                try:
                    _draw(draft / f"{name}.{format}", partial(draw, **options), format, runs)
                except (RoomError, InputError) as error:  # or a table from which nothing can be drawn
                    left_out[name] = str(error)
            if not (files := free(name for name in selection if name not in left_out)):
                why = "; ".join(dict.fromkeys(left_out.values())) or "it has no table that a figure is drawn from"
                raise InputError(f"no figure of {source} could be drawn: {why}")
            for name in files:
                os.replace(draft / name, folder / name)
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror or error}; choose another --out") from error
    return Written([folder / name for name in files], left_out)


def _draw(picture: Path, draw: Callable[[], matplotlib.figure.Figure], format: str, runs: Sequence[RunFolder]) -> None:
    figure = draw()
    if (high := figure.get_figheight()) > HIGHEST:
        raise RoomError(f"it would be {high:.1f} inches high, and a page holds {HIGHEST:g}: give it more width")
    try:
        with catch_warnings():
            filterwarnings("error", ".*axes sizes collapsed to zero", UserWarning)
            figure.savefig(picture, format=format, metadata=PICTURES[format])
    except UserWarning as error:
        raise RoomError("its text leaves no room for its panels: give it more width, or smaller text") from error
    lines = []
    for run in runs:
        texts, command = ", ".join(each["name"] for each in run.facts.get("corpora", ())), run.facts.get("command")
        facts = {"Model": run.model, "Text": texts, "Seed": str(run.seed)}
        source = [f"{name}: {value}." for name, value in facts.items() if value]
        lines.append(" ".join([*source, *([f"Made by: {command}"] if command else [])]))
    caption = f"{getattr(figure, 'caption', '')}\n\n{chr(10).join(lines)}\n{TEXT_MARK}"
    picture.with_suffix(".txt").write_text(caption, "utf-8")


def drawings(run: RunFolder | Joined, heads: Sequence[str] = ()) -> dict[str, Callable[..., matplotlib.figure.Figure]]:
    """Functions that draw each figure (`draw(**page)`, see `figures.Page`), by name; names match the run's own figures.

    `heads` selects those of `patterns` and `lines`. For several runs, only figures of all heads are drawn.
    """
    if isinstance(run, Joined):
        if heads:
            raise InputError(f"patterns of {', '.join(heads)} are drawn of one run: got {len(run.runs)} runs")
        tables = {name: run.table(name) for name in ("heads", "effects") if name in run.tables}
        by = "model" if len({each.model for each in run.runs}) == len(run.runs) else "run"
        return dict(_of_heads(tables, any(kinds(rows) > 1 for rows in tables.values()), by))
    tables = {name: rows for name in run.tables if len(rows := run.table(name))}
    several = len(run.facts.get("model", {}).get("stacks", {})) > 1
    return dict([*_of_heads(tables, several), *_of_other_tables(run, tables), *_of_patterns(tables, heads)])


def _of_heads(tables: Mapping[str, pd.DataFrame], several: bool, by: str | None = None) -> Iterator[Drawing]:
    """Figures of heads for each kind of attention, prefixed if there are `several`; `by` tells joined runs apart."""

    def groups(name: str, *columns: str) -> Iterator[tuple[str, pd.DataFrame]]:
        table = tables.get(name, pd.DataFrame())
        for _, rows in () if table.empty else table.groupby([*_KIND, *columns], sort=False):
            stack, attention = rows[_KIND].iloc[0]
            yield f"{'cross' if attention == 'cross' else stack}-" if several else "", rows

    of_comparison = by is None and "model" in tables.get("heads", ())
    for prefix, rows in () if of_comparison else groups("heads", "behaviour"):
        name, ours = str(rows["behaviour"].iloc[0]), ACROSS if "cross" in set(rows["attention"]) else OURS
        measures = leading(ours[name], set(rows["measure"])) if name in ours else list(dict.fromkeys(rows["measure"]))
        grids = head_grids(name, rows, measures, ours.get(name))
        yield from ((prefix + grid, partial(draw, by=by)) for grid, draw in grids)
        if by:
            continue
        units = dict(zip(rows["measure"], rows["unit"], strict=True))
        shares = [measure for measure in measures if units.get(measure) in {"share", "correlation"}]
        leader = best(notable(rows), shares, 1)
        for measure in (leader if len(leader) else best(rows, shares, 1))["measure"]:
            yield f"{prefix}{name}-gains", partial(figures.gain_intervals, rows, measure)
    for prefix, rows in groups("effects", "behaviour", "task"):
        behaviour, task = rows[["behaviour", "task"]].iloc[0]
        slug = "".join(letter if letter.isalnum() else "-" for letter in task.lower()).strip("-")
        yield f"{prefix}{behaviour}-effects-{slug}", partial(figures.effect_grid, rows, task, by=by)
    for number, (prefix, rows) in enumerate(groups("explained", "corpus")):
        yield f"{prefix}explained-{number}", partial(figures.explained_bars, by_group(rows))


def _of_patterns(tables: Mapping[str, pd.DataFrame], heads: Sequence[str]) -> Iterator[Drawing]:
    """Figures of the patterns that the run kept of its first passage; `heads` defaults to the strongest."""
    table: Any = tables.get("patterns", pd.DataFrame())
    fields = [*KeptPattern._fields]
    rows = [KeptPattern(**row) for row in table[fields].to_dict("records")] if {*table} >= {*fields} else []
    several = len({row[1:3] for row in rows}) > 1
    names: dict[str, KeptPattern] = {}
    for row in rows:  # the first passage of each head
        names.setdefault(Place(*row[1:5]).named(prefix=several), row)
    if unknown := [head for head in heads if head not in names]:
        raise InputError(
            f"no stored pattern of {', '.join(unknown)}, only of {', '.join(names) or 'no head: make the report again'}"
        )
    heads = heads or [*names][:1]
    texts = [names[head].tokens for head in heads]
    if odd := [head for head, tokens in zip(heads, texts, strict=True) if tokens != texts[0]]:
        raise InputError(f"{odd[0]} reads other tokens than {heads[0]}: draw heads of one kind of attention at a time")
    if heads:
        patterns, (queries, keys) = {head: names[head].pattern for head in heads}, texts[0]
        labels: Any = {"queries": queries, "keys": keys, "axes_labels": ("from", "to"), "label": "attention"}
        yield "patterns", partial(figures.best_heads, patterns, **labels)
        yield "lines", partial(figures.word_lines, patterns, queries, keys)
        kind = {row[3:5]: row for row in names.values() if row[1:3] == rows[0][1:3]}
        behaviours = {cell: row.behaviour for cell, row in kind.items() if row.behaviour}
        small = {cell: averaged(row.pattern) for cell, row in kind.items()}
        yield "atlas", partial(figures.pattern_atlas, small, behaviours)


def _of_other_tables(run: RunFolder, tables: Mapping[str, pd.DataFrame]) -> Iterator[Drawing]:
    if "layers" in tables:
        yield "probes_by_layer", partial(figures.probes_by_layer, tables["layers"])
    if "compare" in tables:
        yield "compare-gains", partial(figures.compared_gains, headline(tables["compare"]))
    cells = tables.get("cells", pd.DataFrame({"metric": []}))
    for metric in dict.fromkeys(map(str, cells["metric"])):
        for kind, draw in figures.sweep_drawings(cells).items():
            yield f"{kind}-{metric}", partial(draw, cells, metric, place=run.facts.get("place"))
    if "suite_heads" in tables:
        yield "suite_map", partial(figures.suite_map, tables["suite_heads"])
    curves = tables.get("circuit_curve", pd.DataFrame({"task": []}))
    for number, (_, rows) in enumerate(curves.groupby("task", sort=False)):
        name = f"circuit_curve_{number}" if "heads" in tables else "circuit_curve"
        yield name, partial(figures.circuit_curve, rows, (run.facts.get("circuit") or {}).get("kind", "edges"))
    if "forming" in tables and "formed" in run.tables:  # a report's curves lack losses
        formed = tables["formed"].groupby("run") if "formed" in tables else ()
        changes = {str(name): change_steps(rows) for name, rows in formed}
        phases = {each["name"]: each["phases_end"] for each in run.facts["runs"]}
        yield "forming", partial(figures.forming, tables["forming"], changes, phases)

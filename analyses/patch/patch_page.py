"""The page of `interp patch`: prompts, answers, maps of cells that link to attention, estimates."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd

from analyses import figures
from analyses.figures.sweep_maps import MapCells
from analyses.page import sections as doc
from analyses.page.grids import Cell, Grid, Grids
from analyses.page.sections import SCHEMAS, Page, Section, Text
from analyses.patch.cell_estimates import ATP_STAR, Estimates, correlations
from analyses.patch.cells import strongest
from analyses.patch.patch_run import PAIRS, Patched
from analyses.viewer.passages import Viewer
from analyses.wording import plain_words
from analyses.wording.formats import counted, interval, number, percent
from analyses.wording.head_names import Place
from interp.patching.results import POSITIONAL

_NAMES = 3  # cells per sentence
FEW = 20  # pairs below which intervals are rough
_FAINT = 0.1  # share of the largest value: cells below it show no number
_WORDS: Mapping[str, Any] = plain_words.WORDS["patch"]
_TEXTS: Mapping[str, str] = _WORDS["texts"]


def page(patched: Patched, model: Mapping[str, Any]) -> Page:
    """The page of a run; `model` is as in run.json."""
    metrics, estimates, prompts = patched.how["metrics"], patched.estimates, patched.prompts
    answers = patched.cells.answers
    titles = {metric: f"Where the {figures.metric_unit(metric)[0]} comes from" for metric in metrics}
    sections = [Section(titles[metric], [_map(patched, metric)], metric) for metric in metrics[1:]]
    terms, tables = dict(_WORDS["definitions"]), {"cells": patched.cells.table, "pairs": patched.pairs}
    if estimates is not None:
        tables |= {"estimates": estimates.table, "correlations": correlations(estimates.table)}
        sections.append(_estimates(metrics, estimates, tables["correlations"], model["stacks"]))
        terms |= _WORDS["estimate_definitions"]
    viewers = [Viewer((*patched.passages,), {}, heads=False, linked=True)] if patched.passages else []
    attention = [Section(_TEXTS["attention"], viewers, "attention")] if viewers else []
    file: Text = [f"{prompts['file']}, SHA-256 ", doc.code(prompts["sha256"])] if prompts["file"] else _TEXTS["typed"]
    facts = {"prompts": prompts, "positions": patched.positions, "site": patched.site, "place": patched.cells.place}
    facts |= {**patched.how, "share_refused": patched.cells.share_refused}
    facts["estimates"] = estimates and {"left_out": estimates.left_out, "edges": estimates.edges}
    return Page(
        title=f"Which part of {model['name']} carries the difference?",
        overview=[*_prompts(patched), _bars(patched), _map(patched, metrics[0]), *attention],
        summary=_summary(patched, by_stack=len(model["stacks"]) > 1),
        sections=[*sections, Section("How to read this", [doc.Definitions([*terms.items()], "terms")], "reading")],
        method=[("prompts", file), ("site", f"{patched.site}{', by position' * patched.how['by_position']}")],
        tables=tables,
        facts={"answers": answers and asdict(answers), **facts},
    )


def _prompts(patched: Patched) -> list[doc.Block]:
    rows, file = patched.pairs.to_dict("records"), patched.prompts["file"]
    terms: list[tuple[doc.Block, ...]] = []
    for row, tokens in zip(rows, patched.tokens, strict=False):
        number = f"{row['row']}. " * (len(rows) > 1)
        for side, words, answer in (("clean", tokens.clean, "answer"), ("corrupted", tokens.corrupt, "wrong")):
            marked = doc.Tokens([*zip(words, tokens.changed, strict=True)])
            terms.append(([number, side, " → ", doc.bold(row[f"{answer}_token"].strip())], [marked]))
        if tokens.shared:
            name = "source" if "source" in row else "target"
            terms.append((f"{name} of both", [doc.Tokens([(token, False) for token in tokens.shared])]))
    left_out = [f"{counted(count, 'pair')}, because {why}" for why, count in patched.prompts["left_out"].items()]
    source = [*([" from ", doc.code(file)] if file else []), f". Left out: {'; '.join(left_out)}." if left_out else "."]
    return [
        [counted(len(rows), "pair"), " of prompts", *source],
        doc.Definitions(terms, "facts"),
        *([doc.remark(_TEXTS["all pairs"])] if len(rows) > PAIRS else []),
    ]


def _bars(patched: Patched) -> doc.Bars:
    names = []
    for column, kind in (("answer_token", "right answer"), ("wrong_token", "wrong answer")):
        tokens = {*patched.pairs[column]}
        names.append(tokens.pop() if len(tokens) == 1 else kind)
    rows = []
    for prompts, cell, *shares in patched.probabilities:
        before, _, after = _WORDS["bars"][prompts].partition("{}")
        rows.append(([before, doc.bold(cell), after], [*zip(names, shares, (True, False), strict=True)]))
    return doc.Bars(rows)


def _map(patched: Patched, metric: str) -> Grids:
    """Both directions side by side; a head's cell links to what that head looks at from the token."""
    layout, grids = figures.map_cells(patched.cells.table, metric), []
    names = [f"H{name}" for name in layout.names] if layout.axis == "head" else layout.names
    for way, rows in layout.rows.groupby("direction", sort=False):
        cells = {(row["layer"], row["column"]): _cell(patched, row, layout) for row in rows.to_dict("records")}
        layers = range(max(layer for layer, _ in cells), -1, -1)
        lines = [(f"L{layer}", [cells.get((layer, column)) for column in range(len(names))]) for layer in layers]
        grids.append(Grid(_WORDS["ways"][str(way)], _WORDS["questions"][str(way)], names, lines))
    name, unit = figures.metric_unit(metric)
    is_said = {
        "map shares" if layout.is_share else "map effects": True,
        "map clear": any(layout.rows["clear"].tolist()),
        "map strongest": layout.axis != "head" and bool(patched.passages),
        "map links": bool(patched.passages),
    }
    caption = " ".join(_TEXTS[key] for key, said in is_said.items() if said).format(name=name, unit=unit)
    cells = [cell for grid in grids for _, row in grid.rows for cell in row if cell]
    heads = sorted({cell.to.partition("/")[0] for cell in cells if cell.to})
    return Grids(grids, caption, heads, max(cells, key=lambda cell: cell.level).to)


def _cell(patched: Patched, row: Mapping[str, Any], layout: MapCells) -> Cell:
    value, has_head = float(row["value"]), bool(patched.passages)
    level = min(1.0, abs(value) / float(layout.scale.vmax or 1))
    short = f"{value:.0%}" if layout.is_share else f"{value:.2g}"
    name = f"{figures.cell_name(row)}: {''.join(_size(row, ''))}"
    to = _address(patched, row) if has_head else ""
    if level < _FAINT and not row["clear"]:
        return Cell(name, to=to)
    note = f"H{row['head']}" if has_head and layout.axis != "head" else ""
    kind = " ".join(["against"] * (value < 0) + ["clear"] * row["clear"])
    return Cell(name, short.replace("-", "−"), note, kind, level, to)


def _size(row: Mapping[str, Any], unit: str) -> tuple[str, str]:
    """An effect (as a share, if it has one) and its interval, if it has one."""
    share = pd.notna(row["share"])
    low, high = ("share_low", "share_high") if share else ("ci_low", "ci_high")
    bounds = interval(row[low], row[high])
    if share and bounds != "–":
        bounds = f"{100 * row[low]:.0f} to {100 * row[high]:.0f}%".replace("-0 ", "0 ").replace("-", "−")
    return percent(row["share"]) if share else f"{number(row['effect'])}{unit}", f" (95% {bounds})" * (bounds != "–")


def _address(patched: Patched, row: Mapping[str, Any]) -> str:
    """The viewer's address of a head: what a token (by default the last) looks at, or who looks at a key or value.

    If several heads read a key or value, it is the first head's address.
    """
    kinds = {(each.heads.stack, each.heads.attention): each for each in patched.passages[0].attentions}
    attention, n_heads = kinds[row["stack"], row["attention"]], max(patched.cells.table["head"].tolist()) + 1
    head = int(row["head"]) * attention.heads.n_heads // n_heads
    address = Place(row["stack"], row["attention"], int(row["layer"]), head).named(prefix=len(kinds) > 1)
    position = row.get("position", row.get("query"))
    if patched.how["by_position"]:
        position = patched.positions[row["name"]][0] if patched.positions else position
        return f"{address}/{position}{'/to' * (row['site'] in {'k', 'v'})}"
    return address if row["stack"] == "encoder" else f"{address}/{len(attention.queries) - 1}"


def _summary(patched: Patched, *, by_stack: bool) -> list[doc.Block]:
    count, answers, cells, config = len(patched.pairs), patched.cells.answers, patched.cells.table, patched.how
    first: list[doc.Block] = [] if answers is None else [answers.sentence]
    if answers is not None and answers.refused:
        first = [doc.caveat(answers.sentence), doc.caveat(f"{_TEXTS['no circuit']}: {answers.refused}.")]
    site = _WORDS["sites"].get(patched.site, patched.site)
    if by_stack:
        site += f", in the {config['stack']}" + "’s cross-attention" * (config["attention"] == "cross")
    axes = [axis for axis in ("layer", "head", *POSITIONAL) if axis in cells and cells[axis].notna().to_numpy().any()]
    rough = [doc.caveat(f"Fewer than {FEW} pairs: intervals are rough.")] if count < FEW else []
    return [
        *first,
        f"We patched {site}, one {plain_words.listed(axes)} at a time, on {counted(count, 'pair')} of prompts.",
        doc.Definitions([_short(patched, metric) for metric in config["metrics"]]),
        *([doc.caveat(_TEXTS["one pair"])] if count == 1 else [*rough, doc.remark(_TEXTS["same prompts"])]),
    ]


def _short(patched: Patched, metric: str) -> tuple[doc.Block, ...]:
    name, unit = figures.metric_unit(metric)
    clean, corrupt = (number(patched.pairs[f"{side}_{metric}"].mean()) for side in ("clean", "corrupt"))
    counts, lines = unit.replace("in ", " ", 1) if unit.startswith("in ") else "", []
    for way, rows in strongest(patched.cells.table, metric, _NAMES).items():
        sizes = [(row["cell"], *_size(row, counts)) for row in rows]
        parts = [[doc.bold(cell), f" {size}", *[doc.soft(bounds)] * bool(bounds)] for cell, size, bounds in sizes]
        end = " of the difference." if pd.notna(rows[0]["share"]) else "."
        lines.append([doc.emphasis(_WORDS["ways"][way]), " alone: ", *doc.joined(parts), end])
    why, answers = patched.cells.share_refused.get(metric), patched.cells.answers
    said = "" if answers is not None and answers.refused == why else f"Shares are refused: {why}. "
    refused = [doc.caveat(f"{said}Effects are given {unit} instead.")] if why else []
    title = f"{name[:1].upper()}{name[1:]}"
    average = ", on average" * (len(patched.pairs) > 1)
    means = f"{clean} on clean prompts and {corrupt} on corrupted ones, {unit}{average}."
    return title, means, doc.Bullets(lines), *refused


def _estimates(
    metrics: Sequence[str], estimates: Estimates, agreement: pd.DataFrame, stacks: Mapping[str, Any]
) -> Section:
    blocks: list[doc.Block] = [_TEXTS["why estimates"]]
    columns = "method direction of spearman pearson n idle unmeasured"
    for metric in metrics:
        rows = agreement.loc[agreement["metric"] == metric].to_dict("records")
        caption = _TEXTS["agreement"].format(figures.metric_unit(metric)[0])
        blocks.append(SCHEMAS["correlations"].page(rows, columns, caption))
    if counts := estimates.edges:
        extent = _TEXTS["edges sampled" if counts["sampled"] else "edges all"].format_map(counts)
        numbers = {name: number(count) for name, count in counts.items() if isinstance(count, int)}
        blocks.append(_TEXTS["edges there"].format(**numbers, which=extent))
    if ATP_STAR in set(agreement["method"]) and max(each["layers"] for each in stacks.values()) == 2:
        blocks.append(doc.caveat(_TEXTS["two layers"]))
    blocks += [doc.caveat(f"{method} left out: {why}.") for method, why in estimates.left_out.items()]
    return Section("Estimates beside the truth", blocks, "estimates")

"""What did patching find? Turns one run of `interp patch` into the sections of its page."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from analyses import figures
from analyses.page import sections as doc
from analyses.page.sections import SCHEMAS, Page, Section, Text
from analyses.patch.cell_estimates import ATP_STAR, Estimates
from analyses.patch.patch_run import Patched
from analyses.wording import plain_words
from analyses.wording.formats import counted, interval, number

_TOP, _NAMES, _EDGES = 10, 3, 6  # cells in a table, cells in a sentence, edges in a table
FEW = 20  # pairs below which intervals are rough
_PAIRS = 12  # on the page; the rest is in the table
_BOUNDS = {True: ("share_low", "share_high"), False: ("ci_low", "ci_high")}  # by whether a share is said
_VERBS = {"denoise": "restores", "noise": "removes"}
_WORDS: Mapping[str, Any] = plain_words.WORDS["patch"]
_TEXTS: Mapping[str, str] = _WORDS["texts"]


def page(patched: Patched, model: Mapping[str, Any]) -> Page:
    """What a run of patching says and shows; `model` is as run.json has it."""
    stacks, metrics = model["stacks"], patched.how["metrics"]
    estimates, prompts, answers = patched.estimates, patched.prompts, patched.cells.answers
    sections = [_prompts(patched), *(_metric(patched, metric) for metric in metrics)]
    terms, tables = dict(_WORDS["definitions"]), {"cells": patched.cells.table, "pairs": patched.pairs}
    if estimates is not None and patched.correlations is not None:
        n_layers = max(stack["layers"] for stack in stacks.values())
        sections.append(_estimates(metrics, estimates, patched.correlations, n_layers))
        tables |= {"estimates": estimates.table, "correlations": patched.correlations}
        terms |= _WORDS["estimate_definitions"]
    file: Text = [f"{prompts['file']}, SHA-256 ", doc.code(prompts["sha256"])]
    return Page(
        title=f"Which part of {model['name']} carries the difference?",
        summary=_summary(patched, by_stack=len(stacks) > 1),
        sections=[*sections, Section("How to read this", [doc.Definitions([*terms.items()], "terms")], "reading")],
        made=[
            ("prompts", file if prompts["file"] else "given with the command"),
            ("site", f"{patched.site}{', by position' * patched.how['by_position']}"),
        ],
        tables=tables,
        facts={
            "answers": answers and {**asdict(answers), "share_right": answers.share, "sign": answers.sign},
            "prompts": prompts,
            "positions": patched.positions,
            "site": patched.site,
            "place": patched.cells.place,
            **patched.how,
            "share_refused": patched.cells.share_refused,
            "estimates": estimates and {"left_out": estimates.left_out, "edges": estimates.edges},
        },
    )


def _tops(patched: Patched, metric: str, count: int) -> list[tuple[str, list[dict[str, Any]]]]:
    cells = patched.cells.table
    rows = cells.loc[cells["metric"] == metric]
    rows = rows.assign(size=rows["effect"].abs()).sort_values("size", ascending=False, kind="stable")
    tops = [(str(way), rows.loc[rows["direction"] == way].head(count)) for way in cells["direction"].unique()]
    return [(way, [{**row, "cell": figures.cell_name(row)} for row in best.to_dict("records")]) for way, best in tops]


def _has_share(row: Mapping[str, Any]) -> bool:
    return bool(np.isfinite(row["share"]))


def _summary(patched: Patched, *, by_stack: bool) -> list[doc.Block]:
    """Whether the model does the task, what was patched, and in which stack where there are several."""
    count, answers, cells, how = len(patched.pairs), patched.cells.answers, patched.cells.table, patched.how
    first: list[doc.Block] = [] if answers is None else [answers.sentence]
    if answers is not None and answers.refused:
        why = f": {answers.unsaid}" if answers.unsaid else ""
        failed = f"So nothing here shows a circuit of this task, and no shares are given{why}."
        first = [doc.caveat(answers.sentence), doc.caveat(failed)]
    site = _WORDS["sites"].get(patched.site, patched.site)
    if by_stack:
        site += f", in the {how['stack']}" + "’s cross-attention" * (how["attention"] == "cross")
    axes = [axis for axis in ("layer", "head", "position", "query", "key") if axis in cells]
    unit = plain_words.listed([axis for axis in axes if not all(pd.isna(place) for place in cells[axis].tolist())])
    rough = [doc.caveat(f"Fewer than {FEW} pairs: intervals are rough.")] if count < FEW else []
    return [
        *first,
        f"Patched was {site}, one {unit} at a time, on {counted(count, 'pair')} of prompts.",
        doc.Definitions([_short(patched, metric) for metric in how["metrics"]]),
        *([doc.caveat(_TEXTS["one pair"])] if count == 1 else [*rough, doc.remark(_TEXTS["same prompts"])]),
    ]


def _short(patched: Patched, metric: str) -> tuple[doc.Block, ...]:
    name, unit = figures.metric_unit(metric)
    clean, corrupt, _ = map(number, _means(patched, metric))
    average = ", on average" if len(patched.pairs) > 1 else ""
    before = f"{clean} on clean prompts and {corrupt} on corrupted ones, {unit}{average}."
    counts, lines = unit.removeprefix("in ") if unit.startswith("in ") else "", []
    for direction, rows in _tops(patched, metric, _NAMES):
        has_share, parts = _has_share(rows[0]), []
        for row in rows:
            verb = f" {_VERBS[direction] if has_share else 'moves it by'} " if row is rows[0] else " "
            size = number(row["share"]) if _has_share(row) else f"{number(row['effect'])} {counts}"
            bounds = interval(*(row[end] for end in _BOUNDS[_has_share(row)]))
            soft = [] if bounds == "–" else [" ", doc.soft(f"(95% {bounds})")]
            parts.append([doc.bold(row["cell"]), verb, size, *soft])
        end = " of the difference." if has_share else "."
        lines.append([doc.emphasis(direction), ": alone, ", *doc.joined(parts), end])
    answers, instead = patched.cells.answers, f"Effects are given {unit} instead."
    repeated = answers is not None and answers.refused == patched.cells.share_refused.get(metric, "")
    refused = [doc.caveat(instead)] if repeated else _refused(patched, metric, f" {instead}")
    return doc.link(f"{name[:1].upper()}{name[1:]}", metric), before, doc.Bullets(lines), *refused


def _means(patched: Patched, metric: str) -> tuple[float, float, float]:
    clean, corrupt = (patched.pairs[f"{which}_{metric}"].to_numpy(dtype=float) for which in ("clean", "corrupt"))
    return float(clean.mean()), float(corrupt.mean()), float((clean - corrupt).mean())


def _refused(patched: Patched, metric: str, instead: str = "") -> list[doc.Block]:
    why = patched.cells.share_refused.get(metric)
    return [doc.caveat(f"Shares are refused: {why}.{instead}")] if why else []


def _prompts(patched: Patched) -> Section:
    """The prompts token by token, changed ones marked, with their answers; and each metric before patching."""
    rows, file = patched.pairs.to_dict("records"), patched.prompts["file"]
    pairs = list(zip(rows[:_PAIRS], patched.tokens, strict=False))
    lead: list[doc.Piece] = [counted(len(rows), "pair"), *([" from ", doc.code(file)] if file else [])]
    lead.append(_TEXTS["prompts"])
    if len(rows) > len(pairs):
        lead += [f" Here are the first {len(pairs)}; ", doc.code("tables/pairs"), " has all."]
    shared = next((name for name in ("target", "source") if name in patched.pairs), None)
    if shared is None and pairs and pairs[0][1].shared:
        shared = "target"  # the decoder's start alone
    columns = ["row", "clean prompt, and corrupted below", *([f"{shared} of both"] if shared else [])]
    cells = [
        [
            str(row["row"]),
            [doc.Tokens([*zip(words, tokens.changed, strict=True)])],
            *([doc.Tokens([(token, False) for token in tokens.shared])] if shared else []),
            [doc.Tokens([(row[answer], False)])],
        ]
        for row, tokens in pairs
        for words, answer in ((tokens.clean, "answer_token"), (tokens.corrupt, "wrong_token"))
    ]
    means = [
        [name, *map(number, _means(patched, metric)), unit]
        for metric in patched.how["metrics"]
        for name, unit in [figures.metric_unit(metric)]
    ]
    before = f"Before patching{', mean over pairs' if len(rows) > 1 else ''}."
    left_out = [f"{counted(count, 'pair')}, because {why}" for why, count in patched.prompts["left_out"].items()]
    blocks: list[doc.Block] = [
        lead,
        doc.Table([*columns, "right, wrong answer"], cells, "rww" if shared else "rw"),
        doc.Table(["metric", "clean", "corrupted", "difference", "unit"], means, "lrrr", before),
        f"Left out: {'; '.join(left_out) or 'none'}.",
    ]
    return Section("What was patched", blocks, "prompts")


def _metric(patched: Patched, metric: str) -> Section:
    name, unit = figures.metric_unit(metric)
    cells, place = patched.cells.table, patched.cells.place
    shares = bool(cells.loc[cells["metric"] == metric, "share"].notna().any())
    ways = []
    for way, rows in _tops(patched, metric, _NAMES):
        sizes = [f"{row['cell']} {number(row['share' if _has_share(row) else 'effect'])}" for row in rows]
        ways.append(f"{way}: {', '.join(sizes)}")
    alt = f"The largest effects of {place or patched.site} on the {name}. {'; '.join(ways)}."
    drawn = [
        doc.Figure(f"{kind}-{metric}", figure, _TEXTS[kind].format(scale=_TEXTS["whole"] * shares).strip(), alt)
        for kind, figure in figures.sweep_figures(cells, metric, place=place).items()
    ]
    columns = "cell size size_interval share share_interval q n"
    tables = [
        SCHEMAS["cells"].page(rows, columns, _TEXTS["strongest"].format(way.capitalize(), _TEXTS[way], len(rows), unit))
        for way, rows in _tops(patched, metric, _TOP)
    ]
    blocks = [*_refused(patched, metric), *drawn, Section("The strongest cells", tables)]
    return Section(f"Where the {name} comes from", blocks, metric)


def _estimates(metrics: Sequence[str], estimates: Estimates, correlations: pd.DataFrame, n_layers: int) -> Section:
    blocks: list[doc.Block] = [_TEXTS["why estimates"]]
    columns, table = "method direction of spearman pearson n idle unmeasured", estimates.table
    for metric in metrics:
        rows = correlations.loc[correlations["metric"] == metric].to_dict("records")
        ranks = [f"{row['method']}, {row['direction']}: rank correlation {number(row['spearman'])}" for row in rows]
        name, edges = figures.metric_unit(metric)[0], _edges(table, metric)
        figure, alt = figures.estimate_panels(table, correlations, metric), _TEXTS["agreement alt"]
        blocks += [
            SCHEMAS["correlations"].page(rows, columns, _TEXTS["agreement"].format(name)),
            doc.Figure(f"estimates-{metric}", figure, _TEXTS["estimates"], alt.format("; ".join(ranks))),
        ]
        if edges:
            caption = _TEXTS["edges"].format(name)
            blocks.append(SCHEMAS["correlations"].page(edges, "edge direction exact EAP EAP-IG", caption))
    if counts := estimates.edges:
        which = _TEXTS["edges sampled" if counts["sampled"] else "edges all"].format_map(counts)
        numbers = {name: number(count) for name, count in counts.items() if isinstance(count, int)}
        blocks.append(_TEXTS["edges there"].format(**numbers, which=which))
    if ATP_STAR in set(correlations["method"]) and n_layers == 2:
        blocks.append(doc.caveat(_TEXTS["two layers"]))
    blocks += [doc.caveat(f"{method} left out: {why}.") for method, why in estimates.left_out.items()]
    return Section("Estimates beside the truth", blocks, "estimates")


def _edges(estimates: pd.DataFrame, metric: str) -> list[dict[str, Any]]:
    rows = estimates.loc[(estimates["metric"] == metric) & estimates["sender"].notna() & estimates["exact"].notna()]
    if rows.empty:
        return []
    keys = ["direction", "sender", "receiver", "exact"]
    table = rows.pivot_table(index=keys, columns="method", values="estimate", sort=False).reset_index()
    table = table.assign(size=table["exact"].abs()).sort_values("size", ascending=False, kind="stable")
    order = [table.loc[table["direction"] == direction].head(_EDGES) for direction in rows["direction"].unique()]
    return [{**row, "edge": figures.cell_name(row)} for row in pd.concat(order).to_dict("records")]

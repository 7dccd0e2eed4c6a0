"""What did patching find? Turns one run of `interp patch` into the sections of its page."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from analyses import figures
from analyses.page.sections import (
    Block,
    Bullets,
    Definitions,
    Figure,
    Page,
    Paragraph,
    Piece,
    Section,
    Table,
    Text,
    Tokens,
    bold,
    caveat,
    code,
    emphasis,
    joined,
    link,
    remark,
    soft,
)
from analyses.patch.cell_estimates import ATP_STAR, Estimates
from analyses.patch.edge_estimates import EAP, EAP_IG
from analyses.patch.patch_run import Patched
from analyses.patch.task_answers import Answers
from analyses.wording import plain_words
from analyses.wording.formats import counted, false_discovery_rate, interval, number

_TOP, _NAMED, _EDGES = 10, 3, 6  # cells in a table, cells in a sentence, edges in a table
FEW = 20  # pairs below which intervals are rough
_PAIRS = 12  # shown; the rest is in the table
_VERBS = {"denoise": "restores", "noise": "removes"}
_ASKS = {"denoise": "Clean into corrupted: is it enough?", "noise": "Corrupted into clean: is it needed?"}
_SITES = {
    "z": "what each head mixes from the values, before it is written (z)",
    "q": "each head’s queries (q)",
    "k": "the keys of each key/value head (k)",
    "v": "the values of each key/value head (v)",
    "pattern": "each head’s attention pattern",
    "scores": "each head’s attention scores, before the softmax",
    "resid_pre": "the residual stream into each layer (resid_pre)",
    "resid_mid": "the residual stream between attention and feed-forward (resid_mid)",
    "resid_post": "the residual stream out of each layer (resid_post)",
    "attn_out": "what each layer’s attention writes (attn_out)",
    "mlp_out": "what each layer’s feed-forward writes (mlp_out)",
    "cross_attn_out": "what each layer’s cross-attention writes (cross_attn_out)",
    "resid_cross": "the residual stream after cross-attention (resid_cross)",
}
_WHOLE = "1 is the whole difference between clean and corrupted prompts, 0 none of it."
_CAPTIONS = {
    "cells": "Each cell patched alone; both directions have one colour scale. {scale} What is hatched does not exist.",
    "top": "The largest effects either way, with 95% intervals where there are several pairs. {scale}",
}
_STRONGEST = "{}. {} The {} largest effects either way, findings or not."
_ESTIMATES = (
    "Each point is a cell or an edge: what gradients estimate, and what patching measures. ρ is the rank correlation, "
    "r the linear one. The farthest from the line have their names."
)
_TWO_LAYERS = (
    "This model has two layers. GradDrop drops one layer at a time, and so of every cell’s paths AtP* sees only those "
    "that pass the other layer by: read its numbers here as those of direct paths."
)
DEFINITIONS: dict[str, Text] = {
    "denoise": (
        "The corrupted prompt is run with one cell’s activation from the clean one. What the cell restores shows that "
        "it is enough (Heimersheim & Nanda 2024)."
    ),
    "noise": (
        "The clean prompt is run with one cell’s activation from the corrupted one. What the cell removes shows that "
        "it is needed. Other cells may stand in for it, so a small effect does not show that it does nothing."
    ),
    "effect": (
        "The patched value less the corrupted prompt’s (denoise), or the clean prompt’s less the patched value "
        "(noise), in the metric’s unit, mean over pairs. A cell that carries everything has the whole difference, "
        "clean less corrupted; one with the other sign works against it."
    ),
    "share": (
        "The effect over the whole difference between clean and corrupted prompts: 1 is all of it, 0 none. Shares of "
        "several cells need not add up to 1."
    ),
    "refused": (
        "Where the difference lies within three standard errors of 0 over the pairs, has the wrong sign, or the model "
        "prefers the right answer no more often than a coin would (asked from five pairs on), a share of it would mean "
        "nothing, and none is given."
    ),
    "95% interval, q": [
        "Studentised bootstrap over pairs; false discovery rate (Benjamini & Hochberg 1995) over all rows of ",
        code("tables/cells"),
        ". No interval of fewer than three pairs, no q of a single one or where nothing moves.",
    ],
}
OF_ESTIMATES: dict[str, Text] = {
    "attribution patching": (
        "The difference between the two prompts’ activations times the metric’s gradient (Nanda 2023)."
    ),
    "QK fix, AtP*": (
        "For queries and keys the new attention pattern is computed, not linearised; AtP* adds GradDrop, which keeps "
        "cells whose paths cancel (Kramár et al. 2024). AtP* has no sign: mean absolute estimates are held against "
        "mean absolute effects."
    ),
    "EAP, EAP-IG": (
        "The same for edges, from what one component writes to what another reads (Syed et al. 2023); EAP-IG averages "
        "gradients between the two prompts (Hanna et al. 2024). Exact is the direct path, everything else kept as it "
        "was (path patching of one edge, Goldowsky-Dill et al. 2023). Receivers k and v are named by key/value head."
    ),
    "idle": (
        "Cells and edges that by patching and by every estimate move nothing: before the first token that differs, for "
        "instance. They are no part of the correlations, where they would agree for nothing."
    ),
}


def page(patched: Patched, model: Mapping[str, Any]) -> Page:
    """What a run of patching says and shows; `model` is as run.json has it."""
    stacks = model["stacks"]
    metrics = patched.how["metrics"]
    estimates, prompts = patched.estimates, patched.prompts
    terms = DEFINITIONS | (OF_ESTIMATES if estimates else {})
    tables = {"cells": patched.cells.table, "pairs": patched.pairs}
    if estimates is not None and patched.correlations is not None:
        tables |= {"estimates": estimates.table, "correlations": patched.correlations}
    file: Text = (
        [f"{prompts['file']}, SHA-256 ", code(prompts["sha256"])] if prompts["file"] else "given with the command"
    )
    by_position = ", by position" if patched.how["by_position"] else ""
    return Page(
        title=f"Which part of {model['name']} carries the difference?",
        summary=_summary(patched, _site(patched, several=len(stacks) > 1)),
        sections=[
            _prompts(patched),
            *(_metric(patched, metric) for metric in metrics),
            *([_estimates(patched, estimates, max(stack["layers"] for stack in stacks.values()))] if estimates else []),
            Section("How to read this", [Definitions([*terms.items()], "terms")], "reading"),
        ],
        made=[("prompts", file), ("site", f"{patched.site}{by_position}")],
        tables=tables,
        facts={
            "answers": _answered(patched.cells.answers),
            "prompts": prompts,
            "positions": patched.positions,
            "site": patched.site,
            "place": patched.cells.place,
            **patched.how,
            "share_refused": patched.cells.share_refused,
            "estimates": estimates and {"left_out": estimates.left_out, "edges": estimates.edges},
        },
    )


def _answered(answers: Answers | None) -> dict[str, Any] | None:
    """Whether the model does the task, for run.json."""
    if answers is None:
        return None
    return {"share_right": answers.share, "sign": "right" if answers.difference > 0 else "wrong", **asdict(answers)}


def _site(patched: Patched, *, several: bool) -> str:
    """What was patched, and in which of two stacks."""
    site, stack = _SITES.get(patched.site, patched.site), patched.how["stack"]
    if not several:
        return site
    return (
        f"{site}, in the {stack}’s cross-attention"
        if patched.how["attention"] == "cross"
        else f"{site}, in the {stack}"
    )


def _named(metric: str) -> str:
    return figures.metric_unit(metric)[0]


def _unit(cells: pd.DataFrame) -> str:
    """What one patch changes."""
    known = [axis for axis in ("layer", "head", "position", "query", "key") if axis in cells]
    axes = [axis for axis in known if not all(pd.isna(place) for place in cells[axis].tolist())]
    return plain_words.listed(axes)


def _tops(cells: pd.DataFrame, metric: str, count: int) -> list[tuple[str, list[dict[str, Any]]]]:
    """The cells with the largest effects either way, direction by direction."""
    rows = cells.loc[cells["metric"] == metric]
    rows = rows.assign(size=rows["effect"].abs()).sort_values("size", ascending=False, kind="stable")
    return [
        (direction, rows.loc[rows["direction"] == direction].head(count).to_dict("records"))
        for direction in cells["direction"].unique()
    ]


def _has_share(row: Mapping[str, Any]) -> bool:
    """Whether a cell's size is best said as its share: where shares mean anything."""
    return bool(np.isfinite(row["share"]))


# In short.


def _summary(patched: Patched, site: str) -> list[Block]:
    count = len(patched.pairs)
    one = caveat("One pair tells nothing of other prompts, so nothing here has an interval.")
    few = [caveat(f"Fewer than {FEW} pairs: intervals are rough.")] if count < FEW else []
    same = "Cells are chosen and reported on the same prompts, so the largest look a little larger than they are."
    answers = patched.cells.answers
    first = [] if answers is None else [(caveat if answers.refused else _plain)(answers.said)]
    failed = answers is not None and answers.refused
    why = f": {answers.unsaid}" if answers is not None and answers.unsaid else ""
    no_circuit = [caveat(f"So nothing here shows a circuit of this task, and no shares are given{why}.")]
    return [
        *first,
        *(no_circuit if failed else []),
        f"Patched was {site}, one {_unit(patched.cells.table)} at a time, on {counted(count, 'pair')} of prompts.",
        Definitions([_short(patched, metric) for metric in patched.how["metrics"]]),
        *([one] if count == 1 else [*few, remark(same)]),
    ]


def _plain(text: str) -> str:
    return text


def _short(patched: Patched, metric: str) -> tuple[Block, ...]:
    """What one metric was, and which cells move it most."""
    name, unit = figures.metric_unit(metric)
    clean, corrupt = _unpatched(patched, metric)
    means = [number(float(values.mean())) for values in (clean, corrupt)]
    average = ", on average" if len(clean) > 1 else ""
    said = f"{means[0]} on clean prompts and {means[1]} on corrupted ones, {unit}{average}."
    counts = unit.removeprefix("in ") if unit.startswith("in ") else ""
    ways = [_way(direction, rows, counts) for direction, rows in _tops(patched.cells.table, metric, _NAMED)]
    answers, instead = patched.cells.answers, f"Effects are given {unit} instead."
    said_before = answers is not None and answers.refused == patched.cells.share_refused.get(metric, "")
    refused = [caveat(instead)] if said_before else _refused(patched, metric, f" {instead}")
    return link(f"{name[:1].upper()}{name[1:]}", metric), said, Bullets(ways), *refused


def _unpatched(patched: Patched, metric: str) -> tuple[np.ndarray, np.ndarray]:
    clean, corrupt = (patched.pairs[f"{which}_{metric}"].to_numpy(dtype=float) for which in ("clean", "corrupt"))
    return clean, corrupt


def _refused(patched: Patched, metric: str, instead: str = "") -> list[Paragraph]:
    why = patched.cells.share_refused.get(metric)
    return [caveat(f"Shares are refused: {why}.{instead}")] if why else []


def _way(direction: str, rows: Sequence[Mapping[str, Any]], counts: str) -> Text:
    """The largest effects in one direction as a sentence."""
    share = _has_share(rows[0])
    verb = _VERBS[direction] if share else "moves it by"
    cells = [
        [bold(figures.cell_name(row)), f" {verb} " if row is rows[0] else " ", *_size(row, counts)] for row in rows
    ]
    return [emphasis(direction), ": alone, ", *joined(cells), " of the difference." if share else "."]


def _size(row: Mapping[str, Any], counts: str) -> list[Piece]:
    """How large an effect is: its share of the whole where there is one, else in the metric's unit."""
    share = _has_share(row)
    said = number(row["share"]) if share else f"{number(row['effect'])} {counts}"
    sure = interval(row["share_low"], row["share_high"]) if share else interval(row["ci_low"], row["ci_high"])
    return [said] if sure == "–" else [f"{said} ", soft(f"(95% {sure})")]


# What was patched.


def _prompts(patched: Patched) -> Section:
    """The prompts token by token, changed ones marked, with their answers; and each metric before patching."""
    rows, file = patched.pairs.to_dict("records"), patched.prompts["file"]
    pairs = list(zip(rows[:_PAIRS], patched.tokens, strict=False))
    lead: list[Piece] = [counted(len(rows), "pair"), *([" from ", code(file)] if file else [])]
    lead.append(
        ", token by token; tokens in which the two prompts of a pair differ are marked. An answer is read at its first "
        "token that differs from the other answer’s."
    )
    if len(rows) > len(pairs):
        lead += [f" Here are the first {len(pairs)}; ", code("tables/pairs"), " has all."]
    beside = next((name for name in ("target", "source") if name in patched.pairs), None)
    if beside is None and pairs and pairs[0][1].beside:
        beside = "target"  # the decoder's start alone
    columns = ["row", "clean prompt, and corrupted below", *([f"{beside} of both"] if beside else [])]
    shown = [
        [
            str(row["row"]),
            [Tokens([*zip(words, tokens.changed, strict=True)])],
            *([Tokens([(token, False) for token in tokens.beside])] if beside else []),
            [Tokens([(row[answer], False)])],
        ]
        for row, tokens in pairs
        for words, answer in ((tokens.clean, "answer_token"), (tokens.corrupt, "wrong_token"))
    ]
    before = f"Before patching{', mean over pairs' if len(rows) > 1 else ''}."
    left_out = [f"{counted(count, 'pair')}, because {why}" for why, count in patched.prompts["left_out"].items()]
    return Section(
        "What was patched",
        [
            lead,
            Table([*columns, "right, wrong answer"], shown, "rww" if beside else "rw"),
            Table(
                ["metric", "clean", "corrupted", "difference", "unit"],
                [_means(patched, metric) for metric in patched.how["metrics"]],
                "lrrr",
                before,
            ),
            f"Left out: {'; '.join(left_out) or 'none'}.",
        ],
        "prompts",
    )


def _means(patched: Patched, metric: str) -> list[Text]:
    """A metric on clean and on corrupted prompts, and its whole difference."""
    name, unit = figures.metric_unit(metric)
    clean, corrupt = _unpatched(patched, metric)
    return [name, *(number(float(values.mean())) for values in (clean, corrupt, clean - corrupt)), unit]


# Cells.


def _metric(patched: Patched, metric: str) -> Section:
    """The figures of a metric, and its strongest cells."""
    name, unit = figures.metric_unit(metric)
    cells, place = patched.cells.table, patched.cells.place
    shares = bool(cells.loc[cells["metric"] == metric, "share"].notna().any())
    alt = _alt(patched, metric)
    drawn = [
        Figure(
            f"{kind}-{metric}",
            figure,
            _CAPTIONS[kind].format(scale=_WHOLE if shares else "").strip(),
            alt,
        )
        for kind, figure in figures.sweep_figures(cells, metric, place=place).items()
    ]
    columns = ["cell", f"effect, {unit}", "95% interval", "share", "95% interval", "q", "n"]
    tables = [
        Table(columns, [*map(_row, rows)], "lrrrrrr", _STRONGEST.format(way.capitalize(), _ASKS[way], len(rows)))
        for way, rows in _tops(cells, metric, _TOP)
    ]
    blocks = [*_refused(patched, metric), *drawn, Section("The strongest cells", tables)]
    return Section(f"Where the {name} comes from", blocks, metric)


def _row(row: Mapping[str, Any]) -> list[Text]:
    """One cell as text."""
    return [
        bold(figures.cell_name(row)),
        number(row["effect"]),
        interval(row["ci_low"], row["ci_high"]),
        number(row["share"]),
        interval(row["share_low"], row["share_high"]),
        false_discovery_rate(row["q"]),
        number(row["n"]),
    ]


def _alt(patched: Patched, metric: str) -> str:
    """What the map or the dots of a metric show, for one who cannot see them."""
    tops = []
    for direction, rows in _tops(patched.cells.table, metric, _NAMED):
        each = [f"{figures.cell_name(row)} {number(row['share' if _has_share(row) else 'effect'])}" for row in rows]
        tops.append(f"{direction}: {', '.join(each)}")
    return f"The largest effects of {patched.cells.place or patched.site} on the {_named(metric)}. {'; '.join(tops)}."


# Estimates.


def _estimates(patched: Patched, estimates: Estimates, n_layers: int) -> Section:
    """Each method's agreement with the exact effects, and the strongest edges."""
    assert patched.correlations is not None
    blocks: list[Block] = [
        "Gradients estimate all effects at the price of a few passes, where patching takes one for each. Here both "
        "were made, so that it can be seen how far the estimates are to be trusted on prompts like these."
    ]
    for metric in patched.how["metrics"]:
        blocks += _agreement(patched.correlations, estimates.table, metric)
    if estimates.edges:
        blocks.append(_chosen(estimates.edges))
    if ATP_STAR in set(patched.correlations["method"]) and n_layers == 2:
        blocks.append(caveat(_TWO_LAYERS))
    blocks += [caveat(f"{method} left out: {why}.") for method, why in estimates.left_out.items()]
    return Section("Estimates beside the truth", blocks, "estimates")


def _agreement(correlations: pd.DataFrame, estimates: pd.DataFrame, metric: str) -> list[Block]:
    """One metric: correlations, the figure, and the edges with the largest effects."""
    rows = correlations.loc[correlations["metric"] == metric].to_dict("records")
    numbers = ("spearman", "pearson", "n", "idle", "unmeasured")
    cells = [
        [bold(row["method"]), row["direction"], row["of"], *(number(row[name]) for name in numbers)] for row in rows
    ]
    columns = ["method", "direction", "of", "rank correlation ρ", "linear r", "n", "idle, left out", "not measured"]
    each = [f"{row['method']}, {row['direction']}: rank correlation {number(row['spearman'])}" for row in rows]
    alt = f"Estimated against exact effects, one panel a method and direction. {'; '.join(each)}."
    name, edges = _named(metric), _edges(estimates, metric)
    figure = figures.estimate_panels(estimates, correlations, metric)
    largest = f"The edges with the largest measured effects on the {name}, direct path alone."
    return [
        Table(columns, cells, "lllrrrrr", f"Agreement with the exact effect on the {name}."),
        Figure(f"estimates-{metric}", figure, _ESTIMATES, alt),
        *([Table(["edge", "direction", "exact", "EAP", "EAP-IG"], edges, "llrrr", largest)] if edges else []),
    ]


def _edges(estimates: pd.DataFrame, metric: str) -> list[list[Text]]:
    """The edges with the largest exact effects, a few a direction, with both estimates."""
    rows = estimates.loc[(estimates["metric"] == metric) & estimates["sender"].notna() & estimates["exact"].notna()]
    if rows.empty:
        return []
    keys = ["direction", "sender", "receiver", "exact"]
    table = rows.pivot_table(index=keys, columns="method", values="estimate", sort=False).reset_index()
    table = table.assign(size=table["exact"].abs()).sort_values("size", ascending=False, kind="stable")
    return [
        [bold(figures.cell_name(row)), row["direction"], *(number(row[name]) for name in ("exact", EAP, EAP_IG))]
        for direction in rows["direction"].unique()
        for row in table.loc[table["direction"] == direction].head(_EDGES).to_dict("records")
    ]


def _chosen(edges: Mapping[str, Any]) -> str:
    """How many edges there are, and which of them were measured."""
    there = (
        f"There are {number(edges['edges'])} edges. {number(edges['from_embedding'])} of them lead from the embedding, "
        "which path patching does not measure."
    )
    some = (
        f"Of the others were measured, for each direction and metric, all that end in {edges['receivers']} receivers "
        f"drawn by chance (seed {edges['seed']}) or in the {edges['receivers']} with the strongest estimates. The "
        "correlations are over those drawn by chance alone."
    )
    points = f"EAP-IG averages gradients over {edges['steps']} points on the way from one prompt to the other."
    return f"{there} {some if edges['sampled'] else 'All others were measured.'} {points}"

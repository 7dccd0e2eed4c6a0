"""What does one run of `interp patch` leave? Its pairs, every cell, estimates where asked for, and its page."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analyses import figures
from analyses.corpora.sentence_pairs import read_sentences
from analyses.execution.provenance import digest
from analyses.page import sections as doc
from analyses.page.sections import SCHEMAS, Page, Section, Text
from analyses.patch.cell_estimates import ATP_STAR, Estimates, Progress, check_metrics, correlations, estimates_of
from analyses.patch.cells import NO_OUTPUT, Cells, cells_of, sweeps
from analyses.wording import plain_words
from analyses.wording.formats import counted, interval, number
from interp import InputError, Model, Tokenizer
from interp.patching import Pairs
from interp.patching.pair_files import COLUMNS, FIXED, place, read_columns
from interp.patching.pairs import answers_in

_AGREEING = ("is", "are"), ("was", "were"), ("has", "have"), ("does", "do")
_OTHER_NUMBER = {one + n: other + n for verb in _AGREEING for one, other in (verb, verb[::-1]) for n in ("", "n't")}
_TOP, _NAMES, _EDGES = 10, 3, 6  # cells in a table, cells in a sentence, edges in a table
FEW = 20  # pairs below which intervals are rough
_PAIRS = 12  # on the page; the rest is in the table
_BOUNDS = {True: ("share_low", "share_high"), False: ("ci_low", "ci_high")}  # by whether a share is said
_VERBS = {"denoise": "restores", "noise": "removes"}
_WORDS: Mapping[str, Any] = plain_words.WORDS["patch"]
_TEXTS: Mapping[str, str] = _WORDS["texts"]


class PromptTokens(NamedTuple):
    """The tokens of a clean and of a corrupted prompt, which of them differ, and those of the text that both share."""

    clean: list[str]
    corrupt: list[str]
    changed: list[bool]
    shared: list[str]


@dataclass(frozen=True)
class Patched:
    """What was patched and what came of it; `prompts` and `how` are for the record."""

    site: str
    how: Mapping[str, Any]
    prompts: Mapping[str, Any]
    pairs: pd.DataFrame
    tokens: Sequence[PromptTokens]
    cells: Cells
    positions: Mapping[str, Sequence[int]]  # of each pair, by name
    estimates: Estimates | None = None
    correlations: pd.DataFrame | None = None


def find(
    model: Model,
    prompts: pd.DataFrame,
    site: str = "z",
    *,
    estimates: bool = False,
    drop: bool = False,
    as_typed: bool = False,
    positions: Mapping[str, int | str] | None = None,
    by_position: bool | None = None,
    source: Path | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    **options: Any,
) -> Patched:
    """Sweep one site over all pairs.

    Args:
        model: a transformer with a tokenizer.
        prompts: columns clean, corrupt, answer, wrong, and target or source where the model reads two texts.
        site: what is patched.
        estimates: set gradient estimates beside the exact effects.
        drop: leave out and count pairs that cannot be used.
        as_typed: take texts as they are: put no space before answers, and read no braces.
        positions: names for tokens of all prompts, as in `Pairs.from_texts`.
        by_position: whether positions are patched one by one; by default where some have names.
        source: the file that the prompts come from.
        seed: of everything random.
        progress: called with what is being done.
        options: `directions`, `metrics`, `stack` and `attention` of `analyses.patch.cells.sweeps`.
    """
    say = progress or (lambda stage, count: None)
    if model.config.output == "none":
        raise InputError(NO_OUTPUT)
    if estimates:
        check_metrics(options.get("metrics", ()))
    file, prompts = None if source is None else source.name, with_corrupt(model, prompts)
    pairs = make_pairs(model, prompts, drop=drop, as_typed=as_typed, positions=positions, source=file)
    by_position = bool(pairs.positions) if by_position is None else by_position
    say("patching", 0)
    exact = sweeps(model, pairs, site, by_position=by_position, **options)
    config = {"by_position": by_position, "directions": [each.direction for each in exact]}
    config |= {"metrics": [*exact[0].values], "stack": exact[0].stack, "attention": options.get("attention", "self")}
    cells = cells_of(model, exact, seed=seed)
    sha256 = None if source is None else digest([source.read_bytes()])
    patched = Patched(
        site=site,
        how=config,
        prompts={"file": file, "sha256": sha256, "pairs": len(pairs), "left_out": pairs.left_out},
        pairs=_pairs_table(model, prompts, pairs, cells.prompts),
        tokens=_prompt_tokens(model, pairs),
        cells=cells,
        positions={name: indices.tolist() for name, indices in pairs.positions.items()},
    )
    if not estimates:
        return patched
    say("estimating", 0)
    estimated = estimates_of(model, pairs, exact, seed=seed, progress=say)
    return replace(patched, estimates=estimated, correlations=correlations(estimated.table))


def read_pairs(file: Path) -> pd.DataFrame:
    """The table of prompts in a CSV file, as `Pairs.from_csv` reads it, or in one of BLiMP, for `with_corrupt`."""
    if ".jsonl" not in file.suffixes:
        return pd.DataFrame(read_columns(file))
    rows = [
        (good.before, bad.before, good.word, bad.word if bad.word != good.word else _OTHER_NUMBER.get(good.word, ""))
        for good, bad in read_sentences(file)
    ]
    if not any(wrong for *_, wrong in rows):
        expected = "one_prefix_word_good and one_prefix_word_bad, or as two_prefix_word a form of be, have or do"
        raise InputError(f"{file} has no pair with two words to tell apart: expected {expected}")
    alike = all(clean == corrupt for clean, corrupt, *_ in rows)
    return pd.DataFrame(rows, columns=[*COLUMNS]).drop(columns=["corrupt"] * alike)


def with_corrupt(model: Model, prompts: pd.DataFrame) -> pd.DataFrame:
    """A table with a corrupted prompt in each row; where none has one, it is the clean prompt of another row.

    That is the prompt of as many tokens which asks for the same answers the other way round and shares most words with
    the row's own, of equal ones the least used; empty where there is none.
    """
    if "corrupt" in prompts:
        return prompts
    if model.tokenizer is None:
        raise InputError("this model has no tokenizer: give pairs as ids (Pairs.from_ids)")
    sizes = [len(model.tokenizer.pieces(text).ids) for text in prompts["clean"]]
    rows, corrupt = [*zip(prompts["clean"], prompts["answer"], prompts["wrong"], sizes, strict=True)], []
    uses: dict[tuple[str, str, int], Counter[str]] = defaultdict(Counter)  # of the prompts that ask each question
    for clean, answer, wrong, size in rows:
        uses[answer, wrong, size][clean] = 0
    for clean, answer, wrong, size in rows:
        others = uses.get((wrong, answer, size), Counter([""]))
        distances = {each: (sum(map(str.__ne__, clean.split(), each.split())), n) for each, n in others.items()}
        corrupt.append(min(distances, key=distances.__getitem__))
        others[corrupt[-1]] += 1
    return prompts.assign(corrupt=corrupt).reindex(columns=[*COLUMNS])


def read_prompts(typed: Mapping[str, str | None], file: Path | None) -> pd.DataFrame:
    """The table of prompts: one whole pair that was typed, or those of a file, not both."""
    texts = {name: text for name, text in typed.items() if text is not None}
    if file is not None:
        if texts:
            raise InputError(f"expected one pair or a file of them; got --pairs and --{', --'.join(texts)}")
        return read_pairs(file)
    if missing := [name for name in COLUMNS if name not in texts]:
        raise InputError(
            "expected --clean, --corrupt, --answer and --wrong, or --pairs FILE.csv; "
            f"--{', --'.join(missing)} {'is' if len(missing) == 1 else 'are'} not given"
        )
    return pd.DataFrame([texts], columns=[*COLUMNS, *(name for name in FIXED if name in texts)])


def read_places(typed: Sequence[str]) -> dict[str, int | str]:
    """Places by name, each typed as NAME=PLACE."""
    by_name: dict[str, int | str] = {}
    for text in typed:
        name, _, index = text.partition("=")
        if not name or not index or name in by_name:
            raise InputError(f"expected --position NAME=PLACE, as END=-1, each name once; got {text!r}")
        by_name[name] = place(index)
    return by_name


def make_pairs(
    model: Model,
    prompts: pd.DataFrame,
    *,
    drop: bool = False,
    as_typed: bool = False,
    positions: Mapping[str, int | str] | None = None,
    source: str | None = None,
) -> Pairs:
    """Pairs from a table of prompts and answers, by `Pairs.from_columns`; `source` is the file that they come from.

    Positions stand in the order of the prompts, on average, however their names were given.
    """
    prompts = with_corrupt(model, prompts)
    columns = {str(name): prompts[name].tolist() for name in prompts}
    pairs = Pairs.from_columns(model, columns, drop=drop, as_typed=as_typed, positions=positions, file=source)
    order = sorted(pairs.positions, key=lambda name: float(pairs.positions[name].double().mean()))
    return replace(pairs, positions={name: pairs.positions[name] for name in order})


def _pairs_table(
    model: Model, prompts: pd.DataFrame, pairs: Pairs, values: Mapping[str, Sequence[float]]
) -> pd.DataFrame:
    table = prompts.iloc[list(pairs.kept)].reset_index(drop=True)
    table.insert(0, "row", [row + 1 for row in pairs.kept])
    for column, ids in (("answer_token", pairs.right), ("wrong_token", pairs.wrong)):
        assert ids is not None
        table[column] = _labels(answers_in(model), ids.tolist())
    return table.assign(**values)


def _prompt_tokens(model: Model, pairs: Pairs) -> list[PromptTokens]:
    tokenizer = model.tokenizer if pairs.source is None else answers_in(model)
    batch = pairs.target or pairs.source
    shared_tokenizer = answers_in(model) if pairs.target is not None else model.tokenizer
    tokens = []
    for row, length in enumerate(pairs.clean.lengths.tolist()):
        clean, corrupt = (each.ids[row, :length].tolist() for each in (pairs.clean, pairs.corrupt))
        changed = [a != b for a, b in zip(clean, corrupt, strict=True)]
        shared = [] if batch is None else batch.ids[row, : int(batch.lengths[row])].tolist()
        prompts = _labels(tokenizer, clean), _labels(tokenizer, corrupt)
        tokens.append(PromptTokens(*prompts, changed, _labels(shared_tokenizer, shared)))
    return tokens


def _labels(tokenizer: Tokenizer | None, ids: Sequence[int]) -> list[str]:
    assert tokenizer is not None
    return tokenizer.labels(ids)


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
        method=[
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
    count, answers, cells, config = len(patched.pairs), patched.cells.answers, patched.cells.table, patched.how
    first: list[doc.Block] = [] if answers is None else [answers.sentence]
    if answers is not None and answers.refused:
        why = f": {answers.unsaid}" if answers.unsaid else ""
        failed = f"So nothing here shows a circuit of this task, and no shares are given{why}."
        first = [doc.caveat(answers.sentence), doc.caveat(failed)]
    site = _WORDS["sites"].get(patched.site, patched.site)
    if by_stack:
        site += f", in the {config['stack']}" + "’s cross-attention" * (config["attention"] == "cross")
    axes = [axis for axis in ("layer", "head", "position", "query", "key") if axis in cells]
    unit = plain_words.listed([axis for axis in axes if not all(pd.isna(place) for place in cells[axis].tolist())])
    rough = [doc.caveat(f"Fewer than {FEW} pairs: intervals are rough.")] if count < FEW else []
    return [
        *first,
        f"Patched was {site}, one {unit} at a time, on {counted(count, 'pair')} of prompts.",
        doc.Definitions([_short(patched, metric) for metric in config["metrics"]]),
        *([doc.caveat(_TEXTS["one pair"])] if count == 1 else [*rough, doc.remark(_TEXTS["same prompts"])]),
    ]


def _short(patched: Patched, metric: str) -> tuple[doc.Block, ...]:
    name, unit = figures.metric_unit(metric)
    clean, corrupt, _ = map(number, _means(patched, metric))
    average = ", on average" if len(patched.pairs) > 1 else ""
    means = f"{clean} on clean prompts and {corrupt} on corrupted ones, {unit}{average}."
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
    return doc.link(f"{name[:1].upper()}{name[1:]}", metric), means, doc.Bullets(lines), *refused


def _means(patched: Patched, metric: str) -> tuple[float, float, float]:
    clean, corrupt = (patched.pairs[f"{which}_{metric}"].to_numpy(dtype=float) for which in ("clean", "corrupt"))
    return float(clean.mean()), float(corrupt.mean()), float((clean - corrupt).mean())


def _refused(patched: Patched, metric: str, instead: str = "") -> list[doc.Block]:
    why = patched.cells.share_refused.get(metric)
    return [doc.caveat(f"Shares are refused: {why}.{instead}")] if why else []


def _prompts(patched: Patched) -> Section:
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
    caption = f"Before patching{', mean over pairs' if len(rows) > 1 else ''}."
    left_out = [f"{counted(count, 'pair')}, because {why}" for why, count in patched.prompts["left_out"].items()]
    blocks: list[doc.Block] = [
        lead,
        doc.Table([*columns, "right, wrong answer"], cells, "rww" if shared else "rw"),
        doc.Table(["metric", "clean", "corrupted", "difference", "unit"], means, "lrrr", caption),
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
    drawings = [
        doc.Figure(f"{kind}-{metric}", figure, _TEXTS[kind].format(scale=_TEXTS["whole"] * shares).strip(), alt)
        for kind, figure in figures.sweep_figures(cells, metric, place=place).items()
    ]
    columns = "cell size size_interval share share_interval q n"
    tables = [
        SCHEMAS["cells"].page(rows, columns, _TEXTS["strongest"].format(way.capitalize(), _TEXTS[way], len(rows), unit))
        for way, rows in _tops(patched, metric, _TOP)
    ]
    blocks = [*_refused(patched, metric), *drawings, Section("The strongest cells", tables)]
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
        extent = _TEXTS["edges sampled" if counts["sampled"] else "edges all"].format_map(counts)
        numbers = {name: number(count) for name, count in counts.items() if isinstance(count, int)}
        blocks.append(_TEXTS["edges there"].format(**numbers, which=extent))
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

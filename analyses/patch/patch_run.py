"""A run of `interp patch`: its pairs, the effect of every cell, and estimates on request."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

import interp
from analyses.corpora.sentence_pairs import read_sentences
from analyses.execution.progress import WRITING, Say, Stages
from analyses.execution.provenance import digest
from analyses.patch.cell_estimates import Estimates, check_metrics, estimates_of
from analyses.patch.cells import NO_OUTPUT, Cells, cells_of, sweeps
from analyses.tasks.flips import ANSWERED
from analyses.viewer.passages import Passage, passage
from interp import InputError, Model, Tokenizer
from interp.patching import Pairs
from interp.patching.pair_files import COLUMNS, FIXED, place, read_columns
from interp.patching.pairs import answers_in

_AGREEING = ("is", "are"), ("was", "were"), ("has", "have"), ("does", "do")
_OTHER_NUMBER = {one + n: other + n for verb in _AGREEING for one, other in (verb, verb[::-1]) for n in ("", "n't")}
PAIRS = 3  # on the page; the rest is in the table


class PromptTokens(NamedTuple):
    """The tokens of a clean and a corrupted prompt, which of them differ, and those of the text that both share."""

    clean: list[str]
    corrupt: list[str]
    changed: list[bool]
    shared: list[str]


@dataclass(frozen=True)
class Patched:
    """The settings and results of a run; `prompts` and `how` are for the record."""

    site: str
    how: Mapping[str, Any]
    prompts: Mapping[str, Any]
    pairs: pd.DataFrame
    tokens: Sequence[PromptTokens]  # of the first pairs
    passages: Sequence[Passage]  # what heads look at in the first pair; empty if no head is patched
    # mean probabilities of right and wrong answers: on `clean` and `corrupt` prompts, then with the best cell patched
    probabilities: Sequence[tuple[str, str, float, float]]
    cells: Cells
    positions: Mapping[str, Sequence[int]]  # name: position in each pair
    estimates: Estimates | None


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
    progress: Say | None = None,
    **options: Any,
) -> Patched:
    """Sweep one site over all pairs; `estimates` adds gradient estimates to the exact effects.

    `prompts` has columns clean, corrupt, answer, wrong, and target or source if the model reads two texts; `source` is
    its file. `drop`, `as_typed` and `positions` are as in `Pairs.from_columns`; `by_position` patches positions one
    by one, by default if some have names. `options` are `directions`, `metrics`, `stack` and `attention` of
    `analyses.patch.cells.sweeps`.
    """
    say = Stages.to(progress)
    if model.config.output == "none":
        raise InputError(NO_OUTPUT)
    if estimates:
        check_metrics(options.get("metrics", ()))
    file, prompts = None if source is None else source.name, with_corrupt(model, prompts)
    pairs = make_pairs(model, prompts, drop=drop, as_typed=as_typed, positions=positions, source=file)
    by_position = bool(pairs.positions) if by_position is None else by_position
    say.plan(["patching", *["estimating"] * estimates, WRITING])
    say("patching", 0)
    said = partial(say, "patching")
    exact = sweeps(model, pairs, site, by_position=by_position, answered=True, progress=said, **options)
    answered = [[{kind: part.pop(kind) for kind in ANSWERED} for part in (e.clean, e.corrupt, e.values)] for e in exact]
    first, cells = exact[0], cells_of(model, exact, seed=seed)
    unpatched = [*zip(("clean", "corrupt"), answered[0], strict=False)]
    by_pair = {f"{side}_{kind}_probability": part[kind].tolist() for side, part in unpatched for kind in ANSWERED}
    means: list[Any] = [(side, "", *(float(part[kind].mean()) for kind in ANSWERED)) for side, part in unpatched]
    for each, (*_, part) in zip(exact, answered, strict=True):
        sizes = each.mean().abs().nan_to_num(-1)
        best = tuple(map(int, np.unravel_index(int(sizes.argmax()), sizes.shape)))
        means.append((each.direction, each.label(best), *(float(part[kind][best].nanmean()) for kind in ANSWERED)))
    config = {"by_position": by_position, "directions": [each.direction for each in exact]}
    config |= {"metrics": [*first.values], "stack": first.stack, "attention": options.get("attention", "self")}
    sha256, estimated = None if source is None else digest([source.read_bytes()]), None
    if estimates:
        estimated = estimates_of(model, pairs, exact, seed=seed, progress=partial(say, "estimating"))
    return Patched(
        site=site,
        how=config,
        prompts={"file": file, "sha256": sha256, "pairs": len(pairs), "left_out": pairs.left_out},
        pairs=_pairs_table(model, prompts, pairs, {**cells.prompts, **by_pair}),
        tokens=_prompt_tokens(model, pairs.take(torch.arange(min(PAIRS, len(pairs))))),
        passages=_passages(model, pairs) if "head" in first.axes else (),
        probabilities=means,
        cells=cells,
        positions={name: indices.tolist() for name, indices in pairs.positions.items()},
        estimates=estimated,
    )


def read_pairs(file: Path) -> pd.DataFrame:
    """The table of prompts in a CSV file (as for `Pairs.from_csv`), or in a file of BLiMP, for `with_corrupt`."""
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
    """Add a corrupted prompt to each row, if the column is missing: the clean prompt of another row.

    The other row has equally many tokens and the answers exchanged, shares the most words with this one, and is the
    least used of equal candidates. Without such a row, the corrupted prompt is empty.
    """
    if "corrupt" in prompts:
        return prompts
    if model.tokenizer is None:
        raise InputError("this model has no tokenizer: give pairs as ids (Pairs.from_ids)")
    sizes = [len(model.tokenizer.pieces(text).ids) for text in prompts["clean"]]
    rows, corrupt = [*zip(prompts["clean"], prompts["answer"], prompts["wrong"], sizes, strict=True)], []
    uses: dict[tuple[str, str, int], Counter[str]] = defaultdict(Counter)  # uses of each prompt
    for clean, answer, wrong, size in rows:
        uses[answer, wrong, size][clean] = 0
    for clean, answer, wrong, size in rows:
        others = uses.get((wrong, answer, size), Counter([""]))
        distances = {each: (sum(map(str.__ne__, clean.split(), each.split())), n) for each, n in others.items()}
        corrupt.append(min(distances, key=distances.__getitem__))
        others[corrupt[-1]] += 1
    return prompts.assign(corrupt=corrupt).reindex(columns=[*COLUMNS])


def read_prompts(typed: Mapping[str, str | None], file: Path | None) -> pd.DataFrame:
    """The table of prompts: one typed pair or those of a file, not both."""
    texts = {name: text for name, text in typed.items() if text is not None}
    if file is not None:
        if texts:
            raise InputError(f"expected one pair or a file of them; got --pairs and --{', --'.join(texts)}")
        return read_pairs(file)
    if missing := [name for name in COLUMNS if name not in texts]:
        expected = "expected --clean, --corrupt, --answer and --wrong, or --pairs FILE.csv"
        raise InputError(f"{expected}; --{', --'.join(missing)} {'is' if len(missing) == 1 else 'are'} not given")
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
    """Pairs from a table of prompts and answers, by `Pairs.from_columns`; `source` is the name of their file.

    Positions are sorted by their mean place in the prompts, whatever the order of their names.
    """
    prompts = with_corrupt(model, prompts)
    columns = {str(name): prompts[name].tolist() for name in prompts}
    pairs = Pairs.from_columns(model, columns, drop=drop, as_typed=as_typed, positions=positions, file=source)
    order = sorted(pairs.positions, key=lambda name: float(pairs.positions[name].double().mean()))
    return replace(pairs, positions={name: pairs.positions[name] for name in order})


def _pairs_table(model: Model, prompts: pd.DataFrame, pairs: Pairs, values: Mapping[str, Any]) -> pd.DataFrame:
    table = prompts.iloc[list(pairs.kept)].reset_index(drop=True)
    table.insert(0, "row", [row + 1 for row in pairs.kept])
    for column, ids in (("answer_token", pairs.right), ("wrong_token", pairs.wrong)):
        table[column] = _labels(answers_in(model), [] if ids is None else ids.tolist())
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


def _passages(model: Model, pairs: Pairs) -> list[Passage]:
    inputs = pairs.take(torch.tensor([0], device=pairs.last.device)).inputs
    return [passage(interp.run(model, text, until="*.pattern", target=target)) for text, target in inputs]

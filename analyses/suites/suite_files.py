"""How are test suites read? As BLiMP's JSON Lines, SyntaxGym's JSON, or tables of good and bad sentences.

A table is a CSV file with one pair per row: the columns `good` and `bad`, and any of `paradigm` (else the file's name),
`field`, `phenomenon`, `group` (the template or lemma), `pole` (which class of answers is right) and `sister` (the
paradigm of the other pole). Braces in a sentence name its parts: `The {named:keys} to the cabinet {critical:are}`.
"""

import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from analyses.corpora import sentence_pairs
from analyses.corpora.text_rows import json_object
from analyses.suites.items import BAD, CRITICAL, DIFFERING, GOOD, NAMED, Item, Paradigm, Sentence, Suite, alike, joined
from analyses.suites.predictions import ALL_REGIONS, Prediction, Region
from interp.bounded_files import is_file, lines, unpacked_name, whole
from interp.errors import InputError, inside
from interp.patching.pair_files import read_columns, unmarked
from interp.statistics import FEWEST_CLUSTERS
from interp.tokens import Span

LARGEST, MOST_ITEMS = 1 << 26, 100_000  # bytes and items per file
LONGEST, _MOST = 2_000, 64  # characters per sentence; predictions, conditions per item, regions per condition
_COLUMNS = ("paradigm", "field", "phenomenon", "group", "pole", "sister")
_NAMES = ".jsonl", ".json", ".csv"
_WORD = re.compile(r"\w[\w'’-]*|[^\w\s]")
_Row = tuple[Sentence, Sentence, dict[str, str]]  # good, bad, and their values of `_COLUMNS`
_GYM = 'expected a suite as SyntaxGym has them, an object with "meta", "predictions" and "items"'


def read(*paths: str | Path) -> Suite:
    """Read all files as one suite; content decides the format. A directory's files come in the order of their names.

    From a directory only `*.jsonl`, `*.json` and `*.csv` are read, also with `.gz` or `.zst` appended. JSON Lines
    without pairs of sentences are left out and counted.

    Raises:
        InputError: there is no file; a file is no suite, is damaged, or exceeds a limit; two paradigms share a name.
    """
    paradigms, left_out = list[Paradigm](), Counter[str]()
    for path in map(Path, paths):
        if not is_file(path):
            raise InputError(f'no file or directory "{path}": expected a suite of BLiMP, SyntaxGym, or a CSV table')
        inner = sorted(file for file in path.iterdir() if file.is_file()) if path.is_dir() else []
        for file in [file for file in inner if unpacked_name(file).endswith(_NAMES)] or [path]:
            first = next((line for line in lines(file) if line.strip()), "").lstrip()
            is_blimp = '"sentence_good"' in first
            if file != path and ".jsonl" in file.suffixes and not is_blimp:
                left_out["files of JSON Lines without pairs of sentences"] += 1
                continue
            try:
                if first.startswith("{") and not is_blimp:
                    paradigms.append(_syntaxgym(file))
                else:
                    paradigms += _paradigms(file, [*islice((_blimp if is_blimp else _table)(file), MOST_ITEMS + 1)])
            except InputError as error:
                raise InputError(f"{error}" if str(file) in str(error) else f"{file}: {error}") from error
    if not paradigms:
        raise InputError(f"{', '.join(map(str, paths))}: no suite here: expected {', '.join(_NAMES)}")
    return joined([Suite(", ".join(Path(path).name for path in paths), tuple(paradigms), left_out)])


def _blimp(file: Path) -> Iterator[_Row]:
    uses = {"paradigm": "UID", "field": "field", "phenomenon": "linguistics_term"}
    for row, *pair in sentence_pairs.read_rows(file):
        sentences = []
        for text, before, word in pair:
            start = len(before) + 1
            decides = word and text.startswith(f"{before} {word}")
            sentences.append(Sentence(text, {CRITICAL: (start, start + len(word))} if decides else {}))
        about = {use: str(row.get(key, "")).replace("/", "_") for use, key in uses.items()}  # syntax/semantics
        yield sentences[0], sentences[1], about


def _table(file: Path) -> Iterator[_Row]:
    columns = read_columns(file, (GOOD, BAD), _COLUMNS)
    for number, (good, bad) in enumerate(zip(columns[GOOD], columns[BAD], strict=True), 1):
        if not good.strip() or not bad.strip():
            raise InputError(f"row {number} lacks a sentence: expected good and bad")
        about = {name: columns[name][number - 1].strip() for name in _COLUMNS if name in columns}
        pair = Sentence(*unmarked(good)), Sentence(*unmarked(bad))
        marked = {*pair[0].spans}, {*pair[1].spans}
        if unknown := marked[0].union(marked[1]) - {CRITICAL, NAMED}:
            raise InputError(f"row {number} marks {min(unknown)}: expected {NAMED} or {CRITICAL}")
        if alone := marked[0] ^ marked[1]:
            names = " and ".join(sorted(alone))
            raise InputError(f"row {number} marks {names} in only one sentence: mark the same in good and bad")
        yield *pair, about


def _paradigms(file: Path, rows: Sequence[_Row]) -> list[Paradigm]:
    if len(rows) > MOST_ITEMS:
        raise InputError(f"more than {MOST_ITEMS:,} pairs: divide the file")
    by_name, paradigms = defaultdict[str, list[_Row]](list), list[Paradigm]()
    for row in rows:
        _check_length(row[:2])
        by_name[row[2].get("paradigm") or unpacked_name(file).rpartition(".")[0]].append(row)
    for name, part in by_name.items():
        field, phenomenon, sister = (part[0][2].get(key, "") for key in ("field", "phenomenon", "sister"))
        paradigms.append(Paradigm(name, _items(part), field, phenomenon, sister or _contrasts()[0].get(name)))
    return paradigms


def _items(rows: Sequence[_Row]) -> tuple[Item, ...]:
    """Items with their differing spans; group and pole, if not given, follow from the words."""
    pairs = [_with_differing(row[:2]) for row in rows]
    words = [(good.text[slice(*good.spans[DIFFERING])], bad.text[slice(*bad.spans[DIFFERING])]) for good, bad in pairs]
    groups, items = _groups([good.text[: good.spans[DIFFERING][0]] for good, _ in pairs], words), list[Item]()
    counts = Counter(words)
    left = {(one, other): min(n, counts[other, one]) for (one, other), n in counts.items()}  # equally many both ways
    for number, ((*_, about), (good, bad), both) in enumerate(zip(rows, pairs, words, strict=True)):
        pole = about["pole"] if "pole" in about else _answer_class(*both) if left[both] > 0 else ""
        left[both] -= 1
        key = str(number + 1)
        items.append(Item(key, about.get("group") or groups[number] or key, {GOOD: good, BAD: bad}, pole))
    return tuple(items)


def _with_differing(pair: Sequence[Sentence]) -> list[Sentence]:
    """Both sentences, with the words between their common beginning and end as the span `differing`."""
    matches, sentences = [[*_WORD.finditer(each.text)] for each in pair], list[Sentence]()
    words = [[match[0] for match in each] for each in matches]
    begin = alike(*words)
    end = alike(*(each[begin:][::-1] for each in words))
    for sentence, places in zip(pair, matches, strict=True):
        rest, inner = places[begin:], places[begin : len(places) - end]
        start = rest[0].start() if rest else len(sentence.text)
        span = (start, inner[-1].end() if inner else start)
        sentences.append(replace(sentence, spans={**sentence.spans, DIFFERING: span}))
    return sentences


def _groups(before: Sequence[str], words: Sequence[tuple[str, ...]]) -> Sequence[str]:
    """Group names: the words that differ, or the word before them, if that gives enough groups; else empty names."""
    by_words = [" / ".join(sorted(pair)) for pair in words]
    by_word = [(text.split() or [""])[-1] for text in before]
    enough = (each for each in (by_words, by_word) if len({*each}) >= FEWEST_CLUSTERS)
    return next(enough, [""] * len(words))


@cache
def _contrasts() -> tuple[dict[str, str], dict[str, str]]:
    """The sister of each paradigm, and the class of each answer."""
    tables = tomllib.loads(Path(__file__).with_name("contrasts.toml").read_text("utf-8"))
    sisters = {one: other for pair in tables["sisters"] for one, other in (pair, pair[::-1])}
    return sisters, {word: name for name, words in tables["answers"].items() for word in words.split()}


def _answer_class(word: str, other: str) -> str:
    """The class of an answer opposed to another; empty if unknown."""
    classes = _contrasts()[1]
    word, other = (each.lower().removesuffix("n't") for each in (word, other))
    ours, theirs = classes.get(word), classes.get(other)
    if ours and theirs and ours != theirs:
        return ours
    with_s = [each.endswith("s") for each in (word, other)]
    if not any(with_s) or (all(with_s) and len(word) == len(other)) or " " in word + other:
        return ""
    is_with = with_s[0] and (not with_s[1] or len(word) > len(other))  # dresses against dress
    return "with -s" if is_with else "without -s"


def _syntaxgym(file: Path) -> Paradigm:
    suite = json_object(whole(file, LARGEST), _GYM)
    meta, entries = _part(suite, "meta", dict), _part(suite, "items", list)
    if (metric := meta.get("metric", "sum")) not in ("sum", ["sum"]):
        raise InputError(f'expected the metric "sum" of a region\'s surprisals, got {metric!r:.80}')
    predictions = tuple(Prediction.parse(_part(each, "formula", str)) for each in _part(suite, "predictions", list))
    if not 0 < len(entries) <= MOST_ITEMS or not 0 < len(predictions) <= _MOST:
        expected = f"expected 1-{MOST_ITEMS:,} items and 1-{_MOST} predictions"
        raise InputError(f"{expected}, got {len(entries):,} and {len(predictions)}")
    read = [*dict.fromkeys(region for prediction in predictions for region in prediction.regions)]
    items = []
    for number, entry in enumerate(entries, 1):
        with inside(f"item {number}"):
            items.append(_gym_item(number, entry, read))
    name = str(meta.get("name") or unpacked_name(file).rpartition(".")[0])
    return Paradigm(name, tuple(items), phenomenon=str(meta.get("phenomenon", "")), predictions=predictions)


def _gym_item(number: int, entry: Any, read: Sequence[Region]) -> Item:
    sentences, numbers = dict[str, Sentence](), {region.number for region in read} - {ALL_REGIONS}
    conditions = _part(entry, "conditions", list)
    if max(map(len, [conditions, *(_part(each, "regions", list) for each in conditions)])) > _MOST:
        raise InputError(f"expected at most {_MOST} conditions, and regions of each; got more")
    for condition in conditions:
        text, spans = "", dict[str, Span]()
        for region in condition["regions"]:
            content = _part(region, "content", str).strip()
            text += " " * bool(text and content)
            spans[str(region.get("region_number"))] = (len(text), len(text) + len(content))
            text += content
        if len(numbers) == 1 and numbers <= spans.keys():
            spans[CRITICAL] = spans[min(numbers)]
        sentences[_part(condition, "condition_name", str)] = Sentence(text, spans)
    _check_length([*sentences.values()])
    for region in read:
        if region.condition not in sentences or region.number not in (ALL_REGIONS, *sentences[region.condition].spans):
            raise InputError(f"expected {region}, which predictions read; got none")
    key = str(entry.get("item_number", number))
    return Item(key, key, sentences)


def _check_length(sentences: Sequence[Any]) -> None:
    if long := [sentence.text for sentence in sentences if not 0 < len(sentence.text) <= LONGEST]:
        raise InputError(f"expected sentences of 1-{LONGEST:,} characters, got {len(long[0]):,}: {long[0]:.40}")


def _part(whole: Any, key: str, kind: type) -> Any:
    """The value of a key in a JSON object; any other type than `kind` is an `InputError`."""
    value = whole.get(key) if isinstance(whole, dict) else None
    if not isinstance(value, kind):
        expected = {dict: "an object", list: "a list", str: "a text"}[kind]
        raise InputError(f'{_GYM}; "{key}" must be {expected}, got {value!r:.60}')
    return value

"""How are test suites read? BLiMP's lines of JSON, SyntaxGym's JSON, and tables of good and bad sentences.

A table is a CSV file, one pair a row, with the columns `good` and `bad`, and any of `paradigm` (else the file's name),
`field`, `phenomenon`, `group` (the template or lemma), `pole` (which class of answers is right) and `sister` (the
paradigm that is the other pole). Braces in a sentence name its parts: `The {named:keys} to the cabinet {critical:are}`.
"""

import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from analyses.corpora import sentence_pairs
from analyses.corpora.text_rows import json_object
from analyses.suites.items import BAD, CRITICAL, DIFFERING, GOOD, Answer, Item, Paradigm, Sentence, Suite
from analyses.suites.predictions import ALL_REGIONS, Prediction
from interp.bounded_files import is_file, lines, unpacked_name, whole
from interp.errors import InputError, inside
from interp.patching.pair_files import read_columns, unmarked
from interp.statistics import FEWEST_CLUSTERS
from interp.tokens import Span

LARGEST, MOST_ITEMS, MOST_CONDITIONS = 1 << 26, 100_000, 64  # bytes and items of a file, conditions of an item
LONGEST = 2_000  # characters of a sentence
_COLUMNS = ("paradigm", "field", "phenomenon", "group", "pole", "sister")
_NAMES = ".jsonl", ".json", ".csv"
_WORD = re.compile(r"\w[\w'’-]*|[^\w\s]")
_GYM = 'expected a suite as SyntaxGym has them, an object with "meta", "predictions" and "items"'


class _Row(NamedTuple):
    """A pair, and what is said of it; empty what is not."""

    key: str
    good: Sentence
    bad: Sentence
    about: Mapping[str, str]  # of `_COLUMNS`


def read(*paths: str | Path) -> Suite:
    """The suite of all files, in the order of their names where a path is a directory; what they are, they say inside.

    In a directory only files are read that are called `*.jsonl`, `*.json` or `*.csv`, or so with `.gz` or `.zst` after
    it; those of JSON Lines without pairs of sentences are left out and counted.

    Raises:
        InputError: nothing is there; a file is no suite, is damaged, or beyond a limit; two paradigms have one name.
    """
    paradigms, left_out = dict[str, Paradigm](), Counter[str]()
    for path in map(Path, paths):
        if not is_file(path):
            raise InputError(f'no file or directory "{path}": expected a suite of BLiMP, SyntaxGym, or a CSV table')
        inner = sorted(file for file in path.iterdir() if file.is_file()) if path.is_dir() else []
        for file in [file for file in inner if unpacked_name(file).endswith(_NAMES)] or [path]:
            first = next((line for line in lines(file) if line.strip()), "").lstrip()
            if file != path and ".jsonl" in file.suffixes and '"sentence_good"' not in first:
                left_out["files of JSON Lines without pairs of sentences"] += 1
                continue
            reader = _table if not first.startswith("{") else _blimp if '"sentence_good"' in first else _syntaxgym
            try:
                parts = [*reader(file)]
            except InputError as error:
                raise InputError(f"{error}" if str(file) in str(error) else f"{file}: {error}") from error
            if twice := [each.name for each in parts if each.name in paradigms]:
                raise InputError(f"{file}: the paradigm {twice[0]} is there already: expected different names")
            paradigms |= {each.name: each for each in parts}
    if not paradigms:
        raise InputError(f"{', '.join(map(str, paths))}: no suite is there, expected {', '.join(_NAMES)}")
    return Suite(", ".join(Path(path).name for path in paths), tuple(paradigms.values()), left_out)


def _blimp(file: Path) -> Iterable[Paradigm]:
    rows, uses = [], {"paradigm": "UID", "field": "field", "phenomenon": "linguistics_term"}
    for number, (row, *pair) in enumerate(sentence_pairs.read_rows(file), 1):
        spans = [
            {CRITICAL: (len(each.before) + 1, len(each.before) + 1 + len(each.word))}
            if each.word and each.text.startswith(f"{each.before} {each.word}")
            else {}
            for each in pair
        ]
        good, bad = (Sentence(each.text, span) for each, span in zip(pair, spans, strict=True))
        about = {use: str(row.get(key, "")) for use, key in uses.items()}
        rows.append(_Row(str(number), good, bad, about))
    return _paradigms(file, rows)


def _table(file: Path) -> Iterable[Paradigm]:
    columns, rows = read_columns(file, (GOOD, BAD), _COLUMNS), []
    for number, texts in enumerate(zip(columns[GOOD], columns[BAD], strict=True), 1):
        if not all(text.strip() for text in texts):
            raise InputError(f"row {number} lacks a sentence: expected good and bad")
        good, bad = (Sentence(*unmarked(text)) for text in texts)
        about = {name: columns[name][number - 1].strip() for name in _COLUMNS if name in columns}
        rows.append(_Row(str(number), good, bad, about))
    return _paradigms(file, rows)


def _paradigms(file: Path, rows: Sequence[_Row]) -> Iterable[Paradigm]:
    """The rows of each paradigm, as items."""
    if len(rows) > MOST_ITEMS:
        raise InputError(f"{len(rows):,} pairs are more than {MOST_ITEMS:,}: divide the file")
    by_name, sisters = defaultdict[str, list[_Row]](list), _contrasts()[0]
    for row in rows:
        for sentence in (row.good, row.bad):
            _check_length(sentence.text, f"pair {row.key}")
        by_name[row.about.get("paradigm") or unpacked_name(file).rpartition(".")[0]].append(row)
    for name, part in by_name.items():
        first = part[0].about
        sister = first.get("sister") or sisters.get(name)
        yield Paradigm(name, _items(part), first.get("field", ""), first.get("phenomenon", ""), sister)


def _items(rows: Sequence[_Row]) -> tuple[Item, ...]:
    """Pairs with what their words say: where they differ, the answer, the group, and the pole."""
    differing = [_differing(row.good.text, row.bad.text) for row in rows]
    words = [
        tuple(t[slice(*s)] for t, s in zip((row.good.text, row.bad.text), both, strict=True))
        for row, both in zip(rows, differing, strict=True)
    ]
    groups = _groups([row.good.text[: spans[0][0]] for row, spans in zip(rows, differing, strict=True)], words)
    left = Counter(words)
    left = Counter({pair: min(n, left[pair[::-1]]) for pair, n in left.items()})  # as many of either direction
    items = []
    for row, spans, pair, group in zip(rows, differing, words, groups, strict=True):
        pole = row.about.get("pole") or (_answer_class(*pair) if left[pair] > 0 else "")
        left[pair] -= 1
        good, bad = (
            replace(each, spans={**each.spans, DIFFERING: span}) for each, span in zip(row[1:3], spans, strict=True)
        )
        own = row.about.get("group") or group or f"{row.key}"
        items.append(Item(row.key, own, {GOOD: good, BAD: bad}, _answer(good, bad), pole))
    return tuple(items)


def _differing(good: str, bad: str) -> tuple[Span, Span]:
    """The words of each that come after what both begin with, and before what both end with."""
    matches = [[*_WORD.finditer(text)] for text in (good, bad)]
    ours, theirs = ([match[0] for match in each] for each in matches)
    shorter = min(len(ours), len(theirs))
    begin = next((i for i in range(shorter) if ours[i] != theirs[i]), shorter)
    end = next((i for i in range(shorter - begin) if ours[-1 - i] != theirs[-1 - i]), shorter - begin)
    spans = []
    for text, words in zip((good, bad), matches, strict=True):
        inner = words[begin : len(words) - end]
        start = words[begin].start() if begin < len(words) else len(text)
        spans.append((inner[0].start(), inner[-1].end()) if inner else (start, start))
    return spans[0], spans[1]


def _groups(before: Sequence[str], words: Sequence[tuple[str, ...]]) -> Sequence[str]:
    """Of each pair a name for what it shares with others: the words that differ, or the one before; or none at all."""
    by_words = [" / ".join(sorted(pair)) for pair in words]
    by_word = [(text.split() or [""])[-1] for text in before]
    enough = (each for each in (by_words, by_word) if len({*each}) >= FEWEST_CLUSTERS)
    return next(enough, [""] * len(words))


def _answer(good: Sentence, bad: Sentence) -> Answer | None:
    """Of two sentences that are the same up to the critical words."""
    if CRITICAL not in good.spans or CRITICAL not in bad.spans:
        return None
    (start, end), (other, last) = good.spans[CRITICAL], bad.spans[CRITICAL]
    same = good.text[:start] == bad.text[:other] and good.text[start:end] != bad.text[other:last]
    return Answer(good.text[:start].rstrip(), good.text[start:end], bad.text[other:last]) if same else None


@cache
def _contrasts() -> tuple[dict[str, str], dict[str, str]]:
    """The sister of each paradigm, and the class of each answer."""
    known = tomllib.loads(files("analyses.suites").joinpath("contrasts.toml").read_text("utf-8"))
    sisters = {one: other for pair in known["sisters"] for one, other in (pair, pair[::-1])}
    return sisters, {word: name for name, words in known["answers"].items() for word in words.split()}


def _answer_class(word: str, other: str) -> str:
    """What kind of answer a word is beside another one; empty where nothing says so."""
    classes = _contrasts()[1]
    word, other = (each.lower().removesuffix("n't") for each in (word, other))
    ours, theirs = classes.get(word), classes.get(other)
    if ours and theirs and ours != theirs:
        return ours
    with_s = [each.endswith("s") for each in (word, other)]
    if not any(with_s) or (all(with_s) and len(word) == len(other)) or " " in word + other:
        return ""
    is_with = with_s[0] and (not with_s[1] or len(word) > len(other))  # dresses, beside dress
    return "with -s" if is_with else "without -s"


def _syntaxgym(file: Path) -> Iterable[Paradigm]:
    suite = json_object(whole(file, LARGEST), _GYM)
    meta, metric = _part(suite, "meta", dict), suite["meta"].get("metric", "sum")
    if metric not in ("sum", ["sum"]):
        raise InputError(f'expected the metric "sum" of a region\'s surprisals, got {metric!r:.80}')
    name = str(meta.get("name") or unpacked_name(file).rpartition(".")[0])
    formulas = [_part(each, "formula", str) for each in _part(suite, "predictions", list)]
    predictions = tuple(map(Prediction.parse, formulas))
    entries = _part(suite, "items", list)
    if not entries or not predictions or len(entries) > MOST_ITEMS:
        raise InputError(
            f"{_GYM}, and 1-{MOST_ITEMS:,} items; got {len(entries):,}, and {len(predictions)} predictions"
        )
    items = tuple(_gym_item(number, entry, predictions) for number, entry in enumerate(entries, 1))
    yield Paradigm(name, items, phenomenon=str(meta.get("phenomenon", "")), predictions=predictions)


def _gym_item(number: int, entry: Any, predictions: Sequence[Prediction]) -> Item:
    with inside(f"item {number}"):
        sentences, conditions = {}, _part(entry, "conditions", list)
        for condition in islice(conditions, MOST_CONDITIONS):
            text, spans = "", {}
            for region in _part(condition, "regions", list):
                content = _part(region, "content", str).strip()
                text += " " * bool(text and content)
                spans[str(region.get("region_number"))] = (len(text), len(text) + len(content))
                text += content
                _check_length(text, "a sentence")
            sentences[_part(condition, "condition_name", str)] = (text, spans)
        read = {region for prediction in predictions for region in prediction.regions}
        for region in read:
            if region.condition not in sentences or region.number not in (ALL_REGIONS, *sentences[region.condition][1]):
                raise InputError(f"expected what predictions read, {region} among it; got none")
        numbers = {region.number for region in read} - {ALL_REGIONS}
        if len(numbers) == 1:
            for _, spans in sentences.values():
                spans |= {CRITICAL: spans[number] for number in numbers & spans.keys()}  # noqa: B035 (at most one)
        if empty := [name for name, (text, _) in sentences.items() if not text]:
            raise InputError(f"the condition {empty[0]} has no text: expected regions with content")
        key = str(entry.get("item_number", number))
        return Item(key, key, {name: Sentence(*each) for name, each in sentences.items()})


def _check_length(text: str, what: str) -> None:
    if len(text) > LONGEST:
        raise InputError(f"{what} is longer than {LONGEST:,} characters, the most of one sentence")


def _part(whole: Any, key: str, kind: type) -> Any:
    """The value of a key in an object of JSON, which must be of a kind."""
    value = whole.get(key) if isinstance(whole, dict) else None
    if not isinstance(value, kind):
        called = {dict: "an object", list: "a list", str: "a text"}[kind]
        raise InputError(f'{_GYM}; "{key}" is to be {called}, got {value!r:.60}')
    return value

"""Our own suites: six phenomena, in the words of the textbook model and of simple stories.

Every item has a twin in the other pole with equally many words and the answers exchanged: what is good in one is bad
in the other. So no preference for a word, a length or an ending passes both poles, and twins can be patched.
"""

import random
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from analyses.suites.items import BAD, CRITICAL, GOOD, NAMED, Item, Paradigm, Sentence, Suite
from interp.errors import InputError, whole_number
from models.stories import lexicon
from models.stories.writer import WORDS

_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
_TEXTBOOK, _STORIES = "textbook", "stories"
BUILTIN = (*_TABLES, *(f"{name}:{_STORIES}" for name in _TABLES))
"""The names of the suites: first those in the textbook model's words, then those in the words of simple stories."""
PAIRS = 60  # per paradigm
_TRIES = 100  # to draw a new pair


def builtin(name: str, *, pairs: int = PAIRS, seed: int = 0) -> Suite:
    """A suite of `BUILTIN`, with `pairs` pairs of twins per paradigm; the same seed gives the same suite.

    Twins are neighbours, and their keys end in their poles. Both belong to one group: a frame with a lemma.

    Raises:
        InputError: the name is unknown, or its words make fewer pairs.
    """
    whole_number("pairs", pairs, least=1)
    whole_number("seed", seed)
    if name not in BUILTIN:
        raise InputError(f"no suite builtin:{name}; there are {', '.join(BUILTIN)}")
    suite, colon, words = name.partition(":")
    end, words = colon + words, words or _TEXTBOOK
    built = (paradigm(f"{suite}-{key}{end}", table, words, pairs, seed) for key, table in _TABLES[suite][words].items())
    field = _TABLES[suite]["field"]
    return Suite(f"builtin:{name}", tuple(replace(each, field=field, phenomenon=suite) for each in built))


def paradigm(
    name: str, table: Mapping[str, Any], words: str = _TEXTBOOK, pairs: int = PAIRS, seed: int = 0
) -> Paradigm:
    """A paradigm of frames (`frames.toml` says how they are written), twins side by side.

    Frames and lemmas take turns. `words` says whose word lists come first: the textbook's or those of simple stories.
    """
    rng, items, texts = random.Random(f"{name}-{seed}"), list[Item](), set[str]()
    slots = {slot: _choices(listed, WORDS if words == _TEXTBOOK else {}) for slot, listed in table["slots"].items()}
    lemmas = rng.sample(slots[table["group"]], len(slots[table["group"]]))
    for number in range(pairs):
        turn, frame = divmod(number, len(table["frames"]))
        lemma = lemmas[turn % len(lemmas)]
        for _ in range(_TRIES):
            drawn = {slot: rng.choice(choices) for slot, choices in slots.items()} | {table["group"]: lemma}
            halves = [each.format(**drawn).split("<") for each in table["frames"][frame]]
            if len({*drawn.values()}) == len(drawn) and halves[0][0] not in texts:
                break
        else:
            raise InputError(f"{name}: expected fewer pairs, because its words make about {number}; got {pairs}")
        texts.add(halves[0][0])
        group = f"{frame}-{lemma if isinstance(lemma, str) else lemma[0]}"
        for pole, (start, end), (_, other_end) in zip(table["poles"], halves, reversed(halves), strict=True):
            sentences = {GOOD: _sentence(start, end), BAD: _sentence(start, other_end)}
            items.append(Item(f"{name}-{number}-{pole}", group, sentences, pole))
    return Paradigm(name, tuple(items))


def _choices(words: str, lists: Mapping[str, Sequence[Any]]) -> Sequence[Any]:
    """A list of the lexicons, by name, or the words as written; hyphenated words become tuples of forms."""
    if words.isupper():
        return lists[words] if words in lists else getattr(lexicon, words)
    return [tuple(word.split("-")) if "-" in word else word for word in words.split()]


def _sentence(start: str, end: str) -> Sentence:
    """A sentence made of both halves, its span marks removed."""
    start = re.sub("[A-Za-z]", lambda letter: letter[0].upper(), start, count=1)
    before, named, after = re.split(r"[\[\]]", start)
    critical, rest = end.split(">")
    prefix = before + named + after
    spans = {NAMED: (len(before), len(before + named)), CRITICAL: (len(prefix), len(prefix + critical))}
    return Sentence(prefix + critical + rest, spans)

"""Which rows and keys does a label speak of? The claims of every measure on one window, and a control beside each.

A claim maps rows (columns of the window's tokens) to the keys that a head with the label looks at from there: pieces of
a word's antecedents, the token before. The control has the same rows and as many other visible keys, each drawn at
about the distance of the key that it stands for; for positional labels, whose keys are given by their distance, at any.
"""

import random
from collections import defaultdict
from collections.abc import Collection
from itertools import product

import torch

from analyses.antecedents import antecedent_items
from analyses.windows import Window
from interp.annotation import ROOT
from interp.patching.knockout import Claim

Looks = dict[int, set[int]]  # for each row, its keys
OFFSETS = (-1, -2, -3, -4, -5)


def position_looks(window: Window) -> dict[str, Looks]:
    """`previous-token`, `offset:-2` to `offset:-5`, `first-token` and `duplicate-token`."""
    rows, content = _scored(window), window.content
    found: dict[str, Looks] = {
        "previous-token" if offset == -1 else f"offset:{offset}": {
            i: {i + offset} for i in rows if i + offset in content
        }
        for offset in OFFSETS
    }
    found["first-token"] = {i: {0} for i in rows if i >= 1}
    earlier: dict[int, set[int]] = defaultdict(set)
    copies: Looks = {}
    for i, id in enumerate(window.ids):
        if i in content:
            if i in rows and earlier[id]:
                copies[i] = {*earlier[id]}
            earlier[id].add(i)
    return found | {"duplicate-token": copies}


def tag_looks(window: Window, pairs: Collection[tuple[str, str]]) -> dict[str, Looks]:
    """`tag:X->Y`: from the pieces of words tagged X to those of other words tagged Y."""
    tags, columns = window.text.tags, window.columns
    found: dict[str, Looks] = {f"tag:{x}->{y}": {} for x, y in pairs}
    if tags is None:
        return found
    words: dict[str, list[int]] = defaultdict(list)
    for word in columns:
        words[tags[word]].append(word)
    for x, y in pairs:
        for word in (word for word in words[x] if window.scores(word)):
            keys = {key for other in words[y] if other != word for key in columns[other]}
            _look(found[f"tag:{x}->{y}"], columns[word], keys)
    return found


def relation_looks(window: Window, relations: Collection[str]) -> dict[str, Looks]:
    """`relation:R:dependent->head` and back: from the pieces of one end to those of the other."""
    text, columns = window.text, window.columns
    ways = "dependent->head", "head->dependent"
    found: dict[str, Looks] = {f"relation:{name}:{way}": {} for name, way in product(relations, ways)}
    if text.heads is None or text.relations is None:
        return found
    for word in columns:
        head, name = text.heads[word], text.relations[word]
        if head == ROOT or head not in columns or name not in relations:
            continue
        for query, target, way in ((word, head, ways[0]), (head, word, ways[1])):
            if window.scores(query):
                _look(found[f"relation:{name}:{way}"], columns[query], {*columns[target]})
    return found


def antecedent_looks(window: Window) -> dict[str, Looks]:
    """`antecedent`: from a pronoun to the head words of its chain before it; `antecedent:named` where the nearest is no
    pronoun."""
    columns, found = window.columns, {"antecedent": {}, "antecedent:named": {}}
    for item in antecedent_items(window.text):
        if not window.scores(item.pronoun):
            continue
        right = [word for word, correct in zip(item.candidates, item.correct, strict=True) if correct]
        keys = {key for word in right for key in columns.get(word, ())}
        _look(found["antecedent"], columns[item.pronoun], keys)
        if item.named:
            _look(found["antecedent:named"], columns[item.pronoun], keys)
    return found


def claim_with_control(
    window: Window, prompt: int, looks: Looks, rng: random.Random, *, at_distance: bool
) -> tuple[Claim, Claim] | None:
    """The claim and its control on the rows that have both and are followed by a token; None where no row does."""
    content, width = window.content, len(window.ids)
    claimed, other = [], []
    for row in sorted(looks):
        keys = {key for key in looks[row] if key <= row}
        if not keys or row + 1 not in content:
            continue
        drawn = _control(row, keys, content, rng, at_distance=at_distance)
        if drawn and len(keys) <= row:  # another key is left: rows see row + 1 keys
            claimed.append((row, keys))
            other.append((row, drawn))
    if not claimed:
        return None
    return _claim(prompt, claimed, width), _claim(prompt, other, width)


def _control(row: int, keys: set[int], content: Collection[int], rng: random.Random, *, at_distance: bool) -> set[int]:
    """As many other visible keys; one is left unhidden, so fewer where there are no more."""
    free = [key for key in range(row + 1) if key in content and key not in keys]
    drawn: set[int] = set()
    for key in sorted(keys):
        left = [other for other in free if other not in drawn]
        near = (
            [other for other in left if (row - other).bit_length() == (row - key).bit_length()] if at_distance else left
        )
        if near or left:
            drawn.add(rng.choice(near or left))
    return drawn if len(drawn) <= row else {*sorted(drawn)[:row]}


def _claim(prompt: int, rows: list[tuple[int, set[int]]], width: int) -> Claim:
    keys = torch.zeros(len(rows), width, dtype=torch.bool)
    for at, (_, claimed) in enumerate(rows):
        keys[at, sorted(claimed)] = True
    return Claim(prompt, torch.tensor([row for row, _ in rows], dtype=torch.long), keys)


def _look(looks: Looks, rows: Collection[int], keys: set[int]) -> None:
    for row in rows:
        if seen := {key for key in keys if key <= row}:
            looks.setdefault(row, set()).update(seen)


def _scored(window: Window) -> set[int]:
    """Those of them that are scored in this window."""
    return {i for i in window.content if window.word_of[i] < 0 or window.word_of[i] >= window.scored_from}

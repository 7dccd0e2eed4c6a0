"""Which rows and keys does a label speak of? The claims of every measure on one window, and controls beside each.

A claim maps rows (columns of the window's tokens) to the keys that a head with the label looks at from there: pieces of
a word's antecedents, the token before. One control has the same rows and as many other visible keys, each drawn at
about the distance of the key that it stands for; for positional labels, whose keys are given by their distance, at any.
Labels of words have another: the same rows, with keys at the distances at which the label's other rows have theirs.
What a head loses there it would lose by looking at fixed distances alone.
"""

import random
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from jaxtyping import Bool
from torch import Tensor

from analyses.antecedents import antecedent_items
from analyses.reading.windows import Window
from analyses.relations import WAYS
from interp import AnnotatedText
from interp.annotation import ROOT
from interp.patterns.positional import offset_name, offsets

_DRAWS = 20  # until one falls inside the text
Looks = dict[int, set[int]]  # for each row, its keys, whether visible or not


def position_looks(window: Window, *, causal: bool) -> dict[str, Looks]:
    """`previous-token`, `offset:k` and, unless causal, `next-token`; `first-token` and `duplicate-token`."""
    rows, content = _scored(window), window.content
    found: dict[str, Looks] = {
        offset_name(offset): {i: {i + offset} for i in rows if i + offset in content} for offset in offsets(causal)
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
    found: dict[str, Looks] = {f"relation:{name}:{way}": {} for name, way in product(relations, WAYS)}
    if text.heads is None or text.relations is None:
        return found
    for word in columns:
        head, name = text.heads[word], text.relations[word]
        if head == ROOT or head not in columns or name not in relations:
            continue
        for query, target, way in ((word, head, WAYS[0]), (head, word, WAYS[1])):
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


def unannotated(text: AnnotatedText) -> list[str]:
    """What a text is not annotated with, so that measures that speak of it claim nothing there."""
    known = {"tags": text.tags, "relations": text.relations, "chains": text.mentions}
    return [f"texts without {name}" for name, values in known.items() if values is None]


@dataclass(frozen=True)
class Hiding:
    """Rows of a window, in order, and the keys to hide from each."""

    rows: tuple[int, ...]
    keys: tuple[frozenset[int], ...]

    def take(self, rows: Collection[int]) -> "Hiding":
        """The same on some of the rows."""
        kept = [at for at, row in enumerate(self.rows) if row in rows]
        return Hiding(tuple(self.rows[at] for at in kept), tuple(self.keys[at] for at in kept))


def with_control(
    window: Window,
    looks: Looks,
    readable: Collection[int],
    rng: random.Random,
    *,
    causal: bool,
    at_distance: bool,
    counts: Counter[str],
) -> tuple[Hiding, Hiding] | None:
    """The claim, and other keys at the same rows, where both can be hidden and something can be read; None without any.

    Args:
        window: the text.
        looks: rows and keys; those that a causal stack does not see are passed over.
        readable: rows with a read-out.
        rng: draws the control's keys.
        causal: rows see no later key.
        at_distance: draw each key of the control at about the distance of one claimed.
        counts: what is left out.
    """
    content, width = sorted(window.content), len(window.ids)
    claimed: list[tuple[int, frozenset[int], frozenset[int]]] = []
    for row in sorted(looks):
        visible = row + 1 if causal else width
        keys = frozenset(key for key in looks[row] if key < visible)
        if not keys:
            continue
        if row not in readable:
            counts["rows left out: nothing to read there"] += 1
            continue
        drawn = _control(row, keys, content[: bisect_right(content, visible - 1)], rng, at_distance=at_distance)
        drawn = drawn[: visible - 1]  # a row must keep a key
        if not drawn or len(keys) == visible:
            counts["rows left out: no other key to hide"] += 1
            continue
        claimed.append((row, keys, frozenset(drawn)))
    if not claimed:
        return None
    rows, keys, others = zip(*claimed, strict=True)
    return Hiding(rows, keys), Hiding(rows, others)


def distances(looks: Looks, *, causal: bool) -> list[frozenset[int]]:
    """How far each row's keys are from it, key less row."""
    found = [frozenset(key - row for key in keys if key <= row or not causal) for row, keys in sorted(looks.items())]
    return [each for each in found if each]


def at_usual_distances(
    window: Window, claim: Hiding, usual: Sequence[frozenset[int]], rng: random.Random, *, causal: bool
) -> Hiding:
    """The claimed rows, with keys at distances drawn from those of all the label's rows; it may draw the claimed ones.

    Of what is drawn, keys that the row does not see are left out; a row whose draws all fall outside keeps its own.
    """
    content, width = window.content, len(window.ids)
    keys = []
    for row, own in zip(claim.rows, claim.keys, strict=True):
        visible = row + 1 if causal else width
        drawn = (frozenset(row + by for by in rng.choice(usual)) for _ in range(_DRAWS))
        seen = (frozenset(key for key in each if key in content and key < visible) for each in drawn)
        keys.append(next((each for each in seen if 0 < len(each) < visible), own))
    return Hiding(claim.rows, tuple(keys))


def _control(
    row: int, keys: frozenset[int], visible: Sequence[int], rng: random.Random, *, at_distance: bool
) -> list[int]:
    """As many other visible keys, or all where there are fewer."""
    free = [key for key in visible if key not in keys]
    if not at_distance:
        return rng.sample(free, min(len(keys), len(free)))
    drawn: list[int] = []
    reach = [abs(row - key).bit_length() for key in free]  # distances of the same power of two are about the same
    for key in sorted(keys):
        if not free:
            break
        own = abs(row - key).bit_length()
        near = [at for at, other in enumerate(reach) if other == own]
        at = rng.choice(near) if near else rng.randrange(len(free))
        drawn.append(free.pop(at))
        reach.pop(at)
    return drawn


def key_mask(keys: Sequence[Collection[int]], width: int) -> Bool[Tensor, "row key"]:
    """True at each row's keys."""
    mask = torch.zeros(len(keys), width, dtype=torch.bool)
    at = [(row, key) for row, own in enumerate(keys) for key in own]
    mask[tuple(torch.tensor(at).T)] = True
    return mask


def _look(looks: Looks, rows: Collection[int], keys: set[int]) -> None:
    if keys:
        for row in rows:
            looks.setdefault(row, set()).update(keys)


def _scored(window: Window) -> set[int]:
    """Columns with a token of the text that is scored in this window."""
    return {i for i in window.content if window.word_of[i] < 0 or window.word_of[i] >= window.scored_from}

"""Which keys are hidden to test a label? Those that its measure claims on one window (`Measure.looks`), and controls.

A claim maps rows (columns of the window's tokens) to the keys that a head with the label looks at from there: pieces of
a word's antecedents, the token before. One control has the same rows and as many other visible keys, each drawn at
about the distance of the key that it stands for; for positional labels, whose keys are given by their distance, at any.
Labels of words have another: the same rows, with keys at the distances at which the label's other rows have theirs.
What a head loses there it would lose by looking at fixed distances alone.
"""

import random
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence

import torch

from analyses.measures.definitions import Looks
from analyses.reading.windows import Window
from interp.patching.claimed_texts import Claim, How, Read

_DRAWS = 20  # until one falls inside the text
Keys = Mapping[int, Collection[int]]  # by row, in order; of keys that are exchanged, each is mapped to another


def with_control(
    window: Window, row_keys: Looks, readable: Collection[int], rng: random.Random, *, causal: bool, at_distance: bool
) -> tuple[Keys, Keys]:
    """The claim, and other keys at the same rows, where both can be hidden and something can be read.

    Keys that a causal stack does not see are passed over; `at_distance` draws each key of the control at about the
    distance of one claimed. Rows with nothing to read, or no other key to hide, are left out.
    """
    content, width = sorted(window.content), len(window.ids)
    claim: dict[int, frozenset[int]] = {}
    control: dict[int, frozenset[int]] = {}
    for row in sorted(row_keys):
        n_visible = row + 1 if causal else width
        keys = frozenset(key for key in row_keys[row] if key < n_visible)
        if keys and row in readable:
            draw = _other_keys(row, keys, _visible(content, row, causal), rng, at_distance=at_distance)
            draw = draw[: n_visible - 1]  # a row must keep a key
            if draw and len(keys) < n_visible:
                claim[row], control[row] = keys, frozenset(draw)
    return claim, control


def distances(row_keys: Looks, *, causal: bool) -> list[frozenset[int]]:
    """How far each row's keys are from it, key less row."""
    rows = [frozenset(key - row for key in keys if key <= row or not causal) for row, keys in sorted(row_keys.items())]
    return [row for row in rows if row]


def at_usual_distances(
    window: Window, claim: Keys, usual: Sequence[frozenset[int]], rng: random.Random, *, causal: bool
) -> Keys:
    """The claimed rows, with keys at distances drawn from those of all the label's rows; it may draw the claimed ones.

    Of what is drawn, keys that the row does not see are left out; a row whose draws all fall outside keeps its own.
    """
    control = {}
    for row, keys in claim.items():
        n_visible = row + 1 if causal else len(window.ids)
        draws = (frozenset(row + by for by in rng.choice(usual)) for _ in range(_DRAWS))
        inside = (frozenset(key for key in draw if key in window.content and key < n_visible) for draw in draws)
        control[row] = next((draw for draw in inside if 0 < len(draw) < n_visible), keys)
    return control


def exchanged(window: Window, claim: Keys, rng: random.Random, *, causal: bool) -> dict[int, dict[int, int]]:
    """For each claimed key another that the row sees, drawn at random, whose value takes the place of its own."""
    content, rows = sorted(window.content), {}
    for row, keys in claim.items():
        free = [key for key in _visible(content, row, causal) if key not in keys]
        rows[row] = {key: rng.choice(free) for key in sorted(keys)}
    return rows


def as_claim(keys: Keys, prompt: int, width: int, metric: Read, kind: How) -> Claim:
    """The claim on a text of so many columns."""
    index = torch.tensor([(number, key) for number, row_keys in enumerate(keys.values()) for key in row_keys])
    mask, partners = torch.zeros(len(keys), width, dtype=torch.bool), None
    mask[tuple(index.T)] = True
    if kind == "exchange":
        partners = torch.full(mask.shape, -1)
        columns = [row[key] for row in keys.values() if isinstance(row, Mapping) for key in row]
        partners[tuple(index.T)] = torch.tensor(columns)
    return Claim(prompt, torch.tensor([*keys]), mask, metric, kind, partners)


def _visible(content: Sequence[int], row: int, causal: bool) -> Sequence[int]:
    """Columns that the row sees, but special tokens."""
    return content[: bisect_right(content, row)] if causal else content


def _other_keys(
    row: int, keys: Collection[int], visible: Sequence[int], rng: random.Random, *, at_distance: bool
) -> list[int]:
    """As many other visible keys, or all where there are fewer."""
    free = [key for key in visible if key not in keys]
    if not at_distance:
        return rng.sample(free, min(len(keys), len(free)))
    draw: list[int] = []
    reach = [abs(row - key).bit_length() for key in free]  # distances of the same power of two are about the same
    for key in sorted(keys)[: len(free)]:
        near = [index for index, other in enumerate(reach) if other == abs(row - key).bit_length()]
        index = rng.choice(near) if near else rng.randrange(len(free))
        draw.append(free.pop(index))
        reach.pop(index)
    return draw

"""Which behaviours are there? Ours, and those that a user makes; each is a value that everything else reads."""

from collections import Counter
from collections.abc import Mapping, Sequence

from analyses import coreference, part_of_speech, position
from analyses.measures.definitions import Behaviour, Measure
from analyses.measures.head_tables import Heads
from analyses.wording.plain_words import Words
from interp import InputError

OURS: dict[str, Behaviour] = {
    each.name: each for each in (position.BEHAVIOUR, part_of_speech.BEHAVIOUR, coreference.BEHAVIOUR)
}
ACROSS: dict[str, Behaviour] = {position.CROSSING.name: position.CROSSING}
"""What cross-attention is asked instead of the behaviour of the same name."""
RECORDED = {
    measure.name: measure.recorded
    for behaviour in (*OURS.values(), *ACROSS.values())
    for measure in behaviour.measures
    if measure.recorded
}
"""Measures of heads, as the analyses call them, and how the record of a run does."""


def select(behaviours: Sequence[str | Behaviour] | None = None) -> dict[str, Behaviour]:
    """By name, those that are asked for: ours by their names, others as they are; all of ours by default.

    Raises:
        InputError: no such behaviour, or two of one name, or two measures of one name.
    """
    by_name: dict[str, Behaviour] = {}
    for item in OURS if behaviours is None else behaviours:
        if isinstance(item, str) and item not in OURS:
            raise InputError(f"no behaviour {item}: expected some of {', '.join(OURS)}")
        behaviour = OURS[item] if isinstance(item, str) else item
        if behaviour.name in by_name:
            raise InputError(f"two behaviours are called {behaviour.name}: give each a name of its own")
        by_name[behaviour.name] = behaviour
    names = Counter(measure.name for behaviour in by_name.values() for measure in behaviour.measures)
    users = [behaviour for name, behaviour in by_name.items() if behaviour is not OURS.get(name)]
    if twice := sorted({measure.name for each in users for measure in each.measures if names[measure.name] > 1}):
        raise InputError(f"several measures are called {', '.join(twice)}: give each a name of its own")
    return by_name


def asked_of(heads: Heads, behaviours: Mapping[str, Behaviour]) -> dict[str, Behaviour]:
    """What is asked of these heads: in cross-attention what is about two texts, in a stack's own what is about one."""
    if heads.attention == "cross":
        return {name: ACROSS[name] for name in behaviours if name in ACROSS}
    return dict(behaviours)


def vocabulary(behaviours: Mapping[str, Behaviour]) -> dict[str, Words]:
    """By measure and by label, its words."""
    measures = measures_of(behaviours)
    return {each.called: each.words for each in measures if each.called} | {each.name: each.words for each in measures}


def measures_of(behaviours: Mapping[str, Behaviour]) -> list[Measure]:
    """Those of the behaviours, and what is asked instead in cross-attention."""
    asked_behaviours = [*(each for name, each in ACROSS.items() if name in behaviours), *behaviours.values()]
    return [measure for behaviour in asked_behaviours for measure in behaviour.measures]

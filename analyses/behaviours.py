"""Which behaviours are there? Ours and the user's, as values that everything else reads."""

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
"""In cross-attention, these replace the behaviour of the same name."""
RECORDED = {
    measure.name: measure.recorded
    for behaviour in (*OURS.values(), *ACROSS.values())
    for measure in behaviour.measures
    if measure.recorded
}
"""Each recorded measure, and its name in the record of a training run."""


def select(behaviours: Sequence[str | Behaviour] | None = None) -> dict[str, Behaviour]:
    """Behaviours by name, from our names and a user's own values; by default all of ours.

    Raises:
        InputError: a name is unknown, or two behaviours or measures share a name.
    """
    by_name: dict[str, Behaviour] = {}
    for item in OURS if behaviours is None else behaviours:
        if isinstance(item, str) and item not in OURS:
            raise InputError(f"no behaviour {item}: expected some of {', '.join(OURS)}")
        behaviour = OURS[item] if isinstance(item, str) else item
        if behaviour.name in by_name:
            raise InputError(f"two behaviours are called {behaviour.name}: give each its own name")
        by_name[behaviour.name] = behaviour
    names = Counter(measure.name for behaviour in by_name.values() for measure in behaviour.measures)
    users = [behaviour for name, behaviour in by_name.items() if behaviour is not OURS.get(name)]
    if twice := sorted({measure.name for each in users for measure in each.measures if names[measure.name] > 1}):
        raise InputError(f"several measures are called {', '.join(twice)}: give each its own name")
    return by_name


def behaviours_for(heads: Heads, behaviours: Mapping[str, Behaviour]) -> dict[str, Behaviour]:
    """The behaviours that apply to these heads: cross-attention has its own (`ACROSS`)."""
    if heads.attention == "cross":
        return {name: ACROSS[name] for name in behaviours if name in ACROSS}
    return dict(behaviours)


def vocabulary(behaviours: Mapping[str, Behaviour]) -> dict[str, Words]:
    """How sentences word each measure and label, by name."""
    measures = measures_of(behaviours)
    return {each.called: each.words for each in measures if each.called} | {each.name: each.words for each in measures}


def measures_of(behaviours: Mapping[str, Behaviour]) -> list[Measure]:
    """All measures of the behaviours, cross-attention's first."""
    both = [*(each for name, each in ACROSS.items() if name in behaviours), *behaviours.values()]
    return [measure for behaviour in both for measure in behaviour.measures]

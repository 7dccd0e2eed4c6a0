"""What do attention and patches say of every behaviour? It is measured before any head gets a label.

Patches read no corpus, and what reads a corpus patches nothing: other processes patch while this one reads.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import pandas as pd

from analyses.behaviours import asked_of
from analyses.causal_tests import Effects, no_effects
from analyses.corpora import Corpus
from analyses.corpora.serving import Serving, serving, unserved
from analyses.execution.side_by_side import meanwhile, side_by_side
from analyses.measures import Behaviour
from analyses.reading.collectors import collected, read, refuse_unread
from analyses.reading.windows import Reading
from analyses.report.behaviour_sections import Result
from analyses.report.scaffold import Run
from analyses.tables.head_tables import EFFECT_COLUMNS, HEAD_COLUMNS, Collected, Heads, Measured, beside_norms, with_q
from interp import InputError, Model, Transformer
from interp.patterns.norm_weighted import NormWeighted

_NO_PAIRS = "there are no minimal pairs for it"
_TWO_STACKS = (
    "its minimal pairs are prompts for models of one stack; interp patch with --target patches an encoder-decoder"
)


class Served(NamedTuple):
    """A corpus, the heads that read it, and the behaviours that are asked of them."""

    used: Serving
    kind: Heads
    behaviours: Sequence[Behaviour]


@dataclass(frozen=True)
class Sums:
    """What one behaviour's measures added up to, or why there was nothing; and the same by norm where it is known."""

    behaviour: Behaviour
    kind: Heads
    used: Serving
    own: Collected | InputError
    by_norm: Collected | InputError | None = None


def measure(
    run: Run, model: Model, behaviours: Mapping[str, Behaviour], corpora: Sequence[Corpus], pairs: int | None
) -> list[Result]:
    """Every behaviour on its corpus, each corpus read once for each kind of attention."""
    kinds, needs = Heads.every(model), {name: behaviour.needs for name, behaviour in behaviours.items()}
    found: dict[tuple[str, Heads], Result] = {}
    left_out = unserved(needs, corpora)
    for name, why in left_out.items():
        if len(left_out) < len(needs):  # else it is what the command ends with
            run.say(f"{name} is left out: {why}\n", 0)
        for kind in kinds:
            if name in asked_of(kind, behaviours):
                found[name, kind] = _not_measured(behaviours[name], kind, corpora[0], why=why)
    served = list(_served(behaviours, serving(needs, corpora), kinds))
    names = list(dict.fromkeys(each.name for some in served for each in some.behaviours))
    with meanwhile([partial(_effects, model, behaviours[name], pairs, run.seed) for name in names]) as tested:
        sums = [each for one in served for each in _read(run, model, one, tested.take_back)]
        run.say(f"{', '.join(names)}: waiting for minimal pairs", 0)
        effects = dict(zip(names, tested(), strict=True))
    run.say.add({f"{name}: minimal pairs": seconds for name, (_, seconds) in effects.items()})
    run.say(f"{', '.join(names)}: intervals", 0)
    for each, measured in zip(sums, _with_intervals(sums, run.seed), strict=True):
        about = each.behaviour, each.kind, each.used.corpus, each.used.stands_in
        if isinstance(measured, str):
            found[each.behaviour.name, each.kind] = _not_measured(*about, why=measured)
        else:
            assert isinstance(each.own, Collected)
            tested_by, _ = effects[each.behaviour.name]
            found[each.behaviour.name, each.kind] = Result(*about, measured, tested_by, collected=each.own)
    return [found[behaviour, kind] for behaviour in behaviours for kind in kinds if (behaviour, kind) in found]


def corrected(results: Sequence[Result]) -> list[Result]:
    """The results with `q` over everything that the tables of heads and of effects test, all behaviours together."""
    heads = with_q([result.measured.heads for result in results])
    effects = with_q([result.tested.table for result in results])
    return [
        replace(result, measured=replace(result.measured, heads=own), tested=replace(result.tested, table=tested))
        for result, own, tested in zip(results, heads, effects, strict=True)
    ]


def tables(results: Sequence[Result]) -> dict[str, pd.DataFrame]:
    """What they found, by the names of a report's tables."""
    measured, tested = [result.measured for result in results], [result.tested.table for result in results]
    tasks = [task for result in results for task in result.tested.tasks]
    rules = [each.baselines for each in measured if len(each.baselines)]
    followed = [each.rules for each in measured if len(each.rules)]
    return {
        "heads": pd.concat([each.heads for each in measured if len(each.heads)], ignore_index=True),
        "effects": pd.concat([each for each in tested if len(each)] or tested[:1], ignore_index=True),
        **({"baselines": pd.concat(rules, ignore_index=True)} if rules else {}),
        **({"rules": pd.concat(followed, ignore_index=True)} if followed else {}),
        "tasks": pd.DataFrame(tasks, columns=None if tasks else ["task", "behaviour", "n", "refused"]),
    }


def has_rules(result: Result) -> bool:
    """Whether its heads are compared with rules, in rows of `tables/rules`."""
    return result.collected is not None and result.collected.rules is not None


def with_rules(results: Sequence[Result], rules: Sequence[pd.DataFrame]) -> list[Result]:
    """The results that have such, with their rows of `tables/rules` at hand; the others as they are."""
    tables = iter(rules)
    return [_with_rules(each, partial(_known, next(tables))) if has_rules(each) else each for each in results]


def _with_rules(result: Result, rules: Callable[..., pd.DataFrame]) -> Result:
    assert result.collected is not None
    measured, collected = replace(result.measured, followed=rules), replace(result.collected, rules=rules)
    return replace(result, measured=measured, collected=collected)


def _known(table: pd.DataFrame, *, seed: int = 0) -> pd.DataFrame:
    """What was worked out already, with the one seed of a report."""
    return table


def _served(
    behaviours: Mapping[str, Behaviour], servings: Sequence[Serving], kinds: Sequence[Heads]
) -> Iterator[Served]:
    for used in servings:
        for kind in kinds:
            some = [each for name, each in asked_of(kind, behaviours).items() if name in used.asked]
            if some:
                yield Served(used, kind, some)


def _effects(model: Model, behaviour: Behaviour, pairs: int | None, seed: int) -> tuple[Effects, float]:
    """What patches do, and how many seconds it took."""
    began = time.perf_counter()
    if len(model.config.stacks) > 1:
        found = no_effects(behaviour.name, _TWO_STACKS)
    elif behaviour.effects is None:
        found = no_effects(behaviour.name, _NO_PAIRS)
    else:
        found = behaviour.effects(model, **({} if pairs is None else {"pairs": pairs}), seed=seed)
    return found, time.perf_counter() - began


def _read(run: Run, model: Model, served: Served, while_reading: Callable[[], object]) -> list[Sums]:
    """What the collectors of one reading add up, of the model's attention and of the same weighed by norm.

    There is no norm where the model's parts are not at hand.
    """
    kind, stage = served.kind, f"{', '.join(each.name for each in served.behaviours)}: reading"
    own = [each.collector(model, seed=run.seed, heads=kind) for each in served.behaviours]
    weighted, by_norm = None, []
    if isinstance(model, Transformer):
        weighted = NormWeighted(model, kind.stack, kind.attention)
        by_norm = [each.collector(weighted, seed=run.seed, heads=kind, **each.bare) for each in served.behaviours]

    def say(texts: int) -> None:
        while_reading()
        run.say(stage, texts)

    reading = Reading(model, served.used.corpus, say, heads=kind, weighted=weighted)
    read(reading, own, by_norm)
    norms = collected(reading, by_norm) if by_norm else [None] * len(own)
    sums = zip(served.behaviours, collected(reading, own), norms, strict=True)
    return [Sums(behaviour, kind, served.used, each, weighed) for behaviour, each, weighed in sums]


def _with_intervals(sums: Sequence[Sums], seed: int) -> Iterator[Measured | str]:
    """What each says of every head, or why it says nothing; several are worked out at once."""
    made = side_by_side([partial(task, each, seed) for each in sums for task in (_own_table, _table_by_norm)])
    for each, own, by_norm in zip(sums, made[::2], made[1::2], strict=True):
        if isinstance(own, str):
            yield own
            continue
        assert isinstance(own, Measured)
        assert isinstance(each.own, Collected)
        heads = beside_norms(own.heads, by_norm) if isinstance(by_norm, pd.DataFrame) else own.heads
        followed = partial(each.own.rules, seed=seed) if each.own.rules else pd.DataFrame
        yield replace(own, heads=heads, followed=followed)


def _own_table(sums: Sums, seed: int) -> Measured | str:
    """Without what follows of it, which cannot be copied from one process to another."""
    try:
        if isinstance(sums.own, InputError):
            raise sums.own
        found = replace(sums.own, rules=None).measured(seed=seed)
        refuse_unread(found.counts, sums.used.corpus.name)
    except InputError as error:
        return str(error)
    return found


def _table_by_norm(sums: Sums, seed: int) -> pd.DataFrame | None:
    if isinstance(sums.own, Collected) and isinstance(sums.by_norm, Collected):
        return sums.by_norm.table(seed=seed)
    return None


def _not_measured(behaviour: Behaviour, kind: Heads, corpus: Corpus, stands_in: bool = False, *, why: str) -> Result:
    nothing = Measured(pd.DataFrame(columns=HEAD_COLUMNS)), Effects(pd.DataFrame(columns=EFFECT_COLUMNS))
    return Result(behaviour, kind, corpus, stands_in, *nothing, left_out=why)

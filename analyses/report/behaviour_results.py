"""What do attention and patches say of every behaviour? It is measured before any head gets a label.

Patches read no corpus, and what reads a corpus patches nothing: other processes patch while this one reads.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import pandas as pd

from analyses.behaviours import asked_of
from analyses.corpora import Corpus
from analyses.corpora.serving import Serving, serving, unserved
from analyses.execution.side_by_side import meanwhile, side_by_side
from analyses.measures.definitions import Behaviour
from analyses.measures.head_tables import EFFECT_COLUMNS, HEAD_COLUMNS, Collected, Heads, Measured, beside_norms, with_q
from analyses.reading.windows import Reading
from analyses.report.behaviour_sections import Result
from analyses.report.scaffold import Run
from analyses.scoring.collectors import collected, read, refuse_unread
from analyses.tasks.causal_tests import Effects, no_effects
from interp import InputError, Model, Transformer
from interp.patterns.one_attention import NormWeighted

_NO_PAIRS = "there are no minimal pairs for it"
_TWO_STACKS = (
    "its minimal pairs are prompts for models of one stack; interp patch with --target patches an encoder-decoder"
)


class Sums(NamedTuple):
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
    results: dict[tuple[str, Heads], Result] = {}
    left_out = unserved(needs, corpora)
    for name, why in left_out.items():
        if len(left_out) < len(needs):  # else it is what the command ends with
            run.say(f"{name} is left out: {why}\n", 0)
        for kind in (kind for kind in kinds if name in asked_of(kind, behaviours)):
            results[name, kind] = _not_measured(behaviours[name], kind, corpora[0], why=why)
    readings = [
        (used, kind, [each for name, each in asked_of(kind, behaviours).items() if name in used.asked])
        for used in serving(needs, corpora)
        for kind in kinds
    ]
    names = list(dict.fromkeys(each.name for *_, several in readings for each in several))
    with meanwhile([partial(_effects, model, behaviours[name], pairs, run.seed) for name in names]) as tested:
        sums = [each for one in readings if one[-1] for each in _read(run, model, *one, tested.take_back)]
        run.say(f"{', '.join(names)}: waiting for minimal pairs", 0)
        effects = dict(zip(names, tested(), strict=True))
    run.say.add({f"{name}: minimal pairs": seconds for name, (_, seconds) in effects.items()})
    run.say(f"{', '.join(names)}: intervals", 0)
    made = side_by_side([partial(table, each, run.seed) for each in sums for table in (_own_table, _table_by_norm)])
    for each, table, by_norm in zip(sums, made[::2], made[1::2], strict=True):
        name, about = each.behaviour.name, (each.behaviour, each.kind, each.used.corpus, each.used.stands_in)
        if isinstance(table, Measured) and isinstance(each.own, Collected):
            heads = beside_norms(table.heads, by_norm) if isinstance(by_norm, pd.DataFrame) else table.heads
            followed = partial(each.own.rules, seed=run.seed) if each.own.rules else pd.DataFrame
            measured = replace(table, heads=heads, followed=followed)
            results[name, each.kind] = Result(*about, measured, effects[name][0], collected=each.own)
        else:
            results[name, each.kind] = _not_measured(*about, why=str(table))
    return [results[name, kind] for name in behaviours for kind in kinds if (name, kind) in results]


def corrected(results: Sequence[Result]) -> list[Result]:
    """The results with `q` over everything that the tables of heads and of effects test, all behaviours together."""
    heads = with_q([result.measured.heads for result in results])
    effects = with_q([result.tested.table for result in results])
    return [
        replace(result, measured=replace(result.measured, heads=rows), tested=replace(result.tested, table=causal))
        for result, rows, causal in zip(results, heads, effects, strict=True)
    ]


def tables(results: Sequence[Result]) -> dict[str, pd.DataFrame]:
    """What was measured and tested, by the names of a report's tables."""
    measured, tested = [result.measured for result in results], [result.tested.table for result in results]
    tasks = [task for result in results for task in result.tested.tasks]
    rows = {"heads": [each.heads for each in measured], "effects": tested}
    rows |= {"baselines": [each.baselines for each in measured], "rules": [each.rules for each in measured]}
    known = {name: [each for each in several if len(each)] for name, several in rows.items()}
    known["effects"] = known["effects"] or tested[:1]
    made = {name: pd.concat(several, ignore_index=True) for name, several in known.items() if several}
    return made | {"tasks": pd.DataFrame(tasks, columns=None if tasks else ["task", "behaviour", "n", "refused"])}


def has_rules(result: Result) -> bool:
    """Whether its heads are compared with rules, in rows of `tables/rules`."""
    return result.collected is not None and result.collected.rules is not None


def with_rules(results: Sequence[Result], rules: Sequence[pd.DataFrame]) -> list[Result]:
    """The results, those that are compared with rules with their rows of `tables/rules` at hand."""
    tables = iter(rules)
    return [_with_rules(each, next(tables)) if has_rules(each) else each for each in results]


def _with_rules(result: Result, table: pd.DataFrame) -> Result:
    def rules(*, seed: int = 0) -> pd.DataFrame:  # worked out already, with the one seed of a report
        return table

    collected = result.collected and replace(result.collected, rules=rules)
    return replace(result, measured=replace(result.measured, followed=rules), collected=collected)


def _effects(model: Model, behaviour: Behaviour, pairs: int | None, seed: int) -> tuple[Effects, float]:
    """What patches do, and how many seconds it took."""
    began = time.perf_counter()
    if len(model.config.stacks) > 1:
        effects = no_effects(behaviour.name, _TWO_STACKS)
    elif behaviour.effects is None:
        effects = no_effects(behaviour.name, _NO_PAIRS)
    else:
        effects = behaviour.effects(model, **({} if pairs is None else {"pairs": pairs}), seed=seed)
    return effects, time.perf_counter() - began


def _read(
    run: Run,
    model: Model,
    used: Serving,
    kind: Heads,
    behaviours: Sequence[Behaviour],
    while_reading: Callable[[], object],
) -> list[Sums]:
    """What the collectors of one reading add up, of attention and, where the model's parts are at hand, by norm."""
    collectors = [each.collector(model, seed=run.seed, heads=kind) for each in behaviours]
    weighted, by_norm = None, []
    if isinstance(model, Transformer):
        weighted = NormWeighted(model, kind.stack, kind.attention)
        by_norm = [each.collector(weighted, seed=run.seed, heads=kind, **each.bare) for each in behaviours]

    def say(texts: int) -> None:
        while_reading()
        run.say(f"{', '.join(each.name for each in behaviours)}: reading", texts)

    reading = Reading(model, used.corpus, say, heads=kind, weighted=weighted)
    read(reading, collectors, by_norm)
    norms = collected(reading, by_norm) if by_norm else [None] * len(collectors)
    sums = zip(behaviours, collected(reading, collectors), norms, strict=True)
    return [Sums(behaviour, kind, used, each, weighed) for behaviour, each, weighed in sums]


def _own_table(sums: Sums, seed: int) -> Measured | str:
    """What it says of every head, or why nothing; without what follows of it, which no process can copy to another."""
    try:
        if isinstance(sums.own, InputError):
            raise sums.own
        measured = replace(sums.own, rules=None).measured(seed=seed)
        refuse_unread(measured.counts, sums.used.corpus.name)
    except InputError as error:
        return str(error)
    return measured


def _table_by_norm(sums: Sums, seed: int) -> pd.DataFrame | None:
    if isinstance(sums.own, Collected) and isinstance(sums.by_norm, Collected):
        return sums.by_norm.table(seed=seed)
    return None


def _not_measured(behaviour: Behaviour, kind: Heads, corpus: Corpus, stands_in: bool = False, *, why: str) -> Result:
    nothing = Measured(pd.DataFrame(columns=HEAD_COLUMNS)), Effects(pd.DataFrame(columns=EFFECT_COLUMNS))
    return Result(behaviour, kind, corpus, stands_in, *nothing, left_out=why)

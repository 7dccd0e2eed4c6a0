"""Which heads does the model need only together? We seek the smallest set that costs half of what all heads cost.

On the choosing half of the documents, we search among heads that look at a measure's keys more than heads that learnt
nothing. Heads that stand in for each other have no single effect. So heads are added in the order of what the pool
loses without each (or of their single effect, if larger), and removed again while the rest costs half (stepwise
selection, Efroymson 1960). The reporting half gives the set's effect, and how far it exceeds sets of other heads.

The share of other sets that reach the effect (`p_rank`) is no test if they are few: two heads in a layer of eight have
15 other pairs, so it is .06 at best. `p` is over documents, for the difference from every other set: the largest of
their p (intersection-union, Berger 1982). Its q is over measures (Benjamini & Hochberg 1995).
"""

import math
import random
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from itertools import chain, combinations, islice, product
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from analyses.labels import hiding
from analyses.labels.evidence import CELL, NOTABLE_EFFECT, Evidence, Study, block_weights, joint_claims
from analyses.labels.hiding import ARMS, CLAIM, Costs, HeadSet, Work
from analyses.labels.knockouts import joint_costs, least
from analyses.measures.definitions import DECLARED
from analyses.measures.findings import DISCOVERY
from analyses.scoring.rules import BEATS, BEYOND, plain_name
from analyses.wording.head_names import head_name, heads_named
from analyses.wording.plain_words import SET, STRATUM
from interp.statistics import benjamini_hochberg, estimate

SIZE, POOL = 6, 12  # heads per set, and per pool to search, at most
HALF = 0.5  # of the cost of hiding from all heads
SET_COLUMNS: list[str] = DECLARED["tables"]["sets"].split()
_OF_LABELS = dict.fromkeys(("label", "effect", "readout", "all_effect", "all_low", "all_high", "others", "q"))
_OF_LABELS |= {"low": "effect_low", "high": "effect_high", "p": "p_effect"}
_OF_LABELS |= {"size": "heads", "others_best": "others_effect"}
"""The columns of `tables/sets` that have another name in `tables/labels`."""
_DOCUMENTS = 6  # documents of the choosing half, all in its first part (`hiding.part_of`)
_OTHERS = (9, 999)  # other sets to compare with, at least and at most
_BUDGET = 7e10  # multiply-adds for the other sets of one set, about


def find(
    study: Study, evidence: Sequence[Evidence], reported: pd.DataFrame, rules: Sequence[pd.DataFrame]
) -> pd.DataFrame:
    """The rows of `tables/sets`, one per chosen set; sets that hold have a `label`.

    `reported` has every head's gain and effect on the reporting half, `rules` the rows of `tables/rules`.
    """
    rows = [row for part in evidence for row in _of_behaviour(study, part)]
    sets = pd.DataFrame(rows, columns=SET_COLUMNS)
    sets["q"] = benjamini_hochberg(sets["p"].astype(float).fillna(1.0).to_numpy())  # measures without a set count too
    sets = sets.loc[sets["size"] > 0].reset_index(drop=True)
    if sets.empty:
        return sets
    cells = _members(sets).merge(reported, on=CELL)
    verdicts = pd.concat([reported.iloc[:0].assign(verdict=None, rule=None), *rules])[[*CELL, "verdict", "rule"]]
    verdicts = _members(sets).merge(verdicts, on=CELL)
    effect, low = (sets[names].astype(float).min(axis=1) for names in (["effect", "all_effect"], ["low", "all_low"]))
    attends = (cells["gain_low"] > cells["bar"]).groupby(cells["set"]).all()
    holds = attends & (effect >= NOTABLE_EFFECT) & (low > 0) & (sets["diff_low"] > 0) & (sets["q"] < DISCOVERY)
    names = [_name(label, verdicts.loc[verdicts["set"] == number]) for number, label in sets["label"].items()]
    label = pd.Series(names, sets.index, dtype=object).where(holds.astype(bool), None)
    share = sets["effect"] / sets["all_effect"]
    return sets.assign(label=label, share=share, singles=cells.groupby("set")["effect"].max())


def labels(sets: pd.DataFrame, reported: pd.DataFrame) -> list[pd.DataFrame]:
    """The rows of `tables/labels` for labelled sets: one per head, with the joint effect."""
    sets = sets.loc[sets["label"].notna()]
    if sets.empty:
        return []
    effects = pd.DataFrame({new or name: sets[name] for name, new in _OF_LABELS.items()})
    rows = _members(sets).merge(reported.drop(columns=[*{*effects} & {*reported}]), on=CELL)
    rows = rows.merge(effects, left_on="set", right_index=True)
    return [rows.assign(evidence="effect", q_effect=rows["q"], q_within=rows["q"])]


def _members(sets: pd.DataFrame) -> pd.DataFrame:
    """One row per head of each set; `set` is the set's index."""
    rows = sets.assign(place=[heads_named(names) for names in sets["heads"]], set=sets.index).explode("place")
    places = pd.DataFrame([*rows["place"]], columns=["layer", "head"])
    return places.assign(**{name: [*rows[name]] for name in ("set", "stack", "attention", "behaviour", "measure")})


def _name(label: str, rules: pd.DataFrame) -> str | None:
    """`set:` and the measure's label, or the rule if all heads follow the same and none beats the rules."""
    names = {plain_name(rule) for rule in rules["rule"]}
    if {BEATS, BEYOND} & {*rules["verdict"]} or not names:
        names = {label}
    return f"{SET}{names.pop()}" if len(names) == 1 and None not in names else None


def _of_behaviour(study: Study, part: Evidence) -> Iterator[dict[str, Any]]:
    """One row per searched measure, with size 0 if there is no set."""
    pools = {name: pool for name, pool in _pools(part) if len(pool) > 1}
    if (work := joint_claims(study, part, [*pools], 0, _DOCUMENTS)) is None:
        return
    name = part.behaviour.name
    study.say(f"{name}: looking for sets", 0)
    chosen = _choose(work, pools)
    yield from ({"behaviour": name, "size": 0} for heads in chosen.values() if not heads)
    chosen = {measure: heads for measure, heads in chosen.items() if heads}
    if (work := joint_claims(study, part, [*chosen], 1)) is None:
        return
    pairs = [(measure, places) for measure, heads in chosen.items() for places in (heads, _all_heads(work))]
    costs = joint_costs(work, pairs)
    lost, rows = arms(costs.costs)
    effects = iter(least(costs.table(study.seed + 1)).to_dict("records"))
    affordable = _BUDGET / (block_weights(work.model) * math.prod(part.size))
    limit = _OTHERS[1] if study.exact else int(np.clip(affordable, *_OTHERS))
    for number, ((measure, heads), joint, every) in enumerate(zip(chosen.items(), effects, effects, strict=True)):
        others, possible = other_sets(heads, _all_heads(work), limit, study.seed)
        removal = joint_costs(work, [(measure, places) for places in others], ARMS[1:]).costs[ARMS[1]].lost[:, 0]
        yield {
            **{each: part.heads[0][each].iloc[0] for each in ("stack", "attention")},
            **{"behaviour": name, "measure": measure, "label": part.behaviour[measure].called, "size": len(heads)},
            **{"heads": "+".join(head_name(*place) for place in heads), "readout": work.read_by[name].name},
            **{"effect": joint["effect"], "low": joint["ci_low"], "high": joint["ci_high"]},
            **{"all_effect": every["effect"], "all_low": every["ci_low"], "all_high": every["ci_high"]},
            **{"others": len(others), "possible": possible},
            **compare(lost[..., 2 * number], removal, rows[:, 2 * number], study.seed),
        }


def _pools(part: Evidence) -> Iterator[tuple[str, pd.DataFrame]]:
    """By measure, the heads that may form a set, with gain and effect: those with the most of either.

    Their gain exceeds the bar of heads that learnt nothing: hiding keys costs nothing if no head looks there.
    """
    rows = part.heads[0].loc[part.heads[0]["sink"] == "kept"].merge(part.effects[0][[*CELL, "effect"]], on=CELL)
    for measure, group in rows.groupby("measure", sort=False):
        if part.behaviour[str(measure)].called is not None and STRATUM not in str(measure):
            pool = group.loc[group["ci_low"] > part.bars.get(str(measure), 0.0), ["layer", "head", "gain", "effect"]]
            order = pool[["gain", "effect"]].rank(ascending=False).min(axis=1).sort_values(kind="stable")
            yield str(measure), pool.loc[order.index[:POOL]]


def _all_heads(work: Work) -> HeadSet:
    return [*product(range(work.model.config.n_layers), range(work.model.config.n_heads))]


def _choose(work: Work, pools: Mapping[str, pd.DataFrame]) -> dict[str, HeadSet]:
    """By measure, the heads of its set, judged by the arm that costs least in all heads; empty without a set.

    We search all measures at once. Only the reporting half compares hiding with its controls.
    """

    def cost(kind: str, pending: Mapping[str, Sequence[HeadSet]]) -> dict[str, np.ndarray]:
        pairs = [(measure, heads) for measure, sets in pending.items() for heads in sets]
        values = iter(joint_costs(work, pairs, [kind], part=0).costs[kind].a_row()[0]) if pairs else iter(())
        return {measure: np.array([*islice(values, len(sets))]) for measure, sets in pending.items()}

    whole = joint_costs(work, [(measure, _all_heads(work)) for measure in pools], part=0).costs
    lost, rows = arms(whole)
    every = lost.sum(1) / np.where(rows.any(0), rows.sum(0), np.nan)  # arm measure
    chosen: dict[str, HeadSet] = {measure: [] for measure in pools}
    searches: dict[str, tuple[str, Search]] = {}
    for number, (measure, pool) in enumerate(pools.items()):
        if every[:, number].min() >= NOTABLE_EFFECT:
            kind = (CLAIM, *ARMS)[every[:, number].argmin()]
            places, single = [*pool[["layer", "head"]].itertuples(index=False, name=None)], pool["effect"].to_numpy()
            searches[measure] = kind, smallest(places, single, HALF * float(whole[kind].a_row()[0, number]))
    pending = {measure: next(search) for measure, (_, search) in searches.items()}
    while pending:
        answers = dict[str, np.ndarray]()
        for kind in (CLAIM, *ARMS):
            answers |= cost(kind, {measure: pending[measure] for measure in pending if searches[measure][0] == kind})
        pending = {}
        for measure, values in answers.items():
            try:
                pending[measure] = searches[measure][1].send(values)
            except StopIteration as end:
                chosen[measure] = end.value
    return chosen


Search = Generator[Sequence[HeadSet], np.ndarray, HeadSet]  # yields sets, receives their costs


def smallest(places: HeadSet, single: Float[np.ndarray, " head"], enough: float) -> Search:
    """The fewest of `places`, with `single` effects, that together cost `enough`; empty if one head does.

    Yields sets, and receives the effect of each. Every head of the set must add at least the effect that counts.
    """
    whole, *rests = yield [places, *_without_each(places)]
    if whole < enough:
        return []
    order = np.argsort(-np.fmax(whole - np.array(rests), single), kind="stable")[:SIZE]
    prefixes = [[places[index] for index in order[: size + 1]] for size in range(len(order))]
    effects = yield prefixes
    size = int(np.argmax(effects >= enough))
    heads, effect = prefixes[size], effects[size]
    while effect >= enough and len(heads) > 1:
        rests = _without_each(heads)
        effects = yield rests
        best = int(np.argmax(effects))
        if effects[best] < enough:
            return sorted(heads) if effect - effects[best] >= NOTABLE_EFFECT else []
        heads, effect = rests[best], effects[best]
    return []


def _without_each(heads: HeadSet) -> list[list[tuple[int, int]]]:
    return [[place for place in heads if place != head] for head in heads]


def arms(costs: Costs) -> tuple[Float[np.ndarray, "arm group set"], Float[np.ndarray, "group set"]]:
    """Losses by hiding (minus its stricter control), exchange and removal, by group of documents; and rows."""
    claim = costs[CLAIM]
    lost = [claim.lost - hiding.strictest(costs)[0].lost, *(costs[arm].lost for arm in ARMS)]
    return np.stack(lost)[:, :, 0], claim.rows[:, 0]


def other_sets(heads: HeadSet, all_heads: HeadSet, limit: int, seed: int) -> tuple[list[HeadSet], int]:
    """Sets of as many other heads of the same layers, all or `limit` at random; and how many exist.

    If a layer has too few others, the rest come from layers without heads of the set.
    """
    layers = Counter(layer for layer, _ in heads)
    free = [[place for place in all_heads if place[0] == layer and place not in heads] for layer in layers]
    groups = [*free, [place for place in all_heads if place[0] not in layers]]
    sizes = [min(size, len(group)) for size, group in zip(layers.values(), free, strict=True)]
    sizes.append(len(heads) - sum(sizes))
    possible = math.prod(map(math.comb, map(len, groups), sizes))
    if possible <= limit:
        return [[*chain(*parts)] for parts in product(*map(combinations, groups, sizes))], possible
    rng, sets = random.Random(seed), dict[tuple[tuple[int, int], ...], None]()
    while len(sets) < limit:
        sets[tuple(sorted(chain(*map(rng.sample, groups, sizes))))] = None
    return [*sets], possible


def compare(
    lost: Float[np.ndarray, "arm group"],
    others: Float[np.ndarray, "group set"],
    rows: Float[np.ndarray, " group"],
    seed: int = 0,
) -> dict[str, float]:
    """How far a set's losses exceed every other set's loss by removal, an upper bound of their least of three.

    `lost` and `others` are sums over the `rows` of each group of documents. Without other sets the result is empty.
    """
    if others.shape[1] == 0 or not rows.any():
        return {}
    beyond, weights = lost[:, :, None] - others, np.broadcast_to(rows[:, None], others.shape)
    effect, means = lost.sum(1).min() / rows.sum(), others.sum(0) / rows.sum()
    best, arm = [int(means.argmax())], int(lost.sum(1).argmin())
    strictest = estimate(beyond[arm][:, best], weights[:, best], seed=seed)
    ends = {"difference": strictest.gain, "diff_low": strictest.low, "diff_high": strictest.high}
    p = max(float(estimate(each, weights, replicates=0).p.max()) for each in beyond)
    p_rank = (1 + int((means >= effect).sum())) / (1 + len(means))
    return {
        "others_best": float(means.max()),
        **{name: float(end[0]) for name, end in ends.items()},
        "p": p,
        "p_rank": p_rank,
    }

"""Which labels does each head get, on evidence from attention and effects, beyond baselines, at which error rate?

On the choosing half of the documents, a head is a candidate if it shows a measure (`analyses.measures.findings`) more
than any head that learnt nothing, or if hiding the measure's claimed keys has an effect (`analyses.labels.knockouts`).
On the reporting half, `both` must hold (with the larger of their two p), or `attention` or `effect` alone. A head that
needs keys without looking at them gets no label, because a head that copies everything needs every key.
"""

import random
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pandas as pd

from analyses.behaviours import behaviours_for, select
from analyses.corpora.corpus import sharing
from analyses.execution.progress import Say, Stages
from analyses.labels.evidence import CELL, NOTABLE_EFFECT, Evidence, Study, candidates, gather, joint_effects
from analyses.labels.hiding import ARMS, FEWEST
from analyses.labels.knockouts import least
from analyses.labels.readouts import MaskedWord
from analyses.labels.screen import Screened
from analyses.labels.sets import SET_COLUMNS
from analyses.labels.sets import find as find_sets
from analyses.labels.sets import labels as set_labels
from analyses.measures.definitions import DECLARED, Behaviour
from analyses.measures.findings import DISCOVERY, NOTABLE, beating_reference
from analyses.measures.head_tables import BOTH_READINGS, EFFECT_COLUMNS, Collected, Heads
from analyses.reading.windows import Reading
from analyses.scoring.collectors import collect_in_lots
from analyses.scoring.rules import BEATS, plain_name
from analyses.wording.head_names import HEAD
from analyses.wording.plain_words import STRATUM
from interp import AnnotatedText, InputError, Model
from interp.errors import whole_number
from interp.patterns.rows import SINKS

_LEAST = ["effect", "ci_low", "ci_high", "hiding", *ARMS]
_SINGLE = ["effect", "effect_low", "effect_high", "hiding", *ARMS]
_JOINT = ["all_effect", "all_low", "all_high", "all_hiding", *(f"all_{arm}" for arm in ARMS)]
_REST, _RIVALS = (["rest_effect", "rest_low", "rest_high"], ["others_effect", "others_low", "others_high"])
LABEL_COLUMNS: list[str] = DECLARED["tables"]["labels"].split()
_TASK = {"effect": "effect", "low": "ci_low", "high": "ci_high", "flips": "flips", "n": "n"}  # in `tables/effects`
_MASKED = ["masked", "masked_low", "masked_high", "masked_p"]
EVIDENCE_COLUMNS: list[str] = DECLARED["tables"]["evidence"].split()
_REST_DOCUMENTS = 6  # documents read without all heads but one, which takes a pass per head
_FEWEST = 2 * FEWEST  # documents in both halves together
_TOO_FEW = "labels are chosen on one half of the documents and reported on the other: expected at least"


@dataclass(frozen=True)
class Labelled:
    """The labels of a model's heads.

    labels: the rows of `tables/labels`, one per head and label: all that hold on the reporting half.
    evidence: one row per head and measure of the reporting half, labelled or not, with its label and the `bar`, which
        gains of heads that learnt nothing stay below.
    left_out: by behaviour, why it has no labels, or which evidence is missing.
    nameless: how many candidates show a measure no more than simple rules do, yet follow none of these rules.
    screened: by behaviour, which effects are estimates, and how many candidates these may have missed.
    sets: the rows of `tables/sets`: heads that are needed together (`analyses.labels.sets`).
    """

    labels: pd.DataFrame
    evidence: pd.DataFrame
    left_out: Mapping[str, str]
    nameless: int = 0
    screened: Mapping[str, Screened] = field(default_factory=dict)
    sets: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=SET_COLUMNS))


def label(
    model: Model,
    corpora: Mapping[str, Iterable[AnnotatedText]],
    *,
    behaviours: Sequence[str | Behaviour] | None = None,
    collected: Sequence[Collected] | None = None,
    effects: pd.DataFrame | None = None,
    documents: int | None = None,
    words: int | None = None,
    exact: bool = False,
    seed: int = 0,
    progress: Say | None = None,
) -> Labelled:
    """Label every head.

    Gains are over the strictest baseline; effects are in nats per claimed row, read as `readout` says; intervals are at
    95% over documents. `effect` is the least of three: `hiding` the keys, `exchange` of their values for others', and
    their `removal` (`analyses.labels.knockouts`). If hiding costs less than 0.01, its cost is the effect. `q` is over
    all candidates and kinds of evidence, because any kind makes a label; `q_within` is over those of the behaviour.
    `docs/labels.md` describes all columns.

    Args:
        model: a transformer with a tokenizer.
        corpora: by behaviour, a corpus that can be read several times.
        behaviours: those that `corpora` may name; ours by default.
        collected: the sums of the behaviours' measures on these corpora, if already computed.
        effects: the rows of `tables/effects`, if minimal pairs were already patched.
        documents: how many documents of the reporting half knock-outs read; by default 24 to 45, by the model's size.
        words: how many words they read of each, from its beginning; by default 10 to 60.
        exact: measure all effects, not only those that may change a label (`measured` in `evidence`).
        seed: for everything random.
        progress: called with the stage, and how far it is.
    """
    by_name, seed = select(behaviours), whole_number("seed", seed)
    if unknown := corpora.keys() - by_name.keys():
        raise InputError(f"no behaviour {', '.join(sorted(unknown))}: expected some of {', '.join(by_name)}")
    say = Stages.to(progress)
    study = Study(model, corpora, by_name, seed, say, documents, words, exact)
    totals, left_out = (list(collected), {}) if collected else _collected(study)
    too_few = {each.behaviour: each.documents for each in totals if each.documents < _FEWEST}
    left_out |= {name: f"{_TOO_FEW} {_FEWEST} documents, got {documents}" for name, documents in too_few.items()}
    totals = [each for each in totals if each.documents >= _FEWEST]
    evidence = gather(study, totals)
    left_out |= {each.behaviour.name: each.effects_left_out for each in evidence if each.effects_left_out}
    if not evidence:
        return Labelled(pd.DataFrame(columns=LABEL_COLUMNS), pd.DataFrame(columns=EVIDENCE_COLUMNS), left_out)
    tables = [_reported(each) for each in evidence]
    possible = [
        candidates(each.behaviour, each.bars, each.heads[0], each.effects[0]).merge(table, on=CELL)
        for each, table in zip(evidence, tables, strict=True)
    ]
    if effects is None:
        tests = [by_name[name].effects for name in dict.fromkeys(each.behaviour.name for each in evidence)]
        shares = [test(model, seed=seed).table for test in tests if test]
        effects = pd.concat(shares, ignore_index=True) if shares else pd.DataFrame(columns=EFFECT_COLUMNS)
    rules = [each.rules(seed=seed) for each in totals if each.rules]
    labels, nameless = _judged(_with_rules(pd.concat(possible, ignore_index=True), rules))
    say("hiding keys from all heads of a label", 0)
    labels = _with_all_heads(labels, study, evidence)
    table = pd.concat(tables, ignore_index=True)
    sets = find_sets(study, evidence, table, rules)
    labels = pd.concat([labels, *set_labels(sets, table)], ignore_index=True)
    labels = labels.sort_values(["behaviour", *HEAD, "label"], ignore_index=True)
    tasks = {measure.called: measure.tasks for each in evidence for measure in each.behaviour.measures}
    table = table.reindex(columns=EVIDENCE_COLUMNS)
    screened = {each.behaviour.name: each.screened for each in evidence if each.screened}
    return Labelled(_with_tasks(labels, effects, tasks), table, left_out, nameless, screened, sets)


def _collected(study: Study) -> tuple[list[Collected], dict[str, str]]:
    """Each behaviour's sums on its corpus, in each kind of attention, or why there are none."""
    totals, left_out = [], {}
    for kind in Heads.kinds_of(study.model):
        of_kind = behaviours_for(kind, study.behaviours)
        for corpus, names in sharing({name: each for name, each in study.corpora.items() if name in of_kind}):
            makers = [partial(of_kind[name].collector, seed=study.seed, heads=kind) for name in names]
            reading = Reading(study.model, corpus, partial(study.say, "reading"), heads=kind)
            for name, result in zip(names, collect_in_lots(reading, makers), strict=True):
                if isinstance(result, Collected):
                    totals.append(result)
                else:
                    left_out[name] = str(result)
    return totals, left_out


def _reported(evidence: Evidence) -> pd.DataFrame:
    """Every head and measure's gain and effect on the reporting half, their agreement, and possible labels."""
    heads, effects = evidence.heads[1], evidence.effects[1]
    heads = heads.assign(p=heads[["p", "p_null"]].max(axis=1))  # NaN if the null has nothing to permute
    gains = _in_both_readings(heads)
    gains["p"] = gains["p"].where(gains["documents"] >= gains["fewest"])
    costs = least(effects)
    p = costs["p"].fillna(effects["p"].astype(float).where(effects["effect"] < NOTABLE_EFFECT))
    costs = costs.assign(p=p.where(effects["documents"] >= FEWEST))  # with fewer it is shown, but makes no label
    rows = _columns(gains, "gain", "attention", "n", "without").merge(
        _columns(costs, "effect", "effect", "readout", *_LEAST[3:], *_MASKED, "measured"), on=CELL, how="left"
    )
    agreement = {
        name: pairs.loc[:, ["gain", "effect"]].astype(float).corr("spearman", min_periods=3).iloc[0, 1]
        for name, pairs in rows.groupby("measure")
    }
    beats = {*beating_reference(heads)[[*HEAD, "together"]].itertuples(index=False, name=None)}
    measures = [evidence.behaviour[name] for name in rows["measure"]]
    heads_and_measures = zip(rows[HEAD].itertuples(index=False, name=None), measures, strict=True)
    holds = [not measure.together or (*place, measure.together) in beats for place, measure in heads_and_measures]
    return rows.assign(
        agreement=[agreement[name] for name in rows["measure"]],
        error=np.where(rows["measured"].eq(False), evidence.screened.error if evidence.screened else np.nan, np.nan),
        label=[measure.called for measure in measures],
        bar=[evidence.bars.get(measure.name, 0.0) for measure in measures],
        fit=rows["without"].to_numpy(dtype=bool) & np.array(holds, dtype=bool),
    )


def _in_both_readings(heads: pd.DataFrame) -> pd.DataFrame:
    """Rows with the first position kept; if `readings` asks for both, the larger p, and whether it holds `without`."""
    rows, removed = (heads.loc[heads["sink"] == sink] for sink in SINKS)
    removed = rows[CELL].merge(removed[[*CELL, "p", "gain", "ci_low"]], on=CELL, how="left").set_index(rows.index)
    in_both = rows["readings"] == BOTH_READINGS
    holds = (removed["gain"] >= NOTABLE) & (removed["ci_low"] > 0)
    p = np.maximum(rows["p"].astype(float), removed["p"].astype(float).fillna(1.0))
    return rows.assign(p=rows["p"].where(~in_both, p), without=~in_both | holds)


def _columns(rows: pd.DataFrame, value: str, evidence: str, *columns: str) -> pd.DataFrame:
    """A table's value, interval and p, under the names of `tables/labels`."""
    names = {"ci_low": f"{value}_low", "ci_high": f"{value}_high", "p": f"p_{evidence}"}
    return pd.DataFrame({names.get(name, name): rows[name] for name in (*CELL, value, *names, *columns)})


def _judged(candidates: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Candidates that hold on the reporting half, with their evidence, and how many fail only against simple rules.

    A candidate with rules to beat is tested twice: under its own name, where its lead over the rules must also be
    significant, and under a plainer name.
    """
    has_rules, as_itself = candidates["verdict"].notna(), candidates.assign(plain=False)
    for name in ("p_attention", "p_effect"):
        p = np.maximum(as_itself[name].astype(float), as_itself["p_rule"].astype(float).fillna(1.0))
        as_itself[name] = as_itself[name].where(~has_rules, p)
    plainer = candidates.loc[has_rules].assign(plain=True)  # named after the rule that the head follows, if any
    plainer = plainer.assign(label=pd.Series([*map(plain_name, plainer["rule"])], index=plainer.index, dtype=object))
    rows = _true_rows(pd.concat([as_itself, plainer], ignore_index=True))
    plain = rows["plain"].to_numpy(dtype=bool)
    beaten = rows.groupby(CELL)["plain"].transform("all").to_numpy(dtype=bool)
    has_name = beaten & rows["label"].notna().to_numpy()
    labels = rows.loc[~plain | has_name].sort_values("gain", ascending=False, kind="stable")
    labels = labels.drop_duplicates([*HEAD, "behaviour", "label"])
    whole = labels.assign(label=labels["label"].astype(str).str.split(STRATUM).str[0])
    is_wide = whole["label"] == labels["label"]  # a label for all cases covers its strata
    wide = pd.MultiIndex.from_frame(whole.loc[is_wide, [*HEAD, "label"]])
    labels = labels.loc[is_wide | ~pd.MultiIndex.from_frame(whole[[*HEAD, "label"]]).isin(wide)]
    labels = labels.reindex(columns=LABEL_COLUMNS).sort_values(["behaviour", *HEAD, "label"], ignore_index=True)
    return labels, int((beaten & ~has_name).sum())


def _true_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows that hold, with their evidence and q (`_q`). Rows below a margin or without a name make no label."""
    columns = ("effect", "effect_low", "gain", "gain_low", "bar", "masked", "masked_low")
    number = {name: rows[name].to_numpy(dtype=float) for name in (*columns, "p_attention", "p_effect", "masked_p")}
    size, gain, low, bar = (number[name] for name in ("effect", "gain", "gain_low", "bar"))
    masked = (rows["readout"] == MaskedWord.name).to_numpy()
    beyond = low > bar  # the whole interval, because by luck some head exceeds the best that learnt nothing
    attends = rows["attends"].to_numpy(dtype=bool) & rows["fit"].to_numpy(dtype=bool) & (gain >= NOTABLE) & beyond
    moves = (size >= NOTABLE_EFFECT) & (number["effect_low"] > 0)
    moved = moves & rows["moves"].to_numpy(dtype=bool)
    holds = {
        "both": attends & moves & (~masked | ((number["masked"] >= NOTABLE) & (number["masked_low"] > 0))),
        "attention": attends,
        "effect": moved & beyond,
    }
    attention = np.nan_to_num(number["p_attention"], nan=1.0)
    effect = np.where(size >= NOTABLE_EFFECT, np.nan_to_num(number["p_effect"], nan=1.0), 1.0)
    at_masks = np.where(masked, np.nan_to_num(number["masked_p"], nan=1.0), 0.0)
    p = {"both": np.maximum.reduce([attention, effect, at_masks]), "attention": attention, "effect": effect}
    has_name = rows["label"].notna().to_numpy()
    smallest = rows[CELL].assign(p=np.minimum.reduce([np.where(holds[kind] & has_name, p[kind], 1.0) for kind in p]))
    q, q_within = {kind: _q(p[kind], smallest) for kind in p}, {kind: np.zeros(len(rows)) for kind in p}
    for index in rows.groupby("behaviour").indices.values():
        for kind in p:
            q_within[kind][index] = _q(p[kind][index], smallest.iloc[index])
    rows["q_attention"], rows["q_effect"] = q["attention"], np.where(rows["p_effect"].notna(), q["effect"], np.nan)
    rows["evidence"], rows["q"], rows["q_within"] = "", np.nan, np.nan
    for kind in ("effect", "attention", "both"):  # the strongest kind last, to overwrite others
        new = holds[kind] & (q[kind] < DISCOVERY)
        rows.loc[new, "evidence"] = kind
        rows.loc[new, "q"], rows.loc[new, "q_within"] = q[kind][new], q_within[kind][new]
    return rows.loc[rows["evidence"] != ""]


def _q(p: np.ndarray, candidates: pd.DataFrame) -> np.ndarray:
    """The false discovery rate at which each p makes a label, whatever evidence labels rest on.

    A candidate is a family of tests: attention, effect, both, each under its own and a plainer name. Every test takes
    the largest of some p: of attention, effect, the rules or the masked rows. Whichever nulls are true, a false label
    needs one of two p below a bound. So twice the smallest p (1 if it can make no label) is a p of the candidate.
    Benjamini-Hochberg selects candidates; within the selected ones, each kind has the same bound (Benjamini &
    Bogomolov 2014).
    """
    smallest = np.sort(2 * np.asarray(candidates.groupby(CELL)["p"].min(), dtype=float))
    m, below = len(smallest), np.searchsorted(smallest, 2 * p, side="right")  # candidates whose p is no larger
    later = np.minimum.accumulate([1.0, *(smallest * m / np.arange(1, m + 1))[::-1]])[::-1]
    return np.minimum(later[below], np.where(below > 0, 2 * p * m / np.maximum(below, 1), 1.0))


def _with_rules(candidates: pd.DataFrame, rules: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The candidates, with the verdict against simple rules for the same head and measure."""
    tables = [table for table in rules if len(table)]
    if not tables:
        return candidates.assign(p_rule=np.nan, verdict=None, rule=None)
    verdicts = pd.concat(tables, ignore_index=True)
    verdicts["p_rule"] = verdicts["p_both"].where(verdicts["verdict"] == BEATS)  # this verdict also has its own rate
    return candidates.merge(verdicts[[*CELL, "p_rule", "verdict", "rule"]], on=CELL, how="left")


def _with_all_heads(labels: pd.DataFrame, study: Study, evidence: Sequence[Evidence]) -> pd.DataFrame:
    """The labels, with the joint effect of all heads that share one, of all but this head, and of `_rivals`."""
    shared = ["stack", "attention", "behaviour", "label", "measure"]
    rows = labels.assign(
        heads=labels.groupby(shared)["head"].transform("size"),
        **{name: labels[single] for name, single in zip(_JOINT, _SINGLE, strict=True)},
        **dict.fromkeys((*_REST, "others", *_RIVALS), np.nan),
    )
    with_effect = rows.loc[rows["effect"].notna()]  # `self` has no key to hide
    groups = [group for _, group in with_effect.groupby(shared) if len(group) > 1]
    for part in evidence:
        kinds = part.heads[1][["stack", "attention"]].drop_duplicates().assign(behaviour=part.behaviour.name)
        of_kind = [group for group in groups if len(group.iloc[:1].merge(kinds))]
        sets = [(group["measure"].iloc[0], [*zip(group["layer"], group["head"], strict=True)]) for group in of_kind]
        rivals = [
            (measure, _rivals(part.heads[1], labels, group, study.seed))
            for group, (measure, _) in zip(of_kind, sets, strict=True)
        ]
        costs = joint_effects(study, part, [*sets, *rivals], half=1)[_LEAST].to_numpy(dtype=float)
        rest: dict[Hashable, tuple[str, list[tuple[int, int]]]] = {}  # row: measure, and the other heads with its label
        for group, (measure, heads), (_, others), cost, others_cost in zip(
            of_kind, sets, rivals, costs[: len(sets)], costs[len(sets) :], strict=True
        ):
            rows.loc[group.index, _JOINT] = cost
            rows.loc[group.index, ["others", *_RIVALS]] = [len(others), *others_cost[:3]]
            if cost[0] >= NOTABLE_EFFECT:
                rest |= {
                    row: (measure, [rival for rival in heads if rival != head])
                    for row, head in zip(group.index, heads, strict=True)
                }
        effects = joint_effects(study, part, [*rest.values()], 1, _REST_DOCUMENTS)
        rows.loc[[*rest], _REST] = effects[_LEAST[:3]].to_numpy(dtype=float)
    return rows


def _rivals(heads: pd.DataFrame, labels: pd.DataFrame, group: pd.DataFrame, seed: int) -> list[tuple[int, int]]:
    """Random heads without the label, as many as have it by one measure; all if there are fewer."""
    labelled = labels.merge(group[["stack", "attention", "behaviour", "label"]].iloc[:1])
    everything, having = ({*rows[["layer", "head"]].itertuples(index=False, name=None)} for rows in (heads, labelled))
    rest = sorted(everything - having)
    return random.Random(seed).sample(rest, min(len(group), len(rest)))


def _with_tasks(labels: pd.DataFrame, effects: pd.DataFrame, tasks: Mapping[str | None, Sequence[str]]) -> pd.DataFrame:
    """The labels, with what each head carries in minimal pairs that ask the same question."""
    best = effects.sort_values("effect", ascending=False, kind="stable").drop_duplicates([*HEAD, "task"])
    carried = {tuple(row[name] for name in (*HEAD, "task")): row for row in best.to_dict("records")}
    rows = labels.to_dict("records")
    for row in rows:
        place = tuple(row[name] for name in HEAD)
        if task := next((task for task in tasks.get(row["label"], ()) if (*place, task) in carried), None):
            share = carried[*place, task]
            row.update(task=task, **{f"task_{name}": share[column] for name, column in _TASK.items()})
    return pd.DataFrame(rows, columns=LABEL_COLUMNS)

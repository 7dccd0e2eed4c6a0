"""Does the model need what a head attends to? Every label's effect on its own items, for every head.

At the rows that a label claims, we hide the claimed keys from a head. The effect is the drop in what is read there
(`readouts`), minus the larger loss of two controls: other keys at the same rows, and keys at the label's usual
distances (`hiding`). Hiding moves attention to other keys, so a key may seem needed although no head uses its value.
Such a key has no effect in the other arms (exchange, removal), which keep all weights.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import pandas as pd

from analyses.behaviours import select
from analyses.execution.lots import Progress
from analyses.labels import hiding
from analyses.labels.hiding import ARMS, CLAIM, CONTROLS, KINDS, Costs, Draws, HeadSet, Sums, Work, distances
from analyses.labels.readouts import Readout, readouts, windows_of
from analyses.labels.screen import HidingCosts, Screen, Screened, verify
from analyses.measures.definitions import DECLARED, Behaviour, Claims, Measure
from analyses.measures.head_tables import Heads
from analyses.position import SHORTEST_REPEAT, repeat_length, repeats
from analyses.reading.windows import Window
from interp import AnnotatedText, InputError, Transformer
from interp.patterns import N_GROUPS, group_of
from interp.statistics import benjamini_hochberg, estimate

KNOCKOUT_COLUMNS: list[str] = DECLARED["tables"]["knockouts"].split()
_NAMES = ("stack", "attention", "behaviour", "measure", "corpus", "readout", "control_name", "measured", "sampled")
_KINDS = {**dict.fromkeys(_NAMES, object), "layer": int, "head": int}  # other columns are numbers
NOTHING = pd.DataFrame({name: pd.Series(dtype=_KINDS.get(name, float)) for name in KNOCKOUT_COLUMNS})
TOGETHER_COLUMNS: list[str] = DECLARED["tables"]["together"].split()
_ALL_KINDS = (*KINDS, *ARMS)
REPEATS = 16  # sequences for knock-outs of induction, at most
_TEXTS = 40  # by default; documents, not rows, make intervals narrow
_TRAINING_WORDS = 20_000  # words to train probes on


@dataclass(frozen=True)
class Knockouts:
    """The costs of hiding, one row per head and measure, and which of them were only estimated."""

    table: pd.DataFrame
    screened: Screened | None = None


@dataclass(frozen=True)
class Texts:
    """Keyword arguments of `measure` and `measure_together`.

    training: texts to train probes on, for a model without output layer; measured documents are skipped.
    behaviours: the behaviours to measure; all of ours by default.
    texts: how many texts to measure; each measure reads those with its annotation.
    repeats: how many sequences to measure induction on.
    seed: for control keys, masked words and intervals.
    """

    training: Iterable[AnnotatedText] = ()
    behaviours: Sequence[str | Behaviour] | None = None
    texts: int = _TEXTS
    repeats: int = REPEATS
    seed: int = 0


_NUMBERS = ["drop", "control", "effect", "ci_low", "ci_high", "p"]


def measure(
    model: Transformer,
    corpus: Iterable[AnnotatedText],
    *,
    armed: Collection[str] | None = None,
    screen: Screen | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Knockouts:
    """What hiding claimed keys costs in the read-out of the same rows, in nats per row: one row per head and measure.

    `drop` is the mean over the `n` claimed rows, `control` that of the control that loses most (`control_name`);
    `effect` is their difference, with a 95% interval over documents and a one-sided p for effect > 0. `q` is over all
    rows; rows without a measurement count as not significant. In `exchange`, each claimed key keeps its weight but gets
    the value of another visible key; in `removal`, its weighted value is left out. `measured` is False if all numbers
    but `masked` are estimates, or missing. `docs/measures/interventions.md` describes controls and columns.

    Args:
        model: a transformer of one stack with a tokenizer.
        corpus: texts.
        armed: measures whose keys are also exchanged and removed; all by default.
        screen: which heads and measures to measure; all others are estimated. By default all are measured.
        progress: called with the number of finished lots of claims, and of all lots.
        options: the fields of `Texts`.

    Raises:
        InputError: the model or the texts have nothing to read.
    """
    reading = Texts(**options)
    measures = _hidden_measures(reading.behaviours, model)
    armed = {measure.name for _, measure in measures} if armed is None else armed
    work = _work(model, corpus, measures, armed, reading)
    if screen is None:
        costs, everywhere = hiding.hide(work, progress=progress), np.ones((work.n_heads, len(measures)), dtype=bool)
        measured = HidingCosts(costs["drop"], None, everywhere, everywhere, costs.get("mass"))
    else:
        measured = verify(work, screen, reading.seed, progress)
    table = _table(work, measured, reading.seed).assign(corpus=getattr(corpus, "name", "texts"))
    return Knockouts(table.reindex(columns=KNOCKOUT_COLUMNS), measured.screened)


def measure_together(
    model: Transformer, corpus: Iterable[AnnotatedText], heads: Sequence[tuple[str, HeadSet]], **options: Any
) -> pd.DataFrame:
    """What hiding a measure's keys from several heads at once costs: one row for each of `heads`, in order.

    Each of `heads` names a measure, and the (layer, head) pairs to hide its keys from: heads that do the same stand in
    for each other. Columns are those of `measure`; values are missing if the corpus has no claims.
    """
    work = claims_on(model, corpus, [*dict.fromkeys(name for name, _ in heads)], **options)
    return joint_costs(work, heads).table(options.get("seed", Texts.seed))


@dataclass(frozen=True)
class JointCosts:
    """The cost of changing a measure's keys in several heads at once: `costs` are group x 1 x set of heads."""

    work: Work  # one column per set
    costs: Costs

    def table(self, seed: int) -> pd.DataFrame:
        """One row per set, as `measure_together` returns them."""
        return pd.DataFrame(_columns(self.work, self.costs, None, seed)).reindex(columns=TOGETHER_COLUMNS)


def claims_on(model: Transformer, corpus: Iterable[AnnotatedText], names: Sequence[str], **options: Any) -> Work:
    """The claims of some measures, also exchanged and removed, for several calls of `joint_costs`."""
    reading = Texts(**options)
    by_name = {measure[1].name: measure for measure in _hidden_measures(reading.behaviours, model)}
    return _work(model, corpus, [by_name[name] for name in names], names, reading)


def joint_costs(
    work: Work, heads: Sequence[tuple[str, HeadSet]], kinds: Collection[str] = _ALL_KINDS, part: int | None = None
) -> JointCosts:
    """The costs of sets of heads on existing claims, for some kinds or for one part of the documents.

    Unmeasured costs are 0.
    """
    columns = {measure.name: column for column, (_, measure) in enumerate(work.measures)}
    head_sets: list[list[HeadSet]] = [[] for _ in columns]
    for name, places in heads:
        head_sets[columns[name]].append(places)
    drops = hiding.hide(work, kinds, head_sets=head_sets, part=part)["drop"]
    counted = None if part is None else work.of_jobs("part") == part
    costs = hiding.costs_of(work, drops, counted, _ALL_KINDS)
    column, numbers = [columns[name] for name, _ in heads], [iter(range(len(heads))) for _ in columns]
    index = slice(None), np.array([next(numbers[each]) for each in column], dtype=int), np.array(column, dtype=int)
    picked = {kind: Sums(*(part[index][:, None] for part in sums)) for kind, sums in costs.items()}
    return JointCosts(replace(work, measures=[work.measures[each] for each in column]), picked)


def least(effects: pd.DataFrame) -> pd.DataFrame:
    """Rows of either table, with the effect and interval of the arm that costs least, and the largest p of the three.

    `hiding` is the effect of hiding alone. If keys were not exchanged and removed, `effect` equals it and p is missing.
    """
    parts = ["effect", "ci_low", "ci_high", "p"]
    names = [parts, *([f"{arm}{part}" for part in ("", "_low", "_high", "_p")] for arm in ARMS)]
    arms = np.stack([effects[part].to_numpy(dtype=float) for part in names])  # arm row part
    arm = np.nan_to_num(arms[..., 0], nan=np.inf).argmin(0)
    smallest = dict(zip(parts, arms[arm, np.arange(len(effects))].T, strict=True))
    return effects.assign(**{**smallest, "p": arms[..., 3].max(0)}, hiding=effects["effect"])


def _hidden_measures(
    behaviours: Sequence[str | Behaviour] | None, model: Transformer
) -> list[tuple[Behaviour, Measure]]:
    return [
        (behaviour, measure)
        for behaviour in select(behaviours).values()
        for measure in behaviour.measurable(causal=model.config.last.causal)
        if measure.points and measure.hidden
    ]


def _work(
    model: Transformer,
    corpus: Iterable[AnnotatedText],
    measures: Sequence[tuple[Behaviour, Measure]],
    armed: Collection[str],
    reading: Texts,
) -> Work:
    """The claims on all texts, and how to read each behaviour."""
    if model.tokenizer is None:
        raise InputError("this model has no tokenizer, so it cannot read a corpus")
    texts, seed = [*islice(corpus, reading.texts)], reading.seed
    if not texts:
        raise InputError("the corpus holds no text to measure: expected at least one")
    training = _training(reading.training, texts) if model.output is None else []
    read_by = readouts(model, [*{behaviour.name: behaviour for behaviour, _ in measures}.values()], training)
    by_name = {measure.name: (behaviour.name, measure) for behaviour, measure in measures}
    columns, causal = [(behaviour.name, measure) for behaviour, measure in measures], model.config.last.causal
    claimed: list[tuple[Window, dict[str, Claims], int, int]] = []  # with the document's group and part
    for behaviour, measure in by_name.values():
        if measure.corpus and behaviour in read_by:
            for n, window in enumerate(_repeats(model, read_by[behaviour], reading.repeats, seed)):
                claimed.append((window, {measure.name: measure.keys_of(window)}, n % N_GROUPS, hiding.part_of(n)))
    usual: dict[str, list[frozenset[int]]] = {name: [] for name in by_name}
    numbers = {name: number for number, name in enumerate(dict.fromkeys(text.document for text in texts))}
    for text in texts:
        for window in windows_of(model, text):
            row_keys = {name: measure.keys_of(window) for name, (_, measure) in by_name.items() if not measure.corpus}
            for name, rows in row_keys.items():
                usual[name] += distances(rows, causal=causal)
            claimed.append((window, row_keys, group_of(text.document), hiding.part_of(numbers[text.document])))
    draws = Draws(causal, columns, seed, armed, usual)
    jobs = ([*draws.jobs(window, group, part, read_by, by_name)] for window, by_name, group, part in claimed)
    work = Work(model, columns, read_by, hiding.lots_of(jobs))
    if CLAIM not in {*work.table["kind"]}:
        raise InputError("no measure claims a row of this corpus: expected texts of at least three tokens")
    return work


def _training(training: Iterable[AnnotatedText], measured: Sequence[AnnotatedText]) -> list[AnnotatedText]:
    """Texts to train probes on, from documents that are not measured."""
    documents, texts, words = {text.document for text in measured}, list[AnnotatedText](), 0
    for text in (each for each in training if each.document not in documents):
        if words >= _TRAINING_WORDS:
            break
        texts.append(text)
        words += len(text.words)
    return texts


def _repeats(model: Transformer, readout: Readout, count: int, seed: int) -> list[Window]:
    """Random repeats, as `position` measures induction; none if they are too short, or have nothing to read."""
    length = repeat_length(model)
    windows = [] if length < SHORTEST_REPEAT else repeats(model, length, count, seed)
    return windows if windows and readout.readable(windows[0]) else []


def _table(work: Work, measured: HidingCosts, seed: int) -> pd.DataFrame:
    costs = {
        **hiding.costs_of(work, measured.drops, measured.counted),
        **hiding.costs_of(work, measured.drops, kinds=ARMS),
    }
    place, column = Heads.from_model(work.model).columns(len(work.measures))
    behaviours, measures = zip(*(work.measures[index] for index in column), strict=True)
    table = pd.DataFrame(
        {
            **place,
            "behaviour": behaviours,
            "measure": [measure.name for measure in measures],
            "readout": [work.read_by[name].name if name in work.read_by else None for name in behaviours],
            **_columns(work, costs, measured, seed),
            **{
                name: np.broadcast_to(getattr(measured, name), measured.measured.shape).ravel()
                for name in ("measured", "sampled", "estimate")
            },
        }
    )
    table = table.loc[table["n"] > 0].reset_index(drop=True)
    table.loc[~table["measured"] & table["estimate"].isna(), _NUMBERS] = np.nan
    tested = np.where(table["measured"], table["p"].to_numpy(dtype=float), 1.0)  # estimates are no tests
    return table.assign(q=benjamini_hochberg(tested))


def _columns(work: Work, costs: Costs, measured: HidingCosts | None, seed: int) -> dict[str, object]:
    """Drop, control and effect of every cell, and its exchange, removal and masking; measures running fastest.

    If `measured` is None, all cells were measured.
    """
    claim = costs[CLAIM]
    effect = estimate(*claim.flat(), *hiding.strictest(costs)[0].flat(), seed=seed)
    n = claim.rows.sum(0).reshape(-1).round().astype(int)
    columns: dict[str, object] = {"n": n, "documents": effect.groups, "control_name": hiding.control_names(work, costs)}
    columns |= {"drop": effect.value, "control": effect.baseline, "effect": effect.gain}
    columns |= {"ci_low": effect.low, "ci_high": effect.high, "p": effect.p}
    parts = {arm: costs[arm].flat() for arm in ARMS}
    if measured is not None and measured.mass is not None:
        masses = hiding.costs_of(work, measured.mass)
        parts["masked"] = [*masses[CLAIM].flat(), *masses[CONTROLS[0]].flat()]
    for name, sums in parts.items():
        cost = estimate(*sums, seed=seed)
        is_known = measured.arms.reshape(-1) if measured is not None and name in ARMS else True
        values = {name: cost.gain, f"{name}_low": cost.low, f"{name}_high": cost.high, f"{name}_p": cost.p}
        columns |= {part: np.where(is_known, value, np.nan) for part, value in values.items()}
    return columns

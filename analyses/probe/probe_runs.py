"""How well do probes read one corpus? A row for each layer and head, and the depth of each task."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from scipy import stats
from torch import Tensor

from analyses.execution import lots
from analyses.execution.progress import Say, Stages
from analyses.measures.definitions import DECLARED
from analyses.probe.fitted import Scores, Splits, probe, read, right_alone
from analyses.probe.probe_tasks import (
    SPLITS,
    TASKS,
    WindowItems,
    choose,
    probed_stack,
    task_split,
    task_windows,
    with_control,
)
from analyses.scoring.collectors import refuse_unread
from interp import AnnotatedText, InputError, Model, StackConfig
from interp.errors import whole_number
from interp.patterns.totals import N_GROUPS
from interp.probes import PENALTY, centre_of_gravity, expected_layer_terms
from interp.statistics import estimate
from models.initialisation import untrained

# Columns: the probe's accuracy, its rival's, their difference, and bounds of the difference.
CONTROL = ("accuracy", "control_accuracy", "selectivity", "ci_low", "ci_high")
RULE = ("accuracy", "baseline", "gain", "gain_low", "gain_high")
UNTRAINED = ("accuracy", "untrained_accuracy", "learnt", "learnt_low", "learnt_high")
AMBIGUOUS = ("ambiguous_accuracy", "ambiguous_baseline", "ambiguous_gain", "ambiguous_low", "ambiguous_high")
LAYER_COLUMNS: list[str] = DECLARED["tables"]["layers"].split()
DEPTH_COLUMNS = ["stack", "task", "measure", "value", "ci_low", "ci_high", "n"]
EXPECTED, GRAVITY = "expected layer", "centre of gravity"
CHOOSING, FITTING = "probes: choosing words", "probes: fitting"  # stages
Interval = tuple[float, float, float]  # value, lower and upper bound
_NOTHING: Interval = (np.nan, np.nan, np.nan)


@dataclass(frozen=True)
class Probed:
    """The probes of one corpus, by task, and what was read for them."""

    stack: str
    config: StackConfig
    seed: int
    scores: Mapping[str, Scores]
    left_out: Mapping[str, str]  # tasks without items, and why
    counts: Mapping[str, int]
    documents: int

    @cached_property
    def layers(self) -> pd.DataFrame:
        """The rows of `tables/layers`: one per task and site, which is a layer's stream or a head.

        `depth` counts the blocks passed: 0 is the stream into the first. `ci_low` and `ci_high` bound the selectivity.
        `gain` is accuracy minus `baseline`: the type's most frequent label, or for edges the strictest rule. `learnt`
        is accuracy minus that of the same probe on the model with fresh weights. `ambiguous_*` cover types that are
        both noun and verb in training. Intervals are over test documents, with probes fixed.
        """
        n_layers, n_heads = self.config.n_layers, self.config.n_heads
        rows: list[tuple[int, int | None, int, str]] = [(0, None, 0, "resid_pre")]
        rows += [(layer, None, layer + 1, "resid_post") for layer in range(n_layers)]
        rows += [(layer, head, layer + 1, "attn.z") for layer in range(n_layers) for head in range(n_heads)]
        sites = pd.DataFrame(rows, columns=["layer", "head", "depth", "site"]).astype({"head": "Int64"})
        columns = {task: _columns(scores, self.seed) for task, scores in self.scores.items()}
        tables = [sites.assign(stack=self.stack, task=task, **values) for task, values in columns.items()]
        return pd.concat(tables, ignore_index=True).reindex(columns=LAYER_COLUMNS)

    @cached_property
    def depths(self) -> pd.DataFrame:
        """The depth of each task, then the difference of every two tasks, named `a - b`.

        The expected layer is missing if all layers together read the task no better than the embedding alone. Its
        interval is a bootstrap over test documents. That of the centre of gravity comes from refitting probes to halves
        of the training documents.
        """
        pairs = [(task, None) for task in self.scores]
        pairs += [(task, base) for base, task in combinations([task for task in TASKS if task in self.scores], 2)]
        rows = []
        for task, base in pairs:
            scores, base_scores = self.scores[task], self.scores[base] if base else None
            n = min(len(each.groups) for each in (scores, base_scores) if each is not None)
            name = f"{task} - {base}" if base else task
            expected = expected_with_interval(scores, base_scores, self.seed)
            centre = centre_with_interval(scores, base_scores)
            rows += [(self.stack, name, EXPECTED, *expected, n), (self.stack, name, GRAVITY, *centre, n)]
        return pd.DataFrame(rows, columns=DEPTH_COLUMNS)


def _columns(scores: Scores, seed: int) -> dict[str, Any]:
    cumulative = np.full(len(scores.right), np.nan)
    cumulative[: len(scores.cumulative)] = scores.cumulative.mean(1)
    rule = scores.baseline.expand_as(scores.right)
    columns = {"n": len(scores.groups), "baseline_name": scores.baseline_name, "cumulative_accuracy": cumulative}
    for names, rival in ((CONTROL, scores.control), (RULE, rule), (UNTRAINED, scores.untrained)):
        columns |= _against(scores, rival, seed, names)
    if scores.ambiguous is not None:
        columns |= _against(scores, rule, seed, AMBIGUOUS, scores.ambiguous)
        columns["ambiguous_n"] = int(scores.ambiguous.sum())
    return columns


def _against(
    scores: Scores,
    rival: Float[Tensor, "site item"],
    seed: int,
    names: Sequence[str],
    mask: Float[Tensor, " item"] | None = None,
) -> dict[str, np.ndarray]:
    mask = torch.ones(len(scores.groups)) if mask is None else mask
    if not mask.any():
        return {name: np.full(len(scores.right), np.nan) for name in names}
    values = scores.right, rival, torch.ones_like(rival)
    right, rivals, counts = (_sums(scores.groups, each * mask) for each in values)
    result = estimate(right, counts, rivals, counts, seed=seed)
    return dict(zip(names, (result.value, result.baseline, result.gain, result.low, result.high), strict=True))


def _sums(groups: Int[Tensor, " item"], values: Float[Tensor, "*column item"]) -> np.ndarray:
    columns = values.double().reshape(-1, len(groups)).T
    return torch.zeros(N_GROUPS, columns.shape[1], dtype=torch.float64).index_add_(0, groups, columns).numpy()


def expected_with_interval(scores: Scores, base: Scores | None, seed: int) -> Interval:
    """The expected layer, or its difference from another task's, with its interval."""
    tasks = [each for each in (scores, base) if each is not None]
    terms = [_expected_terms(each, seed) for each in tasks]
    if any(each is None for each in terms):
        return _NOTHING
    # a group with items of either task counts, even if its gains and losses cancel
    present = np.bincount(torch.cat([each.groups for each in tasks]).numpy(), minlength=N_GROUPS) > 0
    parts = [part for term in terms if term is not None for part in term]
    expected = estimate(*parts, present=present, seed=seed)
    return float(expected.gain[0]), float(expected.low[0]), float(expected.high[0])


def _expected_terms(scores: Scores, seed: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Sums of the expected layer's two terms; None unless layers clearly improve on the embedding."""
    above, below = (_sums(scores.groups, terms) for terms in expected_layer_terms(scores.cumulative))
    counts = _sums(scores.groups, torch.ones(len(scores.groups)))
    gained = estimate(below, counts, seed=seed)
    return (above, below) if gained.low[0] > 0 else None


def centre_with_interval(scores: Scores, base: Scores | None) -> Interval:
    """The centre of gravity, or its difference from another task's, with its interval over halves.

    Halves of the documents vary around the whole just as the whole does around the truth: the delete-half jackknife
    (Shao & Wu 1989). It is centred on the value of the whole, so a shift with less text widens the interval.
    """
    value, halves = (centre_of_gravity(shares.double()) for shares in (scores.shares, scores.half_shares))
    lowest, highest = 0.0, len(scores.shares) - 1.0
    if base is not None:
        base_value, base_halves = (centre_of_gravity(shares.double()) for shares in (base.shares, base.half_shares))
        value, halves = value - base_value, halves - base_halves if len(halves) == len(base_halves) else halves[:0]
        lowest, highest = -np.inf, np.inf
    if not len(halves):
        return float(value), np.nan, np.nan
    reach = float(stats.t.ppf(0.975, len(halves))) * float((halves - value).square().mean().sqrt())
    return float(value), max(float(value) - reach, lowest), min(float(value) + reach, highest)


def measure(
    model: Model,
    corpus: Iterable[AnnotatedText],
    *,
    held_out: Iterable[AnnotatedText] | None = None,
    tasks: Sequence[str] | None = None,
    words: int = TASKS["tag"].limit,
    edges: int = TASKS["coreference"].limit,
    test: float = 0.5,
    penalty: float = PENALTY,
    seed: int = 0,
    progress: Say | None = None,
) -> Probed:
    """Probe every layer's stream and every head's output for some of `TASKS`, by default all that texts annotate.

    `tag`: a word's part of speech. `relation`: its relation to its head, without subtype. `coreference`: do a pronoun
    and an earlier mention belong to one chain (the nearest of its chain, and the nearest of another)? A word's vector
    is the mean over its pieces; an edge's is both words' coordinates along 64 principal axes and their product. An
    unknown task, too few documents, and a corpus with nothing for any task are `InputError`s.

    The model has one stack and a tokenizer. Without `held_out`, a quarter of the documents is kept for the test. Probes
    train on at most `words` and `edges` items (heads 6,000, mixes of layers 3,000), and test on `test` times as many.
    `penalty` weighs the squared weights. `seed` draws control tasks, untrained weights, halves and resamples.
    """
    if unknown := {*(tasks or ())} - {*TASKS}:
        raise InputError(f"no probe for {sorted(unknown)[0]!r}: expected {', '.join(TASKS)}")
    whole_number("seed", seed)
    say = Stages.to(progress)
    names = [task for task in TASKS if task in (tasks or TASKS)]
    items = choose(
        model,
        corpus,
        held_out,
        words=words if any(TASKS[task].label for task in names) else 0,
        edges=edges if "coreference" in names else 0,
        test=test,
        progress=partial(say, CHOOSING),
    )
    windows = {task: {split: task_windows(TASKS[task], items.windows[split]) for split in SPLITS} for task in names}
    left_out = _left_out(windows, seed)
    if left_out.keys() == windows.keys():
        raise InputError("; ".join(dict.fromkeys(left_out.values())))
    refuse_unread(items.counts, getattr(corpus, "name", "the text"))
    say(FITTING, 0)
    of_tasks = [(task, parts) for task, parts in windows.items() if task not in left_out]
    results = lots.do(partial(_fit_task, model, seed, penalty), of_tasks, partial(say, FITTING))
    scores = {task: result for (task, _), result in zip(of_tasks, results, strict=True)}
    documents = sum(map(len, items.documents.values()))
    return Probed(*probed_stack(model), seed, scores, left_out, dict(items.counts), documents)


def _left_out(windows: Mapping[str, Mapping[str, Sequence[WindowItems]]], seed: int) -> dict[str, str]:
    """Tasks that cannot be probed, and why."""
    sides = {task: [task_split(TASKS[task], parts[split]) for split in SPLITS] for task, parts in windows.items()}
    missing = [task for task in sides if not all(side.labels for side in sides[task])]
    lacking = " or ".join(TASKS[task].lacking for task in missing)
    left_out = dict.fromkeys(missing, f"the corpus has no text with {lacking} both to train and to test on")
    for task in (task for task in sides if task not in left_out):
        try:
            with_control(TASKS[task], sides[task][0], sides[task][1], seed)
        except InputError as error:
            left_out[task] = str(error)
    return left_out


def _fit_task(
    model: Model, seed: int, penalty: float, name: str, windows: Mapping[str, Sequence[WindowItems]]
) -> Scores:
    """Probes of one task, on the model and on a copy with fresh weights."""
    train, test = (task_split(TASKS[name], windows[split]) for split in SPLITS)
    items = with_control(TASKS[name], train, test, seed)
    fresh = right_alone(items, _split_vectors(untrained(model, seed), windows), penalty)
    return probe(items, _split_vectors(model, windows), fresh, penalty=penalty, seed=seed)


def _split_vectors(model: Model, windows: Mapping[str, Sequence[WindowItems]]) -> Splits:
    train, test = (read(model, windows[split]) for split in SPLITS)
    return train, test

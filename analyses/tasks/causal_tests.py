"""Which share of the answer to minimal pairs does each head carry? Every head patched in both directions."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float

from analyses.execution import lots
from analyses.measures.definitions import DECLARED
from analyses.measures.findings import NOTABLE
from analyses.measures.head_tables import EFFECT_COLUMNS, Heads
from analyses.tasks.flips import Flips, clusters_in, flip_counts, flips_of
from interp import InputError, Model, TokenBatch, Transformer, run
from interp.errors import whole_number
from interp.patching import Pairs, Sweep, logit_difference, sweep, unpatched
from interp.patching.metrics import last_logits
from interp.patching.patch_sites import last_stack
from interp.patching.results import ANSWERS, guessed, refusal
from interp.patterns.shuffled import shuffled_copy
from interp.statistics import FEWEST_CLUSTERS, Estimate, Shares, benjamini_hochberg, shares

DIRECTIONS = ("denoise", "noise")
_BUDGET = 512 << 20  # bytes for a sweep, on top of what a report already holds
PAIRS = 200  # for tasks with short prompts
_AT_ONCE = 16  # prompts per pass of a copy
_COPIES = 20  # of the model, with heads that look elsewhere: if one does the task, looking is not needed
NO_OUTPUT = "this model has no output layer, so there are no logits whose change could be measured"


@dataclass(frozen=True)
class Task:
    """Minimal pairs that ask a model one question, or why they could not be made.

    `carried` names the answer in sentences: a head carries half of “was or were”. `neutral` prompts favour neither
    answer, so their logit difference is what the model says anyway. `extra` computes more numbers from the pairs.
    `clusters` names what pairs share (names, nouns, a sentence frame), because such pairs are not independent.
    `answers` are the right answers, if only a few occur.
    """

    name: str
    question: str
    pairs: Pairs | None
    neutral: TokenBatch | None = None
    left_out: Counter[str] = field(default_factory=Counter)
    refused: str | None = None
    extra: Callable[[], Mapping[str, float]] = dict
    clusters: Mapping[str, Sequence[str]] = field(default_factory=dict)
    answers: Sequence[str] = ()
    carried: str = ""


@dataclass(frozen=True)
class Effects:
    """The causal part of one behaviour."""

    table: pd.DataFrame  # the rows of `tables/effects`
    tasks: Sequence[dict[str, Any]] = ()  # the rows of `tables/tasks`
    prompts: Mapping[str, pd.DataFrame] = field(default_factory=dict)  # `tables/prompts`, `flips` and `answers`
    left_out: str | None = None  # why there are no effects


Builders = Mapping[str, Callable[..., Task]]
"""By name in `definitions.toml`: `build(model, count, seed, name, question)`; a `count` of None means its default."""
Patched = tuple[dict[str, Any], list[pd.DataFrame], Flips | None]
"""One task's row of `tables/tasks`, its rows of `tables/effects` (one table per direction), and which answers flip."""


def effects_of(model: Model, behaviour: str, builders: Builders, *, pairs: int | None = None, seed: int) -> Effects:
    """Effects of a behaviour's tasks, one lot per task, each of `pairs` pairs; by default, builders decide how many."""
    whole_number("seed", seed)
    if model.config.output == "none":
        return no_effects(behaviour)
    return joined(behaviour, lots.do(partial(patch_task, model, pairs, seed), [*builders.items()]))


def patch_task(model: Model, pairs: int | None, seed: int, name: str, build: Callable[..., Task]) -> Patched:
    """Build and patch one task; if the model does not allow it, the task has a reason instead of pairs."""
    question, carried = (DECLARED["tasks"][name][key] for key in ("question", "carried"))
    try:
        task = replace(build(model, pairs, seed, name, question), carried=carried)
    except InputError as error:
        task = Task(name, question, None, refused=str(error), carried=carried)
    return _measure(model, task, seed)


def patch_heads(model: Model, behaviour: str, tasks: Sequence[Task], *, seed: int = 0) -> Effects:
    """Patch the heads on ready tasks, as `joined` describes."""
    return joined(behaviour, [_measure(model, task, seed) for task in tasks])


def joined(behaviour: str, patched: Sequence[Patched]) -> Effects:
    """The share of the clean-corrupt logit difference that each head's `z` carries.

    Denoising puts a head's clean `z` into the corrupted prompt (is it sufficient?), noising the corrupted one into the
    clean prompt (is it necessary?). One half of the pairs chooses heads, the other reports: `choosing_bound` is the end
    of the first half's interval nearer 0, missing if the share is below 0.05 or the interval contains 0. All else is
    from the `n` reporting prompts, of which `flips` get another answer. Intervals and tests are over prompts or
    `Task.clusters`; `q` is over all rows. A task has no shares if the model may be guessing an answer (`guessed`), or
    if a copy whose heads look elsewhere does it as well, because then any head that averages its input carries some.
    """
    rows, prompts = [], {name: [] for name in Flips._fields}
    for about, effects, flips in patched:
        rows += [each.assign(behaviour=behaviour, task=about["task"]) for each in effects]
        for name, table in flips._asdict().items() if flips else ():
            prompts[name].append(table.assign(behaviour=behaviour, task=about["task"]))
    table = pd.concat(rows, ignore_index=True) if rows else pd.DataFrame(columns=EFFECT_COLUMNS)
    table["q"] = table["q_within"] = benjamini_hochberg(table["p"].to_numpy(dtype=float))
    tables = {name: pd.concat(group, ignore_index=True) for name, group in prompts.items() if group}
    facts = [{"task": about["task"], "behaviour": behaviour, **about} for about, *_ in patched]
    return Effects(table.reindex(columns=EFFECT_COLUMNS), facts, tables)


def no_effects(behaviour: str, why: str = NO_OUTPUT) -> Effects:
    """No effects, and why."""
    table = pd.DataFrame(columns=EFFECT_COLUMNS)
    return Effects(table, left_out=f"The causal test of {behaviour} was left out: {why}.")


def _measure(model: Model, task: Task, seed: int) -> Patched:
    facts: dict[str, Any] = {"task": task.name, "question": task.question, "carried": task.carried, "n": 0}
    facts |= {**dict.fromkeys(("clean", "corrupt", "neutral", "difference", "accuracy"), np.nan)}
    facts |= {"left_out": int(sum(task.left_out.values())), "refused": task.refused}
    if task.pairs is None:
        return facts, [], None
    plain = unpatched(model, task.pairs, logit_difference())
    clean, corrupt = (values[ANSWERS] for values in plain)
    facts |= {"n": len(task.pairs), "clean": float(clean.mean()), "corrupt": float(corrupt.mean())}
    facts |= {"difference": float((clean - corrupt).mean()), "accuracy": float((clean > 0).double().mean())}
    facts |= task.extra()
    if task.neutral is not None:
        assert task.pairs.right is not None
        assert task.pairs.wrong is not None
        logits, answers = last_logits(model, task.neutral.to(model.device)), (task.pairs.right, task.pairs.wrong)
        right, wrong = (logits.gather(1, answer[:, None])[:, 0] for answer in answers)
        facts["neutral"] = float((right - wrong).mean())
    facts["fixed"] = ", ".join(name for name, values in task.clusters.items() if len({*values}) < FEWEST_CLUSTERS)
    clusters = [*task.clusters.values()]
    reason = guessed(clean, task.answers, clusters) or refusal(ANSWERS, *plain)
    reason = reason or _unneeded(model, task.pairs, (clean > 0).double().cpu().numpy(), clusters, seed)
    if reason:
        return facts | {"refused": reason}, [], None  # before the sweep, which takes minutes in a large model
    sweeps = [sweep(model, task.pairs, logit_difference(), direction=way, budget=_BUDGET) for way in DIRECTIONS]
    reports = reporting_half(task.pairs, seed)
    removed = sweeps[DIRECTIONS.index("noise")].effects()[..., torch.from_numpy(~reports)].double().mean(-1).cpu()
    flips = flips_of(model, task.pairs, removed.numpy(), reports, clusters, seed)
    return facts, [_effect_rows(model, sweep, clusters, reports, seed) for sweep in sweeps], flips


def _unneeded(
    model: Model, pairs: Pairs, right: np.ndarray, clusters: Sequence[Sequence[str]], seed: int
) -> str | None:
    """Why a task does not depend on where heads look: a copy with shuffled queries and keys does it too; else None.

    A copy does the task if its right answers reach the lower end of the model's 95% interval.
    """
    if not isinstance(model, Transformer):
        return None  # we cannot shuffle another library's heads
    accuracy = shares(right[:, None], np.ones(len(right)), clusters=clusters)
    copies, fewest = range(_COPIES * seed, _COPIES * (seed + 1)), accuracy.low[0] * len(right)
    best = max(_right_answers(shuffled_copy(model, 2_000_000 + number), pairs, fewest) for number in copies)
    if best < fewest:
        return None
    return (
        f"the model puts the right answer first in {int(right.sum())} of {len(right)} prompts, and a copy of it whose "
        f"heads look elsewhere (shuffled queries and keys) in {best}, so where heads look does not matter here"
    )


def _right_answers(model: Transformer, pairs: Pairs, fewest: float) -> int:
    """How many clean prompts a model answers correctly; counting stops when `fewest` is out of reach."""
    readout, right, site = logit_difference().prepare(model, pairs), 0, f"{last_stack(model)}.resid_final"
    for prompts in torch.arange(len(pairs), device=pairs.last.device).split(_AT_ONCE):
        text, target = pairs.take(prompts).inputs[0]
        final, part = run(model, text, target=target, until=site)[site], readout.take(prompts)
        right += int((part.from_final(model, part.at_reads(final)) > 0).sum())
        if right + len(pairs) - 1 - int(prompts[-1]) < fewest:
            break
    return right


def reporting_half(pairs: Pairs, seed: int) -> Bool[np.ndarray, " pair"]:
    """True for the reporting half, drawn at random; a pair and its reverse are in the same half."""
    rows = zip(pairs.clean.ids.tolist(), pairs.corrupt.ids.tolist(), strict=True)
    names = [frozenset(map(tuple, pair)) for pair in rows]
    order = {name: number for number, name in enumerate(dict.fromkeys(names))}
    rank = np.random.default_rng(seed).permutation(len(order))
    return np.array([2 * rank[order[name]] >= len(order) for name in names])


def _effect_rows(
    model: Model, sweep: Sweep, clusters: Sequence[Sequence[str]], reports: Bool[np.ndarray, " pair"], seed: int
) -> pd.DataFrame:
    ((metric, values),) = sweep.values.items()
    unpatched_values = sweep.clean if sweep.direction == "noise" else sweep.corrupt
    changed = ((values > 0) != (unpatched_values[metric] > 0)).flatten(0, -2).cpu().numpy()  # head prompt
    effect = sweep.effects().double().flatten(0, -2).cpu().numpy().T
    whole = sweep.difference().double().cpu().numpy()

    def of_half(half: Bool[np.ndarray, " pair"]) -> Shares:
        return shares(effect[half], whole[half], clusters=clusters_in(clusters, half), seed=seed)

    chose, reported = of_half(~reports), of_half(reports)
    head_columns, _ = Heads.from_model(model).columns(1)
    columns = {"effect": reported.value, "ci_low": reported.low, "ci_high": reported.high, "p": reported.p}
    columns |= flip_counts(changed[:, reports], clusters_in(clusters, reports), seed)
    columns |= {"n": reported.n, "choosing_bound": choosing_bound(chose)}
    return pd.DataFrame({**head_columns, "intervention": sweep.direction, **columns})


def choosing_bound(chose: Shares | Estimate) -> Float[np.ndarray, " cell"]:
    """The end of each interval nearer 0; NaN if the share is too small or the interval contains 0."""
    bound = np.where(chose.value > 0, chose.low, chose.high)
    return np.where((np.abs(chose.value) >= NOTABLE) & (bound * chose.value > 0), bound, np.nan)

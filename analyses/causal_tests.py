"""The causal part of each behaviour: patch every head on minimal pairs, both ways, and say what share it carries."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from analyses.head_tables import EFFECT_COLUMNS, Heads
from interp import InputError, Model, TokenBatch
from interp.patching import Pairs, Sweep, logit_difference, sweep, unpatched
from interp.patching.metrics import last_logits
from interp.patching.results import ANSWERS, guessed, refusal
from interp.statistics import FEWEST_CLUSTERS, benjamini_hochberg, shares

DIRECTIONS = ("denoise", "noise")
_BUDGET = 512 << 20  # bytes that a sweep may take, beside all that a report holds by then
NO_OUTPUT = "this model has no output layer, so there are no logits whose change could be measured"


@dataclass(frozen=True)
class Task:
    """Minimal pairs that ask one question of a model, or why they could not be made.

    `carried` names the answer in a sentence: a head carries half of “was or were”.
    `neutral` holds prompts that say neither: their logit difference is what the model would answer anyway.
    `extra` are further figures of the task, computed from its pairs. `clusters` say of each pair what it shares with
    others (names, nouns, the frame of its sentence): pairs that share something are not independent.
    """

    name: str
    question: str
    pairs: Pairs | None
    neutral: TokenBatch | None = None
    left_out: Counter[str] = field(default_factory=Counter)
    refused: str | None = None
    extra: dict[str, float] = field(default_factory=dict)
    clusters: Mapping[str, Sequence[str]] = field(default_factory=dict)
    carried: str = ""


@dataclass(frozen=True)
class Effects:
    """The causal part of one behaviour.

    table      the rows of `tables/effects`
    tasks      a row of `tables/tasks` each: how many pairs, the logit differences, what was left out or refused
    left_out   why there is nothing, where there is
    """

    table: pd.DataFrame
    tasks: Sequence[dict[str, Any]] = ()
    left_out: str | None = None


def make_task(name: str, question: str, carried: str, build: Callable[[], Task]) -> Task:
    """The task that `build` makes; one without pairs, and the reason, where none can be made for this model."""
    try:
        made = build()
    except InputError as error:
        made = Task(name, question, None, refused=str(error))
    return replace(made, carried=carried)


def patch_heads(model: Model, behaviour: str, tasks: Sequence[Task], *, seed: int = 0) -> Effects:
    """The share of the clean-corrupt logit difference that each head's `z` carries.

    Denoising puts a head's clean `z` into the corrupted prompt (is it sufficient?), noising the corrupted one into the
    clean prompt (is it necessary?). Intervals and tests are over prompts, or over what prompts share (`Task.clusters`);
    `q` is over all rows. A task that the model answers no better than by guessing has no shares: what is carried there
    is no answer.
    """
    rows: list[pd.DataFrame] = []
    described = []
    for task in tasks:
        facts, found = _one_task(model, task, seed)
        about = {"task": task.name, "behaviour": behaviour, "question": task.question, "carried": task.carried}
        described.append({**about, **facts})
        rows += [each.assign(behaviour=behaviour, task=task.name) for each in found]
    table = pd.concat(rows, ignore_index=True) if rows else pd.DataFrame(columns=EFFECT_COLUMNS)
    table["q"] = table["q_within"] = benjamini_hochberg(table["p"].to_numpy(dtype=float))
    return Effects(table.reindex(columns=EFFECT_COLUMNS), described)


def no_effects(behaviour: str, why: str = NO_OUTPUT) -> Effects:
    """Those of a model whose effects cannot be measured, and why."""
    table = pd.DataFrame(columns=EFFECT_COLUMNS)
    return Effects(table, left_out=f"The causal test of {behaviour} was left out: {why}.")


def _one_task(model: Model, task: Task, seed: int) -> tuple[dict[str, Any], list[pd.DataFrame]]:
    missing = float("nan")
    facts: dict[str, Any] = {"n": 0, "clean": missing, "corrupt": missing, "neutral": missing, "difference": missing}
    facts |= {"accuracy": missing, "left_out": int(sum(task.left_out.values())), "refused": task.refused}
    if task.pairs is None:
        return facts, []
    plain = unpatched(model, task.pairs, logit_difference())
    clean, corrupt = (each[ANSWERS] for each in plain)
    facts |= {"n": len(task.pairs), "clean": float(clean.mean()), "corrupt": float(corrupt.mean())}
    facts |= {
        "difference": float((clean - corrupt).mean()),
        "accuracy": float((clean > 0).double().mean()),
        **task.extra,
    }
    if task.neutral is not None:
        facts["neutral"] = float(_neutral_difference(model, task).mean())
    facts |= {"fixed": ", ".join(name for name, of in task.clusters.items() if len({*of}) < FEWEST_CLUSTERS)}
    if reason := guessed(clean) or refusal(ANSWERS, *plain):  # a coin is asked about few pairs too
        return facts | {"refused": reason}, []  # before a sweep, which would take minutes of a large model
    sweeps = [sweep(model, task.pairs, logit_difference(), direction=way, budget=_BUDGET) for way in DIRECTIONS]
    return facts, [_effect_rows(model, sweep, [*task.clusters.values()], seed) for sweep in sweeps]


def _neutral_difference(model: Model, task: Task) -> Tensor:
    """Logit of the right minus the wrong answer where the prompt says neither."""
    assert task.neutral is not None
    assert task.pairs is not None
    assert task.pairs.right is not None
    assert task.pairs.wrong is not None
    logits = last_logits(model, task.neutral.to(model.device))
    at = torch.arange(len(logits))
    return logits[at, task.pairs.right] - logits[at, task.pairs.wrong]


def _effect_rows(model: Model, sweep: Sweep, clusters: Sequence[Sequence[str]], seed: int) -> pd.DataFrame:
    effect = sweep.effect().double().cpu().numpy()  # layer head prompt
    whole = sweep.difference().double().cpu().numpy()
    found = shares(effect.reshape(-1, effect.shape[-1]).T, whole, clusters=clusters, seed=seed)
    where, _ = Heads.of(model).columns(1)
    columns = {"effect": found.value, "ci_low": found.low, "ci_high": found.high, "p": found.p, "n": found.n}
    return pd.DataFrame({**where, "intervention": sweep.direction, **columns})

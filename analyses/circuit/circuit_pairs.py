"""Which prompts do we search a circuit on, and which of them share a template?"""

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from analyses.behaviours import OURS
from analyses.execution.provenance import digest
from analyses.measures.definitions import DECLARED
from analyses.tasks.causal_tests import NO_OUTPUT
from analyses.tasks.flips import texts_of, tokens_of
from interp import InputError, Model
from interp.errors import one_of, whole_number
from interp.patching import Pairs
from interp.patching.pair_files import TEMPLATE

TASKS = {name: build for behaviour in OURS.values() for name, build in behaviour.tasks.items()}
_FEWEST = 6  # templates: intervals need three on either side


class Prompts(NamedTuple):
    """Pairs of a task, each one's template (if empty, each is a group), and the rows of `tables/pairs`."""

    name: str
    pairs: Pairs
    groups: Sequence[Hashable]
    table: pd.DataFrame
    source: Mapping[str, Any]


def prompts_of(pairs: Pairs, prompts: pd.DataFrame, *, source: Path | None = None) -> Prompts:
    """Pairs with their templates: a column of the table they come from, else the tokens that do not differ in a pair.

    `prompts` is that table, and `source` its file.
    """
    table = prompts.iloc[[*pairs.kept] or [*range(len(pairs))]].reset_index(drop=True)
    groups = [*table[TEMPLATE]] if TEMPLATE in table else _frames(pairs)
    file, sha256 = (None, None) if source is None else (source.name, digest([source.read_bytes()]))
    facts = {"file": file, "sha256": sha256, "pairs": len(pairs), "left_out": pairs.left_out}
    return Prompts(file or "prompts", pairs, groups, table, facts)


def task_prompts(model: Model, task: str, *, count: int | None = None, seed: int = 0) -> Prompts:
    """The minimal pairs of one of our tasks, by default as many as a report has."""
    whole_number("seed", seed)
    if model.config.output == "none":
        raise InputError(NO_OUTPUT)
    build = TASKS[one_of("task", task, TASKS)]
    built = build(model, count, seed, task, DECLARED["tasks"][task]["question"])
    if built.pairs is None:
        raise InputError(f"task {task} cannot be tested on this model: {built.refused}")
    sides = [texts_of(model, side) for side in (built.pairs.clean, built.pairs.corrupt)]
    sides += [tokens_of(model, ids) for ids in (built.pairs.right, built.pairs.wrong) if ids is not None]
    table = pd.DataFrame(dict(zip(("clean", "corrupt", "answer", "wrong"), sides, strict=True)))
    facts = {"file": None, "sha256": None, "pairs": len(built.pairs), "left_out": built.left_out}
    return Prompts(task, built.pairs, _frames(built.pairs), table, facts)


def _frames(pairs: Pairs) -> list[Hashable]:
    """The tokens that do not differ in each pair; empty if there are too few frames for intervals on both sides."""
    ids = pairs.clean.ids.masked_fill(pairs.changed, -1).masked_fill(~pairs.clean.mask, -2)
    frames: list[Hashable] = [*map(tuple, ids.tolist())]
    return frames if len({*frames}) >= _FEWEST else []

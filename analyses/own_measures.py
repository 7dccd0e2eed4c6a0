"""How does a user ask their own question? With a one-line measure, scored against rivals as ours are.

Measures of word pairs are scored like relations: how often is the most attended word the target? Measures of claims
are scored like positional ones: what share of attention is on the claimed keys (`docs/own_measures.md`)?
"""

import runpy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from jaxtyping import Bool
from torch import Tensor

from analyses.measures.definitions import Behaviour, Claims, Measure, Rival
from analyses.measures.head_tables import Heads
from analyses.position import UNIFORM as EVERY_KEY
from analyses.reading.inputs import mask_of
from analyses.reading.windows import Batch, Progress, Window
from analyses.scoring.choices import PairScorer
from analyses.scoring.collectors import Readings, Scoring, measured
from analyses.scoring.rules import OFFSETS, UNIFORM, pairs_of
from interp import AnnotatedText, InputError, Model
from interp.indices import is_number
from interp.patterns.claimed import Claimed
from interp.patterns.positional import near
from interp.patterns.rows import REAL, Rows

NAME = "own measures"
Pairs = Callable[[AnnotatedText], Iterable[tuple[int, int]]]


def _offset_rival(offset: int) -> Rival:
    """A pattern that looks at one offset, in tokens; rows without such a key look nowhere."""
    return Rival(f"offset {offset:+d}", lambda rows: (near(rows, offset) & rows.visible)[:, None].to(REAL))


OF_WORDS = (UNIFORM, *OFFSETS)
OF_TOKENS = (EVERY_KEY, *map(_offset_rival, (-5, -4, -3, -2, -1, 1, 2, 3)))
"""The default rivals."""


def own_behaviour(measures: Sequence[Measure], name: str = NAME, *, title: str = "") -> Behaviour:
    """A behaviour made of a user's measures of word pairs or claims, in shares; `title` is the heading."""
    for measure in measures:
        if not measure.points or measure.unit != "share":
            raise InputError(f"measure {measure.name}: expected `pairs` or `claims`, and the unit share")
    complete = [_with_rivals(measure) for measure in measures]
    names = [measure.name for measure in complete]
    titles = "; ".join(measure.title or measure.name for measure in complete)
    return Behaviour(
        name,
        title or name.capitalize(),
        complete,
        partial(Collector, measures=complete, behaviour=name),
        headline=names,
        needs=frozenset(need for measure in complete for need in measure.needs),
        described=f"How often, or how much, do heads look where these measures say: {titles}?",
        grids={"share": f"Which heads show {' or '.join(names[:3])}{' or others' * (len(names) > 3)}?"},
        cost=3 * len(complete),
    )


def _with_rivals(measure: Measure) -> Measure:
    null = "same distance" if measure.pairs else "any key"
    rivals = measure.rivals or (OF_WORDS if measure.pairs else OF_TOKENS)
    checked = {
        name: partial(check, measure.name, function)
        for name, check in (("mask", _checked_mask), ("claims", _checked_claims))
        if (function := getattr(measure, name))
    }
    return replace(measure, rivals=rivals, null=null, **checked)


def _checked_mask(name: str, mask: Callable[[Rows], Any], rows: Rows) -> Bool[Tensor, "prompt query key"]:
    expected = f"a function of rows that gives a torch.bool tensor {(*rows.visible.shape,)}, prompt query key"
    keys = _called(name, expected, mask, rows)
    if not isinstance(keys, Tensor) or (keys.dtype, keys.shape) != (torch.bool, rows.visible.shape):
        got = f"{keys.dtype} {(*keys.shape,)}" if isinstance(keys, Tensor) else type(keys).__name__
        raise InputError(f"measure {name}: expected `mask` to be {expected}; got {got}")
    return keys


def _checked_claims(name: str, claims: Callable[[Window], Any], window: Window) -> Claims:
    n_rows = len(window.ids)
    expected = "a function of a window that gives each row's keys as whole numbers, {row: {key, ...}}"
    keys_of = _called(name, expected, lambda window: {row: {*keys} for row, keys in claims(window).items()}, window)
    if strange := [number for number in chain(keys_of, *keys_of.values()) if not is_number(number)]:
        raise InputError(f"measure {name}: expected `claims` to be {expected}; got {strange[0]!r}")
    if outside := [row for row in keys_of if not 0 <= row < n_rows]:
        raise InputError(f"measure {name}: expected rows 0-{n_rows - 1} of {window.text.document}, got {outside[0]}")
    return keys_of


def _called(name: str, expected: str, function: Callable[[Any], Any], argument: Rows | Window) -> Any:
    """The result of a user's function; its errors name the measure."""
    try:
        return function(argument)
    except Exception as error:
        raise InputError(f"measure {name}: {type(error).__name__}: {error}; expected {expected}") from error


def as_behaviours(measures: Iterable[str | Behaviour | Measure]) -> list[str | Behaviour]:
    """The behaviours, with a user's single measures gathered into one."""
    measures = list(measures)
    single = [each for each in measures if isinstance(each, Measure)]
    return [each for each in measures if not isinstance(each, Measure)] + ([own_behaviour(single)] if single else [])


def measure_pairs(
    model: Model,
    corpus: Iterable[AnnotatedText],
    pairs: Pairs,
    *,
    name: str,
    title: str = "",
    seed: int = 0,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """How often a head looks most from the first word of a pair to the second: the rows of `tables/heads`.

    `pairs` returns a text's pairs of word indices, query and target. A corpus without such a pair is an `InputError`,
    and so is a model of two stacks or without a tokenizer.
    """
    measures = [_with_rivals(Measure(name, title, pairs=pairs))]
    return measured(partial(Collector, measures=measures), model, corpus, seed=seed, progress=progress).heads


def read_file(path: Path) -> list[str | Behaviour]:
    """The behaviours and measures of a user's Python file, in lists `BEHAVIOURS` and `MEASURES` or at its top level.

    A faulty file is an `InputError`.
    """
    if not path.is_file():
        raise InputError(f"no file {path}: expected a Python file that makes measures")
    try:
        names = runpy.run_path(str(path), run_name="measures")
    except (Exception, SystemExit) as error:  # the file is the user's code and may raise anything
        raise InputError(f"{path}: {type(error).__name__}: {error}") from error
    listed = [names[name] for name in ("BEHAVIOURS", "MEASURES") if name in names]
    items = [each for values in listed for each in values] if listed else list(names.values())
    behaviours = [each for each in {id(each): each for each in items}.values() if isinstance(each, Behaviour | Measure)]
    if not behaviours:
        raise InputError(f"{path}: expected a Measure or a Behaviour at the top level, found none")
    return as_behaviours(behaviours)


class Collector(Scoring):
    """Adds up measures of word pairs and of claims."""

    def __init__(
        self,
        model: Model,
        *,
        seed: int = 0,
        heads: Heads | None = None,
        measures: Sequence[Measure] = (),
        behaviour: str = NAME,
    ):
        super().__init__(model, behaviour, heads)
        self.mask_id, causal = mask_of(model, self.heads), self.heads.causal
        fills = self.mask_id is not None
        measures = [each for each in measures if not (each.later and causal) and (fills or not each.masked)]
        self.parts = [self._scorer(measure) for measure in measures]
        names = ", ".join(measure.name for measure in measures)
        self.nothing = f"the corpus has no item of {names} whose tokens this model sees"

    def _scorer(self, measure: Measure) -> Readings:
        if measure.pairs is None:
            return _Shares(self.heads, [measure])
        unseen = f"{measure.name}: pairs left out: the word sought is not visible"
        scorer = partial(PairScorer, self.heads, [measure], pairs_of(measure), self.counts)
        mask_id = self.mask_id if measure.masked else None
        return scorer(unseen=unseen, predicting=measure.foretells, mask_id=mask_id)


class _Shares(Readings):
    """Attention on claimed keys, over rows that see any."""

    def add(self, batch: Batch) -> None:
        """Score one batch."""
        claimed = Claimed(batch.rows, [claimed_keys(batch, measure) for measure in self.measures])
        shape = len(batch.windows), 1, *batch.rows.visible.shape[1:]
        rivals = torch.cat([rival(batch.rows).expand(shape) for rival in self.rivals], 1)
        heads = claimed.read(batch.pattern, batch.sink)
        self.add_prompts(batch.groups, heads, claimed.read_rule(rivals.to(batch.pattern)))


def claimed_keys(batch: Batch, measure: Measure) -> Bool[Tensor, "prompt query key"]:
    """True at keys that satisfy the measure, whether the row sees them or not."""
    if measure.mask is not None:
        return measure.mask(batch.rows)
    claimed = torch.zeros_like(batch.rows.visible)
    for prompt, window in enumerate(batch.windows):
        for row, keys in measure.keys_of(window).items():
            claimed[prompt, row, [key for key in keys if 0 <= key < claimed.shape[-1]]] = True
    return claimed

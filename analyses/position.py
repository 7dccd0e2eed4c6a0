"""Which heads look by position: the previous token, a fixed offset, the first token, an earlier copy, what followed it?

We read attention on any text, and on random tokens repeated once, where only induction helps. The causal test breaks
the repeat and asks which heads carry the copy from its first occurrence to the second.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from heapq import nsmallest
from operator import itemgetter
from typing import Any

import pandas as pd
import torch

from analyses.corpora.in_memory import random_ids
from analyses.execution import lots
from analyses.measures.definitions import BEHAVIOURS, Behaviour, Measure, Rival, declared
from analyses.measures.head_tables import Heads, Scored
from analyses.reading.inputs import by_ids, is_paired
from analyses.reading.windows import Batch, Progress, Reading, Window, read_batch
from analyses.scoring.collectors import Readings, Scoring, measured
from analyses.tasks.causal_tests import Effects, Task, effects_of
from analyses.wording.plain_words import Words
from interp import AnnotatedText, InputError, Model
from interp.errors import whole_number
from interp.patching import Pairs
from interp.patching.metrics import last_logits
from interp.patterns import Totals, positional
from interp.patterns.claimed import Claimed
from interp.patterns.rows import SINKS
from interp.tokens import NO_WORD
from models.initialisation import untrained

__all__ = ["BEHAVIOUR", "CROSSING", "MEASURES", "TASKS", "Collector", "effects", "induction", "measure", "repeated"]
__dir__ = __all__.copy  # `dir()` lists the public names

_PAIRS = 40  # in the causal test
_AT_ONCE = 8  # repeats per pass
_UNTRAINED_WINDOWS = 32  # windows of text on which untrained models set the bar of `positional-head`
_REPEATS = 40  # sequences for measuring induction
REPEATS = "random repeats"  # the text of induction, whatever the corpus
_LONGEST_REPEAT, SHORTEST_REPEAT = 50, 8


def measure(
    model: Model, corpus: Iterable[AnnotatedText] | None = None, *, seed: int = 0, progress: Progress | None = None
) -> pd.DataFrame:
    """Every head's positional measures on a corpus, with and without the first position, beside uniform attention.

    Without a corpus, the text is random token ids. A model without a tokenizer reads texts of ids ("5 17").

    Returns the rows of `tables/heads`.

    Raises:
        InputError: the corpus is empty, or has words although the model has no tokenizer.
    """
    if corpus is None:
        model, corpus = by_ids(model), random_ids(model, seed)
    return measured(partial(Collector, seed=seed), model, corpus, seed=seed, progress=progress).heads


# What each measure claims.

UNIFORM = Rival("uniform", lambda rows: rows.uniform)
_UNTRAINED = "untrained heads"
_ROWS: dict[str, Any] = {"rivals": (UNIFORM,), "null": "any key", "of_words": False}


def _offset_measure(offset: int) -> Measure:
    name, way = positional.offset_name(offset), "before" if offset < 0 else "after"
    place = f"token {way}"
    near = {"words": Words(place, f"looks at the {place}", "words", f"the {place}")} if abs(offset) == 1 else {}
    return Measure(
        name,
        f"attention to the token {abs(offset)} {way}",
        mask=partial(positional.near, offset=offset),
        later=offset > 0,
        tasks=("repeat",) if offset == -1 else (),
        recorded=name if offset == -1 else "",
        **near,
        **_ROWS,
    )


def _mass(name: str, **options: Any) -> Measure:
    return declared("position", name, **_ROWS | options)


MEASURES = (
    *map(_offset_measure, positional.OFFSETS),
    _mass("first-token", mask=positional.first_token),
    _mass("self", mask=partial(positional.near, offset=0)),
    _mass("duplicate-token", mask=positional.earlier_copies),
    _mass("distance"),
    _mass("entropy", null="none"),
    _mass("positional-head", rivals=(Rival(_UNTRAINED, None),), null="none", label=None),
    _mass("induction", mask=positional.after_copies, corpus=REPEATS),
)
_BY_NAME = {measure.name: measure for measure in MEASURES}


def masks(*, causal: bool) -> dict[str, positional.Mask]:
    """The mask of each measure that reads the text itself."""
    measures = BEHAVIOUR.measurable(causal=causal)
    return {measure.name: measure.mask for measure in measures if measure.mask and not measure.corpus}


class Collector(Scoring):
    """Adds up positional measures; at the end it measures induction on random tokens."""

    def __init__(
        self, model: Model, *, seed: int = 0, heads: Heads | None = None, n_untrained: int = 3, repeats: int = _REPEATS
    ):
        """Without untrained models, `positional-head` has no baseline and is left out; induction reads `repeats`."""
        super().__init__(model, BEHAVIOUR.name, heads)
        self.model, self.seed, self.repeats = model, seed, repeats
        self.seeds = range(whole_number("seed", seed), seed + n_untrained)  # of the untrained models
        self.masks = masks(causal=self.heads.causal)
        self.sums = Readings(self.heads, [_BY_NAME[name] for name in (*self.masks, *positional.SPREAD)])
        self.modes = positional.Modes.empty(self.heads.count, positional.N_MODES)
        self.sample = _Sample()
        self.parts = [self.sums, self.modes, self.sample]

    def add(self, batch: Batch) -> None:
        """Score one batch."""
        questions = positional.Questions(batch.rows, self.masks)
        heads, uniform = questions.read(batch.pattern, batch.sink), questions.read(batch.rows.uniform)
        self.sums.add_prompts(batch.groups, heads, uniform)
        self.modes.add(batch.groups, *positional.argmax_offsets(batch.pattern, batch.rows))
        bare = (replace(window, text=AnnotatedText((), (), window.text.document)) for window in batch.windows)
        self.sample.merge(zip(map(_drawn, batch.windows), bare, strict=True))

    def scored(self) -> list[Scored]:
        """The sums, and induction."""
        scored = self.sums.scored()
        if self.seeds:
            work = partial(_untrained_modes, self.model, self.heads, [window for _, window in self.sample.drawn])
            modes = [each.finish() for each in lots.do(work, [(seed,) for seed in self.seeds])]
            bar = max(float((each.scores.sum(0) / each.weights.sum(0)).max()) for each in modes)
            measure = replace(_BY_NAME["positional-head"], rivals=(Rival(_UNTRAINED, bar),))
            scored.append(Scored(self.modes, [measure], "kept"))
        length = repeat_length(self.model)
        if length < SHORTEST_REPEAT:
            self.counts[f"induction left out: repeats of {length} tokens are shorter than {SHORTEST_REPEAT}"] = 1
            return scored
        return [*scored, induction(self.model, length, self.seed, self.heads, self.repeats)]


class _Sample:
    """The windows with the lowest hashes, so the order of texts does not matter."""

    def __init__(self):
        self.drawn: list[tuple[str, Window]] = []

    def state(self) -> list[tuple[str, Window]]:
        return self.drawn

    def merge(self, drawn: Iterable[tuple[str, Window]]) -> None:
        self.drawn = nsmallest(_UNTRAINED_WINDOWS, [*self.drawn, *drawn], key=itemgetter(0))


def _drawn(window: Window) -> str:
    return hashlib.sha256(repr((window.ids, window.source, window.scored_from - window.start)).encode()).hexdigest()


def _untrained_modes(model: Model, heads: Heads, sample: Sequence[Window], seed: int) -> positional.Modes:
    reading = Reading(untrained(model, seed), (), heads=heads)
    modes = positional.Modes.empty(heads.count, positional.N_MODES)
    for windows in reading.batched(sample):
        batch = read_batch(reading.model, heads, windows)
        modes.add(batch.groups, *positional.argmax_offsets(batch.pattern, batch.rows))
    return modes


# Random tokens, repeated: start + R + R (Olsson 2022).


def repeat_length(model: Model) -> int:
    """The length of R: as many tokens as fit twice after a start token, at most 50."""
    stacks = model.config.stacks.values()
    return min(_LONGEST_REPEAT, (min(stack.n_ctx for stack in stacks) - 1) // 2, len(_ordinary_ids(model)))


def _ordinary_ids(model: Model) -> list[int]:
    """Ids that every stack knows and that are no special tokens of any tokenizer."""
    special = [each.special_ids for each in (model.tokenizer, model.target_tokenizer) if each]
    d_vocab = min(stack.d_vocab for stack in model.config.stacks.values())
    return sorted({*range(d_vocab)}.difference(*special))


def repeated(model: Model, length: int, count: int, seed: int) -> torch.Tensor:
    """`count` rows of ids, start + R + R; R is drawn without replacement from tokens that are not special."""
    ordinary = torch.tensor(_ordinary_ids(model))
    generator = torch.Generator().manual_seed(whole_number("seed", seed))
    orders = [torch.randperm(len(ordinary), generator=generator)[:length] for _ in range(count)]
    rows_drawn = ordinary[torch.stack(orders)]
    prefix = model.tokenizer.prefix[:1] if model.tokenizer else ()
    start = torch.tensor(prefix, dtype=torch.long).expand(count, len(prefix))
    return torch.cat([start, rows_drawn, rows_drawn], 1)


def repeats(model: Model, length: int, count: int, seed: int, *, paired: bool = False) -> list[Window]:
    """The rows of `repeated` as windows, each its own document; if `paired`, an encoder reads the same."""
    windows = []
    for number, row in enumerate(repeated(model, length, count, seed).tolist()):
        ids, start = tuple(row), len(row) - 2 * length
        special = (True,) * start + (False,) * 2 * length
        text = AnnotatedText((), (), f"repeat {number}")
        windows.append(Window(text, 0, 0, 0, ids, (NO_WORD,) * len(ids), special, ids if paired else None))
    return windows


def induction(model: Model, length: int, seed: int, heads: Heads | None = None, count: int = _REPEATS) -> Scored:
    """Mean A[i, i - (n - 1)] over the second copy: attention to what followed the token's first occurrence.

    In an encoder-decoder, both stacks read the repeat.
    """
    heads = heads or Heads.from_model(model)
    measure = _BY_NAME["induction"]
    sums, windows = Readings(heads, [measure]), repeats(model, length, count, seed, paired=is_paired(model, heads))
    parts = [(begin, windows[begin : begin + _AT_ONCE]) for begin in range(0, count, _AT_ONCE)]
    lots.do(partial(_induction, model, heads), parts, receive=sums.merge)
    return replace(sums.scored()[0], corpus=measure.corpus)


def _induction(model: Model, heads: Heads, begin: int, windows: list[Window]) -> Any:
    sums, batch = Readings(heads, [_BY_NAME["induction"]]), read_batch(model, heads, windows)
    claimed = Claimed(batch.rows, [positional.after_copies(batch.rows)], content=True)
    groups = torch.arange(begin, begin + len(windows))  # every sequence is independent of the others
    sums.add_prompts(groups, claimed.read(batch.pattern), claimed.read(batch.rows.uniform))
    return sums.state()


# The causal test: a repeat against a broken repeat.


def effects(model: Model, *, pairs: int | None = None, seed: int = 0) -> Effects:
    """Which heads carry a copy: the task `repeat`, with 40 `pairs` by default.

    Clean: start + R + the beginning of R. Corrupted: in the first R, the prompt's last token and a later one are
    swapped, so another token follows it. The answers are the tokens that followed it in the clean and corrupted prompt.
    """
    return effects_of(model, BEHAVIOUR.name, TASKS, pairs=pairs, seed=seed)


def _broken_repeat(model: Model, count: int | None, seed: int, name: str, question: str) -> Task:
    length, count = repeat_length(model), count or _PAIRS
    if length < SHORTEST_REPEAT:
        raise InputError(f"repeats of {length} tokens are shorter than {SHORTEST_REPEAT}")
    ids = repeated(model, length, count, seed)
    start = ids.shape[1] - 2 * length
    column = start + length // 2  # in the first copy, the token whose successor is the answer
    generator = torch.Generator().manual_seed(seed)
    partner = torch.randint(column + 2, start + length - 1, (count,), generator=generator)
    row = torch.arange(count)
    clean = ids[:, : column + length + 1]
    corrupt = clean.clone()
    corrupt[row, column], corrupt[row, partner] = clean[row, partner], clean[row, column]
    pairs = Pairs.from_ids(model, clean, corrupt, clean[row, column + 1], clean[row, partner + 1]).to(model.device)

    def copying() -> dict[str, float]:
        return {"copying": float((last_logits(model, pairs.clean).argmax(-1) == pairs.right).double().mean())}

    return Task(name, question, pairs, extra=copying)


TASKS = {"repeat": _broken_repeat}

BEHAVIOUR = Behaviour(
    **BEHAVIOURS["position"],
    measures=MEASURES,
    collector=Collector,
    effects=effects,
    tasks=TASKS,
    bare={"n_untrained": 0},  # `positional-head` makes no label, so it needs no bar
    null={"repeats": 16},
)


# Cross-attention, while the decoder writes: does it look at the start of the source, everywhere, or in its order?

_NO_ORDER = Rival("no order", 0.0)
CROSSING_MEASURES = tuple(  # in the order of `positional.CROSSING`; the last is one number per text
    declared("crossing", name, rivals=(_NO_ORDER if name == "monotonicity" else UNIFORM,), of_words=False)
    for name in positional.CROSSING
)


class CrossingCollector(Scoring):
    """Adds up the measures of cross-attention."""

    def __init__(self, model: Model, *, seed: int = 0, heads: Heads | None = None):
        crossing = [kind for kind in Heads.kinds_of(model) if kind.attention == "cross"]
        if heads is None and not crossing:
            raise InputError("this model has no cross-attention: expected an encoder and a decoder")
        super().__init__(model, CROSSING.name, heads or crossing[0])
        self.totals = {sink: Totals.empty(self.heads.count + 1, len(positional.CROSSING)) for sink in SINKS}
        self.parts = [*self.totals.values()]

    def add(self, batch: Batch) -> None:
        """Score one batch."""
        if batch.crossing is None:
            raise InputError(f"expected patterns of cross-attention: these are of {self.heads.title}")
        patterns = batch.pattern, batch.crossing.uniform.to(batch.pattern)
        for sink in SINKS:
            sums = [
                positional.score_crossing(pattern, batch.crossing, sink_removed=sink == "removed")
                for pattern in patterns
            ]
            self.totals[sink].add(batch.groups, *(torch.cat(parts, 1) for parts in zip(*sums, strict=True)))

    def scored(self) -> list[Scored]:
        """The sums. By chance, the order of favourite keys does not correlate with that of rows."""
        scored = []
        for sink in SINKS:
            totals = self.totals[sink]
            parts = totals.scores, totals.weights, totals.rows
            rows, order = Totals(*(part[..., :-1] for part in parts)), Totals(*(part[:, :-1, -1:] for part in parts))
            scored.append(Scored(rows, CROSSING_MEASURES[:-1], sink))
            scored.append(Scored(order, CROSSING_MEASURES[-1:], sink))
        return scored


CROSSING = Behaviour(**BEHAVIOURS["crossing"], measures=CROSSING_MEASURES, collector=CrossingCollector)

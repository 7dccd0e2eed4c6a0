"""Which heads look by position: the previous token, a fixed offset, the first token, an earlier copy, what followed it?

Attention is read on any text, and on random tokens repeated once, where only induction can help. The causal test breaks
the repeat: it asks which heads carry the copy from the first time to the second.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from heapq import nsmallest
from itertools import islice
from typing import Any

import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from analyses.causal_tests import Effects, Task, make_task, no_effects, patch_heads
from analyses.head_tables import Collected, Heads, Scored
from analyses.measures import Behaviour, Looks, Measure, Rival, Shown
from analyses.plain_words import Words
from analyses.reading.collectors import measured, summary
from analyses.reading.inputs import given, is_paired, patterns
from analyses.reading.token_ids import by_ids, random_ids
from analyses.reading.windows import Batch, Progress, Reading, Window, read_batch
from analyses.side_by_side import side_by_side
from interp import AnnotatedText, InputError, Model
from interp.errors import whole_number
from interp.initialisation import untrained
from interp.patching import Pairs
from interp.patching.metrics import last_logits
from interp.patterns import Null, Rows, Totals, positional
from interp.patterns.nulls import on_set, spread
from interp.patterns.rows import SINKS
from interp.sight import Sight

_UNTRAINED_WINDOWS = 64  # of text, on which untrained models set the bar of `positional-head`
_REPEATS = 40  # sequences on which induction is measured
REPEATS = "random repeats"  # what induction is measured on, whatever the corpus is
_LONGEST_REPEAT, SHORTEST_REPEAT = 50, 8


def measure(
    model: Model,
    corpus: Iterable[AnnotatedText] | None = None,
    *,
    seed: int = 0,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Every head's positional measures on a corpus, raw and without the first position, beside uniform attention.

    Without a corpus they are measured on random token ids, and a model without a tokenizer reads texts of ids ("5 17").

    Returns the rows of `tables/heads`.

    Raises:
        InputError: the corpus is empty, or of words where the model has no tokenizer.
    """
    if corpus is None:
        model, corpus = by_ids(model), random_ids(model, seed)
    return measured(Collector(model, seed=seed), model, corpus, seed=seed, progress=progress).heads


# What each measure claims.

UNIFORM = Rival("uniform", lambda rows: rows.uniform)
_ROWS: dict[str, Any] = {"rivals": (UNIFORM,), "null": "any key", "of_words": False}
_NO_NULL: dict[str, Any] = _ROWS | {"null": "none"}


def _at(offset: int) -> Callable[[Shown], Looks]:
    return lambda shown: {i: {i + offset} for i in shown.scored if i + offset in shown.content}


def _first_token(shown: Shown) -> Looks:
    return {i: {0} for i in shown.scored if i >= 1}


def _earlier_copies(shown: Shown) -> Looks:
    earlier: dict[int, set[int]] = defaultdict(set)
    found: Looks = {}
    for i in sorted(shown.content):
        if i in shown.scored and earlier[shown.ids[i]]:
            found[i] = {*earlier[shown.ids[i]]}
        earlier[shown.ids[i]].add(i)
    return found


def _what_followed(shown: Shown) -> Looks:
    """From a token to what came after its earlier copies: in start + R + R from the second copy into the first."""
    after = {row: {key + 1 for key in keys if key + 1 < row} for row, keys in _earlier_copies(shown).items()}
    return {row: keys for row, keys in after.items() if keys}


def _offset_measure(offset: int) -> Measure:
    name, way = positional.offset_name(offset), "before" if offset < 0 else "after"
    there = f"token {way}"
    near = {"words": Words(there, f"looks at the {there}", "words", f"the {there}")} if abs(offset) == 1 else {}
    return Measure(
        name,
        f"attention to the token {abs(offset)} {way}",
        claims=_at(offset),
        later=offset > 0,
        tasks=("repeat",) if offset == -1 else (),
        recorded=name if offset == -1 else "",
        **near,
        **_ROWS,
    )


MEASURES = (
    *map(_offset_measure, positional.OFFSETS),
    Measure(
        "first-token",
        "attention to the first token",
        claims=_first_token,
        words=Words("first token", "rests on the first token", "words", "the first token"),
        **_ROWS,
    ),
    Measure(
        "self",
        "attention to the token itself",
        claims=_at(0),
        hidden=False,
        words=Words("itself", "looks at the token itself", "words", "the word itself"),
        **_ROWS,
    ),
    Measure(
        "duplicate-token",
        "attention to earlier copies of the same token",
        claims=_earlier_copies,
        tasks=("repeat",),
        words=Words("same token", "looks at earlier copies of the same token", "repeated words", "an earlier copy"),
        **_ROWS,
    ),
    Measure("distance", "mean distance of attention", unit="tokens", **_ROWS),
    Measure("entropy", "how evenly attention is spread", unit="entropy", **_NO_NULL),
    Measure(
        "positional-head",
        "rows whose most attended token stands at one offset",
        rivals=(Rival("untrained heads", None),),
        of_words=False,
        label=None,
        words=Words("one distance", "looks hardest at one and the same distance", share="in {} of cases"),
    ),
    Measure(
        "induction",
        "attention to what followed the token the first time",
        claims=_what_followed,
        tasks=("repeat",),
        corpus=REPEATS,
        recorded="induction",
        words=Words(
            "induction",
            "looks at what followed this token before (induction)",
            "repeated words",
            "what followed an earlier copy",
        ),
        **_ROWS,
    ),
)
_BY_NAME = {measure.name: measure for measure in MEASURES}


class Collector:
    """Adds up positional measures; induction, on random tokens of its own, is measured at the end."""

    def __init__(
        self,
        model: Model,
        *,
        seed: int = 0,
        heads: Heads | None = None,
        n_untrained: int = 3,
        repeats: int = _REPEATS,
    ):
        """Start from nothing. Without untrained models, `positional-head` has no bar and is left out.

        Induction is measured on so many `repeats`.
        """
        self.model, self.seed, self.heads, self.repeats = model, seed, heads or Heads.of(model), repeats
        self.seeds = range(whole_number("seed", seed), seed + n_untrained)  # of the untrained models
        self.causal = self.heads.causal
        self.names = positional.measures(self.causal)
        self.totals = {sink: Totals.empty(self.heads.count + 1, len(self.names)) for sink in SINKS}
        self.nulls = {sink: Null.empty(self.heads.count, len(self.names)) for sink in SINKS}
        self.modes = positional.Modes.empty(self.heads.count)
        self.drawn: list[tuple[bytes, Window]] = []

    def add(self, batch: Batch) -> None:
        """Score one batch."""
        questions = positional.Questions(batch.rows, causal=self.causal)
        heads, uniform = questions.read(batch.pattern, batch.sink), questions.read(batch.rows.uniform)
        for sink in SINKS:
            own, even = heads[sink], uniform[sink]
            scores, counts = torch.cat([own.scores, even.scores], 1), torch.cat([own.counts, even.counts], 1)
            self.totals[sink].add(batch.groups, scores, counts)
            self.nulls[sink].add(batch.groups, own.null_mean, own.null_variance)
        self.modes.add(batch.groups, batch.pattern, batch.rows)
        seen = [*self.drawn, *((_lot(window), window) for window in batch.windows)]
        self.drawn = nsmallest(_UNTRAINED_WINDOWS, seen, key=lambda each: each[0])

    def collected(self, reading: Reading) -> Collected:
        """What was added up, and induction."""
        asked = [_BY_NAME[name] for name in self.names]
        scored = [Scored(self.totals[sink], asked, sink, [UNIFORM.name], null=self.nulls[sink]) for sink in SINKS]
        if self.seeds:
            bar = untrained_share(self.model, self.heads, [window for _, window in self.drawn], self.seeds)
            of_modes = _BY_NAME["positional-head"]
            scored.append(Scored(self.modes, [of_modes], "kept", constant=(of_modes.rivals[0].name, bar)))
        counts, length = dict(reading.counts), repeat_length(self.model)
        if length < SHORTEST_REPEAT:
            counts[f"induction left out: repeats of {length} tokens are shorter than {SHORTEST_REPEAT}"] = 1
        else:
            scored.append(induction(self.model, length, self.seed, self.heads, self.repeats))
        return Collected(self.heads, BEHAVIOUR.name, scored=scored, counts=counts, **summary(reading))


def _lot(window: Window) -> bytes:
    """What draws a window: a hash of what is read and scored of it, so that no order of texts draws others."""
    return hashlib.sha256(repr((window.ids, window.source, window.scored_from - window.start)).encode()).digest()


def untrained_share(model: Model, heads: Heads, drawn: Sequence[Window], seeds: Sequence[int]) -> float:
    """The largest share of rows that any head of any untrained model looks hardest at one offset with."""
    tasks = [partial(_untrained_modes, model, heads, drawn, seed, half) for seed in seeds for half in (0, 1)]
    found = side_by_side(tasks)
    whole = [positional.Modes(one + other).finish() for one, other in zip(found[::2], found[1::2], strict=True)]
    return max(float((each.scores.sum(0) / each.weights.sum(0)).max()) for each in whole)


def _untrained_modes(model: Model, heads: Heads, drawn: Sequence[Window], seed: int, half: int) -> Totals:
    """Of every other batch: how many rows of each of an untrained model's heads look hardest at each offset."""
    modes, reading = positional.Modes.empty(heads.count), Reading(untrained(model, seed), (), heads=heads)
    for windows in islice(reading.batched(drawn), half, None, 2):
        batch = read_batch(reading.model, heads, windows)
        modes.add(batch.groups, batch.pattern, batch.rows)
    return modes.totals


# Random tokens, repeated: start + R + R (Olsson 2022).


def repeat_length(model: Model) -> int:
    """How many tokens R holds: as many as fit twice behind a start token, at most 50."""
    stacks = model.config.stacks.values()
    return min(_LONGEST_REPEAT, (min(stack.n_ctx for stack in stacks) - 1) // 2, len(_ordinary_ids(model)))


def _ordinary_ids(model: Model) -> list[int]:
    """Tokens of every stack that are no special token of either tokenizer."""
    special = [each.special_ids for each in (model.tokenizer, model.target_tokenizer) if each]
    d_vocab = min(stack.d_vocab for stack in model.config.stacks.values())
    return sorted({*range(d_vocab)}.difference(*special))


def repeated(model: Model, length: int, count: int, seed: int) -> torch.Tensor:
    """`count` rows of start + R + R as ids; R is drawn without replacement and holds no special token."""
    ordinary = torch.tensor(_ordinary_ids(model))
    generator = torch.Generator().manual_seed(whole_number("seed", seed))
    drawn = torch.stack([ordinary[torch.randperm(len(ordinary), generator=generator)[:length]] for _ in range(count)])
    prefix = model.tokenizer.prefix[:1] if model.tokenizer else ()
    start = torch.tensor(prefix, dtype=torch.long).expand(count, len(prefix))
    return torch.cat([start, drawn, drawn], 1)


def induction(model: Model, length: int, seed: int, heads: Heads | None = None, repeats: int = _REPEATS) -> Scored:
    """Mean A[i, i - (n - 1)] over the second copy: attention to what followed the token's first occurrence.

    A decoder that has a source reads the repeat while its encoder reads it too.
    """
    heads = heads or Heads.of(model)
    totals, null = Totals.empty(heads.count + 1, 1), Null.empty(heads.count, 1)
    for number, ids in enumerate(repeated(model, length, repeats, seed).split(8)):
        sources = ids.tolist() if is_paired(model, heads) else None
        read = given(model, ids.tolist(), sources)
        tokens, pattern = read.tokens, patterns(model, heads, read)
        second = torch.zeros_like(tokens.mask)
        second[:, -length:] = True
        visible = Sight.of(tokens, causal=heads.causal).mask()[:, 0].expand(len(ids), -1, -1)
        rows = Rows(tokens.ids, tokens.mask, second, visible)
        both = torch.cat([pattern, rows.uniform], 1)
        score = both.diagonal(-(length - 1), -2, -1)[..., -length:].sum(-1, keepdim=True)
        groups = torch.arange(len(ids)) + 8 * number  # every sequence is independent of the others
        totals.add(groups, score, torch.full_like(score, float(length)))
        null.add(groups, *_one_of_the_drawn(pattern[..., -length:, -2 * length :], visible[:, -length:, -2 * length :]))
    measure = _BY_NAME["induction"]
    return Scored(totals, [measure], "kept", [UNIFORM.name], corpus=measure.corpus, null=null)


def _one_of_the_drawn(
    pattern: Float[Tensor, "prompt head query key"], visible: Bool[Tensor, "prompt query key"]
) -> tuple[Tensor, Tensor]:
    """Mean and variance of the attention on one key a row, among those it sees, summed over rows."""
    n = visible.sum(-1)[:, None].to(pattern)
    mean, variance = on_set(torch.ones_like(n), n)
    mass, squares = pattern.sum(-1), pattern.square().sum(-1)
    return (mass * mean).sum(-1, keepdim=True), (spread(mass, squares, n) * variance).sum(-1, keepdim=True)


# The causal test: a repeat against a broken repeat.


def effects(model: Model, *, pairs: int = 40, seed: int = 0) -> Effects:
    """Which heads carry a copy: the task `repeat`.

    Clean: start + R + the beginning of R. Corrupted: in the first R the prompt's last token has changed places with a
    later one, so what followed it is another token. Right and wrong answers are what followed in either.
    """
    whole_number("seed", seed)
    if model.config.output == "none":
        return no_effects(BEHAVIOUR.name)
    question = "After random tokens and the start of their repeat, which heads bring back the token that came next?"
    task = make_task("repeat", question, "copying", lambda: _broken_repeat(model, pairs, seed, question))
    return patch_heads(model, BEHAVIOUR.name, [task], seed=seed)


def _broken_repeat(model: Model, count: int, seed: int, question: str) -> Task:
    length = repeat_length(model)
    if length < SHORTEST_REPEAT:
        raise InputError(f"repeats of {length} tokens are shorter than {SHORTEST_REPEAT}")
    ids = repeated(model, length, count, seed)
    start = ids.shape[1] - 2 * length
    asked = start + length // 2  # the token of the first copy whose successor is asked for
    generator = torch.Generator().manual_seed(seed)
    other = torch.randint(asked + 2, start + length - 1, (count,), generator=generator)
    row = torch.arange(count)
    clean = ids[:, : asked + length + 1]
    corrupt = clean.clone()
    corrupt[row, asked], corrupt[row, other] = clean[row, other], clean[row, asked]
    pairs = Pairs.from_ids(model, clean, corrupt, clean[row, asked + 1], clean[row, other + 1]).to(model.device)
    copied = last_logits(model, pairs.clean).argmax(-1) == pairs.right
    return Task("repeat", question, pairs, extra={"copying": float(copied.double().mean())})


BEHAVIOUR = Behaviour(
    "position",
    "Position",
    MEASURES,
    Collector,
    headline=("previous-token", "first-token", "duplicate-token", "induction", "positional-head", "entropy"),
    described=(
        "How much attention goes to the token before, to the first token, to earlier copies of the same token, and, "
        "on random tokens repeated once, to what followed a token the first time (induction). Each is compared with "
        "a head that looks at all visible tokens alike."
    ),
    grids={
        "share": "Which heads look by position?",
        "entropy": "Which heads look at few tokens, and which at all alike?",
    },
    colour="blue",
    effects=effects,
    bare={"n_untrained": 0},  # `positional-head` makes no label, so needs no bar
    null={"repeats": 16},
    pictures=("repeats", "sentence"),
)

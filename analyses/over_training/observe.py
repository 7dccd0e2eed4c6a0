"""What has formed in a model by now? A quick look at its heads, to take many times while it trains.

The scorers are those of the analyses, on little text and without intervals: enough for a curve, not for a claim.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch.nn.functional as F

from analyses import coreference, part_of_speech, position
from analyses.behaviours import RECORDED
from analyses.measures.head_tables import Heads, Scored, values
from analyses.reading.windows import Reading
from analyses.scoring.collectors import UNREADABLE, Scoring, collect, refuse_unread
from interp import AnnotatedText, InputError, Model, run
from interp.errors import whole_number
from interp.training import Windows
from interp.training.objectives import IGNORED, Examples
from models.stories import stories

PAGE_MEASURES = tuple(name for name in RECORDED.values() if ":" not in name)
"""The measures that a page draws. Only the cards of heads show the dozens of relations and tag pairs."""

ROW = 128  # tokens: early rows may be shorter than the context, so later positions are untrained
EARLY, LATE = (10, 25), (100, 125)  # tokens of such a row whose losses in-context learning compares
_STORIES, _IN_ROWS, _ROWS, _REPEATS = 48, 160, 48, 16
_SEED = 2000  # added to the seed: stories differ from the default's training stories and from reports'
_LOGITS = 1 << 24  # at once


def measures(model: Model, seed: int = 0, *, corpus: Iterable[AnnotatedText] | None = None) -> dict[str, float]:
    """Take one look: `heads/MEASURE/L0.H3` for every head, `baseline/MEASURE`, and `model/...` for the whole model.

    `docs/measures` defines the measures; `tag` is the lift of nouns to adjectives. With several kinds of attention,
    heads are called `encoder.L0.H3` or `cross.L0.H3`. `model/MEASURE` is the best head's value. A decoder by itself has
    two more. `model/in-context` is the loss of tokens 100 to 125 of a row of 128 less that of tokens 10 to 25 (Olsson
    2022 compares the 500th of 512 with the 50th; shorter rows scale). `model/copying` is the share of a random repeat's
    second copy, without its first token, that is predicted correctly. What cannot be measured is left out. Heads read
    `corpus`, by default 48 generated stories; in-context learning reads stories joined together.
    """
    texts = _stories(whole_number("seed", seed))[:_STORIES] if corpus is None else tuple(corpus)
    kinds = Heads.kinds_of(model)
    numbers: dict[str, float] = {}
    for heads in kinds:
        numbers |= _head_numbers(model, heads, texts, seed, f"{heads.called}." if len(kinds) > 1 else "")
    for measure in PAGE_MEASURES:
        values = [value for name, value in numbers.items() if name.startswith(f"heads/{measure}/")]
        numbers |= {f"model/{measure}": max(values)} if values else {}
    if len(kinds) == 1 and kinds[0].causal and model.config.output != "none":
        rows = _rows_of_stories(model, seed)
        if rows and (score := in_context(model, rows)) is not None:
            numbers["model/in-context"] = score
        if (length := position.repeat_length(model)) >= position.SHORTEST_REPEAT:
            numbers["model/copying"] = copying(model, length, seed)
    return numbers


@lru_cache(2)
def _stories(seed: int) -> tuple[AnnotatedText, ...]:
    return tuple(stories(_IN_ROWS, _SEED + seed))


def _head_numbers(model: Model, heads: Heads, texts: Sequence[AnnotatedText], seed: int, kind: str) -> dict[str, float]:
    scored = _on_text(model, heads, texts, seed)
    if not scored and heads.attention == "self" and position.repeat_length(model) >= position.SHORTEST_REPEAT:
        scored = [position.induction(model, position.repeat_length(model), seed, heads)]
    numbers: dict[str, float] = {}
    for entry in (entry for entry in scored if entry.sink == "kept"):
        value, baseline = values(entry, heads.count)
        for column, key in ((i, measure.recorded) for i, measure in enumerate(entry.measures) if measure.recorded):
            for i, score in enumerate(value[:, column].tolist()):
                numbers[f"heads/{key}/{kind}L{i // heads.n_heads}.H{i % heads.n_heads}"] = score
            numbers[f"baseline/{kind}{key}"] = float(baseline[column])
    return {name: number for name, number in numbers.items() if np.isfinite(number)}


def _on_text(model: Model, heads: Heads, texts: Sequence[AnnotatedText], seed: int) -> list[Scored]:
    if model.tokenizer is None:
        return []
    options: Any = {"seed": seed, "heads": heads}
    collectors: list[Scoring] = (
        [position.CrossingCollector(model, **options)]
        if heads.attention == "cross"
        else [
            position.Collector(model, **options, n_untrained=0),
            part_of_speech.Collector(model, **options, rules=False, transposed=False),
            coreference.Collector(model, **options),
        ]
    )
    reading = Reading(model, texts, heads=heads)
    try:
        collected = collect(reading, collectors)
        refuse_unread(reading.counts, "the text")
    except InputError:
        return []
    return [scored for each in collected if not isinstance(each, InputError) for scored in each.scored]


def _rows_of_stories(model: Model, seed: int) -> list[Examples]:
    """Rows that start anywhere in a stream of stories, so that early and late tokens are alike."""
    if model.tokenizer is None:
        return []
    tokenizer, row = model.tokenizer, min(ROW, model.config.n_ctx)
    stream = [id for text in _stories(seed) for id in (*tokenizer.prefix, *tokenizer.pieces(text.text).ids)]
    if sum(id == tokenizer.unknown_id for id in stream) > UNREADABLE * len(stream):
        return []
    return Windows(stream, tokenizer.prefix).every(row, _ROWS) if len(stream) > row else []


def in_context(model: Model, rows: Sequence[Examples]) -> float | None:
    """Loss of late tokens less that of early ones, in nats; negative if context helps (Olsson 2022).

    None if a row is too short to have both.
    """
    totals = {stretch: [0.0, 0] for stretch in (LATE, EARLY)}  # of losses, and of targets
    for examples in rows:
        width = min(examples.targets.shape[1], ROW)
        slices = {each: slice(*(round(at * width / ROW) for at in each)) for each in totals}  # in proportion
        size = max(1, _LOGITS // (width * model.config.d_vocab))
        for start in range(0, len(examples), size):
            part = examples.part(slice(start, start + size)).to(model.device)
            logits = run(model, part.tokens.ids[:, : slices[LATE].stop]).logits
            for stretch, total in totals.items():
                targets = part.targets[:, slices[stretch]]
                flat = logits[:, slices[stretch]].float().flatten(0, 1), targets.flatten()
                total[0] += float(F.cross_entropy(*flat, ignore_index=IGNORED, reduction="sum"))
                total[1] += int((targets != IGNORED).sum())
    if not all(count for _, count in totals.values()):
        return None
    late, early = (loss / count for loss, count in totals.values())
    return late - early


def copying(model: Model, length: int, seed: int) -> float:
    """Share of tokens in second copies that the model predicts, without each first one, which comes as a surprise."""
    right, total = 0, 0
    for ids in position.repeated(model, length, _REPEATS, seed).split(8):
        second = ids[:, -length:]
        foretold = run(model, ids.to(model.device)).logits[:, -length:-1].argmax(-1).cpu()
        right += int((foretold == second[:, 1:]).sum())
        total += foretold.numel()
    return right / total


def by_kind(numbers: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """The numbers of one kind (`heads`, `model`, `baseline`), without the kind in their names."""
    return {name.removeprefix(f"{kind}/"): value for name, value in numbers.items() if name.startswith(f"{kind}/")}

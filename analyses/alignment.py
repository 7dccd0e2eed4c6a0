"""Does a head of cross-attention look at the part of the source that is being written? Here the truth is known.

The pairs of `models.pair_tasks` say which part of the source each part of the target comes from. A row of
cross-attention belongs to the token that it helps to write, after the decoder has read all earlier tokens.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from numpy import floating
from numpy.typing import NDArray
from torch import Tensor

from analyses.measures.definitions import Measure, Rival
from analyses.measures.head_tables import Collected, Heads, Scored
from analyses.reading.inputs import Pass
from analyses.wording.head_names import Place
from interp import InputError, Model, TokenBatch, Tokenizer
from interp.patterns import Totals, group_of
from interp.patterns.rows import SINKS, Pattern, argmax
from interp.tokens import Span
from models.pair_tasks import Pair

BEHAVIOUR = "alignment"
ANY_PART = "any part"  # all rows that have a part, pooled
TITLES = ("encoder", "decoder", "cross-attention")  # in the order of `Heads.kinds_of`
_BATCH = 64  # pairs


@dataclass(frozen=True)
class Example:
    """One pair for a figure: a head each of the encoder, the decoder and cross-attention, and the alignment.

    `aligned` has each part's name and its rows and columns in the cross-attention's pattern, as half-open ranges.
    """

    patterns: dict[str, Float[NDArray[floating], "query key"]]  # by the head's name
    source: list[str]  # the encoder's tokens
    read: list[str]  # each row's last input to the decoder
    written: list[str]  # its output in each row
    aligned: list[tuple[str, Span, Span]]


def measure(model: Model, pairs: Iterable[Pair], *, corpus: str = "pairs", seed: int = 0) -> pd.DataFrame:
    """One row per head of cross-attention and part: how often its most attended token is in the part being written.

    The baseline is the best fixed place, counted from the source's start or end, chosen for each part by the truth.
    The interval resamples targets. Pairs of different tasks are an `InputError`.
    """
    pairs, (_, _, heads) = list(pairs), _kinds(model)
    kinds = {tuple(_names(pair)) for pair in pairs}
    if len(kinds) != 1:
        raise InputError(f"expected pairs that have the same parts, got {len(pairs)} of {len(kinds)} kinds")
    names = [*_names(pairs[0]), ANY_PART]
    source_tokenizer, _ = _tokenizers(model)
    width = max(len(source_tokenizer.encode(pair.source)) for pair in pairs)
    totals = Totals.empty(heads.count + 2 * width, len(names))
    for first in range(0, len(pairs), _BATCH):
        batch = pairs[first : first + _BATCH]
        pattern, source = _patterns(model, heads, batch)
        scored = torch.cat([pattern, _rivals(source, width, pattern.shape[2])], 1)
        hits, rows = score(scored, _sought(model, batch, scored.shape[2:]))
        totals.add(torch.tensor([group_of(pair.target) for pair in batch]), hits, rows)
    rivals = [Rival(f"place {index}", None) for index in (*range(width), *range(-1, -1 - width, -1))]
    sums = [Scored(totals, [Measure(name, rivals=rivals) for name in names], SINKS[0])]
    documents = len({pair.target for pair in pairs})
    return Collected(heads, BEHAVIOUR, corpus, sums, {"texts": len(pairs)}, documents).table(seed=seed)


def score(
    pattern: Pattern, sought: Bool[Tensor, "prompt part query key"]
) -> tuple[Float[Tensor, "prompt head part2"], Float[Tensor, "prompt head part2"]]:
    """Count rows whose most attended key is right, and rows with a right key; the last part pools all parts."""
    has_part = sought.any(-1)[:, None]
    best = argmax(pattern)[:, :, None, :, None]
    hits = torch.take_along_dim(sought[:, None].to(pattern.device), best, -1)[..., 0].sum(-1).double()
    rows = has_part.sum(-1).expand(hits.shape).to(hits)
    return torch.cat([hits, hits.sum(-1, keepdim=True)], -1), torch.cat([rows, rows.sum(-1, keepdim=True)], -1)


def chosen(model: Model, pairs: Sequence[Pair], part: str = ANY_PART) -> list[Place]:
    """One head each to draw for the encoder, the decoder and cross-attention.

    In cross-attention, it is the head that looks most often at the part being written. Elsewhere, it is the head with
    the highest mean peak over rows that see several keys.
    """
    *selves, _ = _kinds(model)
    table = measure(model, pairs)
    best = table.loc[table.loc[table["measure"] == part, "value"].idxmax()]
    return [*(_most_peaked(model, heads, pairs) for heads in selves), Place.from_row(best)]


def example(model: Model, pair: Pair, heads: Sequence[Place]) -> Example:
    """The patterns of three heads (of the encoder, the decoder and cross-attention) on one pair."""
    source_tokenizer, target_tokenizer = _tokenizers(model)
    source, target = source_tokenizer.encode(pair.source), target_tokenizer.encode(pair.target)
    patterns = {}
    for (title, kind), head in zip(zip(TITLES, _kinds(model), strict=True), heads, strict=True):
        pattern, _ = _patterns(model, kind, [pair])
        pattern_of_head = pattern[0, head.layer * kind.n_heads + head.head]
        patterns[f"{title} {head.named(prefix=False)}"] = pattern_of_head.double().cpu().numpy()
    aligned = []
    for part in pair.parts:
        rows = _columns(target_tokenizer, pair.target, part.target)
        columns = _columns(source_tokenizer, pair.source, part.source)
        aligned.append((part.name, (rows[0], rows[-1] + 1), (columns[0], columns[-1] + 1)))
    written = target_tokenizer.labels(target)
    start = target_tokenizer.label(model.config.target_start or 0)
    return Example(patterns, source_tokenizer.labels(source), [start, *written[:-1]], written, aligned)


def _names(pair: Pair) -> list[str]:
    return list(dict.fromkeys(part.name for part in pair.parts))


def _kinds(model: Model) -> list[Heads]:
    kinds = Heads.kinds_of(model)
    if len(kinds) != 3:
        raise InputError("alignment is between two texts: expected a model with an encoder and a decoder")
    return kinds


def _tokenizers(model: Model) -> tuple[Tokenizer, Tokenizer]:
    if model.tokenizer is None or model.target_tokenizer is None:
        raise InputError("this model has no tokenizer, so it cannot read pairs: give its directory a tokenizer.json")
    return model.tokenizer, model.target_tokenizer


def _patterns(model: Model, heads: Heads, pairs: Sequence[Pair]) -> tuple[Pattern, TokenBatch]:
    """Every head's pattern while the decoder reads the right target, and the source's tokens."""
    source_tokenizer, target_tokenizer = _tokenizers(model)
    sources = [source_tokenizer.encode(pair.source) for pair in pairs]
    start = model.config.target_start or 0
    targets = [[start, *target_tokenizer.encode(pair.target)[:-1]] for pair in pairs]
    reading = Pass(model, heads, sources) if heads.stack == "encoder" else Pass(model, heads, targets, sources)
    return reading.whole[0], reading.read


def _sought(model: Model, pairs: Sequence[Pair], shape: torch.Size) -> Bool[Tensor, "prompt part query key"]:
    """True at the right keys: in rows that write a token of a part, the source's tokens of that part."""
    source_tokenizer, target_tokenizer = _tokenizers(model)
    names = _names(pairs[0])
    sought = torch.zeros(len(pairs), len(names), *shape, dtype=torch.bool)
    for row, pair in enumerate(pairs):
        for part in pair.parts:
            queries = torch.tensor(_columns(target_tokenizer, pair.target, part.target))
            keys = torch.tensor(_columns(source_tokenizer, pair.source, part.source))
            sought[row, names.index(part.name), queries[:, None], keys] = True
    return sought


def _columns(tokenizer: Tokenizer, text: str, span: Span) -> list[int]:
    """Columns of the tokens that overlap `span`, counting special tokens."""
    n_prefix = len(tokenizer.prefix)
    pieces = enumerate(tokenizer.pieces(text).spans, n_prefix)
    return [index for index, (first, end) in pieces if first < span[1] and end > span[0]]


def _rivals(source: TokenBatch, width: int, n_queries: int) -> Float[Tensor, "prompt place query key"]:
    """Patterns that always look at one place, counted from the start, then from the end, or at the nearest there is."""
    last = source.lengths[:, None] - 1
    steps = torch.arange(width, device=source.ids.device)
    key: Int[Tensor, "prompt place"] = torch.cat([steps.minimum(last), (last - steps).clamp(min=0)], 1)
    columns = torch.nn.functional.one_hot(key, source.ids.shape[1]).float()
    return columns[:, :, None].expand(-1, -1, n_queries, -1)


def _most_peaked(model: Model, heads: Heads, pairs: Sequence[Pair]) -> Place:
    total = torch.zeros(heads.count)
    for pair in pairs[:_BATCH]:  # one at a time, without padding
        pattern, _ = _patterns(model, heads, [pair])
        total += pattern[0, :, 1:].amax(-1).mean(-1).cpu()
    return Place(heads.stack, heads.attention, *divmod(int(total.argmax()), heads.n_heads))

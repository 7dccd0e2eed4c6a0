"""What does a model learn from? Rows of token ids, drawn by seed and step alone, and targets for their positions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Int, Integer
from torch import Generator, Tensor

from interp.errors import InputError
from interp.tokens import TokenBatch, Tokenizer

IGNORED = -100  # the target of a position without a prediction


@dataclass(frozen=True)
class Examples:
    """Rows to read and a target for each position; with an encoder, the decoder reads `decoded` and has the targets."""

    tokens: TokenBatch
    targets: Int[Tensor, "row position"]  # IGNORED for no target
    decoded: TokenBatch | None = None

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def n_targets(self) -> int:
        """Positions with a target."""
        return int((self.targets != IGNORED).sum())

    def part(self, rows: slice) -> "Examples":
        """Some of the rows."""
        return Examples(self.tokens.rows(rows), self.targets[rows], self.decoded and self.decoded.rows(rows))

    def to(self, device: torch.device) -> "Examples":
        """The same on another device."""
        return Examples(self.tokens.to(device), self.targets.to(device), self.decoded and self.decoded.to(device))


@runtime_checkable
class Source(Protocol):
    """A source of rows."""

    def examples(self, rows: int, row: int, generator: Generator) -> Examples:
        """This many rows of (at most) `row` tokens, drawn with `generator` alone."""
        ...


class Windows:
    """Rows of a long text, each after the tokenizer's prefix; targets are the next tokens."""

    def __init__(self, stream: Sequence[int] | Integer[Tensor, " token"], prefix: Sequence[int] = ()):
        self.stream = torch.as_tensor(stream)
        self.prefix = torch.tensor(list(prefix), dtype=torch.long)

    def __len__(self) -> int:
        return len(self.stream)

    def examples(self, rows: int, row: int, generator: Generator) -> Examples:
        """Stretches from anywhere."""
        return self._rows(torch.randint(len(self.stream) - self._width(row), (rows,), generator=generator), row)

    def every(self, row: int, limit: int | None = None) -> list[Examples]:
        """The whole text once, in batches of 16 rows, without the remainder; at most `limit` rows, spread evenly."""
        width = self._width(row)
        starts = _spread(torch.arange(0, len(self.stream) - width, width), limit)
        return [self._rows(batch, row) for batch in starts.split(16)]

    def _width(self, row: int) -> int:
        """Tokens of the text in a row, after the prefix."""
        width = row - len(self.prefix)
        if width < 1:
            raise InputError(f"a row of {row} has no room beside the {len(self.prefix)} tokens that begin a text")
        if len(self.stream) <= width:
            raise InputError(f"the text has {len(self.stream)} tokens, fewer than a row of {row}")
        return width

    def _rows(self, starts: Int[Tensor, " row"], row: int) -> Examples:
        width = row - len(self.prefix)
        stretches = torch.stack([self.stream[start : start + width + 1].long() for start in starts.tolist()])
        whole = torch.cat([self.prefix.expand(len(starts), -1), stretches], 1)
        targets = whole[:, 1:].clone()
        targets[:, : max(len(self.prefix) - 1, 0)] = IGNORED
        return Examples(TokenBatch.from_ids(whole[:, :-1]), targets)


class Repeats:
    """Random segments of `shortest` to `longest` tokens, each twice in a row, until the row is full.

    Targets are the second copy's tokens after the first, which only previous-token and induction heads can predict
    (Olsson 2022). No token is in a segment twice, so segments cannot be longer than the vocabulary.
    """

    def __init__(self, tokenizer: Tokenizer, shortest: int = 6, longest: int = 40):
        ordinary = [id for id in range(tokenizer.d_vocab) if id not in tokenizer.special_ids]
        if not 2 <= shortest <= longest <= len(ordinary):
            raise InputError(f"expected 2 <= shortest <= longest <= {len(ordinary)}, got {shortest} and {longest}")
        self.ordinary, self.prefix = torch.tensor(ordinary), torch.tensor(tokenizer.prefix, dtype=torch.long)
        self.shortest, self.longest = shortest, longest

    def examples(self, rows: int, row: int, generator: Generator) -> Examples:
        """<s> R R S S ...: the tokens of a segment differ."""
        pairs = [self._row(row, generator) for _ in range(rows)]
        ids, targets = (torch.stack(each) for each in zip(*pairs, strict=True))
        return Examples(TokenBatch.from_ids(ids), targets)

    def _row(self, row: int, generator: Generator) -> tuple[Tensor, Tensor]:
        ids, predictable = [self.prefix], [torch.zeros(len(self.prefix), dtype=torch.bool)]
        while sum(map(len, ids)) < row:
            length = int(torch.randint(self.shortest, self.longest + 1, (), generator=generator))
            segment = self.ordinary[torch.randperm(len(self.ordinary), generator=generator)[:length]]
            ids += [segment, segment]
            # the second copy's first token is unpredictable too
            predictable += [torch.zeros(length + 1, dtype=torch.bool), torch.ones(length - 1, dtype=torch.bool)]
        flat, has_target = torch.cat(ids)[:row], torch.cat(predictable)[:row]
        return flat, F.pad(torch.where(has_target, flat, IGNORED)[1:], (0, 1), value=IGNORED)


class Masked:
    """Rows of `source` with a `share` of tokens as targets (Devlin 2019, 3.1): 80% are masked, 10% random, 10% stay."""

    def __init__(self, source: Source, tokenizer: Tokenizer, share: float = 0.15):
        if tokenizer.mask_id is None:
            raise InputError('a masked-word model hides words behind a token: expected "[MASK]" in the vocabulary')
        if not 0 < share < 1:
            raise InputError(f"the share of hidden tokens must lie between 0 and 1, got {share:g}")
        self.source, self.share, self.mask_id = source, share, tokenizer.mask_id
        self.special = torch.tensor(sorted(tokenizer.special_ids))
        self.d_vocab = tokenizer.d_vocab

    def examples(self, rows: int, row: int, generator: Generator) -> Examples:
        """The other source's rows with some tokens hidden."""
        return self.hidden(self.source.examples(rows, row, generator), generator)

    def hidden(self, examples: Examples, generator: Generator) -> Examples:
        """The same rows with tokens hidden: at least one in each row that has ordinary tokens."""
        tokens, ids = examples.tokens, examples.tokens.ids
        ordinary = tokens.mask & ~torch.isin(ids, self.special)
        draws = torch.rand(ids.shape, generator=generator).masked_fill(~ordinary, 2.0)
        is_target = ordinary & ((draws < self.share) | (draws == draws.amin(1, keepdim=True)))
        fates = torch.rand(ids.shape, generator=generator)
        random_ids = torch.randint(self.d_vocab, ids.shape, generator=generator)
        visible = torch.where(is_target & (fates >= 0.9), random_ids, ids)
        visible = torch.where(is_target & (fates < 0.8), self.mask_id, visible)
        return Examples(replace(tokens, ids=visible), ids.masked_fill(~is_target, IGNORED))


class Pairs:
    """Pairs of a source text for the encoder and a target, which the decoder predicts from `start` on."""

    def __init__(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], start: int):
        if not pairs:
            raise InputError("expected pairs to learn from, got none")
        if empty := next((at for at, pair in enumerate(pairs, 1) if not all(map(len, pair))), None):
            raise InputError(f"pair {empty} has an empty side: leave it out, or give both a text")
        self.pairs, self.start = pairs, start

    def __len__(self) -> int:
        return len(self.pairs)

    def examples(self, rows: int, row: int, generator: Generator) -> Examples:
        """Pairs drawn at random, padded to the longest."""
        return self._rows(torch.randint(len(self.pairs), (rows,), generator=generator).tolist(), row)

    def every(self, row: int, limit: int | None = None) -> list[Examples]:
        """Each pair once, in batches of 64; at most `limit` pairs, spread evenly."""
        return [self._rows(batch.tolist(), row) for batch in _spread(torch.arange(len(self.pairs)), limit).split(64)]

    def _rows(self, numbers: Sequence[int], row: int) -> Examples:
        sources, targets = zip(*(self.pairs[number] for number in numbers), strict=True)
        if (longest := max(len(each) for each in (*sources, *targets))) > row:
            raise InputError(f"a text of {longest} tokens is longer than a row of {row}: lengthen the row")
        decoded = TokenBatch.from_rows([[self.start, *target[:-1]] for target in targets])
        width = decoded.ids.shape[1]
        padded = torch.tensor([[*target, *[IGNORED] * (width - len(target))] for target in targets])
        return Examples(TokenBatch.from_rows(sources), padded, decoded)


def _spread(items: Int[Tensor, " item"], limit: int | None) -> Int[Tensor, " part"]:
    return items if limit is None or len(items) <= limit else items[torch.arange(limit) * len(items) // limit]


class Mixed:
    """Rows of several sources in random proportions; mixes name the sources."""

    def __init__(self, sources: Mapping[str, Source]):
        if not sources:
            raise InputError("expected something to learn from: got no source of rows")
        self.sources = dict(sources)

    def examples(self, rows: int, row: int, mix: Mapping[str, float], generator: Generator) -> Examples:
        """Rows whose sources are drawn by `mix`; uniformly if it is empty."""
        if unknown := [name for name in mix if name not in self.sources]:
            raise InputError(f"no source {unknown[0]!r} to mix: there are {', '.join(self.sources)}")
        if len(self.sources) == 1 and not mix:
            return next(iter(self.sources.values())).examples(rows, row, generator)
        shares = torch.tensor([mix.get(name, 0.0) if mix else 1.0 for name in self.sources], dtype=torch.float64)
        counts = torch.multinomial(shares, rows, replacement=True, generator=generator).bincount(minlength=len(shares))
        sources = zip(self.sources.values(), counts.tolist(), strict=True)
        parts = [source.examples(count, row, generator) for source, count in sources if count]
        if len(parts) == 1:
            return parts[0]
        if any(part.decoded is not None for part in parts):
            raise InputError("pairs of texts are not mixed with other sources: expected one source in the mix")
        if any(part.tokens.padded for part in parts) or len({part.targets.shape[1] for part in parts}) > 1:
            raise InputError("only full rows of one length are mixed: expected one source in the mix, or windows")
        order = torch.randperm(rows, generator=generator)  # so that micro-batches mix sources
        ids, targets = torch.cat([part.tokens.ids for part in parts]), torch.cat([part.targets for part in parts])
        return Examples(TokenBatch.from_ids(ids[order]), targets[order])

"""What a model learns from: rows of token ids, and for each position what is to be foretold there.

A source is asked for rows with a generator that is made anew for every step, from the seed and the step alone. So the
step is the data's position: a run that is resumed reads on where it stopped, whatever happened in between.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Int, Integer
from torch import Generator, Tensor

from interp.errors import InputError
from interp.tokens import TokenBatch, Tokenizer

IGNORED = -100  # nothing is foretold here


@dataclass(frozen=True)
class Examples:
    """Rows to read, and what is to be foretold at each position: `IGNORED` where nothing is.

    Where there is an encoder and a decoder, `tokens` are the encoder's and `decoded` what the decoder reads; targets
    are the decoder's.
    """

    tokens: TokenBatch
    targets: Int[Tensor, "row position"]
    decoded: TokenBatch | None = None

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def n_targets(self) -> int:
        """Positions at which something is to be foretold."""
        return int((self.targets != IGNORED).sum())

    def part(self, rows: slice) -> "Examples":
        """Some of the rows."""
        return Examples(self.tokens.rows(rows), self.targets[rows], self.decoded and self.decoded.rows(rows))

    def to(self, device: torch.device) -> "Examples":
        """The same on another device."""
        return Examples(self.tokens.to(device), self.targets.to(device), self.decoded and self.decoded.to(device))


@runtime_checkable
class Source(Protocol):
    """Where rows come from."""

    def examples(self, rows: int, row: int, generator: Generator) -> Examples:
        """So many rows of (at most) `row` tokens, drawn with `generator` and nothing else.

        Raises:
            InputError: there are no such rows.
        """
        ...


class Windows:
    """Rows of a running text: the tokenizer's prefix, then a stretch from anywhere; the next token is foretold.

    `stream` holds the tokens of all documents, one after the other, each after the tokenizer's prefix.
    """

    def __init__(self, stream: Sequence[int] | Integer[Tensor, " token"], prefix: Sequence[int] = ()):
        self.stream = torch.as_tensor(stream)
        self.prefix = torch.tensor(list(prefix), dtype=torch.long)

    def __len__(self) -> int:
        return len(self.stream)

    def examples(self, rows: int, row: int, generator: Generator) -> Examples:
        """Stretches from anywhere.

        Raises:
            InputError: the text is shorter than a row.
        """
        places = len(self.stream) - self._own(row)
        return self._at(torch.randint(places, (rows,), generator=generator), row)

    def every(self, row: int, limit: int | None = None) -> list[Examples]:
        """The whole text once, a row after the other, in batches of 16 rows; what is left over is not read.

        Of more rows than `limit` so many are read, spread over the text.

        Raises:
            InputError: the text is shorter than a row.
        """
        own = self._own(row)
        starts = torch.arange(0, len(self.stream) - own, own)
        if limit is not None and len(starts) > limit:
            starts = starts[torch.arange(limit) * len(starts) // limit]
        return [self._at(some, row) for some in starts.split(16)]

    def _own(self, row: int) -> int:
        """Tokens of the text in a row, which the prefix leaves room for."""
        own = row - len(self.prefix)
        if own < 1:
            raise InputError(f"a row of {row} has no room beside the {len(self.prefix)} tokens that begin a text")
        if len(self.stream) <= own:
            raise InputError(
                f"the text has {len(self.stream)} tokens, fewer than a row of {row}: give more, or shorten the row"
            )
        return own

    def _at(self, starts: Int[Tensor, " row"], row: int) -> Examples:
        own = row - len(self.prefix)
        read = self.stream[starts[:, None] + torch.arange(own + 1)].long()
        whole = torch.cat([self.prefix.expand(len(starts), -1), read], 1)
        targets = whole[:, 1:].clone()
        targets[:, : max(len(self.prefix) - 1, 0)] = IGNORED
        return Examples(TokenBatch.from_ids(whole[:, :-1]), targets)


class Repeats:
    """Random segments, each twice in a row, until the row is full; only what the first copy tells is foretold.

    Nothing but the earlier copy tells what comes next: rows that only previous-token and induction heads can foretell
    (Olsson 2022).
    """

    def __init__(self, tokenizer: Tokenizer, shortest: int = 6, longest: int = 40):
        """Segments of `shortest` to `longest` tokens.

        Raises:
            InputError: no token may be in a segment twice, so it cannot be longer than the vocabulary.
        """
        ordinary = [id for id in range(tokenizer.d_vocab) if id not in tokenizer.special_ids]
        if not 2 <= shortest <= longest <= len(ordinary):
            raise InputError(
                f"segments have at least 2 tokens and no token twice: expected 2 <= shortest <= longest <= "
                f"{len(ordinary)}, got {shortest} and {longest}"
            )
        self.ordinary, self.prefix = torch.tensor(ordinary), torch.tensor(tokenizer.prefix, dtype=torch.long)
        self.shortest, self.longest = shortest, longest

    def examples(self, rows: int, row: int, generator: Generator) -> Examples:
        """<s> R R S S ...: no token of a segment is there twice."""
        made = [self._row(row, generator) for _ in range(rows)]
        ids, targets = (torch.stack(each) for each in zip(*made, strict=True))
        return Examples(TokenBatch.from_ids(ids), targets)

    def _row(self, row: int, generator: Generator) -> tuple[Tensor, Tensor]:
        ids, known = [self.prefix], [torch.zeros(len(self.prefix), dtype=torch.bool)]
        while sum(map(len, ids)) < row:
            length = int(torch.randint(self.shortest, self.longest + 1, (), generator=generator))
            segment = self.ordinary[torch.randperm(len(self.ordinary), generator=generator)[:length]]
            ids += [segment, segment]
            # the second copy's first token comes as a surprise too
            known += [torch.zeros(length + 1, dtype=torch.bool), torch.ones(length - 1, dtype=torch.bool)]
        flat, told = torch.cat(ids)[:row], torch.cat(known)[:row]
        return flat, F.pad(torch.where(told, flat, IGNORED)[1:], (0, 1), value=IGNORED)


class Masked:
    """Rows of another source with some tokens hidden, which are foretold where they stand (Devlin 2019, section 3.1).

    Of the tokens that are chosen, 80% become the mask token, 10% a random one, and 10% stay.
    """

    def __init__(self, source: Source, tokenizer: Tokenizer, share: float = 0.15):
        """Hide a `share` of the tokens of `source`.

        Raises:
            InputError: the vocabulary has no mask token, or the share is none.
        """
        if tokenizer.mask_id is None:
            raise InputError('a masked-word model hides words behind a token: expected "[MASK]" in the vocabulary')
        if not 0 < share < 1:
            raise InputError(f"the share of hidden tokens must lie between 0 and 1, got {share:g}")
        self.source, self.share, self.mask_id = source, share, tokenizer.mask_id
        self.special = torch.tensor(sorted(tokenizer.special_ids))
        self.d_vocab = tokenizer.d_vocab

    def examples(self, rows: int, row: int, generator: Generator) -> Examples:
        """The other source's rows, hidden in part."""
        return self.hidden(self.source.examples(rows, row, generator), generator)

    def hidden(self, examples: Examples, generator: Generator) -> Examples:
        """The same rows with tokens hidden: at least one in each row that has any but special ones."""
        ids = examples.tokens.ids
        ordinary = examples.tokens.mask & ~torch.isin(ids, self.special)
        wish = torch.rand(ids.shape, generator=generator).masked_fill(~ordinary, 2.0)
        chosen = ordinary & ((wish < self.share) | (wish == wish.amin(1, keepdim=True)))
        how = torch.rand(ids.shape, generator=generator)
        other = torch.randint(self.d_vocab, ids.shape, generator=generator)
        read = torch.where(chosen & (how < 0.8), self.mask_id, torch.where(chosen & (how >= 0.9), other, ids))
        return Examples(examples.tokens.reading(read), ids.masked_fill(~chosen, IGNORED))


class Pairs:
    """A source text and a target text: the encoder reads the first, the decoder foretells the second.

    The decoder reads `start` and then the target, which ends in the target tokenizer's suffix.
    """

    def __init__(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], start: int):
        """Pairs of ids; `start` is the id that every decoder's text begins with.

        Raises:
            InputError: there are none, or one has an empty side.
        """
        if not pairs:
            raise InputError("expected pairs to learn from, got none")
        if empty := next((at for at, pair in enumerate(pairs, 1) if not all(map(len, pair))), None):
            raise InputError(f"pair {empty} has an empty side: leave it out, or give both a text")
        self.pairs, self.start = pairs, start

    def __len__(self) -> int:
        return len(self.pairs)

    def examples(self, rows: int, row: int, generator: Generator) -> Examples:
        """Pairs drawn at random, padded to the longest.

        Raises:
            InputError: one is longer than a row.
        """
        return self._at(torch.randint(len(self.pairs), (rows,), generator=generator).tolist(), row)

    def every(self, row: int, limit: int | None = None) -> list[Examples]:
        """Each pair once, in batches of 64; of more than `limit` so many, spread over all.

        Raises:
            InputError: one is longer than a row.
        """
        chosen = range(len(self.pairs))
        if limit is not None and len(chosen) > limit:
            chosen = [at * len(self.pairs) // limit for at in range(limit)]
        return [self._at(list(chosen[at : at + 64]), row) for at in range(0, len(chosen), 64)]

    def _at(self, chosen: Sequence[int], row: int) -> Examples:
        sources, targets = zip(*(self.pairs[at] for at in chosen), strict=True)
        if (longest := max(len(each) for each in (*sources, *targets))) > row:
            raise InputError(
                f"a text of {longest} tokens is longer than a row of {row}: lengthen the row, or leave it out"
            )
        read = [[self.start, *target[:-1]] for target in targets]
        width = max(map(len, read))
        wanted = torch.tensor([[*target, *[IGNORED] * (width - len(target))] for target in targets])
        return Examples(TokenBatch.from_rows(sources), wanted, TokenBatch.from_rows(read))


class Mixed:
    """Rows of several sources in chance proportions."""

    def __init__(self, sources: Mapping[str, Source]):
        """Sources by the names that mixes use.

        Raises:
            InputError: there are none.
        """
        if not sources:
            raise InputError("expected something to learn from: no source of rows was given")
        self.sources = dict(sources)

    def examples(self, rows: int, row: int, mix: Mapping[str, float], generator: Generator) -> Examples:
        """Rows whose sources are drawn by `mix`; of all sources alike where it is empty.

        Raises:
            InputError: a source that does not exist, rows of several sources that do not fit together, or what
                the sources raise.
        """
        if unknown := [name for name in mix if name not in self.sources]:
            raise InputError(f"no source {unknown[0]!r} to mix: there are {', '.join(self.sources)}")
        if len(self.sources) == 1 and not mix:
            return next(iter(self.sources.values())).examples(rows, row, generator)
        shares = torch.tensor([mix.get(name, 0.0) if mix else 1.0 for name in self.sources], dtype=torch.float64)
        drawn = torch.multinomial(shares, rows, replacement=True, generator=generator).bincount(minlength=len(shares))
        parts = [
            source.examples(count, row, generator)
            for source, count in zip(self.sources.values(), drawn.tolist(), strict=True)
            if count
        ]
        if len(parts) == 1:
            return parts[0]
        if any(part.decoded is not None for part in parts):
            raise InputError("pairs of texts are not mixed with other sources: expected one source in the mix")
        if any(part.tokens.padded for part in parts) or len({part.targets.shape[1] for part in parts}) > 1:
            raise InputError("only full rows of one length are mixed: expected one source in the mix, or windows")
        order = torch.randperm(rows, generator=generator)  # so that every micro-batch has its share of each
        ids, targets = torch.cat([part.tokens.ids for part in parts]), torch.cat([part.targets for part in parts])
        return Examples(TokenBatch.from_ids(ids[order]), targets[order])

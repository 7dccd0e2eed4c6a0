"""A recipe's data, prepared: tokens from the cache, sources of rows, and held-out examples."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from interp import InputError, Tokenizer
from interp.errors import inside
from interp.training import Examples, Masked, Pairs, Plan, Repeats, Windows
from interp.training import token_arrays as texts
from interp.training.objectives import Source
from models.plain_tables import nearest
from models.recipes.text_sources import Generated, Paired, Running, Text, digest_of, read_from

Say = Callable[[str, int], None]
_HELD_OUT_SEED = 1  # for held-out examples: the same at every evaluation of every run


@dataclass(frozen=True)
class Repeated:
    """Random segments that come twice, of lengths between these, with tokens from the whole vocabulary."""

    shortest: int = 6
    longest: int = 40


Kind = Running | Repeated | Paired
KINDS: dict[str, type[Any]] = {"text": Text, "generated": Generated, "repeats": Repeated, "pairs": Paired}


@dataclass(frozen=True)
class Ready:
    """Sources of rows, held-out examples, and facts about both, each by its name in the recipe."""

    sources: dict[str, Source] = field(default_factory=dict)
    held_out: dict[str, Sequence[Examples]] = field(default_factory=dict)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)


def read_texts(data: Mapping[str, Kind], digests: Mapping[str, str], cache: Path, side: int = 0) -> Iterator[str]:
    """Every training text, in the order of the recipe; for pairs the sources (0) or the targets (1)."""
    for name, kind in data.items():
        if isinstance(kind, Paired):
            yield from (pair[side] for pair in kind.sides[0])
        elif isinstance(kind, Running):
            documents = read_from(kind, digests[name], cache).documents(held_out=False)
            yield from (document.text for document in documents)


@dataclass(frozen=True)
class Preparation:
    """Prepares one source after another; InputError if a text is shorter than a row, or a pair is longer."""

    plan: Plan
    cache: Path
    digests: Mapping[str, str]
    tokenizer: Tokenizer
    target: Tokenizer | None = None  # for pairs
    start: int | None = None  # for pairs, the token that a target begins with
    hidden: float | None = None  # the share of hidden tokens, for a masked-word model
    say: Say = lambda stage, count: None

    def ready(self, data: Mapping[str, Kind]) -> Ready:
        """All sources."""
        ready = Ready()
        for name, kind in data.items():
            if isinstance(kind, Paired):
                self._pairs(ready, name, kind)
            elif isinstance(kind, Repeated):
                self._repeats(ready, name, kind)
            else:
                self._running(ready, name, kind)
        return ready

    @property
    def row(self) -> int:
        """The longest row of any phase, and the length of held-out rows."""
        return max(phase.row for phase in self.plan.phases)

    def _running(self, ready: Ready, name: str, kind: Running) -> None:
        stream = self._stream(name, kind, held_out=False)
        prefix = self.tokenizer.prefix
        source, row = Windows(stream.tokens, prefix), max(self._rows(name), default=0)
        if row and len(source) <= row - len(prefix):
            raise InputError(
                f"[data.{name}]: the text has {len(source):,} tokens, fewer than a row of {row}: give more, or shorten "
                "the row"
            )
        ready.sources[name] = learnt = self._hiding(source)
        facts = {"documents": len(stream.names), "characters": stream.n_characters, "tokens": len(source)}
        if kind.held_out:
            left_out = self._stream(name, kind, held_out=True)
            try:
                examples = Windows(left_out.tokens, prefix).every(self.row, self.plan.evaluate_rows)
            except InputError as error:
                raise InputError(f"[data.{name}], held out: {error}, or set held_out = 0") from error
            ready.held_out[name] = self._with_masks(learnt, examples)
            facts |= {"held_out": list(left_out.names), "held_out_characters": left_out.n_characters}
            facts |= {"held_out_tokens": len(left_out.tokens)}
        ready.facts[name] = {"digest": self.digests[name], **facts}

    def _stream(self, name: str, kind: Running, *, held_out: bool) -> texts.Stream:
        made_of = f"{self.digests[name]} {'held out' if held_out else 'learnt from'}"
        place = f"{name}-{digest_of([self.tokenizer.backend.to_str(), made_of])[:16]}.tokens"
        self.say(f"tokenizing {name}", 0)
        with inside(f"[data.{name}]{', held out' if held_out else ''}"):
            return texts.tokenize(
                read_from(kind, self.digests[name], self.cache).documents(held_out=held_out),
                self.tokenizer,
                self.cache / place,
                made_of,
                lambda stage, count: self.say(f"{stage} {name}", count),
            )

    def _repeats(self, ready: Ready, name: str, kind: Repeated) -> None:
        with inside(f"[data.{name}]"):
            source = self._hiding(Repeats(self.tokenizer, kind.shortest, kind.longest))
        generator = torch.Generator().manual_seed(_HELD_OUT_SEED)
        ready.sources[name] = source
        ready.held_out[name] = [source.examples(max(self.plan.evaluate_rows, 1), self.row, generator)]
        ready.facts[name] = {"digest": self.digests[name]}

    def _pairs(self, ready: Ready, name: str, kind: Paired) -> None:
        start = self.start
        assert start is not None
        learnt, left_out = map(self._encoded, kind.sides)
        row = min(self._rows(name), default=self.row)
        longest = max(len(text) for pair in [*learnt, *left_out] for text in pair)
        if longest > row:
            raise InputError(
                f"[data.{name}]: a text of {longest} tokens is longer than a row of {row}: lengthen the row, or leave "
                "it out"
            )
        ready.sources[name] = Pairs(learnt, start)
        facts: dict[str, Any] = {"pairs": len(learnt)}
        if left_out:
            ready.held_out[name] = Pairs(left_out, start).every(row, self.plan.evaluate_rows)
            facts["held_out"] = len(left_out)
        ready.facts[name] = {"digest": self.digests[name], **facts}

    def _encoded(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[list[int], list[int]]]:
        target = self.target
        assert target is not None
        return [(self.tokenizer.encode(read), target.encode(written)) for read, written in pairs]

    def _rows(self, name: str) -> list[int]:
        """The length of rows from a source, phase by phase."""
        return [phase.row for phase in self.plan.phases if learns(phase.mix, name)]

    def _hiding(self, source: Source) -> Source:
        return source if self.hidden is None else Masked(source, self.tokenizer, self.hidden)

    def _with_masks(self, source: Source, examples: Sequence[Examples]) -> Sequence[Examples]:
        if not isinstance(source, Masked):
            return examples
        generator = torch.Generator().manual_seed(_HELD_OUT_SEED)
        return [source.hidden(each, generator) for each in examples]


def learns(mix: Mapping[str, float], name: str) -> bool:
    """Whether a phase with this mix draws rows from a source."""
    return not mix or mix.get(name, 0.0) > 0


def check_sources(source: str, place: str, names: Iterable[str], data: Mapping[str, Kind]) -> None:
    """Refuse a name in `place` of the recipe `source` that no data has; the message gives the nearest."""
    if unknown := [name for name in names if name not in data]:
        near = nearest(unknown[0], data)
        raise InputError(f"{source}: {place} names {unknown[0]}, which is no source in [data]; the nearest is {near}")


def digests(data: Mapping[str, Kind]) -> dict[str, str]:
    """A digest of each source's data; InputError if a source has none."""
    by_source = {}
    for name, kind in data.items():
        with inside(f"[data.{name}]"):
            by_source[name] = digest_of([kind.shortest, kind.longest]) if isinstance(kind, Repeated) else kind.digest()
    return by_source

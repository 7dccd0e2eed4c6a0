"""Mentions that brackets open and close one by one, of chains that overlap as they like."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from analyses.corpora.reader import Lines
from interp.annotation import Mention
from interp.errors import InputError


@dataclass
class OpenMention:
    """A mention whose end may still come, maybe in parts; words are counted in its document."""

    chain: str
    line: int  # where it opens
    starts: list[int]
    ends: list[int] = field(default_factory=list)
    parts: int = 1
    heads: str | None = None  # what the annotation says of its head words

    @property
    def words(self) -> list[int]:
        """The words of all parts."""
        return [word for start, end in zip(self.starts, self.ends, strict=True) for word in range(start, end)]


class Brackets(list[OpenMention]):
    """The mentions of a document in the order in which they open."""

    def open(self, mention: OpenMention, part: int = 1) -> None:
        """Begin a mention, or the next part of one."""
        if part == 1:
            self.append(mention)
            return
        waiting = self._last(mention.chain, mention.parts, part - 1, part - 1)
        if not waiting:
            raise InputError(f"part {part} of a mention of entity {mention.chain} has no part {part - 1} before it")
        waiting.starts += mention.starts

    def close(self, chain: str, end: int, part: int = 1, parts: int = 1) -> OpenMention:
        """End the mention of a chain that opened last, or a part of it, before the word `end`."""
        mention = self._last(chain, parts, part, part - 1)
        if not mention:
            raise InputError(f'"{chain})" closes a mention of entity {chain} that no "({chain}" opened')
        mention.ends.append(end)
        return mention

    def check_closed(self, document: str, lines: Lines) -> None:
        """Refuse a mention that has no end, at the line where it opens."""
        for mention in self:
            if len(mention.ends) < mention.parts:
                lines.number = mention.line
                what = f"the mention of entity {mention.chain} that opens here"
                raise InputError(f"{what} is not closed before {document} ends")

    def _last(self, *state: object) -> OpenMention | None:
        """The last mention of a chain of which so many parts of so many have begun, and so many ended."""
        matches = (
            each for each in reversed(self) if (each.chain, each.parts, len(each.starts), len(each.ends)) == state
        )
        return next(matches, None)


def in_order(mentions: Iterable[Mention]) -> tuple[Mention, ...]:
    """Mentions by where they start, the longest first."""
    return tuple(sorted(mentions, key=lambda mention: (mention.start, -mention.end)))

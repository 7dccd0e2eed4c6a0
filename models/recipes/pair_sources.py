"""Pairs of texts to learn from: a file of two columns, or pairs that a rule makes."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

from interp import InputError
from interp.training import token_arrays as texts
from models.pair_tasks import TASKS, pairs
from models.plain_tables import nearest
from models.recipes.text_sources import check_count, check_share, digest_of

Pair = tuple[str, str]


@dataclass(frozen=True)
class Paired:
    """Two columns under a line that names them, or pairs by the name of their rule.

    They are held out by their source in a file, and by their target where a rule makes them: then what a model is to
    write of those that are held out, it has never written.
    """

    path: str | None = None
    name: str | None = None
    count: int = 20_000
    seed: int = 1_000
    held_out: float = 0.1

    def __post_init__(self) -> None:
        check_share(self.held_out)
        check_count(self.count)
        if (self.path is None) == (self.name is None):
            raise InputError("expected one of path, a file of two columns, and name, a rule that makes pairs")
        if self.name is not None and self.name not in TASKS:
            raise InputError(f"no rule {self.name} makes pairs; the nearest is {nearest(self.name, TASKS)}")

    @cached_property
    def sides(self) -> tuple[list[Pair], list[Pair]]:
        """What is learnt from, and what is held out.

        Raises:
            InputError: no such file, a line that has not two columns, or nothing to learn from.
        """
        halves: tuple[list[Pair], list[Pair]] = [], []
        for pair in self._pairs():
            unit = pair[0] if self.name is None else pair[1]  # a rule writes one target from several sources
            halves[texts.held_out(unit, self.held_out)].append(pair)
        if not halves[0]:
            raise InputError(f"no pairs to learn from in {self.path or self.name}")
        return halves

    def digest(self) -> str:
        """Tells these pairs, and how they are divided, from others."""
        return digest_of([self.held_out, *self.sides])

    def _pairs(self) -> Iterator[Pair]:
        if self.name is not None:
            for pair in islice(TASKS[self.name](None, self.seed), self.count):
                yield pair.source, pair.target
            return
        path = Path(self.path or "")
        if not path.is_file():
            raise InputError(f"no file of pairs at {path}: expected two columns under a line that names them")
        for document in texts.read([path]):
            for _, source, target in pairs(document.text.splitlines(), path.name):
                yield source, target

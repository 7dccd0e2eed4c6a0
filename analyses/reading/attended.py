"""What do heads attend to in the texts of a batch? Read as it is asked for: whole patterns, or some rows of them."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

from jaxtyping import Float, Int
from torch import Tensor

from analyses.head_tables import Heads
from analyses.reading.inputs import Given, patterns, patterns_by_norm
from interp import Model, Transformer
from interp.patterns.few_rows import FewRows
from interp.patterns.norm_weighted import NormWeighted
from interp.patterns.rows import Pattern, rows_at


class Attended(ABC):
    """The patterns of a batch, all heads on one axis, layer by layer."""

    @property
    @abstractmethod
    def pattern(self) -> Pattern:
        """All of them."""

    @abstractmethod
    def rows(self, prompt: Int[Tensor, " row"], query: Int[Tensor, " row"]) -> Float[Tensor, "row head key"]:
        """Those of some queries."""


@dataclass(frozen=True)
class Known(Attended):
    """Patterns that are there already."""

    whole: Pattern

    @property
    def pattern(self) -> Pattern:
        """All of them."""
        return self.whole

    def rows(self, prompt: Int[Tensor, " row"], query: Int[Tensor, " row"]) -> Float[Tensor, "row head key"]:
        """Those of some queries."""
        return rows_at(self.pattern, prompt, query)


def makes_rows(model: Model, heads: Heads) -> bool:
    """Whether rows of these heads can be had without their patterns."""
    return isinstance(model, Transformer) and heads.attention == "self"


class Pass:
    """Texts that a model reads when something is first asked of their patterns.

    As long as only rows are asked for there is no pattern: the model mixes without, for a fraction of time and memory.
    Whoever asks for whole patterns has them read, once; where that comes first, rows are taken from them.
    """

    def __init__(self, model: Model, heads: Heads, given: Given, norms: NormWeighted | None = None):
        """`norms` are what weighs the same by the norm of what is written."""
        self.model, self.heads, self.given, self.norms = model, heads, given, norms

    @cached_property
    def whole(self) -> tuple[Pattern, Pattern | None]:
        """All patterns, and the same by norm."""
        if self.norms is None:
            return patterns(self.model, self.heads, self.given), None
        return patterns_by_norm(self.norms, self.heads, self.given)

    @cached_property
    def few(self) -> FewRows | None:
        """What rows are made of; None where whole patterns were read first, or there is no other way."""
        if "whole" in self.__dict__ or not makes_rows(self.model, self.heads):
            return None
        assert isinstance(self.model, Transformer)
        own = self.given.read, self.heads.stack, self.given.target
        return FewRows.of(self.model, *own, norms=self.norms is not None)


@dataclass(frozen=True)
class OnDemand(Attended):
    """What is asked of a pass: the model's own patterns, or the same by norm."""

    of: Pass
    by_norm: bool = False

    @property
    def pattern(self) -> Pattern:
        """All of them."""
        found = self.of.whole[self.by_norm]
        assert found is not None
        return found

    def rows(self, prompt: Int[Tensor, " row"], query: Int[Tensor, " row"]) -> Float[Tensor, "row head key"]:
        """Those of some queries."""
        if self.of.few is not None:
            found = self.of.few.rows(prompt, query, by_norm=self.by_norm)
            if not bool(found.isnan().any()):
                return found  # else whole patterns say what is undefined
        return rows_at(self.pattern, prompt, query)

"""What do heads attend to in the texts of a batch? Read as it is asked for: whole patterns, or some rows of them."""

from dataclasses import dataclass
from functools import cached_property

from jaxtyping import Float, Int
from torch import Tensor

from analyses.reading.head_kinds import Heads
from analyses.reading.inputs import Given, patterns, patterns_by_norm
from interp import Model, Transformer
from interp.patterns.few_rows import FewRows
from interp.patterns.norm_weighted import NormWeighted
from interp.patterns.rows import Pattern, rows_at


def makes_rows(model: Model, heads: Heads) -> bool:
    """Whether rows of these heads can be had without their patterns."""
    return isinstance(model, Transformer) and heads.attention == "self"


class Pass:
    """Texts that a model reads when something is first asked of their patterns.

    Where only rows are asked for there is no pattern: the model mixes without, for a fraction of time and memory. Whole
    patterns are read once, and rows are taken from them.
    """

    def __init__(
        self, model: Model, heads: Heads, given: Given, norms: NormWeighted | None = None, *, few_rows: bool = False
    ):
        """`norms` weigh the same by the norm of what is written; with `few_rows` nobody asks for whole patterns."""
        self.model, self.heads, self.given, self.norms, self.few_rows = model, heads, given, norms, few_rows

    @cached_property
    def whole(self) -> tuple[Pattern, Pattern | None]:
        """All patterns, and the same by norm."""
        if self.norms is None:
            return patterns(self.model, self.heads, self.given), None
        return patterns_by_norm(self.norms, self.heads, self.given)

    @cached_property
    def few(self) -> FewRows | None:
        """What rows are made of; None where whole patterns were read first, or there is no other way."""
        if not self.few_rows or "whole" in self.__dict__ or not makes_rows(self.model, self.heads):
            return None
        assert isinstance(self.model, Transformer)
        given = self.given.read, self.heads.stack, self.given.target
        return FewRows.of(self.model, *given, norms=self.norms is not None)


@dataclass(frozen=True)
class Attended:
    """The patterns of a batch, all heads on one axis, layer by layer: those that are there, or what a pass gives."""

    source: Pattern | Pass
    by_norm: bool = False  # of a pass: weighed by the norm of what is written

    @property
    def pattern(self) -> Pattern:
        """All of them."""
        if not isinstance(self.source, Pass):
            return self.source
        pattern = self.source.whole[self.by_norm]
        assert pattern is not None
        return pattern

    def rows(self, prompt: Int[Tensor, " row"], query: Int[Tensor, " row"]) -> Float[Tensor, "row head key"]:
        """Those of some queries."""
        few = self.source.few if isinstance(self.source, Pass) else None
        if few is not None:
            rows = few.rows(prompt, query, by_norm=self.by_norm)
            if not bool(rows.isnan().any()):
                return rows  # else whole patterns say what is undefined
        return rows_at(self.pattern, prompt, query)

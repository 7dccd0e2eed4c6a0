"""What do heads attend to in the texts of a batch? Read as it is asked for: whole patterns, or some rows of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from jaxtyping import Float, Int
from torch import Tensor

from analyses.reading.inputs import Heads, least_target
from interp import InputError, Model, TokenBatch, Transformer
from interp.finite import check_finite
from interp.patterns.one_attention import FewRows, NormWeighted, read_patterns
from interp.patterns.rows import Pattern, rows_at


def makes_rows(model: Model, heads: Heads) -> bool:
    """Whether rows of these heads can be had without their patterns."""
    return isinstance(model, Transformer) and heads.attention == "self"


class Pass:
    """Texts that a model reads when something is first asked of their patterns.

    Where only rows are asked for there is no pattern: the model mixes without, for a fraction of time and memory. Whole
    patterns are read once, and rows are taken from them.

    tokens   those that the heads' queries stand on
    source   what the encoder reads, where the heads are a decoder's that has one
    read     what the first stack reads
    target   what the decoder reads, where there is an encoder
    """

    def __init__(
        self,
        model: Model,
        heads: Heads,
        ids: Sequence[Sequence[int]],
        sources: Sequence[Sequence[int]] | None = None,
        norms: NormWeighted | None = None,
        *,
        few_rows: bool = False,
    ):
        """`norms` weigh the same by the norm of what is written; with `few_rows` nobody asks for whole patterns."""
        self.model, self.heads, self.norms, self.few_rows = model, heads, norms, few_rows
        self.tokens = TokenBatch.from_rows(ids).to(model.device)
        self.source = None if sources is None else TokenBatch.from_rows(sources).to(model.device)
        self.read = self.tokens if self.source is None else self.source
        self.target = least_target(model, len(ids)) if self.source is None else self.tokens
        self.site = f"{heads.stack}.*.{'cross_attn' if heads.attention == 'cross' else 'attn'}.pattern"

    @cached_property
    def whole(self) -> tuple[Pattern, Pattern | None]:
        """The pattern of every head, layer by layer, and the same by norm."""
        if self.norms is None:
            pattern, by_norm = read_patterns(self.model, self.read, self.site, self.target), None
        else:
            pattern, by_norm = self.norms.beside(self.read, self.target)
        undefined = pattern.sum((1, 3)).isnan() & self.tokens.mask
        if not bool(undefined.any()):
            return pattern, by_norm
        row = int(undefined.any(1).int().argmax())
        alone = [each.ids[row][each.mask[row]][None] for each in (self.read, self.tokens)]
        check_finite(self.model, alone[0], None if self.source is None else alone[1])
        n_tokens, dtype = int(self.tokens.mask[row].sum()), self.model.dtype
        raise InputError(f"{self.site} holds NaN in {dtype} on a text of {n_tokens} tokens, though not alone")

    @cached_property
    def few(self) -> FewRows | None:
        """What rows are made of; None where whole patterns were read first, or there is no other way."""
        if not self.few_rows or "whole" in self.__dict__ or not makes_rows(self.model, self.heads):
            return None
        assert isinstance(self.model, Transformer)
        return FewRows.of(self.model, self.read, self.heads.stack, self.target, norms=self.norms is not None)


@dataclass(frozen=True)
class Attended:
    """The patterns of a batch, all heads on one axis, layer by layer: those that are there, or what a pass gives."""

    source: Pattern | Pass
    by_norm: bool = False  # of a pass: weighed by the norm of what is written

    @property
    def pattern(self) -> Pattern:
        """All of them."""
        pattern = self.source.whole[self.by_norm] if isinstance(self.source, Pass) else self.source
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

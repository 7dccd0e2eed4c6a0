"""What does one kind of attention do with a text? Whole patterns, patterns weighted by the writes, or single rows.

A head sums values, each times its attention weight and through W_O. Much attention to a small value writes little
(Kobayashi 2020), so weights alone overrate sinks and punctuation. Single rows, such as those of pronouns (one word in
thirty), are computed from the queries and keys of a pass that makes no pattern.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.attention import Attention
from interp.config import TransformerConfig
from interp.devices import move, pick
from interp.model import Model, Site, sites_of
from interp.patterns.rows import Pattern
from interp.running import Tokens, run
from interp.tap import UNTAPPED, Tap
from interp.tokens import TokenBatch
from interp.transformer import Sublayer, Transformer
from interp.visibility import Visibility

_NAMES = {"self": "attn", "cross": "cross_attn"}


class OneAttention:
    """One kind of a model's attention, as an `interp.model.Model` with only its patterns as sites and no logits."""

    def __init__(self, model: Transformer, stack: str | None = None, attention: str = "self"):
        """Use the attention of `stack` (by default the last), within it or to its source (`cross`)."""
        self.model, self.attention = model, attention
        self.stack = stack or [*model.config.stacks][-1]
        self.name = _NAMES[attention]  # the sublayer's name in sites
        self.config: TransformerConfig = model.config
        self.tokenizer, self.target_tokenizer = model.tokenizer, model.target_tokenizer
        self.device, self.dtype = model.device, model.dtype

    @property
    def sites(self) -> Mapping[str, Site]:
        """The configuration's sites; a call fires only the patterns among them."""
        return sites_of(self.config)


class NormWeighted(OneAttention):
    """One kind of a model's attention, weighted by what it writes, for every measure of patterns.

    Its pattern is each key's share of the norms that a query writes: A_ij ||v_j W_O|| over its sum (Kobayashi 2020;
    without W_O's bias, which belongs to no key).
    """

    @torch.no_grad()
    def __call__(self, batch: TokenBatch, tap: Tap = UNTAPPED, target: TokenBatch | None = None) -> None:
        """Pass every head's weighted pattern through `tap`."""
        for layer, (_, weighted) in enumerate(self._patterns(batch, target)):
            tap.at(self.stack).at(str(layer)).at(self.name)("pattern", weighted)

    @torch.no_grad()
    def with_plain(self, batch: TokenBatch, target: Tokens | None = None) -> tuple[Pattern, Pattern]:
        """The model's patterns and the weighted ones from one pass, in the form of `read_patterns`."""
        plain, weighted = zip(*self._patterns(batch, target), strict=True)
        plain, weighted = (torch.cat(move([*layers], self.device), 1) for layers in (plain, weighted))
        return plain.float(), weighted.float()

    def _patterns(self, batch: TokenBatch, target: Tokens | None) -> Iterator[tuple[Pattern, Pattern]]:
        """Pattern and weighted pattern, layer by layer."""
        prefix = f"{self.stack}.*.{self.name}."
        out = run(self.model, batch, target=target, capture=prefix + "v", until=prefix + "pattern")
        for layer, (_, attn) in enumerate(sublayers(self.model, self.stack, self.attention)):
            site = f"{self.stack}.{layer}.{self.name}"
            pattern = out[f"{site}.pattern"]
            yield pattern, _weighted(pattern, _norms(attn, out[f"{site}.v"]))


class _Layer(NamedTuple):
    attn: Attention
    queries: Float[Tensor, "prompt query head d_head"]
    keys: Float[Tensor, "prompt head key d_head"]
    norms: Float[Tensor, "prompt head key"] | None


@dataclass(frozen=True)
class FewRows:
    """Queries and keys of one stack's self-attention in some texts, and the norms that it writes from each key."""

    layers: list[_Layer]
    visibility: Visibility

    @staticmethod
    @torch.no_grad()
    def from_tokens(
        model: Transformer, tokens: TokenBatch, stack: str, target: Tokens | None = None, *, norms: bool = False
    ) -> "FewRows":
        """One pass over `tokens` for the self-attention of `stack`; with `norms`, rows can be taken `by_norm`."""
        prefix = f"{stack}.*.attn."
        out = run(model, tokens, target=target, capture=[prefix + "q", prefix + "k"], until=prefix + "v")
        tokens = out.tokens if out.target is None or stack == "encoder" else out.target
        visibility = Visibility.from_batch(tokens, causal=model.config.stacks[stack].causal)
        layers = []
        for number, (_, attn) in enumerate(sublayers(model, stack, "self")):
            q, k, v = (out[f"{stack}.{number}.attn.{part}"] for part in "qkv")
            positions = visibility.positions.to(q.device)
            queries, keys = attn.queries(q, positions), attn.keys(k, positions)
            layers.append(_Layer(attn, queries, attn.shared(keys.transpose(1, 2)), _norms(attn, v) if norms else None))
        return FewRows(layers, visibility)

    @torch.no_grad()
    def rows(
        self, prompt: Int[Tensor, " row"], query: Int[Tensor, " row"], *, by_norm: bool = False
    ) -> Float[Tensor, "row head key"]:
        """Every head's attention, layer by layer, in the rows at `query` of each `prompt`, in float32.

        The prompts must be ascending. `by_norm` weights the rows as `NormWeighted` does.
        """
        count = torch.bincount(prompt, minlength=len(self.layers[0].queries))
        place = torch.arange(len(prompt), device=prompt.device) - (count.cumsum(0) - count)[prompt]
        columns = query.new_zeros(len(count), max(1, int(count.max())))  # a prompt's queries, filled up with 0
        columns[prompt, place] = query
        visibility, patterns = self.visibility.at(columns), []
        for attn, queries, keys, norms in self.layers:
            visible = visibility.to(queries.device)  # the one with these columns
            few = queries.gather(1, visible.columns[..., None, None].expand(-1, -1, *queries.shape[2:]))
            pattern = attn.pattern(attn.scores(few.transpose(1, 2), keys, visible))
            if by_norm:
                assert norms is not None
                pattern = _weighted(pattern, norms)
            patterns.append(pick(pattern.transpose(1, 2), (prompt, place)))
        return torch.cat(patterns, 1).float()


def _weighted(
    pattern: Float[Tensor, "prompt head query key"], norms: Float[Tensor, "prompt head key"]
) -> Float[Tensor, "prompt head query key"]:
    """Each key's share of the norms that a query writes."""
    weighted = pattern.to(norms.dtype) * norms[:, :, None]
    return weighted / weighted.sum(-1, keepdim=True).clamp(min=torch.finfo(norms.dtype).tiny)


def _norms(attn: Attention, values: Float[Tensor, "prompt key kv_head d_head"]) -> Float[Tensor, "prompt head key"]:
    """||v W_O|| for every key and head, in the residual stream's unit."""
    values = values.to(torch.promote_types(values.dtype, torch.float32))
    W_O = attn.W_O.to(values)
    gram = torch.einsum("hed,hfd->hef", W_O, W_O)  # d_head x d_head: avoids vectors of d_model
    shared = attn.shared(values.transpose(1, 2))
    return (torch.einsum("bhke,hef->bhkf", shared, gram) * shared).sum(-1).clamp(min=0).sqrt()


def sublayers(model: Transformer, stack: str, attention: str) -> Iterator[tuple[Sublayer, Attention]]:
    """A stack's attention, within it (`self`) or to its source (`cross`), block by block."""
    for block in model.stack(stack).blocks:
        sublayer = block.attention if attention == "self" else block.cross
        assert isinstance(sublayer.layer, Attention)
        yield sublayer, sublayer.layer


def read_patterns(model: Model, tokens: Tokens, sites: str, target: Tokens | None = None) -> Pattern:
    """The patterns at `sites` (`"decoder.*.attn.pattern"`), layer by layer, in float32; the pass ends with the last."""
    out = run(model, tokens, target=target, until=sites)
    return torch.cat(move([*out.activations.values()], model.device), 1).float()  # row sums need more than 8 bits

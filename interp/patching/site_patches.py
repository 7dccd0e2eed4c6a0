"""How a patched cell changes the residual stream of its own layer, for every site: with what it enters a pass.

Everything inside attention comes down to one quantity: how much the patch changes `z` of a head; what that adds to the
stream is that change times `W_O`, through the norm after it where there is one.
"""

from typing import cast

from einops import einsum
from jaxtyping import Float
from torch import Tensor, nn

from interp.parts import MLP
from interp.patching.attention_patches import AttentionPatches, Where
from interp.patching.changed_rows import AFTER_CROSS, AFTER_SELF, INTO, ChangedRows, Suffix, after
from interp.patching.patch_sites import PatchSite
from interp.patching.plain import PlainRun, after_attention, sight_of
from interp.patching.resumption import observed
from interp.sight import Source
from interp.transformer import Block, Transformer

_OF_STREAM = {"resid_pre": INTO, "resid_post": INTO, "resid_mid": AFTER_SELF, "resid_cross": AFTER_CROSS}
At = tuple[slice, slice | Tensor]  # all prompts, and the positions that change
Stream = Float[Tensor, "cell prompt row d_model"]


class SitePatches:
    """Patches of one site, made from a plain run of the base prompts and one of the source prompts."""

    def __init__(self, model: Transformer, base: PlainRun, source: PlainRun, patch_site: PatchSite):
        self.model, self.patch_site = model, patch_site
        self.base, self.source = base.of_stack(patch_site.stack), source.of_stack(patch_site.stack)
        self.blocks = model.stack(patch_site.stack).blocks
        self._neurons: tuple[int, list[Tensor]] = (-1, [])  # a layer, and what both runs had at its neurons
        sight = sight_of(model, self.base.batch, stack=patch_site.stack)
        if patch_site.attention == "cross":
            assert self.base.source is not None
            sight = Source.of(self.base.source.final, self.base.source.batch).seen_by(sight)
        self.inside = AttentionPatches(self.base, self.source, patch_site, sight)

    def enter(self, suffix: Suffix, layer: int, where: Where, heads: list[int]) -> ChangedRows:
        """The cells of `where` in one layer, of `heads` alone where each head is one, as they enter a pass."""
        span = self._rows_changed(where, suffix.first)
        return ChangedRows.of_span(suffix, *self.left(layer, where, heads, span), span.start)

    def left(self, layer: int, where: Where, heads: list[int], rows: slice | Tensor) -> tuple[int, int, Stream]:
        """The stream that the cells leave at `rows`, all of which they patch, as `stream_with` gives it."""
        block, at = self.blocks[layer], (slice(None), rows)
        if self.patch_site.site == "mlp.post":
            return stream_with(block, self.base, layer, at, "mlp_out", self._fed(layer, where, heads, at))
        if not self.patch_site.in_attention:
            return stream_with(
                block, self.base, layer, at, self.patch_site.site, self.source[self.patch_site.site][layer][at][None]
            )
        dz, writes = self.inside.change(block, layer, where, heads, rows)
        pattern = "cell member prompt row d_head, cell member d_head d_model -> cell prompt row d_model"
        written = einsum(dz, writes, pattern)
        stream = after_attention(block, self.base, layer, at, written, self.patch_site.attention)
        return *after(block.config, layer, self.patch_site.attention), stream

    def _fed(self, layer: int, where: Where, neurons: list[int], at: At) -> Stream:
        """What the feed-forward adds to the stream with `neurons` patched, each alone or all of them together."""
        if self._neurons[0] != layer:
            self._neurons = (
                layer,
                [observed(self.model, run, self.patch_site, layer) for run in (self.base, self.source)],
            )
        own, theirs = (post[at] for post in self._neurons[1])
        sublayer = self.blocks[layer].feed_forward
        down, change = cast(MLP, sublayer.layer).down, theirs - own
        if where.by_head:
            pattern = "prompt row neuron, d_model neuron -> neuron prompt row d_model"
            written = einsum(change[..., neurons], down.weight[:, neurons], pattern)
        else:
            written = down(change) if down.bias is None else down(change) - down.bias
            written = written[None]
        if isinstance(sublayer.norm_after, nn.Identity):
            return self.base["mlp_out"][layer][at] + written
        return sublayer.write(down(own) + written)

    def forget(self) -> None:
        """Drop what the cells of the last layer shared."""
        self.inside.forget()
        self._neurons = (-1, [])

    def _rows_changed(self, where: Where, first: int) -> slice:
        """Positions from `first` on at which the patch changes the stream of its own layer."""
        by_row = where.position is not None and not self.patch_site.of_keys
        return slice(where.position, (where.position or 0) + 1) if by_row else slice(first, None)


def stream_with(
    block: Block, base: PlainRun, layer: int, rows: At, site: str, theirs: Stream
) -> tuple[int, int, Stream]:
    """The stream where a site of it is as in `theirs`: the layer that goes on with it, where in that, and what it is.

    Position by position: a patched row is that of the whole patch.
    """
    if (stage := _OF_STREAM.get(site)) is not None:
        return layer + (site == "resid_post"), stage, theirs
    if block.config.parallel:
        return layer + 1, INTO, base.resid[layer + 1][rows] + theirs - base[site][layer][rows]
    if site == "attn_out":
        return layer, AFTER_SELF, block.attention.add(base["resid_pre"][layer][rows], theirs)
    if site == "cross_attn_out":
        return layer, AFTER_CROSS, block.cross.add(base["resid_mid"][layer][rows], theirs)
    read = "resid_mid" if block.cross_attn is None else "resid_cross"
    return layer + 1, INTO, block.feed_forward.add(base[read][layer][rows], theirs)

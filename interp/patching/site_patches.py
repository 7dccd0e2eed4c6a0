"""How a patched cell changes the residual stream of its own layer, for every site: with what it enters a pass.

Everything inside attention comes down to one quantity: how much the patch changes `z` of a head; what that adds to the
stream is that change times `W_O`, through the norm after it where there is one.
"""

from einops import einsum
from jaxtyping import Float
from torch import Tensor

from interp.patching.attention_patches import AttentionPatches, Where
from interp.patching.changed_rows import AFTER_CROSS, AFTER_SELF, INTO, ChangedRows, Suffix
from interp.patching.patch_sites import PatchSite
from interp.patching.plain import PlainRun, after_attention, sight_of
from interp.sight import Source
from interp.transformer import Block, Transformer

_OF_STREAM = {"resid_pre": INTO, "resid_post": INTO, "resid_mid": AFTER_SELF, "resid_cross": AFTER_CROSS}
Span = tuple[slice, slice]  # all prompts, and the positions that change


class SitePatches:
    """Patches of one site, made from a plain run of the base prompts and one of the source prompts."""

    def __init__(self, model: Transformer, base: PlainRun, source: PlainRun, spot: PatchSite):
        self.model, self.spot = model, spot
        self.base, self.source = base.of_stack(spot.stack), source.of_stack(spot.stack)
        self.blocks = model.stack(spot.stack).blocks
        sight = sight_of(model, self.base.batch, stack=spot.stack)
        if spot.attention == "cross":
            assert self.base.source is not None
            sight = Source.of(self.base.source.final, self.base.source.batch).seen_by(sight)
        self.inside = AttentionPatches(self.base, self.source, spot, sight)

    def enter(self, suffix: Suffix, layer: int, where: Where, heads: list[int]) -> ChangedRows:
        """The cells of `where` in one layer, of `heads` alone where each head is one, as they enter a pass."""
        block = self.blocks[layer]
        span = self._rows_changed(where, suffix.first)
        rows = (slice(None), span)
        if not self.spot.in_attention:
            return ChangedRows.of_span(suffix, *self._stream(block, layer, rows), span.start)
        dz, writes = self.inside.change(block, layer, where, heads, span)
        pattern = "cell member prompt row d_head, cell member d_head d_model -> cell prompt row d_model"
        written = einsum(dz, writes, pattern)
        stream = after_attention(block, self.base, layer, rows, written, self.spot.attention)
        return ChangedRows.of_span(suffix, *self._after_attention(layer), stream, span.start)

    def forget(self) -> None:
        """Drop what the cells of the last layer shared."""
        self.inside.forget()

    def _after_attention(self, layer: int) -> tuple[int, int]:
        """When the stream is carried on that the site's attention leaves: the layer, and where in it."""
        if self.model.config.stacks[self.spot.stack].parallel:
            return layer + 1, INTO
        return layer, AFTER_SELF if self.spot.attention == "self" else AFTER_CROSS

    def _stream(self, block: Block, layer: int, rows: Span) -> tuple[int, int, Float[Tensor, "1 prompt row d_model"]]:
        """Where the site lies in the stream itself: the layer in which cells enter, where in it, and with what.

        Position by position: a patched row is that of the whole patch.
        """
        base, site = self.base, self.spot.site
        theirs = self.source[site][layer][rows]
        parallel = block.attn.config.parallel
        if (stage := _OF_STREAM.get(site)) is not None:
            return layer + (site == "resid_post"), stage, theirs[None]
        if parallel:
            return layer + 1, INTO, (base.resid[layer + 1][rows] + theirs - base[site][layer][rows])[None]
        read = {"attn_out": "resid_pre", "cross_attn_out": "resid_mid"}.get(site)
        read = read or ("resid_mid" if block.cross_attn is None else "resid_cross")  # by the feed-forward
        if site == "attn_out":
            after, stage, sublayer = layer, AFTER_SELF, block.attention
        elif site == "cross_attn_out":
            after, stage, sublayer = layer, AFTER_CROSS, block.cross
        else:
            after, stage, sublayer = layer + 1, INTO, block.feed_forward
        return after, stage, sublayer.add(base[read][layer][rows], theirs)[None]

    def _rows_changed(self, where: Where, first: int) -> slice:
        """Positions from `first` on at which the patch changes the stream of its own layer."""
        by_row = where.position is not None and not self.spot.of_keys
        return slice(where.position, (where.position or 0) + 1) if by_row else slice(first, None)

"""How a patched cell changes the residual stream of its own layer, for every site: with what it enters a pass.

Everything inside attention comes down to one quantity: how much the patch changes `z` of a head; what that adds to the
stream is that change times `W_O`, through the norm after it where there is one. A site changes the rows that it is
patched at (`z`, `q`, a pattern's rows), or every row that looks at them (`k`, `v`, a pattern's columns).
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import cast

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor, nn

from interp.attention import Attention
from interp.parts import MLP
from interp.patching.changed_rows import AFTER_CROSS, AFTER_SELF, INTO, ChangedRows, Suffix, after
from interp.patching.patch_sites import PatchSite
from interp.patching.plain import PlainRun, after_attention, visibility_of
from interp.patching.resumption import observed
from interp.tap import UNTAPPED, Edit, Tap
from interp.transformer import Block, Transformer

_OF_STREAM = {"resid_pre": INTO, "resid_post": INTO, "resid_mid": AFTER_SELF, "resid_cross": AFTER_CROSS}
At = tuple[slice, slice | Tensor]  # all prompts, and the positions that change
Stream = Float[Tensor, "cell prompt row d_model"]
# of each cell the heads that it changes; a cell is a head, or the query heads that share a key or a value
Change = Float[Tensor, "cell member prompt row d_head"]
# of patterns on a new first axis, what each changes of the first: small changes keep their precision
_CHANGED: dict[str, Edit] = {"pattern": lambda pattern: pattern - pattern[:1]}


@dataclass(frozen=True)
class Where:
    """One group of cells: the positions that they patch (None: all), and whether each head or neuron is one itself."""

    by_head: bool
    position: int | None = None  # of the site's position axis, or of a pattern's query
    key: int | None = None  # of a pattern's key


class SitePatches:
    """Patches of one site, made from a plain run of the base prompts and one of the source prompts."""

    def __init__(self, model: Transformer, base: PlainRun, source: PlainRun, patch_site: PatchSite):
        self.model, self.patch_site = model, patch_site
        self.base, self.source = base.of_stack(patch_site.stack), source.of_stack(patch_site.stack)
        self.blocks = model.stack(patch_site.stack).blocks
        self.prefix = "attn" if patch_site.attention == "self" else "cross_attn"
        # what the cells of one layer share
        self._neurons = lru_cache(maxsize=1)(
            lambda layer: [observed(model, run, patch_site, layer) for run in (self.base, self.source)]
        )

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
        dz, writes = self._changed_z(block, layer, where, heads, rows)
        pattern = "cell member prompt row d_head, cell member d_head d_model -> cell prompt row d_model"
        written = einsum(dz, writes, pattern)
        stream = after_attention(block, self.base, layer, at, written, self.patch_site.attention)
        return *after(block.config, layer, self.patch_site.attention), stream

    def _changed_z(
        self, block: Block, layer: int, where: Where, heads: list[int], rows: slice | Tensor
    ) -> tuple[Change, Float[Tensor, "cell member d_head d_model"]]:
        """What the patch does to z at `rows`, and the matrices with which those heads write it.

        Cells are `heads` (of `k` and `v` key/value heads) where each head is one, else all heads are members of one.
        """
        attn = block.attn if self.patch_site.attention == "self" else block.cross_attn
        assert attn is not None
        own, theirs = (
            {part: run[f"{self.prefix}.{part}"][layer] for part in "qkvz"} for run in (self.base, self.source)
        )
        n_cells = (attn.config.kv_heads if self.patch_site.of_keys else attn.config.n_heads) if where.by_head else 1
        dz = self._dz(attn, own, theirs, where, rows).permute(2, 0, 1, 3).unflatten(0, (n_cells, -1))
        writes = attn.W_O.unflatten(0, (n_cells, -1))
        return (dz[heads], writes[heads]) if len(heads) < n_cells else (dz, writes)

    def _dz(
        self, attn: Attention, own: dict[str, Tensor], theirs: dict[str, Tensor], where: Where, rows: slice | Tensor
    ) -> Float[Tensor, "prompt row head d_head"]:
        """The change of every head's z at `rows`, each with its own patch."""
        site = self.patch_site.site
        if site == "z":
            return theirs["z"][:, rows] - own["z"][:, rows]
        if site in {"pattern", "scores"}:
            source = Tap(capture={site})
            self._mixed(attn, theirs, rows, source)
            at = slice(None) if where.key is None else where.key

            def patched(value: Tensor) -> Tensor:
                new = value.clone()
                new[..., at] = source.seen[site][..., at]
                return new - value if site == "pattern" else torch.stack([value, new])

            z = self._mixed(attn, own, rows, Tap(edit={**_CHANGED, site: patched}))
            return z if site == "pattern" else z[1]
        new = theirs[site]
        if where.position is not None and self.patch_site.of_keys:
            new = own[site].clone()
            new[:, where.position] = theirs[site][:, where.position]
        if site == "v":  # z is linear in it
            return self._mixed(attn, own | {"v": new - own["v"]}, rows)
        return self._mixed(attn, own | {site: torch.stack([own[site], new])}, rows, Tap(edit=_CHANGED))[1]

    def _mixed(
        self, attn: Attention, parts: dict[str, Tensor], rows: slice | Tensor, tap: Tap = UNTAPPED
    ) -> Float[Tensor, "*cell prompt row head d_head"]:
        """z at `rows` from queries, keys and values as they meet, on any leading axis."""
        visibility = visibility_of(self.model, self.base, self.patch_site.attention, rows)
        return attn.mix(parts["q"][..., rows, :, :], parts["k"], parts["v"], visibility, tap)

    def _fed(self, layer: int, where: Where, neurons: list[int], at: At) -> Stream:
        """What the feed-forward adds to the stream with `neurons` patched, each alone or all of them together."""
        own, theirs = (post[at] for post in self._neurons(layer))
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
        self._neurons.cache_clear()

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

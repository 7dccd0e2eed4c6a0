"""How a patched cell changes the residual stream of its own layer, for every site.

Everything inside attention comes down to one quantity: how much the patch changes `z` of a head (`dz`); what that adds
to the stream is `dz @ W_O`. A site either changes only the rows it is patched at (`resid_pre`, `z`, `q`, a pattern's
rows), or every row that looks at them (`k`, `v`, a pattern's columns).
"""

from dataclasses import dataclass

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

from interp.patching.resuming import PlainRun, sight_of
from interp.transformer import Attention, Block, Transformer

Stream = Float[Tensor, "cell prompt position d_model"]
STREAM_SITES = ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out")


@dataclass(frozen=True)
class Where:
    """One group of cells: the positions that they patch (None: all), and whether each head is a cell of its own."""

    by_head: bool
    position: int | None = None  # of the site's position axis, or of a pattern's query
    key: int | None = None  # of a pattern's key


class Entrance:
    """Patches of one site, made from a plain run of the base prompts and one of the source prompts."""

    def __init__(self, model: Transformer, base: PlainRun, source: PlainRun, site: str):
        self.model, self.base, self.source, self.site = model, base, source, site
        self.sight = sight_of(model, base.batch)
        self._cached: tuple[int, dict[str, Tensor]] = (-1, {})

    def cells(self, layer: int, where: Where, first: int) -> tuple[int, Stream]:
        """The layer boundary at which the cells board, and the stream there from position `first` on."""
        block: Block = self.model.last.blocks[layer]
        if self.site in STREAM_SITES:
            boundary, stream = self._stream(block, layer, where)
            return boundary, stream[None, :, first:]
        rows = self._rows_changed(where, first)
        dz = self._dz(block.attn, layer, where)[:, :, rows]  # head prompt row d_head
        W_O = block.attn.W_O
        written = einsum(dz, W_O, "head prompt row d_head, head d_head d_model -> head prompt row d_model")
        if not where.by_head:
            written = written.sum(0, keepdim=True)
        elif len(written) != (n_cells := self._n_cells(block.attn)):
            written = written.unflatten(0, (n_cells, -1)).sum(1)  # query heads that share a key/value head go together
        attn_out = self.base.attn_out[layer][:, rows] + written
        mid = block.wiring.add(block.norm_attn, self.base.resid[layer][:, rows], attn_out)
        return layer + 1, self._widen(layer, block.feed_forward(mid), rows, first)

    def n_heads(self) -> int:
        """How many heads the site's head axis has."""
        return self._n_cells(self.model.last.blocks[0].attn)

    def _n_cells(self, attn: Attention) -> int:
        return attn.config.kv_heads if self.site in {"k", "v"} else attn.config.n_heads

    def _widen(
        self, layer: int, after: Float[Tensor, "cell prompt row d_model"], rows: slice, first: int
    ) -> Float[Tensor, "cell prompt position d_model"]:
        """The stream out of the layer from `first` on: changed rows among those that are as they were."""
        plain = self.base.resid[layer + 1]
        start, stop, _ = rows.indices(plain.shape[1])
        if start == first and stop == plain.shape[1]:
            return after
        stream = plain[:, first:].expand(len(after), -1, -1, -1).clone()
        stream[:, :, start - first : stop - first] = after
        return stream

    def _stream(self, block: Block, layer: int, where: Where) -> tuple[int, Tensor]:
        """Boundary and whole stream where the site lies in the stream itself."""
        base, source, at = self.base, self.source, where.position

        def patched(theirs: Tensor, ours: Tensor) -> Tensor:
            if at is None:
                return theirs
            out = ours.clone()
            out[:, at] = theirs[:, at]
            return out

        if self.site == "resid_pre":
            return layer, patched(source.resid[layer], base.resid[layer])
        if self.site == "resid_post":
            return layer + 1, patched(source.resid[layer + 1], base.resid[layer + 1])
        if self.site == "mlp_out":
            after = block.wiring.add(block.norm_mlp, base.mid[layer], source.mlp_out[layer])
        elif self.site == "resid_mid":
            after = block.feed_forward(source.mid[layer])
        else:
            after = block.feed_forward(block.wiring.add(block.norm_attn, base.resid[layer], source.attn_out[layer]))
        return layer + 1, patched(after, base.resid[layer + 1])

    def _rows_changed(self, where: Where, first: int) -> slice:
        """Positions from `first` on whose `z` the patch can change."""
        by_row = where.position is not None and self.site not in {"k", "v"}
        return slice(where.position, (where.position or 0) + 1) if by_row else slice(first, None)

    # What the patch does to z, head prompt position d_head, over all positions.

    def _dz(self, attn: Attention, layer: int, where: Where) -> Tensor:
        found = self._layer(attn, layer)
        if self.site in {"z", "q"} or (self.site in {"pattern", "scores"} and where.key is None):
            return found["dz"]  # row by row: the rows that are not patched are cut off by the caller
        at = where.position if self.site in {"k", "v"} else where.key
        if self.site == "v":
            if at is None:
                return found["dz"]
            return found["pattern"][..., at, None] * found["dv"][:, :, at, None]
        if self.site == "pattern":
            change = (found["pattern_source"] - found["pattern"])[..., at]
            dz = change[..., None] * found["v"][:, :, at, None]
        elif at is None:
            return found["dz"]
        else:  # scores of one key changed: the whole row is renormalised
            scores = found["scores"].clone()
            scores[..., at] = found["scores_source"][..., at]
            dz = (scores.softmax(-1) - found["pattern"]) @ found["v"]
        if where.position is not None and self.site != "k":  # one entry of the pattern
            only = torch.zeros_like(dz)
            only[:, :, where.position] = dz[:, :, where.position]
            return only
        return dz

    def _layer(self, attn: Attention, layer: int) -> dict[str, Tensor]:
        """What all cells of one layer share; kept until another layer is asked for."""
        if self._cached[0] != layer:
            self._cached = (layer, self._prepare(attn, layer))
        return self._cached[1]

    def _prepare(self, attn: Attention, layer: int) -> dict[str, Tensor]:
        base, source = self.base, self.source
        if self.site == "z":
            return {"dz": (source.z[layer] - base.z[layer]).permute(2, 0, 1, 3)}
        shared = attn.config.n_heads // attn.config.kv_heads

        def heads(x: Tensor) -> Tensor:  # head prompt position d_head
            x = x.permute(2, 0, 1, 3)
            return x if len(x) == attn.config.n_heads else x.repeat_interleave(shared, 0)

        mask = ~self.sight.mask()[:, 0]

        def scores(q: Tensor, k: Tensor) -> Tensor:
            return (q @ k.transpose(-1, -2) * attn.config.score_scale).masked_fill(mask, -torch.inf)

        q, k, v = heads(base.q[layer]), heads(base.k[layer]), heads(base.v[layer])
        plain = scores(q, k)
        pattern = plain.softmax(-1)
        found = {"pattern": pattern, "v": v, "scores": plain}
        if self.site == "v":
            dv = heads(source.v[layer]) - v
            return found | {"dv": dv, "dz": pattern @ dv}
        theirs = {
            "q": lambda: scores(heads(source.q[layer]), k),
            "k": lambda: scores(q, heads(source.k[layer])),
        }.get(self.site, lambda: scores(heads(source.q[layer]), heads(source.k[layer])))()
        patched = theirs.softmax(-1)
        return found | {"scores_source": theirs, "pattern_source": patched, "dz": (patched - pattern) @ v}

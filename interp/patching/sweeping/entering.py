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

from interp.attention import Attention
from interp.patching.plain import PlainRun, sight_of
from interp.patching.sweeping.lanes import Boarding, Lane
from interp.transformer import Block, Transformer

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

    def board(self, lane: Lane, layer: int, where: Where, heads: list[int]) -> Boarding:
        """The cells of `where` in one layer, of `heads` alone where each head is one, as they join their lane."""
        block: Block = self.model.last.blocks[layer]
        rows = self._rows_changed(where, lane.first)
        start = rows.start
        if self.site in STREAM_SITES:
            boundary, attended, stream = self._stream(block, layer)
            return Boarding(lane, boundary, attended, start, stream[None, :, rows])
        n_cells = self.n_heads()
        dz = self._dz(block.attn, layer, where)[:, :, rows]  # head prompt row d_head
        # query heads that share a patched key or value go together
        dz, W_O = dz.unflatten(0, (n_cells, -1)), block.attn.W_O.unflatten(0, (n_cells, -1))
        if where.by_head:
            into = "cell shared prompt row d_head, cell shared d_head d_model -> cell prompt row d_model"
            if len(heads) < n_cells:
                dz, W_O = dz[heads], W_O[heads]
            written = einsum(dz, W_O, into)
        else:
            into = "cell shared prompt row d_head, cell shared d_head d_model -> prompt row d_model"
            written = einsum(dz, W_O, into)[None]
        attn_out = self.base.attn_out[layer][:, rows] + written
        mid = block.wiring.add(block.norm_attn, self.base.resid[layer][:, rows], attn_out)
        return Boarding(lane, layer, True, start, mid)

    def n_heads(self) -> int:
        """How many heads the site's head axis has."""
        config = self.model.last.config
        return config.kv_heads if self.site in {"k", "v"} else config.n_heads

    def forget(self) -> None:
        """Drop what the cells of the last layer shared."""
        self._cached = (-1, {})

    def _stream(self, block: Block, layer: int) -> tuple[int, bool, Float[Tensor, "prompt position d_model"]]:
        """Where the site lies in the stream itself: the layer in which it boards, whether in its middle, and with what.

        Position by position: a patched row is that of the whole patch.
        """
        base, source = self.base, self.source
        match self.site:
            case "resid_pre":
                return layer, False, source.resid[layer]
            case "resid_post":
                return layer + 1, False, source.resid[layer + 1]
            case "resid_mid":
                return layer, True, source.mid[layer]
            case "attn_out":
                return layer, True, block.wiring.add(block.norm_attn, base.resid[layer], source.attn_out[layer])
            case _:
                return layer + 1, False, block.wiring.add(block.norm_mlp, base.mid[layer], source.mlp_out[layer])

    def _rows_changed(self, where: Where, first: int) -> slice:
        """Positions from `first` on at which the patch changes the stream of its own layer."""
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

        def scores(q: Tensor, k: Tensor) -> Tensor:
            return attn.scores(q.movedim(0, 1), k.movedim(0, 1), self.sight).movedim(1, 0)

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

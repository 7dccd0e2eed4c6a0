"""How a patch inside attention changes `z`: what queries, keys, values, scores and patterns of another run mix.

A site either changes only the rows it is patched at (`z`, `q`, a pattern's rows), or every row that looks at them
(`k`, `v`, a pattern's columns). Where queries and keys are normalised over all heads at once, patching one head of
them changes every head's scores.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from interp.attention import Attention
from interp.patching.patch_sites import PatchSite
from interp.patching.plain import PlainRun
from interp.sight import Sight
from interp.transformer import Block

# of each cell the heads that it changes; a cell is a head, or the query heads that share a key or a value
Change = Float[Tensor, "cell member prompt row d_head"]


@dataclass(frozen=True)
class Where:
    """One group of cells: the positions that they patch (None: all), and whether each head or neuron is one itself."""

    by_head: bool
    position: int | None = None  # of the site's position axis, or of a pattern's query
    key: int | None = None  # of a pattern's key


class AttentionPatches:
    """Patches of one site inside attention, from a plain run of the base prompts and one of the source prompts."""

    def __init__(self, base: PlainRun, source: PlainRun, patch_site: PatchSite, sight: Sight):
        self.base, self.source, self.patch_site, self.sight = base, source, patch_site, sight
        self.prefix = "attn" if patch_site.attention == "self" else "cross_attn"
        self._cached: tuple[int, dict[str, Tensor]] = (-1, {})

    def forget(self) -> None:
        """Drop what the cells of the last layer shared."""
        self._cached = (-1, {})

    def attention(self, block: Block) -> Attention:
        """The attention that the site lies in."""
        attn = block.attn if self.patch_site.attention == "self" else block.cross_attn
        assert attn is not None
        return attn

    def change(
        self, block: Block, layer: int, where: Where, heads: list[int], rows: slice | Tensor
    ) -> tuple[Change, Float[Tensor, "cell member d_head d_model"]]:
        """What the patch does to z at `rows`, and the matrices with which those heads write it.

        Cells are `heads` (of `k` and `v` key/value heads) where each head is one, else all heads are members of one.
        """
        attn = self.attention(block)
        if attn.config.qk_norm == "all" and self.patch_site.site in {"q", "k"} and where.by_head:
            dz = self._coupled(attn, block, layer, where, heads)[:, :, :, rows]
            return dz, attn.W_O.expand(len(heads), *attn.W_O.shape)
        n_cells = (attn.config.kv_heads if self.patch_site.of_keys else attn.config.n_heads) if where.by_head else 1
        dz = self._dz(attn, layer, where)[:, :, rows].unflatten(0, (n_cells, -1))
        writes = attn.W_O.unflatten(0, (n_cells, -1))
        return (dz[heads], writes[heads]) if len(heads) < n_cells else (dz, writes)

    # What the patch does to z, head prompt position d_head, over all positions.

    def _dz(self, attn: Attention, layer: int, where: Where) -> Float[Tensor, "head prompt row d_head"]:
        found, site = self._layer(attn, layer), self.patch_site.site
        if site in {"z", "q"} or (site in {"pattern", "scores"} and where.key is None):
            return found["dz"]  # row by row: the rows that are not patched are cut off by the caller
        at = where.position if site in {"k", "v"} else where.key
        if site == "v":
            if at is None:
                return found["dz"]
            return found["pattern"][..., at, None] * found["dv"][:, :, at, None]
        if site == "pattern":
            change = (found["pattern_source"] - found["pattern"])[..., at]
            dz = change[..., None] * found["v"][:, :, at, None]
        elif at is None:
            return found["dz"]
        else:  # scores of one key changed: the whole row is renormalised
            scores = found["scores"].clone()
            scores[..., at] = found["scores_source"][..., at]
            dz = (scores.softmax(-1) - found["pattern"]) @ found["v"]
        if where.position is not None and site != "k":  # one entry of the pattern
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
        base, source, site = self._parts(self.base, layer), self._parts(self.source, layer), self.patch_site.site
        if site == "z":
            return {"dz": source["z"] - base["z"]}
        q, k, v = (self._shared(attn, base[part]) for part in "qkv")
        plain = self._scores(attn, q, k)
        pattern = plain.softmax(-1)
        found = {"pattern": pattern, "v": v, "scores": plain}
        if site == "v":
            dv = self._shared(attn, source["v"]) - v
            return found | {"dv": dv, "dz": pattern @ dv}
        other_q = q if site == "k" else source["q"]
        other_k = k if site == "q" else self._shared(attn, source["k"])
        theirs = self._scores(attn, other_q, other_k)
        patched = theirs.softmax(-1)
        return found | {"scores_source": theirs, "pattern_source": patched, "dz": (patched - pattern) @ v}

    def _parts(self, run: PlainRun, layer: int) -> dict[str, Float[Tensor, "some prompt position d_head"]]:
        return {part: run[f"{self.prefix}.{part}"][layer].permute(2, 0, 1, 3) for part in ("q", "k", "v", "z")}

    @staticmethod
    def _shared(attn: Attention, x: Float[Tensor, "some prompt position d_head"]) -> Tensor:
        """Keys and values once for each query head that reads them."""
        return x.repeat_interleave(attn.config.n_heads // len(x), 0)

    def _scores(self, attn: Attention, q: Tensor, k: Tensor) -> Float[Tensor, "head prompt query key"]:
        return attn.scores(q.movedim(0, 1), k.movedim(0, 1), self.sight).movedim(1, 0)

    # Queries and keys that are normalised over all heads: a cell's own head is as in the source run before the norm.

    def _coupled(
        self, attn: Attention, block: Block, layer: int, where: Where, heads: list[int]
    ) -> Float[Tensor, "cell head prompt query d_head"]:
        part = self.patch_site.site
        base, source = (self._projected(attn, block, run, layer) for run in (self.base, self.source))
        raw = base.expand(len(heads), *base.shape).clone()
        at = slice(None) if where.position is None else slice(where.position, where.position + 1)
        for cell, head in enumerate(heads):
            raw[cell, :, at, head] = source[:, at, head]
        enter = attn.queries if part == "q" else attn.keys
        q, k, v = (self.base[f"{self.prefix}.{each}"][layer].transpose(1, 2) for each in "qkv")
        patched = enter(raw, self.sight.positions if raw.shape[2] == self.sight.n_queries else self._unturned(raw))
        patched = patched.transpose(2, 3)
        new_q, new_k = (patched, attn.shared(k)) if part == "q" else (q, attn.shared(patched))
        pattern = attn.scores(new_q, new_k, self.sight).softmax(-1)
        dz = pattern @ attn.shared(v) - self.base[f"{self.prefix}.z"][layer].transpose(1, 2)
        return dz.transpose(1, 2)

    def _projected(self, attn: Attention, block: Block, run: PlainRun, layer: int) -> Tensor:
        """Queries or keys before the norm, prompt position head d_head."""
        if self.patch_site.attention == "self":
            normed = block.attention.read(run.resid[layer])
        elif self.patch_site.site == "q":
            normed = block.cross.read(run["resid_mid"][layer])
        else:
            assert run.source is not None
            assert run.source.final is not None
            normed = run.source.final
        return attn.project_queries(normed) if self.patch_site.site == "q" else attn.project_keys_values(normed)[0]

    def _unturned(self, raw: Tensor) -> Tensor:
        """Positions of the keys of another text, which nothing turns."""
        return self.sight.positions.new_zeros(1, raw.shape[2])

"""How far does a change of the base run's stream go? Steps of half a block, with what receivers get put in on the way.

Cells carry only how far their stream is from the base run's, `change`. Moments count half blocks: 2l is the
stream into block l, 2l + 1 that into its feed-forward, and the last, 2n, that into the final norm. Half block m leads
from moment m to moment m + 1. All of a parallel block happens in its first half: nothing reads at its odd moment.

The engine's cells recompute every sublayer; here some are kept as in the base run, and others are given what receivers
recorded. Both share attention over earlier keys (`shared_keys`), groups of prompts and the memory that these fill.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from einops import einsum
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.patching.plain import PlainRun, as_written, sight_of
from interp.patching.shared_keys import attend
from interp.sight import Sight
from interp.transformer import Transformer

Cells = Float[Tensor, "cell prompt row d_model"]
Further = Float[Tensor, "cell prompt further d_model"]  # those that are carried on, where they may be fewer
Positions = Int[Tensor, " row"]  # positions of the prompts, in order


@dataclass(frozen=True)
class Recorded:
    """What one kind of receiver gets, cell by cell; `mask` says which of these rows and heads asked for it."""

    rows: Positions
    heads: Int[Tensor, " head"]
    mask: Bool[Tensor, "row head"]
    value: Float[Tensor, "cell prompt row head width"]

    @property
    def n_cells(self) -> int:
        """How many cells arrived."""
        return len(self.value)

    def put(
        self, target: Float[Tensor, "some prompt all heads width"], rows: Int[Tensor, " all"], start: int = 0
    ) -> None:
        """Give it to the cells from `start` on whose own values, at `rows`, are in `target`."""
        at = torch.searchsorted(rows, self.rows)[:, None]
        value, own = self.value[start : start + len(target)], target[:, :, at, self.heads]
        target[:, :, at, self.heads] = torch.where(self.mask[..., None], value, own)


# At one moment, by part: queries and keys (as they enter the scores) and values, what the feed-forward writes, and for
# `logits` the change itself.
Given = Mapping[str, Recorded]
_NOTHING: Given = {}
Again = frozenset[str]  # what of a block is recomputed
ATTENDING, FEEDING = "attention", "feed-forward"
EVERYTHING: Again = frozenset({ATTENDING, FEEDING})


class HalfBlocks:
    """Steps from moment to moment, for cells that differ from the base run at `rows`.

    After the last attention only the rows in `late` are carried. Attention can be recomputed where `rows` are all
    positions from the first on.
    """

    def __init__(self, model: Transformer, base: PlainRun, rows: Positions, late: Int[Tensor, " further"]):
        self.model, self.base, self.blocks = model, base, model.last.blocks
        self.rows, self.late, self.parallel = rows, late, model.last.config.parallel
        self.last_attention = 2 * len(self.blocks) - 2
        self.first = int(rows[0])
        self.sight = sight_of(model, base.batch, self.first)

    def rows_at(self, moment: int) -> Positions:
        """The positions that are carried there."""
        return self.late if moment > self.last_attention else self.rows

    def stream(self, moment: int, rows: Positions | None = None) -> Float[Tensor, "prompt row d_model"]:
        """The base run's, at the rows carried there, or at others."""
        layer, halfway = divmod(moment, 2)
        if halfway and self.parallel:  # nothing is left to happen in the block
            layer, halfway = layer + 1, 0
        kept = self.base["resid_mid"][layer] if halfway else self.base.resid[layer]
        return kept[:, self.rows_at(moment) if rows is None else rows]

    def narrowed(self, half: int, x: Cells) -> Further:
        """The rows of moment `half` that are carried further."""
        if half != self.last_attention:
            return x
        return x[:, :, torch.searchsorted(self.rows, self.late)]

    def kept(self, half: int, change: Cells) -> Cells:
        """The change after a half block that writes what it writes in the base run, and `change` besides."""
        layer, feeding = divmod(half, 2)
        block = self.blocks[layer]
        sublayer = block.feed_forward if feeding else block.attention
        if sublayer.adds or (feeding and block.mlp is None):
            return change
        rows = self.rows_at(half + 1)
        out = self.base[f"{sublayer.name}_out"][layer][:, rows]
        after = sublayer.add(self.stream(half, rows), out + change)
        return after - self.stream(half + 1)

    def recomputed(self, half: int, change: Cells, given: Given = _NOTHING, again: Again = EVERYTHING) -> Further:
        """The change after a half block that reads the cells' own stream, but for what is given to it.

        Of attention and feed-forward those that are not in `again` write what they write in the base run.
        """
        layer, feeding = divmod(half, 2)
        block = self.blocks[layer]
        if self.parallel:
            return change if feeding else self._both(layer, change, given, again)
        if FEEDING not in again if feeding else ATTENDING not in again:
            return self.kept(half, self.narrowed(half, change))
        x = self.stream(half) + change
        if feeding and block.mlp is None:
            return change
        if feeding:
            after = block.feed_forward.add(x, self._fed(layer, x, half, given))
        else:
            out = block.attention.write(self._attention(layer, x, given))
            after = block.attention.add(self.narrowed(half, x), out)
        return after - self.stream(half + 1)

    def _both(self, layer: int, change: Cells, given: Given, again: Again) -> Further:
        """A whole parallel block: attention and feed-forward read the same stream."""
        half, x = 2 * layer, self.stream(2 * layer) + change
        after, rows = self.narrowed(half, change), self.rows_at(half + 1)
        if ATTENDING in again:
            after = after + self._attention(layer, x, given) - self.base["attn_out"][layer][:, rows]
        if FEEDING in again and self.blocks[layer].mlp is not None:
            fed = self._fed(layer, self.narrowed(half, x), half + 1, given)
            after = after + fed - self.base["mlp_out"][layer][:, rows]
        return after

    def _fed(self, layer: int, x: Cells, moment: int, given: Given) -> Cells:
        """What the feed-forward adds, which reads `x` at the rows of `moment`."""
        out = self.blocks[layer].feed_forward.out(x)
        if "mlp" in given:
            given["mlp"].put(out[..., None, :], self.rows_at(moment))
        return out

    def received(self, half: int, given: Given, start: int) -> Cells:
        """How far the half block writes something else for the cells from `start` on, which only now are given to."""
        layer, total = half // 2, None
        if heads := {part: recorded for part, recorded in given.items() if part != "mlp"}:
            total = self._departing(layer, heads, start)
        if "mlp" not in given:
            assert total is not None
            return total
        rows = self.rows_at(half + 1)
        plain = self.base["mlp_out"][layer][:, rows]
        out = plain.expand(given["mlp"].n_cells - start, *plain.shape).clone()
        given["mlp"].put(out[..., None, :], rows, start)
        return out - plain if total is None else total + out - plain

    def _attention(self, layer: int, x: Cells, given: Given) -> Further:
        """What attention writes: keys and values everywhere, queries where something is carried further."""
        block, half = self.blocks[layer], 2 * layer
        attn, normed = block.attn, block.attention.read(x)
        sight = self._sight(half)
        q = attn.queries(attn.project_queries(self.narrowed(half, normed)), sight.positions)
        k, v = attn.project_keys_values(normed)
        parts = {"q": q, "k": attn.keys(k, self.sight.positions), "v": v}
        for part in parts.keys() & given.keys():
            given[part].put(parts[part], self.rows_at(half + (part == "q")))
        past_k, past_v = (self.base[f"attn.{part}"][layer][:, : self.first] for part in "kv")
        z = attend(attn, parts["q"], parts["k"], parts["v"], past_k, past_v, sight)
        return attn.out(z.flatten(-2))

    def _departing(self, layer: int, given: Given, start: int) -> Cells:
        """What heads that are given something write otherwise: no other head changes, as all read the base run."""
        attn, half, base = self.blocks[layer].attn, 2 * layer, self.base
        asking = self.rows_at(half + 1)
        at = {"q": asking, "k": self.rows, "v": self.rows}
        parts = {part: base[f"attn.{part}"][layer][:, rows] for part, rows in at.items()}
        n_cells = next(iter(given.values())).n_cells - start
        parts = {part: plain.expand(n_cells, *plain.shape) for part, plain in parts.items()}
        for part, recorded in given.items():
            parts[part] = parts[part].clone()
            recorded.put(parts[part], self.rows_at(half + (part == "q")), start)
        shared = attn.config.n_heads // attn.config.kv_heads
        heads = _asking(given, shared)
        past = [base[f"attn.{part}"][layer][:, : self.first] for part in "kv"]
        k, v, past_k, past_v = (part[..., heads // shared, :] for part in (parts["k"], parts["v"], *past))
        z = attend(attn, parts["q"][..., heads, :], k, v, past_k, past_v, self._sight(half), heads)
        dz = z - base["attn.z"][layer][:, asking][:, :, heads]
        pattern = "cell prompt row head d_head, head d_head d_model -> cell prompt row d_model"
        written = einsum(dz, attn.W_O[heads], pattern)
        return as_written(self.blocks[layer], base, layer, (slice(None), asking), written)

    def _sight(self, half: int) -> Sight:
        """What the queries of a half block see: those in `late` alone once only they are carried further."""
        if half != self.last_attention:
            return self.sight
        return self.sight.at(self.late.expand(len(self.base.batch.ids), -1))

    def record(self, moment: int, part: str, change: Cells, mask: Bool[Tensor, "position head"]) -> Recorded:
        """What the receivers of one part get from cells that arrive with `change`: the base run's where it is none."""
        layer, carried = moment // 2, self.rows_at(moment)
        rows, heads = mask.any(1).nonzero()[:, 0], mask.any(0).nonzero()[:, 0]
        value = self._kept_reading(layer, part, rows, heads).expand(len(change), -1, -1, -1, -1).clone()
        changed = torch.isin(rows, carried)
        if bool(changed.any()):
            at = rows[changed]
            change = change[:, :, torch.searchsorted(carried, at)]
            if part == "logits":
                value[:, :, changed] = change[..., None, :]
            else:
                value[:, :, changed] = self._reading(layer, part, self.stream(moment, at) + change, at, heads)
        return Recorded(rows, heads, mask[rows][:, heads], value)

    def _kept_reading(
        self, layer: int, part: str, rows: Positions, heads: Int[Tensor, " head"]
    ) -> Float[Tensor, "prompt row head width"]:
        """What they get from the base run."""
        if part == "logits":
            return torch.zeros_like(self.base.resid[-1][:, rows, None])
        if part == "mlp":
            return self.base["mlp_out"][layer][:, rows, None]
        return self.base[f"attn.{part}"][layer][:, rows][:, :, heads]

    def _reading(self, layer: int, part: str, x: Cells, rows: Positions, heads: Int[Tensor, " head"]) -> Tensor:
        """Queries and keys (rotated) or values of some heads, or what the feed-forward writes, from the stream `x`."""
        block = self.blocks[layer]
        if part == "mlp":
            return block.feed_forward.out(x)[..., None, :]
        projected = block.attn.project_heads(block.attention.read(x), part, heads)
        positions = self.base.batch.positions[:, rows]
        if part == "v":
            return projected
        return block.attn.queries(projected, positions) if part == "q" else block.attn.keys(projected, positions)


def _asking(given: Given, shared: int) -> Int[Tensor, " head"]:
    """The query heads that something is given to; those that share a key or a value get it together."""
    found = []
    for part, recorded in given.items():
        heads, group = recorded.heads, torch.arange(shared, device=recorded.heads.device)
        found.append(heads if part == "q" else (heads[:, None] * shared + group).flatten())
    return torch.cat(found).unique()

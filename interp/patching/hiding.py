"""From keys hidden at some rows of a text to what is read at the end, computing only what the change can reach.

A cell is a claim and a head. In the head's own block only the claimed rows change, each by itself. In the next block
they are what others see anew, so there only their queries, keys and values are made anew, and from then on all rows
change. In the last block keys and values are needed everywhere, and the rest only where something is read.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from interp.patching.attending import attend
from interp.patching.plain import PlainRun, after_attention, sight_of
from interp.transformer import Block, Transformer

_LOGITS = 1 << 22  # numbers that the output layer says at a time: 16 MB
Value = Callable[[Float[Tensor, "*cells read output"]], Float[Tensor, "*cells"]]
Rows = Float[Tensor, "head row d_model"]  # the claimed rows of all claims, one after the other
Cells = Float[Tensor, "cell position d_model"]  # claim x head, layer after layer; positions from `first` on


class Hidden:
    """Claims on one text, whose cells go through the stack together."""

    def __init__(
        self,
        model: Transformer,
        plain: PlainRun,
        queries: Sequence[Int[Tensor, " _"]],
        keys: Sequence[Bool[Tensor, "_ _"]],
        reads: Sequence[Int[Tensor, " _"]],
    ):
        """Each claim's rows, the keys hidden from them, and where its read-out looks; `plain` is the text's own run."""
        device = model.device
        self.model, self.plain = model, plain
        self.n_claims, self.n_heads = len(queries), model.config.n_heads
        self.rows, self.row_claim = _joined(queries, device)
        self.reads, self.read_claim = _joined(reads, device)
        self.n_reads = [len(read) for read in reads]
        length, causal = plain.batch.ids.shape[1], model.last.config.causal
        self.keys = torch.cat([hidden[:, :length] for hidden in keys]).to(device)
        if causal:
            self.keys = self.keys | (torch.arange(length, device=device) > self.rows[:, None])
        self.first = int(self.rows.min()) if causal else 0
        self.everywhere, self.sight = (sight_of(model, plain.batch, first) for first in (0, self.first))
        self.final = plain.resid[-1][0, self.reads]  # what is read where nothing is hidden

    def drops(self, layers: range, output: nn.Linear, values: Sequence[Value]) -> Iterator[Float[Tensor, "layer head"]]:
        """For each claim, how much lower its value is with its keys hidden from each head of some layers."""
        arrived = self._arrive(layers)
        norm = self.model.last.norm
        plain = output(norm(self.final)).split(self.n_reads)
        step = max(1, _LOGITS // (len(self.reads) * output.out_features))
        found = [[] for _ in values]
        for some in arrived.split(step):
            for own, value, logits in zip(found, values, output(norm(some)).split(self.n_reads, 1), strict=True):
                own.append(value(logits))
        for own, value, logits in zip(found, values, plain, strict=True):
            yield (value(logits) - torch.cat(own)).view(len(layers), self.n_heads)

    def _arrive(self, layers: range) -> Float[Tensor, "cell read d_model"]:
        """The stream out of the last block where it is read: cells are the heads of `layers`."""
        blocks = self.model.last.blocks
        last = len(blocks) - 1
        riding: Cells | None = None
        fresh: Rows | None = None
        for layer in range(layers.start, last):
            if riding is not None or fresh is not None:
                riding = self._block(blocks[layer], layer, riding, fresh)
            fresh = self._hide(blocks[layer], layer) if layer in layers else None
        arrived = []
        if riding is not None or fresh is not None:
            arrived.append(self._last_block(blocks[last], last, riding, fresh))
        if last in layers:
            arrived.append(self._at_reads(self._hide(blocks[last], last)))
        return torch.cat(arrived)

    def _hide(self, block: Block, layer: int) -> Rows:
        """The claimed rows out of a block, each head in turn without its claimed keys."""
        attn, plain, rows = block.attn, self.plain, self.rows
        q, z = (plain[f"attn.{part}"][layer][:, rows].transpose(1, 2) for part in "qz")  # 1 head row d_head
        k, v = (attn.shared(plain[f"attn.{part}"][layer].transpose(1, 2)) for part in "kv")
        scores = attn.scores(q, k, self.everywhere.at(rows[None]))
        dz = scores.masked_fill(self.keys, -torch.inf).softmax(-1) @ v - z
        return block.feed_forward(after_attention(block, plain, layer, (0, rows), dz[0] @ attn.W_O))

    def _block(
        self, block: Block, layer: int, riding: Cells | None, fresh: Rows | None
    ) -> Float[Tensor, "more position d_model"]:
        """One block for all cells: those whose rows may all have changed, and behind them the fresh ones."""
        attn, residual, made = block.attn, [], []
        if riding is not None:
            residual.append(riding)
            own = attn.project(block.attention.read(riding))
            made.append(attn.enter(own, self.sight.positions))
        if fresh is not None:
            residual.append(self._among(self.plain.resid[layer], fresh))
            made.append(self._qkv_among(block, layer, fresh))
        q, k, v = (_cat(parts)[:, None] for parts in zip(*made, strict=True))
        z = attend(attn, q, k, v, *self._past(layer), self.sight)[:, 0]
        attn_out = block.attention.write(attn.out(z.flatten(-2)))
        return block.feed_forward(block.attention.add(_cat(residual), attn_out))

    def _last_block(
        self, block: Block, layer: int, riding: Cells | None, fresh: Rows | None
    ) -> Float[Tensor, "more read d_model"]:
        """The last block: keys and values everywhere, the rest where something is read."""
        attn, residual, made = block.attn, [], []
        at = self.reads.clamp(min=self.first) - self.first
        if riding is not None:
            own = attn.project_keys_values(block.attention.read(riding))
            made.append(block.attn.enter(own, self.sight.positions))
            cells = riding.view(-1, self.n_claims, self.n_heads, *riding.shape[1:])
            residual.append(cells[:, self.read_claim, :, at].permute(1, 2, 0, 3).flatten(0, 1))  # read, cell, d_model
        if fresh is not None:
            made.append(self._keys_values_among(block, layer, fresh))
            residual.append(self._at_reads(fresh, self.plain.resid[layer]))
        stream = _cat(residual)  # of each claim its own cells: head, layer after layer
        k, v = (_cat(parts).unflatten(0, (-1, self.n_claims, self.n_heads)) for parts in zip(*made, strict=True))
        q = attn.project_queries(block.attention.read(stream))
        q = attn.queries(q, self.sight.at(at[None] + self.first).positions)
        z, begin = [], 0
        for claim, count in enumerate(self.n_reads):
            some = slice(begin, begin + count)
            sight = self.sight.at(at[None, some] + self.first)
            own_k, own_v = (part[:, claim].flatten(0, 1)[:, None] for part in (k, v))
            z.append(attend(attn, q[:, None, some], own_k, own_v, *self._past(layer), sight)[:, 0])
            begin += count
        attn_out = block.attention.write(attn.out(torch.cat(z, 1).flatten(-2)))
        after = block.feed_forward(block.attention.add(stream, attn_out))
        unreached = self.reads < self.first  # read before the first row that may have changed
        return torch.where(unreached[:, None], self.final, after)

    def _qkv_among(self, block: Block, layer: int, fresh: Rows) -> list[Tensor]:
        """Queries, keys and values of fresh cells, rotated: those of the claimed rows made anew, the others plain."""
        made = block.attn.enter(block.attn.project(block.attention.read(fresh)), self._positions)
        kept = self.plain["attn.q"], self.plain["attn.k"], self.plain["attn.v"]
        return [self._among(part[layer], new) for part, new in zip(kept, made, strict=True)]

    def _keys_values_among(self, block: Block, layer: int, fresh: Rows) -> list[Tensor]:
        """The same without queries."""
        made = block.attn.project_keys_values(block.attention.read(fresh))
        kept = self.plain["attn.k"], self.plain["attn.v"]
        turned = block.attn.enter(made, self._positions)
        return [self._among(part[layer], new) for part, new in zip(kept, turned, strict=True)]

    @property
    def _positions(self) -> Int[Tensor, "1 row"]:
        return self.plain.batch.positions[:, self.rows]

    def _past(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values before the first claimed row, which all cells share."""
        return self.plain["attn.k"][layer][:, : self.first], self.plain["attn.v"][layer][:, : self.first]

    def _among(
        self, plain: Float[Tensor, "1 whole *more"], changed: Float[Tensor, "head row *more"]
    ) -> Float[Tensor, "cell position *more"]:
        """All positions of fresh cells: the changed rows of each claim among plain ones."""
        own = plain[0, self.first :]
        wide = own.expand(self.n_claims, self.n_heads, *own.shape).clone()
        wide[self.row_claim, :, self.rows - self.first] = changed.transpose(0, 1)
        return wide.flatten(0, 1)

    def _at_reads(
        self, changed: Rows, plain: Float[Tensor, "1 whole d_model"] | None = None
    ) -> Float[Tensor, "head read d_model"]:
        """The stream where it is read: a claim's changed row where it is one, else the plain one (by default final)."""
        if torch.equal(self.reads, self.rows):
            return changed
        row_of = self.rows.new_full((self.n_claims, self.plain.batch.ids.shape[1]), -1)
        row_of[self.row_claim, self.rows] = torch.arange(len(self.rows), device=self.rows.device)
        row = row_of[self.read_claim, self.reads]
        kept = self.final if plain is None else plain[0, self.reads]
        return torch.where((row >= 0)[:, None], changed[:, row], kept)


def _joined(parts: Sequence[Int[Tensor, " _"]], device: torch.device) -> tuple[Tensor, Tensor]:
    """The parts one after the other, and for each entry the number of its part."""
    sizes = torch.tensor([len(part) for part in parts])
    return torch.cat([*parts]).to(device), torch.arange(len(parts)).repeat_interleave(sizes).to(device)


def _cat(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat([*parts])

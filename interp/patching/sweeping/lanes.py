"""From a changed residual stream to the metric, computing only what the change can reach.

Cells that change the same prompts from the same position on share a lane. What lies below the change, and in a causal
stack before it, is as the plain run left it: earlier keys and values are that run's, shared by all cells of the lane.
Linear layers see the rows of all lanes at once, attention sees lane by lane. In the last block only keys and values
are needed at every position, and the rest where the metric reads.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from interp.attention import Attention
from interp.patching.attending import attend
from interp.patching.metrics import Readout
from interp.patching.plain import PlainRun, sight_of
from interp.sight import Sight
from interp.transformer import Block, Stack, Transformer

Cells = Float[Tensor, "cell prompt position d_model"]
Rows = Float[Tensor, "row d_model"]  # of all lanes, one after the other


class Lane:
    """The cells that change some prompts from one position on, and what is read of them in the end."""

    def __init__(self, model: Transformer, plain: PlainRun, first: int, readouts: Sequence[Readout]):
        self.plain, self.readouts = plain, readouts
        self.first = first if model.last.config.causal else 0
        self.sight = sight_of(model, plain.batch, self.first)
        self.shape = (len(plain.batch.ids), plain.batch.ids.shape[1] - self.first)  # prompts, positions
        reads = torch.cat([readout.positions for readout in readouts], 1)
        self.unreached = reads < self.first  # read before the first change: as the plain run left it
        self.plain_reads = plain.resid[-1].gather(1, reads[..., None].expand(-1, -1, plain.resid[-1].shape[-1]))
        self.reads = reads.clamp(min=self.first)

    def at_reads(self, x: Cells) -> Float[Tensor, "cell prompt read d_model"]:
        """The read positions of each prompt; `x` begins at `first`."""
        index = (self.reads - self.first)[None, :, :, None]
        return x.gather(2, index.expand(x.shape[0], -1, -1, x.shape[-1]))

    def attend(
        self,
        attn: Attention,
        layer: int,
        q: Float[Tensor, "cell prompt query head d_head"],
        k: Float[Tensor, "cell prompt key kv_head d_head"],
        v: Float[Tensor, "cell prompt key kv_head d_head"],
        sight: Sight,
    ) -> Float[Tensor, "cell prompt query head d_head"]:
        """The mix of values for the cells' queries from their own and earlier keys; queries and keys are rotated."""
        past_k, past_v = (part[layer][:, : self.first] for part in (self.plain.k, self.plain.v))
        return attend(attn, q, k, v, past_k, past_v, sight)

    def measure(self, model: Transformer, arrived: Float[Tensor, "cell prompt read d_model"]) -> list[Tensor]:
        """Metrics, `cell prompt` each, from the stream out of the last block at the read positions."""
        final = model.last.norm(torch.where(self.unreached[..., None], self.plain_reads, arrived))
        found, at = [], 0
        for readout in self.readouts:
            found.append(readout.of(model, final[..., at : at + readout.positions.shape[1], :]))
            at += readout.positions.shape[1]
        return found


@dataclass(frozen=True, eq=False)
class Boarding:
    """Cells that join their lane where their change enters.

    `rows` are the changed part of the stream, from position `start` on: into block `layer` or, once `attended`,
    between its attention and its feed-forward. All other rows are there as the plain run left them.
    """

    lane: Lane
    layer: int
    attended: bool
    start: int
    rows: Float[Tensor, "cell prompt row d_model"]

    def among(
        self, plain: Float[Tensor, "prompt whole ..."], rows: Float[Tensor, "cell prompt row ..."]
    ) -> Float[Tensor, "cell prompt position ..."]:
        """All rows of the lane: the changed ones, as they are by now, among `plain` ones."""
        begin, end = self.start - self.lane.first, self.start - self.lane.first + rows.shape[2]
        if end - begin == self.lane.shape[1]:
            return rows
        wide = plain[:, self.lane.first :].expand(len(rows), *plain[:, self.lane.first :].shape).clone()
        wide[:, :, begin:end] = rows
        return wide

    def is_read(self) -> bool:
        """Whether any changed row is read, were it the last layer's."""
        reads = self.lane.reads
        return bool(((reads >= self.start) & (reads < self.start + self.rows.shape[2])).any())


@torch.no_grad()
def travel(model: Transformer, boardings: Sequence[Boarding]) -> list[list[Float[Tensor, "cell prompt"]]]:
    """One pass through the stack that takes all cells to the metrics: for each boarding, each of its lane's metrics."""
    journey, n_layers = _Journey(model, boardings), model.config.n_layers
    for layer in range(min(boarding.layer for boarding in boardings), n_layers - 1):
        journey.block(layer)
    journey.last_block()
    return journey.measure()


class _Journey:
    """Rows on their way, lane after lane; within a lane cell after cell, in the order in which they boarded."""

    def __init__(self, model: Transformer, boardings: Sequence[Boarding]):
        self.model, self.boardings = model, boardings
        self.stack: Stack = model.last
        self.aboard: dict[Lane, list[Boarding]] = {boarding.lane: [] for boarding in boardings}
        self.rows: Rows = model.last.embed.token.weight.new_empty(0, model.config.d_model)
        self.waiting: dict[Boarding, Tensor] = {}  # joined in the middle of the last block: their changed rows by now
        self.arrived: dict[Boarding, Float[Tensor, "cell prompt read d_model"]] = {}

    def block(self, layer: int) -> None:
        """One block for all that ride, and its feed-forward for those that join in its middle."""
        block, mids = self.stack.blocks[layer], []
        joining = self._joining(layer, attended=True)
        if len(self.rows) or self._fresh(layer):
            mids.append(self._attention(block, layer, self._fresh(layer)))
        mids += [one.rows.flatten(0, 2) for one in joining]
        if not mids:
            return
        after = block.feed_forward(_cat(mids))
        riding = len(self.rows)
        self.rows, joined = after[:riding], after[riding:].split([one.rows.shape[:3].numel() for one in joining])
        self.waiting = {one: rows.view_as(one.rows) for one, rows in zip(joining, joined, strict=True)}

    def last_block(self) -> None:
        """The last block: keys and values everywhere, queries and what follows only where the metrics read."""
        layer = len(self.stack.blocks) - 1
        block, mids = self.stack.blocks[layer], []
        joining = [one for one in self._joining(layer, attended=True) if one.is_read()]
        if self._fresh(layer) or len(self.rows):
            mids.append(self._attention_at_reads(block, layer, self._fresh(layer)))
        mids += [one.lane.at_reads(one.among(one.lane.plain.mid[layer], one.rows)).flatten(0, 2) for one in joining]
        if not mids:
            return
        after = block.feed_forward(_cat(mids))
        arriving = [*(one for lane in self.aboard.values() for one in lane), *joining]
        shapes = [(len(one.rows), *one.lane.reads.shape) for one in arriving]
        parts = after.split([cells * prompts * reads for cells, prompts, reads in shapes])
        self.arrived = {one: part.view(*shape, -1) for one, part, shape in zip(arriving, parts, shapes, strict=True)}

    def measure(self) -> list[list[Float[Tensor, "cell prompt"]]]:
        """Metrics of every boarding, in the order in which they were given."""
        found: dict[Boarding, list[Tensor]] = {}
        for lane in self.aboard:
            members = [one for one in self.boardings if one.lane is lane]
            values = lane.measure(self.model, torch.cat([self._arrived(one) for one in members]))
            sizes = [len(one.rows) for one in members]
            for one, *own in zip(members, *(value.split(sizes) for value in values), strict=True):
                found[one] = own
        return [found[one] for one in self.boardings]

    def _arrived(self, one: Boarding) -> Float[Tensor, "cell prompt read d_model"]:
        """The stream out of the last block where the metrics read."""
        if one in self.arrived:
            return self.arrived[one]
        if one.layer == len(self.stack.blocks):
            return one.lane.at_reads(one.among(one.lane.plain.resid[-1], one.rows))
        return one.lane.plain_reads.expand(len(one.rows), -1, -1, -1)  # changed in the last block where nothing is read

    def _joining(self, layer: int, *, attended: bool) -> list[Boarding]:
        return [one for one in self.boardings if (one.layer, one.attended) == (layer, attended)]

    def _fresh(self, layer: int) -> dict[Boarding, Tensor]:
        """Cells that meet their first attention in `layer`, and the rows that they changed so far: no others differ."""
        return {**self.waiting, **{one: one.rows for one in self._joining(layer, attended=False)}}

    def _board(self, layer: int, fresh: dict[Boarding, Tensor]) -> None:
        """Put fresh cells behind those of their lane."""
        if not fresh:
            return
        pieces = []
        for lane, own in zip(self.aboard, self._by_lane(self.rows), strict=True):
            members = [one for one in fresh if one.lane is lane]
            pieces += [own, *(one.among(lane.plain.resid[layer], fresh[one]) for one in members)]
            self.aboard[lane] += members
        self.rows = torch.cat([piece.flatten(0, 2) for piece in pieces])
        self.waiting = {}

    def _by_lane(self, rows: Float[Tensor, "row ..."]) -> list[Float[Tensor, "cell prompt position ..."]]:
        """Rows of all lanes as each lane's cells."""
        shapes = [(sum(len(one.rows) for one in aboard), *lane.shape) for lane, aboard in self.aboard.items()]
        parts = rows.split([cells * prompts * positions for cells, prompts, positions in shapes])
        return [part.view(*shape, *rows.shape[1:]) for part, shape in zip(parts, shapes, strict=True)]

    def _attention(self, block: Block, layer: int, fresh: dict[Boarding, Tensor]) -> Rows:
        """The stream after the block's attention, fresh cells aboard.

        Of fresh cells only the changed rows need new queries, keys and values.
        """
        normed = block.wiring.read(block.norm_attn, self._with(fresh))
        riding, joining = self._apart(fresh, block.attn.project(normed))
        z = []
        for at, lane in enumerate(self.aboard):
            q, k, v = (part[at] for part in riding)
            groups = [block.attn.enter([q, k, v], lane.sight.positions)] if len(q) else []
            if members := [one for one in fresh if one.lane is lane]:
                groups.append(self._among_plain(block.attn, layer, {one: joining[one] for one in members}))
            z += [lane.attend(block.attn, layer, q, k, v, lane.sight).flatten(0, 2) for q, k, v in groups]
        self._board(layer, fresh)
        return block.wiring.add(block.norm_attn, self.rows, block.attn.out(_cat(z).flatten(-2)))

    def _attention_at_reads(self, block: Block, layer: int, fresh: dict[Boarding, Tensor]) -> Rows:
        """The stream after the block's attention where the metrics read, fresh cells aboard."""
        attn = block.attn
        normed = block.wiring.read(block.norm_attn, self._with(fresh))
        riding, joining = self._apart(fresh, attn.project_keys_values(normed))
        keys_values = []
        for at, lane in enumerate(self.aboard):
            k, v = (part[at] for part in riding)
            own = [attn.enter([k, v], lane.sight.positions)]
            if members := [one for one in fresh if one.lane is lane]:
                own.append(self._among_plain(attn, layer, {one: joining[one] for one in members}))
            keys_values.append([_cat(parts) for parts in zip(*own, strict=True)])
        self._board(layer, fresh)
        residual = [lane.at_reads(part) for lane, part in zip(self.aboard, self._by_lane(self.rows), strict=True)]
        flat = _cat([part.flatten(0, 2) for part in residual])
        q = attn.project_queries(block.wiring.read(block.norm_attn, flat))
        q = q.split([part.shape[:3].numel() for part in residual])
        z = []
        for lane, part, own_q, (k, v) in zip(self.aboard, residual, q, keys_values, strict=True):
            sight = lane.sight.at(lane.reads)
            asking = attn.queries(own_q.unflatten(0, part.shape[:3]), sight.positions)
            z.append(lane.attend(attn, layer, asking, k, v, sight).flatten(0, 2))
        return block.wiring.add(block.norm_attn, flat, attn.out(_cat(z).flatten(-2)))

    def _with(self, fresh: dict[Boarding, Tensor]) -> Rows:
        """All rows that ride, then those that fresh cells changed."""
        changed = [rows.flatten(0, 2) for rows in fresh.values()]
        return _cat([self.rows, *changed] if len(self.rows) else changed)

    def _apart(
        self, fresh: dict[Boarding, Tensor], parts: Sequence[Tensor]
    ) -> tuple[list[list[Tensor]], dict[Boarding, list[Tensor]]]:
        """What was made of `_with`: of those that ride, lane by lane; of fresh cells, one by one."""
        sizes = [rows.shape[:3].numel() for rows in fresh.values()]
        split = [part.split([len(self.rows), *sizes]) for part in parts]
        joining = {
            one: [part[at].unflatten(0, rows.shape[:3]) for part in split]
            for at, (one, rows) in enumerate(fresh.items(), 1)
        }
        return [self._by_lane(part[0]) for part in split], joining

    def _among_plain(self, attn: Attention, layer: int, joining: dict[Boarding, list[Tensor]]) -> list[Tensor]:
        """Queries (if there are any), keys and values of one lane's fresh cells, rotated, among those of the plain run.

        The plain run's are rotated already.
        """
        wide = []
        for one, made in joining.items():
            plain = (one.lane.plain.q, one.lane.plain.k, one.lane.plain.v)[-len(made) :]
            positions = one.lane.plain.batch.positions[:, one.start : one.start + made[0].shape[2]]
            turned = attn.enter(made, positions)
            wide.append([one.among(kept[layer], part) for kept, part in zip(plain, turned, strict=True)])
        return [_cat(parts) for parts in zip(*wide, strict=True)]


def _cat(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat([*parts])

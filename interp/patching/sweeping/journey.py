"""From a changed residual stream to the metric, computing only what the change can reach.

Linear layers see the rows of all lanes at once, attention sees lane by lane. In the last block before the metrics only
keys and values are needed at every position, and the rest where they read. Cells of an encoder travel on in the
decoder: its cross-attention reads each cell's own source, and until it does the decoder is as in the plain run.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from interp.attention import Attention
from interp.patching.sweeping.lanes import AFTER_CROSS, AFTER_SELF, INTO, Boarding, Cells, Lane
from interp.transformer import Block, Stack, Transformer

Rows = Float[Tensor, "row d_model"]  # of all lanes, one after the other
Layout = list[tuple[Lane, torch.Size]]  # whose rows lie one after the other, and their cells, prompts and positions


@torch.no_grad()
def travel(model: Transformer, boardings: Sequence[Boarding]) -> list[list[Float[Tensor, "cell prompt"]]]:
    """One pass that takes all cells to the metrics: for each boarding, each of its lane's metrics."""
    stack = model.stack(boardings[0].lane.plain.stack)
    if boardings[0].lane.onward is not None:
        finals = _Journey(stack, boardings).through()
        boardings = [one.onward(final) for one, final in zip(boardings, finals, strict=True)]
        stack = model.last
    return _Journey(stack, boardings).measure(model)


class _Journey:
    """Rows on their way, lane after lane; within a lane cell after cell, in the order in which they boarded."""

    def __init__(self, stack: Stack, boardings: Sequence[Boarding]):
        self.stack, self.boardings = stack, boardings
        self.first = min(boarding.layer for boarding in boardings)
        self.aboard: dict[Lane, list[Boarding]] = {boarding.lane: [] for boarding in boardings}
        self.rows: Rows = boardings[0].rows.new_empty(0, boardings[0].rows.shape[-1])
        self.waiting: dict[Boarding, Tensor] = {}  # joined in the middle of the last block: their changed rows by now
        self.arrived: dict[Boarding, Float[Tensor, "cell prompt read d_model"]] = {}

    def through(self) -> list[Cells]:
        """The final stream of every boarding's cells, at all positions."""
        n_layers = len(self.stack.blocks)
        for layer in range(self.first, n_layers):
            self._block(layer)
        found = {one: one.among(one.lane.plain.resid[-1], rows) for one, rows in self._fresh(n_layers).items()}
        for aboard, rows in zip(self.aboard.values(), self._by_lane(self.rows), strict=True):
            found |= dict(zip(aboard, rows.split([len(one.rows) for one in aboard]), strict=True))
        return [self.stack.norm(found[one]) for one in self.boardings]

    def measure(self, model: Transformer) -> list[list[Float[Tensor, "cell prompt"]]]:
        """Metrics of every boarding's cells, in the order in which they were given."""
        for layer in range(self.first, len(self.stack.blocks) - 1):
            self._block(layer)
        self._last_block()
        found: dict[Boarding, list[Tensor]] = {}
        for lane in self.aboard:
            members = [one for one in self.boardings if one.lane is lane]
            values = lane.measure(model, torch.cat([self._arrived(one) for one in members]))
            sizes = [len(one.rows) for one in members]
            for one, *own in zip(members, *(value.split(sizes) for value in values), strict=True):
                found[one] = own
        return [found[one] for one in self.boardings]

    def _block(self, layer: int) -> None:
        """One block for all that ride, and what is left of it for those that join on the way."""
        block, joining = self.stack.blocks[layer], self._joining(layer, AFTER_SELF)
        fresh, parts, layout = self._fresh(layer), [], []
        if len(self.rows) or fresh:
            parts.append(self._attention(block, layer, fresh))
            layout += self._layout()
        parts += [one.rows.flatten(0, 2) for one in joining]
        layout += [(one.lane, one.rows.shape[:3]) for one in joining]
        if parts and block.cross_attn is not None:
            parts = [self._cross(block, layer, _cat(parts), layout, joining)]
        crossed = self._joining(layer, AFTER_CROSS)
        parts += [one.rows.flatten(0, 2) for one in crossed]
        if not parts:
            return
        joining, riding = [*joining, *crossed], len(self.rows)
        after = block.feed_forward(_cat(parts))
        self.rows, joined = after[:riding], after[riding:].split([one.rows.shape[:3].numel() for one in joining])
        self.waiting = {one: rows.view_as(one.rows) for one, rows in zip(joining, joined, strict=True)}

    def _last_block(self) -> None:
        """The last block: keys and values everywhere, queries and what follows only where the metrics read."""
        layer = len(self.stack.blocks) - 1
        block, parts, layout = self.stack.blocks[layer], [], []
        fresh = self._fresh(layer)
        joining, crossed = ([one for one in self._joining(layer, stage) if one.is_read()] for stage in (1, 2))
        if fresh or len(self.rows):
            parts.append(self._attention_at_reads(block, layer, fresh))
            layout += [(lane, _sizes(aboard, *lane.reads.shape)) for lane, aboard in self.aboard.items()]
        parts += [self._at_reads(one, "resid_mid") for one in joining]
        layout += [(one.lane, _sizes([one], *one.lane.reads.shape)) for one in joining]
        if parts and block.cross_attn is not None:
            parts = [self._cross(block, layer, _cat(parts), layout, joining)]
        parts += [self._at_reads(one, "resid_cross") for one in crossed]
        if not parts:
            return
        after = block.feed_forward(_cat(parts))
        arriving = [*(one for lane in self.aboard.values() for one in lane), *joining, *crossed]
        shapes = [_sizes([one], *one.lane.reads.shape) for one in arriving]
        own = after.split([shape.numel() for shape in shapes])
        self.arrived = {one: part.view(*shape, -1) for one, part, shape in zip(arriving, own, shapes, strict=True)}

    def _at_reads(self, one: Boarding, site: str) -> Rows:
        """The stream of cells that join in the last block, where the metrics read."""
        plain = one.lane.plain[site][len(self.stack.blocks) - 1]
        return one.lane.at_reads(one.among(plain, one.rows)).flatten(0, 2)

    def _arrived(self, one: Boarding) -> Float[Tensor, "cell prompt read d_model"]:
        """The stream out of the last block where the metrics read."""
        if one in self.arrived:
            return self.arrived[one]
        if one.layer == len(self.stack.blocks):
            return one.lane.at_reads(one.among(one.lane.plain.resid[-1], one.rows))
        return one.lane.plain_reads.expand(len(one.rows), -1, -1, -1)  # changed in the last block where nothing is read

    def _joining(self, layer: int, stage: int) -> list[Boarding]:
        return [one for one in self.boardings if (one.layer, one.stage) == (layer, stage)]

    def _fresh(self, layer: int) -> dict[Boarding, Tensor]:
        """Cells that meet their first attention in `layer`, and the rows that they changed so far: no others differ."""
        return {**self.waiting, **{one: one.rows for one in self._joining(layer, INTO)}}

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

    def _layout(self) -> Layout:
        return [(lane, _sizes(aboard, *lane.shape)) for lane, aboard in self.aboard.items()]

    def _by_lane(self, rows: Float[Tensor, "row ..."]) -> list[Float[Tensor, "cell prompt position ..."]]:
        """Rows of all lanes as each lane's cells."""
        shapes = [shape for _, shape in self._layout()]
        parts = rows.split([shape.numel() for shape in shapes])
        return [part.view(*shape, *rows.shape[1:]) for part, shape in zip(parts, shapes, strict=True)]

    def _attention(self, block: Block, layer: int, fresh: dict[Boarding, Tensor]) -> Rows:
        """The stream after the block's attention, fresh cells aboard.

        Of fresh cells only the changed rows need new queries, keys and values.
        """
        normed = block.attention.read(self._with(fresh))
        riding, joining = self._apart(fresh, block.attn.project(normed))
        z = []
        for at, lane in enumerate(self.aboard):
            q, k, v = (part[at] for part in riding)
            groups = [block.attn.enter([q, k, v], lane.sight.positions)] if len(q) else []
            if members := [one for one in fresh if one.lane is lane]:
                groups.append(self._among_plain(block.attn, layer, {one: joining[one] for one in members}))
            z += [lane.attend(block.attn, layer, q, k, v, lane.sight).flatten(0, 2) for q, k, v in groups]
        self._board(layer, fresh)
        out = block.attn.out(_cat(z).flatten(-2))
        return block.attention.add(self.rows, block.attention.write(out))

    def _attention_at_reads(self, block: Block, layer: int, fresh: dict[Boarding, Tensor]) -> Rows:
        """The stream after the block's attention where the metrics read, fresh cells aboard."""
        attn = block.attn
        normed = block.attention.read(self._with(fresh))
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
        q = attn.project_queries(block.attention.read(flat))
        q = q.split([part.shape[:3].numel() for part in residual])
        z = []
        for lane, part, own_q, (k, v) in zip(self.aboard, residual, q, keys_values, strict=True):
            sight = lane.sight.at(lane.reads)
            asking = attn.queries(own_q.unflatten(0, part.shape[:3]), sight.positions)
            z.append(lane.attend(attn, layer, asking, k, v, sight).flatten(0, 2))
        return block.attention.add(flat, block.attention.write(attn.out(_cat(z).flatten(-2))))

    def _cross(self, block: Block, layer: int, rows: Rows, layout: Layout, joining: Sequence[Boarding]) -> Rows:
        """The stream after the block's cross-attention, at whatever rows: of those aboard, then of those joining."""
        attn = block.cross_attn
        assert attn is not None
        q = attn.project_queries(block.cross.read(rows))
        q = attn.queries(q, torch.zeros(1, len(q), dtype=torch.long, device=q.device))  # nothing turns them
        groups = [*(self.aboard.values() if len(layout) > len(joining) else ()), *([one] for one in joining)]
        z = []
        for (lane, shape), members, own in zip(
            layout, groups, q.split([shape.numel() for _, shape in layout]), strict=True
        ):
            sources = [one.source for one in members if one.source is not None]
            source = _cat(sources) if sources else None
            z.append(lane.read_source(attn, layer, own.unflatten(0, shape), source).flatten(0, 2))
        out = attn.out(_cat(z).flatten(-2))
        return block.cross.add(rows, block.cross.write(out))

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
            plain = [one.lane.plain[f"attn.{part}"] for part in "qkv"[-len(made) :]]
            positions = one.lane.plain.batch.positions[:, one.start : one.start + made[0].shape[2]]
            turned = attn.enter(made, positions)
            wide.append([one.among(kept[layer], part) for kept, part in zip(plain, turned, strict=True)])
        return [_cat(parts) for parts in zip(*wide, strict=True)]


def _cat(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat([*parts])


def _sizes(aboard: Sequence[Boarding], prompts: int, positions: int) -> torch.Size:
    """Cells, prompts and positions."""
    return torch.Size([sum(len(one.rows) for one in aboard), prompts, positions])

"""One engine for changed rows: cells enter where a patch changes the stream, and leave where something is read.

In the first attention that cells meet only the rows that they change need new queries, keys and values; from then on
all rows from the first changed position on are their own. In the last block keys and values are needed everywhere, and
the rest only where something is read. Linear layers see the rows of all cells of a pass at once, attention sees those
that share earlier keys. Cells of an encoder go on in the decoder: its cross-attention reads each cell's own source, and
until it does the decoder is as in the base run.
"""

from collections.abc import Sequence
from math import prod

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.patching.changed_rows import (
    AFTER_CROSS,
    AFTER_SELF,
    INTO,
    AtReads,
    ChangedRows,
    Rows,
    Shape,
    Suffix,
)
from interp.tap import UNTAPPED, Tap
from interp.transformer import Block, Stack, Transformer

Arriving = tuple[Suffix, list[ChangedRows], Tensor]  # cells of one suffix, at its reads


@torch.no_grad()
def resume(model: Transformer, entering: Sequence[ChangedRows], tap: Tap = UNTAPPED) -> dict[Suffix, AtReads]:
    """One pass that takes cells, in the order of the layers in which they enter, to where they are read.

    In the stack that they enter, `tap` sees and edits what `Pass` says.

    Returns:
        dict: for each suffix the stream out of the last block at its reads. Each reader has its own of the cells that
            entered, in their order.
    """
    stack = model.stack(entering[0].suffix.base.stack)
    if entering[0].suffix.onward is not None:
        finals = Pass(stack, entering, tap).into(len(stack.blocks))
        entering = [one.onward(stack.norm(final)) for one, final in zip(entering, finals, strict=True)]
        stack, tap = model.last, UNTAPPED
    return Pass(stack, entering, tap).read()


class Pass:
    """Rows on their way, suffix after suffix; within one cell after cell, in the order in which they entered.

    A `tap` gets each layer's `attn.q`, `attn.k` and `attn.v` as they meet (`cell prompt position head d_head`, some of
    the cells at a time) and its `mlp_out` (`row d_model`).
    """

    def __init__(self, stack: Stack, entering: Sequence[ChangedRows], tap: Tap = UNTAPPED):
        self.stack, self.entering, self.tap = stack, entering, tap
        self.layer, self.last = entering[0].layer, len(stack.blocks) - 1  # the layer that comes next, and the last
        self.met: dict[Suffix, list[ChangedRows]] = {one.suffix: [] for one in entering}  # an attention already
        self.rows: Rows = entering[0].rows[:0]  # of those, at all positions
        self.waiting: dict[ChangedRows, Rows] = {}  # entered in the middle of the last block: their rows by now

    def into(self, layer: int) -> list[AtReads]:
        """The stream into block `layer`, or out of the last, of all that entered by then, at all positions."""
        self._go_on(layer)
        members = [one for some in self.met.values() for one in some]
        found = dict(zip(members, self.rows.split(_counts([one.place.shape for one in members])), strict=True))
        found |= {one: one.among(one.suffix.base.resid[layer], rows) for one, rows in self._fresh(layer).items()}
        return [found[one].view(*one.place.shape, -1) for one in self.entering if one in found]

    def read(self) -> dict[Suffix, AtReads]:
        """The stream out of the last block, of all that entered, where it is read."""
        self._go_on(self.last)
        fresh, block = self._fresh(self.last), self.stack.blocks[self.last]
        parts: list[Arriving] = []
        if fresh or len(self.rows):
            parts += self._attention_at_reads(block, fresh)
        joining = [one for one in self._entering(self.last, AFTER_SELF) if one.place.any_read]
        parts += [
            (one.suffix, [one], one.at_reads(one.suffix.base["resid_mid"][self.last], one.rows)) for one in joining
        ]
        if parts and block.cross_attn is not None:
            rows = _cross(block, self.last, [(*part[:2], part[2].shape[:3]) for part in parts], _flat(parts))
            parts = _like(rows, parts)
        crossed = [one for one in self._entering(self.last, AFTER_CROSS) if one.place.any_read]
        parts += [
            (one.suffix, [one], one.at_reads(one.suffix.base["resid_cross"][self.last], one.rows)) for one in crossed
        ]
        if parts:
            parts = _like(block.feed_forward(_flat(parts), self.tap.at(str(self.last))), parts)
        return self._arrived(parts)

    def _arrived(self, parts: Sequence[Arriving]) -> dict[Suffix, AtReads]:
        """All in the order in which they entered; what nothing changes where it is read is the base run's."""
        found: dict[Suffix, AtReads] = {}
        met = {suffix: at for suffix, members, at in parts if members is self.met[suffix]}
        own = {members[0]: at for suffix, members, at in parts if members is not self.met[suffix]}
        for suffix in self.met:
            out = suffix.base.resid[-1]
            plain = out.gather(1, suffix.wanted[..., None].expand(-1, -1, out.shape[-1]))
            pieces = [met[suffix]] if self.met[suffix] else []
            for one in self.entering:
                if one.suffix is not suffix or one in self.met[suffix]:
                    continue
                if one.layer > self.last:
                    pieces.append(one.at_reads(out, one.rows))
                elif one in own:
                    pieces.append(torch.where((one.place.read >= 0)[..., None], own[one], plain))
                else:  # changed in the last block where nothing is read
                    pieces.append(plain.expand(one.n_cells // len(suffix.readers), *plain.shape))
            unreached = suffix.wanted < suffix.first  # read before the first change
            found[suffix] = torch.where(unreached[..., None], plain, _cat(pieces))
        return found

    def _go_on(self, layer: int) -> None:
        """All blocks before `layer`."""
        while self.layer < layer:
            self._block(self.layer)
            self.layer += 1

    def _block(self, layer: int) -> None:
        """One block for all that met an attention, and what is left of it for those that enter on the way."""
        block, joining = self.stack.blocks[layer], self._entering(layer, AFTER_SELF)
        fresh, parts, layout = self._fresh(layer), [], []
        if len(self.rows) or fresh:
            parts.append(self._attention(block, layer, fresh))
            layout += [(suffix, members, _shape(suffix, members)) for suffix, members in self.met.items()]
        parts += [one.rows for one in joining]
        layout += [(one.suffix, [one], one.place.lead) for one in joining]
        if parts and block.cross_attn is not None:
            parts = [_cross(block, layer, layout, _cat(parts))]
        crossed = self._entering(layer, AFTER_CROSS)
        parts += [one.rows for one in crossed]
        if not parts:
            return
        joining, n_met = [*joining, *crossed], len(self.rows)
        after = block.feed_forward(_cat(parts), self.tap.at(str(layer)))
        self.rows, joined = after[:n_met], after[n_met:].split([len(one.rows) for one in joining])
        self.waiting = dict(zip(joining, joined, strict=True))

    def _entering(self, layer: int, stage: int) -> list[ChangedRows]:
        return [one for one in self.entering if (one.layer, one.stage) == (layer, stage)]

    def _fresh(self, layer: int) -> dict[ChangedRows, Rows]:
        """Those that meet their first attention in `layer`, and the rows that they changed so far: no others differ."""
        return {**self.waiting, **{one: one.rows for one in self._entering(layer, INTO)}}

    def _attention(self, block: Block, layer: int, fresh: dict[ChangedRows, Rows]) -> Rows:
        """The stream after the block's attention, at all rows of all that met one by now."""
        met, own = self._apart(fresh, block.attn.project(block.attention.read(self._with(fresh))))
        z, tap = [], self.tap.at(str(layer))
        for suffix, made in zip(self.met, met, strict=True):
            groups = [block.attn.enter(made, suffix.visibility.positions)] if len(made[0]) else []
            if members := [one for one in fresh if one.suffix is suffix]:
                groups.append(_joined([one.enter(block.attn, layer, own[one]) for one in members]))
            z += [suffix.attend(block.attn, layer, q, k, v, suffix.visibility, tap).flatten(0, 2) for q, k, v in groups]
        self._meet(layer, fresh)
        return block.attention.add(self.rows, block.attention.write(block.attn.out(_cat(z).flatten(-2))), tap)

    def _attention_at_reads(self, block: Block, fresh: dict[ChangedRows, Rows]) -> list[Arriving]:
        """The stream after the last block's attention where it is read: keys and values are needed everywhere."""
        attn, table, tap = block.attn, self._with(fresh), self.tap.at(str(self.last))
        met, own = self._apart(fresh, attn.project_keys_values(block.attention.read(table)))
        keys_values = []
        for suffix, made in zip(self.met, met, strict=True):
            before = [attn.enter(made, suffix.visibility.positions)] if len(made[0]) else []
            if some := [*before, *(one.enter(attn, self.last, own[one]) for one in fresh if one.suffix is suffix)]:
                keys_values.append(_joined(some))
        parts = self._at_reads(table, fresh)
        flat = _flat(parts)
        q, z = _like(attn.project_queries(block.attention.read(flat)), parts), []
        for (suffix, members, asking), (k, v) in zip(q, keys_values, strict=True):
            turned, some = attn.queries(asking, suffix.visibility.at(suffix.reads).positions), []
            for cells, columns in _by_reader(suffix, members):
                visibility = suffix.visibility.at(suffix.reads[:, columns])
                some.append(suffix.attend(attn, self.last, turned[:, :, columns], k[cells], v[cells], visibility, tap))
            z.append(_cat(some, 2).flatten(0, 2))
        after = block.attention.add(flat, block.attention.write(attn.out(_cat(z).flatten(-2))), tap)
        return _like(after, parts)

    def _at_reads(self, table: Rows, fresh: dict[ChangedRows, Rows]) -> list[Arriving]:
        """The stream into the last block where it is read; `table` holds all rows that are not the base run's."""
        begin, at = 0, {suffix: [] for suffix in self.met}
        for suffix, members in self.met.items():
            for one in members:
                at[suffix].append(suffix.place(one.n_cells).read + begin)
                begin += prod(one.place.shape)
        for one, rows in fresh.items():
            own = one.place.read
            at[one.suffix].append(own + begin if one.place.all_read else torch.where(own < 0, own, own + begin))
            begin += len(rows)
            self.met[one.suffix].append(one)
        parts = [(suffix, self.met[suffix], _cat(own)) for suffix, own in at.items() if own]
        row = _cat([own.flatten() for _, _, own in parts])
        found = table.index_select(0, row.clamp(min=0))
        if not all(one.place.all_read for one in fresh):
            plain = [suffix.at_reads(suffix.base.resid[self.last]).expand(*own.shape, -1) for suffix, _, own in parts]
            found = torch.where((row >= 0)[:, None], found, _cat([own.flatten(0, 2) for own in plain]))
        return _like(found, parts)

    def _meet(self, layer: int, fresh: dict[ChangedRows, Rows]) -> None:
        """Put fresh ones, at all their rows, behind those of their suffix."""
        if not fresh:
            return
        pieces = []
        for suffix, own in zip(self.met, self._by_suffix(self.rows), strict=True):
            members = [one for one in fresh if one.suffix is suffix]
            pieces += [own.flatten(0, 2), *(one.among(suffix.base.resid[layer], fresh[one]) for one in members)]
            self.met[suffix] += members
        self.rows, self.waiting = torch.cat(pieces), {}

    def _with(self, fresh: dict[ChangedRows, Rows]) -> Rows:
        """All rows of those that met an attention, then those that fresh ones changed."""
        return _cat([self.rows, *fresh.values()] if len(self.rows) else [*fresh.values()])

    def _apart(
        self, fresh: dict[ChangedRows, Rows], parts: Sequence[Tensor]
    ) -> tuple[list[list[Tensor]], dict[ChangedRows, list[Tensor]]]:
        """What was made of `_with`: of those that met an attention, suffix by suffix; of fresh ones, one by one."""
        split = [part.split([len(self.rows), *(len(rows) for rows in fresh.values())]) for part in parts]
        own = {one: [part[at] for part in split] for at, one in enumerate(fresh, 1)}
        met = [self._by_suffix(part[0]) for part in split]
        return [[part[at] for part in met] for at in range(len(self.met))], own

    def _by_suffix(self, rows: Float[Tensor, "row ..."]) -> list[Float[Tensor, "_ _ _ ..."]]:
        """Rows of those that met an attention, apart."""
        shapes = [_shape(suffix, members) for suffix, members in self.met.items()]
        return [
            part.view(*shape, *rows.shape[1:]) for part, shape in zip(rows.split(_counts(shapes)), shapes, strict=True)
        ]


def _cross(block: Block, layer: int, layout: Sequence[tuple[Suffix, list[ChangedRows], Shape]], rows: Rows) -> Rows:
    """The stream after the block's cross-attention, at whatever rows, which lie in `layout`."""
    attn = block.cross_attn
    assert attn is not None
    q = attn.project_queries(block.cross.read(rows))
    q = attn.queries(q, torch.zeros(1, len(q), dtype=torch.long, device=q.device))  # nothing turns them
    z = []
    for (suffix, members, shape), own in zip(layout, q.split(_counts([part[2] for part in layout])), strict=True):
        if not len(own):  # no cell has met an attention yet
            continue
        asking, sources = own.view(*shape, *own.shape[1:]), [one.source for one in members if one.source is not None]
        source = _cat(sources) if sources else None
        if source is None or len(source) == shape[0]:
            mixed = suffix.read_source(attn, layer, asking, source)
        else:
            each = _by_reader(suffix, members)
            mixed = _cat([suffix.read_source(attn, layer, asking[:, :, at], source[cells]) for cells, at in each], 2)
        z.append(mixed.flatten(0, 2))
    return block.cross.add(rows, block.cross.write(attn.out(_cat(z).flatten(-2))))


def _by_reader(suffix: Suffix, members: Sequence[ChangedRows]) -> list[tuple[slice | Int[Tensor, " cell"], slice]]:
    """The cells of each reader, of those of `members`, and which of all reads are its own."""
    if len(suffix.readers) == 1:
        return [(slice(None), slice(None))]
    return [*zip(suffix.cells_of_readers([one.n_cells for one in members]), suffix.readers, strict=True)]


def _flat(parts: Sequence[Arriving]) -> Rows:
    return _cat([at.flatten(0, 2) for _, _, at in parts])


def _like(rows: Float[Tensor, "row ..."], parts: Sequence[Arriving]) -> list[Arriving]:
    """Rows as the parts that they lie in."""
    own = rows.split(_counts([at.shape[:3] for _, _, at in parts]))
    return [(*part[:2], some.view(*part[2].shape[:3], *some.shape[1:])) for part, some in zip(parts, own, strict=True)]


def _shape(suffix: Suffix, members: Sequence[ChangedRows]) -> Shape:
    """Cells, prompts and positions."""
    return (sum(one.n_cells for one in members), *suffix.shape)


def _counts(shapes: Sequence[Sequence[int]]) -> list[int]:
    return [prod(shape) for shape in shapes]


def _joined(made: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """Queries, keys and values of several, as one."""
    return [_cat(parts) for parts in zip(*made, strict=True)]


def _cat(parts: Sequence[Tensor], axis: int = 0) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat([*parts], axis)

"""One engine for changed rows: cells enter where a patch changes the stream, and leave where something is read.

In a cell's first attention only its changed rows need new queries, keys and values. After it, the cell has its own
stream at all rows from the first changed position on. The last block computes keys and values everywhere, and all else
only where something is read. Linear layers take the rows of all cells of a pass at once; attention takes cells that
share earlier keys. An encoder's cells continue in the decoder, whose cross-attention reads each cell's own source.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.attention import Attention
from interp.devices import move
from interp.patching.changed_rows import AFTER_CROSS, AFTER_SELF, INTO, AtReads, ChangedRows, Rows, Shape, Suffix
from interp.patching.plain import origins
from interp.tap import UNTAPPED, Tap
from interp.transformer import Block, Stack, Transformer

Arriving = tuple[Suffix, list[ChangedRows], Tensor]  # cells of one suffix, and their stream at its reads
Fresh = dict[ChangedRows, Rows]  # cells before their first attention, and their changed rows


@torch.no_grad()
def resume(model: Transformer, entering: Sequence[ChangedRows], tap: Tap = UNTAPPED) -> dict[Suffix, AtReads]:
    """Run cells, ordered by the layer in which they enter, in one pass to where they are read.

    It returns each suffix's stream out of the last block at its reads; each reader has its own cells, in the order in
    which they entered. In the stack that they enter, `tap` sees and edits what `Pass` describes.
    """
    stack = model.stack(entering[0].suffix.base.stack)
    if entering[0].suffix.onward is not None:
        finals = move(_last_pass(stack, entering, tap).out_of_last_block(), stack.device)
        entering = [entry.onward(stack.norm(final)) for entry, final in zip(entering, finals, strict=True)]
        stack, tap = model.last, UNTAPPED
    arrived = move([*_last_pass(stack, entering, tap).at_reads().values()], stack.device)
    return dict(zip(dict.fromkeys(entry.suffix for entry in entering), arrived, strict=True))


def _last_pass(stack: Stack, entering: Sequence[ChangedRows], tap: Tap) -> "Pass":
    """The pass through the last blocks that share a device; earlier passes carry cells through other devices."""
    devices = [block.device for block in stack.blocks]
    for layer, (before, device) in enumerate(pairwise(devices), start=1):
        if before != device and entering[0].layer < layer:
            count = sum(entry.layer < layer for entry in entering)
            crossing, rest = [*entering[:count]], entering[count:]
            entering = [*Pass(stack, move(crossing, before), tap, layer - 1).crossing(crossing, device), *rest]
    return Pass(stack, move([*entering], devices[-1]), tap)


class Pass:
    """Changed rows on their way through the blocks: by suffix, then by cell in the order of entry.

    The blocks that it runs, to the end or to `last`, and the cells lie on one device.

    `tap` gets each layer's `attn.q`, `attn.k`, `attn.v` as they enter scores, some cells at a time; `mlp_out` by row.
    """

    def __init__(self, stack: Stack, entering: Sequence[ChangedRows], tap: Tap = UNTAPPED, last: int | None = None):
        self.stack, self.entering, self.tap = stack, entering, tap
        self.last = len(stack.blocks) - 1 if last is None else last
        self.met: dict[Suffix, list[ChangedRows]] = {entry.suffix: [] for entry in entering}  # had an attention
        self.rows: Rows = entering[0].rows[:0]  # rows of `met`, at all positions
        self.waiting: Fresh = {}  # cells that entered inside the previous block, with their current rows

    def out_of_last_block(self) -> list[AtReads]:
        """The stream out of the last block, for each entry, at all positions."""
        self._run_blocks(self.last + 1)
        self._meet(self.last + 1, self._fresh(self.last + 1))
        rows = self._by_entry()
        return [rows[entry].view(*entry.place.shape, -1) for entry in self.entering]

    def crossing(self, cells: Sequence[ChangedRows], device: torch.device) -> list[ChangedRows]:
        """The cells as they enter the block after `last`, on `device`; `cells` are this pass's, on the first device."""
        self._run_blocks(self.last + 1)
        sizes, crossed = [len(self.rows), *map(len, self.waiting.values())], []
        self.rows, *waiting = self._with(self.waiting).to(device).split(sizes)
        rows = self._by_entry() | dict(zip(self.waiting, waiting, strict=True))
        for cell, entry in zip(cells, self.entering, strict=True):
            place = cell.place if entry in self.waiting else cell.suffix.place(cell.place.n_cells)
            crossed.append(replace(cell, layer=self.last + 1, stage=INTO, place=place, rows=rows[entry]))
        return crossed

    def _by_entry(self) -> dict[ChangedRows, Rows]:
        """All rows of each entry in `met`."""
        members = [entry for entries in self.met.values() for entry in entries]
        return dict(zip(members, self.rows.split(_counts([entry.place.shape for entry in members])), strict=True))

    def at_reads(self) -> dict[Suffix, AtReads]:
        """The stream out of the last block, for all cells that entered, where it is read."""
        self._run_blocks(self.last)
        return self._arrived(self._block(self.last, reading=True))

    def _arrived(self, parts: Sequence[Arriving]) -> dict[Suffix, AtReads]:
        """All cells in the order of entry; reads that a cell does not change are the base run's."""
        streams: dict[Suffix, AtReads] = {}
        met = {suffix: stream for suffix, members, stream in parts if members is self.met[suffix]}
        alone = {members[0]: stream for suffix, members, stream in parts if members is not self.met[suffix]}
        for suffix in self.met:
            out = suffix.base.resid[-1]
            plain = out.gather(1, suffix.read_positions[..., None].expand(-1, -1, out.shape[-1]))
            pieces = [met[suffix]] if self.met[suffix] else []
            for entry in self.entering:
                if entry.suffix is not suffix or entry in self.met[suffix]:
                    continue
                if entry.layer > self.last:
                    pieces.append(entry.at_reads(out, entry.rows))
                elif entry in alone:
                    pieces.append(torch.where((entry.place.read >= 0)[..., None], alone[entry], plain))
                else:  # changed only in the last block, where nothing is read
                    pieces.append(plain.expand(entry.place.n_cells // len(suffix.readers), *plain.shape))
            unreached = suffix.read_positions < suffix.first  # read before the first change
            streams[suffix] = torch.where(unreached[..., None], plain, _cat(pieces))
        return streams

    def _run_blocks(self, end: int) -> None:
        for layer in range(self.entering[0].layer, end):
            parts = [stream.flatten(0, 2) for _, _, stream in self._block(layer)]
            joining = [*self._entering(layer, AFTER_SELF), *self._entering(layer, AFTER_CROSS)]
            n_met = len(parts) - len(joining)
            self.rows = _cat(parts[:n_met]) if n_met else self.rows
            self.waiting = dict(zip(joining, parts[n_met:], strict=True))

    def _block(self, layer: int, *, reading: bool = False) -> list[Arriving]:
        """One block: all of it for cells that are in already, the rest for cells that enter inside; or at reads."""
        block, fresh, parts = self.stack.blocks[layer], self._fresh(layer), list[Arriving]()
        if len(self.rows) or fresh:
            parts += self._attention_at_reads(block, fresh) if reading else self._attention(block, layer, fresh)
        parts += self._joining(layer, AFTER_SELF, "resid_mid", reading)
        if parts and block.cross_attn is not None:
            parts = _cross(block, layer, parts)
        parts += self._joining(layer, AFTER_CROSS, "resid_cross", reading)
        return _like(block.feed_forward(_flat(parts), self.tap.at(str(layer))), parts) if parts else []

    def _joining(self, layer: int, stage: int, site: str, reading: bool) -> list[Arriving]:
        entries = self._entering(layer, stage)
        if not reading:
            return [(entry.suffix, [entry], entry.rows.view(*entry.place.lead, -1)) for entry in entries]
        entries = [entry for entry in entries if bool((entry.place.read >= 0).any())]
        return [(each.suffix, [each], each.at_reads(each.suffix.base[site][layer], each.rows)) for each in entries]

    def _entering(self, layer: int, stage: int) -> list[ChangedRows]:
        return [entry for entry in self.entering if (entry.layer, entry.stage) == (layer, stage)]

    def _fresh(self, layer: int) -> Fresh:
        return {**self.waiting, **{entry: entry.rows for entry in self._entering(layer, INTO)}}

    def _attention(self, block: Block, layer: int, fresh: Fresh) -> list[Arriving]:
        """The stream after the block's attention, at all rows of `met` and fresh cells."""
        attn, tap = block.attn, self.tap.at(str(layer))
        entered = self._enter(attn, layer, fresh, attn.project(block.attention.read(self._with(fresh))))
        groups = [(suffix, *group) for suffix, suffix_groups in entered for group in suffix_groups]
        z = [suffix.attend(attn, layer, q, k, v, suffix.visibility, tap).flatten(0, 2) for suffix, q, k, v in groups]
        self._meet(layer, fresh)
        rows = block.attention.add(self.rows, block.attention.write(attn.out(_cat(z).flatten(-2))), tap)
        parts = zip(self.met.items(), self._by_suffix(rows), strict=True)
        return [(suffix, members, part) for (suffix, members), part in parts if members]

    def _enter(
        self, attn: Attention, layer: int, fresh: Fresh, parts: Sequence[Tensor]
    ) -> list[tuple[Suffix, list[list[Tensor]]]]:
        """The projections `parts` of `_with` as they enter scores, at all rows, by suffix: `met`, then fresh cells."""
        split = [part.split([len(self.rows), *(len(rows) for rows in fresh.values())]) for part in parts]
        met, entered = [self._by_suffix(part[0]) for part in split], []
        for number, suffix in enumerate(self.met):
            projected = [part[number] for part in met]
            groups = [attn.enter(projected, suffix.visibility.positions)] if len(projected[0]) else []
            members = [(index, entry) for index, entry in enumerate(fresh, 1) if entry.suffix is suffix]
            if members:
                joining = [entry.enter(attn, layer, [part[index] for part in split]) for index, entry in members]
                groups.append([_cat(pieces) for pieces in zip(*joining, strict=True)])
            if groups:
                entered.append((suffix, groups))
        return entered

    def _attention_at_reads(self, block: Block, fresh: Fresh) -> list[Arriving]:
        """The stream after the last block's attention where it is read: keys and values are needed everywhere."""
        attn, table, tap = block.attn, self._with(fresh), self.tap.at(str(self.last))
        entered = self._enter(attn, self.last, fresh, attn.project_keys_values(block.attention.read(table)))
        parts = self._stream_at_reads(table, fresh)
        flat = _flat(parts)
        queries, z = _like(attn.project_queries(block.attention.read(flat)), parts), []
        for (suffix, members, projected), (_, groups) in zip(queries, entered, strict=True):
            k, v = (_cat(pieces) for pieces in zip(*groups, strict=True))
            q, mixed = attn.queries(projected, suffix.visibility.at(suffix.reads).positions), []
            for cells, columns in _by_reader(suffix, members):
                visibility = suffix.visibility.at(suffix.reads[:, columns])
                mixed.append(suffix.attend(attn, self.last, q[:, :, columns], k[cells], v[cells], visibility, tap))
            z.append(_cat(mixed, 2).flatten(0, 2))
        return _like(block.attention.add(flat, block.attention.write(attn.out(_cat(z).flatten(-2))), tap), parts)

    def _stream_at_reads(self, table: Rows, fresh: Fresh) -> list[Arriving]:
        """The stream into the last block where it is read; `table` holds all rows that differ from the base run."""
        begin, indices = 0, {suffix: [] for suffix in self.met}
        for suffix, members in self.met.items():
            for entry in members:
                indices[suffix].append(suffix.place(entry.place.n_cells).read + begin)
                begin += prod(entry.place.shape)
        for entry, rows in fresh.items():
            index = entry.place.read
            shifted = index + begin if entry.place.all_read else torch.where(index < 0, index, index + begin)
            indices[entry.suffix].append(shifted)
            begin += len(rows)
            self.met[entry.suffix].append(entry)
        parts = [(suffix, self.met[suffix], _cat(index)) for suffix, index in indices.items() if index]
        row = _cat([index.flatten() for _, _, index in parts])
        stream = table.index_select(0, row.clamp(min=0))
        if not all(entry.place.all_read for entry in fresh):
            plain = [suffix.at_reads(suffix.base.resid[self.last]).expand(*rows.shape, -1) for suffix, _, rows in parts]
            stream = torch.where((row >= 0)[:, None], stream, _cat([rows.flatten(0, 2) for rows in plain]))
        return _like(stream, parts)

    def _meet(self, layer: int, fresh: Fresh) -> None:
        """Append fresh cells, with all their rows, to their suffix's cells."""
        if not fresh:
            return
        pieces = []
        for suffix, rows in zip(self.met, self._by_suffix(self.rows), strict=True):
            members = [entry for entry in fresh if entry.suffix is suffix]
            pieces += [rows.flatten(0, 2), *(entry.widen(suffix.base.resid[layer], fresh[entry]) for entry in members)]
            self.met[suffix] += members
        self.rows, self.waiting = torch.cat(pieces), {}

    def _with(self, fresh: Fresh) -> Rows:
        """All rows of `met`, then the changed rows of fresh cells."""
        return _cat([self.rows, *fresh.values()] if len(self.rows) else [*fresh.values()])

    def _by_suffix(self, rows: Float[Tensor, "row ..."]) -> list[Float[Tensor, "_ _ _ ..."]]:
        """Rows of `met`, split by suffix."""
        shapes = [_shape(suffix, members) for suffix, members in self.met.items()]
        parts = zip(rows.split(_counts(shapes)), shapes, strict=True)
        return [part.view(*shape, *rows.shape[1:]) for part, shape in parts]


def _cross(block: Block, layer: int, parts: Sequence[Arriving]) -> list[Arriving]:
    """The stream after the block's cross-attention, at the rows of `parts`."""
    attn, rows, z = block.cross_attn, _flat(parts), []
    assert attn is not None
    q = attn.project_queries(block.cross.read(rows))
    for suffix, members, queries in _like(attn.queries(q, origins(q)), parts):
        sources = [entry.source for entry in members if entry.source is not None]
        source = _cat(sources) if sources else None
        if source is None or len(source) == len(queries):
            mixed = suffix.read_source(attn, layer, queries, source)
        else:
            readers = _by_reader(suffix, members)
            mixed = [suffix.read_source(attn, layer, queries[:, :, read], source[cells]) for cells, read in readers]
            mixed = _cat(mixed, 2)
        z.append(mixed.flatten(0, 2))
    return _like(block.cross.add(rows, block.cross.write(attn.out(_cat(z).flatten(-2)))), parts)


def _by_reader(suffix: Suffix, members: Sequence[ChangedRows]) -> list[tuple[slice | Int[Tensor, " cell"], slice]]:
    """For each reader, its cells among those of `members`, and its slice of all reads."""
    if len(suffix.readers) == 1:
        return [(slice(None), slice(None))]
    return [*zip(suffix.cells_of_readers([entry.place.n_cells for entry in members]), suffix.readers, strict=True)]


def _flat(parts: Sequence[Arriving]) -> Rows:
    return _cat([stream.flatten(0, 2) for _, _, stream in parts])


def _like(rows: Float[Tensor, "row ..."], parts: Sequence[Arriving]) -> list[Arriving]:
    """Rows split and shaped like `parts`."""
    split = zip(parts, rows.split(_counts([stream.shape[:3] for _, _, stream in parts])), strict=True)
    return [(*part[:2], piece.view(*part[2].shape[:3], *piece.shape[1:])) for part, piece in split]


def _shape(suffix: Suffix, members: Sequence[ChangedRows]) -> Shape:
    return (sum(entry.place.n_cells for entry in members), *suffix.shape)


def _counts(shapes: Sequence[Sequence[int]]) -> list[int]:
    return [prod(shape) for shape in shapes]


def _cat(parts: Sequence[Tensor], axis: int = 0) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat([*parts], axis)

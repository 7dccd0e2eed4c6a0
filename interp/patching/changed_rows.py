"""The stream rows that cells change and enter a pass with, and what cells of a pass share.

Below its layer, and in a causal stack before its first changed position, a cell equals the base run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from interp.attention import Attention
from interp.config import StackConfig
from interp.devices import Movable
from interp.patching.plain import Moment, PlainRun, origins
from interp.tap import UNTAPPED, Tap
from interp.transformer import Transformer
from interp.visibility import Source, Visibility

INTO, AFTER_SELF, AFTER_CROSS = 0, 1, 2  # where in a block cells enter: before it, or after an attention
Rows = Float[Tensor, "_ d_model"]  # of all cells, concatenated
AtReads = Float[Tensor, "_ _ _ d_model"]  # cell prompt read: cells of one reader; reads of all readers
Shape = tuple[int, ...]  # cells, prompts, positions
Reads = Sequence[Int[Tensor, "prompt _"]]  # positions, reader by reader
Stream = Float[Tensor, "cell prompt position d_model"]
Queries = Float[Tensor, "cell prompt query head d_head"]
Keys = Float[Tensor, "cell prompt key kv_head d_head"]
Past = Sequence[Float[Tensor, "prompt past kv_head d_head"]]  # keys and values
_SMALL_ROWS = 4096  # query x key entries of one head up to which explicit scores beat the fused kernel


def moment_after(config: StackConfig, layer: int, attention: str = "self") -> Moment:
    """The moment after an attention has written to the stream: the layer, and the stage in it."""
    if config.parallel:
        return layer + 1, INTO
    return layer, AFTER_SELF if attention == "self" else AFTER_CROSS


class Suffix(Movable):
    """The positions that some cells can change (from `first` on, in some prompts), and where they are read.

    Cells have one reader, or several, which split the cells that enter together evenly, in order. An encoder's cells
    continue in the decoder's suffix, `onward`.
    """

    def __init__(self, model: Transformer, base: PlainRun, first: int, reads: Reads, onward: "Suffix | None" = None):
        self.base, self.first, self.onward = base, first, onward
        visibility = Visibility.from_batch(base.batch, causal=model.config.stacks[base.stack].causal, first=first)
        # padding is on the right: no causal query sees it
        self.visibility = replace(visibility, padding=None) if visibility.causal else visibility
        self.shape = (len(base.batch.ids), base.batch.ids.shape[1] - first)  # prompts, positions
        self._reads = [*reads]
        self._places: dict[tuple[Any, ...], Place] = {}  # shared by all copies

    @staticmethod
    def in_stack(model: Transformer, base: PlainRun, stack: str, first: int, reads: Reads) -> "Suffix":
        """The suffix of cells that change `stack`, which may be the encoder; `base` is the last stack's run."""
        if base.stack == stack:
            return Suffix(model, base, first if model.config.stacks[stack].causal else 0, reads)
        return Suffix(model, base.in_stack(stack), 0, (), Suffix(model, base, 0, reads))

    @property
    def rows(self) -> int:
        """Prompts x positions that a cell changes, in all stacks that it passes."""
        return self.shape[0] * self.shape[1] + (0 if self.onward is None else self.onward.rows)

    @cached_property
    def readers(self) -> list[slice]:
        """Each reader's slice of all reads."""
        ends = [0, *accumulate(positions.shape[1] for positions in self._reads)]
        return [slice(begin, end) for begin, end in pairwise(ends)]

    @cached_property
    def read_positions(self) -> Int[Tensor, "prompt read"]:
        """The positions that are read."""
        return torch.cat(self._reads, 1)

    @cached_property
    def reads(self) -> Int[Tensor, "prompt read"]:
        """`read_positions`, with those before `first`, which cannot change, moved to `first`."""
        return self.read_positions.clamp(min=self.first)

    def at_reads(self, plain: Float[Tensor, "prompt whole d_model"]) -> Float[Tensor, "prompt read d_model"]:
        """The base run's stream where it is read."""
        return plain.gather(1, self.reads[..., None].expand(-1, -1, plain.shape[-1]))

    def place(self, n_cells: int, start: int | None = None, n_rows: int | None = None) -> "Place":
        """The place of cells that change the same `n_rows` positions from `start` on in all prompts; default all."""
        if n_rows == self.shape[1]:
            start = n_rows = None
        positions = self.visibility.positions
        if (key := (n_cells, start, n_rows, positions.device)) not in self._places:
            rows, n_positions = None, self.shape[1]
            if start is not None and n_rows is not None:
                rows, n_positions = slice(start - self.first, start - self.first + n_rows), n_rows
                positions = positions[:, rows]
            self._places[key] = Place(self, n_cells, rows, (n_cells, self.shape[0], n_positions), positions)
        return self._places[key]

    def cells_of_readers(self, sizes: Sequence[int]) -> Int[Tensor, "reader cell"]:
        """Each reader's cells, when cells entered in parties of these sizes."""
        parties = torch.arange(sum(sizes), device=self.reads.device).split([*sizes])
        return torch.cat([cells.view(len(self.readers), -1) for cells in parties], 1)

    def attend(
        self, attn: Attention, layer: int, q: Queries, k: Keys, v: Keys, visibility: Visibility, tap: Tap = UNTAPPED
    ) -> Queries:
        """The mix of values for the cells' queries from their own and earlier keys; q and k are already rotated."""
        q, k, v = tap("attn.q", q), tap("attn.k", k), tap("attn.v", v)
        past = [self.base[f"attn.{part}"][layer][:, : self.first] for part in "kv"]
        return attend(attn, q, k, v, past, visibility)

    def read_source(self, attn: Attention, layer: int, q: Queries, source: Stream | None) -> Queries:
        """The mix of the encoder's values: from the base run for all cells, or from each cell's own `source`."""
        if source is None:
            k, v = (self.base[f"cross_attn.{part}"][layer] for part in "kv")
            queries = rearrange(q, "cell prompt query head d_head -> prompt (cell query) head d_head")
            z = attn.mix(queries, k, v, self._across(queries.shape[1]))
            return rearrange(z, "prompt (cell query) head d_head -> cell prompt query head d_head", cell=len(q))
        k, v = attn.project_keys_values(source)
        return attn.mix(q, attn.keys(k, origins(k)), v, self._across(q.shape[2]))

    def _across(self, n_queries: int) -> Visibility:
        """What `n_queries` queries of each prompt see of its source."""
        source = self.base.source
        assert source is not None
        anywhere = torch.zeros(self.shape[0], n_queries, dtype=torch.long, device=source.final.device)
        queries = Visibility(anywhere, anywhere[:1], n_queries, False, None, False)
        return Source.from_stream(source.final, source.batch).seen_by(queries).to(self.visibility.columns.device)


@dataclass(frozen=True, eq=False)
class Place(Movable):
    """Which rows some cells change, among cells x prompts x positions of the suffix."""

    suffix: Suffix
    n_cells: int
    rows: Int[Tensor, " row"] | slice | None  # None: all; a slice: those positions of all cells and prompts
    lead: Shape  # the changed rows' leading axes, in order
    positions: Int[Tensor, "_ _"]  # the changed rows' positions in their texts

    @property
    def shape(self) -> Shape:
        """Numbers of cells, prompts and positions, changed or not."""
        return (self.n_cells, *self.suffix.shape)

    @cached_property
    def read(self) -> Int[Tensor, "cell prompt read"]:
        """The index among changed rows of each row that is read; -1 if unchanged. Each reader has its own cells."""
        suffix, (n_prompts, n_positions) = self.suffix, self.suffix.shape
        cells = torch.arange(self.n_cells, device=suffix.reads.device)[:, None]  # cell read
        if len(suffix.readers) > 1:
            widths = torch.tensor([read.stop - read.start for read in suffix.readers], device=cells.device)
            cells = suffix.cells_of_readers([self.n_cells]).repeat_interleave(widths, 0).T
        prompts = torch.arange(n_prompts, device=cells.device)[:, None]
        begin, width = (self.rows.start, self.lead[-1]) if isinstance(self.rows, slice) else (0, n_positions)
        column = suffix.reads - (suffix.first + begin)  # among `width` positions
        row = (cells[:, None] * n_prompts + prompts) * width + column
        if self.rows is None:
            return row
        if isinstance(self.rows, slice):
            return row.masked_fill_((column < 0) | (column >= width), -1)
        changed_row = self.rows.new_full((self.n_cells * n_prompts * n_positions,), -1)
        changed_row[self.rows] = torch.arange(len(self.rows), device=cells.device)
        return changed_row[row]

    @cached_property
    def all_read(self) -> bool:
        """Whether every row that is read is changed."""
        return self.rows is None or bool((self.read >= 0).all())


@dataclass(frozen=True, eq=False)
class ChangedRows(Movable):
    """Cells that enter block `layer` together, at `stage`, with the stream rows that they change."""

    layer: int
    stage: int
    place: Place
    rows: Rows
    source: Stream | None = None  # each cell's own encoder output, if the cells change it

    @staticmethod
    def from_span(suffix: Suffix, layer: int, stage: int, stream: Stream, start: int) -> "ChangedRows":
        """Cells that change the same positions, from `start` on, in all prompts."""
        return ChangedRows(layer, stage, suffix.place(len(stream), start, stream.shape[2]), stream.flatten(0, 2))

    @property
    def suffix(self) -> Suffix:
        """What these cells share with others."""
        return self.place.suffix

    def enter(self, attn: Attention, layer: int, projected: Sequence[Float[Tensor, "row _ d_head"]]) -> list[Tensor]:
        """Queries (if projected), keys and values of all rows as they enter scores; `projected` are of changed rows."""
        place = self.place
        turned = attn.enter([part.view(*place.lead, *part.shape[1:]) for part in projected], place.positions)
        plain = [self.suffix.base[f"attn.{part}"][layer] for part in "qkv"[-len(projected) :]]
        widened = [self.widen(base, part.flatten(0, -3)) for base, part in zip(plain, turned, strict=True)]
        return [part.view(*place.shape, *part.shape[1:]) for part in widened]

    def widen(
        self, plain: Float[Tensor, "prompt whole ..."], rows: Float[Tensor, "row ..."]
    ) -> Float[Tensor, "all ..."]:
        """All rows of the cells: the changed `rows` among `plain` ones."""
        place = self.place
        if place.rows is None:
            return rows
        base = plain[:, self.suffix.first :]
        wide = base.expand(place.n_cells, *base.shape).clone()
        if isinstance(place.rows, slice):
            wide[:, :, place.rows] = rows.view(*place.lead, *rows.shape[1:])
            return wide.flatten(0, 2)
        return wide.flatten(0, 2).index_copy_(0, place.rows, rows)

    def at_reads(self, plain: Float[Tensor, "prompt whole d_model"], rows: Rows) -> AtReads:
        """The stream where it is read: changed rows if there are any, else `plain` ones."""
        index = self.place.read
        changed = rows.index_select(0, index.clamp(min=0).flatten()).view(*index.shape, -1)
        if self.place.all_read:
            return changed
        return torch.where((index >= 0)[..., None], changed, self.suffix.at_reads(plain))

    def onward(self, final: Stream) -> "ChangedRows":
        """An encoder's cells in the decoder, where nothing changes before the first cross-attention."""
        suffix = self.suffix.onward
        assert suffix is not None
        rows = suffix.base["resid_mid"][0].flatten(0, 1).repeat(len(final), 1)
        return ChangedRows(0, AFTER_SELF, suffix.place(len(final)), rows, final)


def attend(attn: Attention, q: Queries, k: Keys, v: Keys, past: Past, visibility: Visibility) -> Queries:
    """The mix of values for the cells' queries, from earlier positions and their own; keys are already rotated."""
    past_k, past_v = past
    if q.shape[2] * visibility.n_keys > _SMALL_ROWS:
        k, v = (torch.cat([part.expand(len(x), *part.shape), x], 2) for part, x in ((past_k, k), (past_v, v)))
        q, k, v = (part.transpose(-2, -3) for part in (q, k, v))
        return attn.fused(q, k, v, visibility).transpose(-2, -3)
    if (shared := q.shape[3] // k.shape[3]) > 1:
        k, v, past_k, past_v = (part.repeat_interleave(shared, -2) for part in (k, v, past_k, past_v))
    # prompt head cell query d_head: the queries of all cells are rows of one product with the shared keys
    q, k, v = (part.permute(1, 3, 0, 2, 4) for part in (q * attn.config.score_scale, k, v))
    prompts, count, cells, queries, d_head = q.shape
    n_past, rows = past_k.shape[1], q.reshape(prompts, count, cells * queries, d_head)
    scores = q @ k.transpose(-1, -2)
    if n_past:
        past_scores = (rows @ past_k.permute(0, 2, 3, 1)).view(prompts, count, cells, queries, n_past)
        scores = torch.cat([past_scores, scores], -1)
    bias = None if attn.bias is None else attn.bias(visibility)
    bias = None if bias is None else bias[:, :, None]  # the same for all cells
    visible = visibility.near(attn.reach).mask()
    pattern = attn.pattern(attn.entering(scores, bias, None if bool(visible.all()) else visible[:, :, None]))
    z = pattern[..., n_past:] @ v
    if n_past:
        past_pattern = pattern[..., :n_past].reshape(prompts, count, cells * queries, n_past)
        z = z + (past_pattern @ past_v.transpose(1, 2)).view_as(z)
    return z.permute(2, 0, 3, 1, 4)

"""The rows of the stream that cells change: with these they enter a pass, and what they share until they leave it.

Below its layer, and in a causal stack before the first position that it changes, a cell is as the base run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from interp.attention import Attention
from interp.config import StackConfig
from interp.patching.plain import PlainRun
from interp.tap import UNTAPPED, Tap
from interp.transformer import Transformer
from interp.visibility import Source, Visibility

INTO, AFTER_SELF, AFTER_CROSS = 0, 1, 2  # where in a block cells enter: before it, after its attentions
Rows = Float[Tensor, "_ d_model"]  # of all cells, one after the other
AtReads = Float[Tensor, "_ _ _ d_model"]  # cell prompt read: as many cells as each reader has; reads of all readers
Shape = tuple[int, ...]  # cells, prompts, positions
_SMALL_ROWS = 4096  # query x key entries of one head up to which explicit scores beat the fused kernel


def after(config: StackConfig, layer: int, attention: str = "self") -> tuple[int, int]:
    """When the stream is carried on that an attention leaves: the layer, and where in it."""
    if config.parallel:
        return layer + 1, INTO
    return layer, AFTER_SELF if attention == "self" else AFTER_CROSS


class Suffix:
    """The positions from `first` on of some prompts, all that some cells can change, and where these are read.

    Earlier keys and values, and those of the encoder where it is not changed, are the base run's. There is one reader
    for all cells, or several, among which the cells that enter together are divided evenly, in order. An encoder's
    cells go `onward` to positions of the decoder.
    """

    def __init__(
        self,
        model: Transformer,
        base: PlainRun,
        first: int,
        reads: Sequence[Int[Tensor, "prompt _"]],
        onward: "Suffix | None" = None,
    ):
        self.base, self.first, self.onward = base, first, onward
        visibility = Visibility.of(base.batch, causal=model.config.stacks[base.stack].causal, first=first)
        # padding is on the right: no causal query sees it
        self.visibility = replace(visibility, padding=None) if visibility.causal else visibility
        self.shape = (len(base.batch.ids), base.batch.ids.shape[1] - first)  # prompts, positions
        self._each = [*reads]
        self._places: dict[tuple[int | None, ...], Place] = {}

    @staticmethod
    def of(
        model: Transformer, base: PlainRun, stack: str, first: int, reads: Sequence[Int[Tensor, "prompt _"]]
    ) -> "Suffix":
        """Where cells change `stack`, which may be the encoder; `base` is the run that is read in the end."""
        if base.stack == stack:
            return Suffix(model, base, first if model.config.stacks[stack].causal else 0, reads)
        return Suffix(model, base.of_stack(stack), 0, (), Suffix(model, base, 0, reads))

    @property
    def rows(self) -> int:
        """Prompts x positions that a cell changes on its way."""
        return self.shape[0] * self.shape[1] + (0 if self.onward is None else self.onward.rows)

    @cached_property
    def readers(self) -> list[slice]:
        """Which of all reads are each reader's."""
        ends = [0, *accumulate(own.shape[1] for own in self._each)]
        return [slice(begin, end) for begin, end in pairwise(ends)]

    @cached_property
    def wanted(self) -> Int[Tensor, "prompt read"]:
        """The positions that are read."""
        return torch.cat(self._each, 1)

    @cached_property
    def reads(self) -> Int[Tensor, "prompt read"]:
        """The same, of what can change."""
        return self.wanted.clamp(min=self.first)

    def at_reads(self, plain: Float[Tensor, "prompt whole d_model"]) -> Float[Tensor, "prompt read d_model"]:
        """The base run's stream where it is read."""
        return plain.gather(1, self.reads[..., None].expand(-1, -1, plain.shape[-1]))

    def place(self, n_cells: int, start: int | None = None, n_rows: int | None = None) -> "Place":
        """Where cells change the same positions in all prompts, so many from `start` on; by default all."""
        if n_rows == self.shape[1]:
            start = n_rows = None
        if (key := (n_cells, start, n_rows)) not in self._places:
            rows, n_positions = None, self.shape[1]
            if start is not None and n_rows is not None:
                rows, n_positions = slice(start - self.first, start - self.first + n_rows), n_rows
            positions = self.visibility.positions if rows is None else self.visibility.positions[:, rows]
            self._places[key] = Place(self, n_cells, rows, (n_cells, self.shape[0], n_positions), positions)
        return self._places[key]

    def cells_of_readers(self, sizes: Sequence[int]) -> Int[Tensor, "reader cell"]:
        """The cells of each reader, of those that entered so many at a time."""
        each = torch.arange(sum(sizes), device=self.reads.device).split([*sizes])
        return torch.cat([cells.view(len(self.readers), -1) for cells in each], 1)

    @cached_property
    def reader(self) -> Int[Tensor, " read"]:
        """Whose each of all reads is."""
        sizes = torch.tensor([own.shape[1] for own in self._each])
        return torch.arange(len(sizes)).repeat_interleave(sizes).to(self.reads.device)

    def attend(
        self,
        attn: Attention,
        layer: int,
        q: Float[Tensor, "cell prompt query head d_head"],
        k: Float[Tensor, "cell prompt key kv_head d_head"],
        v: Float[Tensor, "cell prompt key kv_head d_head"],
        visibility: Visibility,
        tap: Tap = UNTAPPED,
    ) -> Float[Tensor, "cell prompt query head d_head"]:
        """The mix of values for the cells' queries from their own and earlier keys; queries and keys are rotated."""
        q, k, v = tap("attn.q", q), tap("attn.k", k), tap("attn.v", v)
        past_k, past_v = (self.base[f"attn.{part}"][layer][:, : self.first] for part in "kv")
        return attend(attn, q, k, v, past_k, past_v, visibility)

    def read_source(
        self,
        attn: Attention,
        layer: int,
        q: Float[Tensor, "cell prompt query head d_head"],
        source: Float[Tensor, "cell prompt position d_model"] | None,
    ) -> Float[Tensor, "cell prompt query head d_head"]:
        """The mix of the encoder's values: of the base run's for all cells, or of each cell's own `source`."""
        if source is None:
            k, v = (self.base[f"cross_attn.{part}"][layer] for part in "kv")
            together = rearrange(q, "cell prompt query head d_head -> prompt (cell query) head d_head")
            z = attn.mix(together, k, v, self._across(together.shape[1]))
            return rearrange(z, "prompt (cell query) head d_head -> cell prompt query head d_head", cell=len(q))
        k, v = attn.project_keys_values(source)
        unturned = torch.zeros(1, k.shape[2], dtype=torch.long, device=k.device)
        return attn.mix(q, attn.keys(k, unturned), v, self._across(q.shape[2]))

    def _across(self, n_queries: int) -> Visibility:
        """What so many queries of each prompt see of its source."""
        source, n_prompts = self.base.source, self.shape[0]
        assert source is not None
        somewhere = torch.zeros(n_prompts, n_queries, dtype=torch.long, device=source.final.device)
        queries = Visibility(somewhere, somewhere[:1], n_queries, False, None, False)
        return Source.of(source.final, source.batch).seen_by(queries)


@dataclass(frozen=True, eq=False)
class Place:
    """Which rows some cells change, of cells x prompts x positions of the suffix.

    None: all of them; a slice: those positions of all cells and prompts.
    They lie in the order of the axes `lead`: so many times prompt by prompt, so many of each, at `positions` of texts.
    """

    suffix: Suffix
    n_cells: int
    rows: Int[Tensor, " row"] | slice | None
    lead: Shape
    positions: Int[Tensor, "_ _"]

    @property
    def shape(self) -> Shape:
        """Cells, prompts and positions, changed or not."""
        return (self.n_cells, *self.suffix.shape)

    @cached_property
    def read(self) -> Int[Tensor, "cell prompt read"]:
        """Which of the changed rows are read; -1: one that is not changed. Each reader has its own of the cells."""
        suffix, (n_prompts, n_positions) = self.suffix, self.suffix.shape
        cells = torch.arange(self.n_cells, device=suffix.reads.device)[:, None]  # cell read
        if len(suffix.readers) > 1:
            cells = suffix.cells_of_readers([self.n_cells])[suffix.reader].T
        prompts = torch.arange(n_prompts, device=cells.device)[:, None]
        begin, width = (self.rows.start, self.lead[-1]) if isinstance(self.rows, slice) else (0, n_positions)
        among = suffix.reads - (suffix.first + begin)  # of so many positions
        at = (cells[:, None] * n_prompts + prompts) * width + among
        if self.rows is None:
            return at
        if isinstance(self.rows, slice):
            return at.masked_fill_((among < 0) | (among >= width), -1)
        found = self.rows.new_full((self.n_cells * n_prompts * n_positions,), -1)
        found[self.rows] = torch.arange(len(self.rows), device=cells.device)
        return found[at]

    @cached_property
    def all_read(self) -> bool:
        """Whether all rows that are read are changed."""
        return self.rows is None or bool((self.read >= 0).all())

    @cached_property
    def any_read(self) -> bool:
        """Whether any is."""
        return bool((self.read >= 0).any())


@dataclass(frozen=True, eq=False)
class ChangedRows:
    """Cells that enter together, with the rows of the stream that they change: into block `layer`, or further on in it.

    `place` says which rows these are; the others are there as the base run left them. `source` is what cross-attention
    reads where these cells change it.
    """

    layer: int
    stage: int
    place: Place
    rows: Rows
    source: Float[Tensor, "cell prompt position d_model"] | None = None

    @staticmethod
    def of_span(
        suffix: Suffix, layer: int, stage: int, stream: Float[Tensor, "cell prompt row d_model"], start: int
    ) -> "ChangedRows":
        """Cells that change the same positions, from `start` on, in all prompts."""
        place = suffix.place(len(stream), start, stream.shape[2])
        return ChangedRows(layer, stage, place, stream.flatten(0, 2))

    @property
    def suffix(self) -> Suffix:
        """What they share with others."""
        return self.place.suffix

    @property
    def n_cells(self) -> int:
        """How many cells."""
        return self.place.n_cells

    def enter(self, attn: Attention, layer: int, made: Sequence[Float[Tensor, "row _ d_head"]]) -> list[Tensor]:
        """Queries (where there are any), keys and values of all rows as they meet; `made`: of the changed ones."""
        place = self.place
        turned = attn.enter([part.view(*place.lead, *part.shape[1:]) for part in made], place.positions)
        kept = [self.suffix.base[f"attn.{part}"][layer] for part in "qkv"[-len(made) :]]
        wide = [self.among(plain, part.flatten(0, -3)) for plain, part in zip(kept, turned, strict=True)]
        return [part.view(*place.shape, *part.shape[1:]) for part in wide]

    def among(
        self, plain: Float[Tensor, "prompt whole ..."], rows: Float[Tensor, "row ..."]
    ) -> Float[Tensor, "all ..."]:
        """All rows of the cells: the changed ones, as they are by now, among `plain` ones."""
        place = self.place
        if place.rows is None:
            return rows
        own = plain[:, self.suffix.first :]
        wide = own.expand(self.n_cells, *own.shape).clone()
        if isinstance(place.rows, slice):
            wide[:, :, place.rows] = rows.view(*place.lead, *rows.shape[1:])
            return wide.flatten(0, 2)
        return wide.flatten(0, 2).index_copy_(0, place.rows, rows)

    def at_reads(self, plain: Float[Tensor, "prompt whole d_model"], rows: Rows) -> AtReads:
        """The stream where it is read: changed rows where they are, else `plain` ones."""
        at = self.place.read
        found = rows.index_select(0, at.clamp(min=0).flatten()).view(*at.shape, -1)
        if self.place.all_read:
            return found
        return torch.where((at >= 0)[..., None], found, self.suffix.at_reads(plain))

    def onward(self, final: Float[Tensor, "cell prompt position d_model"]) -> "ChangedRows":
        """An encoder's cells in the decoder: nothing is changed there before the first cross-attention."""
        suffix = self.suffix.onward
        assert suffix is not None
        rows = suffix.base["resid_mid"][0].flatten(0, 1).repeat(len(final), 1)
        return ChangedRows(0, AFTER_SELF, suffix.place(len(final)), rows, final)


def attend(
    attn: Attention,
    q: Float[Tensor, "cell prompt query head d_head"],
    k: Float[Tensor, "cell prompt key kv_head d_head"],
    v: Float[Tensor, "cell prompt key kv_head d_head"],
    past_k: Float[Tensor, "prompt past kv_head d_head"],
    past_v: Float[Tensor, "prompt past kv_head d_head"],
    visibility: Visibility,
    heads: Int[Tensor, " head"] | None = None,
) -> Float[Tensor, "cell prompt query head d_head"]:
    """The mix of values for the cells' queries, from earlier positions and their own; keys are rotated already.

    `heads` are those that ask, by default all; keys and values are then theirs, one for each.
    """
    if heads is None and q.shape[2] * visibility.n_keys > _SMALL_ROWS:
        k, v = (torch.cat([past.expand(len(x), *past.shape), x], 2) for past, x in ((past_k, k), (past_v, v)))
        q, k, v = (part.transpose(-2, -3) for part in (q, k, v))
        return attn.fused(q, k, v, visibility).transpose(-2, -3)
    if (shared := q.shape[3] // k.shape[3]) > 1:
        k, v, past_k, past_v = (part.repeat_interleave(shared, -2) for part in (k, v, past_k, past_v))
    # prompt head cell query d_head: the queries of all cells are rows of one product with the shared keys
    q, k, v = (part.permute(1, 3, 0, 2, 4) for part in (q * attn.config.score_scale, k, v))
    prompts, count, cells, queries, d_head = q.shape
    past, rows = past_k.shape[1], q.reshape(prompts, count, cells * queries, d_head)
    scores = q @ k.transpose(-1, -2)
    if past:
        earlier = (rows @ past_k.permute(0, 2, 3, 1)).view(prompts, count, cells, queries, past)
        scores = torch.cat([earlier, scores], -1)
    bias = None if attn.bias is None else attn.bias(visibility)
    if bias is not None:  # the same for all cells
        bias = (bias if heads is None else bias[:, heads])[:, :, None]
    seen = visibility.near(attn.reach).mask()
    pattern = attn.pattern(attn.entering(scores, bias, None if bool(seen.all()) else seen[:, :, None]))
    z = pattern[..., past:] @ v
    if past:
        earlier = pattern[..., :past].reshape(prompts, count, cells * queries, past)
        z = z + (earlier @ past_v.transpose(1, 2)).view_as(z)
    return z.permute(2, 0, 3, 1, 4)

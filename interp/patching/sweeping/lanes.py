"""Cells that change the same prompts from the same position on share a lane: what they share, and where they board it.

What lies below the change, and in a causal stack before it, is as the plain run left it: earlier keys and values, and
those of the encoder where it is not changed, are that run's and shared by all cells of the lane.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from interp.attention import Attention
from interp.patching.attending import attend
from interp.patching.metrics import Readout
from interp.patching.plain import PlainRun, sight_of
from interp.sight import Sight, Source
from interp.transformer import Transformer

Cells = Float[Tensor, "cell prompt position d_model"]
INTO, AFTER_SELF, AFTER_CROSS = 0, 1, 2  # where in a block cells board: before it, after its attentions


class Lane:
    """The cells that change some prompts from one position on, and what is read of them in the end.

    An encoder's cells go `onward` on a lane of the decoder.
    """

    def __init__(
        self,
        model: Transformer,
        plain: PlainRun,
        first: int,
        readouts: Sequence[Readout],
        onward: "Lane | None" = None,
    ):
        self.plain, self.readouts, self.onward = plain, readouts, onward
        self.first = first
        self.sight = sight_of(model, plain.batch, first, plain.stack)
        self.shape = (len(plain.batch.ids), plain.batch.ids.shape[1] - first)  # prompts, positions

    @staticmethod
    def of(model: Transformer, plain: PlainRun, stack: str, first: int, readouts: Sequence[Readout]) -> "Lane":
        """The lane of cells that change `stack` from `first` on; `plain` is the run that is read in the end."""
        if plain.stack == stack:
            return Lane(model, plain, first if model.config.stacks[stack].causal else 0, readouts)
        return Lane(model, plain.of_stack(stack), 0, (), Lane(model, plain, 0, readouts))

    @property
    def rows(self) -> int:
        """Prompts x positions that a cell changes on its way."""
        return self.shape[0] * self.shape[1] + (0 if self.onward is None else self.onward.rows)

    @cached_property
    def _wanted(self) -> Int[Tensor, "prompt read"]:
        return torch.cat([readout.positions for readout in self.readouts], 1)

    @cached_property
    def reads(self) -> Int[Tensor, "prompt read"]:
        """Where the metrics read, of what can change."""
        return self._wanted.clamp(min=self.first)

    @cached_property
    def plain_reads(self) -> Float[Tensor, "prompt read d_model"]:
        """What they read in the plain run, before the last norm."""
        out = self.plain.resid[-1]
        return out.gather(1, self._wanted[..., None].expand(-1, -1, out.shape[-1]))

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
        past_k, past_v = (self.plain[f"attn.{part}"][layer][:, : self.first] for part in "kv")
        return attend(attn, q, k, v, past_k, past_v, sight)

    def read_source(
        self,
        attn: Attention,
        layer: int,
        q: Float[Tensor, "cell prompt query head d_head"],
        source: Float[Tensor, "cell prompt position d_model"] | None,
    ) -> Float[Tensor, "cell prompt query head d_head"]:
        """The mix of the encoder's values: of the plain run's for all cells, or of each cell's own `source`."""
        if not len(q):  # no cell has boarded yet
            return q
        if source is None:
            k, v = (self.plain[f"cross_attn.{part}"][layer] for part in "kv")
            together = rearrange(q, "cell prompt query head d_head -> prompt (cell query) head d_head")
            z = attn.mix(together, k, v, self._across(together.shape[1]))
            return rearrange(z, "prompt (cell query) head d_head -> cell prompt query head d_head", cell=len(q))
        k, v = attn.project_keys_values(source)
        unturned = torch.zeros(1, k.shape[2], dtype=torch.long, device=k.device)
        return attn.mix(q, attn.keys(k, unturned), v, self._across(q.shape[2]))

    def _across(self, n_queries: int) -> Sight:
        """What so many queries of each prompt see of its source."""
        source, n_prompts = self.plain.source, self.shape[0]
        assert source is not None
        somewhere = torch.zeros(n_prompts, n_queries, dtype=torch.long, device=source.final.device)
        queries = Sight(somewhere, somewhere[:1], n_queries, False, None, False)
        return Source.of(source.final, source.batch).seen_by(queries)

    def measure(self, model: Transformer, arrived: Float[Tensor, "cell prompt read d_model"]) -> list[Tensor]:
        """Metrics, `cell prompt` each, from the stream out of the last block at the read positions."""
        unreached = self._wanted < self.first  # read before the first change: as the plain run left it
        final = model.last.norm(torch.where(unreached[..., None], self.plain_reads, arrived))
        found, at = [], 0
        for readout in self.readouts:
            found.append(readout.of(model, final[..., at : at + readout.positions.shape[1], :]))
            at += readout.positions.shape[1]
        return found


@dataclass(frozen=True, eq=False)
class Boarding:
    """Cells that join their lane where their change enters.

    `rows` are the changed part of the stream, from position `start` on: into block `layer`, or further on in it
    (`stage`). All other rows are there as the plain run left them. `source` is what cross-attention reads where these
    cells change it.
    """

    lane: Lane
    layer: int
    stage: int
    rows: Float[Tensor, "cell prompt row d_model"]
    start: int
    source: Float[Tensor, "cell prompt position d_model"] | None = None

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

    def onward(self, final: Float[Tensor, "cell prompt position d_model"]) -> "Boarding":
        """An encoder's cells in the decoder: nothing is changed there before the first cross-attention."""
        lane = self.lane.onward
        assert lane is not None
        plain = lane.plain["resid_mid"][0]
        return Boarding(lane, 0, AFTER_SELF, plain.expand(len(final), *plain.shape), 0, final)

"""What do receivers get where one sender is as in the other prompt? From where cells are sent to the last receiver."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from interp.patching.changed_rows import AFTER_CROSS, AFTER_SELF, INTO, ChangedRows, Rows, Suffix
from interp.patching.chunks import Chunk
from interp.patching.engine import Pass
from interp.patching.plain_paths import Moment
from interp.patching.receivers import Asked, Positions, Received, read_layer
from interp.patching.site_patches import SitePatches, Stream
from interp.tap import Edit, Tap


@dataclass(frozen=True)
class Senders:
    """Patches of a sending site, and what receivers ask for: they lie in order of their moments, at `rows` in all."""

    patches: SitePatches
    asked: dict[Moment, list[Asked]]
    rows: Positions
    again: bool  # whether feed-forwards are recomputed where attention is kept

    def keeping_attention(self, chunks: Sequence[Chunk]) -> dict[Moment, list[Received]]:
        """What they get of cells whose attention writes what it does in the base run: row by row, where they ask."""
        sent = [self.patches.left(chunk.layer, chunk.where, chunk.heads, self.rows) for chunk in chunks]
        last, received = max(self.asked), {}
        x = sent[0][2][:0]
        for layer, stage in product(range(sent[0][0], last[0] + 1), (INTO, AFTER_SELF, AFTER_CROSS)):
            x = self._kept(x, layer, stage) if len(x) else x
            if writing := [stream for *at, stream in sent if at == [layer, stage]]:
                x = torch.cat([x, *writing])
            if parts := self.asked.get((layer, stage), ()) if len(x) else ():
                received[layer, stage] = [each.received(self.patches, x, self.rows) for each in parts]
            if (layer, stage) == last:
                break
        return received

    def _kept(self, x: Stream, layer: int, stage: int) -> Stream:
        """The stream there from that before it: what is not recomputed writes what it does in the base run."""
        base, block = self.patches.base, self.patches.blocks[layer - (stage == INTO)]
        if stage == AFTER_SELF:
            out = base["attn_out"][layer][:, self.rows]
            # a parallel block's attention would compute the feed-forward beside it
            return x + out if block.config.parallel and not self.again else block.attention.add(x, out)
        if stage == AFTER_CROSS:
            return x if block.cross_attn is None else block.cross.add(x, base["cross_attn_out"][layer][:, self.rows])
        if self.again or block.mlp is None:
            return block.feed_forward(x)
        return block.feed_forward.add(x, base["mlp_out"][layer - 1][:, self.rows])

    def recomputing(self, chunks: Sequence[Chunk]) -> dict[Moment, list[Received]]:
        """What they get of cells of which everything is recomputed."""
        model, base, received = self.patches.model, self.patches.base, {}
        last, at_reads = max(self.asked), (read_layer(model, base.stack), AFTER_CROSS)
        late = [each.rows for moment, parts in self.asked.items() if moment >= at_reads for each in parts]
        late = torch.cat(late).unique() if late else base.batch.ids.new_empty(0)
        suffix = Suffix(model, base, chunks[0].suffix.first, [late.expand(len(base.batch.ids), -1)])
        every = suffix.sight.columns[0]
        # feed-forwards of parallel blocks read what attention does, the others in the middle of a block
        edits = {
            parts[0].site: self._recording(parts[0], moment, late if moment >= at_reads else every, received)
            for moment, parts in self.asked.items()
            if moment[1] == AFTER_CROSS
        }
        walk = Pass(model.stack(base.stack), [self._entering(suffix, chunk) for chunk in chunks], Tap(edit=edits))
        for layer, stage in self.asked:
            if stage == INTO and (layer, stage) < at_reads and (streams := walk.into(layer)):
                x = torch.cat(streams)
                received[layer, stage] = [each.received(self.patches, x, every) for each in self.asked[layer, stage]]
        if last < at_reads:
            walk.into(last[0] + (last[1] == AFTER_CROSS))
            return received
        final = walk.read()[suffix]
        if last[1] == INTO:  # the logits'
            received[last] = [each.received(self.patches, final, late) for each in self.asked[last]]
        return received

    def _entering(self, suffix: Suffix, chunk: Chunk) -> ChangedRows:
        """Senders as they enter a pass, with the rows too that they leave as they were: these are recorded as well."""
        one = self.patches.enter(suffix, chunk.layer, chunk.where, chunk.heads)
        base, site = self.patches.base, {AFTER_SELF: "resid_mid", AFTER_CROSS: "resid_cross"}.get(one.stage)
        rows = one.among((base.resid if site is None else base[site])[one.layer], one.rows)
        return ChangedRows(one.layer, one.stage, suffix.place(one.n_cells), rows, one.shape)

    def _recording(
        self, asked: Asked, moment: Moment, carried: Positions, received: dict[Moment, list[Received]]
    ) -> Edit:
        """An edit that leaves what feed-forwards write at `carried` as it is, and records it."""

        def edit(out: Rows) -> Tensor:
            rows = out.view(-1, len(self.patches.base.batch.ids), len(carried), out.shape[-1])
            received[moment] = [asked.received(self.patches, rows, carried, made=True)]
            return out

        return edit

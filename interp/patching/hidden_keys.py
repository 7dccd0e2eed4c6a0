"""How keys that are hidden, exchanged or removed at some rows change the stream, and what is read at the end then.

A cell is a claim and a head. In the head's own layer only the claimed rows change, each by itself: with these its cells
enter a pass, all claims on a text and all layers together; or, of some cells alone, those of one layer.
"""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from interp.attention import Attention
from interp.patching.changed_rows import ChangedRows, Place, Suffix, after
from interp.patching.claimed_texts import Claim, ClaimedTexts, Read, moved
from interp.patching.engine import resume
from interp.patching.patch_sites import last_stack
from interp.patching.plain import PlainRun, after_attention, visibility_of
from interp.tap import Tap
from interp.transformer import Block, Sublayer, Transformer

_LOGITS = 1 << 22  # numbers that the output layer says at a time: 16 MB


class ChangedKeys:
    """Claims on one text, and how they change the mix of values of every head at their rows, each head by itself."""

    def __init__(self, texts: ClaimedTexts, base: PlainRun, claims: Sequence[Claim], last: int | None = None):
        """`base` is the run of all texts; of a causal stack that is read only `last` positions matter, None: all."""
        model, patch_site, prompt = texts.model, texts.patch_site, claims[0].prompt
        assert isinstance(model, Transformer)
        lengths = {name: int(texts.read_by(name).lengths[prompt]) for name in model.config.stacks}
        if last is not None and model.config.last.causal:
            lengths[last_stack(model)] = last
        whole = base.take(torch.tensor([prompt], device=base.batch.ids.device), lengths)
        self.patch_site, self.whole, self.base = patch_site, whole, whole.of_stack(patch_site.stack)
        self.model, self.blocks = model, model.stack(patch_site.stack).blocks
        device, sizes = model.device, torch.tensor([len(claim.queries) for claim in claims])
        self.rows = torch.cat([claim.queries for claim in claims]).to(device)
        self.claim = torch.arange(len(claims)).repeat_interleave(sizes).to(device)  # of each row
        self.visibility = visibility_of(model, self.base, patch_site.attention, self.rows)
        length = self.visibility.n_keys
        claimed = torch.cat([claim.keys[:, :length] for claim in claims]).to(device)
        hides = torch.tensor([claim.how == "hide" for claim in claims])
        hidden = hides.repeat_interleave(sizes).to(device)[:, None]
        self.keys, self.taken = claimed & hidden, claimed & ~hidden
        others = [torch.full(claim.keys.shape, -1) if claim.others is None else claim.others for claim in claims]
        self.others = torch.cat([each[:, :length] for each in others]).to(device)

    def dz(self, layer: int) -> Float[Tensor, "head row d_head"]:
        """How much each head's mix changes at the claimed rows of a layer, with its own claimed keys changed."""
        _, sublayer, attn = self.attention(layer)
        kept = {part: self.base[f"{sublayer.name}.{part}"][layer] for part in "qkvz"}
        edits = {
            "scores": lambda scores: scores.masked_fill(self.keys, -torch.inf),
            "pattern": lambda pattern: moved(pattern, self.taken, self.others),
        }
        z = attn.mix(kept["q"][:, self.rows], kept["k"], kept["v"], self.visibility, Tap(edit=edits))
        return (z - kept["z"][:, self.rows])[0].transpose(0, 1)

    def attention(self, layer: int) -> tuple[Block, Sublayer, Attention]:
        """The block of a layer, and in it the attention whose keys change."""
        block = self.blocks[layer]
        sublayer = block.attention if self.patch_site.attention == "self" else block.cross
        assert isinstance(sublayer.layer, Attention)
        return block, sublayer, sublayer.layer


class HiddenKeys:
    """Claims on one text, whose cells go through the model together: those of all heads, or some of one layer."""

    def __init__(self, changed: ChangedKeys, reads: Sequence[Read], cells: Sequence[tuple[int, int]] | None = None):
        """What each claim reads; `cells` are the claims and heads that are measured, None all of them."""
        self.model, self.changed, device = changed.model, changed, changed.model.device
        model = self.model
        stack, rows, claim = changed.patch_site.stack, changed.rows, changed.claim
        n_heads = model.config.stacks[stack].n_heads
        first, looking = int(rows.min()), [read.positions[None].to(device) for read in reads]
        self.value_of = [read.value for read in (reads if cells is None else [reads[at] for at, _ in cells])]
        if cells is None:
            self.picked = None
            cell = claim * n_heads + torch.arange(n_heads, device=device)[:, None]  # head row
            lead, n_cells = (n_heads, len(rows)), len(reads) * n_heads
        else:
            each = [(claim == at).nonzero()[:, 0] for at in range(len(reads))]
            self.picked = torch.cat([head * len(rows) + each[at] for at, head in cells])  # of head x row
            cell = (
                torch.arange(len(cells)).repeat_interleave(torch.tensor([len(each[at]) for at, _ in cells])).to(device)
            )
            rows, looking = rows[self.picked % len(rows)], [looking[at] for at, _ in cells]
            lead, n_cells = (1, len(rows)), len(cells)
        self.rows = rows
        self.suffix = Suffix.of(model, changed.whole, stack, first, looking)
        place = (cell * self.suffix.shape[1] + rows - self.suffix.first).flatten()
        self.place = Place(self.suffix, n_cells, place, lead, changed.base.batch.positions[:, rows])
        self.read = self.suffix.onward or self.suffix
        self.n_read = self.read.wanted.shape[1]

    def values(self, layers: range, output: nn.Linear) -> Iterator[Float[Tensor, "layer cell"]]:
        """What is read with keys hidden from each head of some layers: claim by claim, or cell by cell."""
        arrived = resume(self.model, [self.enter(layer) for layer in layers])[self.read][:, 0]  # cell read d_model
        norm, readers = self.model.last.norm, self.read.readers
        parts = [[] for _ in self.value_of]
        for cells in arrived.split(max(1, _LOGITS // (self.n_read * output.out_features))):
            logits = output(norm(cells))
            for part, value, reader in zip(parts, self.value_of, readers, strict=True):
                part.append(value(logits[:, reader]))
        yield from (torch.cat(part).view(len(layers), -1) for part in parts)

    def enter(self, layer: int) -> ChangedRows:
        """The claimed rows after the attention of a layer, each head in turn with its claimed keys changed."""
        kind, (block, _, attn) = self.changed.patch_site.attention, self.changed.attention(layer)
        written = self.changed.dz(layer) @ attn.W_O  # head row d_model
        if self.picked is not None:
            written = written.flatten(0, 1)[self.picked]
        stream = after_attention(block, self.changed.base, layer, (0, self.rows), written, kind)
        stream = stream.view(-1, stream.shape[-1])
        return ChangedRows(*after(block.config, layer, kind), self.place, stream, (1, 1, len(stream)))

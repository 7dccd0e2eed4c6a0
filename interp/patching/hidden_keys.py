"""How keys that are hidden, exchanged or removed at some rows change the stream, and what is read at the end then.

A cell is a claim and a head. In the head's own layer only the claimed rows change, each by itself: with these its cells
enter a pass, all claims on a text and all layers together; or, of some cells alone, those of one layer.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from interp.attention import Attention
from interp.patching.changed_rows import ChangedRows, Place, Suffix, after
from interp.patching.engine import resume
from interp.patching.patch_sites import PatchSite
from interp.patching.plain import PlainRun, after_attention, sight_of
from interp.sight import Source
from interp.transformer import Transformer

_LOGITS = 1 << 22  # numbers that the output layer says at a time: 16 MB
Value = Callable[[Float[Tensor, "*cells read output"]], Float[Tensor, "*cells"]]


class ChangedKeys:
    """Claims on one text, and how they change the mix of values of every head at their rows, each head by itself."""

    def __init__(
        self,
        model: Transformer,
        base: PlainRun,
        patch_site: PatchSite,
        queries: Sequence[Int[Tensor, " _"]],
        keys: Sequence[Bool[Tensor, "_ _"]],
        others: Sequence[Int[Tensor, "_ _"] | None],
        hides: Sequence[bool],
    ):
        """Each claim's rows and its keys in the attention of `patch_site`.

        The keys of a claim that `hides` are masked. Those of another keep their weight, and for each the value of the
        key that `others` names is mixed in, or none where that is None. `base` is the text's own run, that of the stack
        which is read.
        """
        self.patch_site, self.whole, self.base = patch_site, base, base.of_stack(patch_site.stack)
        self.blocks = model.stack(patch_site.stack).blocks
        device, sizes = model.device, torch.tensor([len(rows) for rows in queries])
        self.rows = torch.cat([*queries]).to(device)
        self.claim = torch.arange(len(queries)).repeat_interleave(sizes).to(device)  # of each row
        causal = patch_site.causal and patch_site.attention == "self"
        self.sight = sight_of(model, self.base.batch, stack=patch_site.stack).at(self.rows[None])
        if patch_site.attention == "cross":
            assert self.base.source is not None
            self.sight = Source.of(self.base.source.final, self.base.source.batch).seen_by(self.sight)
        length = self.sight.n_keys
        claimed = torch.cat([own[:, :length] for own in keys]).to(device)
        hidden = torch.tensor([*hides]).repeat_interleave(sizes).to(device)[:, None]
        self.keys, self.taken = claimed & hidden, claimed & ~hidden
        if causal:
            self.keys = self.keys | (torch.arange(length, device=device) > self.rows[:, None])
        none = torch.full((1, length), -1)
        self.others = torch.cat(
            [none.expand(len(own), -1) if by is None else by[:, :length] for own, by in zip(keys, others, strict=True)]
        ).to(device)

    def dz(self, layer: int) -> Float[Tensor, "head row d_head"]:
        """How much each head's mix changes at the claimed rows of a layer, with its own claimed keys changed."""
        block = self.blocks[layer]
        sublayer = block.attention if self.patch_site.attention == "self" else block.cross
        attn, kept = sublayer.layer, {part: self.base[f"{sublayer.name}.{part}"][layer] for part in "qkvz"}
        assert isinstance(attn, Attention)
        q, z = (kept[part][:, self.rows].transpose(1, 2) for part in "qz")  # 1 head row d_head
        k, v = (attn.shared(kept[part].transpose(1, 2)) for part in "kv")
        scores = attn.scores(q, k, self.sight)
        return (self._mixed(scores.masked_fill(self.keys, -torch.inf).softmax(-1)) @ v - z)[0]

    def _mixed(self, pattern: Float[Tensor, "1 head row key"]) -> Float[Tensor, "1 head row key"]:
        """The weights of values, where claimed keys are taken out or stand aside for others."""
        if not bool(self.taken.any()):
            return pattern
        taken = pattern * self.taken
        moved = (taken * (self.others >= 0)).to(pattern)
        index = self.others.clamp(min=0).expand_as(moved)
        return (pattern - taken).scatter_add(-1, index, moved)


class HiddenKeys:
    """Claims on one text, whose cells go through the model together: those of all heads, or some of one layer."""

    def __init__(
        self,
        model: Transformer,
        changed: ChangedKeys,
        reads: Sequence[Int[Tensor, " _"]],
        cells: Sequence[tuple[int, int]] | None = None,
    ):
        """Where each claim's read-out looks; `cells` are the claims and heads that are measured, None all of them."""
        self.model, self.changed, device = model, changed, model.device
        stack, rows, claim = changed.patch_site.stack, changed.rows, changed.claim
        n_heads = model.config.stacks[stack].n_heads
        first, looking = int(rows.min()), [read[None].to(device) for read in reads]
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
        self.final = changed.whole.resid[-1][0, self.read.wanted[0]]  # what is read where nothing is hidden

    def drops(self, layers: range, output: nn.Linear, values: Sequence[Value]) -> Iterator[Float[Tensor, "layer cell"]]:
        """How much lower values are with keys hidden from each head of some layers; `values` as claims, or as cells."""
        arrived = resume(self.model, [self.enter(layer) for layer in layers])[self.read][:, 0]  # cell read d_model
        norm, readers = self.model.last.norm, self.read.readers
        step = max(1, _LOGITS // (len(self.final) * output.out_features))
        found = [[] for _ in values]
        for some in arrived.split(step):
            logits = output(norm(some))
            for own, value, reader in zip(found, values, readers, strict=True):
                own.append(value(logits[:, reader]))
        plain = output(norm(self.final))
        for own, value, reader in zip(found, values, readers, strict=True):
            yield (value(plain[reader]) - torch.cat(own)).view(len(layers), -1)

    def enter(self, layer: int) -> ChangedRows:
        """The claimed rows after the attention of a layer, each head in turn with its claimed keys changed."""
        patch_site, block = self.changed.patch_site, self.changed.blocks[layer]
        sublayer = block.attention if patch_site.attention == "self" else block.cross
        attn = sublayer.layer
        assert isinstance(attn, Attention)
        written = self.changed.dz(layer) @ attn.W_O  # head row d_model
        if self.picked is not None:
            written = written.flatten(0, 1)[self.picked]
        stream = after_attention(block, self.changed.base, layer, (0, self.rows), written, patch_site.attention)
        stream = stream.view(-1, stream.shape[-1])
        return ChangedRows(*after(block.config, layer, patch_site.attention), self.place, stream, (1, 1, len(stream)))

"""Does what a head attends to matter to what is read of the model? Claimed keys are hidden from single heads.

At the rows of a claim (a pronoun and its antecedent, a verb and its subject) a head's claimed keys are masked and the
row's softmax taken over the rest, which is to take their mass off and renormalise. That moves mass to other keys, and
where the claimed ones had most of it, many times what these had. So a claim may also leave the pattern as it is, and
exchange the claimed keys' values for those of others, or take what they contribute out of the head's sum. What is
measured is the drop in what is read at the end, all rows of a claim changed at once: in the log-probability of the
text's own next tokens, or in anything else that an output layer, the model's or a probe, says of some positions.
"""

from collections.abc import Iterable, Iterator, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from interp.attention import Attention
from interp.errors import InputError
from interp.indices import is_number
from interp.model import Model
from interp.patching.changed_rows import ChangedRows, Place, Suffix, after
from interp.patching.claimed_texts import Claim, ClaimedTexts, Heads, Read, checked, edits_of, moved
from interp.patching.engine import resume
from interp.patching.memory import fitting, rows_at_once
from interp.patching.pairs import text_read
from interp.patching.patch_sites import Attending, StackName, last_stack
from interp.patching.plain import PlainRun, after_attention, visibility_of
from interp.patching.resumption import resumed
from interp.running import Tokens, run
from interp.tap import Tap
from interp.transformer import Block, Sublayer, Transformer

_LOGITS = 1 << 22  # numbers that the output layer says at a time: 16 MB
# Claims on a text that share a pass, the layers whose heads their keys are hidden from, and which heads: None are all,
# else those of one layer, each with the claim (of the first list) that it is measured for.
_Party = tuple[list[int], range, list[tuple[int, int]] | None]


@torch.no_grad()
def knock_out(
    model: Model,
    tokens: Tokens,
    claims: Sequence[Claim],
    output: nn.Linear | None = None,
    *,
    target: Tokens | None = None,
    stack: StackName | None = None,
    attention: Attending = "self",
    cells: Bool[Tensor, "claim layer head"] | None = None,
) -> Float[Tensor, "claim layer head"]:
    """Drop in what each claim reads, with its keys hidden from one head of one layer at a time, in the read's unit.

    (Or exchanged, or removed: `Claim.how`.) Above 0: the head needs the claimed keys. All rows of a claim change at
    once; `keys` count columns of the batch. The claims of a text go through the model together, and of each only the
    rows that can have changed and are needed.

    Args:
        model: a transformer, causal or not, or an encoder and a decoder.
        tokens: the texts, padded on the right.
        claims: on any of them, as many as one likes.
        output: what the claims' reads read from the final stream (a probe); by default the model's output layer.
        target: what the decoder reads where there is an encoder, which reads `tokens`.
        stack: whose heads; by default those of the stack that is read. The claims' rows are positions of its text.
        attention: `self`, or `cross`: then the claims' keys are positions of the source.
        cells: which heads each claim is asked of; the others are NaN. By default all.

    Raises:
        InputError: neither `output` nor an output layer; a claim without `read` where there is no next token; a claim
            outside its text, or that leaves a row nothing else to attend to; no such stack or attention; `cells` of
            another shape.
    """
    if not isinstance(model, Transformer):
        where = {"target": target, "stack": stack, "attention": attention, "cells": cells}
        return knock_out_by_forward(model, tokens, claims, output, **where)
    texts = checked(model, tokens, claims, output, target, stack, attention)
    output = output or model.output
    assert output is not None
    base = PlainRun.of(model, *texts.inputs)
    drops = base.final.new_full(_shape(texts, claims, cells), 0.0 if cells is None else torch.nan)
    every_read = [*map(texts.read_of, claims)]
    plain, stretches = _plain_values(claims, every_read, base, output), [_stretch(texts, claim) for claim in claims]
    for some, layers, heads in _parties(texts, claims, stretches, cells):
        reads = [every_read[at] for at in some]
        last = max(1 + int(read.positions.max()) for read in reads)
        if texts.patch_site.stack == last_stack(model):
            last = max(stretches[at].stop for at in some)
        changed = ChangedKeys(texts, base, [claims[at] for at in some], last)
        measured = [(at, slice(None)) for at in some] if heads is None else [(some[at], head) for at, head in heads]
        for (at, head), value in zip(measured, _hidden_values(changed, reads, layers, heads, output), strict=True):
            drops[at, layers.start : layers.stop, head] = plain[at] - value
    return drops


@torch.no_grad()
def knock_out_together(
    model: Model, tokens: Tokens, claims: Sequence[Claim], heads: Sequence[Heads], output: nn.Linear | None = None
) -> Float[Tensor, " claim"]:
    """Drop in what each claim reads, with its keys hidden from several heads at once, in the read's unit.

    (Or exchanged, or removed: `Claim.how`.) Heads that do the same stand in for each other, so the drop without any of
    them may be larger than all drops without one added up.

    Args:
        model: a model of one stack.
        tokens: the texts, padded on the right.
        claims: on any of them.
        heads: for each claim, the (layer, head) pairs whose keys are hidden, exchanged or removed.
        output: as for `knock_out`.

    Raises:
        InputError: as for `knock_out`; a head that the model does not have.
    """
    texts, config = checked(model, tokens, claims, output), model.config.last
    if len(heads) != len(claims) or not all(heads):
        raise InputError(f"expected heads for each of {len(claims)} claims, and at least one")
    for layer, head in (each for named in heads for each in named):
        if not (is_number(layer) and is_number(head) and 0 <= layer < config.n_layers and 0 <= head < config.n_heads):
            expected = f"expected layers 0-{config.n_layers - 1}, heads 0-{config.n_heads - 1}"
            raise InputError(f"no head {layer}.{head}: {expected}")
    if not isinstance(model, Transformer):
        return _by_forward(texts, output, zip(claims, heads, strict=True))
    output = output or model.output
    assert output is not None
    base, stack, reads = PlainRun.of(model, *texts.inputs), texts.patch_site.stack, [*map(texts.read_of, claims)]
    whole = [*enumerate(texts.rows.lengths[[claim.prompt for claim in claims]].tolist())]
    widths = [1 + int(reads[at].positions.max()) if texts.patch_site.causal else length for at, length in whole]
    first = [min(layer for layer, _ in named) for named in heads]
    drops, plain = base.final.new_empty(len(claims)), _plain_values(claims, reads, base, output)
    order = sorted(range(len(claims)), key=lambda at: (first[at], widths[at]))
    for some in fitting(order, widths.__getitem__, rows_at_once(model, 3), first.__getitem__):
        prompts = torch.tensor([claims[at].prompt for at in some], device=model.device)
        own = base.take(prompts, {stack: max(widths[at] for at in some)})
        edits = edits_of(texts.patch_site, [(row, claims[at], heads[at]) for row, at in enumerate(some)])
        after = resumed(model, own, texts.patch_site, edits, first[some[0]])
        for row, at in enumerate(some):
            drops[at] = plain[at] - reads[at].value(output(after[row, reads[at].positions]))
    return drops


@torch.no_grad()
def knock_out_by_forward(
    model: Model,
    tokens: Tokens,
    claims: Sequence[Claim],
    output: nn.Linear | None = None,
    *,
    target: Tokens | None = None,
    stack: StackName | None = None,
    attention: Attending = "self",
    cells: Bool[Tensor, "claim layer head"] | None = None,
) -> Float[Tensor, "claim layer head"]:
    """The plain way: one whole forward pass for each claim and head. As `knock_out` otherwise."""
    texts = checked(model, tokens, claims, output, target, stack, attention)
    shape = _shape(texts, claims, cells)
    cells = torch.ones(shape, dtype=torch.bool) if cells is None else cells
    drops = _by_forward(texts, output, ((claims[at], [(layer, head)]) for at, layer, head in cells.nonzero().tolist()))
    table = drops.new_full(shape, torch.nan)
    table[cells.to(table.device)] = drops
    return table


def _by_forward(texts: ClaimedTexts, output: nn.Linear | None, asked: Iterable[tuple[Claim, Heads]]) -> Tensor:
    """The drop of each claim with its keys changed in some heads."""
    model, (inputs, target) = texts.model, texts.inputs
    final = "logits" if output is None else f"{last_stack(model)}.resid_final"
    before = run(model, inputs, capture=final, target=target)[final]
    drops = [before.new_empty(0)]
    for claim, heads in asked:
        edit, read = edits_of(texts.patch_site, [(claim.prompt, claim, heads)]), texts.read_of(claim)
        after = run(model, inputs, capture=final, edit=edit, target=target)[final]
        finals = (each[claim.prompt, read.positions] for each in (before, after))
        plain, hidden = (read.value(each if output is None else output(each)) for each in finals)
        drops.append((plain - hidden)[None])
    return torch.cat(drops)


def _shape(
    texts: ClaimedTexts, claims: Sequence[Claim], cells: Bool[Tensor, "claim layer head"] | None
) -> tuple[int, int, int]:
    config = texts.model.config.stacks[texts.patch_site.stack]
    shape = len(claims), config.n_layers, config.n_heads
    if cells is not None and cells.shape != shape:
        raise InputError(f"cells are claim x layer x head: expected {shape}, got {tuple(cells.shape)}")
    return shape


def _plain_values(
    claims: Sequence[Claim], reads: Sequence[Read], base: PlainRun, output: nn.Linear
) -> list[Float[Tensor, ""]]:
    """What each claim reads where nothing changes; claims that share a `Read` share the output layer's work."""
    values: dict[tuple[int, int], Tensor] = {}
    names = [(claim.prompt, id(read)) for claim, read in zip(claims, reads, strict=True)]
    for name, read in zip(names, reads, strict=True):
        if name not in values:
            values[name] = read.value(output(base.final[name[0], read.positions]))
    return [values[name] for name in names]


def _stretch(texts: ClaimedTexts, claim: Claim) -> range:
    """The positions of its text that a claim can change and that matter to what it reads.

    In a causal stack nothing before the first row changes, and nothing after the last one that is claimed or read is
    seen by any that is.
    """
    if not texts.patch_site.causal:
        return range(int(texts.rows.lengths[claim.prompt]))
    read = claim.queries if claim.read is None else claim.read.positions
    return range(int(claim.queries.min()), 1 + max(int(claim.queries.max()), int(read.max())))


def _parties(
    texts: ClaimedTexts,
    claims: Sequence[Claim],
    stretches: Sequence[range],
    cells: Bool[Tensor, "claim layer head"] | None,
) -> Iterator[_Party]:
    """All heads of all claims, as many layers at once as fit; or some heads of each, a layer at a time.

    Claims of about the same stretch go together: a pass carries every row that any of its claims can change.
    """
    config, most = texts.model.config.stacks[texts.patch_site.stack], rows_at_once(texts.model, 3)
    onward = 0 if texts.patch_site.stack == last_stack(texts.model) else texts.read.ids.shape[1]
    prompts, lengths = [claim.prompt for claim in claims], [*map(len, stretches)]
    order = sorted(range(len(claims)), key=lambda at: (prompts[at], stretches[at].start, stretches[at].stop))
    if cells is None:  # the last layers' cells are not carried at all their rows
        carried = [max(0, config.n_layers - 2) * length + config.n_layers * onward for length in lengths]
        rows = [config.n_heads * (2 * len(claim.queries) + n) for claim, n in zip(claims, carried, strict=True)]
        for party in fitting(order, rows.__getitem__, most, prompts.__getitem__):
            together = max(1, int(config.n_layers / max(1.0, sum(rows[at] for at in party) / most)))
            for start in range(0, config.n_layers, together):
                yield party, range(start, min(config.n_layers, start + together)), None
        return
    for layer in range(config.n_layers):
        heads = [claim.nonzero()[:, 0].tolist() for claim in cells[:, layer]]
        rows = [len(heads[at]) * (len(claims[at].queries) + lengths[at] + onward) for at in range(len(claims))]
        for party in fitting([at for at in order if heads[at]], rows.__getitem__, most, prompts.__getitem__):
            measured = [(number, head) for number, at in enumerate(party) for head in heads[at]]
            yield party, range(layer, layer + 1), measured


class ChangedKeys:
    """Claims on one text, and how they change the mix of values of every head at their rows, each head by itself."""

    def __init__(self, texts: ClaimedTexts, base: PlainRun, claims: Sequence[Claim], last: int | None = None):
        """`base` is the run of all texts; of a causal stack that is read only `last` positions matter, None: all."""
        model, patch_site, prompt = texts.model, texts.patch_site, claims[0].prompt
        assert isinstance(model, Transformer)
        lengths = {name: int(text_read(texts.inputs, name).lengths[prompt]) for name in model.config.stacks}
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


def _hidden_values(
    changed: ChangedKeys,
    reads: Sequence[Read],
    layers: range,
    cells: Sequence[tuple[int, int]] | None,
    output: nn.Linear,
) -> Iterator[Float[Tensor, "layer cell"]]:
    """What is read with keys hidden from each head of some layers, claim by claim; or from `cells`, one by one.

    `reads` are those of the claims, `cells` claims and heads. All go through the model together.
    """
    model, base, rows, claim, device = changed.model, changed.base, changed.rows, changed.claim, changed.model.device
    kind, looking = changed.patch_site.attention, [read.positions[None].to(device) for read in reads]
    n_heads, first, picked = model.config.stacks[base.stack].n_heads, int(rows.min()), None
    if cells is None:
        cell = claim * n_heads + torch.arange(n_heads, device=device)[:, None]  # head row
        lead, n_cells = (n_heads, 1, len(rows)), len(reads) * n_heads
    else:
        own = [(claim == at).nonzero()[:, 0] for at in range(len(reads))]
        picked = torch.cat([head * len(rows) + own[at] for at, head in cells])  # of head x row
        cell = torch.arange(len(cells)).repeat_interleave(torch.tensor([len(own[at]) for at, _ in cells])).to(device)
        rows, looking, reads = (
            rows[picked % len(rows)],
            [looking[at] for at, _ in cells],
            [reads[at] for at, _ in cells],
        )
        lead, n_cells = (1, 1, len(rows)), len(cells)
    suffix = Suffix.of(model, changed.whole, base.stack, first, looking)
    at = (cell * suffix.shape[1] + rows - suffix.first).flatten()
    place, entering = Place(suffix, n_cells, at, lead, base.batch.positions[:, rows]), []
    for layer in layers:
        block, _, attn = changed.attention(layer)
        written = changed.dz(layer) @ attn.W_O  # head row d_model
        written = written if picked is None else written.flatten(0, 1)[picked]
        stream = after_attention(block, base, layer, (0, rows), written, kind)
        entering.append(ChangedRows(*after(block.config, layer, kind), place, stream.view(-1, stream.shape[-1])))
    last = suffix.onward or suffix
    arrived = resume(model, entering)[last][:, 0]  # cell read d_model
    parts: list[list[Tensor]] = [[] for _ in reads]
    for some in arrived.split(max(1, _LOGITS // (last.wanted.shape[1] * output.out_features))):
        logits = output(model.last.norm(some))
        for part, read, reader in zip(parts, reads, last.readers, strict=True):
            part.append(read.value(logits[:, reader]))
    yield from (torch.cat(part).view(len(layers), -1) for part in parts)

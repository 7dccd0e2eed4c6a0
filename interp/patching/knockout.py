"""Does the model need what a head attends to? We hide claimed keys from single heads.

At a claim's rows we mask the claimed keys, and the softmax moves their mass to other keys. A claim may instead keep the
pattern and exchange the claimed keys' values for other keys', or remove them from the head's sum. We measure the drop
in a read-out: the log-probability of the text's next tokens, or the output of the last layer or a probe at some
positions.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from interp.devices import Movable, move
from interp.errors import InputError
from interp.indices import is_number
from interp.model import Model
from interp.patching.changed_rows import ChangedRows, Place, Suffix, moment_after
from interp.patching.claimed_texts import Claim, ClaimedTexts, Heads, Read, edits_of, moved
from interp.patching.engine import resume
from interp.patching.pairs import text_read
from interp.patching.patch_sites import Attending, StackName, last_stack
from interp.patching.patches import resumed
from interp.patching.plain import PlainRun, after_attention, attention_parts, plain_run, visibility_of
from interp.patching.preparation import fitting, rows_at_once
from interp.running import Tokens, run
from interp.tap import Tap
from interp.transformer import Transformer

_STEP = 16  # positions: start positions are rounded down to multiples, so that nearby claims share a pass
_LOGITS = 1 << 22  # logits computed at a time: 16 MB
# claims on a text that share a pass, the layers whose heads their keys are hidden from, and the heads: None for all,
# else (index of the claim in the first list, head) in one layer
_Heads = list[tuple[int, int]] | None
_Party = tuple[list[int], range, _Heads]
_Cells = Bool[Tensor, "claim layer head"]


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
    cells: _Cells | None = None,
) -> Float[Tensor, "claim layer head"]:
    """Drop in each claim's read-out with its keys hidden from one head at a time, in the read-out's unit.

    (Or exchanged, or removed: `Claim.how`.) Above 0, the model needs the head's attention to the keys. All rows of a
    claim change at once; `keys` are columns of the batch.

    Args:
        model: a transformer, causal or not, or an encoder and a decoder.
        tokens: the texts, padded on the right.
        claims: any number, on any of the texts.
        output: maps the final stream to what claims read (a probe); by default the model's output layer.
        target: what the decoder of an encoder-decoder reads; the encoder reads `tokens`.
        stack: whose heads, by default the last stack's. Claims' rows are positions of its text.
        attention: `self`, or `cross`: then the claims' keys are positions of the source.
        cells: for which heads to measure each claim, by default all; the others are NaN.

    A claim outside its text, or one that leaves a row no other key, is an `InputError`.
    """
    if not isinstance(model, Transformer):
        options = {"target": target, "stack": stack, "attention": attention, "cells": cells}
        return knock_out_by_forward(model, tokens, claims, output, **options)
    texts = ClaimedTexts(model, tokens, claims, output, target, stack, attention)
    base = plain_run(model, texts.inputs)
    drops = base.final.new_full(_shape(texts, claims, cells), 0.0 if cells is None else torch.nan)
    reads, spans = [*map(texts.read_of, claims)], [_span(texts, claim) for claim in claims]
    plain = _plain_values(claims, reads, base, texts.output)
    for party, layers, heads in _parties(texts, claims, spans, cells):
        last = max(1 + int(reads[index].positions.max()) for index in party)
        if texts.patch_site.stack == last_stack(model):
            last = max(spans[index].stop for index in party)
        changed = ChangedKeys(texts, base, [claims[index] for index in party], last)
        values = _hidden_values(changed, [reads[index] for index in party], layers, heads, texts.output)
        measured = [(index, slice(None)) for index in party] if heads is None else [(party[at], h) for at, h in heads]
        for (index, head), value in zip(measured, values, strict=True):
            drops[index, layers.start : layers.stop, head] = plain[index] - value
    return drops


@torch.no_grad()
def knock_out_together(
    model: Model, tokens: Tokens, claims: Sequence[Claim], heads: Sequence[Heads], output: nn.Linear | None = None
) -> Float[Tensor, " claim"]:
    """Drop in each claim's read-out with its keys changed in several heads at once, in the read-out's unit.

    `heads` are, for each claim, (layer, head) pairs; the model has one stack. For the other arguments see `knock_out`.
    Redundant heads compensate for each other, so the drop may exceed the sum of the single heads' drops.
    """
    texts, config = ClaimedTexts(model, tokens, claims, output), model.config.last
    if len(heads) != len(claims) or not all(heads):
        raise InputError(f"expected heads for each of {len(claims)} claims, and at least one")
    for layer, head in (pair for pairs in heads for pair in pairs):
        if not (is_number(layer) and is_number(head) and 0 <= layer < config.n_layers and 0 <= head < config.n_heads):
            limits = f"layers 0-{config.n_layers - 1}, heads 0-{config.n_heads - 1}"
            raise InputError(f"no head {layer}.{head}: expected {limits}")
    if not isinstance(model, Transformer):
        return _by_forward(texts, output, zip(claims, heads, strict=True))
    base, site, reads = plain_run(model, texts.inputs), texts.patch_site, [*map(texts.read_of, claims)]
    base = replace(base, activations={f"attn.{part}": base[f"attn.{part}"] for part in "kv"})
    spans, lowest = [_span(texts, claim) for claim in claims], [min(layer for layer, _ in pairs) for pairs in heads]
    firsts = [
        min(span.start, *read.positions.tolist()) // _STEP * _STEP for span, read in zip(spans, reads, strict=True)
    ]
    sizes = [span.stop - first for span, first in zip(spans, firsts, strict=True)]
    drops, plain = base.final.new_empty(len(claims)), _plain_values(claims, reads, base, texts.output)
    order = sorted(range(len(claims)), key=lambda index: (lowest[index], firsts[index], spans[index].stop))
    for party in fitting(order, sizes.__getitem__, rows_at_once(model, 3), lowest.__getitem__):
        first = firsts[party[0]]
        prompts = torch.tensor([claims[index].prompt for index in party], device=model.device)
        part_run = base.take(prompts, {site.stack: max(spans[index].stop for index in party)})
        shifted = [replace(claims[index], queries=claims[index].queries - first) for index in party]
        edits = edits_of(site, [(row, shifted[row], heads[index]) for row, index in enumerate(party)])
        final = resumed(model, part_run, site, edits, lowest[party[0]], first)
        values = read_out(final, range(len(party)), [reads[index] for index in party], texts.output, first)
        drops[party] = torch.stack([plain[index] for index in party]) - torch.stack(values)
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
    cells: _Cells | None = None,
) -> Float[Tensor, "claim layer head"]:
    """`knock_out` with one whole forward pass per claim and head."""
    texts = ClaimedTexts(model, tokens, claims, output, target, stack, attention)
    shape = _shape(texts, claims, cells)
    cells = torch.ones(shape, dtype=torch.bool) if cells is None else cells
    single = ((claims[index], [(layer, head)]) for index, layer, head in cells.nonzero().tolist())
    drops = _by_forward(texts, output, single)
    table = drops.new_full(shape, torch.nan)
    table[cells.to(table.device)] = drops
    return table


def _by_forward(texts: ClaimedTexts, output: nn.Linear | None, changes: Iterable[tuple[Claim, Heads]]) -> Tensor:
    """Each claim's drop with its keys changed in its heads."""
    model, (inputs, target) = texts.model, texts.inputs
    site = "logits" if output is None else f"{last_stack(model)}.resid_final"
    plain = run(model, inputs, capture=site, target=target)[site]
    drops = [plain.new_empty(0)]
    for claim, heads in changes:
        edit, reading = edits_of(texts.patch_site, [(claim.prompt, claim, heads)]), texts.read_of(claim)
        changed = run(model, inputs, capture=site, edit=edit, target=target)[site]
        ends = (each[claim.prompt, reading.positions] for each in (plain, changed))
        values = [reading.value(end if output is None else output(end)) for end in ends]
        drops.append((values[0] - values[1])[None])
    return torch.cat(drops)


def _shape(texts: ClaimedTexts, claims: Sequence[Claim], cells: _Cells | None) -> tuple[int, int, int]:
    config = texts.model.config.stacks[texts.patch_site.stack]
    shape = len(claims), config.n_layers, config.n_heads
    if cells is not None and cells.shape != shape:
        raise InputError(f"cells are claim x layer x head: expected {shape}, got {tuple(cells.shape)}")
    return shape


def _plain_values(claims: Sequence[Claim], reads: Sequence[Read], base: PlainRun, output: nn.Linear) -> list[Tensor]:
    """What each claim reads in the plain run; claims that share a `Read` share the output layer's work."""
    names = [(claim.prompt, id(read)) for claim, read in zip(claims, reads, strict=True)]
    unique = dict(zip(names, reads, strict=True))
    values = read_out(base.final, [prompt for prompt, _ in unique], [*unique.values()], output)
    return [*map(dict(zip(unique, values, strict=True)).__getitem__, names)]


def read_out(
    final: Tensor, prompts: Sequence[int], reads: Sequence[Read], output: nn.Linear, first: int = 0
) -> list[Tensor]:
    """Read-outs of some prompts' final streams, which begin at position `first`; few logits at a time."""
    values, sizes = [], [len(read.positions) for read in reads]
    for lot in fitting(range(len(reads)), sizes.__getitem__, _LOGITS // output.out_features):
        rows = [prompts[index] for index in lot for _ in range(sizes[index])]
        logits = output(final[rows, torch.cat([reads[index].positions for index in lot]) - first])
        parts = zip(lot, logits.split([sizes[index] for index in lot]), strict=True)
        values += [reads[index].value(part) for index, part in parts]
    return values


def _span(texts: ClaimedTexts, claim: Claim) -> range:
    """The positions that a claim can change and that its read-out depends on."""
    if not texts.patch_site.causal:
        return range(int(texts.rows.lengths[claim.prompt]))
    positions = claim.queries if claim.read is None else claim.read.positions
    return range(int(claim.queries.min()), 1 + max(int(claim.queries.max()), int(positions.max())))


def _parties(
    texts: ClaimedTexts, claims: Sequence[Claim], spans: Sequence[range], cells: _Cells | None
) -> Iterator[_Party]:
    """Claims with similar spans: all heads, with as many layers as fit; or the heads in `cells`, layer by layer."""
    config, limit = texts.model.config.stacks[texts.patch_site.stack], rows_at_once(texts.model, 3)
    onward = 0 if texts.patch_site.stack == last_stack(texts.model) else texts.ends.ids.shape[1]
    prompts, lengths = [claim.prompt for claim in claims], [*map(len, spans)]
    order = sorted(range(len(claims)), key=lambda index: (prompts[index], spans[index].start, spans[index].stop))
    if cells is None:  # the last layers' cells do not carry all their rows
        carried = [max(0, config.n_layers - 2) * length + config.n_layers * onward for length in lengths]
        rows = [config.n_heads * (2 * len(claim.queries) + n) for claim, n in zip(claims, carried, strict=True)]
        for party in fitting(order, rows.__getitem__, limit, prompts.__getitem__):
            n_layers = max(1, int(config.n_layers / max(1.0, sum(rows[index] for index in party) / limit)))
            for start in range(0, config.n_layers, n_layers):
                yield party, range(start, min(config.n_layers, start + n_layers)), None
        return
    for layer in range(config.n_layers):
        heads = [claim.nonzero()[:, 0].tolist() for claim in cells[:, layer]]
        sizes = zip(heads, claims, lengths, strict=True)
        rows = [len(each) * (len(claim.queries) + length + onward) for each, claim, length in sizes]
        for party in fitting([index for index in order if heads[index]], rows.__getitem__, limit, prompts.__getitem__):
            measured = [(number, head) for number, index in enumerate(party) for head in heads[index]]
            yield party, range(layer, layer + 1), measured


class ChangedKeys(Movable):
    """Claims on one text, and how they change each head's mix of values at their rows, each head alone.

    `base` is the run of all texts. If the last stack is causal, only the first `last` positions are kept (None: all).
    """

    def __init__(self, texts: ClaimedTexts, base: PlainRun, claims: Sequence[Claim], last: int | None = None):
        model, patch_site, prompt = texts.model, texts.patch_site, claims[0].prompt
        assert isinstance(model, Transformer)
        lengths = {name: int(text_read(texts.inputs, name).lengths[prompt]) for name in model.config.stacks}
        if last is not None and model.config.last.causal:
            lengths[last_stack(model)] = last
        self.whole = base.take(torch.tensor([prompt], device=base.batch.ids.device), lengths)
        self.patch_site, self.base = patch_site, self.whole.in_stack(patch_site.stack)
        self.model, self.blocks = model, model.stack(patch_site.stack).blocks
        device, sizes = model.device, torch.tensor([len(claim.queries) for claim in claims])
        self.rows = torch.cat([claim.queries for claim in claims]).to(device)
        self.claim = torch.arange(len(claims)).repeat_interleave(sizes).to(device)  # each row's claim
        self.visibility = visibility_of(model, self.base, patch_site.attention, self.rows)
        length = self.visibility.n_keys
        claimed = torch.cat([claim.keys[:, :length] for claim in claims]).to(device)
        hides = torch.tensor([claim.how == "hide" for claim in claims]).repeat_interleave(sizes).to(device)[:, None]
        self.masked, self.moved = claimed & hides, claimed & ~hides
        keys = [torch.full(claim.keys.shape, -1) if claim.others is None else claim.others for claim in claims]
        self.substitutes = torch.cat([each[:, :length] for each in keys]).to(device)

    def dz(self, layer: int) -> Float[Tensor, "head row d_head"]:
        """The change of each head's mix (z) at a layer's claimed rows, with its own claimed keys changed."""
        attn, plain = attention_parts(self.blocks[layer], self.base, layer, self.patch_site.attention)
        here = self.to(self.blocks[layer].device)
        edits = {"scores": lambda rows: rows.masked_fill(here.masked, -torch.inf)}
        if bool(here.moved.any()):
            edits["pattern"] = lambda rows: moved(rows, here.moved, here.substitutes)
        z = attn.mix(plain["q"][:, here.rows], plain["k"], plain["v"], here.visibility, Tap(edit=edits))
        return (z - plain["z"][:, here.rows])[0].transpose(0, 1)

    def written(self, layer: int) -> Float[Tensor, "head row d_model"]:
        """`dz` as each head writes it into the stream."""
        attn, _ = attention_parts(self.blocks[layer], self.base, layer, self.patch_site.attention)
        return self.dz(layer) @ attn.W_O


def _hidden_values(
    changed: ChangedKeys, reads: Sequence[Read], layers: range, cells: _Heads, output: nn.Linear
) -> Iterator[Float[Tensor, "layer cell"]]:
    """Read-outs with keys hidden from each head of some layers, claim by claim; or for `cells`, each (claim, head)."""
    model, base, rows, claim, device = changed.model, changed.base, changed.rows, changed.claim, changed.model.device
    attention, n_heads, first = changed.patch_site.attention, model.config.stacks[base.stack].n_heads, int(rows.min())
    if cells is None:
        picked, lead = None, (n_heads, 1, len(rows))
        cell = claim * n_heads + torch.arange(n_heads, device=device)[:, None]  # head row
    else:
        rows_of = [(claim == index).nonzero()[:, 0] for index in range(len(reads))]
        picked = torch.cat([head * len(rows) + rows_of[index] for index, head in cells])  # index into head x row
        sizes = torch.tensor([len(rows_of[index]) for index, _ in cells])
        cell = torch.arange(len(cells)).repeat_interleave(sizes).to(device)
        rows, reads = rows[picked % len(rows)], [reads[index] for index, _ in cells]
        lead = (1, 1, len(rows))
    positions = [read.positions[None].to(device) for read in reads]
    suffix = Suffix.in_stack(model, changed.whole, base.stack, first, positions)
    index = (cell * suffix.shape[1] + rows - suffix.first).flatten()
    n_cells = len(reads) * (n_heads if cells is None else 1)
    place, entering = Place(suffix, n_cells, index, lead, base.batch.positions[:, rows]), []
    for layer in layers:
        block, written = changed.blocks[layer], changed.written(layer)
        written = written if picked is None else written.flatten(0, 1)[move(picked, block.device)]
        stream = after_attention(block, base, layer, (0, move(rows, block.device)), written, attention)
        moment = moment_after(block.config, layer, attention)
        entering.append(ChangedRows(*moment, place, stream.view(-1, stream.shape[-1])))
    end = suffix.onward or suffix
    arrived = resume(model, entering)[end][:, 0]  # cell read d_model
    parts: list[list[Tensor]] = [[] for _ in reads]
    for streams in arrived.split(max(1, _LOGITS // (end.read_positions.shape[1] * output.out_features))):
        logits = output(model.last.norm(streams))
        for part, reading, reader in zip(parts, reads, end.readers, strict=True):
            part.append(reading.value(logits[:, reader]))
    yield from (torch.cat(part).view(len(layers), -1) for part in parts)

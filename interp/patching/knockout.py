"""Does what a head attends to matter to what is read of the model? Claimed keys are hidden from single heads.

At the rows of a claim (a pronoun and its antecedent, a verb and its subject) a head's claimed keys are masked and the
row's softmax taken over the rest, which is to take their mass off and renormalise. That moves mass to other keys, and
where the claimed ones had most of it, many times what these had. So a claim may also leave the pattern as it is, and
exchange the claimed keys' values for those of others, or take what they contribute out of the head's sum. What is
measured is the drop in what is read at the end, all rows of a claim changed at once: in the log-probability of the
text's own next tokens, or in anything else that an output layer, the model's or a probe, says of some positions.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from interp.config import StackConfig
from interp.errors import InputError
from interp.indices import is_number
from interp.model import Model
from interp.patching.claimed_texts import Claim, ClaimedTexts, Heads, Read, checked, edits_of
from interp.patching.hidden_keys import ChangedKeys, HiddenKeys
from interp.patching.memory import fitting, rows_at_once
from interp.patching.patch_sites import Attending, StackName, last_stack
from interp.patching.plain import PlainRun
from interp.patching.resumption import resumed
from interp.running import Tokens, run
from interp.transformer import Transformer

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
    config, base = model.config.stacks[texts.patch_site.stack], PlainRun.of(model, *texts.inputs)
    drops = base.resid[0].new_full(_shape(config, claims, cells), 0.0 if cells is None else torch.nan)
    every_read = [*map(texts.read_of, claims)]
    plain, stretches = _plain_values(claims, every_read, base, output), _stretches(texts, claims)
    for some, layers, heads in _parties(texts, claims, stretches, cells):
        reads = [every_read[at] for at in some]
        last = max(1 + int(read.positions.max()) for read in reads)
        if texts.patch_site.stack == last_stack(model):
            last = max(stretches[at].stop for at in some)
        hidden = HiddenKeys(ChangedKeys(texts, base, [claims[at] for at in some], last), reads, heads)
        measured = [(at, slice(None)) for at in some] if heads is None else [(some[at], head) for at, head in heads]
        for (at, head), value in zip(measured, hidden.values(layers, output), strict=True):
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
    if not isinstance(model, Transformer):
        return knock_out_together_by_forward(model, tokens, claims, heads, output)
    texts = _of_heads(model, tokens, claims, heads, output)
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
    shape = _shape(model.config.stacks[texts.patch_site.stack], claims, cells)
    cells = torch.ones(shape, dtype=torch.bool) if cells is None else cells
    drops = _by_forward(texts, output, ((claims[at], [(layer, head)]) for at, layer, head in cells.nonzero().tolist()))
    table = drops.new_full(shape, torch.nan)
    table[cells.to(table.device)] = drops
    return table


@torch.no_grad()
def knock_out_together_by_forward(
    model: Model, tokens: Tokens, claims: Sequence[Claim], heads: Sequence[Heads], output: nn.Linear | None = None
) -> Float[Tensor, " claim"]:
    """The plain way: one whole forward pass for each claim. As `knock_out_together` otherwise."""
    return _by_forward(_of_heads(model, tokens, claims, heads, output), output, zip(claims, heads, strict=True))


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


def _of_heads(
    model: Model, tokens: Tokens, claims: Sequence[Claim], heads: Sequence[Heads], output: nn.Linear | None
) -> ClaimedTexts:
    """The texts, every claim inside its own, and every head inside the model."""
    texts = checked(model, tokens, claims, output, None, None, "self")
    config = model.config.stacks[texts.patch_site.stack]
    if len(heads) != len(claims) or not all(heads):
        raise InputError(f"expected heads for each of {len(claims)} claims, and at least one")
    for layer, head in (each for named in heads for each in named):
        if not (is_number(layer) and is_number(head) and 0 <= layer < config.n_layers and 0 <= head < config.n_heads):
            raise InputError(
                f"no head {layer}.{head}: expected layers 0-{config.n_layers - 1}, heads 0-{config.n_heads - 1}"
            )
    return texts


def _shape(
    config: StackConfig, claims: Sequence[Claim], cells: Bool[Tensor, "claim layer head"] | None
) -> tuple[int, int, int]:
    """Of what is found: claim x layer x head."""
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


def _stretches(texts: ClaimedTexts, claims: Sequence[Claim]) -> list[range]:
    """The positions of its text that each claim can change and that matter to what it reads.

    In a causal stack nothing before the first row changes, and nothing after the last one that is claimed or read is
    seen by any that is.
    """
    if not texts.patch_site.causal:
        return [range(int(texts.rows.lengths[claim.prompt])) for claim in claims]
    reads = [claim.queries if claim.read is None else claim.read.positions for claim in claims]
    return [
        range(int(claim.queries.min()), 1 + max(int(claim.queries.max()), int(read.max())))
        for claim, read in zip(claims, reads, strict=True)
    ]


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
    order = sorted(range(len(claims)), key=lambda at: (claims[at].prompt, stretches[at].start, stretches[at].stop))

    prompts = [claim.prompt for claim in claims]

    def rows_of_all(at: int) -> int:
        changed = max(0, config.n_layers - 2) * len(stretches[at])  # layers of whose cells all rows are carried
        return config.n_heads * (2 * len(claims[at].queries) + changed + config.n_layers * onward)

    def rows_of(heads: dict[int, list[int]], at: int) -> int:
        return len(heads[at]) * (len(claims[at].queries) + len(stretches[at]) + onward)

    if cells is None:
        for party in fitting(order, rows_of_all, most, prompts.__getitem__):
            together = max(1, int(config.n_layers / max(1.0, sum(map(rows_of_all, party)) / most)))
            for start in range(0, config.n_layers, together):
                yield party, range(start, min(config.n_layers, start + together)), None
        return
    for layer in range(config.n_layers):
        heads = {at: cells[at, layer].nonzero()[:, 0].tolist() for at in order}
        claimed = [at for at in order if heads[at]]
        for party in fitting(claimed, partial(rows_of, heads), most, prompts.__getitem__):
            measured = [(number, head) for number, at in enumerate(party) for head in heads[at]]
            yield party, range(layer, layer + 1), measured

"""What do several heads carry together? Claimed keys are hidden from all of them at once.

Heads that do the same stand in for each other, so the drop without any of them may be larger than all drops without one
added up.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from interp.edits import Edit
from interp.errors import InputError
from interp.indices import is_number
from interp.model import Model
from interp.patching.knockout import Claim, ClaimedTexts, checked, edits_of
from interp.patching.patch_sites import last_stack
from interp.running import Tokens, run
from interp.sight import Sight
from interp.tap import Tap
from interp.tokens import TokenBatch
from interp.transformer import Transformer

Heads = Collection[tuple[int, int]]  # layer and head


@torch.no_grad()
def knock_out_together(
    model: Model, tokens: Tokens, claims: Sequence[Claim], heads: Sequence[Heads], output: nn.Linear | None = None
) -> Float[Tensor, " claim"]:
    """Drop in what each claim reads, with its keys hidden from several heads at once, in the read's unit.

    The claims whose first heads are of one layer go through the model in one pass, from that layer on, each with a copy
    of its text up to the last position that any of them reads.

    Args:
        model: a model of one stack.
        tokens: the texts, padded on the right.
        claims: on any of them, each hiding its keys.
        heads: for each claim, the (layer, head) pairs that its keys are hidden from.
        output: as for `knock_out`.

    Raises:
        InputError: as for `knock_out`; a claim that does not hide its keys; a head that the model does not have.
    """
    if not isinstance(model, Transformer):
        return knock_out_together_by_forward(model, tokens, claims, heads, output)
    texts = _checked(model, tokens, claims, heads, output)
    output = output or model.output
    assert output is not None
    stack, batch = texts.patch_site.stack, texts.rows
    entered: dict[int, list[int]] = defaultdict(list)  # the layer that claims change first
    for at, named in enumerate(heads):
        entered[min(layer for layer, _ in named)].append(at)
    streams, final = {layer: f"{stack}.{layer}.resid_pre" for layer in entered}, f"{stack}.resid_final"
    before = run(model, batch, capture=streams.values(), until=final)
    drops = before[final].new_empty(len(claims))
    for layer, own in entered.items():
        reads = [texts.read_of(claims[at]) for at in own]
        width = 1 + max(int(read.positions.max()) for read in reads) if texts.patch_site.causal else batch.ids.shape[1]
        prompts = torch.tensor([claims[at].prompt for at in own], device=batch.ids.device)
        rows = batch.rows(prompts)
        cut = TokenBatch(rows.ids[:, :width], rows.mask[:, :width], rows.positions[:, :width])
        tap = Tap(edit=_masking(texts, [claims[at] for at in own], [heads[at] for at in own], width))
        sight = Sight.of(cut, causal=texts.patch_site.causal)
        entering = before[streams[layer]][prompts, :width]
        after = model.stack(stack).resume(entering, sight, tap=tap.at(stack), start=layer)
        for row, (at, read) in enumerate(zip(own, reads, strict=True)):
            plain, hidden = (
                read.value(output(stream[read.positions])) for stream in (before[final][claims[at].prompt], after[row])
            )
            drops[at] = plain - hidden
    return drops


@torch.no_grad()
def knock_out_together_by_forward(
    model: Model, tokens: Tokens, claims: Sequence[Claim], heads: Sequence[Heads], output: nn.Linear | None = None
) -> Float[Tensor, " claim"]:
    """The plain way: one whole forward pass for each claim, its heads' scores masked one after the other."""
    texts = _checked(model, tokens, claims, heads, output)
    final = "logits" if output is None else f"{last_stack(model)}.resid_final"
    before, drops = run(model, texts.rows, capture=final)[final], []
    for claim, named in zip(claims, heads, strict=True):
        edits: dict[str, list[Edit]] = defaultdict(list)
        for layer, head in named:
            for site, edit in edits_of(texts.patch_site, claim, layer, head).items():
                edits[site].append(edit)
        after = run(model, texts.rows, capture=final, edit={site: _in_turn(own) for site, own in edits.items()})[final]
        read = texts.read_of(claim)
        said = [each[claim.prompt, read.positions] for each in (before, after)]
        plain, hidden = (read.value(each if output is None else output(each)) for each in said)
        drops.append(plain - hidden)
    return torch.stack(drops)


def _in_turn(edits: Sequence[Edit]) -> Edit:
    def edit(value: Tensor) -> Tensor:
        for each in edits:
            value = each(value)
        return value

    return edit


def _checked(
    model: Model, tokens: Tokens, claims: Sequence[Claim], heads: Sequence[Heads], output: nn.Linear | None
) -> ClaimedTexts:
    """The texts, every claim inside its own, and every head inside the model."""
    texts = checked(model, tokens, claims, output, None, None, "self")
    config = model.config.stacks[texts.patch_site.stack]
    if any(claim.how != "hide" for claim in claims):
        raise InputError("keys are hidden from several heads at once: expected no claim that exchanges or removes them")
    if len(heads) != len(claims) or not all(heads):
        raise InputError(f"expected heads for each of {len(claims)} claims, and at least one")
    for layer, head in (each for named in heads for each in named):
        if not (is_number(layer) and is_number(head) and 0 <= layer < config.n_layers and 0 <= head < config.n_heads):
            raise InputError(
                f"no head {layer}.{head}: expected layers 0-{config.n_layers - 1}, heads 0-{config.n_heads - 1}"
            )
    return texts


def _masking(texts: ClaimedTexts, claims: Sequence[Claim], heads: Sequence[Heads], width: int) -> dict[str, Edit]:
    """The edits that hide each claim's keys, in its row of a batch, from its heads."""
    n_heads, device = texts.model.config.stacks[texts.patch_site.stack].n_heads, texts.rows.ids.device
    masks: dict[int, Tensor] = {}
    for row, (claim, named) in enumerate(zip(claims, heads, strict=True)):
        counted = claim.queries < width  # what is asked behind the last position that is read changes nothing
        for layer, head in named:
            if layer not in masks:
                masks[layer] = torch.zeros(len(claims), n_heads, width, width, dtype=torch.bool, device=device)
            keys = claim.keys[counted, :width].to(device)
            masks[layer][row, head, claim.queries[counted], : keys.shape[1]] = keys
    return {
        texts.patch_site.name(layer): lambda scores, mask=mask: scores.masked_fill(mask, -torch.inf)
        for layer, mask in masks.items()
    }

"""What do several heads carry together? Claimed keys are hidden from all of them at once, or exchanged, or removed.

Heads that do the same stand in for each other, so the drop without any of them may be larger than all drops without one
added up.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from interp.edits import Edit
from interp.errors import InputError
from interp.indices import is_number
from interp.model import Model
from interp.patching.knockout import Claim, ClaimedTexts, Read, checked, edits_of
from interp.patching.memory import rows_at_once
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

    (Or exchanged, or removed: `Claim.how`.) Claims whose first heads are of one layer go through the model together,
    from that layer on, each with a copy of its text up to the last position that any of them reads.

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
    texts = _checked(model, tokens, claims, heads, output)
    output = output or model.output
    assert output is not None
    stack, batch, reads = texts.patch_site.stack, texts.rows, [texts.read_of(claim) for claim in claims]
    entered: dict[int, list[int]] = defaultdict(list)  # the layer that claims change first
    for at, named in enumerate(heads):
        entered[min(layer for layer, _ in named)].append(at)
    streams, final = {layer: f"{stack}.{layer}.resid_pre" for layer in entered}, f"{stack}.resid_final"
    before = run(model, batch, capture=streams.values(), until=final)
    drops = before[final].new_empty(len(claims))
    plain: dict[tuple[int, int], Tensor] = {}  # claims that read the same share what is said where nothing is changed
    for layer, some, width in _batches(texts, claims, reads, entered):
        prompts = torch.tensor([claims[at].prompt for at in some], device=batch.ids.device)
        rows = batch.rows(prompts)
        cut = TokenBatch(rows.ids[:, :width], rows.mask[:, :width], rows.positions[:, :width])
        edit = _edits(texts, [(row, claims[at], heads[at]) for row, at in enumerate(some)])
        sight = Sight.of(cut, causal=texts.patch_site.causal)
        entering = before[streams[layer]][prompts, :width]
        after = model.stack(stack).resume(entering, sight, tap=Tap(edit=edit).at(stack), start=layer)
        for at, stream in zip(some, after, strict=True):
            read, about = reads[at], (claims[at].prompt, id(reads[at]))
            if about not in plain:
                plain[about] = read.value(output(before[final][claims[at].prompt, read.positions]))
            drops[at] = plain[about] - read.value(output(stream[read.positions]))
    return drops


def _batches(
    texts: ClaimedTexts, claims: Sequence[Claim], reads: Sequence[Read], entered: Mapping[int, Sequence[int]]
) -> Iterator[tuple[int, list[int], int]]:
    """The layer where a pass begins, its claims, and how many positions of their texts it carries.

    Claims of about as many positions go together, as many as fit the machine's caches.
    """
    lengths, most = texts.rows.lengths.tolist(), rows_at_once(texts.model, 3)
    widths = [
        1 + int(read.positions.max()) if texts.patch_site.causal else lengths[claim.prompt]
        for claim, read in zip(claims, reads, strict=True)
    ]
    for layer, own in entered.items():
        some: list[int] = []
        for at in sorted(own, key=lambda at: widths[at]):
            if some and (len(some) + 1) * widths[at] > most:
                yield layer, some, widths[some[-1]]
                some = []
            some.append(at)
        yield layer, some, widths[some[-1]]


@torch.no_grad()
def knock_out_together_by_forward(
    model: Model, tokens: Tokens, claims: Sequence[Claim], heads: Sequence[Heads], output: nn.Linear | None = None
) -> Float[Tensor, " claim"]:
    """The plain way: one whole forward pass for each claim."""
    texts = _checked(model, tokens, claims, heads, output)
    final = "logits" if output is None else f"{last_stack(model)}.resid_final"
    before, drops = run(model, texts.rows, capture=final)[final], []
    for claim, named in zip(claims, heads, strict=True):
        edits = _edits(texts, [(claim.prompt, claim, named)])
        after = run(model, texts.rows, capture=final, edit=edits)[final]
        read = texts.read_of(claim)
        said = [each[claim.prompt, read.positions] for each in (before, after)]
        plain, hidden = (read.value(each if output is None else output(each)) for each in said)
        drops.append(plain - hidden)
    return torch.stack(drops)


def _checked(
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


def _edits(texts: ClaimedTexts, claims: Sequence[tuple[int, Claim, Heads]]) -> dict[str, Edit]:
    """The edits that change claimed keys: rows of a batch, each with the claim on the text there and its heads."""
    changes: dict[int, list[tuple[int, Claim, list[int]]]] = defaultdict(list)
    for prompt, claim, heads in claims:
        for layer in {layer for layer, _ in heads}:
            changes[layer].append((prompt, claim, [head for other, head in heads if other == layer]))
    edits: dict[str, Edit] = {}
    for layer, own in changes.items():
        edits |= edits_of(texts.patch_site, layer, own)
    return edits

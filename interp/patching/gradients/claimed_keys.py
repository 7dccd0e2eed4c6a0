"""What would hiding a claim's keys cost, from gradients? All heads of a model from one backward pass per read-out.

We compute the change of a head's z at the claimed rows exactly, as in the QK fix of AtP* (Kramár 2024,
arXiv:2403.00745, section 3.1). Only its effect is first order: attribution patching (Nanda 2023) of z. Claims with the
same read-out share a gradient. If the model is certain, gradients vanish and estimates are too small; use `knock_out`.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor, nn

from interp.devices import move
from interp.model import Model
from interp.patching.claimed_texts import Claim, ClaimedTexts
from interp.patching.gradients.tape import bytes_a_prompt, final_stream
from interp.patching.knockout import ChangedKeys, read_out
from interp.patching.pairs import text_read
from interp.patching.patch_sites import Attending, PatchSite, StackName
from interp.patching.plain import plain_run
from interp.patching.preparation import fitting
from interp.running import Tokens
from interp.tap import Tap
from interp.tokens import TokenBatch
from interp.transformer import Transformer, with_parts

BUDGET = 64 << 20  # bytes of activations in one differentiated pass: more is not faster on a CPU
_WEIGHTS = 1 << 22  # attention weights of changed rows held at a time


class Estimated(NamedTuple):
    """The estimated drop for each head, and each claim's plain read-out, in the read-out's unit.

    `sizes` sum the rows' absolute drops over a claim.
    """

    drops: Float[Tensor, "claim layer head"]
    sizes: Float[Tensor, "claim layer head"]
    values: Float[Tensor, " claim"]


def estimated_knock_out(
    model: Model,
    tokens: Tokens,
    claims: Sequence[Claim],
    output: nn.Linear | None = None,
    *,
    target: Tokens | None = None,
    stack: StackName | None = None,
    attention: Attending = "self",
    budget: int = BUDGET,
) -> Estimated:
    """Estimate what `knock_out` measures: -(change of z at the claimed rows) x (gradient of the claim's value there).

    For the arguments see `knock_out`; `budget`: bytes of activations that one pass may hold, but at least one text's.
    Claims on one text with the same `Read` object, or on the same rows without one, share a backward pass.
    """
    model = with_parts(model, "estimates of hidden keys")
    texts = ClaimedTexts(model, tokens, claims, output, target, stack, attention)
    config, base = model.config.stacks[texts.patch_site.stack], plain_run(model, texts.inputs)
    drops = base.final.new_zeros(len(claims), config.n_layers, config.n_heads)
    sizes, values = torch.zeros_like(drops), base.final.new_zeros(len(claims))
    limit = max(1, _WEIGHTS // (config.n_heads * texts.keys.ids.shape[1]))  # rows at a time
    for lot in _lots(texts, claims, budget):
        row_of, row_values, gradients = _differentiated(texts, claims, lot)
        for party in fitting(row_of, lambda at: len(claims[at].queries), limit, lambda at: claims[at].prompt):
            rows = torch.tensor([row_of[index] for index in party], device=model.device)
            with torch.no_grad():
                changed = ChangedKeys(texts, base, [claims[index] for index in party])
                index = rows[changed.claim], changed.rows
                slopes = [gradient[move(index, gradient.device)] for gradient in gradients]  # row head d_head
                pattern = "head row d_head, row head d_head -> row head"
                by_layer = [-einsum(changed.dz(layer), slope, pattern) for layer, slope in enumerate(slopes)]
                by_row = torch.stack(move(by_layer, model.device), 1)
            for total, part in ((drops, by_row), (sizes, by_row.abs())):
                total[party] = torch.zeros_like(total[party]).index_add_(0, changed.claim, part)
            values[party] = row_values[rows]
    return Estimated(drops, sizes, values)


@torch.enable_grad()
def _differentiated(
    texts: ClaimedTexts, claims: Sequence[Claim], lot: Sequence[list[list[int]]]
) -> tuple[dict[int, int], Float[Tensor, " row"], list[Float[Tensor, "row position head d_head"]]]:
    """Each claim's row in the other results, each row's read-out, and the gradients at z, layer by layer.

    One forward pass serves all texts. Each backward pass serves one read-out of every text.
    """
    model, prompts = texts.model, torch.tensor([claims[text[0][0]].prompt for text in lot], device=texts.model.device)
    assert isinstance(model, Transformer)
    names = PatchSite.from_name(model, "z", stack=texts.patch_site.stack, attention=texts.patch_site.attention).names
    tap = Tap(capture=frozenset(names))
    batches = [batch.rows(prompts) for batch in texts.inputs if batch is not None]
    parts = [(batch, int(batch.lengths.max())) for batch in batches]  # cut to the longest here
    cut = [TokenBatch(*(ids[:, :n] for ids in (batch.ids, batch.mask, batch.positions))) for batch, n in parts]
    final = final_stream(model, (cut[0], cut[1] if len(cut) > 1 else None), tap)
    activations, n_turns = [tap.activations[name] for name in names], max(map(len, lot))
    row_of, values, gradients = {}, final.new_zeros(n_turns * len(lot)), []
    for turn in range(n_turns):
        members = [index for index, text in enumerate(lot) if turn < len(text)]
        row_of |= {claim: turn * len(lot) + index for index in members for claim in lot[index][turn]}
        reads = [texts.read_of(claims[lot[index][turn][0]]) for index in members]
        value = torch.stack(read_out(final, members, reads, texts.output))
        options: Any = {"retain_graph": turn + 1 < n_turns, "allow_unused": True, "materialize_grads": True}
        gradients.append(torch.autograd.grad(value.sum(), activations, **options))
        values[[turn * len(lot) + index for index in members]] = value.detach()
    return row_of, values, [torch.cat(of_layer) for of_layer in zip(*gradients, strict=True)]


def _lots(texts: ClaimedTexts, claims: Sequence[Claim], budget: int) -> Iterator[list[list[list[int]]]]:
    """Texts of similar length, as many as a pass holds; for each text, its claims by read-out."""
    model = texts.model
    assert isinstance(model, Transformer)
    groups: dict[int, dict[object, list[int]]] = defaultdict(lambda: defaultdict(list))
    for index, claim in enumerate(claims):
        groups[claim.prompt][tuple(claim.queries.tolist()) if claim.read is None else id(claim.read)].append(index)
    lot, longest = [], 0
    lengths = {name: text_read(texts.inputs, name).lengths.tolist() for name in model.config.stacks}
    for prompt in sorted(groups, key=lambda prompt: (lengths[texts.patch_site.stack][prompt], prompt)):
        n_bytes = bytes_a_prompt(model, {name: each[prompt] for name, each in lengths.items()})
        longest = max(longest, n_bytes)
        if lot and longest * (len(lot) + 1) > budget:
            yield lot
            lot, longest = [], n_bytes
        lot.append([*groups[prompt].values()])
    if lot:
        yield lot

"""What is a claim? Some rows of a text, the keys that a label says they attend to, and a read-out of the text."""

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from interp.edits import Edit
from interp.errors import InputError, one_of
from interp.model import Model
from interp.patching.pairs import check_padding, text_read
from interp.patching.patch_sites import PatchSite, last_stack
from interp.running import Tokens, as_batches

Heads = Collection[tuple[int, int]]  # layer and head
Intervention = Literal["hide", "exchange", "remove"]


@dataclass(frozen=True)
class Read:
    """A read-out of one text: a number computed from the output layer's logits at the text's `positions`."""

    positions: Int[Tensor, " read"]
    value: Callable[[Float[Tensor, "*cells read output"]], Float[Tensor, "*cells"]]

    def __post_init__(self) -> None:
        object.__setattr__(self, "positions", _tensor("positions", self.positions, "whole numbers, one a read"))


def _tensor(name: str, value: Any, expected: str) -> Tensor:
    """A list or array as a tensor of integers or booleans, with as many axes as `expected` describes."""
    with suppress(TypeError, ValueError, RuntimeError):
        tensor = torch.as_tensor(value)
        fits = (tensor.dtype == torch.bool) == ("True" in expected) and not tensor.is_floating_point()
        if fits and tensor.ndim == 1 + (" x " in expected):
            return tensor
    raise InputError(f"expected {name} as {expected}; got {value!r}")


@dataclass(frozen=True)
class Claim:
    """Rows of one text, the keys that a label says each attends to, and what to read once these are hidden.

    `read` None is the summed log-probability, in nats, of the text's next tokens at the rows. `how` is what to do:
    "hide" masks the keys, "exchange" gives each key's weight to the value of its key in `others`, and "remove" takes
    weight times value out of the sum. Lists and arrays become tensors.
    """

    prompt: int
    queries: Int[Tensor, " row"]
    keys: Bool[Tensor, "row key"]
    read: Read | None = None
    how: Intervention = "hide"
    others: Int[Tensor, "row key"] | None = None

    def __post_init__(self) -> None:
        one_of("how", self.how, Intervention)
        expected = {"queries": "positions, one a row", "keys": "True or False, row x key", "others": "keys, row x key"}
        for name in expected if self.others is not None else ("queries", "keys"):
            object.__setattr__(self, name, _tensor(name, getattr(self, name), expected[name]))
        rows = self.queries.tolist()
        if not rows or len(rows) != len(self.keys):
            raise InputError(f"a claim has rows, and keys for each: got {len(rows)} rows and keys for {len(self.keys)}")
        name, empty = f"a claim on text {self.prompt}", (~self.keys.any(1)).tolist()
        if any(empty):
            raise InputError(f"row {rows[empty.index(True)]} of {name} claims no key")
        if len({*rows}) != len(rows):
            raise InputError(f"{name} names a row twice: {rows}")
        if (self.how == "exchange") != (self.others is not None):
            raise InputError(f"{name}: expected `others` where keys are exchanged, and only there")
        if self.others is not None and not bool(self.others[self.keys].ge(0).all()):
            raise InputError(f"{name}: expected another key for each exchanged key")


class ClaimedTexts:
    """A call's texts, checked: `rows` has the claims' rows, `keys` their keys, and `ends` is read."""

    def __init__(
        self,
        model: Model,
        tokens: Tokens,
        claims: Sequence[Claim],
        output: nn.Linear | None,
        target: Tokens | None = None,
        stack: str | None = None,
        attention: str = "self",
    ):
        self.patch_site = PatchSite.from_name(model, "scores", stack=stack, attention=attention)
        models_own = output is None or output is getattr(model, "output", None)
        if output is None and model.config.output == "none":
            raise InputError("this model has no output layer: give a probe of its final stream as `output`")
        self.model, self.inputs = model, as_batches(model, tokens, target)
        self.output: Any = output or getattr(model, "output", None)
        stacks = self.patch_site.stack, self.patch_site.counted("key"), last_stack(model)
        self.rows, self.keys, self.ends = batches = [text_read(self.inputs, stack) for stack in stacks]
        for batch in batches:
            check_padding("texts", batch)
        says_next = models_own and self.patch_site.stack == last_stack(model) and model.config.last.causal
        for claim in claims:
            if claim.read is None and not says_next:
                raise InputError("only a causal output layer predicts next tokens: name what else a claim reads")
            if not 0 <= claim.prompt < len(self.rows.ids):
                raise InputError(f"a claim on text {claim.prompt}: there are texts 0-{len(self.rows.ids) - 1}")
            if fault := _fault(self, claim):
                raise InputError(f"a claim on text {claim.prompt} {fault}")

    def read_of(self, claim: Claim) -> Read:
        """What a claim reads: by default its own next tokens."""
        if claim.read is not None:
            return claim.read
        ids = self.ends.ids
        return Read(claim.queries, log_probabilities(ids[claim.prompt, claim.queries.to(ids.device) + 1]))


def log_probabilities(targets: Int[Tensor, " read"]) -> Callable[[Tensor], Tensor]:
    """The value of a `Read`: log-probability of one target per position, summed over positions, in nats."""
    return partial(_log_probabilities, _tensor("targets", targets, "ids, one a position"))


def _log_probabilities(
    targets: Int[Tensor, " read"], logits: Float[Tensor, "*cells read output"]
) -> Float[Tensor, "*cells"]:
    picked = logits.gather(-1, targets.to(logits.device).expand(logits.shape[:-1])[..., None])
    top = logits.amax(-1, keepdim=True)
    rest = (logits - top).exp_().sum(-1, keepdim=True).log_()  # log_softmax would write every token's
    return (picked - top - rest)[..., 0].sum(-1)


def edits_of(patch_site: PatchSite, changes: Sequence[tuple[int, Claim, Heads]]) -> dict[str, Edit]:
    """The edits that hide, exchange or remove claimed keys; `changes` are (batch row, claim, heads)."""
    by_site: dict[str, list[tuple[int, Claim, list[int]]]] = defaultdict(list)
    for prompt, claim, heads in changes:
        for layer in {layer for layer, _ in heads}:
            site = patch_site.name(layer).removesuffix("scores") + ("scores" if claim.how == "hide" else "pattern")
            by_site[site].append((prompt, claim, [head for head_layer, head in heads if head_layer == layer]))
    return {site: partial(_with_changed_keys, changes=site_changes) for site, site_changes in by_site.items()}


def _with_changed_keys(
    rows: Float[Tensor, "prompt head query key"], changes: Sequence[tuple[int, Claim, Sequence[int]]]
) -> Tensor:
    """Scores with claimed keys masked, or patterns with their weights moved; rows beyond the last query are ignored."""
    rows = rows.clone()
    for prompt, claim, heads in changes:
        inside = claim.queries < rows.shape[-2]
        keys, queries = (each.to(rows.device) for each in (claim.keys[inside, : rows.shape[-1]], claim.queries[inside]))
        index = prompt, torch.tensor([*heads])[:, None], queries, slice(keys.shape[1])
        if claim.how == "hide":
            rows[index] = rows[index].masked_fill(keys, -torch.inf)
        else:
            substitutes = torch.full_like(claim.keys, -1, dtype=torch.long) if claim.others is None else claim.others
            rows[index] = moved(rows[index], keys, substitutes[inside, : keys.shape[1]].to(rows.device))
    return rows


def moved(
    pattern: Float[Tensor, "*head row key"], keys: Bool[Tensor, "row key"], substitutes: Int[Tensor, "row key"]
) -> Float[Tensor, "*head row key"]:
    """The pattern with keys' weights removed, or moved to `substitutes` (-1: none)."""
    weights = pattern * keys
    index = substitutes.clamp(min=0).expand_as(pattern)
    return (pattern - weights).scatter_add(-1, index, (weights * (substitutes >= 0)).to(pattern))


def _fault(texts: ClaimedTexts, claim: Claim) -> str | None:
    """Why a claim does not fit its texts: it lies outside, or leaves a row no key in the layer of shortest reach."""
    length, n_keys, n_read = (int(batch.lengths[claim.prompt]) for batch in (texts.rows, texts.keys, texts.ends))
    rows, last = claim.queries.tolist(), length - 1 - (claim.read is None)
    if min(rows) < 0 or max(rows) > last:
        followed = ", rows that a token follows" * (claim.read is None)
        return f"names rows {rows}: expected 0-{last}{followed}"
    positions = rows if claim.read is None else claim.read.positions.tolist()
    if not positions or min(positions) < 0 or max(positions) >= n_read:
        return f"reads positions {positions}: expected some of 0-{n_read - 1}"
    key, query = torch.arange(claim.keys.shape[1], device=claim.keys.device), claim.queries[:, None]
    self_attention = texts.patch_site.attention == "self"
    causal = texts.patch_site.causal and self_attention
    visible = near = key <= query if causal else (key < n_keys).expand_as(claim.keys)
    config = texts.model.config.stacks[texts.patch_site.stack]
    reaches = [reach for reach in map(config.reach, range(config.n_layers)) if reach is not None]
    if self_attention and reaches:
        near = visible & ((key - query).abs() <= min(reaches))
    if bool((claim.keys & ~visible).any()) or bool((claim.keys | ~near).all(1).any()):
        return "must name keys that its rows see, and leave each row another one"
    if claim.others is not None:
        row, key = claim.keys.nonzero(as_tuple=True)
        substitute = claim.others[row, key]
        if int(substitute.max()) >= claim.keys.shape[1] or not bool(visible[row, substitute].all()):
            return "must exchange keys for others that their rows see"
    return None

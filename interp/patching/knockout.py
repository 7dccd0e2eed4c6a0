"""Does what a head attends to matter to what is read of the model? Claimed keys are hidden from single heads.

At the rows of a claim (a pronoun and its antecedent, a verb and its subject) a head's claimed keys are masked and the
row's softmax taken over the rest, which is to take their mass off and renormalise. That moves mass to other keys, and
where the claimed ones had most of it, many times what these had. So a claim may also leave the pattern as it is, and
exchange the claimed keys' values for those of others, or take what they contribute out of the head's sum. What is
measured is the drop in what is read at the end, all rows of a claim changed at once: in the log-probability of the
text's own next tokens, or in anything else that an output layer, the model's or a probe, says of some positions.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from einops import einsum
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from interp.config import StackConfig
from interp.edits import Edit
from interp.errors import InputError, one_of
from interp.model import Model
from interp.patching.hidden_keys import ChangedKeys, HiddenKeys
from interp.patching.memory import rows_at_once
from interp.patching.pairs import Inputs
from interp.patching.patch_sites import Attending, PatchSite, StackName, last_stack
from interp.patching.plain import PlainRun
from interp.running import Tokens, as_batches, run
from interp.tokens import TokenBatch
from interp.transformer import Transformer


@dataclass(frozen=True)
class Read:
    """What is read of one text: a number made of what the output layer says of the text's `positions`."""

    positions: Int[Tensor, " read"]
    value: Callable[[Float[Tensor, "*cells read output"]], Float[Tensor, "*cells"]]

    def __post_init__(self) -> None:
        object.__setattr__(self, "positions", _tensor("positions", self.positions, "whole numbers, one a read"))


def _tensor(name: str, value: Any, expected: str) -> Tensor:
    """A tensor of what may be a list or an array: whole numbers, or True and False, on as many axes as are expected."""
    with suppress(TypeError, ValueError, RuntimeError):
        found = torch.as_tensor(value)
        fits = (found.dtype == torch.bool) == ("True" in expected) and not found.is_floating_point()
        if fits and found.ndim == 1 + (" x " in expected):
            return found
    raise InputError(f"expected {name} as {expected}; got {value!r}")


How = Literal["hide", "exchange", "remove"]


@dataclass(frozen=True)
class Claim:
    """Rows of one text, for each the keys that a label says it attends to, and what is read once they are hidden.

    `read` None is the log-probability of the text's own next tokens at the rows, summed, in nats. `how` is what happens
    to the keys: "hide" masks them, "exchange" gives each its weight times the value of the key that `others` names for
    it, "remove" takes its weight times its value out. Lists and arrays are taken for tensors.

    Raises:
        InputError: no row, a row without a key, or a row claimed twice; an exchange without other keys; numbers of
            another shape or kind.
    """

    prompt: int
    queries: Int[Tensor, " row"]
    keys: Bool[Tensor, "row key"]
    read: Read | None = None
    how: How = "hide"
    others: Int[Tensor, "row key"] | None = None

    def __post_init__(self) -> None:
        one_of("how", self.how, How)
        object.__setattr__(self, "queries", _tensor("queries", self.queries, "positions, one a row"))
        object.__setattr__(self, "keys", _tensor("keys", self.keys, "True or False, row x key"))
        if self.others is not None:
            object.__setattr__(self, "others", _tensor("others", self.others, "keys, row x key"))
        if not len(self.queries) or len(self.queries) != len(self.keys):
            raise InputError(
                f"a claim has rows, and keys for each: got {len(self.queries)} rows and keys for {len(self.keys)}"
            )
        if not bool(self.keys.any(1).all()):
            row = int((~self.keys.any(1)).nonzero()[0])
            raise InputError(f"row {int(self.queries[row])} of a claim on text {self.prompt} claims no key")
        rows = self.queries.tolist()
        if len({*rows}) != len(rows):
            raise InputError(f"a claim on text {self.prompt} names a row twice: {rows}")
        if (self.how == "exchange") != (self.others is not None):
            raise InputError(
                f"a claim on text {self.prompt}: expected `others` where keys are exchanged, and only there"
            )
        if self.others is not None and not bool(self.others[self.keys].ge(0).all()):
            raise InputError(f"a claim on text {self.prompt}: expected another key for each that is exchanged")


@dataclass(frozen=True)
class ClaimedTexts:
    """The texts of a call, and which attention of the model claims are on."""

    model: Model
    inputs: Inputs
    patch_site: PatchSite

    def read_by(self, stack: str) -> TokenBatch:
        """What a stack reads."""
        first, second = self.inputs
        return first if second is None or stack == "encoder" else second

    @property
    def rows(self) -> TokenBatch:
        """The texts whose rows are claimed."""
        return self.read_by(self.patch_site.stack)

    @property
    def keys(self) -> TokenBatch:
        """The texts whose keys are hidden."""
        return self.read_by(self.patch_site.counted("key"))

    @property
    def read(self) -> TokenBatch:
        """The texts that are read at the end."""
        return self.read_by(last_stack(self.model))

    def read_of(self, claim: Claim) -> Read:
        """What a claim reads: by default its own next tokens."""
        if claim.read is not None:
            return claim.read
        ids = self.read.ids
        return Read(claim.queries, log_probabilities(ids[claim.prompt, claim.queries.to(ids.device) + 1]))

    def changed(self, base: PlainRun, prompt: int, claims: Sequence[Claim], last: int | None = None) -> ChangedKeys:
        """Claims on one text, of whose causal stack that is read only `last` positions matter; None: all."""
        assert isinstance(self.model, Transformer)
        lengths = {name: int(self.read_by(name).lengths[prompt]) for name in self.model.config.stacks}
        if last is not None and self.model.config.last.causal:
            lengths[last_stack(self.model)] = last
        own = base.take(torch.tensor([prompt], device=base.batch.ids.device), lengths)
        queries, keys, others = ([getattr(one, part) for one in claims] for part in ("queries", "keys", "others"))
        return ChangedKeys(
            self.model, own, self.patch_site, queries, keys, others, [one.how == "hide" for one in claims]
        )


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
    found = base.resid[0].new_full(_shape(config, claims, cells), 0.0 if cells is None else torch.nan)
    stretches = _stretches(texts, claims)
    for prompt, some, layers, heads in (
        _parties(texts, claims, stretches) if cells is None else _some_cells(texts, claims, stretches, cells)
    ):
        asked, reads = [claims[at] for at in some], [texts.read_of(claims[at]) for at in some]
        last = max(1 + int(read.positions.max()) for read in reads)
        if texts.patch_site.stack == last_stack(model):
            last = max(stretches[at].stop for at in some)
        changed = texts.changed(base, prompt, asked, last)
        at_reads = [read.positions for read in reads]
        if heads is None:
            hidden, values = HiddenKeys(model, changed, at_reads), [read.value for read in reads]
            for at, drop in zip(some, hidden.drops(layers, output, values), strict=True):
                found[at, layers.start : layers.stop] = drop
        else:
            hidden, values = HiddenKeys(model, changed, at_reads, heads), [reads[at].value for at, _ in heads]
            for (at, head), drop in zip(heads, hidden.drops(layers, output, values), strict=True):
                found[some[at], layers.start, head] = drop[0, 0]
    return found


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
    """The plain way: one whole forward pass for each claim and head, its scores masked. As `knock_out` otherwise."""
    texts = checked(model, tokens, claims, output, target, stack, attention)
    config = model.config.stacks[texts.patch_site.stack]
    final = "logits" if output is None else f"{last_stack(model)}.resid_final"
    inputs, target = texts.inputs
    before = run(model, inputs, capture=final, target=target)[final]
    found = before.new_full(_shape(config, claims, cells), torch.nan)
    for at, claim in enumerate(claims):
        read = texts.read_of(claim)

        def value(final: Tensor, read: Read = read, prompt: int = claim.prompt) -> Tensor:
            at = final[prompt, read.positions]
            return read.value(at if output is None else output(at))

        asked = torch.ones_like(found[at], dtype=torch.bool) if cells is None else cells[at]
        for layer, head in asked.nonzero().tolist():
            edit = edits_of(texts.patch_site, layer, [(claim.prompt, claim, [head])])
            after = run(model, inputs, capture=final, edit=edit, target=target)[final]
            found[at, layer, head] = value(before) - value(after)
    return found


def _shape(
    config: StackConfig, claims: Sequence[Claim], cells: Bool[Tensor, "claim layer head"] | None
) -> tuple[int, int, int]:
    """Of what is found: claim x layer x head."""
    shape = len(claims), config.n_layers, config.n_heads
    if cells is not None and cells.shape != shape:
        raise InputError(f"cells are claim x layer x head: expected {shape}, got {tuple(cells.shape)}")
    return shape


def log_probabilities(targets: Int[Tensor, " read"]) -> Callable[[Tensor], Tensor]:
    """The value of a `Read`: log-probability of one target a position, summed over positions, in nats."""
    targets = _tensor("targets", targets, "ids, one a position")

    def value(logits: Float[Tensor, "*cells read output"]) -> Float[Tensor, "*cells"]:
        picked = logits.gather(-1, targets.to(logits.device).expand(logits.shape[:-1])[..., None])
        most = logits.amax(-1, keepdim=True)
        rest = (logits - most).exp_().sum(-1, keepdim=True).log_()  # one sum, where log_softmax writes every token's
        return (picked - most - rest)[..., 0].sum(-1)

    return value


def edits_of(patch_site: PatchSite, layer: int, changes: Sequence[tuple[int, Claim, Sequence[int]]]) -> dict[str, Edit]:
    """The edits of one layer's heads that hide, exchange or remove claimed keys.

    `changes` are rows of the batch, each with a claim on the text there and the heads that the claim is about.
    """
    stem, edits = patch_site.name(layer).removesuffix("scores"), {}
    if hidden := [change for change in changes if change[1].how == "hide"]:
        edits[f"{stem}scores"] = partial(_with_hidden_keys, changes=hidden)
    if moved := [change for change in changes if change[1].how != "hide"]:
        seen: dict[str, Tensor] = {}
        edits |= {f"{stem}{part}": partial(seen.setdefault, part) for part in ("v", "pattern")}
        edits[f"{stem}z"] = partial(_with_moved_values, changes=moved, seen=seen)
    return edits


def _with_hidden_keys(
    scores: Float[Tensor, "prompt head query key"], changes: Sequence[tuple[int, Claim, Sequence[int]]]
) -> Tensor:
    """Scores with the claimed keys masked; rows behind the last query are passed over."""
    scores = scores.clone()
    for prompt, claim, heads in changes:
        inside = claim.queries < scores.shape[-2]
        keys = claim.keys[inside, : scores.shape[-1]].to(scores.device)
        where = prompt, torch.tensor([*heads])[:, None], claim.queries[inside], slice(keys.shape[1])
        scores[where] = scores[where].masked_fill(keys, -torch.inf)
    return scores


def _with_moved_values(
    z: Float[Tensor, "prompt query head d_head"],
    changes: Sequence[tuple[int, Claim, Sequence[int]]],
    seen: dict[str, Tensor],
) -> Tensor:
    """What heads mix, with each claimed key's value exchanged for another's, or taken out."""
    z, pattern, v = z.clone(), seen.pop("pattern"), seen.pop("v")
    for prompt, claim, heads in changes:
        inside = claim.queries < z.shape[1]
        queries, keys = claim.queries[inside], claim.keys[inside, : pattern.shape[-1]].to(z.device)
        own = torch.tensor([*heads])
        weights = pattern[prompt, own[:, None], queries, : keys.shape[1]] * keys  # head row key
        change = -weights
        if claim.others is not None:
            others = claim.others[inside, : keys.shape[1]].clamp(min=0).to(z.device)
            change = change.scatter_add(-1, others.expand_as(weights), weights)
        values = v[prompt][: keys.shape[1], own * v.shape[2] // z.shape[2]]  # key head d_head
        z[prompt, queries[:, None], own] += einsum(change, values, "head row key, key head d_head -> row head d_head")
    return z


def checked(
    model: Model,
    tokens: Tokens,
    claims: Sequence[Claim],
    output: nn.Linear | None,
    target: Tokens | None,
    stack: str | None,
    attention: str,
) -> ClaimedTexts:
    """The texts, every claim inside its own."""
    patch_site = PatchSite.of(model, "scores", stack=stack, attention=attention)
    own = output is None or output is getattr(model, "output", None)
    if output is None and model.config.output == "none":
        raise InputError("this model has no output layer: give a probe of its final stream as `output`")
    texts = ClaimedTexts(model, as_batches(model, tokens, target), patch_site)
    for batch in (texts.rows, texts.keys, texts.read):
        if batch.padded and not bool(batch.mask[:, 0].all()):
            raise InputError("texts are padded on the right: expected a real token in the first column of every text")
    says_next = own and patch_site.stack == last_stack(model) and model.config.last.causal
    for claim in claims:
        if not 0 <= claim.prompt < len(texts.rows.ids):
            raise InputError(f"a claim on text {claim.prompt}: there are texts 0-{len(texts.rows.ids) - 1}")
        if claim.read is None and not says_next:
            raise InputError(
                "only a causal model with an output layer says the next token: name what else a claim reads (`read`)"
            )
        _check_claim(texts, claim)
    return texts


def _check_claim(texts: ClaimedTexts, claim: Claim) -> None:
    """Whether a claim lies inside its texts, and leaves each row a key in the layers that see least."""
    length, n_keys, n_read = (int(batch.lengths[claim.prompt]) for batch in (texts.rows, texts.keys, texts.read))
    rows = claim.queries.tolist()
    last = length - 1 if claim.read is not None else length - 2
    if min(rows) < 0 or max(rows) > last:
        that = "" if claim.read is not None else ", rows that a token follows"
        raise InputError(f"a claim on text {claim.prompt} names rows {rows}: expected 0-{last}{that}")
    if claim.read is not None:
        at = claim.read.positions.tolist()
        if not at or min(at) < 0 or max(at) >= n_read:
            raise InputError(f"a claim on text {claim.prompt} reads positions {at}: expected some of 0-{n_read - 1}")
    seen = near = _seen(texts.patch_site, claim, n_keys)
    config = texts.model.config.stacks[texts.patch_site.stack]
    reach = min((each for layer in range(config.n_layers) if (each := config.reach(layer)) is not None), default=None)
    if reach is not None and texts.patch_site.attention == "self":
        key = torch.arange(claim.keys.shape[1], device=claim.keys.device)
        near = seen & ((key - claim.queries[:, None]).abs() <= reach)
    if bool((claim.keys & ~seen).any()) or bool((claim.keys | ~near).all(1).any()):
        raise InputError(
            f"a claim on text {claim.prompt} must name keys that its rows see, and leave each row another one"
        )
    if claim.others is not None:
        row, key = claim.keys.nonzero(as_tuple=True)
        other = claim.others[row, key]
        if int(other.max()) >= claim.keys.shape[1] or not bool(seen[row, other].all()):
            raise InputError(f"a claim on text {claim.prompt} must exchange keys for others that their rows see")


def _seen(patch_site: PatchSite, claim: Claim, n_keys: int) -> Bool[Tensor, "row key"]:
    """The keys that a claim's rows see: in causal self-attention none after them, else those of a text so long."""
    key = torch.arange(claim.keys.shape[1], device=claim.keys.device)
    if patch_site.causal and patch_site.attention == "self":
        return key <= claim.queries[:, None]
    return (key < n_keys).expand_as(claim.keys)


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


class _Party(NamedTuple):
    """Claims on a text and the layers whose heads they are hidden from: what shares a pass.

    `heads` None are all; else those of one layer, each with the claim (of `claims`) that it is asked of.
    """

    prompt: int
    claims: list[int]
    layers: range
    heads: list[tuple[int, int]] | None = None


def _parties(texts: ClaimedTexts, claims: Sequence[Claim], stretches: Sequence[range]) -> Iterator[_Party]:
    """All heads of all claims.

    Claims of about the same stretch go together: a pass carries every row that any of its claims can change.
    """
    config, most = texts.model.config.stacks[texts.patch_site.stack], rows_at_once(texts.model, 3)
    after = max(0, config.n_layers - 2)  # layers of whose cells all rows are carried
    onward = 0 if texts.patch_site.stack == last_stack(texts.model) else texts.read.ids.shape[1]
    party, rows = [], 0
    for at in _in_order(claims, stretches):
        claim = claims[at]
        own = config.n_heads * (2 * len(claim.queries) + after * len(stretches[at]) + config.n_layers * onward)
        if party and (claims[party[0]].prompt != claim.prompt or rows + own > most):
            yield from _layers(config.n_layers, claims[party[0]].prompt, party, rows / most)
            party, rows = [], 0
        party.append(at)
        rows += own
    if party:
        yield from _layers(config.n_layers, claims[party[0]].prompt, party, rows / most)


def _in_order(claims: Sequence[Claim], stretches: Sequence[range]) -> list[int]:
    return sorted(range(len(claims)), key=lambda at: (claims[at].prompt, stretches[at].start, stretches[at].stop))


def _layers(n_layers: int, prompt: int, party: list[int], share: float) -> Iterator[_Party]:
    """All layers at once, or as many as fit where a single claim is too much."""
    together = max(1, int(n_layers / max(1.0, share)))
    for start in range(0, n_layers, together):
        yield _Party(prompt, party, range(start, min(n_layers, start + together)))


def _some_cells(
    texts: ClaimedTexts, claims: Sequence[Claim], stretches: Sequence[range], cells: Bool[Tensor, "claim layer head"]
) -> Iterator[_Party]:
    """Some heads of each claim, a layer at a time."""
    most = rows_at_once(texts.model, 3)
    onward = 0 if texts.patch_site.stack == last_stack(texts.model) else texts.read.ids.shape[1]
    order = _in_order(claims, stretches)
    for layer in range(cells.shape[1]):
        party, heads, rows = [], [], 0
        for at in order:
            mine = cells[at, layer].nonzero()[:, 0].tolist()
            own = len(mine) * (len(claims[at].queries) + len(stretches[at]) + onward)
            if party and (claims[party[0]].prompt != claims[at].prompt or rows + own > most):
                yield _Party(claims[party[0]].prompt, party, range(layer, layer + 1), heads)
                party, heads, rows = [], [], 0
            if mine:
                heads += [(len(party), head) for head in mine]
                party.append(at)
                rows += own
        if party:
            yield _Party(claims[party[0]].prompt, party, range(layer, layer + 1), heads)

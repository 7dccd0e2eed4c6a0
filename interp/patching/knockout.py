"""Does what a head attends to matter to what is read of the model? Claimed keys are hidden from single heads.

At the rows of a claim (a pronoun and its antecedent, a verb and its subject) a head's claimed keys are masked and the
row's softmax taken over the rest, which is to take their mass off and renormalise. What is measured is the drop in what
is read at the end, all rows of a claim hidden at once: in the log-probability of the text's own next tokens, or in
anything else that an output layer, the model's or a probe, says of some positions.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from interp.edits import Edit
from interp.errors import InputError
from interp.model import Model
from interp.patching.hiding import Hidden
from interp.patching.patch_sites import last_stack, only_stack
from interp.patching.plain import PlainRun
from interp.running import Tokens, as_batch, run
from interp.tokens import TokenBatch
from interp.transformer import Transformer

_MOST = 1 << 19  # entries of the stream (rows x d_model) that a pass carries: few enough for a processor's caches


@dataclass(frozen=True)
class Read:
    """What is read of one text: a number made of what the output layer says of the text's `positions`."""

    positions: Int[Tensor, " read"]
    value: Callable[[Float[Tensor, "*cells read output"]], Float[Tensor, "*cells"]]


@dataclass(frozen=True)
class Claim:
    """Rows of one text, for each the keys that a label says it attends to, and what is read once they are hidden.

    `read` None is the log-probability of the text's own next tokens at the rows, summed, in nats.

    Raises:
        InputError: no row, a row without a key, or a row claimed twice.
    """

    prompt: int
    queries: Int[Tensor, " row"]
    keys: Bool[Tensor, "row key"]
    read: Read | None = None

    def __post_init__(self) -> None:
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


@torch.no_grad()
def knock_out(
    model: Model, tokens: Tokens, claims: Sequence[Claim], output: nn.Linear | None = None
) -> Float[Tensor, "claim layer head"]:
    """Drop in what each claim reads, with its keys hidden from one head of one layer at a time, in the read's unit.

    Above 0: the head needs the claimed keys. All rows of a claim are hidden at once; `keys` count columns of the batch.
    The claims of a text go through the stack together, and of each only the rows that can have changed and are needed.

    Args:
        model: a transformer of one stack, causal or not.
        tokens: the texts, padded on the right.
        claims: on any of them, as many as one likes.
        output: what the claims' reads read from the final stream (a probe); by default the model's output layer.

    Raises:
        InputError: neither `output` nor an output layer; a claim without `read` where there is no next token; a claim
            outside its text, or that leaves a row nothing else to attend to.
    """
    if not isinstance(model, Transformer):
        return knock_out_by_forward(model, tokens, claims, output)
    batch = _checked(model, tokens, claims, output)
    output = output or model.output
    assert output is not None
    plain, stack = PlainRun.of(model, batch), last_stack(model)
    found = torch.zeros(
        len(claims), model.config.n_layers, model.config.n_heads, device=model.device, dtype=plain.resid[0].dtype
    )
    stretches = _stretches(model, batch, claims)
    for prompt, some, layers in _parties(model, claims, stretches):
        stop = max(stretches[at].stop for at in some)
        own = plain.take(torch.tensor([prompt], device=model.device), {stack: stop})
        reads = [_read(batch, claims[at]) for at in some]
        queries, keys = [claims[at].queries for at in some], [claims[at].keys for at in some]
        hidden = Hidden(model, own, queries, keys, [read.positions for read in reads])
        for at, drop in zip(some, hidden.drops(layers, output, [read.value for read in reads]), strict=True):
            found[at, layers.start : layers.stop] = drop
    return found


@torch.no_grad()
def knock_out_by_forward(
    model: Model, tokens: Tokens, claims: Sequence[Claim], output: nn.Linear | None = None
) -> Float[Tensor, "claim layer head"]:
    """The plain way: one whole forward pass for each claim and head, its scores masked. As `knock_out` otherwise."""
    batch = _checked(model, tokens, claims, output)
    (stack,) = model.config.stacks
    final = "logits" if output is None else f"{stack}.resid_final"
    before = run(model, batch, capture=final)[final]
    found = before.new_zeros(len(claims), model.config.n_layers, model.config.n_heads)
    for at, claim in enumerate(claims):
        read = _read(batch, claim)

        def value(final: Tensor, read: Read = read, prompt: int = claim.prompt) -> Tensor:
            at = final[prompt, read.positions]
            return read.value(at if output is None else output(at))

        for layer in range(model.config.n_layers):
            for head in range(model.config.n_heads):
                edit = {f"{stack}.{layer}.attn.scores": _masking(claim, head)}
                found[at, layer, head] = value(before) - value(run(model, batch, capture=final, edit=edit)[final])
    return found


def log_probabilities(targets: Int[Tensor, " read"]) -> Callable[[Tensor], Tensor]:
    """The value of a `Read`: log-probability of one target a position, summed over positions, in nats."""

    def value(logits: Float[Tensor, "*cells read output"]) -> Float[Tensor, "*cells"]:
        picked = logits.gather(-1, targets.to(logits.device).expand(logits.shape[:-1])[..., None])
        most = logits.amax(-1, keepdim=True)
        rest = (logits - most).exp_().sum(-1, keepdim=True).log_()  # one sum, where log_softmax writes every token's
        return (picked - most - rest)[..., 0].sum(-1)

    return value


def _read(batch: TokenBatch, claim: Claim) -> Read:
    """What a claim reads: by default its own next tokens."""
    if claim.read is not None:
        return claim.read
    return Read(claim.queries, log_probabilities(batch.ids[claim.prompt, claim.queries.to(batch.ids.device) + 1]))


def _masking(claim: Claim, head: int) -> Edit:
    """The edit that hides a claim's keys from one head."""

    def edit(scores: Float[Tensor, "prompt head query key"]) -> Tensor:
        edited = scores.clone()
        rows = edited[claim.prompt, head, claim.queries]
        keys = claim.keys[:, : rows.shape[1]].to(rows.device)
        edited[claim.prompt, head, claim.queries] = rows.masked_fill(keys, -torch.inf)
        return edited

    return edit


def _checked(model: Model, tokens: Tokens, claims: Sequence[Claim], output: nn.Linear | None) -> TokenBatch:
    """The texts, every claim inside its own."""
    only_stack(model, "knocking out what heads attend to")
    own = output is None or output is getattr(model, "output", None)
    if output is None and model.config.output == "none":
        raise InputError("this model has no output layer: give a probe of its final stream as `output`")
    batch = as_batch(model, tokens)
    if batch.padded and not bool(batch.mask[:, 0].all()):
        raise InputError("texts are padded on the right: expected a real token in the first column of every text")
    lengths, causal = batch.lengths.tolist(), model.config.last.causal
    reaches = [model.config.last.reach(layer) for layer in range(model.config.n_layers)]
    reach = min((each for each in reaches if each is not None), default=None)
    for claim in claims:
        if not 0 <= claim.prompt < len(lengths):
            raise InputError(f"a claim on text {claim.prompt}: there are texts 0-{len(lengths) - 1}")
        if claim.read is None and not (causal and own):
            raise InputError(
                "only a causal model with an output layer says the next token: name what else a claim reads (`read`)"
            )
        _check_claim(claim, lengths[claim.prompt], causal, reach)
    return batch


def _check_claim(claim: Claim, length: int, causal: bool, reach: int | None) -> None:
    """Whether a claim lies inside its text; `reach` is how far the layers see that see least."""
    rows = claim.queries.tolist()
    last = length - 1 if claim.read is not None else length - 2
    if min(rows) < 0 or max(rows) > last:
        that = "" if claim.read is not None else ", rows that a token follows"
        raise InputError(f"a claim on text {claim.prompt} names rows {rows}: expected 0-{last}{that}")
    if claim.read is not None:
        at = claim.read.positions.tolist()
        if not at or min(at) < 0 or max(at) >= length:
            raise InputError(f"a claim on text {claim.prompt} reads positions {at}: expected some of 0-{length - 1}")
    key = torch.arange(claim.keys.shape[1], device=claim.keys.device)
    seen = key <= claim.queries[:, None] if causal else (key < length).expand_as(claim.keys)
    near = seen if reach is None else seen & ((key - claim.queries[:, None]).abs() <= reach)
    if bool((claim.keys & ~seen).any()) or bool((claim.keys | ~near).all(1).any()):
        raise InputError(
            f"a claim on text {claim.prompt} must name keys that its rows see, and leave each row another one"
        )


def _stretches(model: Transformer, batch: TokenBatch, claims: Sequence[Claim]) -> list[range]:
    """The positions of its text that each claim can change and that matter to what it reads.

    In a causal stack nothing before the first row changes, and nothing after the last one that is claimed or read is
    seen by any that is.
    """
    lengths = batch.lengths.tolist()
    if not model.last.config.causal:
        return [range(lengths[claim.prompt]) for claim in claims]
    reads = [claim.queries if claim.read is None else claim.read.positions for claim in claims]
    return [
        range(int(claim.queries.min()), 1 + max(int(claim.queries.max()), int(read.max())))
        for claim, read in zip(claims, reads, strict=True)
    ]


def _parties(
    model: Transformer, claims: Sequence[Claim], stretches: Sequence[range]
) -> Iterator[tuple[int, list[int], range]]:
    """A text, some of the claims on it and the layers whose heads they are hidden from: what shares a pass.

    Claims of about the same stretch go together: a pass carries every row that any of its claims can change.
    """
    config, most = model.config, _MOST // model.config.d_model
    riding = max(0, config.n_layers - 2)  # layers of whose cells all rows are carried
    party, rows = [], 0
    for at in sorted(range(len(claims)), key=lambda at: (claims[at].prompt, stretches[at].start, stretches[at].stop)):
        claim = claims[at]
        own = config.n_heads * (2 * len(claim.queries) + riding * len(stretches[at]))
        if party and (claims[party[0]].prompt != claim.prompt or rows + own > most):
            yield from _layers(model, claims[party[0]].prompt, party, rows / most)
            party, rows = [], 0
        party.append(at)
        rows += own
    if party:
        yield from _layers(model, claims[party[0]].prompt, party, rows / most)


def _layers(model: Transformer, prompt: int, party: list[int], share: float) -> Iterator[tuple[int, list[int], range]]:
    """All layers at once, or as many as fit where a single claim is too much."""
    n_layers = model.config.n_layers
    together = max(1, int(n_layers / max(1.0, share)))
    for start in range(0, n_layers, together):
        yield prompt, party, range(start, min(n_layers, start + together))

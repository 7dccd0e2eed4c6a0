"""What is read after a patch. Each metric names the positions and tokens it needs; nothing else is computed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.errors import InputError
from interp.model import Model
from interp.patching.pairs import Answer, Pairs, answer_ids, differing
from interp.patching.patch_sites import last_stack
from interp.tokens import Positions, TokenBatch
from interp.transformer import Transformer

ANSWERS = "logit_difference"  # the metric that shows whether the model does the task
_NO_TOKEN = -1  # stands for padding


@dataclass(frozen=True)
class Readout:
    """A metric prepared for some pairs.

    `value` maps logits, `... prompt read token`, and `reference` (one entry per prompt) to one number per prompt.
    """

    name: str
    positions: Int[Tensor, "prompt read"]
    tokens: Int[Tensor, "prompt token"] | None  # None: the whole vocabulary
    value: Callable[..., Tensor]
    reference: Tensor | None = None

    def take(self, prompts: Int[Tensor, " some"]) -> "Readout":
        """The same metric for some of the prompts."""
        tokens, reference = (None if part is None else part[prompts] for part in (self.tokens, self.reference))
        return Readout(self.name, self.positions[prompts], tokens, self.value, reference)

    def from_final(self, model: Transformer, final: Float[Tensor, "*cells prompt read d_model"]) -> Tensor:
        """The metric, `*cells prompt`, from the final residual stream at `positions`."""
        assert model.output is not None
        logits = model.read(final) if self.tokens is None else model.output.of_tokens(final, self.tokens)
        return self.value(logits, self.reference)

    def at_reads(self, x: Float[Tensor, "*cells prompt position width"]) -> Float[Tensor, "*cells prompt read width"]:
        """`x` at the positions that the metric reads."""
        return x[..., torch.arange(x.shape[-3], device=x.device)[:, None], self.positions, :]

    def from_logits(self, logits: Float[Tensor, "*cells prompt position d_vocab"]) -> Tensor:
        """The metric, `*cells prompt`, from whole logits."""
        logits = self.at_reads(logits)
        if self.tokens is not None:
            logits = logits.gather(-1, self.tokens[:, None].expand(*logits.shape[:-1], -1))
        return self.value(logits, self.reference)


@dataclass(frozen=True)
class Metric:
    """One number per prompt, read from logits. `prepare` fits it to a model and its pairs."""

    name: str
    prepare: Callable[[Model, Pairs], Readout]


def prepared(model: Model, pairs: Pairs, metrics: Metric | Sequence[Metric]) -> list[Readout]:
    """Metrics prepared for some pairs; an InputError if the model has no logits or the pairs do not fit it."""
    listed: list[Any] = list(metrics) if isinstance(metrics, Sequence) and not isinstance(metrics, str) else [metrics]
    if strange := [each for each in listed if not isinstance(each, Metric)]:
        raise InputError(f"expected a metric, as logit_difference() gives it; got {strange[0]!r}")
    if model.config.output == "none":
        raise InputError("this model has no output layer, so it has no logits for a metric to read")
    differing(model, pairs.target, pairs.source)
    return [metric.prepare(model, pairs) for metric in listed]


def checked_values(values: dict[str, Tensor], n_prompts: int) -> dict[str, Tensor]:
    """The same values, if each metric has one finite number per prompt; otherwise an InputError."""
    for name, value in values.items():
        if (shape := tuple(value.shape)) != (n_prompts,):
            raise InputError(f"metric {name} must give one number per prompt: expected ({n_prompts},), got {shape}")
        if not bool(value.isfinite().all()):
            prompt = int((~value.isfinite()).nonzero()[0])
            raise InputError(f"metric {name} is {float(value[prompt])} for prompt {prompt}: expected a finite number")
    return values


def logit_difference(right: Answer | None = None, wrong: Answer | None = None) -> Metric:
    """The right answer's logit minus the wrong one's, at the last position.

    Answers are one token for all prompts (`" he"`) or one per prompt (texts or ids); by default the pairs' own.
    """

    def prepare(model: Model, pairs: Pairs) -> Readout:
        tokens = torch.stack([_ids(model, pairs, right, "right"), _ids(model, pairs, wrong, "wrong")], 1)
        return Readout(ANSWERS, pairs.last[:, None], tokens, lambda logits, _: logits[..., 0, 0] - logits[..., 0, 1])

    return Metric(ANSWERS, prepare)


def log_probability(answer: Answer | None = None) -> Metric:
    """Log-probability of the answer at the last position, in nats; by default the pairs' right one."""
    return _of_answer("log_probability", answer, lambda logits, ids: logits.log_softmax(-1).gather(-1, ids)[..., 0])


def probability(answer: Answer | None = None) -> Metric:
    """Probability of the answer at the last position; by default the pairs' right one."""
    return _of_answer("probability", answer, lambda logits, ids: logits.softmax(-1).gather(-1, ids)[..., 0])


def rank(answer: Answer | None = None) -> Metric:
    """How many tokens are likelier than the answer at the last position; 0 if it is the likeliest."""
    return _of_answer("rank", answer, lambda logits, ids: (logits > logits.gather(-1, ids)).sum(-1).to(logits.dtype))


def _of_answer(name: str, answer: Answer | None, value: Callable[[Tensor, Tensor], Tensor]) -> Metric:
    def prepare(model: Model, pairs: Pairs) -> Readout:
        ids = _ids(model, pairs, answer, "right")

        def read(logits: Tensor, answers: Tensor) -> Tensor:
            last = logits[..., 0, :]
            return value(last, answers[:, None].expand(*last.shape[:-1], 1))

        return Readout(name, pairs.last[:, None], None, read, ids)

    return Metric(name, prepare)


def kl_divergence() -> Metric:
    """KL(clean || patched) of the next-token distributions at the last position, in nats."""

    def value(logits: Tensor, clean: Tensor) -> Tensor:
        return (clean.exp() * (clean - logits[..., 0, :].log_softmax(-1))).sum(-1)

    def prepare(model: Model, pairs: Pairs) -> Readout:
        clean = last_logits(model, *pairs.inputs[0]).log_softmax(-1)
        return Readout("kl_divergence", pairs.last[:, None], None, value, clean)

    return Metric("kl_divergence", prepare)


def next_token_loss() -> Metric:
    """Mean loss of the clean prompt's next tokens, in nats per token: cross-entropy at all positions but the last.

    Corrupted and patched prompts are scored on the same tokens. Tables and the command line call it `loss`.
    `interp.loss(model, text)` computes the same for a text of any length.
    """

    def prepare(model: Model, pairs: Pairs) -> Readout:
        text = pairs.read_by(next(reversed(model.config.stacks)))
        if int(text.lengths.min()) < 2:
            raise InputError("a loss needs next tokens: expected prompts of two tokens or more, got one of a single")
        columns = torch.arange(text.ids.shape[1] - 1, device=text.ids.device)
        positions = torch.minimum(columns, text.lengths[:, None] - 2)  # shorter prompts repeat one, masked below
        following = text.ids[:, 1:].masked_fill(~text.mask[:, 1:], _NO_TOKEN)

        def read(logits: Tensor, following: Tensor) -> Tensor:
            ids = following.clamp(min=0).expand(logits.shape[:-1])[..., None]
            losses = -logits.log_softmax(-1).gather(-1, ids)[..., 0]
            real = following != _NO_TOKEN
            return losses.masked_fill(~real, 0).sum(-1) / real.sum(-1)

        return Readout("loss", positions, None, read, following)

    return Metric("loss", prepare)


def function(
    value: Callable[..., Float[Tensor, "... prompt"]],
    name: str = "metric",
    positions: Positions = None,
    reference: Tensor | None = None,
) -> Metric:
    """Any function of the logits (`... prompt read d_vocab`) at some positions of each prompt, by default its last.

    `positions` are as in `logit_lens`; a tensor `prompt read` gives each prompt its own. The function gets some prompts
    at a time and must treat each independently. `reference`, one entry per prompt, is its second argument.
    """

    def prepare(model: Model, pairs: Pairs) -> Readout:
        columns = pairs.read_by(last_stack(model)).columns(positions).to(model.device)
        of_logits = (lambda logits, _: value(logits)) if reference is None else value
        return Readout(name, columns, None, of_logits, reference)

    return Metric(name, prepare)


def last_logits(model: Model, batch: TokenBatch, target: TokenBatch | None = None) -> Float[Tensor, "prompt d_vocab"]:
    """Logits at each prompt's last position; in an encoder-decoder, at its target's."""
    with torch.no_grad():
        logits = model(batch, target=target)
    assert logits is not None
    return logits[torch.arange(len(batch.ids), device=logits.device), (target or batch).lengths - 1]


def _ids(model: Model, pairs: Pairs, answer: Answer | None, kind: str) -> Int[Tensor, " prompt"]:
    if answer is not None:
        return answer_ids(model, answer, len(pairs), f"{kind} answer")
    ids = pairs.right if kind == "right" else pairs.wrong
    if ids is None:
        raise InputError(f"the pairs have no {kind} answer: name it in the metric, logit_difference(' he', ' she')")
    return ids

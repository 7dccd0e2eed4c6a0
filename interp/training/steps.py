"""One step of learning: from examples to losses, gradients and weights."""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from interp.errors import InputError
from interp.model import matching
from interp.tap import UNTAPPED, Tap
from interp.training.objectives import IGNORED, Examples, Mixed
from interp.training.parallel import Processes, whole
from interp.training.plan import Plan
from interp.transformer import Transformer

Losses = Callable[[Examples], Tensor]


def summed_loss(model: Transformer, plan: Plan, *, learning: bool, calling: Callable[..., Any] | None = None) -> Losses:
    """A function of examples: the sum of their targets' cross-entropy, in nats, in the plan's precision.

    For `learning` it has dropout, and label smoothing, which spreads a share of the target's probability evenly over
    the vocabulary (Szegedy 2016, section 7). `calling` is called in place of the model.
    """
    settings = {"ignore_index": IGNORED, "label_smoothing": plan.label_smoothing if learning else 0.0}
    dropped = matching(model, ["*.embed", "*attn_out", "*.mlp_out"]) if learning and plan.dropout else []
    tap = Tap(edit={name: partial(F.dropout, p=plan.dropout) for name in dropped}) if dropped else UNTAPPED
    forward = model if calling is None else calling

    def loss(examples: Examples) -> Tensor:
        with torch.autocast(model.device.type, torch.bfloat16, enabled=plan.precision == "bfloat16"):
            logits = forward(examples.tokens, tap, examples.decoded)
        assert logits is not None
        return F.cross_entropy(logits.flatten(0, 1).float(), examples.targets.flatten(), reduction="sum", **settings)

    return loss


@contextmanager
def kernels(device: torch.device) -> Iterator[None]:
    """On a CPU, attention by plain products: up to 1.5 times as fast as the fused kernel's gradient."""
    if device.type != "cpu":
        yield
        return
    allowed = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)  # sums in bfloat16's own kernels, as autocast does
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(allowed)


@contextmanager
def _compiling() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if not type(error).__module__.startswith(("torch._inductor", "torch._dynamo")):
            raise
        reason = str(getattr(error, "inner_exception", error)).splitlines()[0]
        raise InputError(f"torch.compile failed ({reason}): empty its cache, or train with compile = false") from error


def held_out_losses(
    losses: Losses, held_out: Mapping[str, Sequence[Examples]], device: torch.device
) -> dict[str, float]:
    """Mean cross-entropy of held-out targets, in nats."""

    def mean(batches: Sequence[Examples]) -> float:
        total = sum(torch.stack([losses(batch.to(device)) for batch in batches]).tolist()) if batches else 0.0
        return total / max(sum(batch.n_targets for batch in batches), 1)

    with torch.no_grad(), kernels(device):
        return {f"held_out/{name}": mean(batches) for name, batches in held_out.items()}


def seed_of(*parts: int) -> int:
    """A seed that these numbers alone decide."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "big") >> 1


@dataclass(frozen=True)
class Step:
    """The numbers of a step."""

    loss: Tensor  # this process's part of the mean loss per target, in nats; all processes' parts add up
    norm: Tensor  # of the gradient before clipping
    n_targets: int  # over all processes
    n_tokens: int  # over all processes


class Learner:
    """A model, its data and its optimizer; `learning` is the model, or a copy sharded over processes."""

    def __init__(self, model: Transformer, data: Mixed, plan: Plan, processes: Processes):
        self.data, self.plan, self.processes = data, plan, processes
        self.learning = processes.learning(model)
        matrices = [weight for weight in self.learning.parameters() if weight.ndim > 1]
        vectors = [weight for weight in self.learning.parameters() if weight.ndim <= 1]
        groups = [{"params": matrices, "weight_decay": plan.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
        settings = {"lr": plan.learning_rate, "betas": plan.betas, "eps": plan.eps, "fused": True}
        self.optimizer = torch.optim.AdamW([group for group in groups if group["params"]], **settings)
        self._calling = processes.calling(self.learning)
        losses = summed_loss(self.learning, plan, learning=True, calling=self._calling)
        # pairs of texts have many widths, windows few
        dynamic = None if len(model.config.stacks) > 1 else False
        self._losses = torch.compile(losses, dynamic=dynamic) if plan.compile else losses
        self.learning.train()

    def step(self, step: int) -> Step:
        """The update of `step`, counted from 0."""
        plan, phase, processes = self.plan, self.plan.phase(step), self.processes
        generator = Generator().manual_seed(seed_of(plan.seed, step))
        examples = self.data.examples(phase.rows, phase.row, phase.mix, generator)
        rank, size = processes.rank, processes.size
        torch.manual_seed(seed_of(plan.seed, step, 1, *([rank] if rank else [])))  # for dropout
        n_targets, losses = max(examples.n_targets, 1), []
        rows = len(examples) // (plan.accumulate * size)
        for number in range(plan.accumulate):
            first = (number * size + rank) * rows
            part = examples.part(slice(first, first + rows)).to(self.learning.device)
            alone = nullcontext() if number + 1 == plan.accumulate else processes.alone(self._calling)
            with alone, kernels(self.learning.device), _compiling():
                loss = self._losses(part) / n_targets
                (loss * size if size > 1 else loss).backward()  # backward averages over processes
            losses.append(loss.detach())
        norm = nn.utils.clip_grad_norm_(self.learning.parameters(), plan.clip or math.inf)
        for group in self.optimizer.param_groups:
            group["lr"] = plan.rate(step)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return Step(torch.stack(losses).sum(), whole(norm.detach()), n_targets, examples.tokens.ids.numel())

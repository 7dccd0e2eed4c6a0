"""The loop: examples in, weights out, and at chosen steps a look at what has formed."""

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from interp.errors import InputError
from interp.generate import generate
from interp.places import matching
from interp.tap import UNTAPPED, Tap
from interp.training import state
from interp.training.examples import IGNORED, Examples, Mixed, Source
from interp.training.plan import Plan
from interp.training.record import Record
from interp.transformer import Transformer

Losses = Callable[[Examples], Tensor]


def optimizer_of(model: nn.Module, plan: Plan) -> torch.optim.AdamW:
    """AdamW that decays matrices and leaves vectors alone."""
    decayed = [weight for weight in model.parameters() if weight.ndim > 1]
    others = [weight for weight in model.parameters() if weight.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": plan.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=plan.learning_rate,
        betas=plan.betas,
        eps=plan.eps,
        fused=True,
    )


def summed_loss(model: Transformer, plan: Plan, *, learning: bool) -> Losses:
    """The cross-entropy of all targets of some examples, summed; without what only learning wants, unless `learning`."""
    smoothing = plan.label_smoothing if learning else 0.0
    tap = _dropout(model, plan.dropout) if learning and plan.dropout else UNTAPPED

    def loss(examples: Examples) -> Tensor:
        with torch.autocast(model.device.type, torch.bfloat16, enabled=plan.precision == "bfloat16"):
            logits = model(examples.tokens, tap, examples.decoded)
        assert logits is not None
        return F.cross_entropy(
            logits.flatten(0, 1).float(),
            examples.targets.flatten(),
            ignore_index=IGNORED,
            label_smoothing=smoothing,
            reduction="sum",
        )

    return loss


def _dropout(model: Transformer, share: float) -> Tap:
    """Dropout as an edit of the places where Vaswani 2017 has it: embeddings, and what each layer adds."""
    places = matching(model, ["*.embed", "*attn_out", "*.mlp_out"])
    return Tap(edit={name: lambda value: F.dropout(value, share) for name in places})


@contextmanager
def kernels(device: torch.device) -> Iterator[None]:
    """Attention by plain products on a processor: up to 1.5 times as fast there as its fused kernel's gradient."""
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


Measure = Callable[[Transformer], Mapping[str, float]]
Save = Callable[[Transformer, Path], None]
_TOLD_EVERY = 20  # steps


@dataclass(frozen=True)
class Progress:
    """What is told of a run as it goes."""

    step: int
    steps: int
    loss: float  # of the steps since it was last told, a target
    rate: float
    tokens_per_second: float
    numbers: Mapping[str, float] = field(default_factory=dict)  # what a look at the model saw
    sample: str | None = None


class HeldOut:
    """Examples that are never learnt from, by what they are called."""

    def __init__(self, examples: Mapping[str, Sequence[Examples]]):
        self.examples = dict(examples)

    def losses(self, losses: Losses, device: torch.device) -> dict[str, float]:
        """Cross-entropy a target, in nats."""
        found = {}
        with torch.no_grad(), kernels(device):
            for name, batches in self.examples.items():
                total = sum(float(losses(batch.to(device))) for batch in batches)
                found[f"held_out/{name}"] = total / max(sum(batch.n_targets for batch in batches), 1)
        return found


def train(
    model: Transformer,
    sources: Mapping[str, Source],
    plan: Plan,
    out: Path,
    *,
    save: Save,
    held_out: Mapping[str, Sequence[Examples]] | None = None,
    measures: Measure | None = None,
    made_of: Mapping[str, Any] | None = None,
    resume: bool = False,
    tell: Callable[[Progress], None] = lambda progress: None,
) -> None:
    """Train `model` in place, and leave it in the directory `out`.

    Args:
        model: freshly initialised weights; where a run is resumed, a model of the same shape.
        sources: where rows come from, by the names that the plan's mixes use.
        plan: everything else that decides the weights.
        out: gets the model, `metrics.jsonl`, TensorBoard files, `steps/` (snapshots) and the state to resume from.
        save: writes a model to a directory (`models.save`).
        held_out: examples to be measured on at every look, by name.
        measures: called with the model at every look and snapshot; what it finds is recorded beside the loss.
        made_of: facts about model and data; a run that is resumed must have the same.
        resume: go on from the state in `out`, to weights that are bit for bit those of a run that never stopped (on
            the same machine and number of processes).
        tell: called as the run goes.

    Raises:
        InputError: a directory that holds another run, a loss that is not finite, a full disk. The last good state
            is named, and stays.
    """
    made_of = {"plan": asdict(plan), **(made_of or {})}
    optimizer = optimizer_of(model, plan)
    place = out / state.FILE
    begun = 0
    if resume:
        found = state.read(place)
        _same(found.facts["made_of"], made_of)
        state.restore(model, optimizer, found.tensors)
        begun = int(found.facts["step"])
    elif place.exists():
        raise InputError(f"{out} holds a run already: resume it, or choose another directory")
    run = _Run(model, Mixed(sources), plan, optimizer)
    record = Record(out, begun)
    watched = HeldOut(held_out or {})
    looked = summed_loss(model, plan, learning=False)
    total, targets, tokens, since = 0.0, 0, 0, time.perf_counter()
    try:
        for step in range(begun, plan.steps):
            loss, n_targets, n_tokens = run.step(step)
            if not math.isfinite(loss):
                kept = (
                    f"the last good state is {place}, after step {state.read(place).facts['step']}"
                    if place.exists()
                    else "no state was saved yet"
                )
                raise InputError(f"the loss of step {step + 1} is {loss}; {kept}. Lower the learning rate, or clip")
            total, targets, tokens = total + loss, targets + n_targets, tokens + n_tokens
            done = step + 1
            last = done == plan.steps
            look = last or done in plan.snapshot_at or (plan.evaluate_every and done % plan.evaluate_every == 0)
            if look or done % _TOLD_EVERY == 0:
                speed = tokens / (time.perf_counter() - since)
                numbers = {"loss": total / max(targets, 1), "rate": plan.rate(step), "tokens_per_second": speed}
                sample = None
                if look:
                    model.eval()
                    numbers |= watched.losses(looked, model.device)
                    numbers |= {} if measures is None else measures(model)
                    sample = _sample(model, plan)
                    model.train()
                record(done, numbers, sample)
                tell(Progress(done, plan.steps, numbers["loss"], numbers["rate"], speed, numbers, sample))
                total, targets, tokens, since = 0.0, 0, 0, time.perf_counter()
            if done in plan.snapshot_at:
                save(model, out / "steps" / f"{done:06d}")
            if last or (plan.save_every and done % plan.save_every == 0):
                tensors = state.gather(model, optimizer)
                state.write(place, state.State(tensors, {"step": done, "made_of": made_of}))
        model.eval()
        save(model, out)
    finally:
        record.close()


class _Run:
    """A model, what it learns from, and the steps that it takes."""

    def __init__(self, model: Transformer, data: Mixed, plan: Plan, optimizer: torch.optim.Optimizer):
        self.model, self.data, self.plan, self.optimizer = model, data, plan, optimizer
        losses = summed_loss(model, plan, learning=True)
        self.losses = torch.compile(losses, dynamic=False) if plan.compile else losses
        model.train()

    def step(self, step: int) -> tuple[float, int, int]:
        """One update; the summed loss, the targets and the tokens read."""
        phase = self.plan.phase(step)
        generator = Generator().manual_seed(_mixed(self.plan.seed, step))
        examples = self.data.examples(phase.rows, phase.row, phase.mix, generator)
        torch.manual_seed(_mixed(self.plan.seed, step, 1))  # what dropout draws
        n_targets, total = max(examples.n_targets, 1), 0.0
        size = len(examples) // self.plan.accumulate
        for first in range(0, len(examples), size):
            part = examples.part(slice(first, first + size)).to(self.model.device)
            _ = part.tokens.padded, part.decoded and part.decoded.padded  # looked up here, not while compiling
            with kernels(self.model.device):
                loss = self.losses(part) / n_targets
                loss.backward()
            total += float(loss.detach()) * n_targets
        norm = float(nn.utils.clip_grad_norm_(self.model.parameters(), self.plan.clip or math.inf))
        for group in self.optimizer.param_groups:
            group["lr"] = self.plan.rate(step)
        if math.isfinite(norm) and math.isfinite(total):
            self.optimizer.step()
        self.optimizer.zero_grad()
        return (total if math.isfinite(norm) else math.nan), n_targets, examples.tokens.ids.numel()


def _mixed(*parts: int) -> int:
    """A seed that tells these numbers from all others."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "big") >> 1


def _same(stored: Mapping[str, Any], made_of: Mapping[str, Any]) -> None:
    now = json.loads(json.dumps(made_of))
    for part, values in now.items():
        if stored.get(part) != values:
            changed = (
                [key for key in values if stored.get(part, {}).get(key) != values[key]]
                if isinstance(values, dict)
                else []
            )
            raise InputError(
                f"the run was begun with another {part}"
                + (f" ({', '.join(changed)})" if changed else "")
                + ": resume with the configuration that it was begun with, or start anew in another directory"
            )


def _sample(model: Transformer, plan: Plan) -> str | None:
    if plan.sample is None or model.tokenizer is None or model.target_tokenizer is None:
        return None
    ids = generate(model, plan.sample, 40, temperature=0.7, seed=plan.seed)
    return model.target_tokenizer.decode(ids[0].tolist())

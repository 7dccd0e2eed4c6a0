"""The training loop: steps, and measurements of the model at some of them."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from interp.errors import InputError
from interp.generation.generate import generate
from interp.training import state
from interp.training.objectives import Examples, Mixed, Source
from interp.training.parallel import Parallel, joined
from interp.training.plan import Plan
from interp.training.state import METRICS, Directory, Record, Save
from interp.training.steps import Learner, Step, held_out_losses, summed_loss
from interp.training.stops import unstopped
from interp.transformer import Transformer

Measure = Callable[[Transformer], Mapping[str, float]]
_REPORT_EVERY = 20  # steps


@dataclass(frozen=True)
class Progress:
    """A report of a run in progress."""

    step: int
    steps: int
    loss: float  # mean over targets since the last report
    rate: float
    tokens_per_second: float
    numbers: Mapping[str, float] = field(default_factory=dict)  # measurements of the model
    sample: str | None = None


def train(
    model: Transformer,
    sources: Mapping[str, Source],
    plan: Plan,
    out: str | Path,
    *,
    save: Save,
    held_out: Mapping[str, Sequence[Examples]] | None = None,
    measures: Measure | None = None,
    made_of: Mapping[str, Any] | None = None,
    resume: bool = False,
    parallel: Parallel | None = None,
    tell: Callable[[Progress], None] = lambda progress: None,
) -> None:
    """Train `model` in place, and leave it in the directory `out`.

    Under torchrun every process calls this with the same arguments, and all share the work: the weights are those of
    one process up to rounding, except under dropout. Only the first process writes, measures and reports.

    Ctrl-C, SIGTERM or SIGHUP ends a run of one process after the current step and keeps its state and the model at that
    step (`steps/`); a second signal ends it at once. Several processes end at once, and keep the last state.

    Args:
        model: freshly initialised weights; to resume a run, any model of the same shape.
        sources: sources of rows, by the names in the plan's mixes.
        plan: everything else that decides the weights.
        out: gets the model, `metrics.jsonl`, `steps/` (snapshots) and the state to resume from.
        save: writes a model to a directory (`models.save`).
        held_out: examples to measure the loss on, by name.
        measures: called with the model at every measurement and snapshot; its numbers are recorded beside the loss.
        made_of: facts about model and data; they must be the same when a run is resumed.
        resume: continue from the state in `out`. The weights are bit for bit those of a run that never stopped (on a
            CPU, on the same machine, with the same number of processes).
        parallel: how the processes that torchrun started share the work: "ddp" or "fsdp" (`Processes`).
        tell: called with each report.

    Raises:
        InputError: a directory with another run, a loss that is not finite, a full disk; the message names the last
            good state, which stays.
        KeyboardInterrupt: Ctrl-C, once everything is saved.
    """
    directory = Directory(Path(out), save, {"plan": asdict(plan), **(made_of or {})})
    devices = [model.device] if model.device.type == "cuda" else []
    # not the caller's settings; without the cache, whose rounded weights would outlive a step in this context
    plain = torch.autocast(model.device.type, enabled=False, cache_enabled=False)
    with joined(parallel, model) as processes, torch.random.fork_rng(devices), plain, torch.inference_mode(False):
        processes.check(plan)
        last_state = directory.read() if resume else directory.check_new()
        model.files = ()  # training changes the weights that were read
        losses = summed_loss(model, plan, learning=False)

        def observe() -> tuple[dict[str, float], str | None]:
            model.eval()
            numbers = held_out_losses(losses, held_out or {}, model.device)
            numbers |= {} if measures is None else measures(model)
            sample = None
            if plan.sample is not None and model.tokenizer is not None and model.target_tokenizer is not None:
                sample = generate(model, plan.sample, 40, temperature=0.7, seed=plan.seed).texts[0]
            model.train()
            return numbers, sample

        _Run(model, Learner(model, Mixed(sources), plan, processes), directory, observe, tell).go(last_state)


@dataclass
class _Run:
    """A run from its last state to its end.

    Losses stay on the device until many are read together, so that no step waits for the one before.
    """

    model: Transformer
    learner: Learner
    directory: Directory
    observe: Callable[[], tuple[dict[str, float], str | None]]
    tell: Callable[[Progress], None]
    waiting: list[tuple[int, Step]] = field(default_factory=list)
    total: float = 0.0  # sum of all targets' losses since the last report
    n_targets: int = 0
    n_tokens: int = 0
    since: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self.plan, self.processes = self.learner.plan, self.learner.processes

    def go(self, last_state: state.State | None) -> None:
        """Take the remaining steps after the last state, and keep the trained model."""
        start = 0
        if last_state is not None:
            state.restore(self.learner.learning, self.learner.optimizer, last_state.tensors)
            start, counts = int(last_state.facts["step"]), last_state.facts.get("tally") or {}
            self.total, self.n_targets = float(counts.get("total", 0.0)), int(counts.get("n_targets", 0))
        record: Record | None = None
        if self.processes.leads:
            self.directory.sweep()
            with self.directory.writing(self.directory.out / METRICS):
                record = Record(self.directory.out, start)
        # several processes would not all stop after the same step
        with unstopped() if self.processes.kind is None else nullcontext([]) as interruptions:
            for step in range(start, self.plan.steps):
                self.waiting.append((step, self.learner.step(step)))
                stops = bool(interruptions) and step + 1 < self.plan.steps
                self._pause(step + 1, record, stops=stops)
                if stops:
                    raise KeyboardInterrupt
        self.processes.publish(self.learner.learning, self.model)
        self.model.eval()
        if self.processes.leads:
            self.directory.finish(self.model)

    def _pause(self, steps: int, record: Record | None, *, stops: bool) -> None:
        """Report, measure and save what is due after so many steps; save everything if the run `stops` here."""
        plan, last = self.plan, steps == self.plan.steps
        snapshot = steps in plan.snapshot_at
        observes = last or snapshot or bool(plan.evaluate_every and steps % plan.evaluate_every == 0)
        keeps = last or stops or bool(plan.save_every and steps % plan.save_every == 0)
        reports = observes or steps % _REPORT_EVERY == 0
        if reports or keeps:
            self._read_losses()
        if observes:
            self.processes.publish(self.learner.learning, self.model)
        if reports:
            if record is not None:
                self._report(steps, observes, record)
            self.total, self.n_targets, self.n_tokens = 0.0, 0, 0
        if (snapshot or stops) and record is not None:
            self.directory.snapshot(self.model, steps)
        if keeps:
            tensors = state.gather(self.learner.learning, self.learner.optimizer)
            if record is not None:
                counts = {"total": self.total, "n_targets": self.n_targets}  # losses not yet reported
                self.directory.write(tensors, steps, {"tally": counts})
        if reports:
            self.since = time.perf_counter()

    def _read_losses(self) -> None:
        """Add up the waiting losses; a loss that is not finite ends the run before anything is saved."""
        losses = self.processes.summed(torch.stack([step.loss for _, step in self.waiting]).double()).tolist()
        for (number, step), loss in zip(self.waiting, losses, strict=True):
            value = loss * step.n_targets if math.isfinite(float(step.norm)) else math.nan
            if not math.isfinite(value):
                good = self.directory.last_good
                raise InputError(f"the loss of step {number + 1} is {value}: lower the learning rate; {good}")
            self.total += value
            self.n_targets += step.n_targets
            self.n_tokens += step.n_tokens
        self.waiting.clear()

    def _report(self, steps: int, observes: bool, record: Record) -> None:
        loss, rate = self.total / max(self.n_targets, 1), self.plan.rate(steps - 1)
        speed, sample = self.n_tokens / (time.perf_counter() - self.since), None
        numbers = {"loss": loss, "rate": rate, "tokens_per_second": speed}
        if observes:
            measurements, sample = self.observe()
            numbers |= measurements
        with self.directory.writing(record.path):
            record(steps, numbers, sample)
        self.tell(Progress(steps, self.plan.steps, loss, rate, speed, numbers, sample))

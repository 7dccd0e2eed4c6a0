"""The loop: step after step, and at chosen ones a look at what has formed."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from interp.errors import InputError
from interp.generation.generate import generate
from interp.training import state
from interp.training.directory import Directory, Save
from interp.training.objectives import Examples, Mixed, Source
from interp.training.parallel import Parallel, Processes, joined, shared_as, whole
from interp.training.plan import Plan
from interp.training.record import METRICS, Record
from interp.training.steps import Learner, Step, held_out_losses, summed_loss
from interp.training.stops import stoppable
from interp.transformer import Transformer

Measure = Callable[[Transformer], Mapping[str, float]]
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

    Under torchrun every process calls this with the same arguments, and all share the work. The weights are then those
    of one process up to rounding, but for dropout, whose draws are each process's own; so are those of a run that is
    resumed with another number of processes. The first process alone writes, measures and tells.

    Ctrl-C, SIGTERM or SIGHUP ends a run of one process after the step that it is at, and keeps its state and the model
    as it is then (`steps/`); a second one ends it at once. Several processes end at once, and keep the last state.

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
            a processor, on the same machine, with the same number of processes).
        parallel: how the processes that torchrun started share the work: "ddp" or "fsdp" (`Processes`).
        tell: called as the run goes.

    Raises:
        InputError: a directory that holds another run, a loss that is not finite, a full disk. The last good state
            is named, and stays.
        KeyboardInterrupt: Ctrl-C, when all is kept.
    """
    directory = Directory(Path(out), save, {"plan": asdict(plan), **(made_of or {})})
    devices = [model.device] if model.device.type == "cuda" else []
    # whatever the caller set; without the cache, whose rounded weights would outlive a step inside this context
    plain = torch.autocast(model.device.type, enabled=False, cache_enabled=False)
    with joined(parallel, model) as processes, torch.random.fork_rng(devices), plain, torch.inference_mode(False):
        processes.check(plan)
        found = directory.read() if resume else directory.check_new()
        model.files = ()  # it is about to leave the weights that were read
        learner = Learner(model, Mixed(sources), plan, processes)
        losses = summed_loss(model, plan, learning=False)

        def look() -> tuple[dict[str, float], str | None]:
            model.eval()
            numbers = held_out_losses(losses, held_out or {}, model.device)
            numbers |= {} if measures is None else measures(model)
            sample = _sample(model, plan)
            model.train()
            return numbers, sample

        _Run(model, learner, directory, look, tell).go(found)


class _Run:
    """A run from where it stands to its end."""

    def __init__(
        self,
        model: Transformer,
        learner: Learner,
        directory: Directory,
        look: Callable[[], tuple[dict[str, float], str | None]],
        tell: Callable[[Progress], None],
    ):
        self.model, self.learner, self.directory, self.look, self.tell = model, learner, directory, look, tell
        self.plan, self.processes = learner.plan, learner.processes
        self.tally = Tally(self.processes)

    def go(self, found: state.State | None) -> None:
        """Take all steps that are left after `found`, and keep what comes out."""
        begun = 0
        if found is not None:
            state.restore(self.learner.learning, self.learner.optimizer, found.tensors, shared_as)
            begun = int(found.facts["step"])
            if not 0 <= begun <= self.plan.steps:
                raise InputError(
                    f"the state is after step {begun:,} of a plan of {self.plan.steps:,} steps: start again in another "
                    "directory"
                )
            self.tally.restore(found.facts.get("tally"))
        with self._record(begun) as record, _interruptible(self.processes) as interrupted:
            for step in range(begun, self.plan.steps):
                self.tally.add(step, self.learner.step(step))
                stops = bool(interrupted) and step + 1 < self.plan.steps
                self._pause(step + 1, record, stops=stops)
                if stops:
                    raise KeyboardInterrupt
        self.processes.publish(self.learner.learning, self.model)
        self.model.eval()
        if self.processes.leads:
            self.directory.finish(self.model)

    def _record(self, begun: int) -> Any:
        if not self.processes.leads:
            return nullcontext()
        self.directory.sweep()
        with self.directory.writing(self.directory.out / METRICS):
            return closing(Record(self.directory.out, begun))

    def _pause(self, done: int, record: Record | None, *, stops: bool) -> None:
        """Tell, look and keep what is due after so many steps; all is kept where it `stops` here."""
        plan, last = self.plan, done == self.plan.steps
        snapshot = done in plan.snapshot_at
        looks = last or snapshot or bool(plan.evaluate_every and done % plan.evaluate_every == 0)
        keeps = last or stops or bool(plan.save_every and done % plan.save_every == 0)
        tells = looks or done % _TOLD_EVERY == 0
        if tells or keeps:
            self._settle()  # nothing is kept of a model that is broken
        if looks:
            self.processes.publish(self.learner.learning, self.model)
        if tells:
            if record is not None:
                self._tell(done, looks, record)
            self.tally.clear()
        if (snapshot or stops) and record is not None:
            self.directory.snapshot(self.model, done)
        if keeps:
            tensors = state.gather(self.learner.learning, self.learner.optimizer, whole)
            if record is not None:
                self.directory.write(tensors, done, {"tally": self.tally.facts})
        if tells:
            self.tally.restart()

    def _settle(self) -> None:
        if (bad := self.tally.settle()) is not None:
            step, loss = bad
            raise InputError(
                f"the loss of step {step + 1} is {loss}; {self.directory.last_good}. Lower the learning rate, or clip"
            )

    def _tell(self, done: int, looks: bool, record: Record) -> None:
        rate, speed = self.plan.rate(done - 1), self.tally.tokens_per_second
        numbers, sample = {"loss": self.tally.mean, "rate": rate, "tokens_per_second": speed}, None
        if looks:
            seen, sample = self.look()
            numbers |= seen
        with self.directory.writing(record.path):
            record(done, numbers, sample)
        self.tell(Progress(done, self.plan.steps, numbers["loss"], rate, speed, numbers, sample))


@contextmanager
def _interruptible(processes: Processes) -> Iterator[list[int]]:
    """Within, the first Ctrl-C, SIGTERM or SIGHUP waits in the list, so that the step that is being taken ends.

    The next is as ever; so is the first of several processes, which would not all stop after the same step.
    """
    caught: list[int] = []
    with stoppable(caught.append) if processes.kind is None else nullcontext():
        yield caught


class Tally:
    """Losses since they were last told.

    They stay on the device until `settle` reads them all at once, so that no step waits for the one before.
    """

    def __init__(self, processes: Processes):
        self.processes = processes
        self.waiting: list[tuple[int, Step]] = []
        self.clear()
        self.restart()

    def add(self, step: int, taken: Step) -> None:
        """Count what `step` saw."""
        self.waiting.append((step, taken))

    def settle(self) -> tuple[int, float] | None:
        """Read what is waiting; the first step whose loss or gradient is not finite, and what that is."""
        if not self.waiting:
            return None
        losses = torch.stack([loss for _, taken in self.waiting for loss in taken.losses]).double()
        norms = torch.stack([taken.norm for _, taken in self.waiting]).double()
        each = iter(self.processes.summed(losses).tolist())
        bad = None
        for (step, taken), norm in zip(self.waiting, norms.tolist(), strict=True):
            loss = 0.0
            for _ in taken.losses:
                loss += next(each) * taken.n_targets
            if bad is None and not (math.isfinite(loss) and math.isfinite(norm)):
                bad = step, loss if math.isfinite(norm) else math.nan
            self.total += loss
            self.n_targets += taken.n_targets
            self.n_tokens += taken.n_tokens
        self.waiting.clear()
        return bad

    @property
    def mean(self) -> float:
        """Loss a target, in nats."""
        return self.total / max(self.n_targets, 1)

    @property
    def tokens_per_second(self) -> float:
        """How fast it went."""
        return self.n_tokens / (time.perf_counter() - self.since)

    def clear(self) -> None:
        """All that was counted has been told."""
        self.total, self.n_targets, self.n_tokens = 0.0, 0, 0

    def restart(self) -> None:
        """The time starts now."""
        self.since = time.perf_counter()

    @property
    def facts(self) -> dict[str, Any]:
        """What `restore` takes, so that a run that is resumed tells the losses that it would have told."""
        return {"total": self.total, "n_targets": self.n_targets}

    def restore(self, facts: Mapping[str, Any] | None) -> None:
        """Put back what was counted but not told."""
        if facts is not None:
            self.total, self.n_targets = float(facts["total"]), int(facts["n_targets"])


def _sample(model: Transformer, plan: Plan) -> str | None:
    if plan.sample is None or model.tokenizer is None or model.target_tokenizer is None:
        return None
    return generate(model, plan.sample, 40, temperature=0.7, seed=plan.seed).texts[0]

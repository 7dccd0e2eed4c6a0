"""The plan of a training run: phases, optimizer, schedule, and how often it measures and saves."""

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal, NamedTuple

from interp.errors import InputError, one_of, whole_number

Schedule = Literal["cosine", "linear", "inverse-square-root", "constant"]
Precision = Literal["float32", "bfloat16"]
_ENDS = {"learning_rate": math.inf, "weight_decay": math.inf, "clip": math.inf, "label_smoothing": 1.0, "dropout": 1.0}


@dataclass(frozen=True)
class Phase:
    """Steps on batches of one shape. Heads need steps and language needs tokens, so a run may need several phases.

    A phase with a `learning_rate` restarts the plan's schedule (SGDR: Loshchilov 2017), to teach a trained model a
    little more from rows of another mix.
    """

    steps: int
    rows: int  # per step, over all micro-batches and processes
    row: int  # tokens per row; for pairs, the most on either side
    mix: Mapping[str, float] = field(default_factory=dict)  # each source's probability for a row; empty: all the same
    learning_rate: float | None = None  # the schedule restarts here; None: it continues

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("rows", 1), ("row", 2)):  # a row has a token to read and one to predict
            whole_number(name, getattr(self, name), least)
        if any(share < 0 for share in self.mix.values()) or (self.mix and sum(self.mix.values()) <= 0):
            raise InputError(f"shares of a mix are at least 0 and not all 0, got {dict(self.mix)}")
        _check_range("learning_rate", self.learning_rate or 0.0)


@dataclass(frozen=True)
class Plan:
    """Everything that decides the weights, except the model and its data.

    The learning rate rises linearly for `warmup` steps, stays for `hold` steps, and then follows `schedule` to `final`
    times the peak at the last step (cosine, linear); `inverse-square-root` falls as (step / (warmup + hold))^-1/2
    (Vaswani 2017, section 5.3). A later phase with a learning rate ends the schedule and restarts it without warm-up:
    from the phase's rate to `final` times that, or as (step / steps before)^-1/2. Impossible numbers are an
    `InputError`.
    """

    phases: tuple[Phase, ...]
    seed: int = 0
    learning_rate: float = 1e-3  # the peak
    schedule: Schedule = "cosine"
    warmup: int = 100  # steps
    hold: int = 0  # steps
    final: float = 0.1  # of the peak
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1  # of matrices, not vectors
    clip: float = 1.0  # largest norm of all gradients together; 0 for no limit
    accumulate: int = 1  # micro-batches per step
    label_smoothing: float = 0.0
    dropout: float = 0.0  # on embeddings and on each layer's output (Vaswani 2017, section 5.4)
    precision: Precision = "float32"  # of matrix products; weights and sums are float32
    compile: bool = False  # through torch.compile
    evaluate_every: int = 500  # steps between measurements; 0 for never
    evaluate_rows: int = 64  # rows to measure of each held-out source, at most
    save_every: int = 500  # steps between saved states, to resume from
    snapshot_at: tuple[int, ...] = ()  # steps after which the model is saved as well
    sample: str | None = None  # a prompt to continue at every measurement

    def __post_init__(self) -> None:
        if not self.phases:
            raise InputError("expected at least one phase")
        one_of("schedule", self.schedule, Schedule)
        one_of("precision", self.precision, Precision)
        for name in ("seed", "warmup", "hold", "evaluate_every", "evaluate_rows", "save_every"):
            whole_number(name, getattr(self, name))
        for name, end in _ENDS.items():
            _check_range(name, getattr(self, name), end)
        if not 0 <= self.final <= 1:
            raise InputError(f"final is a share of the peak: expected 0 to 1, got {self.final:g}")
        if not all(0 <= beta < 1 for beta in self.betas) or not 0 < self.eps < math.inf:
            raise InputError(f"betas must be from 0 to less than 1 and eps above 0, got {self.betas} and {self.eps:g}")
        if self.accumulate < 1 or any(phase.rows % self.accumulate for phase in self.phases):
            rows = ", ".join(str(phase.rows) for phase in self.phases)
            raise InputError(f"accumulate must divide the rows of every phase ({rows}), got {self.accumulate}")
        if beyond := [step for step in self.snapshot_at if not 1 <= step <= self.steps]:
            raise InputError(f"snapshots are taken after step 1 to {self.steps}, got {beyond[0]}")
        if self.phases[0].learning_rate is not None:
            raise InputError("the first phase begins with the plan's learning_rate: leave its own out")
        first = self._legs[0].steps
        level = self.warmup if self.schedule == "constant" else self.warmup + self.hold + 1
        if level > first:
            raise InputError(f"the schedule ends before its warm-up: warmup and hold leave nothing of {first} steps")

    @property
    def steps(self) -> int:
        """Steps of all phases."""
        return sum(phase.steps for phase in self.phases)

    def phase(self, step: int) -> Phase:
        """The phase of `step`, counted from 0."""
        return self.phases[bisect_right([*accumulate(phase.steps for phase in self.phases)], step)]

    def rate(self, step: int) -> float:
        """The learning rate of `step`, counted from 0."""
        leg = next(leg for leg in reversed(self._legs) if step >= leg.begin)
        count, level = step + 1 - leg.begin, leg.warmup + leg.hold
        if count <= leg.warmup:
            return leg.peak * count / leg.warmup
        if count <= level or self.schedule == "constant":
            return leg.peak
        if self.schedule == "inverse-square-root":
            return leg.peak * math.sqrt(max(leg.begin, level, 1) / (leg.begin + count))
        progress = (count - level) / (leg.steps - level)  # 0 to 1
        height = (1 + math.cos(math.pi * progress)) / 2 if self.schedule == "cosine" else 1 - progress
        return leg.peak * (self.final + (1 - self.final) * height)

    @property
    def _legs(self) -> list["_Leg"]:
        legs = [_Leg(0, 0, self.learning_rate, self.warmup, self.hold)]
        for phase in self.phases:
            if phase.learning_rate is not None:
                legs.append(_Leg(legs[-1].begin + legs[-1].steps, 0, phase.learning_rate))
            legs[-1] = legs[-1]._replace(steps=legs[-1].steps + phase.steps)
        return legs


class _Leg(NamedTuple):
    """The steps of one run of the schedule."""

    begin: int
    steps: int
    peak: float
    warmup: int = 0
    hold: int = 0


def _check_range(name: str, value: float, end: float = math.inf) -> None:
    if not 0 <= value < end:
        raise InputError(f"{name} must be at least 0 and less than {end:g}, got {value:g}")

"""What is lost when writers are killed, their disk is full, or they write at the same time?

Trainings and runs, forked from one process, because starting each takes seconds. A fault is `lost` if earlier files are
damaged, or a resumed training ends with other weights; `hung` if it does not end; `traced` if it ends with neither
success nor a one-line error.
"""

import os
import random
import resource
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pandas as pd
import torch

from analyses import runs
from analyses.execution import output
from benchmarks.faults.read_files import model
from interp import InputError, Transformer
from interp.training import Phase, Plan, Windows, state, train
from models import save

SURVIVED, REFUSED, LOST, HUNG, TRACED = "survived", "refused", "lost", "hung", "traced"
_SECONDS = 60  # time limit of a writer
_DONE, _REFUSED, _TRACED = 0, 2, 1  # exit codes


def fork(work: Callable[[], object]) -> int:
    """A process that does `work` and exits with 0, with 2 after a one-line refusal, or else with 1."""
    child = os.fork()
    if child:
        return child
    code = _TRACED
    try:
        signal.alarm(_SECONDS)  # ends a hung writer
        work()
        code = _DONE
    except InputError as error:
        code = _REFUSED if "\n" not in str(error) else _TRACED
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(code)


def ended(child: int) -> int:
    """The child's exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def training(out: Path, steps: int = 60) -> None:
    """A short training into `out`, resumed if there is a state.

    On one thread: a child forked after threads have worked waits for them forever.
    """
    torch.set_num_threads(1)
    tokens = torch.randint(2, 22, (500,), generator=torch.Generator().manual_seed(0))
    plan = Plan((Phase(steps, 2, 9),), learning_rate=3e-3, warmup=3, save_every=1, snapshot_at=(5, 30))
    resume = (out / state.FILE).exists()
    train(model(), {"text": Windows(tokens, [0])}, plan, out, save=_save, resume=resume)


def _save(trained: Transformer, directory: Path) -> None:
    save(trained, directory, "llama")


def kills_of_trainings(count: int) -> Counter[str]:
    """Kill a training at random moments and resume it until it ends; its weights must equal an unkilled one's."""
    counts: Counter[str] = Counter()
    draw = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole"
        training(whole)
        expected = state.read(whole / state.FILE).tensors
        for run in range(10 * count):
            if counts.total() >= count:
                break
            out, kills = Path(folder) / f"run-{run}", 0
            while (code := _killed(lambda out=out: training(out), draw.uniform(0, 0.6))) == -signal.SIGKILL:
                kills += 1
            whole_weights = code == _DONE and _same_weights(out, expected)
            counts[_verdict(code, whole=whole_weights)] += max(kills, code != _DONE)
    return counts


def kills_of_runs(count: int) -> Counter[str]:
    """Kill a writer of a run over another at random moments; the next run must repair this and be complete."""
    counts: Counter[str] = Counter()
    draw = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        write_run(out, 0)
        for number in range(1, 20 * count):
            if counts.total() >= count:
                break
            code = _killed(lambda number=number: write_run(out, number), draw.uniform(0, 0.03))
            again = ended(fork(lambda number=number: write_run(out, number)))
            if code == -signal.SIGKILL:
                counts[_verdict(again, whole=number_of(out) == number)] += 1
    return counts


def full_disks(count: int) -> Counter[str]:
    """Limit file sizes, as on a full disk; earlier files must survive, and a training must be resumable."""
    counts: Counter[str] = Counter()
    draw = random.Random(2)
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole"
        training(whole)
        expected = state.read(whole / state.FILE).tensors
        for number in range(count // 2):
            out = Path(folder) / f"training-{number}"
            code = ended(fork(lambda out=out: _within(draw.randrange(100, 9_000), lambda: training(out))))
            again = ended(fork(lambda out=out: training(out)))
            counts[_refusal(code, whole=again == 0 and _same_weights(out, expected))] += 1
        out = Path(folder) / "run"
        write_run(out, -1)
        for number in range(count - count // 2):
            code = ended(fork(lambda number=number: _within(draw.randrange(10, 3_000), lambda: write_run(out, number))))
            swept = not any(name.startswith(".") for name in os.listdir(folder))
            counts[_refusal(code, whole=number_of(out) == -1 and swept)] += 1
    return counts


def races(count: int) -> Counter[str]:
    """Two writers write one directory at once: one result must be complete, and the other writer must get an error."""
    counts: Counter[str] = Counter()
    draw = random.Random(3)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        for number in range(count):
            children = [fork(lambda n=n: write_run(out, n)) for n in (2 * number, 2 * number + 1)]
            codes = [ended(child) for child in children]
            wrote = {2 * number + index for index, code in enumerate(codes) if code == _DONE}
            whole = number_of(out) in wrote
            bad = next((code for code in codes if code not in (_DONE, _REFUSED)), None)
            counts[_verdict(_DONE if bad is None else bad, whole=whole)] += 1
            time.sleep(draw.uniform(0, 0.01))
    return counts


def write_run(out: Path, number: int) -> None:
    """A run whose tables all hold one number."""
    with output.writing(out) as new:
        for name in ("heads", "labels", "effects"):
            new.table(name, pd.DataFrame({"number": [number] * 50, "text": [f"row {index}" for index in range(50)]}))
        facts = {"schema": 1, "seed": 0, "command": "c", "versions": {"interp": "0"}, "corpora": [], "name": "m"}
        new.run({**facts, "number": number})


def number_of(out: Path) -> int | None:
    """The number in all tables of a run and its record; None if they are not from one run."""
    try:
        run = runs.read(out)
        numbers = {run.facts["number"], *(int(each) for name in run.tables for each in run.table(name)["number"])}
    except (InputError, KeyError):
        return None
    return numbers.pop() if len(numbers) == 1 else None


def _killed(work: Callable[[], object], after: float) -> int:
    child = fork(work)
    time.sleep(after)
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    return ended(child)


def _within(most: int, work: Callable[[], object]) -> None:
    """Do `work` while no file can be longer than `most` bytes."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    work()


def _same_weights(out: Path, expected: dict[str, torch.Tensor]) -> bool:
    try:
        tensors = state.read(out / state.FILE).tensors
    except InputError:
        return False
    return tensors.keys() == expected.keys() and all(torch.equal(tensors[name], expected[name]) for name in expected)


def _verdict(code: int, whole: bool) -> str:
    if code in (_DONE, _REFUSED):
        return SURVIVED if whole else LOST
    return HUNG if code == -signal.SIGALRM else TRACED


def _refusal(code: int, whole: bool) -> str:
    """The outcome of a failed write: refused in one line, or there was room enough."""
    verdict = _verdict(code, whole)
    return REFUSED if verdict == SURVIVED and code == _REFUSED else verdict

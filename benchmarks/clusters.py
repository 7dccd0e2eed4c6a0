"""Do lots give the same tables wherever they run, what is lost when workers die, and what does a lot cost on top?

    python -m benchmarks.clusters [--only same kills restarts speed merge] [--model textbook] [--runs 20]

same     tables of report, patch, compare and probes, byte for byte: 1, 2 and 4 Dask workers against one process
kills    the same report while workers are killed at random moments: how many lots ran more than once
restarts the same report again after its scheduler was killed at a random lot, one for ten runs
speed    seconds to read a text with 1 and 2 workers, and what packing, encoding and storing add to a lot
merge    10,000 shards read back and summed: seconds, and growth of memory

Every process has one thread. Run it on an idle machine.
"""

import os
import random
import resource
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from analyses import corpora, report
from analyses.behaviours import OURS
from analyses.execution import processes
from analyses.execution.encoding import decoded, encoded
from analyses.execution.lots import Setting, Shards, using
from analyses.execution.provenance import fingerprint
from analyses.reading.inputs import Heads
from analyses.reading.windows import Reading
from analyses.scoring import collectors
from benchmarks.console import arguments, show
from models import load

_TEXTS, _LONG, _SHARDS = "sentences:24", "tales:100", 500  # of each of the runs
_MAKERS = tuple(partial(each.collector, seed=0) for each in OURS.values() if each.attention == "self")


@contextmanager
def workers(n: int, kind: str = "LocalCluster") -> Iterator[tuple[Any, Any]]:
    """Dask processes that restart when they die; in a `SubprocessCluster` the scheduler is a process too."""
    # a busy machine may need more than Dask's 15 s to start a killed worker again
    os.environ["DASK_DISTRIBUTED__DEPLOY__LOST_WORKER_TIMEOUT"] = "5 minutes"
    import distributed

    from analyses.execution.cluster import connected

    often = {"allowed_failures": 20}  # how often a lot's workers may be killed
    options = {"dashboard_address": None, "silence_logs": 50, "scheduler_kwargs": often}
    processes = getattr(distributed, kind)(n_workers=n, threads_per_worker=1, **options)
    with processes as cluster, connected(cluster.scheduler_address) as executor:
        yield executor, cluster


def commands(model: str) -> dict[str, Callable[..., object]]:
    """The functions that write each directory, by name."""
    loaded, texts = load(model), [corpora.read(_TEXTS)]
    prompts = pd.DataFrame([("The baker near the tailors", "The bakers near the tailors", " was", " were")] * 2)
    prompts.columns = ["clean", "corrupt", "answer", "wrong"]
    return {
        "report": partial(report.build, loaded, texts, experiments=False, pairs=12),
        "patch": partial(report.patch, loaded, prompts),
        "compare": partial(report.compare, {"one": loaded, "other": load("textbook")}, texts),
        "probes": partial(report.probe, loaded, texts),
    }


def tables(write: Callable[..., object], executor: Executor | None) -> dict[str, bytes]:
    """The bytes of the tables that a command writes."""
    with tempfile.TemporaryDirectory() as folder:
        write(out=Path(folder) / "out", cluster=executor)
        return {path.name: path.read_bytes() for path in (Path(folder) / "out" / "tables").iterdir()}


def same(model: str, runs: int) -> None:
    """Each command with one process, and with 1, 2 and 4 workers."""
    alone = {name: tables(write, None) for name, write in commands(model).items()}
    for n in (1, 2, 4):
        with workers(n) as (executor, _):
            for name, write in commands(model).items():
                expected, result = alone[name], tables(write, executor)
                differ = [table for table in expected if expected[table] != result.get(table)]
                show(name="same", command=name, workers=n, tables=len(expected), differ=differ)


class Counted(Executor):
    """An executor that records each call by a worker in a separate file."""

    def __init__(self, executor: Executor, folder: Path):
        self.executor, self.folder, self.sent = executor, folder, 0

    def submit(self, fn, /, *args, **options):
        self.sent += 1
        return self.executor.submit(noted, str(self.folder), fn, *args, **options)


def noted(folder: str, function: Callable[..., Any], *args: Any) -> Any:
    """Make the call, and write a file that records it."""
    os.close(tempfile.mkstemp(dir=folder)[0])
    return function(*args)


def kills(model: str, runs: int) -> None:
    """Reports while one worker after another is killed, each after a random number of lots."""
    write, rng = commands(model)["report"], random.Random(0)
    whole = tables(write, None)
    for run in range(runs):
        folder, ended, killed = Path(tempfile.mkdtemp()), threading.Event(), 0
        with workers(2) as (executor, cluster):
            counter = Counted(executor, folder)

            def kill(cluster=cluster, ended=ended, folder=folder) -> None:
                nonlocal killed
                due = rng.randrange(1, 30)  # in lots begun: with timed kills a busy machine would never finish
                while not ended.wait(rng.uniform(0, 0.2)):
                    if len([*folder.iterdir()]) < due:
                        continue
                    due += rng.randrange(1, 30)
                    nanny = rng.choice([*cluster.workers.values()] or [None])
                    # one that dies while it starts takes its nanny along: then a machine is lost, not a worker
                    if nanny and nanny.process is not None and nanny.process.status.name == "running":
                        os.kill(nanny.process.pid, 9)
                        killed += 1

            threading.Thread(target=kill, daemon=True).start()
            result = tables(write, counter)
            ended.set()
        repeated = len([*folder.iterdir()]) - counter.sent
        shutil.rmtree(folder)
        differ = [table for table in whole if whole[table] != result.get(table)]
        show(name="kills", run=run, killed=killed, lots=counter.sent, repeated=repeated, differ=differ)


def restarts(model: str, runs: int) -> None:
    """Reports that learn that their scheduler died, then run again with another and reuse their shards."""
    write, rng = commands(model)["report"], random.Random(0)
    with tempfile.TemporaryDirectory() as notes, workers(2) as (executor, _):
        whole = tables(write, counter := Counted(executor, Path(notes)))
    for run in range(runs // 10):
        notes, message, count = Path(tempfile.mkdtemp()), "", 0

        def twice(out: Path, notes: Path = notes, **_: object) -> None:
            nonlocal message, count
            with suppress(OSError), workers(2, "SubprocessCluster") as (executor, cluster):
                scheduler, last = cluster.scheduler.process.pid, rng.randrange(1, counter.sent)

                def kill() -> None:
                    while len([*notes.iterdir()]) < last:
                        time.sleep(0.01)
                    os.kill(scheduler, 9)

                threading.Thread(target=kill, daemon=True).start()
                try:
                    write(out=out, cluster=Counted(executor, notes))
                except ConnectionError as error:
                    message, count = str(error), len([*out.parent.glob(".out.shards/*.shard")])
            with workers(2) as (executor, _):
                write(out=out, cluster=Counted(executor, notes))

        result = tables(twice, None)
        repeated, differ = len([*notes.iterdir()]) - counter.sent, [x for x in whole if whole[x] != result.get(x)]
        shutil.rmtree(notes)
        show(name="restarts", run=run, said=message, lots=counter.sent, kept=count, repeated=repeated, differ=differ)


def _reading(model: Any, texts: Any, setting: Setting) -> float:
    began = time.perf_counter()
    with using(setting):
        collectors.collect_in_lots(Reading(model, texts), _MAKERS)
    return time.perf_counter() - began


def _read(model: Any, lot: Any) -> Any:
    """The result of one lot."""
    return collectors._read_lot(model, Heads.from_model(model), _MAKERS, (), lot)


def speed(model: str, runs: int) -> None:
    """Read alternately with one worker and with two, then measure a lot's costs in this process."""
    loaded, texts = load(model), [*corpora.read(_LONG)]
    prints = {id(loaded): fingerprint(loaded)}
    for n in (1, 2, 1, 2):
        with workers(n) as (executor, _):
            _reading(loaded, texts[:20], Setting(Shards(known=prints), executor))  # workers load the model
            seconds = _reading(loaded, texts, Setting(Shards(known=prints), executor))
            show(name="speed", workers=n, seconds=round(seconds, 2))
    lot = next(collectors.lots_of(texts))
    with tempfile.TemporaryDirectory() as folder:
        shards, result = Shards(Path(folder), "", prints), _read(loaded, lot)
        content = encoded(result)
        steps: dict[str, Callable[[], Any]] = {
            "work": lambda: _read(loaded, lot),
            "hash": lambda: shards.path([lot]),
            "pack": lambda: processes.packed(lot),
            "encode": lambda: encoded(result),
            "decode": lambda: decoded(content),
            "keep": lambda: shards.write(shards.folder / "a.shard", content),
        }
        times = {name: _seconds(step) for name, step in steps.items()}
    sizes = {"words": sum(len(text.words) for text in lot), "bytes": len(content)}
    share = sum(times.values()) / times["work"] - 1
    show(name="lot", **sizes, **{step: round(each, 4) for step, each in times.items()}, share=share)


def _seconds(step: Callable[[], Any], times: int = 5) -> float:
    step()
    began = time.perf_counter()
    for _ in range(times):
        step()
    return (time.perf_counter() - began) / times


def merge(model: str, runs: int) -> None:
    """Merge one lot's state, stored under 10,000 names."""
    loaded = load(model)
    content = encoded(_read(loaded, next(collectors.lots_of(corpora.read(_TEXTS)))))
    merged = [make(loaded) for make in _MAKERS]
    grown, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    for _ in range(_SHARDS * runs):
        for collector, state in zip(merged, decoded(content)[2], strict=True):
            collector.merge(state)
    seconds = time.perf_counter() - began
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - grown) >> 10
    show(name="merge", shards=_SHARDS * runs, bytes=len(content), seconds=round(seconds, 1), grown_mb=grown)


def main() -> None:
    """Run all parts, or those that `--only` names."""
    parts = {each.__name__: each for each in (same, kills, restarts, speed, merge)}
    parser = arguments(__doc__)
    parser.add_argument("--only", nargs="+", choices=parts, default=[*parts])
    parser.add_argument("--model", default="textbook")
    parser.add_argument("--runs", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.only:
        parts[name](options.model, options.runs)


if __name__ == "__main__":
    main()

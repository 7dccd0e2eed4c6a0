"""Has a change made anything slower? An older commit and this tree alternate on the same jobs, in one run.

    python -m benchmarks.beside_commit COMMIT [--turns 10] [--only z resid_pre]

Each tree runs its own code in its own process. A turn runs every job in both, in an order that changes from turn to
turn. A job is repeated within its turn until it has taken a third of a second. Each row is one JSON line:

    name            the job; those named as in `benchmarks.sweeps` have its shapes
    old_s, new_s    median seconds of each tree
    ratio           new / old, the geometric mean over turns
    upper           upper bound of its 95% interval (t over the turns' logarithms)
    same            whether both trees gave the same numbers, or else the largest difference
"""

import json
import math
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from scipy.stats import t

# each process imports these from its own tree, so use only names that both trees have
from analyses import coreference, corpora, part_of_speech, position
from benchmarks import cost
from benchmarks.console import arguments, machine, show
from benchmarks.floor import GPT2, Shape
from interp import TokenBatch, run
from interp.patching import Claim, Receiver, knock_out, logit_difference, path_patch, sweep, top_cells
from models import load

Job = Callable[[], object]
ROOT = Path(__file__).resolve().parents[1]
LEAST = 1 / 3  # seconds: a job is repeated until then
SMALL = Shape(4, 8, 256, 4_096)
model_of, loaded = cache(cost.model_of), cache(load)


def swept(shape: Shape, site: str, *axes: str) -> Job:
    model = model_of(shape)
    pairs = cost.pairs_of(model, shape)
    return lambda: sweep(model, pairs, logit_difference(), site, ("layer", *axes)).values["logit_difference"]


def forward(prompts: int, positions: int) -> Job:
    ids = torch.randint(GPT2.vocabulary, (prompts, positions), generator=torch.Generator().manual_seed(3))
    return lambda: run(model_of(GPT2), ids, capture="decoder.*.attn.z").logits


def paths() -> Job:
    model = model_of(SMALL)
    pairs, ends = cost.pairs_of(model, SMALL), [*(Receiver("q", 3, head) for head in range(4)), Receiver("v", 2)]
    return lambda: path_patch(model, pairs, logit_difference(), ends, through="mlps").values["logit_difference"]


def searched() -> Job:
    model = model_of(SMALL)
    pairs, by = cost.pairs_of(model, SMALL), ("layer", "head", "position")
    return lambda: [len(top_cells(model, pairs, logit_difference(), k=3, by=by).cells)]


def knocked_out(name: str) -> Job:
    rng, width = random.Random(0), 60
    texts = TokenBatch.from_rows([[rng.randrange(100, 1_000) for _ in range(width)] for _ in range(6)])
    claims = []
    for number in range(96):
        queries = sorted(rng.sample(range(2, width - 1), rng.randint(1, 4)))
        keys = torch.zeros(len(queries), width, dtype=torch.bool)
        for row, query in enumerate(queries):
            keys[row, rng.randrange(query)] = True
        claims.append(Claim(number % 6, torch.tensor(queries), keys))
    return lambda: knock_out(loaded(name), texts, claims)


def measured(name: str) -> Job:
    texts = corpora.read("stories:40")

    def job() -> object:
        tables = [each.measure(loaded(name), texts) for each in (position, part_of_speech, coreference)]
        return np.concatenate([getattr(table, "heads", table)["value"].to_numpy(dtype=float) for table in tables])

    return job


JOBS: dict[str, Callable[[], Job]] = {
    "small_z_by_position": partial(swept, SMALL, "z", "head", "position"),
    "z": partial(swept, GPT2, "z", "head"),
    "resid_pre": partial(swept, GPT2, "resid_pre", "position"),
    "z_by_position": partial(swept, GPT2, "z", "head", "position"),
    **{f"forward_z {rows}x{size}": partial(forward, rows, size) for rows, size in ((8, 16), (4, 128), (1, 512))},
    "small_pattern": partial(swept, SMALL, "pattern", "head", "query"),
    "paths": paths,
    "search": searched,
    "knock-outs default": partial(knocked_out, "default"),
    "statistics default": partial(measured, "default"),
    "statistics minilm": partial(measured, "minilm"),
}


def serve() -> None:
    """Run the job that each input line names and print its seconds; its numbers go to the file that the line names."""
    ready: dict[str, Job] = {}
    for line in sys.stdin:
        name, _, file = line.strip().partition("\t")
        if name not in ready:
            ready[name] = JOBS[name]()
            ready[name]()
        job, count, began = ready[name], 0, time.perf_counter()
        while not count or time.perf_counter() - began < LEAST:
            values, count = job(), count + 1
        seconds = (time.perf_counter() - began) / count
        if file:
            torch.save(torch.as_tensor(values).double().flatten().cpu(), file)
        print(json.dumps(seconds), flush=True)


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """A commit's tree, while the block runs."""
    with TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", tree, commit], cwd=ROOT, check=True)
        try:
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=True)


@contextmanager
def worker(tree: Path) -> Iterator[Callable[..., float]]:
    """A process for a tree, as a function that runs a job and returns its seconds."""
    environment = os.environ | {"PYTHONPATH": str(tree), "HF_HUB_OFFLINE": "1"}
    code = f"import runpy; runpy.run_path({str(Path(__file__))!r})['serve']()"
    process = subprocess.Popen([sys.executable, "-c", code], cwd=tree, env=environment, text=True, stdin=-1, stdout=-1)
    assert process.stdin
    assert process.stdout

    def seconds(name: str, file: Path | str = "") -> float:
        print(f"{name}\t{file}", file=process.stdin, flush=True)
        if not (line := process.stdout.readline()):
            raise SystemExit(f"{name} failed in {tree}: see above")
        return float(json.loads(line))

    try:
        yield seconds
    finally:
        process.kill()
        process.wait()


def compared(old: Callable[..., float], new: Callable[..., float], name: str, turns: int) -> dict[str, object]:
    """The row of one job."""
    trees, values = {"old": old, "new": new}, []
    with TemporaryDirectory() as folder:
        for label, run_job in trees.items():
            run_job(name, Path(folder) / label)
            values.append(torch.load(Path(folder) / label, weights_only=True))
    seconds: dict[str, list[float]] = {"old": [], "new": []}
    for turn in range(turns):
        for label in [*trees][:: -1 if turn % 2 else 1]:
            seconds[label].append(trees[label](name))
    logs = np.log(seconds["new"]) - np.log(seconds["old"])
    error = t.ppf(0.975, turns - 1) * logs.std(ddof=1) / turns**0.5
    agreement = torch.equal(*values) or float((values[0] - values[1]).abs().nan_to_num().max())
    row = {f"{label}_s": round(statistics.median(each), 4) for label, each in seconds.items()}
    ratios = {"ratio": round(math.exp(logs.mean()), 3), "upper": round(math.exp(logs.mean() + error), 3)}
    return {"name": name, **row, **ratios, "same": agreement}


def main() -> None:
    """Print one row per job."""
    parser = arguments(__doc__)
    parser.add_argument("commit")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--only", nargs="+", choices=JOBS, metavar="NAME", help="only these jobs")
    options = parser.parse_args()
    if options.turns < 2:
        parser.error("--turns: expected at least 2, of which an interval can be made")
    machine()
    with checked_out(options.commit) as tree, worker(tree) as old, worker(ROOT) as new:
        for name in options.only or JOBS:
            show(**compared(old, new, name, options.turns))


if __name__ == "__main__":
    main()

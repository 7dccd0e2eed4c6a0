"""Has a change made anything slower? An older commit and this tree take turns on the same jobs, in one run.

    python -m benchmarks.beside_commit COMMIT [--turns 10] [--only z resid_pre]

Each tree runs in a process of its own, with its own code, kept alive; a turn runs every job in both, in an order that
changes from turn to turn. A job that takes less than a third of a second is repeated within its turn until it does.
Each row is one JSON line:

    name            the job; those named as in `benchmarks.sweeps` have its shapes
    old_s, new_s    median seconds of either tree
    ratio           new / old, the geometric mean over turns
    upper           upper bound of its 95% interval (t over the turns' logarithms)
    same            whether both trees gave the same numbers, and else the largest difference
"""

import argparse
import json
import math
import os
import platform
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

Job = Callable[[], object]
ROOT = Path(__file__).resolve().parents[1]
LEAST = 1 / 3  # seconds that a job is repeated for
PROMPTS, POSITIONS, FIRST = 8, 16, 8  # of a sweep, as in `benchmarks.floor`


# In a tree's own process. Only names that both trees have are used, and what is found is compared as flat numbers.

SMALL, GPT2 = (4, 8, 256, 4_096), (12, 12, 768, 50_257)  # layers, heads, d_model, vocabulary


@cache
def model_of(shape: tuple[int, int, int, int]):
    """A decoder of some shape with random weights."""
    import torch

    from interp import StackConfig, Transformer, TransformerConfig

    layers, heads, width, vocabulary = shape
    torch.manual_seed(0)
    sizes = {"n_layers": layers, "n_heads": heads, "d_model": width, "d_head": width // heads, "d_mlp": 4 * width}
    stack = StackConfig(**sizes, n_ctx=1_024, d_vocab=vocabulary, causal=True)
    return Transformer(TransformerConfig(decoder=stack, output="tied"))


@cache
def loaded(name: str):
    from models import load

    return load(name)


def pairs_of(model):
    import torch

    from interp.patching import Pairs

    d_vocab = model.config.d_vocab
    generator = torch.Generator().manual_seed(1)
    clean = torch.randint(d_vocab, (PROMPTS, POSITIONS), generator=generator)
    corrupt = clean.clone()
    corrupt[:, FIRST] = (clean[:, FIRST] + 1) % d_vocab
    return Pairs.from_ids(model, clean, corrupt, *torch.randint(d_vocab, (2, PROMPTS), generator=generator))


def swept(shape: tuple[int, int, int, int], site: str, *axes: str) -> Job:
    from interp.patching import logit_difference, sweep

    model = model_of(shape)
    pairs = pairs_of(model)
    return lambda: sweep(model, pairs, logit_difference(), site, ("layer", *axes)).values["logit_difference"]


def forward(prompts: int, positions: int) -> Job:
    import torch

    from interp import run

    ids = torch.randint(GPT2[-1], (prompts, positions), generator=torch.Generator().manual_seed(3))
    return lambda: run(model_of(GPT2), ids, capture="decoder.*.attn.z").logits


def paths() -> Job:
    from interp.patching import Receiver, logit_difference, path_patch

    model = model_of(SMALL)
    pairs, ends = pairs_of(model), [*(Receiver("q", 3, head) for head in range(4)), Receiver("v", 2)]
    return lambda: path_patch(model, pairs, logit_difference(), ends, through="mlps").values["logit_difference"]


def searched() -> Job:
    from interp.patching import logit_difference, top_cells

    model = model_of(SMALL)
    pairs, by = pairs_of(model), ("layer", "head", "position")
    return lambda: [len(top_cells(model, pairs, logit_difference(), k=3, by=by).cells)]


def knocked_out(name: str) -> Job:
    import torch

    from interp import TokenBatch

    try:
        from interp.patching import Claim, knock_out
    except ImportError:  # before they were exported there
        from interp.patching.knockout import Claim, knock_out
    rng, width = random.Random(0), 60
    texts = TokenBatch.from_rows([[rng.randrange(100, 1_000) for _ in range(width)] for _ in range(6)])
    claims = []
    for at in range(96):
        queries = sorted(rng.sample(range(2, width - 1), rng.randint(1, 4)))
        keys = torch.zeros(len(queries), width, dtype=torch.bool)
        for row, query in enumerate(queries):
            keys[row, rng.randrange(query)] = True
        claims.append(Claim(at % 6, torch.tensor(queries), keys))
    return lambda: knock_out(loaded(name), texts, claims)


def measured(name: str) -> Job:
    import numpy as np

    from analyses import coreference, corpora, part_of_speech, position

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
    "forward_z 8x16": partial(forward, 8, 16),
    "forward_z 4x128": partial(forward, 4, 128),
    "forward_z 1x512": partial(forward, 1, 512),
    "small_pattern": partial(swept, SMALL, "pattern", "head", "query"),
    "paths": paths,
    "search": searched,
    "knock-outs default": partial(knocked_out, "default"),
    "statistics default": partial(measured, "default"),
    "statistics minilm": partial(measured, "minilm"),
}


def serve() -> None:
    """Run the job that each line names, and answer with its seconds; numbers go to the file that a line gives."""
    import torch

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


# In the process that compares.


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """The tree of a commit, for as long as the block lasts."""
    with TemporaryDirectory() as folder:
        place = Path(folder) / "tree"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", place, commit], cwd=ROOT, check=True)
        try:
            yield place
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", place], cwd=ROOT, check=True)


class Worker:
    """A tree's own process, which runs one job a line."""

    def __init__(self, tree: Path):
        self.tree = tree
        environment = os.environ | {"PYTHONPATH": str(tree), "HF_HUB_OFFLINE": "1"}
        code = f"import runpy; runpy.run_path({str(Path(__file__))!r})['serve']()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], cwd=tree, env=environment, text=True, stdin=-1, stdout=-1
        )

    def run(self, name: str, file: Path | None = None) -> float:
        """Seconds that the job took."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{name}\t{file or ''}\n")
        self.process.stdin.flush()
        if not (line := self.process.stdout.readline()):
            raise SystemExit(f"{name} failed in {self.tree}: see above")
        return float(json.loads(line))

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def compared(old: Worker, new: Worker, names: list[str], turns: int) -> Iterator[dict[str, object]]:
    """Every job's row."""
    import torch
    from scipy.stats import t

    with TemporaryDirectory() as folder:
        for name in names:
            values = []
            for label, worker in (("old", old), ("new", new)):
                worker.run(name, Path(folder) / label)
                values.append(torch.load(Path(folder) / label, weights_only=True))
            taken: dict[str, list[float]] = {"old": [], "new": []}
            for turn in range(turns):
                both = [("old", old), ("new", new)]
                for label, worker in both[:: -1 if turn % 2 else 1]:
                    taken[label].append(worker.run(name))
            logs = [math.log(mine / theirs) for theirs, mine in zip(taken["old"], taken["new"], strict=True)]
            mean, error = statistics.mean(logs), statistics.stdev(logs) / len(logs) ** 0.5
            same = torch.equal(*values) or float((values[0] - values[1]).abs().nan_to_num().max())
            yield {
                "name": name,
                "old_s": round(statistics.median(taken["old"]), 4),
                "new_s": round(statistics.median(taken["new"]), 4),
                "ratio": round(math.exp(mean), 3),
                "upper": round(math.exp(mean + t.ppf(0.975, turns - 1) * error), 3),
                "same": same,
            }


def main() -> None:
    parser = argparse.ArgumentParser(description="An older commit and this tree take turns on the same jobs.")
    parser.add_argument("commit")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--only", nargs="+", choices=JOBS, metavar="NAME", help="only these jobs")
    options = parser.parse_args()
    if options.turns < 2:
        parser.error("--turns: expected at least 2, of which an interval can be made")
    names = options.only or [*JOBS]
    busy = os.getloadavg()[0]
    print(json.dumps({"machine": platform.machine(), "cores": os.cpu_count(), "load_before": round(busy, 2)}))
    with checked_out(options.commit) as tree:
        old, new = Worker(tree), Worker(ROOT)
        try:
            for row in compared(old, new, names, options.turns):
                print(json.dumps(row), flush=True)
        finally:
            old.end()
            new.end()


if __name__ == "__main__":
    main()

"""How long does it take to load a model of a billion parameters, and how much memory, compared with `transformers`?

Builds a random Llama of Llama 3.2 1B's shape in bfloat16 shards, and loads it in separate processes that alternate.
Prints medians of the load's seconds and of the process's peak resident memory above its start, in multiples of the
weights' bytes. Resident memory includes pages of mapped files. Each process first loads and runs a tiny model, so
imports do not count; the files are in the system's cache. A first pass over 8 tokens follows, because a loader may
leave work to it: `transformers` leaves weights of unchanged dtype in the mapped files, so its load reads nothing. On a
busy machine compare CPU seconds.

    python -m benchmarks.loading              # about 5 GB of disk and 8 GB of memory
    python -m benchmarks.loading --quick
"""

import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.console import apart, arguments, machine
from benchmarks.floor import Peak

LLAMA_1B = {
    "vocab_size": 128_256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 4096,
}
QUICK = LLAMA_1B | {"vocab_size": 32_000, "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 4}
TINY = LLAMA_1B | {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1}
WAYS = {
    ("interp", "bfloat16"): {},
    ("transformers", "bfloat16"): {},
    ("interp", "float32"): {},
    ("transformers", "float32"): {},
    ("interp", "bfloat16 to int8"): {"quantize": "int8"},
}
GB = 1e9


def configured(fields: dict[str, int]) -> Any:
    """A configuration of `transformers`."""
    from transformers import LlamaConfig

    return LlamaConfig(**fields, tie_word_embeddings=True, rope_parameters={"rope_theta": 5e5, "rope_type": "default"})


def build(directory: Path, fields: dict[str, int]) -> None:
    """Write a random model in shards of about 600 MB."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(configured(fields), dtype=torch.bfloat16)
    model.save_pretrained(directory, max_shard_size="600MB")


def measure(side: str, directory: Path, dtype: str, settings: dict[str, str]) -> dict[str, float]:
    """Seconds and peak memory (bytes) of a load and of the first pass after it."""
    ids = torch.arange(8)[None]
    if side == "interp":
        from interp import run
        from models import load

        def opened(where: Path) -> object:
            return load(where, dtype=getattr(torch, dtype), **settings)

        def first_pass(model: object) -> torch.Tensor:
            return run(model, ids).logits
    else:
        from transformers import AutoModelForCausalLM

        def opened(where: Path) -> object:
            return AutoModelForCausalLM.from_pretrained(where, dtype=getattr(torch, dtype))

        def first_pass(model: object) -> torch.Tensor:
            with torch.no_grad():
                return model(ids).logits

    def seconds(job: Callable[[], object]) -> tuple[object, float, float]:
        began, worked = time.perf_counter(), time.process_time()
        return job(), time.perf_counter() - began, time.process_time() - worked

    with tempfile.TemporaryDirectory() as tiny:
        build(Path(tiny), TINY)
        first_pass(opened(Path(tiny)))
    with Peak() as all_of_it:
        with Peak() as loading:
            model, load_s, load_cpu_s = seconds(lambda: opened(directory))
        logits, pass_s, pass_cpu_s = seconds(lambda: first_pass(model))
    return {
        **{"seconds": load_s, "cpu_seconds": load_cpu_s, "peak": loading.mb * 2**20},
        **{"pass_seconds": pass_s, "pass_cpu_seconds": pass_cpu_s},
        # the inner Peak resets the outer's high-water mark, so the larger of the two is the peak of both
        "pass_peak": max(loading.mb, all_of_it.mb) * 2**20,
        "logit": float(logits.double().norm()),
    }


def compare(directory: Path, n_parameters: int, repeats: int) -> list[dict[str, object]]:
    """One row per way of loading: medians over processes; the ways alternate."""
    runs: dict[tuple[str, str], list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(repeats):
        for (side, kind), settings in WAYS.items():
            try:
                runs[side, kind].append(apart(measure, side, directory, kind.split()[0], settings))
            except Exception as error:
                print(f"{side} {kind}: {error}")
    rows = []
    for (side, kind), measured in runs.items():
        if measured:
            middle = {name: statistics.median(run[name] for run in measured) for name in measured[0]}
            rows.append(
                {"side": side, "kind": kind, "weights": n_parameters * (4 if kind == "float32" else 2), **middle}
            )
    return rows


def table(rows: list[dict[str, object]]) -> str:
    head = "| loader | dtype | load, s (CPU s) | peak, GB | peak / weights | a pass, s (CPU s) | peak, GB | logits |"
    lines = [head, "|---" * 8 + "|"]
    for row in rows:
        lines.append(
            f"| {row['side']} | {row['kind']} | {row['seconds']:.2f} ({row['cpu_seconds']:.2f}) "
            f"| {row['peak'] / GB:.2f} | {row['peak'] / row['weights']:.2f} "
            f"| {row['pass_seconds']:.2f} ({row['pass_cpu_seconds']:.2f}) "
            f"| {row['pass_peak'] / GB:.2f} | {row['logit']:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = arguments(__doc__, quick="a model of 90 million parameters", smallest="a model of a single narrow layer")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--directory", type=Path, help="keep the model here, and reuse it")
    options = parser.parse_args()
    fields = TINY if options.smallest else QUICK if options.quick else LLAMA_1B
    from transformers import AutoModelForCausalLM

    with tempfile.TemporaryDirectory() as temporary:
        directory = options.directory or Path(temporary)
        with torch.device("meta"):
            n_parameters = AutoModelForCausalLM.from_config(configured(fields)).num_parameters()
        if (free := shutil.disk_usage(temporary).free) < 3 * n_parameters:
            sys.exit(f"{2 * n_parameters / GB:.1f} GB of disk are needed, {free / GB:.1f} are free: try --quick")
        if not (directory / "config.json").exists():
            build(directory, fields)
        machine("transformers", parameters=n_parameters, **fields)
        print(table(compare(directory, n_parameters, options.repeats)))


if __name__ == "__main__":
    main()

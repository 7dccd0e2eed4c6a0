"""What does it cost to bring in a model in memory, and are sweeps slower on another library's weight layout?

    python -m benchmarks.wrapping [--quick]     # some 4 GB of memory, half a gigabyte of disk

Brings in random models of `transformers` of GPT-2 small's size in three ways, each in a separate process:

    wrap         `models.wrap(theirs)`: shares weights that have our layout
    wrap, copy   `models.wrap(theirs, copy=True)`: copies all weights, laid out as by `load`
    write, load  the way without `wrap`: `theirs.save_pretrained(directory)`, then `models.load(directory)`

Prints a line about the machine, then JSON lines:

    weights_mb   our weights, in MB (10^6 bytes, as everywhere here)
    copied_mb    the part of these that is not shared
    seconds, cpu_seconds   of bringing it in
    peak_mb      growth of the process's peak resident memory meanwhile, beyond their model
    off          the largest difference of a logit from `write, load`, as a fraction of the largest logit

In float32 `wrap` copies nothing of GPT-2's 498 MB, 32% of a Llama's 611 MB (4 key/value heads of 12), 19% of BERT's 438
MB; `peak_mb` is 0.8, 206 and 89.

For decoders, also medians over repeats in one process, where the ways alternate:

    sweep_s      CPU seconds of a sweep of `z` by layer and head, 8 prompts of 16 tokens
    pass_s       CPU seconds of a pass over 8 texts of 64 tokens
"""

import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.console import apart, arguments, machine, show
from benchmarks.cost import pairs_of
from benchmarks.floor import Peak, Shape
from benchmarks.peers import gpt2
from interp import Transformer, run
from interp.patching import logit_difference, sweep
from models import load, wrap

SIZES = {
    "gpt2": {"n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024, "vocab_size": 50_257},
    "llama": {
        "num_hidden_layers": 12,
        "hidden_size": 768,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "intermediate_size": 2048,
        "max_position_embeddings": 1024,
        "vocab_size": 50_257,
    },
    "bert": {"vocab_size": 30_522},
}
QUICK = {"gpt2": {"n_layer": 2}, "llama": {"num_hidden_layers": 2}, "bert": {"num_hidden_layers": 2}}
CLASSES = {
    "gpt2": ("GPT2Config", "GPT2LMHeadModel"),
    "llama": ("LlamaConfig", "LlamaForCausalLM"),
    "bert": ("BertConfig", "BertForMaskedLM"),
}
MB = 1e6


def build(family: str, *, quick: bool) -> Any:
    """A random model of `transformers`, the same each time."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    config, kind = (getattr(transformers, name) for name in CLASSES[family])
    return kind(config(**SIZES[family] | (QUICK[family] if quick else {}))).eval()


def from_files(theirs: Any) -> Transformer:
    with tempfile.TemporaryDirectory() as directory:
        theirs.save_pretrained(directory)
        return load(directory)


WAYS: dict[str, Callable[[Any], Any]] = {
    "wrap": wrap,
    "wrap, copy": lambda theirs: wrap(theirs, copy=True),
    "write, load": from_files,
}


def bring_in(family: str, way: str, quick: bool) -> dict[str, float]:
    """Measure one way. Runs in a separate process that brings in a tiny model first."""
    warnings.simplefilter("ignore")
    WAYS[way](gpt2(Shape(1, 2, 8, 16), n_positions=8))
    theirs = build(family, quick=quick)
    with Peak() as peak:
        began, worked = time.perf_counter(), time.process_time()
        model = WAYS[way](theirs)
        seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - worked
    weights = sum(weight.nbytes for weight in model.parameters())
    ids = torch.randint(model.config.d_vocab, (2, 16), generator=torch.Generator().manual_seed(1))
    logits, expected = (run(each, ids).logits for each in (model, from_files(theirs)))
    return {
        "weights_mb": weights / MB,
        "copied_mb": (model.shares.copied_bytes if hasattr(model, "shares") else weights) / MB,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "peak_mb": peak.mb * 2**20 / MB,
        "off": float((logits - expected).abs().max() / expected.abs().max()),
    }


def race(family: str, repeats: int, quick: bool) -> dict[str, dict[str, float]]:
    """CPU seconds of sweeps and passes on shared weights and on copies."""
    theirs = build(family, quick=quick)
    models = {way: WAYS[way](theirs) for way in ("wrap", "wrap, copy")}
    shape = Shape(12, 12, 768, theirs.config.vocab_size)
    text = torch.randint(shape.vocabulary, (8, 64), generator=torch.Generator().manual_seed(2))
    jobs: dict[str, Callable[[Transformer], object]] = {
        "sweep_s": lambda model: sweep(model, pairs_of(model, shape), logit_difference()),
        "pass_s": lambda model: run(model, text).logits,
    }
    seconds: dict[tuple[str, str], list[float]] = {(way, job): [] for way in models for job in jobs}
    for repeat in range(repeats + 1):
        for job, ask in jobs.items():
            for way, model in models.items():
                began = time.process_time()  # the machine may have other work
                ask(model)
                if repeat:  # skip the first
                    seconds[way, job].append(time.process_time() - began)
    return {way: {job: statistics.median(seconds[way, job]) for job in jobs} for way in models}


def rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: float(f"{value:.3g}") for name, value in values.items()}


def main() -> None:
    parser = arguments(__doc__, quick="two layers")
    parser.add_argument("--only", choices=SIZES, help="models of one family")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    machine("transformers")
    for family in [options.only] if options.only else SIZES:
        for way in WAYS:
            show(family=family, way=way, **rounded(apart(bring_in, family, way, options.quick)))
        if family != "bert":
            for way, seconds in apart(race, family, options.repeats, options.quick).items():
                show(family=family, way=way, **rounded(seconds))


if __name__ == "__main__":
    main()

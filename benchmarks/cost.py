"""How do the seconds of a sweep grow with length, layers and prompts, and does its memory keep to the budget?

    python -m benchmarks.cost [--longest 1024] [--figure docs/figures/cost.png]

Sweeps `z` by layer and head in a random model of GPT-2 small's shape; clean and corrupted prompts differ at their
middle. Prints one JSON line a point:

    grown, at      what is varied, and its value; the rest is 12 layers, 8 prompts of 16 tokens (of length: 1 prompt)
    ours_s         seconds of the sweep
    one_forward_s  seconds of one plain forward a cell: cells x the median of some
    floor_s        as in `benchmarks.sweeps`
    budget_mb      what the sweep was allowed, and
    peak_mb        by how much the process's peak memory grew meanwhile
"""

import argparse
import json
import statistics
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import torch

from benchmarks.floor import GPT2, Peak, Shape, best_rate, multiply_adds, timed
from interp import StackConfig, Transformer, TransformerConfig, patch, run
from interp.config import Plain
from interp.initialisation import initialise
from interp.patching import Pairs, logit_difference, sweep

CPU = torch.device("cpu")
MB = 2**20


def model_of(shape: Shape) -> Transformer:
    """Random weights in GPT-2's arrangement."""
    stack = StackConfig(
        n_layers=shape.layers,
        d_model=shape.d_model,
        n_heads=shape.heads,
        d_head=shape.d_model // shape.heads,
        d_mlp=4 * shape.d_model,
        n_ctx=1024,
        d_vocab=shape.vocabulary,
        causal=True,
        mlp=Plain("gelu_tanh"),
    )
    model = Transformer(TransformerConfig(decoder=stack, output="tied"))
    initialise(model, 0)
    return model


def pairs_of(model: Transformer, shape: Shape) -> Pairs:
    """Random prompts that differ at one position."""
    generator = torch.Generator().manual_seed(1)
    clean = torch.randint(shape.vocabulary, (shape.prompts, shape.positions), generator=generator)
    corrupt = clean.clone()
    corrupt[:, shape.first] = (clean[:, shape.first] + 1) % shape.vocabulary
    return Pairs.from_ids(model, clean, corrupt, *torch.randint(shape.vocabulary, (2, shape.prompts)))


def points(longest: int) -> Iterator[tuple[str, int, Shape, int]]:
    """What is varied, its value, the shape and the budget in MB."""
    lengths = [length for length in (16, 32, 64, 128, 256, 512, 1024) if length <= longest]
    for length in lengths:
        yield "length", length, replace(GPT2, prompts=1, positions=length, first=length // 2), 2048
    for layers in (2, 4, 8, 12, 24):
        yield "layers", layers, replace(GPT2, layers=layers), 2048
    for prompts in (1, 4, 16, 64):
        yield "prompts", prompts, replace(GPT2, prompts=prompts), 2048
    for budget in (384, 768, 2048):
        length = min(longest, 256)
        yield "budget", budget, replace(GPT2, prompts=2, positions=length, first=length // 2), budget


def measure(grown: str, at: int, shape: Shape, budget: int) -> dict[str, object]:
    """One point, in a process of its own: memory that another has freed would hide what this one takes."""
    model = model_of(shape)
    pairs = pairs_of(model, shape)

    def ours() -> object:
        return sweep(model, pairs, logit_difference(), "z", budget=budget * MB)

    run(model, pairs.corrupt)  # what a forward pass itself takes is no sweep's
    with Peak() as peak:
        first, _ = timed(ours, CPU)
    seconds = statistics.median(timed(ours, CPU)[0] for _ in range(3 if first < 5 else 1))
    healthy = run(model, pairs.clean, capture="decoder.0.attn.z")["decoder.0.attn.z"]
    cells = [
        timed(lambda head=head: run(model, pairs.corrupt, edit={"decoder.0.attn.z": patch(healthy, head=head)}), CPU)[0]
        for head in (number % shape.heads for number in range(4))
    ]
    floor = multiply_adds(shape, "z", by_position=False) / best_rate(shape.d_model, CPU, torch.float32)
    return {
        "grown": grown,
        "at": at,
        "shape": str(shape),
        "ours_s": round(seconds, 4),
        "one_forward_s": round(statistics.median(cells[1:]) * shape.layers * shape.heads, 3),
        "floor_s": round(floor, 4),
        "budget_mb": budget,
        "peak_mb": round(peak.mb, 1),
    }


def draw(rows: list[dict[str, object]], file: Path) -> None:
    """Seconds against each of the three, and peak memory against the budget."""
    import pandas as pd

    from analyses.figures.style import GREY, INK, SOFT, panels, styled

    table = pd.DataFrame(rows)
    labels = {"length": "tokens in the prompt", "layers": "layers", "prompts": "prompts of 16 tokens"}
    series = [("one_forward_s", "one forward a cell", SOFT), ("ours_s", "sweep", INK), ("floor_s", "floor", GREY)]

    @styled
    def figure() -> None:
        title = "What does a sweep of every head cost? GPT-2 small's shape, float32, two processor cores"
        drawing, axes = panels(title, 4, height=2.6, columns=2)
        for axis, (grown, label) in zip(axes, labels.items(), strict=False):
            own = table[table["grown"] == grown]
            for column, name, colour in series:
                axis.plot(own["at"], own[column], "o-", color=colour, label=name, markersize=3.5)
            axis.set(xscale="log", yscale="log", xlabel=label, ylabel="seconds", title=f"By {grown}")
            axis.set_xticks(own["at"].tolist(), labels=[str(at) for at in own["at"]])
            axis.minorticks_off()
            axis.yaxis.set_major_formatter("{x:g}")
        axes[0].legend(frameon=False)
        own = table[table["grown"] == "budget"]
        ticks = range(len(own))
        axes[3].bar([tick - 0.2 for tick in ticks], own["budget_mb"], 0.4, color=GREY, label="budget")
        axes[3].bar([tick + 0.2 for tick in ticks], own["peak_mb"], 0.4, color=INK, label="peak growth")
        axes[3].set(xlabel="budget, MB", ylabel="MB", title="Memory, 2 prompts of 256 tokens")
        axes[3].set_xticks(list(ticks), labels=[str(budget) for budget in own["budget_mb"]])
        axes[3].legend(frameon=False)
        file.parent.mkdir(parents=True, exist_ok=True)
        drawing.savefig(file, dpi=110)

    figure()


def main() -> None:
    parser = argparse.ArgumentParser(description="What a sweep costs, by length, layers and prompts.")
    parser.add_argument("--longest", type=int, default=1024)
    parser.add_argument("--figure", type=Path, help="draw what was measured")
    parser.add_argument("--smallest", action="store_true", help="one point of a tiny model")
    options = parser.parse_args()
    rows = []
    tiny = Shape(1, 2, 8, 31, prompts=1)
    for point in [("layers", 1, tiny, 64)] if options.smallest else points(options.longest):
        with get_context("spawn").Pool(1) as process:
            rows.append(process.apply(measure, point))
        print(json.dumps(rows[-1]), flush=True)
    if options.figure:
        draw(rows, options.figure)


if __name__ == "__main__":
    main()

"""How does a sweep's time grow with length, layers and prompts, and does its memory stay within the budget?

    python -m benchmarks.cost [--longest 1024] [--figure docs/figures/cost.png]

Sweeps `z` by layer and head in a random model of GPT-2 small's shape; clean and corrupted prompts differ at their
middle. Prints one JSON line per point:

    grown, at      what varies, and its value; the rest is 12 layers, 8 prompts of 16 tokens (for length: 1 prompt)
    ours_s         seconds of the sweep
    one_forward_s  seconds of one plain forward per cell: cells x the median of some
    floor_s        as in `benchmarks.sweeps`
    budget_mb      the sweep's budget
    peak_mb        growth of the process's peak memory during the sweep
"""

import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.console import apart, arguments, curves, show
from benchmarks.floor import GPT2, Peak, Shape, best_rate, multiply_adds, timed
from interp import StackConfig, Transformer, TransformerConfig, patch, run
from interp.config import Plain
from interp.patching import Pairs, logit_difference, sweep
from models.initialisation import initialise

CPU = torch.device("cpu")
MB = 2**20
SERIES = {
    "one forward a cell": ("one_forward_s", "SOFT"),
    "sweep": ("ours_s", "INK"),
    "floor": ("floor_s", "GREY"),
    "budget": ("budget_mb", "GREY"),
    "peak growth": ("peak_mb", "INK"),
}
PANELS = {
    "length": "tokens in the prompt",
    "layers": "layers",
    "prompts": "prompts of 16 tokens",
    "budget": "budget, MB; 2 prompts of 256 tokens",
}


def model_of(shape: Shape, n_ctx: int = 1024) -> Transformer:
    """Random weights in GPT-2's arrangement."""
    stack = StackConfig(
        n_layers=shape.layers,
        d_model=shape.d_model,
        n_heads=shape.heads,
        d_head=shape.d_model // shape.heads,
        d_mlp=4 * shape.d_model,
        n_ctx=n_ctx,
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
    answers = torch.randint(shape.vocabulary, (2, shape.prompts), generator=generator)
    return Pairs.from_ids(model, *(ids.to(model.device) for ids in (clean, corrupt, *answers)))


def points(longest: int) -> Iterator[tuple[str, int, Shape, int]]:
    """What varies, its value, the shape and the budget in MB."""
    for length in (length for length in (16, 32, 64, 128, 256, 512, 1024) if length <= longest):
        yield "length", length, replace(GPT2, prompts=1, positions=length, first=length // 2), 2048
    for layers in (2, 4, 8, 12, 24):
        yield "layers", layers, replace(GPT2, layers=layers), 2048
    for prompts in (1, 4, 16, 64):
        yield "prompts", prompts, replace(GPT2, prompts=prompts), 2048
    for budget in (384, 768, 2048):
        length = min(longest, 256)
        yield "budget", budget, replace(GPT2, prompts=2, positions=length, first=length // 2), budget


def measure(shape: Shape, budget: int) -> dict[str, object]:
    """Measure one point."""
    model = model_of(shape)
    pairs = pairs_of(model, shape)

    def ours() -> object:
        return sweep(model, pairs, logit_difference(), "z", budget=budget * MB)

    run(model, pairs.corrupt)  # a forward pass's own memory does not count
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
        "shape": str(shape),
        "ours_s": round(seconds, 4),
        "one_forward_s": round(statistics.median(cells[1:]) * shape.layers * shape.heads, 3),
        "floor_s": round(floor, 4),
        "budget_mb": budget,
        "peak_mb": round(peak.mb, 1),
    }


def draw(rows: list[dict[str, object]], file: Path) -> None:
    """Draw seconds against each of the three, and peak memory against the budget."""
    panels = []
    for grown, label in PANELS.items():
        of_panel = [row for row in rows if row["grown"] == grown]
        columns = [*SERIES][3:] if grown == "budget" else [*SERIES][:3]
        lines = {name: [row[SERIES[name][0]] for row in of_panel] for name in columns}
        panels.append((f"By {grown}", label, [row["at"] for row in of_panel], lines))
    title = "What does a sweep of every head cost? GPT-2 small's shape, float32, two processor cores"
    curves(title, panels, {name: colour for name, (_, colour) in SERIES.items()}, file, "seconds, or MB")


def main() -> None:
    parser = arguments(__doc__, smallest="one point of a tiny model")
    parser.add_argument("--longest", type=int, default=1024)
    parser.add_argument("--figure", type=Path, help="draw what was measured")
    options = parser.parse_args()
    rows = []
    tiny = Shape(1, 2, 8, 31, prompts=1)
    for grown, value, shape, budget in [("layers", 1, tiny, 64)] if options.smallest else points(options.longest):
        rows.append({"grown": grown, "at": value, **apart(measure, shape, budget)})
        show(**rows[-1])
    if options.figure:
        draw(rows, options.figure)


if __name__ == "__main__":
    main()

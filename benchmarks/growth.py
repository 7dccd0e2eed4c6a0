"""How does the time of a labelled report grow with layers, heads, words and context?

    python -m benchmarks.growth [--quick] [--long LITBANK/coref] [--figure docs/figures/growth.png]

Reports of random decoders with the default's tokenizer, one process each. What stands still is 4 layers of 8 heads, a
stream of 256 and 100 generated tales of about 80 words, read whole. `--long` names a text of long documents, read in
windows of 64 to 512 tokens; without it context is left out, as no tale is so long. Random weights make no candidates,
so as many are forced through as in `benchmarks.reports`. Prints one JSON line a report, after one for the machine:

    grown, at      what is varied, and its value
    seconds        of reading and labelling by the clock, start-up and loading left out
    processor_s    of all threads and processes
    stages         seconds by the clock: attention, nulls, intervals and pairs, knock-outs, explanations, drawing
    load           of the machine before the row: a row is worth nothing where others were running
"""

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage

import pandas as pd
import torch
from matplotlib.ticker import LogLocator

from analyses import corpora, report
from analyses.figures.style import GREY, INK, PALE, panels, styled
from benchmarks.reports import force
from interp import StackConfig, Transformer, TransformerConfig
from interp.config import Plain
from interp.initialisation import initialise
from models import load

STAGES = {  # by how a stage's name in `run.json` begins or ends
    "knocking out": "knock-outs",
    "reading with heads that have learnt nothing": "nulls",
    "reading": "attention",
    "minimal pairs": "intervals, pairs",  # those of a behaviour, and the wait for them
    "intervals": "intervals, pairs",
    "comparing with rules": "intervals, pairs",
}
COLOURS = {"knock-outs": INK, "nulls": INK, "attention": GREY, "intervals, pairs": GREY, "the rest": PALE}
BROKEN = {"nulls", "intervals, pairs"}  # lines that tell two of one grey apart


@dataclass(frozen=True)
class Point:
    """A report that is timed."""

    layers: int = 4
    heads: int = 8
    context: int = 512
    corpus: str = "tales:100"


def points(long: str | None, quick: bool) -> Iterator[tuple[str, int, Point]]:
    """What is varied, its value, and the report."""
    base = Point(corpus="tales:25") if quick else Point()
    yield from (("layers", layers, replace(base, layers=layers)) for layers in (2, 4, 8, 16))
    yield from (("heads", heads, replace(base, heads=heads)) for heads in (4, 8, 16, 32))
    for tales in (12, 25, 50) if quick else (25, 50, 100, 200, 400):
        yield "tales", tales, replace(base, corpus=f"tales:{tales}")
    if long:
        yield from (("context", each, replace(base, context=each, corpus=long)) for each in (64, 128, 256, 512))


def measure(point: Point) -> dict[str, object]:
    """One report, in a process of its own."""
    stack = StackConfig(
        n_layers=point.layers,
        d_model=256,
        n_heads=point.heads,
        d_head=256 // point.heads,
        d_mlp=1024,
        n_ctx=point.context,
        d_vocab=4096,
        causal=True,
        mlp=Plain("gelu_tanh"),
    )
    model = Transformer(TransformerConfig(decoder=stack, output="tied"), load("default").tokenizer)
    initialise(model, 0)
    force()
    began, spent = time.perf_counter(), _processor_s()
    with tempfile.TemporaryDirectory() as folder:
        text = [corpora.read(point.corpus)]
        out = report.build(model, text, Path(folder) / "out", probes=False, experiments=False)
        stages = json.loads((out / "run.json").read_text())["stages"]
    found = {"seconds": time.perf_counter() - began, "processor_s": _processor_s() - spent}
    return {**{name: round(each, 1) for name, each in found.items()}, "stages": _summed(stages)}


def _processor_s() -> float:
    return sum(sum(getrusage(who)[:2]) for who in (RUSAGE_SELF, RUSAGE_CHILDREN))


def _summed(stages: dict[str, float]) -> dict[str, float]:
    """Seconds by the parts that are drawn."""
    found = dict.fromkeys(COLOURS, 0.0)
    for name, seconds in stages.items():
        part = next((part for end, part in STAGES.items() if name.endswith(end) or name.startswith(end)), "the rest")
        found[part] += seconds
    return {name: round(seconds, 1) for name, seconds in found.items()}


def draw(rows: list[dict[str, object]], file: Path) -> None:
    """Seconds by stage against what is varied."""
    table = pd.DataFrame(rows)
    kinds = table["grown"].drop_duplicates().tolist()
    labels = {
        "layers": "layers (8 heads each)",
        "heads": "heads a layer (stream of 256)",
        "tales": "tales of about 80 words",
        "context": "tokens of context, long documents",
    }

    @styled
    def figure() -> None:
        title = "What does a labelled report cost? Random decoders, float32, two processor cores"
        drawing, axes = panels(title, len(kinds), height=2.6, columns=2)
        for axis, grown in zip(axes, kinds, strict=False):
            own = table[table["grown"] == grown]
            for name, colour in COLOURS.items():
                seconds = [max(row[name], 0.05) for row in own["stages"]]
                line = "o--" if name in BROKEN else "o-"
                axis.plot(own["at"], seconds, line, color=colour, label=name, markersize=3)
            axis.plot(own["at"], own["seconds"], "o-", color=INK, label="in all", linewidth=2.4, markersize=4)
            axis.set(xscale="log", yscale="log", xlabel=labels[grown], ylabel="seconds", title=f"By {grown}")
            axis.set_xticks(own["at"].tolist(), labels=[str(at) for at in own["at"]])
            axis.minorticks_off()
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.yaxis.set_major_formatter("{x:g}")
        axes[0].legend(frameon=False, fontsize=7, ncols=2)
        file.parent.mkdir(parents=True, exist_ok=True)
        drawing.savefig(file, dpi=110)

    figure()


def main() -> None:
    """Print one JSON line a report."""
    parser = argparse.ArgumentParser(description="Labelled reports of growing models and texts.")
    parser.add_argument("--quick", action="store_true", help="25 tales")
    parser.add_argument("--smallest", action="store_true", help="one report, of a single layer on 10 tales")
    parser.add_argument("--long", help="a text of long documents, for context")
    parser.add_argument("--figure", type=Path, help="where to draw")
    options = parser.parse_args()
    machine = {"processor": platform.processor() or platform.machine(), "threads": torch.get_num_threads()}
    print(json.dumps({"name": "machine", **machine, "torch": torch.__version__}), flush=True)
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")  # as the command sets for itself
    rows: list[dict[str, object]] = []
    smallest = [("layers", 1, Point(1, 2, 128, "tales:10"))]
    for grown, at, point in smallest if options.smallest else points(options.long, options.quick):
        load_before = round(os.getloadavg()[0], 2)
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:  # its workers may have processes of their own
            found = pool.submit(measure, point).result()
        rows.append({"grown": grown, "at": at, **found, "load": load_before})
        print(json.dumps(rows[-1]), flush=True)
    if options.figure:
        draw(rows, options.figure)


if __name__ == "__main__":
    main()

"""How does a labelled report's time grow with layers, heads, words and context?

    python -m benchmarks.growth [--quick] [--long LITBANK/coref] [--figure docs/figures/growth.png]

Reports of random decoders with the default's tokenizer, one process each. The base point has 4 layers of 8 heads, a
stream of 256 and 100 generated tales of about 80 words, read whole. `--long` names a text of long documents, read in
windows of 64 to 512 tokens; without it context is left out, because no tale is that long. Random weights give no
candidates, so as many are forced as in `benchmarks.reports`. Prints a line about the machine, then one per report:

    grown, at      what varies, and its value
    seconds        wall-clock time of reading and labelling, without start-up and loading
    processor_s    CPU seconds of all threads and processes
    stages         wall-clock seconds: attention, nulls, intervals and pairs, knock-outs, explanations, drawing
    load           of the machine before the row: rows are worth nothing if other work was running
"""

import json
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from typing import Any

from analyses import corpora, report
from benchmarks.console import apart, arguments, curves, machine, show
from benchmarks.cost import model_of
from benchmarks.floor import Shape
from benchmarks.reports import force
from models import load

STAGES = {  # by how a stage's name in `run.json` begins or ends
    "knocking out": "knock-outs",
    "reading with heads that have learnt nothing": "nulls",
    "reading": "attention",
    "minimal pairs": "intervals, pairs",  # those of a behaviour, and the wait for them
    "intervals": "intervals, pairs",
    "comparing with rules": "intervals, pairs",
}
STYLES = {
    **{"knock-outs": "INK", "nulls": "INK --", "attention": "GREY", "intervals, pairs": "GREY --"},
    **{"the rest": "PALE", "in all": "INK - 2.4"},
}
LABELS = {
    "layers": "layers (8 heads each)",
    "heads": "heads a layer (stream of 256)",
    "tales": "tales of about 80 words",
    "context": "tokens of context, long documents",
}


@dataclass(frozen=True)
class Point:
    """A report to time."""

    layers: int = 4
    heads: int = 8
    context: int = 512
    corpus: str = "tales:100"


def points(long: str | None, quick: bool) -> Iterator[tuple[str, int, Point]]:
    """What varies, its value, and the report."""
    base = Point(corpus="tales:25") if quick else Point()
    yield from (("layers", layers, replace(base, layers=layers)) for layers in (2, 4, 8, 16))
    yield from (("heads", heads, replace(base, heads=heads)) for heads in (4, 8, 16, 32))
    for tales in (12, 25, 50) if quick else (25, 50, 100, 200, 400):
        yield "tales", tales, replace(base, corpus=f"tales:{tales}")
    if long:
        yield from (("context", each, replace(base, context=each, corpus=long)) for each in (64, 128, 256, 512))


def measure(point: Point) -> dict[str, object]:
    """Time one report."""
    model = model_of(Shape(point.layers, point.heads, 256, 4096), point.context)
    model.tokenizer = load("default").tokenizer
    force()
    began, spent = time.perf_counter(), _processor_s()
    with tempfile.TemporaryDirectory() as folder:
        text = [corpora.read(point.corpus)]
        out = report.build(model, text, Path(folder) / "out", probes=False, experiments=False)
        stages = json.loads((out / "run.json").read_text())["stages"]
    spans = {"seconds": time.perf_counter() - began, "processor_s": _processor_s() - spent}
    return {**{name: round(each, 1) for name, each in spans.items()}, "stages": _summed(stages)}


def _processor_s() -> float:
    return sum(sum(getrusage(who)[:2]) for who in (RUSAGE_SELF, RUSAGE_CHILDREN))


def _summed(stages: dict[str, float]) -> dict[str, float]:
    """Seconds by the parts in the figure."""
    parts = {name: 0.0 for name in STYLES if name != "in all"}
    for name, seconds in stages.items():
        part = next((part for end, part in STAGES.items() if name.endswith(end) or name.startswith(end)), "the rest")
        parts[part] += seconds
    return {name: round(seconds, 1) for name, seconds in parts.items()}


def draw(rows: list[dict[str, Any]], file: Path) -> None:
    """Draw seconds by stage against what varies."""
    panels = []
    for grown in dict.fromkeys(row["grown"] for row in rows):
        of_panel = [row for row in rows if row["grown"] == grown]
        lines = {name: [max(row["stages"][name], 0.05) for row in of_panel] for name in STYLES if name != "in all"}
        lines["in all"] = [row["seconds"] for row in of_panel]
        panels.append((f"By {grown}", LABELS[grown], [row["at"] for row in of_panel], lines))
    title = "What does a labelled report cost? Random decoders, float32, two processor cores"
    curves(title, panels, STYLES, file)


def main() -> None:
    """Print one JSON line per report."""
    parser = arguments(__doc__, quick="25 tales", smallest="one report, of a single layer on 10 tales")
    parser.add_argument("--long", help="a text of long documents, for context")
    parser.add_argument("--figure", type=Path, help="where to draw")
    options = parser.parse_args()
    machine()
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")  # as the command sets for itself
    rows = []
    smallest = [("layers", 1, Point(1, 2, 128, "tales:10"))]
    for grown, value, point in smallest if options.smallest else points(options.long, options.quick):
        load_before = round(os.getloadavg()[0], 2)
        rows.append({"grown": grown, "at": value, **apart(measure, point), "load": load_before})
        show(**rows[-1])
    if options.figure:
        draw(rows, options.figure)


if __name__ == "__main__":
    main()

"""Does memory grow with the corpus?

    python -m benchmarks.corpus_memory [--model default] [--stories 300 1500] [--figure docs/figures/memory.png]

Reads generated stories once for position, part of speech and coreference together, each corpus size in a process of its
own. Prints one JSON line a size: stories, tokens, seconds, and the process's peak resident memory, of which `loaded_mb`
was there before the first text was read.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STORIES = (300, 1_500, 5_000, 18_500)  # some 16,000 tokens to a million


class Stories:
    """A corpus that is made anew whenever it is read, so that it takes no memory of its own."""

    name = "stories"

    def __init__(self, count: int):
        self.count = count

    def __iter__(self) -> Iterator[object]:
        from models.stories import stories

        return iter(stories(self.count, seed=5))


def peak_mb() -> float:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)


def measure(model_name: str, count: int) -> None:
    """Measure one size in this process and print its line."""
    from analyses import coreference, part_of_speech, position
    from analyses.reading.collectors import collect
    from analyses.reading.windows import Reading
    from models import load

    model = load(model_name)
    loaded, began = peak_mb(), time.perf_counter()
    reading = Reading(model, Stories(count))
    found = collect(reading, [each.Collector(model) for each in (position, part_of_speech, coreference)])
    for each in found:
        if isinstance(each, Exception):
            raise each
        each.table()
    line = {
        "name": "corpus_memory",
        "model": model_name,
        "stories": count,
        "tokens": reading.counts["tokens"],
        "seconds": round(time.perf_counter() - began, 1),
        "loaded_mb": loaded,
        "peak_mb": peak_mb(),
    }
    print(json.dumps(line), flush=True)


def draw(lines: list[dict[str, float]], path: Path) -> None:
    """Peak memory against tokens read."""
    from analyses.figures.style import GREY, INK, WIDTH, legend, panels, styled

    @styled
    def figure() -> "Figure":
        question = "How much memory does it take to read a corpus for all three behaviours at once?"
        drawn, (axes,) = panels(question, height=2.7, width=WIDTH)
        tokens = [line["tokens"] for line in lines]
        axes.plot(tokens, [line["peak_mb"] for line in lines], "o-", color=INK, label="peak")
        axes.plot(tokens, [line["loaded_mb"] for line in lines], "o--", color=GREY, label="before the first text")
        axes.set(xscale="log", xlabel="tokens in the corpus", ylabel="resident memory (MB)")
        axes.set_ylim(bottom=0)
        legend(drawn, [axes])
        return drawn

    figure().savefig(path, dpi=110)


def main() -> None:
    """Start one process a size."""
    parser = argparse.ArgumentParser(description="Peak memory against the size of the corpus.")
    parser.add_argument("--model", default="default")
    parser.add_argument("--stories", type=int, nargs="+", default=list(STORIES))
    parser.add_argument("--figure", type=Path, help="draw the lines into this file")
    parser.add_argument("--here", action="store_true", help="measure in this process (for the processes it starts)")
    options = parser.parse_args()
    lines: list[dict[str, float]] = []
    for count in options.stories:
        if options.here:
            measure(options.model, count)
            continue
        command = [sys.executable, "-m", "benchmarks.corpus_memory", "--here", "--model", options.model]
        found = subprocess.run([*command, "--stories", str(count)], check=True, stdout=subprocess.PIPE, text=True)
        print(found.stdout, end="", flush=True)
        lines.append(json.loads(found.stdout))
    if options.figure and lines:
        draw(lines, options.figure)


if __name__ == "__main__":
    main()

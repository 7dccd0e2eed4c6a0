"""Does memory grow with the corpus?

    python -m benchmarks.corpus_memory [--model default] [--stories 300 1500] [--figure docs/figures/memory.png]

Reads generated stories once for position, part of speech and coreference together, each corpus size in a separate
process. Prints one JSON line per size: stories, tokens, seconds, and the process's peak resident memory; `loaded_mb` is
the part used before the first text.
"""

import resource
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.console import apart, arguments, curves, show

STORIES = (300, 1_500, 5_000, 18_500)  # some 16,000 tokens to a million
LINES = {"peak": "peak", "before the first text": "loaded"}


class Stories:
    """A corpus that is generated whenever it is read, so that it takes no memory."""

    name = "stories"

    def __init__(self, count: int):
        self.count = count

    def __iter__(self) -> Iterator[object]:
        from models.stories import stories

        return iter(stories(self.count, seed=5))


def peak_mb() -> float:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)


def measure(model_name: str, count: int) -> dict[str, float]:
    """Measure one size."""
    from analyses import coreference, part_of_speech, position
    from analyses.reading.windows import Reading
    from analyses.scoring.collectors import collect
    from models import load

    model = load(model_name)
    loaded, began = peak_mb(), time.perf_counter()
    reading = Reading(model, Stories(count))
    for result in collect(reading, [each.Collector(model) for each in (position, part_of_speech, coreference)]):
        if isinstance(result, Exception):
            raise result
        result.table()
    seconds = round(time.perf_counter() - began, 1)
    return {"tokens": reading.counts["tokens"], "seconds": seconds, "loaded_mb": loaded, "peak_mb": peak_mb()}


def main() -> None:
    """Start one process per size."""
    parser = arguments(__doc__)
    parser.add_argument("--model", default="default")
    parser.add_argument("--stories", type=int, nargs="+", default=list(STORIES))
    parser.add_argument("--figure", type=Path, help="draw the lines into this file")
    options = parser.parse_args()
    rows = []
    for count in options.stories:
        rows.append(apart(measure, options.model, count))
        show(name="corpus_memory", model=options.model, stories=count, **rows[-1])
    if options.figure:
        lines = {name: [row[f"{column}_mb"] for row in rows] for name, column in LINES.items()}
        title = "How much memory does it take to read a corpus for all three behaviours at once?"
        panel = "", "tokens in the corpus", [row["tokens"] for row in rows], lines
        curves(title, [panel], dict(zip(LINES, ("INK", "GREY --"), strict=True)), options.figure, "resident memory, MB")


if __name__ == "__main__":
    main()

"""Does memory grow with the corpus?

    python -m benchmarks.corpus_memory [--model default] [--stories 200 5000]

Reads generated stories once for position, part of speech and coreference together, each corpus size in a separate
process. Prints one JSON line per size: stories, tokens, seconds, and the process's peak resident memory; `loaded_mb` is
the part used before the first text.
"""

import resource
import time
from collections.abc import Iterator

from benchmarks.console import apart, arguments, show

STORIES = (200, 5_000, 18_500, 185_000)  # some 10,000 tokens to ten million


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
    options = parser.parse_args()
    for count in options.stories:
        show(name="corpus_memory", model=options.model, stories=count, **apart(measure, options.model, count))


if __name__ == "__main__":
    main()

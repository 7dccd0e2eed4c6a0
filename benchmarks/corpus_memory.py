"""Does memory grow with the corpus?

    python -m benchmarks.corpus_memory [--model default] [--sentences 200 2000]

Measures the position and part-of-speech analyses on generated stories cut into sentences, each corpus size in a process
of its own, and prints one JSON line a size: sentences, tokens, seconds, and the process's peak resident memory.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise


def sentences(count: int) -> Iterator[object]:
    """The first sentences of the generated stories, each a text of its own."""
    from dataclasses import replace

    from interp.annotation import ROOT
    from models.stories import stories

    made = 0
    for story in stories(None, seed=5):
        bounds = [*story.sentence_starts, len(story.words)]
        for start, stop in pairwise(bounds):
            if made == count:
                return
            made += 1
            assert story.heads is not None
            yield replace(
                story,
                words=story.words[start:stop],
                space_after=story.space_after[start:stop],
                tags=story.tags[start:stop] if story.tags else None,
                heads=tuple(head if head == ROOT else head - start for head in story.heads[start:stop]),
                relations=story.relations[start:stop] if story.relations else None,
                mentions=None,
                sentence_starts=(0,),
            )


class Sentences:
    """A corpus that can be read again and again."""

    name = "sentences of stories"

    def __init__(self, count: int):
        self.count = count

    def __iter__(self) -> Iterator[object]:
        return sentences(self.count)


def measure(model_name: str, count: int) -> None:
    """Measure one size in this process and print its line."""
    from analyses import part_of_speech, position
    from models import load

    model, corpus = load(model_name), Sentences(count)
    began = time.perf_counter()
    table = position.measure(model, corpus)
    part_of_speech.measure(model, corpus)
    line = {
        "name": "corpus_memory",
        "model": model_name,
        "sentences": count,
        "tokens": table.attrs["counts"]["tokens"],
        "seconds": round(time.perf_counter() - began, 1),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }
    print(json.dumps(line), flush=True)


def main() -> None:
    """Start one process a size."""
    parser = argparse.ArgumentParser(description="Peak memory against the size of the corpus.")
    parser.add_argument("--model", default="default")
    parser.add_argument("--sentences", type=int, nargs="+", default=[200, 2_000])
    parser.add_argument(
        "--here", action="store_true", help="measure in this process (used for the processes it starts)"
    )
    options = parser.parse_args()
    for count in options.sentences:
        if options.here:
            measure(options.model, count)
        else:
            command = [sys.executable, "-m", "benchmarks.corpus_memory", "--here", "--model", options.model]
            subprocess.run([*command, "--sentences", str(count)], check=True)


if __name__ == "__main__":
    main()

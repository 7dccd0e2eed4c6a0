"""Do we find every head that carries a phenomenon, for that phenomenon and no other?

    python -m benchmarks.phenomena [--models 20] [--pairs 24]

Plants heads that each carry one phenomenon, and as many heads that look and write at random, in random places. The
phenomena are agreement (two heads, one a quarter as strong), reflexives, and the thing that goes with a trade. The same
words make all planted heads look, and every sentence has nouns that the agreement heads look at. Prints one JSON line
per model and one for all:

    passed        phenomena that the model knows
    missing       planted heads that we do not find for their own phenomenon
    wrong         heads that we find for a phenomenon that they do not carry
    exact         in the last line: models with nothing missing and nothing wrong
"""

import random
import re
import tomllib
from pathlib import Path
from typing import Any

from analyses.suites.frames import paradigm
from analyses.suites.items import Suite
from analyses.suites.suite_run import find
from benchmarks.console import arguments, show
from interp import Transformer
from models.planted import Plan, Planted, antecedent, noise
from models.stories.lexicon import FEMININE_NAMES, MASCULINE_NAMES
from models.stories.writer import WORDS

FRAMES = tomllib.loads((Path(__file__).parent / "planted/phenomena.toml").read_text("utf-8"))
ASKING = [word for table in FRAMES.values() for word in table["slots"]["asks"].split()]  # all heads look from them
THIRDS, BASES = ([getattr(verb, form) for verb in WORDS["ALONE"]] for form in ("third", "base"))
CUES: dict[str, dict[str, list[str]]] = {  # the words that a head looks at, and the words that each makes likelier
    "agreement": {noun[number]: (THIRDS, BASES)[number] for noun in WORDS["PEOPLE"] for number in (0, 1)},
    "reflexives": {he: ["himself"] for he in MASCULINE_NAMES} | {she: ["herself"] for she in FEMININE_NAMES},
    "trade": {trade.noun: [trade.thing] for trade in WORDS["TRADES"]},
}
STRENGTHS = {"agreement": (4.0, 1.0), "reflexives": (4.0,), "trade": (4.0,)}
NOISE = 0.5


def suite(pairs: int, seed: int) -> Suite:
    """The suite with one draw of words."""
    return Suite("planted", tuple(paradigm(name, table, pairs=pairs, seed=seed) for name, table in FRAMES.items()))


def planted(texts: Suite, seed: int) -> tuple[Transformer, set[tuple[str, int, int]]]:
    """A model of two layers over a suite's words, and which head carries which phenomenon."""
    items = [item for each in texts.paradigms for item in each.items]
    words = {*re.findall(r"\w+|\.", " ".join(each.text for item in items for each in item.sentences.values()))}
    heads: list[tuple[str, Plan]] = [
        (name, antecedent({word: [*cues] for word in ASKING}, cues, strength=strength))
        for name, cues in CUES.items()
        for strength in STRENGTHS[name]
    ]
    heads += [("", noise(NOISE, 8 * seed + number)) for number in range(len(heads))]
    random.Random(seed).shuffle(heads)
    layers = heads[: len(heads) // 2], heads[len(heads) // 2 :]
    truth = {(name, n, m) for n, layer in enumerate(layers) for m, (name, _) in enumerate(layer) if name}
    words |= {word for cues in CUES.values() for cue, answers in cues.items() for word in (cue, *answers)} | {*ASKING}
    return Planted(sorted(words), [[plan for _, plan in layer] for layer in layers], n_ctx=16).build(), truth


def measured(seed: int, pairs: int) -> dict[str, Any]:
    """The line of one model."""
    texts = suite(pairs, seed)
    model, truth = planted(texts, seed)
    result = find(model, texts, seed=seed)
    heads = {(row.paradigm, int(row.layer), int(row.head)) for row in result.named.itertuples()}
    passed = int((result.accuracy["verdict"] == "passed").sum())
    return {"passed": passed, "missing": len(truth - heads), "wrong": len(heads - truth)}


def main() -> None:
    """Print one line per model, and one for all."""
    parser = arguments(__doc__)
    parser.add_argument("--models", type=int, default=20)
    parser.add_argument("--pairs", type=int, default=24)
    options = parser.parse_args()
    lines = []
    for seed in range(options.models):
        lines.append(measured(seed, options.pairs))
        show(model=seed, **lines[-1])
    show(models=len(lines), exact=sum(not line["missing"] and not line["wrong"] for line in lines))


if __name__ == "__main__":
    main()

"""Does a bootstrap keep fewer wrong edges than the top of the ranking, if large scores need not be real?

    python -m benchmarks.redundancy [--models 24]

Plants redundant induction among noise. Two heads remember the previous token. Three heads read it and predict what
followed, two of them weakly. Five heads look and write at random, far more strongly than the weak ones. Edges are
scored exactly on 24 pairs of 12 templates. Prints one JSON line per model and one for all:

    edges         edges in the stable circuit (their sign holds in .95 of resamples of templates)
    missing       edges between nodes that do the task, but not in the circuit
    wrong         its edges between other nodes; in the last line, their mean
    top           wrong edges among as many edges with the highest scores
    fewer         top - wrong; in the last line, with its 95% interval over models
    share         share of the whole effect that the stable circuit has alone, on 40 fresh pairs
    right         share of fresh prompts that it answers correctly alone
"""

import random
from typing import Any

import numpy as np

from benchmarks.console import arguments, show
from interp import Pairs, Transformer, logit_difference
from interp.circuits import Graph, edge_scores, faithfulness, from_edges, single_edges, stable, top
from interp.statistics import mean_interval
from models.planted import Planted, induction, noise, offset

FIRST, SECOND = ([f"{letter}{number}" for number in range(8)] for letter in "xy")
FILLERS = [f"f{number}" for number in range(12)]
STRENGTHS, NOISE = (8.0, 0.1, 0.05), 1.5
READERS = range(len(STRENGTHS))
TRUE = [
    *(("embed", f"0.{head}.v") for head in (0, 1)),
    *((f"0.{head}", f"1.{reader}.k") for head in (0, 1) for reader in READERS),
    *((f"1.{reader}", "logits") for reader in READERS),
]


def planted(seed: int) -> Transformer:
    """The model with one draw of noise."""
    heads = [noise(NOISE, 8 * seed + number) for number in range(5)]
    below = [offset(-1, remember=True), offset(-1, remember=True), *heads[:3]]
    above = [*map(induction, STRENGTHS), *heads[3:]]
    return Planted([*FIRST, *SECOND, *FILLERS], [below, above], n_ctx=8).build()


def prompts(model: Transformer, seed: int, n_templates: int) -> tuple[Pairs, list[str]]:
    """Pairs in which two words swap their successors, and the filler templates, each of two pairs."""
    draw, rows, templates = random.Random(seed), [], []
    for template in range(n_templates):
        clean, corrupt = draw.sample(FILLERS, 2), draw.sample(FILLERS, 2)
        for _ in range(2):
            (cue, foil), (right, wrong) = draw.sample(FIRST, 2), draw.sample(SECOND, 2)
            texts = [*clean, cue, right, foil, wrong, cue], [*corrupt, foil, right, cue, wrong, cue]
            rows.append((*map(" ".join, texts), right, wrong))
            templates.append(str(template))
    return Pairs.from_texts(model, *zip(*rows, strict=True)), templates


def measured(seed: int) -> dict[str, Any]:
    """The line of one model."""
    model = planted(seed)
    graph, (pairs, templates) = Graph.from_model(model), prompts(model, seed, 12)
    truth = from_edges(graph, TRUE)
    scores = edge_scores(single_edges(model, pairs, logit_difference()))
    circuit = stable(graph, scores, templates, share=0.95)
    wrong, largest = (circuit - truth).size, (top(graph, scores.mean(-1), circuit.size) - truth).size
    cells = faithfulness(model, prompts(model, seed + 1000, 20)[0], logit_difference(), circuit)
    share, right = float(cells.share()), float((cells.values["logit_difference"] > 0).double().mean())
    line: dict[str, Any] = {"edges": circuit.size, "missing": (truth - circuit).size, "wrong": wrong, "top": largest}
    return line | {"fewer": largest - wrong, "share": share, "right": right}


def main() -> None:
    """Print one line per model, and one for all."""
    parser = arguments(__doc__)
    parser.add_argument("--models", type=int, default=24)
    lines = []
    for seed in range(parser.parse_args().models):
        lines.append(measured(seed))
        show(model=seed, **lines[-1])
    mean, low, high, _ = mean_interval(np.array([line["fewer"] for line in lines]))
    means = {name: float(np.mean([line[name] for line in lines])) for name in ("wrong", "top", "share", "right")}
    show(models=len(lines), **means, fewer=mean, low=low, high=high)


if __name__ == "__main__":
    main()

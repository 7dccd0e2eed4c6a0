"""Planted induction with redundant heads among noise: is the circuit enough alone, and are fewer of its edges wrong?

Two heads remember the previous token, and any of three that read it predicts what followed, two of them weakly. Six
heads look and write at random, much more than the weak ones do, so what is large is not what is real.
"""

import random

import numpy as np
import pytest

from interp import Pairs, Transformer, logit_difference
from interp.circuits import Graph, faithfulness, from_edges
from interp.circuits.finding import edge_scores, single_edges, stable, top
from interp.statistics import mean_interval
from models.planted import Planted, induction, noise, offset

FIRST, SECOND, FILLERS = (
    [f"{letter}{number}" for number in range(count)] for letter, count in zip("xyf", (8, 8, 12), strict=True)
)
STRENGTHS, NOISE = (8.0, 0.1, 0.05), 1.5
N_MODELS = 8
READERS = range(len(STRENGTHS))
TRUE = [
    *(("embed", f"0.{head}.v") for head in (0, 1)),
    *((f"0.{head}", f"1.{reader}.k") for head in (0, 1) for reader in READERS),
    *((f"1.{reader}", "logits") for reader in READERS),
]


def planted(seed: int) -> Transformer:
    """The model of one draw of noise."""
    heads = [noise(NOISE, 8 * seed + number) for number in range(5)]
    below = [offset(-1, remember=True), offset(-1, remember=True), *heads[:3]]
    above = [*map(induction, STRENGTHS), *heads[3:]]
    return Planted([*FIRST, *SECOND, *FILLERS], [below, above], n_ctx=8).build()


def prompts(model: Transformer, seed: int, n_templates: int) -> tuple[Pairs, list[str]]:
    """Pairs in which two words exchange what follows them, and the templates of their fillers, two pairs each."""
    draw, rows, templates = random.Random(seed), [], []
    for template in range(n_templates):
        clean, corrupt = draw.sample(FILLERS, 2), draw.sample(FILLERS, 2)
        for _ in range(2):
            (asked, other), (right, wrong) = draw.sample(FIRST, 2), draw.sample(SECOND, 2)
            texts = [*clean, asked, right, other, wrong, asked], [*corrupt, other, right, asked, wrong, asked]
            rows.append((*map(" ".join, texts), right, wrong))
            templates.append(str(template))
    return Pairs.from_texts(model, *zip(*rows, strict=True)), templates


@pytest.mark.slow
def test_a_stable_circuit_is_enough_on_fresh_prompts_and_has_fewer_wrong_edges_than_the_top():
    fewer, right = [], []
    for seed in range(N_MODELS):
        model = planted(seed)
        graph = Graph.from_model(model)
        truth = from_edges(graph, TRUE)
        pairs, templates = prompts(model, seed, 12)
        scores = edge_scores(single_edges(model, pairs, logit_difference()))
        kept = stable(graph, scores, templates, share=0.95)
        largest = top(graph, scores.mean(-1), kept.size)
        assert (truth - kept).size == 0
        fewer.append((largest - truth).size - (kept - truth).size)
        fresh, _ = prompts(model, seed + 1000, 20)
        cells = faithfulness(model, fresh, logit_difference(), kept)
        assert float(cells.recovered()) == pytest.approx(1.0, abs=0.05)
        right.append((cells.values["logit_difference"] > 0).float().mean())
    assert np.mean(right) >= 0.95
    mean, low, *_ = mean_interval(np.array(fewer, dtype=float))
    assert mean > 0
    assert low > 0

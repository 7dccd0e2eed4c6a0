"""Faithfulness by size: MIB's areas by hand, circuits by rank, and random circuits."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import integrate
from tiny import model, token_ids

from interp import InputError, Pairs, logit_difference
from interp.circuits import Graph, faithfulness
from interp.circuits.finding import edge_scores
from interp.circuits.random_circuits import random_circuit, random_path
from interp.circuits.size_curves import SHARES, SizeCurve, circuits_by_size, size_curve
from interp.circuits.splits import Split
from interp.patching import edge_attribution
from interp.patching.results import Cells

GRAPH = Graph.from_model(model("gpt2"))
NAMED = Graph.from_model(model("gpt2"), positions=("A", "B"))


def curve(values: list[list[float]], shares: tuple[float, ...], groups: tuple[int, ...]) -> SizeCurve:
    """A curve of these values (circuit x prompt); keeping nothing gives 1, keeping everything 3."""
    table = torch.tensor(values, dtype=torch.float64)
    plain = torch.ones(table.shape[1], dtype=torch.float64)
    cells = Cells("", "denoise", ("circuit",), {"m": table}, {"m": 3 * plain}, {"m": plain}, kind="circuits")
    return SizeCurve(shares, (random_circuit(GRAPH, 3),) * len(shares), cells, groups)


@pytest.mark.parametrize(
    ("shares", "values", "expected"),
    [
        ((0.1, 0.5, 1.0), [0.0, 1.0, 1.0], (0.2 + 0.5, 0.2)),
        ((0.1, 0.5, 1.0), [2.0, 1.0, 0.5], (0.6 + 0.375, 0.2 + 0.125)),
        ((0.0, 0.5, 1.0), [1.5, 0.5, 1.5], (1.0, 0.5)),  # deviations above and below 1 do not cancel
        (SHARES, [1.0] * 10, (0.999, 0.0)),  # a perfect curve lacks only the first share
    ],
)
def test_areas_by_hand(shares, values, expected):
    areas = curve([[1 + 2 * value] * 3 for value in values], shares, (0, 1, 2)).areas()
    assert (areas["cpr"][0], areas["cmd"][0]) == pytest.approx(expected)


def test_the_areas_of_a_curve_are_those_of_its_means():
    random = np.random.default_rng(0)
    values, shares = 1 + 2 * random.random((3, 24)) + np.array([[-0.6], [0.2], [1.0]]), (0.1, 0.5, 1.0)
    result, means = curve(values.tolist(), shares, tuple(range(24))), (values.mean(1) - 1) / 2
    cpr, low, high = result.areas()["cpr"]
    assert low < cpr < high
    assert cpr == pytest.approx(integrate.trapezoid(means, shares))
    assert result.areas()["cmd"][0] == pytest.approx(integrate.trapezoid(np.abs(1 - means), shares))
    np.testing.assert_allclose(result.table()["faithfulness"], means)
    assert "CPR" in repr(result)


def test_the_interval_of_an_area_covers_it():
    shares, hits = (0.1, 0.5, 1.0), 0
    random = np.random.default_rng(1)
    for seed in range(150):
        values = 1 + 2 * (np.array([[0.2], [0.5], [1.4]]) + 0.3 * random.normal(size=(1, 20)))
        _, low, high = curve(values.tolist(), shares, tuple(range(20))).areas(seed=seed)["cmd"]
        hits += low <= integrate.trapezoid([0.8, 0.5, 0.4], shares) <= high
    assert hits / 150 > 0.95 - 2 * (0.95 * 0.05 / 150) ** 0.5


@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("grow", [False, True])
def test_a_curve_reports_on_prompts_that_chose_nothing(absolute, grow):
    tiny = model("gpt2")
    pairs = Pairs.from_ids(tiny, token_ids(8, 5), token_ids(8, 5, seed=1), 3, 4)
    split, shares = Split.from_pairs(pairs), (0.1, 0.4, 1.0)
    how = {"shares": shares, "absolute": absolute, "grow": grow}
    result = size_curve(tiny, split, logit_difference(), n_random=2, **how)
    scores = edge_scores(edge_attribution(tiny, split.choosing, logit_difference())).mean(-1)
    expected = circuits_by_size(GRAPH, scores, **how)
    assert [each.names() for each in result.circuits] == [each.names() for each in expected]
    assert [each.size for each in result.circuits] == [each.pruned().size for each in result.circuits]
    values = faithfulness(tiny, split.reporting, logit_difference(), expected).values["logit_difference"]
    torch.testing.assert_close(result.cells.values["logit_difference"], values)
    table = result.table()
    assert table["edges"].iloc[-1] == GRAPH.n_edges
    np.testing.assert_allclose(table[["faithfulness", "random", "random_low", "random_high"]].iloc[-1], 1.0)
    assert (table["random_low"] <= table["random_high"]).all()
    assert result.random.values["logit_difference"].shape == (6, len(split.reporting))
    alone = size_curve(tiny, split, logit_difference(), scores, n_random=0, **how)
    torch.testing.assert_close(alone.cells.values, result.cells.values)
    assert "random" not in alone.table()


@pytest.mark.parametrize("size", [1, 2, 7, 40, 75])
def test_a_random_circuit_has_its_size_and_no_dead_end(size):
    for seed in range(4):
        circuit = random_circuit(GRAPH, size, seed=seed)
        assert circuit.pruned().names() == circuit.names()
        assert size <= circuit.size <= size + (size == 2)  # besides embed -> logits, no second edge makes a path
    assert random_circuit(NAMED, size, seed=1).pruned().size == random_circuit(NAMED, size, seed=1).size >= size


def test_random_circuits_differ_and_a_path_leads_from_the_input_to_the_logits():
    assert len({tuple(random_circuit(GRAPH, 6, seed=seed).names()) for seed in range(9)}) > 5
    random = np.random.default_rng(0)
    for _ in range(30):
        path = random_path(GRAPH, random)
        assert GRAPH.receivers[path[0][1]] == "logits"
        assert GRAPH.senders[path[-1][0]] == "embed"
        for (sender, _), (_, receiver) in pairwise(path):
            assert GRAPH.parts[receiver, sender]
    assert random_circuit(GRAPH, 0).size == 0


def test_random_nodes_are_any_nodes_of_every_wiring():
    graph = Graph.from_model(model("post-norm decoder"))  # it has no edges
    sets = [random_circuit(graph, 3, kind="nodes", seed=seed) for seed in range(30)]
    assert {(each.kind, each.size) for each in sets} == {("nodes", 3)}
    assert {name for each in sets for name in each.names()} == {*graph.senders}
    assert random_circuit(graph, len(graph.senders), kind="nodes").names() == [*graph.senders]


def test_sizes_and_shares_that_there_are_not():
    with pytest.raises(InputError, match="at most 75 edges, got size=76"):
        random_circuit(GRAPH, 76)
    with pytest.raises(InputError, match="at most 9 nodes, got size=10"):
        random_circuit(GRAPH, 10, kind="nodes")
    for shares in ((), (0.5, 0.1), (0.0, 0.5), (0.5, 1.5)):
        with pytest.raises(InputError, match="growing shares of the edges"):
            circuits_by_size(GRAPH, torch.zeros(GRAPH.exists.shape), shares)

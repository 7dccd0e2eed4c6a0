"""Circuits known on paper, OR and AND of two heads: keeping, removing, completeness and minimality."""

from copy import deepcopy

import numpy as np
import pytest
import tiny
import torch

from interp import InputError, Pairs, TokenBatch, logit_difference
from interp.circuits import Graph, faithfulness, from_edges, from_nodes, whole
from interp.circuits.completeness import completeness, minimality
from interp.circuits.hypotheses import equivalence_test, hypotheses, independence_test, minimality_test
from interp.circuits.splits import Split
from tests.interp.patching.test_ablation import BLANK, CUE, saturating

LEFT, RIGHT = [[("embed", f"0.{head}.v"), (f"0.{head}", "mlp.0")] for head in (0, 1)]
LAST, IDLE = ("mlp.0", "logits"), ("embed", "0.0.q")
BOTH = [*LEFT, *RIGHT, LAST]
OR, AND = (0.0, 1.0), (1.0, 2.0)
GATES = {"or": OR, "and": AND}


def gate(name: str):
    """The model of a gate, and pairs that differ only in their last word."""
    model = saturating(*GATES[name], d_vocab=14)
    clean, corrupt = (TokenBatch.from_rows([[first, end] for end in range(2, 14)]) for first in (CUE, BLANK))
    return model, Pairs(clean, corrupt, torch.zeros(12, dtype=torch.long), torch.ones(12, dtype=torch.long))


def circuits(model, *edges):
    graph = Graph.from_model(model)
    return [from_edges(graph, each) for each in edges]


@pytest.mark.parametrize(("name", "keeping", "removing"), [("or", 1.0, 1.0), ("and", 0.0, 0.0)])
def test_keeping_finds_or_and_removing_finds_and(name, keeping, removing):
    model, pairs = gate(name)
    listed = circuits(model, [*LEFT, LAST], BOTH, [LEFT[1]], [LAST])
    removed = [whole(model) - circuit for circuit in listed]
    shares = faithfulness(model, pairs, logit_difference(), [*listed, *removed]).share()
    assert shares.tolist() == [keeping, 1.0, 0.0, 0.0, 0.0, 0.0, removing, 0.0]


@pytest.mark.parametrize("name", GATES)
def test_half_of_a_gate_is_not_complete_and_the_whole_is(name):
    model, pairs = gate(name)
    split = Split.from_pairs(pairs)
    half, full = circuits(model, [*LEFT, LAST], BOTH)
    table = completeness(model, split, logit_difference(), half).table()
    assert table["gap"].abs().max() == 1.0  # either path of OR suffices alone; one path of AND is not faithful
    assert table.loc[table["worst"], "gap"].abs().tolist() == [1.0]
    assert table["groups"].tolist() == [6] * len(table)
    result = completeness(model, split, logit_difference(), full)
    assert result.table()["gap"].tolist() == [0.0] * len(table)
    assert "Completeness: 22 rows" in repr(result)


def test_growth_finds_the_set_that_random_ones_miss():
    model, pairs = gate("or")
    half = circuits(model, [*LEFT, LAST, IDLE])[0]
    result = completeness(model, Split.from_pairs(pairs), logit_difference(), half, n_random=0, steps=1)
    table = result.table()
    assert table["removed"].tolist() == [0, 1]
    assert table["gap"].tolist() == [0.0, -1.0]
    assert result.removed[1].names()[0] in LEFT  # without the last edge, neither path does the task


@pytest.mark.parametrize("name", GATES)
def test_every_edge_of_a_gate_is_needed_somewhere_and_an_idle_one_nowhere(name):
    model, pairs = gate(name)
    circuit = circuits(model, [*BOTH, IDLE])[0]
    result = minimality(model, Split.from_pairs(pairs), logit_difference(), circuit)
    table = result.table().set_index("member")
    idle = " -> ".join(IDLE)
    assert table["gap"].drop(idle).tolist() == [1.0] * 5
    assert table.loc[idle, "gap"] == 0.0
    assert table.index[table["worst"]].tolist() == [idle]
    if name == "or":  # a path's role shows only without the other
        names = [" -> ".join(edge) for edge in (*LEFT, *RIGHT)]
        assert (table.loc[names, "removed"] > 0).all()
    assert f"chosen: {idle}" in repr(result)


def test_sets_of_nodes_have_the_same_definitions():
    model, pairs = gate("or")
    circuit = from_nodes(Graph.from_model(model), ["embed", "0.0", "0.1", "mlp.0"])
    assert circuit.size == whole(model, "nodes").size
    split = Split.from_pairs(pairs)
    table = minimality(model, split, logit_difference(), circuit).table().set_index("member")
    assert table.loc[["embed", "mlp.0"], "removed"].tolist() == [0, 0]
    assert table["gap"].tolist() == [1.0] * 4
    with pytest.raises(InputError, match="no member"):
        minimality(model, split, logit_difference(), circuit - circuit)


class TestHypotheses:
    def test_a_gate_passes_and_what_it_lacks_or_does_not_need_is_rejected(self):
        model, pairs = gate("and")
        ideal, half, loose = circuits(model, BOTH, [*LEFT, LAST], [*BOTH, IDLE])
        p = {
            name: hypotheses(model, pairs, logit_difference(), circuit).set_index("test")
            for name, circuit in (("ideal", ideal), ("half", half), ("loose", loose))
        }
        assert p["ideal"]["p"].tolist() == [1.0, 1.0, 1.0]
        assert p["half"].loc["equivalence", "p"] < 0.05
        assert p["loose"].loc["minimality", "p"] < 0.05
        assert p["loose"].loc["minimality", "member"] == " -> ".join(IDLE)
        with pytest.raises(InputError, match="holds everything"):
            hypotheses(model, pairs, logit_difference(), whole(model))

    def test_equivalence_keeps_its_level_at_the_margin_and_ties_tell_nothing(self):
        random = np.random.default_rng(0)
        rejected = {share: 0 for share in (0.5, 0.6, 0.9)}
        for share in rejected:
            for _ in range(400):
                above = random.random(30) < share
                rejected[share] += equivalence_test(above * 1.0, np.full(30, 0.5)) <= 0.05
        assert rejected[0.5] <= rejected[0.6] <= 400 * (0.05 + 2 * (0.05 * 0.95 / 400) ** 0.5)
        assert rejected[0.6] > 0
        assert rejected[0.9] > 300
        assert equivalence_test(np.ones(9), np.ones(9)) == 1.0
        # by hand: five of five above; P(0 or 5 | .6) = .4^5 + .6^5
        assert equivalence_test(np.ones(5), np.zeros(5)) == pytest.approx(0.4**5 + 0.6**5)
        assert equivalence_test(np.r_[np.ones(5), 3], np.r_[np.zeros(5), 3]) == pytest.approx(0.4**5 + 0.6**5)

    def test_independence_keeps_its_level_and_sees_what_correlation_does_not(self):
        random = np.random.default_rng(0)
        level = sum(
            independence_test(*random.normal(size=(2, 25)), resamples=99, seed=seed) <= 0.05 for seed in range(300)
        )
        assert 0.05 - 2 * (0.05 * 0.95 / 300) ** 0.5 <= level / 300 <= 0.05 + 2 * (0.05 * 0.95 / 300) ** 0.5
        x = random.normal(size=60)
        assert independence_test(x**2 + 0.1 * random.normal(size=60), x) < 0.01
        assert independence_test(np.zeros(60), x) == 1.0  # no variance is left

    def test_minimality_keeps_its_level_at_the_quantile_and_is_corrected(self):
        random = np.random.default_rng(0)
        rejected = {share: 0 for share in (0.9, 0.5)}
        for share in rejected:
            for _ in range(400):
                draws = np.where(random.random(100) < share, 0.0, 2.0)
                rejected[share] += minimality_test(np.ones(1), draws)[0] <= 0.05
        assert 0 < rejected[0.9] <= 400 * (0.05 + 2 * (0.05 * 0.95 / 400) ** 0.5)
        assert rejected[0.5] == 400
        p = minimality_test(np.array([1.0, 0.0]), np.r_[np.zeros(20) + 0.5, 2.0])
        assert p[1] == pytest.approx(2 * 0.1**21)
        assert p[0] == 1.0

    def test_prompts_of_one_group_are_one_observation(self):
        model, pairs = gate("and")
        half = circuits(model, [*LEFT, LAST])[0]
        table = hypotheses(model, pairs, logit_difference(), half, [*"abc"] * 4, n_random=5).set_index("test")
        assert table.loc["equivalence", "n"] == 3
        assert table.loc["equivalence", "p"] == pytest.approx(0.4**3 + 0.6**3)

    def test_what_rounding_moves_counts_as_equal(self):
        model = deepcopy(tiny.model("gpt2", dtype=torch.float32))
        with torch.no_grad():
            model.last.blocks[0].attn.out.weight[:, :5].zero_()  # the first head writes nothing
        pairs = Pairs.from_ids(model, tiny.token_ids(12, 5), tiny.token_ids(12, 5, seed=1), 3, 4)
        circuit = whole(model) - circuits(model, [("0.0", "logits")])[0]
        cells = faithfulness(model, pairs, logit_difference(), circuit)
        assert (cells.values["logit_difference"] != cells.clean["logit_difference"]).any()
        table = hypotheses(model, pairs, logit_difference(), circuit, n_random=1, margin=0.0).set_index("test")
        assert table.loc["equivalence", "p"] == 1.0

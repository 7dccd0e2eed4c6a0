"""Sets of edges and nodes chosen by scores: by rank, grown from the logits, and by signs stable over resamples."""

import pytest
import torch
from tiny import model, pairs_of_two, ragged_pairs, two_stacks

from interp import InputError, logit_difference
from interp.circuits import Graph, empty, faithfulness, finding, from_edges, from_nodes, whole
from interp.circuits.finding import (
    edge_scores,
    greedy,
    node_attribution,
    node_scores,
    sign_shares,
    single_edges,
    stable,
    top,
)
from interp.patching import Metric, edge_attribution, kl_divergence, log_probability
from tests.interp.patching.settings import build


def scored(graph: Graph, **scores: float) -> torch.Tensor:
    """Scores of edges `sender__receiver`, 0 elsewhere."""
    table = torch.zeros(graph.exists.shape)
    for name, score in scores.items():
        sender, receiver = name.strip("_").replace("L", "").replace("_", ".").split("..")
        table[graph.index("senders")[sender], graph.index("receivers")[receiver]] = score
    return table


GRAPH = Graph.from_model(model("gpt2"))
# embed reaches the logits via head 0.1 and via the feed-forward; 1.2 is strong, but nothing kept feeds it
SCORES = scored(
    GRAPH, L1_2__logits=9, L0_1__logits=3, embed__L0_1_v=1, mlp_0__logits=-5, embed__mlp_0=-4, embed__logits=0.5
)


@pytest.mark.parametrize("name", ["gpt2", "no positions", "attention only"])
def test_a_nodes_attribution_is_that_of_its_edges_together(name):
    tiny, pairs = model(name), ragged_pairs()
    for direction in ("denoise", "noise"):
        cells = edge_attribution(tiny, pairs, log_probability(), direction, steps=1)
        nodes = node_attribution(tiny, pairs, log_probability(), direction)
        torch.testing.assert_close(node_scores(nodes), node_scores(cells), rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(nodes.effects(), cells.effects().nansum(1), rtol=1e-9, atol=1e-10)
        assert [*nodes.table()["sender"]] == [*Graph.from_model(tiny).senders]
        assert f"embed {nodes.mean()[0]:+.3g}" in nodes.largest(k=99)


def test_nodes_of_every_wiring_and_of_two_stacks_have_an_attribution():
    after, two = model("post-norm decoder"), two_stacks("mixed")
    for network, pairs in ((after, ragged_pairs()), (two, pairs_of_two("source"))):
        scores = node_scores(node_attribution(network, pairs, logit_difference()))
        assert scores.shape == (len(Graph.from_model(network).senders), len(pairs))
        assert scores.isfinite().all()
    names = Graph.from_model(two).senders
    assert scores[names.index("decoder.cross.1.3")].abs().max() > 1e-6


def test_one_edge_is_the_whole_graph_without_it_and_the_corrupted_run_with_it(monkeypatch):
    monkeypatch.setattr(finding, "_AT_ONCE", 2)
    tiny, pairs = build("pre"), ragged_pairs()
    edges = from_edges(Graph.from_model(tiny), [("embed", "0.1.v"), ("1.0", "mlp.1"), ("mlp.1", "logits")])
    metric = log_probability()
    noised = edge_scores(single_edges(tiny, pairs, metric, edges))
    cells = faithfulness(tiny, pairs, metric, [whole(tiny) - from_edges(edges.graph, [edge]) for edge in edges.names()])
    expected = cells.clean["log_probability"] - cells.values["log_probability"]
    torch.testing.assert_close(noised[edges.members], expected)
    assert noised[~edges.members].isnan().all()
    denoised = edge_scores(single_edges(tiny, pairs, metric, edges, "denoise"))
    unswapped = Metric(metric.name, lambda *_: metric.prepare(tiny, pairs))  # swapped pairs swap answers
    back = single_edges(tiny, pairs.swapped(), unswapped, edges)
    torch.testing.assert_close(denoised[edges.members], back.effects()[edges.members])


def test_edges_of_a_model_that_is_linear_in_its_stream_are_what_attribution_says():
    tiny, pairs = model("attention only"), ragged_pairs()
    edges = from_edges(Graph.from_model(tiny), [("embed", "logits"), ("0.1", "logits"), ("1.2", "logits")])
    for direction in ("noise", "denoise"):
        exact = edge_scores(single_edges(tiny, pairs, logit_difference(), edges, direction))
        estimate = edge_scores(edge_attribution(tiny, pairs, logit_difference(), direction, steps=1))
        torch.testing.assert_close(exact[edges.members], estimate[edges.members], rtol=1e-9, atol=1e-10)


def test_a_divergence_is_from_the_clean_prompts_in_both_directions():
    tiny, pairs = build("pre"), ragged_pairs()
    edges = from_edges(Graph.from_model(tiny), [("mlp.1", "logits")])
    assert (edge_scores(single_edges(tiny, pairs, kl_divergence(), edges))[edges.members] < 0).all()  # it can only grow
    cells = single_edges(tiny, pairs, kl_divergence(), edges, "denoise")
    assert cells.effects()[edges.members].abs().max() > 1e-3


def test_the_top_is_by_rank_and_pruning_takes_what_nothing_feeds():
    first = top(GRAPH, SCORES, 2)
    assert {*first.names()} == {("1.2", "logits"), ("0.1", "logits")}
    assert first.pruned().size == 0
    assert {*top(GRAPH, SCORES, 3).pruned().names()} == {("embed", "0.1.v"), ("0.1", "logits")}
    strong = top(GRAPH, SCORES, 4, absolute=True)
    assert {*strong.pruned().names()} == {("embed", "mlp.0"), ("mlp.0", "logits")}
    assert top(GRAPH, SCORES, GRAPH.n_edges).size == GRAPH.n_edges
    assert top(GRAPH, SCORES.masked_fill(~GRAPH.exists, torch.nan), 3).names() == top(GRAPH, SCORES, 3).names()
    assert top(GRAPH, torch.arange(9.0), 2).names() == [*GRAPH.senders[-2:]]  # scores of nodes


def test_growth_takes_the_strongest_edge_into_what_is_there():
    grown = greedy(GRAPH, SCORES, 4, absolute=True)
    # 1.2 leads to the logits, so it comes first, then the strongest edge into the logits or 1.2, and so on
    assert {*grown.names()} == {("1.2", "logits"), ("mlp.0", "logits"), ("embed", "mlp.0"), ("0.1", "logits")}
    signed = greedy(GRAPH, SCORES, 3)
    assert {*signed.names()} == {("1.2", "logits"), ("0.1", "logits"), ("embed", "0.1.v")}
    for n in (0, 1, 7, GRAPH.n_edges):
        assert greedy(GRAPH, SCORES, n).size == n


def test_a_sign_holds_in_as_many_resamples_as_its_groups_agree():
    values = torch.tensor([[1.0] * 6, [1, 1, 1, -1, -1, -1], [-2.0] * 6, [0.0] * 6, [1e-9] * 6])
    shares = sign_shares(values, range(6))
    assert shares[[0, 2]].tolist() == [1.0, 1.0]
    assert shares[1] < 0.6
    assert shares[3:].tolist() == [0.0, 0.0]  # neither 0 nor rounding noise has a sign
    # the -4 flips the sign if drawn twice: in 26% of resamples, or as one of two groups in 25%
    lone = torch.tensor([[1.0, 1.0, 1.0, 1.0, 1.0, -4.0]])
    assert sign_shares(lone, range(6), resamples=4000)[0] == pytest.approx(1 - 0.263, abs=0.02)
    assert sign_shares(lone, [*"aaaaab"], resamples=4000)[0] == pytest.approx(0.75, abs=0.02)
    assert sign_shares(values, range(6), seed=1).equal(sign_shares(values, range(6), seed=1))


def test_only_stable_edges_stay_and_by_default_those_that_help():
    scores = torch.zeros(*GRAPH.exists.shape, 8)
    scores[SCORES > 0] = 1.0
    scores[SCORES < 0] = -1.0
    scores[GRAPH.index("senders")["1.2"], -1] = torch.tensor([9.0, -8, 9, -8, 9, -8, 9, -8])  # large but uncertain
    circuit = stable(GRAPH, scores, range(8))
    assert {*circuit.names()} == {("0.1", "logits"), ("embed", "0.1.v"), ("embed", "logits")}
    assert stable(GRAPH, scores, range(8), absolute=True).size == 5
    with pytest.raises(InputError, match="share of resamples above one half"):
        stable(GRAPH, scores, range(8), share=0.5)
    with pytest.raises(InputError, match="expected a group for each of 8 prompts, got 3"):
        stable(GRAPH, scores, range(3))


def test_what_cannot_be_ranked_is_refused_in_a_line():
    tiny, pairs = model("gpt2"), ragged_pairs()
    with pytest.raises(InputError, match=r"expected a score for each edge, \(9, 21\), or for each node"):
        top(GRAPH, torch.zeros(3, 3), 1)
    with pytest.raises(InputError, match="grows along edges"):
        greedy(GRAPH, torch.arange(9.0), 2)
    for choose in (top, greedy):
        with pytest.raises(InputError, match="expected at most 75"):
            choose(GRAPH, SCORES, 76)
    with pytest.raises(InputError, match="expected scores of edges"):
        edge_scores(faithfulness(tiny, pairs, logit_difference(), empty(GRAPH)))
    with pytest.raises(InputError, match="ablation 'zero' has none"):
        single_edges(tiny, pairs, logit_difference(), direction="denoise", ablation="zero")
    with pytest.raises(InputError, match="without named positions"):
        single_edges(tiny, pairs, logit_difference(), from_nodes(GRAPH, ["0.1"]))

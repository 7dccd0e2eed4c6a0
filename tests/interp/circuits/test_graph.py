"""The nodes and edges of a model, sets of them, and what is refused."""

from dataclasses import replace

import pytest
import tiny
import torch

from interp import InputError, StackConfig, Transformer, TransformerConfig
from interp.circuits.graph import Circuit, check_circuit, empty, from_edges, from_nodes, whole
from interp.components import Graph
from interp.patching import edge_attribution, logit_difference

SMALL = StackConfig(n_layers=12, d_model=12, n_heads=12, d_head=1, d_mlp=1, n_ctx=3, d_vocab=3, causal=True)


def graph(name: str = "gpt2", **options) -> Graph:
    return Graph.from_model(tiny.model(name), **options)


def test_counts_are_those_of_mib_for_gpt2_small():
    graph = Graph.from_model(Transformer(TransformerConfig(decoder=SMALL)))
    assert (graph.n_nodes, graph.n_edges) == (158, 32_491)  # Mueller et al. 2025


@pytest.mark.parametrize("name", ["gpt2", "llama", "attention only"])
def test_names_and_edges_are_those_of_edge_attribution(name):
    model = tiny.model(name)
    cells, graph = edge_attribution(model, tiny.ragged_pairs(), logit_difference()), Graph.from_model(model)
    assert (cells.labels["sender"], cells.labels["receiver"]) == (graph.senders, graph.receivers)
    assert torch.equal(~cells.effects()[..., 0].isnan(), graph.exists)


def test_a_feed_forward_reads_the_heads_beside_it_but_not_in_parallel_blocks():
    edge = [("1.2", "mlp.1")]
    assert from_edges(graph(), edge).names() == edge
    with pytest.raises(InputError, match=r"no edge 1\.2 -> mlp\.1 in this graph"):
        from_edges(Graph.from_model(tiny.variant("parallel")), edge)


def test_shared_keys_are_inputs_of_every_head_that_reads_them():
    shared = graph("llama")  # six heads, two keys
    rows = dict(zip(shared.receivers, shared.parts.tolist(), strict=True))
    assert [shared.senders[i] for i, part in enumerate(rows["1.1.k"]) if part] == ["1.3", "1.4", "1.5"]
    assert [shared.senders[i] for i, part in enumerate(rows["1.1.q"]) if part] == ["1.1"]
    assert not any(rows["logits"])


def test_sets_are_those_of_their_members():
    base = graph()
    first, second = from_edges(base, [("0.0", "1.0.q"), ("embed", "logits")]), from_edges(base, [("embed", "logits")])
    assert (first - second).names() == [("0.0", "1.0.q")]
    assert (first & second).names() == second.names()
    assert (second | first).names() == first.names() == [("embed", "logits"), ("0.0", "1.0.q")]
    assert whole(base).size == base.n_edges
    assert empty(base).size == 0
    assert from_nodes(base, ["mlp.1", "0.2"]).names() == ["0.2", "mlp.1"]
    assert whole(base, "nodes").size == base.n_nodes - 1


def test_pruning_leaves_what_lies_on_a_way_from_an_input_to_the_logits():
    edges = [("embed", "0.0.q"), ("0.0", "mlp.0"), ("mlp.0", "1.1.v"), ("1.1", "logits")]
    dead = [("0.1", "1.0.q"), ("embed", "0.2.k"), ("1.0", "mlp.1"), ("mlp.1", "logits"), ("0.1", "mlp.1")]
    pruned = from_edges(graph(), edges + dead).pruned()
    assert {*pruned.names()} == {*edges}
    assert whole(graph()).pruned().size == graph().n_edges


def test_pruning_by_position_lets_keys_and_values_alone_change_position():
    positional = graph(positions=["S", "END"])
    across = [("S", "embed", "0.0.v"), ("END", "0.0", "logits")]
    stuck = [("S", "embed", "0.1.q"), ("END", "0.1", "logits")]
    assert from_edges(positional, across + stuck).pruned().names() == sorted(across, key=lambda edge: edge[0] == "END")
    assert positional.n_edges == 3 * graph().n_edges
    assert from_edges(positional, [("embed", "logits")]).size == 3


def test_embeddings_stand_apart_where_positions_add_a_vector():
    assert graph(embeddings="apart").senders[:3] == ("token", "position", "0.0")
    with pytest.raises(InputError, match="embeddings stand apart only where positions add"):
        graph("llama", embeddings="apart")


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (tiny.variant("after"), "edges are not defined where norms follow"),
        (tiny.variant("sandwich"), "edges are not defined where norms follow"),
        (tiny.two_stacks("original"), "edges are for models of one stack"),
    ],
)
def test_models_without_edges_have_nodes(model, reason):
    nodes = Graph.from_model(model)
    assert whole(nodes, "nodes").size == len(nodes.senders)
    with pytest.raises(InputError, match=reason):
        whole(nodes)
    with pytest.raises(InputError, match=reason):
        Graph.from_model(model, positions=["S"])


def test_nodes_of_two_stacks_have_the_stack_before_their_names():
    names = Graph.from_model(tiny.two_stacks("original")).senders
    assert {"encoder.embed", "encoder.1.2", "decoder.mlp.0", "decoder.cross.1.3"} <= {*names}
    assert len({*names}) == len(names)


def test_all_heads_normalised_as_one_have_no_edges():
    stack = replace(tiny.VARIANTS["norm over all heads"], wiring="pre")
    with pytest.raises(InputError, match="where all heads' are normalised as one"):
        whole(Transformer(TransformerConfig(decoder=stack)))


def test_what_is_refused_is_said_in_a_line():
    base, foreign = graph(), Graph.from_model(tiny.variant("alibi"))
    with pytest.raises(InputError, match=r"no sender '0\.7' in this graph: did you mean"):
        from_edges(base, [("0.7", "logits")])
    with pytest.raises(InputError, match="no node 'head' in this graph: expected one of embed"):
        from_nodes(base, ["head"])
    with pytest.raises(InputError, match="names no positions"):
        from_edges(base, [("S", "embed", "logits")])
    with pytest.raises(InputError, match="this circuit belongs to another model: expected a graph of"):
        check_circuit(tiny.model("gpt2"), whole(foreign))
    with pytest.raises(InputError, match="expected two circuits of one graph"):
        _ = whole(base) | whole(foreign)
    with pytest.raises(InputError, match="as booleans of shape"):
        Circuit(base, torch.zeros(2, 2, dtype=torch.bool))
    with pytest.raises(InputError, match="does not write before"):
        Circuit(base, torch.ones(base.shape, dtype=torch.bool))
    with pytest.raises(InputError, match="distinct names of positions"):
        graph(positions=["S", "elsewhere"])
    with pytest.raises(InputError, match="expected a circuit"):
        check_circuit(tiny.model("gpt2"), "0.1")

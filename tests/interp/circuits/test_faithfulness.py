"""Circuits kept alone: the fast way against one edited forward pass per circuit, and against plain runs."""

from dataclasses import replace

import pytest
import tiny
import torch

from interp import InputError, Transformer, TransformerConfig, edited, run
from interp import config as parts
from interp.circuits import Circuit, Graph, empty, faithfulness, from_edges, from_nodes, keep, whole
from interp.errors import InputWarning
from interp.patching import edge_attribution, logit_difference, next_token_loss

EXACT = {"rtol": 0, "atol": 1e-10}
METRIC = "logit_difference"
BARE = replace(tiny.GPT2, norm=parts.NoNorm(), mlp=parts.Plain("relu"), causal=False)
ABLATIONS = ("corrupt", "mean", "zero")


def build(name: str) -> Transformer:
    if name == "bare encoder":
        return tiny._built(TransformerConfig(encoder=BARE))
    return tiny.model(name) if name in tiny.STACKS else tiny.variant(name)


MODELS = ["gpt2", "llama", "parallel", "parallel, one norm", "alibi", "bare encoder", "local, capped", "attention only"]


def some_pairs():
    pairs = tiny.ragged_pairs((5, 4, 3), (1, 2, 1))
    names = {"A": torch.tensor([1, 2, 1]), "B": torch.tensor([1, 3, 2]), "END": pairs.last}
    return replace(pairs, positions=names)


def random_circuits(graph: Graph, shares=(0.1, 0.4, 0.7, 0.97), seed: int = 0) -> list[Circuit]:
    generator = torch.Generator().manual_seed(seed)
    draws = [torch.rand(graph.shape, generator=generator) for _ in shares]
    masks = [(draw < share) & graph.exists for draw, share in zip(draws, shares, strict=True)]
    return [whole(graph), empty(graph), *(Circuit(graph, edges) for edges in masks)]


def by_forward(model, pairs, circuit, ablation) -> torch.Tensor:
    texts = None if ablation == "zero" else pairs.corrupt
    reduced = keep(model, circuit, ablation=ablation, texts=texts, positions=pairs.positions)
    return logit_difference().prepare(model, pairs).from_logits(run(reduced, pairs.clean).logits)


@pytest.mark.parametrize("ablation", ABLATIONS)
@pytest.mark.parametrize("name", MODELS)
def test_every_circuit_is_one_edited_forward_pass(name, ablation):
    model, pairs = build(name), some_pairs()
    embeddings = "apart" if name in {"gpt2", "bare encoder"} else "together"
    graph = Graph.from_model(model, positions=["A", "B"], embeddings=embeddings)
    for circuits in (random_circuits(Graph.from_model(model)), random_circuits(graph, seed=1)):
        cells = faithfulness(model, pairs, logit_difference(), circuits, ablation=ablation)
        for circuit, values in zip(circuits, cells.values[METRIC], strict=True):
            torch.testing.assert_close(values, by_forward(model, pairs, circuit, ablation), **EXACT)


@pytest.mark.parametrize("name", MODELS)
def test_the_whole_graph_is_the_clean_run_and_the_empty_one_the_corrupted(name):
    model, pairs = build(name), some_pairs()
    graphs = [Graph.from_model(model), Graph.from_model(model, positions=["END"])]
    cells = faithfulness(model, pairs, logit_difference(), [make(graph) for graph in graphs for make in (whole, empty)])
    readout = logit_difference().prepare(model, pairs)
    clean, corrupt = (readout.from_logits(run(model, texts).logits) for texts in (pairs.clean, pairs.corrupt))
    torch.testing.assert_close(cells.values[METRIC], torch.stack([clean, corrupt] * 2), **EXACT)
    torch.testing.assert_close(
        torch.stack([cells.clean[METRIC], cells.corrupt[METRIC]]), cells.values[METRIC][:2], **EXACT
    )


@pytest.mark.parametrize("ablation", ABLATIONS)
@pytest.mark.parametrize("name", ["gpt2", "llama", "after", "sandwich", "norm over all heads", "parallel"])
def test_node_circuits_are_runs_with_other_nodes_outputs_replaced(name, ablation):
    model, pairs = build(name), some_pairs()
    graph = Graph.from_model(model)
    nodes = [["embed", "0.1", "mlp.0", "1.0"], ["0.1", "1.0", "mlp.1"], ["embed"], [], [*graph.senders]]
    circuits = [from_nodes(graph, names) for names in nodes]
    cells = faithfulness(model, pairs, logit_difference(), circuits, ablation=ablation)
    corrupt = run(model, pairs.corrupt, capture="*").activations
    real = pairs.corrupt.mask.double()

    def instead(site):
        if ablation != "mean":
            return corrupt[site] * (ablation == "corrupt")
        mask = real.view(*real.shape, *[1] * (corrupt[site].ndim - 2))
        return (corrupt[site] * mask).sum((0, 1), keepdim=True) / mask.sum()

    def edit(site, names):
        def change(value):
            if not site.endswith(".z"):
                layer = site.split(".")[1]
                name = "embed" if site.endswith("embed") else f"mlp.{layer}"
                return value if name in names else instead(site).expand_as(value)
            outside = [head for head in range(value.shape[2]) if f"{site.split('.')[1]}.{head}" not in names]
            value[:, :, outside] = instead(site).expand_as(value)[:, :, outside]
            return value

        return change

    sites = [site for site in model.sites if site.endswith((".embed", "attn.z", "mlp_out"))]
    readout = logit_difference().prepare(model, pairs)
    for names, values, circuit in zip(nodes, cells.values[METRIC], circuits, strict=True):
        logits = run(model, pairs.clean, edit={site: edit(site, names) for site in sites}).logits
        torch.testing.assert_close(values, readout.from_logits(logits), **EXACT)
        torch.testing.assert_close(values, by_forward(model, pairs, circuit, ablation), **EXACT)


@pytest.mark.parametrize("ablation", ABLATIONS)
@pytest.mark.parametrize("differing", ["source", "target"])
def test_node_circuits_serve_encoder_decoders(differing, ablation):
    model, pairs = tiny.two_stacks("original"), tiny.pairs_of_two(differing)
    graph = Graph.from_model(model)
    mixed = from_nodes(graph, ["encoder.embed", "encoder.0.1", "decoder.embed", "decoder.cross.1.2", "decoder.mlp.0"])
    circuits = [whole(graph, "nodes"), empty(graph, "nodes"), mixed]
    cells = faithfulness(model, pairs, logit_difference(), circuits, ablation=ablation)
    torch.testing.assert_close(cells.values[METRIC][0], cells.clean[METRIC], **EXACT)
    texts, target = pairs.inputs[1] if ablation != "zero" else (None, None)
    readout, (clean, decoded) = logit_difference().prepare(model, pairs), pairs.inputs[0]
    assert clean is not None
    for circuit, values in zip(circuits, cells.values[METRIC], strict=True):
        reduced = keep(model, circuit, ablation=ablation, texts=texts, target=target)
        torch.testing.assert_close(values, readout.from_logits(run(reduced, clean, target=decoded).logits), **EXACT)
    if ablation == "corrupt":
        torch.testing.assert_close(
            cells.values[METRIC][1], readout.from_logits(run(model, texts, target=target).logits)
        )


def test_a_small_budget_and_several_metrics_change_nothing():
    model, pairs = build("gpt2"), some_pairs()
    circuits, metrics = random_circuits(Graph.from_model(model)), [next_token_loss(), logit_difference()]
    roomy = faithfulness(model, pairs, metrics, circuits)
    tight = faithfulness(model, pairs, metrics, circuits, budget=150_000)
    for name, values in roomy.values.items():
        torch.testing.assert_close(tight.values[name], values, **EXACT)
    with pytest.warns(InputWarning, match="no shares"):
        assert roomy.table()["circuit"].tolist() == [*range(len(circuits))] * 2
    assert roomy.label((2,)) == "C2"
    with pytest.raises(InputError, match="too small for one"):
        faithfulness(model, pairs, metrics, circuits, budget=100)


def test_a_kept_model_is_a_model_for_every_other_function():
    model, pairs = build("gpt2"), some_pairs()
    graph = Graph.from_model(model)
    circuit = random_circuits(graph)[3]
    reduced = keep(model, circuit)
    ablated = run(reduced, pairs.clean, edit={"decoder.0.attn.z": lambda z: z * 0}).logits
    fewer = [edge for edge in circuit.pruned().names() if not edge[0].startswith("0.")]
    torch.testing.assert_close(ablated, run(keep(model, from_edges(graph, fewer)), pairs.clean).logits, **EXACT)
    assert run(edited(reduced, {"decoder.1.mlp_out": lambda x: x * 0}), pairs.clean).logits.shape[-1] == 29
    with pytest.raises(InputError, match=r"no node of an edge circuit reads decoder\.0\.resid_mid"):
        run(reduced, pairs.clean, edit={"decoder.0.resid_mid": lambda x: x * 0})
    with pytest.raises(InputError, match="would bypass the edits"):
        edge_attribution(reduced, pairs, logit_difference())


def test_heads_are_kept_beside_embeddings_and_feed_forwards():
    model, ids = build("gpt2"), tiny.token_ids(2, 5)
    zeros = {f"decoder.{layer}.attn.z": lambda z, layer=layer: z * torch.eye(3)[layer, :, None] for layer in (0, 1)}
    expected = run(model, ids, edit=zeros).logits
    for heads in ([(0, 0), (1, 1)], ["0.0", "1.1"]):
        torch.testing.assert_close(run(keep(model, heads), ids).logits, expected, **EXACT)


def test_what_is_refused_is_said_in_a_line():
    model, pairs, graph = build("gpt2"), some_pairs(), Graph.from_model(build("gpt2"))
    circuit = whole(Graph.from_model(model, positions=["C"]))
    with pytest.raises(InputError, match="expected at least one circuit"):
        faithfulness(model, pairs, logit_difference(), [])
    with pytest.raises(InputError, match="this circuit belongs to another model"):
        faithfulness(model, pairs, logit_difference(), whole(build("llama")))
    with pytest.raises(InputError, match=r"no position 'C' in these pairs, which a circuit names: they have A, B, END"):
        faithfulness(model, pairs, logit_difference(), circuit)
    apart = Graph.from_model(model, embeddings="apart")
    with pytest.raises(InputError, match="expected circuits of one kind of graph"):
        faithfulness(model, pairs, logit_difference(), [whole(graph), whole(apart)], ablation="zero")
    with pytest.raises(InputError, match="expected positions="):
        keep(model, circuit)
    with pytest.raises(InputError, match="expected texts for ablation corrupt or mean"):
        keep(model, whole(graph), ablation="mean")
    with pytest.raises(InputError, match="no node"):
        keep(model, [(0, 7)])
    reduced = keep(model, whole(graph), ablation="corrupt", texts=pairs.corrupt)
    with pytest.raises(InputError, match="the circuit's reference has 3 x 5 tokens: expected texts like it, got 1 x 2"):
        run(reduced, tiny.token_ids(1, 2))

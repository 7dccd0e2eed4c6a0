"""MIB's circuits: counts and pruning against its own file, and files of other kinds."""

import gzip
import json
from dataclasses import replace

import pytest
import torch
from tiny import LLAMA, model

from analyses.circuit.mib import read_circuit, write_circuit
from interp import InputError, Transformer, TransformerConfig
from interp.circuits import Graph, from_edges, from_nodes
from interp.circuits.finding import top
from interp.components import equal_graphs


def test_their_circuit_has_their_counts_and_is_the_top_of_their_scores(shared_file):
    circuit, scores = read_circuit(shared_file("data", "circuits", "mib-ioi-eap-ig.json.gz"))
    graph = circuit.graph
    assert (graph.n_nodes, graph.n_edges, circuit.size) == (158, 32_491, 756)
    sizes = {}
    for share in (0.001, 0.01):
        n = int(share * graph.n_edges)
        sizes[n] = [top(graph, scores, n, absolute=absolute).pruned().size for absolute in (False, True)]
    assert sizes == {32: [0, 21], 324: [230, 276]}
    assert top(graph, scores, 800, absolute=True).pruned().members.equal(circuit.members)


@pytest.mark.parametrize("suffix", ["json", "json.gz"])
def test_what_is_written_is_read_again(tmp_path, suffix):
    tiny = model("gpt2")
    graph = Graph.from_model(tiny)
    scores = torch.randn(graph.exists.shape, generator=torch.Generator().manual_seed(0))
    circuit = from_edges(graph, [("embed", "0.1.k"), ("0.1", "mlp.1"), ("mlp.1", "logits")])
    file = tmp_path / f"circuit.{suffix}"
    write_circuit(file, tiny, circuit, scores)
    again, read = read_circuit(file)
    assert equal_graphs(again.graph, graph)
    assert again.names() == circuit.names()
    torch.testing.assert_close(read[graph.exists], scores[graph.exists])
    assert read[~graph.exists].isnan().all()
    with (gzip.open if suffix.endswith("gz") else open)(file, "rt") as stream:
        content = json.load(stream)
    assert content["cfg"] == {"n_layers": 2, "n_heads": 3, "parallel_attn_mlp": False, "d_model": 19}
    used = {kind: [name for name, part in content[kind].items() if part["in_graph"]] for kind in ("nodes", "edges")}
    assert used["nodes"] == ["input", "a0.h1", "m1", "logits"]
    assert {*used["edges"]} == {"input->a0.h1<k>", "a0.h1->m1", "m1->logits"}


def test_a_parallel_model_has_its_own_edges(tmp_path):
    tiny = Transformer(TransformerConfig(decoder=replace(LLAMA, wiring="parallel", n_kv_heads=None)))
    graph = Graph.from_model(tiny)
    write_circuit(tmp_path / "c.json", tiny, from_edges(graph, []), torch.zeros(graph.exists.shape))
    assert equal_graphs(read_circuit(tmp_path / "c.json")[0].graph, graph)


def test_other_files_and_circuits_are_refused_in_a_line(tmp_path):
    tiny = model("gpt2")
    graph = Graph.from_model(tiny)
    file = tmp_path / "c.json"
    for text in ("nothing", "[]", '{"cfg": {}}'):
        file.write_text(text)
        with pytest.raises(InputError, match=r"c\.json: expected MIB's JSON"):
            read_circuit(file)
    write_circuit(file, tiny, from_edges(graph, []), torch.zeros(graph.exists.shape))
    content = json.loads(file.read_text())
    content["edges"].pop("input->m0")
    file.write_text(json.dumps(content))
    with pytest.raises(InputError, match="expected scores of the 75 edges of such a model, got 74"):
        read_circuit(file)
    content["edges"]["m9"] = {"score": 0, "in_graph": False}
    file.write_text(json.dumps(content))
    with pytest.raises(InputError, match="expected an edge such as"):
        read_circuit(file)
    grouped = model("llama")
    for circuit, owner in ((from_nodes(graph, ["0.1"]), tiny), (from_edges(Graph.from_model(grouped), []), grouped)):
        with pytest.raises(InputError, match="MIB's file has"):
            write_circuit(file, owner, circuit, torch.zeros(graph.exists.shape))

"""Programs with known true edges, compiled by Tracr or set by hand: which edges can single patches detect?

A true edge is detectable if what its receiver reads of the sender differs between the run and the reference.
"""

import json
from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
import torch

from interp import InputError, Transformer, run
from interp.circuits import Circuit, Graph, faithfulness, from_edges, from_nodes, whole
from interp.circuits.reference import common_writes, written
from interp.patching import Pairs, function, logit_difference
from models.tracr import Compiled
from tests.interp.patching.test_ablation import saturating

TRACR = {"reverse": "reverse", "frac_prevs": "proportion", "sort_unique": None}  # names in ACDC's file
CONSTANT = ("token", "0.0.v")  # in reverse: it reads only that BOS is BOS


@pytest.fixture(scope="module", params=TRACR)
def program(request, shared_file) -> tuple[str, Compiled]:
    return request.param, Compiled.from_directory(shared_file("models", "tracr", request.param), torch.float64)


def words(compiled: Compiled, length: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Clean and corrupted texts of `length` tokens, in random order."""
    tokens = [token for token in compiled.tokens if token not in {"BOS", "compiler_pad"}]
    texts = [("BOS", *text) for text in product(tokens, repeat=length)]
    order = np.random.default_rng(seed).permutation(len(texts))[:48]
    clean = compiled.ids([[*texts[place]] for place in order])
    corrupt = clean.roll(1, 0)
    return clean, corrupt


def distance(compiled: Compiled, clean: torch.Tensor):
    """The distance of the program's output from that on clean texts."""
    outputs, columns = [*compiled.outputs], torch.arange(1, clean.shape[1]).expand(len(clean), -1)
    right = run(compiled.model, clean).logits[:, 1:, outputs]

    def value(logits: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
        return (logits[..., outputs] - reference).square().sum(-1).mean(-1)

    return function(value, "distance", columns, right)


def effects(model, pairs, metric, everything: Circuit, parts_: Sequence[Circuit], ablation="corrupt") -> np.ndarray:
    """The mean change of the metric over prompts if one part of the whole graph is removed."""
    cells = faithfulness(model, pairs, metric, [everything, *(everything - part for part in parts_)], ablation=ablation)
    (values,) = cells.values.values()
    return (values[1:] - values[0]).abs().mean(-1).numpy()


def reads(model: Transformer, graph: Graph, outputs: Sequence[int]) -> dict[str, torch.Tensor]:
    """The matrix that each receiver multiplies the stream by."""
    weights = {"logits": torch.eye(model.config.d_model, dtype=model.dtype)[:, [*outputs]]}
    for layer, block in enumerate(model.last.blocks):
        attn = block.attn
        for part, weight in (("q", attn.W_Q), ("k", attn.W_K), ("v", attn.W_V)):
            weights |= {f"{layer}.{head}.{part}": each for head, each in enumerate(weight)}
        weights[f"mlp.{layer}"] = block.mlp.up.weight.T
    return {name: weights[name] for name in graph.receivers}


def written_to_stream(model: Transformer, writes) -> list[torch.Tensor]:
    """What each sender writes, in order."""
    rows = []
    for site, value in writes.items():
        heads = site.endswith(".z") and model.last.blocks[int(site.split(".")[1])].attn.W_O
        rows += [
            value[..., i, :] @ heads[i] if site.endswith(".z") else value[..., i, :] for i in range(value.shape[2])
        ]
    return rows


@torch.no_grad()
def varying(model, graph: Graph, pairs: Pairs, ablation: str, outputs: Sequence[int]) -> set[tuple[str, str]]:
    """Edges whose receiver reads something else from the sender in the reference."""
    reference = common_writes(model, graph, ablation, [pairs.inputs[1]]) or written(model, graph, pairs.inputs[1])
    pair = (written(model, graph, pairs.inputs[0]), reference)
    change = [clean - base for clean, base in zip(*(written_to_stream(model, each) for each in pair), strict=True)]
    weights = reads(model, graph, outputs)
    edges = [(graph.senders[i], graph.receivers[j]) for i, j in graph.exists.nonzero().tolist()]
    place = graph.index("senders")
    return {edge for edge in edges if float((change[place[edge[0]]] @ weights[edge[1]]).abs().max()) > 1e-6}


@torch.no_grad()
def true_edges(compiled: Compiled, graph: Graph) -> set[tuple[str, str]]:
    """Edges whose receiver reads a direction that the sender can write, by the weights alone."""
    model = compiled.model
    rows = [model.last.embed.token.weight[: len(compiled.tokens)], model.last.embed.position.weight]
    for block in model.last.blocks:
        rows += [*block.attn.W_O, block.mlp.down.weight.T]
    weights = reads(model, graph, compiled.outputs)
    pairs_ = [(i, graph.receivers[j]) for i, j in graph.exists.nonzero().tolist()]
    return {(graph.senders[i], name) for i, name in pairs_ if float((rows[i] @ weights[name]).abs().max()) > 1e-6}


def published_edges(file, name: str) -> set[tuple[str, str]]:
    """ACDC's edges between nodes, by our names, without those inside a head or feed-forward."""

    def place(site: str) -> str:
        layer = site.split(".")[1] if "." in site else ""
        inputs = {"hook_embed": "token", "hook_pos_embed": "position"}
        ends = {f"hook_{part}_input": f"{layer}.0.{part}" for part in "qkv"}
        ends |= {"hook_mlp_in": f"mlp.{layer}", "hook_mlp_out": f"mlp.{layer}", "hook_resid_post": "logits"}
        return ({"hook_result": f"{layer}.0"} | inputs | ends).get(site.rpartition(".")[-1], "")

    rows = [(row["writer"], row["reader"]) for row in json.loads(file.read_text())[name]]
    between = [(a, b) for a, b in rows if a.endswith(("embed", "mlp_out", "hook_result"))]
    return {(place(a), place(b)) for a, b in between if b.endswith(("_input", "mlp_in", "resid_post"))}


def auroc(values: np.ndarray, positive: np.ndarray) -> float:
    """The chance that a true edge has a larger effect than another."""
    difference = values[positive][:, None] - values[~positive][None]
    return float(((difference > 1e-9) + (np.abs(difference) <= 1e-9) / 2).mean())


def test_outputs_are_those_of_the_compiler(program, shared_file):
    compiled = Compiled.from_directory(
        shared_file("models", "tracr", program[0])
    )  # in float32, as the example was made
    expected = torch.tensor(compiled.example["residual_after_last_layer"])
    logits = run(compiled.model, compiled.ids([compiled.example["tokens"]])).logits
    torch.testing.assert_close(logits[..., : len(compiled.directions)], expected, rtol=0, atol=1e-6)


def test_a_folder_without_a_program_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"no compiled program in .*: expected program\.json and weights"):
        Compiled.from_directory(tmp_path)


def test_published_edges_are_among_those_of_the_weights(program, shared_file):
    name, compiled = program
    if TRACR[name] is None:
        pytest.skip("ACDC has no edges of this program")
    published = published_edges(shared_file("data", "circuits", "acdc-tracr-edges.json"), TRACR[name])
    by_weights = true_edges(compiled, Graph.from_model(compiled.model, embeddings="apart"))
    assert published <= by_weights
    assert len(published) == {"reverse": 11, "frac_prevs": 7}[name]
    # others read that BOS is BOS, and the direction that is always 1
    assert len(by_weights) == {"reverse": 15, "frac_prevs": 7}[name]


@pytest.mark.parametrize(("ablation", "expected"), [("corrupt", 0.600), ("mean", 0.891), ("zero", 1.0)])
def test_what_single_patches_see_of_reverse_is_a_matter_of_the_ablation(ablation, expected, shared_file):
    compiled = Compiled.from_directory(shared_file("models", "tracr", "reverse"), torch.float64)
    edges = published_edges(shared_file("data", "circuits", "acdc-tracr-edges.json"), "reverse") - {CONSTANT}
    graph, (clean, corrupt) = Graph.from_model(compiled.model, embeddings="apart"), words(compiled, 4)
    pairs = Pairs.from_ids(compiled.model, clean, corrupt)
    names = [edge for edge in whole(graph).names() if edge != CONSTANT]
    measured = effects(
        compiled.model,
        pairs,
        distance(compiled, clean),
        whole(graph),
        [from_edges(graph, [e]) for e in names],
        ablation,
    )
    assert len(edges) == 10
    assert auroc(measured, np.array([edge in edges for edge in names])) == pytest.approx(expected, abs=1e-3)


def scores(result: set, true: set, detectable: set) -> tuple[int, int, float, float]:
    """How many are detectable and found, the share of found ones that are true, and of detectable ones found."""
    precision = len(result & true) / len(result) if result else 1.0
    return len(detectable), len(result), precision, len(result & detectable) / max(len(detectable), 1)


def table(name: str, compiled: Compiled, length: int = 4) -> list[tuple]:
    """Rows of program, part, ablation, and `scores`."""
    graph, model = Graph.from_model(compiled.model, embeddings="apart"), compiled.model
    clean, corrupt = words(compiled, length)
    pairs, true, rows = Pairs.from_ids(model, clean, corrupt), true_edges(compiled, graph), []
    for ablation in ("corrupt", "mean", "zero"):
        detectable = true & varying(model, graph, pairs, ablation, compiled.outputs)
        metric, edges, nodes = distance(compiled, clean), whole(graph).names(), [*graph.senders]
        units = {"edge": (edges, [from_edges(graph, [edge]) for edge in edges], true, detectable)}
        ends = [{sender for sender, _ in each} for each in (true, detectable)]
        units["node"] = (nodes, [from_nodes(graph, [node]) for node in nodes], *ends)
        for unit, (names, circuits, truth, visible) in units.items():
            everything = whole(graph, "nodes" if unit == "node" else "edges")
            moved = effects(model, pairs, metric, everything, circuits, ablation) > 1e-9
            rows.append(
                (name, unit, ablation, *scores({n for n, m in zip(names, moved, strict=True) if m}, truth, visible))
            )
    return rows


# by unit and ablation: how many parts are detectable, and how many of them single patches find
FOUND = {
    "reverse": {"edge": ((3, 2), (13, 9), (15, 11)), "node": ((2, 2), (7, 7), (7, 7))},
    "frac_prevs": {"edge": ((3, 3), (6, 5), (7, 5)), "node": ((3, 3), (4, 4), (4, 4))},
    "sort_unique": {"edge": ((6, 6), (10, 10), (11, 11)), "node": ((4, 4), (5, 5), (5, 5))},
}


def test_single_patches_find_true_parts_alone_and_all_nodes_that_vary(program):
    name, compiled = program
    rows = table(name, compiled)
    assert all(precision == 1.0 for *_, precision, _ in rows)
    counts = {unit: tuple(row[3:5] for row in rows if row[1] == unit) for unit in ("edge", "node")}
    assert counts == FOUND[name]


@pytest.mark.parametrize(("kind", "ends"), [("or", (0.0, 1.0)), ("and", (1.0, 2.0))])
def test_taking_away_finds_and_putting_in_finds_or(kind, ends):
    """Two heads write a cue into one sum, clipped to 0-1 (either suffices) or to 1-2 (both are needed)."""
    model = saturating(*ends).double()
    ids = torch.tensor([[1, 0]])
    pairs = Pairs.from_ids(model, ids, ids * 0, right=0, wrong=1)
    whole_, serial = whole(model), ("mlp.0", "logits")
    parts_ = {("embed", "0.0.v"), ("embed", "0.1.v"), ("0.0", "mlp.0"), ("0.1", "mlp.0")}
    circuits = [from_edges(whole_.graph, [edge]) for edge in whole_.names()]
    for direction, turned in (("and", pairs), ("or", pairs.swapped())):
        metric = logit_difference(0, 1)
        moved = effects(model, turned, metric, whole_, circuits) > 1e-9
        edges = {edge for edge, each in zip(whole_.names(), moved, strict=True) if each}
        assert edges == ({serial, *parts_} if direction == kind else {serial})
    alone = faithfulness(model, pairs, logit_difference(0, 1), from_edges(whole_.graph, [serial, *parts_]))
    assert alone.values["logit_difference"].tolist() == [[1.0]]

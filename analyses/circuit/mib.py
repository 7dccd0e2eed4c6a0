"""Read and write MIB's circuits (Mueller et al. 2025, arXiv:2504.13151): one JSON of nodes and scored edges.

Names follow its package (Hanna et al.): nodes `input`, `a0.h1`, `m3`, `logits`; edges `input->a0.h0<q>`, `a0.h1->m2`.
"""

import gzip
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from interp.circuits.graph import Circuit, from_edges
from interp.components import Graph
from interp.errors import InputError, inside
from interp.transformer import Transformer

_EDGE = re.compile(r"(.+)->([^<]+)(?:<([qkv])>)?")
_HEAD, _FEED = re.compile(r"a(\d+)\.h(\d+)"), re.compile(r"m(\d+)")


def read_circuit(file: str | Path) -> tuple[Circuit, Float[Tensor, "sender receiver"]]:
    """Read the marked circuit and the scores of all edges (NaN if there is no edge); the file may be gzipped.

    Its graph is the one of a model of this shape (`equal_graphs`), with a key and a value for each head.
    """
    path = Path(file)
    opened = gzip.open if path.suffix == ".gz" else open
    with inside(path.name):
        try:
            with opened(path, "rt", encoding="utf-8") as stream:
                content = json.load(stream)
            config, edges = content["cfg"], content["edges"]
            graph = _graph(config["n_layers"], config["n_heads"], bool(config["parallel_attn_mlp"]))
            scores = torch.full(graph.exists.shape, torch.nan)
            senders, receivers, members = graph.index("senders"), graph.index("receivers"), []
            for name, edge in edges.items():
                sender, receiver = _our_edge(name)
                scores[senders[sender], receivers[receiver]] = edge["score"]
                members += [(sender, receiver)] * edge["in_graph"]
        except (KeyError, TypeError, OSError, json.JSONDecodeError) as error:
            raise InputError(f"expected MIB's JSON of cfg, nodes and edges with score and in_graph: {error}") from error
        if not torch.equal(~scores.isnan(), graph.exists):
            raise InputError(f"expected scores of the {graph.n_edges:,} edges of such a model, got {len(edges):,}")
        return from_edges(graph, members), scores


def write_circuit(
    file: str | Path, model: Transformer, circuit: Circuit, scores: Float[Tensor, "sender receiver"]
) -> None:
    """Write a circuit of edges and the scores of all edges in MIB's format, gzipped if the name ends in `.gz`."""
    graph, config = circuit.graph, model.last.config
    if circuit.kind == "nodes" or graph.positions or graph.senders[0] != "embed":
        raise InputError("MIB's file has edges without positions, from the sum of the embeddings: got another circuit")
    if config.kv_heads != config.n_heads:
        raise InputError("MIB's file has a key and a value for each head, but this model's heads share them")
    used = circuit.members.any(1)
    nodes = {_their_node(name): {"in_graph": bool(used[row])} for row, name in enumerate(graph.senders)}
    edges: dict[str, dict[str, Any]] = {}
    for row, column in graph.exists.nonzero().tolist():
        edge = {"score": float(scores[row, column]), "in_graph": bool(circuit.members[row, column])}
        edges[_their_edge(graph.senders[row], graph.receivers[column])] = edge
    sizes = {"n_layers": config.n_layers, "n_heads": config.n_heads}
    content: Mapping[str, Any] = {
        "cfg": {**sizes, "parallel_attn_mlp": config.parallel, "d_model": config.d_model},
        "nodes": nodes | {"logits": {"in_graph": True}},
        "edges": edges,
    }
    opened = gzip.open if str(file).endswith(".gz") else open
    with opened(file, "wt", encoding="utf-8") as stream:
        json.dump(content, stream)


def _graph(n_layers: int, n_heads: int, parallel: bool) -> Graph:
    """The graph of a model of this shape."""
    senders, receivers, n_before = ["embed"], [], []
    for layer in range(n_layers):
        heads = [f"{layer}.{head}" for head in range(n_heads)]
        reads = [f"{name}.{part}" for part in "qkv" for name in heads]
        n_before += [len(senders)] * len(reads) + [len(senders) + (0 if parallel else n_heads)]
        senders, receivers = [*senders, *heads, f"mlp.{layer}"], [*receivers, *reads, f"mlp.{layer}"]
    exists = torch.arange(len(senders))[:, None] < torch.tensor([*n_before, len(senders)])
    return Graph((*senders,), (*receivers, "logits"), exists)


def _our_edge(name: str) -> tuple[str, str]:
    if not (match := _EDGE.fullmatch(name)):
        raise InputError(f"expected an edge such as input->a0.h0<q>, got {name!r}")
    sender, receiver, part = match.groups()
    return _our_node(sender), _our_node(receiver) + (f".{part}" if part else "")


def _our_node(name: str) -> str:
    if match := _HEAD.fullmatch(name):
        return f"{match[1]}.{match[2]}"
    return f"mlp.{match[1]}" if (match := _FEED.fullmatch(name)) else "embed" if name == "input" else name


def _their_edge(sender: str, receiver: str) -> str:
    parts = receiver.split(".")
    head = len(parts) == 3
    return f"{_their_node(sender)}->{_their_node('.'.join(parts[:2]))}" + (f"<{parts[2]}>" if head else "")


def _their_node(name: str) -> str:
    first, *rest = name.split(".")
    if first.isdigit():
        return f"a{first}.h{rest[0]}"
    return f"m{rest[0]}" if rest else "input" if first == "embed" else first

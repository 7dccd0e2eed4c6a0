"""Circuits: sets of the nodes or edges of a model's graph."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal

import torch
from jaxtyping import Bool
from torch import Tensor

from interp.components import Embeddings, Graph, equal_graphs
from interp.display import Result, so_many
from interp.errors import InputError, one_of
from interp.model import Model

Kind = Literal["edges", "nodes"]


@dataclass(frozen=True, eq=False, repr=False)
class Circuit(Result):
    """A set of edges or nodes of a graph; `|`, `&` and `-` work as for sets.

    `members` are edges, `sender receiver` (with named positions `position sender receiver`), or nodes, `sender`.
    Edges outside the circuit carry, and nodes outside write, what they do in a reference.
    """

    graph: Graph
    members: Bool[Tensor, "*members"]

    def __post_init__(self) -> None:
        if self.kind == "edges" and self.graph.reason:
            raise InputError(self.graph.reason)
        expected = (len(self.graph.senders),) if self.kind == "nodes" else self.graph.shape
        if self.members.dtype != torch.bool or self.members.shape != expected:
            got = f"{self.members.dtype} {(*self.members.shape,)}"
            raise InputError(f"expected a circuit's {self.kind} as booleans of shape {expected}, got {got}")
        if self.kind == "edges" and len(wrong := (self.members.cpu() & ~self.graph.exists).nonzero()):
            *_, sender, receiver = wrong[0].tolist()
            raise InputError(_no_edge(self.graph.senders[sender], self.graph.receivers[receiver]))

    @property
    def kind(self) -> Kind:
        """Whether the members are edges or nodes."""
        return "nodes" if self.members.ndim == 1 else "edges"

    @property
    def size(self) -> int:
        """The number of members."""
        return int(self.members.sum())

    def names(self) -> list[Any]:
        """Node names, or (sender, receiver) of each edge, with named positions (position, sender, receiver)."""
        if self.kind == "nodes":
            return [self.graph.senders[place] for (place,) in self.members.nonzero().tolist()]
        axes = [(*self.graph.index("positions"),)] * bool(self.graph.positions)
        axes += [self.graph.senders, self.graph.receivers]
        return [tuple(a[i] for a, i in zip(axes, at, strict=True)) for at in self.members.nonzero().tolist()]

    def pruned(self) -> "Circuit":
        """The circuit without dead ends: edges of nodes that no input reaches, or that reach no logits.

        A node counts as a whole (as in MIB, Mueller et al. 2025, which keeps a node with an edge in and one out). With
        positions, a head is reached at its query's position, or at a key or value of any position.
        """
        if self.kind == "nodes":
            return self
        graph = self.graph
        edges = self.members.cpu().view(-1, *graph.exists.shape)
        mixes = torch.tensor([name.endswith((".k", ".v")) for name in graph.receivers])
        n_inputs = int((~graph.parts.any(0)).sum())
        while True:
            fed = edges.any(1)  # position receiver
            reached = ((fed | (fed.any(0) & mixes)).float() @ graph.parts.float()) > 0  # position sender
            reached[:, :n_inputs] = True
            heard = edges.any(2)
            useful = (heard.float() @ graph.parts.float().T) > 0  # position receiver
            useful |= useful.any(0) & mixes
            useful[:, -1] = True
            fewer = edges & reached[:, :, None] & useful[:, None, :]
            if torch.equal(fewer, edges):
                return Circuit(graph, edges.view(graph.shape).to(self.members.device))
            edges = fewer

    def __or__(self, other: "Circuit") -> "Circuit":
        return Circuit(self.graph, self.members | self._like(other))

    def __and__(self, other: "Circuit") -> "Circuit":
        return Circuit(self.graph, self.members & self._like(other))

    def __sub__(self, other: "Circuit") -> "Circuit":
        return Circuit(self.graph, self.members & ~self._like(other))

    def _like(self, other: "Circuit") -> Tensor:
        if self.kind != other.kind or not equal_graphs(self.graph, other.graph):
            raise InputError("expected two circuits of one graph, both of edges or both of nodes")
        return other.members.to(self.members.device)

    def facts(self) -> tuple[str, dict[str, str]]:
        """How many members, out of how many."""
        of = len(self.graph.senders) if self.kind == "nodes" else self.graph.n_edges
        return f"Circuit of {so_many(self.size, self.kind[:-1])}", {"of": f"{of:,} {self.kind}"}


def whole(source: Model | Graph, kind: Kind = "edges") -> Circuit:
    """The circuit of all edges, or all nodes."""
    circuit = empty(source, kind)
    circuit.members[:] = circuit.graph.exists if kind == "edges" else True
    return circuit


def empty(source: Model | Graph, kind: Kind = "edges") -> Circuit:
    """The circuit without any edge or node."""
    graph = source if isinstance(source, Graph) else Graph.from_model(source)
    shape = (len(graph.senders),) if one_of("kind", kind, Kind) == "nodes" else graph.shape
    return Circuit(graph, torch.zeros(shape, dtype=torch.bool))


def from_edges(graph: Graph, edges: Iterable[Sequence[str]]) -> Circuit:
    """The circuit of these edges, `(sender, receiver)`, or `(position, sender, receiver)` for one position only."""
    circuit = empty(graph)
    senders, receivers, places = (graph.index(kind) for kind in ("senders", "receivers", "positions"))
    for edge in edges:
        *position, sender, receiver = edge
        row, column = _place(sender, senders, "sender"), _place(receiver, receivers, "receiver")
        if not graph.exists[row, column]:
            raise InputError(_no_edge(sender, receiver))
        if position and not graph.positions:
            raise InputError(f"this graph names no positions: expected an edge (sender, receiver), got {tuple(edge)}")
        at = (_place(position[0], places, "position"),) if position else (...,)
        circuit.members[(*at, row, column)] = True
    return circuit


def from_nodes(graph: Graph, nodes: Iterable[str]) -> Circuit:
    """The circuit of these nodes: heads, feed-forwards, and `embed` if it is named."""
    circuit, senders = empty(graph, "nodes"), graph.index("senders")
    for name in nodes:
        circuit.members[_place(name, senders, "node")] = True
    return circuit


def check_circuit(model: Model, circuit: Any) -> None:
    """Raise an InputError unless the circuit's graph is the model's."""
    if not isinstance(circuit, Circuit):
        raise InputError(f"expected a circuit, as from_edges(graph, ...) gives it; got {circuit!r}")
    embeddings: Embeddings = "apart" if circuit.graph.senders[:1] == ("token",) else "together"
    graph = Graph.from_model(model, embeddings=embeddings, positions=circuit.graph.positions)
    if not equal_graphs(graph, circuit.graph):
        expected, got = (f"{each.n_nodes:,} nodes and {each.n_edges:,} edges" for each in (graph, circuit.graph))
        raise InputError(f"this circuit belongs to another model: expected a graph of {expected}, got {got}")


def _place(name: str, index: dict[str, int], kind: str) -> int:
    if name not in index:
        near = get_close_matches(str(name), index, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(index) or 'none'}"
        raise InputError(f"no {kind} {name!r} in this graph: {hint}")
    return index[name]


def _no_edge(sender: str, receiver: str) -> str:
    return f"no edge {sender} -> {receiver} in this graph: {sender} does not write before {receiver} reads"

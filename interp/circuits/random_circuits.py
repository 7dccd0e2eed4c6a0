"""What would a circuit of that size do by chance? Random paths from the input to the logits, and sets of them."""

import numpy as np
import torch

from interp.circuits.graph import Circuit, empty, whole
from interp.components import Graph
from interp.errors import InputError, whole_number

_TRIES = 50  # paths that are drawn for one that fits


def random_path(graph: Graph, random: np.random.Generator, start: Circuit | None = None) -> list[tuple[int, ...]]:
    """The places of a path's edges, drawn from the logits backwards: any sender, then any of its inputs, and so on.

    It ends at the input, or by a coin at a node that some edge of `start`, a circuit without dead ends, leads into.
    """
    reached = torch.zeros(len(graph.senders), dtype=torch.bool)
    if start is not None and not graph.positions:  # a node may be reached at one position and not at another
        assert start.edges is not None
        reached = (start.edges.any(0).float() @ graph.parts.float()) > 0
    path, receiver = [], len(graph.receivers) - 1
    position = int(random.integers(len(graph.positions) + 1))
    while True:
        sender = int(random.choice(graph.exists[:, receiver].nonzero()[:, 0].numpy()))
        path.append((*(position,) * bool(graph.positions), sender, receiver))
        inputs = graph.parts[:, sender].nonzero()[:, 0].numpy()
        if not len(inputs) or (reached[sender] and random.integers(2)):
            return path
        receiver = int(random.choice(inputs))
        if graph.receivers[receiver].endswith((".k", ".v")):  # what a head writes here it may have read elsewhere
            position = int(random.integers(len(graph.positions) + 1))


def random_circuit(graph: Graph, size: int, *, seed: int = 0) -> Circuit:
    """A random circuit without dead ends of `size` edges: as many are drawn, pruned, and paths added until it is full.

    Of few edges drawn one by one nearly all lead nowhere, which is no baseline. Where no path of fifty fits into what
    is left, the last one does not fit, and the circuit is larger by less than that path.
    """
    if not whole_number("size", size) <= graph.n_edges:
        raise InputError(f"expected at most {graph.n_edges:,} edges, got size={size:,}")
    random, drawn = np.random.default_rng(whole_number("seed", seed)), empty(graph)
    assert drawn.edges is not None
    places = whole(graph).members.flatten().nonzero()[:, 0]
    drawn.edges.view(-1)[places[random.permutation(len(places))[:size]]] = True
    circuit, failures = drawn.pruned(), 0
    n_edges = circuit.size
    assert circuit.edges is not None
    while n_edges < size:
        path = random_path(graph, random, circuit if n_edges else None)
        added = [place for place in path if not circuit.edges[place]]
        if not added or (n_edges + len(added) > size and failures < _TRIES):
            failures += n_edges + len(added) > size
            continue
        for place in added:
            circuit.edges[place] = True
        n_edges, failures = n_edges + len(added), 0
    return circuit

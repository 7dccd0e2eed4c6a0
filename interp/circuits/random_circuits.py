"""What would a circuit of that size do by chance? Random paths from the input to the logits, and sets of them."""

import numpy as np
import torch

from interp.circuits.graph import Circuit, Kind, empty, whole
from interp.components import Graph
from interp.errors import InputError, whole_number

_TRIES = 50  # paths drawn until one fits


def random_path(graph: Graph, random: np.random.Generator, start: Circuit | None = None) -> list[tuple[int, ...]]:
    """The indices of a path's edges, drawn from the logits backwards: any sender, then any of its inputs, and so on.

    It ends at the input, or by a coin toss at a node that an edge of `start`, a circuit without dead ends, leads into.
    """
    reached = torch.zeros(len(graph.senders), dtype=torch.bool)
    if start is not None and not graph.positions:  # with positions a node may be reached at only some
        reached = (start.members.any(0).float() @ graph.parts.float()) > 0
    path, receiver = [], len(graph.receivers) - 1
    position = int(random.integers(len(graph.positions) + 1))
    while True:
        sender = int(random.choice(graph.exists[:, receiver].nonzero()[:, 0].numpy()))
        path.append((*(position,) * bool(graph.positions), sender, receiver))
        inputs = graph.parts[:, sender].nonzero()[:, 0].numpy()
        if not len(inputs) or (reached[sender] and random.integers(2)):
            return path
        receiver = int(random.choice(inputs))
        if graph.receivers[receiver].endswith((".k", ".v")):  # a head may have read this at another position
            position = int(random.integers(len(graph.positions) + 1))


def random_circuit(graph: Graph, size: int, *, kind: Kind = "edges", seed: int = 0) -> Circuit:
    """A random circuit of `size` nodes, or of `size` edges without dead ends.

    Among few edges drawn one by one nearly all lead nowhere, which is no baseline. So we prune the drawn edges and add
    paths until there are enough. If none of fifty paths fits, we add the next one, and the circuit exceeds `size` by
    less than that path.
    """
    circuit, places = empty(graph, kind), whole(graph, kind).members.flatten().nonzero()[:, 0]
    if not whole_number("size", size) <= len(places):
        raise InputError(f"expected at most {len(places):,} {kind}, got size={size:,}")
    random = np.random.default_rng(whole_number("seed", seed))
    circuit.members.view(-1)[places[random.permutation(len(places))[:size]]] = True
    circuit = circuit.pruned()
    n_members, failures = circuit.size, 0
    while n_members < size:
        path = random_path(graph, random, circuit if n_members else None)
        added = [place for place in path if not circuit.members[place]]
        if not added or (n_members + len(added) > size and failures < _TRIES):
            failures += n_members + len(added) > size
            continue
        for place in added:
            circuit.members[place] = True
        n_members, failures = n_members + len(added), 0
    return circuit

"""How well does a circuit do the task alone? Its metrics, with everything outside it replaced."""

from collections.abc import Sequence
from functools import partial

import torch
from jaxtyping import Bool
from torch import Tensor

from interp.circuits.alone import Alone
from interp.circuits.graph import Circuit, check_circuit, empty
from interp.circuits.keeping import node_edits
from interp.circuits.reference import Ablation, Writes, common_writes, written
from interp.components import Graph
from interp.errors import InputError, one_of
from interp.model import Model
from interp.patching.gradients.tape import final_stream, record, split, take
from interp.patching.metrics import ANSWERS, Metric, Readout, checked_values, logit_difference, prepared
from interp.patching.pairs import Pairs
from interp.patching.preparation import BUDGET, Values, check_budget, rows_at_once
from interp.patching.results import Cells
from interp.tap import Tap
from interp.transformer import Transformer, with_parts

_SHARE = 16  # divides the rows of a pass: each row also holds all live nodes' writes, which should fit in caches


@torch.no_grad()
def faithfulness(
    model: Model,
    pairs: Pairs,
    metrics: Metric | Sequence[Metric],
    circuits: Circuit | Sequence[Circuit],
    *,
    ablation: Ablation = "corrupt",
    budget: int = BUDGET,
) -> Cells:
    """Measure circuits, each kept alone, exactly.

    A receiver's input is the reference's stream plus, for every edge in the circuit, its sender's write in the
    circuit's own run minus that in the reference (Hanna, Pezzelle & Belinkov 2024, arXiv:2403.17806). Edges are pruned
    first (`Circuit.pruned`), as in MIB: a node that no input reaches writes what it does in the reference. Nodes are
    not pruned: those in a circuit read all earlier writes; those outside write what they do in the reference.

    Args:
        model: a transformer with an output layer.
        pairs: the clean prompts are run; `ablation` says how the corrupted ones give the writes outside the circuits.
        metrics: what to read, one or several.
        circuits: edges or nodes of this model. If edges have positions, a token with several names counts under the
            first of them in the graph.
        ablation: what nodes outside a circuit write: `corrupt`, what they write for the pair's corrupted prompt at this
            position; `mean`, one mean over all positions of all corrupted prompts; `zero`, nothing. Attention's output
            biases, which no head writes, are always added.
        budget: bytes of activations that one pass may hold.

    Returns:
        Cells: on the axis `circuit`. `clean` are the clean prompts' unpatched values (those of the whole graph), and
            `corrupt` the empty circuit's, so `.share()` is faithfulness as MIB defines it (Mueller et al. 2025), a
            ratio of mean differences.
    """
    model, circuits = with_parts(model, "a circuit's run"), [circuits] if isinstance(circuits, Circuit) else [*circuits]
    one_of("ablation", ablation, Ablation)
    _check(model, pairs, circuits, ablation)
    readouts = prepared(model, pairs, metrics)
    has_answers = pairs.right is not None and pairs.wrong is not None
    answers = [logit_difference()] if has_answers and all(each.name != ANSWERS for each in readouts) else []
    plain = [*readouts, *(each.prepare(model, pairs) for each in answers)]
    corrupt = {each.name: torch.zeros(len(pairs)).to(model.device, model.dtype) for each in plain}
    clean = {name: value.clone() for name, value in corrupt.items()}
    values = {each.name: corrupt[each.name].new_zeros(len(circuits), len(pairs)) for each in plain}
    for prompts in split(model, pairs, budget):
        reading = [each.take(prompts) for each in plain]
        for name, value in record(model, take(pairs.inputs[0], prompts), reading, ()).values.items():
            clean[name][prompts] = value
    kinds = [(circuit.kind, circuit.graph.senders[0], circuit.graph.positions) for circuit in circuits]
    for kind in dict.fromkeys(kinds):
        places = [place for place, each in enumerate(kinds) if each == kind]
        group = [circuits[place] for place in places]
        group.append(empty(group[0].graph, group[0].kind))
        for name, value in _measured(model, pairs, plain, group, ablation, budget).items():
            values[name][places], corrupt[name] = value[:-1], value[-1]
    measured = {each.name: values[each.name] for each in readouts}
    return Cells("", "denoise", ("circuit",), measured, clean, checked_values(corrupt, len(pairs)), kind="circuits")


def _check(model: Transformer, pairs: Pairs, circuits: Sequence[Circuit], ablation: Ablation) -> None:
    if not circuits:
        raise InputError("expected at least one circuit, as from_edges(graph, ...) gives it; got none")
    for circuit in circuits:
        check_circuit(model, circuit)
        if lacking := [name for name in circuit.graph.positions if name not in pairs.positions]:
            named = ", ".join(pairs.positions) or "no position"
            raise InputError(f"no position {lacking[0]!r} in these pairs, which a circuit names: they have {named}")
    if ablation == "zero" and len({circuit.graph.senders[:1] == ("token",) for circuit in circuits}) > 1:
        raise InputError(
            "ablation zero differs for joint and for separate embeddings: expected circuits of one kind of graph"
        )


def _measured(
    model: Transformer,
    pairs: Pairs,
    readouts: Sequence[Readout],
    circuits: Sequence[Circuit],
    ablation: Ablation,
    budget: int,
) -> Values:
    """The metrics, `circuit prompt`, of circuits of one graph and kind."""
    graph, device = circuits[0].graph, model.device
    texts = [take(pairs.inputs[1], part) for part in split(model, pairs, budget)]
    common = common_writes(model, graph, ablation, texts)
    values = {each.name: torch.zeros(len(circuits), len(pairs), dtype=model.dtype, device=device) for each in readouts}
    # with corrupted prompts, a node that nothing reaches writes its reference value, so nodes can run as edges
    by_edges = circuits[0].kind == "edges" or (not graph.reason and common is None)
    members = [(_edges(each) if by_edges else each.members).to(device) for each in circuits]
    parts, n_cells = _parts(model, pairs, graph, budget)
    chunks = [members[start : start + n_cells] for start in range(0, len(members), n_cells)]
    for prompts in parts:
        part = pairs.take(prompts)
        writes = written(model, graph, part.inputs[1]) if common is None else common
        reading, start = [each.take(prompts) for each in readouts], 0
        first = int(part.first_changed.min()) if common is None and model.last.config.causal else 0
        setting = model, graph, part, writes
        run = Alone(*setting, first).finals if by_edges else partial(_node_run, *setting)
        for finals in map(run, chunks):
            for each in reading:
                values[each.name][start : start + len(finals), prompts] = each.from_final(model, each.at_reads(finals))
            start += len(finals)
    return values


def _node_run(model: Transformer, graph: Graph, pairs: Pairs, writes: Writes, nodes: list[Tensor]) -> Tensor:
    """The last stream of node circuits, `circuit prompt position d_model`; all prompts may share one reference."""
    edits = node_edits(model, graph, torch.stack(nodes), writes, pairs.inputs[0])
    return final_stream(model, pairs.inputs[0], Tap(edit=edits))


def _edges(circuit: Circuit) -> Bool[Tensor, "*position sender receiver"]:
    """The edges to run, without dead ends; for node circuits, all edges out of their nodes."""
    graph = circuit.graph
    if circuit.kind == "nodes":
        circuit = Circuit(graph, (circuit.members[:, None] & graph.exists).expand(graph.shape).clone())
    return circuit.pruned().members


def _parts(model: Transformer, pairs: Pairs, graph: Graph, budget: int) -> tuple[Sequence[Tensor], int]:
    """Prompts that run together, apart from those that differ early, and how many circuits run at a time."""
    length = sum(pairs.read_by(stack).ids.shape[1] for stack in model.config.stacks)
    config = model.last.config
    numbers = (len(graph.senders) + 2 * (config.n_heads + 2 * config.kv_heads)) * config.d_model + 4 * config.d_mlp
    row = numbers * model.last.embed.token.weight.element_size()
    check_budget(budget, row * length, pairs, "circuit of a prompt")
    limit = min(rows_at_once(model, _SHARE), budget // row)
    n_prompts = min(len(pairs), max(1, limit // length))
    return pairs.first_changed.argsort(stable=True).split(n_prompts), max(1, limit // (n_prompts * length))

"""What does a circuit's run cost beside the plain way, in which every node writes and every receiver has its own input?

    python -m benchmarks.circuits [--smallest] [--turns 2]

GPT-2 small's shape with random weights, 32 pairs of 16 tokens that differ in their fifth, and the top edges of edge
attribution in ten sizes. Prints a line about the machine and one JSON line a size. Seconds are those of one thread of
the processor, the least of all turns (the plain way has one):

    share, edges, live    of all edges, how many are left without dead ends, and how many nodes write
    ours                  `faithfulness` for this circuit; its reference and metrics are in it
    shared                of these, what every call takes: the empty circuit's
    plain                 the plain way: every node's write in one buffer, every receiver's own input
    faster                plain / ours
    ours_mb, plain_mb     the process's peak of memory above what it held before the job

The plain way is what public packages do (Hanna 2024's, MIB's): written here, over the same weights. The run stops where
both do not agree.
"""

import ctypes
import time
from collections.abc import Callable

import torch
from einops import einsum
from torch import Tensor

from benchmarks.console import arguments, machine, show
from benchmarks.cost import model_of, pairs_of
from benchmarks.floor import Peak, Shape
from interp import Pairs, Transformer, logit_difference
from interp.circuits import Circuit, Graph, empty, faithfulness, top
from interp.circuits.reference import node_sites, written
from interp.circuits.size_curves import SHARES
from interp.patching import edge_attribution
from interp.visibility import Visibility

GPT2 = Shape(12, 12, 768, 50_257, prompts=32, first=4)
SMALLEST = Shape(2, 3, 48, 101, prompts=32, first=4)


def circuits(model: Transformer, pairs: Pairs) -> list[Circuit]:
    """The top edges by edge attribution of four pairs, in every size, without dead ends."""
    graph, few = Graph.from_model(model), pairs.take(torch.arange(4))
    scores = edge_attribution(model, few, logit_difference(), steps=1).mean()
    return [top(graph, scores, int(share * graph.n_edges), absolute=True).pruned() for share in SHARES]


def plain(model: Transformer, pairs: Pairs, circuit: Circuit) -> Tensor:
    """The last stream, with every node's write in one buffer and every receiver's own input."""
    graph, config = circuit.graph, model.last.config
    reference = written(model, graph, pairs.inputs[1])
    batch, sites = pairs.clean, node_sites(model, graph)
    outside = (graph.exists & ~circuit.members).float()
    changes = torch.zeros(*batch.ids.shape, len(graph.senders), config.d_model)  # reference less own
    stream = model.last.embed(batch.ids, batch.positions)
    changes[:, :, 0] = reference["decoder.embed"][..., 0, :] - stream
    receivers = iter(range(len(graph.receivers)))

    def own(count: int) -> Tensor:
        columns = [next(receivers) for _ in range(count)]
        mixed = einsum(changes, outside[:, columns], "prompt p sender d, sender receiver -> prompt p receiver d")
        return stream[:, :, None] + mixed

    visibility = Visibility.from_batch(batch, causal=True)
    for layer, block in enumerate(model.last.blocks):
        heads, attn = config.n_heads, block.attn
        q, k, v = (
            einsum(block.attention.read(own(heads)), weight, "b p h d, h d e -> b p h e") + bias
            for weight, bias in ((attn.W_Q, attn.b_Q), (attn.W_K, attn.b_K), (attn.W_V, attn.b_V))
        )
        z = attn.mix(*attn.enter([q, k, v], batch.positions), visibility)
        site = f"decoder.{layer}.attn.z"
        results = einsum(z, attn.W_O, "b p h e, h e d -> b p h d")
        changes[:, :, sites[site]] = einsum(reference[site], attn.W_O, "b p h e, h e d -> b p h d") - results
        stream = stream + results.sum(2) + attn.b_O
        out = block.feed_forward.out(own(1)[:, :, 0])
        site = f"decoder.{layer}.mlp_out"
        changes[:, :, sites[site].start] = reference[site][..., 0, :] - out
        stream = stream + out
    return model.last.norm(own(1)[:, :, 0])


def measured(job: Callable[[], Tensor]) -> tuple[float, float, Tensor]:
    """Seconds of one thread of the processor, the peak of memory in MB, and what the job gave."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)  # memory that another job has freed would hide what this one takes
    with Peak() as peak:
        began = time.process_time()
        out = job()
        took = time.process_time() - began
    return took, peak.mb, out


def main() -> None:
    """Print a row a size."""
    parser = arguments(__doc__, smallest="a tiny model, one turn")
    parser.add_argument("--turns", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    shape = SMALLEST if options.smallest else GPT2
    model = model_of(shape, 64)
    pairs, metric, nothing = pairs_of(model, shape), logit_difference(), empty(model)
    readout = metric.prepare(model, pairs)
    machine(shape=str(shape))
    with torch.no_grad():
        for share, circuit in zip(SHARES, circuits(model, pairs), strict=True):
            jobs: dict[str, Callable[[], Tensor]] = {
                "shared": lambda: faithfulness(model, pairs, metric, nothing).corrupt[metric.name],
                "ours": lambda c=circuit: faithfulness(model, pairs, metric, c).values[metric.name][0],
                "plain": lambda c=circuit: readout.from_final(model, readout.at_reads(plain(model, pairs, c))),
            }
            first = {name: measured(job) for name, job in jobs.items()}
            torch.testing.assert_close(first["ours"][2], first["plain"][2], rtol=1e-3, atol=1e-3)
            seconds = {name: took for name, (took, *_) in first.items()}
            for _ in range(0 if options.smallest else options.turns - 1):
                seconds |= {name: min(seconds[name], measured(jobs[name])[0]) for name in ("shared", "ours")}
            row = {name: round(took, 4) for name, took in seconds.items()}
            row |= {"faster": round(seconds["plain"] / seconds["ours"], 2)}
            row |= {f"{name}_mb": round(first[name][1], 1) for name in ("ours", "plain")}
            show(share=share, edges=circuit.size, live=int(circuit.members.any(1).sum()), **row)


if __name__ == "__main__":
    main()

"""What does a circuit's run cost, beside the products of its live nodes, and beside the plain way?

    python -m benchmarks.circuits [--smallest] [--turns 5]

GPT-2 small's shape with random weights, 32 pairs of 16 tokens that differ in a token of the first half, and the top
edges of edge attribution in ten sizes. Prints a line about the machine and one JSON line a size, of medians over turns,
in seconds of one thread of the processor:

    share, edges, live    of all edges, how many are left without dead ends, and how many nodes write
    ours                  `faithfulness` for this circuit; its reference and metrics are in it
    shared                of these, what every call takes: the empty circuit's
    floor                 the live nodes' matrix products alone, at the positions that can differ
    sums                  adding up what every receiver reads, as one dense product a layer
    plain                 the plain way: every node's write in one buffer, every receiver's own input
    ratio, with_sums      (ours - shared) / floor, and / (floor + sums), where any node is live
    faster                plain / ours

and last the peak of memory above a model at rest that each way takes for a random half of all edges, each in a process
of its own.
The plain way is what public packages do (Hanna 2024's, MIB's): written here, over the same weights.
"""

import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from einops import einsum
from torch import Tensor

from benchmarks.console import apart, arguments, machine, show
from interp import Pairs, StackConfig, Transformer, TransformerConfig, logit_difference
from interp import config as parts
from interp.circuits import Circuit, Graph, faithfulness, from_edges
from interp.circuits.reference import node_sites, written
from interp.patching import edge_attribution
from interp.products import linear
from interp.visibility import Visibility

SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
GPT2 = StackConfig(
    n_layers=12, d_model=768, n_heads=12, d_head=64, d_mlp=3072, n_ctx=64, d_vocab=50_257, causal=True,
    mlp=parts.Plain("gelu_tanh"),
)  # fmt: skip
SMALLEST = replace(GPT2, n_layers=2, d_model=48, n_heads=3, d_head=16, d_mlp=96, d_vocab=101)
PROMPTS, POSITIONS = 32, 16


def task(stack: StackConfig) -> tuple[Transformer, Pairs]:
    """A random model, and pairs that differ in one token."""
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(decoder=stack, output="tied"))
    clean = torch.randint(stack.d_vocab, (PROMPTS, POSITIONS))
    corrupt, column = clean.clone(), torch.randint(POSITIONS // 2, (PROMPTS,))
    corrupt[torch.arange(PROMPTS), column] += 1
    right, wrong = torch.randint(stack.d_vocab, (2, PROMPTS))
    return model, Pairs.from_ids(model, clean, corrupt % stack.d_vocab, right, wrong)


def circuits(model: Transformer, pairs: Pairs) -> list[Circuit]:
    """The top edges by edge attribution, in every size, without dead ends."""
    graph = Graph.from_model(model)
    scores = edge_attribution(model, pairs, logit_difference(), steps=1).mean().abs().nan_to_num(-1).flatten()
    order = scores.argsort(descending=True)
    sets = []
    for share in SHARES:
        edges = torch.zeros(graph.exists.numel(), dtype=torch.bool)
        edges[order[: int(share * graph.n_edges)]] = True
        sets.append(Circuit(graph, edges=edges.view(graph.shape)).pruned())
    return sets


def live(circuit: Circuit) -> list[tuple[int, int, int, int]]:
    """By layer: how many heads' inputs are read from edges, how many heads and feed-forwards write, senders before."""
    assert circuit.edges is not None
    edges, graph = circuit.edges, circuit.graph
    fed = [name for name, any_ in zip(graph.receivers, edges.any(0).tolist(), strict=True) if any_]
    wrote = [name for name, any_ in zip(graph.senders, edges.any(1).tolist(), strict=True) if any_]
    rows, before = [], 1
    for layer in range(1 + max(int(name.split(".")[1]) for name in graph.senders if name.startswith("mlp"))):
        heads = sum(name.startswith(f"{layer}.") for name in wrote)
        feed = int(f"mlp.{layer}" in wrote)
        rows.append((sum(name.startswith(f"{layer}.") for name in fed), heads, feed, before))
        before += heads + feed
    return rows


def floor(model: Transformer, circuit: Circuit, rows: int) -> Callable[[], None]:
    """The products of the live nodes alone, of as many rows."""
    config = model.last.config
    x, hidden = torch.randn(rows, config.d_model), torch.randn(rows, config.d_mlp)
    z = torch.randn(config.n_heads, rows, config.d_head)

    def products() -> None:
        for (inputs, heads, feed, _), block in zip(live(circuit), model.last.blocks, strict=True):
            if inputs:
                linear(x, block.attn.qkv.weight[: inputs * config.d_head])
            if heads:
                z[:heads] @ block.attn.W_O[:heads]
            if feed:
                linear(x, block.mlp.up.weight)
                linear(hidden, block.mlp.down.weight)

    return products


def sums(model: Transformer, circuit: Circuit, rows: int) -> Callable[[], None]:
    """What every receiver that edges feed reads, added up from all live senders before it."""
    config = model.last.config
    changes = torch.randn(len(circuit.graph.senders), rows * config.d_model)

    def products() -> None:
        for inputs, _, feed, before in live(circuit):
            for count in (inputs, feed):
                torch.ones(count, before) @ changes[:before]

    return products


def plain(model: Transformer, pairs: Pairs, circuit: Circuit) -> Tensor:
    """The last stream, with every node's write in one buffer and every receiver's own input."""
    graph, config = circuit.graph, model.last.config
    assert circuit.edges is not None
    reference = written(model, graph, pairs.inputs[1])
    batch, sites = pairs.clean, node_sites(model, graph)
    outside = (graph.exists & ~circuit.edges).float()
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


def peak(name: str, smallest: bool) -> int:
    """Bytes beyond a model at rest that a way takes for `most`."""
    torch.set_num_threads(1)
    with torch.no_grad():
        model, pairs = task(SMALLEST if smallest else GPT2)
        circuit = most(model)
        written(model, circuit.graph, pairs.inputs[1])
        rest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        faithfulness(model, pairs, logit_difference(), circuit) if name == "ours" else plain(model, pairs, circuit)
        return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - rest) * 1024


def most(model: Transformer) -> Circuit:
    """Half of all edges, at random: no two receivers share an input."""
    graph = Graph.from_model(model)
    drawn = torch.rand(graph.shape, generator=torch.Generator().manual_seed(0)) < 0.5
    return Circuit(graph, edges=drawn & graph.exists)


def seconds(job: Callable[[], Tensor | None]) -> tuple[float, Tensor | None]:
    """The processor's seconds that it takes, of one thread, and what it gave."""
    began = time.process_time()
    out = job()
    return time.process_time() - began, out


def main() -> None:
    parser = arguments(__doc__, smallest="a tiny model, one turn")
    parser.add_argument("--turns", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    model, pairs = task(SMALLEST if given.smallest else GPT2)
    shape = f"{model.config.n_layers} x {model.config.n_heads} x {model.config.d_model}, {PROMPTS} x {POSITIONS} tokens"
    machine(shape=shape)
    first, metric = int(pairs.first_changed.min()), logit_difference()
    readout = metric.prepare(model, pairs)
    rows, nothing = PROMPTS * (POSITIONS - first), from_edges(Graph.from_model(model), [])
    with torch.no_grad():
        for share, circuit in zip(SHARES, circuits(model, pairs), strict=True):
            jobs = {
                "ours": lambda c=circuit: faithfulness(model, pairs, metric, c).values["logit_difference"][0],
                "shared": lambda: faithfulness(model, pairs, metric, nothing).corrupt["logit_difference"],
                "floor": floor(model, circuit, rows),
                "sums": sums(model, circuit, rows),
                "plain": lambda c=circuit: readout.from_final(model, readout.at_reads(plain(model, pairs, c))),
            }
            turns = []
            for _ in range(1 if given.smallest else given.turns):
                results = {name: seconds(job) for name, job in jobs.items()}
                torch.testing.assert_close(results["ours"][1], results["plain"][1], rtol=1e-3, atol=1e-3)
                turns.append({name: took for name, (took, _) in results.items()})
            row = {name: round(statistics.median(turn[name] for turn in turns), 4) for name in jobs}
            writers = sum(heads + feed for _, heads, feed, _ in live(circuit))
            for ratio, names in (("ratio", ["floor"]), ("with_sums", ["floor", "sums"])) if writers else ():
                alone = [(t["ours"] - t["shared"]) / sum(t[name] for name in names) for t in turns]
                row[ratio] = round(statistics.median(alone), 2)
            row["faster"] = round(statistics.median(turn["plain"] / turn["ours"] for turn in turns), 2)
            show(share=share, edges=circuit.size, live=writers, **row)
    show(**{f"peak_{name}_mb": round(apart(peak, name, given.smallest) / 1e6, 1) for name in ("ours", "plain")})


if __name__ == "__main__":
    main()

"""What does a circuit's run cost, compared with its live nodes' products and with the plain way?

    python -m benchmarks.circuits [--smallest] [--turns 2]

GPT-2 small's shape with random weights, 32 pairs of 16 tokens that differ in a token of the first half, and the top
edges of edge attribution in ten sizes. Prints a line about the machine and one JSON line per size: each job's fastest
turn (jobs alternate), in seconds of one CPU thread:

    share, edges, live    share of all edges, edges left without dead ends, and nodes that write
    ours                  `faithfulness` for this circuit, with its reference and metrics
    shared                the part that every call takes: the empty circuit's time
    products              only the live nodes' matrix products, in rows (positions of prompts) that can differ
    sums                  summing what the receivers read, as one dense product per layer
    plain                 the plain way: every node's write in one buffer, every receiver's own input; one turn
    by_products           (ours - shared) / products, if any node is live
    by_floor              (ours - shared) / (products + sums)
    faster                plain / ours
    ours_mb, plain_mb     the process's peak memory above what it held before the job

Every way of running an edge circuit needs two kinds of arithmetic. Live nodes multiply by their weights. Every receiver
with edges of its own sums what these carry, a product with as many entries as there are edges. The floor is both; it
leaves out norms, attention's mixing, activations and tensor layout.
The plain way is what public packages do (Hanna 2024's, MIB's), rewritten here over the same weights.
"""

import ctypes
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from einops import einsum
from torch import Tensor

from benchmarks.console import arguments, machine, show
from benchmarks.floor import Peak
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
    """Circuits of every size, without dead ends: the top edges by edge attribution on four pairs."""
    graph, sample = Graph.from_model(model), pairs.take(torch.arange(4))
    scores = edge_attribution(model, sample, logit_difference(), steps=1).mean().abs().nan_to_num(-1).flatten()
    order = scores.argsort(descending=True)
    sets = []
    for share in SHARES:
        edges = torch.zeros(graph.exists.numel(), dtype=torch.bool)
        edges[order[: int(share * graph.n_edges)]] = True
        sets.append(Circuit(graph, edges.view(graph.shape)).pruned())
    return sets


def live(circuit: Circuit) -> list[tuple[int, int, int, int]]:
    """Per layer: head inputs with edges, live heads, live feed-forwards, and senders before the layer."""
    edges, graph = circuit.members, circuit.graph
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
    """Only the live nodes' products, with this many rows."""
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
    """The inputs of all receivers with edges, summed over all live senders before them."""
    changes = torch.randn(rows, len(circuit.graph.senders), model.config.d_model)
    out = torch.empty(max(count for count, *_ in live(circuit)) + 1, rows, model.config.d_model)

    def products() -> None:
        for inputs, _, feed, before in live(circuit):
            count = inputs + feed
            weights = torch.ones(1, count, before).expand(rows, -1, -1)
            torch.bmm(weights, changes[:, :before], out=out[:count].transpose(0, 1))

    return products


def plain(model: Transformer, pairs: Pairs, circuit: Circuit) -> Tensor:
    """The last stream, with every node's write in one buffer and every receiver's own input."""
    graph, config = circuit.graph, model.last.config
    reference = written(model, graph, pairs.inputs[1])
    batch, sites = pairs.clean, node_sites(model, graph)
    outside = (graph.exists & ~circuit.members).float()
    changes = torch.zeros(*batch.ids.shape, len(graph.senders), config.d_model)  # reference minus own
    stream = model.last.embed(batch.ids, batch.positions)
    changes[:, :, 0] = reference["decoder.embed"][..., 0, :] - stream
    receivers = iter(range(len(graph.receivers)))

    def inputs(count: int) -> Tensor:
        columns = [next(receivers) for _ in range(count)]
        mixed = einsum(changes, outside[:, columns], "prompt p sender d, sender receiver -> prompt p receiver d")
        return stream[:, :, None] + mixed

    visibility = Visibility.from_batch(batch, causal=True)
    for layer, block in enumerate(model.last.blocks):
        heads, attn = config.n_heads, block.attn
        q, k, v = (
            einsum(block.attention.read(inputs(heads)), weight, "b p h d, h d e -> b p h e") + bias
            for weight, bias in ((attn.W_Q, attn.b_Q), (attn.W_K, attn.b_K), (attn.W_V, attn.b_V))
        )
        z = attn.mix(*attn.enter([q, k, v], batch.positions), visibility)
        site = f"decoder.{layer}.attn.z"
        results = einsum(z, attn.W_O, "b p h e, h e d -> b p h d")
        changes[:, :, sites[site]] = einsum(reference[site], attn.W_O, "b p h e, h e d -> b p h d") - results
        stream = stream + results.sum(2) + attn.b_O
        out = block.feed_forward.out(inputs(1)[:, :, 0])
        site = f"decoder.{layer}.mlp_out"
        changes[:, :, sites[site].start] = reference[site][..., 0, :] - out
        stream = stream + out
    return model.last.norm(inputs(1)[:, :, 0])


def cost(job: Callable[[], Tensor | None]) -> tuple[float, float, Tensor | None]:
    """A job's CPU seconds on one thread, its peak memory in MB, and its result."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)  # memory freed by another job would hide this one's use
    with Peak() as peak:
        began = time.process_time()
        out = job()
        took = time.process_time() - began
    return took, peak.mb, out


def main() -> None:
    parser = arguments(__doc__, smallest="a tiny model, one turn")
    parser.add_argument("--turns", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model, pairs = task(SMALLEST if options.smallest else GPT2)
    shape = f"{model.config.n_layers} x {model.config.n_heads} x {model.config.d_model}, {PROMPTS} x {POSITIONS} tokens"
    machine(shape=shape)
    metric, nothing = logit_difference(), from_edges(Graph.from_model(model), [])
    readout, rows = metric.prepare(model, pairs), int((POSITIONS - pairs.first_changed).sum())
    sets, shared = circuits(model, pairs), float("inf")
    with torch.no_grad():
        for share, circuit in zip(SHARES, sets, strict=True):
            jobs = {
                "shared": lambda: faithfulness(model, pairs, metric, nothing).corrupt["logit_difference"],
                "plain": lambda c=circuit: readout.from_final(model, readout.at_reads(plain(model, pairs, c))),
                "ours": lambda c=circuit: faithfulness(model, pairs, metric, c).values["logit_difference"][0],
                "products": floor(model, circuit, rows),
                "sums": sums(model, circuit, rows),
            }
            costs = {name: cost(job) for name, job in jobs.items()}
            torch.testing.assert_close(costs["ours"][2], costs["plain"][2], rtol=1e-3, atol=1e-3)
            least = {name: took for name, (took, *_) in costs.items()}
            for _ in range(0 if options.smallest else options.turns - 1):
                least |= {name: min(least[name], cost(jobs[name])[0]) for name in ("ours", "products", "sums")}
            least["shared"] = shared = min(shared, least["shared"])
            row = {name: round(took, 4) for name, took in least.items()}
            if any(heads + feed for _, heads, feed, _ in live(circuit)):
                alone, floors = least["ours"] - shared, {"by_products": ["products"], "by_floor": ["products", "sums"]}
                row |= {name: round(alone / sum(least[each] for each in parts), 2) for name, parts in floors.items()}
            row["faster"] = round(least["plain"] / least["ours"], 2)
            row |= {f"{name}_mb": round(costs[name][1], 1) for name in ("ours", "plain")}
            show(share=share, edges=circuit.size, live=sum(h + f for _, h, f, _ in live(circuit)), **row)


if __name__ == "__main__":
    main()

"""How long does an exact sweep take, against TransformerLens, one forward per cell, and the bare arithmetic?

    python -m benchmarks.sweeps --quick        # a few minutes on two cores
    python -m benchmarks.sweeps                # every row repeated
    python -m benchmarks.sweeps --device cuda --dtype bfloat16

A GPT-2 of the given shape gets seeded random weights, once as transformers' own model (which the TransformerLens bridge
wraps) and once as ours. Prompts are 8 pairs of 16 tokens that differ at position 8; the metric is a logit difference at
the last position. Our sweep, the peer's cells and the oracle's alternate in one process. Each row is one JSON line:

    name, shape
    ours_s         median seconds of our sweep
    peer, peer_s   the peer, and its seconds for all cells: cells x the median of `peer_sampled` timed cells
    ratio          peer_s / ours_s, over all cells; ratio_changed counts only cells at changed positions
    floor_s        unavoidable multiply-adds x 2 / the best measured rate of a float32 matrix product with inner
                   dimension d_model, in the best burst of any size; over_floor = ours_s / floor_s
    sustained_s    the same multiply-adds at the rate of the sweep's own products, in its exact shapes, one after the
                   other with nothing in between; over_sustained = ours_s / sustained_s
    max_abs_diff   largest difference of any compared cell from the peer's value
    peak_mb        growth of the process's peak memory during our sweep

The floor counts, for every cell, layer and position whose stream the patch changes, that layer's matrix products
downstream of the patch; in the last layer, keys and values at all changed positions and the rest only where the metric
reads. `--quick` on two cores, float32, against transformer-lens 4 (`ratio_changed` of the last three: 24, 34, 39):

    sweep                                           ours_s   ratio   over_floor   over_sustained
    z, every layer and head                            2.1      17         1.36             1.28
    resid_pre, every layer and position                1.0      47         1.64             1.30
    z, every layer, head and position                  9.0      67         1.31             1.15
    the same of 4 layers, d_model 256                 0.09      78         2.55             1.97

In rows named `..._oracle` the peer is our own path of one forward per cell.
"""

import statistics
from collections.abc import Callable
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from benchmarks.console import arguments, machine, show
from benchmarks.cost import pairs_of
from benchmarks.floor import GPT2, Peak, Shape, best_rate, multiply_adds, sustained_rate, timed
from benchmarks.peers import bridged, gpt2, numbers
from interp import Transformer, patch, run
from interp.patching import logit_difference, sweep
from interp.patching.patch_sites import site_name
from models import load

READ = -1


SMALL = Shape(4, 8, 256, 4_096)


class Bench:
    """One shape: the same weights in both libraries, and the pairs."""

    def __init__(self, shape: Shape, device: str, dtype: torch.dtype):
        self.shape, self.device, self.dtype = shape, torch.device(device), dtype
        self.theirs = gpt2(shape, n_positions=1_024).to(self.device, dtype)
        with TemporaryDirectory() as folder:
            self.theirs.save_pretrained(folder)
            self.ours: Transformer = load(folder, dtype=dtype, device=device)
        self.bridge = bridged(self.theirs, numbers(shape.vocabulary), device, dtype)
        self.pairs = pairs_of(self.ours, shape)

    def metric(self, logits: Tensor) -> Tensor:
        rows = torch.arange(len(logits), device=logits.device)
        return logits[rows, READ, self.pairs.right] - logits[rows, READ, self.pairs.wrong]

    def peer_cell(self, site: str) -> Callable[[tuple[int, ...]], Tensor]:
        """One patched forward of the bridge; the cell is (layer, head, position), with position -1 for all."""
        hook = {"z": "attn.hook_z", "resid_pre": "hook_resid_pre"}[site]
        names = [f"blocks.{layer}.{hook}" for layer in range(self.shape.layers)]
        _, healthy = self.bridge.run_with_cache(self.pairs.clean.ids, names_filter=lambda name: name in names)

        def cell(place: tuple[int, ...]) -> Tensor:
            layer, head, position = place
            where = slice(None) if position < 0 else position

            def put(value: Tensor, hook: object) -> Tensor:
                if site == "z":
                    value[:, where, head] = healthy[names[layer]][:, where, head]
                else:
                    value[:, where] = healthy[names[layer]][:, where]
                return value

            return self.metric(self.bridge.run_with_hooks(self.pairs.corrupt.ids, fwd_hooks=[(names[layer], put)]))

        return cell

    def oracle_cell(self, site: str) -> Callable[[tuple[int, ...]], Tensor]:
        """One patched forward of our own model, the plain way."""
        names = [site_name("decoder", layer, site) for layer in range(self.shape.layers)]
        healthy = run(self.ours, self.pairs.clean, capture=names)

        def cell(place: tuple[int, ...]) -> Tensor:
            layer, head, position = place
            where = {} if position < 0 else {"position": position}
            if site == "z":
                where["head"] = head
            edit = {names[layer]: patch(healthy[names[layer]], **where)}
            return self.metric(run(self.ours, self.pairs.corrupt, edit=edit).logits)

        return cell


def row(bench: Bench, name: str, site: str, by_position: bool, repeats: int, sampled: int) -> None:
    """Time one sweep against the bridge and the oracle, alternating, and print two lines."""
    shape = bench.shape
    by = ("layer", *(("head",) if site == "z" else ()), *(("position",) if by_position else ()))
    cells = [
        (layer, head, position)
        for layer in range(shape.layers)
        for head in (range(shape.heads) if site == "z" else [0])
        for position in (range(shape.positions) if by_position else [-1])
    ]
    changed = [cell for cell in cells if not 0 <= cell[2] < shape.first]
    picked = [
        changed[index] for index in torch.randperm(len(changed), generator=torch.Generator().manual_seed(2))[:sampled]
    ]
    peers = {"transformer-lens": bench.peer_cell(site), "oracle": bench.oracle_cell(site)}

    def ours() -> Tensor:
        return sweep(bench.ours, bench.pairs, logit_difference(), site, by).values["logit_difference"]

    with Peak() as peak:
        values = ours()
    for cell in peers.values():
        cell(picked[0])
    took: list[float] = []
    times: dict[str, list[float]] = {peer: [] for peer in peers}
    difference = dict.fromkeys(peers, 0.0)
    share = -(-len(picked) // repeats)
    for turn in range(repeats):
        took.append(timed(ours, bench.device)[0])
        for peer, run_cell in peers.items():
            for place in picked[turn * share : (turn + 1) * share]:
                seconds, value = timed(lambda run_cell=run_cell, place=place: run_cell(place), bench.device)
                times[peer].append(seconds)
                index = tuple(i for axis, i in zip(("layer", "head", "position"), place, strict=True) if axis in by)
                difference[peer] = max(difference[peer], float((values[index] - value).abs().max()))
    ours_s = statistics.median(took)
    least = multiply_adds(shape, site, by_position)
    floor_s = least / best_rate(shape.d_model, bench.device, bench.dtype)
    sustained_s = least / sustained_rate(ours, bench.device, bench.dtype, shape.layers)
    for peer, seconds in times.items():
        cell_s = statistics.median(seconds)
        show(
            name=name if peer == "transformer-lens" else f"{name}_oracle",
            shape=f"{shape}, {len(cells)} cells",
            ours_s=round(ours_s, 4),
            peer=peer,
            peer_s=round(cell_s * len(cells), 3),
            peer_sampled=len(seconds),
            ratio=round(cell_s * len(cells) / ours_s, 2),
            ratio_changed=round(cell_s * len(changed) / ours_s, 2),
            floor_s=round(floor_s, 4),
            over_floor=round(ours_s / floor_s, 3),
            sustained_s=round(sustained_s, 4),
            over_sustained=round(ours_s / sustained_s, 3),
            max_abs_diff=difference[peer],
            peak_mb=round(peak.mb, 1),
        )


def forward_row(bench: Bench, prompts: int, positions: int, repeats: int) -> None:
    """Time a forward that captures every layer's `z` against transformers' plain forward with fused attention."""
    ids = torch.randint(bench.shape.vocabulary, (prompts, positions), generator=torch.Generator().manual_seed(3))
    ids = ids.to(bench.device)

    def ours() -> Tensor:
        return run(bench.ours, ids, capture="decoder.*.attn.z").logits

    def plain() -> Tensor:
        with torch.no_grad():
            return bench.theirs(ids, use_cache=False).logits

    difference = float((ours() - plain()).abs().max())
    with Peak() as peak:
        ours()
    pairs = [(timed(ours, bench.device)[0], timed(plain, bench.device)[0]) for _ in range(repeats)]
    ours_s, peer_s = (statistics.median(times) for times in zip(*pairs, strict=True))
    seconds = {"ours_s": round(ours_s, 4), "peer": "transformers", "peer_s": round(peer_s, 4)}
    ratios = {"ratio": round(peer_s / ours_s, 3), "floor_s": None, "over_floor": None}
    facts = {"name": "forward_z", "shape": f"{prompts}x{positions}"}
    show(**facts, **seconds, **ratios, max_abs_diff=difference, peak_mb=round(peak.mb, 1))


def main() -> None:
    parser = arguments(__doc__, quick="3 repeats instead of 7")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float64"])
    parser.add_argument("--only", default="", help="only the rows whose name contains this")
    options = parser.parse_args()
    dtype = getattr(torch, options.dtype)
    repeats, sampled = (3, 24) if options.quick else (7, 42)
    machine(device=options.device, dtype=options.dtype)
    rows = [("small_z_by_position", SMALL, "z", True), ("z", GPT2, "z", False)]
    rows += [("resid_pre", GPT2, "resid_pre", True), ("z_by_position", GPT2, "z", True)]
    benches: dict[Shape, Bench] = {}
    for name, shape, site, by_position in rows:
        if options.only in name:
            if shape not in benches:
                benches = {shape: Bench(shape, options.device, dtype)}
            row(benches[shape], name, site, by_position, repeats, sampled)
    if options.only in "forward_z":
        bench = benches.get(GPT2) or Bench(GPT2, options.device, dtype)
        for prompts, positions in ((8, 16), (4, 128), (1, 512)):
            forward_row(bench, prompts, positions, 3 * repeats)


if __name__ == "__main__":
    main()

"""How long does an exact sweep take, beside TransformerLens and beside arithmetic itself?

    python -m benchmarks.sweeps --quick        # a few minutes on two cores
    python -m benchmarks.sweeps                # every row repeated
    python -m benchmarks.sweeps --device cuda --dtype bfloat16

A GPT-2 of the given shape gets seeded random weights, once as transformers' own model (which the TransformerLens bridge
wraps) and once as ours. Prompts are 8 pairs of 16 tokens that differ at position 8; the metric is a logit difference at
the last position. Our sweep and the peer's cells take turns in one process. Each row is one JSON line:

    name, shape
    ours_s         median seconds of our sweep
    peer_s         the peer's seconds for all cells: cells x the median of `peer_sampled` timed cells
    ratio          peer_s / ours_s, over all cells; ratio_changed counts only cells at changed positions
    floor_s        multiply-adds that cannot be avoided x 2 / the best measured rate of a float32 matrix product with
                   inner dimension d_model, a best burst of any size; over_floor = ours_s / floor_s
    max_abs_diff   largest difference of any compared cell from the peer's value
    peak_mb        growth of the process's peak memory during our sweep

The floor counts, for every cell, layer and position whose stream the patch changes, the matrix products of that layer
downstream of the patch; in the last layer keys and values at all changed positions and the rest only where the metric
reads.
"""

import statistics
from collections.abc import Callable
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from benchmarks.console import arguments, machine, show
from benchmarks.cost import pairs_of
from benchmarks.floor import GPT2, Peak, Shape, best_rate, multiply_adds, timed
from benchmarks.peers import bridged, gpt2, numbers
from interp import Transformer
from interp.patching import logit_difference, sweep
from models import load

SMALL = Shape(4, 8, 256, 4_096)
Cell = tuple[int, int, int]  # layer, head, position; -1 for all positions


class Bench:
    """One shape: the same weights in both libraries, and the pairs."""

    def __init__(self, shape: Shape, device: str, dtype: torch.dtype):
        self.shape, self.device, self.dtype = shape, torch.device(device), dtype
        theirs = gpt2(shape, n_positions=1_024).to(self.device, dtype)
        with TemporaryDirectory() as folder:
            theirs.save_pretrained(folder)
            self.ours: Transformer = load(folder, dtype=dtype, device=device)
        self.bridge = bridged(theirs, numbers(shape.vocabulary), device, dtype)
        self.pairs = pairs_of(self.ours, shape)

    def peer_cell(self, site: str) -> Callable[[Cell], Tensor]:
        """One patched forward of the bridge."""
        hook = {"z": "attn.hook_z", "resid_pre": "hook_resid_pre"}[site]
        names = [f"blocks.{layer}.{hook}" for layer in range(self.shape.layers)]
        _, healthy = self.bridge.run_with_cache(self.pairs.clean.ids, names_filter=lambda name: name in names)
        rows = torch.arange(len(self.pairs), device=self.device)

        def cell(at: Cell) -> Tensor:
            layer, head, position = at
            where = (slice(None), slice(None) if position < 0 else position, *([head] if site == "z" else []))

            def put(value: Tensor, hook: object) -> Tensor:
                value[where] = healthy[names[layer]][where]
                return value

            logits = self.bridge.run_with_hooks(self.pairs.corrupt.ids, fwd_hooks=[(names[layer], put)])
            return logits[rows, -1, self.pairs.right] - logits[rows, -1, self.pairs.wrong]

        return cell


def row(bench: Bench, name: str, site: str, by_position: bool, repeats: int, sampled: int) -> None:
    """Time one sweep beside the bridge, taking turns, and print a line."""
    shape = bench.shape
    by = ("layer", *(("head",) if site == "z" else ()), *(("position",) if by_position else ()))
    cells = [
        (layer, head, position)
        for layer in range(shape.layers)
        for head in (range(shape.heads) if site == "z" else [0])
        for position in (range(shape.positions) if by_position else [-1])
    ]
    changed = [cell for cell in cells if not 0 <= cell[2] < shape.first]
    order = torch.randperm(len(changed), generator=torch.Generator().manual_seed(2)).tolist()
    picked, peer_cell = [changed[index] for index in order[:sampled]], bench.peer_cell(site)

    def ours() -> Tensor:
        return sweep(bench.ours, bench.pairs, logit_difference(), site, by).values["logit_difference"]

    with Peak() as peak:
        values = ours()
    peer_cell(picked[0])
    took: list[float] = []
    taken: list[float] = []
    difference, share = 0.0, -(-len(picked) // repeats)
    for turn in range(repeats):
        took.append(timed(ours, bench.device)[0])
        for at in picked[turn * share : (turn + 1) * share]:
            seconds, value = timed(lambda at=at: peer_cell(at), bench.device)
            taken.append(seconds)
            index = tuple(i for axis, i in zip(("layer", "head", "position"), at, strict=True) if axis in by)
            difference = max(difference, float((values[index] - value).abs().max()))
    ours_s, cell_s = statistics.median(took), statistics.median(taken)
    floor_s = multiply_adds(shape, site, by_position) / best_rate(shape.d_model, bench.device, bench.dtype)
    show(
        name=name,
        shape=f"{shape}, {len(cells)} cells",
        ours_s=round(ours_s, 4),
        peer_s=round(cell_s * len(cells), 3),
        peer_sampled=len(taken),
        ratio=round(cell_s * len(cells) / ours_s, 2),
        ratio_changed=round(cell_s * len(changed) / ours_s, 2),
        floor_s=round(floor_s, 4),
        over_floor=round(ours_s / floor_s, 3),
        max_abs_diff=difference,
        peak_mb=round(peak.mb, 1),
    )


def main() -> None:
    """Print a row a sweep."""
    parser = arguments(__doc__, quick="3 repeats instead of 7")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float64"])
    parser.add_argument("--only", default="", help="only the rows whose name contains this")
    options = parser.parse_args()
    repeats, sampled = (3, 24) if options.quick else (7, 42)
    machine(device=options.device, dtype=options.dtype)
    rows = [("small_z_by_position", SMALL, "z", True), ("z", GPT2, "z", False)]
    rows += [("resid_pre", GPT2, "resid_pre", True), ("z_by_position", GPT2, "z", True)]
    benches: dict[Shape, Bench] = {}
    for name, shape, site, by_position in rows:
        if options.only in name:
            if shape not in benches:
                benches = {shape: Bench(shape, options.device, getattr(torch, options.dtype))}
            row(benches[shape], name, site, by_position, repeats, sampled)


if __name__ == "__main__":
    main()

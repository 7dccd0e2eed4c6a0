"""Any cell of a sweep, measured on any prompt, whenever it is asked for: what a search measures with."""

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.patching.metrics import Metric
from interp.patching.pairs import Pairs
from interp.patching.patch_sites import PatchSite
from interp.patching.plain import PlainRun
from interp.patching.results import Direction
from interp.patching.sweeping.lots import Part, fill, groups, sizes
from interp.patching.sweeping.memory import most_rows
from interp.patching.sweeping.sweep import check_reach, read_values
from interp.transformer import Transformer


class Bench:
    """The cells of one sweep, laid out so that any of them can be measured on any prompt, as often as one likes."""

    def __init__(
        self,
        model: Transformer,
        pairs: Pairs,
        spot: PatchSite,
        by: tuple[str, ...],
        most: int,
        plain: Tensor,
        sign: int,
    ):
        self.model, self.pairs, self.by, self.most, self.sign = model, pairs, by, most, sign
        self.plain = plain
        self.shape = (*sizes(pairs, spot, by), len(pairs))
        self.parts: list[Part] = []

    @staticmethod
    def of(
        model: Transformer,
        pairs: Pairs,
        metric: Metric,
        spot: PatchSite,
        by: tuple[str, ...],
        direction: Direction,
        budget: int,
    ) -> "Bench":
        """Arguments are those of `sweep`, and so is what it raises."""
        check_reach(model, pairs, spot)
        readout = metric.prepare(model, pairs)
        clean, corrupt = pairs.inputs
        runs = PlainRun.of_both(model, *((corrupt, clean) if direction == "denoise" else (clean, corrupt)))
        plain = read_values(model, runs[0], [readout])[readout.name]
        most = most_rows(model, pairs, budget, spot)
        bench = Bench(model, pairs, spot, by, most, plain, 1 if direction == "denoise" else -1)
        together = groups(model, pairs, spot, most, alone=True)
        bench.parts = [Part.of(model, runs, group, [readout], by) for group in together]
        return bench

    def live(self) -> Bool[Tensor, "*cells prompt"]:
        """Which cells a patch can change, prompt by prompt."""
        found = torch.zeros(self.shape, dtype=torch.bool)
        everything = np.ones(self.shape[:-1], dtype=bool)
        for part in self.parts:
            for lot in part.lots(self.most, everything):
                lot.mark(found)
        return found

    @torch.no_grad()
    def effects(self, wanted: Bool[np.ndarray, "*cells prompt"]) -> Float[Tensor, "*cells prompt"]:
        """Their effects, as `Sweep.effect` has them; 0 for those that are not wanted."""
        values = {self.parts[0].readouts[0].name: self.plain.expand(*self.shape).clone()}
        lots = [lot for part in self.parts for lot in part.lots(self.most, wanted[..., int(part.group.prompts[0])])]
        fill(self.model, values, lots, self.most)
        (table,) = values.values()
        return self.sign * (table - self.plain)

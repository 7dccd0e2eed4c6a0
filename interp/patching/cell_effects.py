"""Any cell of a sweep, measured on any prompt, whenever it is asked for: what a search measures with."""

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.patching.chunks import GroupSweep, fill, groups
from interp.patching.memory import most_rows
from interp.patching.metrics import Metric, prepared
from interp.patching.pairs import Pairs
from interp.patching.patch_sites import PatchSite
from interp.patching.plain import PlainRun
from interp.patching.results import Direction
from interp.patching.sweeps import check_reach, read_values
from interp.transformer import Transformer


class CellEffects:
    """The cells of one sweep, laid out so that any of them can be measured on any prompt, as often as one likes."""

    def __init__(
        self,
        model: Transformer,
        pairs: Pairs,
        patch_site: PatchSite,
        by: tuple[str, ...],
        most: int,
        plain: Tensor,
        sign: int,
    ):
        self.model, self.pairs, self.by, self.most, self.sign = model, pairs, by, most, sign
        self.plain = plain
        self.shape = (*patch_site.shape(pairs, by), len(pairs))
        self.groups: list[GroupSweep] = []

    @staticmethod
    def of(
        model: Transformer,
        pairs: Pairs,
        metric: Metric,
        patch_site: PatchSite,
        by: tuple[str, ...],
        direction: Direction,
        budget: int,
    ) -> "CellEffects":
        """Arguments are those of `sweep`, and so is what it raises."""
        check_reach(pairs, patch_site)
        (readout,) = prepared(model, pairs, metric)
        clean, corrupt = pairs.inputs
        runs = PlainRun.of_both(model, *((corrupt, clean) if direction == "denoise" else (clean, corrupt)))
        plain = read_values(model, runs[0], [readout])[readout.name]
        most = most_rows(model, pairs, budget, patch_site)
        found = CellEffects(model, pairs, patch_site, by, most, plain, 1 if direction == "denoise" else -1)
        together = groups(model, pairs, patch_site, most, alone=True)
        found.groups = [GroupSweep.of(model, runs, group, [readout], by) for group in together]
        return found

    def live(self) -> Bool[Tensor, "*cells prompt"]:
        """Which cells a patch can change, prompt by prompt."""
        found = torch.zeros(self.shape, dtype=torch.bool)
        everything = np.ones(self.shape[:-1], dtype=bool)
        for group in self.groups:
            for chunk in group.chunks(self.most, everything):
                chunk.mark(found)
        return found

    @torch.no_grad()
    def effects(self, wanted: Bool[np.ndarray, "*cells prompt"]) -> Float[Tensor, "*cells prompt"]:
        """Their effects, as `Sweep.effect` has them; 0 for those that are not wanted."""
        values = {self.groups[0].readouts[0].name: self.plain.expand(*self.shape).clone()}
        asked = [(own, wanted[..., int(own.group.prompts[0])]) for own in self.groups]  # each of one prompt
        chunks = [chunk for own, cells in asked for chunk in own.chunks(self.most, cells)]
        fill(self.model, values, chunks, self.most)
        (table,) = values.values()
        return self.sign * (table - self.plain)

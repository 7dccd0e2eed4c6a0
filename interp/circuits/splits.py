"""Which prompts choose a circuit, and which measure it? Never the same prompts, nor two of one group."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from interp.display import Result, so_many
from interp.errors import InputError, whole_number
from interp.patching.pairs import Pairs
from interp.statistics import Estimate, estimate

Groups = Sequence[Hashable]  # one name per prompt: prompts that share a template, name or document are not independent


@dataclass(frozen=True, repr=False)
class Split(Result):
    """Pairs that choose a circuit and pairs that report on it, with each pair's group; no group is in both."""

    choosing: Pairs
    reporting: Pairs
    choosing_groups: tuple[Hashable, ...] = ()
    reporting_groups: tuple[Hashable, ...] = ()

    def __post_init__(self) -> None:
        for side in ("choosing", "reporting"):
            groups = grouped(getattr(self, side), getattr(self, f"{side}_groups"))
            object.__setattr__(self, f"{side}_groups", groups)
        if shared := {*_texts(self.choosing)} & {*_texts(self.reporting)}:
            pairs = so_many(len(shared), "pair")
            raise InputError(f"expected each pair on one side, got {pairs} on both")
        if groups := {*self.choosing_groups} & {*self.reporting_groups}:
            name = min(map(str, groups))
            raise InputError(f"expected each group on one side, got {name!r} on both")

    @staticmethod
    def from_pairs(pairs: Pairs, groups: Groups = (), *, share: float = 0.5, seed: int = 0) -> "Split":
        """Split pairs at random by group; a fraction `share` of the groups choose, at least one is on either side.

        `groups` has one name per pair (its template); by default a pair and its copies form a group.
        """
        if not 0 < share < 1:
            raise InputError(f"expected a share of the groups between 0 and 1, got {share}")
        labels = grouped(pairs, groups)
        unique = [*dict.fromkeys(labels)]
        if len(unique) < 2:
            raise InputError(f"all {so_many(len(pairs), 'pair')} are one group: expected two or more to split")
        order = np.random.default_rng(whole_number("seed", seed)).permutation(len(unique))
        n_choosing = min(max(round(share * len(unique)), 1), len(unique) - 1)
        names = {unique[place] for place in order[:n_choosing]}
        chosen = np.array([label in names for label in labels])
        sides = [np.flatnonzero(rows) for rows in (chosen, ~chosen)]
        choosing, reporting = (pairs.take(torch.from_numpy(rows).to(pairs.clean.ids.device)) for rows in sides)
        return Split(choosing, reporting, *(tuple(labels[row] for row in rows) for rows in sides))

    def facts(self) -> tuple[str, dict[str, str]]:
        """How many pairs are on each side."""
        return "Split", {"choose": f"{len(self.choosing):,}", "report": f"{len(self.reporting):,}"}


def grouped(pairs: Pairs, groups: Groups = ()) -> tuple[Hashable, ...]:
    """Each pair's group; without names, a pair and its copies form a group."""
    if len(groups) and len(groups) != len(pairs):
        raise InputError(f"expected a group for each of {so_many(len(pairs), 'pair')}, got {len(groups)}")
    return tuple(groups) if len(groups) else _texts(pairs)


def group_sums(values: Float[Tensor, "*cells prompt"], groups: Groups) -> Float[np.ndarray, "group ..."]:
    """Sums over the prompts of each group, in order of the groups' first appearance."""
    names = {name: row for row, name in enumerate(dict.fromkeys(groups))}
    rows = values.detach().double().cpu().movedim(-1, 0).numpy()
    sums = np.zeros((len(names), *rows.shape[1:]))
    np.add.at(sums, [names[name] for name in groups], rows)
    return sums


def share_of_difference(
    effects: Float[Tensor, "cell prompt"], whole: Float[Tensor, " prompt"], groups: Groups, *, seed: int = 0
) -> Estimate:
    """The ratio of the mean effect to the mean of the whole difference, with its interval over groups of prompts."""
    totals, weights = group_sums(effects, groups), group_sums(whole, groups)[:, None]
    return estimate(totals, weights, present=np.ones_like(totals, dtype=bool), seed=seed)


def _texts(pairs: Pairs) -> tuple[Hashable, ...]:
    """Each pair's identity: the ids of its texts."""
    ids = [side.ids.masked_fill(~side.mask, -1).cpu() for inputs in pairs.inputs for side in inputs if side is not None]
    return tuple(map(tuple, torch.cat(ids, 1).tolist()))

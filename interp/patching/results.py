"""What a sweep found: one value a cell and prompt, and the share of the whole effect that a cell carries."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import InputError
from interp.statistics import share

Direction = Literal["denoise", "noise"]


@dataclass(frozen=True)
class Sweep:
    """Values of each metric, one a cell and prompt; cells lie on `axes` (layer, head, position, query, key).

    `clean` and `corrupt` are the metric's values of the unpatched prompts. Positions beyond a prompt's text are NaN.
    `stack` and `attention` (self, cross) say where the site lies. `positions` are the names that position axes count,
    where the pairs have some.
    """

    site: str
    direction: Direction
    axes: tuple[str, ...]
    values: dict[str, Float[Tensor, "*cells prompt"]]
    clean: dict[str, Float[Tensor, " prompt"]]
    corrupt: dict[str, Float[Tensor, " prompt"]]
    stack: str = "decoder"
    attention: str = "self"
    positions: tuple[str, ...] = ()

    def effect(self, metric: str | None = None) -> Float[Tensor, "*cells prompt"]:
        """How far a cell moves the metric towards the other prompt's value, in the metric's unit.

        Denoising: value - corrupt. Noising: clean - value. Either is the whole difference where a cell carries all.
        """
        name = self._name(metric)
        if self.direction == "denoise":
            return self.values[name] - self.corrupt[name]
        return self.clean[name] - self.values[name]

    def difference(self, metric: str | None = None) -> Float[Tensor, " prompt"]:
        """Clean minus corrupt: the whole effect, a prompt."""
        name = self._name(metric)
        return self.clean[name] - self.corrupt[name]

    def recovered(self, metric: str | None = None) -> Float[Tensor, "*cells"]:
        """Share of the whole effect that each cell carries, over the prompts that have it: 1 is all of it, 0 none.

        Raises:
            InputError: the whole effect is small against its spread over prompts, so that a share means nothing.
        """
        whole, effect = self.difference(metric), self.effect(metric)
        if reason := unreliable(whole):
            raise InputError(reason)
        found = share(effect.flatten(0, -2).T.double().cpu().numpy(), whole.double().cpu().numpy())
        return torch.from_numpy(found).view(effect.shape[:-1]).to(whole)

    def _name(self, metric: str | None) -> str:
        return chosen(self.values, metric, "this sweep has")


def chosen(values: Mapping[str, Tensor], metric: str | None, have: str) -> str:
    """The metric that is asked for, by default the first.

    Raises:
        InputError: there is no such metric.
    """
    if metric is not None and metric not in values:
        raise InputError(f"{have} no metric {metric!r}: expected {' or '.join(values)}")
    return next(iter(values)) if metric is None else metric


def unreliable(whole: Float[Tensor, " prompt"], least: float = 3.0) -> str | None:
    """Why shares of `whole` (clean minus corrupt, a prompt) mean nothing; None where they mean something.

    The mean must be at least `least` standard errors from 0, or, of a single prompt, not 0.
    """
    mean = float(whole.mean())
    error = float(whole.std() / len(whole) ** 0.5) if len(whole) > 1 else 0.0
    if mean == 0 or abs(mean) < least * error:
        return (
            f"clean and corrupted prompts differ by {mean:.3g} ± {error:.2g} (mean and standard error over "
            f"{len(whole)} prompts): too little for a share of it to mean anything"
        )
    return None

"""What a sweep found: one value a cell and prompt, and the share of the whole effect that a cell carries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from warnings import warn

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import InputError, InputWarning, one_of
from interp.patching.cell_tables import cell_rows, dust, largest, long_table
from interp.showing import DataFrame, Figure, Shown, drawn, signed, so_many, viewed
from interp.statistics import FEWEST_CLUSTERS, share, shares

Direction = Literal["denoise", "noise", "denoising", "noising"]
Drawing = Literal["map", "top"]
Labels = Mapping[str, tuple[str | None, ...]]  # by column of a table, the token at each place of an axis
Values = Mapping[str, Float[Tensor, " prompt"]]  # by metric
ANSWERS = "logit_difference"  # the metric that says whether the model does the task
_FEWEST = 5  # clean prompts, no more than half of which right are too few; for an interval it takes more
_LOWER = ("rank", "kl_divergence", "loss")  # what is lower where the model does better


def checked_direction(direction: Direction) -> Direction:
    """`denoise` or `noise`, which `denoising` and `noising` mean."""
    return "denoise" if one_of("direction", direction, Direction).startswith("denois") else "noise"


@dataclass(frozen=True, repr=False)
class Sweep(Shown):
    """Values of each metric, one a cell and prompt; cells lie on `axes` (layer, head, position, query, key).

    `clean` and `corrupt` are the metrics of the unpatched prompts, and the logit difference of the pairs' own answers,
    which says whether the model does the task. Positions beyond a prompt's text are NaN.
    `stack` and `attention` (self, cross) say where the site lies. `positions` are the names that position axes count,
    where the pairs have some; `labels` are the tokens at each place of such an axis, where all prompts have the same.
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
    labels: Labels = field(default_factory=dict)

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

        Where nothing is a share (`no_share` says why), all are missing (NaN), with an `InputWarning`.
        """
        whole, effect = self.difference(metric), self.effect(metric)
        if warn_of(self.no_share(metric)):
            return torch.full_like(effect[..., 0], torch.nan)
        found = share(effect.flatten(0, -2).T.double().cpu().numpy(), whole.double().cpu().numpy())
        return torch.from_numpy(found).view(effect.shape[:-1]).to(whole)

    def no_share(self, metric: str | None = None) -> str | None:
        """Why nothing is a share of a metric's whole difference; None where shares mean something."""
        return refusal(self._name(metric), self.clean, self.corrupt)

    def table(self, *, seed: int = 0) -> DataFrame:
        """One row a cell and metric: `effect` with its interval, p and q over prompts, and its `share` of the whole.

        Columns are `stack, attention, site`, the axes (positions by their names, where they have some), for positions
        `token` and `corrupt_token` (of keys `key_...`), `direction, metric`, and those of `cell_tables.cell_rows`; `q`
        is over all rows. Where nothing is a share (`no_share` says why), shares are missing, with an `InputWarning`.

        Args:
            seed: of the intervals' resampling.
        """
        rows = [self.rows(name, seed=seed, shared=not warn_of(self.no_share(name))) for name in self.values]
        where = {"stack": self.stack, "attention": self.attention, "site": self.site}
        return long_table(where, rows, self.axes, self.positions, self.labels)

    def rounding(self, metric: str) -> Float[Tensor, " prompt"]:
        """What may be rounding: the size of an effect on each prompt up to which it is none."""
        return dust(self.clean[metric], self.corrupt[metric])

    def rows(self, metric: str, *, shared: bool, seed: int = 0) -> DataFrame:
        """The rows of one metric, without q; `shared`: with shares."""
        whole = self.difference(metric)
        least, effect = self.rounding(metric), self.effect(metric)
        rows = cell_rows(self.axes, effect, least, whole if shared else None, seed=seed)
        return rows.assign(direction=self.direction, metric=metric)

    def figure(self, metric: str | None = None, kind: Drawing = "map", **how: Any) -> Figure:
        """A map of the cells, or the largest effects with their intervals; by layer alone there is no map.

        Args:
            metric: which to draw, by default the first.
            kind: `map` or `top`.
            how: of `analyses.figures.cell_map` (`entry_maps`, `top_cells`): `title`, `width`, `font_size`, `ax`, ...

        Raises:
            InputError: there is no such metric or kind.
        """
        return drawn_cells(self.table(), self._name(metric), kind, self.axes, **how)

    def facts(self) -> tuple[str, Mapping[str, str]]:
        """What was swept, each metric of the plain prompts, and the largest effects."""
        first = next(iter(self.values.values()))
        facts: dict[str, str] = {}
        for name in self.values:
            clean, corrupt = (float(each[name].mean()) for each in (self.clean, self.corrupt))
            facts[name] = f"clean {signed(clean)}, corrupt {signed(corrupt)}"
            facts[f"largest effects on {name}"] = largest_said(self.axes, self.effect(name), self.positions)
            if reason := self.no_share(name):
                facts[f"no shares of {name}"] = reason
        cells = " x ".join(so_many(size, axis) for axis, size in zip(self.axes, first.shape[:-1], strict=True))
        cross = "cross-attention " if self.attention == "cross" else ""
        title = f"Sweep of {self.stack} {cross}{self.site}, {self.direction}: {cells}, over"
        return f"{title} {so_many(first.shape[-1], 'prompt')}", facts

    def _repr_html_(self) -> str:
        """Its lines, and a map of cells that lie on a layer and one other axis."""
        return super()._repr_html_() + viewed(self)

    def _name(self, metric: str | None) -> str:
        return chosen(self.values, metric, "this sweep has")


def largest_said(axes: tuple[str, ...], effect: Float[Tensor, "*cells prompt"], positions: tuple[str, ...] = ()) -> str:
    """`L3.H2 +0.81, L2.H5 +0.42, L1.H1 -0.2`: the largest mean effects."""
    return ", ".join(f"{name} {signed(value)}" for name, value in largest(axes, effect, positions))


def drawn_cells(table: DataFrame, metric: str, kind: Drawing, axes: tuple[str, ...], **how: Any) -> Figure:
    """A table's cells as a map where they have a head, a position or an entry, else the largest of them.

    Raises:
        InputError: no such kind.
    """
    one_of("kind", kind, Drawing)
    if kind == "top" or not {"head", "position", "query"} & {*axes} or {"neuron", "expert"} & {*axes}:
        return drawn("top_cells", table, metric, **how)
    return drawn("entry_maps" if "query" in axes else "cell_map", table, metric, **how)


def chosen(values: Mapping[str, Tensor], metric: str | None, have: str) -> str:
    """The metric that is asked for, by default the first.

    Raises:
        InputError: there is no such metric.
    """
    if metric is not None and metric not in values:
        raise InputError(f"{have} no metric {metric!r}: expected {' or '.join(values)}")
    return next(iter(values)) if metric is None else metric


def refusal(metric: str, clean: Values, corrupt: Values | None = None) -> str | None:
    """Why nothing is a share of a metric's whole: clean less corrupt, or clean alone; None where shares mean something.

    The whole is small against its spread or has the wrong sign, of the metric or of the answers' logit difference where
    the values have one; or the model answers clean prompts no more rightly than
    a coin would; of five to seven, no more than half.
    """
    for name in [name for name in dict.fromkeys((ANSWERS, metric)) if name in clean]:
        whole = clean[name] if corrupt is None else clean[name] - corrupt[name]
        mean, n, right = float(whole.mean()), len(whole), int((clean[name] > 0).sum())
        asked = name == ANSWERS and n >= (_FEWEST if right <= n / 2 else FEWEST_CLUSTERS)
        if reason := unreliable(whole) or (guessed(clean[name]) if asked else None):
            return reason
        if mean > 0 if name in _LOWER else mean < 0:
            return f"the sign is wrong: the whole effect on {name} is {mean:+.3g}"
    return None


def guessed(
    clean: Float[Tensor, " prompt"], answers: Sequence[str] = (), clusters: Sequence[Sequence[str]] = ()
) -> str | None:
    """Why the model cannot do a task: by logit differences, it gives some answer no more rightly than a coin would.

    The 95% interval of how often it is right reaches down to one half, over prompts or what they share (`clusters`).
    """
    right, named = (clean > 0).double().cpu().numpy(), np.array([*answers] or [""] * len(clean))
    for answer in dict.fromkeys(named):
        own = np.where(named == answer, right, np.nan)
        found = shares(own[:, None], np.ones(len(own)), clusters=clusters)
        if not found.low[0] > 0.5:  # of few prompts there is no interval
            where = f" where that is “{answer}”" * bool(answer)
            said = f"{int(np.nansum(own))} of {int(found.n[0])} prompts{where}"
            return f"the model puts the right answer first in {said}, which a coin would do as well"
    return None


def warn_of(reason: str | None) -> bool:
    """Whether there is a reason to give no shares, with a warning that says it."""
    if reason:
        warn(f"no shares: {reason}", InputWarning, stacklevel=3)
    return bool(reason)


def unreliable(whole: Float[Tensor, " prompt"], least: float = 3.0) -> str | None:
    """Why shares of `whole` (clean minus corrupt, a prompt) mean nothing; None where they mean something.

    The mean must be at least `least` standard errors from 0, or, of a single prompt, not 0.
    """
    mean = float(whole.mean())
    error = float(whole.std() / len(whole) ** 0.5) if len(whole) > 1 else 0.0
    if mean == 0 or abs(mean) < least * error:
        shown = f"{mean:.3g}".replace("-", "−")
        return (
            f"the whole effect is {shown} ± {error:.2g} (mean and standard error over {len(whole)} prompts): "
            "too little for a share of it to mean anything"
        )
    return None

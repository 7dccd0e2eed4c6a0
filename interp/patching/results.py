"""What cells do: one value a cell, prompt and metric; their effects, and their shares of the whole effect."""

from collections import namedtuple
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from warnings import warn

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from interp.display import DataFrame, Figure, Shown, drawn, signed, so_many, viewed
from interp.errors import InputError, InputWarning, one_of
from interp.patching.cell_tables import POSITIONAL, cell_label, cell_rows, dust, long_table
from interp.statistics import FEWEST_CLUSTERS, share, shares

Direction = Literal["denoise", "noise", "denoising", "noising"]
Drawing = Literal["map", "top"]
Labels = Mapping[str, tuple[str | None, ...]]  # by column of a table, the token at each place of an axis
Values = Mapping[str, Float[Tensor, " prompt"]]  # by metric
ANSWERS = "logit_difference"  # the metric that says whether the model does the task
_FEWEST = 5  # clean prompts, no more than half of which right are too few; for an interval it takes more
_LOWER = ("rank", "kl_divergence", "loss")  # what is lower where the model does better
_FROM_ZERO = ("logit_difference", "probability")  # metrics of which all can be lost: at 0 there is no more


def checked_direction(direction: Direction) -> Direction:
    """`denoise` or `noise`, which `denoising` and `noising` mean."""
    return "denoise" if one_of("direction", direction, Direction).startswith("denois") else "noise"


@dataclass(frozen=True, repr=False)
class Cells(Shown):
    """Values of each metric, one a cell and prompt: of a sweep, paths, an ablation, estimates, edges or a search.

    Cells lie on `axes`: `layer`, `head`, `position`, `query`, `key`, `neuron`, `expert`; `sender` and `receiver` of
    edges. Or they are a list (`cell`), or an order (`step`, which has all cells up to it); then `cells` are their
    places on `units`. Positions beyond a prompt's text and edges that do not exist are NaN.

    Attributes:
        site: what was changed; its place is `stack` and `attention` (self, cross). Edges have none.
        direction: `denoise` or `noise`, as which an ablation counts.
        values: by metric, with the cell changed. Of magnitudes, edges and searches the effects themselves.
        clean: the metrics of the unchanged prompts, and the logit difference of the pairs' own answers, which says
            whether the model does the task.
        corrupt: the same of the corrupted prompts, where a cell is changed towards or from these.
        positions: the names that position axes count, where the pairs have some.
        labels: by column of the table, what stands at each place of an axis: tokens that are the same in all prompts,
            the names of senders and receivers.
        kind: `sweep` (paths and estimates too), `magnitudes`, `edges`, `search`, or what replaces an ablated part.
    """

    site: str
    direction: Direction
    axes: tuple[str, ...]
    values: dict[str, Float[Tensor, "*cells prompt"]]
    clean: dict[str, Float[Tensor, " prompt"]] = field(default_factory=dict)
    corrupt: dict[str, Float[Tensor, " prompt"]] = field(default_factory=dict)
    stack: str = "decoder"
    attention: str = "self"
    positions: tuple[str, ...] = ()
    labels: Labels = field(default_factory=dict)
    kind: str = "sweep"
    cells: tuple[tuple[int, ...], ...] = ()
    units: tuple[str, ...] = ()

    def effect(self, metric: str | None = None) -> Float[Tensor, "*cells prompt"]:
        """How far a cell moves the metric, by default the first, in the metric's unit.

        Denoising: value - corrupt. Noising and ablating: clean - value, what is lost. A cell that carries all has the
        whole difference. Edges are counted as the metric's change in both directions; magnitudes have no sign.
        """
        name = self._name(metric)
        if not self.clean:
            return self.values[name]
        denoised = self.direction == "denoise"
        return self.values[name] - self.corrupt[name] if denoised else self.clean[name] - self.values[name]

    def difference(self, metric: str | None = None) -> Float[Tensor, " prompt"]:
        """The whole effect, a prompt: clean minus corrupt; of an ablation, all of the metric."""
        name = self._name(metric)
        return self.clean[name] - self.corrupt[name] if self.corrupt else self.clean[name]

    def mean(self, metric: str | None = None) -> Float[Tensor, "*cells"]:
        """The mean effect over the prompts that have the cell; in a search a prompt without it counts as 0."""
        return self._counted(metric).nanmean(-1)

    def recovered(self, metric: str | None = None) -> Float[Tensor, "*cells"]:
        """Share of the whole effect that each cell carries, over the prompts that have it: 1 is all of it, 0 none.

        Where nothing is a share (`no_share` says why), all are missing (NaN), with an `InputWarning`.
        """
        effect, reason = self.effect(metric), self.no_share(metric)
        if warn_of(reason) or not self._has_whole(metric):
            return torch.full_like(effect[..., 0], torch.nan)
        whole = self.difference(metric)
        part = share(effect.flatten(0, -2).T.double().cpu().numpy(), whole.double().cpu().numpy())
        return torch.from_numpy(part).view(effect.shape[:-1]).to(whole)

    def no_share(self, metric: str | None = None) -> str | None:
        """Why nothing is a share of a metric's whole difference; None where shares mean something, or have no whole."""
        return refusal(self._name(metric), self.clean, self.corrupt or None) if self._has_whole(metric) else None

    def rounding(self, metric: str) -> Float[Tensor, " prompt"]:
        """What may be rounding: the size of an effect on each prompt up to which it is none."""
        sizes = [values[metric] for values in (self.clean, self.corrupt) if values]
        if not sizes:
            return torch.zeros_like(self.values[metric].flatten(0, -2)[0])
        changed = self.values[metric].nan_to_num().flatten(0, -2).abs().amax(0)
        return dust(*sizes) if self.corrupt else dust(*sizes, changed)

    def table(self, *, seed: int = 0) -> DataFrame:
        """One row a cell and metric: `effect` with its interval, p and q over prompts, and its `share` of the whole.

        Columns are `stack, attention, site` (of edges none), of an ablation `kind`, the axes (positions by their names,
        where they have some; of a list the cell's own), for positions `token` and `corrupt_token` (of keys `key_...`),
        `direction, metric`, and those of `cell_tables.cell_rows`; `q` is over all rows. Where nothing is a share
        (`no_share` says why), shares are missing, with an `InputWarning`. Magnitudes are never negative, so that no p
        says anything of 0. The cells of a search were chosen for being large: `q` is no test of it.

        Args:
            seed: of the intervals' resampling.
        """
        rows = [
            self.rows(name, seed=seed, shared=self._has_whole(name) and not warn_of(self.no_share(name)))
            for name in self.values
        ]
        place = {"stack": self.stack, "attention": self.attention, "site": self.site} if self.site else {}
        place |= {"kind": self.kind} if self._ablated else {}
        axes = [axis for axis in self.axes if axis != "cell"]
        return long_table(place, rows, [*axes, *self.units], self.positions, self.labels)

    def rows(self, metric: str, *, shared: bool, seed: int = 0) -> DataFrame:
        """The rows of one metric, without q; `shared`: with shares."""
        whole = self.difference(metric) if shared else None
        rows = cell_rows(self.axes, self._counted(metric), self.rounding(metric), whole, seed=seed)
        for at, unit in enumerate(self.units):
            rows[unit] = [self.cells[cell][at] for cell in rows[self.axes[0]].tolist()]
        if self.kind == "magnitudes":
            rows["p"] = torch.nan
        if not self._ablated:
            rows["direction"] = self.direction
        return rows.drop(columns="cell", errors="ignore").assign(metric=metric)

    def top(self, k: int = 5, metric: str | None = None) -> list[Any]:
        """The `k` cells with the largest mean effects either way, largest first; all, if there are fewer.

        Returns:
            list: named tuples, a cell's place on each axis (`sender` and `receiver` by name) and its `effect`.
        """
        axes = self.units or self.axes
        listed = namedtuple("Cell", [*axes, "effect"])
        names = [self.labels.get(axis) or (self.positions if axis in POSITIONAL else ()) for axis in axes]
        return [
            listed(*(name[at] if name else at for name, at in zip(names, place, strict=True)), mean)
            for place, mean in self._largest(k, metric)
        ]

    def largest(self, metric: str | None = None, k: int = 3) -> str:
        """`L3.H2 +0.81, L2.H5 +0.42, L1.H1 -0.2`: the largest mean effects."""
        return ", ".join(f"{self.label(place)} {signed(mean)}" for place, mean in self._largest(k, metric))

    def label(self, place: Sequence[int]) -> str:
        """`L3.H2 at 4`, `up to L0.H1`, `embed -> 1.4.q`: a cell in short."""
        if self.kind == "edges":
            return " -> ".join(str(self.labels[axis][at]) for axis, at in zip(self.axes, place, strict=True))
        return "up to " * (self.axes == ("step",)) + cell_label(self.units or self.axes, place, self.positions)

    def figure(self, metric: str | None = None, kind: Drawing = "map", **how: Any) -> Figure:
        """A map of the cells, or the largest effects with their intervals; of an order the metric step by step.

        There is a map of cells that have a head, a position or an entry.

        Args:
            metric: which to draw, by default the first.
            kind: `map` or `top`.
            how: of `analyses.figures.cell_map` (`entry_maps`, `top_cells`, `steps`): `title`, `width`, `font_size`,
                `ax`, ...

        Raises:
            InputError: there is no such metric or kind.
        """
        name = self._name(metric)
        one_of("kind", kind, Drawing)
        table = self.table()
        if self._ablated:
            table = table.assign(direction=f"ablated by {self.kind}")
            if self.axes == ("step",):
                return drawn("steps", table, name, plain=float(self.clean[name].mean()), **how)
            how = {"asks": f"What does the {name.replace('_', ' ')} owe to each cell of {self.site}?", **how}
        if self.kind == "search":
            how = {"top": len(self.cells), **how}
        if kind == "top" or not {"head", "position", "query"} & {*self.axes} or {"neuron", "expert"} & {*self.axes}:
            return drawn("top_cells", table, name, **how)
        return drawn("entry_maps" if "query" in self.axes else "cell_map", table, name, **how)

    def facts(self) -> tuple[str, Mapping[str, str]]:
        """What was changed, each metric of the plain prompts, and the largest effects."""
        facts: dict[str, str] = {}
        for name in self.values:
            means = [signed(float(values[name].mean())) for values in (self.clean, self.corrupt) if values]
            if means:
                facts[name] = (
                    "clean {}, corrupt {}".format(*means) if self.corrupt else f"{means[0]} with nothing ablated"
                )
            less = " (with - without)" * self._ablated
            facts[f"largest effects on {name}{less}"] = self.largest(name)
            if self.corrupt and (reason := self.no_share(name)):
                facts[f"no shares of {name}"] = reason
        way = f" by {self.kind}" if self._ablated else f", {self.direction}"
        sizes = next(iter(self.values.values())).shape
        cells = " x ".join(so_many(size, axis) for axis, size in zip(self.axes, sizes[:-1], strict=True))
        return f"{self._title()}{way}: {cells}, over {so_many(sizes[-1], 'prompt')}", facts

    @property
    def _ablated(self) -> bool:
        return bool(self.clean) and not self.corrupt

    def _title(self) -> str:
        what = "Ablation" if self._ablated else self.kind.capitalize()
        cross = "cross-attention " if self.attention == "cross" else ""
        return f"{what} of {self.stack} {cross}{self.site}" if self.site else what

    def _repr_html_(self) -> str:
        """Its lines, and a map of a sweep's cells that lie on a layer and one other axis."""
        return super()._repr_html_() + (viewed(self) if self.corrupt else "")

    def _name(self, metric: str | None) -> str:
        """The metric that is asked for, by default the first.

        Raises:
            InputError: there is no such metric.
        """
        if metric is not None and metric not in self.values:
            raise InputError(f"there is no metric {metric!r} here: expected {' or '.join(self.values)}")
        return next(iter(self.values)) if metric is None else metric

    def _has_whole(self, metric: str | None) -> bool:
        """Whether effects may be a share: of a difference, or of a metric of which all can be lost."""
        return bool(self.clean) and (bool(self.corrupt) or self._name(metric) in _FROM_ZERO)

    def _counted(self, metric: str | None) -> Float[Tensor, "*cells prompt"]:
        effect = self.effect(metric)
        return effect.nan_to_num() if self.kind == "search" else effect

    def _largest(self, k: int, metric: str | None) -> list[tuple[tuple[int, ...], float]]:
        """The places of the largest mean effects, and these."""
        mean = self._counted(metric).detach().double().nanmean(-1)
        size = mean.abs().nan_to_num(-1).flatten()
        order = size.argsort(descending=True, stable=True)[: min(k, int((size >= 0).sum()))]
        places = [tuple(int(at) for at in np.unravel_index(cell, mean.shape)) for cell in order.tolist()]
        return [(self.cells[place[0]] if self.cells else place, float(mean[place])) for place in places]


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

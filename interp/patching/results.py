"""What cells do: a value per cell, prompt and metric; effects, shares of the whole effect, and tables."""

from collections import namedtuple
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from warnings import warn

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from interp.display import DataFrame, Figure, Result, draw_figure, signed, so_many, viewed
from interp.errors import InputError, InputWarning, one_of
from interp.patching.metrics import ANSWERS
from interp.statistics import FEWEST_CLUSTERS, benjamini_hochberg, estimate, share, shares

Direction = Literal["denoise", "noise", "denoising", "noising"]
Drawing = Literal["map", "top"]
Labels = Mapping[str, Sequence[str | None]]  # by column of a table, the token at each index of an axis
Values = Mapping[str, Float[Tensor, " prompt"]]  # by metric
POSITIONAL = ("position", "query", "key")
ESTIMATED = ("effect", "share", "ci_low", "ci_high", "p", "q", "n", "share_low", "share_high")
"""The columns of every table of effects, after those that identify the cell."""
_LETTERS = {"layer": "L", "head": "H", "neuron": "N", "expert": "E", "circuit": "C"}
_PREPOSITIONS = {"position": "at", "query": "from", "key": "to"}
_ROUNDING = 16  # effects below this many units in the metric's last place may be rounding
_FEWEST = 5  # with this many clean prompts, at most half right is a failure; an interval needs more prompts
_LOWER = ("rank", "kl_divergence", "loss")  # lower is better
_FROM_ZERO = (ANSWERS, "probability")  # metrics that a model can lose entirely: 0 means nothing is left


@dataclass(frozen=True, repr=False)
class Cells(Result):
    """Each metric's value per cell and prompt, from a sweep, paths, an ablation, estimates, edges or a search.

    Cells lie on `axes`: `layer`, `head`, `position`, `query`, `key`, `neuron`, `expert`; `sender` and `receiver` for
    edges; `circuit`. Or they are a list (`cell`), or cumulative (a `step` has all cells up to it). Positions beyond a
    prompt's text and edges that do not exist are NaN.
    """

    site: str  # what was changed; edges have none
    direction: Direction  # `denoise` or `noise`; ablations count as `noise`
    axes: tuple[str, ...]
    # by metric, with the cell changed; for magnitudes, edges and searches, the effects themselves
    values: dict[str, Float[Tensor, "*cells prompt"]]
    # the unpatched prompts' metrics, and the logit difference of the pairs' own answers
    clean: dict[str, Float[Tensor, " prompt"]] = field(default_factory=dict)
    corrupt: dict[str, Float[Tensor, " prompt"]] = field(default_factory=dict)  # an ablation has none
    stack: str = "decoder"
    attention: str = "self"
    positions: tuple[str, ...] = ()  # entries of position axes, if the pairs name positions
    labels: Labels = field(default_factory=dict)
    kind: str = "sweep"  # paths and estimates too; `magnitudes`, `edges`, `search`, or what replaces an ablated part
    cells: tuple[tuple[int, ...], ...] = ()  # for axes `cell` and `step`: each cell's indices on `units`
    units: tuple[str, ...] = ()

    def effects(self, metric: str | None = None) -> Float[Tensor, "*cells prompt"]:
        """How far a cell moves the metric (by default the first): value - corrupt; noised or ablated, clean - value.

        A cell that carries everything has the whole difference. For edges it is the metric's change in both directions.
        """
        name = self._name(metric)
        if not self.clean:
            return self.values[name]
        denoised = self.direction == "denoise"
        return self.values[name] - self.corrupt[name] if denoised else self.clean[name] - self.values[name]

    def difference(self, metric: str | None = None) -> Float[Tensor, " prompt"]:
        """The whole effect per prompt: clean minus corrupt; for an ablation, the clean metric."""
        name = self._name(metric)
        return self.clean[name] - self.corrupt[name] if self.corrupt else self.clean[name]

    def mean(self, metric: str | None = None) -> Float[Tensor, "*cells"]:
        """The mean effect over the prompts that have the cell; in a search, prompts without it count as 0."""
        return self._counted(metric).nanmean(-1)

    def share(self, metric: str | None = None) -> Float[Tensor, "*cells"]:
        """Each cell's share of the whole effect; NaN, with a warning, if shares mean nothing (`no_share`)."""
        effect, reason = self.effects(metric), self.no_share(metric)
        if warn_of(reason) or not self._has_whole(metric):
            return torch.full_like(effect[..., 0], torch.nan)
        part = share(effect.flatten(0, -2).T.double().cpu().numpy(), self.difference(metric).double().cpu().numpy())
        return torch.from_numpy(part).view(effect.shape[:-1]).to(effect)

    def no_share(self, metric: str | None = None) -> str | None:
        """Why shares of a metric's whole effect mean nothing; None if they mean something, or there is no whole."""
        return refusal(self._name(metric), self.clean, self.corrupt or None) if self._has_whole(metric) else None

    def table(self, *, seed: int = 0) -> DataFrame:
        """One row per cell and metric: `effect` with its interval, p and q over prompts, and its `share` of the whole.

        `q` is over all rows; `seed` seeds the intervals' resampling. Shares that mean nothing are missing, with a
        warning (see `no_share`). Magnitudes have no p. A search chose its cells for being large, so `q` is no test.
        """
        shared = {name: self._has_whole(name) and not warn_of(self.no_share(name)) for name in self.values}
        rows = [self.rows(name, seed=seed, shared=each) for name, each in shared.items()]
        place = {"stack": self.stack, "attention": self.attention, "site": self.site} if self.site else {}
        place |= {"kind": self.kind} if self._ablated else {}
        axes = [axis for axis in self.axes if axis != "cell"]
        return long_table(place, rows, [*axes, *self.units], self.positions, self.labels)

    def rows(self, metric: str, *, shared: bool, seed: int = 0) -> DataFrame:
        """The rows of one metric, without q; `shared` adds shares."""
        whole = self.difference(metric) if shared else None
        rows = cell_rows(self.axes, self._counted(metric), self.rounding(metric), whole, seed=seed)
        for index, unit in enumerate(self.units):
            rows[unit] = [self.cells[cell][index] for cell in rows[self.axes[0]].tolist()]
        if self.kind == "magnitudes":
            rows["p"] = torch.nan
        if not self._ablated:
            rows["direction"] = self.direction
        return rows.drop(columns="cell", errors="ignore").assign(metric=metric)

    def top(self, k: int = 5, metric: str | None = None) -> list[Any]:
        """The `k` cells with the largest mean effects in either direction: named tuples of axes and `effect`."""
        axes, rows = self.units or self.axes, []
        cell = namedtuple("Cell", [*axes, "effect"])
        names = [self.labels.get(axis) or (self.positions if axis in POSITIONAL else ()) for axis in axes]
        for place, mean in self._largest(k, metric):
            rows.append(cell(*(name[at] if name else at for name, at in zip(names, place, strict=True)), mean))
        return rows

    def largest(self, metric: str | None = None, k: int = 3) -> str:
        """`L3.H2 +0.81, L2.H5 +0.42, L1.H1 -0.2`: the largest mean effects."""
        return ", ".join(f"{self.label(place)} {signed(mean)}" for place, mean in self._largest(k, metric))

    def label(self, place: Sequence[int]) -> str:
        """A cell in short: `L3.H2 at 4`, `L0 at S2`, `L2.H1 from 5 to 2`, `up to L0.H1`, `embed -> 1.4.q`."""
        if self.kind in {"edges", "nodes"}:
            return " -> ".join(str(self.labels[axis][index]) for axis, index in zip(self.axes, place, strict=True))
        index = dict(zip(self.units or self.axes, place, strict=True))
        name = ".".join(f"{letter}{index[axis]}" for axis, letter in _LETTERS.items() if axis in index)
        names = self.positions or range(1 + max(place, default=0))
        parts = [f"{word} {names[index[axis]]}" for axis, word in _PREPOSITIONS.items() if axis in index]
        return "up to " * (self.axes == ("step",)) + " ".join([name, *parts] if name else parts)

    def figure(self, metric: str | None = None, kind: Drawing = "map", **options: Any) -> Figure:
        """A map of cells that have a head or a position, or the largest effects; for steps, the metric step by step.

        For `options` see `analyses.figures.cell_map` (`top_cells`, `steps`): `title`, `ax`, ...
        """
        name = self._name(metric)
        one_of("kind", kind, Drawing)
        table, axes = self.table(), {*self.axes}
        if self._ablated:
            table = table.assign(direction=f"ablated by {self.kind}")
            if axes == {"step"}:
                return draw_figure("steps", table, name, plain=float(self.clean[name].mean()), **options)
            options = {"heading": f"What does the {name.replace('_', ' ')} owe to each cell of {self.site}?", **options}
        if self.kind == "search":
            options = {"top": len(self.cells), **options}
        top = kind == "top" or not {"head", "position", "query"} & axes or {"neuron", "expert"} & axes
        return draw_figure("top_cells" if top else "cell_map", table, name, **options)

    def facts(self) -> tuple[str, Mapping[str, str]]:
        """What was changed, each metric of the unpatched prompts, and the largest effects."""
        facts: dict[str, str] = {}
        for name in self.values:
            means = [signed(float(values[name].mean())) for values in (self.clean, self.corrupt) if values]
            if means:
                plain = "clean {}, corrupt {}" if self.corrupt else "{} with nothing ablated"
                facts[name] = plain.format(*means)
            facts[f"largest effects on {name}{' (with - without)' * self._ablated}"] = self.largest(name)
            if self.corrupt and (reason := self.no_share(name)):
                facts[f"no shares of {name}"] = reason
        sizes = next(iter(self.values.values())).shape
        cells = " x ".join(so_many(size, axis) for axis, size in zip(self.axes, sizes[:-1], strict=True))
        title = "Ablation" if self._ablated else self.kind.capitalize()
        if self.site:
            title += f" of {self.stack} {'cross-attention ' * (self.attention == 'cross')}{self.site}"
        title += f" by {self.kind}" if self._ablated else f", {self.direction}"
        return f"{title}: {cells}, over {so_many(sizes[-1], 'prompt')}", facts

    def _repr_html_(self) -> str:
        """The summary's lines, and a map if the sweep's cells lie on a layer and one other axis."""
        return super()._repr_html_() + (viewed(self) if self.corrupt else "")

    @property
    def _ablated(self) -> bool:
        return bool(self.clean) and not self.corrupt

    def _name(self, metric: str | None) -> str:
        if metric is not None and metric not in self.values:
            raise InputError(f"there is no metric {metric!r} here: expected {' or '.join(self.values)}")
        return next(iter(self.values)) if metric is None else metric

    def _has_whole(self, metric: str | None) -> bool:
        """Whether there is a whole for shares: a difference, or a metric that can be lost entirely."""
        return bool(self.clean) and (bool(self.corrupt) or self._name(metric) in _FROM_ZERO)

    def _counted(self, metric: str | None) -> Float[Tensor, "*cells prompt"]:
        effect = self.effects(metric)
        return effect.nan_to_num() if self.kind == "search" else effect

    def rounding(self, metric: str) -> Float[Tensor, " prompt"]:
        """The effect size, per prompt, up to which an effect may be rounding."""
        sizes = [values[metric] for values in (self.clean, self.corrupt) if values]
        if not sizes:
            return torch.zeros_like(self.values[metric].flatten(0, -2)[0])
        changed = self.values[metric].nan_to_num().flatten(0, -2).abs().amax(0)
        return dust(*sizes) if self.corrupt else dust(*sizes, changed)

    def _largest(self, k: int, metric: str | None) -> list[tuple[tuple[int, ...], float]]:
        """The cells with the largest mean effects, and those effects."""
        mean = self._counted(metric).detach().double().nanmean(-1)
        size = mean.abs().nan_to_num(-1).flatten()
        order = size.argsort(descending=True, stable=True)[: min(k, int((size >= 0).sum()))]
        cells = [tuple(int(index) for index in np.unravel_index(cell, mean.shape)) for cell in order.tolist()]
        return [(self.cells[cell[0]] if self.cells else cell, float(mean[cell])) for cell in cells]


def refusal(metric: str, clean: Values, corrupt: Values | None = None) -> str | None:
    """Why shares of a metric's whole (clean - corrupt, or clean) mean nothing; None if they mean something.

    The whole, or the answers' logit difference, is small against its spread or has the wrong sign; or the model answers
    clean prompts no better than a coin (of five to seven prompts, at most half).
    """
    for name in [name for name in dict.fromkeys((ANSWERS, metric)) if name in clean]:
        whole = clean[name] if corrupt is None else clean[name] - corrupt[name]
        mean, n, right = float(whole.mean()), len(whole), int((clean[name] > 0).sum())
        tests_answers = name == ANSWERS and n >= (_FEWEST if right <= n / 2 else FEWEST_CLUSTERS)
        if reason := unreliable(whole) or (guessed(clean[name]) if tests_answers else None):
            return reason
        if mean > 0 if name in _LOWER else mean < 0:
            return f"the sign is wrong: the whole effect on {name} is {mean:+.3g}"
    return None


def guessed(
    clean: Float[Tensor, " prompt"], answers: Sequence[str] = (), clusters: Sequence[Sequence[str]] = ()
) -> str | None:
    """Why the model cannot do a task: by its logit differences it answers no better than a coin.

    The 95% interval of its accuracy, over prompts or what they share (`clusters`), reaches down to one half.
    """
    right, names = (clean > 0).double().cpu().numpy(), np.array([*answers] or [""] * len(clean))
    for answer in dict.fromkeys(names):
        rights = np.where(names == answer, right, np.nan)
        accuracy = shares(rights[:, None], np.ones(len(rights)), clusters=clusters)
        if not accuracy.low[0] > 0.5:  # few prompts have no interval
            prompts = f"{int(accuracy.n[0])} prompts" + f" where that is “{answer}”" * bool(answer)
            all_right = (count := int(np.nansum(rights))) == accuracy.n[0]
            why = ": too few to tell from a coin, so give more" if all_right else ", no better than a coin"
            return f"the model puts the right answer first in {count} of {prompts}{why}"
    return None


def warn_of(reason: str | None) -> bool:
    """Warn of a reason to give no shares; return whether there is one."""
    if reason:
        warn(f"no shares: {reason}", InputWarning, stacklevel=3)
    return bool(reason)


def unreliable(whole: Float[Tensor, " prompt"], least: float = 3.0) -> str | None:
    """Why shares of `whole` mean nothing (its mean lies within `least` standard errors of 0); None if they do."""
    mean = float(whole.mean())
    error = float(whole.std() / len(whole) ** 0.5) if len(whole) > 1 else 0.0
    if mean == 0 or abs(mean) < least * error:
        number = f"{mean:.3g}".replace("-", "−")
        return (
            f"the whole effect is {number} ± {error:.2g} (mean and standard error over {len(whole)} prompts): "
            "too small for shares of it to mean anything"
        )
    return None


def dust(*metrics: Float[Tensor, " prompt"]) -> Float[Tensor, " prompt"]:
    """The effect size, per prompt, up to which an effect may be rounding."""
    size = torch.stack([each.abs() for each in metrics]).amax(0)
    return _ROUNDING * torch.finfo(size.dtype).eps * size


def cell_rows(
    axes: Sequence[str],
    effect: Float[Tensor, "*cells prompt"],
    least: Float[Tensor, " prompt"],
    whole: Float[Tensor, " prompt"] | None = None,
    *,
    seed: int = 0,
) -> DataFrame:
    """One row per cell: its index on each axis, then `effect`, its interval, p, share, and n, the number of prompts.

    Shares are missing without a `whole`, intervals with fewer than three prompts, p with one prompt or if no effect
    exceeds `least`. Cells that no prompt has (NaN) are left out.
    """
    import pandas as pd  # noqa: PLC0415 (`import interp` need not wait for it)

    values = effect.detach().double().cpu().flatten(0, -2).T.numpy()  # prompt cell
    small = least.double().cpu().numpy()
    total = None if whole is None else whole.double().cpu().numpy()
    columns = {name: np.full(values.shape[1], np.nan) for name in ESTIMATED if name not in {"q", "n"}}
    exists = ~np.isnan(values)
    for prompts in np.unique(exists, axis=1).T:  # prompts differ in length: group cells by the prompts that have them
        if not prompts.any():
            continue
        cells = (exists == prompts[:, None]).all(0)
        part = values[prompts][:, cells]
        mean = estimate(part, np.ones_like(part), seed=seed)
        idle = (np.abs(part) <= small[prompts][:, None]).all(0)
        p = np.where(idle, np.nan, mean.two_sided)
        numbers = {"effect": mean.value, "ci_low": mean.low, "ci_high": mean.high, "p": p}
        if total is not None and total[prompts].sum() != 0:
            of_whole = shares(part, total[prompts], seed=seed)
            numbers |= {"share": of_whole.value, "share_low": of_whole.low, "share_high": of_whole.high}
        for name, value in numbers.items():
            columns[name][cells] = value
    indices = np.unravel_index(np.arange(values.shape[1]), effect.shape[:-1])
    rows = pd.DataFrame({**dict(zip(axes, indices, strict=True)), **columns, "n": exists.sum(0)})
    return rows.loc[exists.any(0)].reset_index(drop=True)


def long_table(
    constants: Mapping[str, Any],
    rows: Sequence[DataFrame],
    axes: Sequence[str],
    positions: Sequence[str] = (),
    labels: Labels | None = None,
) -> DataFrame:
    """Rows of several metrics (`cell_rows`, and more columns) as one table: `constants`, axes, tokens, numbers.

    Position axes hold the names in `positions`, if there are any. `labels` give, by column (`token`, `corrupt_token`,
    for keys with the prefix `key_`), the token at each index, and by axis (`sender`, `receiver`) its names.
    """
    import pandas as pd  # noqa: PLC0415 (as above)

    table, labels = pd.concat(rows, ignore_index=True), labels or {}
    tokens: list[str] = []
    for axis in {*axes} & {*labels}:
        table[axis] = named_places(table[axis], labels[axis])
    for axis in [axis for axis in axes if axis in POSITIONAL]:
        indices = table[axis]
        if positions:
            table[axis] = named_places(indices, positions)
        for name in [name for name in labels if name.startswith("key_") == (axis == "key")]:
            table[name] = pd.Series(named_places(indices, labels[name]), index=table.index, dtype=object)
            tokens.append(name)
    for name, value in constants.items():
        table[name] = value
    table["q"] = benjamini_hochberg(table["p"].to_numpy(dtype=float))
    extra = [name for name in table.columns if name not in {*constants, *axes, *tokens, *ESTIMATED}]
    return table.loc[:, [*constants, *axes, *tokens, *extra, *(name for name in ESTIMATED if name in table)]]


def named_places(indices: Iterable[int], names: Sequence[str | None]) -> np.ndarray:
    """A column with the name of each index."""
    return np.array([names[int(index)] for index in indices], dtype=object)

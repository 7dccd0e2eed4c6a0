"""Exact sweeps: every cell of a site patched, at a fraction of one forward pass a cell.

A cell at layer l and position p leaves everything below l, and in a causal stack before p, as it was. So a cell starts
from the stream at its own layer, cells that change the same positions share a lane, lanes and layers go through in one
pass as long as they fill it, and the last block is computed only where the metrics read. `sweep_by_forward` is the
plain way; both give the same numbers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import ceil, prod

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.errors import InputError
from interp.patching.metrics import Metric, Readout
from interp.patching.pairs import Pairs
from interp.patching.plain import PlainRun
from interp.patching.results import Direction, Sweep
from interp.patching.sweeping.entering import Entrance, Where
from interp.patching.sweeping.lanes import Boarding, Lane, travel
from interp.patching.sweeping.oracle import check_site
from interp.transformer import Transformer

BUDGET = 2 << 30  # bytes of activations that one pass may hold, by default
MOST_ROWS = 1536  # cells x prompts x positions of a pass: enough to fill the machine, few enough for its caches


@torch.no_grad()
def sweep(
    model: Transformer,
    pairs: Pairs,
    metrics: Metric | Sequence[Metric],
    site: str = "z",
    by: Sequence[str] = ("layer", "head"),
    direction: Direction = "denoise",
    *,
    budget: int = BUDGET,
) -> Sweep:
    """Patch every cell of `site` and measure what each does, exactly.

    Args:
        model: a transformer of one stack with an output layer.
        pairs: clean and corrupted prompts, token for token alike in length; lengths may differ between pairs.
        metrics: what to read, one or several.
        site: `resid_pre`, `resid_mid`, `resid_post`, `attn_out`, `mlp_out`, `z`, `q`, `k`, `v`, `pattern` or `scores`.
        by: the cells' axes: `layer`, then any of `head` (key/value heads for `k` and `v`), `position`, and for
            `pattern` and `scores` `query` and `key`. Positions count in each prompt's own tokens.
        direction: `denoise` puts clean activations into the corrupted prompt, `noise` corrupted ones into the clean.
        budget: bytes of activations that one pass may hold.

    Returns:
        Sweep: values `*by prompt`, and the metrics of the unpatched prompts.

    Raises:
        InputError: no such site or axis, a metric that returns no number a prompt, a budget too small for one cell.
    """
    by = tuple(by)
    check_site(model, site, by)
    readouts = [metric.prepare(model, pairs) for metric in ([metrics] if isinstance(metrics, Metric) else metrics)]
    swept_parts, ends = [], []
    for prompts in _in_memory(model, pairs, budget):
        some = pairs.take(prompts)
        base, source = (some.corrupt, some.clean) if direction == "denoise" else (some.clean, some.corrupt)
        runs = PlainRun.of_both(model, base, source)
        read = [readout.take(prompts) for readout in readouts]
        own, other = (read_values(model, run, read) for run in runs)
        swept_parts.append(swept(model, some, runs, read, own, site, by, budget))
        ends.append((other, own) if direction == "denoise" else (own, other))
    clean, corrupt = (_joined(parts) for parts in zip(*ends, strict=True))
    return Sweep(site, direction, by, _joined(swept_parts), clean, corrupt)


def swept(
    model: Transformer,
    pairs: Pairs,
    runs: tuple[PlainRun, PlainRun],
    readouts: Sequence[Readout],
    plain_values: dict[str, Tensor],
    site: str,
    by: tuple[str, ...],
    budget: int,
) -> dict[str, Tensor]:
    """Metrics, `*by prompt`, of the first of two runs with what the second has at each cell.

    The second is another prompt's run, or holds what an ablation puts there. Cells that no change can reach keep the
    plain run's value.
    """
    sizes = _sizes(model, pairs, site, by)
    values = {name: value.expand(*sizes, -1).clone() for name, value in plain_values.items()}
    most = _most_rows(model, pairs, budget)
    parts = [_Part.of(model, runs, group, readouts, site, by) for group in _groups(model, pairs, most)]
    _fill(model, values, [lot for part in parts for lot in part.lots(most, np.ones(sizes, dtype=bool))], most)
    _blank_beyond(values, by, pairs)
    return values


def _sizes(model: Transformer, pairs: Pairs, site: str, by: tuple[str, ...]) -> list[int]:
    """The table of all cells: one size an axis."""
    place = check_site(model, site, by)
    counted = dict(zip(place.axes, place.sizes, strict=True))
    return [model.config.n_layers, *(counted[axis] or pairs.clean.ids.shape[1] for axis in by[1:])]


def _fill(model: Transformer, values: dict[str, Tensor], lots: "Sequence[_Lot]", most: int) -> None:
    """Measure some cells and put their metrics into the tables."""
    for bunch in _bunches(sorted(lots, key=lambda lot: lot.layer), most):
        found = travel(model, [lot.board() for lot in bunch])
        for lot, own in zip(bunch, found, strict=True):
            lot.put(values, own)
        for part in {lot.part for lot in bunch} - {bunch[-1].part}:
            part.entrance.forget()


class Bench:
    """The cells of one sweep, laid out so that any of them can be measured on any prompt, as often as one likes."""

    def __init__(
        self, model: Transformer, pairs: Pairs, site: str, by: tuple[str, ...], most: int, plain: Tensor, sign: int
    ):
        self.model, self.pairs, self.by, self.most, self.sign = model, pairs, by, most, sign
        self.plain = plain
        self.shape = (*_sizes(model, pairs, site, by), len(pairs))
        self.parts: list[_Part] = []

    @staticmethod
    def of(
        model: Transformer,
        pairs: Pairs,
        metric: Metric,
        site: str,
        by: tuple[str, ...],
        direction: Direction,
        budget: int,
    ) -> "Bench":
        """Arguments are those of `sweep`, and so is what it raises."""
        check_site(model, site, by)
        readout = metric.prepare(model, pairs)
        base, source = (pairs.corrupt, pairs.clean) if direction == "denoise" else (pairs.clean, pairs.corrupt)
        runs = PlainRun.of_both(model, base, source)
        plain = read_values(model, runs[0], [readout])[readout.name]
        most = _most_rows(model, pairs, budget)
        bench = Bench(model, pairs, site, by, most, plain, 1 if direction == "denoise" else -1)
        groups = _groups(model, pairs, most, alone=True)
        bench.parts = [_Part.of(model, runs, group, [readout], site, by) for group in groups]
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
        _fill(self.model, values, lots, self.most)
        (table,) = values.values()
        return self.sign * (table - self.plain)


def read_values(model: Transformer, plain: PlainRun, readouts: Sequence[Readout]) -> dict[str, Tensor]:
    """The metrics of an unpatched run, checked: every metric must give one number a prompt."""
    final = model.last.norm(plain.resid[-1])
    prompt = torch.arange(len(final), device=final.device)[:, None]
    found = {}
    for readout in readouts:
        value = readout.of(model, final[prompt, readout.positions])
        if value.shape != prompt.shape[:1]:
            raise InputError(
                f"metric {readout.name} must give one number for each of {len(prompt)} prompts, "
                f"shape ({len(prompt)},); got shape {tuple(value.shape)}"
            )
        if not bool(value.isfinite().all()):
            where = int((~value.isfinite()).nonzero()[0])
            raise InputError(
                f"metric {readout.name} is {float(value[where])} for prompt {where}: expected a finite number"
            )
        found[readout.name] = value
    return found


@dataclass(frozen=True)
class _Group:
    """Prompts that are swept together: those with the same first changed position and the same length."""

    prompts: Int[Tensor, " prompt"]
    first: int
    length: int
    causal: bool

    def wheres(self, site: str, by: tuple[str, ...]) -> Iterator[Where]:
        """The cells of a layer that can have an effect, a head axis aside."""
        rows = range(self.first, self.length) if {"position", "query"} & {*by} else [None]
        # a changed query spreads its attention anew over all keys, also over those that are as they were
        keys = range(self.length) if "key" in by else [None]
        for row, key in product(rows, keys):
            if self.causal and row is not None and key is not None and key > row:
                continue
            yield Where("head" in by, row, key)

    def first_reached(self, where: Where) -> int:
        """The first position whose stream the patch can change."""
        if not self.causal:
            return 0
        return max(self.first, where.key or 0) if where.position is None else where.position


def _groups(model: Transformer, pairs: Pairs, most: int, *, alone: bool = False) -> Iterator[_Group]:
    """Prompts by length, and in a causal stack by first changed position: nothing is computed that cannot change.

    A group's changed positions fill one pass at most; or each prompt is a group `alone`.
    """
    causal = model.last.config.causal
    first = pairs.first_changed if causal else torch.zeros_like(pairs.last)
    keys = torch.stack([first, pairs.last + 1], 1)
    for key in keys.unique(dim=0):
        start, length = key.tolist()
        together = (keys == key).all(1).nonzero()[:, 0]
        for prompts in together.split(1 if alone else max(1, most // (length - start))):
            yield _Group(prompts, start, length, causal)


@dataclass(frozen=True, eq=False)
class _Part:
    """A group of prompts, where patches enter their runs, and what is read of them."""

    by: tuple[str, ...]
    group: _Group
    entrance: Entrance
    readouts: list[Readout]
    lanes: dict[int, Lane] = field(default_factory=dict)

    @staticmethod
    def of(
        model: Transformer,
        runs: tuple[PlainRun, PlainRun],
        group: _Group,
        readouts: Sequence[Readout],
        site: str,
        by: tuple[str, ...],
    ) -> "_Part":
        """The prompts of `group`."""
        base, source = (run.take(group.prompts, group.length) for run in runs)
        reads = [readout.take(group.prompts) for readout in readouts]
        return _Part(by, group, Entrance(model, base, source, site), reads)

    def lots(self, most: int, wanted: Bool[np.ndarray, "*cells"]) -> "Iterator[_Lot]":
        """All wanted cells that can have an effect, at most so many rows of them at a time."""
        entrance, read = self.entrance, int(max(readout.positions.max() for readout in self.readouts))
        if not wanted.any():
            return
        for where in self.group.wheres(entrance.site, self.by):
            first = self.group.first_reached(where)
            if first > read:
                continue
            for layer in range(entrance.model.config.n_layers):
                asked = wanted[self._at(layer, where, slice(None))]
                heads = np.flatnonzero(asked).tolist()  # [0] where cells are no heads
                step = max(1, most // prod(self._lane(first).shape)) if heads else 1
                for begin in range(0, len(heads), step):
                    yield _Lot(self, self._lane(first), layer, where, heads[begin : begin + step])

    def _lane(self, first: int) -> Lane:
        """The lane of the cells that change positions from `first` on."""
        if first not in self.lanes:
            self.lanes[first] = Lane(self.entrance.model, self.entrance.base, first, self.readouts)
        return self.lanes[first]

    def _at(self, layer: int, where: Where, heads: "slice | list[int]") -> tuple[int | slice | list[int] | None, ...]:
        """Where in the table of all cells."""
        at = {"position": where.position, "query": where.position, "key": where.key}
        return (layer, *(heads if axis == "head" else at[axis] for axis in self.by[1:]))

    def put(
        self, values: dict[str, Tensor], layer: int, where: Where, heads: list[int], found: Sequence[Tensor]
    ) -> None:
        """Metrics, `cell prompt` each, into the tables of all cells."""
        for readout, value in zip(self.readouts, found, strict=True):
            rows = values[readout.name][self._at(layer, where, slice(None))]
            if where.by_head:
                rows[torch.tensor(heads, device=rows.device)[:, None], self.group.prompts] = value
            else:
                rows[self.group.prompts] = value[0]


@dataclass(frozen=True)
class _Lot:
    """Cells that board together: those of `where` in one layer, of some heads where each head is one."""

    part: _Part
    lane: Lane
    layer: int
    where: Where
    heads: list[int]

    @property
    def rows(self) -> int:
        """Cells x prompts x positions that they add to a pass."""
        return len(self.heads) * prod(self.lane.shape)

    def board(self) -> Boarding:
        """The cells as they join their lane."""
        return self.part.entrance.board(self.lane, self.layer, self.where, self.heads)

    def mark(self, table: Bool[Tensor, "*cells prompt"]) -> None:
        """The cells' places in a table of all cells."""
        self.part.put({self.part.readouts[0].name: table}, self.layer, self.where, self.heads, [table.new_ones(1, 1)])

    def put(self, values: dict[str, Tensor], found: Sequence[Float[Tensor, "cell prompt"]]) -> None:
        """The cells' metrics into the tables of all cells."""
        self.part.put(values, self.layer, self.where, self.heads, found)


def _bunches(lots: Sequence[_Lot], most: int) -> Iterator[list[_Lot]]:
    """Lots that share a pass, in their order, about as many rows each time."""
    total = sum(lot.rows for lot in lots)
    full = total / ceil(total / most) if lots else 0
    bunch: list[_Lot] = []
    for lot in lots:
        rows = sum(one.rows for one in bunch)
        if bunch and (rows >= full or rows + lot.rows > most):
            yield bunch
            bunch = []
        bunch.append(lot)
    if bunch:
        yield bunch


def _in_memory(model: Transformer, pairs: Pairs, budget: int) -> tuple[Int[Tensor, " prompt"], ...]:
    """Prompts whose two plain runs, kept whole and once more in parts, fit into the budget."""
    config, length = model.last.config, pairs.clean.ids.shape[1]
    kept = 5 * config.d_model + 2 * (config.n_heads + config.kv_heads) * config.d_head
    prompt = 4 * config.n_layers * length * kept * model.last.embed.token.weight.element_size()
    return torch.arange(len(pairs), device=pairs.last.device).split(max(1, budget // prompt))


def _most_rows(model: Transformer, pairs: Pairs, budget: int) -> int:
    """How many rows (cells x prompts x positions) a pass carries.

    Raises:
        InputError: not even one cell of one prompt fits into the budget.
    """
    config = model.last.config
    wide = 2 * config.d_mlp * (2 if hasattr(config.mlp, "activation") else 0)
    width = 6 * config.d_model + wide + 2 * (config.n_heads + 2 * config.kv_heads) * config.d_head
    length = int(pairs.last.max()) + 1
    row = (width + 3 * config.n_heads * length) * model.last.embed.token.weight.element_size()
    changed = pairs.last + 1 - (pairs.first_changed if config.causal else 0)
    needed = int(changed.max())
    if budget < needed * row:
        raise InputError(
            f"a budget of {budget} bytes is too small for one cell of {needed} positions: "
            f"expected at least {needed * row} bytes"
        )
    return max(needed, min(MOST_ROWS, budget // row))


def _joined(parts: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Tables of some prompts each, as one."""
    return {name: torch.cat([part[name] for part in parts], -1) for name in parts[0]}


def _blank_beyond(values: dict[str, Tensor], by: tuple[str, ...], pairs: Pairs) -> None:
    """Positions beyond a prompt's own text, and keys that a query cannot see, are missing rather than zero."""
    for axis in {"position", "query", "key"} & {*by}:
        for table in values.values():
            width = table.shape[by.index(axis)]
            beyond = torch.arange(width, device=table.device)[:, None] > pairs.last  # position prompt
            moved = table.movedim(by.index(axis), -2)
            moved.masked_fill_(beyond, torch.nan)

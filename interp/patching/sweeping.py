"""Exact sweeps: every cell of a site patched, at a fraction of one forward pass a cell.

A cell at layer l and position p leaves everything below l, and in a causal stack before p, as it was. So a cell starts
from the stream at its own layer, cells that change the same positions share a lane, lanes and layers go through in one
pass as long as they fill it, and the last block is computed only where the metrics read. `sweep_by_forward` is the
plain way; both give the same numbers.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import ceil, prod

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.errors import InputError
from interp.patching.entering import Entrance, Where
from interp.patching.metrics import Metric, Readout
from interp.patching.oracle import check_site
from interp.patching.pairs import Pairs
from interp.patching.results import Direction, Sweep
from interp.patching.resuming import Boarding, Lane, PlainRun, travel
from interp.transformer import Transformer

BUDGET = 2 << 30  # bytes of activations that one pass may hold, by default
MOST_ROWS = 1536  # cells x prompts x positions of a pass: enough to fill the machine, few enough for its caches


@dataclass(frozen=True)
class _Group:
    """Prompts that are swept together: those with the same first changed position and the same length."""

    prompts: Int[Tensor, " prompt"]
    first: int
    length: int


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
    base, source = (pairs.corrupt, pairs.clean) if direction == "denoise" else (pairs.clean, pairs.corrupt)
    plain, other = PlainRun.of_both(model, base, source)
    plain_values, other_values = (read_values(model, each, readouts) for each in (plain, other))
    clean, corrupt = (other_values, plain_values) if direction == "denoise" else (plain_values, other_values)
    values = swept(model, pairs, plain, other, readouts, plain_values, site, by, budget)
    return Sweep(site, direction, by, values, clean, corrupt)


def swept(
    model: Transformer,
    pairs: Pairs,
    plain: PlainRun,
    other: PlainRun,
    readouts: Sequence[Readout],
    plain_values: dict[str, Tensor],
    site: str,
    by: tuple[str, ...],
    budget: int,
) -> dict[str, Tensor]:
    """Metrics, `*by prompt`, of `plain` with what `other` has at each cell: another prompt's run, or a replacement."""
    place = check_site(model, site, by)
    width, causal = plain.batch.ids.shape[1], model.last.config.causal
    counted = dict(zip(place.axes, place.sizes, strict=True))
    sizes = [model.config.n_layers, *(counted[axis] or width for axis in by[1:])]
    # cells that no change can reach keep the plain run's value
    values = {name: value.expand(*sizes, -1).clone() for name, value in plain_values.items()}
    most = _most_rows(model, pairs, budget, causal)
    parts = (
        _Part.of(model, (plain, other), group, readouts, site, by) for group in _groups(pairs, causal, at_once=most)
    )
    every = (some for part in parts for some in part.every(causal, most))
    for bunch in _bunches(every, most):
        for layers in _together(model.config.n_layers, most // sum(some.rows for some in bunch)):
            aboard = [(some, layer) for layer in layers for some in bunch]
            found = travel(model, [some.board(layer) for some, layer in aboard])
            for (some, layer), own in zip(aboard, found, strict=True):
                some.put(values, layer, own)
    _blank_beyond(values, by, pairs)
    return values


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


def _groups(pairs: Pairs, causal: bool, at_once: int | None = None) -> Iterator[_Group]:
    """Prompts by length, and in a causal stack by first changed position: nothing is computed that cannot change.

    With `at_once`, of as many prompts as make so many changed positions.
    """
    first = pairs.first_changed if causal else torch.zeros_like(pairs.last)
    keys = torch.stack([first, pairs.last + 1], 1)
    for key in keys.unique(dim=0):
        start, length = key.tolist()
        together = (keys == key).all(1).nonzero()[:, 0]
        for prompts in together.split(len(together) if at_once is None else max(1, at_once // (length - start))):
            yield _Group(prompts, start, length)


def _wheres(site: str, by: tuple[str, ...], group: _Group, causal: bool) -> Iterator[Where]:
    """The cells of a group that can have an effect, a head axis aside."""
    changed = range(group.first, group.length)
    everywhere = range(group.length)
    rows = changed if {"position", "query"} & {*by} else [None]
    # a changed query spreads its attention anew over all keys, also over those that are as they were
    keys = everywhere if "key" in by else [None]
    for row, key in product(rows, keys):
        if causal and row is not None and key is not None and key > row:
            continue
        yield Where("head" in by, row, key)


def _first_reached(where: Where, group: _Group, causal: bool) -> int:
    """The first position whose stream the patch can change."""
    if not causal:
        return 0
    return max(group.first, where.key or 0) if where.position is None else where.position


@dataclass(frozen=True)
class _Part:
    """Prompts that go through together, and what is read of them."""

    by: tuple[str, ...]
    group: _Group
    entrance: Entrance
    readouts: list[Readout]

    @staticmethod
    def of(
        model: Transformer,
        runs: Sequence[PlainRun],
        group: _Group,
        readouts: Sequence[Readout],
        site: str,
        by: tuple[str, ...],
    ) -> "_Part":
        """The prompts of `group`."""
        base, source = (run.take(group.prompts, group.length) for run in runs)
        return _Part(
            by, group, Entrance(model, base, source, site), [readout.take(group.prompts) for readout in readouts]
        )

    def every(self, causal: bool, most: int) -> "Iterator[_Some]":
        """All cells of a layer that can have an effect, lane by lane, at most so many rows of them at a time."""
        entrance, lanes = self.entrance, {}
        for where in _wheres(entrance.site, self.by, self.group, causal):
            first = _first_reached(where, self.group, causal)
            if all(bool((readout.positions < first).all()) for readout in self.readouts):
                continue
            if first not in lanes:
                lanes[first] = Lane(entrance.model, entrance.base, first, self.readouts)
            n_cells = entrance.n_heads() if where.by_head else 1
            step = max(1, most // prod(lanes[first].shape))
            for begin in range(0, n_cells, step):
                yield _Some(self, lanes[first], where, range(begin, min(begin + step, n_cells)))


@dataclass(frozen=True)
class _Some:
    """Cells of a layer that board together: those of `where`, of some heads where each head is one."""

    part: _Part
    lane: Lane
    where: Where
    heads: range

    @property
    def rows(self) -> int:
        """Cells x prompts x positions that they add to a pass."""
        return len(self.heads) * prod(self.lane.shape)

    def board(self, layer: int) -> Boarding:
        """The cells of one layer."""
        return self.part.entrance.board(self.lane, layer, self.where, slice(self.heads.start, self.heads.stop))

    def put(self, values: dict[str, Tensor], layer: int, found: Sequence[Float[Tensor, "cell prompt"]]) -> None:
        """The cells' metrics into the tables of all cells."""
        where, by, prompts = self.where, self.part.by, self.part.group.prompts
        heads = slice(self.heads.start, self.heads.stop)
        at = {"position": where.position, "query": where.position, "key": where.key, "head": heads}
        for readout, value in zip(self.part.readouts, found, strict=True):
            place = values[readout.name][(layer, *(at[axis] for axis in by[1:]))]
            place[..., prompts] = value if where.by_head else value[0]


def _bunches(every: Iterable[_Some], most: int) -> Iterator[list[_Some]]:
    """Cells in bunches that fill a pass."""
    bunch: list[_Some] = []
    for some in every:
        if bunch and sum(one.rows for one in bunch) + some.rows > most:
            yield bunch
            bunch = []
        bunch.append(some)
    if bunch:
        yield bunch


def _together(n_layers: int, at_once: int) -> Iterator[range]:
    """Layers whose cells share a pass, about as many each time: those of later layers board as it reaches them."""
    n_passes = ceil(n_layers / max(1, at_once))
    edges = [n_layers * at // n_passes for at in range(n_passes + 1)]
    return (range(start, stop) for start, stop in pairwise(edges))


def _most_rows(model: Transformer, pairs: Pairs, budget: int, causal: bool) -> int:
    """How many rows (cells x prompts x positions) a pass carries.

    Raises:
        InputError: not even one cell of one prompt fits into the budget.
    """
    config = model.last.config
    wide = 2 * config.d_mlp * (2 if hasattr(config.mlp, "activation") else 0)
    width = 6 * config.d_model + wide + 2 * (config.n_heads + 2 * config.kv_heads) * config.d_head
    length = int(pairs.last.max()) + 1
    row = (width + 3 * config.n_heads * length) * model.last.embed.token.weight.element_size()
    needed = max(group.length - group.first for group in _groups(pairs, causal))
    if budget < needed * row:
        raise InputError(
            f"a budget of {budget} bytes is too small for one cell of {needed} positions: "
            f"expected at least {needed * row} bytes"
        )
    return max(needed, min(MOST_ROWS, budget // row))


def _blank_beyond(values: dict[str, Tensor], by: tuple[str, ...], pairs: Pairs) -> None:
    """Positions beyond a prompt's own text, and keys that a query cannot see, are missing rather than zero."""
    for axis in {"position", "query", "key"} & {*by}:
        for table in values.values():
            width = table.shape[by.index(axis)]
            beyond = torch.arange(width, device=table.device)[:, None] > pairs.last  # position prompt
            moved = table.movedim(by.index(axis), -2)
            moved.masked_fill_(beyond, torch.nan)

"""Exact sweeps: every cell of a site patched, at a fraction of one forward pass a cell.

A cell at layer l and position p leaves everything below l, and in a causal stack before p, as it was. So a cell starts
from the stream at its own layer, cells of one pass share what lies before their positions, later layers' cells board
the pass as it reaches them, and the last block is computed only where the metrics read. `sweep_by_forward` is the plain
way; both give the same numbers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from jaxtyping import Int
from torch import Tensor

from interp.errors import InputError
from interp.patching.entering import Entrance, Where
from interp.patching.metrics import Metric, Readout
from interp.patching.oracle import check_site
from interp.patching.pairs import Pairs
from interp.patching.results import Direction, Sweep
from interp.patching.resuming import Boarding, Pass, PlainRun
from interp.transformer import Transformer

BUDGET = 2 << 30  # bytes of activations that one pass may hold, by default
# rows (cells x prompts x positions) that a pass carries: more than the first fill the machine, more than the second
# fall out of the processor's caches
_FULL, _MOST = 512, 1536


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
    plain, other = PlainRun.of(model, base), PlainRun.of(model, source)
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
    for group in _groups(pairs, causal):
        for prompts in group.prompts.split(_prompts_a_pass(model, group, budget)):
            part = _Part(
                by=by,
                prompts=prompts,
                entrance=Entrance(model, plain.take(prompts, group.length), other.take(prompts, group.length), site),
                readouts=[readout.take(prompts) for readout in readouts],
            )
            for where in _wheres(site, by, group, causal):
                part.fill(values, where, _first_reached(where, group, causal), budget)
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


def _groups(pairs: Pairs, causal: bool) -> Iterator[_Group]:
    """Prompts by length, and in a causal stack by first changed position: nothing is computed that cannot change."""
    first = pairs.first_changed if causal else torch.zeros_like(pairs.last)
    keys = torch.stack([first, pairs.last + 1], 1)
    for key in keys.unique(dim=0):
        start, length = key.tolist()
        yield _Group((keys == key).all(1).nonzero()[:, 0], start, length)


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
    prompts: Int[Tensor, " prompt"]
    entrance: Entrance
    readouts: list[Readout]

    def fill(self, values: dict[str, Tensor], where: Where, first: int, budget: int) -> None:
        """Run the cells of `where`, of all layers and heads, and put their metrics in place."""
        if all(bool((readout.positions < first).all()) for readout in self.readouts):
            return
        entrance = self.entrance
        cells = entrance.n_heads() if where.by_head else 1
        length = entrance.base.batch.ids.shape[1]
        most = _rows_within(entrance.model, length, budget)
        rows = len(self.prompts) * (length - first)  # of one cell
        n_layers = entrance.model.config.n_layers
        at_once = max(1, min(n_layers, _FULL // (cells * rows)))
        for start in range(0, n_layers, at_once):
            layers = range(start, min(start + at_once, n_layers))
            journey = Pass(entrance.model, entrance.base, first, self.readouts)
            chunk = cells if len(layers) > 1 else max(1, min(cells, max(most, 1) // rows, max(1, _MOST // rows)))
            boardings = [Boarding(*entrance.cells(layer, where, journey.first)) for layer in layers]
            for begin in range(0, cells, chunk):
                some = [Boarding(boarding.layer, boarding.stream[begin : begin + chunk]) for boarding in boardings]
                found = journey.run(some)
                for readout, value in zip(self.readouts, found, strict=True):
                    self._put(values[readout.name], value, where, layers, slice(begin, begin + chunk))

    def _put(self, table: Tensor, value: Tensor, where: Where, layers: range, heads: slice) -> None:
        """One pass's metrics (cell prompt, layer by layer) into the table of all cells."""
        at = {"position": where.position, "query": where.position, "key": where.key, "head": heads}
        per_layer = value.unflatten(0, (len(layers), -1))
        for layer, own in zip(layers, per_layer, strict=True):
            place = table[(layer, *(at[axis] for axis in self.by[1:]))]
            place[..., self.prompts] = own if where.by_head else own[0]


def _rows_within(model: Transformer, length: int, budget: int) -> int:
    """How many rows (cells x prompts x positions) a pass may carry within the budget."""
    config = model.last.config
    wide = 2 * config.d_mlp * (2 if hasattr(config.mlp, "activation") else 0)
    width = 6 * config.d_model + wide + 2 * (config.n_heads + 2 * config.kv_heads) * config.d_head
    scores = 3 * config.n_heads * length
    return budget // ((width + scores) * torch.finfo(model.last.embed.token.weight.dtype).bits * 8 // 64)


def _prompts_a_pass(model: Transformer, group: _Group, budget: int) -> int:
    """How many prompts go through together: one cell of them must fit."""
    rows = group.length - group.first
    most = _rows_within(model, group.length, budget)
    if most < rows:
        raise InputError(
            f"a budget of {budget} bytes is too small for one cell of {rows} positions: "
            f"expected at least {budget // max(most, 1) * rows} bytes"
        )
    return max(1, min(most, _MOST) // rows)


def _blank_beyond(values: dict[str, Tensor], by: tuple[str, ...], pairs: Pairs) -> None:
    """Positions beyond a prompt's own text, and keys that a query cannot see, are missing rather than zero."""
    for axis in {"position", "query", "key"} & {*by}:
        for table in values.values():
            width = table.shape[by.index(axis)]
            beyond = torch.arange(width, device=table.device)[:, None] > pairs.last  # position prompt
            moved = table.movedim(by.index(axis), -2)
            moved.masked_fill_(beyond, torch.nan)

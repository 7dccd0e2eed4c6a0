"""What does a model lose without a part of it? Heads, layers, neurons or positions replaced by what says nothing.

What stands in their place is a value typed by its meaning: zero, the mean over a corpus, or what the part did for
another prompt. A part that a prompt needs lowers the metric; other parts may compensate, so the drop is a lower bound.

`ablate` knocks out every cell of a grid, each alone, on the machinery of sweeps: the replaced activations are one more
run to patch from. `ablate_cells` takes a list of cells, each alone, and `ablate_in_order` one after the other, each
with all before it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.errors import InputError
from interp.patching.metrics import Metric, Readout
from interp.patching.pairs import Pairs
from interp.patching.plain import PlainRun
from interp.patching.sweeping.memory import BUDGET
from interp.patching.sweeping.oracle import check_site, site_name
from interp.patching.sweeping.sweep import read_values, swept
from interp.places import sites
from interp.running import Tokens, as_batch, run
from interp.tap import Edit, Tap
from interp.tokens import TokenBatch
from interp.transformer import Transformer

Cell = tuple[int, ...]  # layer, then head or neuron where the site has such an axis
# a site: the field of a `PlainRun` that holds it, and how many entries of it come before that of layer 0
_IN_RUN = {"z": ("z", 0), "attn_out": ("attn_out", 0), "mlp_out": ("mlp_out", 0), "resid_mid": ("mid", 0)}
_IN_RUN |= {"resid_pre": ("resid", 0), "resid_post": ("resid", 1)}
_UNIT = {"z": "head", "mlp.post": "d_mlp", "attn_out": None, "mlp_out": None}  # what a listed cell names in its layer
_ROWS = 1536  # rows (cells x prompts x positions) that one pass carries: more fall out of the processor's caches


@dataclass(frozen=True)
class Ablation:
    """Each metric with a cell ablated, one value a cell and prompt, and `plain`: with nothing ablated.

    `axes` are those of the cells (`layer`, `head`, `position`), or `cell` for a list of them, `step` for an order.
    Positions beyond a prompt's text are NaN.
    """

    site: str
    kind: str
    axes: tuple[str, ...]
    values: dict[str, Float[Tensor, "*cells prompt"]]
    plain: dict[str, Float[Tensor, " prompt"]]

    def drop(self, metric: str | None = None) -> Float[Tensor, "*cells prompt"]:
        """How much lower the metric is without the cell, in the metric's unit (by default the first metric)."""
        name = next(iter(self.values)) if metric is None else metric
        if name not in self.values:
            raise InputError(f"this ablation has no metric {metric!r}: it has {', '.join(self.values)}")
        return self.plain[name] - self.values[name]


@torch.no_grad()
def ablate(
    model: Transformer,
    prompts: Tokens | Pairs,
    metrics: Metric | Sequence[Metric],
    site: str = "z",
    by: Sequence[str] = ("layer", "head"),
    kind: str = "zero",
    *,
    mean: Tensor | None = None,
    donors: Tokens | None = None,
    seed: int = 0,
    budget: int = BUDGET,
) -> Ablation:
    """Ablate every cell of `site`, each alone, exactly.

    Args:
        model: a transformer of one stack with an output layer.
        prompts: what is run, padded on the right; of `Pairs` the clean prompts, with their answers.
        metrics: what to read, one or several, with their answers (`logit_difference(" he", " she")`).
        site: `z` (heads), `attn_out` or `mlp_out` (layers), `resid_pre`, `resid_mid` or `resid_post`.
        by: the cells' axes: `layer`, then any of `head` (for `z`) and `position`.
        kind: `zero`; `mean`, over real positions of a corpus; `resample`, another prompt's activation at the same
            position, one other prompt drawn for each (Chan 2022, "Causal scrubbing").
        mean: for `mean`, what `mean_activation` gave for this site; by default the mean over `prompts`.
        donors: for `resample`, prompts to draw from; by default `prompts`, none from itself.
        seed: of the draw.
        budget: bytes of activations that one pass may hold.

    Returns:
        Ablation: values `*by prompt`.

    Raises:
        InputError: no such site, axis or kind; a mean of the wrong shape; no other prompt to draw from.
    """
    by = tuple(by)
    check_site(model, site, by)
    if site not in _IN_RUN:
        raise InputError(f"cannot ablate {site!r}: expected one of {', '.join(_IN_RUN)}; patch it with `sweep` instead")
    alone = _Alone.of(model, prompts)
    readouts = _prepare(model, alone, metrics)
    plain = PlainRun.of(model, alone.clean)
    values = read_values(model, plain, readouts)
    field, skipped = _IN_RUN[site]
    instead = _Replacement(model, alone.clean, site, kind, mean, donors, seed).layers()
    kept: list[Tensor] = getattr(plain, field)
    layers = [
        theirs.to(ours.dtype).expand_as(ours) for theirs, ours in zip(instead, kept[skipped:], strict=False)
    ]  # the stream has one entry more than there are layers
    layers = [*kept[:skipped], *layers, *kept[skipped + len(layers) :]]
    ablated = replace(plain, **{field: layers})
    return Ablation(site, kind, by, swept(model, alone, (plain, ablated), readouts, values, site, by, budget), values)


def ablate_cells(
    model: Transformer,
    prompts: Tokens | Pairs,
    metrics: Metric | Sequence[Metric],
    cells: Sequence[Cell],
    site: str = "z",
    kind: str = "zero",
    *,
    mean: Tensor | None = None,
    donors: Tokens | None = None,
    seed: int = 0,
) -> Ablation:
    """Ablate each of some cells alone: `(layer, head)` of `z`, `(layer, neuron)` of `mlp.post`, `(layer,)` of the outs.

    The other arguments are those of `ablate`; sites are `z`, `mlp.post`, `attn_out` and `mlp_out`.

    Returns:
        Ablation: values `cell prompt`, in the order given.

    Raises:
        InputError: as `ablate`, or a cell that the model lacks.
    """
    alone, cells = _Alone.of(model, prompts), _check_cells(model, site, cells)
    replacement = _Replacement(model, alone.clean, site, kind, mean, donors, seed)
    return _ablate_sets(model, alone, metrics, replacement, cells, torch.eye(len(cells), dtype=torch.bool), "cell")


def ablate_in_order(
    model: Transformer,
    prompts: Tokens | Pairs,
    metrics: Metric | Sequence[Metric],
    order: Sequence[Cell],
    site: str = "z",
    kind: str = "zero",
    *,
    mean: Tensor | None = None,
    donors: Tokens | None = None,
    seed: int = 0,
) -> Ablation:
    """Ablate cells one after the other, each with all before it: how fast the metric falls, and what it falls to.

    Cells and arguments are those of `ablate_cells`.

    Returns:
        Ablation: values `step prompt`; at step i, cells 0 to i of `order` are ablated together.

    Raises:
        InputError: as `ablate_cells`, or a cell named twice.
    """
    alone, cells = _Alone.of(model, prompts), _check_cells(model, site, order)
    if len({*cells}) != len(cells):
        raise InputError(f"an order names each cell once: expected {len({*cells})} cells, got {len(cells)}")
    replacement = _Replacement(model, alone.clean, site, kind, mean, donors, seed)
    steps = torch.ones(len(cells), len(cells), dtype=torch.bool).tril()
    return _ablate_sets(model, alone, metrics, replacement, cells, steps, "step")


@torch.no_grad()
def mean_activation(
    model: Transformer, batches: TokenBatch | Iterable[TokenBatch], site: str = "z"
) -> Float[Tensor, "layer ..."]:
    """The mean of a site over all real positions of a corpus, one batch in memory at a time.

    Returns:
        Tensor: `layer head d_head` for `z`, `layer d_mlp` for `mlp.post`, `layer d_model` for a place in the stream.

    Raises:
        InputError: no such site, or no text.
    """
    names = _names(model, site)
    total, count = torch.zeros((), dtype=torch.float64), 0
    for batch in [batches] if isinstance(batches, TokenBatch) else batches:
        out = run(model, batch, capture=names)
        real = out.tokens.mask
        # in double precision: a long corpus must not lose its last batches to rounding
        total = torch.stack([out[name][real].double().sum(0) for name in names]) + total.to(model.device)
        count += int(real.sum())
    if not count:
        raise InputError("a mean needs at least one text: got no batches")
    return (total / count).to(model.last.embed.token.weight.dtype)


class _Alone(Pairs):
    """Prompts without a corrupted twin, for metrics that ask pairs where to read: any position may change."""

    def __post_init__(self) -> None:
        if self.clean.padded and not bool(self.clean.mask[:, 0].all()):
            raise InputError("prompts to ablate are padded on the right: expected a real token in every first column")

    @property
    def first_changed(self) -> Int[Tensor, " prompt"]:
        """An ablation changes every position."""
        return torch.zeros_like(self.last)

    @staticmethod
    def of(model: Transformer, prompts: Tokens | Pairs) -> "_Alone":
        """Prompts as a batch on the model's device; of pairs the clean ones."""
        if model.output is None:
            raise InputError("this model has no output layer, so it has no logits for a metric to read")
        if isinstance(prompts, Pairs):
            pairs = prompts.to(model.device)
            return _Alone(pairs.clean, pairs.clean, pairs.right, pairs.wrong)
        batch = as_batch(model, prompts)
        return _Alone(batch, batch)


@dataclass(frozen=True)
class _Replacement:
    """What is put in the place of a site, layer by layer."""

    model: Transformer
    batch: TokenBatch
    site: str
    kind: str
    mean: Tensor | None
    donors: Tokens | None
    seed: int

    def layers(self) -> list[Tensor]:
        """One tensor a layer that broadcasts to the site's `prompt position ...`."""
        makers: dict[str, Callable[[], list[Tensor]]] = {
            "zero": lambda: [torch.zeros((), device=self.model.device)] * self.model.config.n_layers,
            "mean": self._means,
            "resample": self._resampled,
        }
        if self.kind not in makers:
            raise InputError(f"no ablation {self.kind!r}: expected one of {', '.join(makers)}")
        for name, given in [("mean", self.mean), ("donors", self.donors)]:
            if given is not None and self.kind != {"mean": "mean", "donors": "resample"}[name]:
                raise InputError(f"{name}= is not used by kind={self.kind!r}: leave it out")
        return makers[self.kind]()

    def _means(self) -> list[Tensor]:
        means = mean_activation(self.model, self.batch, self.site) if self.mean is None else self.mean
        place = sites(self.model)[_names(self.model, self.site)[0]]
        expected = (self.model.config.n_layers, *place.sizes[1:])
        if means.shape != expected:
            raise InputError(f"the mean of {self.site} must have shape {expected}, got {tuple(means.shape)}")
        return list(means.to(self.model.device))

    def _resampled(self) -> list[Tensor]:
        given = self.donors is not None
        donors = as_batch(self.model, self.batch if self.donors is None else self.donors)
        if donors.padded and not bool(donors.mask[:, 0].all()):
            raise InputError("donors are padded on the right: expected a real token in the first column of each")
        chosen = _draw(self.batch.lengths, donors.lengths, self.seed, apart=not given)
        width = self.batch.ids.shape[1]  # no prompt is longer than its donor; columns beyond both hold padding
        names = _names(self.model, self.site)
        seen = run(self.model, donors, capture=names)
        return [_fit(seen[name][chosen], width) for name in names]


def _fit(value: Tensor, width: int) -> Tensor:
    """The first `width` positions, filled up with zeros where there are fewer."""
    missing = width - value.shape[1]
    if missing <= 0:
        return value[:, :width]
    return torch.cat([value, value.new_zeros(len(value), missing, *value.shape[2:])], 1)


def _draw(
    lengths: Int[Tensor, " prompt"], donors: Int[Tensor, " donor"], seed: int, *, apart: bool
) -> Int[Tensor, " prompt"]:
    """A donor at least as long for each prompt, all such donors alike; `apart`: never the prompt itself."""
    fits = (donors[None] >= lengths[:, None]).cpu()
    if apart:
        fits.fill_diagonal_(False)
    if not bool(fits.any(1).all()):
        prompt = int((~fits.any(1)).nonzero()[0])
        raise InputError(
            f"prompt {prompt} has {int(lengths[prompt])} tokens and no other prompt has as many to resample from: "
            "give longer ones as donors="
        )
    generator = torch.Generator().manual_seed(seed)
    return torch.multinomial(fits.float(), 1, generator=generator)[:, 0].to(lengths.device)


def _names(model: Transformer, site: str) -> list[str]:
    """The site's full name in each layer."""
    (stack,) = model.config.stacks
    names = [site_name(stack, layer, site) for layer in range(model.config.n_layers)]
    known = {*_IN_RUN, *_UNIT}
    if site not in known or names[0] not in sites(model):
        raise InputError(f"cannot ablate {site!r} in this model: expected one of {', '.join(sorted(known))}")
    return names


def _check_cells(model: Transformer, site: str, cells: Sequence[Cell]) -> list[Cell]:
    """The cells, negative indices counted from the end.

    Raises:
        InputError: a site that is not ablated by list, no cell, or one that the model lacks.
    """
    if site not in _UNIT:
        raise InputError(f"cannot ablate {site!r} by a list of cells: expected one of {', '.join(_UNIT)}")
    place, unit = sites(model).get(_names(model, site)[0]), _UNIT[site]
    assert place is not None
    names = ("layer",) if unit is None else ("layer", "neuron" if unit == "d_mlp" else unit)
    sizes = [model.config.n_layers, *([] if unit is None else [place.sizes[place.axes.index(unit)] or 0])]
    if not len(cells):
        raise InputError(f"expected at least one cell ({', '.join(names)}) to ablate, got none")
    found = []
    for cell in map(tuple, cells):
        if len(cell) != len(sizes) or not all(-size <= at < size for at, size in zip(cell, sizes, strict=True)):
            limits = ", ".join(f"{name} 0-{size - 1}" for name, size in zip(names, sizes, strict=True))
            raise InputError(f"no cell {cell} of {site}: expected ({limits})")
        found.append(tuple(at % size for at, size in zip(cell, sizes, strict=True)))
    return found


def _prepare(model: Transformer, alone: _Alone, metrics: Metric | Sequence[Metric]) -> list[Readout]:
    return [metric.prepare(model, alone) for metric in ([metrics] if isinstance(metrics, Metric) else metrics)]


@torch.no_grad()
def _ablate_sets(
    model: Transformer,
    alone: _Alone,
    metrics: Metric | Sequence[Metric],
    replacement: _Replacement,
    cells: list[Cell],
    sets: Bool[Tensor, "set cell"],
    axis: str,
) -> Ablation:
    """Each set of cells ablated together. Sets go through on a free axis: what lies below all of them is run once."""
    readouts, site = _prepare(model, alone, metrics), replacement.site
    plain = read_values(model, PlainRun.of(model, alone.clean), readouts)
    names, instead = _names(model, site), replacement.layers()
    values = {name: value.new_empty(len(sets), len(value)) for name, value in plain.items()}
    for prompts, some in _passes(sets, alone):
        batch = TokenBatch(*(x[prompts] for x in (alone.clean.ids, alone.clean.mask, alone.clean.positions)))
        edits: dict[str, Edit] = {}
        for layer, name in enumerate(names):
            mask = _mask(model, site, layer, cells, sets[some]).to(model.device)
            if bool(mask.any()):
                theirs = instead[layer]
                own = theirs[prompts] if replacement.kind == "resample" else theirs
                edits[name] = _putting(own, mask)
        final = model.last(batch, Tap(edit=edits).at(next(iter(model.config.stacks))))
        rows = torch.arange(len(prompts), device=model.device)[:, None]
        for readout in readouts:
            own = readout.take(prompts)
            values[readout.name][some, prompts] = own.of(model, final[..., rows, own.positions, :])
    return Ablation(site, replacement.kind, (axis,), values, plain)


def _putting(value: Tensor, mask: Bool[Tensor, "set 1 1 ..."]) -> Edit:
    """The edit that puts `value` where `mask` is true, on a new leading axis where there is none yet."""
    return lambda plain: torch.where(mask, value.to(plain.dtype), plain)


def _mask(
    model: Transformer, site: str, layer: int, cells: list[Cell], sets: Bool[Tensor, "set cell"]
) -> Bool[Tensor, "set 1 1 ..."]:
    """Which parts of a layer's site each set ablates: `set 1 1 head 1`, `set 1 1 neuron` or `set 1 1 1`."""
    here = [at for at, cell in enumerate(cells) if cell[0] == layer]
    if _UNIT[site] is None:
        return sets[:, here].any(1)[:, None, None, None]
    units = torch.tensor([cells[at][1] for at in here], dtype=torch.long)
    count = model.last.config.n_heads if site == "z" else model.last.config.d_mlp
    mask = torch.zeros(len(sets), count, dtype=torch.bool)
    for unit, at in zip(units.tolist(), here, strict=True):
        mask[:, unit] |= sets[:, at]
    return mask[:, None, None, :, None] if site == "z" else mask[:, None, None]


def _passes(sets: Tensor, alone: _Alone) -> Iterator[tuple[Int[Tensor, " prompt"], slice]]:
    """Prompts and sets that go through together."""
    n_prompts, width = alone.clean.ids.shape
    everyone = torch.arange(n_prompts, device=alone.clean.ids.device)
    for prompts in everyone.split(max(1, _ROWS // width)):
        at_once = max(1, _ROWS // (width * len(prompts)))
        for start in range(0, len(sets), at_once):
            yield prompts, slice(start, min(start + at_once, len(sets)))

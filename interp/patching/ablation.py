"""What does a model lose without a part of it? Heads, layers, neurons or positions replaced by what says nothing.

What stands in their place is a value typed by its meaning: what the part did for another prompt (as a rule), the mean
over a corpus, or zero. A part that a prompt needs lowers the metric; other parts may compensate, so the drop is a lower
bound.

`ablate` knocks out every cell of a grid, each alone; `ablate_cells` takes a list of cells, each alone, and
`ablate_in_order` one after the other, each with all before it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, TypedDict, Unpack
from warnings import warn

import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import InputError, InputWarning, one_of
from interp.indices import is_number
from interp.model import Model
from interp.patching.cell_tables import cell_label, cell_rows, dust, long_table
from interp.patching.memory import BUDGET
from interp.patching.metrics import Metric, Readout, prepared, with_answers
from interp.patching.named_positions import by_name, check_names, names_of
from interp.patching.pairs import Pairs
from interp.patching.patch_sites import Attending, PatchSite, StackName
from interp.patching.plain import PlainRun
from interp.patching.replacements import Alone, Kind, Replacement
from interp.patching.results import Drawing, chosen, drawn_cells, largest_said, refusal, warn_of
from interp.patching.resumption import Cell, measure_sets
from interp.patching.sweeps import blank_beyond, read_values, swept
from interp.running import Tokens
from interp.showing import DataFrame, Figure, Shown, drawn, signed, so_many
from interp.transformer import Transformer, with_parts

_ONE_ANSWER = (
    "the model gives all prompts the same answer, so they take little of it from each other: give pairs, whose "
    "corrupted prompts are drawn from, or prompts of another answer as donors="
)
_FROM_ZERO = ("logit_difference", "probability")  # metrics of which all can be lost: at 0 there is no more


@dataclass(frozen=True, repr=False)
class Ablation(Shown):
    """Each metric with a cell ablated, one value a cell and prompt, and `plain`: with nothing ablated.

    Of pairs with answers `plain` has the logit difference too.

    `axes` are those of the cells (`layer`, `head`, `position`), or `cell` for a list of them, `step` for an order;
    then `cells` are the list, and `units` the axes of each. Positions beyond a prompt's text are NaN; `positions` are
    the names that position axes count, where the prompts have some.
    """

    site: str
    kind: str
    axes: tuple[str, ...]
    values: dict[str, Float[Tensor, "*cells prompt"]]
    plain: dict[str, Float[Tensor, " prompt"]]
    stack: str = "decoder"
    attention: str = "self"
    positions: tuple[str, ...] = ()
    cells: tuple[Cell, ...] = ()
    units: tuple[str, ...] = ()

    def drop(self, metric: str | None = None) -> Float[Tensor, "*cells prompt"]:
        """How much lower the metric is without the cell, in the metric's unit (by default the first metric)."""
        name = chosen(self.values, metric, "this ablation has")
        return self.plain[name] - self.values[name]

    def table(self, *, seed: int = 0) -> DataFrame:
        """One row a cell and metric: `effect`, how much lower the metric is without it, with interval, p and q.

        Columns are `stack, attention, site, kind`, the axes (of a list the cell's own, of an order also `step`, whose
        `effect` is that of all cells up to it), `metric`, and those of `cell_tables.cell_rows`: `share` is the part of
        the plain metric that is lost, of logit differences and probabilities. Where nothing is a share
        (`results.refusal`), shares are missing, with an `InputWarning`.

        Args:
            seed: of the intervals' resampling.
        """
        rows = []
        for name, values in self.values.items():
            plain = self.plain[name]
            least = dust(plain, values.nan_to_num().flatten(0, -2).abs().amax(0))
            whole = plain if name in _FROM_ZERO and not warn_of(refusal(name, self.plain)) else None
            found = cell_rows(self.axes, self.drop(name), least, whole, seed=seed).assign(metric=name)
            for at, unit in enumerate(self.units):
                found[unit] = [self.cells[each][at] for each in found[self.axes[0]].tolist()]
            rows.append(found.drop(columns="cell", errors="ignore"))
        where = {"stack": self.stack, "attention": self.attention, "site": self.site, "kind": self.kind}
        kept = () if self.axes == ("cell",) else self.axes
        return long_table(where, rows, [*kept, *self.units], self.positions)

    def figure(self, metric: str | None = None, kind: Drawing = "map", **how: Any) -> Figure:
        """A map of what each cell does to the metric, or the largest effects; of an order the metric step by step.

        Args:
            metric: which to draw, by default the first.
            kind: `map` or `top`.
            how: of `analyses.figures.cell_map` (`entry_maps`, `top_cells`, `steps`): `title`, `width`, `font_size`,
                `ax`, ...

        Raises:
            InputError: there is no such metric or kind.
        """
        name = chosen(self.values, metric, "this ablation has")
        one_of("kind", kind, Drawing)
        table = self.table().assign(direction=f"ablated by {self.kind}")
        asks = f"What does the {name.replace('_', ' ')} owe to each cell of {self.site}?"
        if self.axes == ("step",):
            return drawn("steps", table, name, plain=float(self.plain[name].mean()), **how)
        return drawn_cells(table, name, "top" if self.axes == ("cell",) else kind, self.axes, asks=asks, **how)

    def facts(self) -> tuple[str, Mapping[str, str]]:
        """What was ablated, each metric with nothing ablated, and the largest effects either way."""
        facts: dict[str, str] = {}
        for name in self.values:
            facts[name] = f"{signed(float(self.plain[name].mean()))} with nothing ablated"
            facts[f"largest effects on {name} (with - without)"] = self._largest(name)
        sizes = next(iter(self.values.values())).shape
        cells = " x ".join(so_many(size, axis) for axis, size in zip(self.axes, sizes[:-1], strict=True))
        cross = "cross-attention " if self.attention == "cross" else ""
        title = f"Ablation of {self.stack} {cross}{self.site} by {self.kind}: {cells}"
        return f"{title}, over {so_many(sizes[-1], 'prompt')}", facts

    def _largest(self, metric: str) -> str:
        """The cells with the largest effects, by name."""
        if not self.units:
            return largest_said(self.axes, self.drop(metric), self.positions)
        means = self.drop(metric).mean(-1).tolist()
        order = sorted(range(len(means)), key=lambda at: -abs(means[at]))[:3]
        up_to = "up to " * (self.axes == ("step",))
        return ", ".join(f"{up_to}{cell_label(self.units, self.cells[at])} {signed(means[at])}" for at in order)


class Options(TypedDict, total=False):
    """What every ablation takes besides its cells.

    target: what the decoder reads where there is an encoder, which reads the prompts.
    stack, attention: as in `sweep`.
    mean: for `mean`, what `mean_activation` gave for this site; by default the mean over all tokens of the prompts.
    donors: for `resample`, prompts to draw from (sources and targets where there is an encoder); by default the
        corrupted prompts of pairs, a prompt's own among them; else the other prompts. Where all have the same answer
        these take nothing of it from each other, and an `InputWarning` says so.
    seed: of the draw.
    budget: bytes of activations that one pass may hold.
    """

    target: Tokens | None
    stack: StackName | None
    attention: Attending
    mean: Tensor | None
    donors: Tokens | tuple[Tokens, Tokens] | None
    seed: int
    budget: int


@torch.no_grad()
def ablate(
    model: Model,
    prompts: Tokens | Pairs,
    metrics: Metric | Sequence[Metric],
    site: str = "z",
    by: Sequence[str] = ("layer", "head"),
    kind: Kind = "resample",
    **options: Unpack[Options],
) -> Ablation:
    """Ablate every cell of `site`, each alone, exactly.

    Args:
        model: a transformer with an output layer.
        prompts: what is run, padded on the right; of `Pairs` the clean prompts, with their answers.
        metrics: what to read, one or several, with their answers (`logit_difference(" he", " she")`).
        site, by: as in `sweep`. Keys that a query does not see stay unseen where `scores` are ablated.
        kind: `resample`, another prompt's activation at the same position, one other prompt drawn for each (Chan 2022,
            "Causal scrubbing"); `mean`, over real positions of a corpus; `zero`, which no prompt may ever have there,
            so that what is lost is also the cost of a strange input. Of `scores` and `pattern`, whose keys are their
            own prompt's, `zero` alone.
        options: those of `Options`.

    Returns:
        Ablation: values `*by prompt`.

    Raises:
        InputError: no such site, axis, kind or option; a mean of the wrong shape; no other prompt to draw from.
    """
    model = with_parts(model, "an ablation")
    by, stack, attention = tuple(by), options.get("stack"), options.get("attention", "self")
    asked = _Asked.of(model, prompts, metrics, PatchSite.of(model, site, by, stack, attention), kind, options)
    check_names(asked.alone, asked.patch_site, by)
    if site == "z" or (asked.patch_site.in_engine and not asked.patch_site.units):  # the plain run has these
        runs = asked.plain, asked.replaced()
        how = asked.readouts, asked.values, site, by, asked.budget
        values = swept(model, asked.alone, runs, *how, stack=stack, attention=attention)
    else:
        shape = asked.patch_site.shape(asked.alone, by)
        found = asked.measure(by, [[cell] for cell in product(*map(range, shape))])
        values = {name: value.view(*shape, -1) for name, value in found.items()}
        blank_beyond(values, by, asked.alone, asked.patch_site)
    values = {name: by_name(value, by, asked.alone) for name, value in values.items()}
    return Ablation(site, kind, by, values, asked.values, *asked.where, names_of(asked.alone, by))


def ablate_cells(
    model: Model,
    prompts: Tokens | Pairs,
    metrics: Metric | Sequence[Metric],
    cells: Sequence[Cell],
    site: str = "z",
    kind: Kind = "resample",
    **options: Unpack[Options],
) -> Ablation:
    """Ablate each of some cells alone: `(layer, head)` of `z`, `(layer, neuron)` of `mlp.post`, `(layer,)` of streams.

    The other arguments are those of `ablate`.

    Returns:
        Ablation: values `cell prompt`, in the order given.

    Raises:
        InputError: as `ablate`, or a cell that the model lacks.
    """
    model = with_parts(model, "an ablation")
    patch_site = PatchSite.of(model, site, stack=options.get("stack"), attention=options.get("attention", "self"))
    cells = _checked(patch_site, cells)
    asked = _Asked.of(model, prompts, metrics, patch_site, kind, options)
    values = asked.measure(("layer", *patch_site.units), [[cell] for cell in cells])
    own = (*cells,), ("layer", *patch_site.units)
    return Ablation(site, kind, ("cell",), values, asked.values, *asked.where, (), *own)


def ablate_in_order(
    model: Model,
    prompts: Tokens | Pairs,
    metrics: Metric | Sequence[Metric],
    order: Sequence[Cell],
    site: str = "z",
    kind: Kind = "resample",
    **options: Unpack[Options],
) -> Ablation:
    """Ablate cells one after the other, each with all before it: how fast the metric falls, and what it falls to.

    Cells and arguments are those of `ablate_cells`.

    Returns:
        Ablation: values `step prompt`; at step i, cells 0 to i of `order` are ablated together.

    Raises:
        InputError: as `ablate_cells`, or a cell named twice.
    """
    model = with_parts(model, "an ablation")
    patch_site = PatchSite.of(model, site, stack=options.get("stack"), attention=options.get("attention", "self"))
    cells = _checked(patch_site, order)
    if len({*cells}) != len(cells):
        raise InputError(f"an order names each cell once: expected {len({*cells})} cells, got {len(cells)}")
    asked = _Asked.of(model, prompts, metrics, patch_site, kind, options)
    values = asked.measure(("layer", *patch_site.units), [cells[: step + 1] for step in range(len(cells))])
    own = (*cells,), ("layer", *patch_site.units)
    return Ablation(site, kind, ("step",), values, asked.values, *asked.where, (), *own)


def _checked(patch_site: PatchSite, cells: Sequence[Cell]) -> list[Cell]:
    """The cells, negative indices counted from the end.

    Raises:
        InputError: no cell, or one that the model lacks.
    """
    sizes = {axis: patch_site.size(axis) or 0 for axis in ("layer", *patch_site.units)}
    if not len(cells):
        raise InputError(f"expected at least one cell ({', '.join(sizes)}) to ablate, got none")
    found = [(*cell,) if isinstance(cell, Iterable) and not is_number(cell) else (cell,) for cell in cells]
    for cell in found:
        exist = [is_number(at) and -size <= at < size for at, size in zip(cell, sizes.values(), strict=False)]
        if len(cell) != len(sizes) or not all(exist):
            limits = ", ".join(f"{name} 0-{size - 1}" for name, size in sizes.items())
            raise InputError(f"no cell {cell} of {patch_site.site}: expected ({limits})")
    return [tuple(int(at) % size for at, size in zip(cell, sizes.values(), strict=True)) for cell in found]


@dataclass(frozen=True)
class _Asked:
    """What is ablated, checked: the prompts with their own run and metrics, and what comes instead in each layer."""

    model: Transformer
    patch_site: PatchSite
    alone: Alone
    readouts: list[Readout]
    plain: PlainRun
    values: dict[str, Float[Tensor, " prompt"]]
    instead: list[Tensor]
    budget: int

    @staticmethod
    @torch.no_grad()
    def of(
        model: Transformer,
        prompts: Tokens | Pairs,
        metrics: Metric | Sequence[Metric],
        patch_site: PatchSite,
        kind: Kind,
        options: Options,
    ) -> "_Asked":
        if unknown := options.keys() - Options.__annotations__.keys():
            raise InputError(f"no option {', '.join(unknown)} here: expected {', '.join(Options.__annotations__)}")
        alone = Alone.of(model, prompts, options.get("target"))
        readouts = prepared(model, alone, metrics)
        donors = options.get("donors")
        if donors is None and kind == "resample" and isinstance(prompts, Pairs) and prompts.reaches(patch_site.stack):
            first, second = prompts.to(model.device).inputs[1]
            donors = first if second is None else (first, second)
        drawn = options.get("mean"), donors, options.get("seed", 0)
        instead = Replacement(model, patch_site, alone, kind, *drawn).layers()
        plain = PlainRun.of(model, *alone.inputs[0])
        values = read_values(model, plain, with_answers(model, alone, readouts))
        if donors is None and kind == "resample":
            both = [(each.tokens, values[each.name] < 0) for each in readouts if each.tokens is not None]
            if any(len(answers.gather(1, wrong.long()[:, None]).unique()) == 1 for answers, wrong in both):
                warn(_ONE_ANSWER, InputWarning, stacklevel=4)
        return _Asked(model, patch_site, alone, readouts, plain, values, instead, options.get("budget", BUDGET))

    @property
    def where(self) -> tuple[str, str]:
        """The stack and the attention in which the site lies."""
        return self.patch_site.stack, self.patch_site.attention

    def replaced(self) -> PlainRun:
        """A run that has at the site what comes instead, to patch from."""
        own = self.plain.of_stack(self.patch_site.stack)
        kept = zip(self.instead, own[self.patch_site.local], strict=True)
        own = own.putting(self.patch_site.local, [theirs.to(ours.dtype).expand_as(ours) for theirs, ours in kept])
        return own if own.stack == self.plain.stack else replace(self.plain, source=own)

    def measure(self, by: Sequence[str], sets: Sequence[Sequence[Cell]]) -> dict[str, Float[Tensor, "set prompt"]]:
        """Each metric with each set of cells ablated together."""
        args = self.model, self.alone, self.plain, self.readouts, self.patch_site, by, sets
        found = measure_sets(*args, self.instead.__getitem__, self.budget)
        return dict(zip((readout.name for readout in self.readouts), found, strict=True))

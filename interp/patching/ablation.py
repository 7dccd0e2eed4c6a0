"""What does a model lose without a part of it? Heads, layers, neurons or positions replaced by what says nothing.

What stands in their place is a value typed by its meaning: what the part did for another prompt (as a rule), the mean
over a corpus, or zero. A part that a prompt needs lowers the metric; other parts may compensate, so the drop is a lower
bound.

`ablate` knocks out every cell of a grid, each alone; `ablate_cells` takes a list of cells, each alone, and
`ablate_in_order` one after the other, each with all before it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from typing import TypedDict, Unpack
from warnings import warn

import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import InputError, InputWarning
from interp.indices import is_number
from interp.model import Model
from interp.patching.memory import BUDGET
from interp.patching.metrics import Metric, prepared, with_answers
from interp.patching.named_positions import cells_of, check_names
from interp.patching.pairs import Pairs
from interp.patching.patch_sites import Attending, PatchSite, StackName
from interp.patching.plain import PlainRun
from interp.patching.replacements import Alone, Kind, replacements
from interp.patching.results import Cells
from interp.patching.resumption import Cell, measure_sets
from interp.patching.sweeps import read_values, swept
from interp.running import Tokens
from interp.transformer import with_parts

_ONE_ANSWER = (
    "the model gives all prompts the same answer, so they take little of it from each other: give pairs, whose "
    "corrupted prompts are drawn from, or prompts of another answer as donors="
)


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
) -> Cells:
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
        Cells: values `*by prompt`.

    Raises:
        InputError: no such site, axis, kind or option; a mean of the wrong shape; no other prompt to draw from.
    """
    by = tuple(by)
    setting = _Setting(model, prompts, metrics, site, by, kind, options)
    patch_site, clean = setting.patch_site, setting.clean
    check_names(setting.alone, patch_site, by)
    if site == "z" or (patch_site.in_engine(by) and not patch_site.units):  # the plain run has these
        runs = setting.plain, setting.replaced()
        values = swept(setting.model, setting.alone, runs, setting.readouts, clean, patch_site, by, setting.budget)
    else:
        shape = patch_site.shape(setting.alone, by)
        sets = setting.measure(by, [[cell] for cell in product(*map(range, shape))])
        values = {name: value.view(*shape, -1) for name, value in sets.items()}
    return cells_of(setting.model, setting.alone, patch_site, by, "noise", values, clean, {}, kind=kind)


def ablate_cells(
    model: Model,
    prompts: Tokens | Pairs,
    metrics: Metric | Sequence[Metric],
    cells: Sequence[Cell],
    site: str = "z",
    kind: Kind = "resample",
    **options: Unpack[Options],
) -> Cells:
    """Ablate each of some cells alone: `(layer, head)` of `z`, `(layer, neuron)` of `mlp.post`, `(layer,)` of streams.

    The other arguments are those of `ablate`.

    Returns:
        Cells: values `cell prompt`, in the order given.

    Raises:
        InputError: as `ablate`, or a cell that the model lacks.
    """
    return _listed(model, prompts, metrics, cells, site, kind, options, "cell")


def ablate_in_order(
    model: Model,
    prompts: Tokens | Pairs,
    metrics: Metric | Sequence[Metric],
    order: Sequence[Cell],
    site: str = "z",
    kind: Kind = "resample",
    **options: Unpack[Options],
) -> Cells:
    """Ablate cells one after the other, each with all before it: how fast the metric falls, and what it falls to.

    Cells and arguments are those of `ablate_cells`.

    Returns:
        Cells: values `step prompt`; at step i, cells 0 to i of `order` are ablated together.

    Raises:
        InputError: as `ablate_cells`, or a cell named twice.
    """
    return _listed(model, prompts, metrics, order, site, kind, options, "step")


def _listed(
    model: Model,
    prompts: Tokens | Pairs,
    metrics: Metric | Sequence[Metric],
    cells: Sequence[Cell],
    site: str,
    kind: Kind,
    options: Options,
    axis: str,
) -> Cells:
    """The metrics with each cell ablated (`cell`), or each with all before it (`step`)."""
    setting = _Setting(model, prompts, metrics, site, ("layer",), kind, options)
    patch_site, units = setting.patch_site, ("layer", *setting.patch_site.units)
    cells = _checked(patch_site, cells)
    if axis == "step" and len({*cells}) != len(cells):
        raise InputError(f"an order names each cell once: expected {len({*cells})} cells, got {len(cells)}")
    values = setting.measure(units, [cells[: at + 1] if axis == "step" else [cells[at]] for at in range(len(cells))])
    clean, stack, attention = setting.clean, patch_site.stack, patch_site.attention
    return Cells(
        site, "noise", (axis,), values, clean, stack=stack, attention=attention, kind=kind, cells=(*cells,), units=units
    )


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


class _Setting:
    """The prompts with their plain run and metrics, and what replaces the site in each layer (`instead`)."""

    @torch.no_grad()
    def __init__(
        self,
        model: Model,
        prompts: Tokens | Pairs,
        metrics: Metric | Sequence[Metric],
        site: str,
        by: tuple[str, ...],
        kind: Kind,
        options: Options,
    ):
        if unknown := options.keys() - Options.__annotations__.keys():
            raise InputError(f"no option {', '.join(unknown)} here: expected {', '.join(Options.__annotations__)}")
        self.model, self.budget = with_parts(model, "an ablation"), options.get("budget", BUDGET)
        where = options.get("stack"), options.get("attention", "self")
        self.patch_site = PatchSite.of(self.model, site, by, *where)
        self.alone = Alone.of(self.model, prompts, options.get("target"))
        self.readouts = prepared(self.model, self.alone, metrics)
        donors, pairs = options.get("donors"), prompts if isinstance(prompts, Pairs) else None
        if donors is None and kind == "resample" and pairs is not None and pairs.reaches(self.patch_site.stack):
            first, second = pairs.to(self.model.device).inputs[1]
            donors = first if second is None else (first, second)
        drawn = options.get("mean"), donors, options.get("seed", 0)
        self.instead = replacements(self.model, self.patch_site, self.alone, kind, *drawn)
        self.plain = PlainRun.of(self.model, *self.alone.inputs[0])
        self.clean = read_values(self.model, self.plain, with_answers(self.model, self.alone, self.readouts))
        if donors is None and kind == "resample":
            both = [(each.tokens, self.clean[each.name] < 0) for each in self.readouts if each.tokens is not None]
            if any(len(answers.gather(1, wrong.long()[:, None]).unique()) == 1 for answers, wrong in both):
                warn(_ONE_ANSWER, InputWarning, stacklevel=4)

    def replaced(self) -> PlainRun:
        """A run that has the replacements at the site, to patch from."""
        run = self.plain.of_stack(self.patch_site.stack)
        layers = zip(self.instead, run[self.patch_site.local], strict=True)
        run = run.putting(self.patch_site.local, [theirs.to(plain.dtype).expand_as(plain) for theirs, plain in layers])
        return run if run.stack == self.plain.stack else replace(self.plain, source=run)

    def measure(self, by: Sequence[str], sets: Sequence[Sequence[Cell]]) -> dict[str, Float[Tensor, "set prompt"]]:
        """Each metric with each set of cells ablated together."""
        args = self.model, self.alone, self.plain, self.readouts, self.patch_site, by, sets
        values = measure_sets(*args, self.instead.__getitem__, self.budget)
        return dict(zip((readout.name for readout in self.readouts), values, strict=True))

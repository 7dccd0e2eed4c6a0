"""The plain way to intervene: one whole forward pass per cell. It is slow and obvious, and tests the fast ways.

A sweep gives each cell its activation from the other prompt's run. A path takes two passes. The first patches only the
sender (what a head or a feed-forward writes) and records what the receivers read; the second gives them that.
The fast path patching uses `Receiver` and `check_paths` too.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, get_args

from jaxtyping import Int
from torch import Tensor

from interp.config import StackConfig
from interp.edits import SelectiveEdit, patch
from interp.errors import InputError, inside, one_of
from interp.indices import Index, is_number
from interp.model import Model
from interp.patching.changed_rows import AFTER_CROSS, INTO, moment_after
from interp.patching.metrics import Metric, Readout
from interp.patching.pairs import Inputs, Pairs
from interp.patching.patch_sites import SITE_AXES, Attending, StackName, last_stack, site_name
from interp.patching.plain import Moment
from interp.patching.preparation import Plan
from interp.patching.results import POSITIONAL, Cells, Direction
from interp.running import Run, bound, in_turn, run
from interp.tap import Edit
from interp.transformer import Transformer, with_parts

# what is recomputed between sender and receivers, and the sites that stay frozen
_ATTENTION = ("attn_out", "cross_attn_out")
Through = Literal["nothing", "mlps", "everything"]
THROUGH: dict[str, tuple[str, ...]] = {"nothing": (*_ATTENTION, "mlp_out"), "mlps": _ATTENTION, "everything": ()}
Sender = Literal["z", "mlp_out"]
Part = Literal["q", "k", "v", "mlp", "logits"]


@dataclass(frozen=True)
class Receiver:
    """Where a path ends: at every position, or at one token of each prompt.

    `position` is a number (negative: from the end), a position named by the pairs, or an array with one per prompt.
    `part` is `q`, `k` or `v` of one head (for `k` and `v` a key/value head) or of all a layer's heads, `mlp` (what a
    feed-forward reads), or `logits` (the stream that the output layer reads through the last norm).
    """

    part: Part
    layer: int | None = None
    head: int | None = None
    position: Index | str | None = None

    def __str__(self) -> str:
        name = ".".join(str(part) for part in (self.layer, self.head, self.part) if part is not None)
        return name if self.position is None else f"{name}@{self.position}"

    def columns(self, pairs: Pairs, stack: str) -> Int[Tensor, " prompt"] | None:
        """The position in each prompt, in the text that `stack` reads; None: every position."""
        if self.position is None or isinstance(self.position, str):
            return None if self.position is None else pairs.positions[self.position]
        columns = pairs.read_by(stack).columns(self.position)
        if columns.shape[1] > 1:
            raise InputError(f"expected one position per prompt, got {self.position!r}")
        return columns[:, 0]

    def n_heads(self, config: StackConfig) -> int:
        """How many heads have this part; 1 for feed-forwards and the output layer."""
        return {"q": config.n_heads, "k": config.kv_heads, "v": config.kv_heads}.get(self.part, 1)

    def moment(self, config: StackConfig) -> Moment:
        """When the receiver reads; in parallel blocks feed-forwards read what attention reads."""
        if self.layer is None:
            return config.n_layers, INTO
        return self.layer, AFTER_CROSS if self.part == "mlp" and not config.parallel else INTO


def moment_written(config: StackConfig, sender: str, layer: int, attention: str = "self") -> Moment:
    """The first moment at which the stream contains the sender's write."""
    return moment_after(config, layer, attention) if sender == "z" else (layer + 1, INTO)


def check_paths(plan: Plan, receivers: Sequence[Receiver], through: Through) -> str:
    """Refuse paths that do not exist; return the name of the others, `z -> 9.6.q, 9.9.q`."""
    site, model = plan.patch_site, plan.transformer
    sender, config = one_of("sender", site.site, Sender), model.config.stacks[site.stack]
    one_of("through", through, Through)
    if not receivers:
        raise InputError('expected at least one receiver, such as Receiver("q", layer=9, head=6); got none')
    for receiver in receivers:
        _check_receiver(model, site.stack, plan.pairs, receiver)
    names = ", ".join(map(str, receivers))
    if max(receiver.moment(config) for receiver in receivers) < moment_written(config, sender, 0, site.attention):
        raise InputError(f"no {sender} is written before {names} read: expected a receiver in a later layer")
    return f"{sender} -> {names}"


def _check_receiver(model: Transformer, stack: str, pairs: Pairs, receiver: Receiver) -> None:
    config, part = model.config.stacks[stack], receiver.part
    lacking = {"mlp": model.stack(stack).blocks[0].mlp is None, "logits": stack != last_stack(model)}
    parts = [part for part in get_args(Part) if not lacking.get(part)]
    if part not in parts:
        owner = "this model" if len(model.config.stacks) == 1 else f"the {stack}"
        raise InputError(f"no receiver {part!r} in {owner}: expected one of {', '.join(parts)}")
    if part == "logits":
        if receiver.layer is not None:
            raise InputError(f"the logits are read after all layers: expected no layer, got layer {receiver.layer}")
    elif not is_number(receiver.layer) or not 0 <= receiver.layer < config.n_layers:
        raise InputError(f"no layer {receiver.layer} to receive {part}: expected 0-{config.n_layers - 1}")
    if config.qk_norm == "all" and part in {"q", "k"}:
        parts = "queries" if part == "q" else "keys"
        alone = "so none reads by itself: expected a receiver v, mlp or logits"
        raise InputError(f"this model normalises {parts} over all heads at once, {alone}")
    heads = receiver.n_heads(config) if part in {"q", "k", "v"} else 0
    if receiver.head is not None and not (is_number(receiver.head) and 0 <= receiver.head < heads):
        expected = f"expected 0-{heads - 1}, or None for all" if heads else "it is not read by heads, leave head out"
        raise InputError(f"no head {receiver.head} of receiver {part}: {expected}")
    if isinstance(receiver.position, str):
        if receiver.position not in pairs.positions:
            named = ", ".join(pairs.positions) or "no position"
            raise InputError(f"no position {receiver.position!r} for receiver {receiver}: the pairs name {named}")
        if stack != (differing := pairs.differing(stack)):
            raise InputError(f"{receiver.position} is a position of what the {differing} reads: expected a number")
    with inside(f"receiver {receiver}"):
        receiver.columns(pairs, stack)


Edits = dict[str, Edit | SelectiveEdit]  # by site
Entry = Mapping[str, int | Tensor]  # index on each axis of a site; for positions, one per prompt


def sweep_by_forward(
    model: Model,
    pairs: Pairs,
    metrics: Metric | Sequence[Metric],
    site: str = "z",
    by: Sequence[str] = ("layer", "head"),
    direction: Direction = "denoise",
    *,
    stack: StackName | None = None,
    attention: Attending = "self",
) -> Cells:
    """`sweep` with one plain forward pass per cell over all prompts; arguments and result are the same."""
    plan = Plan.from_arguments(model, pairs, metrics, site, by, direction, stack, attention)
    source, names = run_inputs(model, plan.inputs[1], capture=plan.patch_site.names), plan.patch_site.names
    return cells_by_forward(plan, lambda layer, entry: {names[layer]: patch(source[names[layer]], **entry)})


def path_patch_by_forward(
    model: Model,
    pairs: Pairs,
    metrics: Metric | Sequence[Metric],
    receivers: Sequence[Receiver],
    sender: Sender = "z",
    by: Sequence[str] = ("layer", "head"),
    through: Through = "nothing",
    direction: Direction = "denoise",
    *,
    stack: StackName | None = None,
    attention: Attending = "self",
) -> Cells:
    """`path_patch` with two plain forward passes per cell over all prompts; arguments and result are the same."""
    model = with_parts(model, "path patching")
    plan = Plan.from_arguments(model, pairs, metrics, sender, by, direction, stack, attention)
    paths, site, inputs = check_paths(plan, receivers, through), plan.patch_site, plan.inputs[0]
    base, source = (run_inputs(model, each, capture="*") for each in plan.inputs)
    capture = {_site_read(model, site.stack, receiver) for receiver in receivers}

    def edits(layer: int, entry: Entry) -> Edits:
        name, writes = site.name(layer), {"self": "attn_out", "cross": "cross_attn_out"}[site.attention]
        free = site_name(site.stack, layer, writes if sender == "z" else sender)  # what the sender may write to
        frozen = {site_name(site.stack, at, kind) for at in range(site.n_layers) for kind in THROUGH[through]}
        first_edits: Edits = {name: patch(base[name]) for name in frozen & {*base.activations} if name != free}
        first = run_inputs(model, inputs, edit=first_edits | {name: patch(source[name], **entry)}, capture=capture)
        return _received(model, site.stack, first, receivers, pairs)

    return cells_by_forward(plan, edits, site=paths)


def cells_by_forward(plan: Plan, edits: Callable[[int, Entry], Edits], **fields: Any) -> Cells:
    """The metrics with each cell's edits; `edits` makes them from a layer and an entry on the site's axes."""
    pairs, site = plan.pairs, plan.patch_site
    clean, corrupt = unpatched_by_forward(plan.model, pairs, plan.plain)
    # if a prompt is too short any position will do: `Plan.cells` drops the value
    columns = {axis: plan.columns(axis) for axis in plan.by if axis in POSITIONAL}
    columns = {axis: at.minimum(pairs.read_by(site.counted(axis)).lengths - 1) for axis, at in columns.items()}
    sizes = [len(columns[axis]) if axis in columns else site.size(axis) or 0 for axis in plan.by]
    values = {each.name: clean[each.name].new_empty(*sizes, len(pairs)) for each in plan.readouts}
    for cell in product(*map(range, sizes)):
        indices = zip(plan.by[1:], cell[1:], strict=True)
        entry = {SITE_AXES.get(axis, axis): columns[axis][at] if axis in columns else at for axis, at in indices}
        logits = run_inputs(plan.model, plan.inputs[0], edit=edits(cell[0], entry)).logits
        for readout in plan.readouts:
            values[readout.name][cell] = readout.from_logits(logits)
    ends = (clean, corrupt) if plan.direction == "noise" else (corrupt, clean)
    return plan.cells(values, *ends, **fields)


def unpatched_by_forward(
    model: Model, pairs: Pairs, readouts: Sequence[Readout]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The metrics of the unpatched clean and corrupted prompts, by name, one number per prompt."""
    runs = [run_inputs(model, inputs).logits for inputs in pairs.inputs]
    clean, corrupt = ({each.name: each.from_logits(logits).cpu() for each in readouts} for logits in runs)
    return clean, corrupt


def run_inputs(model: Model, inputs: Inputs, **options: Any) -> Run:
    """Run a model on its one or two texts."""
    return run(model, inputs[0], target=inputs[1], **options)


def _received(model: Transformer, stack: str, first: Run, receivers: Sequence[Receiver], pairs: Pairs) -> Edits:
    """Edits that make all receivers read what they read in the first pass."""
    edits: dict[str, Edit] = {}
    for receiver in receivers:
        value = first[site := _site_read(model, stack, receiver)]
        if receiver.part == "mlp":  # only the feed-forward reads the recorded stream, so we patch its output
            assert receiver.layer is not None
            value = model.stack(stack).blocks[receiver.layer].feed_forward.out(value)
            site = site_name(stack, receiver.layer, "mlp_out")
        entry: dict[str, Any] = {"head": receiver.head, "position": receiver.columns(pairs, stack)}
        edit = patch(value, **{axis: index for axis, index in entry.items() if index is not None})
        edits[site] = in_turn(edits.get(site), bound(model, {site: edit}, first.tokens, first.target)[site])
    return {**edits}


def _site_read(model: Transformer, stack: str, receiver: Receiver) -> str:
    config = model.config.stacks[stack]
    if receiver.layer is None:
        return f"{stack}.resid_final"
    stream = "resid_pre" if config.parallel else "resid_cross" if config.cross_attention else "resid_mid"
    return site_name(stack, receiver.layer, stream if receiver.part == "mlp" else receiver.part)

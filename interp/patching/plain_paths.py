"""Path patching the plain way: two whole forward passes a cell. What a path is, and what the fast way is held against.

A path leads from one sender (what a head or a feed-forward writes) to receivers (what heads, a feed-forward or the
output layer read). The first pass lets the sender alone be as in the other prompt and records what the receivers get
from it; the second gives them that, and nothing else.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal, get_args

import torch
from jaxtyping import Int
from torch import Tensor

from interp.config import StackConfig
from interp.edits import SelectiveEdit, patch
from interp.errors import InputError, inside, one_of
from interp.indices import Index, is_number
from interp.model import Model
from interp.patching.changed_rows import AFTER_CROSS, INTO, after
from interp.patching.metrics import Metric, prepared, with_answers
from interp.patching.named_positions import POSITIONAL, check_names, columns_named, labels_of, names_of
from interp.patching.pairs import Pairs
from interp.patching.patch_sites import Attending, PatchSite, StackName, last_stack, site_name
from interp.patching.plain_sweep import patched, run_inputs, within
from interp.patching.results import Direction, Sweep, checked_direction
from interp.running import Run
from interp.tap import Edit
from interp.transformer import Transformer, with_parts

# what is recomputed between sender and receivers, and the sites that are therefore kept as they were
_ATTENTION = ("attn_out", "cross_attn_out")
Through = Literal["nothing", "mlps", "everything"]
THROUGH: dict[str, tuple[str, ...]] = {"nothing": (*_ATTENTION, "mlp_out"), "mlps": _ATTENTION, "everything": ()}
Sender = Literal["z", "mlp_out"]
Part = Literal["q", "k", "v", "mlp", "logits"]
Moment = tuple[int, int]  # a layer, and where in it: before it (`INTO`), or after its attentions


@dataclass(frozen=True)
class Receiver:
    """What a path ends at, everywhere or at one position of each prompt's own tokens.

    `position` is a number (negative: from its end), a name that the pairs have, or an array with one a prompt.
    `part` is `q`, `k` or `v` of one head (for `k` and `v` a key/value head) or of all heads of a layer, `mlp`: what the
    feed-forward of a layer reads, or `logits`: the stream that the output layer reads through the last norm.
    """

    part: Part
    layer: int | None = None
    head: int | None = None
    position: Index | str | None = None

    def __str__(self) -> str:
        place = ".".join(str(each) for each in (self.layer, self.head, self.part) if each is not None)
        return place if self.position is None else f"{place}@{self.position}"

    def columns(self, pairs: Pairs, stack: str) -> Int[Tensor, " prompt"] | None:
        """Its position in each prompt, of what `stack` reads; None where it is everywhere."""
        if self.position is None or isinstance(self.position, str):
            return None if self.position is None else pairs.positions[self.position]
        found = pairs.read_by(stack).columns(self.position)
        if found.shape[1] > 1:
            raise InputError(f"expected one position of each prompt, got {self.position!r}")
        return found[:, 0]

    def moment(self, config: StackConfig) -> Moment:
        """When it reads; in parallel blocks feed-forwards read what attention reads."""
        if self.layer is None:
            return config.n_layers, INTO
        return self.layer, AFTER_CROSS if self.part == "mlp" and not config.parallel else INTO


def written(config: StackConfig, sender: str, layer: int, attention: str = "self") -> Moment:
    """The first moment at which the stream has what a sender wrote."""
    return after(config, layer, attention) if sender == "z" else (layer + 1, INTO)


def check_paths(
    model: Transformer,
    pairs: Pairs,
    receivers: Sequence[Receiver],
    sender: Sender,
    by: tuple[str, ...],
    through: Through,
    stack: str | None,
    attention: str,
) -> PatchSite:
    """The senders, if these paths exist.

    Raises:
        InputError: what does not, and what there is instead.
    """
    one_of("sender", sender, Sender)
    one_of("through", through, Through)
    patch_site = PatchSite.of(model, sender, by, stack, attention)
    check_names(pairs, patch_site, by)
    if not receivers:
        raise InputError('expected at least one receiver, such as Receiver("q", layer=9, head=6); got none')
    for receiver in receivers:
        _check_receiver(model, patch_site.stack, pairs, receiver)
    config = model.config.stacks[patch_site.stack]
    if max(receiver.moment(config) for receiver in receivers) < written(config, sender, 0, attention):
        raise InputError(
            f"no {sender} is written before {', '.join(map(str, receivers))} read: expected a receiver in a later layer"
        )
    return patch_site


def _check_receiver(model: Transformer, stack: str, pairs: Pairs, receiver: Receiver) -> None:
    config, part = model.config.stacks[stack], receiver.part
    lacking = {"mlp": model.stack(stack).blocks[0].mlp is None, "logits": stack != last_stack(model)}
    parts = [part for part in get_args(Part) if not lacking.get(part)]
    if part not in parts:
        where = "this model" if len(model.config.stacks) == 1 else f"the {stack}"
        raise InputError(f"no receiver {part!r} in {where}: expected one of {', '.join(parts)}")
    if part == "logits":
        if receiver.layer is not None:
            raise InputError(f"the logits are read after all layers: expected no layer, got layer {receiver.layer}")
    elif not is_number(receiver.layer) or not 0 <= receiver.layer < config.n_layers:
        raise InputError(f"no layer {receiver.layer} to receive {part}: expected 0-{config.n_layers - 1}")
    if config.qk_norm == "all" and part in {"q", "k"}:
        raise InputError(
            f"this model normalises {'queries' if part == 'q' else 'keys'} over all heads at once, so that none reads "
            "by itself: expected a receiver v, mlp or logits"
        )
    heads = {"q": config.n_heads, "k": config.kv_heads, "v": config.kv_heads}.get(part, 0)
    if receiver.head is not None and not (is_number(receiver.head) and 0 <= receiver.head < heads):
        expected = f"expected 0-{heads - 1}, or None for all" if heads else "it is not read by heads, leave head out"
        raise InputError(f"no head {receiver.head} of receiver {part}: {expected}")
    at = receiver.position
    if isinstance(at, str) and at not in pairs.positions:
        named = ", ".join(pairs.positions) or "no position"
        raise InputError(f"no position {at!r} for receiver {receiver}: the pairs name {named}")
    if isinstance(at, str) and stack != pairs.differing(stack):
        raise InputError(f"{at} is a position of what the {pairs.differing(stack)} reads: expected a number")
    with inside(f"receiver {receiver}"):
        receiver.columns(pairs, stack)


def path_name(sender: str, receivers: Sequence[Receiver]) -> str:
    """The paths as a person reads them: `z -> 9.6.q, 9.9.q`."""
    return f"{sender} -> {', '.join(map(str, receivers))}"


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
) -> Sweep:
    """Patch the paths from every sender in turn, each with two plain forward passes over all prompts.

    Arguments and result are those of `interp.patching.path_patch`.
    """
    model = with_parts(model, "path patching")
    by, direction = tuple(by), checked_direction(direction)
    patch_site = check_paths(model, pairs, receivers, sender, by, through, stack, attention)
    readouts = prepared(model, pairs, metrics)
    inputs, theirs = pairs.inputs[::-1] if direction == "denoise" else pairs.inputs
    base, other = run_inputs(model, inputs, capture="*"), run_inputs(model, theirs, capture="*")
    read = {_site_read(model, patch_site.stack, receiver) for receiver in receivers}
    sizes, names = patch_site.shape(pairs, by), names_of(pairs, by)
    sizes = [len(names) if names and axis in POSITIONAL else size for axis, size in zip(by, sizes, strict=True)]
    values = {r.name: torch.full((*sizes, len(pairs)), torch.nan, dtype=base.logits.dtype) for r in readouts}
    for layer, *rest in product(*map(range, sizes)):
        where = dict(zip(by[1:], rest, strict=True))
        site = patch_site.name(layer)
        sent: dict[str, Edit | SelectiveEdit] = {site: patched(other[site], model.sites[site], where)}
        if names:
            each = {axis: columns_named(pairs)[at] if axis in POSITIONAL else at for axis, at in where.items()}
            sent = {site: patch(other[site], **each)}
        first = run_inputs(model, inputs, edit=_frozen(base, patch_site, layer, through) | sent, capture=read)
        second = run_inputs(model, inputs, edit=_received(model, patch_site.stack, first, receivers, pairs))
        real = within(pairs, patch_site, {} if names else where)
        for readout in readouts:
            value = readout.of_logits(second.logits).cpu()
            values[readout.name][(layer, *rest)] = value.masked_fill(~real, torch.nan)
    answered = with_answers(model, pairs, readouts)
    plain = [{r.name: r.of_logits(each.logits).cpu() for r in answered} for each in (base, other)]
    corrupt, clean = plain if direction == "denoise" else plain[::-1]
    where = patch_site.stack, patch_site.attention, names, labels_of(model, pairs, patch_site, by)
    return Sweep(path_name(sender, receivers), direction, by, values, clean, corrupt, *where)


def _frozen(base: Run, patch_site: PatchSite, layer: int, through: Through) -> dict[str, Edit | SelectiveEdit]:
    """Everything that the first pass keeps as the base run has it; the sender's own attention is not."""
    own = site_name(
        patch_site.stack,
        layer,
        {"self": "attn_out", "cross": "cross_attn_out"}[patch_site.attention]
        if patch_site.site == "z"
        else patch_site.site,
    )
    sites = [
        site_name(patch_site.stack, each, kind) for each in range(patch_site.n_layers) for kind in THROUGH[through]
    ]
    return {site: patch(base[site]) for site in sites if site != own and site in base.activations}


def _received(
    model: Transformer, stack: str, first: Run, receivers: Sequence[Receiver], pairs: Pairs
) -> dict[str, Edit | SelectiveEdit]:
    """Edits that give all receivers what they got in the first pass."""
    places: dict[str, list[tuple[Receiver, Tensor]]] = defaultdict(list)
    for receiver in receivers:
        site = _site_read(model, stack, receiver)
        value = first[site]
        if receiver.part == "mlp":  # the feed-forward alone reads what was recorded, so what it writes says it all
            assert receiver.layer is not None
            value = model.stack(stack).blocks[receiver.layer].feed_forward.out(value)
            site = site_name(stack, receiver.layer, "mlp_out")
        places[site].append((receiver, value))
    return {site: _putting(values, pairs, stack) for site, values in places.items()}


def _site_read(model: Transformer, stack: str, receiver: Receiver) -> str:
    """Where to see what a receiver reads."""
    config = model.config.stacks[stack]
    if receiver.layer is None:
        return f"{stack}.resid_final"
    stream = "resid_pre" if config.parallel else "resid_cross" if config.cross_attention else "resid_mid"
    return site_name(stack, receiver.layer, stream if receiver.part == "mlp" else receiver.part)


def _putting(values: list[tuple[Receiver, Tensor]], pairs: Pairs, stack: str) -> Edit:
    def edit(plain: Tensor) -> Tensor:
        changed = plain.clone()
        for receiver, value in values:
            head = slice(None) if receiver.head is None else receiver.head
            columns = receiver.columns(pairs, stack)
            for prompt, length in enumerate(pairs.read_by(stack).lengths.tolist()):
                at = slice(length) if columns is None else int(columns[prompt])
                changed[prompt, at, head] = value[prompt, at, head]
        return changed

    return edit

"""What is a path? From one sender, what a head or a feed-forward writes, to receivers, what others read."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from jaxtyping import Int
from torch import Tensor

from interp.config import StackConfig
from interp.errors import InputError, inside, one_of
from interp.indices import Index, is_number
from interp.patching.changed_rows import AFTER_CROSS, INTO, after
from interp.patching.pairs import Pairs
from interp.patching.patch_sites import last_stack
from interp.patching.preparation import Plan
from interp.transformer import Transformer

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


def n_heads(config: StackConfig, part: str) -> int:
    """How many heads read for themselves; feed-forwards and the output layer read as one."""
    return {"q": config.n_heads, "k": config.kv_heads, "v": config.kv_heads}.get(part, 1)


def written(config: StackConfig, sender: str, layer: int, attention: str = "self") -> Moment:
    """The first moment at which the stream has what a sender wrote."""
    return after(config, layer, attention) if sender == "z" else (layer + 1, INTO)


def check_paths(plan: Plan, receivers: Sequence[Receiver], through: Through) -> None:
    """Refuse paths that do not exist: from the plan's site to the receivers."""
    sender, model = one_of("sender", plan.patch_site.site, Sender), plan.transformer
    one_of("through", through, Through)
    if not receivers:
        raise InputError('expected at least one receiver, such as Receiver("q", layer=9, head=6); got none')
    for receiver in receivers:
        _check_receiver(model, plan.patch_site.stack, plan.pairs, receiver)
    config = model.config.stacks[plan.patch_site.stack]
    if max(receiver.moment(config) for receiver in receivers) < written(config, sender, 0, plan.patch_site.attention):
        raise InputError(
            f"no {sender} is written before {', '.join(map(str, receivers))} read: expected a receiver in a later layer"
        )


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
    heads = n_heads(config, part) if part in {"q", "k", "v"} else 0
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


def path_name(sender: str, receivers: Sequence[Receiver]) -> str:
    """The paths as a person reads them: `z -> 9.6.q, 9.9.q`."""
    return f"{sender} -> {', '.join(map(str, receivers))}"

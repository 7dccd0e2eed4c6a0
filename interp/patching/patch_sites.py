"""What can be patched or ablated: one site in every layer of a stack, its axes, and the text that an axis counts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

from interp.errors import InputError
from interp.model import Model

Attending = Literal["self", "cross"]
StackName = Literal["encoder", "decoder"]
_HEADS = ("q", "k", "v", "z", "scores", "pattern")
IN_ATTENTION = (*_HEADS, "normalized", "rot_q", "rot_k")
_IN_CROSS = ("resid_cross", "cross_attn_out")  # stream sites around cross-attention
OUTSIDE = ("embed", "resid_final", "logits")  # outside the layers: they count as one layer
OF_ROWS = ("scores", "pattern")  # a number per query and key
# the engine computes what patching these does to the stream; other cells resume the run with an edit
_ENGINE = ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out", "mlp.post", *_IN_CROSS, *_HEADS)
SITE_AXES = {"neuron": "d_mlp"}  # an axis of cells, and its name in activations
_COUNTED = ("head", "position", "query", "key", "neuron", "expert")  # axes that may tell cells apart


def site_name(stack: str, layer: int, site: str, attention: Attending = "self") -> str:
    """The full name of a patchable site (`z`, `resid_pre`, `mlp.post`) in one layer, or outside the layers."""
    if site in OUTSIDE:
        return site if site == "logits" else f"{stack}.{site}"
    prefix = {"self": "attn.", "cross": "cross_attn."}[attention] if site in IN_ATTENTION else ""
    return f"{stack}.{layer}.{prefix}{site}"


@dataclass(frozen=True)
class PatchSite:
    """One site in all layers of a stack; `attention` is `cross` for sites in or around cross-attention.

    `axes` and `sizes` describe its activations after `prompt`; a size is None if it depends on the text.
    """

    stack: StackName
    attention: Attending
    site: str
    axes: tuple[str, ...]
    sizes: tuple[int | None, ...]
    n_layers: int
    causal: bool
    coupled: bool  # queries and keys are normalised over all heads at once

    @staticmethod
    def from_name(
        model: Model, site: str, by: Sequence[str] = ("layer",), stack: str | None = None, attention: str = "self"
    ) -> "PatchSite":
        """The named site in `stack` (by default the one that the output layer reads) and the given attention."""
        stacks = model.config.stacks
        stack = stack or last_stack(model)
        if stack not in stacks:
            raise InputError(f"no stack {stack!r} in this model: expected {' or '.join(stacks)}")
        config = stacks[stack]
        kinds = ("self", "cross") if config.cross_attention else ("self",)
        kind: Attending = "cross" if attention == "cross" or site in _IN_CROSS else "self"
        if attention not in kinds:
            raise InputError(f"no attention {attention!r} in this model's {stack}: expected {' or '.join(kinds)}")
        patchable = _patchable(model, stack, attention)
        if site not in patchable:
            owner = "cross-attention" if attention == "cross" else "this model" if len(stacks) == 1 else f"the {stack}"
            raise InputError(f"no patchable site {site!r} in {owner}: expected one of {', '.join(patchable)}")
        activations = model.sites[site_name(stack, 0, site, kind)]
        names = {name: axis for axis, name in SITE_AXES.items()}
        axes = tuple(names.get(axis, axis) for axis in activations.axes)
        parts = 1 if site in OUTSIDE else config.n_layers, config.causal, config.qk_norm == "all"
        patch_site = PatchSite(cast(StackName, stack), kind, site, axes, activations.sizes, *parts)
        if tuple(by[:1]) != ("layer",) or len({*by}) != len(by) or not {*by[1:]} <= {*patch_site.counting}:
            axes = ", ".join(patch_site.counting)
            raise InputError(f"{site} can be swept by layer first, then any of {axes}; got {', '.join(by)}")
        return patch_site

    @property
    def counting(self) -> list[str]:
        """The axes, after `layer`, that cells may have."""
        return [axis for axis in self.axes if axis in _COUNTED]

    @property
    def units(self) -> list[str]:
        """The axes in `counting` whose size no text decides: heads, neurons, experts."""
        return [axis for axis in self.counting if self.size(axis) is not None]

    @property
    def local(self) -> str:
        """The site's name inside a block."""
        return self.name(0).removeprefix(f"{self.stack}.0.")

    def name(self, layer: int) -> str:
        """The site's full name in one layer."""
        return site_name(self.stack, layer, self.site, self.attention)

    @property
    def names(self) -> list[str]:
        """The site's full name in each layer."""
        return [self.name(layer) for layer in range(self.n_layers)]

    def in_engine(self, by: Sequence[str]) -> bool:
        """Whether the engine handles cells on these axes, so that they need not resume with an edit."""
        return self.site in _ENGINE and not (self.coupled and self.site in {"q", "k"} and "head" in by)

    @property
    def of_keys(self) -> bool:
        """Whether its positions are key positions."""
        return self.site in {"k", "v", "rot_k"}

    def counted(self, axis: str) -> str:
        """The stack whose text an axis counts; cross-attention's keys are positions of the encoder."""
        keys = axis == "key" or (axis == "position" and self.of_keys)
        return "encoder" if self.attention == "cross" and keys else self.stack

    def size(self, axis: str) -> int | None:
        """How many entries an axis has; None if it depends on the text."""
        return self.n_layers if axis == "layer" else self.sizes[self.axes.index(axis)]


def _patchable(model: Model, stack: str, attention: str) -> list[str]:
    """The patchable sites of a stack: in and around its cross-attention, or all others."""
    sites, config = model.sites, model.config.stacks[stack]
    names = [name.removeprefix(f"{stack}.0.") for name in sites if name.startswith(f"{stack}.0.")]
    names = [name for name in names if all(f"{stack}.{layer}.{name}" in sites for layer in range(config.n_layers))]
    inside = [name for name in names if name.startswith("cross_attn.")]
    if attention == "cross":
        return [*_IN_CROSS, *(name.removeprefix("cross_attn.") for name in inside)]
    outside = [site for site in OUTSIDE if site_name(stack, 0, site) in sites]
    outside = [site for site in outside if site != "logits" or stack == last_stack(model)]
    return [*(name.removeprefix("attn.") for name in names if name not in inside), *outside]


def last_stack(model: Model) -> str:
    """The name of the stack that the output layer reads."""
    return next(reversed(model.config.stacks))


def only_stack(model: Model, call: str) -> str:
    """The name of a model's only stack; an InputError if it has two."""
    if len(model.config.stacks) > 1:
        raise InputError(f"{call} is for models of one stack, and this one has an encoder and a decoder: use `sweep`")
    return next(iter(model.config.stacks))

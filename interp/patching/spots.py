"""What can be patched: one site in every layer of one stack, and which text its axes count."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from interp.errors import InputError
from interp.places import sites
from interp.transformer import Stack, Transformer

Attending = Literal["self", "cross"]
IN_ATTENTION = ("q", "k", "v", "z", "scores", "pattern")
IN_CROSS = ("resid_cross", "cross_attn_out")  # of the stream, around cross-attention
PATCHABLE = ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out", *IN_CROSS, *IN_ATTENTION)


def site_name(stack: str, layer: int, site: str, attention: Attending = "self") -> str:
    """The full name of a patchable site (`z`, `resid_pre`) in one layer."""
    return f"{stack}.{layer}.{_local(site, attention)}"


def _local(site: str, attention: Attending) -> str:
    return f"{'attn' if attention == 'self' else 'cross_attn'}.{site}" if site in IN_ATTENTION else site


@dataclass(frozen=True)
class Spot:
    """One site in all layers of a stack; `attention` is `cross` for what lies in or around cross-attention."""

    stack: str
    attention: Attending
    site: str
    axes: tuple[str, ...]
    sizes: tuple[int | None, ...]
    n_layers: int
    causal: bool

    @staticmethod
    def of(
        model: Transformer,
        site: str,
        by: Sequence[str] = ("layer",),
        stack: str | None = None,
        attention: str = "self",
    ) -> "Spot":
        """The site of `stack`, by default of the stack that the output layer reads, and in which attention.

        Raises:
            InputError: no such stack, attention or site in this model, or an axis that the site does not have.
        """
        stacks = model.config.stacks
        stack = stack or last_stack(model)
        if stack not in stacks:
            raise InputError(f"no stack {stack!r} in this model: expected {' or '.join(stacks)}")
        config, known = stacks[stack], sites(model)
        kinds = ("self", "cross") if config.cross_attention else ("self",)
        kind: Attending = "cross" if attention == "cross" or site in IN_CROSS else "self"
        if attention not in kinds:
            raise InputError(f"no attention {attention!r} in this model's {stack}: expected {' or '.join(kinds)}")
        patchable = [each for each in PATCHABLE if site_name(stack, 0, each) in known]
        if attention == "cross":
            patchable = [*IN_CROSS, *IN_ATTENTION]
        if site not in patchable:
            where = "cross-attention" if attention == "cross" else "this model" if len(stacks) == 1 else f"the {stack}"
            raise InputError(f"no patchable site {site!r} in {where}: expected one of {', '.join(patchable)}")
        found = known[site_name(stack, 0, site, kind)]
        allowed = ["layer", *(axis for axis in found.axes if axis in {"head", "position", "query", "key"})]
        by = tuple(by)
        if by[:1] != ("layer",) or len(set(by)) != len(by) or not set(by) <= set(allowed):
            raise InputError(
                f"{site} can be swept by layer first, then any of {', '.join(allowed[1:])}; got {', '.join(by)}"
            )
        return Spot(stack, kind, site, found.axes, found.sizes, config.n_layers, config.causal)

    @property
    def local(self) -> str:
        """The site's name inside a block."""
        return _local(self.site, self.attention)

    def name(self, layer: int) -> str:
        """The site's full name in one layer."""
        return site_name(self.stack, layer, self.site, self.attention)

    @property
    def names(self) -> list[str]:
        """The site's full name in each layer."""
        return [self.name(layer) for layer in range(self.n_layers)]

    @property
    def in_attention(self) -> bool:
        """Whether it lies inside attention, not in the stream."""
        return self.site in IN_ATTENTION

    @property
    def of_keys(self) -> bool:
        """Whether its positions are those that are attended to."""
        return self.site in {"k", "v"}

    def counted(self, axis: str) -> str:
        """The stack whose text an axis counts: keys of cross-attention are the encoder's positions."""
        keys = axis == "key" or (axis == "position" and self.of_keys)
        return "encoder" if self.attention == "cross" and keys else self.stack

    def size(self, axis: str) -> int | None:
        """How many entries an axis has; None where the text decides."""
        return self.n_layers if axis == "layer" else self.sizes[self.axes.index(axis)]


def last_stack(model: Transformer) -> str:
    """The name of the stack that the output layer reads."""
    return next(reversed(model.config.stacks))


def one_stack(model: Transformer, what: str) -> tuple[str, Stack]:
    """The only stack of a model, and its name.

    Raises:
        InputError: there are two.
    """
    if len(model.config.stacks) > 1:
        raise InputError(f"{what} is for models of one stack, and this one has an encoder and a decoder: use `sweep`")
    return next(iter(model.config.stacks)), model.last

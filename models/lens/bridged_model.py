"""A TransformerLens bridge that runs as our models do."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from interp import InputError, Site, TokenBatch, Tokenizer, TransformerConfig
from interp.running import counted
from interp.tap import UNTAPPED, Tap
from interp.visibility import Visibility
from models.lens.hooks import Place

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge

Hook = Callable[..., Tensor | None]
_ROWS = (".scores", ".pattern")


class Bridged(nn.Module):
    """A bridge behind the interface of our models (`interp.model.Model`): its sites, captures and edits; not its parts.

    A call adds its hooks to the bridge and removes them again, one call at a time.
    """

    def __init__(
        self,
        bridge: "TransformerBridge",
        config: TransformerConfig,
        places: Mapping[str, Place],
        sites: Mapping[str, Site],
        weights: Mapping[str, nn.Parameter],
    ):
        super().__init__()
        self.bridge, self.config, self.sites = bridge, config, sites
        self.places = {name: places[name] for name in sites if name in places}
        self.padding: frozenset[str] = frozenset({"left", "right"})  # sides that texts may be padded on
        self.tokenizer: Tokenizer | None = None
        self.target_tokenizer: Tokenizer | None = None
        self.source: Path | None = None  # the directory that the weights were read from
        self.files: tuple[Any, ...] = ()  # its weight files, and their state when they were read
        self._weights, self._turn = dict(weights), threading.Lock()

    def forward(
        self, batch: TokenBatch, tap: Tap = UNTAPPED, target: TokenBatch | None = None
    ) -> Float[Tensor, "*batch position d_vocab"] | None:
        """Logits of every position, of `target` where there are two stacks; None where there is no output layer."""
        if locked := [site for site in tap.edit if site in self.places and not self.places[site].changeable]:
            raise InputError(
                f"{', '.join(locked)} can be read in this model but not changed: TransformerLens computes what follows "
                "from the value before its hook"
            )
        with self._turn:
            hooks = self._hooks(tap, batch, target)
            out: Any = self.bridge.run_with_hooks(batch.ids, hooks, **self._inputs(batch, target))
        return tap("logits", out) if isinstance(out, Tensor) and self.config.output != "none" else None

    def _inputs(self, batch: TokenBatch, target: TokenBatch | None) -> dict[str, Any]:
        """What the bridge gets with the ids: masks where there is padding, and what the decoder reads."""
        arguments: dict[str, Any] = {}
        for texts, mask in ((batch, "attention_mask"), (target, "decoder_attention_mask")):
            if texts is not None and texts.padded:
                _check_padding(texts, self.padding)
                arguments[mask] = texts.mask.long()
        return arguments if target is None else {**arguments, "decoder_input": target.ids}

    def _hooks(
        self, tap: Tap, batch: TokenBatch, target: TokenBatch | None
    ) -> list[tuple[str | Callable[..., Any], Hook]]:
        """The hooks of a call: at each hook of the bridge the sites that are read or changed there."""
        by_hook: dict[str, list[Place]] = {}
        masks = {name: self._mask(name, batch, target) for name in tap.edit if name.endswith(_ROWS)}
        for name, place in self.places.items():
            if tap.wants(name):
                for hook in (*place.terms, place.hook):
                    by_hook.setdefault(hook, [])
                by_hook[place.hook].append(place)
        streams: dict[str, Tensor] = {}
        return [(hook, _passing(places, hook, tap, streams, masks)) for hook, places in by_hook.items()]

    def _mask(self, name: str, batch: TokenBatch, target: TokenBatch | None) -> Bool[Tensor, "prompt 1 query key"]:
        """Which keys each query sees in the attention of a site."""
        texts, (stack, layer, *_) = counted(self, name, batch, target), name.split(".")
        config, keys = self.config.stacks[stack], texts["key"]
        visibility = Visibility.from_batch(texts["query"], causal=config.causal).near(config.reach(int(layer)))
        if ".cross_attn." in name:
            padding = keys.mask if keys.padded else None
            visibility = replace(
                visibility, n_keys=keys.ids.shape[1], causal=False, padding=padding, reach=None, across=True
            )
        return visibility.mask()

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return next(iter(self._weights.values())).device

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and activations."""
        return next(iter(self._weights.values())).dtype

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """The weights as they were stored, each once; a bridge holds some twice, split and whole."""
        return iter(self._weights.items())


def _passing(
    hook_places: Sequence[Place], hook: str, tap: Tap, streams: dict[str, Tensor], masks: Mapping[str, Tensor]
) -> Hook:
    """A hook of TransformerLens that passes what it gets through our sites."""

    def passing(value: Tensor, **_: Any) -> Tensor | None:
        now = value
        for place in hook_places:
            now = _pass(place, now, tap, streams, masks)
        streams[hook] = now
        return None if now is value and not torch.is_grad_enabled() else now

    return passing


def _pass(place: Place, value: Tensor, tap: Tap, streams: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> Tensor:
    """`value` after one site."""
    terms = [streams[hook] for hook in place.terms]
    whole = sum([*terms[1:], value], terms[0]) if terms else value
    lowest = torch.finfo(value.dtype).min
    if place.name.endswith(".scores"):
        whole = whole.masked_fill(whole <= lowest / 2, -torch.inf)
    graded, unseen = torch.is_grad_enabled(), -torch.inf if place.name.endswith(".scores") else 0.0
    edited = tap(
        place.name,
        whole if graded else whole.clone(),  # an edit may write over what it reads
        lambda rows: rows.masked_fill(~masks[place.name], unseen) if place.name in masks else rows,
    )
    if place.name not in tap.edit and not graded:
        return value
    if edited.ndim > value.ndim:
        raise InputError(
            f"the edit of {place.name} adds an axis, which TransformerLens does not carry through the rest of the "
            "pass: give the prompts once for each change instead"
        )
    if place.name.endswith(".scores"):  # a row without any key has no NaN there
        edited = edited.masked_fill(edited == -torch.inf, lowest)
    return edited - sum(terms) if terms else edited


def _check_padding(batch: TokenBatch, sides: frozenset[str]) -> None:
    """Refuse padding that changes the bridge's numbers."""
    right = bool((batch.mask[:, :-1] >= batch.mask[:, 1:]).all())
    positions = (batch.mask.cumsum(1) - 1).clamp(min=0) * batch.mask
    if not torch.equal(positions, batch.positions):
        raise InputError("TransformerLens counts positions from each text's first token: expected no other positions")
    side = "right" if right else "left"
    if side not in sides:
        raise InputError(
            f"TransformerLens gives other numbers for this model where texts are padded on the {side}: "
            + (f"pad on the {next(iter(sides))}" if sides else "give texts one at a time, or all of one length")
        )


def sites(
    places: Mapping[str, Place], ours: Mapping[str, Site], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Site]:
    """Our sites at these hooks: those whose axes have the sizes that the configuration says."""
    fitting: dict[str, Site] = {}
    for name, site in ours.items():  # in the order of a call
        place = places.get(name)
        if name == "logits" or (place is not None and _fits(site, shapes[place.hook])):
            locked = place is not None and not place.changeable
            fitting[name] = replace(site, meaning=f"{site.meaning}; can only be read") if locked else site
    return fitting


def _fits(site: Site, shape: tuple[int, ...]) -> bool:
    sizes = shape[-len(site.axes) :]
    return len(shape) == len(site.axes) + 1 and all(a in {None, b} for a, b in zip(site.sizes, sizes, strict=True))

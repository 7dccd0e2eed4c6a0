"""What is put in the place of an ablated part: nothing, its mean over a corpus, or what it did for another prompt."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.config import StackConfig
from interp.errors import InputError
from interp.patching.pairs import Inputs, Pairs
from interp.patching.spots import Attending, last_stack
from interp.places import Site, sites
from interp.running import Tokens, as_batches, run
from interp.tokens import TokenBatch
from interp.transformer import Transformer

SWEPT = ("z", "attn_out", "cross_attn_out", "mlp_out", "resid_mid", "resid_cross", "resid_pre", "resid_post")
# what a listed cell names in its layer
UNIT = {"z": "head", "mlp.post": "d_mlp", "attn_out": None, "cross_attn_out": None, "mlp_out": None}


@dataclass(frozen=True)
class Part:
    """A site in all layers of one stack, as it is ablated."""

    site: str
    stack: str
    names: tuple[str, ...]
    place: Site
    config: StackConfig

    @staticmethod
    def of(model: Transformer, site: str, stack: str | None = None, attention: str = "self") -> "Part":
        """The site of `stack`, by default the last, and (for `z`) in which attention.

        Raises:
            InputError: no such stack or attention, or no site that can be ablated.
        """
        stack = stack or last_stack(model)
        if stack not in model.config.stacks:
            raise InputError(f"no stack {stack!r} in this model: expected {' or '.join(model.config.stacks)}")
        config, known = model.config.stacks[stack], sites(model)
        kinds: tuple[Attending, ...] = ("self", "cross") if config.cross_attention else ("self",)
        if attention not in kinds:
            raise InputError(f"no attention {attention!r} in this model's {stack}: expected {' or '.join(kinds)}")
        where = ("attn" if attention == "self" else "cross_attn") + ".z" if site == "z" else site
        names = tuple(f"{stack}.{layer}.{where}" for layer in range(config.n_layers))
        if site not in {*SWEPT, *UNIT} or names[0] not in known:
            expected = ", ".join(sorted({*SWEPT, *UNIT}))
            raise InputError(f"cannot ablate {site!r} in this model: expected one of {expected}")
        return Part(site, stack, names, known[names[0]], config)


class Alone(Pairs):
    """Prompts without a corrupted twin, for metrics that ask pairs where to read: any position may change."""

    def __post_init__(self) -> None:
        if self.clean.padded and not bool(self.clean.mask[:, 0].all()):
            raise InputError("prompts to ablate are padded on the right: expected a real token in every first column")
        self._check_other()

    @property
    def first_changed(self) -> Int[Tensor, " prompt"]:
        """An ablation changes every position."""
        return torch.zeros_like(self.last)

    @staticmethod
    def of(model: Transformer, prompts: Tokens | Pairs, target: Tokens | None = None) -> "Alone":
        """Prompts as a batch on the model's device, with their targets where it reads two; of pairs the clean ones."""
        if model.output is None:
            raise InputError("this model has no output layer, so it has no logits for a metric to read")
        if not isinstance(prompts, Pairs):
            batch, decoded = as_batches(model, prompts, target)
            return Alone(batch, batch, target=decoded)
        if target is not None:
            raise InputError("pairs bring their targets: expected no other")
        pairs = prompts.to(model.device)
        batch, decoded = pairs.inputs[0]
        if (decoded is None) != (len(model.config.stacks) == 1):
            raise InputError("expected pairs with a target or source where the model reads two texts, and only there")
        return Alone(batch, batch, pairs.right, pairs.wrong, target=decoded)


@torch.no_grad()
def mean_activation(
    model: Transformer,
    batches: TokenBatch | Iterable[TokenBatch | Inputs],
    site: str = "z",
    *,
    stack: str | None = None,
    attention: str = "self",
) -> Float[Tensor, "layer ..."]:
    """The mean of a site over all real positions of a corpus, one batch in memory at a time.

    A model with an encoder and a decoder reads batches of both: (sources, targets).

    Returns:
        Tensor: `layer head d_head` for `z`, `layer d_mlp` for `mlp.post`, `layer d_model` for a place in the stream.

    Raises:
        InputError: no such site, or no text.
    """
    part = Part.of(model, site, stack, attention)
    total, count = torch.zeros((), dtype=torch.float64), 0
    for batch in [batches] if isinstance(batches, TokenBatch) else batches:
        texts, target = (batch, None) if isinstance(batch, TokenBatch) else batch
        out = run(model, texts, capture=part.names, target=target)
        read = out.tokens if out.target is None or part.stack == "encoder" else out.target
        # in double precision: a long corpus must not lose its last batches to rounding
        total = torch.stack([out[name][read.mask].double().sum(0) for name in part.names]) + total.to(model.device)
        count += int(read.mask.sum())
    if not count:
        raise InputError("a mean needs at least one text: got no batches")
    return (total / count).to(model.last.embed.token.weight.dtype)


@dataclass(frozen=True)
class Replacement:
    """What is put in the place of a part, layer by layer."""

    model: Transformer
    part: Part
    prompts: Alone
    kind: str
    mean: Tensor | None
    donors: Tokens | tuple[Tokens, Tokens] | None
    seed: int

    def layers(self) -> list[Tensor]:
        """One tensor a layer that broadcasts to the site's `prompt position ...`."""
        makers: dict[str, Callable[[], list[Tensor]]] = {
            "zero": lambda: [torch.zeros((), device=self.model.device)] * self.part.config.n_layers,
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
        means = self.mean
        if means is None:
            attention = "cross" if "cross_attn.z" in self.part.names[0] else "self"
            where = {"stack": self.part.stack, "attention": attention}
            means = mean_activation(self.model, [self.prompts.inputs[0]], self.part.site, **where)
        expected = (self.part.config.n_layers, *self.part.place.sizes[1:])
        if means.shape != expected:
            raise InputError(f"the mean of {self.part.site} must have shape {expected}, got {tuple(means.shape)}")
        return list(means.to(self.model.device))

    def _resampled(self) -> list[Tensor]:
        stack = self.part.stack
        texts, target = self._donors()
        donors = texts if target is None or stack == "encoder" else target
        if donors.padded and not bool(donors.mask[:, 0].all()):
            raise InputError("donors are padded on the right: expected a real token in the first column of each")
        own = self.prompts.read_by(stack)
        chosen = _draw(own.lengths, donors.lengths, self.seed, apart=self.donors is None)
        width = own.ids.shape[1]  # no prompt is longer than its donor; columns beyond both hold padding
        seen = run(self.model, texts, capture=self.part.names, target=target)
        return [_fit(seen[name][chosen], width) for name in self.part.names]

    def _donors(self) -> Inputs:
        """The texts that are drawn from."""
        if self.donors is None:
            return self.prompts.inputs[0]
        if len(self.model.config.stacks) == 1:
            return as_batches(self.model, self.donors, None)  # pyright: ignore[reportArgumentType]
        if not isinstance(self.donors, tuple):
            raise InputError("this model reads two texts: expected donors=(sources, targets)")
        return as_batches(self.model, *self.donors)


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

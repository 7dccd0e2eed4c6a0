"""What is put in the place of an ablated part: nothing, its mean over a corpus, or what it did for another prompt."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from interp.errors import InputError, one_of, whole_number
from interp.patching.pairs import Inputs, Pairs
from interp.patching.patch_sites import Attending, PatchSite, StackName
from interp.running import Run, Tokens, as_batches, run
from interp.tokens import TokenBatch
from interp.transformer import Transformer

Kind = Literal["resample", "mean", "zero"]


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
        if not isinstance(prompts, Pairs):
            batch, decoded = as_batches(model, prompts, target)
            return Alone(batch, batch, target=decoded)
        if target is not None:
            raise InputError("pairs bring their targets: expected no other")
        pairs = prompts.to(model.device)
        batch, decoded = pairs.inputs[0]
        return Alone(batch, batch, pairs.right, pairs.wrong, target=decoded, positions=pairs.positions)


@torch.no_grad()
def mean_activation(
    model: Transformer,
    texts: Tokens | Iterable[Tokens | tuple[Tokens, Tokens]],
    site: str = "z",
    *,
    stack: StackName | None = None,
    attention: Attending = "self",
) -> Float[Tensor, "layer ..."]:
    """The mean of a site over all real positions of some texts, one of them in memory at a time.

    Args:
        model: a transformer.
        texts: a text, or any number of them, of which each may be a batch (`TokenBatch`, or ids). A model with an
            encoder and a decoder reads (sources, targets).
        site: as in `ablate`.
        stack, attention: as in `sweep`.

    Returns:
        Tensor: `layer head d_head` for `z`, `layer d_mlp` for `mlp.post`, `layer d_model` for a place in the stream.

    Raises:
        InputError: no such site, rows of attention, or no text.
    """
    patch_site = PatchSite.of(model, site, stack=stack, attention=attention)
    patch_site.check_ablation("mean")
    total, count = torch.zeros((), dtype=torch.float64), 0
    for each in [texts] if isinstance(texts, str | Tensor | TokenBatch) else texts:
        out = _seen(model, each, patch_site)
        read = _text(patch_site, (out.tokens, out.target))
        # in double precision: a long corpus must not lose its last batches to rounding
        total = torch.stack([out[name][read.mask].double().sum(0) for name in patch_site.names]) + total.to(
            model.device
        )
        count += int(read.mask.sum())
    if not count:
        raise InputError("a mean needs at least one text: got none")
    return (total / count).to(model.last.embed.token.weight.dtype)


def _seen(model: Transformer, texts: Any, patch_site: PatchSite) -> Run:
    """A site's activations on a text or a batch, or on sources with their targets."""
    if len(model.config.stacks) == 1:
        return run(model, [texts] if isinstance(texts, tuple) else texts, capture=patch_site.names)
    if not isinstance(texts, tuple) or len(texts) != 2:
        raise InputError("this model reads two texts: expected (sources, targets), one such pair or more")
    return run(model, texts[0], capture=patch_site.names, target=texts[1])


def _text(patch_site: PatchSite, inputs: Inputs) -> TokenBatch:
    """The text whose positions a site has."""
    first, second = inputs
    return first if second is None or patch_site.counted("position") == "encoder" else second


@dataclass(frozen=True)
class Replacement:
    """What is put in the place of a site's activations: `zero`, `mean` or `resample`, as `ablate` says."""

    model: Transformer
    patch_site: PatchSite
    prompts: Alone
    kind: Kind
    mean: Tensor | None
    donors: Tokens | tuple[Tokens, Tokens] | None
    seed: int

    def layers(self) -> list[Tensor]:
        """One tensor a layer that broadcasts to the site's `prompt position ...`."""
        makers: dict[Kind, Callable[[], list[Tensor]]] = {
            "zero": lambda: [torch.zeros((), device=self.model.device)] * self.patch_site.n_layers,
            "mean": self._means,
            "resample": self._resampled,
        }
        one_of("kind", self.kind, Kind)
        for name, given in [("mean", self.mean), ("donors", self.donors)]:
            if given is not None and self.kind != {"mean": "mean", "donors": "resample"}[name]:
                raise InputError(f"{name}= is not used by kind={self.kind!r}: leave it out")
        self.patch_site.check_ablation(self.kind)
        return makers[self.kind]()

    def _means(self) -> list[Tensor]:
        means, patch_site = self.mean, self.patch_site
        if means is None:
            inside = patch_site.attention if patch_site.in_attention else "self"
            first, second = self.prompts.inputs[0]
            read = first if second is None else (first, second)
            means = mean_activation(self.model, [read], patch_site.site, stack=patch_site.stack, attention=inside)
        expected = (patch_site.n_layers, *patch_site.sizes[1:])
        if means.shape != expected:
            raise InputError(f"the mean of {patch_site.site} must have shape {expected}, got {tuple(means.shape)}")
        return list(means.to(self.model.device))

    def _resampled(self) -> list[Tensor]:
        texts, target = self._donors()
        donors, own = (_text(self.patch_site, inputs) for inputs in ((texts, target), self.prompts.inputs[0]))
        if donors.padded and not bool(donors.mask[:, 0].all()):
            raise InputError("donors are padded on the right: expected a real token in the first column of each")
        chosen = _draw(own.lengths, donors.lengths, self.seed, apart=self.donors is None)
        width = own.ids.shape[1]  # no prompt is longer than its donor; columns beyond both hold padding
        seen = run(self.model, texts, capture=self.patch_site.names, target=target)
        return [_fit(seen[name][chosen], width) for name in self.patch_site.names]

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
    return F.pad(value, [0, 0] * (value.ndim - 2) + [0, width - value.shape[1]])  # less than nothing cuts off


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
            "give longer ones as donors=, or ablate by kind='mean'"
        )
    generator = torch.Generator().manual_seed(whole_number("seed", seed))
    return torch.multinomial(fits.float(), 1, generator=generator)[:, 0].to(lengths.device)

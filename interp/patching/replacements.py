"""What is put in the place of an ablated part: nothing, its mean over a corpus, or what it did for another prompt."""

from collections.abc import Iterable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from interp.errors import InputError, one_of, whole_number
from interp.patching.pairs import Pairs, check_padding, text_read
from interp.patching.patch_sites import OF_ROWS, Attending, PatchSite, StackName
from interp.running import Tokens, as_batches, run
from interp.tokens import TokenBatch
from interp.transformer import Transformer

Kind = Literal["resample", "mean", "zero"]


class Alone(Pairs):
    """Prompts without a corrupted twin, for metrics that ask pairs where to read: any position may change."""

    def __post_init__(self) -> None:
        check_padding("prompts to ablate", self.clean)
        self.check_other()

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
    _check_rows(patch_site, "mean")
    return _mean(model, patch_site, [texts] if isinstance(texts, str | Tensor | TokenBatch) else texts)


def _check_rows(patch_site: PatchSite, kind: str) -> None:
    if kind != "zero" and patch_site.site in OF_ROWS:
        site = patch_site.site
        raise InputError(
            f"cannot ablate {site!r} by kind={kind!r}: its keys differ from prompt to prompt; expected 'zero'"
        )


def _mean(model: Transformer, patch_site: PatchSite, texts: Iterable[Any]) -> Float[Tensor, "layer ..."]:
    two, total, count = len(model.config.stacks) > 1, torch.zeros((), dtype=torch.float64), 0
    for text in texts:
        if two and (not isinstance(text, tuple) or len(text) != 2):
            raise InputError("this model reads two texts: expected (sources, targets), one such pair or more")
        first, second = text if two else (text, None)
        out = run(model, first, capture=patch_site.names, target=second)
        read = text_read((out.tokens, out.target), patch_site.counted("position"))
        # in double precision: a long corpus must not lose its last batches to rounding
        sums = torch.stack([out[name][read.mask].double().sum(0) for name in patch_site.names])
        total = sums + total.to(model.device)
        count += int(read.mask.sum())
    if not count:
        raise InputError("a mean needs at least one text: got none")
    return (total / count).to(model.dtype)


def replacements(
    model: Transformer,
    patch_site: PatchSite,
    prompts: Alone,
    kind: Kind,
    mean: Tensor | None,
    donors: Any,
    seed: int,
) -> list[Tensor]:
    """What is put in the place of a site's activations, as `ablate` says: broadcast to each layer's `prompt ...`."""
    one_of("kind", kind, Kind)
    for name, value in [("mean", mean), ("donors", donors)]:
        if value is not None and kind != {"mean": "mean", "donors": "resample"}[name]:
            raise InputError(f"{name}= is not used by kind={kind!r}: leave it out")
    _check_rows(patch_site, kind)
    if kind == "zero":
        return [torch.zeros((), device=model.device)] * patch_site.n_layers
    if kind == "resample":
        return _resampled(model, patch_site, prompts, donors, seed)
    first, second = prompts.inputs[0]
    mean = _mean(model, patch_site, [first if second is None else (first, second)]) if mean is None else mean
    expected = (patch_site.n_layers, *patch_site.sizes[1:])
    if mean.shape != expected:
        raise InputError(f"the mean of {patch_site.site} must have shape {expected}, got {tuple(mean.shape)}")
    return list(mean.to(model.device))


def _resampled(model: Transformer, patch_site: PatchSite, prompts: Alone, donors: Any, seed: int) -> list[Tensor]:
    """What other prompts have there: the donors, or each other."""
    two = len(model.config.stacks) > 1
    if donors is not None and two and not isinstance(donors, tuple):
        raise InputError("this model reads two texts: expected donors=(sources, targets)")
    given: Any = donors if two else (donors, None)
    inputs = prompts.inputs[0] if donors is None else as_batches(model, *given)
    stack = patch_site.counted("position")
    read, batch = text_read(inputs, stack), prompts.read_by(stack)
    check_padding("donors", read)
    chosen = _draw(batch.lengths, read.lengths, seed, apart=donors is None)
    width = batch.ids.shape[1]  # no prompt is longer than its donor; columns beyond both hold padding
    seen = run(model, inputs[0], capture=patch_site.names, target=inputs[1])
    values = [seen[name][chosen] for name in patch_site.names]  # padded with less than nothing is cut off
    return [F.pad(value, [0, 0] * (value.ndim - 2) + [0, width - value.shape[1]]) for value in values]


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

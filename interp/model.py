"""The protocol of models: all that capturing and editing in one call needs.

A `Transformer` is one; so is a model that another library runs. What needs blocks and weights one at a time takes a
`Transformer` (`interp.transformer.with_parts`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from interp.config import TransformerConfig
from interp.display import DataFrame, Shown, so_many
from interp.tap import UNTAPPED, Tap
from interp.tokens import TokenBatch, Tokenizer


@dataclass(frozen=True)
class Site:
    """One place. `axes` are those after the free leading ones; `head` counts key/value heads where they are shared."""

    name: str
    axes: tuple[str, ...]
    sizes: tuple[int | None, ...]  # None where the text decides
    meaning: str


class Sites(dict[str, Site], Shown):
    """Sites by name; they show themselves once for all layers."""

    __repr__ = Shown.__repr__
    most = 40  # so that those of an encoder and a decoder are all there

    def table(self) -> DataFrame:
        """One row a site: `site`, its `stack`, `layer` (missing outside the layers), `axes`, `sizes` and `meaning`."""
        import pandas as pd  # noqa: PLC0415 (`import interp` need not wait for it)

        rows = []
        for name, site in self.items():
            stack, layer, _ = split_name(name)
            sizes = " ".join("any" if size is None else str(size) for size in site.sizes)
            rows.append([name, stack, layer, " ".join(site.axes), sizes, site.meaning])
        columns = ["site", "stack", "layer", "axes", "sizes", "meaning"]
        return pd.DataFrame(rows, columns=columns).astype({"layer": "Int64"})

    def facts(self) -> tuple[str, Mapping[str, str]]:
        """Each site once, with its axes and meaning, and how many layers have it."""
        alike: dict[str, list[Site]] = {}
        for name, site in self.items():
            stack, layer, rest = split_name(name)
            alike.setdefault(name if layer is None else f"{stack}.*.{rest}", []).append(site)
        facts = {}
        for name, (site, *others) in alike.items():
            sizes = zip(site.axes, site.sizes, strict=True)
            axes = " ".join(axis if size is None else f"{axis}:{size}" for axis, size in sizes)
            layers = f"{so_many(1 + len(others), 'layer')}, " * bool(others)
            facts[name] = f"{layers}{axes} ({site.meaning})"
        return f"{so_many(len(self), 'site')}; axes come after the prompt's", facts


def split_name(name: str) -> tuple[str | None, int | None, str]:
    """The stack and the layer of a site by its name, where it has them, and the rest."""
    stack, _, rest = name.rpartition(".") if name.count(".") < 2 else name.partition(".")
    layer, _, within = rest.partition(".")
    return (stack or None, int(layer), within) if layer.isdigit() else (stack or None, None, rest)


@runtime_checkable
class Model(Protocol):
    """What `run`, `sites`, `generate`, the analyses and every plain way (`sweep_by_forward`, ...) ask of a model."""

    @property
    def config(self) -> TransformerConfig:
        """Its stacks and their sizes."""

    @property
    def tokenizer(self) -> Tokenizer | None:
        """What makes ids of the text that the first stack reads; None where it works on ids."""

    @property
    def target_tokenizer(self) -> Tokenizer | None:
        """The same of what the last stack reads."""

    @property
    def sites(self) -> Mapping[str, Site]:
        """What can be read or changed, by name, in the order in which a call passes it."""

    @property
    def device(self) -> torch.device:
        """Where it runs."""

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and activations."""

    def __call__(
        self, batch: TokenBatch, tap: Tap = UNTAPPED, target: TokenBatch | None = None
    ) -> Float[Tensor, "*batch position d_vocab"] | None:
        """Logits of every position, of `target` where there are two stacks; None where there is no output layer.

        On its way it passes the value of each site through `tap(name, value)`, and goes on with what comes back. A
        third argument, a function of an edited value, restores what no edit may change, such as the mask.
        """

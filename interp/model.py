"""What is a model, which sites can be read and changed in it, and which texts does it take?

Sites are named `stack.layer.site` (`decoder.3.attn.pattern`), `stack.site` (`decoder.embed`) or `logits`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from interp.config import Experts, NoMLP, NoNorm, Rotary, StackConfig, TransformerConfig
from interp.display import DataFrame, Result, so_many
from interp.errors import InputError
from interp.tap import UNTAPPED, Tap
from interp.tokens import TokenBatch, Tokenizer

Tokens = str | Sequence[str] | TokenBatch | Tensor
_STREAM = "position d_model"
OF_KEYS = (".k", ".v", ".rot_k")  # sites whose heads are key/value heads, and whose positions are those of keys


@dataclass(frozen=True)
class Site:
    """One activation. `axes` come after the free leading ones; `head` counts key/value heads if those are shared."""

    name: str
    axes: tuple[str, ...]
    sizes: tuple[int | None, ...]  # None if the text decides
    meaning: str


class Sites(dict[str, Site], Result):
    """Sites by name, shown once for all layers."""

    __repr__ = Result.__repr__
    n_facts = 40  # enough for an encoder and a decoder

    def table(self) -> DataFrame:
        """One row a site: `site`, its `stack`, `layer` (missing outside the layers), `axes`, `sizes` and `meaning`."""
        import pandas as pd  # noqa: PLC0415 (`import interp` need not wait for it)

        table = pd.DataFrame([*self], columns=["site"])
        table["stack"], table["layer"], _ = zip(*map(split_name, self), strict=True)
        table["axes"] = [" ".join(site.axes) for site in self.values()]
        table["sizes"] = [" ".join("any" if n is None else str(n) for n in site.sizes) for site in self.values()]
        table["meaning"] = [site.meaning for site in self.values()]
        return table.astype({"layer": "Int64"})

    def facts(self) -> tuple[str, Mapping[str, str]]:
        """Each site once, with its number of layers, its axes and its meaning."""
        by_layers: dict[str, list[Site]] = {}
        for name, site in self.items():
            stack, layer, rest = split_name(name)
            by_layers.setdefault(name if layer is None else f"{stack}.*.{rest}", []).append(site)
        facts = {}
        for name, sites in by_layers.items():
            sizes = zip(sites[0].axes, sites[0].sizes, strict=True)
            axes = " ".join(axis if size is None else f"{axis}:{size}" for axis, size in sizes)
            layers = f"{so_many(len(sites), 'layer')}, " * (len(sites) > 1)
            facts[name] = f"{layers}{axes} ({sites[0].meaning})"
        return f"{so_many(len(self), 'site')}; axes come after the prompt's", facts


def split_name(name: str) -> tuple[str | None, int | None, str]:
    """The stack and layer in a site's name, or None, and the rest."""
    stack, _, rest = name.rpartition(".") if name.count(".") < 2 else name.partition(".")
    layer, _, site = rest.partition(".")
    return (stack or None, int(layer), site) if layer.isdigit() else (stack or None, None, rest)


@runtime_checkable
class Model(Protocol):
    """The least that `run`, `sites`, `generate`, the analyses and plain ways (`sweep_by_forward`, ...) need."""

    @property
    def config(self) -> TransformerConfig:
        """Its stacks and their sizes."""
        ...

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer of the first stack's text; None if it works on ids."""
        ...

    @property
    def target_tokenizer(self) -> Tokenizer | None:
        """The tokenizer of the last stack's text."""
        ...

    @property
    def sites(self) -> Mapping[str, Site]:
        """All sites, by name, in the order in which a call passes them."""
        ...

    @property
    def device(self) -> torch.device:
        """The device of texts and logits."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of weights and activations."""
        ...

    def __call__(
        self, batch: TokenBatch, tap: Tap = UNTAPPED, target: TokenBatch | None = None
    ) -> Float[Tensor, "*batch position d_vocab"] | None:
        """Logits of every position, of `target` if there are two stacks; None without an output layer.

        It passes the value of each site through `tap(name, value)`, and goes on with the result. A third argument, a
        function of an edited value, restores what no edit may change, such as the mask.
        """


def sites(model: Model) -> Sites:
    """All sites of `model`, by name, in the order in which a call passes them."""
    return Sites(model.sites)


@lru_cache(maxsize=16)
def sites_of(config: TransformerConfig) -> Mapping[str, Site]:
    """All sites of a transformer with this configuration."""
    rows = [site for name, stack in config.stacks.items() for site in _stack_sites(name, stack)]
    if config.output != "none":
        rows.append(Site("logits", ("position", "d_vocab"), (None, config.d_vocab), "scores of the next token"))
    return {site.name: site for site in rows}


def _stack_sites(stack: str, config: StackConfig) -> Iterable[Site]:
    sizes = {name: getattr(config, name) for name in ("d_model", "d_head", "d_mlp")}
    sizes |= {"expert": config.mlp.n_experts} if isinstance(config.mlp, Experts) else {}
    rows = [("embed", _STREAM, "what enters the first block")]
    for layer in range(config.n_layers):
        rows += [(f"{layer}.{name}", axes, meaning) for name, axes, meaning in _block_sites(config, layer)]
    for name, axes, meaning in [*rows, ("resid_final", _STREAM, "the stream after the last norm")]:
        sizes["head"] = config.kv_heads if name.endswith(OF_KEYS) else config.n_heads
        yield Site(f"{stack}.{name}", (*axes.split(),), (*map(sizes.get, axes.split()),), meaning)


def _block_sites(config: StackConfig, layer: int) -> list[list[str]]:
    has_mlp, has_experts = not isinstance(config.mlp, NoMLP), isinstance(config.mlp, Experts)
    norms_inputs = config.wiring not in {"post", "after"} and not isinstance(config.norm, NoNorm)
    facts = {
        "rotary": isinstance(config.positions_in(layer), Rotary),
        "normed": norms_inputs,
        "normed_attn": norms_inputs and (layer > 0 or config.first_norm),
        "in_turn": not config.parallel,
        "cross": config.cross_attention,
        "mlp": has_mlp,
        "experts": has_experts,
        "dense": has_mlp and not has_experts,
    }
    return [row for *row, conditions in _block_rows() if all(facts[fact] for fact in conditions.split())]


@cache
def _block_rows() -> list[list[str]]:
    """Every site that a block may have: its name, axes and meaning, and the facts of a block that it needs."""
    lines = files("interp").joinpath("sites.tsv").read_text("utf-8").splitlines()
    return [line.split("\t") for line in lines[1:]]


def matching(model: Model, patterns: str | Iterable[str]) -> list[str]:
    """Names of the sites that match `patterns`, globs included (`decoder.*.attn.z`)."""
    sites, names = model.sites, dict[str, None]()
    for pattern in patterns if isinstance(patterns, Iterable) and not isinstance(patterns, str) else [patterns]:
        if not isinstance(pattern, str):
            raise InputError(f"expected the name of a site, got {pattern!r}: interp.sites(model) lists them")
        hits = [pattern] if pattern in sites else [name for name in sites if fnmatchcase(name, pattern)]
        if not hits:
            layers = ", ".join(f"{name} layers 0-{stack.n_layers - 1}" for name, stack in model.config.stacks.items())
            near = get_close_matches(pattern, [*sites], n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InputError(f"no site {pattern!r}: this model has {layers}; interp.sites(model) lists them{hint}")
        names.update(dict.fromkeys(hits))
    return list(names)


def as_batches(model: Model, tokens: Tokens, target: Tokens | None) -> tuple[TokenBatch, TokenBatch | None]:
    """The first stack's texts and, if there are two stacks, the decoder's."""
    batch, n_stacks = as_batch(model, tokens), len(model.config.stacks)
    if n_stacks == 1:
        if target is not None:
            raise InputError("this model has one stack, which reads one text: expected no target")
        return batch, None
    if target is None:
        raise InputError(f"it has an encoder and a decoder: give target=, text or ids from {model.config.target_start}")
    decoded = as_target(model, target)
    n_texts = len(batch.ids)
    if len(decoded.ids) not in {1, n_texts}:
        raise InputError(f"expected one target for each of {n_texts} texts, or one for all; got {len(decoded.ids)}")
    return batch, decoded if len(decoded.ids) == n_texts else decoded.rows(torch.zeros(n_texts, dtype=torch.long))


def check_model(model: Any) -> None:
    """Refuse anything but a model, such as its name."""
    if not hasattr(model, "config"):
        load = f"models.load({model!r})" if isinstance(model, str) else 'models.load("default")'
        raise InputError(f"expected a model, as {load} gives it; got {model!r}")


def texts_of(tokens: Any) -> Sequence[str]:
    """One text, or a list of texts, as a list."""
    texts, expected = [tokens] if isinstance(tokens, str) else tokens, "expected a text, a list of texts, or a tensor"
    if not isinstance(texts, Sequence) or isinstance(texts, bytes):
        raise InputError(f"{expected}; got {texts!r}, of type {type(texts).__name__}")
    for text in texts:
        if not isinstance(text, str):
            raise InputError(f"{expected}; got {text!r} in the list, of type {type(text).__name__}")
    return texts


def as_target(model: Model, target: Tokens) -> TokenBatch:
    """`target` as the decoder reads it: a text gets the decoder's start id before it and no end after it."""
    if not isinstance(target, TokenBatch | Tensor):
        target = TokenBatch.from_texts(texts_of(target), target_tokenizer(model))
    return as_batch(model, target, "decoder")


def target_tokenizer(model: Model) -> Tokenizer:
    """The tokenizer of a decoder's input: the start id, the special tokens before every target, and no end."""
    tokenizer, start = model.target_tokenizer, model.config.target_start
    if tokenizer is None or start is None:
        lacking = "tokenizer" if tokenizer is None else "start id"
        raise InputError(f"this model has no {lacking} for its decoder: give target ids instead of text")
    # twice if targets begin with the start id themselves: in training it was put before whole targets
    return tokenizer.around((start, *tokenizer.prefix), ())


def as_batch(model: Model, tokens: Tokens, stack: str | None = None) -> TokenBatch:
    """`tokens` as a batch for `stack` (by default the first) on the model's device."""
    check_model(model)
    if isinstance(tokens, TokenBatch | Tensor):
        batch = tokens if isinstance(tokens, TokenBatch) else TokenBatch.from_ids(tokens)
    elif model.tokenizer is None:
        raise InputError("this model has no tokenizer: give ids (a tensor, prompt x position) instead of text")
    else:
        batch = TokenBatch.from_texts(texts_of(tokens), model.tokenizer)
    config = model.config.stacks[stack or next(iter(model.config.stacks))]
    if (longest := int(batch.lengths.max())) > config.n_ctx:
        raise InputError(f"a text of {longest} tokens is longer than the model's context of {config.n_ctx}: shorten it")
    low, high = int(batch.ids.min()), int(batch.ids.max())
    if low < 0 or high >= config.d_vocab:
        raise InputError(f"token ids must lie in 0-{config.d_vocab - 1}, the model's vocabulary; got {low} to {high}")
    return batch.to(model.device)

"""Which models can be loaded: the families and what they are made of, and the models that are on this machine."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from warnings import warn

from interp import InputError, StackConfig, TransformerConfig
from interp import config as parts
from interp.errors import InputWarning, brief
from models.families import FAMILIES
from models.families.family import Family
from models.families.fields import Fields, Sizes
from models.huggingface import described
from models.sources import OURS, directory_of

# with these sizes; all else is the family's default
_SIZES = {"n_layers": 24, "d_model": 1024, "n_heads": 4, "d_mlp": 2048, "n_ctx": 256, "d_vocab": 256}
_HEAD_SIZES = {"num_key_value_heads": 2, "head_dim": 256, "d_kv": 256, "num_local_experts": 8, "num_experts_per_tok": 2}
_WIDTHS = {"embedding_size": 1024, "word_embed_proj_dim": 1024}
_WINDOW = {"sliding_window": 64}

_WIRINGS = {
    "pre": "before",
    "post": "after the sum",
    "after": "after",
    "sandwich": "before and after",
    "parallel": "before, side by side",
    "parallel_one_norm": "one before both",
}
_POSITIONS: dict[type[Any], str] = {
    **{parts.Learned: "learned", parts.Sinusoidal: "sinusoidal", parts.Alibi: "slopes (ALiBi)"},
    **{parts.Buckets: "distance buckets", parts.NoPositions: "none"},
}
_NORMS = {parts.LayerNorm: "LayerNorm", parts.RMSNorm: "RMSNorm", parts.NoNorm: "none"}


@dataclass(frozen=True)
class Parts:
    """What a model is made of, a few words each."""

    stacks: str
    attention: str
    positions: str
    wiring: str  # the kind of norms, and where they are
    feed_forward: str


@dataclass(frozen=True)
class LocalModel:
    """A model on this machine; `parts` is None where it cannot be loaded, and `summary` says why."""

    name: str  # the argument of `load`
    family: str
    summary: str
    n_parameters: int
    n_bytes: int  # on disk
    parts: Parts | None


def families() -> dict[str, Parts | None]:
    """What each family is made of by default; None for our own format, which has no default."""
    return {name: None if name == "interp" else describe(default(family)) for name, family in FAMILIES.items()}


def default(family: Family) -> TransformerConfig:
    """A small configuration of a family, with every choice left at its default."""
    names = [Sizes.named(family.name, stack) for stack in ("encoder", "decoder")]
    sizes = {getattr(each, ours): size for each in names for ours, size in _SIZES.items()} | _WIDTHS | _HEAD_SIZES
    try:
        return family.reads(Fields(sizes | _WINDOW))
    except InputError:  # the family has no window
        return family.reads(Fields(sizes))


def describe(config: TransformerConfig) -> Parts:
    """The parts of a model in words."""
    stacks = list(config.stacks.values())
    return Parts(
        stacks="-".join(config.stacks),
        attention=_attention(config),
        positions=_unique(stacks, _positions),
        wiring=_unique(stacks, lambda stack: f"{_NORMS[type(stack.norm)]} {_WIRINGS[stack.wiring]}"),
        feed_forward=_unique(stacks, _feed_forward),
    )


def _unique(stacks: list[StackConfig], words: Any) -> str:
    return "; ".join(dict.fromkeys(words(stack) for stack in stacks))


def _attention(config: TransformerConfig) -> str:
    stack, words = config.last, []
    words.append("both ways; causal, cross" if len(config.stacks) > 1 else "causal" if stack.causal else "both ways")
    if stack.kv_heads < stack.n_heads:
        words.append("grouped queries")
    if stack.local is not None and stack.local.reach is not None:
        words.append("window" if len(stack.local.layers) == stack.n_layers else "some windows")
    if stack.qk_norm:
        words.append("q/k norms")
    if stack.score_cap:
        words.append("score cap")
    return ", ".join(words)


def _positions(stack: StackConfig) -> str:
    if not isinstance(stack.positions, parts.Rotary):
        return _POSITIONS[type(stack.positions)]
    partly = stack.positions.dims is not None and stack.positions.dims < stack.d_head
    unrotated = stack.local is not None and isinstance(stack.local.positions, parts.NoPositions)
    return "rotary" + " in part" * partly + ", some none" * unrotated


def _feed_forward(stack: StackConfig) -> str:
    match stack.mlp:
        case parts.Plain(activation):
            return activation
        case parts.Gated(activation):
            return f"{activation} gated"
        case parts.Experts(n_experts, n_chosen, expert):
            return f"{expert.activation} gated, {n_chosen} of {n_experts} experts"
        case parts.NoMLP():
            return "none"


def local_models(named: dict[str, Path]) -> Iterator[LocalModel]:
    """The models in directories, by name."""
    for name, directory in named.items():
        n_bytes = sum(file.stat().st_size for file in directory.iterdir() if file.is_file())
        try:
            raw, _, stored, config = described(directory)
        except InputError as error:
            yield LocalModel(name, "", str(error).removeprefix(f"{directory}: "), 0, n_bytes, None)
            continue
        stack = config.last
        summary = f"{'+'.join(str(each.n_layers) for each in config.stacks.values())} layers x {stack.n_heads} heads"
        n_parameters = sum(math.prod(tensor.shape) for tensor in stored.values())
        yield LocalModel(
            name, raw["model_type"], f"{summary}, width {stack.d_model}", n_parameters, n_bytes, describe(config)
        )


def shipped() -> Iterator[LocalModel]:
    """The models that need no download."""
    for name in (*OURS, "minilm"):
        try:
            yield from local_models({name: directory_of(name)})
        except InputError as error:
            yield LocalModel(name, "", str(error), 0, 0, None)


def cached(directory: Path | None = None) -> dict[str, Path]:
    """Models of the Hugging Face hub that were downloaded before, by their hub name; the newest of each.

    Warns about what the cache holds and cannot be read, such as links in a circle.
    """
    from huggingface_hub import scan_cache_dir  # noqa: PLC0415 (slow to import)
    from huggingface_hub.errors import CacheNotFound  # noqa: PLC0415

    try:
        cache = scan_cache_dir(directory)
    except (CacheNotFound, RuntimeError) as error:
        if isinstance(error, RuntimeError):  # clients before 2.0 stop at such a circle
            warn(f"all of the hub's cache is left out: {brief(str(error))}", InputWarning, stacklevel=2)
        return {}
    for damage in cache.warnings:
        warn(f"part of the hub's cache is left out: {brief(str(damage))}", InputWarning, stacklevel=2)
    newest_of = {}
    for repository in sorted(cache.repos, key=lambda each: each.repo_id):
        if repository.repo_type == "model" and repository.revisions:
            newest = max(repository.revisions, key=lambda each: ("main" in each.refs, each.last_modified))
            newest_of[repository.repo_id] = newest.snapshot_path
    return newest_of

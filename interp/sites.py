"""Every place of a model that can be read or changed: its name, its axes, what it means.

Names are `stack.layer.site` (`decoder.3.attn.pattern`), `stack.site` (`decoder.embed`) or `logits`.
"""

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from importlib.resources import files

from interp.config import Experts, NoMLP, NoNorm, Rotary, StackConfig, TransformerConfig
from interp.errors import InputError
from interp.model import Model, Site, Sites

Row = Sequence[str]  # a site's name in its block, its axes and its meaning
_STREAM = "position d_model"
_OF_KEYS = (".k", ".v", ".rot_k")  # their heads are key/value heads


def sites(model: Model) -> Sites:
    """All sites of `model`, by name, in the order in which a call passes them."""
    return Sites(model.sites)


@lru_cache(maxsize=16)
def sites_of(config: TransformerConfig) -> Mapping[str, Site]:
    """All sites of a transformer that is made as `config` says."""
    sites = [site for name, stack in config.stacks.items() for site in _stack_sites(name, stack)]
    if config.output != "none":
        sites.append(Site("logits", ("position", "d_vocab"), (None, config.d_vocab), "scores of the next token"))
    return {site.name: site for site in sites}


def _stack_sites(stack: str, config: StackConfig) -> Iterable[Site]:
    sizes = {"d_model": config.d_model, "d_head": config.d_head, "d_mlp": config.d_mlp}
    sizes |= {"expert": config.mlp.n_experts} if isinstance(config.mlp, Experts) else {}
    rows = [("embed", _STREAM, "what enters the first block")]
    for layer in range(config.n_layers):
        rows += [(f"{layer}.{name}", axes, meaning) for name, axes, meaning in _block_sites(config, layer)]
    for name, axes, meaning in [*rows, ("resid_final", _STREAM, "the stream after the last norm")]:
        sizes["head"] = config.kv_heads if name.endswith(_OF_KEYS) else config.n_heads
        yield Site(f"{stack}.{name}", (*axes.split(),), (*map(sizes.get, axes.split()),), meaning)


def _block_sites(config: StackConfig, layer: int) -> Iterable[Row]:
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
    return [row for *row, where in _block_rows() if all(facts[fact] for fact in where.split())]


@cache
def _block_rows() -> list[list[str]]:
    """Every site that a block may have: its name, axes and meaning, and which facts of a block have to be true."""
    lines = files("interp").joinpath("sites.tsv").read_text("utf-8").splitlines()
    return [line.split("\t") for line in lines[1:]]


def matching(model: Model, patterns: str | Iterable[str]) -> list[str]:
    """Names of the sites that match `patterns`, which may hold globs (`decoder.*.attn.z`).

    Raises:
        InputError: a pattern that matches no site.
    """
    sites = model.sites
    names: dict[str, None] = {}
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

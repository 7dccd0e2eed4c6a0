"""Every place of a model that can be read or changed: its name, its axes, what it means.

Names are `stack.layer.site` (`decoder.3.attn.pattern`), `stack.site` (`decoder.embed`) or `logits`.
"""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import lru_cache

from interp.config import Experts, NoMLP, Rotary, StackConfig, TransformerConfig
from interp.errors import InputError
from interp.model import Model, Site, Sites

_STREAM = ("position", "d_model")
_HEADS = ("position", "head", "d_head")
_ROWS = ("head", "query", "key")


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


def _stack_sites(name: str, config: StackConfig) -> Iterable[Site]:
    stream = (None, config.d_model)
    yield Site(f"{name}.embed", _STREAM, stream, "what enters the first block")
    for layer in range(config.n_layers):
        for site in _block_sites(config, layer):
            yield Site(f"{name}.{layer}.{site.name}", site.axes, site.sizes, site.meaning)
    yield Site(f"{name}.resid_final", _STREAM, stream, "the stream after the last norm")


def _block_sites(config: StackConfig, layer: int) -> Iterable[Site]:
    stream = (None, config.d_model)
    yield Site("resid_pre", _STREAM, stream, "the stream into the block")
    yield from _normed_input("attn", config, exists=layer > 0 or config.first_norm)
    yield from _attention_sites("attn", config, turned=isinstance(config.positions_in(layer), Rotary))
    yield Site("attn_out", _STREAM, stream, "what attention adds to the stream")
    if not config.parallel:
        yield Site("resid_mid", _STREAM, stream, "the stream after attention")
    if config.cross_attention:
        yield from _normed_input("cross_attn", config)
        yield from _attention_sites("cross_attn", config, turned=False)
        yield Site("cross_attn_out", _STREAM, stream, "what cross-attention adds to the stream")
        yield Site("resid_cross", _STREAM, stream, "the stream after cross-attention")
    if not isinstance(config.mlp, NoMLP):
        yield from _normed_input("mlp", config)
        yield from _mlp_sites(config)
        yield Site("mlp_out", _STREAM, stream, "what the feed-forward adds to the stream")
    yield Site("resid_post", _STREAM, stream, "the stream out of the block")


def _normed_input(name: str, config: StackConfig, *, exists: bool = True) -> Iterable[Site]:
    if exists and config.norms_inputs:
        meaning = "the stream as the layer reads it: normalised, scaled and shifted"
        yield Site(f"{name}.normalized", _STREAM, (None, config.d_model), meaning)


def _attention_sites(name: str, config: StackConfig, *, turned: bool) -> Iterable[Site]:
    rows, heads = (config.n_heads, None, None), (None, config.n_heads, config.d_head)
    shared = (None, config.kv_heads, config.d_head)
    keys = "the encoder's last stream" if name == "cross_attn" else "the stream"
    yield Site(f"{name}.q", _HEADS, heads, "queries, after the bias, before norm and rotation")
    yield Site(f"{name}.k", _HEADS, shared, f"keys of {keys}, one a key/value head, before norm and rotation")
    yield Site(f"{name}.v", _HEADS, shared, f"values of {keys}, one a key/value head")
    if turned:
        yield Site(f"{name}.rot_q", _HEADS, heads, "queries as they enter the scores, after norm and rotation")
        yield Site(f"{name}.rot_k", _HEADS, shared, "keys as they enter the scores, after norm and rotation")
    yield Site(f"{name}.scores", _ROWS, rows, "scaled q·k, masked keys at -inf")
    yield Site(f"{name}.pattern", _ROWS, rows, "softmax of the scores; rows sum to 1")
    yield Site(f"{name}.z", _HEADS, heads, "the pattern's mix of values")


def _mlp_sites(config: StackConfig) -> Iterable[Site]:
    if isinstance(config.mlp, Experts):
        n, d_model = config.mlp.n_experts, config.d_model
        yield Site("mlp.router", ("position", "expert"), (None, n), "weights of the experts; 0 for those not chosen")
        yield Site("mlp.experts", ("position", "expert", "d_model"), (None, n, d_model), "what each expert adds")
        return
    hidden = (None, config.d_mlp)
    yield Site("mlp.pre", ("position", "d_mlp"), hidden, "what the activation reads")
    yield Site("mlp.post", ("position", "d_mlp"), hidden, "what the output matrix of the feed-forward reads")


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
            raise InputError(_no_site(pattern, model.config, sites))
        names.update(dict.fromkeys(hits))
    return list(names)


def _no_site(pattern: str, config: TransformerConfig, sites: Iterable[str]) -> str:
    layers = ", ".join(f"{name} layers 0-{stack.n_layers - 1}" for name, stack in config.stacks.items())
    near = get_close_matches(pattern, [*sites], n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"no site {pattern!r}: this model has {layers}; interp.sites(model) lists them{hint}"

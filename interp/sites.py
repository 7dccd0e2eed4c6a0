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

Row = tuple[str, str, str]  # a site's name in its block, its axes and its meaning
_STREAM, _HEADS, _ROWS = "position d_model", "position head d_head", "head query key"
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
    def normed_input(name: str) -> Iterable[Row]:
        if config.norms_inputs:
            yield f"{name}.normalized", _STREAM, "the stream as the layer reads it: normalised, scaled and shifted"

    yield "resid_pre", _STREAM, "the stream into the block"
    if layer or config.first_norm:
        yield from normed_input("attn")
    yield from _attention_sites("attn", "the stream", turned=isinstance(config.positions_in(layer), Rotary))
    yield "attn_out", _STREAM, "what attention adds to the stream"
    if not config.parallel:
        yield "resid_mid", _STREAM, "the stream after attention"
    if config.cross_attention:
        yield from normed_input("cross_attn")
        yield from _attention_sites("cross_attn", "the encoder's last stream", turned=False)
        yield "cross_attn_out", _STREAM, "what cross-attention adds to the stream"
        yield "resid_cross", _STREAM, "the stream after cross-attention"
    if not isinstance(config.mlp, NoMLP):
        yield from normed_input("mlp")
        if isinstance(config.mlp, Experts):
            yield "mlp.router", "position expert", "weights of the experts; 0 for those not chosen"
            yield "mlp.experts", "position expert d_model", "what each expert adds"
        else:
            yield "mlp.pre", "position d_mlp", "what the activation reads"
            yield "mlp.post", "position d_mlp", "what the output matrix of the feed-forward reads"
        yield "mlp_out", _STREAM, "what the feed-forward adds to the stream"
    yield "resid_post", _STREAM, "the stream out of the block"


def _attention_sites(name: str, keys: str, *, turned: bool) -> Iterable[Row]:
    yield f"{name}.q", _HEADS, "queries, after the bias, before norm and rotation"
    yield f"{name}.k", _HEADS, f"keys of {keys}, one a key/value head, before norm and rotation"
    yield f"{name}.v", _HEADS, f"values of {keys}, one a key/value head"
    if turned:
        yield f"{name}.rot_q", _HEADS, "queries as they enter the scores, after norm and rotation"
        yield f"{name}.rot_k", _HEADS, "keys as they enter the scores, after norm and rotation"
    yield f"{name}.scores", _ROWS, "scaled q·k, masked keys at -inf"
    yield f"{name}.pattern", _ROWS, "softmax of the scores; rows sum to 1"
    yield f"{name}.z", _HEADS, "the pattern's mix of values"


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

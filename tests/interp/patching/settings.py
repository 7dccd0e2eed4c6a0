"""Where things are patched in these tests: every way to build a stack, an attention of it, and pairs that differ."""

from copy import deepcopy
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import torch
from tiny import TWO_STACKS, VARIANTS, pairs_of_two, ragged_pairs, randomise, two_stacks

from interp import StackConfig, Transformer, TransformerConfig
from interp.config import Gated, LayerNorm, NoMLP, NoNorm, RMSNorm, Rotary, Transform
from interp.patching import Pairs, kl_divergence, logit_difference

CLOSE = {"rtol": 1e-10, "atol": 1e-10, "equal_nan": True}
LAYERS, HEADS, PLACES = ("layer",), ("layer", "head"), ("layer", "position")
CELLS = (*HEADS, "position")
METRICS = [logit_difference(), kl_divergence()]
PRE = replace(VARIANTS["after"], wiring="pre")
STACKS: dict[str, StackConfig] = {
    "pre": PRE,
    "post": replace(PRE, wiring="post", embedding_norm=True, n_kv_heads=None),
    "gated": replace(PRE, positions=Rotary(), norm=RMSNorm(), mlp=Gated("silu")),
    "attention only": replace(PRE, mlp=NoMLP()),
    "one layer": replace(PRE, n_layers=1),
    "plain sums": replace(PRE, mlp=NoMLP(), norm=NoNorm(), attention_bias=False, n_kv_heads=None),
    **VARIANTS,
}
TWO = {f"{name}, two stacks": name for name in TWO_STACKS}
NAMES = (*STACKS, *TWO)
ATTENTIONS = (("decoder", "self"), ("encoder", "self"), ("decoder", "cross"))
DIFFERING = ("alone", "source", "target")


class Setting(NamedTuple):
    """A model, pairs for it, and the stack and attention that are patched."""

    model: Transformer
    pairs: Pairs
    where: dict[str, str]


@cache
def one_stack(name: str, stack: str, dtype: torch.dtype = torch.float64) -> Transformer:
    """A random decoder; or an encoder. Of a variant logits are capped, or read through a masked-word transform."""
    if stack == "decoder":
        capped = {"logit_cap": 2.0, "output_scale": 0.5} if name in VARIANTS else {}
        config = TransformerConfig(decoder=STACKS[name], output="tied" if name == "gated" else "untied", **capped)
    else:
        transformed = {"output_bias": True, "transform": Transform("gelu", LayerNorm())} if name in VARIANTS else {}
        config = TransformerConfig(encoder=replace(STACKS[name], causal=False), **transformed)
    model = Transformer(config).to(dtype)
    randomise(model)
    return model


def build(kind: str, dtype: torch.dtype = torch.float64) -> Transformer:
    """A model of `STACKS` that may be written to; `post encoder` is an encoder."""
    name = kind.removesuffix(" encoder")
    return deepcopy(one_stack(name, "decoder" if kind == name else "encoder", dtype))


def exists(name: str, attention: tuple[str, str], differing: str) -> bool:
    """Whether there is such a setting: with two stacks a source or a target differs, and no source for an encoder."""
    if name in TWO:
        return differing != "alone" and (attention[0], differing) != ("encoder", "target")
    return differing == "alone" and attention[1] == "self"


@cache
def setting(name: str, attention: tuple[str, str] = ("decoder", "self"), differing: str = "alone") -> Setting:
    """The setting of that name."""
    if name in TWO:
        where = dict(zip(("stack", "attention"), attention, strict=True))
        return Setting(two_stacks(TWO[name]), pairs_of_two(differing), where)
    return Setting(one_stack(name, attention[0]), ragged_pairs(), {})

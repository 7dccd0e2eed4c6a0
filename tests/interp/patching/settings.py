"""What do these tests patch? Every way to build a stack, each of its attentions, and pairs that differ."""

from copy import deepcopy
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import torch
from tiny import TWO_STACKS, VARIANTS, pairs_of_two, ragged_pairs, randomise, two_stacks

from interp import StackConfig, TokenBatch, Transformer, TransformerConfig
from interp.config import Gated, LayerNorm, NoMLP, NoNorm, RMSNorm, Rotary, Transform
from interp.patching import Claim, Pairs, Read, kl_divergence, log_probabilities, logit_difference

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
    # three layers if they differ or blocks are parallel; elsewhere, a third would show nothing new
    **{name: replace(it, n_layers=3 if it.local or name == "parallel" else 2) for name, it in VARIANTS.items()},
}
TWO = {f"{name}, two stacks": name for name in TWO_STACKS}
NAMES = (*STACKS, *TWO)
ATTENTIONS = (("decoder", "self"), ("encoder", "self"), ("decoder", "cross"))
DIFFERING = ("alone", "source", "target")


class Setting(NamedTuple):
    """A model, pairs for it, and the stack and attention to patch."""

    model: Transformer
    pairs: Pairs
    where: dict[str, str]


@cache
def one_stack(name: str, stack: str, dtype: torch.dtype = torch.float64) -> Transformer:
    """A random decoder or encoder. Variants cap their logits, or read them through a masked-word transform."""
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
    """A model of `STACKS` that tests may change; `post encoder` is an encoder."""
    name = kind.removesuffix(" encoder")
    return deepcopy(one_stack(name, "decoder" if kind == name else "encoder", dtype))


def exists(name: str, attention: tuple[str, str], differing: str) -> bool:
    """Whether there is such a setting: with two stacks a source or a target differs, and no source for an encoder."""
    if name in TWO:
        return differing != "alone" and (attention[0], differing) != ("encoder", "target")
    return differing == "alone" and attention[1] == "self"


@cache
def setting(name: str, attention: tuple[str, str] = ("decoder", "self"), differing: str = "alone") -> Setting:
    """The setting called `name`."""
    if name in TWO:
        where = dict(zip(("stack", "attention"), attention, strict=True))
        return Setting(two_stacks(TWO[name]), pairs_of_two(differing), where)
    return Setting(one_stack(name, attention[0]), ragged_pairs((3, 3, 2)), {})


def random_claims(
    asking: TokenBatch, visible: TokenBatch, read: TokenBatch, *, causal: bool, seed: int, count: int = 9
) -> list[Claim]:
    """Claims of random rows and keys, read before, at and after the rows, and changed in every way."""
    generator, claims = torch.Generator().manual_seed(seed), []
    for number in range(count):
        prompt, how = number % 3, ("hide", "exchange", "remove")[number // 3 % 3]
        length, n_keys, n_read = (int(texts.lengths[prompt]) for texts in (asking, visible, read))
        queries = torch.randperm(length - 1, generator=generator)[: 1 + number % 2] + 1
        keys = torch.rand(len(queries), visible.ids.shape[1], generator=generator) < 0.5
        last = queries if causal else torch.full_like(queries, n_keys - 1)  # a row keeps its own key, or the last one
        keys &= torch.arange(keys.shape[1]) < last[:, None]
        keys[:, 0] = True
        others = torch.stack([torch.randint(int(row) + 1, keys.shape[1:], generator=generator) for row in last])
        positions = torch.randperm(n_read, generator=generator)[:2]
        value = Read(positions, log_probabilities(positions + 3))
        claims.append(Claim(prompt, queries, keys, value, how, others if how == "exchange" else None))
    return claims

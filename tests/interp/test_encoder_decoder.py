"""Two stacks are one transformer: what the encoder makes is read by every decoder block, and by nothing else.

Encoder and decoder differ in every size that may differ, so that neither can pass for the other.
"""

import math
from dataclasses import replace

import pytest
import torch
from covering import pairwise
from einops import einsum
from tiny import randomise, token_ids
from torch import Tensor
from torch.testing import assert_close

from interp import InputError, StackConfig, TokenBatch, Transformer, TransformerConfig, patch, run, sites, zero
from interp.config import (
    Buckets,
    Gated,
    LayerNorm,
    Learned,
    NoMLP,
    NoNorm,
    NoPositions,
    Plain,
    RMSNorm,
    Rotary,
    Sinusoidal,
)

ENCODER = StackConfig(
    n_layers=2, d_model=19, n_heads=3, d_head=5, d_mlp=23, n_ctx=17, d_vocab=31, causal=False, wiring="post"
)
DECODER = replace(ENCODER, n_layers=3, n_heads=2, d_head=7, d_mlp=13, n_ctx=11, d_vocab=29)
ORIGINAL = {"positions": Sinusoidal(), "mlp": Plain("relu"), "embedding_scale": 19**0.5, "d_vocab": 29}
BUCKETED = {
    "positions": Buckets(n_buckets=7, max_distance=9),
    "norm": RMSNorm(1e-6),
    "wiring": "pre",
    "mlp": Plain("relu", bias=False),
    "attention_bias": False,
    "scale": 1.0,
    "d_vocab": 29,
}
MODERN = {
    "positions": Rotary(),
    "norm": RMSNorm(1e-5),
    "mlp": Gated("silu"),
    "n_heads": 6,
    "n_kv_heads": 2,
    "d_head": 4,
    "qk_norm": "head",
}


def pair(encoder: dict, decoder: dict, **settings) -> TransformerConfig:
    both = replace(ENCODER, **encoder), replace(DECODER, causal=True, cross_attention=True, **decoder)
    return TransformerConfig(encoder=both[0], decoder=both[1], target_start=2, **settings)


CONFIGS = {
    "original": pair(ORIGINAL, ORIGINAL, output="tied", shared_embedding=True),
    "learned": pair(
        {"embedding_norm": True}, {"positions": Learned(first=2), "embedding_norm": True}, output_bias=True
    ),
    "buckets": pair(BUCKETED, BUCKETED, output="tied", shared_embedding=True, output_scale=19**-0.5),
    "modern": pair(MODERN | {"wiring": "sandwich"}, MODERN | {"wiring": "pre", "norm": LayerNorm()}),
    "after": pair({"wiring": "after"}, {"wiring": "after", "n_kv_heads": 1}, output="none"),
}
EVERYWHERE = pytest.mark.parametrize("name", CONFIGS)
SOURCES = [[3, 1, 4, 1, 5, 9, 2], [6, 5, 3], [8]]
TARGETS = [[2, 7], [2, 1, 8, 2, 8], [2, 4, 6]]


def build(name: str, dtype: torch.dtype = torch.float64) -> Transformer:
    model = Transformer(CONFIGS[name]).to(dtype)
    randomise(model)
    return model


def same(one: Tensor, other: Tensor) -> None:
    """Equal up to the rounding of float64; of float32 where norms are taken in it."""
    assert_close(one, other, atol=1e-10, rtol=1e-10)


# --- an answer from paper


def by_hand() -> Transformer:
    """One head everywhere, two dimensions, no norms: every number below can be derived with a pencil."""
    plain = StackConfig(
        n_layers=1,
        d_model=2,
        n_heads=1,
        d_head=1,
        d_mlp=1,
        n_ctx=9,
        d_vocab=2,
        causal=False,
        norm=NoNorm(),
        positions=NoPositions(),
        mlp=NoMLP(),
        attention_bias=False,
        scale=1.0,
    )
    decoder = replace(plain, causal=True, cross_attention=True, d_vocab=3)
    model = Transformer(TransformerConfig(encoder=plain, decoder=decoder)).double()
    encoder, decoding = model.stack("encoder"), model.stack("decoder")
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
        encoder.embed.token.weight.copy_(torch.eye(2))  # A is (1, 0), B is (0, 1)
        attn = encoder.blocks[0].attn
        attn.W_V[0, 1, 0], attn.W_O[0, 0, 1] = 1.0, 2.0  # all see all alike: twice the share of B, into dimension 1
        decoding.embed.token.weight[0, 0] = 1.0  # S is (1, 0), the others (0, 0)
        attn = decoding.blocks[0].attn
        attn.W_V[0, 0, 0], attn.W_O[0, 0, 1] = 1.0, 1.0  # the share of S so far, into dimension 1
        cross = decoding.blocks[0].cross_attn
        assert cross is not None
        cross.W_Q[0, 1, 0], cross.W_K[0, 0, 0] = 2 * math.log(2), 1.0  # asks for A, as strongly as S was seen
        cross.W_V[0, 1, 0], cross.W_O[0, 0, 0] = 1.0, 1.0  # brings dimension 1 of the source into dimension 0
        assert model.output is not None
        model.output.weight.copy_(torch.tensor([[1, 0], [0, 1], [1, 1]]))
    return model


@pytest.mark.parametrize(
    "source", [TokenBatch.from_rows([[0, 1]]), TokenBatch.from_rows([[0, 1], [0] * 5], side="left")]
)
def test_two_stacks_by_hand(source):
    out = run(by_hand(), source, "*", target=torch.tensor([[0, 1]]))
    assert_close(out["encoder.resid_final"][0, -2:], torch.tensor([[1.0, 1.0], [0.0, 2.0]]).double())
    assert_close(out["decoder.0.resid_mid"][0], torch.tensor([[1.0, 1.0], [0.0, 0.5]]).double())
    pattern = torch.tensor([[4 / 5, 1 / 5], [2 / 3, 1 / 3]]).double()
    assert_close(out["decoder.0.cross_attn.pattern"][0, 0, :, -2:], pattern)
    assert not out["decoder.0.cross_attn.pattern"][0, 0, :, :-2].any()
    assert_close(out["decoder.0.cross_attn_out"][0, :, 0], torch.tensor([6 / 5, 4 / 3]).double())
    logits = torch.tensor([[11 / 5, 1, 16 / 5], [4 / 3, 1 / 2, 11 / 6]]).double()
    assert_close(out.logits[0], logits)


# --- sites


@EVERYWHERE
def test_sites_are_exactly_what_a_run_passes_in_order(name):
    model = build(name)
    out, known = run(model, token_ids(2, 7), "*", target=token_ids(2, 5)), sites(model)
    assert list(out.activations) == list(known)
    for site, value in out.activations.items():
        texts = {"position": 7 if site.startswith("encoder") else 5, "query": 5, "key": 5}
        if site.startswith("encoder"):
            texts |= {"query": 7, "key": 7}
        if "cross_attn" in site:
            texts |= {"key": 7} | ({"position": 7} if site.endswith((".k", ".v")) else {})
        axes, sizes = known[site].axes, known[site].sizes
        wanted = (texts[axis] if size is None else size for axis, size in zip(axes, sizes, strict=True))
        assert value.shape == (2, *wanted), site


@EVERYWHERE
def test_fused_attention_equals_explicit_attention(name):
    model = build(name)
    batches = TokenBatch.from_rows(SOURCES), TokenBatch.from_rows(TARGETS, side="left")
    final, looks = "decoder.resid_final", ["*.attn.pattern", "*.cross_attn.pattern"]
    fused = run(model, batches[0], final, target=batches[1])
    explicit = run(model, batches[0], [final, *looks], target=batches[1])
    same(fused[final], explicit[final])
    rows = [explicit[site] for site in explicit.activations if site.endswith("pattern")]
    assert len(rows) == 2 + 3 + 3
    for pattern in rows:
        same(pattern.sum(-1), torch.ones_like(pattern[..., 0]))


# --- padding, order, one target for many sources


@pytest.mark.parametrize(
    ("name", "source_side", "target_side"), pairwise(CONFIGS, ("left", "right"), ("left", "right"))
)
def test_a_padded_pair_equals_the_pair_alone(name, source_side, target_side):
    model = build(name)
    source = TokenBatch.from_rows(SOURCES, side=source_side, pad_id=11)
    target = TokenBatch.from_rows(TARGETS, side=target_side, pad_id=12)
    sites_seen = ["*resid_final", "*.resid_post", "*.cross_attn.pattern"]
    together = run(model, source, sites_seen, target=target)
    for row, ids in enumerate(zip(SOURCES, TARGETS, strict=True)):
        alone = run(model, torch.tensor([ids[0]]), sites_seen, target=torch.tensor([ids[1]]))
        real_source, real_target = source.mask[row], target.mask[row]
        for site, expected in alone.activations.items():
            value = together[site][row]
            if site.endswith("pattern"):
                assert not value[:, :, ~real_source].any()
                same(value[:, real_target][:, :, real_source], expected[0])
            else:
                same(value[real_source if site.startswith("encoder") else real_target], expected[0])


@EVERYWHERE
def test_one_target_is_read_beside_every_source(name):
    model, final = build(name), "decoder.resid_final"
    source = TokenBatch.from_rows(SOURCES)
    one = run(model, source, final, target=torch.tensor([TARGETS[1]]))
    each = run(model, source, final, target=torch.tensor([TARGETS[1]] * 3))
    same(one[final], each[final])


@EVERYWHERE
def test_a_later_target_token_is_not_seen_and_every_source_token_is(name):
    model, final = build(name), "decoder.resid_final"
    source, target = token_ids(1, 6), token_ids(1, 7)

    def unchanged(source: Tensor, target: Tensor) -> list[bool]:
        return torch.isclose(run(model, source, final, target=target)[final][0], before, atol=1e-9).all(-1).tolist()

    before = run(model, source, final, target=target)[final][0]
    other = target.clone()
    other[0, 4] = (other[0, 4] + 1) % 29
    assert unchanged(source, other) == [True] * 4 + [False] * 3
    other = source.clone()
    other[0, 5] = (other[0, 5] + 1) % 29
    assert unchanged(other, target) == [False] * 7


# --- the stream adds up


@EVERYWHERE
def test_every_stream_adds_up_from_its_parts(name):
    model = build(name)
    out = run(model, TokenBatch.from_rows(SOURCES), "*", target=TokenBatch.from_rows(TARGETS, side="left"))
    for stack, config in model.config.stacks.items():
        module, residual = model.stack(stack), out[f"{stack}.embed"]
        for layer, block in enumerate(module.blocks):
            post = config.wiring == "post"

            def at(site: str, where: str = f"{stack}.{layer}.") -> Tensor:
                return out[where + site]

            def plus(norm: torch.nn.Module, before: Tensor, added: Tensor, post: bool = post) -> Tensor:
                return norm(before + added) if post else before + added

            same(at("resid_pre"), residual)
            residual = plus(block.norm_attn, residual, at("attn_out"))
            same(at("resid_mid"), residual)
            if config.cross_attention:
                residual = plus(block.norm_cross, residual, at("cross_attn_out"))
                same(at("resid_cross"), residual)
            residual = plus(block.norm_mlp, residual, at("mlp_out"))
            same(at("resid_post"), residual)
        same(out[f"{stack}.resid_final"], residual if config.wiring == "post" else module.norm(residual))
    if model.output is not None:
        logits = out["decoder.resid_final"] * model.config.output_scale @ model.output.weight.T
        same(out.logits, logits if model.output.bias is None else logits + model.output.bias)


@EVERYWHERE
def test_cross_attention_adds_up_from_its_heads(name):
    model = build(name)
    out = run(model, TokenBatch.from_rows(SOURCES), "*", target=TokenBatch.from_rows(TARGETS, side="left"))
    final = out["encoder.resid_final"]
    for layer, block in enumerate(model.last.blocks):
        cross, config = block.cross_attn, model.last.config
        assert cross is not None
        site = {part: out[f"decoder.{layer}.cross_attn.{part}"] for part in ("k", "v", "pattern", "z")}
        for part, weight, row in (("k", cross.W_K, 0), ("v", cross.W_V, 1)):
            plain = einsum(final, weight, "b key d, head d d_head -> b key head d_head")
            first = (config.n_heads + row * config.kv_heads) * config.d_head
            bias = cross.qkv.bias
            if bias is not None:
                plain = plain + bias[first : first + config.kv_heads * config.d_head].view(config.kv_heads, -1)
            same(site[part], plain)
        values = site["v"].repeat_interleave(config.n_heads // config.kv_heads, -2)
        same(site["z"], einsum(site["pattern"], values, "b head query key, b key head d -> b query head d"))
        written = einsum(site["z"], cross.W_O, "b query head d_head, head d_head d -> b query d")
        written = written if cross.out.bias is None else written + cross.out.bias
        same(out[f"decoder.{layer}.cross_attn_out"], block.cross.write(written))


# --- edits cross over


CROSSING = [
    "encoder.embed",
    "encoder.1.attn.z",
    "encoder.1.attn.pattern",
    "encoder.resid_final",
    "decoder.embed",
    "decoder.1.cross_attn.q",
    "decoder.1.cross_attn.k",
    "decoder.1.cross_attn.v",
    "decoder.1.cross_attn.scores",
    "decoder.1.cross_attn.pattern",
    "decoder.1.cross_attn_out",
    "decoder.1.resid_cross",
]


@pytest.mark.parametrize(("name", "site", "side"), pairwise(CONFIGS, CROSSING, ("left", "right")))
def test_cells_on_a_leading_axis_equal_separate_runs(name, site, side):
    model, final = build(name), "decoder.resid_final"
    source, target = TokenBatch.from_rows(SOURCES, side=side), TokenBatch.from_rows(TARGETS, side=side)
    edits = [lambda value: value, lambda value: -value, lambda value: value * 0.25]
    stacked = run(
        model, source, final, {site: lambda value: torch.stack([edit(value) for edit in edits])}, target=target
    )
    assert stacked[final].shape == (3, 3, 5, 19)
    for cell, edit in zip(stacked[final], edits, strict=True):
        same(cell, run(model, source, final, {site: edit}, target=target)[final])
    assert not torch.allclose(stacked[final][0], stacked[final][1])


@EVERYWHERE
def test_patching_a_run_with_itself_changes_not_one_bit(name):
    model = build(name)
    batches = TokenBatch.from_rows(SOURCES), TokenBatch.from_rows(TARGETS)
    clean = run(model, batches[0], "*", target=batches[1])
    for site in CROSSING:
        again = run(model, batches[0], "*", {site: patch(clean[site])}, target=batches[1])
        assert all(torch.equal(again[other], clean[other]) for other in clean.activations), site


def test_the_whole_source_of_another_run_gives_that_run():
    model, target = build("original"), token_ids(2, 5, seed=3)
    one, other = (run(model, token_ids(2, 6, seed=seed), "encoder.resid_final", target=target) for seed in (1, 2))
    swapped = {"encoder.resid_final": patch(other["encoder.resid_final"])}
    assert torch.equal(run(model, one.tokens, edit=swapped, target=target).logits, other.logits)


def test_without_what_cross_attention_writes_the_source_does_not_matter():
    model, target = build("buckets"), token_ids(2, 5)
    silent = {"decoder.*.cross_attn.z": zero()}
    one, other = (run(model, token_ids(2, 6, seed=seed), edit=silent, target=target).logits for seed in (1, 2))
    assert torch.equal(one, other)


# --- weights that are one


def test_shared_embeddings_and_a_tied_output_are_one_parameter():
    model = build("original")
    shared = model.stack("encoder").embed.token.weight
    assert model.last.embed.token.weight is shared
    assert model.output is not None
    assert model.output.weight is shared
    apart = build("learned")
    assert apart.last.embed.token.weight.shape == (29, 19)
    assert apart.stack("encoder").embed.token.weight.shape == (31, 19)


def test_all_layers_of_a_stack_share_one_table_of_distances():
    model = build("buckets")
    tables = [name for name, _ in model.named_parameters() if name.endswith("bias.table.weight")]
    assert tables == [f"stacks.{stack}.blocks.0.attn.bias.table.weight" for stack in ("encoder", "decoder")]


# --- what a user can get wrong


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (token_ids(2, 3), None, "an encoder and a decoder: give target=.*start id 2"),
        (token_ids(3, 3), token_ids(2, 3), "one target for each of 3 texts, or one for all; got 2"),
        (token_ids(1, 18), token_ids(1, 3), "18 tokens is longer than the model's context of 17"),
        (token_ids(1, 3), token_ids(1, 12), "12 tokens is longer than the model's context of 11"),
        (torch.tensor([[31]]), token_ids(1, 3), "0-30, the model's vocabulary; got 31"),
        (torch.tensor([[30]]), torch.tensor([[30]]), "0-28, the model's vocabulary; got 30"),
        (token_ids(1, 3), "text", "no tokenizer for its decoder"),
        ("text", token_ids(1, 3), "no tokenizer"),
    ],
)
def test_sources_and_targets_that_do_not_fit(source, target, message):
    with pytest.raises(InputError, match=message):
        run(build("learned"), source, target=target)


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_a_single_stack_wants_no_target(kind):
    stack = replace(ENCODER, causal=kind == "decoder")
    model = Transformer(TransformerConfig(**{kind: stack}))
    with pytest.raises(InputError, match=r"one stack.*expected no target"):
        run(model, token_ids(1, 3), target=token_ids(1, 3))


@pytest.mark.parametrize(
    ("encoder", "decoder", "settings", "message"),
    [
        ({"causal": True}, {}, {}, "expected causal=False"),
        ({"cross_attention": True}, {}, {}, "no cross-attention"),
        ({}, {"causal": False}, {}, "expected causal=True"),
        ({}, {"cross_attention": False}, {}, "expected cross_attention=True"),
        ({"d_model": 17}, {}, {}, "expected one d_model, got 17 in the encoder and 19 in the decoder"),
        ({}, {}, {"shared_embedding": True}, "d_vocab differ"),
    ],
)
def test_stacks_that_do_not_fit_together(encoder, decoder, settings, message):
    decoding = {"causal": True, "cross_attention": True} | decoder
    with pytest.raises(InputError, match=message):
        TransformerConfig(encoder=replace(ENCODER, **encoder), decoder=replace(DECODER, **decoding), **settings)

"""The transformer adds up, sees only what it may, and changes exactly where it is edited: one stack or two.

In the models of two stacks encoder and decoder differ in every size that may differ, so that neither passes for the
other.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from covering import pairwise
from einops import einsum
from tiny import GPT2, LLAMA, STACKS, model, randomise, token_ids
from torch import Tensor
from torch.testing import assert_close

from interp import (
    InputError,
    Run,
    StackConfig,
    TokenBatch,
    Transformer,
    TransformerConfig,
    patch,
    put,
    run,
    scale,
    sites,
    zero,
)
from interp.cache import growing_cache
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
from interp.parts import build_norm
from interp.positions import rotate, sinusoids
from interp.visibility import Visibility

ENCODER = StackConfig(
    n_layers=2, d_model=19, n_heads=3, d_head=5, d_mlp=23, n_ctx=17, d_vocab=31, causal=False, wiring="post"
)
DECODER = replace(
    ENCODER, n_layers=3, n_heads=2, d_head=7, d_mlp=13, n_ctx=11, d_vocab=29, causal=True, cross_attention=True
)
ORIGINAL = {"positions": Sinusoidal(), "mlp": Plain("relu"), "embedding_scale": 19**0.5, "d_vocab": 29}
BUCKETED = {"positions": Buckets(n_buckets=7, max_distance=9), "norm": RMSNorm(1e-6), "wiring": "pre", "d_vocab": 29}
BUCKETED |= {"mlp": Plain("relu", bias=False), "attention_bias": False, "scale": 1.0}
MODERN = {"positions": Rotary(), "norm": RMSNorm(1e-5), "mlp": Gated("silu"), "qk_norm": "head"}
MODERN |= {"n_heads": 6, "n_kv_heads": 2, "d_head": 4}


def pair(encoder: dict, decoder: dict, **settings) -> TransformerConfig:
    return TransformerConfig(
        encoder=replace(ENCODER, **encoder), decoder=replace(DECODER, **decoder), target_start=2, **settings
    )


TWO = {
    "original": pair(ORIGINAL, ORIGINAL, output="tied", shared_embedding=True),
    "learned": pair(
        {"embedding_norm": True}, {"positions": Learned(first=2), "embedding_norm": True}, output_bias=True
    ),
    "buckets": pair(BUCKETED, BUCKETED, output="tied", shared_embedding=True, output_scale=19**-0.5),
    "modern": pair(MODERN | {"wiring": "sandwich"}, MODERN | {"wiring": "pre", "norm": LayerNorm()}),
    "after": pair({"wiring": "after"}, {"wiring": "after", "n_kv_heads": 1}, output="none"),
}
MODELS = [*STACKS, *TWO]
EVERYWHERE = pytest.mark.parametrize("name", MODELS)
SOURCES, TARGETS = [[3, 1, 4, 1, 5, 9, 2], [6, 5, 3], [8]], [[2, 7], [2, 1, 8, 2, 8], [2, 4, 6]]
BATCHES = {
    "whole": (TokenBatch.from_ids(token_ids(3, 7)), TokenBatch.from_ids(token_ids(3, 5))),
    "right": (TokenBatch.from_rows(SOURCES, pad_id=7), TokenBatch.from_rows(TARGETS, pad_id=12, side="left")),
    "left": (TokenBatch.from_rows(SOURCES, pad_id=7, side="left"), TokenBatch.from_rows(TARGETS, pad_id=12)),
}
PADDED = pytest.mark.parametrize("padding", BATCHES)


def build(name: str) -> Transformer:
    if name in STACKS:
        return model(name)
    built = Transformer(TWO[name]).double()
    randomise(built)
    return built


def ask(built: Transformer, padding: str = "whole", capture="*", edit=None) -> Run:
    source, target = BATCHES[padding]
    return run(built, source, capture, edit, target=target if len(built.config.stacks) > 1 else None)


def final_of(built: Transformer) -> str:
    return f"{[*built.config.stacks][-1]}.resid_final"


def same(one: Tensor, other: Tensor) -> None:
    """Equal up to the rounding of float64; RMSNorm takes some in float32."""
    assert_close(one, other, atol=1e-10, rtol=1e-9)


# --- what the parts compute, by hand


def test_rotation_turns_pairs_by_their_position():
    x = torch.tensor([1.0, 0.0, 0.0, 1.0]).expand(1, 2, 1, 4)  # pairs (0, 2) and (1, 3)
    out = rotate(x, torch.tensor([[0, 3]]), Rotary(base=9.0))[0, :, 0]
    fast, slow = 3.0, 3.0 / 9.0**0.5
    turned = torch.tensor([math.cos(fast), -math.sin(slow), math.sin(fast), math.cos(slow)])
    assert_close(out, torch.stack([x[0, 0, 0], turned]))


def test_rotated_scores_depend_on_distance_alone():
    built, batch = model("llama"), BATCHES["whole"][0]
    moved = TokenBatch(batch.ids, batch.mask, batch.positions + 4)
    near, far = (run(built, each, capture="decoder.*.attn.scores") for each in (batch, moved))
    for site, value in near.activations.items():
        assert_close(far[site], value, atol=1e-5, rtol=1e-5)  # angles are float32 at every precision


def test_sinusoids_are_those_of_the_paper():
    table = sinusoids(torch.arange(3), 5, Sinusoidal(100.0))
    second = [math.sin(2), math.cos(2), math.sin(2 / 100**0.4), math.cos(2 / 100**0.4), math.sin(2 / 100**0.8)]
    assert_close(table[2], torch.tensor(second))


def test_rms_norm_divides_by_the_root_mean_square():
    norm = build_norm(RMSNorm(eps=0.5), 2)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([2.0, -1.0]))
    assert_close(norm(torch.tensor([3.0, 4.0])), torch.tensor([6.0, -4.0]) / math.sqrt(12.5 + 0.5))


def by_hand() -> Transformer:
    """One head everywhere, two dimensions, no norms: every number below can be derived with a pencil."""
    nothing = {"norm": NoNorm(), "positions": NoPositions(), "mlp": NoMLP(), "attention_bias": False, "scale": 1.0}
    sizes = {"n_layers": 1, "d_model": 2, "n_heads": 1, "d_head": 1, "d_mlp": 1, "n_ctx": 9}
    plain = StackConfig(**sizes, d_vocab=2, causal=False, **nothing)
    decoder = replace(plain, causal=True, cross_attention=True, d_vocab=3)
    built = Transformer(TransformerConfig(encoder=plain, decoder=decoder)).double()
    encoder, decoding = built.stack("encoder"), built.stack("decoder")
    with torch.no_grad():
        for weight in built.parameters():
            weight.zero_()
        encoder.embed.token.weight.copy_(torch.eye(2))  # A is (1, 0), B is (0, 1)
        attn = encoder.blocks[0].attn
        attn.W_V[0, 1, 0], attn.W_O[0, 0, 1] = 1.0, 2.0  # all see all alike: twice the share of B, into dimension 1
        decoding.embed.token.weight[0, 0] = 1.0  # S is (1, 0), the others (0, 0)
        attn = decoding.blocks[0].attn
        attn.W_V[0, 0, 0], attn.W_O[0, 0, 1] = 1.0, 1.0  # the share of S so far, into dimension 1
        cross = decoding.blocks[0].cross_attn
        cross.W_Q[0, 1, 0], cross.W_K[0, 0, 0] = 2 * math.log(2), 1.0  # asks for A, as strongly as S was seen
        cross.W_V[0, 1, 0], cross.W_O[0, 0, 0] = 1.0, 1.0  # brings dimension 1 of the source into dimension 0
        built.output.weight.copy_(torch.tensor([[1, 0], [0, 1], [1, 1]]))
    return built


@pytest.mark.parametrize("rows", [[[0, 1]], [[0, 1], [0] * 5]])
def test_two_stacks_by_hand(rows):
    out = run(by_hand(), TokenBatch.from_rows(rows, side="left"), "*", target=torch.tensor([[0, 1]]))
    expected = {
        "encoder.resid_final": (slice(-2, None), [[1.0, 1.0], [0.0, 2.0]]),
        "decoder.0.resid_mid": (slice(None), [[1.0, 1.0], [0.0, 0.5]]),
        "decoder.0.cross_attn.pattern": ((0, slice(None), slice(-2, None)), [[4 / 5, 1 / 5], [2 / 3, 1 / 3]]),
        "decoder.0.cross_attn_out": ((slice(None), 0), [6 / 5, 4 / 3]),
        "logits": (slice(None), [[11 / 5, 1, 16 / 5], [4 / 3, 1 / 2, 11 / 6]]),
    }
    for site, (part, numbers) in expected.items():
        assert_close(out[site][0][part], torch.tensor(numbers).double(), msg=site)
    assert not out["decoder.0.cross_attn.pattern"][0, 0, :, :-2].any()


# --- everything adds up


@EVERYWHERE
def test_sites_are_exactly_what_a_run_passes_in_order(name):
    built = build(name)
    out, known = ask(built), sites(built)
    assert list(out.activations) == list(known)
    for site, value in out.activations.items():
        own = 7 if site.startswith("encoder") or name in STACKS else 5
        keys = 7 if "cross_attn" in site else own
        texts = {"position": keys if site.endswith((".k", ".v", "rot_k")) else own, "query": own, "key": keys}
        wanted = [texts[axis] if size is None else size for axis, size in zip(known[site].axes, known[site].sizes)]  # noqa: B905
        assert value.shape == (3, *wanted), site


@EVERYWHERE
@PADDED
def test_every_stream_adds_up_from_its_parts(name, padding):
    built = build(name)
    out = ask(built, padding)
    for stack, config in built.config.stacks.items():
        module, residual = built.stack(stack), out[f"{stack}.embed"]
        for layer, block in enumerate(module.blocks):
            at = f"{stack}.{layer}."
            same(out[f"{at}resid_pre"], residual)
            parts = [("attn_out", "resid_mid", block.norm_attn)]
            parts += [("cross_attn_out", "resid_cross", block.norm_cross)] if config.cross_attention else []
            parts += [("mlp_out", "resid_post", block.norm_mlp)] if block.mlp is not None else []
            for part, after, norm in parts:
                residual = residual + out[at + part]
                residual = norm(residual) if config.wiring == "post" else residual
                same(out[at + after], residual)
            same(out[f"{at}resid_post"], residual)
        same(out[f"{stack}.resid_final"], module.norm(residual))
    if built.output is not None:
        logits = out[final_of(built)] * built.config.output_scale @ built.output.weight.T
        same(out.logits, logits if built.output.bias is None else logits + built.output.bias)
        assert torch.equal(out.logits, out["logits"])


def attentions(built: Transformer, out: Run) -> Iterator[tuple]:
    """Every attention, the prefix of its sites, and what queries and keys are made of."""
    for stack in built.config.stacks:
        for layer, block in enumerate(built.stack(stack).blocks):
            at = f"{stack}.{layer}."
            x = block.attention.read(out[f"{at}resid_pre"])
            yield block.attention, f"{at}attn", x, x
            if block.cross_attn is not None:
                yield (
                    block.cross,
                    f"{at}cross_attn",
                    block.cross.read(out[f"{at}resid_mid"]),
                    out["encoder.resid_final"],
                )


@EVERYWHERE
@PADDED
def test_attention_adds_up_from_its_heads(name, padding):
    built = build(name)
    out = ask(built, padding)
    for sublayer, at, x, keys in attentions(built, out):
        attn, config = sublayer.layer, sublayer.layer.config
        site = {part: out[f"{at}.{part}"] for part in ("q", "k", "v", "scores", "pattern", "z")}
        for part, read in (("q", x), ("k", keys), ("v", keys)):
            made = einsum(read, getattr(attn, f"W_{part.upper()}"), "b p d, head d d_head -> b p head d_head")
            same(site[part], made + getattr(attn, f"b_{part.upper()}") if config.attention_bias else made)
        same(site["scores"].softmax(-1), site["pattern"])
        values = site["v"].repeat_interleave(config.n_heads // config.kv_heads, -2)
        same(site["z"], einsum(site["pattern"], values, "b head query key, b key head d -> b query head d"))
        results = einsum(site["z"], attn.W_O, "b p head d_head, head d_head d -> b p d")
        same(out[f"{at}_out"], sublayer.write(results if attn.out.bias is None else results + attn.out.bias))


def test_scores_are_scaled_and_masked():
    out = run(model("sinusoidal"), token_ids(1, 5), capture="decoder.0.attn.*")
    q, k, scores = (out[f"decoder.0.attn.{part}"] for part in ("q", "k", "scores"))
    below = torch.ones(5, 5, dtype=torch.bool).tril()
    same(scores[0, 1][below], (q[0, :, 1] @ k[0, :, 1].T * 0.3)[below])
    assert torch.equal(scores[0, 1] == -torch.inf, ~below)


@EVERYWHERE
@PADDED
def test_fused_attention_equals_the_explicit_pattern(name, padding):
    built, final = build(name), final_of(build(name))
    fused, explicit = (ask(built, padding, capture)[final] for capture in (final, [final, "*.pattern"]))
    same(fused, explicit)
    assert bool(fused.isfinite().all())


def test_the_pattern_is_made_only_when_someone_looks(monkeypatch):
    calls, kernel = [], torch.nn.functional.scaled_dot_product_attention
    counted = lambda *given, **named: calls.append(1) or kernel(*given, **named)  # noqa: E731
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counted)
    built = model("gpt2")
    run(built, token_ids(1, 5), capture="decoder.*.attn.z")
    assert len(calls) == 2
    run(built, token_ids(1, 5), capture="decoder.0.attn.pattern", edit={"decoder.1.attn.scores": scale(2.0)})
    assert len(calls) == 2


# --- who sees whom


@pytest.mark.parametrize(("name", "source_side", "target_side"), pairwise(MODELS, ("left", "right"), ("left", "right")))
def test_a_text_among_others_is_what_it_is_alone(name, source_side, target_side):
    built = build(name)
    batches = [
        TokenBatch.from_rows(rows, side=side, pad_id=11)
        for rows, side in ((SOURCES, source_side), (TARGETS, target_side))
    ]
    batches = batches[: len(built.config.stacks)]
    capture = ["*resid_final", "*.resid_post", "*.pattern"]
    together = run(built, batches[0], capture, target=None if name in STACKS else batches[1])
    for row in range(3):
        alone = run(built, *([torch.tensor([rows[row]]) for rows in [SOURCES]]), capture,
                    target=None if name in STACKS else torch.tensor([TARGETS[row]]))  # fmt: skip
        masks = [batch.mask[row] for batch in batches]
        for site, expected in alone.activations.items():
            value, own = together[site][row], masks[0 if site.startswith("encoder") else -1]
            if site.endswith("pattern"):
                keys = masks[0] if "cross_attn" in site else own
                assert not value[:, own][:, :, ~keys].any()
                same(value[:, own][:, :, keys], expected[0])
            else:
                same(value[own], expected[0])


@EVERYWHERE
def test_a_later_token_is_seen_by_encoders_only(name):
    built, final = build(name), final_of(build(name))
    two, source, target = name in TWO, token_ids(1, 7), token_ids(1, 7, seed=1)

    def changed(source: Tensor, target: Tensor) -> list[bool]:
        found, before = (run(built, *given[:1], final, target=given[1] if two else None)[final][0]
                         for given in ((source, target), unchanged))  # fmt: skip
        return (~torch.isclose(found, before, atol=1e-9).all(-1)).tolist()

    unchanged = source, target
    other = torch.where(torch.arange(7) == 5, (source + 1) % 29, source)
    later = torch.where(torch.arange(7) == 5, (target + 1) % 29, target)
    if two:
        assert changed(source, later) == [False] * 5 + [True] * 2
    assert changed(other, target) == ([False] * 5 + [True] * 2 if built.last.config.causal and not two else [True] * 7)


def test_texts_are_independent_of_their_order():
    built, ids, order = model("llama"), token_ids(4, 6), torch.tensor([2, 0, 3, 1])
    same(run(built, ids[order]).logits, run(built, ids).logits[order])


@pytest.mark.parametrize("name", TWO)
def test_one_target_is_read_beside_every_source(name):
    built, final, source = build(name), "decoder.resid_final", BATCHES["right"][0]
    one, each = (run(built, source, final, target=torch.tensor(TARGETS[1:2] * times))[final] for times in (1, 3))
    same(one, each)


@pytest.mark.parametrize(
    ("name", "first", "padding"),
    pairwise(("gpt2", "llama", "sinusoidal", "no positions"), (4, 6), BATCHES),
)
def test_the_cache_continues_where_a_run_stopped(name, first, padding):
    stack, batch = model(name).last, BATCHES[padding][0]
    residual = stack.embed(batch.ids, batch.positions)
    whole = stack.resume(residual, Visibility.of(batch, causal=True))
    growing = growing_cache(stack.config)
    start = TokenBatch(batch.ids[:, :first], batch.mask[:, :first], batch.positions[:, :first])
    stack.resume(residual[:, :first], Visibility.of(start, causal=True), past=growing)
    rest = stack.resume(residual[:, first:], Visibility.of(batch, causal=True, first=first), past=growing)
    same(rest[batch.mask[:, first:]], whole[:, first:][batch.mask[:, first:]])


# --- weights


@pytest.mark.parametrize("part", ["W_Q", "W_K", "W_V", "W_O"])
def test_editing_a_view_edits_the_model(part):
    built, ids = model("llama"), token_ids(1, 5)
    weight, site = getattr(built.last.blocks[1].attn, part), f"decoder.1.attn.{part[-1].lower()}"
    assert weight.shape == {"W_O": (6, 14, 19), "W_Q": (6, 19, 14)}.get(part, (2, 19, 14))
    before = run(built, ids, capture="decoder.1.attn*").activations
    with torch.no_grad():
        weight[1] *= 3
    after = run(built, ids, capture="decoder.1.attn*").activations
    if part == "W_O":
        added = before["decoder.1.attn.z"][:, :, 1] @ weight[1] * 2 / 3
        same(after["decoder.1.attn_out"], before["decoder.1.attn_out"] + added)
    else:
        factor = torch.ones(len(weight), 1, dtype=torch.float64)
        factor[1] = 3
        same(after[site], before[site] * factor)


def test_what_is_tied_or_shared_is_one_parameter():
    tied, shared, apart = model("llama", output="tied"), build("original"), build("learned")
    assert tied.output.weight is tied.last.embed.token.weight
    assert shared.output.weight is shared.last.embed.token.weight is shared.stack("encoder").embed.token.weight
    assert apart.last.embed.token.weight.shape == (29, 19)
    assert apart.stack("encoder").embed.token.weight.shape == (31, 19)
    tables = [name for name, _ in build("buckets").named_parameters() if name.endswith("bias.table.weight")]
    assert tables == [f"stacks.{stack}.blocks.0.attn.bias.table.weight" for stack in ("encoder", "decoder")]


# --- reading and editing


def test_globs_capture_what_they_match():
    out = run(model("gpt2"), token_ids(1, 3), capture=["decoder.*.attn.z", "decoder.1.mlp_out"])
    assert list(out.activations) == ["decoder.0.attn.z", "decoder.1.attn.z", "decoder.1.mlp_out"]


def test_a_run_keeps_gradients_only_when_asked():
    built, ids = model("gpt2"), token_ids(1, 3)
    assert not run(built, ids).logits.requires_grad
    out = run(built, ids, capture="decoder.0.attn.z", grad=True)
    (grad,) = torch.autograd.grad(out.logits[0, -1, 0], out["decoder.0.attn.z"])
    assert bool(grad.any())


def test_a_run_leaves_nothing_behind():
    built, ids = model("llama"), token_ids(2, 5)
    before = run(built, ids).logits
    assert not torch.allclose(run(built, ids, capture="*", edit={"decoder.0.attn.z": zero()}).logits, before)
    assert torch.equal(run(built, ids).logits, before)


EDITABLE = ["embed", "resid_final"]
EDITABLE += [f"1.resid_{place}" for place in ("pre", "mid", "post", "cross")]
EDITABLE += [f"1.{site}" for site in ("attn_out", "cross_attn_out", "mlp.pre", "mlp.post", "mlp_out")]
EDITABLE += [
    f"1.{kind}.{part}" for kind in ("attn", "cross_attn") for part in ("q", "k", "v", "scores", "pattern", "z")
]
SITES = {name: {*build(name).sites} for name in ("gpt2", "llama", "bert", *TWO)}
PLACES = [f"{stack}.{site}" for stack in ("encoder", "decoder") for site in EDITABLE]


@pytest.mark.parametrize(
    ("place", "name", "padding"),
    pairwise(PLACES, SITES, BATCHES, possible=lambda place, name, padding: place in SITES[name]),
)
def test_cells_on_a_leading_axis_equal_separate_runs(place, name, padding):
    built, final = build(name), final_of(build(name))
    edits = [lambda value: value, lambda value: -value, lambda value: value * 0.25]
    together = ask(built, padding, final, {place: lambda value: torch.stack([edit(value) for edit in edits])})[final]
    assert together.shape[0] == len(edits)
    for cell, edit in zip(together, edits, strict=True):
        same(cell, ask(built, padding, final, {place: edit})[final])
    assert not torch.allclose(together[0], together[1])


@pytest.mark.parametrize("name", SITES)
@PADDED
def test_patching_a_run_with_itself_changes_not_one_bit(name, padding):
    built = build(name)
    clean = ask(built, padding)
    for site in [site for site in PLACES if site in SITES[name]]:
        again = ask(built, padding, "*", {site: patch(clean[site])})
        assert all(torch.equal(again[other], clean[other]) for other in clean.activations), site


@pytest.mark.parametrize(("name", "site"), [("gpt2", "decoder.1.resid_pre"), ("original", "encoder.resid_final")])
def test_patching_the_whole_stream_gives_the_other_run(name, site):
    built, target = build(name), None if name in STACKS else token_ids(2, 5, seed=3)
    one, other = (run(built, token_ids(2, 6, seed=seed), site, target=target) for seed in (1, 2))
    assert torch.equal(run(built, one.tokens, edit={site: patch(other[site])}, target=target).logits, other.logits)


def test_without_what_cross_attention_writes_the_source_does_not_matter():
    built, silent = build("buckets"), {"decoder.*.cross_attn.z": zero()}
    one, other = (run(built, token_ids(2, 6, seed=seed), edit=silent, target=token_ids(2, 5)).logits for seed in (1, 2))
    assert torch.equal(one, other)


REGIONS = [
    ({}, (slice(None), slice(None), slice(None))),
    ({"head": 1}, (slice(None), slice(None), 1)),
    ({"head": -1, "position": 2}, (slice(None), 2, 2)),
    ({"head": [0, 2], "position": slice(1, 3)}, (slice(None), slice(1, 3), [0, 2])),
    ({"head": [0, 2], "position": [0, 3, 4]}, (slice(None), [[0], [3], [4]], [[0, 2]])),
]


@pytest.mark.parametrize(("where", "region"), REGIONS, ids=[str(where) for where, _ in REGIONS])
def test_ready_made_edits_change_their_region_alone(where, region):
    built, site, ids, vector = model("gpt2"), "decoder.0.attn.z", token_ids(2, 5), torch.arange(5.0).double()
    before, other = (run(built, given, capture=site)[site] for given in (ids, token_ids(2, 5, seed=1)))
    changes = [
        (zero(**where), torch.zeros_like(before)),
        (put(0.5, **where), torch.full_like(before, 0.5)),
        (put(vector, **where), vector.expand_as(before)),
        (scale(-3.0, **where), before * -3),
        (patch(other, **where), other),
    ]
    for edit, value in changes:
        expected = before.clone()
        expected[region] = value[region]
        assert torch.equal(run(built, ids, site, {site: edit})[site], expected)
        assert not torch.equal(expected, before)


def test_a_glob_edits_every_site_that_it_matches():
    out = run(model("gpt2"), token_ids(1, 4), "*.attn.z", {"decoder.*.attn.z": zero(head=0)})
    for layer in range(2):
        assert not out[f"decoder.{layer}.attn.z"][:, :, 0].any()
        assert out[f"decoder.{layer}.attn.z"][:, :, 1:].all()


# --- what a user can get wrong

Z = "decoder.0.attn.z"
WRONG = [
    ({"capture": "decoder.12.attn.z"}, "no site 'decoder.12.attn.z': this model has decoder layers 0-1"),
    ({"capture": "encoder.*.attn.z"}, "no site"),
    ({"capture": "decoder.0.attn.patern"}, "did you mean 'decoder.0.attn.pattern'"),
    ({"edit": {"decoder.2.resid_pre": zero()}}, "no site 'decoder.2.resid_pre'"),
    ({"edit": {Z: zero(head=3)}}, "no head 3 at decoder.0.attn.z: it has head 0-2"),
    ({"edit": {Z: zero(head=[0, -4])}}, "no head -4"),
    ({"edit": {Z: zero(query=0)}}, "no axis 'query': its axes are position, head, d_head"),
    ({"edit": {Z: zero(position=9)}}, "decoder.0.attn.z: no position 9 in prompt 0: it has position 0-4"),
    ({"edit": {Z: put(torch.ones(4))}}, "cannot edit decoder.0.attn.z"),
    ({"edit": {Z: patch(torch.ones(1, 4, 3, 5))}}, "cannot edit decoder.0.attn.z"),
    ({"edit": {Z: lambda z: z[:, 1:]}}, r"must keep its shape \(1, 5, 3, 5\).*got \(1, 4, 3, 5\)"),
    ({"edit": {Z: lambda z: z.sum(-1)}}, "must keep its shape"),
    ({"tokens": "text"}, "no tokenizer"),
    ({"tokens": ["text", "text"]}, "no tokenizer"),
    ({"tokens": token_ids(1, 14)}, "14 tokens is longer than the model's context of 13"),
    ({"tokens": torch.tensor([[0, 29]])}, r"0-28.*got 0 to 29"),
    ({"tokens": torch.tensor([[-1, 2]])}, "got -1 to 2"),
    ({"tokens": torch.ones(1, 3)}, "expected integer ids"),
    ({"tokens": torch.ones(1, 0, dtype=torch.long)}, "not empty"),
    ({"tokens": torch.ones(1, 2, 3, dtype=torch.long)}, "prompt x position"),
    ({"target": token_ids(1, 3)}, "one stack.*expected no target"),
    ({"model": "bert", "target": token_ids(1, 3)}, "one stack.*expected no target"),
    ({"model": "learned"}, "an encoder and a decoder: give target=.*start id 2"),
    ({"model": "learned", "tokens": token_ids(3, 3), "target": token_ids(2, 3)}, "target for each of 3 texts.*got 2"),
    ({"model": "learned", "tokens": token_ids(1, 18), "target": token_ids(1, 3)}, "18 tokens .* context of 17"),
    ({"model": "learned", "target": token_ids(1, 12)}, "12 tokens is longer than the model's context of 11"),
    ({"model": "learned", "tokens": torch.tensor([[31]]), "target": token_ids(1, 3)}, "0-30.*; got 31"),
    ({"model": "learned", "target": torch.tensor([[30]])}, "0-28, the model's vocabulary; got 30"),
    ({"model": "learned", "target": "text"}, "no tokenizer for its decoder"),
    ({"model": "learned", "tokens": "text", "target": token_ids(1, 3)}, "no tokenizer"),
]


@pytest.mark.parametrize(("settings", "message"), WRONG)
def test_what_does_not_exist_or_fit_is_named(settings, message):
    settings = {"model": "gpt2", "tokens": token_ids(1, 5), **settings}
    with pytest.raises(InputError, match=message) as caught:
        run(build(settings.pop("model")), **settings)
    assert "\n" not in str(caught.value)


def test_an_edit_that_never_fires_is_an_error():
    built = model("gpt2")
    built.last.blocks = built.last.blocks[:1]
    with pytest.raises(InputError, match=r"never fired: decoder\.1\.attn\.z"):
        run(built, token_ids(1, 5), edit={"decoder.1.attn.z": zero()})


def test_reading_what_is_not_there_says_what_is():
    out = run(model("gpt2"), token_ids(1, 5), capture=Z)
    with pytest.raises(InputError, match=r"was not captured.*did you mean 'decoder\.0\.attn\.z'"):
        _ = out["decoder.1.attn.z"]
    with pytest.raises(InputError, match="captured: nothing"):
        _ = run(model("gpt2"), token_ids(1, 5))["logits"]
    with pytest.raises(InputError, match="no output layer"):
        _ = run(model("bert"), token_ids(1, 5)).logits


BERT = STACKS["bert"]
MISFITS = [
    (lambda: replace(GPT2, n_layers=0), "n_layers must be at least 1"),
    (lambda: replace(GPT2, n_heads=3, n_kv_heads=2), "3 query heads cannot share 2"),
    (lambda: replace(GPT2, d_head=5, positions=Rotary()), "d_head must be even"),
    (TransformerConfig, "expected a decoder, an encoder, or both"),
    (lambda: TransformerConfig(decoder=GPT2, encoder=BERT), "expected cross_attention=True"),
    (lambda: TransformerConfig(encoder=LLAMA), "expected causal=False"),
    (lambda: TransformerConfig(decoder=BERT), "expected causal=True"),
    (lambda: pair({"causal": True}, {}), "expected causal=False"),
    (lambda: pair({"cross_attention": True}, {}), "no cross-attention"),
    (lambda: pair({}, {"causal": False}), "expected causal=True"),
    (lambda: pair({}, {"cross_attention": False}), "expected cross_attention=True"),
    (lambda: pair({"d_model": 17}, {}), "expected one d_model, got 17 in the encoder and 19 in the decoder"),
    (lambda: pair({}, {}, shared_embedding=True), "d_vocab differ"),
]


@pytest.mark.parametrize(("make", "message"), MISFITS, ids=[message for _, message in MISFITS])
def test_sizes_and_stacks_that_do_not_fit_together(make, message):
    with pytest.raises(InputError, match=message):
        make()

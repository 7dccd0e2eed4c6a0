"""The transformer adds up, sees only what it may, and changes exactly where it is edited."""

import math
from dataclasses import replace

import pytest
import torch
from covering import pairwise
from einops import einsum, rearrange
from tiny import GPT2, LLAMA, STACKS, model, token_ids
from torch import Tensor
from torch.testing import assert_close

from interp import InputError, TokenBatch, Transformer, TransformerConfig, patch, put, run, scale, sites, zero
from interp.cache import growing_cache
from interp.config import RMSNorm, Rotary, Sinusoidal
from interp.parts import build_norm
from interp.positions import rotate, sinusoids
from interp.sight import Sight

EVERYWHERE = pytest.mark.parametrize("name", STACKS)
ROWS = [[3, 1, 4, 1, 5, 9, 2], [6, 5, 3], [8]]
BATCHES = {
    "whole": TokenBatch.from_ids(token_ids(3, 7)),
    "right": TokenBatch.from_rows(ROWS),
    "left": TokenBatch.from_rows(ROWS, side="left"),
}
BATCHED = pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)


def same(one: Tensor, other: Tensor) -> None:
    """Equal up to the rounding of float64."""
    assert_close(one, other, atol=1e-12, rtol=1e-9)


def stack_of(transformer: Transformer) -> str:
    return next(iter(transformer.config.stacks))


def final_of(transformer: Transformer) -> str:
    return f"{stack_of(transformer)}.resid_final"


# --- what the parts compute, by hand


def test_rotation_turns_pairs_by_their_position():
    x = torch.tensor([1.0, 0.0, 0.0, 1.0]).expand(1, 2, 1, 4)  # pairs (0, 2) and (1, 3)
    out = rotate(x, torch.tensor([[0, 3]]), Rotary(base=9.0))[0, :, 0]
    assert_close(out[0], x[0, 0, 0])
    fast, slow = 3.0, 3.0 / 9.0**0.5
    assert_close(out[1], torch.tensor([math.cos(fast), -math.sin(slow), math.sin(fast), math.cos(slow)]))


def test_rotated_scores_depend_on_distance_alone():
    transformer, ids = model("llama"), token_ids(2, 7)
    near = run(transformer, ids, capture="decoder.*.attn.scores")
    batch = TokenBatch.from_ids(ids)
    moved = TokenBatch(batch.ids, batch.mask, batch.positions + 4)
    far = run(transformer, moved, capture="decoder.*.attn.scores")
    for site, value in near.activations.items():
        assert_close(far[site], value, atol=1e-5, rtol=1e-5)  # angles are float32 at every precision


def test_sinusoids_are_those_of_the_paper():
    table = sinusoids(torch.arange(3), 5, Sinusoidal(100.0))
    assert table.shape == (3, 5)
    second = [math.sin(2), math.cos(2), math.sin(2 / 100**0.4), math.cos(2 / 100**0.4), math.sin(2 / 100**0.8)]
    assert_close(table[2], torch.tensor(second))


def test_rms_norm_divides_by_the_root_mean_square():
    norm = build_norm(RMSNorm(eps=0.5), 2)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([2.0, -1.0]))
    assert_close(norm(torch.tensor([3.0, 4.0])), torch.tensor([6.0, -4.0]) / math.sqrt(12.5 + 0.5))


# --- the stream adds up from its parts


@EVERYWHERE
@BATCHED
def test_every_stream_adds_up_from_its_parts(name, batch):
    transformer = model(name)
    out, stack, module = run(transformer, batch, capture="*"), stack_of(transformer), transformer.last
    residual = out[f"{stack}.embed"]
    for layer, block in enumerate(module.blocks):
        norm_attn, norm_mlp = (
            (block.norm_attn, block.norm_mlp) if module.config.wiring == "post" else (torch.nn.Identity(),) * 2
        )

        def at(site: str, layer=layer) -> Tensor:
            return out[f"{stack}.{layer}.{site}"]

        same(at("resid_pre"), residual)
        same(at("resid_mid"), norm_attn(residual + at("attn_out")))
        if block.mlp is None:
            same(at("resid_post"), at("resid_mid"))
        else:
            same(at("resid_post"), norm_mlp(at("resid_mid") + at("mlp_out")))
        residual = at("resid_post")
    same(out[final_of(transformer)], module.norm(residual))
    if transformer.output is not None:
        same(out.logits, out[final_of(transformer)] @ transformer.output.weight.T)
        assert torch.equal(out.logits, out["logits"])


@EVERYWHERE
@BATCHED
def test_attention_adds_up_from_its_heads(name, batch):
    transformer = model(name)
    out, stack = run(transformer, batch, capture="*"), stack_of(transformer)
    for layer, block in enumerate(transformer.last.blocks):
        attn, config = block.attn, block.attn.config
        reads = out[f"{stack}.{layer}.resid_pre"]
        reads = block.norm_attn(reads) if config.wiring == "pre" else reads
        site = {part: out[f"{stack}.{layer}.attn.{part}"] for part in ("q", "k", "v", "scores", "pattern", "z")}
        for part, weight in {"q": attn.W_Q, "k": attn.W_K, "v": attn.W_V}.items():
            bias = part_bias(attn, part)
            same(site[part], einsum(reads, weight, "b p d, head d d_head -> b p head d_head") + bias)
        same(site["scores"].softmax(-1), site["pattern"])
        same(site["pattern"].sum(-1), torch.ones_like(site["pattern"].sum(-1)))
        shared = config.n_heads // config.kv_heads
        for head in range(config.n_heads):
            mixed = site["pattern"][:, head] @ site["v"][:, :, head // shared]
            same(site["z"][:, :, head], mixed)
        results = einsum(site["z"], attn.W_O, "b p head d_head, head d_head d -> b p head d")
        bias = 0 if attn.out.bias is None else attn.out.bias
        same(out[f"{stack}.{layer}.attn_out"], results.sum(-2) + bias)


def part_bias(attn, part: str) -> Tensor | float:
    if attn.qkv.bias is None:
        return 0.0
    heads = rearrange(attn.qkv.bias, "(head d_head) -> head d_head", d_head=attn.config.d_head)
    n_q, n_kv = attn.config.n_heads, attn.config.kv_heads
    return dict(zip("qkv", heads.split([n_q, n_kv, n_kv]), strict=True))[part]


def test_scores_are_scaled_and_masked():
    transformer = model("sinusoidal")
    out = run(transformer, token_ids(1, 5), capture="decoder.0.attn.*")
    q, k = out["decoder.0.attn.q"][0, :, 1], out["decoder.0.attn.k"][0, :, 1]
    scores = out["decoder.0.attn.scores"][0, 1]
    below = torch.ones(5, 5, dtype=torch.bool).tril()
    same(scores[below], (q @ k.T * 0.3)[below])
    assert torch.equal(scores == -torch.inf, ~below)


# --- two paths of attention, one result


@EVERYWHERE
@BATCHED
def test_fused_attention_equals_the_explicit_pattern(name, batch):
    transformer = model(name)
    fused = run(transformer, batch, capture=final_of(transformer))[final_of(transformer)]
    explicit = run(transformer, batch, capture=[final_of(transformer), "*.attn.pattern"])[final_of(transformer)]
    same(fused, explicit)
    assert bool(fused.isfinite().all())


def test_the_pattern_is_made_only_when_someone_looks(monkeypatch):
    calls = []
    real = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional, "scaled_dot_product_attention", lambda *args, **kw: calls.append(1) or real(*args, **kw)
    )
    transformer = model("gpt2")
    run(transformer, token_ids(1, 5), capture="decoder.*.attn.z")
    assert len(calls) == 2
    run(transformer, token_ids(1, 5), capture="decoder.0.attn.pattern", edit={"decoder.1.attn.scores": scale(2.0)})
    assert len(calls) == 2


# --- who sees whom


@EVERYWHERE
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(name, side):
    transformer, final = model(name), final_of(model(name))
    batch = TokenBatch.from_rows(ROWS, side=side, pad_id=7)
    together = run(transformer, batch, capture=[final, "*.attn.pattern"])
    for row, ids in enumerate(ROWS):
        alone = run(transformer, torch.tensor(ids), capture=[final, "*.attn.pattern"])
        real = batch.mask[row]
        same(together[final][row][real], alone[final][0])
        for site, pattern in alone.activations.items():
            if site.endswith("pattern"):
                same(together[site][row][:, real][:, :, real], pattern[0])
                assert not together[site][row][:, real][:, :, ~real].any()


@EVERYWHERE
def test_a_later_token_is_seen_by_encoders_only(name):
    transformer, final = model(name), final_of(model(name))
    ids = token_ids(1, 7)
    other = ids.clone()
    other[0, 5] = (other[0, 5] + 1) % 29
    before, after = (run(transformer, given, capture=final)[final][0] for given in (ids, other))
    unchanged = torch.isclose(before, after, atol=1e-12).all(-1)
    expected = [True] * 5 + [False] * 2 if transformer.last.config.causal else [False] * 7
    assert unchanged.tolist() == expected


def test_texts_are_independent_of_their_order():
    transformer, ids = model("llama"), token_ids(4, 6)
    order = torch.tensor([2, 0, 3, 1])
    same(run(transformer, ids[order]).logits, run(transformer, ids).logits[order])


@pytest.mark.parametrize("name", ["gpt2", "llama", "sinusoidal", "no positions"])
@pytest.mark.parametrize("first", [4, 6])
@BATCHED
def test_the_cache_continues_where_a_run_stopped(name, first, batch):
    transformer = model(name)
    stack = transformer.last
    residual = stack.embed(batch.ids, batch.positions)
    whole = stack.resume(residual, Sight.of(batch, causal=True))
    growing = growing_cache(stack.config)
    start = TokenBatch(batch.ids[:, :first], batch.mask[:, :first], batch.positions[:, :first])
    stack.resume(residual[:, :first], Sight.of(start, causal=True), past=growing)
    rest = stack.resume(residual[:, first:], Sight.of(batch, causal=True, first=first), past=growing)
    same(rest[batch.mask[:, first:]], whole[:, first:][batch.mask[:, first:]])


# --- per-head weights


@pytest.mark.parametrize("part", ["W_Q", "W_K", "W_V", "W_O"])
def test_editing_a_view_edits_the_model(part):
    transformer, ids = model("llama"), token_ids(1, 5)
    attn = transformer.last.blocks[1].attn
    shapes = {"W_Q": (6, 19, 14), "W_K": (2, 19, 14), "W_V": (2, 19, 14), "W_O": (6, 14, 19)}
    assert getattr(attn, part).shape == shapes[part]
    site = {"W_Q": "q", "W_K": "k", "W_V": "v"}.get(part)
    before = run(transformer, ids, capture="decoder.1.attn.*")
    with torch.no_grad():
        getattr(attn, part)[1] *= 3
    after = run(transformer, ids, capture="decoder.1.attn.*")
    if site is None:
        z = before["decoder.1.attn.z"]
        added = z[:, :, 1] @ attn.W_O[1] * 2 / 3
        untouched = run(transformer, ids, capture="decoder.1.attn_out")["decoder.1.attn_out"] - added
        with torch.no_grad():
            attn.W_O[1] /= 3
        same(run(transformer, ids, capture="decoder.1.attn_out")["decoder.1.attn_out"], untouched)
    else:
        factor = torch.ones(shapes[part][0], 1, dtype=torch.float64)
        factor[1] = 3
        same(after[f"decoder.1.attn.{site}"], before[f"decoder.1.attn.{site}"] * factor)


def test_a_tied_output_is_the_embedding():
    transformer = model("llama", output="tied")
    assert transformer.output.weight is transformer.last.embed.token.weight
    assert run(transformer, token_ids(1, 3)).logits.shape == (1, 3, 29)


# --- reading


@EVERYWHERE
def test_sites_are_exactly_what_a_run_passes_in_order(name):
    transformer = model(name)
    out = run(transformer, token_ids(2, 7), capture="*")
    known = sites(transformer)
    assert list(out.activations) == list(known)
    for site, value in out.activations.items():
        sizes = (7 if size is None else size for size in known[site].sizes)
        assert value.shape == (2, *sizes)
        assert len(known[site].axes) == value.ndim - 1


def test_globs_capture_what_they_match():
    out = run(model("gpt2"), token_ids(1, 3), capture=["decoder.*.attn.z", "decoder.1.mlp_out"])
    assert list(out.activations) == ["decoder.0.attn.z", "decoder.1.attn.z", "decoder.1.mlp_out"]


def test_a_run_keeps_gradients_only_when_asked():
    transformer, ids = model("gpt2"), token_ids(1, 3)
    assert not run(transformer, ids).logits.requires_grad
    out = run(transformer, ids, capture="decoder.0.attn.z", grad=True)
    (grad,) = torch.autograd.grad(out.logits[0, -1, 0], out["decoder.0.attn.z"])
    assert bool(grad.any())


def test_a_run_leaves_nothing_behind():
    transformer, ids = model("llama"), token_ids(2, 5)
    before = run(transformer, ids).logits
    edited = run(transformer, ids, capture="*", edit={"decoder.0.attn.z": zero()}).logits
    assert not torch.allclose(edited, before)
    assert torch.equal(run(transformer, ids).logits, before)


# --- editing

EDITABLE = [
    "embed",
    *(f"1.{site}" for site in ("resid_pre", "attn.q", "attn.k", "attn.v", "attn.scores", "attn.pattern", "attn.z")),
    *(f"1.{site}" for site in ("attn_out", "resid_mid", "mlp.pre", "mlp.post", "mlp_out", "resid_post")),
    "resid_final",
]


@pytest.mark.parametrize(("site", "name", "padding"), pairwise(EDITABLE, ("gpt2", "llama", "bert"), BATCHES))
def test_cells_on_a_leading_axis_equal_separate_runs(site, name, padding):
    transformer, final, batch = model(name), final_of(model(name)), BATCHES[padding]
    place = f"{stack_of(transformer)}.{site}"
    edits = [lambda value: value, lambda value: -value, lambda value: value * 0.25]
    together = run(transformer, batch, final, {place: lambda value: torch.stack([edit(value) for edit in edits])})
    assert together[final].shape[0] == len(edits)
    for cell, edit in zip(together[final], edits, strict=True):
        same(cell, run(transformer, batch, final, {place: edit})[final])
    assert not torch.allclose(together[final][0], together[final][1])


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
@BATCHED
def test_patching_a_run_with_itself_changes_not_one_bit(name, batch):
    transformer = model(name)
    clean = run(transformer, batch, capture="*")
    for site, value in clean.activations.items():
        again = run(transformer, batch, capture="*", edit={site: patch(value)})
        assert all(torch.equal(again[other], clean[other]) for other in clean.activations), site


def test_patching_the_whole_stream_gives_the_other_run():
    transformer = model("gpt2")
    one, other = (run(transformer, token_ids(2, 5, seed=seed), capture="decoder.1.resid_pre") for seed in (1, 2))
    patched = run(transformer, one.tokens, edit={"decoder.1.resid_pre": patch(other["decoder.1.resid_pre"])})
    assert torch.equal(patched.logits, other.logits)


REGIONS = [
    ({}, (slice(None), slice(None), slice(None))),
    ({"head": 1}, (slice(None), slice(None), 1)),
    ({"head": -1, "position": 2}, (slice(None), 2, 2)),
    ({"head": [0, 2], "position": slice(1, 3)}, (slice(None), slice(1, 3), [0, 2])),
    ({"head": [0, 2], "position": [0, 3, 4]}, (slice(None), [[0], [3], [4]], [[0, 2]])),
]


@pytest.mark.parametrize(("where", "region"), REGIONS, ids=[str(where) for where, _ in REGIONS])
def test_ready_made_edits_change_their_region_alone(where, region):
    transformer, site = model("gpt2"), "decoder.0.attn.z"
    ids = token_ids(2, 5)
    before, other = (run(transformer, given, capture=site)[site] for given in (ids, token_ids(2, 5, seed=1)))
    changes = {
        "zero": (zero(**where), torch.zeros_like(before)),
        "put": (put(0.5, **where), torch.full_like(before, 0.5)),
        "scale": (scale(-3.0, **where), before * -3),
        "patch": (patch(other, **where), other),
    }
    for edit, value in changes.values():
        expected = before.clone()
        expected[region] = value[region]
        assert torch.equal(run(transformer, ids, site, {site: edit})[site], expected)
        assert not torch.equal(expected, before)


def test_put_broadcasts_a_tensor_to_the_part():
    transformer, vector = model("gpt2"), torch.arange(5.0)
    out = run(transformer, token_ids(2, 4), "decoder.0.attn.z", {"decoder.0.attn.z": put(vector, head=1)})
    assert torch.equal(out["decoder.0.attn.z"][:, :, 1], vector.double().expand(2, 4, 5))


def test_a_glob_edits_every_site_that_it_matches():
    transformer, ids = model("gpt2"), token_ids(1, 4)
    out = run(transformer, ids, "*.attn.z", {"decoder.*.attn.z": zero(head=0)})
    for layer in range(2):
        assert not out[f"decoder.{layer}.attn.z"][:, :, 0].any()
        assert out[f"decoder.{layer}.attn.z"][:, :, 1:].all()


# --- what a user can get wrong


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"capture": "decoder.12.attn.z"}, "no site 'decoder.12.attn.z': this model has decoder layers 0-1"),
        ({"capture": "encoder.*.attn.z"}, "no site"),
        ({"capture": "decoder.0.attn.patern"}, "did you mean 'decoder.0.attn.pattern'"),
        ({"edit": {"decoder.2.resid_pre": zero()}}, "no site 'decoder.2.resid_pre'"),
        ({"edit": {"decoder.0.attn.z": zero(head=3)}}, "no head 3 at decoder.0.attn.z: it has head 0-2"),
        ({"edit": {"decoder.0.attn.z": zero(head=[0, -4])}}, "no head -4"),
        ({"edit": {"decoder.0.attn.z": zero(query=0)}}, "no axis 'query': its axes are position, head, d_head"),
        (
            {"edit": {"decoder.0.attn.z": zero(position=9)}},
            "decoder.0.attn.z: no position 9 in prompt 0: it has position 0-4",
        ),
        ({"edit": {"decoder.0.attn.z": put(torch.ones(4))}}, "cannot edit decoder.0.attn.z"),
        ({"edit": {"decoder.0.attn.z": patch(torch.ones(1, 4, 3, 5))}}, "cannot edit decoder.0.attn.z"),
        ({"edit": {"decoder.0.attn.z": lambda z: z[:, 1:]}}, r"must keep its shape \(1, 5, 3, 5\).*got \(1, 4, 3, 5\)"),
        ({"edit": {"decoder.0.attn.z": lambda z: z.sum(-1)}}, "must keep its shape"),
    ],
)
def test_what_does_not_exist_or_fit_is_named(settings, message):
    with pytest.raises(InputError, match=message) as caught:
        run(model("gpt2"), token_ids(1, 5), **settings)
    assert "\n" not in str(caught.value)


def test_an_edit_that_never_fires_is_an_error():
    transformer = model("gpt2")
    transformer.last.blocks = transformer.last.blocks[:1]
    with pytest.raises(InputError, match=r"never fired: decoder\.1\.attn\.z"):
        run(transformer, token_ids(1, 5), edit={"decoder.1.attn.z": zero()})


def test_reading_what_was_not_captured_says_what_was():
    out = run(model("gpt2"), token_ids(1, 5), capture="decoder.0.attn.z")
    with pytest.raises(InputError, match=r"was not captured.*did you mean 'decoder\.0\.attn\.z'"):
        _ = out["decoder.1.attn.z"]
    with pytest.raises(InputError, match="captured: nothing"):
        _ = run(model("gpt2"), token_ids(1, 5))["logits"]


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ("text", "no tokenizer"),
        (["text", "text"], "no tokenizer"),
        (token_ids(1, 14), "14 tokens is longer than the model's context of 13"),
        (torch.tensor([[0, 29]]), r"0-28.*got 0 to 29"),
        (torch.tensor([[-1, 2]]), "got -1 to 2"),
        (torch.ones(1, 3), "expected integer ids"),
        (torch.ones(1, 0, dtype=torch.long), "not empty"),
        (torch.ones(1, 2, 3, dtype=torch.long), "prompt x position"),
    ],
)
def test_tokens_that_do_not_fit_the_model(tokens, message):
    with pytest.raises(InputError, match=message):
        run(model("gpt2"), tokens)


def test_a_model_without_output_has_no_logits():
    out = run(model("bert"), token_ids(1, 5))
    with pytest.raises(InputError, match="no output layer"):
        _ = out.logits


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_layers": 0}, "n_layers must be at least 1"),
        ({"n_heads": 3, "n_kv_heads": 2}, "3 query heads cannot share 2"),
        ({"d_head": 5, "positions": Rotary()}, "d_head must be even"),
    ],
)
def test_sizes_that_do_not_fit_together(change, message):
    with pytest.raises(InputError, match=message):
        replace(GPT2, **change)


@pytest.mark.parametrize(
    "stacks",
    [{}, {"decoder": GPT2, "encoder": STACKS["bert"]}, {"encoder": LLAMA}, {"decoder": STACKS["bert"]}],
)
def test_stacks_that_make_no_transformer(stacks):
    with pytest.raises(InputError, match="expected"):
        TransformerConfig(**stacks)

"""The transformer adds up, sees only what it may, and changes exactly where it is edited, with one stack or two.

In models of two stacks, encoder and decoder differ in every size that can differ, so neither passes for the other.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from unittest import mock

import pytest
import torch
from covering import pairwise
from einops import einsum
from refusals import refusal
from tiny import GPT2, STACKS, TWO_STACKS, VARIANTS, model, token_ids, two_stacks, variant
from torch import Tensor
from torch.testing import assert_close

from interp import InputError, Run, TokenBatch, Transformer, TransformerConfig, patch, run, scale, set_to, sites, zero
from interp.config import Rotary, Sinusoidal
from interp.positions import rotate, sinusoids

TWO = ("original", "buckets", "modern")
MODELS, ALL = [*STACKS, "after", *TWO], [*STACKS, *VARIANTS, *TWO]
EVERYWHERE = pytest.mark.parametrize("name", MODELS)
SOURCES, TARGETS = [[3, 1, 4, 1, 5, 9, 2], [6, 5, 3], [8]], [[2, 7], [2, 1, 8, 2, 8], [2, 4, 6]]
BATCHES = {
    "whole": (TokenBatch.from_ids(token_ids(3, 7, d_vocab=19)), TokenBatch.from_ids(token_ids(3, 5))),
    "right": (TokenBatch.from_rows(SOURCES, pad_id=7), TokenBatch.from_rows(TARGETS, pad_id=12, side="left")),
    "left": (TokenBatch.from_rows(SOURCES, pad_id=7, side="left"), TokenBatch.from_rows(TARGETS, pad_id=12)),
}
PADDED = pytest.mark.parametrize("padding", BATCHES)


def build(name: str) -> Transformer:
    return two_stacks(name) if name in TWO else model(name) if name in STACKS else variant(name)


def ask(built: Transformer, padding: str = "whole", capture="*", edit=None) -> Run:
    source, target = BATCHES[padding]
    return run(built, source, capture, edit, target=target if len(built.config.stacks) > 1 else None)


def final_of(built: Transformer) -> str:
    return f"{[*built.config.stacks][-1]}.resid_final"


# up to rounding in float64; RMSNorm partly rounds to float32
check = partial(assert_close, atol=1e-10, rtol=1e-9)


def test_rotation_turns_pairs_by_their_position():
    x = torch.tensor([1.0, 0.0, 0.0, 1.0]).expand(1, 2, 1, 4)  # pairs (0, 2) and (1, 3)
    out = rotate(x, torch.tensor([[0, 3]]), Rotary(base=9.0))[0, :, 0]
    fast, slow = 3.0, 3.0 / 9.0**0.5
    turned = torch.tensor([math.cos(fast), -math.sin(slow), math.sin(fast), math.cos(slow)])
    assert_close(out, torch.stack([x[0, 0, 0], turned]))


def test_sinusoids_are_those_of_the_paper():
    table = sinusoids(torch.arange(3), 5, Sinusoidal(100.0))
    second = [math.sin(2), math.cos(2), math.sin(2 / 100**0.4), math.cos(2 / 100**0.4), math.sin(2 / 100**0.8)]
    assert_close(table[2], torch.tensor(second))


@pytest.mark.parametrize("name", ALL)
def test_sites_are_exactly_what_a_run_passes_in_order(name):
    built = build(name)
    out, specs = ask(built), sites(built)
    assert list(out.activations) == list(specs)
    for site, value in out.activations.items():
        length = 7 if site.startswith("encoder") or name not in TWO else 5
        keys = 7 if "cross_attn" in site else length
        lengths = {"position": keys if site.endswith((".k", ".v", "rot_k")) else length, "query": length, "key": keys}
        sizes = (size or lengths[axis] for axis, size in zip(specs[site].axes, specs[site].sizes, strict=True))
        assert value.shape == (3, *sizes), site


@EVERYWHERE
@PADDED
def test_every_stream_adds_up_from_its_parts(name, padding):
    built = build(name)
    out = ask(built, padding)
    for stack, config in built.config.stacks.items():
        module, residual = built.stack(stack), out[f"{stack}.embed"]
        for layer, block in enumerate(module.blocks):
            prefix = f"{stack}.{layer}."
            check(out[f"{prefix}resid_pre"], residual)
            parts = [("attn_out", "resid_mid", block.norm_attn)]
            parts += [("cross_attn_out", "resid_cross", block.norm_cross)] if config.cross_attention else []
            parts += [("mlp_out", "resid_post", block.norm_mlp)] if block.mlp is not None else []
            for part, after, norm in parts:
                residual = residual + out[prefix + part]
                residual = norm(residual) if config.wiring == "post" else residual
                check(out[prefix + after], residual)
            check(out[f"{prefix}resid_post"], residual)
        check(out[f"{stack}.resid_final"], module.norm(residual))
    if built.output is not None:
        logits = out[final_of(built)] * built.config.output_scale @ built.output.weight.T
        cap = built.config.logit_cap
        check(out.logits, logits if cap is None else cap * (logits / cap).tanh())
        assert torch.equal(out.logits, out["logits"])


def attentions(built: Transformer, out: Run) -> Iterator[tuple]:
    """Every attention, the prefix of its sites, and the streams of its queries and keys."""
    for stack in built.config.stacks:
        for layer, block in enumerate(built.stack(stack).blocks):
            prefix = f"{stack}.{layer}."
            x = block.attention.read(out[f"{prefix}resid_pre"])
            yield block.attention, f"{prefix}attn", x, x
            if block.cross_attn is not None:
                x = block.cross.read(out[f"{prefix}resid_mid"])
                yield block.cross, f"{prefix}cross_attn", x, out["encoder.resid_final"]


@EVERYWHERE
@PADDED
def test_attention_adds_up_from_its_heads(name, padding):
    built = build(name)
    out = ask(built, padding)
    for sublayer, prefix, x, keys in attentions(built, out):
        attn, config = sublayer.layer, sublayer.layer.config
        site = {part: out[f"{prefix}.{part}"] for part in ("q", "k", "v", "scores", "pattern", "z")}
        for part, read in (("q", x), ("k", keys), ("v", keys)):
            expected = einsum(read, getattr(attn, f"W_{part.upper()}"), "b p d, head d d_head -> b p head d_head")
            check(site[part], expected + getattr(attn, f"b_{part.upper()}") if config.attention_bias else expected)
        check(site["scores"].softmax(-1), site["pattern"])
        values = site["v"].repeat_interleave(config.n_heads // config.kv_heads, -2)
        check(site["z"], einsum(site["pattern"], values, "b head query key, b key head d -> b query head d"))
        results = einsum(site["z"], attn.W_O, "b p head d_head, head d_head d -> b p d")
        check(out[f"{prefix}_out"], sublayer.write(results if attn.out.bias is None else results + attn.out.bias))


@EVERYWHERE
@PADDED
def test_fused_attention_equals_the_explicit_pattern(name, padding):
    built, final = build(name), final_of(build(name))
    fused, explicit = (ask(built, padding, capture)[final] for capture in (final, [final, "*.pattern"]))
    check(fused, explicit)
    assert bool(fused.isfinite().all())


def test_the_pattern_is_made_only_if_it_is_captured_or_edited(monkeypatch):
    kernel = mock.Mock(wraps=torch.nn.functional.scaled_dot_product_attention)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", kernel)
    run(model("gpt2"), token_ids(1, 5), capture="decoder.*.attn.z")
    run(model("gpt2"), token_ids(1, 5), "decoder.0.attn.pattern", {"decoder.1.attn.scores": scale(2.0)})
    assert kernel.call_count == 2


@pytest.mark.parametrize(("name", "source_side", "target_side"), pairwise(ALL, ("left", "right"), ("left", "right")))
def test_a_text_among_others_is_what_it_is_alone(name, source_side, target_side):
    built, capture = build(name), ["*resid_final", "*.resid_post", "*.pattern"]
    texts = {"tokens": (SOURCES, source_side)} | ({"target": (TARGETS, target_side)} if name in TWO else {})
    batches = {text: TokenBatch.from_rows(rows, side=side, pad_id=11) for text, (rows, side) in texts.items()}
    together = run(built, capture=capture, **batches)
    for row in range(3):
        alone = run(built, capture=capture, **{text: torch.tensor([rows[row]]) for text, (rows, _) in texts.items()})
        masks = [batch.mask[row] for batch in batches.values()]
        for site, expected in alone.activations.items():
            value, mask = together[site][row], masks[0 if site.startswith("encoder") else -1]
            if site.endswith("pattern"):
                keys = masks[0] if "cross_attn" in site else mask
                assert not value[:, mask][:, :, ~keys].any()
                check(value[:, mask][:, :, keys], expected[0])
            else:
                check(value[mask], expected[0])


@EVERYWHERE
def test_a_later_token_is_seen_by_encoders_only(name):
    built, final, two = build(name), final_of(build(name)), name in TWO
    texts = token_ids(1, 7, d_vocab=19), token_ids(1, 7, seed=1)
    source, target = (torch.cat([text, torch.where(torch.arange(7) == 5, (text + 1) % 19, text)]) for text in texts)

    def changed(source: Tensor, target: Tensor) -> list[bool]:
        first, second = run(built, source, final, target=target if two else None)[final]
        return (~torch.isclose(first, second, atol=1e-9).all(-1)).tolist()

    later = [False] * 5 + [True] * 2
    assert changed(source, target[:1]) == (later if built.last.config.causal and not two else [True] * 7)
    if two:  # each source or target is read together with the others
        assert changed(source[[0, 0]], target) == later


def test_what_is_tied_or_shared_is_one_parameter():
    tied, apart = model("llama", output="tied"), two_stacks("buckets")
    assert tied.output.weight is tied.last.embed.token.weight
    same_vocabulary = replace(TWO_STACKS["original"][0], d_vocab=29), TWO_STACKS["original"][1]
    shared = Transformer(TransformerConfig(*same_vocabulary[::-1], output="tied", shared_embedding=True))
    assert shared.output.weight is shared.last.embed.token.weight is shared.stack("encoder").embed.token.weight
    assert [stack.embed.token.weight.shape[0] for stack in apart.stacks.values()] == [19, 29]
    tables = [name for name, _ in apart.named_parameters() if name.endswith("bias.table.weight")]
    assert tables == [f"stacks.{stack}.blocks.0.attn.bias.table.weight" for stack in ("encoder", "decoder")]


SITES = {name: {*build(name).sites} - {"logits"} for name in ("gpt2", "llama", "bert", *TWO)}
PLACES = sorted({site for sites in SITES.values() for site in sites if ".0." not in site})


@pytest.mark.parametrize(
    ("place", "name", "padding"),
    pairwise(PLACES, SITES, BATCHES, possible=lambda place, name, padding: place in SITES[name]),
)
def test_cells_on_a_leading_axis_equal_separate_runs(place, name, padding):
    built, final, factors = build(name), final_of(build(name)), (1.0, -1.0, 0.25)
    edit = {place: lambda value: torch.stack([value * factor for factor in factors])}
    together = ask(built, padding, final, edit)[final]
    for cell, factor in zip(together, factors, strict=True):
        check(cell, ask(built, padding, final, {place: scale(factor)})[final])
    assert not torch.allclose(together[0], together[1])


@pytest.mark.parametrize("name", SITES)
@PADDED
def test_patching_a_run_with_itself_changes_not_one_bit(name, padding):
    built = build(name)
    clean = ask(built, padding)
    for site in [site for site in PLACES if site in SITES[name]]:
        again = ask(built, padding, "*", {site: patch(clean[site])})
        assert all(torch.equal(again[key], clean[key]) for key in clean.activations), site


# --- users' mistakes

Z = "decoder.0.attn.z"
WRONG = [
    ({"capture": "decoder.12.attn.z"}, "no site 'decoder.12.attn.z': this model has decoder layers 0-1"),
    ({"capture": "decoder.0.attn.patern"}, "did you mean 'decoder.0.attn.pattern'"),
    ({"edit": {Z: zero(query=0)}}, "no axis 'query': its axes are position, head, d_head"),
    ({"edit": {Z: zero(position=9)}}, "decoder.0.attn.z: no position 9 in prompt 0: it has position 0-4"),
    ({"edit": {Z: set_to(torch.ones(4))}}, "edit of decoder.0.attn.z: it does not fit the shape"),
    ({"edit": {Z: lambda z: z[:, 1:]}}, r"must keep its shape \(1, 5, 3, 5\).*got \(1, 4, 3, 5\)"),
    ({"tokens": token_ids(1, 14)}, "14 tokens is longer than the model's context of 13"),
    ({"tokens": torch.tensor([[0, 29]])}, r"0-28.*got 0 to 29"),
    ({"tokens": torch.tensor([[-1, 2]])}, "got -1 to 2"),
    *(
        ({"tokens": torch.ones(1, *size, dtype=kind)}, "expected integer ids, prompt x position, not empty")
        for *size, kind in ((3, torch.float), (0, torch.long), (2, 3, torch.long))
    ),
    ({"target": token_ids(1, 3)}, "one stack.*expected no target"),
    ({"model": "original"}, "an encoder and a decoder: give target=, text or ids from 2"),
    ({"model": "original", "tokens": token_ids(3, 3, d_vocab=19), "target": token_ids(2, 3)}, "each of 3 .*got 2"),
    ({"model": "original", "target": token_ids(1, 12)}, "12 tokens is longer than the model's context of 11"),
    ({"model": "original", "tokens": torch.tensor([[19]]), "target": token_ids(1, 3)}, "0-18.*; got 19"),
    ({"model": "original", "target": torch.tensor([[30]])}, "0-28, the model's vocabulary; got 30"),
]


@pytest.mark.parametrize(("settings", "message"), WRONG)
def test_what_does_not_exist_or_fit_is_named(settings, message):
    settings = {"model": "gpt2", "tokens": token_ids(1, 5, d_vocab=19), **settings}
    with pytest.raises(InputError, match=message) as caught:
        run(build(settings.pop("model")), **settings)
    assert "\n" not in str(caught.value)


def test_an_edit_that_never_fires_and_an_activation_that_is_not_there_are_errors():
    built = model("gpt2")
    with pytest.raises(InputError, match=r"was not captured.*did you mean 'decoder\.0\.attn\.z'"):
        _ = run(built, token_ids(1, 5), capture=Z)["decoder.1.attn.z"]
    with pytest.raises(InputError, match="no output layer"):
        _ = run(model("bert"), token_ids(1, 5)).logits
    built.last.blocks = built.last.blocks[:1]
    assert "never fired: decoder.1.attn.z" in refusal(run, built, token_ids(1, 5), edit={"decoder.1.attn.z": zero()})


def pair(side: str, /, **changes) -> TransformerConfig:
    """`original` with changes in the encoder or the decoder."""
    sides = dict(zip(("encoder", "decoder"), TWO_STACKS["original"], strict=True))
    return TransformerConfig(**{**sides, side: replace(sides[side], **changes)})


MISFITS = [
    (lambda: replace(GPT2, n_layers=0), "n_layers must be a number from 1 to"),
    (lambda: replace(GPT2, n_heads=3, n_kv_heads=2), "3 query heads cannot share 2"),
    (lambda: replace(GPT2, positions=Rotary()), "d_head must be even"),
    (TransformerConfig, "expected a decoder, an encoder, or both"),
    (lambda: pair("encoder", causal=True), "expected causal=False"),
    (lambda: pair("decoder", causal=False), "expected causal=True"),
    (lambda: pair("decoder", cross_attention=False), "expected cross_attention=True"),
    (lambda: pair("encoder", d_model=17), "one d_model for both, got 17 and 22"),
    (lambda: replace(pair("encoder"), shared_embedding=True), "d_vocab differ"),
]


@pytest.mark.parametrize(("make", "message"), MISFITS)
def test_sizes_and_stacks_that_do_not_fit_together(make, message):
    with pytest.raises(InputError, match=message):
        make()

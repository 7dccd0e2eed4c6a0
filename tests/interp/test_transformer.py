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


def same(one: Tensor, other: Tensor) -> None:
    """Equal up to the rounding of float64; RMSNorm takes some in float32."""
    assert_close(one, other, atol=1e-10, rtol=1e-9)


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
    out, known = ask(built), sites(built)
    assert list(out.activations) == list(known)
    for site, value in out.activations.items():
        own = 7 if site.startswith("encoder") or name not in TWO else 5
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
        cap = built.config.logit_cap
        same(out.logits, logits if cap is None else cap * (logits / cap).tanh())
        assert torch.equal(out.logits, out["logits"])


def attentions(built: Transformer, out: Run) -> Iterator[tuple]:
    """Every attention, the prefix of its sites, and what queries and keys are made of."""
    for stack in built.config.stacks:
        for layer, block in enumerate(built.stack(stack).blocks):
            at = f"{stack}.{layer}."
            x = block.attention.read(out[f"{at}resid_pre"])
            yield block.attention, f"{at}attn", x, x
            if block.cross_attn is not None:
                x = block.cross.read(out[f"{at}resid_mid"])
                yield block.cross, f"{at}cross_attn", x, out["encoder.resid_final"]


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


@pytest.mark.parametrize(("name", "source_side", "target_side"), pairwise(ALL, ("left", "right"), ("left", "right")))
def test_a_text_among_others_is_what_it_is_alone(name, source_side, target_side):
    built = build(name)
    batches = [
        TokenBatch.from_rows(rows, side=side, pad_id=11)
        for rows, side in ((SOURCES, source_side), (TARGETS, target_side))
    ]
    batches = batches[: len(built.config.stacks)]
    capture = ["*resid_final", "*.resid_post", "*.pattern"]
    together = run(built, batches[0], capture, target=None if name not in TWO else batches[1])
    for row in range(3):
        target = None if name not in TWO else torch.tensor([TARGETS[row]])
        alone = run(built, torch.tensor([SOURCES[row]]), capture, target=target)
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
    built, final, two = build(name), final_of(build(name)), name in TWO
    source, target = token_ids(1, 7, d_vocab=19), token_ids(1, 7, seed=1)

    def final_stream(source: Tensor, target: Tensor) -> Tensor:
        return run(built, source, final, target=target if two else None)[final][0]

    def changed(*texts: Tensor) -> list[bool]:
        return (~torch.isclose(final_stream(*texts), final_stream(source, target), atol=1e-9).all(-1)).tolist()

    other, later = (torch.where(torch.arange(7) == 5, (text + 1) % 19, text) for text in (source, target))
    if two:
        assert changed(source, later) == [False] * 5 + [True] * 2
    assert changed(other, target) == ([False] * 5 + [True] * 2 if built.last.config.causal and not two else [True] * 7)


@pytest.mark.parametrize("name", TWO)
def test_one_target_is_read_beside_every_source(name):
    built, final, source = build(name), "decoder.resid_final", BATCHES["right"][0]
    one, each = (run(built, source, final, target=torch.tensor(TARGETS[1:2] * times))[final] for times in (1, 3))
    same(one, each)


def test_what_is_tied_or_shared_is_one_parameter():
    tied, apart = model("llama", output="tied"), two_stacks("buckets")
    assert tied.output.weight is tied.last.embed.token.weight
    same_vocabulary = replace(TWO_STACKS["original"][0], d_vocab=29), TWO_STACKS["original"][1]
    both = dict(zip(("encoder", "decoder"), same_vocabulary, strict=True))
    shared = Transformer(TransformerConfig(**both, output="tied", shared_embedding=True))
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


# --- what a user can get wrong

Z = "decoder.0.attn.z"
WRONG = [
    ({"capture": "decoder.12.attn.z"}, "no site 'decoder.12.attn.z': this model has decoder layers 0-1"),
    ({"capture": "decoder.0.attn.patern"}, "did you mean 'decoder.0.attn.pattern'"),
    ({"edit": {Z: zero(query=0)}}, "no axis 'query': its axes are position, head, d_head"),
    ({"edit": {Z: zero(position=9)}}, "decoder.0.attn.z: no position 9 in prompt 0: it has position 0-4"),
    ({"edit": {Z: set_to(torch.ones(4))}}, "cannot edit decoder.0.attn.z"),
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


def test_an_edit_that_never_fires_is_an_error():
    built = model("gpt2")
    built.last.blocks = built.last.blocks[:1]
    with pytest.raises(InputError, match=r"never fired: decoder\.1\.attn\.z"):
        run(built, token_ids(1, 5), edit={"decoder.1.attn.z": zero()})


def test_reading_what_is_not_there_says_what_is():
    out = run(model("gpt2"), token_ids(1, 5), capture=Z)
    with pytest.raises(InputError, match=r"was not captured.*did you mean 'decoder\.0\.attn\.z'"):
        _ = out["decoder.1.attn.z"]
    with pytest.raises(InputError, match="no output layer"):
        _ = run(model("bert"), token_ids(1, 5)).logits


def pair(side: str = "", /, **changes) -> TransformerConfig:
    """`original` with something changed in the encoder or the decoder."""
    sides = dict(zip(("encoder", "decoder"), TWO_STACKS["original"], strict=True))
    return TransformerConfig(**{**sides, **({side: replace(sides[side], **changes)} if side else changes)})


MISFITS = [
    (lambda: replace(GPT2, n_layers=0), "n_layers must be a number from 1 to"),
    (lambda: replace(GPT2, n_heads=3, n_kv_heads=2), "3 query heads cannot share 2"),
    (lambda: replace(GPT2, d_head=5, positions=Rotary()), "d_head must be even"),
    (TransformerConfig, "expected a decoder, an encoder, or both"),
    (lambda: pair("encoder", causal=True), "expected causal=False"),
    (lambda: pair("decoder", causal=False), "expected causal=True"),
    (lambda: pair("decoder", cross_attention=False), "expected cross_attention=True"),
    (lambda: pair("encoder", d_model=17), "one d_model for both, got 17 and 22"),
    (lambda: pair(shared_embedding=True), "d_vocab differ"),
]


@pytest.mark.parametrize(("make", "message"), MISFITS)
def test_sizes_and_stacks_that_do_not_fit_together(make, message):
    with pytest.raises(InputError, match=message):
        make()

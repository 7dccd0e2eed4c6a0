"""Weights by name, tokens as ids and strings, logits by id, sites of norms and rotation, edits bound to a model."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from refusals import refusal
from tiny import GPT2, LLAMA, model, ragged_pairs, randomise, token_ids
from torch.testing import assert_close

from interp import (
    InputError,
    TokenBatch,
    Transformer,
    TransformerConfig,
    add,
    edited,
    run,
    scale,
    set_to,
    sites,
    sweep,
    zero,
)
from interp.attribution import logit_lens
from interp.config import Learned, Local, NoPositions
from interp.patching import kl_divergence, logit_difference, sweep_by_forward
from models import load

NAMES = ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V", "b_O")


def test_a_model_is_computed_from_its_weights_by_name():
    """One layer of attention by hand: embeddings, queries, keys, values, writes, logits."""
    built = Transformer(TransformerConfig(decoder=replace(GPT2, n_layers=1, positions=Learned(first=2)))).double()
    randomise(built)
    ids = token_ids(2, 5)
    out = run(built, ids, "*")
    stream = built.W_E[ids] + built.W_pos[:5]
    assert_close(out["decoder.embed"], stream)
    assert built.W_pos.shape == (13, 19)
    block, x = built.last.blocks[0], out["decoder.0.attn.normalized"]
    assert_close(x, block.norm_attn(stream))
    assert_close(out["decoder.0.mlp.normalized"], block.norm_mlp(out["decoder.0.resid_mid"]))
    for head, part in product(range(3), "qkv"):
        weight, bias = (getattr(built, f"{kind}_{part.upper()}")[0, head] for kind in "Wb")
        assert_close(out[f"decoder.0.attn.{part}"][:, :, head], x @ weight + bias)
    z = out["decoder.0.attn.z"]
    output = sum(z[:, :, head] @ built.W_O[0, head] for head in range(3)) + built.b_O[0]
    assert_close(out["decoder.0.attn_out"], output)
    assert_close(out.logits, out["decoder.resid_final"] @ built.W_U)


def test_one_layer_is_the_live_view_and_several_are_a_copy_that_refuses_writing():
    built, ids = model("gpt2"), token_ids(1, 5)
    for name in NAMES:
        weights, whole = getattr(built, name), getattr(built, name)[:]
        assert weights.shape == whole.shape
        assert len(weights) == 2
        for layer, weight in enumerate(weights):
            assert torch.equal(weight, whole[layer])
            assert weight.data_ptr() == getattr(built.last.blocks[layer].attn, name).data_ptr()
        assert torch.equal(weights[-1], whole[1])
        with pytest.raises(RuntimeError, match="in-place"):
            weights[:].zero_()
        with torch.no_grad(), pytest.raises(RuntimeError, match="inference tensor"):
            weights[:, 1].zero_()
        with pytest.raises(InputError, match=f"several layers of {name} are a copy: write to one at a time"):
            weights[:, 1] = 0.0
    silent = run(built, ids, edit={"decoder.1.attn.z": zero(head=2)}).logits
    built.W_O[1, 2] = 0.0
    assert_close(run(built, ids).logits, silent)
    with torch.no_grad():
        built.W_O[1, 2] += 1.0
    assert (built.last.blocks[1].attn.out.weight[:, 10:] == 1).all()


ABSENT = {
    ("llama", "b_Q"): "no bias on queries, keys and values",
    ("llama", "b_O"): "no bias on what attention writes",
    ("llama", "W_pos"): "no W_pos: its positions come from Rotary",
    ("bert", "W_U"): "no output layer",
    ("gpt2", "b_U"): "no bias on its logits",
}


def test_a_weight_that_is_not_there():
    for (name, weight), message in ABSENT.items():
        assert message in refusal(getattr, model(name), weight)


def test_ids_and_strings_of_the_default_models_tokens():
    built, text = load("default"), "The old lady shook her head."
    ids = built.to_tokens(text)
    assert torch.equal(ids, TokenBatch.from_texts([text], built.tokenizer).ids)
    assert built.to_str_tokens(text) == ["<s>", "The", " old", " lady", " shook", " her", " head", "."]
    assert built.to_str_tokens(ids) == [built.to_str_tokens(text)]
    assert built.to_str_tokens(ids[0]) == built.to_str_tokens(text)
    assert built.to_str_tokens(["The", "The old"]) == [["<s>", "The"], ["<s>", "The", " old"]]
    with torch.no_grad():
        assert torch.equal(built(text), run(built, text).logits)
        assert torch.equal(built(ids), run(built, text).logits)
    assert "texts of [2, 3] tokens make no tensor" in refusal(built.to_tokens, ["The", "The old"])
    assert "no tokenizer: its tokens have no text" in refusal(model("gpt2").to_str_tokens, ids)


def test_scores_are_products_of_rotated_queries_and_keys():
    built = model("llama")
    out = run(built, token_ids(2, 7), "decoder.1.attn.*")
    q, k = out["decoder.1.attn.rot_q"], out["decoder.1.attn.rot_k"].repeat_interleave(3, 2)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / 14**0.5
    visible = torch.ones(7, 7).tril().bool()
    assert_close(out["decoder.1.attn.scores"][:, :, visible], scores[:, :, visible])
    assert_close(q.norm(dim=-1), out["decoder.1.attn.q"].norm(dim=-1))  # rotated, but not longer
    first = run(built, token_ids(2, 7), "decoder.1.attn.pattern", {"decoder.1.attn.rot_k": zero()})
    assert_close(first["decoder.1.attn.pattern"][:, :, 3, :4], torch.full((2, 6, 4), 0.25, dtype=torch.float64))


def test_layers_that_do_not_turn_have_no_rotated_queries_and_a_sweep_says_so():
    stack = replace(LLAMA, local=Local((1,), None, NoPositions()))
    built = Transformer(TransformerConfig(decoder=stack)).double()
    names = sites(built)
    assert "decoder.0.attn.rot_q" in names
    assert "decoder.1.attn.rot_q" not in names
    assert "no patchable site 'rot_q'" in refusal(sweep, built, ragged_pairs(), logit_difference(), "rot_q")


def test_a_bound_model_edits_every_call_and_leaves_the_model_alone():
    built, ids = model("gpt2"), token_ids(2, 5)
    before = run(built, ids, "*")
    bound = edited(built, {"decoder.0.attn.z": zero(head=1), "decoder.1.mlp_out": scale(2.0, position=-1)})
    expected = run(built, ids, "*", bound.edits)
    out = run(bound, ids, "*")
    assert all(torch.equal(out[site], expected[site]) for site in sites(built))
    assert_close(bound(ids), expected.logits)
    ragged = run(bound, TokenBatch.from_rows([[3, 1, 4], [1, 5, 9, 2, 6]]))
    assert_close(ragged.logits[0, :3], run(built, torch.tensor([3, 1, 4]), edit=bound.edits).logits[0])
    assert torch.equal(run(built, ids, "*").logits, before.logits)


def test_a_calls_own_edit_comes_after_the_bound_one():
    built, ids, site = model("gpt2"), token_ids(2, 5), "decoder.1.resid_pre"
    bound = edited(built, {site: set_to(2.0)})
    again = edited(bound, {site: add(1.0)})
    for target, edit, value in ((bound, {site: scale(3.0)}, 6.0), (again, {site: scale(3.0)}, 9.0), (bound, {}, 2.0)):
        assert (run(target, ids, site, edit)[site] == value).all()
    assert "no site 'decoder.7.attn.z'" in refusal(edited, built, {"decoder.7.attn.z": zero()})
    with pytest.raises(InputError, match=r"the logit lens calls a model's parts .* edits bound to this one"):
        logit_lens(bound, ids)
    cells = sweep(bound, ragged_pairs(), kl_divergence())
    assert_close(cells.values, sweep_by_forward(bound, ragged_pairs(), kl_divergence()).values)
    assert "expected edits by site" in refusal(edited, built, {})
    assert "never fired" in refusal(run, bound, ids, edit={"decoder.1.attn.z": zero()}, until="decoder.0.resid_pre")

"""Encoders, decoders and their cross-attention are patched exactly: every cell against one plain forward pass."""

import pytest
import torch
from tiny import pairs_of_two, rows, two_stacks, variant

from interp import InputError, TokenBatch, put, run
from interp.attention import Attention
from interp.patching import (
    Pairs,
    atp_star,
    attribution_patching,
    kl_divergence,
    logit_difference,
    sweep,
    sweep_by_forward,
    top_cells,
    unpatched,
)
from interp.patching.ablation import ablate

PLAIN = logit_difference()
CLOSE = {"rtol": 1e-10, "atol": 1e-10, "equal_nan": True}
PLACES, HEADS = ("layer", "position"), ("layer", "head")
PLACED = [("encoder", "self"), ("decoder", "self"), ("decoder", "cross")]


def test_positions_count_the_text_that_they_lie_in():
    model, pairs = two_stacks("original"), pairs_of_two("source")  # sources of 4, 4, 3 tokens, targets of 3, 2, 3
    asked = {"stack": "decoder", "attention": "cross"}
    queries = sweep(model, pairs, logit_difference(), "q", PLACES, **asked).effect()
    assert queries[0].isnan().sum(0).tolist() == [0, 1, 0]
    assert sweep(model, pairs, logit_difference(), "k", PLACES, **asked).effect()[0].isnan().sum(0).tolist() == [
        0,
        0,
        1,
    ]
    entries = sweep(model, pairs, logit_difference(), "pattern", ("layer", "query", "key"), **asked).effect()
    assert entries.shape == (2, 3, 4, 3)


def test_a_target_changes_nothing_before_its_first_change_and_a_source_everything():
    model = two_stacks("original")
    targets = sweep(model, pairs_of_two("target"), logit_difference(), "resid_pre", PLACES).effect()
    for prompt, first in enumerate((1, 2, 1)):
        assert (targets[:, :first, prompt] == 0).all()
    sources = sweep(model, pairs_of_two("source"), logit_difference(), "resid_post", PLACES, stack="decoder").effect()
    assert (sources[0].nan_to_num().abs() > 1e-9).sum() == 8  # every position of every target


@pytest.mark.parametrize(("stack", "site"), [("encoder", "resid_pre"), ("encoder", "resid_post"), ("decoder", "v")])
def test_all_that_the_source_tells_carries_the_whole_effect(stack, site):
    model, pairs = two_stacks("original"), pairs_of_two("source")
    where = {"stack": stack, "attention": "cross" if site == "v" else "self"}
    found = sweep(model, pairs, logit_difference(), site, ("layer",), **where)
    if stack == "encoder":
        torch.testing.assert_close(found.effect(), found.difference().expand(2, -1), rtol=1e-9, atol=1e-9)
    assert found.effect().abs().max() > 1e-4


def test_a_decoders_cells_make_no_keys_of_the_source_anew(monkeypatch):
    model, pairs = two_stacks("original"), pairs_of_two("target")
    seen: list[int] = []
    plain = Attention.project_keys_values
    monkeypatch.setattr(Attention, "project_keys_values", lambda self, x: seen.append(x.numel()) or plain(self, x))
    crossing = [block.cross_attn for block in model.last.blocks]
    made: list[object] = []
    for attn in crossing:
        own = attn.project_keys_values
        monkeypatch.setattr(attn, "project_keys_values", lambda x, own=own, attn=attn: made.append(attn) or own(x))
    sweep(model, pairs, logit_difference(), "resid_pre", PLACES)
    assert made == crossing  # once a layer, for both prompts of all pairs


def test_other_estimates_and_the_search_reach_every_attention():
    model, pairs = two_stacks("modern"), pairs_of_two("source")
    for stack, attention in PLACED:
        where = {"stack": stack, "attention": attention}
        fixed = attribution_patching(model, pairs, logit_difference(), {"k": HEADS}, qk_fix=True, **where)["k"]
        assert fixed.effect().isfinite().all()
        assert (atp_star(model, pairs, logit_difference(), {"z": HEADS}, **where)["z"].mean() >= 0).all()
        exact = sweep(model, pairs, logit_difference(), **where).effect().mean(-1)
        best = top_cells(model, pairs, logit_difference(), "z", 1, **where)
        assert best.cells[0] == tuple(int(at) for at in torch.unravel_index(exact.abs().argmax(), exact.shape))


def test_other_prompts_resampled_are_those_of_the_same_stack():
    model, source, target = two_stacks("original"), rows((4,), d_vocab=19), rows((3,))
    donors = rows((5,), d_vocab=19, seed=3), rows((4,), seed=4)
    metric = logit_difference(torch.tensor([1]), torch.tensor([2]))
    for stack, length in (("encoder", 4), ("decoder", 3)):
        found = ablate(model, source, metric, kind="resample", donors=donors, target=target, stack=stack)
        at = f"{stack}.1.attn.z"
        theirs = run(model, donors[0], target=donors[1], capture=at)[at][:, :length, 1]
        logits = run(model, source, target=target, edit={at: put(theirs, head=1)}).logits[0, -1]
        torch.testing.assert_close(found.values["logit_difference"][1, 1, 0], logits[1] - logits[2], **CLOSE)


def test_one_target_may_serve_all_pairs():
    model, ids = two_stacks("original"), torch.arange(8).reshape(2, 4)
    answers = torch.tensor([1, 2]), torch.tensor([3, 4])
    pairs = Pairs.from_ids(model, ids, ids + 1, *answers, target=torch.tensor([2, 5]))
    assert isinstance(pairs.target, TokenBatch)
    assert pairs.last.tolist() == [1, 1]
    assert sweep(model, pairs, logit_difference(), stack="encoder").effect().abs().max() > 1e-4


def test_without_a_target_every_way_in_says_what_is_missing():
    model, source = two_stacks("original"), rows((4, 4, 3), d_vocab=11)
    alone = Pairs(source, rows((4, 4, 3), d_vocab=11, seed=1), torch.tensor([1, 2, 3]), torch.tensor([4, 5, 6]))
    one = variant("after")
    ways = [lambda: model(source), lambda: kl_divergence().prepare(model, alone)]
    for work in (sweep, sweep_by_forward, unpatched, top_cells, ablate):
        ways += [lambda work=work: work(model, alone, kl_divergence()), lambda work=work: work(model, alone, PLAIN)]
    for way in ways:
        with pytest.raises(InputError, match="has an encoder and a decoder: give target="):
            way()
    with pytest.raises(InputError, match="reads one text: expected"):
        sweep(one, pairs_of_two("source"), PLAIN)
    with pytest.raises(InputError, match="reads one text: expected no target"):
        one(source, target=source)

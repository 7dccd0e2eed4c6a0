"""Encoders, decoders and their cross-attention are patched exactly: every cell against one plain forward pass."""

import torch
from tiny import pairs_of_two, rows, two_stacks

from interp import put, run
from interp.patching import ablate, attribution_patching, logit_difference, sweep, top_cells

PLACES, HEADS = ("layer", "position"), ("layer", "head")
PLACED = [("encoder", "self"), ("decoder", "self"), ("decoder", "cross")]


def test_positions_count_the_text_that_they_lie_in():
    model, pairs = two_stacks("original"), pairs_of_two("source")  # sources of 4, 4, 3 tokens, targets of 3, 2, 3
    asked = {"stack": "decoder", "attention": "cross"}
    for site, missing in (("q", [0, 1, 0]), ("k", [0, 0, 1])):
        effects = sweep(model, pairs, logit_difference(), site, PLACES, **asked).effect()
        assert effects[0].isnan().sum(0).tolist() == missing
    entries = sweep(model, pairs, logit_difference(), "pattern", ("layer", "query", "key"), **asked).effect()
    assert entries.shape == (2, 3, 4, 3)


def test_estimates_and_the_search_reach_every_attention():
    asked = two_stacks("modern"), pairs_of_two("source"), logit_difference()
    for stack, attention in PLACED:
        where = {"stack": stack, "attention": attention}
        fixed = attribution_patching(*asked, {"k": HEADS}, qk_fix=True, **where)["k"]
        assert fixed.effect().isfinite().all()
        exact, best = sweep(*asked, **where), top_cells(*asked, k=1, **where)
        assert best.cells == (exact.top(1)[0][:2],)


def test_other_prompts_resampled_are_those_of_the_same_stack():
    model, source, target = two_stacks("original"), rows((4,), d_vocab=19), rows((3,))
    donors = rows((5,), d_vocab=19, seed=3), rows((4,), seed=4)
    metric = logit_difference(torch.tensor([1]), torch.tensor([2]))
    for stack, length in (("encoder", 4), ("decoder", 3)):
        found = ablate(model, source, metric, kind="resample", donors=donors, target=target, stack=stack)
        at = f"{stack}.1.attn.z"
        theirs = run(model, donors[0], target=donors[1], capture=at)[at][:, :length, 1]
        logits = run(model, source, target=target, edit={at: put(theirs, head=1)}).logits[0, -1]
        torch.testing.assert_close(found.values["logit_difference"][1, 1, 0], logits[1] - logits[2])

"""No edit lets a query see a key that it does not: later ones, padding, or what lies beyond a layer's reach."""

import pytest
import torch
from covering import pairwise
from tiny import Whole, model, rows, two_stacks, variant
from torch.testing import assert_close

from interp import TokenBatch, Transformer, add, change, edited, generate, patch, put, run, scale, zero
from interp.patching.claimed_texts import Claim
from interp.patching.knockout import knock_out, knock_out_by_forward

CLOSE = {"rtol": 1e-9, "atol": 1e-9}
LENGTHS = (4, 7, 5)
EDITS = {
    "zero": zero(),
    "put": put(0.3),
    "scale by 0": scale(0.0),
    "add": add(1.0, key=0),
    "change": change(torch.ones_like),
    "patch": patch(torch.full((1, 1, 1, 1), 0.2).expand(3, 6, 7, 7)),
    "one head": put(0.3, head=1),
    "one key": put(2.0, key=[0, -1]),
    "a function in place": lambda value: value.fill_(0.2),
}
MODELS = {
    "decoder": lambda: model("llama"),
    "encoder": lambda: variant("alibi", causal=False),
    "local": lambda: variant("local, capped"),
    "two stacks": lambda: two_stacks("modern"),
}


def read(built: Transformer, side: str) -> dict[str, TokenBatch]:
    texts = zip(("tokens", "target"), (LENGTHS, (7, 3, 5)), built.config.stacks.values(), strict=False)
    return {
        name: TokenBatch.from_rows(rows(lengths, d_vocab=stack.d_vocab).id_lists(), side=side)
        for name, lengths, stack in texts
    }


@pytest.mark.parametrize(("name", "part", "side"), pairwise(MODELS, ("scores", "pattern"), ("left", "right")))
def test_what_is_not_seen_stays_so_whatever_is_put_there(name, part, side):
    built = MODELS[name]()
    given, none = read(built, side), -torch.inf if part == "scores" else 0.0
    places = [site for site in built.sites if site.endswith(part)]
    plain, last = run(built, capture="*", **given), given.get("target", given["tokens"])
    for kind, edit in EDITS.items():
        if kind == "patch" and name != "decoder":
            continue  # its value has the shape of the decoder's
        found = run(built, capture="*", edit=dict.fromkeys(places, edit), **given)
        for site in places:
            unseen = plain[site.replace(".pattern", ".scores")] == -torch.inf
            assert (found[site][unseen] == none).all(), (kind, site)
            pattern = found[site.replace(".scores", ".pattern")]
            assert (pattern[unseen] == 0).all(), (kind, site)
            if part == "scores":
                assert_close(pattern, found[site].softmax(-1))
        assert found.logits.isfinite().all(), kind
        assert not torch.allclose(found.logits, plain.logits), kind
        for text in range(3) if kind != "patch" else ():  # and each text is edited as alone
            alone = {key: TokenBatch.from_ids(batch.ids[text][batch.mask[text]]) for key, batch in given.items()}
            own = run(built, edit=dict.fromkeys(places, edit), **alone).logits[0]
            assert torch.allclose(found.logits[text][last.mask[text]], own, **CLOSE), (kind, text)


def test_weights_are_not_renormalised():
    built, site = model("gpt2"), "decoder.0.attn.pattern"
    found = run(built, rows((5,)), site, {site: put(0.5)})[site][0, 0]
    assert torch.equal(found, torch.full_like(found, 0.5).tril())


MAKES = {
    "cache": lambda built: built,
    "whole": Whole,
    "edited": lambda built: edited(built, {"decoder.0.attn.z": add(1)}),
}
WHILE_WRITING = {
    "everywhere": zero(),
    "keys": put(0.4, key=[0, -1]),
    "steps": put(0.4, step=slice(1, None)),
    "a function": lambda value: value.fill_(0.2),
}


@pytest.mark.parametrize(("site", "edit", "make"), pairwise(("scores", "pattern"), WHILE_WRITING, MAKES))
def test_what_is_written_sees_no_more(site, edit, make):
    built, steering = MAKES[make](model("gpt2")), {f"decoder.1.attn.{site}": WHILE_WRITING[edit]}
    prompts = rows((4, 6))
    found = generate(built, prompts, 4, edit=steering, capture="decoder.1.attn.*")
    later = torch.ones(9, 9, dtype=torch.bool).triu(1)
    unseen = (later | ~found.tokens.mask[:, None, :9]) & ~torch.eye(9, dtype=torch.bool)
    for part, none in (("pattern", 0), ("scores", -torch.inf)):
        captured = found[f"decoder.1.attn.{part}"]
        assert (captured[unseen[:, None].expand_as(captured)] == none).all()
    for text, length in enumerate((4, 6)):
        alone = generate(built, prompts.ids[text : text + 1, :length], 4, edit=steering)
        assert torch.equal(found.ids[text][found.tokens.mask[text]], alone.ids[0])


def test_values_are_exchanged_beyond_a_layers_reach_as_within_it():
    """The weight stays where it is, so a key that the layer does not see may lend its value."""
    built, keys = variant("local, capped"), torch.zeros(1, 7, dtype=torch.bool)
    keys[0, 4] = True
    claim = Claim(0, torch.tensor([5]), keys, how="exchange", others=torch.full((1, 7), 1))
    found = knock_out(built, rows((7, 6)), [claim])
    assert_close(found, knock_out_by_forward(built, rows((7, 6)), [claim]), **CLOSE)
    assert found.abs().amax((0, 2)).min() > 1e-3

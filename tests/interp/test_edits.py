"""Edits of texts of unequal length: each is edited as if it stood alone, whichever side it is padded on."""

import pytest
import torch
from tiny import model, pairs_of_two, token_ids, two_stacks
from torch.testing import assert_close

from interp import InputError, TokenBatch, patch, put, run, scale, zero

LENGTHS = (4, 7, 5)
ROWS = [row[:length].tolist() for row, length in zip(token_ids(3, 7), LENGTHS, strict=True)]
EDITS = {
    "end": ("decoder.0.resid_pre", zero(position=-1)),
    "several": ("decoder.0.resid_pre", scale(2.0, position=[0, -2])),
    "head": ("decoder.0.attn.z", zero(position=-1, head=1)),
    "heads crossed": ("decoder.1.attn.z", scale(3.0, position=[-1, 1], head=[0, 2], d_head=slice(1, 3))),
    "slice": ("decoder.1.resid_mid", zero(position=slice(-2, None))),
    "slice of a list": ("decoder.1.attn.z", zero(position=slice(1, -1), head=[2, 0])),
    "query and key": ("decoder.1.attn.pattern", put(0.25, head=2, query=-1, key=[0, -2])),
    "query, all heads": ("decoder.1.attn.pattern", scale(0.5, query=-1)),
    "key": ("decoder.0.attn.scores", put(-9.0, key=-2, query=slice(-1, None))),
}


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", EDITS)
def test_a_text_among_others_is_edited_as_alone(name, side):
    built, (site, edit) = model("gpt2"), EDITS[name]
    batch = TokenBatch.from_rows(ROWS, side=side)
    together = run(built, batch, edit={site: edit})
    for at, row in enumerate(ROWS):
        alone = run(built, torch.tensor([row]), edit={site: edit})
        assert_close(together.logits[at][batch.mask[at]], alone.logits[0], atol=1e-10, rtol=0)
    assert not torch.equal(together.logits, run(built, batch).logits)


def test_one_position_a_text_and_what_another_run_had_there():
    built, batch, site = model("gpt2"), TokenBatch.from_rows(ROWS), "decoder.1.resid_pre"
    other = run(built, batch.reading((batch.ids + 1) % 29), site)[site]
    at = torch.tensor([1, 6, -2])
    found = run(built, batch, site, {site: patch(other, position=at)})[site]
    changed = (found != run(built, batch, site)[site]).any(-1)
    assert changed.nonzero().tolist() == [[0, 1], [1, 6], [2, 3]]
    assert torch.equal(found[changed], other[changed])


def test_keys_of_cross_attention_are_counted_in_the_source():
    built, pairs = two_stacks("original"), pairs_of_two("source")
    site = "decoder.0.cross_attn.k"
    found = run(built, pairs.clean, site, {site: zero(position=-1)}, target=pairs.target)[site]
    assert (found == 0).all((2, 3)).nonzero().tolist() == [[0, 3], [1, 3], [2, 2]]


def test_a_text_without_such_a_position_is_named():
    with pytest.raises(InputError, match=r"cannot edit decoder.0.resid_pre .*no position \[5\] in prompt 0.* 4 tokens"):
        run(model("gpt2"), TokenBatch.from_rows(ROWS), edit={"decoder.0.resid_pre": zero(position=5)})

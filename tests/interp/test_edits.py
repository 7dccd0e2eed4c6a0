"""Edits of texts of unequal length: each is edited as if it stood alone, whichever side it is padded on."""

import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch
from tiny import model, pairs_of_two, token_ids, two_stacks
from torch import Tensor
from torch.testing import assert_close

from interp import InputError, TokenBatch, add, change, edited, patch, put, run, scale, zero

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
    with pytest.raises(InputError, match=r"decoder\.0\.resid_pre: no position 5 in prompt 0: it has position 0-3"):
        run(model("gpt2"), TokenBatch.from_rows(ROWS), edit={"decoder.0.resid_pre": zero(position=5)})


# --- what an edit may return


def half(value: Tensor) -> Tensor:
    return value * 0.5


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_numbers_of_another_precision_are_converted(dtype):
    built, ids, site = model("gpt2", dtype=torch.float32), token_ids(2, 5), "decoder.0.resid_pre"
    value = torch.linspace(-1, 1, 19, dtype=dtype)
    for edit in (
        lambda x: half(x).to(dtype),
        change(lambda x: half(x).to(dtype), position=[0, 2]),
        put(value, position=1),
    ):
        out = run(built, ids, site, {site: edit})
        assert (out[site].dtype, out.logits.dtype) == (torch.float32, torch.float32)
    for edit in (add(value), scale(value), patch(torch.ones(2, 5, 19, dtype=dtype), position=[0])):
        assert run(built, ids, site, {site: edit})[site].dtype == torch.float32
    found = run(built, ids, site, {site: put(value, position=-1)})[site][:, -1]
    assert_close(found, value.float().expand_as(found))


OTHERS: dict[str, tuple[Callable, str]] = {
    "whole": (lambda x: x.long(), "floating-point numbers, .* got torch.int64"),
    "true": (lambda x: x > 0, "floating-point numbers, .* got torch.bool"),
    "complex": (lambda x: x * 1j, "floating-point numbers, .* got torch.complex128"),
    "sparse": (lambda x: x.to_sparse(), "expected real numbers in a dense tensor, got .*sparse"),
    "text": (lambda x: "a", "got 'a'"),
    "number": (lambda x: 3.0, "got 3.0"),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_values_are_one_line(kind):
    (function, message), site = OTHERS[kind], "decoder.0.resid_pre"
    for edit in (function, change(function), change(function, position=[1, 2])):
        with pytest.raises(InputError, match=f"the edit of {site}: .*{message}"):
            run(model("gpt2"), token_ids(2, 5), edit={site: edit})


NO_NUMBERS = [1j, torch.tensor(1j), np.array([1j] * 19), torch.ones(19).to_sparse(), "a", [[1], [2, 3]]]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("value", NO_NUMBERS, ids=str)
def test_other_values_to_put_are_one_line(value):
    for edit in (put(value), add(value, position=1), scale(value), patch(value, position=1)):
        with pytest.raises(InputError, match=r"the edit of decoder\.0\.resid_pre: "):
            run(model("gpt2"), token_ids(2, 5), edit={"decoder.0.resid_pre": edit})


def test_edits_work_in_inference_mode():
    built, ids, site = model("gpt2"), token_ids(2, 5), "decoder.0.resid_pre"
    for edit in (
        half,
        lambda x: x.mul_(0.5),
        lambda x: None,
        zero(position=[1, -1]),
        change(half, position=slice(1, 3)),
    ):
        expected = run(built, ids, edit={site: edit}).logits
        with torch.inference_mode():
            assert torch.equal(run(built, ids, edit={site: edit}).logits, expected)
            with pytest.raises(InputError, match="writes over its value and returns nothing"):
                run(built, ids, edit={site: lambda x: [x.mul_(0.5), None][1]})


def test_a_value_that_is_no_number_may_be_looked_at():
    built, site = model("gpt2"), "decoder.0.resid_pre"
    out = run(built, token_ids(1, 5), site, {"decoder.embed": put(torch.nan), site: lambda value: None})
    assert out[site].isnan().all()


@pytest.mark.parametrize("name", ["gpt2", "attention only", "post-norm decoder", "bert"])
def test_to_write_over_one_captured_value_leaves_all_others(name):
    built, ids = model(name), token_ids(2, 5)
    out = run(built, ids, "*", grad=False)
    before = {site: value.clone() for site, value in out.activations.items()}
    for site, value in before.items():
        out[site].add_(1.0)
        assert [other for other in before if not torch.equal(out[other], before[other])] == [site]
        out[site].copy_(value)


def test_captured_values_that_were_one_have_gradients_each():
    built = model("gpt2")
    out = run(built, token_ids(2, 5), "*.resid_*", grad=True)
    sites = ["decoder.0.resid_post", "decoder.1.resid_pre"]
    one, other = torch.autograd.grad(out.logits.square().sum(), [out[site] for site in sites])
    assert_close(one, other)
    assert other.abs().max() > 1e-3


READY: dict[str, Callable] = {
    "zero": zero,
    "put": lambda **where: put(torch.ones(5), **where),
    "scale": lambda **where: scale(2.0, **where),
    "add": lambda **where: add(1.0, **where),
    "patch": lambda **where: patch(torch.ones(2, 5, 3, 5), **where),
    "change": lambda **where: change(half, **where),
    "a function": lambda **where: half,
}


@pytest.mark.parametrize("kind", READY)
def test_an_edited_model_is_pickled_as_it_is(kind):
    built, ids = model("gpt2"), token_ids(2, 5)
    whole = edited(built, {"decoder.0.attn.z": READY[kind](head=1, position=[0, -1])})
    assert torch.equal(pickle.loads(pickle.dumps(whole))(ids), whole(ids))

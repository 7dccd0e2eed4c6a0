"""What an edit may return, and what becomes of what is captured: other precisions, nothing, no numbers."""

import numpy as np
import pytest
import torch
from tiny import model, token_ids
from torch import Tensor
from torch.testing import assert_close

from interp import InputError, add, change, patch, put, run, scale, zero


def half(value: Tensor) -> Tensor:
    return value * 0.5


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_numbers_of_another_precision_are_converted(dtype):
    built, ids, site = model("gpt2", dtype=torch.float32), token_ids(2, 5), "decoder.0.resid_pre"
    value, whole = torch.linspace(-1, 1, 19, dtype=dtype), torch.ones(2, 5, 19, dtype=dtype)
    edits = [lambda x: half(x).to(dtype), change(lambda x: half(x).to(dtype), position=[0, 2]), put(value, position=1)]
    for edit in (*edits, add(value), scale(value), patch(whole, position=[0])):
        out = run(built, ids, site, {site: edit})
        assert (out[site].dtype, out.logits.dtype) == (torch.float32, torch.float32)
    found = run(built, ids, site, {site: put(value, position=-1)})[site][:, -1]
    assert_close(found, value.float().expand_as(found))


def test_nothing_leaves_the_value_as_it_is_and_a_part_is_changed_alone():
    built, ids, site, shapes = model("gpt2"), token_ids(2, 5), "decoder.1.resid_pre", []
    plain, vector = run(built, ids, "*.resid_*"), torch.arange(19.0).double()
    other = run(built, (ids + 1) % 29, site)[site]
    out = run(built, ids, edit={"decoder.*.attn.z": lambda z: shapes.append(z.shape)})
    assert torch.equal(out.logits, plain.logits)
    assert shapes == [(2, 5, 3, 5)] * 2
    found = run(built, ids, "*.resid_*", {site: lambda stream: stream.mul_(0.5)})
    assert torch.equal(found["decoder.0.resid_post"], plain["decoder.0.resid_post"])  # which is the same stream
    assert torch.equal(found[site], plain[site] / 2)
    for edit, position, expected in (
        (add(vector, position=[1, -1]), [1, 4], plain[site] + vector),
        (zero(position=2), [2], plain[site] * 0),
        (put(vector, position=2), [2], vector.expand(2, 5, 19)),
        (scale(vector, position=slice(3)), [0, 1, 2], plain[site] * vector),
        (patch(other, position=[-1, 0]), [4, 0], other),
        (change(lambda part: part.clamp(min=0), position=3), [3], plain[site].clamp(min=0)),
        (change(lambda part: None, position=3), [3], plain[site]),
    ):
        changed = plain[site].clone()
        changed[:, position] = expected[:, position]
        assert torch.equal(run(built, ids, site, {site: edit})[site], changed)


NO_NUMBERS = {
    "floating-point numbers, .* got torch.int64": lambda x: x.long(),
    "floating-point numbers, .* got torch.complex128": lambda x: x * 1j,
    "expected real numbers in a dense tensor, got .*sparse": lambda x: x.to_sparse(),
    "got 'a'": lambda x: "a",
    "got 3.0": lambda x: 3.0,
}
NO_VALUES = {put: "a", scale: torch.tensor(1j), add: np.array([1j] * 19), patch: [[1], [2, 3]]}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("message", [*NO_NUMBERS, ""])
def test_other_values_are_one_line(message):
    edits = [ready(value, position=1) for ready, value in NO_VALUES.items()]
    if message:
        edits = [NO_NUMBERS[message], change(NO_NUMBERS[message]), change(NO_NUMBERS[message], position=[1, 2])]
    for edit in edits:
        with pytest.raises(InputError, match=r"the edit of decoder\.0\.resid_pre: .*" + message):
            run(model("gpt2"), token_ids(2, 5), edit={"decoder.0.resid_pre": edit})


def test_edits_work_in_inference_mode():
    built, ids, site = model("gpt2"), token_ids(2, 5), "decoder.0.resid_pre"
    edits = [half, lambda x: x.mul_(0.5), lambda x: None, zero(position=[1, -1]), change(half, position=slice(1, 3))]
    no_number = run(built, ids, site, {"decoder.embed": put(torch.nan), site: lambda value: None})
    assert no_number[site].isnan().all()  # which may be looked at
    for edit in edits:
        expected = run(built, ids, edit={site: edit}).logits
        with torch.inference_mode():
            assert torch.equal(run(built, ids, edit={site: edit}).logits, expected)
            with pytest.raises(InputError, match="writes over its value and returns nothing"):
                run(built, ids, edit={site: lambda x: [x.mul_(0.5), None][1]})


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

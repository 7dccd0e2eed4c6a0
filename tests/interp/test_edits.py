"""What may an edit return, and what happens to captures? No edit lets a query see a hidden key."""

import numpy as np
import pytest
import torch
from covering import pairwise
from tiny import Whole, model, rows, token_ids, two_stacks, variant
from torch import Tensor
from torch.testing import assert_close

from interp import InputError, TokenBatch, Transformer, add, change, edited, generate, patch, run, scale, set_to, zero


def half(value: Tensor) -> Tensor:
    return value * 0.5


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_numbers_of_another_precision_are_converted(dtype):
    built, ids, site = model("gpt2", dtype=torch.float32), token_ids(2, 5), "decoder.0.resid_pre"
    value, whole = torch.linspace(-1, 1, 19, dtype=dtype), torch.ones(2, 5, 19, dtype=dtype)
    functions = [lambda x: half(x).to(dtype), change(lambda x: half(x).to(dtype), position=[0, 2])]
    for edit in (*functions, set_to(value, position=1), add(value), scale(value), patch(whole, position=[0])):
        out = run(built, ids, site, {site: edit})
        assert (out[site].dtype, out.logits.dtype) == (torch.float32, torch.float32)
    result = run(built, ids, site, {site: set_to(value, position=-1)})[site][:, -1]
    assert_close(result, value.float().expand_as(result))


def test_nothing_leaves_the_value_as_it_is_and_a_part_is_changed_alone():
    built, ids, site, shapes = model("gpt2"), token_ids(2, 5), "decoder.1.resid_pre", []
    plain, vector = run(built, ids, "*.resid_*"), torch.arange(19.0).double()
    source = run(built, (ids + 1) % 29, site)[site]
    out = run(built, ids, edit={"decoder.*.attn.z": lambda z: shapes.append(z.shape)})
    assert torch.equal(out.logits, plain.logits)
    assert shapes == [(2, 5, 3, 5)] * 2
    result = run(built, ids, "*.resid_*", {site: lambda stream: stream.mul_(0.5)})
    assert torch.equal(result["decoder.0.resid_post"], plain["decoder.0.resid_post"])  # the same stream
    assert torch.equal(result[site], plain[site] / 2)
    for edit, position, expected in (
        (add(vector, position=[1, -1]), [1, 4], plain[site] + vector),
        (zero(position=2), [2], plain[site] * 0),
        (set_to(vector, position=2), [2], vector.expand(2, 5, 19)),
        (scale(vector, position=slice(3)), [0, 1, 2], plain[site] * vector),
        (patch(source, position=[-1, 0]), [4, 0], source),
        (change(lambda part: part.clamp(min=0), position=3), [3], plain[site].clamp(min=0)),
        (change(lambda part: None, position=3), [3], plain[site]),
    ):
        changed = plain[site].clone()
        changed[:, position] = expected[:, position]
        assert torch.equal(run(built, ids, site, {site: edit})[site], changed)


NO_NUMBERS = {
    "floating-point numbers, .* got torch.complex128": lambda x: x * 1j,
    "expected real numbers in a dense tensor, got .*sparse": lambda x: x.to_sparse(),
    "got 3.0": lambda x: 3.0,
}
NO_VALUES = {set_to: "a", scale: torch.tensor(1j), add: np.array([1j] * 19), patch: [[1], [2, 3]]}


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
    no_number = run(built, ids, site, {"decoder.embed": set_to(torch.nan), site: lambda value: None})
    assert no_number[site].isnan().all()  # it may be captured
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
        assert [key for key in before if not torch.equal(out[key], before[key])] == [site]
        out[site].copy_(value)


LENGTHS = (4, 7, 5)
EDITS = {
    "zero": zero(),
    "set to": set_to(0.3),
    "scale by 0": scale(0.0),
    "add": add(1.0, key=0),
    "change": change(torch.ones_like),
    "patch": patch(torch.full((1, 1, 1, 1), 0.2).expand(3, 6, 7, 7)),
    "one head": set_to(0.3, head=1),
    "one key": set_to(2.0, key=[0, -1]),
    "a function in place": lambda value: value.fill_(0.2),
}
MODELS = {
    "decoder": lambda: model("llama"),
    "encoder": lambda: variant("alibi", causal=False),
    "local": lambda: variant("local, capped"),
    "two stacks": lambda: two_stacks("modern"),
}


def texts_of(built: Transformer, side: str) -> dict[str, TokenBatch]:
    lengths = {"tokens": (4, 7, 5), "target": (7, 3, 5)}
    stacks = zip(lengths, built.config.stacks.values(), strict=False)
    texts = {name: rows(lengths[name], d_vocab=stack.d_vocab).id_lists() for name, stack in stacks}
    return {name: TokenBatch.from_rows(ids, side=side) for name, ids in texts.items()}


@pytest.mark.parametrize(("name", "part", "side"), pairwise(MODELS, ("scores", "pattern"), ("left", "right")))
def test_what_is_not_seen_stays_so_whatever_is_put_there(name, part, side):
    built = MODELS[name]()
    texts, none = texts_of(built, side), -torch.inf if part == "scores" else 0.0
    places = [site for site in built.sites if site.endswith(part)]
    plain, last = run(built, capture="*", **texts), texts.get("target", texts["tokens"])
    for kind, edit in EDITS.items():
        if kind == "patch" and name != "decoder":
            continue  # its value has the decoder's shape
        result = run(built, capture="*", edit=dict.fromkeys(places, edit), **texts)
        for site in places:
            unseen = plain[site.replace(".pattern", ".scores")] == -torch.inf
            assert (result[site][unseen] == none).all(), (kind, site)
            pattern = result[site.replace(".scores", ".pattern")]
            assert (pattern[unseen] == 0).all(), (kind, site)
            if part == "scores":
                assert_close(pattern, result[site].softmax(-1))
        assert result.logits.isfinite().all(), kind
        assert not torch.allclose(result.logits, plain.logits), kind
        for text in range(3) if kind != "patch" else ():  # each text is edited as if alone
            alone = {key: TokenBatch.from_ids(batch.ids[text][batch.mask[text]]) for key, batch in texts.items()}
            logits = run(built, edit=dict.fromkeys(places, edit), **alone).logits[0]
            assert torch.allclose(result.logits[text][last.mask[text]], logits, rtol=1e-9, atol=1e-9), (kind, text)


def test_weights_are_not_renormalised():
    site = "decoder.0.attn.pattern"
    pattern = run(model("gpt2"), rows((5,)), site, {site: set_to(0.5)})[site][0, 0]
    assert torch.equal(pattern, torch.full_like(pattern, 0.5).tril())


MAKES = {
    "cache": lambda built: built,
    "whole": Whole,
    "edited": lambda built: edited(built, {"decoder.0.attn.z": add(1.0)}),
}
WHILE_WRITING = {
    "everywhere": zero(),
    "keys": set_to(0.4, key=[0, -1]),
    "steps": set_to(0.4, step=slice(1, None)),
    "a function": lambda value: value.fill_(0.2),
}


@pytest.mark.parametrize(("site", "edit", "make"), pairwise(("scores", "pattern"), WHILE_WRITING, MAKES))
def test_what_is_written_sees_no_more(site, edit, make):
    built, steering = MAKES[make](model("gpt2")), {f"decoder.1.attn.{site}": WHILE_WRITING[edit]}
    result = generate(built, prompts := rows((4, 6)), 4, edit=steering, capture="decoder.1.attn.*")
    later = torch.ones(9, 9, dtype=torch.bool).triu(1)
    unseen = (later | ~result.tokens.mask[:, None, :9]) & ~torch.eye(9, dtype=torch.bool)
    for part, none in (("pattern", 0), ("scores", -torch.inf)):
        captured = result[f"decoder.1.attn.{part}"]
        assert (captured[unseen[:, None].expand_as(captured)] == none).all()
    alone = [generate(built, torch.tensor([ids]), 4, edit=steering).ids[0].tolist() for ids in prompts.id_lists()]
    assert result.tokens.id_lists() == alone

"""A pass that ends with the last site wanted: what it gives is a whole pass's, and nothing after it is computed."""

import pytest
import torch
from covering import pairwise
from tiny import STACKS, TWO_STACKS, model, token_ids, two_stacks

from interp import InputError, run, zero

EARLY, LATE = "decoder.0.attn_out", "decoder.1.attn.z"
SITES = ["resid_pre", "attn.z", "attn.pattern", "resid_post"]


@pytest.mark.parametrize(("name", "site", "grad"), pairwise(STACKS, SITES, (False, True)))
def test_it_has_what_a_whole_pass_has(name, site, grad):
    built, ids = model(name), token_ids(2, 5)
    pattern = f"{next(iter(built.config.stacks))}.*.{site}"
    out, whole = run(built, ids, until=pattern, grad=grad), run(built, ids, capture=pattern, grad=grad)
    assert [*out.activations] == [*whole.activations]
    for each in out.activations:
        assert torch.equal(out[each], whole[each])
        assert out[each].requires_grad == grad
    with pytest.raises(InputError, match=r"this pass ended with '.*\.\*\..*'"):
        _ = out.logits


@pytest.mark.parametrize("name", TWO_STACKS)
def test_an_encoders_site_ends_it_before_the_decoder(name):
    built = two_stacks(name)
    given = {"tokens": token_ids(2, 5, d_vocab=19), "target": token_ids(2, 4)}
    names: list[str] = []
    for part, module in built.named_modules():
        module.register_forward_hook(lambda *_, part=part: names.append(part))
    for wanted in ("encoder.*.attn.pattern", "decoder.*.cross_attn.pattern", "*.pattern"):
        names.clear()
        out = run(built, until=wanted, **given)
        assert any(each.startswith("stacks.decoder") for each in names) == (not wanted.startswith("encoder"))
        assert "output" not in names
        whole = run(built, capture=wanted, **given)
        assert out.activations.keys() == whole.activations.keys()
        assert all(torch.equal(out[site], whole[site]) for site in out.activations)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"edit": {LATE: zero()}, "until": EARLY}, f"never fired before the pass ended with '{EARLY}': {LATE}"),
        ({"capture": LATE, "until": EARLY}, f"not passed before the pass ended with '{EARLY}': {LATE}"),
        ({"until": "decoder.7.attn.z"}, r"no site 'decoder\.7\.attn\.z'"),
    ],
)
def test_what_comes_after_it_is_refused(settings, message):
    with pytest.raises(InputError, match=message):
        run(model("gpt2"), token_ids(2, 5), **settings)


def test_an_edit_may_run_the_model_until_somewhere_itself():
    built, ids, z, last = model("gpt2"), token_ids(2, 5), "decoder.0.attn.z", "decoder.1.attn.pattern"
    out = run(built, ids, edit={z: lambda _: run(built, ids, until=z)[z]}, until=last)
    assert torch.equal(out[last], run(built, ids, until=last)[last])

"""A pass that ends with the last site wanted: what it gives is a whole pass's, and nothing after it is computed."""

import pytest
import torch
from tiny import STACKS, TWO_STACKS, model, token_ids, two_stacks
from torch import nn

from interp import InputError, run, zero


def called(built: nn.Module) -> tuple[list[str], list]:
    """Which of a model's parts a call reaches, by their names."""
    names: list[str] = []
    hooks = [
        module.register_forward_hook(lambda *_, name=name: names.append(name)) for name, module in built.named_modules()
    ]
    return names, hooks


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("site", ["resid_pre", "attn.z", "attn.pattern", "resid_post"])
@pytest.mark.parametrize("name", STACKS)
def test_it_has_what_a_whole_pass_has(name, site, grad):
    built = model(name)
    stack = next(iter(built.config.stacks))
    ids = token_ids(2, 5)
    out = run(built, ids, until=f"{stack}.*.{site}", grad=grad)
    whole = run(built, ids, capture=f"{stack}.*.{site}", grad=grad)
    assert [*out.activations] == [*whole.activations]
    for each in out.activations:
        assert torch.equal(out[each], whole[each])
        assert out[each].requires_grad == grad
    with pytest.raises(InputError, match=rf"this pass ended with '{stack}\.\*\.{site}'"):
        _ = out.logits


def test_nothing_after_it_is_computed():
    built = model("gpt2")
    names, hooks = called(built)
    run(built, token_ids(2, 5), until="decoder.0.attn.pattern", capture="decoder.embed")
    assert any(name.startswith("stacks.decoder.blocks.0.") for name in names)
    assert not any(name.startswith(("stacks.decoder.blocks.1", "stacks.decoder.norm", "output")) for name in names)
    assert "stacks.decoder.blocks.0.mlp" not in names
    for hook in hooks:
        hook.remove()


@pytest.mark.parametrize("name", TWO_STACKS)
def test_an_encoders_site_ends_it_before_the_decoder(name):
    built = two_stacks(name)
    given = {"tokens": token_ids(2, 5, d_vocab=19), "target": token_ids(2, 4)}
    names, hooks = called(built)
    for wanted in ("encoder.*.attn.pattern", "decoder.*.cross_attn.pattern", "*.pattern"):
        names.clear()
        out, reached = run(built, until=wanted, **given), [*names]
        assert any(each.startswith("stacks.decoder") for each in reached) == (not wanted.startswith("encoder"))
        assert "output" not in reached
        whole = run(built, capture=wanted, **given)
        assert out.activations.keys() == whole.activations.keys()
        assert all(torch.equal(out[site], whole[site]) for site in out.activations)
    for hook in hooks:
        hook.remove()


def test_logits_are_a_site_like_others():
    built, ids = model("gpt2"), token_ids(2, 5)
    assert torch.equal(run(built, ids, until="logits").logits, run(built, ids).logits)


def test_edits_and_captures_before_it_count_and_those_after_it_are_refused():
    built, ids = model("gpt2"), token_ids(2, 5)
    changed = run(built, ids, "decoder.0.attn.z", {"decoder.0.attn.z": zero(head=1)}, until="decoder.1.resid_pre")
    assert not changed["decoder.0.attn.z"][:, :, 1].any()
    assert not torch.equal(changed["decoder.1.resid_pre"], run(built, ids, "*.resid_pre")["decoder.1.resid_pre"])
    early, late = "decoder.0.attn_out", "decoder.1.attn.z"
    with pytest.raises(InputError, match=f"never fired before the pass ended with '{early}': {late}"):
        run(built, ids, edit={late: zero()}, until=early)
    with pytest.raises(InputError, match=f"not passed before the pass ended with '{early}': {late}"):
        run(built, ids, capture=late, until=early)
    with pytest.raises(InputError, match=r"no site 'decoder\.7\.attn\.z'"):
        run(built, ids, until="decoder.7.attn.z")


def test_an_edit_may_run_the_model_until_somewhere_itself():
    built, ids = model("gpt2"), token_ids(2, 5)

    def its_own(z: torch.Tensor) -> torch.Tensor:
        return run(built, ids, until="decoder.0.attn.z")["decoder.0.attn.z"]

    last = "decoder.1.attn.pattern"
    out = run(built, ids, edit={"decoder.0.attn.z": its_own}, until=last)
    assert torch.equal(out[last], run(built, ids, until=last)[last])


def test_nothing_leaks():
    built, ids = model("gpt2"), token_ids(2, 5)
    before = run(built, ids).logits
    run(built, ids, until="decoder.0.attn.z", grad=True)
    assert torch.is_grad_enabled()
    assert torch.equal(run(built, ids).logits, before)

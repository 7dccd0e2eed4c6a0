"""What is no number is found where it arises, and named, before anything is measured."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiny import model, token_ids, two_stacks

from analyses.reading.inputs import given, patterns
from analyses.report.scaffold import write
from analyses.tables.head_tables import Heads
from interp import InputError, Transformer, generate
from interp.finite import check_finite


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "sinusoidal"])
def test_sound_models_pass(name: str) -> None:
    check_finite(model(name))
    check_finite(model(name), token_ids(2, 5))
    check_finite(two_stacks("modern"))


def changed(part: str, change: Callable[[torch.Tensor], object]) -> Transformer:
    built = model("gpt2", dtype=torch.float32)
    with torch.no_grad():
        change(built.get_parameter(f"stacks.decoder.blocks.{part}.weight"))
    return built


def overflowing() -> Transformer:
    return changed("1.mlp.down", lambda weight: weight.mul_(1e38))


def damaged() -> Transformer:
    return changed("0.attn.qkv", lambda weight: weight[0, 0].fill_(math.nan))


NOT_FINITE = r"the weight .*blocks\.0\.attn\.qkv\.weight is not finite, so decoder\.0\.attn\.q holds NaN"
REFUSED = {
    "an overflow, by site and dtype": (
        lambda: check_finite(overflowing()),
        r"^decoder\.1\.mlp_out holds (NaN|infinite numbers), computed in torch.float32",
    ),
    "scores beyond the dtype, before their pattern": (
        lambda: check_finite(changed("1.attn.qkv", lambda weight: weight.mul_(1e30))),
        r"^decoder\.1\.attn\.scores holds",
    ),
    "a weight, with the first site that reads it": (lambda: check_finite(damaged()), NOT_FINITE),
    "the same in a pattern that a corpus is read with": (
        lambda: patterns(damaged(), Heads("decoder", 2, 3), given(damaged(), [[1, 2, 3], [4, 5]])),
        NOT_FINITE,
    ),
    "what a text would go on by": (
        lambda: generate(overflowing(), token_ids(1, 4), 3, temperature=1.0),
        r"decoder\.1\.mlp_out holds",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_number_is_named(what: str) -> None:
    ask, message = REFUSED[what]
    with pytest.raises(InputError, match=message):
        ask()


def test_no_command_measures_such_a_model(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"broken: the weight .* is not finite"):
        write(tmp_path / "out", lambda run: pytest.fail("measured"), {"broken": damaged()})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("seed", [-1, 1 << 63, 10**30])
def test_a_seed_is_a_whole_number_of_64_bits(seed: int) -> None:
    with pytest.raises(InputError, match="expected a whole number as seed"):
        generate(model("gpt2"), token_ids(1, 4), 1, seed=seed)

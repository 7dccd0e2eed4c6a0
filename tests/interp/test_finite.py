"""What is no number is found where it arises, and named, before anything is measured."""

import math
from pathlib import Path

import pytest
import torch
from tiny import model, token_ids, two_stacks

from analyses.head_tables import Heads
from analyses.reading.inputs import given, patterns
from analyses.report.scaffold import write
from interp import InputError, generate
from interp.finite import check_finite


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "sinusoidal"])
def test_sound_models_pass(name: str) -> None:
    check_finite(model(name))
    check_finite(model(name), token_ids(2, 5))


def test_sound_encoder_decoders_pass() -> None:
    check_finite(two_stacks("modern"))


def test_an_overflow_is_named_by_site_and_dtype() -> None:
    large = model("gpt2", dtype=torch.float32)
    with torch.no_grad():
        large.get_parameter("stacks.decoder.blocks.1.mlp.down.weight").mul_(1e38)
    with pytest.raises(
        InputError, match=r"^decoder\.1\.mlp_out holds (NaN|infinite numbers), computed in torch.float32"
    ):
        check_finite(large)


def test_scores_beyond_the_dtype_are_named_before_their_pattern() -> None:
    saturated = model("gpt2", dtype=torch.float32)
    with torch.no_grad():
        saturated.last.blocks[1].attn.qkv.weight.mul_(1e30)
    with pytest.raises(InputError, match=r"^decoder\.1\.attn\.scores holds"):
        check_finite(saturated)


def damaged():
    found = model("gpt2", dtype=torch.float32)
    with torch.no_grad():
        found.last.blocks[0].attn.qkv.weight[0, 0] = math.nan
    return found


def test_a_weight_that_is_none_is_named_with_the_first_site_that_reads_it() -> None:
    said = r"the weight .*blocks\.0\.attn\.qkv\.weight is not finite, so decoder\.0\.attn\.q holds NaN"
    with pytest.raises(InputError, match=said):
        check_finite(damaged())
    with pytest.raises(InputError, match=said):  # in a pattern that a corpus is read with
        patterns(damaged(), Heads("decoder", 2, 3), given(damaged(), [[1, 2, 3], [4, 5]]))


def test_a_text_goes_on_by_numbers_alone() -> None:
    overflowing = model("gpt2", dtype=torch.float32)
    with torch.no_grad():
        overflowing.get_parameter("stacks.decoder.blocks.1.mlp.down.weight").mul_(1e38)
    with pytest.raises(InputError, match=r"decoder\.1\.mlp_out holds"):
        generate(overflowing, token_ids(1, 4), 3, temperature=1.0)


def test_no_command_measures_such_a_model(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"broken: the weight .* is not finite"):
        write(tmp_path / "out", lambda run: pytest.fail("measured"), {"broken": damaged()})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("seed", [-1, 1 << 63, 10**30])
def test_a_seed_is_a_whole_number_of_64_bits(seed: int) -> None:
    with pytest.raises(InputError, match="expected a whole number as seed"):
        generate(model("gpt2"), token_ids(1, 4), 1, seed=seed)

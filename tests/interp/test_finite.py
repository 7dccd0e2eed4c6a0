"""What is no number is found where it arises, and named, before anything is measured."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiny import model, token_ids, two_stacks

from analyses.measures.head_tables import Heads
from analyses.reading.attended import Pass
from analyses.report.scaffold import write
from interp import InputError, Transformer, generate
from interp.finite import check_finite


def test_sound_models_pass() -> None:
    for built in (model("gpt2"), model("bert"), two_stacks("modern")):
        check_finite(built)


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
REFUSED = [
    (lambda: check_finite(overflowing()), r"^decoder\.1\.mlp_out holds .*, computed in torch.float32"),
    (lambda: check_finite(changed("1.attn.qkv", lambda w: w.mul_(1e30))), r"^decoder\.1\.attn\.scores holds"),
    (lambda: Pass(damaged(), Heads("decoder", 2, 3), [[1, 2, 3], [4, 5]]).whole, NOT_FINITE),
    (lambda: generate(overflowing(), token_ids(1, 4), 3, temperature=1.0), r"decoder\.1\.mlp_out holds"),
    *((lambda seed=seed: generate(model("gpt2"), token_ids(1, 4), 1, seed=seed), "as seed") for seed in (-1, 1 << 63)),
]


@pytest.mark.parametrize(("ask", "message"), REFUSED)
def test_what_is_no_number_is_named(ask: Callable, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ask()


def test_no_command_measures_such_a_model(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"broken: the weight .* is not finite"):
        write(tmp_path / "out", lambda run: pytest.fail("measured"), {"broken": damaged()})
    assert not (tmp_path / "out").exists()

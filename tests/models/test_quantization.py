"""Eight-bit weights: how far are they from the originals, and what can be done with them?"""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from refusals import refusal
from tiny import model, token_ids
from torch.testing import assert_close

from analyses.cli.command_frame import Dtype, opened
from interp import Pairs, TokenBatch, Transformer, logit_difference, run, sweep
from interp.patching import sweep_by_forward
from models import load, save
from models import quantization as quantizing
from models.quantization import Int8

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings from importing torchao
torchao = pytest.mark.skipif(find_spec("torchao") is None, reason="needs torchao, which the extra int8 brings")


@pytest.fixture(params=["llama", "gpt2"])
def directory(request, tmp_path) -> Path:
    save(model(request.param, dtype=torch.float32), tmp_path / "model")
    return tmp_path / "model"


def rounded(quantized: Transformer) -> dict[str, Int8]:
    return {name: module for name, module in quantized.named_modules() if isinstance(module, Int8)}


def distance(value: torch.Tensor, reference: torch.Tensor) -> float:
    return float((value - reference).float().norm() / reference.float().norm())


@torchao
@pytest.mark.parametrize("rows", [7, 256])
def test_every_matrix_of_the_blocks_is_within_half_a_step(rows, directory, monkeypatch):
    monkeypatch.setattr(quantizing, "_ROWS", rows)
    plain, quantized = load(directory), load(directory, quantize="int8")
    matrices = rounded(quantized)
    assert {name.rpartition(".blocks.")[2] for name in matrices} == {
        f"{layer}.{part}" for layer in (0, 1) for part in ("attn.qkv", "attn.out", "mlp.up", "mlp.down")
    }
    with torch.no_grad():
        for name, module in matrices.items():
            weight = plain.get_parameter(f"{name}.weight")
            step = weight.abs().amax(1, keepdim=True) / 127.5
            assert module.weight.shape == weight.shape
            assert ((module.weight - weight).abs() <= 0.5001 * step).all()
            assert (module.weight != weight).any()
            assert module.rounded.qdata.dtype == torch.int8


@torchao
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_logits_are_those_of_a_model_with_the_rounded_weights(directory, dtype):
    plain, quantized = load(directory, dtype=dtype), load(directory, dtype=dtype, quantize="int8")
    ids = token_ids(3, 11)
    logits = run(quantized, ids).logits
    assert 1e-3 < distance(logits, run(plain, ids).logits) < 0.05
    with torch.no_grad():
        for name, module in rounded(quantized).items():
            plain.get_parameter(f"{name}.weight").copy_(module.weight)
    assert distance(logits, run(plain, ids).logits) < (1e-6 if dtype == torch.float32 else 0.02)
    assert logits.dtype == dtype


@torchao
def test_views_of_heads_are_read_and_not_written(directory):
    attention = load(directory, quantize="int8").last.blocks[1].attn
    for name in ("W_Q", "W_K", "W_V", "W_O"):
        assert getattr(attention, name).shape[0] in {2, 3, 6}
        for mode in (torch.no_grad, torch.enable_grad):
            with mode(), pytest.raises(RuntimeError, match=r"[Ii]n-?place"):
                getattr(attention, name)[0] = 0.0


@torchao
def test_a_sweep_and_gradients_go_through_rounded_weights(directory):
    quantized = load(directory, quantize="int8")
    clean, corrupt = TokenBatch.from_ids(token_ids(2, 7)), TokenBatch.from_ids(token_ids(2, 7, seed=1))
    run_again = run(quantized, clean, capture="decoder.1.attn.z", grad=True)
    z = run_again["decoder.1.attn.z"]
    (gradient,) = torch.autograd.grad(run_again.logits[:, -1, 3].sum(), z)
    assert gradient.abs().sum() > 0
    pairs = Pairs(clean, corrupt, token_ids(2), token_ids(2, seed=1))
    result, expected = (each(quantized, pairs, logit_difference(), "z") for each in (sweep, sweep_by_forward))
    assert_close(result.values, expected.values, atol=1e-4, rtol=1e-4)


@torchao
def test_a_quantized_model_is_not_saved(directory, tmp_path):
    assert "cannot be saved" in refusal(save, load(directory, quantize="int8"), tmp_path / "again")


def test_what_cannot_be_quantized_is_refused(directory, monkeypatch):
    assert "expected 'int8'" in refusal(quantizing.require, "int4", torch.float32)
    assert "float64" in refusal(load, directory, quantize="int8", dtype=torch.float64)
    monkeypatch.setattr("models.quantization.importlib.util.find_spec", lambda _: None)
    assert 'pip install "interp[int8]"' in refusal(load, directory, quantize="int8")


@torchao
def test_the_command_line_rounds_weights(directory):
    assert rounded(opened(str(directory), "cpu", Dtype.INT8))

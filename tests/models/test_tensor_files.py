"""Tensors are loaded and stored unchanged, whatever their shape, strides and dtype, in little memory."""

import subprocess
import sys

import pytest
import torch
from covering import pairwise
from refusals import refusal
from safetensors.torch import load_file, save_file

from models import tensor_files as stored
from models.tensor_files import DTYPES, folded, read_header, write

SHAPES = [(), (1,), (7,), (0, 5), (5, 3), (1, 11), (11, 1), (3, 5, 7), (2, 3, 5, 7)]


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype)


@pytest.mark.parametrize(
    ("shape", "kind", "to", "block"), pairwise(SHAPES, DTYPES, [torch.float32, torch.bfloat16], [8, 60, 1 << 20])
)
def test_a_tensor_fills_places_of_any_strides(shape, kind, to, block, tmp_path, monkeypatch):
    monkeypatch.setattr(stored, "BLOCK", block)
    value, before = random(*shape, dtype=DTYPES[kind]), random(3)
    save_file({"before": before, "value": value, "after": before.clone()}, tmp_path / "x.safetensors")
    entry = read_header(tmp_path / "x.safetensors")["value"]
    assert (entry.kind, entry.shape) == (kind, shape)
    backwards = tuple(reversed(range(len(shape))))
    plain, turned = torch.empty(shape, dtype=to), torch.empty(shape[::-1], dtype=to).permute(backwards)
    wide = torch.full((*shape, 2), 9.0, dtype=to)
    for place in (plain, turned, wide[..., 0]):
        entry.fill(place)
        assert torch.equal(place, value.to(to))
        assert entry.equals(place)
    assert (wide[..., 1] == 9).all()
    if value.numel():
        plain.flatten()[-1] += 1
        assert not entry.equals(plain)


def test_a_place_may_have_its_axes_split(tmp_path):
    value = random(30, 7)
    save_file({"value": value}, tmp_path / "x.safetensors")
    place = torch.empty(3, 2, 5, 7)
    read_header(tmp_path / "x.safetensors")["value"].fill(place.transpose(0, 1))
    assert torch.equal(place, value.view(2, 3, 5, 7).transpose(0, 1))


def test_a_file_that_becomes_shorter_is_noticed(tmp_path):
    path = tmp_path / "x.safetensors"
    save_file({"value": random(5, 3)}, path)
    tensor = read_header(path)["value"]
    path.write_bytes(path.read_bytes()[:-1])
    assert "cut short" in refusal(tensor.fill, torch.empty(5, 3))


def test_what_is_written_is_what_safetensors_reads(tmp_path):
    values = {"turned": random(5, 3).T, "half": random(7, dtype=torch.bfloat16), "none": random(0, 5)}
    expected = {name: (value, tuple(value.shape)) for name, value in values.items()} | {
        "split": (random(2, 3, 5), (6, 5))
    }
    write(tmp_path / "x.safetensors", expected)
    read = load_file(tmp_path / "x.safetensors")
    assert read.keys() == expected.keys()
    for name, (value, shape) in expected.items():
        assert read[name].dtype == value.dtype
        assert torch.equal(read[name], value.reshape(shape))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], ""),
        (["a"], "a"),
        (["b.2.c", "b.0.c", "b.1.c"], "b.0-2.c"),
        (["b.0.c", "b.10.c", "b.2.c", "b.1.c", "b.9.d"], "b.0-2,10.c, b.9.d"),
        (["b.0.e.0.c", "b.0.e.1.c", "b.1.e.0.c", "b.1.e.1.c"], "b.0-1.e.0-1.c"),
        (["b.0.e.0.c", "b.1.e.0.c", "b.1.e.1.c"], "b.0.e.0.c, b.1.e.0-1.c"),
        (["fc1.weight", "fc2.weight"], "fc1.weight, fc2.weight"),
    ],
)
def test_names_that_differ_in_a_number_are_told_as_one(names, expected):
    assert folded(names) == expected


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
@pytest.mark.parametrize(("dtype", "times"), [("bfloat16", 1), ("float32", 2)])
def test_loading_needs_little_more_memory_than_the_weights(dtype, times, tmp_path):
    from repository import ROOT

    code = f"""from pathlib import Path
from benchmarks import loading
loading.build(Path({str(tmp_path)!r}), loading.QUICK | {{"num_hidden_layers": 6, "vocab_size": 4_000}})"""
    measure = f"""from pathlib import Path
from benchmarks.loading import measure
print(measure("interp", Path({str(tmp_path)!r}), "{dtype}", {{}})["peak"])"""
    for part in (code, measure):  # in new processes, without memory to reuse
        peak = subprocess.run([sys.executable, "-c", part], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    n_bytes = sum(file.stat().st_size for file in tmp_path.glob("*.safetensors"))
    # libraries' own memory varies by a tenth of these small weights; a copy would be all of them
    assert times * 0.95 < float(peak) / n_bytes <= times + 0.25

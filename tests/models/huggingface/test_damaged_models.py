"""Damaged weights, hostile numbers and nesting in a model's files: each is one line that names the place."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import LLAMA, model
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel

from interp import InputError, Tokenizer, Transformer, TransformerConfig
from interp.config import LayerNorm, RMSNorm, Rotary
from models import load
from models.huggingface import save


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    save(model("llama", dtype=torch.float32), tmp_path / "m")
    return tmp_path / "m"


def edit(directory: Path, **fields: Any) -> None:
    raw = json.loads((directory / "config.json").read_text()) | fields
    (directory / "config.json").write_text(json.dumps(raw))


@pytest.mark.parametrize(
    ("value", "said"), [(math.nan, "it holds NaN"), (math.inf, "it holds infinite"), (-math.inf, "it holds infinite")]
)
@pytest.mark.parametrize("name", ["model.layers.1.self_attn.q_proj.weight", "model.norm.weight"])
def test_one_number_that_is_none_is_found_where_it_stands(directory: Path, name: str, value: float, said: str) -> None:
    tensors = load_file(directory / "model.safetensors")
    tensors[name].view(-1)[-1] = value
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(InputError, match=rf"{name.removeprefix('model.')}: {said}"):
        load(directory)


def test_a_weight_beyond_the_dtype_is_named(directory: Path) -> None:
    tensors = load_file(directory / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.weight"].view(-1)[3] = -70_000.0
    save_file(tensors, directory / "model.safetensors")
    assert load(directory, dtype=torch.bfloat16).dtype == torch.bfloat16
    with pytest.raises(InputError, match=r"layers\.0\.mlp\.up_proj\.weight: it holds 7e\+04, more than torch.float16"):
        load(directory, dtype=torch.float16)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"rms_norm_eps": math.inf}, "rms_norm_eps must be a number up to"),
        ({"rms_norm_eps": 1e9}, "eps must be a number from 0 to 1"),
        ({"rms_norm_eps": math.nan}, "rms_norm_eps must be a number above 0"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": math.inf}}, "rope_theta must be a number up to"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 10**400}}, "rope_theta must be a number up to"),
        ({"num_hidden_layers": 1_000_000}, "asks for 1,000,000 layers, but the weights hold"),
        ({"num_hidden_layers": 10**12}, "num_hidden_layers must be a whole number to 16,777,216"),
        ({"max_position_embeddings": 10**12}, "max_position_embeddings must be a whole number to"),
        ({"hidden_act": "x" * 10_000}, r"hidden_act '?x+\.\.\.\(10,0"),
    ],
)
def test_numbers_that_no_model_has_are_refused_before_anything_is_built(
    directory: Path, fields: dict[str, Any], said: str
) -> None:
    edit(directory, **fields)
    with pytest.raises(InputError, match=said) as error:
        load(directory)
    assert len(str(error.value)) < 800


@pytest.mark.parametrize("make", [LayerNorm, RMSNorm, Rotary])
@pytest.mark.parametrize("value", [math.inf, math.nan, -1.0, 1e30])
def test_parts_take_no_number_that_makes_others_undefined(make: Callable[[float], object], value: float) -> None:
    with pytest.raises(InputError, match="must be a number"):
        make(value)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
@pytest.mark.parametrize("content", ["[" * 100_000, "9" * 5_000, "\udcff", "{}"])
def test_files_that_cannot_be_read_are_named(directory: Path, name: str, content: str) -> None:
    (directory / name).write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(InputError, match=name.replace(".", r"\.")):
        load(directory)


def test_an_index_names_files_by_words(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "part.safetensors")
    index = {"weight_map": {"a": "part.safetensors", "b": 7}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match="weight_map must name a file for b, got 7"):
        load(directory)


def test_a_prompt_with_half_a_character_is_one_line() -> None:
    tokenizer = Tokenizer(Backend(WordLevel({"a": 0}, unk_token="a")))
    built = Transformer(TransformerConfig(decoder=replace(LLAMA, d_vocab=1)), tokenizer)
    assert built.tokenizer is tokenizer
    with pytest.raises(InputError, match=r"cannot tokenize 'a\\udcff'.*UTF-8"):
        tokenizer.encode("a\udcff")


def test_a_shard_whose_name_no_file_can_have_is_refused(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "x" * 5_000}}))
    with pytest.raises(InputError, match=r"cannot look for .*name too long"):
        load(directory)

"""GPT-2 and those that followed it: each computes what it computes elsewhere; what does not fit is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from parity import Variant, checked, make_pair
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from interp import InputError, run
from models import load


class Unrounded(SimpleNamespace):
    """torch, for models that take scores in float32 whatever their own precision is."""

    float32 = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def gelu_of_all_digits(x: torch.Tensor) -> torch.Tensor:
    """Bloom writes sqrt(2 / pi) with 8 digits."""
    return torch.nn.functional.gelu(x, approximate="tanh")


THEIRS = "transformers.models"
IDS = {"vocab_size": 23, "bos_token_id": 1, "eos_token_id": 2}
GPT2 = IDS | {"n_layer": 2, "n_embd": 21, "n_head": 3, "n_inner": 29, "n_positions": 17}
GPT_NEO = IDS | {
    "num_layers": 3,
    "hidden_size": 21,
    "num_heads": 3,
    "intermediate_size": 29,
    "max_position_embeddings": 17,
    "attention_types": [[["global", "local"], 1], [["local"], 1]],
    "window_size": 4,
}
GPTJ = IDS | {"n_layer": 2, "n_embd": 42, "n_head": 3, "n_inner": 29, "n_positions": 17, "rotary_dim": 6}
NEOX = IDS | {
    "num_hidden_layers": 2,
    "hidden_size": 78,
    "num_attention_heads": 3,
    "intermediate_size": 29,
    "max_position_embeddings": 17,
    "rope_parameters": {"rope_theta": 37.0, "partial_rotary_factor": 0.4, "rope_type": "default"},
}
OPT = IDS | {
    "num_hidden_layers": 2,
    "hidden_size": 21,
    "num_attention_heads": 3,
    "ffn_dim": 29,
    "max_position_embeddings": 17,
}
BLOOM = IDS | {"n_layer": 2, "hidden_size": 21, "n_head": 3, "seq_length": 17}
PHI = NEOX | {
    "num_attention_heads": 6,
    "hidden_size": 72,
    "rope_parameters": {"rope_theta": 37.0, "rope_type": "default"},
}


def gpt2(**fields: Any) -> Variant:
    return Variant("GPT2Config", "GPT2LMHeadModel", GPT2 | fields)


def gpt_neo(**fields: Any) -> Variant:
    unrounded = {f"{THEIRS}.gpt_neo.modeling_gpt_neo.torch": Unrounded()}
    return Variant("GPTNeoConfig", "GPTNeoForCausalLM", GPT_NEO | fields, unrounded=unrounded)


def gptj(**fields: Any) -> Variant:
    unrounded = {f"{THEIRS}.gptj.modeling_gptj.torch": Unrounded()}
    return Variant("GPTJConfig", "GPTJForCausalLM", GPTJ | fields, unrounded=unrounded)


def neox(**fields: Any) -> Variant:
    return Variant("GPTNeoXConfig", "GPTNeoXForCausalLM", NEOX | fields)


def opt(**fields: Any) -> Variant:
    # the padding token's embedding has no gradient
    return Variant("OPTConfig", "OPTForCausalLM", OPT | fields, reserved=(1,))


def bloom(**fields: Any) -> Variant:
    unrounded = {f"{THEIRS}.bloom.modeling_bloom.bloom_gelu_forward": gelu_of_all_digits}
    return Variant("BloomConfig", "BloomForCausalLM", BLOOM | fields, unrounded=unrounded)


def phi(**fields: Any) -> Variant:
    return Variant("PhiConfig", "PhiForCausalLM", PHI | fields)


TestGPT2 = checked(
    {
        "gpt2": gpt2(),
        "gpt2 unscaled, untied": gpt2(
            scale_attn_weights=False, tie_word_embeddings=False, activation_function="relu", n_inner=None
        ),
    }
)
TestGPTNeo = checked(
    {
        "gpt_neo": gpt_neo(),
        "gpt_neo global, untied": gpt_neo(
            attention_types=[[["global"], 3]], tie_word_embeddings=False, activation_function="relu"
        ),
    }
)
TestGPTJ = checked(
    {
        "gptj": gptj(),
        "gptj all turning, tied": gptj(rotary_dim=14, tie_word_embeddings=True, n_inner=None, layer_norm_epsilon=1e-3),
    }
)
TestGPTNeoX = checked(
    {
        "gpt_neox": neox(),
        "gpt_neox in turn, tied": neox(use_parallel_residual=False, attention_bias=False, tie_word_embeddings=True),
        "gpt_neox all turning, longer": neox(
            rope_parameters={"rope_type": "linear", "factor": 3.0, "partial_rotary_factor": 1.0, "rope_theta": 1e4}
        ),
        "gpt_neox of 20b": neox(hidden_act="gelu_fast", rope_parameters=None),
    }
)
TestOPT = checked(
    {
        "opt": opt(),
        "opt norms after, untied": opt(do_layer_norm_before=False, tie_word_embeddings=False),
        "opt without biases": opt(enable_bias=False, activation_function="gelu"),
    }
)
TestBloom = checked(
    {
        "bloom": bloom(),
        "bloom of 4 heads, untied": bloom(n_head=4, hidden_size=20, tie_word_embeddings=False, layer_norm_epsilon=1e-3),
    }
)
TestPhi = checked(
    {
        "phi": phi(),
        "phi with norms of queries, tied": phi(qk_layernorm=True, num_key_value_heads=2, tie_word_embeddings=True),
    }
)


def change_config(directory: Path, change: Callable[[dict], object]) -> Path:
    raw = json.loads((directory / "config.json").read_text())
    change(raw)
    (directory / "config.json").write_text(json.dumps(raw))
    return directory


@pytest.fixture
def written(tmp_path):
    """A directory with a variant's model."""

    def write(variant: Variant) -> Path:
        return make_pair(variant, torch.float32, tmp_path).directory

    return write


# --- ways in which the same model is written


def test_local_layers_see_as_many_tokens_as_the_window_is_wide(written):
    pattern = run(load(written(gpt_neo())), torch.arange(11)[None], "*.pattern")
    seen = [(pattern[f"decoder.{layer}.attn.pattern"][0, 0] > 0).sum(-1).tolist() for layer in range(3)]
    assert seen[0] == [*range(1, 12)]
    assert seen[1] == seen[2] == [1, 2, 3] + [4] * 8


@pytest.mark.parametrize(
    ("variant", "older"),
    [
        (bloom(), {"hidden_size": "n_embed", "n_head": "num_attention_heads", "n_layer": "num_hidden_layers"}),
        (neox(), {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}),
        (phi(), {"rope_theta": "rope_theta", "partial_rotary_factor": "partial_rotary_factor"}),
    ],
    ids=["bloom", "gpt_neox", "phi"],
)
def test_older_names_of_fields_are_read(variant, older, written):
    directory = written(variant)
    new = load(directory).config

    def rename(raw: dict) -> None:
        raw |= raw.pop("rope_parameters", {})
        raw.pop("rope_type", None)
        for name, before in older.items():
            raw[before] = raw.pop(name)

    assert load(change_config(directory, rename)).config == new


@pytest.mark.parametrize(
    ("variant", "names"),
    [
        (gpt_neo(), ["transformer.h.1.attn.attention.bias", "transformer.h.1.attn.attention.masked_bias"]),
        (gptj(), ["transformer.h.1.attn.bias", "transformer.h.1.attn.masked_bias"]),
        (
            neox(),
            [f"gpt_neox.layers.1.attention.{name}" for name in ("bias", "masked_bias", "rotary_emb.inv_freq")],
        ),
        (phi(), ["model.layers.1.self_attn.rotary_emb.inv_freq"]),
    ],
    ids=["gpt_neo", "gptj", "gpt_neox", "phi"],
)
def test_masks_and_frequencies_among_the_weights_are_passed_over(variant, names, written):
    directory = written(variant)
    model, file = load(directory), directory / "model.safetensors"
    save_file(load_file(file) | {name: torch.ones(1, 1, 17, 17) for name in names}, file)
    assert_close(load(directory).state_dict(), model.state_dict(), atol=0, rtol=0)


# --- what does not fit


@pytest.mark.parametrize(
    ("variant", "fields", "expected"),
    [
        (gpt_neo(), {"attention_types": [[["global"], 2]]}, "attention_types must call each of 3 layers"),
        (gpt_neo(), {"attention_types": [[["far"], 3]]}, "attention_types must call each of 3 layers"),
        (gpt_neo(), {"attention_types": "global"}, "attention_types must call each of 3 layers"),
        (gptj(), {"rotary_dim": 5}, "rotary positions turn pairs"),
        (gptj(), {"rotary_dim": 16}, "rotary_dim 16 is more than the 14 dimensions of a head"),
        (neox(), {"rope_parameters": {"partial_rotary_factor": 1.5}}, "1.5 of a head's 26"),
        (neox(), {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic' is not supported"),
        (opt(), {"word_embed_proj_dim": 13}, "word_embed_proj_dim 13 is not supported, only 21"),
        (opt(), {"layer_norm_elementwise_affine": False}, "layer_norm_elementwise_affine False is not supported"),
        (opt(), {"_remove_final_layer_norm": True}, "_remove_final_layer_norm True is not supported"),
        (bloom(), {"apply_residual_connection_post_layernorm": True}, "post_layernorm True is not supported"),
        (bloom(), {"slow_but_exact": True}, "slow_but_exact True is not supported"),
        (phi(), {"head_dim": 7}, "head_dim 7 is not supported, only 12"),
    ],
)
def test_what_does_not_fit_is_refused(variant, fields, expected, written):
    directory = change_config(written(variant), lambda raw: raw.update(fields))
    with pytest.raises(InputError) as caught:
        load(directory)
    assert expected in str(caught.value)

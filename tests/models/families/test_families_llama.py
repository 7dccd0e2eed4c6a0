"""Llama and those that differ from it in a part or two, against transformers."""

import pytest
from parity import Variant, checked
from transformers import CONFIG_MAPPING

from interp import InputError
from interp.config import Interpolated, Local, NoPositions, Rotary, StackConfig, Stretched
from models.families import FAMILIES

SIZES = {
    "num_hidden_layers": 2,
    "hidden_size": 84,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 31,
    "max_position_embeddings": 19,
    "vocab_size": 23,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# two layers see a window, one does not
WINDOW = {
    "num_hidden_layers": 3,
    "sliding_window": 4,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}


def of(name: str, **own: object) -> Variant:
    """A variant of the family that transformers calls so."""
    kind = {"Gemma3": "Gemma3TextConfig"}.get(name, f"{name}Config")
    ways = {"attn_implementation": "eager"} | ({"experts_implementation": "eager"} if name == "Mixtral" else {})
    return Variant(kind, f"{name}ForCausalLM", SIZES | own, ways=ways)


def rope(kind: str, theta: float = 37.0, **more: object) -> dict:
    """What a rotation of some type is stated as."""
    return {"rope_parameters": {"rope_theta": theta, "rope_type": kind, **more}}


LLAMA3 = {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 3.0, "original_max_position_embeddings": 11}
YARN = {"factor": 4.0, "original_max_position_embeddings": 7}

TestLlama = checked(
    {
        "llama": of("Llama", head_dim=10),
        "llama tied": of("Llama", tie_word_embeddings=True, num_key_value_heads=1, rms_norm_eps=1e-2),
        "llama biases": of("Llama", attention_bias=True, mlp_bias=True, num_key_value_heads=None),
        "llama rope": of("Llama", **rope("default")),
        "llama linear": of("Llama", **rope("linear", factor=2.5)),
        "llama3": of("Llama", **rope("llama3", **LLAMA3)),
        "llama yarn": of("Llama", **rope("yarn", 100.0, **YARN)),
        "llama yarn stated": of(
            "Llama", **rope("yarn", 100.0, **YARN, beta_fast=3.0, beta_slow=0.5, attention_factor=1.7, truncate=False)
        ),
        "llama yarn scales": of("Llama", **rope("yarn", **YARN, mscale=2.0, mscale_all_dim=0.7)),
    }
)
TestMistral = checked(
    {
        "mistral": of("Mistral", head_dim=10, sliding_window=4, num_hidden_layers=3),
        "mistral without window": of("Mistral", sliding_window=None, **rope("yarn", **YARN)),
        "mixtral": of("Mixtral", num_local_experts=5, num_experts_per_tok=2),
        "mixtral window": of("Mixtral", num_local_experts=3, num_experts_per_tok=3, sliding_window=4),
    }
)
TestQwen = checked(
    {
        "qwen2": of("Qwen2"),
        "qwen2 window": of("Qwen2", use_sliding_window=True, sliding_window=4, max_window_layers=1),
        "qwen3": of("Qwen3", head_dim=10, tie_word_embeddings=True),
        "qwen3 window": of("Qwen3", use_sliding_window=True, attention_bias=True, **WINDOW),
    }
)
GEMMA3_ROPES = {
    "sliding_attention": {"rope_theta": 11.0, "rope_type": "default"},
    "full_attention": {"rope_theta": 59.0, "rope_type": "linear", "factor": 3.0},
}
TestGemma = checked(
    {
        "gemma": of("Gemma", head_dim=10, attention_bias=True),
        "gemma first files": of("Gemma", hidden_act="gelu", num_key_value_heads=1),
        "gemma2": of("Gemma2", head_dim=10, query_pre_attn_scalar=11, sliding_window=4, attn_logit_softcapping=3.0),
        "gemma2 uncapped": of(
            "Gemma2", final_logit_softcapping=None, attn_logit_softcapping=None, **WINDOW, tie_word_embeddings=False
        ),
        "gemma3": of("Gemma3", head_dim=10, num_hidden_layers=7, sliding_window=4, rope_parameters=GEMMA3_ROPES),
        "gemma3 capped": of("Gemma3", **WINDOW, final_logit_softcapping=2.0),
    }
)
TestOthers = checked(
    {
        "phi3": of("Phi3"),
        "phi3 window": of("Phi3", sliding_window=4, **rope("default", partial_rotary_factor=0.75), hidden_size=96),
        "olmo2": of("Olmo2"),
        "olmo2 biases": of("Olmo2", attention_bias=True, tie_word_embeddings=True),
        "smollm3": of("SmolLM3", num_hidden_layers=5),
        "smollm3 window": of(
            "SmolLM3", **WINDOW, no_rope_layers=[0, 1, 0], use_sliding_window=True, mlp_bias=True, attention_bias=True
        ),
        "smollm3 window by layer alone": of("SmolLM3", **WINDOW, no_rope_layers=[0, 1, 0]),
        "stablelm": of("StableLm", hidden_size=48),
        "stablelm parallel": of(
            "StableLm", use_parallel_residual=True, use_qkv_bias=True, **rope("default", partial_rotary_factor=0.6)
        ),
        "stablelm all turning": of("StableLm", **rope("default", partial_rotary_factor=1.0)),
    }
)


# --- files as they are found


def written(family: str, **own: object) -> dict:
    """A config.json of a family, as small as can be."""
    sizes = {key: value for key, value in SIZES.items() if value is not None}
    return sizes | {"model_type": family, "num_hidden_layers": 8} | own


def read(family: str, **own: object) -> StackConfig:
    decoder = FAMILIES[family].config(written(family, **own)).decoder
    assert decoder is not None
    return decoder


def test_older_files_state_rotations_beside_other_fields():
    new = read("llama", **rope("llama3", 5e5, **LLAMA3))
    assert read("llama", rope_theta=5e5, rope_scaling=LLAMA3 | {"type": "llama3"}) == new
    assert new.positions == Rotary(5e5, scaling=Stretched(4.0, 1.0, 3.0, 11))
    assert read("llama", rope_scaling={"type": "linear", "factor": 2}).positions == Rotary(scaling=Interpolated(2.0))
    assert read("stablelm", partial_rotary_factor=0.5, rope_theta=7, hidden_size=48).positions == Rotary(7.0, dims=4)


@pytest.mark.parametrize(
    ("family", "base", "local"),
    [
        ("llama", 1e4, None),
        ("mistral", 1e4, Local((*range(8),), 4095)),  # where nothing is said of windows
        ("mixtral", 1e6, None),
        ("qwen2", 1e4, None),
        ("gemma2", 1e4, Local((0, 2, 4, 6), 4095)),
        ("gemma3_text", 1e6, Local((0, 1, 2, 3, 4, 6, 7), 4095, Rotary(1e4))),
        ("smollm3", 2e6, Local((3, 7), None, NoPositions())),
    ],
)
def test_what_a_file_leaves_unsaid_is_what_the_family_has(family, base, local):
    stack = read(family)
    assert isinstance(stack.positions, Rotary)
    assert (stack.positions.base, stack.local) == (base, local)


@pytest.mark.parametrize(
    ("family", "own"),
    [
        ("qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 3}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 0}),
        ("gemma3_text", {"sliding_window_pattern": 3, "sliding_window": 5}),
        ("gemma3_text", {"_sliding_window_pattern": 3, "sliding_window": 5}),  # their own note, which they never read
        (
            "gemma3_text",
            {"rope_local_base_freq": 7, "rope_theta": 8, "rope_scaling": {"rope_type": "linear", "factor": 9}},
        ),
        ("gemma2", {"final_logit_softcapping": None, "hidden_act": "gelu_pytorch_tanh"}),
        ("smollm3", {"no_rope_layer_interval": 3}),
        ("smollm3", {"use_sliding_window": True, "sliding_window": 5}),
    ],
)
def test_older_words_mean_what_they_mean_to_transformers(family, own):
    """Their configuration, with every field spelled out, says the same as the file that leaves most unsaid."""
    raw = written(family, **own)
    spelled = CONFIG_MAPPING[family].from_dict(raw).to_dict()
    ours = FAMILIES[family]
    assert ours.config(raw) == ours.config(spelled) == ours.config(ours.raw(ours.config(raw)))


@pytest.mark.parametrize(
    ("family", "own", "told"),
    [
        ("llama", rope("dynamic", factor=2.0), "dynamic"),
        ("llama", rope("llama3"), "lacks 'low_freq_factor'"),
        ("llama", rope("linear", factor=-2.0), "factor"),
        ("llama", rope("default", factor=2.0), "reads factor 2.0"),
        ("llama", rope("default", mrope_section=[1, 2]), "mrope_section"),
        ("llama", {"rope_interleaved": True}, "rope_interleaved"),
        ("mistral", {"attention_bias": True}, "attention_bias"),
        ("mistral", {"sliding_window": 0}, "sliding_window"),
        ("mixtral", {"num_local_experts": 0}, "num_local_experts"),
        ("mixtral", {"mlp_bias": True}, "mlp_bias"),
        ("qwen2", {"use_mrope": True}, "use_mrope"),
        ("qwen2", {"layer_types": ["full_attention"] * 7}, "must call each of 8 layers"),
        ("qwen2", {"layer_types": ["sliding_attention"] * 8, "sliding_window": 5}, "layer_types has windows, but"),
        ("qwen3", {"layer_types": ["chunked_attention"] * 8}, "chunked_attention"),
        ("gemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gemma", {"hidden_activation": "silu"}, "hidden_activation"),
        ("gemma2", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar"),
        ("gemma3_text", {"attn_logit_softcapping": 5.0}, "attn_logit_softcapping"),
        ("gemma3_text", {"rope_parameters": {"rope_theta": 5.0}}, "rope_theta 5.0"),
        ("gemma3_text", {"rope_parameters": {"full_attention": {"truncate": False}}}, "truncate False"),
        ("modernbert", {"rope_parameters": {"sliding_attention": {"truncate": False}}}, "truncate False"),
        ("phi3", rope("longrope", short_factor=[1.0], long_factor=[2.0]), "longrope"),
        ("phi3", rope("yarn", **YARN), "longrope"),
        ("smollm3", {"no_rope_layers": [1, 0]}, "no_rope_layers"),
        ("stablelm", {"qk_layernorm": True}, "qk_layernorm"),
        ("stablelm", {"partial_rotary_factor": 0.25, "hidden_size": 36}, "pairs of dimensions"),
    ],
)
def test_what_changes_the_computation_and_is_not_supported_is_refused(family, own, told):
    with pytest.raises(InputError, match=told):
        read(family, **own)

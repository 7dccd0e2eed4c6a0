"""Files in older words, and files that leave most unsaid, mean what they mean to `transformers`."""

import pytest
from families import variant
from transformers import CONFIG_MAPPING

from models.families import FAMILIES

LLAMA3 = {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 3.0, "original_max_position_embeddings": 11}
WINDOWED = {"use_sliding_window": True, "sliding_window": 5}


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        *((family, {}) for family in ("llama", "mistral", "mixtral", "qwen2", "gemma2", "gemma3_text", "smollm3")),
        ("llama", {"rope_theta": 5e5, "rope_scaling": LLAMA3 | {"type": "llama3"}}),
        ("llama", {"rope_scaling": {"type": "linear", "factor": 2}}),
        ("stablelm", {"partial_rotary_factor": 0.5, "rope_theta": 7, "hidden_size": 48}),
        ("qwen2", {**WINDOWED, "max_window_layers": 3}),
        ("qwen2", {**WINDOWED, "max_window_layers": 0}),
        ("gemma3_text", {"sliding_window_pattern": 3, "sliding_window": 5}),
        ("gemma3_text", {"_sliding_window_pattern": 3, "sliding_window": 5}),  # their own note, which they never read
        (
            "gemma3_text",
            {"rope_local_base_freq": 7, "rope_theta": 8, "rope_scaling": {"rope_type": "linear", "factor": 9}},
        ),
        ("gemma2", {"final_logit_softcapping": None, "hidden_act": "gelu_pytorch_tanh"}),
        ("smollm3", {"no_rope_layer_interval": 3}),
        ("smollm3", WINDOWED),
    ],
)
def test_older_words_mean_what_they_mean_to_transformers(family, fields):
    """Their configuration, with every field spelled out, says the same as the file that leaves most unsaid."""
    sizes = {key: value for key, value in variant("llama").fields.items() if value is not None}
    raw, ours = {**sizes, "model_type": family, "num_hidden_layers": 8, **fields}, FAMILIES[family]
    spelled = CONFIG_MAPPING[family].from_dict(raw).to_dict()
    assert ours.config(raw) == ours.config(spelled) == ours.config(ours.raw(ours.config(raw)))

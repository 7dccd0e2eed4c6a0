"""Files of old, and files that leave most unsaid, mean what they mean to `transformers`."""

import pytest
import torch
from changed_files import change_config, change_tensors
from families import variant
from parity import Variant, make_pair
from torch.testing import assert_close
from transformers import CONFIG_MAPPING

from interp import StackConfig, run
from interp.config import Interpolated, Local, NoPositions, Rotary, Stretched
from models import load
from models.families import FAMILIES

LLAMA3 = {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 3.0, "original_max_position_embeddings": 11}


@pytest.fixture
def written(tmp_path):
    """Writes a variant's model into a directory."""
    return lambda variant: make_pair(variant, torch.float32, tmp_path).directory


def unsaid(family: str, **fields: object) -> dict[str, object]:
    """A config.json of a family like Llama, as small as can be."""
    sizes = {key: value for key, value in variant("llama").fields.items() if value is not None}
    return {**sizes, "model_type": family, "num_hidden_layers": 8, **fields}


def read(family: str, **fields: object) -> StackConfig:
    decoder = FAMILIES[family].config(unsaid(family, **fields)).decoder
    assert decoder is not None
    return decoder


def test_older_files_state_rotations_beside_other_fields():
    new = read("llama", rope_parameters={"rope_theta": 5e5, "rope_type": "llama3", **LLAMA3})
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


LINEAR = {"rope_type": "linear", "factor": 9}


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 3}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 0}),
        ("gemma3_text", {"sliding_window_pattern": 3, "sliding_window": 5}),
        ("gemma3_text", {"_sliding_window_pattern": 3, "sliding_window": 5}),  # their own note, which they never read
        ("gemma3_text", {"rope_local_base_freq": 7, "rope_theta": 8, "rope_scaling": LINEAR}),
        ("gemma2", {"final_logit_softcapping": None, "hidden_act": "gelu_pytorch_tanh"}),
        ("smollm3", {"no_rope_layer_interval": 3}),
        ("smollm3", {"use_sliding_window": True, "sliding_window": 5}),
    ],
)
def test_older_words_mean_what_they_mean_to_transformers(family, fields):
    """Their configuration, with every field spelled out, says the same as the file that leaves most unsaid."""
    raw, ours = unsaid(family, **fields), FAMILIES[family]
    spelled = CONFIG_MAPPING[family].from_dict(raw).to_dict()
    assert ours.config(raw) == ours.config(spelled) == ours.config(ours.raw(ours.config(raw)))


OLDER_NAMES = {
    "bloom": {"hidden_size": "n_embed", "n_head": "num_attention_heads", "n_layer": "num_hidden_layers"},
    "gpt_neox": {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"},
    "phi": {"rope_theta": "rope_theta", "partial_rotary_factor": "partial_rotary_factor"},
}


@pytest.mark.parametrize("family", OLDER_NAMES)
def test_older_names_of_fields_are_read(family, written):
    directory = written(variant(family))
    new = load(directory).config

    def rename(raw: dict) -> None:
        raw |= raw.pop("rope_parameters", {})
        raw.pop("rope_type", None)
        for name, before in OLDER_NAMES[family].items():
            raw[before] = raw.pop(name)

    assert load(change_config(directory, rename)).config == new


def test_older_files_of_modernbert_name_every_nth_layer_and_two_bases(written):
    directory = written(variant("modernbert"))
    new = load(directory).config

    def rename(raw: dict) -> None:
        del raw["layer_types"], raw["rope_parameters"]
        raw |= {"global_attn_every_n_layers": 3, "global_rope_theta": 160_000.0, "local_rope_theta": 10_000.0}

    assert load(change_config(directory, rename)).config == new
    other = load(change_config(directory, lambda raw: raw.update(local_rope_theta=11.0, global_attn_every_n_layers=2)))
    assert other.config.encoder.local.layers == (1, 3)
    assert other.config.encoder.local.positions.base == 11.0


PASSED_OVER = {
    "gpt2": ["transformer.h.0.attn.bias", "transformer.h.1.attn.masked_bias"],
    "gpt_neo": ["transformer.h.1.attn.attention.bias", "transformer.h.1.attn.attention.masked_bias"],
    "gptj": ["transformer.h.1.attn.bias", "transformer.h.1.attn.masked_bias"],
    "gpt_neox": [f"gpt_neox.layers.1.attention.{name}" for name in ("bias", "masked_bias", "rotary_emb.inv_freq")],
    "phi": ["model.layers.1.self_attn.rotary_emb.inv_freq"],
}


@pytest.mark.parametrize("family", PASSED_OVER)
def test_masks_and_frequencies_among_the_weights_are_passed_over(family, written):
    directory = written(variant(family))
    model = load(directory)
    change_tensors(directory, lambda stored: stored | {name: torch.ones(1, 1, 17, 17) for name in PASSED_OVER[family]})
    assert_close(load(directory).state_dict(), model.state_dict(), atol=0, rtol=0)


def seen(described: Variant, written) -> list[list[int]]:
    """How many tokens each query of a text of 11 sees, layer by layer."""
    model = load(written(described))
    pattern = run(model, torch.arange(3, 14)[None], "*.pattern")
    (stack,) = model.config.stacks
    layers = range(model.config.n_layers)
    return [(pattern[f"{stack}.{layer}.attn.pattern"][0, 0] > 0).sum(-1).tolist() for layer in layers]


def test_local_layers_see_as_many_tokens_as_the_window_is_wide(written):
    assert seen(variant("gpt_neo"), written) == [[*range(1, 12)], *[[1, 2, 3] + [4] * 8] * 2]


def test_near_layers_see_as_far_as_half_their_window_on_either_side(written):
    near = [4, 5, 6, 7, 7, 7, 7, 7, 6, 5, 4]
    assert seen(variant("modernbert"), written) == [[11] * 11, near, near, [11] * 11]

"""Fields of a config.json that change the computation and are not supported, or fit no model: one line names each."""

import pytest
from families import by_family

from interp import InputError
from models.families import FAMILIES


def rope(kind: str, **more: object) -> dict[str, object]:
    return {"rope_parameters": {"rope_theta": 37.0, "rope_type": kind, **more}}


REFUSED = [
    ("bart", {"normalize_before": True}, "normalize_before True is not supported"),
    ("bart", {"decoder_attention_heads": 5}, "d_model 66 is not a multiple of decoder_attention_heads 5"),
    ("bart", {"decoder_start_token_id": -1}, "config.json: decoder_start_token_id must be"),
    ("bart", {"bad_words_ids": [3]}, "config.json: bad_words_ids must be"),
    ("bert", {"position_embedding_type": "relative_key"}, "relative_key' is not supported"),
    ("bloom", {"apply_residual_connection_post_layernorm": True}, "post_layernorm True is not supported"),
    ("distilbert", {"activation": "tanh"}, "'tanh' is not supported"),
    ("gemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ("gemma", {"hidden_activation": "silu"}, "hidden_activation"),
    ("gemma2", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar"),
    ("gemma3_text", {"attn_logit_softcapping": 5.0}, "attn_logit_softcapping"),
    ("gemma3_text", {"rope_parameters": {"full_attention": {"truncate": False}}}, "truncate False"),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx True"),
    ("gpt2", {"activation_function": "quick_gelu"}, "activation_function 'quick_gelu' is not supported"),
    ("gpt2", {"n_head": 4}, "n_embd 21 is not a multiple of n_head 4"),
    ("gpt2", {"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false, got 'yes'"),
    ("gpt2", {"layer_norm_epsilon": -1.0}, "layer_norm_epsilon must be a number above 0, got -1.0"),
    ("gpt_neo", {"attention_types": [[["global"], 2]]}, "attention_types must call each of 3 layers"),
    ("gpt_neo", {"attention_types": "global"}, "attention_types must call each of 3 layers"),
    ("gpt_neox", {"rope_parameters": {"partial_rotary_factor": 1.5}}, "1.5 of a head's 26"),
    ("gptj", {"rotary_dim": 5}, "rotary positions turn pairs"),
    ("gptj", {"rotary_dim": 16}, "rotary_dim 16 is more than the 14 dimensions of a head"),
    ("llama", rope("dynamic", factor=2.0), "dynamic"),
    ("llama", rope("llama3"), "lacks 'low_freq_factor'"),
    ("llama", rope("linear", factor=-2.0), "factor"),
    ("llama", rope("default", factor=2.0), "reads factor 2.0"),
    ("llama", rope("default", partial_rotary_factor=0.5), "partial_rotary_factor 0.5"),
    ("llama", {"rope_scaling": "linear"}, "rope_scaling must be an object, got 'linear'"),
    ("llama", {"sliding_window": 5}, "sliding_window 5 is not supported"),
    ("llama", {"num_key_value_heads": 4}, "heads"),
    ("llama", {"head_dim": 7}, "7"),
    ("marian", {"tie_word_embeddings": False}, "where the embeddings are shared"),
    ("marian", {"decoder_vocab_size": 19}, "decoder_vocab_size 19 is not supported, only 23"),
    ("marian", {"static_position_embeddings": False}, "static_position_embeddings False"),
    ("mistral", {"attention_bias": True}, "attention_bias"),
    ("mistral", {"sliding_window": 0}, "sliding_window"),
    ("mixtral", {"num_local_experts": 0}, "num_local_experts"),
    ("modernbert", {"layer_types": ["full_attention"]}, "layer_types must call each of 4 layers"),
    ("modernbert", {"rope_parameters": {"sliding_attention": {"truncate": False}}}, "truncate False"),
    ("modernbert", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling"),
    ("opt", {"word_embed_proj_dim": 13}, "word_embed_proj_dim 13 is not supported, only 21"),
    ("opt", {"_remove_final_layer_norm": True}, "_remove_final_layer_norm True is not supported"),
    ("phi", {"head_dim": 7}, "head_dim 7 is not supported, only 12"),
    ("phi3", rope("longrope", short_factor=[1.0], long_factor=[2.0]), "longrope"),
    ("qwen2", {"use_mrope": True}, "use_mrope"),
    ("qwen2", {"layer_types": ["full_attention"] * 7}, "must call each of 2 layers"),
    ("qwen2", {"layer_types": ["sliding_attention"] * 2, "sliding_window": 5}, "layer_types has windows, but"),
    ("qwen3", {"layer_types": ["chunked_attention"] * 2}, "chunked_attention"),
    ("roberta", {"pad_token_id": -1}, "pad_token_id must be a whole number from 0"),
    ("smollm3", {"no_rope_layers": [1, 0]}, "no_rope_layers"),
    ("stablelm", {"qk_layernorm": True}, "qk_layernorm"),
    ("stablelm", {"partial_rotary_factor": 0.25, "hidden_size": 36}, "pairs of dimensions"),
    ("t5", {"feed_forward_proj": "gated-tanh"}, "feed_forward_proj 'gated-tanh' is not supported"),
    ("t5", {"is_gated_act": True}, "is_gated_act True"),
    ("t5", {"relative_attention_num_buckets": 1}, "distances need at least 4 buckets, got 1"),
]


def usual(family: str) -> dict[str, object]:
    return dict(next(iter(by_family()[family].values())).fields)


@pytest.mark.parametrize(("family", "fields", "message"), REFUSED)
def test_what_changes_the_computation_and_is_not_supported_is_refused(family, fields, message):
    with pytest.raises(InputError) as caught:
        FAMILIES[family].config(usual(family) | fields)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
def test_a_size_that_is_absent_or_no_size_is_named(family):
    fields = usual(family)
    optional = {"n_inner", "num_key_value_heads", "head_dim", "bos_token_id", "eos_token_id", "pad_token_id"}
    for name in fields.keys() - optional:
        for value in (None, 0, -3, 2.5, "7", True):
            with pytest.raises(InputError, match=rf"\b{name}\b"):
                FAMILIES[family].config(fields | {name: value})

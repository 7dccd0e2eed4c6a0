"""Random configurations of every family of `transformers`, in the form of config.json.

Fields come in any combination, may be missing, or have names from older files. A family and a seed give one
configuration: `DRAWS["llama"](Draw("llama 7"))`.
"""

from collections.abc import Callable
from random import Random
from typing import Any

from models.families import FAMILIES
from models.families.fields import ACTIVATIONS

Fields = dict[str, Any]
FLAG = (False, True)
ACTIVATION = tuple(ACTIVATIONS)
WINDOW = (1, 3, 4, 7)  # shorter than the texts
THETA = (11.0, 37.0, 500)
KINDS = ("full_attention", "sliding_attention")
# fields that families call by several names
COMMON = {
    ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps"): (1e-6, 1e-4, 1e-2),
    ("hidden_act", "activation_function", "hidden_activation", "activation", "classifier_activation"): ACTIVATION,
    ("attention_bias", "mlp_bias"): FLAG,
}


class Draw(Random):
    def flag(self, share: float = 0.5) -> bool:
        return self.random() < share

    def fields(self, **choices: Any) -> Fields:
        """A value for each field; some are left out, for the family's default."""
        return {name: self.choice(values) for name, values in choices.items() if self.flag(0.8)}

    def sizes(self, widths: tuple[int, ...], *, head_dim: bool = False, **names: str) -> Fields:
        """Sizes under their usual names or those in `names`; `widths` are head widths, which `head_dim` states."""
        kv_heads, width = self.choice((1, 2, 3)), self.choice(widths)
        heads = kv_heads * self.choice((1, 2, 3))
        sizes = {
            "num_hidden_layers": self.choice((1, 2, 3)),
            "hidden_size": heads * (self.choice((5, 7, 11)) if head_dim else width),
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "head_dim": width if head_dim else None,
            "intermediate_size": self.choice((13, 29, 31)),
            "max_position_embeddings": self.choice((17, 19, 37)),
            "vocab_size": self.choice((23, 29, 31)),
        }
        return {names.get(name, name): size for name, size in sizes.items() if names.get(name) != "" and size}

    def layer_types(self, fields: Fields) -> Fields:
        """Which layers see only a window; may be left out."""
        return self.fields(layer_types=[[self.choice(KINDS) for _ in range(fields["num_hidden_layers"])]])

    def scaling(self) -> Fields:
        """How rotation is scaled for longer texts, if at all."""
        n_ctx = {"original_max_position_embeddings": self.choice((7, 11, 13))}
        match self.choice(("default", "linear", "llama3", "yarn")):
            case "linear":
                return {"rope_type": "linear", "factor": self.choice((1.5, 3))}
            case "llama3":
                ends = {"low_freq_factor": 1.0, "high_freq_factor": self.choice((2.0, 4))}
                return {"rope_type": "llama3", "factor": 4.0, **ends, **n_ctx}
            case "yarn":
                ends = self.fields(beta_fast=(3.0, 32), beta_slow=(0.5, 1), truncate=(True, True, False))
                length = self.choice(({}, {"attention_factor": 1.7}, {"mscale": 2.0, "mscale_all_dim": 0.7}))
                return {"rope_type": "yarn", "factor": self.choice((2.0, 4)), **ends, **length, **n_ctx}
        return {"rope_type": "default"}

    def rope(self, **share: float) -> Fields:
        """The rotation in the form of new or old files; `share` is the rotated part of a head."""
        theta, scaling = self.fields(rope_theta=THETA), self.scaling()
        if self.flag(0.6):
            return {"rope_parameters": scaling | theta | share}
        kind = scaling.pop("rope_type")
        old = {"rope_scaling": {self.choice(("type", "rope_type")): kind, **scaling}} if scaling else {}
        return theta | share | old

    def two_ropes(self) -> Fields:
        """The rotations of layers that see everything and of layers that see a window."""
        return self.fields(rope_parameters=[{kind: self.scaling() | self.fields(rope_theta=THETA) for kind in KINDS}])

    def share(self, fields: Fields) -> float:
        """How much of a head is rotated, in pairs of dimensions."""
        d_head = fields["hidden_size"] // fields["num_attention_heads"]
        return self.choice([share for share in (0.25, 0.4, 0.5, 0.75, 1.0) if int(d_head * share) % 2 == 0])


EVEN, ODD, WIDE = (4, 6, 10, 14), (5, 7, 11), (8, 16, 20)
GPT2_NAMES = {"num_hidden_layers": "n_layer", "hidden_size": "n_embd", "num_attention_heads": "n_head"}
GPT2_NAMES |= {"intermediate_size": "n_inner", "max_position_embeddings": "n_positions"}


def mixtral(draw: Draw) -> Fields:
    n_experts = draw.choice((2, 3, 5))
    experts = {"num_local_experts": n_experts, "num_experts_per_tok": draw.randint(1, n_experts)}
    return draw.sizes(EVEN, head_dim=True) | draw.rope() | draw.fields(sliding_window=(None, *WINDOW)) | experts


def qwen2(draw: Draw, *, head_dim: bool = False) -> Fields:
    fields = draw.sizes(EVEN, head_dim=head_dim) | draw.rope() | {"sliding_window": draw.choice(WINDOW)}
    on = draw.flag(0.7)  # otherwise theirs cannot compute layer_types
    fields |= {"use_sliding_window": on, "max_window_layers": draw.randint(0, fields["num_hidden_layers"])}
    return fields | (draw.layer_types(fields) if on else {})


def smollm3(draw: Draw) -> Fields:
    fields = draw.sizes(EVEN) | draw.rope() | {"sliding_window": draw.choice(WINDOW)}
    fields |= draw.fields(use_sliding_window=FLAG)
    if draw.flag(0.3):
        return fields | draw.fields(no_rope_layer_interval=(1, 2, 3))
    turns = [draw.flag() for _ in range(fields["num_hidden_layers"])]
    still = {"layer_types": [KINDS[not turn] for turn in turns]}
    kinds = draw.choice(({}, still, still, draw.layer_types(fields)))  # windows in layers with rotation are refused
    return fields | kinds | {"no_rope_layers": [int(turn) for turn in turns]}


def gemma2(draw: Draw) -> Fields:
    fields = draw.sizes(EVEN, head_dim=True) | draw.rope() | draw.fields(query_pre_attn_scalar=(7, 16))
    fields |= {"sliding_window": draw.choice(WINDOW)}
    caps = draw.fields(attn_logit_softcapping=(None, 3.0), final_logit_softcapping=(None, 2.0))
    return fields | caps | draw.layer_types(fields)


def gemma3(draw: Draw) -> Fields:
    fields = draw.sizes(EVEN, head_dim=True, num_hidden_layers="") | {"num_hidden_layers": draw.choice((1, 3, 7))}
    fields |= draw.fields(query_pre_attn_scalar=(7, 16), final_logit_softcapping=(None, 2.0))
    kinds = draw.choice((draw.layer_types(fields), draw.fields(sliding_window_pattern=(2, 3))))
    return fields | {"sliding_window": draw.choice(WINDOW)} | kinds | draw.two_ropes()


def phi3(draw: Draw) -> Fields:
    fields = draw.sizes(WIDE) | {"sliding_window": draw.choice((None, *WINDOW))}
    turns = {"partial_rotary_factor": draw.share(fields)} | draw.fields(rope_theta=THETA)
    return fields | draw.choice((turns, {"rope_parameters": {"rope_type": "default", **turns}}))


def stablelm(draw: Draw) -> Fields:
    fields = draw.sizes(WIDE) | draw.fields(use_parallel_residual=FLAG, use_qkv_bias=FLAG)
    refused = {"qk_layernorm": True} if draw.flag(0.1) else {}  # a norm per head
    return fields | refused | draw.rope(partial_rotary_factor=draw.share(fields))


def gpt_neo(draw: Draw) -> Fields:
    fields = draw.sizes(ODD, num_key_value_heads="", num_attention_heads="num_heads", num_hidden_layers="num_layers")
    kinds = [[[draw.choice(("global", "local"))], 1] for _ in range(fields["num_layers"])]
    inner = draw.choice(({}, {"intermediate_size": None}))
    return fields | inner | {"attention_types": kinds, "window_size": draw.choice(WINDOW)}


def gpt_neox(draw: Draw) -> Fields:
    fields = draw.sizes(WIDE, num_key_value_heads="") | draw.fields(use_parallel_residual=FLAG)
    share = draw.share(fields)
    old = {"rotary_pct": share} | draw.fields(rotary_emb_base=THETA)
    new = draw.scaling() | {"partial_rotary_factor": share} | draw.fields(rope_theta=THETA)
    return fields | draw.choice((old, {"rope_parameters": new}))


def opt(draw: Draw) -> Fields:
    fields = draw.sizes(ODD, num_key_value_heads="", intermediate_size="ffn_dim")
    if draw.flag(0.1):
        fields |= draw.choice(({"word_embed_proj_dim": 13}, {"layer_norm_elementwise_affine": False}))  # refused
    return fields | draw.fields(do_layer_norm_before=FLAG, enable_bias=FLAG)


def bloom(draw: Draw) -> Fields:
    names = {"hidden_size": draw.choice(("hidden_size", "n_embed"))}
    names |= {"num_hidden_layers": "n_layer", "num_attention_heads": "n_head"} if draw.flag() else {}
    return draw.sizes(ODD, **names, num_key_value_heads="", intermediate_size="", max_position_embeddings="seq_length")


def bert(draw: Draw) -> Fields:
    return draw.sizes(ODD, num_key_value_heads="") | draw.fields(type_vocab_size=(1, 2, 3))


def distilbert(draw: Draw) -> Fields:
    names = {"num_hidden_layers": "n_layers", "hidden_size": "dim", "num_attention_heads": "n_heads"}
    sizes = draw.sizes((6, 10), num_key_value_heads="", intermediate_size="hidden_dim", **names)
    return sizes | draw.fields(sinusoidal_pos_embds=FLAG)


def modernbert(draw: Draw) -> Fields:
    fields = draw.sizes(EVEN, num_key_value_heads="") | {"num_hidden_layers": draw.choice((1, 3, 4))}
    fields |= draw.fields(local_attention=(2, 5, 6)) | draw.two_ropes()
    fields |= draw.choice((draw.layer_types(fields), draw.fields(global_attn_every_n_layers=(1, 2))))
    return fields | draw.fields(norm_bias=FLAG, classifier_bias=FLAG, decoder_bias=FLAG)


def bart(draw: Draw) -> Fields:
    fields = {"d_model": draw.choice((12, 24, 60)), "vocab_size": draw.choice((23, 29, 31))}
    fields |= {"max_position_embeddings": draw.choice((17, 19))} | draw.fields(scale_embedding=FLAG)
    for name in ("encoder", "decoder"):
        fields |= {f"{name}_layers": draw.choice((1, 2, 3)), f"{name}_attention_heads": draw.choice((2, 3, 6))}
        fields |= {f"{name}_ffn_dim": draw.choice((13, 29, 31))}
    return fields


def t5(draw: Draw) -> Fields:
    fields = {"d_model": draw.choice((21, 42)), "d_kv": draw.choice((5, 7)), "d_ff": draw.choice((29, 31))}
    fields |= {"num_layers": draw.choice((1, 2, 3)), "num_heads": draw.choice((1, 2, 3)), "vocab_size": 23}
    fields |= {"relative_attention_num_buckets": draw.choice((4, 7, 10, 20))}
    fields |= draw.fields(relative_attention_max_distance=(11, 17, 128), num_decoder_layers=(1, 2))
    shapes = ("relu", "gelu", "gelu_new", "silu", "gated-relu", "gated-gelu", "gated-silu")
    return fields | draw.fields(feed_forward_proj=shapes, tie_word_embeddings=FLAG)


APART = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 19}
DRAWS: dict[str, Callable[[Draw], Fields]] = {name: draw for name, draw in globals().items() if name in FAMILIES} | {
    "electra": lambda draw: (fields := bert(draw)) | {"embedding_size": draw.choice((13, fields["hidden_size"]))},
    "gemma": lambda draw: draw.sizes(EVEN, head_dim=True) | draw.rope(),
    "gemma3_text": gemma3,
    "gpt2": lambda draw: (
        draw.sizes(ODD, num_key_value_heads="", **GPT2_NAMES)
        | draw.choice(({}, {"n_inner": None}))
        | draw.fields(scale_attn_weights=FLAG)
    ),
    "gptj": lambda draw: (
        draw.sizes((6, 10, 14), num_key_value_heads="", **GPT2_NAMES) | {"rotary_dim": draw.choice((2, 4, 6))}
    ),
    "llama": lambda draw: draw.sizes(EVEN, head_dim=draw.flag()) | draw.rope(),
    "marian": lambda draw: bart(draw) | draw.choice(({}, APART | draw.fields(tie_word_embeddings=FLAG))),
    "mistral": lambda draw: DRAWS["llama"](draw) | {"sliding_window": draw.choice((None, *WINDOW))},
    "olmo2": lambda draw: draw.sizes(EVEN) | draw.rope(),
    "phi": lambda draw: (
        (fields := draw.sizes(WIDE))
        | draw.rope(partial_rotary_factor=draw.share(fields))
        | draw.fields(qk_layernorm=FLAG)
    ),
    "qwen3": lambda draw: qwen2(draw, head_dim=True),
    "roberta": bert,
}

"""BART (Lewis 2020): an encoder and a decoder, norms after each sum and after the embedding, learned positions.

Both stacks and the output layer share one embedding; the first two rows of the position tables are never read.
"""

import math
from typing import Any

from interp.config import LayerNorm, Learned, Plain, StackConfig, TransformerConfig
from models.families.family import Family, Fields, one_row, rows
from models.families.sizes import Sizes
from models.families.target_ids import STRATEGY, ids_of, start_of, writing_of

FIRST_ROW = 2


def config(fields: Fields) -> TransformerConfig:
    """Ours for their config.json."""
    fields.only(tie_word_embeddings=True)
    # files of old say these too, from when one class of theirs served several families
    fields.only(normalize_before=False, add_final_layer_norm=False, normalize_embedding=True)
    fields.only(static_position_embeddings=False, extra_pos_embeddings=FIRST_ROW)
    fields.only(add_bias_logits=False)
    settings = {"positions": Learned(first=FIRST_ROW), "embedding_norm": True}
    return TransformerConfig(
        encoder=stack_of(fields, "encoder", **settings),
        decoder=stack_of(fields, "decoder", **settings),
        output="tied",
        output_bias=True,
        shared_embedding=True,
        target_start=start_of(fields),
        writing=writing_of(fields),
    )


def sizes_of(name: str, vocabulary: str = "vocab_size") -> Sizes:
    """Where the sizes of the encoder or the decoder stand."""
    return Sizes(
        n_layers=f"{name}_layers",
        d_model="d_model",
        n_heads=f"{name}_attention_heads",
        d_mlp=f"{name}_ffn_dim",
        d_vocab=vocabulary,
        activation="activation_function",
        eps=None,
    )


def stack_of(fields: Fields, name: str, vocabulary: str = "vocab_size", **settings: Any) -> StackConfig:
    """The encoder or the decoder."""
    sizes = sizes_of(name, vocabulary).read(fields)
    return StackConfig(
        **sizes,
        causal=name == "decoder",
        cross_attention=name == "decoder",
        norm=LayerNorm(),
        wiring="post",
        mlp=Plain(fields.activation("activation_function", "gelu")),
        embedding_scale=math.sqrt(sizes["d_model"]) if fields.flag("scale_embedding", False) else 1.0,
        **settings,
    )


def raw(config: TransformerConfig) -> dict[str, Any]:
    """Their fields for ours."""
    found: dict[str, Any] = {
        "is_encoder_decoder": True,
        "scale_embedding": config.last.embedding_scale != 1,
        "tie_word_embeddings": config.output == "tied",
        **ids_of(config),
    }
    for name, stack in reversed(config.stacks.items()):  # of what both say, the first stack's counts
        found |= sizes_of(name).written(stack)
    return found


def _stack(name: str) -> dict[str, Any]:
    ours, theirs = f"stacks.{name}.blocks.*", f"{name}.layers.*"
    table = {
        f"{ours}.attn.qkv": rows(*(f"{theirs}.self_attn.{part}_proj" for part in "qkv")),
        f"{ours}.attn.out": rows(f"{theirs}.self_attn.out_proj"),
        f"{ours}.norm_attn": rows(f"{theirs}.self_attn_layer_norm"),
        f"{ours}.mlp.up": rows(f"{theirs}.fc1"),
        f"{ours}.mlp.down": rows(f"{theirs}.fc2"),
        f"{ours}.norm_mlp": rows(f"{theirs}.final_layer_norm"),
    }
    if name == "decoder":
        table |= {
            f"{ours}.cross_attn.qkv": rows(*(f"{theirs}.encoder_attn.{part}_proj" for part in "qkv")),
            f"{ours}.cross_attn.out": rows(f"{theirs}.encoder_attn.out_proj"),
            f"{ours}.norm_cross": rows(f"{theirs}.encoder_attn_layer_norm"),
        }
    return table


BLOCKS = _stack("encoder") | _stack("decoder")
OUTPUT = {"output": rows("lm_head"), "output.bias": one_row("final_logits_bias")}
# they change nothing outside training, belong to other tasks, or list the letters of a vocabulary
HARMLESS = f"""
    _num_labels activation_dropout classif_dropout decoder_layerdrop encoder_layerdrop grapheme_chars init_std
    is_decoder num_hidden_layers output_past phoneme_chars replacing_rate save_step student_decoder_layers
    student_encoder_layers {STRATEGY}
"""

FAMILY = Family(
    "bart",
    "BartForConditionalGeneration",
    config,
    raw,
    prefix="model.",
    ignored=r"classification_head\..*|qa_outputs\..*",
    zero=frozenset({"final_logits_bias"}),
    also={"shared.weight": ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")},
    harmless=HARMLESS,
    weights={
        "stacks.encoder.embed.token": rows("shared"),
        "stacks.encoder.embed.position": rows("encoder.embed_positions"),
        "stacks.encoder.embed.norm": rows("encoder.layernorm_embedding"),
        "stacks.decoder.embed.position": rows("decoder.embed_positions"),
        "stacks.decoder.embed.norm": rows("decoder.layernorm_embedding"),
        **BLOCKS,
        **OUTPUT,
    },
)

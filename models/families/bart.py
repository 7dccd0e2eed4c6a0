"""BART (Lewis 2020): an encoder and a decoder, norms after each sum and after the embedding, learned positions.

Both stacks and the output layer share one embedding; the first two rows of the position tables are never read.
"""

import math
from dataclasses import replace
from typing import Any

from interp.config import Learned, StackConfig, TransformerConfig
from models.families.family import Fields, named_family
from models.families.sizes import Sizes
from models.families.target_ids import ids_of, target_ids

FIRST_ROW = 2
SIZES = {stack: Sizes.named("bart", stack) for stack in ("encoder", "decoder")}


def _config(fields: Fields) -> TransformerConfig:
    fields.only(tie_word_embeddings=True)
    # files of old say these too, from when one class of theirs served several families
    fields.only(normalize_before=False, add_final_layer_norm=False, normalize_embedding=True)
    fields.only(static_position_embeddings=False, extra_pos_embeddings=FIRST_ROW)
    fields.only(add_bias_logits=False)
    parts = {"positions": Learned(first=FIRST_ROW), "embedding_norm": True}
    return TransformerConfig(
        encoder=stack_of(fields, "encoder", **parts),
        decoder=stack_of(fields, "decoder", **parts),
        output="tied",
        output_bias=True,
        shared_embedding=True,
        **target_ids(fields),
    )


def stack_of(fields: Fields, name: str, vocabulary: str = "vocab_size", **parts: Any) -> StackConfig:
    """The encoder or the decoder."""
    names = replace(SIZES[name], d_vocab=vocabulary)
    sizes = names.read(fields)
    parts |= {"causal": name == "decoder", "cross_attention": name == "decoder", "wiring": "post"}
    scale = math.sqrt(sizes["d_model"]) if fields.flag("scale_embedding", False) else 1.0
    return names.stack(fields, sizes, activation="gelu", eps=1e-5, embedding_scale=scale, **parts)


def raw(config: TransformerConfig) -> dict[str, Any]:
    """Their fields for ours."""
    fields: dict[str, Any] = {
        "is_encoder_decoder": True,
        "scale_embedding": config.last.embedding_scale != 1,
        "tie_word_embeddings": config.output == "tied",
        **ids_of(config),
    }
    for name, stack in reversed(config.stacks.items()):  # of what both say, the first stack's counts
        fields |= SIZES[name].written(stack)
    return fields


FAMILY = named_family("bart", _config, raw)

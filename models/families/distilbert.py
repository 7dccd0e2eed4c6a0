"""DistilBERT (Sanh 2019): BERT's blocks under other names, without token types."""

from interp.config import LayerNorm, Plain, StackConfig, TransformerConfig
from models.families import bert
from models.families.family import Family, Fields, rows
from models.families.sizes import Sizes

SIZES = Sizes(
    n_layers="n_layers", d_model="dim", n_heads="n_heads", d_mlp="hidden_dim", activation="activation", eps=None
)
EPS = 1e-12  # of all norms; their configuration has no field for it


def config(fields: Fields) -> TransformerConfig:
    """Ours for their config.json."""
    fields.only(pruned_heads={})
    activation = fields.activation("activation", "gelu")
    stack = StackConfig(
        **SIZES.read(fields),
        causal=False,
        norm=LayerNorm(EPS),
        wiring="post",
        mlp=Plain(activation),
        embedding_norm=True,
    )
    return bert.masked_words(fields, stack, activation)


FAMILY = Family(
    "distilbert",
    "DistilBertForMaskedLM",
    config,
    lambda config: SIZES.written(config.last),
    prefix="distilbert.",
    ignored=r"embeddings\.position_ids|(pre_classifier|classifier|qa_outputs)\..*",
    # a sinusoidal position table is stored as a learned one is
    harmless="qa_dropout seq_classif_dropout sinusoidal_pos_embds tie_weights_",
    masked="vocab_transform.weight",
    weights={
        **bert.ENCODER,
        "stacks.encoder.blocks.*.attn.qkv": rows(*(f"transformer.layer.*.attention.{part}_lin" for part in "qkv")),
        "stacks.encoder.blocks.*.attn.out": rows("transformer.layer.*.attention.out_lin"),
        "stacks.encoder.blocks.*.norm_attn": rows("transformer.layer.*.sa_layer_norm"),
        "stacks.encoder.blocks.*.mlp.up": rows("transformer.layer.*.ffn.lin1"),
        "stacks.encoder.blocks.*.mlp.down": rows("transformer.layer.*.ffn.lin2"),
        "stacks.encoder.blocks.*.norm_mlp": rows("transformer.layer.*.output_layer_norm"),
        "output": rows("vocab_projector"),
        "output.transform.dense": rows("vocab_transform"),
        "output.transform.norm": rows("vocab_layer_norm"),
    },
)

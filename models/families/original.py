"""The original transformer (Vaswani 2017), every part as in the paper."""

import math
from dataclasses import replace

from interp.config import LayerNorm, Plain, Sinusoidal, StackConfig, TransformerConfig, Writing
from interp.errors import InputError


def original(
    d_vocab: int = 37_000,
    *,
    n_layers: int = 6,
    d_model: int = 512,
    n_heads: int = 8,
    d_mlp: int = 2048,
    n_ctx: int = 512,
    target_start: int | None = None,
    target_end: int | None = None,
) -> TransformerConfig:
    """The base model of the paper's table 3, or one of other sizes; `interp.Transformer` gives it random weights.

    Interleaved sines and cosines are added to embeddings (3.5). Embeddings are multiplied by sqrt(d_model); one matrix
    serves source, target and output layer (3.4). Norms follow each sum (3.1). Projections of heads have no bias
    (3.2.2); feed-forwards have biases and ReLU (3.3).

    Args:
        d_vocab: the vocabulary that source and target share; about 37,000 for English and German (5.1).
        n_layers: blocks in the encoder, and in the decoder.
        d_model: width of the residual stream.
        n_heads: heads a layer, each d_model / n_heads wide.
        d_mlp: width of the feed-forward's hidden layer.
        n_ctx: the longest text, in tokens; the paper sets no limit.
        target_start: the id that the decoder's input begins with.
        target_end: the id that ends what it writes.

    Raises:
        InputError: sizes that do not fit together.
    """
    if d_model % n_heads:
        raise InputError(f"heads share d_model evenly: expected a multiple of {n_heads}, got {d_model}")
    encoder = StackConfig(
        n_layers=n_layers,
        d_model=d_model,
        n_heads=n_heads,
        d_head=d_model // n_heads,
        d_mlp=d_mlp,
        n_ctx=n_ctx,
        d_vocab=d_vocab,
        causal=False,
        norm=LayerNorm(),
        wiring="post",
        positions=Sinusoidal(),
        mlp=Plain("relu"),
        attention_bias=False,
        embedding_scale=math.sqrt(d_model),
    )
    return TransformerConfig(
        encoder=encoder,
        decoder=replace(encoder, causal=True, cross_attention=True),
        output="tied",
        shared_embedding=True,
        target_start=target_start,
        writing=Writing(ends=() if target_end is None else (target_end,)),
    )

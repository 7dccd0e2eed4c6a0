"""Tiny transformers with every weight random, and sizes prime where they can be, so that no axis passes for another."""

from dataclasses import replace

import torch

from interp import StackConfig, Transformer, TransformerConfig
from interp.config import (
    Gated,
    LayerNorm,
    Learned,
    NoMLP,
    NoNorm,
    NoPositions,
    Plain,
    RMSNorm,
    Rotary,
    Sinusoidal,
)

GPT2 = StackConfig(
    n_layers=2, d_model=19, n_heads=3, d_head=5, d_mlp=23, n_ctx=13, d_vocab=29, causal=True, mlp=Plain("gelu_tanh")
)
LLAMA = replace(
    GPT2,
    n_heads=6,
    n_kv_heads=2,
    d_head=14,
    norm=RMSNorm(1e-5),
    positions=Rotary(),
    mlp=Gated("silu"),
    attention_bias=False,
)
BERT = replace(GPT2, causal=False, wiring="post", mlp=Plain("gelu"), embedding_norm=True, n_token_types=2)

STACKS: dict[str, StackConfig] = {
    "gpt2": GPT2,
    "llama": LLAMA,
    "bert": BERT,
    "sinusoidal": replace(GPT2, positions=Sinusoidal(), mlp=Plain("relu", bias=False), scale=0.3),
    "no positions": replace(LLAMA, positions=NoPositions(), n_kv_heads=1, norm=LayerNorm()),
    "attention only": replace(GPT2, mlp=NoMLP(), norm=NoNorm(), positions=Learned()),
    "post-norm decoder": replace(LLAMA, wiring="post", attention_bias=True),
    "rotary encoder": replace(LLAMA, causal=False, n_kv_heads=None),
}


def randomise(module: torch.nn.Module, seed: int = 0) -> None:
    """Perturb every weight: matrices, biases, norms and embeddings alike, so that none can be left out unseen."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in module.parameters():
            noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            weight.copy_(weight * (weight.ndim == 1) + 0.3 * noise)


def model(name: str, output: str = "untied", dtype: torch.dtype = torch.float64) -> Transformer:
    """A random transformer of one of `STACKS`."""
    stack = STACKS[name]
    config = (
        TransformerConfig(decoder=stack, output=output)
        if stack.causal
        else TransformerConfig(encoder=stack, output="none")
    )
    built = Transformer(config).to(dtype)
    randomise(built)
    return built


def token_ids(*shape: int, d_vocab: int = 29, seed: int = 0) -> torch.Tensor:
    """Random token ids."""
    return torch.randint(d_vocab, shape, generator=torch.Generator().manual_seed(seed))

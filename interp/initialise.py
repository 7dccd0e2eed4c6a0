"""Fresh random weights: where training starts, and the null model that knows nothing."""

from typing import Literal

import torch
from torch import Tensor, nn

from interp.parts import RootMeanSquare
from interp.transformer import Transformer

Initial = Literal["normal", "glorot"]


def initialise(model: Transformer, seed: int, initial: Initial = "normal") -> None:
    """Draw every weight matrix; biases become 0 and norms 1.

    Args:
        model: its weights are drawn in place.
        seed: of the draws.
        initial: "normal" draws from N(0, 0.02²), layers that write into the stream scaled by (2 n_layers)^-1/2 (Radford
            2019). "glorot" draws from N(0, 2 / (inputs + outputs)) (Glorot 2010) and embeddings from N(0, 1 / d_model):
            a narrow model whose norms follow each sum learns from these and not from the others, which leave queries
            and keys too small to tell anything apart, and tokens smaller than their positions.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1:
                std = _normal(name, model) if initial == "normal" else _glorot(name, weight)
                weight.copy_(torch.randn(weight.shape, generator=generator) * std)
        for module in model.modules():
            if isinstance(module, RootMeanSquare):
                nn.init.constant_(module.weight, 1 - module.config.offset)
            elif isinstance(module, nn.LayerNorm):
                nn.init.ones_(module.weight)
            if isinstance(module, nn.LayerNorm | nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)


def _normal(name: str, model: Transformer) -> float:
    writes = name.endswith(("attn.out.weight", "down.weight"))
    return 0.02 * ((2 * model.config.n_layers) ** -0.5 if writes else 1.0)


def _glorot(name: str, weight: Tensor) -> float:
    outputs, inputs = weight.shape[-2:]
    return inputs**-0.5 if ".embed." in name else (2 / (inputs + outputs)) ** 0.5


def untrained(model: Transformer, seed: int) -> Transformer:
    """A model of the same configuration that has learnt nothing; `model` itself stays as it is."""
    with torch.random.fork_rng(devices=[]):  # what its parts draw is drawn again below
        fresh = Transformer(model.config, model.tokenizer, model.target_tokenizer)
    fresh = fresh.to(model.device, model.last.embed.token.weight.dtype)
    initialise(fresh, seed)
    return fresh

"""Where does training start? Fresh random weights, which are also the null model."""

from typing import Literal

import torch
from torch import Tensor, nn

from interp.model import Model
from interp.parts import RootMeanSquare
from interp.transformer import Transformer

Initial = Literal["normal", "unit", "glorot"]


def initialise(model: Transformer, seed: int, initial: Initial = "normal") -> None:
    """Draw every weight matrix in place; biases become 0 and norms 1.

    "normal" draws from N(0, 0.02²) and scales layers that write into the stream by (2 n_layers)^-1/2 (Radford 2019).
    "unit" draws embeddings from N(0, 1) and matrices from N(0, 1 / (3 inputs)), with the same scaling: at first a token
    outweighs what layers add to it, so heads that match and copy tokens form in a fraction of the steps. "glorot" draws
    from N(0, 2 / (inputs + outputs)) (Glorot 2010) and embeddings from N(0, 1 / d_model); a narrow model whose norms
    follow each sum learns from this start.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1:
                weight.copy_(torch.randn(weight.shape, generator=generator) * _spread(name, weight, initial, model))
        for module in model.modules():
            if isinstance(module, RootMeanSquare):
                nn.init.constant_(module.weight, 1 - module.config.offset)
            elif isinstance(module, nn.LayerNorm):
                nn.init.ones_(module.weight)
            if isinstance(module, nn.LayerNorm | nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)


def _spread(name: str, weight: Tensor, initial: Initial, model: Transformer) -> float:
    """The standard deviation of a matrix; layers add to the stream 2 n_layers times."""
    (outputs, inputs), embeds = weight.shape[-2:], ".embed." in name
    if initial == "glorot":
        return inputs**-0.5 if embeds else (2 / (inputs + outputs)) ** 0.5
    std = 0.02 if initial == "normal" else 1.0 if embeds else (3 * inputs) ** -0.5
    return std * ((2 * model.config.n_layers) ** -0.5 if name.endswith(("attn.out.weight", "down.weight")) else 1.0)


def untrained(model: Model, seed: int) -> Transformer:
    """Another model of the same configuration, untrained."""
    with torch.device("meta"):  # without memory: weights are drawn below
        fresh = Transformer(model.config, model.tokenizer, model.target_tokenizer)
    for name, shape in [*fresh.named_parameters()]:
        module, _, leaf = name.rpartition(".")
        weight = torch.empty_strided(shape.shape, shape.stride(), dtype=model.dtype, device=model.device)
        setattr(fresh.get_submodule(module), leaf, nn.Parameter(weight))
    fresh.tie()
    initialise(fresh, seed)
    return fresh

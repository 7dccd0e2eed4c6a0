"""Fresh random weights: where training starts, and the null model that knows nothing."""

import torch
from torch import nn

from interp.parts import RootMeanSquare
from interp.transformer import Transformer


def initialise(model: Transformer, seed: int) -> None:
    """Draw every weight matrix from N(0, 0.02²), layers that write into the stream scaled by (2 n_layers)^-1/2.

    Biases become 0 and norms 1 (Radford 2019).
    """
    generator = torch.Generator().manual_seed(seed)
    writers = ("attn.out.weight", "down.weight")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1:
                std = 0.02 * ((2 * model.config.n_layers) ** -0.5 if name.endswith(writers) else 1.0)
                weight.copy_(torch.randn(weight.shape, generator=generator) * std)
        for module in model.modules():
            if isinstance(module, RootMeanSquare):
                nn.init.constant_(module.weight, 1 - module.config.offset)
            elif isinstance(module, nn.LayerNorm):
                nn.init.ones_(module.weight)
            if isinstance(module, nn.LayerNorm | nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)


def untrained(model: Transformer, seed: int) -> Transformer:
    """A model of the same configuration that has learnt nothing; `model` itself stays as it is."""
    with torch.random.fork_rng(devices=[]):  # what its parts draw is drawn again below
        fresh = Transformer(model.config, model.tokenizer, model.target_tokenizer)
    fresh = fresh.to(model.device, model.last.embed.token.weight.dtype)
    initialise(fresh, seed)
    return fresh

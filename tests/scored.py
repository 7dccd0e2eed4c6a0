"""Models with hand-set probabilities of every word."""

import math

import torch
from worded import word_level

from interp import StackConfig, Tokenizer, Transformer, TransformerConfig


def word_model(start: bool = True, causal: bool = True, **shares: float) -> Transformer:
    """Each word has a fixed share of the probability in any context; with `start`, `<s>` begins every text."""
    backend = word_level("<s>", "[MASK]", *shares)
    backend.add_special_tokens(["[MASK]"])
    stack = StackConfig(1, 11, 3, 5, 7, 29, len(shares) + 2, causal=causal)
    config = TransformerConfig(output_bias=True, **{"decoder" if causal else "encoder": stack})
    model = Transformer(config, Tokenizer(backend, add_start=0 if start else None))
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
        model.output.bias[:] = torch.tensor([-1e9, -1e9, *map(math.log, shares.values())])
    return model

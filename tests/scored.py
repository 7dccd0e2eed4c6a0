"""Models whose probability of every word is set by hand."""

import math

import torch
from worded import word_level

from interp import StackConfig, Tokenizer, Transformer, TransformerConfig


def word_model(start: bool = True, causal: bool = True, **shares: float) -> Transformer:
    """Each word has its share of all probability, whatever stands around it; `<s>` stands before every text."""
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

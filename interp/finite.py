"""Where does the first NaN or infinity of a model arise?"""

import torch
from torch import Tensor, nn

from interp.config import StackConfig
from interp.errors import InputError
from interp.model import Model, check_model
from interp.running import run

_LENGTH = 16  # tokens of the text that is tried


def check_finite(model: Model, tokens: Tensor | None = None, target: Tensor | None = None) -> None:
    """Refuse a model that computes NaN or infinity: the first such site is named, and the weight, if it is one already.

    `tokens` and `target` are ids without padding; by default a few random ones.
    """
    check_model(model)
    first, last = next(iter(model.config.stacks.values())), model.config.last
    tokens = _random_ids(first) if tokens is None else tokens
    if len(model.config.stacks) > 1 and target is None:
        target = _random_ids(last)
    named = model.named_parameters() if isinstance(model, nn.Module) else ()
    for site, value in run(model, tokens, tuple(model.sites), target=target).activations.items():
        infinite = value.isposinf() if site.endswith(".scores") else value.isinf()  # what is masked scores -infinity
        nan = value.isnan()
        if bool((nan | infinite).any()):
            kind = "NaN" if bool(nan.any()) else "infinite numbers"
            is_low = model.dtype in {torch.float16, torch.bfloat16}
            check = "what would be measured is undefined; check the weights and config.json"
            advice = "load it as torch.float32" if is_low else check
            weights = (name for name, weight in named if not bool(weight.isfinite().all()))
            cause = f"the weight {name} is not finite, so " if (name := next(weights, None)) else ""
            raise InputError(f"{cause}{site} holds {kind}, computed in {model.dtype}: {advice}")


def _random_ids(config: StackConfig) -> Tensor:
    size = (1, min(_LENGTH, config.n_ctx))
    return torch.randint(config.d_vocab, size, generator=torch.Generator().manual_seed(0))

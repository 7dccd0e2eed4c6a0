"""What would the output layer say after each layer?"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.attribution.answers import Answer, answer_ids
from interp.errors import InputError
from interp.model import Model
from interp.patching.patch_sites import last_stack
from interp.running import Tokens, as_batches, run
from interp.tokens import Positions
from interp.transformer import Transformer, with_parts


@dataclass(frozen=True)
class LogitLens:
    """What the output layer would say after each layer; row 0 is the embedding, the last row the model's own logits.

    `columns` are the columns of the batch that were read, for each prompt.
    """

    logits: Float[Tensor, "layer prompt position d_vocab"]
    columns: Int[Tensor, "prompt position"]
    model: Transformer

    def difference(self, right: Answer, wrong: Answer) -> Float[Tensor, "layer prompt position"]:
        """Logit of `right` less that of `wrong`: one answer for all prompts, or one a prompt; texts or ids."""
        sides = [answer_ids(self.model, answer, len(self.columns)) for answer in (right, wrong)]
        index = torch.stack(sides, -1)[None, :, None].expand(*self.logits.shape[:3], 2)
        found = self.logits.gather(-1, index)
        return found[..., 0] - found[..., 1]

    def top(self, k: int) -> tuple[Float[Tensor, "layer prompt position k"], Int[Tensor, "layer prompt position k"]]:
        """The `k` largest logits and their tokens, largest first."""
        if not 1 <= k <= self.logits.shape[-1]:
            raise InputError(f"expected k from 1 to {self.logits.shape[-1]}, the model's vocabulary; got {k}")
        values, tokens = self.logits.topk(k)
        return values, tokens


@torch.no_grad()
def logit_lens(model: Model, tokens: Tokens, position: Positions = None, *, target: Tokens | None = None) -> LogitLens:
    """The final norm and output layer applied to the stream after each layer (nostalgebraist 2020).

    Args:
        model: a transformer with an output layer.
        tokens: the prompts.
        position: where, in each prompt's own tokens (negative: from its end): one or several for all prompts, or a
            tensor with one a prompt; by default its last.
        target: what the decoder reads where there is an encoder; positions are the decoder's then, and so are layers.

    Returns:
        LogitLens: logits `layer prompt position d_vocab`, one layer more than the model has.

    Raises:
        InputError: no output layer, or no such position.
    """
    model = with_parts(model, "the logit lens")
    if model.output is None:
        raise InputError("a logit lens needs an output layer: this model has none")
    batch, decoded = as_batches(model, tokens, target)
    columns = (decoded or batch).columns(position)
    rows = torch.arange(len(columns), device=columns.device)[:, None]
    sites = [f"{last_stack(model)}.{layer}.resid_pre" for layer in range(model.config.n_layers)]
    out = run(model, batch, capture=sites, target=decoded)
    early = torch.stack([out[site][rows, columns] for site in sites])
    logits = model.read(model.last.norm(early))
    assert logits is not None
    return LogitLens(torch.cat([logits, out.logits[None, rows, columns]]), columns, model)

"""What would the output layer say after each layer?"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.devices import pick
from interp.display import DataFrame, Figure, Result, draw_figure, signed, so_many
from interp.errors import InputError
from interp.model import Model
from interp.patching.pairs import Answer, answer_ids, answers_in
from interp.patching.patch_sites import last_stack
from interp.patching.results import cell_rows, long_table
from interp.running import Tokens, as_batches, run
from interp.tokens import Positions, TokenBatch
from interp.transformer import Transformer, with_parts


@dataclass(frozen=True, repr=False)
class LogitLens(Result):
    """What the output layer would say after each layer; row 0 is the embedding, the last row the model's own logits.

    `columns` are the columns read in the batch `tokens`, for each prompt.
    """

    logits: Float[Tensor, "layer prompt position d_vocab"]
    columns: Int[Tensor, "prompt position"]
    model: Transformer = field(repr=False)
    tokens: TokenBatch = field(repr=False)

    def difference(self, right: Answer, wrong: Answer) -> Float[Tensor, "layer prompt position"]:
        """Logit of `right` minus that of `wrong`: one answer for all prompts, or one per prompt; texts or ids."""
        sides = [answer_ids(self.model, answer, len(self.columns)) for answer in (right, wrong)]
        index = torch.stack(sides, -1)[None, :, None].expand(*self.logits.shape[:3], 2)
        logits = self.logits.gather(-1, index)
        return logits[..., 0] - logits[..., 1]

    def top(self, k: int) -> tuple[Float[Tensor, "layer prompt position k"], Int[Tensor, "layer prompt position k"]]:
        """The `k` largest logits and their tokens, largest first."""
        if not 1 <= k <= self.logits.shape[-1]:
            raise InputError(f"expected k from 1 to {self.logits.shape[-1]}, the model's vocabulary; got {k}")
        values, tokens = self.logits.topk(k)
        return values, tokens

    def table(
        self, right: Answer | None = None, wrong: Answer | None = None, *, k: int = 1, seed: int = 0
    ) -> DataFrame:
        """One row per layer, prompt, position and rank; with two answers, their difference by layer.

        Columns are `layer` (0: the embedding), `prompt, position` (in the prompt's own tokens), `read` (the token
        there), `rank` (1 to `k`), `id, token, logit, probability`. With answers, as in `difference`: `layer, at` (index
        of the position), then `effect`, the mean difference over prompts, with interval (seeded by `seed`), p, q.
        """
        import pandas as pd  # noqa: PLC0415 (`import interp` need not wait for it)

        if right is not None and wrong is not None:
            differences = self.difference(right, wrong).movedim(1, -1)  # layer position prompt
            rows = cell_rows(("layer", "at"), differences, differences.new_zeros(differences.shape[-1]), seed=seed)
            return long_table({}, [rows], ("layer", "at")).drop(columns=["share", "share_low", "share_high"])
        if right is not None or wrong is not None:
            raise InputError("expected both answers, whose logits are compared, or neither")
        logits, ids = (each.cpu() for each in self.top(k))
        chances = (logits.double() - self.logits.double().logsumexp(-1, keepdim=True).cpu()).exp()
        layer, prompt, index, rank = torch.cartesian_prod(*map(torch.arange, ids.shape)).T
        cells = prompt, self.columns.cpu()[prompt, index]
        table: dict[str, Any] = {"layer": layer, "prompt": prompt, "position": self.tokens.positions.cpu()[cells]}
        table |= {"read": self._labels(self.tokens.ids.cpu()[cells].tolist()), "rank": rank + 1, "id": ids.flatten()}
        table |= {"token": self._labels(ids.flatten().tolist()), "logit": logits.flatten().double()}
        return pd.DataFrame({**table, "probability": chances.flatten()})

    def _labels(self, ids: list[int]) -> list[str | None]:
        """Readable tokens; None if the model has no tokenizer."""
        tokenizer = answers_in(self.model)
        return [None if tokenizer is None else tokenizer.label(id) for id in ids]

    def figure(self, right: Answer | None = None, wrong: Answer | None = None, **options: Any) -> Figure:
        """Every layer's most probable token, by position or by prompt; with two answers, their difference by layer.

        For `options` see `analyses.figures.lens_map` (`prompt`, ...) or `lens_line`: `title`, `width`, `ax`, ...
        """
        if right is not None or wrong is not None:
            return draw_figure("lens_line", self.table(right, wrong), **options)
        return draw_figure("lens_map", self.table(), **options)

    def facts(self) -> tuple[str, Mapping[str, str]]:
        """What the layers say at the last position of the first prompt."""
        logits, ids = self.top(1)
        facts = {}
        for layer, (id, logit) in enumerate(zip(ids[:, 0, -1, 0].tolist(), logits[:, 0, -1, 0].tolist(), strict=True)):
            name = "as embedded" if not layer else f"after layer {layer - 1}"
            facts[name] = f"{self._labels([id])[0] or id!r} {signed(logit)}"
        size = f"{so_many(ids.shape[1], 'prompt')}, {so_many(ids.shape[2], 'position')} each"
        return f"Logit lens over {size}: most probable at the last position of prompt 0", facts


@torch.no_grad()
def logit_lens(model: Model, tokens: Tokens, position: Positions = None, *, target: Tokens | None = None) -> LogitLens:
    """The final norm and output layer applied to the stream after each layer (nostalgebraist 2020).

    Args:
        model: a transformer with an output layer.
        tokens: the prompts.
        position: where to read, in each prompt's own tokens (negative: from its end): one or several for all prompts,
            or a tensor with one per prompt; by default the last.
        target: what the decoder of an encoder-decoder reads; positions and layers are then the decoder's.
    """
    model = with_parts(model, "the logit lens")
    if model.output is None:
        raise InputError("a logit lens needs an output layer: this model has none")
    batch, decoded = as_batches(model, tokens, target)
    columns = (decoded or batch).columns(position)
    rows = torch.arange(len(columns), device=columns.device)[:, None]
    sites = [f"{last_stack(model)}.{layer}.resid_pre" for layer in range(model.config.n_layers)]
    out = run(model, batch, capture=sites, target=decoded)
    early = torch.stack([pick(out[site], (rows, columns)) for site in sites])
    logits = model.read(model.last.norm(early))
    assert logits is not None
    return LogitLens(torch.cat([logits, out.logits[None, rows, columns]]), columns, model, decoded or batch)

"""What is asked of which tokens: answers as directions of the final stream, and the positions where it is read."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.attribution.composition import wide
from interp.config import StackConfig
from interp.errors import InputError
from interp.patching.pairs import Inputs, answers_in
from interp.patching.patch_sites import last_stack
from interp.running import Tokens, as_batches
from interp.tokens import Positions
from interp.transformer import Transformer

Answer = str | Sequence[str] | int | Int[Tensor, "*prompt"]


@dataclass(frozen=True)
class Reading:
    """Where a direction is read: prompts, one column of each, and the direction after the final norm."""

    inputs: Inputs
    columns: Int[Tensor, " prompt"]
    direction: Float[Tensor, "prompt d_model"]
    stack: str
    bias: Float[Tensor, " prompt"] | None  # what the output layer adds

    @staticmethod
    def from_arguments(
        model: Transformer,
        tokens: Tokens,
        right: Answer | None,
        wrong: Answer | None,
        direction: Tensor | None,
        position: Positions,
        target: Tokens | None,
    ) -> "Reading":
        """The arguments of `direct_logit_attribution`, checked."""
        config: StackConfig = model.last.config
        if config.norms_sums:
            raise InputError(
                "this model's norms come after its sums: each rescales all that was written before, so its stream is "
                "no sum of what its layers write and there is no direct attribution; patch or ablate instead"
            )
        if (right is None) == (direction is None) or (wrong is not None and right is None):
            raise InputError("expected either answers (right, and wrong to compare with) or a direction")
        inputs = as_batches(model, tokens, target)
        n_prompts, bias = len(inputs[0].ids), None
        if right is not None:
            if model.output is None:
                raise InputError("this model has no output layer, so answers have no logits: give a direction")
            if model.config.transform is not None:
                raise InputError(
                    "this model transforms its final stream before the output layer, so that no logit is a sum of what "
                    "its layers write: give a direction of that stream, or patch or ablate instead"
                )
            ids = [answer_ids(model, answer, n_prompts) for answer in (right, wrong) if answer is not None]
            read, *less = (wide(model.output.weight)[answers] * model.output.scale for answers in ids)
            read = read - less[0] if less else read
            if model.output.bias is not None:
                bias, *less = (wide(model.output.bias)[answers] for answers in ids)
                bias = bias - less[0] if less else bias
        else:
            assert direction is not None
            read = wide(direction.to(model.device))
            if read.shape not in {(config.d_model,), (n_prompts, config.d_model)}:
                raise InputError(
                    f"a direction has shape ({config.d_model},) or ({n_prompts}, {config.d_model}), "
                    f"got {tuple(read.shape)}"
                )
            read = read.expand(n_prompts, -1)
        columns = (inputs[1] or inputs[0]).columns(position)
        if columns.shape[1] != 1:
            raise InputError(f"attribution is read at one position of each prompt, got {columns.shape[1]}")
        return Reading(inputs, columns[:, 0], read, last_stack(model), bias)

    def take(self, site: Float[Tensor, "prompt position ..."]) -> Float[Tensor, "prompt ..."]:
        """What a site holds where the direction is read."""
        return wide(site[torch.arange(len(self.columns), device=self.columns.device), self.columns])

    def dot(
        self, site: Float[Tensor, "prompt position d_model"], e: Float[Tensor, "prompt d_model"]
    ) -> Float[Tensor, " prompt"]:
        """How far a site lies along `e`."""
        return (self.take(site) * e).sum(-1)


def answer_ids(model: Transformer, answer: Answer, n_prompts: int) -> Int[Tensor, " prompt"]:
    """One token a prompt."""
    if isinstance(answer, int | Tensor):
        ids = torch.as_tensor(answer)
    elif (tokenizer := answers_in(model)) is None:
        raise InputError("this model has no tokenizer: give answers as ids")
    else:
        ids = torch.tensor(tokenizer.id(answer) if isinstance(answer, str) else [*map(tokenizer.id, answer)])
    if ids.shape not in {(), (n_prompts,)}:
        raise InputError(f"expected one answer, or one for each of the {n_prompts} prompts; got {tuple(ids.shape)}")
    if int(ids.min()) < 0 or int(ids.max()) >= model.config.d_vocab:
        raise InputError(
            f"answers must lie in 0-{model.config.d_vocab - 1}, the model's vocabulary; got {ids.tolist()}"
        )
    return ids.long().expand(n_prompts).to(model.device)

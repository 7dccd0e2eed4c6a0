"""One differentiable pass: its activations, its metrics, and their gradients.

The graph starts after the embedding. Prompts are independent, so the gradient of a metric's sum is each prompt's own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import InputError
from interp.patching.metrics import Readout, checked_values
from interp.patching.pairs import Inputs, Pairs
from interp.patching.preparation import check_budget
from interp.tap import Edit, Tap
from interp.transformer import Transformer
from interp.visibility import Source, Visibility

BUDGET = 2 << 30  # bytes of activations that one differentiated pass may hold, by default
Stream = Float[Tensor, "prompt position d_model"]


@dataclass(frozen=True)
class Tape:
    """One pass over some prompts: the activations at each captured site, and the metrics, one value per prompt."""

    inputs: Inputs
    activations: dict[str, Tensor]
    values: dict[str, Float[Tensor, " prompt"]]

    def gradients(self, metric: str, names: Sequence[str]) -> dict[str, Tensor]:
        """The metric's gradient at each of `names`."""
        value = self.values[metric]
        if not value.requires_grad:
            advice = "use `sweep`, or another metric (logit_difference)"
            raise InputError(f"metric {metric} has no gradient, so its effects cannot be estimated: {advice}")
        joined = [name for name in names if self.activations[name].requires_grad]
        options: Any = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
        with torch.enable_grad():
            total = value.sum()
        gradients = torch.autograd.grad(total, [self.activations[name] for name in joined], **options)
        cut_off = {name: torch.zeros_like(self.activations[name]) for name in names if name not in joined}
        return dict(zip(joined, gradients, strict=True)) | cut_off


def record(
    model: Transformer,
    inputs: Inputs,
    readouts: Sequence[Readout],
    names: Sequence[str],
    edits: Mapping[str, Edit] | None = None,
    start: Stream | None = None,
) -> Tape:
    """Run the model from its embeddings, or from `start`, capture `names` and read the metrics.

    Inside `torch.enable_grad()` the tape is differentiable.
    """
    tap = Tap(capture=frozenset(names), edit=edits or {})
    final = final_stream(model, inputs, tap, start)
    values = {readout.name: readout.from_final(model, readout.at_reads(final)) for readout in readouts}
    return Tape(inputs, tap.activations, checked_values(values, len(final)))


def final_stream(
    model: Transformer, inputs: Inputs, tap: Tap, start: Stream | None = None
) -> Float[Tensor, "*cells prompt position d_model"]:
    """The last stack's final stream; its graph begins at the input of each stack's first block. See `record`."""
    source, final = None, None
    for name, batch in zip(model.config.stacks, inputs, strict=False):
        assert batch is not None
        stack = model.stack(name)
        entering = stack.embed(batch.ids, batch.positions) if start is None or source is not None else start
        entering = tap.at(name)("embed", entering.detach().requires_grad_(torch.is_grad_enabled()))
        visibility = Visibility.from_batch(batch, causal=stack.config.causal)
        final = stack.resume(entering, visibility, tap=tap.at(name), source=source)
        source = Source.from_stream(final, batch)
    assert final is not None
    return final


def take(inputs: Inputs, prompts: Tensor) -> Inputs:
    """Some of the prompts."""
    batch, target = inputs
    return batch.rows(prompts), target and target.rows(prompts)


def split(model: Transformer, pairs: Pairs, budget: int, extra: int = 0, *, rows: bool = False) -> Sequence[Tensor]:
    """Indices of prompts, in parts whose activations fit `budget` bytes; the other arguments are `bytes_a_prompt`'s."""
    widths = {name: pairs.read_by(name).ids.shape[1] for name in model.config.stacks}
    n_bytes = bytes_a_prompt(model, widths, extra, rows)
    check_budget(budget, n_bytes, pairs, "prompt")
    return torch.arange(len(pairs), device=model.device).split(budget // n_bytes)


def bytes_a_prompt(model: Transformer, widths: Mapping[str, int], extra: int = 0, rows: bool = False) -> int:
    """Bytes that a differentiated pass holds for a prompt; `widths` are its positions in each stack.

    Each layer keeps, per position, about a dozen vectors of stream width, those of its heads and feed-forward, and as
    many in gradients; with `rows` also the attention to every key. `extra` counts other numbers held per position.
    """
    numbers = 4 * model.config.d_vocab
    for name, config in model.config.stacks.items():
        width, attentions = widths[name], 2 if config.cross_attention else 1
        keys = width + (widths["encoder"] if config.cross_attention else 0)
        heads = attentions * (config.n_heads + 2 * config.kv_heads) * config.d_head
        layer = 14 * config.d_model + 8 * config.d_mlp + 6 * heads + (8 * config.n_heads * keys if rows else 0)
        numbers += width * (config.n_layers * layer + extra)
    return numbers * model.last.embed.token.weight.element_size()

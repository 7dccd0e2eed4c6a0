"""Exact sweeps: every cell of a site patched, at a fraction of one forward pass a cell.

A cell at layer l and position p leaves everything below l, and in a causal stack before p, as it was. So a cell starts
from the stream at its own layer, with the rows that it changes, cells of all layers go through in one pass as long as
they fill it, and the last block is computed only where the metrics read. `sweep_by_forward` is the
plain way; both give the same numbers.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from interp.model import Model
from interp.patching.by_forward import sweep_by_forward, unpatched_by_forward
from interp.patching.chunks import fill, group_sweeps
from interp.patching.memory import BUDGET, most_rows, shares
from interp.patching.metrics import Metric, prepared
from interp.patching.pairs import Pairs
from interp.patching.patch_sites import Attending, StackName
from interp.patching.plain import PlainRun
from interp.patching.preparation import Plan, Values, read_values
from interp.patching.results import Cells, Direction
from interp.patching.resumption import sweep_by_resuming
from interp.transformer import Transformer


@torch.no_grad()
def sweep(
    model: Model,
    pairs: Pairs,
    metrics: Metric | Sequence[Metric],
    site: str = "z",
    by: Sequence[str] = ("layer", "head"),
    direction: Direction = "denoise",
    *,
    stack: StackName | None = None,
    attention: Attending = "self",
    budget: int = BUDGET,
) -> Cells:
    """Patch every cell of `site` and measure what each does, exactly.

    Args:
        model: a transformer with an output layer.
        pairs: clean and corrupted prompts, token for token alike in length; lengths may differ between pairs.
        metrics: what to read, one or several.
        site: any that `run` can edit, by its name in a layer (`z`, `resid_pre`, `mlp.post`) or outside the layers
            (`embed`, `resid_final`, `logits`: a single layer, 0).
        by: the cells' axes: `layer`, then any of `head` (key/value heads for `k` and `v`), `position`, for `pattern`
            and `scores` `query` and `key`, in feed-forwards `neuron` or `expert`. Positions count in each prompt's own
            tokens; those of keys and values of cross-attention are the source's. Where the pairs name positions, an
            axis has an entry a name, and nothing else is patched.
        direction: `denoise` (or `denoising`) puts clean activations into the corrupted prompt, `noise` (or `noising`)
            corrupted ones into the clean.
        stack: `encoder` or `decoder`; by default that which the output layer reads.
        attention: `self` or `cross`: whose `z`, `q`, `k`, `v`, `pattern` or `scores`.
        budget: bytes that the sweep may take: prompts, and cells of them, go through in as many parts as that needs.

    Returns:
        Cells: values `*by prompt`, and the metrics of the unpatched prompts.

    Raises:
        InputError: no such site, axis or direction, a site that is the same in both prompts whatever they are, a
            metric that returns no number a prompt, a budget too small for one cell.
    """
    if not isinstance(model, Transformer):
        return sweep_by_forward(model, pairs, metrics, site, by, direction, stack=stack, attention=attention)
    plan = Plan.of(model, pairs, metrics, site, by, direction, stack, attention)
    tables, ends = [], []
    at_once, left = shares(model, pairs, budget, plan.patch_site)
    for prompts in torch.arange(len(pairs), device=pairs.last.device).split(at_once):
        part = plan.take(prompts)
        runs = part.runs()
        own, other = (read_values(model, run, part.plain) for run in runs)
        tables.append(swept(part, runs, own, left))
        ends.append((own, other))
    values = {name: plan.by_name(table) for name, table in _joined(tables).items()}
    return plan.cells(values, *(_joined(parts) for parts in zip(*ends, strict=True)))


@torch.no_grad()
def unpatched(
    model: Model, pairs: Pairs, metrics: Metric | Sequence[Metric], *, budget: int = BUDGET
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The metrics of the clean and of the corrupted prompts as they are: is there a difference that patching can move?

    What `Cells` have as `clean` and `corrupt`, for two forwards instead of all its cells.

    Args:
        model, pairs, metrics, budget: as of `sweep`.

    Returns:
        by name of the metric, one number a prompt: of the clean prompts, and of the corrupted ones.

    Raises:
        InputError: a metric that returns no finite number a prompt, a budget too small for one prompt.
    """
    readouts, parts = prepared(model, pairs, metrics), []
    if not isinstance(model, Transformer):
        return unpatched_by_forward(model, pairs, readouts)
    for prompts in torch.arange(len(pairs), device=pairs.last.device).split(shares(model, pairs, budget)[0]):
        read = [readout.take(prompts) for readout in readouts]
        parts.append([read_values(model, run, read) for run in PlainRun.of_both(model, *pairs.take(prompts).inputs)])
    clean, corrupt = (_joined(each) for each in zip(*parts, strict=True))
    return clean, corrupt


def swept(plan: Plan, runs: tuple[PlainRun, PlainRun], own: Values, budget: int) -> Values:
    """Metrics, `*by prompt`, of the first of two runs with what the second has at each cell.

    The second is another prompt's run, or holds what an ablation puts there. Cells that no change can reach keep the
    plain run's value (`own`). Position axes count columns, also where these have names.
    """
    values = plan.unchanged(own)
    if plan.patch_site.in_engine(plan.by):
        most = most_rows(plan.transformer, plan.pairs, budget, plan.patch_site)
        groups = [(group, plan.wanted(group.prompts)) for group in group_sweeps(plan, runs, most)]
        chunks = [chunk for group, wanted in groups for chunk in group.chunks(most, wanted)]
        fill(plan.transformer, values, chunks, most)
    else:
        sweep_by_resuming(plan, runs, values, budget)
    return values


def _joined(parts: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Tables of some prompts each, as one."""
    return {name: torch.cat([part[name] for part in parts], -1) for name in parts[0]}

"""What did each writer add to a head's keys, and where does the head look without it? For many queries at once."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor

from interp.attribution.scores import scores_of
from interp.attribution.writers import Reader, all_parts, wide, with_sites
from interp.display import Result
from interp.edits import add
from interp.errors import InputError
from interp.model import Model
from interp.patching.patch_sites import Attending, StackName
from interp.running import Edits, Run


@dataclass(frozen=True, repr=False)
class KeyContributions(Result):
    """What each writer of the keys adds to the score of every key; each row is one query of one prompt.

    If relative positions add to scores, the last writer is `distance`. Values sum to `scores` where the query sees the
    key, and are 0 elsewhere.
    """

    writers: tuple[str, ...]
    values: Float[Tensor, "writer row key"]
    scores: Float[Tensor, "row key"]  # the model's own; -inf where the query does not see the key

    def pattern(self, without: Sequence[str] = ()) -> Float[Tensor, "row key"]:
        """The attention after removing all these writers' parts from the keys at once."""
        return (self.scores - self.values[_indices(self.writers, without)].sum(0)).softmax(-1)

    def facts(self) -> tuple[str, dict[str, str]]:
        """The numbers of writers, rows and keys."""
        return "Contributions to scores", dict(
            zip(("writers", "rows", "keys"), map(str, self.values.shape), strict=True)
        )


def attribution_sites(
    model: Model, layer: int, *, stack: StackName | None = None, attention: Attending = "self"
) -> list[str]:
    """The sites to capture so that `score_attribution` and its relatives need no further run, for a layer's heads."""
    readers = Reader.from_arguments(model, layer, 0, stack, attention, "qkv")
    return [*dict.fromkeys(site for reader in readers for site in reader.sites)]


@torch.no_grad()
def key_contributions(
    out: Run,
    layer: int,
    head: int,
    rows: Int[Tensor, "row 2"],
    *,
    stack: StackName | None = None,
    attention: Attending = "self",
) -> KeyContributions:
    """What each writer of a head's keys adds to the scores of all keys, for some queries, which are not split.

    Args:
        out: a run; if it captured `attribution_sites`, it serves all heads of the layer.
        layer, head, stack, attention: as in `score_attribution`.
        rows: (prompt, column of the query in the batch). Memory grows with writer x row x key.

    Raises:
        InputError: as `score_attribution`.
    """
    q, k = Reader.from_arguments(out.model, layer, head, stack, attention, "qk")
    out = with_sites(out, [q, k])
    ids, mask = k.text(out).ids, q.text(out).mask
    rows = rows.to(ids.device)
    inside = len(rows) > 0 and rows.shape[1:] == (2,) and rows.min() >= 0
    if not inside or bool((rows >= rows.new_tensor(mask.shape)).any()) or not bool(mask[tuple(rows.T)].all()):
        raise InputError(f"expected rows of a prompt and the column of a token in it, row x 2; got {rows.tolist()}")
    prompts, queries = rows.T
    counts, order = prompts.bincount(minlength=len(ids)), prompts.argsort(stable=True)
    slots = torch.empty_like(prompts)  # row numbers within a prompt, so that one product covers all its queries
    slots[order] = torch.arange(len(rows), device=ids.device) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    columns = queries.new_zeros(len(ids), int(counts.max()))
    columns[prompts, slots] = queries
    scores, distance = (None if x is None else x[prompts, slots] for x in scores_of(out, q, k, columns))
    assert scores is not None
    asked = wide(q.queries(out, columns)).to(ids.device) * q.attn.config.score_scale
    blocks = [] if distance is None else [(["distance"], distance[None])]
    for names, vectors in k.parts(out, torch.arange(ids.shape[1], device=ids.device).expand_as(ids)):
        part = einsum(asked, vectors, "prompt slot d_head, writer prompt key d_head -> writer prompt slot key")
        blocks.append((names, part[:, prompts, slots]))
    values = torch.cat([values for _, values in blocks[::-1]]).masked_fill_(scores.isneginf(), 0)
    return KeyContributions(tuple(name for names, _ in blocks[::-1] for name in names), values, scores)


@torch.no_grad()
def remove_from_key(
    out: Run,
    layer: int,
    head: int,
    writers: Sequence[str],
    *,
    stack: StackName | None = None,
    attention: Attending = "self",
) -> Edits:
    """Edits for `run` on the same text: a head's keys without these writers' parts, with norms' scales held fixed.

    Queries, values and other heads' keys (unless shared) do not change. The edit is at `attn.k`, or at `attn.rot_k` if
    keys are normalised, because that norm would rescale what is left.

    Raises:
        InputError: no such layer, head or writer; keys that are normalised but not rotated, for which there is no site.
    """
    (k,) = Reader.from_arguments(out.model, layer, head, stack, attention, "k")
    normed = k.attn.config.qk_norm is not None
    site = f"{k.site.removesuffix('k')}rot_k" if normed else k.site
    if site not in k.model.sites:
        raise InputError("this model normalises keys, and no site shows them after that: use key_contributions")
    out = with_sites(out, [k])
    ids = k.text(out).ids
    names, vectors = all_parts(k, out, torch.arange(ids.shape[1], device=ids.device).expand_as(ids), entered=normed)
    return {site: add(-vectors[_indices(names, writers)].sum(0), head=k.row)}


def _indices(names: Sequence[str], writers: Sequence[str]) -> list[int]:
    """The indices of `names` among all writers."""
    if isinstance(writers, str):
        raise InputError(f"expected a list of writers, as [{writers!r}]")
    if unknown := [writer for writer in writers if writer not in names]:
        raise InputError(f"no writer {unknown[0]!r} of these keys: expected any of {', '.join(names)}")
    return [names.index(writer) for writer in writers]

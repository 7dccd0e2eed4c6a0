"""Along which path does a part of the model act? What one sender writes, as chosen receivers read it, and no further.

Every cell is taken twice away from the base run: from its sender to the receivers (`senders`), and from the first of
these that it reaches to the metric (`receivers`). Both are passes of the engine, but where attention is kept as it was:
there rows are independent. `path_patch_by_forward` is the plain way; both give the same numbers.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from interp.config import StackConfig
from interp.model import Model
from interp.patching.attention_patches import Where
from interp.patching.chunks import GroupSweep, groups, passes
from interp.patching.memory import BUDGET, most_rows
from interp.patching.metrics import Metric, prepared, with_answers
from interp.patching.named_positions import by_name, columns_named, labels_of, names_of
from interp.patching.pairs import Pairs
from interp.patching.patch_sites import Attending, StackName
from interp.patching.plain import PlainRun
from interp.patching.plain_paths import Moment, Receiver, Sender, Through, check_paths, path_name, written
from interp.patching.receivers import Asked, given, read_layer
from interp.patching.results import Direction, Sweep, checked_direction
from interp.patching.senders import Senders
from interp.patching.sweeps import blank_beyond, check_reach, read_values
from interp.transformer import with_parts


@torch.no_grad()
def path_patch(
    model: Model,
    pairs: Pairs,
    metrics: Metric | Sequence[Metric],
    receivers: Sequence[Receiver],
    sender: Sender = "z",
    by: Sequence[str] = ("layer", "head"),
    through: Through = "nothing",
    direction: Direction = "denoise",
    *,
    stack: StackName | None = None,
    attention: Attending = "self",
    budget: int = BUDGET,
) -> Sweep:
    """Patch the paths from every sender to the receivers, exactly.

    Wang 2022 (section 3.1, appendix B) keeps every other head as it was and lets feed-forwards follow: `mlps`.
    Goldowsky-Dill 2023 patches any set of paths; one edge from sender to receiver, with no other part on it, is
    `nothing`. What `everything` gives is neither: all that the sender changes on its way, as the receivers see it.

    The base prompt is run with one sender as in the other prompt, and what the receivers get is recorded; then the base
    prompt is run with all receivers given that, everything else recomputed, and the metric is read.

    Args:
        model: a transformer with an output layer.
        pairs: clean and corrupted prompts, token for token alike in length; lengths may differ between pairs.
        metrics: what to read, one or several.
        receivers: where the paths end, all patched together.
        sender: where they begin: `z` (heads) or `mlp_out` (feed-forwards).
        by: the cells' axes: `layer`, then any of `head` (for `z`) and `position`, of the sender.
        through: what is recomputed between sender and receivers: `nothing` (one edge; every other attention and
            feed-forward writes what it writes in the base run), `mlps` (attention alone is kept) or `everything`.
        direction: `denoise` sends clean activations into the corrupted prompt, `noise` corrupted ones into the clean.
        stack: `encoder` or `decoder`, in which the paths begin and end; by default that which the output layer reads.
            Receivers are in its self-attention and feed-forwards, where each reads that stack's own stream alone.
        attention: `self` or `cross`: whose heads send. On the way cross-attention is kept wherever self-attention is.
        budget: bytes of activations that one pass may hold.

    Returns:
        Sweep: values `*by prompt`; a sender that comes after all receivers keeps the base prompt's value.

    Raises:
        InputError: no such stack, sender, axis, direction, receiver or `through`, no receiver, none that a sender could
            reach, a metric that returns no number a prompt, a budget too small for one cell.
    """
    model = with_parts(model, "path patching")
    by, direction = tuple(by), checked_direction(direction)
    patch_site = check_paths(model, pairs, receivers, sender, by, through, stack, attention)
    check_reach(pairs, patch_site)
    readouts = prepared(model, pairs, metrics)
    base, other = PlainRun.of_both(model, *(pairs.inputs[::-1] if direction == "denoise" else pairs.inputs))
    plain = with_answers(model, pairs, readouts)
    base_values, other_values = (read_values(model, each, plain) for each in (base, other))
    shape = patch_site.shape(pairs, by)
    values = {each.name: base_values[each.name].expand(*shape, -1).clone() for each in readouts}
    config = model.config.stacks[patch_site.stack]
    most = most_rows(model, pairs, budget, patch_site, recorded=_recorded(config, receivers))
    lengths = pairs.read_by(patch_site.stack).lengths
    at = [receiver.columns(pairs, patch_site.stack) for receiver in receivers]
    together = torch.stack([torch.full_like(lengths, -1) if each is None else each for each in at], 1)
    for group in groups(model, pairs, patch_site, most, alike=together):
        own = GroupSweep.of(model, (base, other), group, readouts, by)
        places = [None if each is None else int(each[group.prompts[0]]) for each in at]
        paths = _Paths(own, receivers, places, through)
        named = columns_named(pairs)[:, group.prompts].unique().tolist() if names_of(pairs, by) else None
        for where in group.wheres(by):
            if named is None or where.position in named:
                paths.fill(values, where, most)
    blank_beyond(values, by, pairs, patch_site)
    values = {name: by_name(table, by, pairs) for name, table in values.items()}
    clean, corrupt = (other_values, base_values) if direction == "denoise" else (base_values, other_values)
    where = patch_site.stack, patch_site.attention, names_of(pairs, by), labels_of(model, pairs, patch_site, by)
    return Sweep(path_name(sender, receivers), direction, by, values, clean, corrupt, *where)


@dataclass(frozen=True)
class _Paths:
    """The paths of one group of prompts: from its senders to the receivers, and on to the metrics."""

    sweep: GroupSweep
    receivers: Sequence[Receiver]
    places: Sequence[int | None]  # of each receiver, its position in these prompts
    through: Through

    def fill(self, values: dict[str, Tensor], where: Where, most: int) -> None:
        """Take all senders of one place to the metrics, and put these into the tables."""
        sweep, start = self.sweep, self.sweep.group.first_reached(where)
        asked = self._asked(start)
        if not asked:
            return
        rows = torch.cat([each.rows for parts in asked.values() for each in parts]).unique()
        first = int(rows[0]) if sweep.group.patch_site.causal else 0
        everything = self.through == "everything"
        if where.position is not None and not everything:  # attention alone moves anything to another position
            rows = rows[rows == where.position]
        if not len(rows) or first > sweep.last_read:
            return
        senders = Senders(sweep.patches, asked, rows, again=self.through == "mlps")
        on, every = sweep.suffix(first), np.ones(next(iter(values.values())).shape[:-1], dtype=bool)
        chunks = [*sweep.chunks_of(where, start if everything else first, most, every)]
        chunks = [chunk for chunk in chunks if self._written(chunk.layer) <= max(asked)]
        for some in passes(chunks, most):
            received = senders.recomputing(some) if everything else senders.keeping_attention(some)
            found = sweep.measure(given(sweep.patches, on, received))
            sizes = [len(chunk.heads) for chunk in some]
            for chunk, *own in zip(some, *(value.split(sizes) for value in found), strict=True):
                chunk.put(values, own)
        sweep.patches.forget()

    def _written(self, layer: int) -> Moment:
        patch_site = self.sweep.group.patch_site
        return written(
            self.sweep.patches.model.config.stacks[patch_site.stack], patch_site.site, layer, patch_site.attention
        )

    def _asked(self, start: int) -> dict[Moment, list[Asked]]:
        """What receivers ask for from `start` on; what nothing moves to another position, only where metrics read."""
        base, model = self.sweep.patches.base, self.sweep.patches.model
        config, length = model.config.stacks[base.stack], base.batch.ids.shape[1]
        changed = torch.arange(length, device=base.batch.ids.device) >= start
        read = torch.zeros_like(changed)
        read[torch.cat([readout.positions.flatten() for readout in self.sweep.readouts])] = True
        masks: dict[Moment, dict[str, Tensor]] = defaultdict(dict)
        for receiver, place in zip(self.receivers, self.places, strict=True):
            moment, part = receiver.moment(config), receiver.part
            mask = torch.zeros(length, _n_heads(config, part), dtype=torch.bool, device=read.device)
            at = slice(None) if place is None else place
            mask[at, slice(None) if receiver.head is None else receiver.head] = True
            moved_on = moment[0] < read_layer(model, base.stack) or part in {"k", "v"}
            mask &= (changed if moved_on else changed & read)[:, None]
            if bool(mask.any()):
                masks[moment][part] = mask | masks[moment].get(part, mask)
        return {
            moment: [Asked(part, moment[0], mask) for part, mask in parts.items()]
            for moment, parts in sorted(masks.items())
        }


def _recorded(config: StackConfig, receivers: Sequence[Receiver]) -> int:
    """How many numbers are recorded of each row for the receivers."""
    found = 0
    for receiver in receivers:
        width = config.d_model if receiver.part in {"mlp", "logits"} else config.d_head
        found += width * (_n_heads(config, receiver.part) if receiver.head is None else 1)
    return found


def _n_heads(config: StackConfig, part: str) -> int:
    """How many heads read for themselves; feed-forwards and the output layer read as one."""
    return {"q": config.n_heads, "k": config.kv_heads, "v": config.kv_heads}.get(part, 1)

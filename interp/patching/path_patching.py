"""Along which path does a part of the model act? What one sender writes, as chosen receivers read it, and no further.

Every cell is taken twice away from the base run: from its sender to the receivers, and from these to the metric.
Cells go together, each from where it begins to differ: nothing is computed below a sender, below the first receiver,
before the first changed position of a causal stack, in heads that nothing is given to where a cell begins to differ, or
in the last block where nothing is read. `path_patch_by_forward` is the plain way; both give the same numbers.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import torch
import torch.nn.functional as F
from einops import einsum
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.config import StackConfig
from interp.model import Model
from interp.patching.chunks import groups
from interp.patching.half_blocks import EVERYTHING, FEEDING, Cells, Given, HalfBlocks, Positions
from interp.patching.memory import BUDGET, most_rows
from interp.patching.metrics import Metric, Readout
from interp.patching.pairs import Pairs
from interp.patching.patch_sites import PatchSite
from interp.patching.plain import PlainRun, as_written
from interp.patching.plain_paths import Receiver, check_paths, path_name, written_at
from interp.patching.results import Direction, Sweep
from interp.patching.sweeps import blank_beyond, read_values
from interp.transformer import Transformer, with_parts

Cell = tuple[int, int | None]  # a sender: its layer, and its head where each head is one
Asked = dict[int, dict[str, Bool[Tensor, "position head"]]]  # at each moment, by part: where receivers ask for it


@torch.no_grad()
def path_patch(
    model: Model,
    pairs: Pairs,
    metrics: Metric | Sequence[Metric],
    receivers: Sequence[Receiver],
    sender: str = "z",
    by: Sequence[str] = ("layer", "head"),
    through: str = "nothing",
    direction: Direction = "denoise",
    *,
    budget: int = BUDGET,
) -> Sweep:
    """Patch the paths from every sender to the receivers, exactly (Wang 2022, section 3.1; Goldowsky-Dill 2023).

    The base prompt is run with one sender as in the other prompt, and what the receivers get is recorded; then the base
    prompt is run with all receivers given that, everything else recomputed, and the metric is read.

    Args:
        model: a transformer of one stack with an output layer.
        pairs: clean and corrupted prompts, token for token alike in length; lengths may differ between pairs.
        metrics: what to read, one or several.
        receivers: where the paths end, all patched together.
        sender: where they begin: `z` (heads) or `mlp_out` (feed-forwards).
        by: the cells' axes: `layer`, then any of `head` (for `z`) and `position`, of the sender.
        through: what is recomputed between sender and receivers: `nothing` (the direct path; every other attention and
            feed-forward writes what it writes in the base run), `mlps` (attention alone is kept) or `everything`.
        direction: `denoise` sends clean activations into the corrupted prompt, `noise` corrupted ones into the clean.
        budget: bytes of activations that one pass may hold.

    Returns:
        Sweep: values `*by prompt`; a sender that comes after all receivers keeps the base prompt's value.

    Raises:
        InputError: no such sender, axis, receiver or `through`, no receiver, none that a sender could reach, a metric
            that returns no number a prompt, a budget too small for one cell.
    """
    model = with_parts(model, "path patching")
    by = tuple(by)
    check_paths(model, pairs, receivers, sender, by, through)
    spot = PatchSite.of(model, sender, by)
    readouts = [metric.prepare(model, pairs) for metric in ([metrics] if isinstance(metrics, Metric) else metrics)]
    batch, source = (pairs.corrupt, pairs.clean) if direction == "denoise" else (pairs.clean, pairs.corrupt)
    base, other = PlainRun.of_both(model, (batch, None), (source, None))
    base_values, other_values = (read_values(model, each, readouts) for each in (base, other))
    counted = {"layer": model.config.n_layers, "head": model.config.n_heads, "position": batch.ids.shape[1]}
    values = {name: value.expand(*(counted[axis] for axis in by), -1).clone() for name, value in base_values.items()}
    most = most_rows(model, pairs, budget, recorded=_recorded(model.last.config, receivers))
    for group in groups(model, pairs, spot, most):
        prompts, lengths = group.prompts, group.lengths
        own = [readout.take(prompts) for readout in readouts]
        part = _Group(
            senders=_Senders(model, base.take(prompts, lengths), other.take(prompts, lengths), sender, "head" in by),
            prompts=prompts,
            readouts=own,
            reads=torch.cat([readout.positions for readout in own], 1).unique(),
            receivers=receivers,
            through=through,
        )
        for position in range(group.first, group.length) if "position" in by else [None]:
            part.fill(values, by, group.first, position, most)
    blank_beyond(values, by, pairs, spot)
    clean, corrupt = (other_values, base_values) if direction == "denoise" else (base_values, other_values)
    return Sweep(path_name(sender, receivers), direction, by, values, clean, corrupt, spot.stack)


@dataclass(frozen=True)
class _Senders:
    """What every sender writes otherwise in the other prompt."""

    model: Transformer
    base: PlainRun
    other: PlainRun
    site: str
    by_head: bool

    def written_at(self, layer: int) -> int:
        """The half block in which a layer's sender writes."""
        return written_at(self.model, self.site, layer)

    def before(self, moment: int) -> list[Cell]:
        """Senders that write before a moment, layer by layer."""
        layers = [layer for layer in range(self.model.config.n_layers) if self.written_at(layer) < moment]
        heads = range(self.model.config.n_heads) if self.by_head else [None]
        return [*product(layers, heads)]

    def write(self, cells: Sequence[Cell], rows: Positions, position: int | None) -> Cells:
        """The change that `cells`, all of one layer, write at `rows`: everywhere, or at one position alone."""
        layer = cells[0][0]
        if self.site == "mlp_out":
            written = (self.other["mlp_out"][layer] - self.base["mlp_out"][layer])[None, :, rows]
        else:
            block = self.model.last.blocks[layer]
            attn, dz = block.attn, (self.other["attn.z"][layer] - self.base["attn.z"][layer])[:, rows]
            if self.by_head:
                heads = [head for _, head in cells]
                pattern = "prompt row head d_head, head d_head d_model -> head prompt row d_model"
                written = einsum(dz[:, :, heads], attn.W_O[heads], pattern)
            else:
                written = F.linear(dz.flatten(-2), attn.out.weight)[None]
            written = as_written(block, self.base, layer, (slice(None), rows), written)
        return written if position is None else written * (rows == position)[:, None]


@dataclass(frozen=True)
class _Group:
    """Prompts that go together, and where their paths begin and end; `reads` are the positions of all metrics."""

    senders: _Senders
    prompts: Int[Tensor, " prompt"]
    readouts: list[Readout]
    reads: Int[Tensor, " read"]
    receivers: Sequence[Receiver]
    through: str

    def fill(self, values: dict[str, Tensor], by: tuple[str, ...], first: int, position: int | None, most: int) -> None:
        """Take all senders of one position (None: of all together) to the metrics and put these in place."""
        model, base = self.senders.model, self.senders.base
        length, causal = base.batch.ids.shape[1], model.last.config.causal
        start = 0 if not causal else first if position is None else position
        everywhere = torch.arange(length, device=model.device)
        asked = self._asked(start)
        carried = given_at = _positions(asked, everywhere)
        if self.through == "everything":
            carried = everywhere[start:]
        elif position is not None:
            carried = carried[carried == position]  # attention alone moves anything to another position
        if not len(given_at) or not len(carried):
            return
        begins = int(torch.maximum(given_at[0], carried[0])) if causal else 0
        if int(self.reads[-1]) < begins:
            return
        late = _positions(asked, everywhere, 2 * model.config.n_layers - 1)
        out = HalfBlocks(model, base, carried, late[torch.isin(late, carried)])
        on = HalfBlocks(model, base, everywhere[begins:], self.reads[self.reads >= begins])
        cells = self.senders.before(max(asked))
        rows = len(self.prompts) * max(len(out.rows), len(on.rows))  # of one cell
        at_once = max(1, most // rows)
        for begin in range(0, len(cells), at_once):
            some = cells[begin : begin + at_once]
            found = self._metrics(on, self._receive(on, self._send(out, some, asked, position)))
            for name, value in found.items():
                self._store(values[name], by, some, position, value)

    def _asked(self, start: int) -> Asked:
        """What receivers ask for from `start` on; what nothing moves to another position, only where metrics read."""
        config, length = self.senders.model.last.config, self.senders.base.batch.ids.shape[1]
        changed = torch.arange(length, device=self.reads.device) >= start
        read = torch.zeros_like(changed)
        read[self.reads] = True
        asked: Asked = defaultdict(dict)
        for receiver in self.receivers:
            moment, part = receiver.moment(config), receiver.part
            mask = torch.zeros(length, _n_heads(config, part), dtype=torch.bool, device=read.device)
            at = slice(None) if receiver.position is None else receiver.position % length
            mask[at, slice(None) if receiver.head is None else receiver.head] = True
            moved_on = moment < 2 * config.n_layers - 2 or part in {"k", "v"}
            mask &= (changed if moved_on else changed & read)[:, None]
            if bool(mask.any()):
                asked[moment][part] = mask | asked[moment].get(part, mask)
        return dict(asked)

    def _send(self, steps: HalfBlocks, cells: Sequence[Cell], asked: Asked, position: int | None) -> dict[int, Given]:
        """Take `cells` from where they write to the last receiver, and record what receivers get on the way.

        At each moment those are recorded that have written by then: the first of `cells`.
        """
        again = {"nothing": frozenset(), "mlps": frozenset({FEEDING}), "everything": EVERYTHING}[self.through]
        given: dict[int, Given] = {}
        change: Cells | None = None
        for half in range(self.senders.written_at(cells[0][0]), max(asked)):
            arrived = [] if change is None else [steps.recomputed(half, change, again=again)]
            if writing := [cell for cell in cells if self.senders.written_at(cell[0]) == half]:
                arrived.append(steps.kept(half, self.senders.write(writing, steps.rows_at(half + 1), position)))
            change = torch.cat(arrived)
            if parts := asked.get(half + 1):
                given[half + 1] = {part: steps.record(half + 1, part, change, mask) for part, mask in parts.items()}
        return given

    def _receive(self, steps: HalfBlocks, given: dict[int, Given]) -> Cells:
        """Take all cells on, each from the first receiver that it reaches: their change before the final norm."""
        end = 2 * self.senders.model.config.n_layers
        change: Cells | None = None
        for half in range(min(given), end):
            parts, arrived_before = given.get(half, {}), 0 if change is None else len(change)
            arrived = [] if change is None else [steps.recomputed(half, change, parts)]
            if parts and next(iter(parts.values())).n_cells > arrived_before:
                arrived.append(steps.kept(half, steps.received(half, parts, arrived_before)))
            change = torch.cat(arrived)
        if end not in given:
            assert change is not None
            return change
        recorded, plain = given[end]["logits"], steps.stream(end)
        final = plain.new_zeros(recorded.n_cells, *plain.shape)
        if change is not None:
            final[: len(change)] = change
        recorded.put(final[..., None, :], steps.late)
        return final

    def _metrics(self, steps: HalfBlocks, change: Cells) -> dict[str, Float[Tensor, "cell prompt"]]:
        """The metrics of all cells; what is read before the first change is as the base run left it."""
        plain = steps.base.resid[-1][:, self.reads]
        stream = plain.expand(len(change), *plain.shape).clone()
        stream[:, :, -len(steps.late) :] += change
        final = steps.model.last.norm(stream)
        prompt = torch.arange(final.shape[1], device=final.device)[:, None]
        return {
            readout.name: readout.of(steps.model, final[:, prompt, torch.searchsorted(self.reads, readout.positions)])
            for readout in self.readouts
        }

    def _store(
        self, table: Tensor, by: tuple[str, ...], cells: Sequence[Cell], position: int | None, value: Tensor
    ) -> None:
        """Some cells' metrics (cell prompt) into the table of all cells."""
        layers, heads = zip(*cells, strict=True)
        index = {"layer": torch.tensor(layers)[:, None], "position": position}
        if self.senders.by_head:
            index["head"] = torch.tensor(heads)[:, None]
        table[(*(index[axis] for axis in by), self.prompts)] = value


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


def _positions(asked: Asked, everywhere: Int[Tensor, " position"], moment: int = 0) -> Positions:
    """The positions, of all, at which some receiver asks at this moment or later."""
    found = torch.zeros_like(everywhere, dtype=torch.bool)
    for when, parts in asked.items():
        for mask in parts.values() if when >= moment else ():
            found |= mask.any(1)
    return everywhere[found]

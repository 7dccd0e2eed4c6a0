"""Which keys are hidden to test a label, and what does it cost?

A claim maps rows (columns of the window's tokens) to the keys that a head with the label looks at from there
(`Measure.keys_of`), such as the token before or the pieces of antecedents. The first control has the same rows and as
many other visible keys, each drawn at about the distance of the key it replaces; for positional labels, at any
distance. Labels of words have a second control: the same rows, with keys at the label's usual distances. A head that
only looks at fixed distances loses as much there.

`Work` is a table of claims and controls. `hide` measures the cost of each job in each head, and `costs_of` sums costs
by group of documents.
"""

import random
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from scipy.stats import t as student
from torch import Tensor, nn

from analyses.execution import lots
from analyses.labels.readouts import Readout
from analyses.measures.definitions import Claims, Measure
from analyses.measures.findings import DISCOVERY
from analyses.reading.windows import Window
from interp import TokenBatch, Transformer
from interp.patching.claimed_texts import Claim, Intervention, Read
from interp.patching.gradients.claimed_keys import estimated_knock_out
from interp.patching.knockout import knock_out, knock_out_together
from interp.patching.patch_sites import last_stack
from interp.patterns import N_GROUPS
from interp.patterns.one_attention import read_patterns
from interp.statistics import ratio

CLAIM, CONTROLS, ARMS = "claim", ("other keys", "usual distances"), ("exchange", "removal")
KINDS = (CLAIM, *CONTROLS)
FARTHER = "another distance"  # the name of the first control if distances define the claimed keys
CLAIMS = 128  # claims and controls that one call hides
FEWEST = 5  # documents, or groups of them, with hidden keys: with fewer, costs say nothing
_WAYS: Mapping[str, Intervention] = {**dict.fromkeys(KINDS, "hide"), ARMS[0]: "exchange", ARMS[1]: "remove"}
_SURELY = 0.995  # confidence of the one-sided bounds of a settled cost
_PARTS = (10, 20)  # documents after which measuring may stop
N_PARTS = 1 + len(_PARTS)
Cells = Bool[np.ndarray, "head measure"]
PerCell = Float[np.ndarray, "head measure"]
PerJob = Float[Tensor, "job head"]
HeadSet = Sequence[tuple[int, int]]  # layer and head
Keys = Mapping[int, Collection[int]]  # row: keys, in order; exchanged keys map to their partners


def with_control(
    window: Window, row_keys: Claims, readable: Collection[int], rng: random.Random, *, causal: bool, at_distance: bool
) -> tuple[Keys, Keys]:
    """The claim and its first control, for rows that can be read and where both can be hidden.

    Keys that a causal stack does not see are left out. `at_distance` draws each control key at about the distance of
    a claimed one.
    """
    content, width = sorted(window.content), len(window.ids)
    claim: dict[int, frozenset[int]] = {}
    control: dict[int, frozenset[int]] = {}
    for row in sorted(row_keys):
        n_visible = row + 1 if causal else width
        keys = frozenset(key for key in row_keys[row] if key < n_visible)
        if keys and row in readable:
            draw = _other_keys(row, keys, _visible(content, row, causal), rng, at_distance=at_distance)
            draw = draw[: n_visible - 1]  # a row must keep a key
            if draw and len(keys) < n_visible:
                claim[row], control[row] = keys, frozenset(draw)
    return claim, control


def distances(row_keys: Claims, *, causal: bool) -> list[frozenset[int]]:
    """For each row, the distances of its visible keys: key minus row."""
    rows = [frozenset(key - row for key in keys if key <= row or not causal) for row, keys in sorted(row_keys.items())]
    return [row for row in rows if row]


def at_usual_distances(
    window: Window, claim: Keys, usual: Sequence[frozenset[int]], rng: random.Random, *, causal: bool
) -> Keys:
    """The second control: the claimed rows, with keys at distances drawn from all rows of the label.

    Drawn keys may be claimed ones; keys that the row does not see are left out. A row keeps its keys if no draw fits.
    """
    control = {}
    for row, keys in claim.items():
        n_visible = row + 1 if causal else len(window.ids)
        draws = (frozenset(row + by for by in rng.choice(usual)) for _ in range(20))
        inside = (frozenset(key for key in draw if key in window.content and key < n_visible) for draw in draws)
        control[row] = next((draw for draw in inside if 0 < len(draw) < n_visible), keys)
    return control


def exchanged(window: Window, claim: Keys, rng: random.Random, *, causal: bool) -> dict[int, dict[int, int]]:
    """For each claimed key a random other visible one, whose value will replace its own."""
    content, rows = sorted(window.content), {}
    for row, keys in claim.items():
        free = [key for key in _visible(content, row, causal) if key not in keys]
        rows[row] = {key: rng.choice(free) for key in sorted(keys)}
    return rows


def as_claim(keys: Keys, prompt: int, width: int, metric: Read, kind: Intervention) -> Claim:
    """The keys as a `Claim` on a text with `width` columns."""
    index = torch.tensor([(number, key) for number, row_keys in enumerate(keys.values()) for key in row_keys])
    mask, partners = torch.zeros(len(keys), width, dtype=torch.bool), None
    mask[tuple(index.T)] = True
    if kind == "exchange":
        partners = torch.full(mask.shape, -1)
        columns = [row[key] for row in keys.values() if isinstance(row, Mapping) for key in row]
        partners[tuple(index.T)] = torch.tensor(columns)
    return Claim(prompt, torch.tensor([*keys]), mask, metric, kind, partners)


def _visible(content: Sequence[int], row: int, causal: bool) -> Sequence[int]:
    return content[: bisect_right(content, row)] if causal else content


def _other_keys(
    row: int, keys: Collection[int], visible: Sequence[int], rng: random.Random, *, at_distance: bool
) -> list[int]:
    """As many other visible keys as claimed ones, or all if there are fewer."""
    free = [key for key in visible if key not in keys]
    if not at_distance:
        return rng.sample(free, min(len(keys), len(free)))
    draw: list[int] = []
    reach = [abs(row - key).bit_length() for key in free]  # distances of one power of two are about the same
    for key in sorted(keys)[: len(free)]:
        near = [index for index, other in enumerate(reach) if other == abs(row - key).bit_length()]
        index = rng.choice(near) if near else rng.randrange(len(free))
        draw.append(free.pop(index))
        reach.pop(index)
    return draw


def part_of(document: int) -> int:
    """The part of the documents that document number `document` belongs to."""
    return bisect_right(_PARTS, document)


class Job(NamedTuple):
    """A claim or a control to hide: its measure (`column`), and the group and part of its document."""

    kind: str
    column: int
    group: int
    part: int
    readout: Readout
    ids: tuple[int, ...]
    keys: Keys
    read: Read


@dataclass(frozen=True)
class Draws:
    """Draws claims and controls from windows.

    A claim's controls depend only on `seed`, text and measure (keys at usual distances on all texts), not on other
    measures.
    """

    causal: bool
    measures: Sequence[tuple[str, Measure]]  # behaviour and measure of each column
    seed: int
    armed: Collection[str]  # measures whose keys are also exchanged and removed
    usual: Mapping[str, Sequence[frozenset[int]]]  # measure: the distances of each row's keys

    def jobs(
        self, window: Window, group: int, part: int, read_by: Mapping[str, Readout], claimed: Mapping[str, Claims]
    ) -> Iterator[Job]:
        """The claims and controls of one window; `group` and `part` are those of its document."""
        readable = {readout: readout.readable(window) for readout in {*read_by.values()}}
        reads: dict[tuple[Readout, tuple[int, ...]], Read] = {}  # equal reads share a gradient
        for column, (behaviour, measure) in enumerate(self.measures):
            if not claimed.get(measure.name) or behaviour not in read_by:
                continue
            readout = read_by[behaviour]
            for kind, keys in self._kinds(window, measure, claimed[measure.name], readout, readable[readout]):
                rows = (*keys,)
                if (readout, rows) not in reads:
                    reads[readout, rows] = readout.read(window, rows)
                ids = readout.text(window, rows)
                yield Job(kind, column, group, part, readout, ids, keys, reads[readout, rows])

    def _kinds(
        self, window: Window, measure: Measure, claimed: Claims, readout: Readout, readable: Collection[int]
    ) -> Iterator[tuple[str, Keys]]:
        causal, words = self.causal, measure.of_words
        rng = random.Random(repr((self.seed, window.text.document, window.start, window.ids, measure.name)))
        pair = with_control(window, claimed, readable, rng, causal=causal, at_distance=words)
        if not pair[0]:
            return
        lot = readout.lot(window, (*pair[0],), rng)
        claim, control = ({row: keys[row] for row in keys if row in lot} for keys in pair)
        yield CLAIM, claim
        yield CONTROLS[0], control
        if words:
            yield CONTROLS[1], at_usual_distances(window, claim, self.usual[measure.name], rng, causal=causal)
        if measure.name in self.armed:
            yield ARMS[0], exchanged(window, claim, rng, causal=causal)
            yield ARMS[1], claim


@dataclass(frozen=True)
class Work:
    """Claims and controls, in lots that one call hides."""

    model: Transformer
    measures: Sequence[tuple[str, Measure]]
    read_by: Mapping[str, Readout]  # behaviour: its readout
    lots: Sequence[Sequence[Job]]

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per job, in the order of lots, with its number of rows."""
        jobs = [(job.kind, job.column, job.group, job.part, len(job.keys)) for lot in self.lots for job in lot]
        return pd.DataFrame(jobs, columns=["kind", "column", "group", "part", "rows"])

    def of_jobs(self, name: str) -> Int[Tensor, "job 1"]:
        """A column of the table, as `job 1`."""
        return torch.tensor(self.table[name].tolist())[:, None]

    @property
    def n_heads(self) -> int:
        """The heads of all layers."""
        return self.model.config.n_layers * self.model.config.n_heads


def lots_of(windows: Iterable[list[Job]]) -> list[list[Job]]:
    """The windows' jobs in lots of about `CLAIMS`, each from one part of the documents."""
    lots: list[list[Job]] = []
    for jobs in windows:
        if lots and jobs and len(lots[-1]) < CLAIMS and lots[-1][-1].part == jobs[0].part:
            lots[-1] += jobs
        elif jobs:
            lots.append(jobs)
    return lots


def hide(
    work: Work,
    kinds: Collection[str] = (*KINDS, *ARMS),
    *,
    cells: Cells | None = None,
    part: int | None = None,
    head_sets: Sequence[Sequence[HeadSet]] | None = None,
    estimate: bool = False,
    progress: lots.Progress | None = None,
) -> dict[str, Tensor]:
    """What hiding each job's keys costs: `drop` (job x head), NaN for cells that were not requested.

    Masked texts add `mass` (job x head), the attention to the keys. Estimates add `size`, the sum of absolute losses
    (job x head), and `value`, the reading if nothing is hidden (job). `head_sets` has sets of heads for each measure;
    keys are hidden from all heads of a set at once. `estimate` uses gradients instead of measuring.
    """
    indices: list[list[int]] = []
    arguments: list[tuple[Any, ...]] = []
    first = 0
    for lot in work.lots:
        selected = [
            (index, job)
            for index, job in enumerate(lot, start=first)
            if job.kind in kinds and part in (None, job.part) and (cells is None or cells[:, job.column].any())
            if head_sets is None or head_sets[job.column]
        ]
        for readout in dict.fromkeys(job.readout for _, job in selected):
            rows, jobs = zip(*((index, job) for index, job in selected if job.readout is readout), strict=True)
            texts = {ids: index for index, ids in enumerate(dict.fromkeys(job.ids for job in jobs))}
            batch = TokenBatch.from_rows([*texts])
            claims = [as_claim(job.keys, texts[job.ids], len(job.ids), job.read, _WAYS[job.kind]) for job in jobs]
            columns = [job.column for job in jobs]
            heads = None if head_sets is None else [[sorted(each) for each in head_sets[column]] for column in columns]
            of_lot = None if cells is None else torch.from_numpy(cells[:, columns].T)
            probe = None if readout.output is work.model.output else readout.output
            arguments.append((probe, readout.masks, batch, claims, of_lot, heads, estimate))
            indices.append([*rows])
        first += len(lot)
    n_cells = work.n_heads if head_sets is None else max(map(len, head_sets))
    costs = {"drop": torch.full((first, n_cells), torch.nan, dtype=torch.float64)}
    for index, tensors in zip(indices, lots.do(partial(_hide, work.model), arguments, progress), strict=True):
        for name, values in tensors.items():
            if name not in costs:
                costs[name] = torch.full((first, *values.shape[1:]), torch.nan, dtype=torch.float64)
            costs[name][(index, *map(slice, values.shape[1:]))] = values.double()
    return costs


def _hide(
    model: Transformer,
    probe: nn.Linear | None,
    masks: bool,
    batch: TokenBatch,
    claims: Sequence[Claim],
    cells: Bool[Tensor, "claim head"] | None,
    heads: Sequence[Sequence[HeadSet]] | None,
    estimate: bool,
) -> dict[str, Tensor]:
    """What one lot's claims cost, read by a `probe` or by the model's own output layer."""
    output = model.output if probe is None else probe
    if heads is not None:
        index = [(claim, number) for claim, sets in enumerate(heads) for number in range(len(sets))]
        drops = torch.full((len(claims), max(map(len, heads))), torch.nan)
        repeated = [claims[claim] for claim, _ in index]
        drops[tuple(torch.tensor(index).T)] = knock_out_together(model, batch, repeated, [*chain(*heads)], output).cpu()
        return {"drop": drops}
    mass = {"mass": _mass(model, batch, claims)} if masks else {}
    if not estimate:
        by_layer = None if cells is None else cells.unflatten(1, (-1, model.config.last.n_heads))
        return {"drop": knock_out(model, batch, claims, output, cells=by_layer).flatten(1), **mass}
    drops, sizes, values = estimated_knock_out(model, batch, claims, output)
    return {"drop": drops.flatten(1), "size": sizes.flatten(1), "value": values, **mass}


def _mass(model: Transformer, batch: TokenBatch, claims: Sequence[Claim]) -> Float[Tensor, "claim head"]:
    """Attention of each head on each claim's keys, summed over its rows."""
    batch = batch.to(model.device)
    pattern = read_patterns(model, batch, f"{last_stack(model)}.*.attn.pattern")
    rows = [(pattern[claim.prompt][:, claim.queries], claim.keys.to(pattern)) for claim in claims]
    return torch.stack([(row[..., : keys.shape[1]] * keys).sum((1, 2)) for row, keys in rows])


class Sums(NamedTuple):
    """Losses by group of documents, and the number of rows that they are summed over."""

    lost: Float[np.ndarray, "group head measure"]
    rows: Float[np.ndarray, "group head measure"]

    def a_row(self) -> PerCell:
        """The loss per row; NaN without rows."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return self.lost.sum(0) / self.rows.sum(0)

    def flat(self) -> list[np.ndarray]:
        """Losses and rows as group x (head and measure), measures running fastest."""
        return [part.reshape(len(part), -1) for part in self]


Costs = Mapping[str, Sums]  # kind: sums


def costs_of(
    work: Work, drops: PerJob, counted: Bool[Tensor, " job #head"] | None = None, kinds: Sequence[str] = KINDS
) -> Costs:
    """Sums over the `counted` jobs of each kind; unmeasured jobs (NaN) only add rows."""
    n_measures, rows = len(work.measures), work.of_jobs("rows").double().expand_as(drops)
    cells = (work.of_jobs("group") * n_measures + work.of_jobs("column"))[:, 0]
    costs = {}
    for kind in kinds:
        jobs, parts = torch.tensor(np.flatnonzero(work.table["kind"] == kind)), []
        for values in (drops.nan_to_num(0.0), rows):
            of_kind = values[jobs] if counted is None else values[jobs] * counted[jobs]
            added = values.new_zeros(N_GROUPS * n_measures, drops.shape[1]).index_add_(0, cells[jobs], of_kind)
            parts.append(added.unflatten(0, (N_GROUPS, n_measures)).transpose(1, 2).numpy())
        costs[kind] = Sums(*parts)
    return costs


def strictest(costs: Costs) -> tuple[Sums, Int[np.ndarray, "head measure"]]:
    """For each cell, the control that loses most per row, and its index in `CONTROLS`."""
    controls = [costs[kind] for kind in CONTROLS]
    best = np.nan_to_num(np.stack([control.a_row() for control in controls]), nan=-np.inf).argmax(0)
    return Sums(*(np.where(best == 0, *parts) for parts in zip(*controls, strict=True))), best


def effect_of(costs: Costs) -> PerCell:
    """What claims lose per row beyond their strictest control; NaN without claims."""
    return costs[CLAIM].a_row() - strictest(costs)[0].a_row()


def settled(costs: Costs, least: float, cells: int) -> Cells:
    """True for effects that are clearly above or below `least`, by Student's t over groups of documents.

    The one-sided 99.5% bounds are both below or both above. If above, p for any effect must also pass Bonferroni's
    correction for `cells` tests, at the rate of findings.
    """
    claim, control = costs[CLAIM], strictest(costs)[0]
    effect, error, groups = ratio(claim.lost - control.lost, claim.rows)
    with np.errstate(invalid="ignore", divide="ignore"):
        reach = student.ppf(_SURELY, groups - 1) * error
        p = student.sf(effect / error, groups - 1)
        is_settled = (effect + reach < least) | ((effect - reach > least) & (p < DISCOVERY / cells))
    return (groups >= FEWEST) & is_settled


def control_names(work: Work, costs: Costs) -> list[str]:
    """The name of each cell's strictest control, measures running fastest."""
    names = [(CONTROLS[0] if measure.of_words else FARTHER, CONTROLS[1]) for _, measure in work.measures]
    return [names[column][number] for row in strictest(costs)[1].tolist() for column, number in enumerate(row)]

"""What hiding keys costs, added up: claims and controls wait, are hidden many at a time, and counted by document.

What is measured is measured of all heads at once, or, where costs were estimated first, of some heads and measures, on
all documents or a part of them at a time.
"""

import random
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from analyses.labels.claims import Hiding, at_usual_distances, distances, with_control
from analyses.labels.costs import ARMS, CLAIM, CONTROLS, SEEN, Cells, Costs, Job, PerCell
from analyses.labels.readouts import Readout
from analyses.measures import Looks, Measure
from analyses.reading.windows import Progress, Window
from analyses.shards import Kept, Lot, Shards
from interp import TokenBatch, Transformer
from interp.patching.gradients.claimed_keys import estimated_knock_out
from interp.patching.knockout import Claim, Read, knock_out, knock_out_together
from interp.patching.patch_sites import last_stack
from interp.patterns.captured import read_patterns

FARTHER = "another distance"  # what other keys are where the claimed ones are given by their distance
CLAIMS = 128  # with their controls, that one call hides
_PARTS = (10, 20)  # documents after which measuring may stop
N_PARTS = 1 + len(_PARTS)


def part_of(document: int) -> int:
    """The part that a document is in, by its number among those that are read."""
    return bisect_right(_PARTS, document)


class Tally:
    """What hiding has cost so far, by group of documents; claims of several windows are hidden together."""

    def __init__(
        self,
        model: Transformer,
        measures: Sequence[tuple[str, Measure]],
        seed: int,
        counts: Counter[str],
        armed: Collection[str],
        together: Sequence[Sequence[tuple[int, int]]] | None = None,
        *,
        estimates: bool = False,
        shards: Shards | None = None,
    ):
        """Nothing yet; the keys of the measures named in `armed` are exchanged and removed too.

        `together` are, for each measure, the heads (layer, head) from which keys are hidden at once; None: from every
        head by itself. With `estimates` claims and controls are estimated, until `measure` says what is measured. What
        a lot of claims costs is looked for in `shards` first. What is drawn for a claim depends on `seed`, its text and
        its measure alone, keys at usual distances on its measure's texts before too: whatever else is asked, its
        controls are the same.
        """
        self.armed, self.together = armed, together
        self.shards, self.asked_for = shards or Shards(), 0
        n_heads = 1 if together is not None else model.config.n_layers * model.config.n_heads
        self.model, self.measures, self.seed, self.counts = model, measures, seed, counts
        shape = n_heads, len(measures)
        self.costs = Costs.empty((CLAIM, *CONTROLS, *ARMS, *SEEN), *shape)
        self.usual: dict[str, list[frozenset[int]]] = defaultdict(list)  # by measure, the distances of each row's keys
        self.jobs: list[Job] = []
        self.lots: list[list[Job]] = []  # that together are hidden at a time
        self.estimates = estimates
        self.parts = np.full(shape, 0 if estimates else N_PARTS)  # of the documents, that each cell is measured on
        self.arms_measured = self.measured
        self.sampled = np.zeros(shape, dtype=bool)  # measured because they were drawn at random
        self.estimated, self.sizes = (
            [Costs.empty((CLAIM, *CONTROLS), *shape) for _ in range(N_PARTS if estimates else 0)] for _ in range(2)
        )  # part by part: what was estimated, with its sign and without
        self._said, self._read = (np.zeros(len(measures)) for _ in range(2))  # of claims: read values, and rows

    @property
    def measured(self) -> Cells:
        """The cells that are no estimates."""
        return self.parts > 0

    def learn(self, looks: dict[str, Looks]) -> None:
        """How far away one window's claimed keys are."""
        for name, own in looks.items():
            self.usual[name] += distances(own, causal=self.model.config.last.causal)

    def add(
        self, window: Window, group: int, read_by: dict[str, Readout], looks: dict[str, Looks], part: int = 0
    ) -> None:
        """Claims of one window, of a document that is in some part."""
        if self.jobs and self.jobs[-1].part != part:
            self.flush()
        readable = {readout: readout.readable(window) for readout in {*read_by.values()}}
        reads: dict[tuple[Readout, tuple[int, ...]], Read] = {}  # what reads the same shares a gradient
        for column, (behaviour, measure) in enumerate(self.measures):
            if not looks.get(measure.name) or behaviour not in read_by:
                continue
            readout = read_by[behaviour]
            own = looks[measure.name]
            for kind, hiding in self._hidings(window, measure, own, readout, readable[readout]):
                asked = readout, hiding.rows
                if asked not in reads:
                    reads[asked] = readout.read(window, hiding.rows)
                ids = readout.text(window, hiding.rows)
                self.jobs.append(Job(kind, group, column, readout, ids, hiding, reads[asked], part))
        if len(self.jobs) >= CLAIMS:
            self.flush()

    def _hidings(
        self, window: Window, measure: Measure, looks: Looks, readout: Readout, readable: Collection[int]
    ) -> Iterator[tuple[str, Hiding]]:
        """A claim and its controls."""
        causal, words = self.model.config.last.causal, measure.of_words
        about = self.seed, window.text.document, window.start, window.ids, measure.name
        rng = random.Random(repr(about))
        found = with_control(window, looks, readable, rng, causal=causal, at_distance=words, counts=self.counts)
        if found is None:
            return
        lot = readout.lot(window, found[0].rows, rng)
        claim, others = (each.take(lot) for each in found)
        yield CLAIM, claim
        yield CONTROLS[0], others
        if words:
            yield CONTROLS[1], at_usual_distances(window, claim, self.usual[measure.name], rng, causal=causal)
        if measure.name in self.armed:
            yield ARMS[0], claim.exchanged(window, rng, causal=causal)
            yield ARMS[1], claim.removed()

    def flush(self) -> None:
        """What waits makes a lot."""
        self.lots += [self.jobs] if self.jobs else []
        self.jobs = []

    def work(self, done: Progress | None = None) -> None:
        """Hide what waits, or estimate what hiding would cost; `done` is told how many lots are done."""
        self.flush()
        kinds = (CLAIM, *CONTROLS) if self.estimates else (CLAIM, *CONTROLS, *ARMS)
        later = [job for lot in self.lots for job in lot if job.kind not in kinds]  # their rows are known
        self.costs.add(later, torch.zeros(len(later), len(self.measured), dtype=torch.float64))
        for jobs, (effects, *more) in self._through(kinds, self._hidden, done=done):
            self.costs.add(jobs, effects)
            if self.estimates:
                self._count_estimates(jobs, effects, *more[:2])
            for seen in more[2 if self.estimates else 0 :]:
                for kind, of in zip(SEEN, (CLAIM, CONTROLS[0]), strict=True):
                    self.costs.add_to(kind, [of == job.kind for job in jobs], jobs, seen)

    def _count_estimates(self, jobs: Sequence[Job], effects: Tensor, sizes: Tensor, values: Tensor) -> None:
        """Estimates of one lot, whose documents are of one part."""
        self.estimated[jobs[0].part].add(jobs, effects)
        self.sizes[jobs[0].part].add(jobs, sizes)
        for job, value in zip(jobs, values.tolist(), strict=True):
            if job.kind == CLAIM:
                self._said[job.column] += value
                self._read[job.column] += len(job.hiding.rows)

    def measure(self, cells: Cells, part: int | None = None) -> None:
        """Put what hiding costs in place of its estimate, in some cells: of all documents, or of one part more."""
        found = self._measured(cells, (CLAIM, *CONTROLS), part)
        self.costs.take(found, cells, fresh=cells & ~self.measured)
        self.parts[cells] = N_PARTS if part is None else part + 1

    def measure_arms(self, cells: Cells) -> None:
        """Exchange and remove keys too, in some cells, of the measures that are armed."""
        self.costs.take(self._measured(cells, ARMS), cells, fresh=cells)
        self.arms_measured = self.arms_measured | cells

    def _measured(self, cells: Cells, kinds: Sequence[str], part: int | None = None) -> Costs:
        """What some kinds cost in some cells."""
        found = Costs.empty(kinds, *cells.shape)
        for jobs, (effects,) in self._through(kinds, self._hidden_from, torch.from_numpy(cells), part=part):
            found.add(jobs, effects)
        return found

    def foretold(self) -> PerCell:
        """What was estimated for the documents that each cell is measured on; NaN where it is an estimate still."""
        found, so_far = np.full(self.parts.shape, np.nan), None
        for number, own in enumerate(self.estimated, start=1):
            so_far = own if so_far is None else so_far + own
            found = np.where(self.parts == number, so_far.effect(), found)
        return found

    def _hidden(self, jobs: Sequence[Job], batch: TokenBatch, claims: Sequence[Claim]) -> list[Tensor]:
        """What each claim costs, hidden from every head by itself or from its measure's heads at once, and what is told
        of it besides."""
        given, output = (self.model, batch, claims), jobs[0].readout.output
        if self.together is not None:
            heads = [self.together[job.column] for job in jobs]
            return [knock_out_together(*given, heads, output)[:, None]]
        seen = [_mass(self.model, batch, claims)] if jobs[0].readout.masks else []
        if self.estimates:
            drops, sizes, values = estimated_knock_out(*given, output)
            return [drops.flatten(1), sizes.flatten(1), values, *seen]
        return [knock_out(*given, output).flatten(1), *seen]

    def _hidden_from(
        self, jobs: Sequence[Job], batch: TokenBatch, claims: Sequence[Claim], asked: Bool[Tensor, "head measure"]
    ) -> list[Tensor]:
        """What each claim costs, hidden from each of its measure's heads that are asked for."""
        here = asked[:, [job.column for job in jobs]].T.unflatten(1, (-1, self.model.config.last.n_heads))
        return [knock_out(self.model, batch, claims, jobs[0].readout.output, cells=here).flatten(1).nan_to_num(0.0)]

    def _through(
        self,
        kinds: Sequence[str],
        hide: Callable[..., Sequence[Tensor]],
        asked: Bool[Tensor, "head measure"] | None = None,
        done: Progress | None = None,
        part: int | None = None,
    ) -> Iterator[tuple[list[Job], list[Float[Tensor, "job ..."]]]]:
        """Jobs of some kinds and part, a lot and read-out at a time, and what `hide` says of them, now or before.

        Every run asks for the same lots in the same order.
        """
        cells, told = ([], []) if asked is None else ([asked], asked.any(0).tolist())
        calls: list[list[Job]] = []
        lots: list[Lot] = []
        for lot in self.lots if part is None else [lot for lot in self.lots if lot[0].part == part]:
            own = [job for job in lot if job.kind in kinds and (asked is None or told[job.column])]
            for jobs, batch, claims in _together(own):
                self.asked_for += 1
                names = [[job.kind, self.measures[job.column][1].name] for job in jobs]
                parts = [[one.prompt, one.queries, one.keys, one.others] for one in claims]
                how = [hide.__name__, self.estimates, self.together and [self.together[job.column] for job in jobs]]
                how += [each[:, [job.column for job in jobs]] for each in cells]
                calls.append(jobs)
                depends = [self.asked_for, jobs[0].readout.name, names, batch.ids, batch.lengths, parts, *how]
                lots.append((depends, partial(_numbered, partial(hide, jobs, batch, claims, *cells))))
        for jobs, kept in zip(calls, self.shards.all(lots, done), strict=True):
            yield jobs, [kept[str(at)].double() for at in range(len(kept))]

    def claimed(self) -> Cells:
        """Where any row is claimed."""
        return (self.costs[CLAIM].rows.sum(0) > 0).numpy()

    def said(self) -> Float[np.ndarray, " measure"]:
        """What is read where nothing is hidden, in the read's unit a row of each measure's claims."""
        return self._said / np.maximum(self._read, 1)

    def control_names(self) -> list[str]:
        """Of every cell what the control that loses most hides, measures running fastest."""
        named = [(CONTROLS[0] if measure.of_words else FARTHER, CONTROLS[1]) for _, measure in self.measures]
        return [named[column][at] for own in self.costs.strictest()[1].tolist() for column, at in enumerate(own)]


def _numbered(make: Callable[[], Sequence[Tensor]]) -> Kept:
    return {str(at): each for at, each in enumerate(make())}


def _mass(model: Transformer, batch: TokenBatch, claims: Sequence[Claim]) -> Float[Tensor, "claim head"]:
    """Attention of each head on each claim's keys, summed over its rows, in the texts as they are read."""
    batch = batch.to(model.device)
    pattern = read_patterns(model, batch, f"{last_stack(model)}.*.attn.pattern")
    own = [(pattern[claim.prompt][:, claim.queries], claim.keys.to(pattern)) for claim in claims]
    return torch.stack([(rows[..., : keys.shape[1]] * keys).sum((1, 2)) for rows, keys in own])


def _together(jobs: Sequence[Job]) -> Iterator[tuple[list[Job], TokenBatch, list[Claim]]]:
    """Jobs of one read-out, their texts, each once, and their claims on them."""
    for readout in {job.readout: None for job in jobs}:
        own = [job for job in jobs if job.readout is readout]
        texts = {ids: at for at, ids in enumerate(dict.fromkeys(job.ids for job in own))}
        yield own, TokenBatch.from_rows([*texts]), [_claim(job, texts) for job in own]


def _claim(job: Job, texts: Mapping[tuple[int, ...], int]) -> Claim:
    return job.hiding.claim(texts[job.ids], len(job.ids), job.read)

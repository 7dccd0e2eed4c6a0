"""What hiding keys costs, added up: claims and controls wait, are hidden many at a time, and counted by document."""

import random
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from analyses.labels.claims import Hiding, at_usual_distances, distances, with_control
from analyses.labels.readouts import Readout
from analyses.measures import Looks, Measure
from analyses.reading.windows import Window
from interp import TokenBatch, Transformer
from interp.patching.knockout import Claim, Read, knock_out, knock_out_together
from interp.patching.patch_sites import last_stack
from interp.patterns import Totals
from interp.patterns.captured import read_patterns

CLAIM, CONTROLS, ARMS = "claim", ("other keys", "usual distances"), ("exchange", "removal")
SEEN = "attention where masked", "the same to other keys"
FARTHER = "another distance"  # what other keys are where the claimed ones are given by their distance
CLAIMS = 128  # with their controls, that one call hides


@dataclass(frozen=True)
class Job:
    """A claim, or a control, that waits to be hidden."""

    kind: str
    group: int
    column: int
    readout: Readout
    ids: tuple[int, ...]
    hiding: Hiding
    read: Read


class Tally:
    """What hiding has cost so far, by group of documents; claims of several windows are hidden together."""

    def __init__(
        self,
        model: Transformer,
        measures: Sequence[tuple[str, Measure]],
        rng: random.Random,
        counts: Counter[str],
        armed: Collection[str],
        together: Sequence[Sequence[tuple[int, int]]] | None = None,
    ):
        """Nothing yet; the keys of the measures named in `armed` are exchanged and removed too.

        `together` are, for each measure, the heads (layer, head) from which keys are hidden at once; None: from every
        head by itself.
        """
        self.armed, self.together = armed, together
        n_heads = 1 if together is not None else model.config.n_layers * model.config.n_heads
        self.model, self.measures, self.rng, self.counts = model, measures, rng, counts
        self.totals = {kind: Totals.empty(n_heads, len(measures)) for kind in (CLAIM, *CONTROLS, *ARMS, *SEEN)}
        self.usual: dict[str, list[frozenset[int]]] = defaultdict(list)  # by measure, the distances of each row's keys
        self.jobs: list[Job] = []

    def learn(self, looks: dict[str, Looks]) -> None:
        """How far away one window's claimed keys are."""
        for name, own in looks.items():
            self.usual[name] += distances(own, causal=self.model.config.last.causal)

    def add(self, window: Window, group: int, read_by: dict[str, Readout], looks: dict[str, Looks]) -> None:
        """Claims of one window."""
        readable = {readout: readout.readable(window) for readout in {*read_by.values()}}
        for column, (behaviour, measure) in enumerate(self.measures):
            if not looks.get(measure.name) or behaviour not in read_by:
                continue
            readout = read_by[behaviour]
            own = looks[measure.name]
            for kind, hiding in self._hidings(window, measure, own, readout, readable[readout]):
                ids, read = readout.text(window, hiding.rows), readout.read(window, hiding.rows)
                self.jobs.append(Job(kind, group, column, readout, ids, hiding, read))
        if len(self.jobs) >= CLAIMS:
            self.flush()

    def _hidings(
        self, window: Window, measure: Measure, looks: Looks, readout: Readout, readable: Collection[int]
    ) -> Iterator[tuple[str, Hiding]]:
        """A claim and its controls."""
        causal, words = self.model.config.last.causal, measure.of_words
        found = with_control(window, looks, readable, self.rng, causal=causal, at_distance=words, counts=self.counts)
        if found is None:
            return
        lot = readout.lot(window, found[0].rows, self.rng)
        claim, others = (each.take(lot) for each in found)
        yield CLAIM, claim
        yield CONTROLS[0], others
        if words:
            yield CONTROLS[1], at_usual_distances(window, claim, self.usual[measure.name], self.rng, causal=causal)
        if measure.name in self.armed:
            yield ARMS[0], claim.exchanged(window, self.rng, causal=causal)
            yield ARMS[1], claim.removed()

    def flush(self) -> None:
        """Hide what waits."""
        for readout in {job.readout: None for job in self.jobs}:
            jobs = [job for job in self.jobs if job.readout is readout]
            texts = {ids: at for at, ids in enumerate(dict.fromkeys(job.ids for job in jobs))}
            claims = [job.hiding.claim(texts[job.ids], len(job.ids), job.read) for job in jobs]
            batch = TokenBatch.from_rows([*texts])
            effects = self._drops(batch, claims, jobs, readout).double().cpu()
            for kind in (CLAIM, *CONTROLS, *ARMS):
                self._count(kind, [kind == job.kind for job in jobs], jobs, effects)
            if readout.masks and self.together is None:
                seen = _mass(self.model, batch, claims).double().cpu()
                for kind, of in zip(SEEN, (CLAIM, CONTROLS[0]), strict=True):
                    self._count(kind, [of == job.kind for job in jobs], jobs, seen)
        self.jobs = []

    def _drops(
        self, batch: TokenBatch, claims: Sequence[Claim], jobs: Sequence[Job], readout: Readout
    ) -> Float[Tensor, "claim head"]:
        """What each claim costs, hidden from every head by itself, or from its measure's heads at once."""
        if self.together is None:
            return knock_out(self.model, batch, claims, readout.output).flatten(1)
        heads = [self.together[job.column] for job in jobs]
        return knock_out_together(self.model, batch, claims, heads, readout.output)[:, None]

    def _count(self, kind: str, which: Sequence[bool], jobs: Sequence[Job], effects: torch.Tensor) -> None:
        """Add the drops of claims, or of one of their controls, or the attention on their keys."""
        own = [at for at, counted in enumerate(which) if counted]
        if not own:
            return
        totals = self.totals[kind]
        scores, rows = (torch.zeros(len(own), *totals.rows.shape[1:], dtype=torch.float64) for _ in range(2))
        here = torch.arange(len(own)), slice(None), torch.tensor([jobs[at].column for at in own])
        scores[here] = effects[own]
        rows[here] = torch.tensor([[float(len(jobs[at].hiding.rows))] for at in own], dtype=torch.float64)
        totals.add(torch.tensor([jobs[at].group for at in own]), scores, rows)

    def strictest(self) -> tuple[Totals, list[str]]:
        """Of every head and measure the control that loses most a row, and its name."""
        with np.errstate(invalid="ignore", divide="ignore"):
            means = [(self.totals[kind].scores.sum(0) / self.totals[kind].weights.sum(0)).numpy() for kind in CONTROLS]
        best = torch.as_tensor(np.nan_to_num(np.stack(means), nan=-np.inf).argmax(0))
        parts = ("scores", "weights", "rows")
        both = [torch.stack([getattr(self.totals[kind], part) for kind in CONTROLS]) for part in parts]
        chosen = [part.gather(0, best.expand(1, *part.shape[1:]))[0] for part in both]
        names = [(CONTROLS[0] if measure.of_words else FARTHER, CONTROLS[1]) for _, measure in self.measures]
        return Totals(*chosen), [names[column][at] for own in best.tolist() for column, at in enumerate(own)]


def _mass(model: Transformer, batch: TokenBatch, claims: Sequence[Claim]) -> Float[Tensor, "claim head"]:
    """Attention of each head on each claim's keys, summed over its rows, in the texts as they are read."""
    batch = batch.to(model.device)
    pattern = read_patterns(model, batch, f"{last_stack(model)}.*.attn.pattern")
    own = [(pattern[claim.prompt][:, claim.queries], claim.keys.to(pattern)) for claim in claims]
    return torch.stack([(rows[..., : keys.shape[1]] * keys).sum((1, 2)) for rows, keys in own])

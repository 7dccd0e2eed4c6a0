"""Does the model need what a head attends to? Every label's effect on its own items, for every head.

At the rows that a label claims, a head's claimed keys are hidden; the effect is the drop in what is read there
(`readouts`: the next token, a masked word, a probe), less the larger of what two controls lose: other keys of the same
rows, and keys at the distances that are usual for the label (`claims`).
"""

import random
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float64

from analyses import part_of_speech
from analyses.labels.claims import (
    Hiding,
    Looks,
    antecedent_looks,
    at_usual_distances,
    distances,
    key_mask,
    position_looks,
    relation_looks,
    tag_looks,
    unannotated,
    with_control,
)
from analyses.labels.readouts import Readout, readouts
from analyses.position import SHORTEST_REPEAT, repeat_length, repeated
from analyses.relations import WAYS
from analyses.tables import Heads
from analyses.windows import Progress, Window, windows
from analyses.workers import shared_out
from interp import AnnotatedText, InputError, TokenBatch, Transformer
from interp.patching.knockout import Claim, Read, knock_out
from interp.patterns import N_GROUPS, Totals, group_of
from interp.patterns.positional import offset_name, offsets
from interp.statistics import benjamini_hochberg, estimate
from interp.tokens import NO_WORD

KNOCKOUT_COLUMNS = [
    *("stack", "attention", "layer", "head", "behaviour", "measure", "corpus", "readout"),
    *("drop", "control", "control_name", "effect", "ci_low", "ci_high", "p", "q", "n"),
]
CLAIM, CONTROLS = "claim", ("other keys", "usual distances")
BEHAVIOURS = ("position", "part-of-speech", "coreference")
_REPEATS = 16  # sequences on which induction is knocked out
_TEXTS = 40  # read by default: documents, not rows, make intervals narrow
_TRAINING_WORDS = 20_000  # that probes are trained on
_CLAIMS = 128  # with their controls, that one call hides


def measure(
    model: Transformer,
    corpus: Iterable[AnnotatedText],
    *,
    training: Iterable[AnnotatedText] | None = None,
    behaviours: Sequence[str] = BEHAVIOURS,
    texts: int = _TEXTS,
    seed: int = 0,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """One row a head and measure: what hiding its claimed keys costs of what is read at the same rows, in nats a row.

    `readout` says what is read: the text's next token (causal models with an output layer), the row's own word, masked
    (models that fill masks), or, without output layer, the log-odds of a probe: of the word's tag, and of a pronoun and
    its nearest true antecedent being of one chain. `drop` is the mean over the claimed rows, `control` that of the
    control that loses most, named in `control_name`: other keys of the same rows, or keys at the distances that are
    usual for the label (not for positional measures, which are nothing but distance). `effect` is their difference,
    with a 95% interval over documents and a one-sided p for effect > 0; `q` is over all rows. `n` counts rows.
    `attrs["counts"]` says what was read and left out.

    Args:
        model: a transformer of one stack with a tokenizer.
        corpus: texts; each measure reads those that have the annotation it needs.
        training: texts for the probes of a model without output layer; texts of documents that are measured are passed
            over. None: half of the corpus's documents, by a hash of their names, train, and the others are measured.
        behaviours: whose measures.
        texts: how many to measure.
        seed: of the control keys, of masked words and of intervals.
        progress: called with the number of texts read.

    Raises:
        InputError: a model without tokenizer; one that fills masks without a mask token; nothing to train a probe on;
            no text, or no row claimed in any.
    """
    if model.tokenizer is None:
        raise InputError("this model has no tokenizer, so it cannot read a corpus")
    counts: Counter[str] = Counter()
    own, other = _split(model, corpus, training, texts, counts)
    if not own:
        raise InputError("the corpus holds no text to measure: expected at least one")
    read_by = readouts(model, behaviours, other, counts)
    names = [pair for pair in _measures(model.config.last.causal) if pair[0] in read_by]
    tally = _Tally(model, names, random.Random(seed), counts)
    if ("position", "induction") in names:
        _add_induction(tally, read_by["position"], seed)
    shown = [
        [(each, _looks(each, read_by, causal=model.config.last.causal)) for each in _windows(model, text, counts)]
        for text in own
    ]
    for looks in (looks for each in shown for _, looks in each):
        tally.learn(looks)
    for text, each in zip(own, shown, strict=True):
        counts["texts"] += 1
        counts.update(unannotated(text))
        for window, looks in each:
            counts["words of several pieces, each a row"] += sum(
                len(window.columns[word]) > 1 for word in window.columns if window.scores(word)
            )
            tally.add(window, group_of(text.document), read_by, looks)
    tally.hide(progress)
    if not tally.totals[CLAIM].rows.any():
        raise InputError("no row of this corpus is claimed by any measure: expected texts of at least three tokens")
    table = _table(model, names, tally, seed)
    table = table.assign(
        corpus=getattr(corpus, "name", "texts"), readout=[read_by[name].name for name in table["behaviour"]]
    ).reindex(columns=KNOCKOUT_COLUMNS)
    table.attrs = {"counts": dict(counts)}
    return table


def _split(
    model: Transformer,
    corpus: Iterable[AnnotatedText],
    training: Iterable[AnnotatedText] | None,
    texts: int,
    counts: Counter[str],
) -> tuple[list[AnnotatedText], list[AnnotatedText]]:
    """Texts to measure, and texts of other documents for probes where they are needed."""
    if model.output is not None:
        return [*islice(corpus, texts)], []
    own: list[AnnotatedText] = []
    other: list[AnnotatedText] = []
    words = 0
    if training is not None:
        own += islice(corpus, texts)
        measured = {text.document for text in own}
        for text in training:
            if words >= _TRAINING_WORDS:
                break
            if text.document in measured:
                counts["training texts left out: their document is measured"] += 1
                continue
            other.append(text)
            words += len(text.words)
    else:
        for text in corpus:
            if group_of(text.document) // 2 % 2:  # the lowest bit tells apart the halves of `labels`
                own += [text] if len(own) < texts else []
            elif words < _TRAINING_WORDS:
                other.append(text)
                words += len(text.words)
            elif len(own) == texts:
                break
    counts["texts that probes were trained on"] = len(other)
    return own, other


def _measures(causal: bool) -> list[tuple[str, str]]:
    """Behaviour and measure of all that is claimed."""
    position = [*map(offset_name, offsets(causal)), "first-token", "duplicate-token", "induction"]
    grammar = [f"relation:{name}:{way}" for name in part_of_speech.RELATIONS for way in WAYS]
    grammar += [f"tag:{x}->{y}" for x, y in part_of_speech.TAG_PAIRS]
    named = {"position": position, "part-of-speech": grammar, "coreference": ["antecedent", "antecedent:named"]}
    return [(behaviour, name) for behaviour, own in named.items() for name in own]


def _windows(model: Transformer, text: AnnotatedText, counts: Counter[str]) -> Iterator[Window]:
    assert model.tokenizer is not None
    return windows(text, model.tokenizer, model.config.n_ctx, counts)


def _looks(window: Window, behaviours: Collection[str], *, causal: bool) -> dict[str, Looks]:
    """Rows and keys of every measure of some behaviours; induction's are on texts of its own."""
    found: dict[str, Looks] = {}
    if "position" in behaviours:
        found |= position_looks(window, causal=causal)
    if "part-of-speech" in behaviours:
        found |= relation_looks(window, part_of_speech.RELATIONS) | tag_looks(window, part_of_speech.TAG_PAIRS)
    if "coreference" in behaviours:
        found |= antecedent_looks(window)
    return found


@dataclass(frozen=True)
class _Job:
    """A claim, or a control, that waits to be hidden."""

    kind: str
    group: int
    column: int
    readout: Readout
    ids: tuple[int, ...]
    hiding: Hiding
    read: Read


@dataclass
class _Batch:
    """Claims of some windows, which are hidden together."""

    jobs: list[_Job] = field(default_factory=list)
    texts: int = 0  # that have been gone through when it has been hidden

    def effects(self, model: Transformer) -> Float64[np.ndarray, "job head"]:
        """What each job costs, for the heads of all layers."""
        found = np.zeros((len(self.jobs), model.config.n_layers * model.config.n_heads))
        for readout in {job.readout: None for job in self.jobs}:
            own = [at for at, job in enumerate(self.jobs) if job.readout is readout]
            jobs = [self.jobs[at] for at in own]
            texts = {ids: at for at, ids in enumerate(dict.fromkeys(job.ids for job in jobs))}
            claims = [_claim(job, texts[job.ids]) for job in jobs]
            effects = knock_out(model, TokenBatch.from_rows([*texts]), claims, readout.output).flatten(1)
            found[own] = effects.double().cpu().numpy()
        return found


class _Tally:
    """What hiding has cost so far, by group of documents; claims of several windows are hidden together."""

    def __init__(self, model: Transformer, names: Sequence[tuple[str, str]], rng: random.Random, counts: Counter[str]):
        n_heads = model.config.n_layers * model.config.n_heads
        self.model, self.names, self.rng, self.counts = model, names, rng, counts
        self.totals = {kind: Totals.empty(n_heads, len(names)) for kind in (CLAIM, *CONTROLS)}
        self.usual: dict[str, list[frozenset[int]]] = defaultdict(list)  # by measure, the distances of each row's keys
        self.batches: list[_Batch] = []

    def learn(self, looks: dict[str, Looks]) -> None:
        """How far away one window's claimed keys are."""
        for name, own in looks.items():
            self.usual[name] += distances(own, causal=self.model.config.last.causal)

    def add(self, window: Window, group: int, read_by: dict[str, Readout], looks: dict[str, Looks]) -> None:
        """Claims of one window, to be hidden later."""
        if not self.batches or len(self.batches[-1].jobs) >= _CLAIMS:
            self.batches.append(_Batch())
        readable = {readout: readout.readable(window) for readout in {*read_by.values()}}
        for column, (behaviour, name) in enumerate(self.names):
            if not looks.get(name):
                continue
            readout = read_by[behaviour]
            for kind, hiding in self._hidings(window, behaviour, name, looks[name], readout, readable[readout]):
                ids, read = readout.text(window, hiding.rows), readout.read(window, hiding.rows)
                self.batches[-1].jobs.append(_Job(kind, group, column, readout, ids, hiding, read))
        self.batches[-1].texts = self.counts["texts"]

    def _hidings(
        self,
        window: Window,
        behaviour: str,
        name: str,
        looks: Looks,
        readout: Readout,
        readable: Collection[int],
    ) -> Iterator[tuple[str, Hiding]]:
        """A claim and its controls."""
        causal, words = self.model.config.last.causal, behaviour != "position"
        found = with_control(window, looks, readable, self.rng, causal=causal, at_distance=words, counts=self.counts)
        if found is None:
            return
        lot = readout.lot(window, found[0].rows, self.rng)
        claim, others = (each.take(lot) for each in found)
        yield CLAIM, claim
        yield CONTROLS[0], others
        if words:
            yield CONTROLS[1], at_usual_distances(window, claim, self.usual[name], self.rng, causal=causal)

    def hide(self, progress: Progress | None = None) -> None:
        """Hide what waits, and add up what it costs."""
        model, batches = self.model, [batch for batch in self.batches if batch.jobs]
        each = shared_out(lambda batch: batch.effects(model), batches, model.device)
        for batch, effects in zip(batches, each, strict=True):
            for kind in self.totals:
                self._count(kind, batch.jobs, torch.from_numpy(effects))
            if progress is not None:
                progress(batch.texts)

    def _count(self, kind: str, jobs: Sequence[_Job], effects: torch.Tensor) -> None:
        """Add the drops of claims, or of one of their controls."""
        own = [at for at, job in enumerate(jobs) if job.kind == kind]
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
        return Totals(*chosen), [CONTROLS[at] for at in best.reshape(-1).tolist()]


def _claim(job: _Job, prompt: int) -> Claim:
    return Claim(prompt, torch.tensor(job.hiding.rows), key_mask(job.hiding.keys, len(job.ids)), job.read)


def _add_induction(tally: _Tally, readout: Readout, seed: int) -> None:
    """Random tokens and their repeat, as `position` measures induction; each sequence is a document of its own."""
    model, length = tally.model, repeat_length(tally.model)
    if length < SHORTEST_REPEAT:
        tally.counts[f"induction left out: repeats of {length} tokens are shorter than {SHORTEST_REPEAT}"] = 1
        return
    for number, ids in enumerate(repeated(model, length, _REPEATS, seed).tolist()):
        start = len(ids) - 2 * length
        text = AnnotatedText((), (), f"repeat {number}")
        special = (True,) * start + (False,) * 2 * length
        window = Window(text, 0, 0, 0, tuple(ids), (NO_WORD,) * len(ids), special)
        if not readout.readable(window):
            tally.counts[f"induction left out: random tokens have nothing for a {readout.name} to read"] = 1
            return
        looks = {row: {row - (length - 1)} for row in range(start + length, len(ids))}
        tally.add(window, number % N_GROUPS, {"position": readout}, {"induction": looks})


def _table(model: Transformer, names: Sequence[tuple[str, str]], tally: _Tally, seed: int) -> pd.DataFrame:
    drops = tally.totals[CLAIM]
    controls, which = tally.strictest()
    parts = [part.numpy().reshape(part.shape[0], -1) for part in (drops.scores, drops.weights)]
    parts += [part.numpy().reshape(part.shape[0], -1) for part in (controls.scores, controls.weights)]
    found = estimate(*parts, seed=seed)
    where, column = Heads.of(model).columns(len(names))
    table = pd.DataFrame(
        {
            **where,
            "behaviour": [names[at][0] for at in column],
            "measure": [names[at][1] for at in column],
            "drop": found.value,
            "control": found.baseline,
            "control_name": which,
            "effect": found.gain,
            "ci_low": found.low,
            "ci_high": found.high,
            "p": found.p,
            "n": drops.rows.sum(0).numpy().reshape(-1).round().astype(int),
        }
    )
    table = table.loc[table["n"] > 0].reset_index(drop=True)
    return table.assign(q=benjamini_hochberg(table["p"].to_numpy(dtype=float)))

"""Does the model need what a head attends to? Every label's effect on its own items, for every head.

At the rows that a label claims, a head's claimed keys are hidden; the effect is the drop in what is read there
(`readouts`: the next token, a masked word, a probe), less the larger of what two controls lose: other keys of the same
rows, and keys at the distances that are usual for the label (`claims`). Hiding moves the keys' mass to others, so that
a key whose value nobody reads may be missed; what is needed must be missed too where weights stay as they are.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import pandas as pd

from analyses.behaviours import chosen
from analyses.head_tables import Heads
from analyses.labels.claims import unannotated
from analyses.labels.costs import ARMS, CLAIM, SEEN
from analyses.labels.readouts import Readout, readouts
from analyses.labels.screen import Screen, Screened, verify
from analyses.labels.tally import Tally, part_of
from analyses.measures import Behaviour, Looks, Measure
from analyses.position import SHORTEST_REPEAT, repeat_length, repeated
from analyses.reading.windows import Progress, Window, windows
from analyses.shards import Shards
from interp import AnnotatedText, InputError, Transformer
from interp.patterns import N_GROUPS, Totals, group_of
from interp.statistics import benjamini_hochberg, estimate
from interp.tokens import NO_WORD

KNOCKOUT_COLUMNS = [
    *("stack", "attention", "layer", "head", "behaviour", "measure", "corpus", "readout"),
    *("drop", "control", "control_name", "effect", "ci_low", "ci_high", "p", "q", "n", "documents"),
    *(f"{arm}{part}" for arm in (*ARMS, "masked") for part in ("", "_low", "_high", "_p")),
    *("measured", "sampled", "estimate"),
]
_NAMES = ("stack", "attention", "behaviour", "measure", "corpus", "readout", "control_name", "measured", "sampled")
_KINDS = {**dict.fromkeys(_NAMES, object), "layer": int, "head": int}  # all others are numbers
NOTHING = pd.DataFrame({name: pd.Series(dtype=_KINDS.get(name, float)) for name in KNOCKOUT_COLUMNS})
TOGETHER_COLUMNS = [
    *("drop", "control", "control_name", "effect", "ci_low", "ci_high", "p", "n", "documents"),
    *(f"{arm}{part}" for arm in ARMS for part in ("", "_low", "_high", "_p")),
]
_REPEATS = 16  # sequences on which induction is knocked out
_TEXTS = 40  # read by default: documents, not rows, make intervals narrow
_TRAINING_WORDS = 20_000  # that probes are trained on


@dataclass(frozen=True)
class Knockouts:
    """What hiding costs: a row a head and measure, what was read and left out, and what estimates left unmeasured."""

    table: pd.DataFrame
    counts: Mapping[str, int] = field(default_factory=dict)
    screened: Screened | None = None


def measure(
    model: Transformer,
    corpus: Iterable[AnnotatedText],
    *,
    training: Iterable[AnnotatedText] | None = None,
    behaviours: Sequence[str | Behaviour] | None = None,
    texts: int = _TEXTS,
    armed: Collection[str] | None = None,
    screen: Screen | None = None,
    seed: int = 0,
    shards: Shards | None = None,
    progress: Progress | None = None,
) -> Knockouts:
    """One row a head and measure: what hiding its claimed keys costs of what is read at the same rows, in nats a row.

    `readout` says what is read: the text's next token (causal models with an output layer), the row's own word, masked
    (models that fill masks), or, without output layer, the log-odds of a probe: of the word's tag, and of a pronoun and
    its nearest true antecedent being of one chain. `drop` is the mean over the claimed rows, `control` that of the
    control that loses most, named in `control_name`: other keys of the same rows, or keys at the distances that are
    usual for the label (not for positional measures, which are nothing but distance). `effect` is their difference,
    with a 95% interval over documents and a one-sided p for effect > 0; `q` is over all rows, of which those that are
    not measured count as not significant. `n` counts rows.
    `exchange` is the drop where each claimed key keeps its weight and the value of another key that the row sees,
    drawn at random, is mixed in for its own; `removal` where its weight times its value is left out. Both come with
    interval and one-sided p. An exchange puts something in place of a key that may have said nothing, and a removal
    leaves less than the head ever writes: what the model needs is missed in both ways, and beyond the control. With a
    `screen` they are measured where hiding costs enough.
    `masked`, of models that fill masks, is the head's attention from the masked rows to the claimed keys, less that to
    the other keys of the control: attention and effect on the same rows. `measured` is False where all numbers but
    `masked` are estimates, or missing (`analyses.labels.screen`); `estimate` is what the effect was estimated to be,
    `sampled` whether it was drawn at random to be measured.

    Args:
        model: a transformer of one stack with a tokenizer.
        corpus: texts; each measure reads those that have the annotation it needs.
        training: texts for the probes of a model without output layer; texts of documents that are measured are passed
            over. None: half of the corpus's documents, by a hash of their names, train, and the others are measured.
        behaviours: whose measures; all of ours by default.
        texts: how many to measure.
        armed: names of the measures whose keys are exchanged and removed too; all by default.
        screen: which heads and measures are `measured`; the numbers of all others are estimates. By default all.
        seed: of the control keys, of masked words and of intervals.
        shards: where what was measured before is found, and what is measured is kept; by default nowhere.
        progress: called with the number of lots of claims that are hidden, or estimated.

    Raises:
        InputError: a model without tokenizer; one that fills masks without a mask token; nothing to train a probe on;
            no text, or no row claimed in any.
    """
    behaviours = [*chosen(behaviours).values()]
    asked = hidden_measures(behaviours, model.config.last.causal)
    armed = {each.name for _, each in asked} if armed is None else armed
    tally, read_by = _tallied(
        model, corpus, training, behaviours, asked, texts, armed, None, seed, progress, shards, screen is not None
    )
    estimates, screened = None, None
    if screen is not None:
        estimates = tally.costs.effect()
        screened = verify(tally, screen, seed)
    table = _table(model, tally, estimates, seed)
    table = table.assign(
        corpus=getattr(corpus, "name", "texts"), readout=[read_by[name].name for name in table["behaviour"]]
    )
    return Knockouts(table.reindex(columns=KNOCKOUT_COLUMNS), dict(tally.counts), screened)


def measure_together(
    model: Transformer,
    corpus: Iterable[AnnotatedText],
    heads: Sequence[tuple[str, Sequence[tuple[int, int]]]],
    *,
    training: Iterable[AnnotatedText] | None = None,
    behaviours: Sequence[str | Behaviour] | None = None,
    texts: int = _TEXTS,
    seed: int = 0,
    shards: Shards | None = None,
) -> pd.DataFrame:
    """What hiding a measure's keys from several heads at once costs: a row for each of `heads`, in their order.

    Heads that do the same stand in for each other, so that hiding keys from one of them shows a lower bound. `effect`
    is in nats a row, over the control that loses most, with its 95% interval over documents; missing where no row of
    the corpus is claimed. `exchange` and `removal` as of `measure`.

    Args:
        model, corpus, training, behaviours, texts, seed, shards: as for `measure`.
        heads: the name of a measure, and the (layer, head) pairs that its keys are hidden from.

    Raises:
        InputError: as for `measure`.
    """
    known = [*chosen(behaviours).values()]
    of = {own.name: (name, own) for name, own in hidden_measures(known, model.config.last.causal)}
    asked, pairs = [of[name] for name, _ in heads], [own for _, own in heads]
    armed = {name for name, _ in heads}
    tally, _ = _tallied(model, corpus, training, known, asked, texts, armed, pairs, seed, None, shards)
    return pd.DataFrame({**_estimated(tally, seed), **_beside(tally, seed)}).reindex(columns=TOGETHER_COLUMNS)


def least(effects: pd.DataFrame) -> pd.DataFrame:
    """Rows of either table with the effect and interval of the arm that costs least, and the largest p of the three.

    `hiding` is the effect of hiding alone. It is the effect, too, where keys were not exchanged and removed: the least
    of all three can only be less. p is missing there.
    """
    parts = ["effect", "ci_low", "ci_high", "p"]
    names = [parts, *([f"{arm}{part}" for part in ("", "_low", "_high", "_p")] for arm in ARMS)]
    arms = np.stack([effects[own].to_numpy(dtype=float) for own in names])  # arm row part
    which = np.nan_to_num(arms[..., 0], nan=np.inf).argmin(0)
    chosen = dict(zip(parts, arms[which, np.arange(len(effects))].T, strict=True))
    return effects.assign(**{**chosen, "p": arms[..., 3].max(0)}, hiding=effects["effect"])


def _tallied(
    model: Transformer,
    corpus: Iterable[AnnotatedText],
    training: Iterable[AnnotatedText] | None,
    behaviours: Sequence[Behaviour],
    asked: Sequence[tuple[str, Measure]],
    texts: int,
    armed: Collection[str],
    together: Sequence[Sequence[tuple[int, int]]] | None,
    seed: int,
    progress: Progress | None,
    shards: Shards | None,
    estimates: bool = False,
) -> tuple[Tally, dict[str, Readout]]:
    """What hiding cost in all texts, and how each behaviour was read."""
    if model.tokenizer is None:
        raise InputError("this model has no tokenizer, so it cannot read a corpus")
    counts: Counter[str] = Counter()
    own, other = _split(model, corpus, training, texts, counts)
    if not own:
        raise InputError("the corpus holds no text to measure: expected at least one")
    read_by = readouts(model, behaviours, other, counts)
    tally = Tally(model, asked, seed, counts, armed, together, estimates=estimates, shards=shards)
    once = {measure.name: (behaviour, measure) for behaviour, measure in asked}.values()
    for behaviour, measure in once:
        if measure.corpus and behaviour in read_by:
            _add_repeats(tally, measure, behaviour, read_by[behaviour], seed)
    hidden = [measure for _, measure in once]
    shown = [[(each, _looks(each, hidden)) for each in _windows(model, text, counts)] for text in own]
    for looks in (looks for each in shown for _, looks in each):
        tally.learn(looks)
    number = {name: at for at, name in enumerate(dict.fromkeys(text.document for text in own))}
    for text, each in zip(own, shown, strict=True):
        counts["texts"] += 1
        counts.update(unannotated(text))
        for window, looks in each:
            counts["words of several pieces, each a row"] += sum(
                len(window.columns[word]) > 1 for word in window.columns if window.scores(word)
            )
            tally.add(window, group_of(text.document), read_by, looks, part_of(number[text.document]))
    tally.work(progress)
    if not tally.costs[CLAIM].rows.any():
        raise InputError("no row of this corpus is claimed by any measure: expected texts of at least three tokens")
    return tally, read_by


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


def hidden_measures(behaviours: Sequence[Behaviour], causal: bool) -> list[tuple[str, Measure]]:
    """Behaviour and measure of all that is claimed and hidden."""
    return [
        (behaviour.name, measure)
        for behaviour in behaviours
        for measure in behaviour.asked(causal=causal)
        if measure.points and measure.hidden
    ]


def _windows(model: Transformer, text: AnnotatedText, counts: Counter[str]) -> Iterator[Window]:
    assert model.tokenizer is not None
    return windows(text, model.tokenizer, model.config.n_ctx, counts)


def _looks(window: Window, hidden: Collection[Measure]) -> dict[str, Looks]:
    """Rows and keys of every measure that is read on the corpus."""
    return {measure.name: measure.looks(window) for measure in hidden if not measure.corpus}


def _add_repeats(tally: Tally, measure: Measure, behaviour: str, readout: Readout, seed: int) -> None:
    """Random tokens and their repeat, as `position` measures induction; each sequence is a document of its own."""
    model, length = tally.model, repeat_length(tally.model)
    if length < SHORTEST_REPEAT:
        tally.counts[f"{measure.name} left out: repeats of {length} tokens are shorter than {SHORTEST_REPEAT}"] = 1
        return
    for number, ids in enumerate(repeated(model, length, _REPEATS, seed).tolist()):
        start = len(ids) - 2 * length
        text = AnnotatedText((), (), f"repeat {number}")
        special = (True,) * start + (False,) * 2 * length
        window = Window(text, 0, 0, 0, tuple(ids), (NO_WORD,) * len(ids), special)
        if not readout.readable(window):
            tally.counts[f"{measure.name} left out: random tokens have nothing for a {readout.name} to read"] = 1
            return
        tally.add(
            window, number % N_GROUPS, {behaviour: readout}, {measure.name: measure.looks(window)}, part_of(number)
        )


def _table(model: Transformer, tally: Tally, estimates: np.ndarray | None, seed: int) -> pd.DataFrame:
    """The rows of every head and measure that has any."""
    where, column = Heads.of(model).columns(len(tally.measures))
    table = pd.DataFrame(
        {
            **where,
            "behaviour": [tally.measures[at][0] for at in column],
            "measure": [tally.measures[at][1].name for at in column],
            **_estimated(tally, seed),
            **_beside(tally, seed),
            "measured": tally.measured.reshape(-1),
            "sampled": tally.sampled.reshape(-1),
            "estimate": np.nan if estimates is None else estimates.reshape(-1),
        }
    )
    table = table.loc[table["n"] > 0].reset_index(drop=True)
    tested = np.where(table["measured"], table["p"].to_numpy(dtype=float), 1.0)  # an estimate is no test: q only grows
    return table.assign(q=benjamini_hochberg(tested))


def _beside(tally: Tally, seed: int) -> dict[str, np.ndarray]:
    """What exchange and removal cost, and attention where words are masked, with their intervals and p."""
    found = {}
    for arm, (kind, less) in {**{arm: (arm, None) for arm in ARMS}, "masked": SEEN}.items():
        drop = estimate(*_parts(tally.costs[kind]), *(_parts(tally.costs[less]) if less else ()), seed=seed)
        value = drop.gain if less else drop.value
        parts = {arm: value, f"{arm}_low": drop.low, f"{arm}_high": drop.high, f"{arm}_p": drop.p}
        known = tally.arms_measured.reshape(-1) if arm in ARMS else True
        found |= {name: np.where(known, part, np.nan) for name, part in parts.items()}
    return found


def _estimated(tally: Tally, seed: int) -> dict[str, object]:
    """Drop, control and effect of every head and measure, measures running fastest."""
    drops = tally.costs[CLAIM]
    controls, _ = tally.costs.strictest()
    found = estimate(*_parts(drops), *_parts(controls), seed=seed)
    return {
        "drop": found.value,
        "control": found.baseline,
        "control_name": tally.control_names(),
        "effect": found.gain,
        "ci_low": found.low,
        "ci_high": found.high,
        "p": found.p,
        "n": drops.rows.sum(0).numpy().reshape(-1).round().astype(int),
        "documents": found.groups,
    }


def _parts(totals: Totals) -> list[np.ndarray]:
    """Sums and weights by group (group x head and measure)."""
    return [part.numpy().reshape(part.shape[0], -1) for part in (totals.scores, totals.weights)]

"""Where along a model can words' tags, their relations and their referents be read off by a linear probe?

One probe a layer's stream and a head's output, beside what a probe gets without the model's help: a control task, the
rule that reads no sentence, the same model before training. Expected layer and centre of gravity say how deep.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from scipy import stats
from torch import Tensor

from analyses.antecedents import BASELINES
from analyses.probe_items import SPLITS, Asked, Read, Vectors, choose, read
from analyses.windows import Progress
from interp import AnnotatedText, InputError, Transformer
from interp.initialise import untrained
from interp.patterns import group_of
from interp.patterns.totals import N_GROUPS
from interp.probes import (
    PENALTY,
    Axes,
    Scaling,
    centre_of_gravity,
    commonest_labels,
    control_labels,
    edge_vectors,
    expected_layer_terms,
    fit,
    fit_mix,
)
from interp.statistics import estimate

TASKS = {"tag": "tags", "relation": "dependency relations", "coreference": "chains with pronouns that refer back"}
LAYER_COLUMNS = [
    *("stack", "layer", "head", "depth", "site", "task", "accuracy", "control_accuracy", "selectivity"),
    *("ci_low", "ci_high", "n", "baseline", "baseline_name", "untrained_accuracy", "cumulative_accuracy"),
    *("ambiguous_accuracy", "ambiguous_baseline", "ambiguous_n"),
]
DEPTH_COLUMNS = ["stack", "task", "measure", "value", "ci_low", "ci_high", "n"]
EXPECTED, GRAVITY = "expected layer", "centre of gravity"
WORDS, EDGES = 20_000, 6_000  # for training; half as many for the test
_AXES = 64  # principal axes of a site that an edge probe reads
_MIXED = 10_000  # training items of a probe of mixed layers
_FOLDS = 8  # parts of the training documents, left out in turn
_AMBIGUOUS = ("NOUN", "VERB")


def measure(
    model: Transformer,
    corpus: Iterable[AnnotatedText],
    *,
    held_out: Iterable[AnnotatedText] | None = None,
    tasks: Sequence[str] | None = None,
    words: int = WORDS,
    edges: int = EDGES,
    penalty: float = PENALTY,
    seed: int = 0,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Probe every layer's stream and every head's output for each task.

    `tag`: a word's part of speech. `relation`: its relation to its head, without subtype. `coreference`: are a pronoun
    and a mention before it of one chain (the nearest of its chain and the nearest of another are asked)? A word's
    vector is the mean over its pieces; an edge's is both words' coordinates along 64 principal axes and their product.

    Args:
        model: a model with one stack and a tokenizer.
        corpus: texts to train on; without `held_out` a quarter of the documents is kept for the test.
        held_out: other documents to test on.
        tasks: of `TASKS`; by default those that the corpus is annotated for.
        words: words at most to train tags and relations on, the first of the corpus; half as many are tested.
        edges: edges at most to train coreference on; half as many are tested.
        penalty: of the probes' squared weights, see `interp.probes.fit`.
        seed: of control tasks, of the untrained model's weights and of the resampling.
        progress: is told how many windows of text have been read, of one model and split after the other.

    Returns:
        The rows of `tables/layers`. `depth` counts the blocks passed: 0 is the stream into the first. `baseline` is the
        accuracy of the most frequent label of the type, for edges that of the strictest rule (nearest mention and the
        like). `untrained_accuracy` is the same probe on the model with fresh weights. `ambiguous_*` are tags of the
        types that training shows both as noun and as verb. The interval is that of the selectivity, over test
        documents, for the one control task that was drawn. `attrs["depths"]` are the rows of `depths`.

    Raises:
        InputError: an unknown task, a corpus without what a task needs, too few documents, fewer types than classes.
    """
    if unknown := {*(tasks or ())} - {*TASKS}:
        raise InputError(f"no probe for {sorted(unknown)[0]!r}: expected {', '.join(TASKS)}")
    items = choose(model, corpus, held_out, words=words, edges=edges)
    have = [task for task in TASKS if all(_labels(task, items.asked[split]).labels for split in SPLITS)]
    if missing := [task for task in tasks or () if task not in have] or (not have and [*TASKS]):
        raise InputError(
            f"the corpus has no text with {' or '.join(TASKS[task] for task in missing)} both to train and to test on"
        )
    asked = {task: tuple(_labels(task, items.asked[split]) for split in SPLITS) for task in tasks or have}
    for task, (train, _) in asked.items():
        _check_classes(task, train)
    tasks_of = {task: _task(train, test, seed) for task, (train, test) in asked.items()}
    own = [read(model, items.asked[split], progress) for split in SPLITS]
    found = {task: _probe(task, each, own, penalty) for task, each in tasks_of.items()}
    del own  # before as much again is read
    fresh = [read(untrained(model, seed), items.asked[split], progress) for split in SPLITS]
    bare = {
        task: _right(_vectors(task, each, fresh), each, ["label"], penalty)[:, 0] for task, each in tasks_of.items()
    }
    table = pd.concat([_layer_rows(model, task, found[task], bare[task], seed) for task in found], ignore_index=True)
    table = table.reindex(columns=LAYER_COLUMNS)
    table.attrs = {
        "counts": dict(items.counts),
        "documents": len(set().union(*items.documents.values())),
        "depths": _depth_rows(model, found, seed),
    }
    return table


def depths(table: pd.DataFrame) -> pd.DataFrame:
    """How deep each task is read, from what `measure` gave: `stack, task, measure, value, ci_low, ci_high, n`.

    The expected layer (interval: bootstrap over test documents) is missing where all layers together read the task no
    better than the embedding alone. Centre of gravity: delete-a-group jackknife over training documents (Shao & Tu
    1995), Student's t. A task `a - b` is the difference of two, on the same documents.
    """
    return pd.DataFrame(table.attrs["depths"], columns=DEPTH_COLUMNS)


# What is asked.


@dataclass(frozen=True)
class _Labels:
    """A task's items in one split: their types, labels and documents; `rows` says which of the vectors are theirs."""

    rows: list[int]
    types: list[str]
    labels: list[str]
    groups: Int[Tensor, " item"]
    rules: Float[Tensor, "item rule"] | None = None


def _labels(task: str, asked: Sequence[Asked]) -> _Labels:
    if task == "coreference":
        edges = [(each.window.text.document, edge) for each in asked for edge in each.edges]
        return _Labels(
            [*range(len(edges))],
            [edge.forms for _, edge in edges],
            [str(edge.same) for _, edge in edges],
            _groups([document for document, _ in edges]),
            torch.tensor([edge.rules for _, edge in edges]).reshape(-1, len(BASELINES)),
        )
    rows, types, labels, documents = [], [], [], []
    words = ((each.window.text, word) for each in asked for word in each.words)
    for row, (text, word) in enumerate(words):
        known = text.tags if task == "tag" else text.relations
        if known is None:
            continue
        rows.append(row)
        types.append(text.words[word].lower())
        labels.append(known[word] if task == "tag" else known[word].split(":")[0])
        documents.append(text.document)
    return _Labels(rows, types, labels, _groups(documents))


def _groups(documents: Sequence[str]) -> Tensor:
    known = {document: group_of(document) for document in set(documents)}
    return torch.tensor([known[document] for document in documents], dtype=torch.long)


def _check_classes(task: str, train: _Labels) -> None:
    classes, types = len(set(train.labels)), len(set(train.types))
    if classes < 2 or types < classes:
        raise InputError(
            f"probing for {task} needs at least two classes and as many word types as classes to train on; got "
            f"{classes} classes and {types} types: give more text"
        )


# One task.


@dataclass(frozen=True)
class _Task:
    """A task's items in both splits, with classes as numbers: the labels' own, and the control task's."""

    train: _Labels
    test: _Labels
    n_classes: int
    classes: dict[str, tuple[Int[Tensor, " train"], Int[Tensor, " test"]]]  # "label", "control": train, test


@dataclass(frozen=True)
class _Found:
    """What one task's probes got right on the test items: 1 or 0, sites of the stream before those of the heads."""

    groups: Int[Tensor, " item"]
    right: Float[Tensor, "site item"]
    control: Float[Tensor, "site item"]
    baseline: Float[Tensor, " item"]
    baseline_name: str
    ambiguous: Float[Tensor, " item"] | None  # 1 where the item is of an ambiguous type
    cumulative: Float[Tensor, "layer item"]  # right by the probe that may mix layers 0..l
    shares: Float[Tensor, " layer"]  # of the probe that may mix them all
    fold_shares: Float[Tensor, "fold layer"]  # the same with a part of the training documents left out


def _task(train: _Labels, test: _Labels, seed: int) -> _Task:
    classes = {label: index for index, label in enumerate(sorted(set(train.labels)))}
    labels = [[classes.get(label, -1) for label in each.labels] for each in (train, test)]  # -1 is never predicted
    drawn = control_labels([*train.types, *test.types], labels[0], seed=seed)
    control = [[drawn[name] for name in each.types] for each in (train, test)]
    numbered = {
        name: (torch.tensor(own), torch.tensor(other))
        for name, (own, other) in (("label", labels), ("control", control))
    }
    return _Task(train, test, len(classes), numbered)


def _probe(name: str, task: _Task, made: Sequence[Read], penalty: float) -> _Found:
    vectors = _vectors(name, task, made)
    right = _right(vectors, task, ["label", "control"], penalty)
    train, test = made
    streams = vectors[0].stream, vectors[1].stream
    if name == "coreference":  # layers can be mixed along the same axes only
        streams = _edges(train, test, "stream", common=True)
    mixes = _mixes(streams, task, penalty)
    ambiguous = _ambiguous(task.train, task.test) if name == "tag" else None
    return _Found(task.test.groups, right[:, 0], right[:, 1], *_baseline(task), ambiguous, *mixes)


def _vectors(name: str, task: _Task, made: Sequence[Read]) -> tuple[Vectors, Vectors]:
    """What the probes read, for training and for the test."""
    train, test = made
    if name == "coreference":
        (stream, test_stream), (heads, test_heads) = (_edges(train, test, kind) for kind in ("stream", "heads"))
        return Vectors(stream, heads), Vectors(test_stream, test_heads)
    return _labelled(train.words, task.train.rows), _labelled(test.words, task.test.rows)


def _edges(train: Read, test: Read, kind: str, *, common: bool = False) -> tuple[Tensor, Tensor]:
    """Vectors of edges, along each site's principal axes of the training words at both ends, or those of all sites."""
    ends = [[getattr(end, kind) for end in (made.pronouns, made.mentions)] for made in (train, test)]
    both = torch.cat(ends[0], 1)
    if common:
        scaling = Scaling.of(both)
        both, ends = scaling(both).flatten(0, 1)[None], [[scaling(end) for end in pair] for pair in ends]
    axes = Axes.of(both, _AXES)
    first, second = (edge_vectors(axes(pronouns), axes(mentions)) for pronouns, mentions in ends)
    return first, second


def _labelled(words: Vectors, rows: list[int]) -> Vectors:
    return words if len(rows) == words.stream.shape[1] else words.of(torch.tensor(rows))


def _right(
    vectors: tuple[Vectors, Vectors], task: _Task, asked: Sequence[str], penalty: float
) -> Float[Tensor, "site task item"]:
    """Fit on the training vectors, and say where each probe is right on the test's."""
    labels, wanted = (torch.stack([task.classes[name][split] for name in asked]) for split in range(2))
    parts = []
    for train, test in ((vectors[0].stream, vectors[1].stream), (vectors[0].heads, vectors[1].heads)):
        predicted = fit(train, labels, task.n_classes, penalty=penalty).predict(test)
        parts.append((predicted == wanted).float())
    return torch.cat(parts)


def _baseline(task: _Task) -> tuple[Tensor, str]:
    """Where the strictest rule that reads no sentence is right, and its name."""
    rules = task.test.rules
    if rules is not None:
        best = int(rules.mean(0).argmax())
        return rules[:, best], [*BASELINES][best]
    labels, wanted = task.classes["label"]
    own, other = commonest_labels(task.train.types, labels.tolist())
    guessed = [own.get(name, other) for name in task.test.types]
    return (torch.tensor(guessed) == wanted).float(), "most frequent of the type"


def _ambiguous(train: _Labels, test: _Labels) -> Tensor:
    """1 at the words whose type is both a noun and a verb in training."""
    seen = set(zip(train.types, train.labels, strict=True))
    return torch.tensor([all((name, tag) in seen for tag in _AMBIGUOUS) for name in test.types]).float()


def _mixes(streams: tuple[Tensor, Tensor], task: _Task, penalty: float) -> tuple[Tensor, Tensor, Tensor]:
    """Probes of mixed layers: where that of layers 0..l is right, the last one's shares, and these without a fold."""
    labels, wanted = task.classes["label"]
    n_classes = task.n_classes
    some = torch.arange(0, len(labels), -(-len(labels) // _MIXED))  # evenly through the training items
    scaling = Scaling.of(streams[0][:, some])
    train, test = scaling(streams[0][:, some]), scaling(streams[1])
    labels, folds = labels[some], task.train.groups[some] % _FOLDS
    mixes = [fit_mix(train[:count], labels, n_classes, penalty=penalty) for count in range(1, len(train) + 1)]
    cumulative = [(mix.predict(test[: len(mix.shares)]) == wanted).float() for mix in mixes]
    mix = mixes[-1]
    without = [
        fit_mix(train, labels, n_classes, penalty=penalty, start=mix, kept=folds != fold).shares
        for fold in range(_FOLDS)
        if 0 < int((folds == fold).sum()) < len(folds)
    ]
    return torch.stack(cumulative), mix.shares, torch.stack(without or [torch.full_like(mix.shares, torch.nan)])


# Tables.


def _sums(groups: Int[Tensor, " item"], values: Float[Tensor, "*column item"]) -> np.ndarray:
    """Sums over each group of documents: group x column."""
    columns = values.double().reshape(-1, len(groups)).T
    return torch.zeros(N_GROUPS, columns.shape[1], dtype=torch.float64).index_add_(0, groups, columns).numpy()


def _layer_rows(model: Transformer, task: str, found: _Found, bare: Tensor, seed: int) -> pd.DataFrame:
    (stack,) = model.config.stacks
    n_layers, n_heads = model.config.n_layers, model.config.n_heads
    ones = torch.ones_like(found.right)
    counts = _sums(found.groups, ones)
    against = estimate(_sums(found.groups, found.right), counts, _sums(found.groups, found.control), counts, seed=seed)
    of_heads = np.repeat([False, True], [n_layers + 1, n_layers * n_heads])
    layer = np.concatenate([[0], np.arange(n_layers), np.repeat(np.arange(n_layers), n_heads)])
    head = np.concatenate([np.zeros(n_layers + 1), np.tile(np.arange(n_heads), n_layers)]).astype(int)
    cumulative = np.full(len(layer), np.nan)
    cumulative[: n_layers + 1] = found.cumulative.mean(1)
    table = pd.DataFrame(
        {
            "stack": stack,
            "layer": layer,
            "head": pd.array(head, dtype="Int64"),
            "depth": np.concatenate([np.arange(n_layers + 1), layer[n_layers + 1 :] + 1]),
            "site": np.where(of_heads, "attn.z", np.where(np.arange(len(layer)) == 0, "resid_pre", "resid_post")),
            "task": task,
            "accuracy": against.value,
            "control_accuracy": against.baseline,
            "selectivity": against.gain,
            "ci_low": against.low,
            "ci_high": against.high,
            "n": len(found.groups),
            "baseline": float(found.baseline.mean()),
            "baseline_name": found.baseline_name,
            "untrained_accuracy": bare.mean(1).numpy(),
            "cumulative_accuracy": cumulative,
        }
    )
    table.loc[~of_heads, "head"] = pd.NA
    if found.ambiguous is not None:
        count = float(found.ambiguous.sum())
        table["ambiguous_n"] = int(count)
        if count:
            table["ambiguous_accuracy"] = ((found.right * found.ambiguous).sum(1) / count).numpy()
            table["ambiguous_baseline"] = float((found.baseline * found.ambiguous).sum() / count)
    return table


def _depth_rows(model: Transformer, found: dict[str, _Found], seed: int) -> list[dict[str, object]]:
    (stack,) = model.config.stacks
    rows: list[dict[str, object]] = []
    for task, one in found.items():
        n = len(one.groups)
        for measure_name, values in ((EXPECTED, _expected(one, None, seed)), (GRAVITY, _gravity(one, None))):
            rows.append(_depth_row(stack, task, measure_name, values, n))
    for task, base in (("relation", "tag"), ("coreference", "tag"), ("coreference", "relation")):
        if task in found and base in found:
            one, other = found[task], found[base]
            n = min(len(one.groups), len(other.groups))
            for measure_name, values in ((EXPECTED, _expected(one, other, seed)), (GRAVITY, _gravity(one, other))):
                rows.append(_depth_row(stack, f"{task} - {base}", measure_name, values, n))
    return rows


def _depth_row(stack: str, task: str, name: str, values: tuple[float, float, float], n: int) -> dict[str, object]:
    return dict(zip(DEPTH_COLUMNS, (stack, task, name, *values, n), strict=True))


def _expected(one: _Found, other: _Found | None, seed: int) -> tuple[float, float, float]:
    """Expected layer and its interval, or those of its difference to another task's."""
    terms = [_expected_terms(each, seed) for each in (one, other) if each is not None]
    if any(each is None for each in terms):
        return np.nan, np.nan, np.nan
    nothing = np.zeros((N_GROUPS, 1))
    (above, below), (base_above, base_below) = [*terms, (nothing, nothing + 1)][:2]
    found = estimate(above, below, base_above, base_below, seed=seed)
    return float(found.gain[0]), float(found.low[0]), float(found.high[0])


def _expected_terms(found: _Found, seed: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Sums of the expected layer's two terms; None where nothing is surely gained after the embedding."""
    above, below = (_sums(found.groups, terms) for terms in expected_layer_terms(found.cumulative))
    counts = _sums(found.groups, torch.ones(len(found.groups)))
    gained = estimate(below, counts, np.zeros_like(counts), np.ones_like(counts), seed=seed)
    return (above, below) if gained.low[0] > 0 else None


def _gravity(one: _Found, other: _Found | None) -> tuple[float, float, float]:
    """Centre of gravity and its interval, or those of its difference to another task's, fold by fold."""
    value, folds = (centre_of_gravity(shares.double()) for shares in (one.shares, one.fold_shares))
    if other is not None:
        if len(other.fold_shares) != len(folds):
            return float(value - centre_of_gravity(other.shares.double())), np.nan, np.nan
        value, folds = (
            value - centre_of_gravity(other.shares.double()),
            folds - centre_of_gravity(other.fold_shares.double()),
        )
    count = len(folds)
    if count < 2:
        return float(value), np.nan, np.nan
    error = float(((folds - folds.mean()).square().sum() * (count - 1) / count).sqrt())
    reach = float(stats.t.ppf(0.975, count - 1)) * error
    return float(value), float(value) - reach, float(value) + reach

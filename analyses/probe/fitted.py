"""Fit a task's probes to vectors of the training items, and score them on the test items."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from analyses.probe.probe_tasks import TaskItems, WindowItems, ambiguous, baseline, probed_stack
from analyses.reading.inputs import least_target
from analyses.reading.windows import Window
from interp import Model, TokenBatch, run
from interp.patterns import membership
from interp.patterns.totals import N_GROUPS
from interp.probes import Axes, Scaling, edge_vectors, fit, fit_mix

_BATCH_TOKENS = 1024  # on a CPU, to fit its caches; sixteen times as many elsewhere


@dataclass(frozen=True)
class Vectors:
    """The items' vectors at each site: the stream into the first block and out of every block, and every head's z."""

    stream: Float[Tensor, "depth item d_model"]
    heads: Float[Tensor, "head item d_head"]

    def __len__(self) -> int:
        return self.stream.shape[1]

    def only(self, items: Tensor) -> "Vectors":
        """The vectors of some items."""
        return Vectors(self.stream[:, items], self.heads[:, items])


Parts = dict[str, Vectors]  # of one split: labelled "words", and both ends of edges, "pronouns" and "mentions"


def read(model: Model, windows: Sequence[WindowItems], progress: Callable[[int], object] | None = None) -> Parts:
    """Run the model and collect the items' vectors, in order. A word's vector is the mean over its pieces."""
    sizes = {part: sum(len(each.ends[part]) for each in windows) for part in ("words", "pronouns", "mentions")}
    _, config = probed_stack(model)
    shapes = (config.n_layers + 1, config.d_model), (config.n_layers * config.n_heads, config.d_head)
    empty = {part: [torch.empty(sites, n, width) for sites, width in shapes] for part, n in sizes.items()}
    vectors = {part: Vectors(*pair) for part, pair in empty.items()}
    filled, count = dict.fromkeys(sizes, 0), 0
    for batch in _batches(windows, _BATCH_TOKENS * (1 if model.device.type == "cpu" else 16)):
        ends = [each.ends for each in batch]
        # number only the words that items need, which are few in a chapter
        numbers = [{word: n for n, word in enumerate(dict.fromkeys(chain(*each.values())))} for each in ends]
        stream, heads = _word_vectors(model, [each.window for each in batch], numbers)
        for part, size in filled.items():
            cells = [(row, numbers[row][word]) for row, words in enumerate(ends) for word in words[part]]
            rows, words = torch.tensor(cells, dtype=torch.long).reshape(-1, 2).T
            items = slice(size, size + len(cells))
            vectors[part].stream[:, items] = stream[rows, words].cpu().transpose(0, 1)
            vectors[part].heads[:, items] = heads[rows, words].cpu().transpose(0, 1)
            filled[part] = items.stop
        count += len(batch)
        if progress is not None:
            progress(count)
    return vectors


def _batches(windows: Sequence[WindowItems], tokens: int) -> Iterator[list[WindowItems]]:
    batch: list[WindowItems] = []
    for items in windows:
        if batch and (len(batch) + 1) * max(len(each.window.ids) for each in (batch[-1], items)) > tokens:
            yield batch
            batch = []
        batch.append(items)
    if batch:
        yield batch


def _word_vectors(
    model: Model, windows: Sequence[Window], numbers: Sequence[dict[int, int]]
) -> tuple[Float[Tensor, "prompt word site d_model"], Float[Tensor, "prompt word head d_head"]]:
    (stack, config), target = probed_stack(model), least_target(model, len(windows))
    sites, last = ("0.resid_pre", "*.attn.z", "*.resid_post"), f"{stack}.{config.n_layers - 1}.resid_post"
    tokens = TokenBatch.from_rows([window.ids for window in windows])
    out = run(model, tokens, capture=[f"{stack}.{site}" for site in sites], target=target, until=last)
    rows = [[number.get(word, -1) for word in window.word_of] for window, number in zip(windows, numbers, strict=True)]
    belongs = membership(rows, max(map(len, numbers)), out.tokens.ids.shape[1]).to(model.device)
    share = belongs / belongs.sum(-1, keepdim=True).clamp(min=1)
    stream, heads = [], []
    for name, value in out.activations.items():
        if name.endswith(".attn.z"):
            heads.append((share @ value.flatten(2).to(share)).unflatten(-1, value.shape[-2:]))
        else:
            stream.append(share @ value.to(share))
    return torch.stack(stream, 2), torch.cat(heads, 2)


Splits = tuple[Parts, Parts]  # of the training items, and of the test items
HALVES = 8  # random halves of the training documents, to refit mixes of layers
_AXES = 64  # principal axes of a site that an edge probe reads
_FEWER = 6_000  # training items for a head's probe, which has far fewer dimensions
_MIXED = 3_000  # training items for a probe of mixed layers
_FEWEST_GROUPS = 4  # groups of documents: with fewer, halves say nothing


@dataclass(frozen=True)
class Scores:
    """Which test items the probes of one task get right (1 or 0); the stream's sites come before the heads'."""

    groups: Int[Tensor, " item"]
    right: Float[Tensor, "site item"]
    control: Float[Tensor, "site item"]
    untrained: Float[Tensor, "site item"]
    baseline: Float[Tensor, " item"]
    baseline_name: str
    ambiguous: Float[Tensor, " item"] | None  # 1 if the item's type is ambiguous
    cumulative: Float[Tensor, "layer item"]  # for probes that mix layers 0..l
    shares: Float[Tensor, " layer"]  # layer weights of the probe that mixes all layers
    half_shares: Float[Tensor, "half layer"]  # the same, fitted to each of `HALVES` halves of the training documents
    n_train: int
    documents: dict[str, int]  # with items, by split


def probe(
    items: TaskItems, splits: Splits, untrained: Float[Tensor, "site item"], *, penalty: float, seed: int
) -> Scores:
    """Fit probes of every site for the task and its control task, probes of mixed layers, and their rivals."""
    vectors = _vectors(items, splits)
    right = _right(vectors, items, ["label", "control"], penalty)
    streams: Sequence[Tensor] = [each.stream for each in vectors]
    del vectors  # heads have many
    if items.task.label is None:  # layers can only be mixed along common axes
        streams = _edges(*splits, "stream", common=True)
    cumulative, shares, half_shares = _mixes(streams, items, penalty, seed)
    rule, rule_name = baseline(items)
    return Scores(
        groups=items.test.groups,
        right=right[:, 0],
        control=right[:, 1],
        untrained=untrained,
        baseline=rule,
        baseline_name=rule_name,
        ambiguous=ambiguous(items),
        cumulative=cumulative,
        shares=shares,
        half_shares=half_shares,
        n_train=len(items.train.rows),
        documents={"train": items.train.documents, "test": items.test.documents},
    )


def right_alone(items: TaskItems, splits: Splits, penalty: float) -> Float[Tensor, "site item"]:
    """Which items each site's probe gets right, without a control task."""
    return _right(_vectors(items, splits), items, ["label"], penalty)[:, 0]


def _vectors(items: TaskItems, splits: Splits) -> Sequence[Vectors]:
    if items.task.label is None:
        edges = zip(_edges(*splits, "stream"), _edges(*splits, "heads"), strict=True)
        return [Vectors(stream, heads) for stream, heads in edges]
    pairs = [(read["words"], split.rows) for read, split in zip(splits, (items.train, items.test), strict=True)]
    return [words.only(torch.tensor(rows)) if len(rows) < len(words) else words for words, rows in pairs]


def _edges(train: Parts, test: Parts, kind: str, *, common: bool = False) -> tuple[Tensor, Tensor]:
    """Vectors of edges, along the training words' principal axes at each site, or along axes `common` to all sites."""
    ends = [[getattr(read[end], kind) for end in ("pronouns", "mentions")] for read in (train, test)]
    words = torch.cat(ends[0], 1)
    if common:
        scaling = Scaling.of(words)
        words, ends = scaling(words).flatten(0, 1)[None], [[scaling(end) for end in pair] for pair in ends]
    axes = Axes.of(words, _AXES)
    first, second = (edge_vectors(axes(pronouns), axes(mentions)) for pronouns, mentions in ends)
    return first, second


def _right(
    vectors: Sequence[Vectors], items: TaskItems, kinds: Sequence[str], penalty: float
) -> Float[Tensor, "site task item"]:
    labels, test_labels = (torch.stack([items.classes[kind][split] for kind in kinds]) for split in range(2))
    sample = _evenly(labels.shape[1], _FEWER)
    streams = fit(vectors[0].stream, labels, items.n_classes, penalty=penalty)
    heads = fit(vectors[0].heads[:, sample], labels[:, sample], items.n_classes, penalty=penalty)
    predicted = torch.cat([streams.predict(vectors[1].stream), heads.predict(vectors[1].heads)])
    return (predicted == test_labels).float()


def _evenly(n_items: int, most: int) -> Int[Tensor, " sample"]:
    return torch.linspace(0, n_items - 1, min(n_items, most), dtype=torch.float64).long()


def _mixes(
    streams: Sequence[Tensor], items: TaskItems, penalty: float, seed: int
) -> tuple[Float[Tensor, "layer item"], Float[Tensor, " layer"], Float[Tensor, "half layer"]]:
    labels, test_labels = items.classes["label"]
    sample = _evenly(len(labels), _MIXED)
    scaling = Scaling.of(streams[0][:, sample])
    train, test = scaling(streams[0][:, sample]), scaling(streams[1])
    labels, groups = labels[sample], items.train.groups[sample]
    mixes = [fit_mix(train[:count], labels, items.n_classes, penalty=penalty) for count in range(1, len(train) + 1)]
    cumulative = torch.stack([(mix.predict(test[: len(mix.shares)]) == test_labels).float() for mix in mixes])
    fits = [fit_mix(train[:, h], labels[h], items.n_classes, penalty=penalty) for h in halves_of(groups, seed)]
    half_shares = torch.stack([mix.shares for mix in fits]) if fits else train.new_empty(0, len(train))
    return cumulative, mixes[-1].shares, half_shares


def halves_of(groups: Int[Tensor, " item"], seed: int) -> list[Bool[Tensor, " item"]]:
    """Random halves of the groups of documents, the same for every task; none if there are too few groups."""
    present = groups.unique()
    if len(present) < _FEWEST_GROUPS:
        return []
    random = np.random.default_rng(seed)
    ranks = [torch.from_numpy(random.permutation(N_GROUPS))[present] for _ in range(HALVES)]
    return [torch.isin(groups, present[rank.argsort()[: len(present) // 2]]) for rank in ranks]

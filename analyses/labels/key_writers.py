"""Which earlier parts of the model make a labelled head look at the keys of its label, by what they wrote there?

The advantage of claimed keys is their score minus that of the other visible keys, in nats, each side weighted by its
attention. Scores are sums over the writers of the keys (`interp.attribution.keys`), and so is the advantage. What the
query gives to all keys cancels. With rotary positions, what all keys share also scores by distance, and counts for its
writer.

A family is all earlier heads with the same label, or one writer alone. Its rivals are sets of other writers that write
as much: we scale their part until its scores spread over the keys as the family's do. One half of the documents chooses
the family whose removal lowers the attention most, compared with rivals; the other half reports. The loss alone proves
nothing, because removing whoever wrote most of a key destroys any attention.
"""

import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, combinations, groupby, islice
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from einops import einsum
from jaxtyping import Bool, Float
from torch import Tensor

from analyses.behaviours import select
from analyses.execution import lots
from analyses.labels.readouts import windows_of
from analyses.measures.definitions import Behaviour, Measure
from analyses.measures.findings import DISCOVERY
from analyses.position import SHORTEST_REPEAT, repeat_length, repeats
from analyses.reading.inputs import Sample
from analyses.reading.windows import Window
from analyses.wording.plain_words import SET, STRATUM, Label
from interp import AnnotatedText, InputError, Model, TokenBatch, Transformer, run
from interp.attribution import attribution_sites, key_contributions
from interp.patterns import N_GROUPS, group_of
from interp.statistics import benjamini_hochberg, estimate

WRITER_COLUMNS = [
    *("stack", "attention", "layer", "head", "behaviour", "measure", "kind", "writer", "members"),
    *("advantage", "ci_low", "ci_high", "p", "q", "share", "n", "documents", "before", "without", "without_low"),
    *("without_high", "others", "others_size", "others_without", "rank", "explains"),
]
_OTHERS = (10, 100)  # rivals on the choosing and the reporting half
_DOCUMENTS, _WORDS = 24, 60  # documents per half, and words per document, at most
_REPEATS, _ROWS = 16, 8  # random repeats per half; rows per text and measure, at most
_TOKENS = 1024  # per lot, about
_AT_ONCE = 1 << 22  # numbers in memory at once
_ONE_SIGN = 0.8  # share of the parts' sizes with one sign: below, parts are no shares of a whole
_RANK = 0.05  # the largest share of rivals that may leave as little
_NOTHING = 1e-3  # of a family's part: rivals that write less may be rounding, and we remove nothing
_LEFT = 0.5  # a family explains attention if at most this share of it, and of what rivals leave, is left
Family = tuple[str, ...]  # writers
Claims = Mapping[str, Sequence[tuple[int, int, tuple[int, ...]]]]  # measure: prompt, row, claimed keys
Lot = tuple[Sequence[tuple[int, ...]], Sequence[int], Claims]  # ids of texts, their groups of documents, and claims
Sums = Float[np.ndarray, "group column"]  # rows, advantage by writer, attention left without each set


class Question(NamedTuple):
    """A head, a measure, all writers before the head, families of writers, and each family's rivals."""

    layer: int
    head: int
    measure: str
    writers: Family
    families: Mapping[str, Family]
    others: Sequence[Sequence[Family]]

    @property
    def sets(self) -> tuple[Bool[Tensor, "set writer"], list[int]]:
        """The members of the empty set, each family and each rival; and the index of the set that each is scaled to."""
        members, sizes = [(), *self.families.values(), *chain(*self.others)], [*range(1 + len(self.families))]
        sizes += [row for row, drawn in enumerate(self.others, 1) for _ in drawn]
        return torch.tensor([[writer in family for writer in self.writers] for family in members]), sizes

    def chosen(self, sums: Sums, seed: int) -> "Question":
        """Keep the family without which least is left compared with rivals, and draw more rivals."""
        before, *left = sums[:, 1 + len(self.writers) :].sum(0) / sums[:, 0].sum()
        rest, excess = iter(left[len(self.families) :]), dict[str, float]()
        for name, without, drawn in zip(self.families, left, self.others, strict=False):
            excess[name] = float(np.mean([*islice(rest, len(drawn))] or before) - without)
        best = max(excess, key=lambda name: excess[name])
        drawn = [others(self.families[best], self.writers, _OTHERS[1], seed)]
        return self._replace(families={best: self.families[best]}, others=drawn)


def measure(
    model: Model,
    labels: pd.DataFrame,
    corpora: Mapping[str, Iterable[AnnotatedText]],
    behaviours: Sequence[str | Behaviour] | None = None,
    *,
    seed: int = 0,
    progress: lots.Progress | None = None,
) -> pd.DataFrame:
    """Who wrote each labelled head's keys: `tables/writers`, one row per head, measure and writer, and one per family.

    `advantage` is in nats, with its interval over documents; `p` is two-sided. `share` is missing if less than 80% of
    the parts, by size, have one sign. The row of `kind` family has the attention on claimed keys `before` and `without`
    what the family wrote; its `p` is for their difference. `others` rivals that write as much, of `others_size` heads
    (0: sets of any writers), leave `others_without` on average; the share `rank` of them leave as little as the family.
    A family `explains` the attention if significantly at most half of it is left, at most half of what rivals leave,
    and at most 5% of them leave as little. Without rivals, none explains it. `q` is over all rows.

    Labels that are rules, and labels of masked words, have no row.

    Args:
        model: a transformer of one stack.
        labels: the labels from `analyses.labels.label`.
        corpora: by behaviour, a corpus that can be read several times.
        behaviours: the labels' behaviours; ours by default.
        seed: for random rows, rivals and intervals.
        progress: called with the number of lots read, and of all lots.

    Raises:
        InputError: scores are capped, or the model has two stacks or is run by another library.
    """
    if not isinstance(model, Transformer) or len(model.config.stacks) > 1:
        raise InputError("finding who writes a head's keys needs a transformer of one stack that interp itself runs")
    tables = [pd.DataFrame(columns=WRITER_COLUMNS)]
    for behaviour in select(behaviours).values():
        if behaviour.name in corpora:
            tables += _of_behaviour(model, labels, corpora[behaviour.name], behaviour, seed, progress)
    table = pd.concat(tables[1:] or tables, ignore_index=True).reindex(columns=WRITER_COLUMNS)
    q = benjamini_hochberg(table["p"].astype(float).fillna(1.0).to_numpy())
    limit = _LEFT * table[["before", "others_without"]].min(axis=1, skipna=False)  # NaN without rivals
    holds = (table["without"] <= limit) & (table["rank"] <= _RANK) & (q < DISCOVERY)
    return table.assign(q=q, explains=holds)


def _of_behaviour(
    model: Transformer,
    labels: pd.DataFrame,
    corpus: Iterable[AnnotatedText],
    behaviour: Behaviour,
    seed: int,
    progress: lots.Progress | None,
) -> list[pd.DataFrame]:
    """The rows for each head and measure with claims in both halves."""
    by_name = {each.name: each for each in behaviour.measures if each.points and not each.masked}
    rows = labels.loc[labels["measure"].isin([*by_name]) & ~labels["label"].str.contains(f"^(?:{SET})?rule:")]
    halves, present = list[list[Lot]](), {*rows["measure"]}
    for half in (0, 1):
        halves.append([*_lots(model, corpus, [by_name[name] for name in sorted(present)], half, seed)])
        present &= {name for *_, claims in halves[-1] for name in claims}
    rows, questions = rows.loc[rows["measure"].isin(present)], list[Question]()
    writers = {layer: _writers(model, layer, halves[0][0]) for layer in {*rows["layer"]}}
    for layer, head, name in sorted({*rows[["layer", "head", "measure"]].itertuples(index=False, name=None)}):
        named = families(labels, writers[layer])
        drawn = [others(family, writers[layer], _OTHERS[0], seed) for family in named.values()]
        questions.append(Question(layer, head, name, writers[layer], named, drawn))
    sums = _read(model, halves[0], questions, progress)
    questions = [each.chosen(of_item, seed) for each, of_item in zip(questions, sums, strict=True)]
    sums = _read(model, halves[1], questions, progress)
    place = {"stack": next(iter(model.config.stacks)), "attention": "self", "behaviour": behaviour.name}
    return [_table(*each, seed).assign(**place) for each in zip(questions, sums, strict=True)]


def families(labels: pd.DataFrame, writers: Family) -> dict[str, Family]:
    """The writers with each label (under the simplest label of the same heads), then each writer alone.

    The contribution of relative positions (`distance`) is no writer.
    """
    having, named = dict[str, set[str]](), dict[Family, str]()
    for row in labels.to_dict("records"):
        having.setdefault(row["label"], set()).add(f"{row['stack']}.{row['layer']}.head.{row['head']}")
    names = [name for name in having if not name.startswith(SET) and STRATUM not in name]
    for name in sorted(names, key=lambda name: (Label.parse(name).rung < 0, Label.parse(name).rung, name)):
        named.setdefault(tuple(writer for writer in writers if writer in having[name]), name)
    for writer in writers:
        named.setdefault((writer,), writer)
    return {name: family for family, name in named.items() if family not in {(), ("distance",)}}


def others(family: Family, writers: Family, limit: int, seed: int) -> list[Family]:
    """Rivals: all sets of as many other heads (or of all others, if fewer), or `limit` of them at random.

    If the family has no head, or there are no other heads, rivals are sets of any number of other writers.
    """
    rest = [name for name in writers if name not in {*family, "distance"}]
    heads = [name for name in rest if ".head." in name] if ".head." in "".join(family) else []
    sizes = [min(len(family), len(heads))] if heads else [*range(1, len(rest) + 1)]
    if sum(math.comb(len(heads or rest), size) for size in sizes) <= limit:
        return [drawn for size in sizes for drawn in combinations(heads or rest, size)]
    rng, drawn = random.Random(repr((seed, family))), dict[Family, None]()
    while len(drawn) < limit:
        drawn[tuple(sorted(rng.sample(heads or rest, rng.choice(sizes))))] = None
    return [*drawn]


def _lots(
    model: Transformer, corpus: Iterable[AnnotatedText], measures: Sequence[Measure], half: Any, seed: int
) -> Iterator[Lot]:
    """Texts of one half of the documents, and random repeats, in lots, with the rows that each measure claims."""
    sample = [*Sample(corpus, half, _DOCUMENTS, _WORDS)] if any(not each.corpus for each in measures) else []
    read = [(window, group_of(text.document), False) for text in sample for window in windows_of(model, text)]
    length = repeat_length(model)
    if length >= SHORTEST_REPEAT and any(each.corpus for each in measures):
        drawn = repeats(model, length, _REPEATS, seed + half)
        read += [(window, number % N_GROUPS, True) for number, window in enumerate(drawn)]
    lot: tuple[list[Any], list[int], dict[str, list[Any]]] = ([], [], {})
    for window, group, is_repeat in read:
        if lot[0] and (len(lot[0]) + 1) * max(*map(len, lot[0]), len(window.ids)) > _TOKENS:
            yield lot
            lot = ([], [], {})
        for each in measures:
            if bool(each.corpus) == is_repeat and (rows := _claimed(model, window, each, seed)):
                lot[2].setdefault(each.name, []).extend((len(lot[0]), *row) for row in rows)
        lot[0].append(window.ids)
        lot[1].append(group)
    yield lot


def _claimed(model: Transformer, window: Window, measure: Measure, seed: int) -> list[tuple[int, tuple[int, ...]]]:
    """A sample of rows, with their visible claimed keys, that also see other keys."""
    causal, rows = model.config.last.causal, list[tuple[int, tuple[int, ...]]]()
    for row, claimed in sorted(measure.keys_of(window).items()):
        n_visible = row + 1 if causal else len(window.ids)
        keys = tuple(sorted(key for key in claimed if key < n_visible))
        if 0 < len(keys) < n_visible:
            rows.append((row, keys))
    rng = random.Random(repr((seed, window.text.document, window.start, window.ids, measure.name)))
    return sorted(rng.sample(rows, min(_ROWS, len(rows))))


def _writers(model: Transformer, layer: int, lot: Lot) -> Family:
    out = run(model, TokenBatch.from_rows(lot[0][:1]).to(model.device), attribution_sites(model, layer))
    return key_contributions(out, layer, 0, torch.tensor([[0, 0]])).writers


def _read(
    model: Transformer, texts: Sequence[Lot], questions: Sequence[Question], progress: lots.Progress | None
) -> list[Sums]:
    """The sums for each question over some texts."""
    requests = [(each.layer, each.head, each.measure, *each.sets) for each in questions]
    sums = [np.zeros((N_GROUPS, 1 + sum(members.shape))) for *_, members, _ in requests]
    places = [[index for index, each in enumerate(requests) if each[2] in claims] for *_, claims in texts]
    relevant = [(lot, numbers) for lot, numbers in zip(texts, places, strict=True) if numbers]
    arguments = [(*lot, [requests[index] for index in numbers]) for lot, numbers in relevant]
    results = lots.do(partial(_sums, model), arguments, progress)
    for (lot, numbers), added in zip(relevant, results, strict=True):
        for index, of_item in zip(numbers, added, strict=True):
            sums[index][np.unique(lot[1])] += of_item.numpy()
    return sums


def _sums(
    model: Transformer,
    ids: Sequence[tuple[int, ...]],
    groups: Sequence[int],
    claims: Claims,
    requests: Sequence[tuple[int, int, str, Bool[Tensor, "_family _writer"], Sequence[int]]],
) -> list[Float[Tensor, "group _column"]]:
    """One lot's sums for each head and measure, by the lot's groups, in order."""
    sites = dict.fromkeys(site for layer, *_ in requests for site in attribution_sites(model, layer))
    out = run(model, TokenBatch.from_rows(ids).to(model.device), [*sites])
    _, group = torch.tensor(groups).unique(return_inverse=True)
    added = list[Tensor]()
    for (layer, head), of_head in groupby(requests, key=lambda each: each[:2]):
        items = [each[2:] for each in of_head]  # rows of the same head share its keys
        keys = key_contributions(
            out, layer, head, torch.tensor([row[:2] for name, *_ in items for row in claims[name]])
        )
        sizes = [len(claims[name]) for name, *_ in items]
        parts = zip(items, keys.values.cpu().split(sizes, 1), keys.scores.cpu().split(sizes), strict=True)
        for (name, members, alike), values, scores in parts:
            prompts, _, claimed = zip(*claims[name], strict=True)
            mask = torch.zeros(scores.shape, dtype=torch.bool)
            for row, columns in zip(mask, claimed, strict=True):
                row[list(columns)] = True
            columns = _columns(values, scores, mask, members, alike)
            empty = columns.new_zeros(int(group.max()) + 1, columns.shape[1])
            added.append(empty.index_add(0, group[list(prompts)], columns))
    return added


def _columns(
    values: Float[Tensor, "writer row key"],
    scores: Float[Tensor, "row key"],
    claimed: Bool[Tensor, "row key"],
    memberships: Bool[Tensor, "set writer"],
    sizes: Sequence[int],
) -> Float[Tensor, "row column"]:
    """For each row: 1, the advantage by writer, and the attention left on claimed keys without each set.

    In each row, a set's part is scaled to spread over the visible keys as much as that of the set at index `sizes`.
    """
    ahead, behind = (scores.masked_fill(~side, -torch.inf).softmax(-1) for side in (claimed, ~claimed))
    advantage, left = einsum(values, ahead - behind, "writer row key, row key -> row writer"), list[Tensor]()
    visible, spreads = ~scores.isneginf(), list[Tensor]()
    for members in memberships.to(values).split(max(1, _AT_ONCE // scores.numel())):
        parts = einsum(members, values, "set writer, writer row key -> set row key")
        means = parts.sum(-1, keepdim=True) / visible.sum(-1, keepdim=True)
        spreads += ((parts - means) * visible).norm(dim=-1, keepdim=True)
        rows = range(len(left), len(spreads))
        spread, wanted = (torch.stack([spreads[row] for row in each]) for each in (rows, [sizes[row] for row in rows]))
        rest = scores - parts * (wanted / spread).where(spread > _NOTHING * wanted, 0)
        left += (rest.softmax(-1) * claimed).sum(-1)
    columns = torch.cat([torch.ones_like(advantage[:, :1]), advantage, torch.stack(left, 1)], 1)
    return columns.where(columns.isfinite().all(1, keepdim=True), 0)  # attention may reach no claimed key, or no other


def _table(question: Question, sums: Sums, seed: int) -> pd.DataFrame:
    ((name, family),), n = question.families.items(), len(question.writers)
    rows, parts, left = np.split(sums, [1, 1 + n], axis=1)
    of_family = parts[:, [writer in family for writer in question.writers]].sum(1, keepdims=True)
    totals = np.hstack([parts, of_family, left[:, :2], left[:, :1] - left[:, 1:2]])
    each = estimate(totals, np.broadcast_to(rows, totals.shape), seed=seed)
    whole, size = each.value[:n].sum(), np.abs(each.value[:n]).sum()
    has_whole = size > 0 and (size + abs(whole)) / 2 >= _ONE_SIGN * size  # half of the sum is all of the larger sign
    advantage = each.value[: n + 1]
    columns = {"writer": [*question.writers, name], "members": [*question.writers, "+".join(family)]}
    columns |= {"advantage": advantage, "ci_low": each.low[: n + 1], "ci_high": each.high[: n + 1]}
    columns |= {"p": [*each.two_sided[:n], each.p[-1]], "share": advantage / whole if has_whole else np.nan}
    of_others, drawn = left[:, 2:].sum(0) / rows.sum(), question.others[0]
    removal = {"before": each.value[n + 1], "without": each.value[n + 2]}
    removal |= {"without_low": each.low[n + 2], "without_high": each.high[n + 2]}
    sizes = {len(each) for each in drawn if ".head." in "".join(family)}
    removal |= {"others": len(drawn), "others_size": sizes.pop() if len(sizes) == 1 else 0}
    removal["others_without"] = of_others.mean() if drawn else np.nan
    removal["rank"] = float((of_others <= removal["without"]).mean()) if drawn else np.nan
    table = pd.DataFrame(columns).assign(kind=["writer"] * n + ["family"], n=int(rows.sum()))
    table.loc[n, [*removal]] = [*removal.values()]
    return table.assign(**dict(zip(question._fields[:3], question, strict=False)), documents=int(each.groups.max()))

"""Why does a labelled head look at the keys of its label? By what earlier parts of the model wrote into these keys.

The advantage of a claimed key is its score less that of the other visible keys, each side weighted by attention: it
says how fast the attention on claimed keys grows with each score. Both are sums over who wrote the keys, so the
advantage is one too (`interp.attribution.keys`), in nats. What the query gives to all keys alike cancels; where keys
are rotated, even what all keys share scores by distance, and counts as its writer's.

A family is the heads before that have one label in common, or any writer alone. One half of the documents chooses the
family without whose part the attention falls most, compared with as many other heads; the other half reports.
"""

import math
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, groupby
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
from interp.statistics import Estimate, benjamini_hochberg, estimate

WRITER_COLUMNS = [
    *("stack", "attention", "layer", "head", "behaviour", "measure", "kind", "writer", "members"),
    *("advantage", "ci_low", "ci_high", "p", "q", "share", "n", "documents", "before", "without", "without_low"),
    *("without_high", "fall", "others", "others_size", "others_without", "rank", "explains"),
]
MOST_OTHERS = 100  # families of other heads, on the half that reports
_CHOOSING_OTHERS = 10  # on the half that chooses
_DOCUMENTS, _WORDS = 24, 60  # of each half, and of each document, that are read at most
_REPEATS = 16  # sequences on which induction is read
_ROWS = 8  # of a window, that one measure takes at most
_TOKENS = 1024  # that a lot reads, about
_AT_ONCE = 1 << 22  # scores without families that are held at once
_ONE_SIGN = 0.8  # of all parts without their signs: where fewer have one sign they are no shares of a whole
_RANK = 0.05  # of families of other heads, how many may leave as little
_HALF = 0.5  # of the attention: no more is left without what explains it
_HEAD = re.compile(r"\w+\.(\d+)\.head\.(\d+)")
Family = tuple[str, ...]  # writers
Claimed = Sequence[tuple[int, int, tuple[int, ...]]]  # prompt, row, claimed keys
Lot = tuple[Sequence[tuple[int, ...]], Sequence[int], Mapping[str, Claimed]]  # ids and groups of texts, by measure rows
Sums = Float[np.ndarray, "group column"]  # rows, what each writer adds, the attention that each family leaves
Memberships = Bool[Tensor, "family writer"]


class Item(NamedTuple):
    """A head and one of its measures."""

    layer: int
    head: int
    measure: str


@dataclass(frozen=True)
class _Question:
    """Of whose part of the keys it is asked: families by name, each with others of as many heads."""

    item: Item
    writers: tuple[str, ...]
    families: Mapping[str, Family]
    others: Sequence[Sequence[Family]]

    @property
    def memberships(self) -> Memberships:
        """No writer, each family, and all others."""
        members = [(), *self.families.values(), *(family for drawn in self.others for family in drawn)]
        return torch.tensor([[writer in family for writer in self.writers] for family in members])

    def chosen(self, sums: Sums, rng: random.Random) -> "_Question":
        """The family without which least is left, compared with others, and more of these."""
        before, *left = sums[:, 1 + len(self.writers) :].sum(0) / sums[:, 0].sum()
        start, excess = len(self.families), list[float]()
        for own, drawn in zip(left[:start], self.others, strict=True):
            excess.append((np.mean(left[start : start + len(drawn)]) if drawn else before) - own)
            start += len(drawn)
        name = [*self.families][int(np.argmax(excess))]
        family = self.families[name]
        return replace(self, families={name: family}, others=[others(family, self.writers, MOST_OTHERS, rng)])


def measure(
    model: Model,
    labels: pd.DataFrame,
    corpora: Mapping[str, Iterable[AnnotatedText]],
    behaviours: Sequence[str | Behaviour] | None = None,
    *,
    seed: int = 0,
    progress: lots.Progress | None = None,
) -> pd.DataFrame:
    """Who wrote what each labelled head finds: `tables/writers`, a row a head, measure and writer, and one a family.

    `advantage` is in nats, with its interval over documents; `p` is two-sided. `share` is missing where less than 80%
    of all parts have one sign. The row of `kind` family has the attention on the claimed keys `before`, and `without`
    what the family wrote into the head's keys; `p` is of this `fall`. `others` families of `others_size` other heads
    before it leave `others_without` on average, and a share of them, `rank`, as little as this one. `explains`: at most
    half is left, significantly, and at most 5% of the others leave as little. `q` is over all rows.

    Labels that are rules, and those asked at masked words, have no row.

    Args:
        model: a transformer of one stack.
        labels: as `analyses.labels.label` gives them.
        corpora: by behaviour, a corpus that can be read again.
        behaviours: those of the labels; ours by default.
        seed: of the rows and families that are drawn, and of intervals.
        progress: called with the number of lots that are read, and that of all.

    Raises:
        InputError: scores are capped, or the model has two stacks or is run by another library.
    """
    if not isinstance(model, Transformer) or len(model.config.stacks) > 1:
        raise InputError("who writes a head's keys is asked of transformers of one stack that interp itself runs")
    rows = list[dict[str, Any]]()
    for behaviour in select(behaviours).values():
        if behaviour.name in corpora:
            rows += _of_behaviour(model, labels, corpora[behaviour.name], behaviour, seed, progress)
    table = pd.DataFrame(rows, columns=WRITER_COLUMNS)
    q = benjamini_hochberg(table["p"].astype(float).fillna(1.0).to_numpy())
    holds = (table["without"] <= _HALF * table["before"]) & (table["rank"] <= _RANK) & (q < DISCOVERY)
    return table.assign(q=q, explains=holds.where(table["kind"] == "family", None))


def _of_behaviour(
    model: Transformer,
    labels: pd.DataFrame,
    corpus: Iterable[AnnotatedText],
    behaviour: Behaviour,
    seed: int,
    progress: lots.Progress | None,
) -> Iterator[dict[str, Any]]:
    known = {each.name: each for each in behaviour.measures if each.points and not each.masked}
    names = labels["label"].str.removeprefix(SET)
    rows = labels.loc[labels["measure"].isin([*known]) & ~names.str.startswith("rule:").astype(bool)]
    items = sorted({Item(*row) for row in rows[[*Item._fields]].itertuples(index=False, name=None)})
    measures = [known[name] for name in dict.fromkeys(each.measure for each in items)]
    halves = [[*_lots(model, corpus, measures, half, seed)] for half in (0, 1)]
    present = [{name for _, _, claims in half for name in claims} for half in halves]
    items = [each for each in items if all(each.measure in names for names in present)]
    if not items:
        return
    writers = {layer: _writers(model, layer, halves[0][0]) for layer in {each.layer for each in items}}
    rng, questions = random.Random(seed), list[_Question]()
    for item in items:
        named = families(labels, writers[item.layer])
        drawn = [others(family, writers[item.layer], _CHOOSING_OTHERS, rng) for family in named.values()]
        questions.append(_Question(item, writers[item.layer], named, drawn))
    chosen = [
        question.chosen(sums, rng)
        for question, sums in zip(questions, _read(model, halves[0], questions, progress), strict=True)
    ]
    place = {"stack": next(iter(model.config.stacks)), "attention": "self", "behaviour": behaviour.name}
    for question, sums in zip(chosen, _read(model, halves[1], chosen, progress), strict=True):
        yield from (place | row for row in _rows(question, sums, seed))


def families(labels: pd.DataFrame, writers: Sequence[str]) -> dict[str, Family]:
    """By label the heads among the writers that have it, the simplest label of the same heads; then each writer alone.

    What relative positions add (`distance`) is no writer.
    """
    heads = {place: name for name in writers if (place := _place(name))}
    names = [name for name in labels["label"].unique() if not name.startswith(SET) and STRATUM not in name]
    named: dict[Family, str] = {}
    for label in sorted(names, key=lambda name: (Label.parse(name).rung < 0, Label.parse(name).rung, name)):
        group = labels.loc[labels["label"] == label, ["layer", "head"]]
        having = {*group.itertuples(index=False, name=None)}
        if family := tuple(name for place, name in heads.items() if place in having):
            named.setdefault(family, label)
    for writer in writers:
        if writer != "distance":
            named.setdefault((writer,), writer)
    return {name: family for family, name in named.items()}


def others(family: Family, writers: Sequence[str], most: int, rng: random.Random) -> list[Family]:
    """Families of as many other heads, or of all where they are fewer: all there are, or so many at random."""
    rest = [name for name in writers if name not in family and _place(name)]
    size = min(len(family), len(rest))
    if math.comb(len(rest), size) <= most:
        return [*combinations(rest, size)] if size else []
    drawn = dict[Family, None]()
    while len(drawn) < most:
        drawn[tuple(sorted(rng.sample(rest, size)))] = None
    return [*drawn]


def _place(writer: str) -> tuple[int, int] | None:
    """Layer and head of a writer that is one."""
    match = _HEAD.fullmatch(writer)
    return (int(match[1]), int(match[2])) if match else None


def _lots(
    model: Transformer, corpus: Iterable[AnnotatedText], measures: Sequence[Measure], half: Any, seed: int
) -> Iterator[Lot]:
    """Texts of one half of the documents with the rows that each measure claims, and random repeats, some at a time."""
    sample = [*Sample(corpus, half, _DOCUMENTS, _WORDS)] if any(not each.corpus for each in measures) else []
    read = [(window, group_of(text.document), False) for text in sample for window in windows_of(model, text)]
    length = repeat_length(model)
    if length >= SHORTEST_REPEAT and any(each.corpus for each in measures):
        drawn = repeats(model, length, _REPEATS, seed + half)
        read += [(window, number % N_GROUPS, True) for number, window in enumerate(drawn)]
    ids, groups, claims = list[tuple[int, ...]](), list[int](), dict[str, list[Any]]()
    for window, group, is_repeat in read:
        rows = {each.name: _claimed(model, window, each, seed) for each in measures if bool(each.corpus) == is_repeat}
        if not any(rows.values()):
            continue
        if ids and (len(ids) + 1) * max(*map(len, ids), len(window.ids)) > _TOKENS:
            yield ids, groups, claims
            ids, groups, claims = [], [], {}
        for name in (name for name, of_window in rows.items() if of_window):
            claims.setdefault(name, []).extend((len(ids), row, keys) for row, keys in rows[name])
        ids, groups = [*ids, window.ids], [*groups, group]
    if ids:
        yield ids, groups, claims


def _claimed(model: Transformer, window: Window, measure: Measure, seed: int) -> list[tuple[int, tuple[int, ...]]]:
    """Some rows with the claimed keys that they see, where they see others too."""
    causal, rows = model.config.last.causal, list[tuple[int, tuple[int, ...]]]()
    for row, claimed in sorted(measure.keys_of(window).items()):
        n_visible = row + 1 if causal else len(window.ids)
        keys = tuple(sorted(key for key in claimed if key < n_visible))
        if 0 < len(keys) < n_visible:
            rows.append((row, keys))
    rng = random.Random(repr((seed, window.text.document, window.start, window.ids, measure.name)))
    return sorted(rng.sample(rows, min(_ROWS, len(rows))))


def _writers(model: Transformer, layer: int, lot: Lot) -> tuple[str, ...]:
    """The names of all that write before a layer."""
    out = run(model, TokenBatch.from_rows(lot[0][:1]).to(model.device), attribution_sites(model, layer))
    return key_contributions(out, layer, 0, torch.tensor([[0, 0]])).writers


def _read(
    model: Transformer, texts: Sequence[Lot], questions: Sequence[_Question], progress: lots.Progress | None
) -> list[Sums]:
    """What is added up of each question over some texts."""
    asked = [(each.item, each.memberships) for each in questions]
    sums = [np.zeros((N_GROUPS, 1 + sum(memberships.shape))) for _, memberships in asked]
    of_lot = [(*lot, [each for each in asked if each[0].measure in lot[2]]) for lot in texts]
    places = [[index for index, (item, _) in enumerate(asked) if item.measure in lot[2]] for lot in texts]
    for lot, here, added in zip(texts, places, lots.do(partial(_sums, model), of_lot, progress), strict=True):
        groups = np.unique(lot[1])
        for index, tensor in zip(here, added, strict=True):
            sums[index][groups] += tensor.numpy()
    return sums


def _sums(
    model: Transformer,
    ids: Sequence[tuple[int, ...]],
    groups: Sequence[int],
    claims: Mapping[str, Claimed],
    asked: Sequence[tuple[Item, Memberships]],
) -> list[Float[Tensor, "group column"]]:
    """The sums of one lot, by the groups that it has, in order."""
    sites = dict.fromkeys(site for item, _ in asked for site in attribution_sites(model, item.layer))
    out = run(model, TokenBatch.from_rows(ids).to(model.device), [*sites])
    _, group = torch.tensor(groups).unique(return_inverse=True)
    added = list[Tensor]()
    for (layer, head), items in groupby(asked, key=lambda each: each[0][:2]):
        memberships = {item.measure: each for item, each in items}
        rows = torch.tensor([row[:2] for name in memberships for row in claims[name]])
        keys = key_contributions(out, layer, head, rows)
        sizes = [len(claims[name]) for name in memberships]
        parts = zip(keys.values.cpu().split(sizes, 1), keys.scores.cpu().split(sizes), strict=True)
        for (name, of_item), (values, scores) in zip(memberships.items(), parts, strict=True):
            claimed = torch.zeros(scores.shape, dtype=torch.bool)
            for index, (_, _, columns) in enumerate(claims[name]):
                claimed[index, list(columns)] = True
            columns = _columns(values, scores, claimed, of_item)
            prompts = torch.tensor([prompt for prompt, *_ in claims[name]])
            added.append(
                columns.new_zeros(int(group.max()) + 1, columns.shape[1]).index_add(0, group[prompts], columns)
            )
    return added


def _columns(
    values: Float[Tensor, "writer row key"],
    scores: Float[Tensor, "row key"],
    claimed: Bool[Tensor, "row key"],
    memberships: Memberships,
) -> Float[Tensor, "row column"]:
    """Of each row one, the advantage by writer, and the attention on claimed keys that is left without each family."""
    ahead = [scores.masked_fill(~side, -torch.inf).softmax(-1) for side in (claimed, ~claimed)]
    sides = (ahead[0] - ahead[1]).to(values)
    counts = sides.isfinite().all(-1)  # both sides are seen: attention may reach no further than some tokens
    advantage = einsum(values, sides, "writer row key, row key -> row writer")
    members, left = memberships.to(values), list[Tensor]()
    for some in members.split(max(1, _AT_ONCE // scores.numel())):
        rest = scores - (some @ values.flatten(1)).unflatten(1, scores.shape)
        left.append((rest.softmax(-1) * claimed).sum(-1))
    columns = torch.cat([torch.ones_like(advantage[:, :1]), advantage, torch.cat(left).T], 1)
    return torch.where(counts[:, None], columns, 0.0)


def _rows(question: _Question, sums: Sums, seed: int) -> Iterator[dict[str, Any]]:
    """The rows of one head and measure."""
    (name, family), drawn = next(iter(question.families.items())), question.others[0]
    n_writers = len(question.writers)
    rows, parts, left = np.split(sums, [1, 1 + n_writers], axis=1)
    within = [writer in family for writer in question.writers]
    columns = [parts, parts[:, within].sum(1, keepdims=True), left[:, :2], left[:, :1] - left[:, 1:2]]
    totals = np.concatenate(columns, 1)
    measured = estimate(totals, np.broadcast_to(rows, totals.shape), seed=seed)
    value, whole = measured.value, float(measured.value[:n_writers].sum())
    signs = np.abs(value[:n_writers]).sum()
    is_whole = max(value[:n_writers].clip(0).sum(), -value[:n_writers].clip(None, 0).sum()) >= _ONE_SIGN * signs > 0
    common = {**question.item._asdict(), "n": int(rows.sum()), "documents": int(measured.groups.max())}
    for index, writer in enumerate([*question.writers, name]):
        is_family = index == n_writers
        yield {
            **common,
            **{"kind": "family" if is_family else "writer", "writer": writer},
            **{"members": "+".join(family) if is_family else writer, "advantage": value[index]},
            **{"ci_low": measured.low[index], "ci_high": measured.high[index]},
            **{"p": measured.p[-1] if is_family else measured.two_sided[index]},
            "share": value[index] / whole if is_whole else np.nan,
            **(_removal(measured, left[:, 2:].sum(0) / rows.sum(), drawn) if is_family else {}),
        }


def _removal(measured: Estimate, left: Float[np.ndarray, " family"], drawn: Sequence[Family]) -> dict[str, Any]:
    """What is left of the attention without a family, and without others."""
    before, without, fall = measured.value[-3:]
    return {
        **{"before": before, "without": without, "without_low": measured.low[-2], "without_high": measured.high[-2]},
        **{"fall": fall, "others": len(drawn), "others_size": len(drawn[0]) if drawn else 0},
        "others_without": left.mean() if len(left) else np.nan,
        "rank": float((left <= without).mean()) if len(left) else 0.0,
    }

"""What explains a head's attention: position, token and class, the nearest word of a class, or relation and reference?

Two models explain it, both fitted on one half of the documents and evaluated on the other. A mixture splits the
attention among rules. A conditional logit with four groups of rules gives how much of the difference from uniform
attention each group explains, beyond the groups before it and beyond all others.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import comb

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from analyses.measures.definitions import DECLARED
from analyses.measures.head_tables import Heads
from analyses.reading.windows import Batch, Progress, Reading
from analyses.scoring.collectors import refuse_unread
from analyses.scoring.named_keys import BEFORE_ALL, BEHIND_ALL, GROUPS, NAMES, TAGS, TOKEN, Pairs
from interp import AnnotatedText, InputError, Model
from interp.patterns import attention_models, group_of, pool
from interp.patterns.attention_models import VisibleKeys
from interp.statistics import estimate
from interp.tokens import NO_WORD

COLUMNS: list[str] = DECLARED["tables"]["explained"].split()
ROWS, PAIRS = 4_000, 1 << 17  # queries per half, and keys that they see, at most
LONGEST = 64  # words per stretch of text
AS_UNIFORM = 0.05  # nats: heads closer to uniform attention are not explained
UNIFORM, ALL_GROUPS = "uniform", "all"
TAG_PAIR, FORM = "tag:", "word:"  # prefixes of key properties that are no rules; only the logit uses them
_FREQUENT = 64  # pairs of tags, and forms: the most frequent ones


@dataclass(frozen=True)
class Explained:
    """The rows of `tables/explained`, and what was read and left out.

    One row per head, kind and part, all from the half that fitted nothing. `share` has a 95% interval over groups of
    documents, for a fixed fit. `kl` is KL(attention || uniform) per row, in nats.

    mixture   the share of the head's attention for a rule of `named_keys.NAMES`, or for uniform attention; shares add
              up to 1. `all` is the share of `kl` that the mixture explains. `weight` is a rule's weight relative to
              others if it names a key
    nested    the share of `kl` that a group explains beyond those before it; `all`: the share for all four
    unique    the share lost without the group
    shapley   what the group adds, on average over all orders (Shapley 1953)
    """

    table: pd.DataFrame
    counts: Mapping[str, int] = field(default_factory=dict)


def explain(
    model: Model,
    corpus: Iterable[AnnotatedText],
    *,
    heads: Heads | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Explained:
    """Fit both models to the attention of every head between the words of some stretches of text.

    Rules that need missing annotation are left out. `seed` draws the stretches and the intervals. A corpus is an
    `InputError` if it is empty, fills only one half of the documents, or has words that the model does not know.
    """
    heads, name = heads or Heads.from_model(model), getattr(corpus, "name", "texts")
    return fit_sample(model, seed, name, heads, sample(corpus, causal=heads.causal, seed=seed), progress)


def fit_sample(
    model: Model,
    seed: int,
    name: str,
    heads: Heads,
    stretches: Sequence[AnnotatedText],
    progress: Progress | None = None,
) -> Explained:
    """`explain` on stretches drawn from a corpus called `name`: one lot of work."""
    reading = Reading(model, stretches, progress, heads=heads)
    pairs, names = _visible_keys(reading)
    refuse_unread(reading.counts, name)
    if len({*(pairs.group % 2).tolist()}) < 2:
        raise InputError(f"{name}: expected documents in both halves, to fit on one and report on the other")
    table = explained(pairs, names, heads, seed=seed)
    return Explained(table.assign(corpus=name).reindex(columns=COLUMNS), dict(reading.counts))


def sample(corpus: Iterable[AnnotatedText], *, causal: bool, seed: int = 0) -> list[AnnotatedText]:
    """Stretches of at most 64 words, drawn at random: about 4,000 words of each half of the documents, or fewer.

    A stretch begins with a sentence, or right after another stretch. The queries of a half see at most 131,072 keys, so
    long stretches mean fewer words.
    """
    rng = np.random.default_rng(seed)
    halves: list[list[tuple[float, AnnotatedText, int, int]]] = [[], []]
    for text in corpus:
        half = halves[group_of(text.document) % 2]
        half += [(rng.random(), text, *ends) for ends in _stretches(text)]
        if len(half) > 2 * ROWS:
            half[:] = _first_of(half, causal)
    return [text.excerpt(*ends) for half in halves for _, text, *ends in _first_of(half, causal)]


def _stretches(text: AnnotatedText) -> Iterator[tuple[int, int]]:
    begin, length = 0, len(text.words)
    while begin < length:
        ends = [index for index in (*text.sentence_starts, length) if begin < index <= begin + LONGEST]
        end = max(ends, default=begin + LONGEST)
        yield begin, end
        begin = end


def _first_of(half: list[tuple[float, AnnotatedText, int, int]], causal: bool) -> list:
    """As many stretches as fit the limits, from the start."""
    half = sorted(half, key=lambda each: each[0])
    length = np.array([end - begin for _, _, begin, end in half])
    pairs = length * (length + 2) // (2 if causal else 1)
    return half[: int(((length.cumsum() <= ROWS) & (pairs.cumsum() <= PAIRS)).sum())]


def _visible_keys(reading: Reading) -> tuple[VisibleKeys, dict[str, str]]:
    """Attention between words with the keys that each rule names, and the group of each rule."""
    forms: dict[str, int] = {}
    parts = [part for batch in reading for part in [_words(batch, forms)] if len(part[0])]
    if not parts:
        raise InputError("no word of this text sees another: expected texts of several words")
    first = np.cumsum([0, *(len(group) for _, group, *_ in parts)]).tolist()
    row = torch.cat([part[0] + begin for part, begin in zip(parts, first, strict=False)])
    group, uniform, attention, marks, tags, form = (torch.cat(each) for each in [*zip(*parts, strict=True)][1:])
    spelled = [*forms]
    pairs = {f"{TAG_PAIR}{TAGS[pair // len(TAGS)]}->{TAGS[pair % len(TAGS)]}": pair for pair in _frequent(tags)}
    words = {f"{FORM}{spelled[index]}": index for index in _frequent(form)}
    frequent_marks = [tags == index for index in pairs.values()] + [form == index for index in words.values()]
    marks = torch.cat([marks, torch.stack(frequent_marks, 1)], 1) if frequent_marks else marks
    return VisibleKeys.from_pairs(row, group, uniform, attention, marks), NAMES | dict.fromkeys((*pairs, *words), TOKEN)


def _frequent(numbers: Int[Tensor, " pair"]) -> list[int]:
    """The most frequent numbers, except negative ones."""
    count = torch.bincount(numbers[numbers >= 0])
    return [index for index in count.argsort(descending=True, stable=True)[:_FREQUENT].tolist() if count[index]]


def _words(batch: Batch, forms: dict[str, int]) -> tuple[Tensor, ...]:
    """Each pair's item, group, uniform attention, attention, marks, tags and form, on the CPU."""
    n_words, word_of = batch.pieces.shape[1], batch.word_of
    worded = word_of != NO_WORD
    prefix, behind = (~worded).cummin(1).values, (~worded).flip(1).cummin(1).values.flip(1)
    to = torch.where(prefix, n_words, torch.where(behind, n_words + 1, torch.where(worded, word_of, n_words + 2)))
    belongs = one_hot(to, n_words + 3).to(batch.pattern).transpose(1, 2)[:, :-1]  # a token between words has none
    pooled = pool(torch.cat([batch.pattern, batch.rows.uniform], 1), belongs[:, :n_words], belongs)
    word = torch.arange(n_words, device=word_of.device)
    begin = torch.tensor([window.scored_from - window.start for window in batch.windows], device=word_of.device)
    has_rows = (word >= begin[:, None]) & (batch.pieces > 0) & ((pooled[:, -1] > 0).sum(-1) > 1)
    prompt, query = has_rows.nonzero(as_tuple=True)
    rows = pooled[prompt, :, query]
    item, key = (rows[:, -1] > 0).nonzero(as_tuple=True)
    attention = rows[item, :, key]
    ends = torch.where(key == n_words, BEFORE_ALL, BEHIND_ALL)
    pairs = Pairs(batch, prompt, query, item, torch.where(key < n_words, key, ends))
    marks = pairs.marks(), pairs.tag_pairs(), pairs.forms(forms)
    columns = item, batch.groups[prompt.cpu()], attention[:, -1], attention[:, :-1], *marks
    return tuple(each.cpu() for each in columns)


def explained(visible: VisibleKeys, groups: Mapping[str, str], heads: Heads, *, seed: int = 0) -> pd.DataFrame:
    """Fit both models on even groups of documents and report on odd ones: `COLUMNS` without the corpus.

    `groups` maps each mark to one of `GROUPS`. Only the logit uses marks of `TAG_PAIR` and `FORM`.
    """
    fitted, reported = visible.half(0), visible.half(1)
    occurs = fitted.marks.any(0).tolist()
    marks = {name: index for index, name in enumerate(groups) if occurs[index]}
    rules = {name: index for name, index in marks.items() if not name.startswith((TAG_PAIR, FORM))}
    named = [(UNIFORM, UNIFORM), *((name, groups[name]) for name in rules), (ALL_GROUPS, ALL_GROUPS)]
    members = [[index for name, index in marks.items() if groups[name] == group] for group in GROUPS]
    kl, rows = reported.below_uniform(), reported.rows()
    mean_kl = kl.sum(0) / rows.sum()
    kl = torch.where(mean_kl < AS_UNIFORM, torch.nan, kl)
    ruled, reported_rules = (each.having([*rules.values()]) for each in (fitted, reported))
    tables = [_mixture(ruled, reported_rules, kl, named, heads, seed)]
    named = [*((group, group) for group in GROUPS), (ALL_GROUPS, ALL_GROUPS)]
    for kind, totals in _by_group(fitted, reported, kl, members).items():
        wholes = kl[:, None].expand_as(totals)
        tables.append(_estimated(heads, kind, named[: totals.shape[1]], totals, wholes, seed))
    table = pd.concat(tables, ignore_index=True)
    table["kl"] = mean_kl.numpy()[table["layer"] * heads.n_heads + table["head"]]
    return table.assign(n=int(rows.sum()), documents=int((rows > 0).sum()))


def _mixture(
    fitted: VisibleKeys,
    reported: VisibleKeys,
    kl: Float[Tensor, "group head"],
    parts: Sequence[tuple[str, str]],
    heads: Heads,
    seed: int,
) -> pd.DataFrame:
    """Each rule's share of each head's attention, and what the whole mixture explains."""
    weights = attention_models.fit_mixture(fitted)
    had = attention_models.mixture_shares(reported, weights)
    totals = torch.cat([had, attention_models.mixture_gain(reported, weights)[:, None]], 1)
    rows = reported.rows()[:, None] + 0 * kl  # NaN where `kl` is
    wholes = torch.cat([rows[:, None].expand_as(had), kl[:, None]], 1)
    weight = torch.cat([weights + 0 * kl[0], torch.full_like(weights[:1], torch.nan)]).T.flatten()
    return _estimated(heads, "mixture", parts, totals, wholes, seed).assign(weight=weight.numpy())


def _by_group(
    fitted: VisibleKeys, reported: VisibleKeys, kl: Float[Tensor, "group head"], members: Sequence[Sequence[int]]
) -> dict[str, Float[Tensor, "group part head"]]:
    """What each group of marks explains, from a logit for every set of groups, started at a smaller set's fit."""
    numbers = range(len(GROUPS))
    weights: dict[tuple[int, ...], Tensor] = {(): fitted.attention.new_zeros(fitted.marks.shape[1], kl.shape[1])}
    closer: dict[tuple[int, ...], Tensor] = {(): torch.zeros_like(kl)}
    for subset in (subset for size in numbers for subset in combinations(numbers, size + 1)):
        columns = [index for group in subset for index in members[group]]
        if not columns:  # no mark of these groups occurs
            weights[subset], closer[subset] = weights[()], closer[()]
            continue
        fits, reads = (each.having(columns) for each in (fitted, reported))
        start = weights[subset[:-1]].clone()
        start[columns] = attention_models.fit_logit(fits, start=start[columns])
        weights[subset], closer[subset] = start, attention_models.logit_gain(reads, start[columns])

    def adds(group: int, to: Sequence[int]) -> Float[Tensor, "group head"]:
        return closer[tuple(sorted((*to, group)))] - closer[tuple(to)]

    other_groups = {group: tuple(each for each in numbers if each != group) for group in numbers}
    shapley = [
        sum(
            adds(group, to) / (len(GROUPS) * comb(len(GROUPS) - 1, size))
            for size in numbers
            for to in combinations(other_groups[group], size)
        )
        for group in numbers
    ]
    kinds = {
        "nested": [*(adds(group, range(group)) for group in numbers), closer[tuple(numbers)]],
        "unique": [adds(group, other_groups[group]) for group in numbers],
        "shapley": shapley,
    }
    return {kind: torch.stack(parts, 1) for kind, parts in kinds.items()}


def _estimated(
    heads: Heads,
    kind: str,
    parts: Sequence[tuple[str, str]],
    totals: Float[Tensor, "group part head"],
    wholes: Float[Tensor, "group part head"],
    seed: int,
) -> pd.DataFrame:
    """Totals as shares of wholes; `parts` has each total's name and group."""
    head_columns, part = heads.columns(len(parts))
    shares = estimate(*(each.transpose(1, 2).flatten(1).numpy() for each in (totals, wholes)), seed=seed)
    names, groups = (np.array(each, dtype=object)[part] for each in zip(*parts, strict=True))
    intervals = {"share": shares.value, "ci_low": shares.low, "ci_high": shares.high}
    return pd.DataFrame({**head_columns, "kind": kind, "part": names, "group": groups, **intervals})

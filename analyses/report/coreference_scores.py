"""What do heads reach on GAP, WinoBias and Winogender by the score of each corpus's own paper?

In all three a pronoun stands beside two names, and attention is the resolver: a head chooses the name that the pronoun
attends to more; two rules choose through the same scorer. `analyses.coreference` asks every corpus the same question
and leaves out what a model cannot see; here such a name is a miss, as in the papers, and `coverage` says how many there
are.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from scipy import stats

from analyses.collectors import refuse_unread
from analyses.corpora import Corpus
from analyses.corpora.mentions import FEMININE, MASCULINE, PLURAL, PRONOUNS
from analyses.corpora.winogender import STATISTICS, share_of_women
from analyses.measures import DECLARED
from analyses.reading.windows import Batch, Progress, Reading
from analyses.rivals.choices import Choices, Items
from analyses.tables.head_tables import Heads
from analyses.wording.head_names import head_name
from interp import AnnotatedText, InputError, Model
from interp.patterns import N_GROUPS, group_of
from interp.statistics import estimate

COLUMNS = [
    *("corpus", "paper", "score", "condition", "stack", "attention", "layer", "head", "resolver", "chosen", "half"),
    *("value", "ci_low", "ci_high", "rule", "gain", "gain_low", "gain_high", "n", "coverage"),
]
RULES = ("nearest", "first")
ALL, REPORTING = "all", "reporting"
_NONE = -1  # neither name is chosen
_FORMS = {MASCULINE: "he", FEMININE: "she", PLURAL: "they"}


class Score(NamedTuple):
    """One figure of a paper: a mean over pronouns of one condition ("" for all), or something of two such means."""

    name: str
    condition: str
    of: str  # F1, accuracy, occupation; ratio, difference: of the two conditions in `between`; pearson, spearman
    between: Sequence[str] = ("", "")
    among: str = ""  # the condition on which its head is chosen


@dataclass(frozen=True)
class Paper:
    """A corpus's own scores. Its mean, `of`, chooses the head and the rule."""

    title: str
    of: str
    scores: Sequence[Score]


PAPERS = {
    kind: Paper(each["title"], each["of"], [Score(*score) for score in each["scores"]])
    for kind, each in DECLARED["papers"].items()
}
"""By kind of corpus."""


@dataclass(frozen=True)
class PronounItem:
    """A pronoun and the two names beside it."""

    pronoun: int  # index of the pronoun among the words of its text
    names: tuple[int, int]  # indices of the names' head words, in the order of the text
    correct: tuple[bool, bool]  # whether the pronoun stands for it; neither may be right (GAP)
    occupation: int  # which of the names, 0 or 1, is the occupation (Winogender)
    cluster: str  # items of one cluster are not independent: a page, a pair of occupations, an occupation
    conditions: tuple[str, ...]


@dataclass(frozen=True)
class CoreferenceScores:
    """The rows of `tables/coreference_scores`, and what was read and left out.

    A row is a score of a head or a rule: on all documents, and on the half that chose no head and no rule. On the other
    half the chosen head has the highest F1 (GAP) or accuracy (of a type, WinoBias), and so has the chosen rule. `rule`
    is that rule and `gain` the value less the rule's, where the score is a mean. `coverage` is the share of the names
    that the pronoun can see. Intervals are at 95%, over clusters of items.
    """

    table: pd.DataFrame
    counts: Mapping[str, int]
    clusters: int


def coreference_scores(
    model: Model, corpus: Corpus, *, heads: Heads | None = None, seed: int = 0, progress: Progress | None = None
) -> CoreferenceScores:
    """Score every head, and two rules, as the corpus's own paper does; `docs/measures` has the definitions.

    Args:
        model: a transformer with a tokenizer.
        corpus: GAP, WinoBias or Winogender.
        heads: of which attention; by default that of a model of one stack.
        seed: of the intervals.
        progress: called with the number of texts read.

    Raises:
        InputError: another corpus, no pronoun beside two names, or hardly a token that the tokenizer knows.
    """
    if corpus.kind not in PAPERS:
        titles = ", ".join(paper.title for paper in PAPERS.values())
        raise InputError(f"{corpus.name}: expected {titles}; other corpora have `analyses.coreference.measure`")
    heads = heads or Heads.of(model)
    counts: Counter[str] = Counter()
    reading = Reading(model, corpus, progress, heads=heads, few_rows=True)
    parts = [part for batch in reading if (part := _choices(batch, corpus.kind, heads.causal, counts)) is not None]
    refuse_unread(reading.counts, corpus.name)
    if not parts:
        raise InputError(f"{corpus.name}: expected texts with a pronoun and two names, got none that the model reads")
    choices = _Choices.joined(parts)
    women = _share_of_women(corpus)
    if corpus.kind == "winogender":
        counts["pronouns left out of she - he: they"] = int(choices.where("they").sum())
        counts[f"correlations left out: no {STATISTICS} beside the sentences"] = int(not women)
    table = _table(choices, corpus, heads, women, seed)
    return CoreferenceScores(table, {**reading.counts, **counts}, len(set(choices.clusters)))


# Items.


def pronoun_items(text: AnnotatedText, kind: str) -> list[PronounItem]:
    """The pronouns of a text of `kind`, a key of `PAPERS`, if just two mentions stand beside them."""
    mentions = text.mentions or ()
    asking = [each for each in mentions if each.end - each.start == 1 and text.words[each.head].lower() in PRONOUNS]
    first, second, *more = [*sorted((m for m in mentions if m not in asking), key=lambda m: m.head), None, None][:3]
    if first is None or second is None or more != [None]:
        return []
    spelled = [" ".join(text.words[each.start : each.end]).lower().removeprefix("the ") for each in (first, second)]
    return [
        PronounItem(
            pronoun=pronoun.head,
            names=(first.head, second.head),
            correct=(first.chain == pronoun.chain, second.chain == pronoun.chain),
            occupation=int(second.chain == "occupation"),
            cluster=" and ".join(sorted(spelled)) if kind == "winobias" else text.document,
            conditions=(*text.conditions, sort := PRONOUNS[text.words[pronoun.head].lower()], _FORMS.get(sort, "it")),
        )
        for pronoun in asking
    ]


# Choices.


@dataclass(frozen=True)
class _Choices:
    """What every head, then every rule, chooses for every item: the first name, the second, or neither."""

    clusters: np.ndarray  # item: names
    correct: np.ndarray  # item name
    visible: np.ndarray  # item name
    occupation: np.ndarray  # item
    conditions: np.ndarray  # item: tuples
    chosen: np.ndarray  # item resolver

    @staticmethod
    def joined(parts: "Sequence[_Choices]") -> "_Choices":
        """All of the parts' items."""
        columns = zip(*(vars(part).values() for part in parts), strict=True)
        return _Choices(*(np.concatenate(column) for column in columns))

    def of(self, some: np.ndarray) -> "_Choices":
        """Some of the items."""
        return _Choices(*(values[some] for values in vars(self).values()))

    def where(self, condition: str) -> np.ndarray:
        """The items of a condition: of each that it names between commas."""
        wanted = {*filter(None, condition.split(", "))}
        return np.array([wanted.issubset(each) for each in self.conditions], dtype=bool)


def _choices(batch: Batch, kind: str, causal: bool, counts: Counter[str]) -> _Choices | None:
    """What is chosen for the items that a batch scores; None where there are none."""
    questions = [
        (prompt, window, item)
        for prompt, window in enumerate(batch.windows)
        for item in pronoun_items(window.text, kind)
        if window.scores(item.pronoun)
    ]
    without = sum(window.start == 0 and not pronoun_items(window.text, kind) for window in batch.windows)
    counts["texts left out: not a pronoun and two names"] += without
    if not questions:
        return None
    items = [item for _, _, item in questions]
    start = np.array([window.start for _, window, _ in questions])[:, None]
    names, pronoun = np.array([item.names for item in items]), np.array([[item.pronoun] for item in items])
    visible = np.array([[window.shows(name) for name in item.names] for _, window, item in questions])
    visible &= (names < pronoun) | (not causal)
    prompt = torch.tensor([prompt for prompt, _, _ in questions], device=batch.device)
    words = torch.from_numpy(np.where(visible, names - start, 0)).to(batch.device)
    word, shown = (torch.from_numpy(each).to(batch.device) for each in ((pronoun - start)[:, 0], visible))
    named = torch.zeros(len(items), batch.pieces.shape[1], dtype=torch.bool, device=batch.device)
    named = named.scatter(1, words, shown) | named.scatter(1, words.flip(1), shown.flip(1))
    on_words = Choices(Items(batch, prompt, word, torch.zeros_like(word), named, named)).on_words()
    attention = on_words.gather(2, words[:, None].expand(-1, on_words.shape[1], -1)) * shown[:, None]
    attention = attention.cpu().numpy()
    conditions = np.empty(len(items), dtype=object)
    conditions[:] = [item.conditions for item in items]
    return _Choices(
        clusters=np.array([item.cluster for item in items], dtype=object),
        correct=np.array([item.correct for item in items]),
        visible=visible,
        occupation=np.array([item.occupation for item in items]),
        conditions=conditions,
        chosen=np.stack([*_larger(attention).T, *(_larger(rule) for rule in _rules(names, pronoun, visible))], 1),
    )


def _rules(names: np.ndarray, pronoun: np.ndarray, visible: np.ndarray) -> list[np.ndarray]:
    """What each rule looks at (item name): the name nearest to the pronoun in words, the one before it if both are as
    near; and the first name of the text. Neither looks at what the model cannot see."""
    nearness = 1 / (1 + np.abs(names - pronoun) + 0.5 * (names > pronoun))
    return [nearness * visible, np.array([2.0, 1.0]) * visible]


def _larger(attention: np.ndarray) -> np.ndarray:
    """Which of two names, on the last axis, gets more; neither where both get the same, as where none gets any."""
    first, second = attention[..., 0], attention[..., 1]
    return np.where(first > second, 0, np.where(second > first, 1, _NONE)).astype(np.int8)


# Scores.


def _table(choices: _Choices, corpus: Corpus, heads: Heads, women: Mapping[str, float], seed: int) -> pd.DataFrame:
    groups = np.array([group_of(str(cluster)) for cluster in choices.clusters])
    halves = {ALL: groups >= 0, REPORTING: groups % 2 == 1}
    paper, chooses = PAPERS[corpus.kind], choices.of(groups % 2 == 0)
    where, _ = heads.columns(1)
    place = {name: pd.array([*where[name], *[pd.NA] * len(RULES)], dtype="Int64") for name in ("layer", "head")}
    named = [head_name(layer, head) for layer in range(heads.n_layers) for head in range(heads.n_heads)]
    about = {"corpus": corpus.name, "paper": paper.title, "stack": heads.stack, "attention": heads.attention, **place}
    rows = []
    for score in paper.scores:
        head, rule = _best(chooses, Score("", score.among, paper.of), heads.count)
        chosen = np.isin(np.arange(heads.count + len(RULES)), [head, rule])
        which = {**about, "resolver": [*named, *RULES], "chosen": chosen}
        for half, chosen_half in halves.items():
            if values := _scored(choices.of(chosen_half), score, rule, women, seed):
                rows.append({**which, "half": half, "score": score.name, "condition": score.condition, **values})
    if not rows:
        conditions = ", ".join(dict.fromkeys(score.among for score in paper.scores))
        raise InputError(f"{corpus.name}: expected texts of {conditions}, as the names of the files say, got none")
    return pd.concat([pd.DataFrame(row) for row in rows], ignore_index=True).reindex(columns=COLUMNS)


def _best(choices: _Choices, score: Score, n_heads: int) -> tuple[int, int]:
    """The head and the rule with the highest score."""
    total, weight = (part.sum(0) for part in _totals(choices, score))
    value = np.where(weight > 0, total / np.maximum(weight, 1), -1.0)
    return int(value[:n_heads].argmax()), n_heads + int(value[n_heads:].argmax())


def _scored(choices: _Choices, score: Score, rule: int, women: Mapping[str, float], seed: int) -> dict[str, Any] | None:
    """One score of every resolver; None where it has no item."""
    if score.of in ("pearson", "spearman"):
        return _correlated(choices, score, women)
    conditions = [condition for condition in score.between if condition] or [score.condition]
    items = np.any([choices.where(condition) for condition in conditions], axis=0)
    if not all(choices.where(condition).any() for condition in conditions):
        return None
    size = {"n": int(items.sum()), "coverage": float(choices.visible[items].mean())}
    if score.of == "ratio":
        return size | _ratio(*(each for of in score.between for each in _totals(choices, Score("", of, "F1"))))
    if score.of == "difference":
        mean = "occupation" if "she" in conditions else "accuracy"
        two = [each for of in score.between for each in _totals(choices, Score("", of, mean))]
        result = estimate(*two, seed=seed)
        return size | {"value": result.gain, "ci_low": result.low, "ci_high": result.high}
    totals = _totals(choices, score)
    alone = estimate(*totals, seed=seed)
    beside = estimate(*totals, *(each[:, [rule]].repeat(each.shape[1], 1) for each in totals), seed=seed)
    return size | {
        **{"value": alone.value, "ci_low": alone.low, "ci_high": alone.high},
        **{"rule": RULES[rule - choices.chosen.shape[1] + len(RULES)], "gain": beside.gain},
        **{"gain_low": beside.low, "gain_high": beside.high},
    }


def _totals(choices: _Choices, score: Score) -> tuple[np.ndarray, np.ndarray]:
    """What a mean divides (group resolver): F1 is 2 TP / (2 TP + FP + FN), counted over names."""
    items = choices.of(choices.where(score.condition))
    right = np.stack([(items.chosen == name) & items.correct[:, [name]] for name in (0, 1)]).any(0)
    if score.of == "F1":
        wrong = (items.chosen != _NONE) & ~right
        missed = items.correct.sum(1, keepdims=True) - right
        counted = 2.0 * right, 2.0 * right + wrong + missed
    else:
        hits = right if score.of == "accuracy" else items.chosen == items.occupation[:, None]
        counted = hits.astype(float), np.ones(hits.shape)
    totals = np.zeros((2, N_GROUPS, items.chosen.shape[1]))
    for total, part in zip(totals, counted, strict=True):
        np.add.at(total, np.array([group_of(str(each)) for each in items.clusters], dtype=int), part)
    return totals[0], totals[1]


def _ratio(a: np.ndarray, a_weights: np.ndarray, b: np.ndarray, b_weights: np.ndarray) -> dict[str, np.ndarray]:
    """The ratio of two ratios of totals; its logarithm has the delta-method error over groups, and t's interval."""
    with np.errstate(invalid="ignore", divide="ignore"):
        values = [each.sum(0) / weights.sum(0) for each, weights in ((a, a_weights), (b, b_weights))]
        of_log = [
            (each - value * weights) / each.sum(0)
            for each, value, weights in zip((a, b), values, (a_weights, b_weights), strict=True)
        ]
        n_groups = ((a_weights + b_weights) > 0).sum(0)
        error = np.sqrt(((of_log[0] - of_log[1]) ** 2).sum(0) * n_groups / (n_groups - 1))
        value, width = values[0] / values[1], np.exp(stats.t.ppf(0.975, n_groups - 1) * error)
        return {"value": value, "ci_low": value / width, "ci_high": value * width}


def _share_of_women(corpus: Corpus) -> dict[str, float]:
    """By occupation, from the file beside the sentences; nothing where there is none."""
    beside = [file.with_name(STATISTICS) for file in corpus.files[:1]] if corpus.kind == "winogender" else []
    return share_of_women(beside[0]) if beside and beside[0].is_file() else {}


def _correlated(choices: _Choices, score: Score, women: Mapping[str, float]) -> dict[str, Any] | None:
    """Over occupations, she - he with the share of women; Fisher's z interval, as Bonett & Wright (2000) have it for
    ranks. None where fewer than four occupations have both."""
    occupations = [occupation for occupation in dict.fromkeys(choices.clusters) if occupation in women]
    took = choices.chosen == choices.occupation[:, None]
    she, he = choices.where("she"), choices.where("he")
    differences, shares, items = [], [], []
    for occupation in occupations:
        of_occupation = choices.clusters == occupation
        if (of_occupation & she).any() and (of_occupation & he).any():
            differences.append(took[of_occupation & she].mean(0) - took[of_occupation & he].mean(0))
            shares.append(women[occupation])
            items.append(of_occupation & (she | he))
    if len(shares) < 4:
        return None
    x, y = np.array(differences), np.array(shares)
    rank = partial(stats.rankdata, axis=0) if score.of == "spearman" else np.asarray
    x, y = rank(x) - rank(x).mean(0), rank(y) - rank(y).mean()
    with np.errstate(invalid="ignore", divide="ignore"):
        r = (x * y[:, None]).sum(0) / np.sqrt((x**2).sum(0) * (y**2).sum())
        error = np.sqrt((1 + (r**2 / 2 if score.of == "spearman" else 0)) / (len(y) - 3))
        z, width = np.arctanh(r), stats.norm.ppf(0.975) * error
    counted = np.any(items, axis=0)
    return {
        **{"value": r, "ci_low": np.tanh(z - width), "ci_high": np.tanh(z + width)},
        **{"n": len(y), "coverage": float(choices.visible[counted].mean())},
    }

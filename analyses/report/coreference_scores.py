"""What do heads reach on GAP, WinoBias and Winogender by the score of each corpus's own paper?

In all three a pronoun comes with two names. A head chooses the name that the pronoun attends to more, and two rules
choose through the same scorer. `analyses.coreference` leaves out names that a model cannot see; here, as in the papers,
they are misses, and `coverage` counts them.
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

from analyses.corpora import Corpus
from analyses.corpora.mentions import FEMININE, MASCULINE, PLURAL, PRONOUNS
from analyses.corpora.pronoun_choices import STATISTICS, share_of_women
from analyses.execution import lots
from analyses.measures.definitions import DECLARED
from analyses.measures.head_tables import Heads
from analyses.reading.windows import Batch, Reading
from analyses.scoring.choices import Choices, Items
from analyses.scoring.collectors import lots_of, refuse_unread
from analyses.wording.head_names import head_name
from interp import AnnotatedText, InputError, Model
from interp.patterns import N_GROUPS, group_of
from interp.statistics import estimate

COLUMNS: list[str] = DECLARED["tables"]["coreference_scores"].split()
RULES = ("nearest", "first")
WHOLE, REPORTING = "all", "reporting"
_NEITHER = -1  # the choice if the pronoun attends to neither name more
_FORMS = {MASCULINE: "he", FEMININE: "she", PLURAL: "they"}


class Score(NamedTuple):
    """One score of a paper: a mean over the pronouns of one condition ("" for all), or a statistic of two means."""

    name: str
    condition: str
    kind: str  # F1, accuracy, occupation; ratio, difference: of the two `conditions`; pearson, spearman
    conditions: Sequence[str] = ("", "")
    choosing: str = ""  # the condition that chooses its head


@dataclass(frozen=True)
class CoreferenceScores:
    """The rows of `tables/coreference_scores`, and what was read and left out.

    A row is a score of one head or rule, on all documents or on the reporting half. The other half chooses the head and
    the `rule` with the highest F1 (GAP) or accuracy (per type, WinoBias). If the score is a mean, `gain` is the value
    less the rule's. `coverage` is the share of names that the pronoun can see. Intervals (95%) are over item clusters.
    """

    table: pd.DataFrame
    counts: Mapping[str, int]
    clusters: int


PAPERS: Mapping[str, Any] = DECLARED["papers"]
"""By kind of corpus: its title, its scores, and the mean (`of`) that selects the head and the rule."""


def coreference_scores(
    model: Model, corpus: Corpus, *, heads: Heads | None = None, seed: int = 0, progress: lots.Progress | None = None
) -> CoreferenceScores:
    """Score every head and two rules as the corpus's own paper does. `docs/measures` has the definitions."""
    if corpus.kind not in PAPERS:
        titles = ", ".join(paper["title"] for paper in PAPERS.values())
        raise InputError(f"{corpus.name}: expected {titles}; other corpora have `analyses.coreference.measure`")
    heads = heads or Heads.from_model(model)
    read, counts, rows = Counter[str](), Counter[str](), list[Any]()
    texts = ((each,) for each in lots_of(corpus))
    for reading, left_out, of_lot in lots.do(partial(_choose, model, heads, corpus.kind), texts, progress):
        read.update(reading)
        counts.update(left_out)
        rows += of_lot
    refuse_unread(read, corpus.name)
    if not rows:
        raise InputError(f"{corpus.name}: expected texts with a pronoun and two names, got none that the model reads")
    choices = _Choices(*map(np.array, zip(*rows, strict=True)))
    women: Mapping[str, float] = {}  # by occupation, from the file beside the sentences
    if corpus.kind == "winogender":
        file = corpus.files[0].with_name(STATISTICS) if corpus.files else None
        women = share_of_women(file) if file is not None and file.is_file() else {}
        counts["pronouns left out of she - he: they"] = int(choices.meets("they").sum())
        counts[f"correlations left out: no {STATISTICS} beside the sentences"] = int(not women)
    table = _table(choices, corpus, heads, women, seed)
    return CoreferenceScores(table, {**read, **counts}, len({*choices.cluster}))


def _choose(
    model: Model, heads: Heads, kind: str, texts: Sequence[AnnotatedText]
) -> tuple[Counter[str], Counter[str], list[list[Any]]]:
    """What was read of some texts, what was left out, and the choices, one row per item."""
    counts, reading = Counter[str](), Reading(model, texts, heads=heads, few_rows=True)
    batches = [choices for batch in reading if (choices := _choices(batch, kind, heads.causal, counts))]
    columns = [np.concatenate(parts).tolist() for parts in zip(*batches, strict=True)]
    return reading.counts, counts, [[*row] for row in zip(*columns, strict=True)]


class _Choices(NamedTuple):
    """Pronouns with two names, and what every head, then every rule, chooses for each: name 0, name 1 or neither."""

    pronoun: np.ndarray  # item: index among the words of its text
    names: np.ndarray  # item name: indices of their head words, in the order of the text
    correct: np.ndarray  # item name: whether the pronoun refers to it; both may be wrong (GAP)
    occupation: np.ndarray  # item: which of the names, 0 or 1, is the occupation (Winogender)
    cluster: np.ndarray  # item: dependent items share one: a page, a pair of occupations, or an occupation
    conditions: np.ndarray  # item: a set
    visible: np.ndarray  # item name
    choice: np.ndarray  # item resolver

    def only(self, items: np.ndarray) -> "_Choices":
        return _Choices._make(values[items] for values in self)

    @property
    def groups(self) -> np.ndarray:
        return np.array([group_of(str(cluster)) for cluster in self.cluster], dtype=int)

    def meets(self, condition: str) -> np.ndarray:
        """Which items meet a condition, that is every comma-separated part of it."""
        names = {*filter(None, condition.split(", "))}
        return np.array([names <= each for each in self.conditions], dtype=bool)


def _items(text: AnnotatedText, kind: str) -> list[tuple[Any, ...]]:
    mentions = text.mentions or ()
    pronouns = [each for each in mentions if each.end - each.start == 1 and text.words[each.head].lower() in PRONOUNS]
    names = sorted((each for each in mentions if each not in pronouns), key=lambda mention: mention.head)
    if len(names) != 2:
        return []
    spelled = [" ".join(text.words[each.start : each.end]).lower().removeprefix("the ") for each in names]
    cluster = " and ".join(sorted(spelled)) if kind == "winobias" else text.document
    heads, occupation = [each.head for each in names], int(names[1].chain == "occupation")
    items = []
    for pronoun in pronouns:
        sort = PRONOUNS[text.words[pronoun.head].lower()]
        conditions = frozenset([*text.conditions, sort, _FORMS.get(sort, "it")])
        correct = [each.chain == pronoun.chain for each in names]
        items.append((pronoun.head, heads, correct, occupation, cluster, conditions))
    return items


def _choices(batch: Batch, kind: str, causal: bool, counts: Counter[str]) -> _Choices | None:
    by_window = [(prompt, window, _items(window.text, kind)) for prompt, window in enumerate(batch.windows)]
    n_unusable = sum(window.start == 0 and not items for _, window, items in by_window)
    counts["texts left out: not a pronoun and two names"] += n_unusable
    scored = [(prompt, window, item) for prompt, window, items in by_window for item in items if window.scores(item[0])]
    if not scored:
        return None
    prompts, windows, items = zip(*scored, strict=True)
    pronoun, names, *fields = (np.array(column) for column in zip(*items, strict=True))
    start = np.array([window.start for window in windows])
    visible = np.array([[*map(window.shows, pair)] for window, pair in zip(windows, names.tolist(), strict=True)])
    visible &= (names < pronoun[:, None]) | (not causal)
    columns = np.array(prompts), pronoun - start, np.where(visible, names - start[:, None], 0), visible
    prompt, word, words, sees = (torch.from_numpy(column).to(batch.device) for column in columns)
    named = torch.zeros(len(word), batch.pieces.shape[1], dtype=torch.bool, device=batch.device)
    named = named.scatter(1, words, sees) | named.scatter(1, words.flip(1), sees.flip(1))  # unseen names are word 0
    word_scores = Choices(Items(batch, prompt, word, torch.zeros_like(word), named, named)).word_scores()
    attention = word_scores.gather(2, words[:, None].expand(-1, word_scores.shape[1], -1)) * sees[:, None]
    nearness = 1 / (1 + np.abs(names - pronoun[:, None]) + 0.5 * (names > pronoun[:, None]))  # ties go to the earlier
    rules = [nearness * visible, np.array([2.0, 1.0]) * visible]  # rules see no more than the model does
    choice = np.stack([*_larger(attention.cpu().numpy()).T, *map(_larger, rules)], 1)
    return _Choices._make([pronoun, names, *fields, visible, choice])


def _larger(attention: np.ndarray) -> np.ndarray:
    first, second = attention[..., 0], attention[..., 1]
    return np.where(first > second, 0, np.where(second > first, 1, _NEITHER)).astype(np.int8)


def _table(choices: _Choices, corpus: Corpus, heads: Heads, women: Mapping[str, float], seed: int) -> pd.DataFrame:
    paper, half = PAPERS[corpus.kind], choices.groups % 2
    choosing, halves = choices.only(half == 0), {WHOLE: choices, REPORTING: choices.only(half == 1)}
    columns, _ = heads.columns(1)
    place = {name: pd.array([*columns[name], *[pd.NA] * len(RULES)], dtype="Int64") for name in ("layer", "head")}
    names = [head_name(layer, head) for layer in range(heads.n_layers) for head in range(heads.n_heads)]
    source = {"corpus": corpus.name, "paper": paper["title"], "stack": heads.stack, "attention": heads.attention}
    scores, tables = [Score(*score) for score in paper["scores"]], []
    for score in scores:
        total, weight = (part.sum(0) for part in _totals(choosing, score.choosing, paper["of"]))
        value = np.where(weight > 0, total / np.maximum(weight, 1), -1.0)
        head, rule = int(value[: heads.count].argmax()), int(value[heads.count :].argmax())
        is_leader = np.isin(np.arange(len(value)), [head, heads.count + rule])
        rows = pd.DataFrame({**source, **place, "resolver": [*names, *RULES], "chosen": is_leader})
        for half, items in halves.items():
            if values := _scored(items, score, rule, women, seed):
                tables.append(rows.assign(half=half, score=score.name, condition=score.condition, **values))
    if not tables:
        conditions = ", ".join(dict.fromkeys(score.choosing for score in scores))
        raise InputError(f"{corpus.name}: expected texts of {conditions}, as the names of the files say, got none")
    return pd.concat(tables, ignore_index=True).reindex(columns=COLUMNS)


def _scored(choices: _Choices, score: Score, rule: int, women: Mapping[str, float], seed: int) -> dict[str, Any] | None:
    if score.kind in ("pearson", "spearman"):
        return _correlated(choices, score, women)
    conditions = [condition for condition in score.conditions if condition] or [score.condition]
    meets = [choices.meets(condition) for condition in conditions]
    if not all(items.any() for items in meets):
        return None
    items = np.any(meets, axis=0)
    size = {"n": int(items.sum()), "coverage": float(choices.visible[items].mean())}
    if score.kind in ("ratio", "difference"):
        mean = "F1" if score.kind == "ratio" else "occupation" if "she" in conditions else "accuracy"
        totals = [total for condition in score.conditions for total in _totals(choices, condition, mean)]
        if score.kind == "ratio":
            return size | _ratio(*totals)
        result = estimate(*totals, seed=seed)
        return size | {"value": result.gain, "ci_low": result.low, "ci_high": result.high}
    totals = _totals(choices, score.condition, score.kind)
    alone = estimate(*totals, seed=seed)
    paired = estimate(*totals, *(total[:, [rule - len(RULES)]] for total in totals), seed=seed)
    gain = {"rule": RULES[rule], "gain": paired.gain, "gain_low": paired.low, "gain_high": paired.high}
    return size | {"value": alone.value, "ci_low": alone.low, "ci_high": alone.high} | gain


def _totals(choices: _Choices, condition: str, mean: str) -> tuple[np.ndarray, np.ndarray]:
    """Numerator and denominator of a mean (group resolver). F1 is 2 TP / (2 TP + FP + FN), counted over names."""
    items = choices.only(choices.meets(condition))
    right = np.stack([(items.choice == name) & items.correct[:, [name]] for name in (0, 1)]).any(0)
    if mean == "F1":
        wrong = (items.choice != _NEITHER) & ~right
        missed = items.correct.sum(1, keepdims=True) - right
        parts = 2.0 * right, 2.0 * right + wrong + missed
    else:
        parts = right if mean == "accuracy" else items.choice == items.occupation[:, None], np.ones(right.shape)
    totals = np.zeros((2, N_GROUPS, items.choice.shape[1]))
    for total, part in zip(totals, parts, strict=True):
        np.add.at(total, items.groups, part)
    return totals[0], totals[1]


def _ratio(a: np.ndarray, a_weights: np.ndarray, b: np.ndarray, b_weights: np.ndarray) -> dict[str, np.ndarray]:
    """The ratio of two ratios of totals, with a t interval from the delta-method error of its logarithm over groups."""
    with np.errstate(invalid="ignore", divide="ignore"):
        x, y = a.sum(0) / a_weights.sum(0), b.sum(0) / b_weights.sum(0)
        of_log = (a - x * a_weights) / a.sum(0) - (b - y * b_weights) / b.sum(0)
        n_groups = ((a_weights + b_weights) > 0).sum(0)
        error = np.sqrt((of_log**2).sum(0) * n_groups / (n_groups - 1))
        value, width = x / y, np.exp(stats.t.ppf(0.975, n_groups - 1) * error)
        return {"value": value, "ci_low": value / width, "ci_high": value * width}


def _correlated(choices: _Choices, score: Score, women: Mapping[str, float]) -> dict[str, Any] | None:
    """Correlation over occupations of the she - he difference with the share of women. Fisher's z interval; for ranks
    as in Bonett & Wright (2000). None if fewer than four occupations have both."""
    is_occupation = choices.choice == choices.occupation[:, None]
    forms = [choices.meets(form) for form in ("she", "he")]
    she, he = (pd.DataFrame(pd.DataFrame(is_occupation[rows]).groupby(choices.cluster[rows]).mean()) for rows in forms)
    differences = she.sub(he).reindex([each for each in women if each in she.index and each in he.index])
    if len(differences) < 4:
        return None
    x, y = differences.to_numpy(), np.array([women[str(each)] for each in differences.index])
    is_rank = score.kind == "spearman"
    if is_rank:
        x, y = stats.rankdata(x, axis=0), stats.rankdata(y)
    x, y = x - x.mean(0), y - y.mean()
    with np.errstate(invalid="ignore", divide="ignore"):
        r = (x * y[:, None]).sum(0) / np.sqrt((x**2).sum(0) * (y**2).sum())
        error = np.sqrt((1 + (r**2 / 2 if is_rank else 0)) / (len(y) - 3))
        z, width = np.arctanh(r), stats.norm.ppf(0.975) * error
    counted = np.any(forms, axis=0) & np.isin(choices.cluster, differences.index)
    bounds = {"ci_low": np.tanh(z - width), "ci_high": np.tanh(z + width)}
    return {"value": r, **bounds, "n": len(y), "coverage": float(choices.visible[counted].mean())}

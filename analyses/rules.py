"""Is a head about syntax, or would the simplest rule do as well?

A head that goes from objects to their verbs may only go to the last verb. On the items where that rule and the tree
differ, a head of syntax chooses the word that the tree names; and some rule predicts the head's own choices best.
Two rules are a head's rivals: the one that is right most often, and the one that this head's choices follow best. A
head that looks from verbs to nouns may look at nouns whoever asks: its rival is itself, from words of other tags.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from analyses.findings import DISCOVERY, NOTABLE
from analyses.head_tables import Heads
from analyses.measures import Measure
from analyses.relations import NEAREST, OFFSETS, Choices, Items
from interp.patterns import N_GROUPS
from interp.patterns.tags import TagTotals
from interp.statistics import Estimate, benjamini_hochberg, estimate

RULE_COLUMNS = [
    *("stack", "attention", "layer", "head", "behaviour", "measure", "corpus", "value", "n"),
    *("rival", "rival_value", "n_differ", "documents", "target_share", "rival_share"),
    *("difference", "ci_low", "ci_high", "p"),
    *("own_rival", "own_n_differ", "own_documents", "own_difference", "own_low", "own_high", "own_p"),
    *("q", "verdict", "rule", "predicts", "predicts_low", "predicts_high", "mass"),
]
BEATS, FAILS, UNTESTED = "beats them", "does not beat them", "not testable here"
FEWEST_ITEMS, FEWEST_DOCUMENTS = 30, 8  # on which rule and tree differ: fewer tell nothing
PREDICTED, MASS = 0.7, 0.3  # of its choices that a rule must predict to name a head, and of its attention on them
AS_GOOD = 0.05  # a simpler rule that predicts this little less is the head's name
NO_RULE, RELATION, OTHERS = "no rule", "the relation itself", "words of other tags"
RULES = (*OFFSETS, *NEAREST)
MOST = 200_000  # items whose choices are kept: two bytes a head each
_NONE = -(1 << 15)  # no word
_FAR = _NONE + 1  # a rule's word where it has none: no head chooses it


class Records:
    """What heads and rules chose, item by item, as offsets in words from the word that asks."""

    def __init__(self, heads: Heads, measures: Sequence[Measure]):
        self.heads, self.measures, self.n = heads, measures, 0
        self.parts: list[tuple[Tensor, ...]] = []

    def add(self, choices: Choices) -> None:
        """The choices of one batch, the first position kept; none once there are enough."""
        if self.n >= MOST:
            return
        items, kept = choices.items, choices.kept

        def offset(words: Int[Tensor, "item any"], none: int) -> Int[Tensor, "item any"]:
            return torch.where(words < 0, none, words - items.query[:, None]).to("cpu", torch.int16)

        rules = torch.stack([rule(items) for rule in RULES], 1)
        where = items.column.cpu(), choices.batch.groups[items.prompt.cpu()]
        target, own = offset(items.target[:, None], _FAR)[:, 0], offset(rules, _FAR)
        chosen, mass = offset(kept.chosen, _NONE), kept.mass.to("cpu", torch.float16)
        self.parts.append((*where, target, own, _sought(items, rules).cpu(), chosen, mass))
        self.n += len(items)

    def rows(self, seed: int) -> list[pd.DataFrame]:
        """What is said of every head and measure, before anything is judged."""
        if not self.parts:
            return []
        measure, *columns = (torch.cat(parts).numpy() for parts in zip(*self.parts, strict=True))
        found = []
        for number, asked in enumerate(self.measures):
            own = _Choices(*(part[measure == number] for part in columns))
            chooses, reports = (own.of(own.groups % 2 == half) for half in (0, 1))
            if len(chooses.target) and len(reports.target):
                where, _ = self.heads.columns(1)
                found.append(pd.DataFrame({**where, "measure": asked.name, **_rows(chooses, reports, seed)}))
        return found


def rules_table(
    records: Records,
    lifted: Sequence[Measure],
    lifts: TagTotals,
    behaviour: str,
    corpus: str,
    *,
    seed: int = 0,
) -> pd.DataFrame:
    """One row a head and measure: the rows of `tables/rules`, of the half of the documents that chose nothing.

    **Chosen words.** A head has two rivals, both chosen on the other half. `rival` is the nearest word of a class that
    finds most of what is sought, the same for all heads; `own_rival` is the rule, fixed offsets too, that predicts this
    head's choices best. On the `n_differ` items where a rival chooses no word that is sought, `target_share` is how
    often the head chooses the target and `rival_share` how often what the rival chooses; `difference` is between the
    two, with a 95% interval over documents and a one-sided p.
    `rule` is the simplest rule (a fixed offset; the nearest word of a class; the relation itself) that predicts the
    head's choices within 0.05 of the best, and `predicts` the share that it predicts; the head has "no rule" where that
    is below 0.7, or where its choices hold less than 0.3 of its attention (`mass`).

    **Lifts.** The rival of `tag:X->Y` is the same head's lift towards Y from words of the other tags: one that likes Y
    whoever asks is not about X. `difference`, between the two lifts, must be at least 0.05.

    `q` is of the larger of the two p, over all chosen words that can be tested (30 items in 8 documents for either
    rival) and over all lifts, apart.
    """
    found = [*records.rows(seed), *_lift_rows(records.heads, lifted, lifts, seed)]
    if not found:
        return pd.DataFrame(columns=RULE_COLUMNS)
    table = pd.concat(found, ignore_index=True).reindex(columns=RULE_COLUMNS)
    fewest = table[["n_differ", "own_n_differ"]].min(axis=1), table[["documents", "own_documents"]].min(axis=1)
    p, low = table[["p", "own_p"]].max(axis=1).astype(float), table[["ci_low", "own_low"]].min(axis=1)
    tested = ((fewest[0] >= FEWEST_ITEMS) & (fewest[1] >= FEWEST_DOCUMENTS) & p.notna()).to_numpy()
    of_tags = (table["rival"] == OTHERS).to_numpy()
    q = np.full(len(table), np.nan)
    for some in (tested & ~of_tags, tested & of_tags):  # the many lifts that differ would ease the bar of relations
        q[some] = benjamini_hochberg(p.to_numpy()[some])
    enough = ~of_tags | (table["difference"] >= NOTABLE).to_numpy()
    beats = (q < DISCOVERY) & (low > 0).to_numpy() & enough
    verdict = np.where(tested, np.where(beats, BEATS, FAILS), UNTESTED)
    return table.assign(behaviour=behaviour, corpus=corpus, q=q, verdict=verdict)


def _lift_rows(heads: Heads, measures: Sequence[Measure], lifts: TagTotals, seed: int) -> list[pd.DataFrame]:
    """Lifts on the half that chose nothing, beside those from words of other tags."""
    if not measures:
        return []
    half = lifts.of(torch.arange(N_GROUPS) % 2 == 1)
    own, others = half.finish(), half.of_other_queries()
    parts = [each.flatten(1).numpy() for each in (own.scores, own.weights, others.scores, others.weights)]
    found = estimate(*parts, seed=seed)
    where, at = heads.columns(len(measures))
    n, documents = own.rows.sum(0).flatten().round(), (own.rows > 0).sum(0).flatten()
    table = pd.DataFrame(
        {
            **where,
            "measure": [measures[each].name for each in at],
            "value": found.value,
            "n": n.numpy().astype(int),
            "rival": OTHERS,
            "rival_value": found.baseline,
            "n_differ": n.numpy().astype(int),
            "documents": documents.numpy(),
            "difference": found.gain,
            "ci_low": found.low,
            "ci_high": found.high,
            "p": found.p,
        }
    )
    kept = table.loc[(table["n"] > 0) & table["value"].notna()]
    return [kept] if len(kept) else []


def _sought(items: Items, words: Int[Tensor, "item rule"]) -> Bool[Tensor, "item rule"]:
    """Whether each word is one that its query is asked for by this measure: a verb may have several auxiliaries."""
    n_prompts, n_words = items.batch.pieces.shape

    def code(word: Int[Tensor, "item any"]) -> Int[Tensor, "item any"]:
        return ((items.column * n_prompts + items.prompt) * n_words + items.query)[:, None] * n_words + word

    inside = (words >= 0) & (words < n_words)
    return inside & torch.isin(code(words), code(items.target[:, None]))


@dataclass(frozen=True)
class _Choices:
    """Items of one measure: words as offsets from the word that asks; rules are fixed offsets, then nearest words."""

    groups: np.ndarray  # item: of its document
    target: np.ndarray  # item
    rules: np.ndarray  # item rule
    sought: np.ndarray  # item rule: whether the rule's word is one that is sought
    chosen: np.ndarray  # item head
    mass: np.ndarray  # item head: the attention on what is chosen

    def of(self, some: np.ndarray) -> "_Choices":
        """Some of the items."""
        return _Choices(*(getattr(self, field.name)[some] for field in fields(self)))

    @cached_property
    def predicted(self) -> np.ndarray:
        """The share of each head's choices that each rule predicts (rule head)."""
        hits = np.stack([(self.chosen == rule[:, None]).sum(0) for rule in self.rules.T])
        return hits / np.maximum((self.chosen != _NONE).sum(0), 1)

    def over_groups(self, values: np.ndarray, weights: np.ndarray, seed: int) -> Estimate:
        """A mean of item x head, with its interval over groups of documents."""
        totals = np.zeros((2, N_GROUPS, values.shape[1]))
        np.add.at(totals[0], self.groups, values * weights)
        np.add.at(totals[1], self.groups, weights)
        return estimate(*totals, seed=seed)


def _rows(chooses: _Choices, reports: _Choices, seed: int) -> dict[str, object]:
    """What one measure's items say of every head."""
    n_heads = reports.chosen.shape[1]
    best = len(OFFSETS) + int(chooses.sought[:, len(OFFSETS) :].mean(0).argmax())
    rival, own = _against(reports, np.full(n_heads, best), seed), _against(reports, chooses.predicted.argmax(0), seed)
    return {
        "value": (reports.chosen == reports.target[:, None]).mean(0),
        "n": len(reports.target),
        "rival_value": float((reports.rules[:, best] == reports.target).mean()),
        **rival,
        "own_rival": own["rival"],
        "own_n_differ": own["n_differ"],
        "own_documents": own["documents"],
        "own_difference": own["difference"],
        "own_low": own["ci_low"],
        "own_high": own["ci_high"],
        "own_p": own["p"],
        **_followed(reports, seed),
    }


def _against(items: _Choices, rule: np.ndarray, seed: int) -> dict[str, np.ndarray]:
    """Each head beside one rule (a column of `rules` a head), where that rule chooses no word that is sought."""
    differ = ~items.sought[:, rule]  # item head
    right, theirs = items.chosen == items.target[:, None], items.chosen == items.rules[:, rule]
    found = items.over_groups(right.astype(float) - theirs, differ.astype(float), seed)
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = [(hits & differ).sum(0) / differ.sum(0) for hits in (right, theirs)]
    return {
        "rival": np.array([RULES[at].name for at in rule], dtype=object),
        "n_differ": differ.sum(0),
        "documents": np.array([len(np.unique(items.groups[own])) for own in differ.T]),
        "target_share": shares[0],
        "rival_share": shares[1],
        "difference": found.value,
        "ci_low": found.low,
        "ci_high": found.high,
        "p": found.p,
    }


def _followed(items: _Choices, seed: int) -> dict[str, object]:
    """Which rule predicts each head's choices: the simplest of those that are as good as the best."""
    relation = replace(items, rules=items.target[:, None]).predicted
    tiers = [items.predicted[: len(OFFSETS)], items.predicted[len(OFFSETS) :], relation]
    leaders = np.stack([tier.max(0) for tier in tiers])
    level = (leaders >= leaders.max(0) - AS_GOOD).argmax(0)
    words = [items.rules[:, : len(OFFSETS)], items.rules[:, len(OFFSETS) :], items.target[:, None]]
    names = [[rule.name for rule in OFFSETS], [rule.name for rule in NEAREST], [RELATION]]
    at = [int(tiers[own][:, head].argmax()) for head, own in enumerate(level)]
    follows = np.stack([words[own][:, column] for own, column in zip(level, at, strict=True)], 1)
    chose, weight = items.chosen != _NONE, items.mass.astype(float).mean(0)
    found = items.over_groups((items.chosen == follows).astype(float), chose.astype(float), seed)
    held = (found.value >= PREDICTED) & (weight >= MASS)
    rules = [names[own][column] for own, column in zip(level, at, strict=True)]
    return {
        "rule": np.where(held, rules, NO_RULE),
        "predicts": found.value,
        "predicts_low": found.low,
        "predicts_high": found.high,
        "mass": weight,
    }

"""Is a head about syntax, or does the simplest rule do as well? And could this text show the difference?

A head that looks from objects to their verbs may only look at the last verb. Items on which that rule and the tree
differ are hard. A head has two rivals: the rule that is right most often, and the rule that its choices follow best. A
head that `BEATS` them is also right more often than the first on all items; one that is `BEYOND` the rule, only on hard
items. If even a perfect head would be neither, we cannot tell (`analyses.scoring.power`). A head that looks from verbs
to nouns may look at nouns from any word: its rival is itself, from words of other tags.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import pandas as pd
import torch

from analyses.measures.definitions import DECLARED, Measure, Rival
from analyses.measures.findings import DISCOVERY, NOTABLE
from analyses.measures.head_tables import Heads
from analyses.scoring.outcomes import N_KINDS, Array, Outcomes
from analyses.scoring.power import HardItems, bar
from analyses.wording.plain_words import STRATUM
from interp.annotation import ROOT, AnnotatedText
from interp.errors import InputError
from interp.patterns import N_GROUPS
from interp.patterns.tags import TagTotals
from interp.patterns.totals import filled
from interp.statistics import Estimate, benjamini_hochberg, estimate

RULE_COLUMNS: list[str] = DECLARED["tables"]["rules"].split()
BEATS, BEYOND, CANNOT_TELL, EQUIVALENT, WORSE = "beats", "beyond the rule", "cannot tell", "equivalent", "worse"
FEWEST_ITEMS, FEWEST_DOCUMENTS = 30, 8  # hard items, and their documents: with fewer we cannot tell
PREDICTED, MASS = 0.7, 0.3  # a rule names a head if it clearly predicts this share of choices, with this much attention
AS_GOOD = 0.05  # a simpler rule names the head if it predicts at most this much less
NO_RULE, RELATION, ANTECEDENT = "no rule", "the relation itself", "the antecedent itself"
OTHERS, ANY_WORD = "words of other tags", "any->"  # `any->NOUN`: nouns, from any word
LIKED = 0.5  # share of a lift beyond 1: if other tags' words have this much, the query's tag does not matter
CAPACITY = 200_000  # items whose choices are kept, at a few bytes per head
_WORDS = ("rules", "words", "target", "kinds", "rule_kinds", "target_kind")  # fields with words or their kinds

_TESTED = ("difference", "ci_low", "own_low", "margin", "margin_low", "margin_p", "second_low", "second_p")

Pair = tuple[int, int, int, int]  # query, target, index of the measure, and the annotated word


# Pairs of words, and simple rules that may find them too.


def _offset_rule(offset: int) -> Rival:
    return Rival(f"offset {offset:+d}", lambda items: items.query + offset)


OFFSETS = tuple(map(_offset_rule, (-5, -4, -3, -2, -1, 1, 2, 3, 4, 5)))
"""Rules that look at a fixed offset in words."""
UNIFORM = Rival("uniform", None)
"""All other visible words with equal weight; it is right by chance."""
CLASSES = tuple(tuple(each.split("/")) for each in DECLARED["tags"]["classes"].split())
"""Sets of tags. A head may look at the nearest word with one of them without knowing any relation."""


def nearest(tags: Sequence[str], *, backward: bool, last_of_run: bool = False) -> Rival:
    """The rule that looks at the nearest word with one of the tags, before or after the query.

    From a run of such words it takes the nearest, or with `last_of_run` the last ("bone" in "the last dinosaur bone").
    It reads only tags; in a text without tags it finds no word.
    """
    name = f"{'last' if backward else 'next'} {'/'.join(tags)}" + " (end of its run)" * last_of_run
    return Rival(name, lambda items: items.nearest(tags, backward=backward, last_of_run=last_of_run))


NEAREST = (
    *(nearest(tags, backward=before) for tags in CLASSES for before in (True, False)),
    *(nearest(tags, backward=False, last_of_run=True) for tags in (("NOUN",), ("NOUN", "PROPN"), ("VERB", "AUX"))),
)
"""Rules that look at the nearest word of a class on one side."""
_NOUNS = ("NOUN", "PROPN", "PRON")
LADDER = (
    Rival("first noun of the sentence", lambda items: items.first(_NOUNS)),
    Rival("second-last noun", lambda items: _noun_before(items, _noun_before(items))),
    Rival("noun before the last preposition", lambda items: _noun_before(items, items.nearest(["ADP"], backward=True))),
    Rival("subject of the clause before", lambda items: items.subject_before()),
)
"""Rules that find many subjects, even with other words in between."""
BACKWARD = tuple(rule for rule in NEAREST if rule.name.startswith("last"))
"""The rules that need no later word."""


def _noun_before(items: Any, start: Array | None = None) -> Array:
    return items.nearest(_NOUNS, backward=True, start=start)


RELATIONS = tuple(DECLARED["tags"]["relations"].split())
"""The measured relations of Universal Dependencies."""
WAYS = ("dependent->head", "head->dependent")


def edges(relations: Sequence[str], ways: Sequence[str] = WAYS) -> Callable[[AnnotatedText], list[Pair]]:
    """A function that returns a text's pairs for each relation in some `WAYS`, numbered relation by relation."""
    numbers = {name: number for number, name in enumerate(relations)}

    def pairs(text: AnnotatedText) -> list[Pair]:
        rows: list[Pair] = []
        for dependent, (head, name) in enumerate(zip(text.heads or (), text.relations or (), strict=False)):
            number = numbers.get(name)
            if head != ROOT and number is not None:
                ends = {WAYS[0]: (dependent, head), WAYS[1]: (head, dependent)}
                rows += [(*ends[way], len(ways) * number + index, dependent) for index, way in enumerate(ways)]
        return sorted(rows)

    return pairs


def pairs_of(measure: Measure) -> Callable[[AnnotatedText], list[Pair]]:
    """A function that returns and checks the pairs of a measure."""

    def pairs(text: AnnotatedText) -> list[Pair]:
        assert measure.pairs is not None
        try:
            rows, n = sorted((query, target) for query, target in {*measure.pairs(text)}), len(text.words)
        except Exception as error:  # the function is the user's
            fault = f"{type(error).__name__}: {error}"
            advice = "expected a function of a text that gives pairs of word numbers"
            raise InputError(f"measure {measure.name}: {fault} (in {text.document}); {advice}") from error
        if outside := [pair for pair in rows if not all(0 <= word < n for word in pair)]:
            words = f"pairs of words 0-{n - 1} of {text.document}, got {outside[0]}"
            raise InputError(f"measure {measure.name}: expected {words}")
        return [(query, target, 0, query) for query, target in rows]

    return pairs


# The choices of heads and rules.


class Records:
    """The choices of heads and rules, item by item.

    `tiers` are the rules, simplest first: if two tiers predict a head equally well, the simpler one names it.
    """

    def __init__(self, heads: Heads, measures: Sequence[Measure], tiers: Sequence[Sequence[Rival]], itself: str):
        self.heads, self.measures, self.itself, self.n = heads, measures, itself, 0
        self.unseen = np.full(len(measures), np.nan)  # per measure, items with an invisible target; NaN: not counted
        self.rules = [rule for tier in tiers for rule in tier]
        self.names = np.array([rule.name for rule in self.rules], dtype=object)
        self.ends = np.cumsum([len(tier) for tier in tiers])
        self.parts: list[Outcomes] = []
        self.kinds = np.zeros((2, 2, len(measures), N_KINDS))  # candidates, right ones x half of the documents

    @property
    def full(self) -> bool:
        """Whether no more items are needed."""
        return self.n >= CAPACITY

    def state(self) -> list[Any]:
        """The choices, as plain values."""
        return [self.unseen, self.parts, filled(torch.from_numpy(self.kinds).flatten()), self.n]

    def merge(self, state: list[Any]) -> None:
        """Add the choices from other texts, while there is room."""
        if not self.full:
            unseen, parts, kinds, n = state
            self.unseen += unseen
            self.parts += [Outcomes(*(each.clone() for each in vars(part).values())) for part in parts]  # the file goes
            torch.from_numpy(self.kinds).flatten().index_add_(0, *kinds)
            self.n += n

    def add(self, outcomes: Outcomes, kinds: np.ndarray) -> None:
        """Add one batch's choices, with the first position, and its words of each kind (`Items.words_of_kinds`)."""
        types = {"mass": torch.float16, **dict.fromkeys(_WORDS, torch.int16)}
        self.kinds += kinds
        parts = vars(outcomes).items()
        self.parts.append(Outcomes(**{name: part.to("cpu", types.get(name, part.dtype)) for name, part in parts}))
        self.n += len(outcomes.measure)

    def rows(self, seed: int) -> list[tuple[pd.DataFrame, HardItems]]:
        """For each measure, the rows of every head before any verdict, and the hard items."""
        if not self.parts:
            return []
        choices_of_all, tables = Outcomes.joined(self.parts), []
        for number, of_measure in enumerate(self.measures):
            choices = choices_of_all.subset(choices_of_all.measure == number)
            chooses, reports = (choices.subset(choices.groups % 2 == half) for half in (0, 1))
            if len(chooses.groups) and len(reports.groups):
                head_columns, _ = self.heads.columns(1)
                share_asked = len(choices.groups) / (len(choices.groups) + self.unseen[number])
                facts = {**head_columns, "measure": of_measure.name, "asked": share_asked}
                columns, hard_items = self._rows(number, chooses, reports, seed)
                tables.append((pd.DataFrame({**facts, **columns}), hard_items))
        return tables

    def _rows(
        self, number: int, chooses: Outcomes, reports: Outcomes, seed: int
    ) -> tuple[dict[str, object], HardItems]:
        """The columns of one measure for every head, and its hard items."""
        best = chooses.strictest
        second = int(chooses.hits[~chooses.sought[:, best]].sum(0).argmax())  # the best on items where the first errs
        n_words, n_right = self.kinds[:, 0, number]  # on the choosing half
        rates = np.append((n_right + 1) / (n_words + 1), 0.0)  # add one to both, because rare kinds prove little
        hard = ~reports.sought[:, [best]]
        chosen_by = chooses.right.mean(0) - chooses.hits[:, best].mean()
        rules = np.full(reports.words.shape[1], best), chooses.predicted.argmax(0)
        rival, by_head = (self._against(reports, rule, seed) for rule in rules)
        margins = reports.right.astype(float) - reports.hits[:, [best]]
        margin = reports.over_groups(margins, np.ones_like(margins), seed)
        beyond = reports.right - rates[reports.kinds]
        chance = reports.over_groups(beyond, np.ones_like(beyond), seed)
        beside_second = reports.over_groups(
            reports.right - reports.hits[:, [second]].astype(float), np.ones_like(margins) * hard, seed
        )
        columns = {
            "value": reports.right.mean(0),
            "n": len(reports.groups),
            "rival_value": float(reports.hits[:, best].mean()),
            **_interval(margin, "margin"),
            "margin_p": margin.p,
            "choosing_margin": chosen_by,
            "headroom": float(reports.first.mean() - reports.hits[:, best].mean()),
            **rival,
            **{f"own_{name.removeprefix('ci_')}": each for name, each in by_head.items() if not name.endswith("share")},
            "second": self.names[second],
            "second_share": float(reports.hits[hard[:, 0], second].mean()) if hard.any() else np.nan,
            "second_low": beside_second.low,
            "second_p": beside_second.p,
            "chance": reports.right.mean(0) - beyond.mean(0),
            "p_chance": chance.p,
            **self._followed(chooses, reports, seed),
        }
        return columns, HardItems.of(reports, best, second, rates)

    def _against(self, items: Outcomes, rule: np.ndarray, seed: int) -> dict[str, np.ndarray]:
        """Each head against its `rule` (an index), on items where that rule chooses no target."""
        differ = ~items.sought[:, rule]  # item head
        right, rule_hits = items.right, items.words == items.rules[:, rule]
        difference = items.over_groups(right.astype(float) - rule_hits, differ.astype(float), seed)
        with np.errstate(invalid="ignore", divide="ignore"):
            shares = [(hits & differ).sum(0) / differ.sum(0) for hits in (right, rule_hits)]
        return {
            "rival": self.names[rule],
            "hard_items": differ.sum(0),
            "hard_documents": np.array([len(np.unique(items.groups[which])) for which in differ.T]),
            "target_share": shares[0],
            "rival_share": shares[1],
            **_interval(difference, "difference", "ci"),
            "p": difference.p,
        }

    def _followed(self, chooses: Outcomes, items: Outcomes, seed: int) -> dict[str, object]:
        """How well the simplest rule that is as good as the best on the choosing half predicts each head's choices."""
        right = (chooses.right & chooses.chose).sum(0) / np.maximum(chooses.chose.sum(0), 1)
        tiers = [*np.split(chooses.predicted, self.ends[:-1]), right[None]]
        leaders = np.stack([tier.max(0) for tier in tiers])
        level = (leaders >= leaders.max(0) - AS_GOOD).argmax(0)
        begins = [0, *self.ends]
        rules = [begins[tier] + int(tiers[tier][:, head].argmax()) for head, tier in enumerate(level)]
        follows = [items.right[:, head] & items.chose[:, head] if rule == len(self.names)
                  else items.words[:, head] == items.rules[:, rule] for head, rule in enumerate(rules)]  # fmt: skip
        predicted = items.over_groups(np.stack(follows, 1).astype(float), items.chose.astype(float), seed)
        mass = items.mass.astype(float).mean(0)
        is_named = (predicted.low >= PREDICTED) & (mass >= MASS)
        return {
            "rule": np.where(is_named, np.append(self.names, self.itself)[rules], NO_RULE),
            **_interval(predicted, "predicts"),
            "mass": mass,
        }


def followed(records: Sequence[Records], *arguments: Any) -> Callable[..., pd.DataFrame] | None:
    """`rules_table` of these records, computed once for each seed; None without records."""
    return cache(partial(rules_table, records, *arguments)) if records else None


def rules_table(
    records: Sequence[Records],
    behaviour: str,
    corpus: str,
    lifted: Sequence[Measure] = (),
    lifts: TagTotals | None = None,
    *,
    seed: int = 0,
) -> pd.DataFrame:
    """One row per head and measure: the rows of `tables/rules`, from the reporting half of the documents.

    `docs/negative_findings.md` describes the columns. Intervals are 95% over documents, each p is one-sided. `p_both`
    is the largest p of margin, difference and chance; `p_beyond` has `second` instead of the margin. `q` and `q_beyond`
    correct them over all testable choices, and separately over all lifts. The rival of a lift is the lift with the odds
    of the same head's words of other tags (`TagTotals.of_other_queries`).
    """
    measured = [each for records_of_kind in records for each in records_of_kind.rows(seed)]
    tables = [*(rows for rows, _ in measured), *_lift_rows(records[0].heads, lifted, lifts, seed)]
    if not tables:
        return pd.DataFrame(columns=RULE_COLUMNS)
    table = pd.concat(tables, ignore_index=True).reindex(columns=RULE_COLUMNS)
    table = table.assign(**tests(table))
    of_tags, of_words = table["rival"] == OTHERS, sum(len(rows) for rows, _ in measured)
    many = table["hard_items"] >= FEWEST_ITEMS, table["hard_documents"] >= FEWEST_DOCUMENTS
    p = [table.loc[~of_tags, name].dropna().to_numpy(dtype=float) for name in ("p_both", "p_beyond")]
    cuts = bar(p[0], DISCOVERY), bar(p[1], DISCOVERY)
    strengths = [np.full(len(rows), items.detectable(*cuts, seed)) for rows, items in measured]
    strengths.append(np.full(len(table) - of_words, np.nan))
    detectable = np.where(many[0] & many[1], np.concatenate(strengths), np.nan)
    near = np.where(of_tags, NOTABLE, np.minimum(NOTABLE, table["headroom"].astype(float) / 2))
    low, high = (table[f"margin_{end}"].fillna(table[f"ci_{end}"]).to_numpy(dtype=float) for end in ("low", "high"))
    cannot = np.where(of_tags, table["q"].isna(), np.isnan(detectable))
    rest = np.select([cannot, (low > -near) & (high < near), high < 0], [CANNOT_TELL, EQUIVALENT, WORSE], CANNOT_TELL)
    verdict = np.where(table["beats"], BEATS, np.where(table["beyond"], BEYOND, rest))
    shared = (table["predicts"] >= LIKED) & (table["predicts_low"] > 0)
    shared &= table[["value", "rival_value"]].min(axis=1) >= 1 + NOTABLE
    likes = np.where(shared & (verdict != BEATS), ANY_WORD + table["measure"].str.rpartition(">")[2], NO_RULE)
    is_more = np.isin(verdict, [BEATS, BEYOND]) | np.isnan(detectable)
    is_more |= table["measure"].str.contains(STRATUM, regex=False)  # a rule that names a head covers all its choices
    follows = table["rule"].where(~is_more | table["rule"].isin([RELATION, ANTECEDENT]), NO_RULE)
    rule = follows.where(~of_tags, pd.Series(likes, table.index))
    table = table.assign(behaviour=behaviour, corpus=corpus, detectable=detectable, verdict=verdict, rule=rule)
    return table.reindex(columns=RULE_COLUMNS)


def tests(table: pd.DataFrame) -> dict[str, np.ndarray]:
    """Which rows beat their rivals, and which are right beyond the rule: the largest of their p, and q over all rows.

    Lifts are a separate family, because many of them differ and would lower the bar for relations.
    """
    of_tags = (table["rival"] == OTHERS).to_numpy()
    fewest = [table[[name, f"own_{name}"]].min(axis=1) for name in ("hard_items", "hard_documents")]
    numbers = {name: table[name].to_numpy(dtype=float) for name in _TESTED}
    p_hard = table[["p", "own_p", "p_chance"]].max(axis=1).to_numpy(dtype=float)
    tested = ((fewest[0] >= FEWEST_ITEMS) & (fewest[1] >= FEWEST_DOCUMENTS)).to_numpy() & ~np.isnan(p_hard)
    above = np.where(of_tags, numbers["difference"], numbers["margin"]) >= NOTABLE
    holds = {
        "beats": above & ~(numbers["margin_low"] <= 0),
        "beyond": (numbers["difference"] >= NOTABLE) & (numbers["second_low"] > 0),
    }
    columns: dict[str, np.ndarray] = {}
    for verdict, p, q, other in (("beats", "p_both", "q", "margin_p"), ("beyond", "p_beyond", "q_beyond", "second_p")):
        columns[p] = np.where(tested, np.fmax(p_hard, numbers[other]), np.nan)
        columns[q] = np.full(len(table), np.nan)
        for family in (of_tags, ~of_tags):
            columns[q][family] = benjamini_hochberg(columns[p][family])
        columns[verdict] = holds[verdict] & (np.fmin(numbers["ci_low"], numbers["own_low"]) > 0)
        columns[verdict] &= columns[q] < DISCOVERY
    return columns


def plain_name(rule: object) -> str | None:
    """The label for the rule that a head follows, `rule:last VERB` or `rule:any->NOUN`; None without a rule."""
    return f"rule:{rule}" if isinstance(rule, str) and rule not in {NO_RULE, RELATION, ANTECEDENT} else None


def called_beside(label: str, row: Mapping[str, Any]) -> str | None:
    """A head's label by its row of `tables/rules`: the measure's if it beats the rules, else a plain name."""
    return label if row["verdict"] == BEATS else plain_name(row["rule"])


def _lift_rows(heads: Heads, measures: Sequence[Measure], lifts: TagTotals | None, seed: int) -> list[pd.DataFrame]:
    """Lifts on the reporting half, against lifts by the odds of words of other tags."""
    if lifts is None or not measures:
        return []
    half = lifts.of(torch.arange(N_GROUPS) % 2 == 1)
    lift_totals, rival_totals = half.finish(), half.of_other_queries()
    parts = [
        each.flatten(1).numpy()
        for each in (lift_totals.scores, lift_totals.weights, rival_totals.scores, rival_totals.weights)
    ]
    result = estimate(*parts, seed=seed)
    with np.errstate(invalid="ignore", divide="ignore"):
        beyond = [(observed - expected) / expected.sum(0) for observed, expected in (parts[2:], parts[:2])]
    shared = estimate(*beyond, present=parts[1] != 0, seed=seed)
    head_columns, column = heads.columns(len(measures))
    n, documents = lift_totals.rows.sum(0).flatten().round(), (lift_totals.rows > 0).sum(0).flatten()
    table = pd.DataFrame(
        {
            **head_columns,
            "measure": [measures[each].name for each in column],
            "value": result.value,
            "n": n.numpy().astype(int),
            "rival": OTHERS,
            "rival_value": result.baseline,
            "hard_items": n.numpy().astype(int),
            "hard_documents": documents.numpy(),
            "difference": result.gain,
            "ci_low": result.low,
            "ci_high": result.high,
            "p": result.p,
            **_interval(shared, "predicts"),
        }
    )
    with_value = table.loc[(table["n"] > 0) & table["value"].notna()]
    return [with_value] if len(with_value) else []


def _interval(mean: Estimate, name: str, prefix: str = "") -> dict[str, np.ndarray]:
    return {name: mean.value, f"{prefix or name}_low": mean.low, f"{prefix or name}_high": mean.high}

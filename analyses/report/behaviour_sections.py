"""How is the report read? Turns tables into the sentences and rows of one HTML page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pandas as pd

from analyses.experiments.experiments_section import Section as Experiments
from analyses.figures import head_name, measure_name
from analyses.findings import FEW_DOCUMENTS, FEW_ITEMS, RANKED, UNKNOWN, best, causes, notable, unit
from analyses.head_tables import Heads
from analyses.probe import Section as Probed
from analyses.report.illustrations import Drawn
from analyses.report.renderer import false_discovery_rate, image, interval, number, render

UNSURE = 0.8  # a model that answers fewer clean prompts right than this is said to
_ROWS = 10  # heads in a table
_NAMED = 4  # heads of one behaviour that a summary names
_UNITS = {
    "share": "Shares",
    "correlation": "Rank correlations",
    "lift": "Lifts: how many times what distance explains; 1 is no preference",
}
_CELL = ["stack", "attention", "layer", "head", "measure"]
_NAMES = {"position": "Position", "part-of-speech": "Part of speech and syntax", "coreference": "Coreference"}
_READOUTS = {
    "next token": "the log-probability of the next token",
    "masked word": "the log-probability of the masked word",
    "tag probe": "a probe of the word’s tag",
    "antecedent probe": "a probe of pronoun and antecedent",
}
_MEASURED = {
    "position": (
        "How much attention goes to the token before, to the first token, to earlier copies of the same token, and, "
        "on random tokens repeated once, to what followed a token the first time (induction). Each is compared with "
        "a head that looks at all visible tokens alike."
    ),
    "part-of-speech": (
        "From one end of a dependency, how often is the most attended word the other end? The baseline is the best "
        "fixed offset, such as “the next word”; lifts say how much more attention one kind of word gets from another "
        "than its distance explains (1 is none)."
    ),
    "coreference": (
        "From a pronoun, is the most attended of the mentions before it one that it stands for? The baseline is the "
        "best of five rules, such as “the nearest mention” or “the last pronoun of the same form”; to be called a "
        "coreference head, a head must beat the nearest mention on all pronouns, and the best rule where the nearest "
        "true antecedent is a name or a noun."
    ),
}


_ACROSS = (
    "Where in the source does a head look as the target is written? Monotonicity is the rank correlation, text by "
    "text, of the most attended source token with the target’s: 1 walks through the source in order. Attention to the "
    "first source token is compared with a head that looks at the whole source alike; diagonal and entropy describe."
)


@dataclass(frozen=True)
class Section:
    """One behaviour as the page shows it; `kind` says in which attention where a model has several kinds."""

    behaviour: str
    corpus: str
    generated: bool
    documents: int | None
    headline: Sequence[str]
    heads: pd.DataFrame
    effects: pd.DataFrame = field(default_factory=pd.DataFrame)
    figures: Sequence[tuple[Drawn, bytes]] = ()  # with its svg
    counts: Mapping[str, int] = field(default_factory=dict)
    not_measured: str | None = None
    kind: Heads | None = None
    own_targets: bool = True  # the corpus says what a decoder should write

    @property
    def name(self) -> str:
        """The heading."""
        return _NAMES[self.behaviour] + (f" in {self.kind.title}" if self.kind else "")

    @property
    def id(self) -> str:
        """Where links lead."""
        return "-".join([self.behaviour, *([self.kind.stack, self.kind.attention] if self.kind else [])])

    @property
    def measured(self) -> str:
        """What was measured, in plain sentences."""
        return _ACROSS if self.kind and self.kind.attention == "cross" else _MEASURED[self.behaviour]

    @cached_property
    def caveats(self) -> list[str]:
        """What makes this section's numbers less than they look."""
        found = []
        if self.kind and self.kind.stack == "decoder" and not self.own_targets:
            found.append("The texts have no targets: the decoder read each text as its own target.")
        if self.generated:
            found.append(
                "No given corpus has the annotations that this needs, so it was measured on generated stories."
            )
        if self.not_measured:
            return found
        if self.documents is not None and self.documents < FEW_DOCUMENTS:
            found.append("Fewer than 20 documents: intervals are rough, and a behaviour may be this text’s own.")
        tokens, unknown = self.counts.get("tokens", 0), self.counts.get("unknown tokens", 0)
        if unknown > UNKNOWN * tokens:
            share = f"{unknown / tokens:.0%}"
            found.append(f"{share} of the tokens of this text are unknown to the model: it read only the rest of it.")
        items = self.heads.loc[self.heads["measure"].isin(list(self.headline)) & (self.heads["sink"] == "kept")]
        fewest = items.groupby("measure", sort=False)["n"].max()
        if few := [f"{measure_name(name)} {n}" for name, n in fewest.items() if n < FEW_ITEMS]:
            found.append(f"Few items could be scored ({', '.join(few)}): such shares are rough.")
        return found

    @cached_property
    def found(self) -> list[dict[str, Any]]:
        """What attention shows: for each headline measure that any head shows, the best head and how many others."""
        rows = notable(self.heads)
        tops = [best(rows, [measure], len(rows)).to_dict("records") for measure in self.headline]
        shown = [
            {**_shown(top[0]), "others": [_head(row) for row in top[1:4]], "count": len(top)} for top in tops if top
        ]
        return shown

    @cached_property
    def closest(self) -> dict[str, str] | None:
        """Where no head stands out, the one that comes closest to its baseline."""
        top = best(self.heads, [measure for measure in self.headline if unit(measure) == "share"], 1)
        return next((_shown(row) for row in top.to_dict("records")), None)

    @property
    def n_heads(self) -> int:
        """How many heads were measured."""
        return len(self.heads[["stack", "attention", "layer", "head"]].drop_duplicates())

    @cached_property
    def tables(self) -> list[tuple[str, list[dict[str, str]]]]:
        """For each unit, the heads with the largest gains in the headline measures, findings or not."""
        ranked = self.heads.loc[self.heads["measure"].isin(list(self.headline)) & (self.heads["sink"] == "kept")]
        without = self.heads.loc[self.heads["sink"] == "removed", [*_CELL, "value"]]
        rows = ranked.merge(without.rename(columns={"value": "without"}), on=_CELL, how="left")
        of_unit = rows["measure"].map(unit)
        tops = [(_UNITS[each], rows.loc[of_unit == each].nlargest(_ROWS, "gain")) for each in RANKED]
        return [(title, [_shown(row) for row in top.to_dict("records")]) for title, top in tops if len(top)]

    @cached_property
    def baselines(self) -> tuple[list[str], list[tuple[str, list[str]]]]:
        """Every rule's value on every headline measure: the measures, and a row a rule."""
        rows = pd.DataFrame(self.heads.attrs.get("baselines", ()))
        if rows.empty:
            return [], []
        rows = rows.loc[(rows["sink"] == "kept") & rows["measure"].isin(list(self.headline))]
        measures = [measure for measure in self.headline if measure in set(rows["measure"])]
        table = rows.pivot_table(index="baseline_name", columns="measure", values="value", sort=False)[measures]
        values = [(str(name), [number(value) for value in row]) for name, row in table.iterrows()]
        return list(map(measure_name, measures)), values

    @cached_property
    def tasks(self) -> list[dict[str, Any]]:
        """The causal tests: what the model does in each, whether it was refused, and which heads carry the answer."""
        return [
            {
                "name": task["task"],
                "question": task.get("question", ""),
                "facts": [
                    (says, number(task.get(key)))
                    for key, says in (
                        ("n", "pairs"),
                        ("accuracy", "share of clean prompts answered right"),
                        ("clean", "logit difference, clean"),
                        ("corrupt", "corrupted"),
                        ("neutral", "neutral"),
                    )
                    if task.get("n") and number(task.get(key)) != "–"
                ],
                "unsure": number(task["accuracy"]) if task.get("accuracy", 1.0) < UNSURE else None,
                "refused": (task.get("refused") or "").rstrip("."),
                "causes": [_effect(row) for row in causes(self.effects, task["task"]).to_dict("records")],
                "images": [image for image in self._images if image["task"] == task["task"]],
            }
            for task in self.effects.attrs.get("tasks", ())
        ]

    @property
    def left_out(self) -> str | None:
        """Why there is no causal test, where there is none."""
        return self.effects.attrs.get("left_out")

    @property
    def images(self) -> list[dict[str, Any]]:
        """The figures of attention."""
        return [image for image in self._images if image["task"] is None]

    @cached_property
    def _images(self) -> list[dict[str, Any]]:
        return [image(drawn.figure, svg, drawn.caption) | {"task": drawn.task} for drawn, svg in self.figures]


@dataclass(frozen=True)
class LabelSection:
    """The labels as the page shows them."""

    labels: pd.DataFrame
    figures: Sequence[tuple[Drawn, bytes]] = ()  # with its svg

    @cached_property
    def rows(self) -> dict[str, list[dict[str, str]]]:
        """Labels as text, by their evidence."""
        rows: dict[str, list[dict[str, str]]] = {evidence: [] for evidence in ("both", "effect", "attention")}
        for row in self.labels.to_dict("records"):
            rows[row["evidence"]].append(
                {
                    "head": self._place(row),
                    "label": measure_name(str(row["label"])),
                    "gain": number(row["gain"], sign=True),
                    "gain_interval": interval(row["gain_low"], row["gain_high"], sign=True),
                    "effect": number(row["effect"], sign=True),
                    "effect_interval": interval(row["effect_low"], row["effect_high"], sign=True),
                    "task": _task(row),
                    "q": false_discovery_rate(row["q"]),
                    "n": number(row["n"]),
                }
            )
        return rows

    def _place(self, row: Mapping[str, Any]) -> str:
        """A head, with its kind of attention where there are several."""
        kinds = self.labels[["stack", "attention"]].drop_duplicates()
        where = "cross" if row["attention"] == "cross" else row["stack"]
        return _head(row) if len(kinds) < 2 else f"{where} {_head(row)}"

    @property
    def short(self) -> str:
        """How many labels there are, by evidence."""
        both, effect, attention = (len(self.rows[evidence]) for evidence in ("both", "effect", "attention"))
        heads = len(self.labels[["stack", "attention", "layer", "head"]].drop_duplicates())
        return (
            f"{number(heads)} heads carry labels that held on the other half of the text: {number(both)} labels with "
            f"attention and effect, {number(attention)} with attention alone, {number(effect)} with effect alone."
            f"{self._by_behaviour}"
        )

    @property
    def _by_behaviour(self) -> str:
        """How many labels each behaviour has; few heads are named, since they are lost among many."""
        said = []
        for behaviour, rows in self.labels.groupby("behaviour", sort=False):
            heads = [self._place(row) for row in rows.drop_duplicates(_CELL[:4]).to_dict("records")]
            named = f" ({', '.join(heads)})" if len(heads) <= _NAMED else ""
            said.append(f"{_NAMES[str(behaviour)].lower()} {number(len(rows))}{named}")
        return f" By behaviour: {', '.join(said)}." if said else ""

    @cached_property
    def readouts(self) -> str:
        """What the effects were read off from."""
        return " or ".join(_READOUTS.get(name, name) for name in map(str, self.labels["readout"].dropna().unique()))

    @cached_property
    def images(self) -> list[dict[str, Any]]:
        """The figures."""
        return [image(drawn.figure, svg, drawn.caption) for drawn, svg in self.figures]


def _task(row: Mapping[str, Any]) -> str:
    """What a labelled head carries of the minimal pairs that ask about the same."""
    if not isinstance(row["task"], str):
        return ""
    return f"{row['task']} {number(row['task_effect'])}"


def page(
    facts: Mapping[str, Any],
    sections: Sequence[Section],
    labels: LabelSection | None = None,
    probes: Probed | None = None,
    experiments: Experiments | None = None,
) -> str:
    """The report as one HTML file; every value is escaped."""
    parts = {"sections": sections, "labels": labels, "probed": probes, "asked": experiments}
    return render("report.html.jinja", facts=facts, counted=counts_table(sections), **parts)


def counts_table(sections: Sequence[Section]) -> list[tuple[str, list[str]]]:
    """What was read and left out: a row a count, a column a section; what is nothing everywhere is not shown."""
    whats = dict.fromkeys(what for section in sections for what in section.counts)
    rows = [(what, [section.counts.get(what) for section in sections]) for what in whats]
    always = ("unknown tokens",)
    return [(what, [*map(number, values)]) for what, values in rows if any(values) or what in always]


def _head(row: Mapping[str, Any]) -> str:
    return head_name(row["layer"], row["head"])


def _shown(row: Mapping[str, Any]) -> dict[str, str]:
    """One row of the table of heads as text."""
    return {
        "head": _head(row),
        "measure": measure_name(str(row["measure"])),
        "value": number(row["value"]),
        "without": number(row.get("without")),
        "baseline": number(row["baseline"]),
        "baseline_name": str(row["baseline_name"]),
        "gain": number(row["gain"], sign=True),
        "interval": interval(row["ci_low"], row["ci_high"], sign=True),
        "n": number(row["n"]),
        "q": false_discovery_rate(row["q"]),
    }


def _effect(row: Mapping[str, Any]) -> dict[str, Any]:
    """One head's effects in a task as text: what it restores and removes."""
    does = {"denoise": "restores", "noise": "removes"}
    return {
        "head": _head(row),
        "does": [
            (says, number(row[way]), interval(row[way + "_low"], row[way + "_high"]))
            for way, says in does.items()
            if way in row
        ],
    }

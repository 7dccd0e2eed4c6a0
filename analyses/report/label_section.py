"""How are the labels of heads told? Turns them into a line in short and a section."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import pandas as pd

from analyses import figures, plain_words
from analyses.behaviours import OURS
from analyses.figures import measure_name
from analyses.head_names import HEAD, Place, kinds
from analyses.head_tables import Heads
from analyses.headlines import ranking
from analyses.headlines.facts import Fact
from analyses.labels import Labelled
from analyses.labels.null_bars import N_COPIES
from analyses.labels.screen import Screened
from analyses.measures import Behaviour
from analyses.numerals import counted, false_discovery_rate, interval, number
from analyses.report import text_alternatives
from analyses.rivals.rules import NO_RULE, RELATION
from analyses.sections import Block, Details, Figure, Part, Section, Table, Text, bold, caveat, link, soft
from interp import Model, Transformer

_NAMED = 4  # heads of one behaviour that a summary names
_FEW = 12  # labels that are shown at once
_EVIDENCE = {
    "both": "Attention and effect",
    "effect": "Effect, though attention does not stand out",
    "attention": "Attends, but no effect that could be told from chance",
}
_MAP = (
    "what the atlas at the top says of each head, in the same order and colour, with every label of near tokens by "
    "itself. Answers to minimal pairs, such as was/were, are among it where replacing the head removes part of them; "
    "the tables below are of labels alone."
)
_SET = ["stack", "attention", "behaviour", "label", "measure"]  # of all heads at once
_COLUMNS = ["head", "label", "gain, 95% interval", "effect, 95% interval", "q", "n"]
_AGREEMENT = (
    "A dot is a head, measured on the half of the text that reports; ρ is the rank correlation over all heads. "
    "Coloured heads carry the label. Where effects were screened, those that make no label are estimates."
)
DEFINITIONS = {
    "label": (
        "Chosen on the even half of the documents, by their names, and reported on the odd half; q is over all "
        "candidates and kinds of evidence, of the larger of the two p where both kinds are claimed."
    ),
    "effect": (
        "The least of three: what hiding the claimed keys from one head costs, less the larger of what two controls "
        "cost (other keys of the same rows, and keys at the distances that are usual for the label); what an exchange "
        "of the keys’ values costs, and what their removal costs, with all weights as they are. Where hiding costs "
        "less than 0.01 nats a row, it is the effect."
    ),
    "all heads at once": (
        "The same effect, the least of the three, in every head at once that has the label by the same measure; in all "
        "of them but one, where it is smallest; and, as their rival, in as many others drawn at random (in all others "
        "where they are fewer). Where the rest lose as much without a head as with it, that head adds nothing."
    ),
}


def told(
    labelled: Labelled, model: Model, behaviours: Mapping[str, Behaviour], found: Mapping[Place, Sequence[Fact]]
) -> Part:
    """The labels as the page shows them; the map of them shows all facts `found`, as the atlas does."""
    colours = {name: behaviour.colour for name, behaviour in {**OURS, **behaviours}.items()}
    labels, read = labelled.labels, readouts(labelled.labels)
    copies = f"every one of {N_COPIES} copies of these heads whose weights were shuffled, "
    blocks: list[Block] = [
        "What each head may be called: chosen on one half of the documents, reported on the other. Attention must beat "
        f"its strictest baseline by 0.05, {copies if isinstance(model, Transformer) else ''}and the "
        f"row’s own attention with its keys permuted. An effect is the least that {read or 'the model’s own output'} "
        "loses when the keys that the label speaks of are hidden from the head (less what controls lose), exchanged or "
        "removed, and must be at least 0.01 nats a row; what a head needs without looking there more than heads that "
        "learnt nothing do is no label. A relation, tag or antecedent is named only where the head does better than "
        "simple rules; else the label is the rule that the head follows, if it "
        "follows one. Near a threshold intervals promise too much: the lucky ones passed. Heads that do the same "
        "stand in for each other, so one head’s effect is a lower bound of what the label’s heads do.",
        *_figures(labelled, model, ranking.in_order(found), colours),
    ]
    if several := together(labels):
        blocks.append(Details("What all heads of a label lose at once", [several], open=True))
    for evidence, title in _EVIDENCE.items():
        rows = labels.loc[labels["evidence"] == evidence].to_dict("records")
        if not rows:
            blocks.append(f"{title}: no head.")
            continue
        shown = evidence != "attention" or len(rows) <= _FEW
        blocks.append(Details(f"{title}: {counted(len(rows), 'label')}", [_table(rows, labels)], shown))
    if labelled.nameless:
        what = counted(labelled.nameless, "candidate")
        blocks.append(soft(f"{what} showed a measure, did not beat the simplest rules and followed none: no label."))
    blocks += [soft(_screened(name, each)) for name, each in labelled.screened.items()]
    blocks += [caveat(f"{behaviour} not labelled: {why}.") for behaviour, why in labelled.left_out.items()]
    return Part(
        sections=[Section("Labels", blocks, "labels")],
        short=[(link("Labels", "labels"), short(labels, {name: each.title for name, each in behaviours.items()}))],
        definitions=[*DEFINITIONS.items()],
        tables={"labels": labels, "evidence": labelled.evidence},
        facts={"labels_left_out": labelled.left_out, "effects_screened": _facts(labelled.screened)},
    )


def _screened(behaviour: str, found: Screened) -> str:
    """Which effects were not measured, and how many candidates that may have missed."""
    if found.measured == found.cells:
        return f"{behaviour}: all effects on the half that chooses were measured."
    return (
        f"{behaviour}: of {number(found.cells)} effects on the half that chooses {number(found.measured)} were "
        f"measured and the rest estimated. Of those, {number(found.sampled)} were drawn at random and measured: missed "
        f"candidates among them {number(found.missed)}, at 95% at most {number(found.most_missed)} of all, and nine "
        f"tenths lay within {number(found.error)} nats a row of their estimates."
    )


def _facts(screened: Mapping[str, Screened]) -> dict[str, dict[str, Any]]:
    """The same for the record."""
    return {name: {**asdict(each), "most_missed": each.most_missed} for name, each in screened.items()}


def _figures(labelled: Labelled, model: Model, facts: pd.DataFrame, colours: Mapping[str, str]) -> list[Figure]:
    """What heads of each kind of attention may be called, and effects beside attention."""
    labels, drawn, kinds = labelled.labels, [], Heads.every(model)
    for kind in kinds:
        own = facts.loc[(facts["stack"] == kind.stack) & (facts["attention"] == kind.attention)]
        if len(own):
            name = f"{kind.called}-labels" if len(kinds) > 1 else "labels"
            caption = f"{kind.title.capitalize()}; {_MAP}"
            figure = figures.label_map(own, kind.n_layers, kind.n_heads, colours=colours)
            drawn.append(Figure(name, figure, caption, text_alternatives.label_map(own, kind.count)))
    if len(labelled.evidence.dropna(subset=["gain", "effect", "label"])):
        figure = figures.attention_against_effect(labelled.evidence, labels, colours=colours)
        alt = text_alternatives.agreement(labelled.evidence, labels)
        drawn.append(Figure("agreement", figure, _AGREEMENT, alt))
    return drawn


def _table(rows: Sequence[Mapping[str, Any]], labels: pd.DataFrame) -> Table:
    beside = {"minimal pairs, share": _task, "against simple rules": _rule}
    said = {name: [tell(row) for row in rows] for name, tell in beside.items()}
    more = {name: cells for name, cells in said.items() if any(cells)}
    shown = [[*_shown(row, labels), *cells] for row, *cells in zip(rows, *more.values(), strict=True)]
    return Table([*_COLUMNS, *more], shown, "llllrr" + "w" * len(more))


def together(labels: pd.DataFrame) -> Table | None:
    """The effects of labels that several heads have: of the head that is missed most, of all and of all but one."""
    several = labels.loc[(labels["heads"] > 1) & labels["all_effect"].notna()].sort_values("effect", ascending=False)
    largest = several.drop_duplicates(_SET)
    rows = largest.sort_values("all_effect", ascending=False).to_dict("records")
    without = several.groupby(_SET)["rest_effect"].min()
    if not rows:
        return None
    signed = partial(number, sign=True)
    shown: list[list[Text]] = [
        [
            measure_name(str(row["label"])),
            number(row["heads"]),
            [f"{signed(row['effect'])} (", bold(_place(row, labels)), ")"],
            [f"{signed(row['all_effect'])} ", soft(interval(row["all_low"], row["all_high"], sign=True))],
            signed(without[*(row[name] for name in _SET)]),
            number(int(row["others"])),
            [f"{signed(row['others_effect'])} ", soft(interval(row["others_low"], row["others_high"], sign=True))],
        ]
        for row in rows
    ]
    return Table(
        ["label", "heads", "the largest effect of one", "all at once", "all but one", "others", "these at once"],
        shown,
        "lrllrrl",
    )


def _shown(row: Mapping[str, Any], labels: pd.DataFrame) -> list[Text]:
    """One label as text."""
    signed = partial(number, sign=True), partial(interval, sign=True)
    sizes: list[Text] = [
        [f"{signed[0](row[name])} ", soft(signed[1](row[f"{name}_low"], row[f"{name}_high"]))]
        for name in ("gain", "effect")
    ]
    name, q = measure_name(str(row["label"])), false_discovery_rate(row["q"])
    return [bold(_place(row, labels)), name, *sizes, q, number(row["n"])]


def _task(row: Mapping[str, Any]) -> str:
    """What a head carries of the minimal pairs that ask about the same as its label."""
    if not isinstance(row["task"], str):
        return ""
    return f"{row['task']} {number(row['task_effect'])}, {row['task_flips']:.0f} of {row['task_n']:.0f} answers change"


def _rule(row: Mapping[str, Any]) -> str:
    """Whether a head of a relation beats the simplest rules, and which rule it follows."""
    if not isinstance(row["verdict"], str):
        return ""
    follows = isinstance(row["rule"], str) and row["rule"] not in {NO_RULE, RELATION}
    return row["verdict"] + (f"; follows “{measure_name(row['rule'])}”" if follows else "")


def _place(row: Mapping[str, Any], labels: pd.DataFrame) -> str:
    """A head, with its kind of attention where there are several."""
    return Place.of(row).named(several=kinds(labels) > 1)


def short(labels: pd.DataFrame, titles: Mapping[str, str]) -> str:
    """How many labels there are, by evidence and by behaviour; few heads are named, since they are lost among many."""
    both, effect, attention = (labels["evidence"].tolist().count(evidence) for evidence in _EVIDENCE)
    heads = len(labels[HEAD].drop_duplicates())
    said = []
    for behaviour, rows in labels.groupby("behaviour", sort=False):
        own = [_place(row, labels) for row in rows.drop_duplicates(HEAD).to_dict("records")]
        named = f" ({', '.join(own)})" if len(own) <= _NAMED else ""
        said.append(f"{titles[str(behaviour)].lower()} {number(len(rows))}{named}")
    by_behaviour = f" By behaviour: {', '.join(said)}." if said else ""
    return (
        f"{counted(heads, 'head')} {'carries' if heads == 1 else 'carry'} labels that held on the other half of the "
        f"text: {counted(both, 'label')} with attention and effect, {number(attention)} with attention alone, "
        f"{number(effect)} with effect alone."
        f"{by_behaviour}"
    )


def readouts(labels: pd.DataFrame) -> str:
    """What the effects were read off from."""
    return " or ".join(plain_words.readout(name) for name in map(str, labels["readout"].dropna().unique()))

"""What does a page say of the labels of heads? Turns them into a line in short and a section."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import pandas as pd

from analyses import figures
from analyses.behaviours import OURS
from analyses.headlines import ranking
from analyses.headlines.facts import Fact
from analyses.labels import Labelled
from analyses.labels.evidence import N_COPIES
from analyses.measures.definitions import Behaviour
from analyses.measures.head_tables import Heads
from analyses.page.schema import SCHEMAS
from analyses.page.sections import Block, Details, Figure, Part, Section, Table, caveat, link, soft
from analyses.report import text_alternatives
from analyses.wording import plain_words
from analyses.wording.formats import counted, number
from analyses.wording.head_names import HEAD, Place, kinds
from analyses.wording.plain_words import TEXTS
from interp import Model, Transformer

_NAMED = 4  # heads of one behaviour that a summary names
_FEW = 12  # labels that are shown at once
_EVIDENCE = plain_words.WORDS["label_evidence"]  # titles by what labels rest on


def section(
    labelled: Labelled, model: Model, behaviours: Mapping[str, Behaviour], facts: Mapping[Place, Sequence[Fact]]
) -> Part:
    """The labels as the page shows them; the map of them shows all `facts`, as the atlas does."""
    colours = {name: behaviour.colour for name, behaviour in {**OURS, **behaviours}.items()}
    labels = labelled.labels
    copies = f"every one of {N_COPIES} copies of these heads whose weights were shuffled, "
    copies = copies if isinstance(model, Transformer) else ""
    blocks: list[Block] = [
        TEXTS["labels"].format(copies=copies, readout=readouts(labels) or "the model’s own output"),
        *_figures(labelled, model, ranking.in_order(facts), colours),
    ]
    if several := together(labels):
        blocks.append(Details("What all heads of a label lose at once", [several], open=True))
    for evidence, title in _EVIDENCE.items():
        rows = named(labels.loc[labels["evidence"] == evidence], kinds(labels) > 1).to_dict("records")
        if not rows:
            blocks.append(f"{title}: no head.")
            continue
        shown = evidence != "attention" or len(rows) <= _FEW
        schema = SCHEMAS["labels"]
        beside = [name for name in ("pairs", "rule") if any(schema.columns[name].show(row) for row in rows)]
        table = schema.page(rows, " ".join(["head label gain effect q n", *beside]))
        blocks.append(Details(f"{title}: {counted(len(rows), 'label')}", [table], shown))
    if labelled.nameless:
        what = counted(labelled.nameless, "candidate")
        blocks.append(soft(f"{what} showed a measure, did not beat the simplest rules and followed none: no label."))
    screened = {name: {**asdict(each), "most_missed": each.most_missed} for name, each in labelled.screened.items()}
    for behaviour, counts in screened.items():
        how = "all measured" if counts["measured"] == counts["cells"] else "screened"
        blocks.append(
            soft(TEXTS[how].format(behaviour=behaviour, **{name: number(each) for name, each in counts.items()}))
        )
    blocks += [caveat(f"{behaviour} not labelled: {why}.") for behaviour, why in labelled.left_out.items()]
    return Part(
        sections=[Section("Labels", blocks, "labels")],
        short=[(link("Labels", "labels"), short(labels, {name: each.title for name, each in behaviours.items()}))],
        definitions=[*plain_words.WORDS["label_terms"].items()],
        tables={"labels": labels, "evidence": labelled.evidence},
        facts={"labels_left_out": labelled.left_out, "effects_screened": screened},
    )


def _figures(labelled: Labelled, model: Model, facts: pd.DataFrame, colours: Mapping[str, str]) -> list[Figure]:
    labels, drawn, kinds = labelled.labels, [], Heads.every(model)
    for kind in kinds:
        rows = facts.loc[(facts["stack"] == kind.stack) & (facts["attention"] == kind.attention)]
        if len(rows):
            name = f"{kind.called}-labels" if len(kinds) > 1 else "labels"
            caption = f"{kind.title.capitalize()}; {TEXTS['label map']}"
            figure = figures.label_map(rows, kind.n_layers, kind.n_heads, colours=colours)
            drawn.append(Figure(name, figure, caption, text_alternatives.label_map(rows, kind.count)))
    if len(labelled.evidence.dropna(subset=["gain", "effect", "label"])):
        figure = figures.attention_against_effect(labelled.evidence, labels, colours=colours)
        alt = text_alternatives.agreement(labelled.evidence, labels)
        drawn.append(Figure("agreement", figure, TEXTS["agreement"], alt))
    return drawn


def together(labels: pd.DataFrame) -> Table | None:
    """The effects of labels that several heads have: of the head that is missed most, of all and of all but one."""
    several = labels.loc[(labels["heads"] > 1) & labels["all_effect"].notna()].sort_values("effect", ascending=False)
    if several.empty:
        return None
    key = [*SCHEMAS["together"].key]
    several = named(several.assign(least_rest=several.groupby(key)["rest_effect"].transform("min")), kinds(labels) > 1)
    largest = several.drop_duplicates(key).sort_values("all_effect", ascending=False)
    return SCHEMAS["together"].page(largest.to_dict("records"), "label heads effect all rest others these")


def named(rows: pd.DataFrame, several: bool) -> pd.DataFrame:
    """Rows of heads with their names, with their kind of attention where there are `several`."""
    return rows.assign(name=[Place.of(row).named(several=several) for row in rows.to_dict("records")])


def short(labels: pd.DataFrame, titles: Mapping[str, str]) -> str:
    """How many labels there are, by evidence and by behaviour; few heads are named, since they are lost among many."""
    both, effect, attention = (labels["evidence"].tolist().count(evidence) for evidence in _EVIDENCE)
    heads, said = len(labels[HEAD].drop_duplicates()), []
    for behaviour, rows in named(labels, kinds(labels) > 1).groupby("behaviour", sort=False):
        names = rows["name"].unique()
        which = f" ({', '.join(names)})" if len(names) <= _NAMED else ""
        said.append(f"{titles[str(behaviour)].lower()} {number(len(rows))}{which}")
    carry = f"{counted(heads, 'head')} {'carries' if heads == 1 else 'carry'}"
    numbers = {"both": counted(both, "label"), "attention": number(attention), "effect": number(effect)}
    return TEXTS["labels short"].format(carry=carry, **numbers) + (f" By behaviour: {', '.join(said)}." if said else "")


def readouts(labels: pd.DataFrame) -> str:
    """What the effects were read off from."""
    return " or ".join(plain_words.readout(name) for name in map(str, labels["readout"].dropna().unique()))

"""The page of `interp suite`: facts with example sentences first, then the map, then numbers."""

from collections import Counter
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

import pandas as pd

from analyses import figures
from analyses.corpora import Corpus
from analyses.measures.findings import both_ways
from analyses.page import sections as doc
from analyses.page.sections import SCHEMAS, Page, Section, Source
from analyses.suites.contrasts import PARTS
from analyses.suites.knowledge import NOT_TESTABLE, PASSED
from analyses.suites.suite_run import Found
from analyses.wording import plain_words
from analyses.wording.formats import counted, number, percent
from analyses.wording.head_names import head_name

_WORDS: Mapping[str, Any] = plain_words.WORDS["suite"]
_TEXTS: Mapping[str, str] = _WORDS["texts"]
_HEADS = 3  # per sentence
_CELL = ["paradigm", "layer", "head"]
_TABLES = {"sets": "transfer"}  # section: the table it shows, if another


def page(found: Found, model: Mapping[str, Any], corpora: Sequence[Corpus] = ()) -> Page:
    """The page of a run; `model` is as in run.json, `corpora` are the texts of the n-gram rivals."""
    heads = found.tables.get("suite_heads")
    drawn = [] if heads is None else [doc.drawing("suite_map", figures.suite_map(heads))]
    rows = found.accuracy.set_index("name")
    facts = [fact(found, {**rows.loc[name], "name": name}) for name in found.examples]
    short = [("Suite", sentence(found)), *([("Not passed", doc.Bullets(found.others))] if found.others else [])]
    sections = []
    for name, title in _WORDS["sections"].items():
        if rows := _rows(found, name):
            schema = SCHEMAS[f"suite_{_TABLES.get(name, name)}"]
            table = schema.page(rows, _WORDS["shown"][name], _TEXTS.get(f"{name} caption", ""))
            long = len(rows) > len(found.accuracy)
            sections.append(Section(title, [doc.Details(counted(len(rows), "row"), [table]) if long else table], name))
    reading = [doc.Definitions([*_WORDS["definitions"].items()], "terms")]
    counts = [f"{name}: {n} {why}" for name, each in found.left_out.items() for why, n in each.items() if n]
    left_out = {"files": found.suite.left_out, "contrasts": found.left_out, "untested": found.untested}
    return Page(
        title=f"Which heads of {model['name']} know this grammar?",
        overview=[doc.bold(sentence(found)), *([Section(_TEXTS["facts"], facts)] if facts else []), *drawn],
        summary=[doc.Definitions(short)],
        sections=[*sections, Section("How to read this", reading, "reading")],
        corpora=[Source(each, "whose n-grams are rivals", {}) for each in corpora],
        method=[("suite", found.suite.name), ("left out", "; ".join(counts) or "nothing")],
        tables=found.tables,
        facts={"suite": {"name": found.suite.name, "left_out": left_out}},
    )


def sentence(found: Found) -> str:
    """How many paradigms the model passes, and which heads carry them."""
    passed, of = [*found.accuracy["verdict"]].count(PASSED), counted(len(found.accuracy), "paradigm")
    counts = Counter(head_name(*place) for place in zip(found.named["layer"], found.named["head"], strict=True))
    heads = [f"{head} carries {number(n) if passed > 1 else 'it'}" for head, n in counts.most_common(_HEADS)]
    heads[:1] = [f"{each}{' of them' * (passed > 1)}" for each in heads[:1]]
    if {*found.accuracy["verdict"]} == {NOT_TESTABLE}:
        return f"None of {of} is testable, so no head is named."
    return f"The model passes {number(passed) if passed else 'none'} of {of}; {', '.join(heads) or 'no head is named'}."


def fact(found: Found, row: Mapping[str, Any]) -> Section:
    """A paradigm's example with the differing words marked, what the model prefers, and which heads carry it."""
    example, sides = found.examples[row["name"]], []
    kind = "answers" if example.wrong else "sentences"
    texts = [side.text.split() for side in (example.clean, example.corrupt)]
    changes = [each[1:] for each in SequenceMatcher(None, *texts, autojunk=False).get_opcodes() if each[0] != "equal"]
    for words, at, side in zip(texts, (0, 2), _WORDS["sides"][kind], strict=True):
        marked = {n for change in changes for n in range(*change[at : at + 2])}
        sides.append((side, [doc.Tokens([(" " * (n > 0) + word, n in marked) for n, word in enumerate(words)])]))
    shares = {"share": percent(row["accuracy"]), "theirs": percent(row[row["rival"]])}
    preference = _TEXTS[kind].format(**shares, n=number(int(row["n"])), rival=_WORDS["rivals"][row["rival"]])
    heads = found.named.loc[found.named["paradigm"] == row["name"]].head(_HEADS).to_dict("records")
    texts = [_head_sentence(found, each) for each in heads] or [_TEXTS["no head"]]
    about = "".join(f", {row[name]}" for name in ("phenomenon", "field") if row[name]).replace("_", " ")
    return Section(f"{row['name']}{about}", [doc.Definitions(sides, "facts"), " ".join([preference, *texts])])


def _head_sentence(found: Found, head: Mapping[str, Any]) -> str:
    """What a head carries, and where it looks."""
    counts = {name: int(head[name]) for name in ("flips", "n")}
    words = {"head": head_name(head["layer"], head["head"]), "share": percent(head["effect"]), **counts}
    text = _TEXTS[head["intervention"]].format(**words)
    for row in _records(found, "attention"):
        if all(row[name] == head[name] for name in _CELL):
            shares = {"value": percent(row["value"]), "right": percent(row["rule_value"])}
            text += f" {_TEXTS['looks'].format(**shares, rule=row['rule'])}"
    return text


def _records(found: Found, name: str) -> list[dict[str, Any]]:
    return found.tables.get(f"suite_{name}", pd.DataFrame()).to_dict("records")


def _rows(found: Found, name: str) -> list[dict[str, Any]]:
    """The rows of a section. `heads` has only carriers; `sets` has each paradigm's own set, `transfer` the others."""
    if name == "accuracy":
        return found.accuracy.to_dict("records")
    if name == "heads":
        ways = both_ways(found.tables["suite_heads"]) if len(found.named) else found.named
        return found.named[[*_CELL, "q"]].merge(ways, on=_CELL).to_dict("records") if len(ways) else []
    rows = _records(found, _TABLES.get(name, name))
    if name in {"sets", "transfer"}:
        return [row for row in rows if (row["chosen_on"] == row["paradigm"]) == (name == "sets")]
    return [{**row, "part": PARTS.get(row.get("part", ""), "")} for row in rows]

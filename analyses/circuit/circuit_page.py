"""The page of `interp circuit`: one sentence, the curve, the drawn circuit, and which members are needed."""

import math
from collections.abc import Mapping
from typing import Any

from analyses import figures
from analyses.circuit.circuit_run import STABLE, Found
from analyses.page import sections as doc
from analyses.page.sections import SCHEMAS, Page, Section
from analyses.page.wiring import MOST, edge_name, wiring
from analyses.wording import plain_words
from analyses.wording.formats import counted, number, percent

_WORDS: Mapping[str, Any] = plain_words.WORDS["circuit"]
_TEXTS: Mapping[str, str] = _WORDS["texts"]
_SHOWN, _LONGEST = 3, 160  # pairs on the page and members in its summary, and letters per prompt


def page(found: Found, model: Mapping[str, Any]) -> Page:
    """The page of a run; `model` is as in run.json."""
    facts, source = found.facts, found.prompts.source
    table = SCHEMAS["circuit_edges"].page(_members(found), "edge score sign_share needed", _TEXTS["edges"])
    tests = [{**row, **_words(row)} for row in found.tests.to_dict("records")]
    tables = {"circuit_edges": found.edges, "circuit_curve": found.curve, "circuit_tests": found.tests}
    file = [f"{source['file']}, SHA-256 ", doc.code(source["sha256"])] if source["file"] else found.prompts.name
    return Page(
        title=f"Which {facts['kind']} of {model['name']} do this task?",
        overview=[doc.bold(sentence(found)), *_prompts(found), *blocks(found, "circuit_curve", with_rows=True)],
        summary=[doc.Definitions([*short(found).items()])],
        sections=[
            Section("What of it is needed", [SCHEMAS["circuit_tests"].page(tests, "test value member p n")], "needed"),
            Section(f"The circuit’s {facts['kind']}", [table], "edges"),
            Section("How to read this", [doc.Definitions([*_WORDS["definitions"].items()], "terms")], "reading"),
        ],
        method=[("prompts", file), ("method", f"{facts['method']}, ablation {facts['ablation']}")],
        tables={**tables, "pairs": found.prompts.table},
        facts={"prompts": source, "circuit": {**facts}},
    )


def sentence(found: Found) -> str:
    """How many edges do what share of the task, and what random circuits do."""
    facts = found.facts
    size, of = number(facts["size"]), counted(facts["of"], facts["kind"][:-1])
    share, random = _share(facts["alone"]), percent(facts["random"][0])
    does = "does" if facts["size"] == 1 else "do"
    return f"{size} of {of} {does} {share} of the task; random circuits of that size do {random}."


def short(found: Found) -> dict[str, str]:
    """The sentence and further facts about the circuit, by heading."""
    facts, kind = found.facts, found.facts["kind"]
    sides = [_TEXTS["side"].format(**facts[side]) for side in ("choose", "report")]
    first = f"{sentence(found)} Strongest: {', '.join(row['edge'] for row in _members(found)[:_SHOWN])}."
    lines = {"Circuit": first, "Prompts": _TEXTS["sides"].format(*sides, share=percent(facts["share"]))}
    lines["Without it"] = _TEXTS["without"].format(_share(facts["without"]))
    numbers = {"kept": number(facts["kept"]), "size": number(facts["size"]), "stable": percent(STABLE), "kind": kind}
    lines["Stable"] = _TEXTS["stable"].format(**numbers, alone=_share(facts["stable"]))
    if "needed" in facts:
        lines["Needed"] = _TEXTS["needed"].format(**numbers, needed=number(facts["needed"]))
    elif "untested" in facts:
        lines["Needed"] = _TEXTS["untested"].format(facts["untested"])
    areas = [(name.upper(), map(number, area)) for name, area in facts["areas"].items()]
    if areas:
        lines["Areas"] = f"{', '.join(f'{name} {value} (95% {low} to {high})' for name, (value, low, high) in areas)}."
    return lines


def blocks(found: Found, name: str, *, with_rows: bool) -> list[doc.Block]:
    """The curve, and the drawn circuit."""
    members, kind = _members(found), found.facts["kind"]
    caption = _TEXTS["nodes drawn" if kind == "nodes" else "drawn"]
    if len(members) > MOST:
        caption += " " + _TEXTS["strongest"].format(MOST, number(len(members)))
    drawn = [wiring(members, caption, with_rows=with_rows)] if members else []
    return [doc.drawing(name, figures.circuit_curve(found.curve, kind)), *drawn]


def _words(test: Mapping[str, Any]) -> dict[str, str]:
    name, member = "", test.get("member")
    if isinstance(member, str):
        name = edge_name(dict(zip(("sender", "receiver"), member.split(" -> ")[-2:], strict=False)))
    return {"test": _WORDS["tests"][test["test"]], "member": name}


def _members(found: Found) -> list[dict[str, Any]]:
    """The rows of the circuit's edges or nodes, strongest first."""
    rows = found.edges.loc[found.edges["in_circuit"]]
    rows = rows.iloc[(-rows["score"].abs()).argsort(kind="stable")].to_dict("records")
    return [{**row, "edge": edge_name(row)} for row in rows]


def _prompts(found: Found) -> list[doc.Block]:
    terms: list[tuple[doc.Block, ...]] = []
    for row in found.prompts.table.head(_SHOWN).to_dict("records"):
        for side, answer in (("clean", "answer"), ("corrupt", "wrong")):
            text = row[side] if len(row[side]) <= _LONGEST else f"… {row[side][-_LONGEST:]}"
            terms.append(([side, " → ", doc.bold(str(row[answer]).strip())], text))
    return [doc.Definitions(terms, "facts")]


def _share(bounds: Any) -> str:
    value, low, high = bounds
    return percent(value) + (f" (95% {percent(low).rstrip('%')} to {percent(high)})" if math.isfinite(low) else "")

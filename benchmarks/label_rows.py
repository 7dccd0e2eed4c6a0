"""The table of `docs/labels.md`: what `benchmarks.labels` counts, in words."""

from collections.abc import Mapping, Sequence
from typing import Any

_NAMED = "{named:.1%} of {heads}: {meaning}"
ROWS = {  # of the table in docs/labels.md, by kind: what is counted, what was found, and the target
    "planted": (
        (
            "planted heads that carry their label, or one that the text cannot tell from it",
            "{found:.1%} of {heads}, in {models} models",
            "at least 99%",
        ),
        ("labels that are neither", "{false:.1%} of {labels}", "at most 5%"),
        ("coreference or syntax said of impostors (nearest noun, same form, fixed offset)", "{impostors}", "none"),
    ),
    "rungs": (
        (
            "planted heads of every rung, and mixtures 70/30 of two, of which `tables/rules` says the rule that they "
            "follow and no label says more",
            "{right:.1%} of {heads}, in {models} models",
            "at least 97%",
        ),
        (
            "labels of a higher rung among them: a relation for the nearest verb, a tag pair for a liking of nouns, an "
            "antecedent for the nearest name",
            "{higher}",
            "none",
        ),
    ),
    "sinks": (
        (
            "labels with effect evidence of heads with .9 of their attention on a first position from which nothing is "
            "read",
            "{effects}, of {heads} heads in {models} decoders; hiding it costs {hiding} nats a row, from three heads "
            "{all_hiding}",
            "none",
        ),
        ("the most that three such heads at once need it, in nats a row", "{all}", "less than .01"),
    ),
    "readers": (
        (
            "a head that is read beside one that is not, and twins: told apart by what all lose, and all but one",
            "{right} of {models} models",
            "all",
        ),
    ),
    "untrained": (
        (
            "models that have learnt nothing and carry any label",
            "{any:.1%} of {models}",
            "at most 5%, plus two binomial errors",
        ),
    ),
    "copies": (
        (
            "heads of the default, shuffled and as sharp (other copies than set the bar), with any label of a tag, "
            "relation or reference",
            _NAMED,
            "at most 3%",
        ),
    ),
    "shuffled": (
        (
            "heads of whole shuffled copies of the default and MiniLM with any label but one of position by attention",
            "{named:.1%} of {heads}, in {copies} copies",
            "at most 3%",
        ),
        ("what the first screens of such reports say but that nothing is found", "{sentences}", "nothing"),
    ),
    "words": (("the default's heads on text whose words stand in another order, the same", _NAMED, "at most 3%"),),
    "permuted": (
        (
            "heads with a label of a relation where dependencies were drawn anew within tags and distances",
            _NAMED,
            "at most 3%",
        ),
    ),
    "permuted rungs": (("the same of planted heads, those of relations among them", _NAMED, "at most 3%"),),
    "coverage": (
        (
            "95% intervals that hold the mean gain of all corpora of 40 documents",
            "{coverage:.1%} of {intervals}; quartiles by head and measure {quartiles}",
            "93% to 97%",
        ),
    ),
}


def table(lines: Sequence[Mapping[str, Any]]) -> str:
    """What was found as rows of the page; lines as `benchmarks.labels` prints them, each with its `name`."""
    rows = ["| | found | target |", "|---|---|---|"]
    for line in lines:
        found = {name: _listed(value) for name, value in line.items()}
        rows += [f"| {what} | {said.format(**found)} | {target} |" for what, said, target in ROWS[line["name"]]]
    return "\n".join(rows)


def _listed(value: Any) -> Any:
    """Lists and counts in words."""
    items = [f"{count} {kind}" for kind, count in value.items()] if isinstance(value, Mapping) else value
    return ("; ".join(map(str, items)) or "none") if isinstance(items, list) else items

"""The table of every measure on `docs/measures/index.md`, made from the measures when the site is built."""

from analyses.behaviours import ACROSS, OURS
from analyses.measures.definitions import UNITS, Measure

MARK = "<!-- every measure -->"
FEW = 3  # rivals that are named


def on_page_markdown(markdown: str, **_: object) -> str:
    """Put the table in the place of its mark (a hook of mkdocs)."""
    return markdown.replace(MARK, table()) if MARK in markdown else markdown


def table() -> str:
    """A row a measure: its name, what it asks, what it counts in, and what a head has to beat."""
    rows = ["| measure | in words | counts in | has to beat |", "|---|---|---|---|"]
    for behaviour in (*OURS.values(), *ACROSS.values()):
        rows += [f"| {' | '.join(entry(measure))} |" for measure in behaviour.measures]
    return "\n".join(rows)


def entry(measure: Measure) -> list[str]:
    """The cells of a measure's row."""
    names = ("fixed offsets" if rival.name.startswith("offset") else rival.name for rival in measure.rivals)
    rivals = [*dict.fromkeys(names)]
    rest = [f"{len(rivals) - FEW} more"] if len(rivals) > FEW else []
    unit = UNITS[measure.unit].title.partition(":")[0].lower()
    return [
        f"`{measure.name}`",
        measure.title or measure.words.short,
        unit,
        ", ".join(rivals[:FEW] + rest) or "nothing",
    ]

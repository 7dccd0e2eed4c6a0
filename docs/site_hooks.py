"""What the build adds to the site: the table of all measures, a name for the search dialog, ways on from live pages."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from analyses.behaviours import ACROSS, OURS
from analyses.measures.definitions import UNITS, Measure

MARK = "<!-- every measure -->"
FEW = 3  # rivals that are named
EXPLAINED = {"report": "headlines", "view": "viewing", "patch": "patching", "compare": "comparing"}  # live page: page
WAYS_ON = [("Make your own", "start"), ("Live pages", "gallery")]


def on_files(files: Files, config: MkDocsConfig, **_: object) -> Files:
    """Where `make gallery` has not made the live pages, put pages that say so in their places (a hook of mkdocs)."""
    for name in re.findall(r"\]\((live/\w+\.html)\)", Path(config.docs_dir, "gallery.md").read_text("utf-8")):
        if files.get_file_from_path(name) is None:
            content = "<!doctype html><title>Not made yet</title><main><p>make gallery makes this page.</p></main>"
            files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Put the table in the place of its mark (a hook of mkdocs)."""
    return markdown.replace(MARK, table()) if MARK in markdown else markdown


def on_post_page(output: str, **_: object) -> str:
    """Name the search dialog for screen readers, which the theme does not (a hook of mkdocs)."""
    return output.replace('class="md-search"', 'class="md-search" aria-label="Search"')


def on_post_build(config: MkDocsConfig, **_: object) -> None:
    """End each live page with links to the documentation (a hook of mkdocs)."""
    for page in Path(config.site_dir, "live").glob("*.html"):
        ways = [("Explained", EXPLAINED.get(page.stem, "measures/index")), *WAYS_ON]
        links = " · ".join(f'<a href="../{name}.html" target="_top">{text}</a>' for text, name in ways)
        head, main, end = page.read_text("utf-8").rpartition("</main>")
        page.write_text(f"{head}<p>{links}</p>{main}{end}", "utf-8")


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

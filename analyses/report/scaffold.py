"""How does every command leave its directory? It measures; tables, figures, page and record are written here.

A page of values becomes one HTML file: everything is escaped, nothing is loaded from outside, only our scripts run.
"""

import base64
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

from analyses.execution import output
from analyses.execution.lots import Setting, Shards, using
from analyses.execution.progress import FIRST_PAGE, WRITING, Say, Stages
from analyses.execution.provenance import PACKAGES, RUNNERS, model_facts, recorded, versions
from analyses.headlines.claim_pictures import claim_picture
from analyses.page import sections as doc
from analyses.page.sections import Block, Definitions, Details, Figure, Page, Piece, Section, is_text
from analyses.viewer.viewer_page import FILTERS, environment, policy
from analyses.wording.formats import counted, number, percent
from analyses.wording.plain_words import TEXTS
from interp import InputError, Model
from interp.errors import inside, whole_number
from interp.running import check_finite

UNNAMED = "a model"


class Record(TypedDict, total=False):
    """The options that every command takes besides its own."""

    seed: int
    command: str
    progress: Say | None
    cluster: Executor | None


@dataclass(frozen=True)
class Run:
    """What the measuring function receives: run.json's facts about each model, the seed, and a progress reporter.

    `show` publishes a page early, marked with what is still to be measured (`Page.unfinished`).
    """

    models: Sequence[Mapping[str, Any]]
    seed: int
    say: Stages
    show: Callable[[Page], object]


def write(
    out: str | Path,
    measure: Callable[[Run], Page],
    models: Mapping[str, Model],
    *,
    seed: int = 0,
    command: str = "",
    progress: Say | None = None,
    cluster: Executor | None = None,
) -> Path:
    """Call `measure` and write what it returns into `out`: tables, figures, `report.html`, and `run.json` last.

    Long work is cut into lots (`analyses.execution.lots`) for a `cluster` or processes of this machine. Their results
    are kept until all are done, so that the same command can resume.
    """
    began, seed = time.perf_counter(), whole_number("seed", seed)
    say = Stages.to(progress)
    for name, model in models.items():
        with inside(name):
            check_finite(model)
    described = [{"name": name, **model_facts(model)} for name, model in models.items()]
    shards = Shards()
    if all(model["fingerprint"] for model in described):
        known = {id(models[each["name"]]): each["fingerprint"] for each in described}
        devices = {each["device"].partition(":")[0] for each in described}
        content = [devices, versions([*PACKAGES, *RUNNERS])]
        shards = Shards.for_output(Path(out).resolve(), content, known)
    with _resumable(shards), output.writing(out) as new, using(Setting(shards, cluster, [*models.values()])):

        def put(page: Page, stage: str = WRITING) -> None:
            for name, table in page.tables.items():
                new.table(name, table)
            say(stage, 0)
            blocks = _nested([*page.overview, *page.lead, *page.summary, *page.sections])
            svgs = new.figures({each.name: each.figure for each in blocks if isinstance(each, Figure)})
            times = {"seconds": time.perf_counter() - began, "stages": say.seconds()}
            facts = _facts(described, page) | recorded(command=command, seed=seed, **times)
            if shards.counts["read"]:
                facts["shards_found"] = shards.counts["read"]  # measured by an earlier run, so not in the seconds
            sections = [Section("In short", page.summary), *page.sections, *_provenance(page, described, facts)]
            shapes = [] if page.overview else _shapes(described)  # an overview shows heads first; models come later
            pending = [doc.caveat(TEXTS["to come"].format(page.unfinished))] if page.unfinished else []
            lead = [*pending, *page.overview, *shapes, *page.lead]
            new.text("report.html", render(page.title, lead, sections, svgs))
            new.run(facts)

        def show(page: Page) -> None:
            if new.may_show:
                put(page, FIRST_PAGE)
                new.show()
                say(f"{Path(out) / 'report.html'} shows the first results\n", 0)

        put(measure(Run(described, seed, say, show)))
    if left := shards.others():
        say(
            f"{shards.folder} holds {left} shards that this run had no use for: of other settings, texts or versions\n",
            0,
        )
    shards.clear()
    return Path(out)


@contextmanager
def _resumable(shards: Shards) -> Iterator[None]:
    try:
        yield
    except (KeyboardInterrupt, InputError, ConnectionError) as error:
        if not any(shards.counts.values()):
            raise
        why = str(error) or "nothing was written"
        kind = next(kind for kind in (KeyboardInterrupt, InputError, ConnectionError) if isinstance(error, kind))
        raise kind(f"{why}; what was measured is kept: the same command resumes") from error


def _facts(models: Sequence[Mapping[str, Any]], page: Page) -> dict[str, Any]:
    described = [{**model, **page.models.get(model["name"], {})} for model in models]
    facts: dict[str, Any] = {"models": described}
    if len(described) == 1:
        (model,) = described
        facts = {"name": model["name"], "model": {key: value for key, value in model.items() if key != "name"}}
    facts["corpora"] = [
        {"name": text.name, "kind": text.kind, "sha256": text.digest, "annotates": sorted(text.annotates), **each.facts}
        for each in page.corpora
        for text in [each.corpus]
    ]
    facts["sentences"] = {}  # the page's summary; a terminal prints it after the command
    for name, *blocks in (term for each in page.summary if isinstance(each, doc.Definitions) for term in each.terms):
        items = [item for each in blocks for item in (each.items if isinstance(each, doc.Bullets) else [each])]
        if doc.is_text(name) and (texts := [doc.plain(item) for item in items if doc.is_text(item)]):
            facts["sentences"][doc.plain(name)] = f"{doc.plain(name)}: {' '.join(texts)}"
    return {**facts, **page.facts, **({output.UNFINISHED: page.unfinished} if page.unfinished else {})}


def _shapes(models: Sequence[Mapping[str, Any]]) -> list[Block]:
    has_reference = len(models) > 1
    columns = ["model", "stack", "layers", "heads per layer", "dimensions", "parameters", "context", "sees"]
    rows = [
        [
            *((doc.bold(model["name"]), " (reference)" if has_reference and model is models[0] else ""), name),
            *(str(stack[key]) for key in ("layers", "heads", "d_model")),
            *map(number, (model["parameters"], model["context"])),
            "what came before" if model["causal"] else "before and after",
        ]
        for model in models
        for name, stack in model["stacks"].items()
    ]
    matched = "matched by what they do, not by where they sit, and " if has_reference else ""
    named = doc.remark(f"Heads are {matched}named by layer and head, counted from 0: L0.H3.")
    return [*([doc.Table(columns, rows, "wlrrrrrl")] if rows else []), named]


def short_name(name: str) -> str:
    """A model's or text's name in a heading: a path's last part. "How this was made" shows it in full."""
    return re.split(r"[/\\]", name.rstrip("/\\"))[-1] if re.match(r"(\w+:)?([/\\~]|\.{1,2}[/\\])", name) else name


def citation(models: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> str:
    """One line to copy that identifies a run."""
    cited = [f"interp {facts['versions'].get('interp', '')}".strip()]
    cited += [f"{short_name(each['name'])} (fingerprint {(each['fingerprint'] or 'none')[:12]})" for each in models]
    cited += [f"{short_name(each['name'])} ({each['sha256'][:12]})" for each in facts["corpora"]]
    return "; ".join([*cited, f"seed {facts['seed']}"])


def _provenance(page: Page, models: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> list[Section]:
    lines: list[tuple[Block, ...]] = [("command", doc.code(facts["command"]))] if facts["command"] else []
    for model in models:
        identity = [f"no fingerprint ({model.get('no_fingerprint')}), so a run that is stopped begins again"]
        if model["fingerprint"] is not None:
            files = [", weight files SHA-256 ", doc.code(model["sha256"])] if model["sha256"] else []
            identity = ["fingerprint ", doc.code(model["fingerprint"]), *files]
        lines.append(("model", [f"{model['name']}, {model['dtype']} on {model['device']}, ", *identity]))
    for source in page.corpora:
        name = f"{source.corpus.name} ({source.corpus.kind}), {source.purpose}, "
        lines.append(("corpus", (name, doc.code(source.corpus.digest))))
    lines += [
        *page.method,
        ("seed", str(facts["seed"])),
        ("versions", ", ".join(f"{package} {version}" for package, version in facts["versions"].items())),
        *((name, str(facts[name])) for name in ("processor", "seconds")),
    ]
    shapes = _shapes(models) if page.overview else []
    cards = TEXTS["cite cards"] if any(hasattr(each, "cards") for each in page.overview) else "."
    terms = [doc.Details(counted(len(page.definitions), "term"), [doc.Definitions(page.definitions, "terms")])]
    return [
        Section("How this was made", [*shapes, doc.Definitions(lines, "facts")], "made"),
        Section("How to cite", [doc.code(citation(models, facts)), TEXTS["cite"] + cards], "cite"),
        *([Section("Definitions", terms, "definitions")] if page.definitions else []),
    ]


_INSIDE = {"overview": ("flips", "bars")}  # blocks that another block's templates include
_SCALE = 1.125  # enlarges figures, so that their smallest text, of 8 points, has 12 pixels
_PIXELS = 96 / 72  # in a point


def render(title: str, lead: Sequence[Block], sections: Sequence[Section], svgs: Mapping[str, bytes]) -> str:
    """Render one HTML file.

    Blocks that `blocks.html.jinja` does not know bring their own template, and optionally a style and a script: `Atlas`
    uses `atlas.html.jinja`, `atlas.css` and `atlas.js`. Wherever the page names a head that is among a block's `ids`
    (cards have them), the name links there.
    """
    sections = _addressed(sections)
    blocks = list(_nested([*lead, *sections]))
    kinds = dict.fromkeys(each for block in blocks for each in (kind(block), *_INSIDE.get(kind(block), ())))
    heads = {each for block in blocks for each in getattr(block, "ids", ())}
    defined = [each for each in blocks if isinstance(each, Definitions) and each.kind == "terms"]
    names = [term[0] for each in defined for term in each.terms if isinstance(term[0], str)]
    terms = {name for each in names for name in each.split(", ")}

    def meaning(measure: str) -> str:
        """The id of the definition of a measure or label (`tag:NOUN→ADJ` counts as `tag`); empty if there is none."""
        return next((definition(name) for name in (measure, re.split("[:@]", measure)[0]) if name in terms), "")

    filters = {"kind": kind, "pieces": pieces, "definition": definition, "by_head": by_head, "percent": percent}
    filters |= {"claim_picture": claim_picture, "defined": meaning, "head": lambda text: text if text in heads else ""}
    templates = environment({"analyses.report": "templates", "analyses.viewer": "."}, FILTERS | filters)
    templates.globals["images"] = {name: _image(svg) for name, svg in svgs.items()}
    assert templates.loader is not None
    files = ["style.css", "shared.js", "page.js", *(f"{each}.{ending}" for each in kinds for ending in ("css", "js"))]
    present = templates.list_templates()
    sources = {name: templates.loader.get_source(templates, name)[0] for name in files if name in present}
    style, script = ("\n".join(sources[name] for name in sources if name.endswith(end)) for end in (".css", ".js"))
    shell, safety = templates.get_template("shell.html.jinja"), policy(style, script)
    return shell.render(title=title, lead=lead, sections=sections, policy=safety, style=style, script=script)


def _image(svg: bytes) -> dict[str, str | int]:
    match = re.search(rb'<svg[^>]* width="([\d.]+)pt" height="([\d.]+)pt"', svg)
    if match is None:
        raise ValueError("a figure's SVG begins with its width and height in points: this one does not")
    address = "data:image/svg+xml;base64," + base64.b64encode(svg).decode()
    width, height = (round(float(each) * _PIXELS * _SCALE) for each in match.groups())
    return {"address": address, "width": width, "height": height}


def kind(block: Any) -> str:
    """The macro that shows a block: `text` for a text that stands alone as a paragraph."""
    return "text" if is_text(block) else type(block).__name__.lower()


def pieces(text: Any) -> Sequence[Piece]:
    """A text as its strings and spans."""
    return [text] if isinstance(text, Piece) else text


def by_head(text: str) -> list[str]:
    """Split a text so that each head's name is its own part."""
    return re.split(r"((?:\b\w+\.)?\bL\d+\.H\d+\b)", text)


def definition(name: str) -> str:
    """The id of a term's definition."""
    return f"definition-{slug(name)}"


def slug(words: str) -> str:
    """Turn words into an id."""
    return re.sub(r"[^\w]+", "-", words.lower()).strip("-") or "section"


def _addressed(sections: Sequence[Section]) -> list[Section]:
    ids, addressed = {each.id for each in sections if each.id}, []
    for section in sections:
        id = section.id or slug(section.title)
        while not section.id and id in ids:
            id += "-more"
        ids.add(id)
        addressed.append(replace(section, id=id))
    return addressed


def _nested(blocks: Sequence[Any]) -> Iterator[Any]:
    for block in blocks:
        yield block
        if isinstance(block, Section | Details):
            yield from _nested(block.blocks)
        elif isinstance(block, Definitions):
            yield from _nested([each for term in block.terms for each in term])
        else:
            yield from _nested(getattr(block, "below", ()))

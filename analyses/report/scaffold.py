"""How does every command leave its directory? It measures; tables, figures, page and record are written here.

A page of values becomes one HTML file: all is escaped, nothing is from outside, and only our scripts run.
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
    """What every command is asked for beside its own."""

    seed: int
    command: str
    progress: Say | None
    cluster: Executor | None


@dataclass(frozen=True)
class Run:
    """What the function that measures gets: what run.json says of each model, the seed, and whom to tell.

    `show` puts a page that says what is still to come (`Page.unfinished`) in place while that is measured.
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

    Long work is cut into lots (`analyses.execution.lots`), which a `cluster` does, or processes of this machine. What
    they return is kept until all is there, for the same command to go on with.
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
                facts["shards_found"] = shards.counts["read"]  # measured before: not in the seconds
            sections = [Section("In short", page.summary), *page.sections, *_provenance(page, described, facts)]
            shapes = [] if page.overview else _shapes(described)  # where heads are seen first, models come later
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
    except (KeyboardInterrupt, InputError) as error:
        if not any(shards.counts.values()):
            raise
        why = str(error) or "nothing was written"
        kind = InputError if isinstance(error, InputError) else KeyboardInterrupt
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
    facts["sentences"] = {}  # what a page says in short: a terminal says it after the command
    for name, *blocks in (term for each in page.summary if isinstance(each, doc.Definitions) for term in each.terms):
        items = [item for each in blocks for item in (each.items if isinstance(each, doc.Bullets) else [each])]
        if doc.is_text(name) and (texts := [doc.plain(item) for item in items if doc.is_text(item)]):
            facts["sentences"][doc.plain(name)] = f"{doc.plain(name)}: {' '.join(texts)}"
    return {**facts, **page.facts, **({output.UNFINISHED: page.unfinished} if page.unfinished else {})}


def _shapes(models: Sequence[Mapping[str, Any]]) -> list[Block]:
    has_reference = len(models) > 1
    columns = ["model", "stack", "layers", "heads each", "dimensions", "parameters", "context", "sees"]
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
    """A model or a text as a heading calls it: a path by its last part. How it was made has all of it."""
    return re.split(r"[/\\]", name.rstrip("/\\"))[-1] if re.match(r"(\w+:)?([/\\~]|\.{1,2}[/\\])", name) else name


def citation(models: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> str:
    """In a line to copy, what tells a run from all others."""
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


_INSIDE = {"overview": ("flips", "bars")}  # what else a block's templates show
_SCALE = 1.125  # of a figure's own size: its smallest text, of 8 points, has 12 pixels
_PIXELS = 96 / 72  # a point


def render(title: str, lead: Sequence[Block], sections: Sequence[Section], svgs: Mapping[str, bytes]) -> str:
    """One HTML file.

    A block of a kind that `blocks.html.jinja` does not know brings its own template, and where they exist a style and a
    script: `Atlas` is shown by `atlas.html.jinja`, `atlas.css` and `atlas.js`. Wherever the page names a head that is
    among a block's `ids`, as those of cards, a link leads there.
    """
    sections = _addressed(sections)
    blocks = list(_nested([*lead, *sections]))
    kinds = dict.fromkeys(each for block in blocks for each in (kind(block), *_INSIDE.get(kind(block), ())))
    heads = {each for block in blocks for each in getattr(block, "ids", ())}
    defined = [each for each in blocks if isinstance(each, Definitions) and each.kind == "terms"]
    names = [term[0] for each in defined for term in each.terms if isinstance(term[0], str)]
    terms = {name for each in names for name in each.split(", ")}

    def meaning(measure: str) -> str:
        """The id of what a measure or label means, `tag:NOUN→ADJ` as any `tag`; nothing where the page says nothing."""
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
    """Which macro shows a block: `text` for what stands alone as a paragraph."""
    return "text" if is_text(block) else type(block).__name__.lower()


def pieces(text: Any) -> Sequence[Piece]:
    """A text as its strings and spans."""
    return [text] if isinstance(text, Piece) else text


def by_head(text: str) -> list[str]:
    """A text in parts, such that a head's name is a part of its own."""
    return re.split(r"((?:\b\w+\.)?\bL\d+\.H\d+\b)", text)


def definition(name: str) -> str:
    """The id of what a term means."""
    return f"definition-{slug(name)}"


def slug(words: str) -> str:
    """Words as an id."""
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

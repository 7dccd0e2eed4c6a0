"""How does every command leave its directory? It measures; tables, figures, page and record are written here."""

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from analyses.execution import output
from analyses.execution.provenance import PACKAGES, RUNNERS, corpus_facts, model_facts, recorded, versions
from analyses.execution.shards import Shards
from analyses.page.sections import (
    Block,
    Bullets,
    Definitions,
    Page,
    Piece,
    Section,
    Table,
    Terms,
    bold,
    caveat,
    code,
    is_text,
    plain,
    remark,
)
from analyses.report.renderer import figures, render
from analyses.wording.formats import number
from analyses.wording.plain_words import TEXTS
from interp import InputError, Model
from interp.errors import inside, whole_number
from interp.finite import check_finite

Say = Callable[[str, int], object]  # what is being done, and how often: texts read, for the most part
UNNAMED = "a model"


class Record(TypedDict, total=False):
    """What every command is asked for beside its own."""

    seed: int
    command: str
    progress: Say | None


@dataclass
class Stages:
    """Tells what is being done, and keeps how long each stage took. What ends a line is told, and is no stage."""

    tell: Say
    _taken: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    _now: str = "starting"
    _since: float = field(default_factory=time.perf_counter)
    _began: float = field(default_factory=time.perf_counter)

    def __call__(self, stage: str, count: int) -> None:
        """Tell it, and count the time since the last call for what was being done."""
        if not stage.endswith("\n"):
            self._count()
            self._now = stage
        self.tell(stage, count)

    def add(self, seconds: Mapping[str, float]) -> None:
        """Count what stages took elsewhere, at the same time as others."""
        for stage, taken in seconds.items():
            self._taken[stage] += taken

    def seconds(self) -> dict[str, float]:
        """Of each stage until now, in the order in which they were first told."""
        self._count()
        return dict(self._taken)

    def whole(self) -> float:
        """Seconds by the clock since the beginning: what ran at once counts once."""
        return time.perf_counter() - self._began

    def _count(self) -> None:
        now = time.perf_counter()
        self._taken[self._now] += now - self._since
        self._since = now


@dataclass(frozen=True)
class Run:
    """What the function that measures is told: what run.json says of each model, the seed, and whom to tell.

    `show` puts a page that says what is still to come (`Page.unfinished`) in place while that is measured. `shards`
    keeps what was measured until all is, for the same command to go on with.
    """

    models: Sequence[Mapping[str, Any]]
    seed: int
    say: Stages
    show: Callable[[Page], object]
    shards: Shards


def write(
    out: str | Path,
    measure: Callable[[Run], Page],
    models: Mapping[str, Model],
    *,
    seed: int = 0,
    command: str = "",
    progress: Say | None = None,
) -> Page:
    """Call `measure` and write what it returns into `out`: tables, figures, `report.html`, and `run.json` last.

    Returns what `measure` did.

    Args:
        out: the output directory; left as it was when anything fails, but for what was shown.
        measure: what a command is about; seed and progress come to it with the `Run`.
        models: by name, those that are measured.
        seed: of everything random.
        command: what the user typed, for the record.
        progress: called with what is being done.

    Raises:
        InputError: as `measure`; an output directory that cannot be used; a model whose numbers are not finite.
    """
    say, seed = Stages(progress or (lambda stage, count: None)), whole_number("seed", seed)
    for name, model in models.items():
        with inside(name):
            check_finite(model)
    described = [{"name": name, **model_facts(model)} for name, model in models.items()]
    shards = Shards()
    if all(model["fingerprint"] for model in described):
        which = [[model["name"], model["fingerprint"], model["device"]] for model in described]
        shards = Shards.for_output(Path(out).resolve(), [which, seed, versions([*PACKAGES, *RUNNERS])])
    with _going_on(shards), output.writing(out) as new:

        def put(page: Page) -> None:
            for name, table in page.tables.items():
                new.table(name, table)
            say("writing figures", 0)
            drawn = figures([*page.overview, *page.lead, *page.summary, *page.sections])
            svgs = new.figures({each.name: each.figure for each in drawn})
            facts = _about(described, page) | recorded(
                command=command, seed=seed, seconds=say.whole(), stages=say.seconds()
            )
            if shards.counts.n_read:
                facts["shards_found"] = shards.counts.n_read  # measured before: not in the seconds
            sections = [Section("In short", page.summary), *page.sections, *_made(page, described, facts)]
            shapes = [] if page.overview else _lead(described)  # where heads are seen first, models come with `made`
            to_come = [caveat(TEXTS["to come"].format(page.unfinished))] if page.unfinished else []
            lead = [*to_come, *page.overview, *shapes, *page.lead]
            new.text("report.html", render(page.title, lead, sections, svgs))
            new.run(facts)

        def show(page: Page) -> None:
            if new.may_show:
                put(page)
                new.show()
                say(f"{Path(out) / 'report.html'} shows what is known already\n", 0)

        page = measure(Run(described, seed, say, show, shards))
        put(page)
    shards.clear()
    return page


@contextmanager
def _going_on(shards: Shards) -> Iterator[None]:
    """Say of what stops a run that the same command goes on from there."""
    try:
        yield
    except (KeyboardInterrupt, InputError) as error:
        if not shards.counts.n_kept:
            raise
        why = str(error) or "nothing was written"
        kind = InputError if isinstance(error, InputError) else KeyboardInterrupt
        raise kind(f"{why}; the same command goes on with what is measured") from error


def _about(models: Sequence[Mapping[str, Any]], page: Page) -> dict[str, Any]:
    """What run.json says of models and texts, and what the command adds: one model by itself, several in a list."""
    more = [{**model, **page.models.get(model["name"], {})} for model in models]
    about: dict[str, Any] = {"models": more}
    if len(more) == 1:
        about = {"name": more[0]["name"], "model": {key: value for key, value in more[0].items() if key != "name"}}
    read = [{**corpus_facts(each.corpus), **each.facts} for each in page.corpora]
    to_come = {output.UNFINISHED: page.unfinished} if page.unfinished else {}
    return {**about, "corpora": read, "sentences": _sentences(page.summary), **page.facts, **to_come}


def _sentences(summary: Sequence[Block]) -> dict[str, str]:
    """What a page says in short, by what it is about: a terminal says it after the command."""
    sentences = {}
    for name, *said in (term for block in summary if isinstance(block, Definitions) for term in block.terms):
        items = [item for each in said for item in (each.items if isinstance(each, Bullets) else [each])]
        if is_text(name) and (texts := [plain(item) for item in items if is_text(item)]):
            sentences[plain(name)] = f"{plain(name)}: {' '.join(texts)}"
    return sentences


def _lead(models: Sequence[Mapping[str, Any]]) -> list[Any]:
    several = len(models) > 1
    columns = ["model", "stack", "layers", "heads each", "dimensions", "parameters", "context", "sees"]
    rows = [
        [
            *((bold(model["name"]), " (reference)" if several and model is models[0] else ""), name),
            *(str(stack[key]) for key in ("layers", "heads", "d_model")),
            *map(number, (model["parameters"], model["context"])),
            "what came before" if model["causal"] else "before and after",
        ]
        for model in models
        for name, stack in model["stacks"].items()
    ]
    matched = "matched by what they do, not by where they sit, and " if several else ""
    named = remark(f"Heads are {matched}named by layer and head, counted from 0: L0.H3.")
    return [*([Table(columns, rows, "wlrrrrrl")] if rows else []), named]


def short_name(name: str) -> str:
    """A model or a text as a heading calls it: a path by its last part. How it was made has all of it."""
    return re.split(r"[/\\]", name.rstrip("/\\"))[-1] if re.match(r"(\w+:)?([/\\~]|\.{1,2}[/\\])", name) else name


def _made(page: Page, models: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> list[Section]:
    """How it was made, what run.json tells in full; how to cite it; and what its terms mean."""
    texts = [each.corpus for each in page.corpora]
    read = [f"{each.corpus.name} ({each.corpus.kind}), {each.used}, " for each in page.corpora]
    lines: Terms = [
        *([("command", code(facts["command"]))] if facts["command"] else []),
        *(("model", [f"{each['name']}, {each['dtype']} on {each['device']}, ", *_identity(each)]) for each in models),
        *(("corpus", (said, code(corpus.digest))) for said, corpus in zip(read, texts, strict=True)),
        *page.made,
        ("seed", str(facts["seed"])),
        ("versions", ", ".join(f"{package} {version}" for package, version in facts["versions"].items())),
        *((name, str(facts[name])) for name in ("processor", "seconds")),
    ]
    # in a line to copy, what tells this run from all others
    of = [f"{short_name(each['name'])} (fingerprint {(each['fingerprint'] or 'none')[:12]})" for each in models]
    on = [f"{short_name(corpus.name)} ({corpus.digest[:12]})" for corpus in texts]
    cited = [f"interp {facts['versions'].get('interp', '')}".strip(), *of, *on, f"seed {facts['seed']}"]
    shapes, cards = (_lead(models), TEXTS["cite cards"]) if page.overview else ([], ".")
    return [
        Section("How this was made", [*shapes, Definitions(lines, "facts")], "made"),
        Section("How to cite", [code("; ".join(cited)), TEXTS["cite"] + cards], "cite"),
        *([Section("Definitions", [Definitions(page.definitions, "terms")], "definitions")] * bool(page.definitions)),
    ]


def _identity(model: Mapping[str, Any]) -> list[Piece]:
    if model["fingerprint"] is None:
        return [f"no fingerprint ({model['no_fingerprint']}), so a run that is stopped begins again"]
    files = [", weight files SHA-256 ", code(model["sha256"])] if model["sha256"] else []
    return ["fingerprint ", code(model["fingerprint"]), *files]

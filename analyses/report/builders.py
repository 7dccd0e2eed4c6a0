"""What leaves a directory? One function per command: it says what to measure, and the scaffold writes the result.

All take `out`, the output directory, which stays as it was if anything fails; `seed`, for everything random;
`command`, as the user typed it, and `name`, the model's, for the record; `progress`, called with the current stage and
a count; and `cluster`, an executor for long work, such as Dask's. All return the directory's path. They raise an
`InputError` if the directory cannot be used.
"""

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, Literal, NamedTuple, Unpack

import pandas as pd

from analyses import circuit as circuits
from analyses import compare as comparing
from analyses import experiments as experimenting
from analyses import patch as patching
from analyses import probe as probing
from analyses import suites
from analyses.behaviours import OURS
from analyses.corpora import Corpus
from analyses.execution.progress import WRITING, Say
from analyses.headlines import facts
from analyses.over_training import training_page
from analyses.over_training.training_runs import Load, read_run
from analyses.page.sections import Definitions, Page, Section, Source, remark
from analyses.probe.probe_runs import CHOOSING, FITTING
from analyses.report.scaffold import UNNAMED, Record, Run, short_name, write
from analyses.wording.plain_words import TEXTS, WORDS
from interp import InputError, Model
from interp.errors import one_of

Command = Literal["word-sense", "next-word", "position"]


class Written(NamedTuple):
    """The output directory, how estimates agree with exact effects, and whether the model does the task."""

    folder: Path
    correlations: pd.DataFrame | None  # if estimates were requested
    answers: patching.Answers | None  # if the pairs come with answers


def probe(
    model: Model,
    corpora: Sequence[Corpus],
    out: str | Path,
    *,
    held_out: Sequence[Corpus] = (),
    name: str = UNNAMED,
    **record: Unpack[Record],
) -> Path:
    """Probe every layer and head. Arguments and errors are those of `analyses.probe.section`."""

    def measure(run: Run) -> Page:
        run.say.plan([CHOOSING, FITTING, WRITING])
        part = probing.section(model, corpora, held_out=held_out, seed=run.seed, progress=run.say)
        sources = []
        for use, key, texts in (("train", "trained_on", corpora), ("test", "tested_on", held_out)):
            for corpus in texts:
                tasks = [task for task, each in part.facts["tasks"].items() if each[key] == corpus.name]
                unused = f"not used to {use}: it annotates nothing that an earlier one does not"
                purpose = f"to {use} {', '.join(tasks)}" if tasks else unused
                sources.append(Source(corpus, purpose, {"use": use, "tasks": tasks}))
        return Page(
            title=f"What can be read from the layers of {short_name(name)}?",
            summary=[Definitions(part.short), remark(TEXTS["probes"])],
            sections=[*part.sections, Section("What was read and what was left out", part.counted)],
            corpora=sources,
            definitions=[*part.definitions, *WORDS["probe_terms"].items()],
            tables=part.tables,
            facts=part.facts,
        )

    return write(out, measure, {name: model}, **record)


def experiments(
    model: Model,
    out: str | Path,
    commands: Collection[Command] | None = None,
    *,
    name: str = UNNAMED,
    **record: Unpack[Record],
) -> Path:
    """Run the articles' small experiments: those of the given `commands`, or all."""
    for command in commands or ():
        one_of("commands", command, Command)
    names = [key for key, each in experimenting.EXPERIMENTS.items() if commands is None or each.command in commands]

    def measure(run: Run) -> Page:
        part = experimenting.section(model, names, seed=run.seed, progress=run.say)
        if not part.sections:
            raise InputError("; ".join(dict.fromkeys(part.facts["not_asked"].values())))
        sections = [Section("One by one", [*part.sections, *part.counted])]
        title = f"What do small experiments show about {short_name(name)}?"
        return Page(title, [Definitions(part.short)], sections, tables=part.tables, facts=part.facts)

    return write(out, measure, {name: model}, **record)


def compare(
    models: Mapping[str, Model],
    corpora: Sequence[Corpus],
    out: str | Path,
    *,
    behaviours: Collection[str] | None = None,
    **record: Unpack[Record],
) -> Path:
    """Compare models. Arguments and errors are those of `analyses.compare.compare`."""

    def measure(run: Run) -> Page:
        comparison = comparing.compare(models, corpora, behaviours=behaviours, seed=run.seed, progress=run.say)
        called = {each.name: facts.called(facts.facts({"heads": each.heads}, OURS)) for each in comparison.reads}
        return comparing.page(comparison, run.models, called)

    return write(out, measure, models, **record)


def patch(
    model: Model,
    prompts: pd.DataFrame,
    out: str | Path,
    site: str = "z",
    *,
    name: str = UNNAMED,
    seed: int = 0,
    command: str = "",
    progress: Say | None = None,
    cluster: Executor | None = None,
    **options: Any,
) -> Written:
    """Patch one site. `options` and errors are those of `analyses.patch.find`."""
    found: list[Any] = []

    def measure(run: Run) -> Page:
        patched = patching.find(model, prompts, site, seed=run.seed, progress=run.say, **options)
        page = patching.page(patched, run.models[0])
        found[:] = page.tables.get("correlations"), patched.cells.answers
        return page

    folder = write(out, measure, {name: model}, seed=seed, command=command, progress=progress, cluster=cluster)
    return Written(folder, *found)


def circuit(
    model: Model,
    prompts: pd.DataFrame | str,
    out: str | Path,
    *,
    name: str = UNNAMED,
    seed: int = 0,
    command: str = "",
    progress: Say | None = None,
    cluster: Executor | None = None,
    method: circuits.Method = "eap-ig",
    ablation: circuits.Ablation = "corrupt",
    share: float = 0.9,
    settings: circuits.Settings = circuits.ALL,
    source: Path | None = None,
    **reading: Any,
) -> Path:
    """Find the circuit of a table of prompts, or of one of our tasks by name (`analyses.circuit.TASKS`).

    Arguments and errors are those of `analyses.circuit.find`. `source` is the file of the prompts. `reading` goes to
    `analyses.patch.make_pairs` or `analyses.circuit.task_prompts`.
    """

    def measure(run: Run) -> Page:
        if isinstance(prompts, str):
            asked = circuits.task_prompts(model, prompts, seed=run.seed, **reading)
        else:
            if model.config.output == "none":
                raise InputError(patching.NO_OUTPUT)
            table, file = patching.with_corrupt(model, prompts), source and source.name
            asked = circuits.prompts_of(patching.make_pairs(model, table, source=file, **reading), table, source=source)
        found = circuits.find(
            model, asked, method, ablation=ablation, share=share, settings=settings, seed=run.seed, progress=run.say
        )
        return circuits.page(found, run.models[0])

    return write(out, measure, {name: model}, seed=seed, command=command, progress=progress, cluster=cluster)


def suite(
    model: Model,
    suite: suites.Suite,
    out: str | Path,
    *,
    corpora: Sequence[Corpus] = (),
    limit: int | None = None,
    name: str = UNNAMED,
    **record: Unpack[Record],
) -> Path:
    """Test what the model knows of a suite, and which heads carry it. Arguments and errors are those of `suites.find`.

    `corpora` are the texts for the n-gram baselines.
    """

    def measure(run: Run) -> Page:
        texts = [text for corpus in corpora for text in corpus] or None
        return suites.page(
            suites.find(model, suite, texts, limit=limit, seed=run.seed, progress=run.say), run.models[0], corpora
        )

    return write(out, measure, {name: model}, **record)


def over_training(folders: Sequence[Path], out: str | Path, load: Load, **record: Unpack[Record]) -> Path:
    """Compare the training runs that `interp train` wrote in `folders`.

    `load` opens a snapshot if a run did not record what its heads did. Errors are those of `read_run`.
    """
    names = comparing.names([*map(str, folders)]) if len(folders) > 1 else [folders[0].resolve().name]

    def measure(run: Run) -> Page:
        pairs = zip(folders, names, strict=True)
        runs = [read_run(folder, name, load, seed=run.seed, progress=run.say) for folder, name in pairs]
        return training_page.page(runs)

    return write(out, measure, {}, **record)

"""What does each command do? Most measure models and leave a page; others read one, or are about models themselves."""
# ruff: noqa: PLC0415

import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple
from itertools import count, cycle
from pathlib import Path
from textwrap import fill, indent
from typing import TYPE_CHECKING, Any

import typer

from analyses.cli import COLUMNS
from analyses.cli import command_frame as frame
from analyses.cli.command_frame import Directions, Request

if TYPE_CHECKING:
    from models import catalogue


_BUILTIN = "builtin:"  # precedes the name of one of our suites


def measuring(behaviours: Sequence[str] | None = None) -> Callable[..., None]:
    """Measures and tests `behaviours` (None: all of them, and the rest of a report)."""

    def command(request: Request, *, corpus, pairs, labels, exact, probes, experiments, measures, text, training, see):
        from analyses import report
        from analyses.over_training import training_runs
        from interp import InputError

        if exact and not labels:
            raise InputError("--exact applies to labels: add --labels, or leave it out")
        requested: Sequence[Any] | None = behaviours
        if measures:
            from analyses.behaviours import OURS
            from analyses.own_measures import read_file

            requested = [*OURS, *(measure for path in measures for measure in read_file(path))]
        model = request.load()
        if training is None:
            run = training_runs.run_of_model(request.model, model)
        else:
            run = training_runs.run_of_folder(training, request.load, seed=request.seed, progress=request.progress)
        options: dict[str, Any] = {"pairs": pairs, "labels": labels, "exact": exact, "probes": probes}
        options |= {
            "experiments": experiments,
            "behaviours": requested,
            "texts": text or (),
            "training": run,
            "see": see or (),
        }
        report.build(model, frame.corpora(corpus, request.model), request.out, **options, **request.named)

    return command


def over_training(request: Request, runs) -> None:
    """Sets training runs side by side."""
    from analyses import report

    report.over_training(runs, request.out, request.load, **request.record)


def experimenting(*commands: Any) -> Callable[..., None]:
    """Runs the experiments of `commands`, by default all."""

    def command(request: Request) -> None:
        from analyses import report

        report.experiments(request.load(), request.out, commands or None, **request.named)

    return command


def probes(request: Request, *, corpus, held_out) -> None:
    """Probes every layer."""
    from analyses import report

    tested = frame.corpora(held_out) if held_out else []
    report.probe(request.load(), frame.corpora(corpus, request.model), request.out, held_out=tested, **request.named)


def compare(request: Request, models, *, corpus) -> None:
    """Sets models side by side."""
    from analyses import report
    from analyses.compare import names

    loaded = dict(zip(names(models), map(request.load, models), strict=True))
    report.compare(loaded, frame.corpora(corpus), request.out, **request.record)


def patch(
    request: Request, *, clean, corrupt, answer, wrong, target, source, pairs, drop, as_typed,
    site, stack, attention, by_position, position, direction, metric, estimates
) -> Sequence[str]:  # fmt: skip
    """Patches one site."""
    from analyses import patch as patching
    from analyses import report
    from interp import InputError

    if position and by_position is False:
        raise InputError("--position names what --by-position patches: leave it or --whole-prompts out")
    prompt = {"clean": clean, "corrupt": corrupt, "answer": answer, "wrong": wrong}
    prompts = patching.read_prompts({**prompt, "target": target, "source": source}, pairs)
    written = report.patch(
        request.load(),
        prompts,
        request.out,
        site,
        by_position=by_position,
        directions=patching.DIRECTIONS if direction is Directions.BOTH else [direction.value],
        metrics=[each.value for each in metric],
        stack=None if stack is None else stack.value,
        attention=attention.value,
        estimates=estimates,
        drop=drop,
        as_typed=as_typed,
        positions=patching.read_places(position or ()),
        source=pairs,
        **request.named,
    )
    answers = written.answers
    sentences = [] if answers is None else [answers.sentence]
    if answers is not None and answers.refused:
        sentences.append(f"no shares: {answers.refused}")
    return [*sentences, *patching.agreement_lines(written.correlations)]


def circuit(request: Request, *, pairs, task, drop, as_typed, position, method, ablation, share) -> None:
    """Finds a circuit."""
    from analyses import circuit as circuits
    from analyses import patch as patching
    from analyses import report
    from interp import InputError

    if (pairs is None) == (task is None):
        raise InputError(f"expected --pairs FILE.csv or --task NAME (one of {', '.join(circuits.TASKS)}), and not both")
    reading: dict[str, Any] = {"drop": drop, "as_typed": as_typed, "source": pairs}
    reading |= {"positions": patching.read_places(position or ())}
    if task is not None and (given := [name for name, value in reading.items() if value]):
        raise InputError(
            f"--{given[0].replace('_', '-').removesuffix('s')} applies to pairs in a file: give --pairs FILE.csv"
        )
    prompts: Any = task if pairs is None else patching.read_pairs(pairs)
    choices: dict[str, Any] = {"method": method.value, "ablation": ablation.value, "share": share}
    report.circuit(request.load(), prompts, request.out, **choices, **(reading if pairs else {}), **request.named)


def suite(request: Request, suites, *, corpus, limit) -> None:
    """Asks a linguist's test suites."""
    from analyses import report
    from analyses.suites import builtin, joined, read

    named = [builtin(name.removeprefix(_BUILTIN)) for name in suites if name.startswith(_BUILTIN)]
    files = [Path(name) for name in suites if not name.startswith(_BUILTIN)]
    asked = joined([*named, *([read(*files)] if files else [])])
    text = frame.corpora(corpus, request.model)
    report.suite(request.load(), asked, request.out, corpora=text, limit=limit, **request.named)


def figures(run, names, *, head, width, format, font_size, font, horizontal, out, force, quiet, json) -> None:
    """Draws a run's figures for a paper, or those of several runs on one scale."""
    from analyses import runs
    from analyses.report import paper_figures

    folders = [run, *(path for path in map(Path, names or ()) if (path / "run.json").is_file())]
    names = [name for name in names or () if Path(name) not in folders]
    found = runs.join(folders) if len(folders) > 1 else runs.read(run)
    folder = out or run.resolve().with_name("-".join([*(each.resolve().name for each in folders), "figures"]))
    options = {"width": width, "font_size": font_size, "font": font, "format": format.value, "force": force}
    options |= {"heads": head or (), "horizontal": horizontal or None}
    written = paper_figures.write(found, folder, names, **options)
    lines = pictures = [file.name for file in written.files if file.suffix != ".txt"]
    for why in dict.fromkeys(written.left_out.values()):
        skipped = ", ".join(name for name, reason in written.left_out.items() if reason == why)
        lines = [*lines, frame.filled(f"left out {skipped}: {why}")]
    total = f"wrote {len(pictures)} figure{'s' * (len(pictures) != 1)} to {out or folder.name}"
    lines = [*lines, frame.folded(total, "each has its caption in a .txt beside it")]
    facts = {"out": str(folder), "files": [file.name for file in written.files], "left_out": written.left_out}
    frame.tell(lambda: lines, lambda: facts, quiet=quiet, json=json)


def inspect(run, head, *, quiet, json) -> None:
    """Shows what a run has on one head."""
    from analyses import runs
    from analyses.cli import inspection

    inspected = inspection.inspect(runs.read(run), head)
    frame.tell(inspected.lines, inspected.data, quiet=quiet, json=json)


def card(run, claim, *, out, force, quiet, json) -> None:
    """Draws a claim of a run as a picture to share."""
    from analyses import runs
    from analyses.cli import inspection
    from analyses.execution.provenance import check_free
    from analyses.headlines import claim_pictures
    from analyses.report.scaffold import citation

    folder = runs.read(run)
    found = inspection.claim(folder, claim)
    out = out or Path(f"{found.id.replace('/', '-')}.png")
    check_free(out, force=force)
    model = {"name": folder.model, **folder.facts["model"]}
    claim_pictures.save(found, citation([model], folder.facts), out)
    lines, facts = [found.sentence, f"wrote {out}"], {"claim": found.id, "out": str(out)}
    frame.tell(lambda: lines, lambda: facts, quiet=quiet, json=json)


def view(texts, *, model, target, head, labels, out, device, placement, dtype, force, quiet, json) -> None:
    """Writes a page on which one can point at the tokens of a text."""
    with frame.progressing(silent=quiet) as progress:
        from analyses import viewer
        from analyses.execution.provenance import check_free
        from interp import InputError

        if out is None:
            names = (Path("view.html" if number == 1 else f"view-{number}.html") for number in count(1))
            out = next(name for name in names if not os.path.lexists(name))
        elif not out.suffix:
            out = out.with_suffix(".html")  # a browser needs it
        check_free(out, force=force)  # before the model reads
        targets: list[str | None] = [*target] if target else [None]
        if len(targets) not in {1, len(texts)}:
            expected = f"expected one --target for each of {len(texts)} texts, or one for all"
            raise InputError(f"{expected}; got {len(targets)}")
        progress("loading the model", 0)
        loaded = frame.opened(model, device, dtype, placement)
        first = None if head is None else viewer.head_named(loaded, head)
        called = {}
        if labels is not None:  # importing the figures is slow, and only labels need them
            from analyses.headlines.facts import called_by

            called = called_by(labels, loaded)
        if len(loaded.config.stacks) > 1 and not target:
            raise InputError("this model has an encoder and a decoder: give --target, what the decoder has read")
        progress("reading", 0)
        pairs = zip(texts, cycle(targets))
        passages = [viewer.read(loaded, *pair) for pair in pairs] if target else viewer.read_texts(loaded, texts)
        page = viewer.Viewer(tuple(passages), called, linked=True, first=first)
        viewer.write(page, out, lead=f"{frame.title(model)}, {page.size}", force=force)
        begins = f"{out}#{viewer.address(loaded, page.start)}"
        written = frame.folded(f"wrote {out}: open it in a browser", f"it begins at {begins}")
        frame.tell(lambda: [written], lambda: {"out": str(out), "begins_at": begins}, quiet=quiet, json=json)


def train(recipe, *, out, resume, changes, device, cache, measures, parallel, quiet, json) -> None:
    """Trains a model by a recipe."""
    command = frame.typed()
    from analyses.over_training import train as training

    try:
        training.train(
            recipe,
            out,
            changes or (),
            resume=resume,
            device=device,
            cache=cache,
            measured=measures,
            parallel=None if parallel is None else parallel.value,
            command=command,
            mode=training.JSON if json else training.NOTHING if quiet else training.LINES,
        )
    except KeyboardInterrupt:
        frame.end(training.interrupted(out, command), frame.INTERRUPTED)
    if not training.leads():
        return
    if json:
        typer.echo(frame.as_json({"out": str(out)}, indent=None))
    elif not quiet:
        written = f"wrote {out}: the model, metrics.jsonl, run.json and recipe.toml"
        advice = f"see what its heads do with interp report --model {shlex.quote(str(out))}"
        typer.echo(frame.folded(written, advice))


def generate(
    prompt, *, model, tokens, temperature, top_k, top_p, repetition_penalty, stop, seed, device, placement, dtype,
    quiet, json
) -> None:  # fmt: skip
    """Continues a text, printing it as it is generated."""
    from interp import InputError, generate_pieces
    from interp import generate as continue_text

    cut = {"--top-k": top_k, "--top-p": top_p}
    if temperature == 0 and (options := [name for name, value in cut.items() if value is not None]):
        raise InputError(f"{' and '.join(options)} limit random draws, but --temperature 0 draws nothing: raise it")
    loaded = frame.opened(model, device, dtype, placement)
    if loaded.tokenizer is None:
        raise InputError(f"{model} has no tokenizer, so it cannot read a prompt: give its directory a tokenizer.json")
    sampling: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    sampling |= {"repetition_penalty": repetition_penalty, "stop": stop or None}
    if loaded.target_tokenizer is None:
        ids = continue_text(loaded, prompt, tokens, **sampling).ids[0].tolist()
        frame.tell(lambda: [str(ids)], lambda: {"prompt": prompt, "ids": ids}, quiet=quiet, json=json)
        return
    pieces = (piece for (piece,) in generate_pieces(loaded, prompt, tokens, **sampling))
    if quiet or json:
        written = "".join(pieces)
        frame.tell(list, lambda: {"prompt": prompt, "written": written}, quiet=quiet, json=json)
        return
    first = next(pieces)
    typer.echo((prompt if len(loaded.config.stacks) == 1 else "") + first, nl=False)
    for piece in pieces:
        typer.echo(piece, nl=False)
    typer.echo()


def models(*, quiet, json) -> None:
    """Lists the models that can be loaded."""
    from models import catalogue

    families, shipped = catalogue.families(), [*catalogue.shipped()]
    cached = [*catalogue.local_models(catalogue.cached())]
    parts = {name: None if family is None else asdict(family) for name, family in families.items()}
    local = {"shipped": [*map(asdict, shipped)], "cached": [*map(asdict, cached)]}
    frame.tell(lambda: listing(families, shipped, cached), lambda: {"families": parts, **local}, quiet=quiet, json=json)


def listing(
    families: "Mapping[str, catalogue.Parts | None]",
    shipped: "Sequence[catalogue.LocalModel]",
    cached: "Sequence[catalogue.LocalModel]",
) -> Iterator[str]:
    """Model families with their parts, and the models on this machine with their sizes, line by line."""
    yield "Families (a directory in Hugging Face's format, or a name on its hub):"
    for name, parts in families.items():
        interp = ["any: our own format, for models that no family can express"]
        yield from _entry(name, *(interp if parts is None else astuple(parts)))
    for heading, models in (("Shipped:", shipped), ("In the hub's cache:", cached)):
        yield from ("", heading if models else f"{heading} nothing; --model ORG/NAME downloads a model once")
        for model in models:
            size = f"{_size(model.n_bytes)}B on disk"
            if model.parts is None:
                yield from _entry(model.name, size, f"cannot be loaded: {model.summary}")
            else:
                facts = model.summary, model.parts.stacks, model.parts.attention, model.parts.positions
                yield from _entry(model.name, model.family, f"{_size(model.n_parameters)} parameters", size, *facts)
    yield from ("", "Other architectures: --model lens:DIRECTORY_OR_NAME, what TransformerLens wraps")


def _size(number: int) -> str:
    units = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
    return next((f"{number / unit:.3g} {name}" for unit, name in units if number >= unit), f"{number:g} ")


def _entry(name: str, *facts: str) -> Iterator[str]:
    """A name, with its description below."""
    yield f"  {name}"
    yield indent(fill(" · ".join(facts), COLUMNS - 4, break_on_hyphens=False), " " * 4)

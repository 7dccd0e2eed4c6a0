"""Commands that measure models and leave a page: report, one behaviour alone, experiments, probes, patch, compare."""
# ruff: noqa: PLC0415

from collections.abc import Callable, Sequence
from typing import Any

import typer

from analyses.cli.command_frame import Request, corpora
from analyses.cli.options import Directions


def measuring(behaviours: Sequence[str] | None = None) -> Callable[..., None]:
    """Measures and tests `behaviours` (None: all of them, with what else a report has)."""

    def command(
        request: Request, *, corpus, over_training, pairs, labels, exact, probes, experiments, measures, text, training
    ):
        from analyses import report
        from analyses.over_training import training_runs
        from interp import InputError

        if over_training:
            runs = " ".join(map(str, over_training))
            typer.echo(f"interp: --over-training is deprecated: interp over-training {runs}", err=True)
            report.over_training(over_training, request.out, request.load, **request.record)
            return
        if exact and not labels:
            raise InputError("--exact is of what labels need, and there are none: add --labels, or leave it out")
        wanted: Sequence[Any] | None = behaviours
        if measures:
            from analyses.behaviours import OURS
            from analyses.own_measures import read_file

            wanted = [*OURS, *(measure for path in measures for measure in read_file(path))]
        model = request.load()
        if training is None:
            run = training_runs.known(request.model, model)
        else:
            run = training_runs.given(training, request.load, seed=request.seed, progress=request.progress)
        options: dict[str, Any] = {"pairs": pairs, "labels": labels, "exact": exact, "probes": probes}
        options |= {"experiments": experiments, "behaviours": wanted, "texts": text or (), "training": run}
        report.build(model, corpora(corpus), request.out, **options, **request.named)

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

    tested = corpora(held_out) if held_out else []
    report.probe(request.load(), corpora(corpus), request.out, held_out=tested, **request.named)


def compare(request: Request, models, *, corpus) -> None:
    """Sets models side by side."""
    from analyses import report
    from analyses.compare import names

    loaded = dict(zip(names(models), map(request.load, models), strict=True))
    report.compare(loaded, corpora(corpus), request.out, **request.record)


def patch(
    request: Request,
    *,
    clean,
    corrupt,
    answer,
    wrong,
    target,
    source,
    pairs,
    drop,
    as_typed,
    site,
    stack,
    attention,
    by_position,
    position,
    direction,
    metric,
    estimates,
) -> Sequence[str]:
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
    said = [] if answers is None else [answers.sentence]
    if answers is not None and answers.refused:
        said.append(f"no shares: {answers.unsaid}" if answers.unsaid else "So there are no shares.")
    return [*said, *patching.agreement_lines(written.correlations)]

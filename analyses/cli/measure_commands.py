"""Commands that measure models and leave a page: report, one behaviour alone, experiments, probes, compare."""
# ruff: noqa: PLC0415

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from analyses.cli.command_frame import Request, corpora, leaving
from analyses.cli.options import (
    Corpora,
    Exact,
    Experiments,
    HeldOut,
    Labels,
    Measures,
    OverTraining,
    Pairs,
    Probes,
    Texts,
    Training,
    completing,
    path,
)


def measuring(behaviours: Sequence[str] | None, default_out: str) -> Callable[..., None]:
    """A command that measures and tests `behaviours` (None: all of them) and writes its directory."""

    def command(
        request: Request,
        *,
        corpus: Corpora = None,
        over_training: OverTraining = None,
        pairs: Pairs = None,
        labels: Labels = behaviours is None,
        exact: Exact = False,
        probes: Probes = behaviours is None,
        experiments: Experiments = behaviours is None,
        measures: Measures = None,
        text: Texts = None,
        training: Training = None,
    ) -> None:
        from analyses import report
        from analyses.over_training import when_formed
        from interp import InputError

        if over_training:
            runs = " ".join(map(str, over_training))
            typer.echo(f"interp: --over-training is deprecated: interp over-training {runs}", err=True)
            report.over_training(over_training, request.out, request.load, **request.record)
            return
        if exact and not labels:
            raise InputError("--exact is of what labels need, and there are none: add --labels, or leave it out")
        if measures:
            from analyses.behaviours import OURS
            from analyses.own_measures import read_file

            wanted = [*OURS, *(measure for path in measures for measure in read_file(path))]
        else:
            wanted = behaviours
        model = request.load()
        if training is None:
            run = when_formed.known(request.model, model)
        else:
            run = when_formed.given(training, request.load, seed=request.seed, progress=request.progress)
        options: dict[str, Any] = {"pairs": pairs, "labels": labels, "exact": exact, "probes": probes}
        options |= {"experiments": experiments, "behaviours": wanted, "texts": text or (), "training": run}
        report.build(model, corpora(corpus), request.out, **options, **request.named)

    return leaving(default_out, without=() if behaviours is None else {"over_training", "measures"})(command)


@leaving("over-training", without={"model"})
def over_training(
    request: Request,
    runs: Annotated[
        list[Path], typer.Argument(help="Directories that `interp train` wrote; several side by side.", parser=path)
    ],
) -> None:
    """How did the heads form while a model was trained?"""
    from analyses import report

    report.over_training(runs, request.out, request.load, **request.record)


def experimenting(commands: Any, default_out: str) -> Callable[..., None]:
    """A command that runs the experiments of `commands` (None: all of them) and writes its directory."""

    def command(request: Request) -> None:
        from analyses import report

        report.experiments(request.load(), request.out, commands, **request.named)

    return leaving(default_out)(command)


@leaving("probes")
def probes(request: Request, *, corpus: Corpora = None, held_out: HeldOut = None) -> None:
    """From which layer can tags, relations and reference be read?"""
    from analyses import report

    tested = corpora(held_out) if held_out else []
    report.probe(request.load(), corpora(corpus), request.out, held_out=tested, **request.named)


@leaving("compare", without={"model"})
def compare(
    request: Request,
    models: Annotated[
        list[str],
        typer.Argument(
            help="Two or more, each as for --model; the others are compared with the first.",
            autocompletion=completing("default", "minilm"),
        ),
    ],
    *,
    corpus: Corpora = None,
) -> None:
    """Does one model have the heads that another has? The same measures side by side."""
    from analyses import report
    from analyses.compare import names

    named = names(models)
    loaded = dict(zip(named, map(request.load, models), strict=True))
    report.compare(loaded, corpora(corpus), request.out, **request.record)

"""Commands that measure models and leave a page: report, one behaviour alone, experiments, probes, compare."""
# ruff: noqa: PLC0415

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from analyses.cli.command_frame import Asked, corpora, leaving
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
)


def measuring(behaviours: Sequence[str] | None, default_out: str) -> Callable[..., None]:
    """A command that measures and tests `behaviours` (None: all of them) and writes its directory.

    The command of all behaviours has `--over-training` too.
    """

    def command(
        asked: Asked,
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
            given = {"model": asked.model != "default", "corpus": bool(corpus), "pairs": pairs is not None}
            given |= {"measures": bool(measures), "text": bool(text), "training": training is not None}
            given |= {
                "no-labels": not labels,
                "exact": exact,
                "no-probes": not probes,
                "no-experiments": not experiments,
            }
            _refuse([name for name, is_given in given.items() if is_given])
            report.over_training(over_training, asked.out, asked.load, **asked.record)
            return
        if exact and not labels:
            raise InputError("--exact is of what labels need, and there are none: add --labels, or leave it out")
        what: dict[str, Any] = {
            "pairs": pairs,
            "labels": labels,
            "exact": exact,
            "probes": probes,
            "experiments": experiments,
        }
        wanted = behaviours
        if measures:
            from analyses.behaviours import OURS
            from analyses.own_measures import read_file

            wanted = [*OURS, *(each for path in measures for each in read_file(path))]
        model = asked.load()
        if training is None:
            run = when_formed.known(asked.model, model)
        else:
            run = when_formed.given(training, asked.load, seed=asked.seed, progress=asked.progress)
        what |= {"behaviours": wanted, "texts": text or (), "training": run}
        report.build(model, corpora(corpus), asked.out, **what, **asked.named)

    return leaving(default_out, without=() if behaviours is None else {"over_training", "measures"})(command)


def _refuse(given: Sequence[str]) -> None:
    """Refuse options of a model beside --over-training."""
    from interp import InputError

    if given:
        raise InputError(f"--over-training reads what a run left, no model: leave out --{' and --'.join(given)}")


def experimenting(commands: Any, default_out: str) -> Callable[..., None]:
    """A command that runs the experiments of `commands` (None: all of them) and writes its directory."""

    def command(asked: Asked) -> None:
        from analyses import report

        report.experiments(asked.load(), asked.out, commands, **asked.named)

    return leaving(default_out)(command)


@leaving("probes")
def probes(asked: Asked, *, corpus: Corpora = None, held_out: HeldOut = None) -> None:
    """From which layer can tags, relations and reference be read?"""
    from analyses import report

    tested = corpora(held_out) if held_out else []
    report.probe(asked.load(), corpora(corpus), asked.out, held_out=tested, **asked.named)


@leaving("compare", without={"model"})
def compare(
    asked: Asked,
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
    loaded = dict(zip(named, map(asked.load, models), strict=True))
    report.compare(loaded, corpora(corpus), asked.out, **asked.record)

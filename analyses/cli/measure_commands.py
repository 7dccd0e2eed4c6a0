"""Commands that measure models and leave a page: report, one behaviour alone, experiments, probes, compare."""
# ruff: noqa: PLC0415

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from analyses.cli.command_frame import one_line, opened, progressing, title, typed, wrote
from analyses.cli.options import (
    N_PAIRS,
    Corpora,
    Device,
    Dtype,
    DtypeOption,
    Experiments,
    HeldOut,
    Labels,
    Model,
    Out,
    OverTraining,
    Pairs,
    Probes,
    Seed,
)


def measuring(behaviours: Sequence[str] | None, default_out: str) -> Callable[..., None]:
    """A command that measures and tests `behaviours` (None: all of them) and writes its directory.

    The command of all behaviours has `--over-training` too.
    """

    def command(
        *,
        model: Model = "default",
        corpus: Corpora = None,
        over_training: OverTraining = None,
        out: Out = Path(default_out),
        seed: Seed = 0,
        device: Device = "cpu",
        dtype: DtypeOption = Dtype.FLOAT32,
        pairs: Pairs = N_PAIRS,
        labels: Labels = True,
        probes: Probes = behaviours is None,
        experiments: Experiments = behaviours is None,
    ) -> None:
        with one_line(), progressing() as progress:
            if over_training:
                given = {"model": model != "default", "corpus": bool(corpus), "pairs": pairs != N_PAIRS}
                given |= {"no-labels": not labels, "no-probes": not probes, "no-experiments": not experiments}
                _refuse([name for name, is_given in given.items() if is_given])
                from analyses.over_training import training_report

                training_report.build(
                    over_training,
                    out,
                    lambda name: opened(name, device, dtype),
                    seed=seed,
                    command=typed(),
                    progress=progress,
                )
            else:
                from analyses import corpora
                from analyses.report import full_report

                progress("loading the model", 0)
                full_report.build(
                    opened(model, device, dtype),
                    [corpora.read(spec) for spec in corpus or [corpora.GENERATED]],
                    out,
                    behaviours=behaviours,
                    seed=seed,
                    pairs=pairs,
                    labels=labels,
                    probes=probes,
                    experiments=experiments,
                    command=typed(),
                    name=title(model),
                    progress=progress,
                )
        typer.echo(wrote(out))

    return command if behaviours is None else _without(command, "over_training")


def _refuse(given: Sequence[str]) -> None:
    """Refuse options of a model beside --over-training."""
    from interp import InputError

    if given:
        raise InputError(f"--over-training reads what a run left, no model: leave out --{' and --'.join(given)}")


def _without(command: Callable[..., None], option: str) -> Callable[..., None]:
    """The command without one of its options, which then always has its default."""
    signature = inspect.signature(command)
    kept = [each for each in signature.parameters.values() if each.name != option]
    setattr(command, "__signature__", signature.replace(parameters=kept))  # noqa: B010 (what typer reads)
    return command


def experimenting(commands: Sequence[str] | None, default_out: str) -> Callable[..., None]:
    """A command that runs the experiments of `commands` (None: all of them) and writes its directory."""

    def command(
        *,
        model: Model = "default",
        out: Out = Path(default_out),
        seed: Seed = 0,
        device: Device = "cpu",
        dtype: DtypeOption = Dtype.FLOAT32,
    ) -> None:
        with one_line():
            from analyses.experiments import experiments_report

            with progressing() as progress:
                progress("loading the model", 0)
                experiments_report.build(
                    opened(model, device, dtype),
                    out,
                    commands,
                    seed=seed,
                    command=typed(),
                    name=title(model),
                    progress=progress,
                )
        typer.echo(wrote(out))

    return command


def probes(
    *,
    model: Model = "default",
    corpus: Corpora = None,
    held_out: HeldOut = None,
    out: Out = Path("probes"),
    seed: Seed = 0,
    device: Device = "cpu",
    dtype: DtypeOption = Dtype.FLOAT32,
) -> None:
    """From which layer can tags, relations and reference be read?"""
    with one_line():
        from analyses import corpora
        from analyses.probe import probe_report

        with progressing() as progress:
            progress("loading the model", 0)
            probe_report.build(
                opened(model, device, dtype),
                [corpora.read(spec) for spec in corpus or [corpora.GENERATED]],
                out,
                held_out=[corpora.read(spec) for spec in held_out or ()],
                seed=seed,
                command=typed(),
                name=title(model),
                progress=progress,
            )
    typer.echo(wrote(out))


def compare(
    models: Annotated[
        list[str],
        typer.Argument(help="Two or more, each as for --model; the others are compared with the first."),
    ],
    *,
    corpus: Corpora = None,
    out: Out = Path("compare"),
    seed: Seed = 0,
    device: Device = "cpu",
    dtype: DtypeOption = Dtype.FLOAT32,
) -> None:
    """Does one model have the heads that another has? The same measures side by side."""
    with one_line():
        from analyses import compare as comparing
        from analyses import corpora

        names = comparing.names(models)
        with progressing() as progress:
            progress("loading the models", 0)
            comparing.build(
                dict(zip(names, [opened(model, device, dtype) for model in models], strict=True)),
                [corpora.read(spec) for spec in corpus or [corpora.GENERATED]],
                out,
                seed=seed,
                command=typed(),
                progress=progress,
            )
    typer.echo(wrote(out))

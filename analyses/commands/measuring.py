"""Commands that measure models and leave a page: report, one behaviour alone, experiments, probes, compare."""
# ruff: noqa: PLC0415

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from analyses.commands.options import (
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
from analyses.commands.running import one_line, opened, progressing, title, typed, wrote


def measuring(behaviours: Sequence[str] | None, default_out: str) -> Callable[..., None]:
    """A command that measures and tests `behaviours` (None: all of them) and writes its directory."""

    def command(
        *,
        model: Model = "default",
        corpus: Corpora = None,
        out: Out = Path(default_out),
        seed: Seed = 0,
        device: Device = "cpu",
        dtype: DtypeOption = Dtype.FLOAT32,
        pairs: Pairs = N_PAIRS,
        labels: Labels = True,
        probes: Probes = behaviours is None,
        experiments: Experiments = behaviours is None,
    ) -> None:
        with one_line():
            from analyses import corpora, report

            with progressing() as progress:
                progress("loading the model", 0)
                loaded = opened(model, device, dtype)
                report.build(
                    loaded,
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

    return command


_everything = measuring(None, "report")


def report(
    *,
    model: Model = "default",
    corpus: Corpora = None,
    over_training: OverTraining = None,
    out: Out = Path("report"),
    seed: Seed = 0,
    device: Device = "cpu",
    dtype: DtypeOption = Dtype.FLOAT32,
    pairs: Pairs = N_PAIRS,
    labels: Labels = True,
    probes: Probes = True,
    experiments: Experiments = True,
) -> None:
    """Everything for one model: positional, part-of-speech and coreference heads, with a causal test."""
    if not over_training:
        return _everything(
            model=model,
            corpus=corpus,
            out=out,
            seed=seed,
            device=device,
            dtype=dtype,
            pairs=pairs,
            labels=labels,
            probes=probes,
            experiments=experiments,
        )
    with one_line():
        from analyses.forming import building
        from interp import InputError

        told = {
            "model": model != "default",
            "corpus": bool(corpus),
            "pairs": pairs != N_PAIRS,
            "no-labels": not labels,
            "no-probes": not probes,
            "no-experiments": not experiments,
        }
        given = [name for name, is_given in told.items() if is_given]
        if given:
            raise InputError(f"--over-training reads what a run left, no model: leave out --{' and --'.join(given)}")
        with progressing() as progress:
            building.build(
                over_training,
                out,
                lambda name: opened(name, device, dtype),
                seed=seed,
                command=typed(),
                progress=progress,
            )
    typer.echo(wrote(out))


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
            from analyses.experiments import building

            with progressing() as progress:
                progress("loading the model", 0)
                building.build(
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
        from analyses.probes import building

        with progressing() as progress:
            progress("loading the model", 0)
            building.build(
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
        from analyses import comparing, corpora

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

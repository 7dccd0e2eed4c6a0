"""Commands around models themselves: train, generate, models."""
# ruff: noqa: PLC0415

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from analyses.cli.command_frame import INTERRUPTED, as_json, end, folded, one_line, opened, tell, typed
from analyses.cli.options import (
    Device,
    Dtype,
    DtypeOption,
    Json,
    JsonLines,
    Model,
    Parallel,
    Quiet,
    Seed,
    completing,
    path,
)


def train(
    recipe: Annotated[
        str,
        typer.Argument(
            help="A TOML file, or a recipe that is shipped: `default`, `original`, `small`. The default reads novels "
            "that you give: --set data.novels.path=FOLDER.",
            autocompletion=completing("default", "original", "small"),
        ),
    ],
    *,
    out: Annotated[
        Path,
        typer.Option(help="The directory of the run: model, tokenizer, state, metrics, snapshots.", parser=path),
    ] = Path("trained"),
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last state in --out, to the same weights bit for bit.")
    ] = False,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A value in place of the recipe's: model.n_layers=1, training.seed=2, phases.0.steps=500, or for "
            "every phase 'phases.*.mix.repeats=0'. May be repeated.",
        ),
    ] = None,
    device: Device = "cpu",
    cache: Annotated[
        Path | None,
        typer.Option(
            help="Keeps tokenizers, texts and token arrays, by what they were made of, for several runs.",
            parser=path,
            show_default="data/ in --out",
        ),
    ] = None,
    measures: Annotated[
        bool, typer.Option("--measures/--no-measures", help="Measure heads whenever held-out text is looked at.")
    ] = True,
    parallel: Annotated[
        Parallel | None,
        typer.Option(
            help="How processes share the work, as in: torchrun --standalone --nproc-per-node 2 -m analyses.cli.app "
            "train RECIPE --parallel ddp.",
            show_default="one process",
        ),
    ] = None,
    quiet: Quiet = False,
    json: JsonLines = False,
) -> None:
    """Train a model by a recipe: text, tokenizer, model and plan in one TOML file."""
    command = typed()
    with one_line():
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
                told=training.JSON if json else training.NOTHING if quiet else training.LINES,
            )
        except KeyboardInterrupt:
            end(training.interrupted(out, command), INTERRUPTED)
        if not training.leads():
            return
        if json:
            typer.echo(as_json({"out": str(out)}, indent=None))
        elif not quiet:
            typer.echo(
                folded(
                    f"wrote {out}: the model, metrics.jsonl, run.json and recipe.toml",
                    f"see what its heads do with interp report --model {shlex.quote(str(out))}",
                )
            )


def generate(
    prompt: Annotated[str, typer.Argument(help="The text to continue, or to read where the model has an encoder.")],
    *,
    model: Model = "default",
    tokens: Annotated[int, typer.Option(min=1, help="How many tokens to add.")] = 100,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 0.0,
    top_k: Annotated[int | None, typer.Option(help="Draw among the k likeliest tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Draw among the fewest tokens that hold this probability.")
    ] = None,
    repetition_penalty: Annotated[
        float, typer.Option(help="Above 1, what the text has already becomes less likely; 1 is none.")
    ] = 1.0,
    stop: Annotated[
        list[str] | None, typer.Option(help="A string that ends the text where it is written. May be repeated.")
    ] = None,
    seed: Seed = 0,
    device: Device = "cpu",
    dtype: DtypeOption = Dtype.FLOAT32,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Continue a text, shown while it is written; a model with an encoder reads it, and writes its own."""
    with one_line():
        from interp import InputError, stream
        from interp import generate as continue_text

        cut = {"--top-k": top_k, "--top-p": top_p}
        if temperature == 0 and (given := [name for name, value in cut.items() if value is not None]):
            raise InputError(f"{' and '.join(given)} cut what is drawn from, and --temperature 0 draws none: raise it")
        loaded = opened(model, device, dtype)
        if loaded.tokenizer is None:
            raise InputError(
                f"{model} has no tokenizer, so it cannot read a prompt: give its directory a tokenizer.json"
            )
        how: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
        how |= {"repetition_penalty": repetition_penalty, "stop": stop or None}
        if loaded.target_tokenizer is None:
            ids = continue_text(loaded, prompt, tokens, **how).ids[0].tolist()
            tell(lambda: [str(ids)], lambda: {"prompt": prompt, "ids": ids}, quiet=quiet, json=json)
            return
        pieces = (piece for (piece,) in stream(loaded, prompt, tokens, **how))
        if quiet or json:
            written = "".join(pieces)
            tell(list, lambda: {"prompt": prompt, "written": written}, quiet=quiet, json=json)
            return
        first = next(pieces)
        typer.echo((prompt if len(loaded.config.stacks) == 1 else "") + first, nl=False)
        for piece in pieces:
            typer.echo(piece, nl=False)
        typer.echo()


def models(*, quiet: Quiet = False, json: Json = False) -> None:
    """Which models can be loaded: families, what they are made of, and what is on this machine."""
    with one_line():
        from analyses.cli import models_listing as listing

        models = listing.listed()
        tell(lambda: listing.lines(models), lambda: asdict(models), quiet=quiet, json=json)

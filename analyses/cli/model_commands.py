"""Commands around models themselves: train, generate, models."""
# ruff: noqa: PLC0415

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from analyses.cli.command_frame import INTERRUPTED, as_json, end, folded, opened, tell, typed
from analyses.cli.options import Dtype, Parallel


def train(
    recipe: str,
    *,
    out: Path = Path("trained"),
    resume: bool = False,
    changes: list[str] | None = None,
    device: str = "cpu",
    cache: Path | None = None,
    measures: bool = True,
    parallel: Parallel | None = None,
    quiet: bool = False,
    json: bool = False,
) -> None:
    """Trains a model by a recipe."""
    command = typed()
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
    prompt: str,
    *,
    model: str = "default",
    tokens: int = 100,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    repetition_penalty: float = 1.0,
    stop: list[str] | None = None,
    seed: int = 0,
    device: str = "cpu",
    dtype: Dtype = Dtype.FLOAT32,
    quiet: bool = False,
    json: bool = False,
) -> None:
    """Continues a text, shown while it is written."""
    from interp import InputError, stream
    from interp import generate as continue_text

    cut = {"--top-k": top_k, "--top-p": top_p}
    if temperature == 0 and (given := [name for name, value in cut.items() if value is not None]):
        raise InputError(f"{' and '.join(given)} cut what is drawn from, and --temperature 0 draws none: raise it")
    loaded = opened(model, device, dtype)
    if loaded.tokenizer is None:
        raise InputError(f"{model} has no tokenizer, so it cannot read a prompt: give its directory a tokenizer.json")
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


def models(*, quiet: bool = False, json: bool = False) -> None:
    """Lists what can be loaded."""
    from analyses.cli import models_listing as listing

    models = listing.listed()
    tell(lambda: listing.lines(models), lambda: asdict(models), quiet=quiet, json=json)

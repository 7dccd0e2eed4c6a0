"""What every command does around its own work: load, show how it goes, and end in one line.

Only what parses options is imported at once; a command brings in the rest when it runs, so that `--help` answers soon.
"""
# ruff: noqa: PLC0415

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from analyses.cli.options import Dtype

if TYPE_CHECKING:
    from collections.abc import Callable

    from interp import Transformer

USAGE, INTERRUPTED = 2, 130  # exit codes


def typed() -> str:
    """The command as it was typed, so that it can be typed again."""
    return shlex.join(["interp", *sys.argv[1:]])


def wrote(out: Path) -> str:
    """How a command that leaves a page ends."""
    return f"wrote {out / 'report.html'}; beside it run.json, tables/ and figures/"


def title(model: str) -> str:
    """How a report calls a model."""
    named = {"default": "the default model", "minilm": "MiniLM"}
    return named.get(model) or (Path(model).resolve().name if Path(model).exists() else model)


def opened(model: str, device: str, dtype: Dtype) -> "Transformer":
    """The model that `--model` names."""
    import torch

    from models import load

    if dtype is Dtype.INT8:
        return load(model, device=device, quantize="int8")
    return load(model, dtype=getattr(torch, dtype.value), device=device)


@contextmanager
def one_line() -> Iterator[None]:
    """What the user got wrong, and an interruption, end the command with one line and no traceback."""
    try:
        from interp import InputError

        try:
            yield
        except InputError as error:
            end(str(error), USAGE)
    except KeyboardInterrupt:
        end("interrupted; nothing was written", INTERRUPTED)


def end(message: str, code: int) -> NoReturn:
    """Say on one line why there is nothing more, and stop."""
    typer.echo(f"interp: {' '.join(message.split())}", err=True)
    raise typer.Exit(code)


@contextmanager
def progressing() -> "Iterator[Callable[[str, int], None]]":
    """A line on stderr that says what is being done and how many texts were read, and goes away at the end."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(24), TextColumn("{task.fields[texts]}")
    console = Console(stderr=True)
    quiet = not console.is_terminal  # a log gets what was wrong, and nothing else
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True, disable=quiet) as bar:
        task = bar.add_task("starting", total=None, texts="")

        def say(stage: str, texts: int) -> None:
            bar.update(task, description=stage, texts=f"{texts:,}" if texts else "")

        yield say

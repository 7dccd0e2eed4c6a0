"""What can be typed for each command? `commands.toml` describes every parameter of the functions that commands call."""

import inspect
import tomllib
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from glob import escape, glob
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, cast

import typer

COLUMNS = 80  # of a terminal

# What can be typed for an option: each value is its name in small letters.
Metric = StrEnum("Metric", "LOGIT_DIFFERENCE LOG_PROBABILITY PROBABILITY RANK KL_DIVERGENCE LOSS")
Stack = StrEnum("Stack", "ENCODER DECODER")
Attention = StrEnum("Attention", "SELF CROSS")
Directions = StrEnum("Directions", "DENOISE NOISE BOTH")
Dtype = StrEnum("Dtype", "FLOAT32 FLOAT64 BFLOAT16 INT8")
Format = StrEnum("Format", "PDF SVG PNG")


class Parallel(StrEnum):
    """How processes share a training."""

    DDP = "ddp"
    FSDP = "fsdp"


_DECLARED = tomllib.loads(files("analyses.cli").joinpath("commands.toml").read_text("utf-8"))
COMMANDS: Mapping[str, Mapping[str, Any]] = _DECLARED["commands"]
"""By name: help, examples, options of its own, and shared options that it is `without`."""


def declared(command: str, parameters: Sequence[inspect.Parameter]) -> inspect.Signature:
    """The parameters as typer reads them; those that can be given without a keyword are arguments."""
    shared = _DECLARED["options"]
    known = {**shared, "out": {**shared["out"], "show_default": command}, **COMMANDS[command].get("options", {})}
    without = COMMANDS[command].get("without", ())
    return inspect.Signature([_declared(each, **known[each.name]) for each in parameters if each.name not in without])


def _declared(
    parameter: inspect.Parameter, flags: Sequence[str] = (), completes: Sequence[str] = (), **how: Any
) -> inspect.Parameter:
    if completes:
        how["autocompletion"] = completing(*completes)
    if "Path" in str(parameter.annotation):
        how["parser"] = path
    kind = typer.Option if parameter.kind is parameter.KEYWORD_ONLY else typer.Argument
    annotation = cast(Any, Annotated)[parameter.annotation, kind(*flags, **how)]
    return parameter.replace(annotation=annotation)


def path(typed: str | Path) -> Path:
    """A file's or a directory's name; an empty one, which an unset variable of the shell leaves, is no name.

    It would mean the directory that one is in.
    """
    if not str(typed):
        raise typer.BadParameter("expected the name of a file or directory, got '' ('.' is this directory)")
    return Path(typed)


def completing(*names: str) -> Callable[[str], list[str]]:
    """What a shell completes: these names, and what lies here; a shell offers its files only where it is told none."""

    def complete(incomplete: str) -> list[str]:
        here = sorted(glob(f"{escape(incomplete)}*"))
        return [*(name for name in names if name.startswith(incomplete)), *here]

    return complete

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
Parallel = StrEnum("Parallel", "DDP FSDP")

_TYPES: Mapping[str, type] = {"text": str, "flag": bool, "whole": int, "number": float, "path": Path}
_TYPES |= {each.__name__: each for each in (Metric, Stack, Attention, Directions, Dtype, Format, Parallel)}
_DECLARED = tomllib.loads(files("analyses.cli").joinpath("commands.toml").read_text("utf-8"))
COMMANDS: Mapping[str, Mapping[str, Any]] = _DECLARED["commands"]
"""By name: help, examples, options of its own, other `defaults` of shared options, and those that it is `without`."""


def declared(command: str, parameters: Sequence[inspect.Parameter]) -> list[inspect.Parameter]:
    """The parameters as typer reads them; those that can be given without a keyword are arguments."""
    about, shared = COMMANDS[command], _DECLARED["options"]
    known = {**shared, "out": {**shared["out"], "show_default": command}, **about.get("options", {})}
    known |= {name: {**known[name], "default": default} for name, default in about.get("defaults", {}).items()}
    return [_declared(each, **known[each.name]) for each in parameters]


def _declared(parameter: inspect.Parameter, flags: Sequence[str] = (), **how: Any) -> inspect.Parameter:
    kind, many, default = _TYPES[how.pop("type", "text")], how.pop("many", False), how.pop("default", None)
    is_option = parameter.kind is parameter.KEYWORD_ONLY
    is_required = default is None and not is_option
    if completes := how.pop("completes", ()):
        how["autocompletion"] = completing(*completes)
    if kind is Path:
        how["parser"] = path
    if default is not None:
        default = ([kind(each) for each in default] or None) if many else kind(default)
    values: Any = list[kind] if many else kind
    shown = values if default is not None or is_required else values | None
    annotation = cast(Any, Annotated)[shown, (typer.Option if is_option else typer.Argument)(*flags, **how)]
    return parameter.replace(annotation=annotation, default=parameter.empty if is_required else default)


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

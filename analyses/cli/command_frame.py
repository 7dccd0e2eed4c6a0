"""What can be typed for each command, and what does each do around its own work: load, show progress, end in one line?

`commands.toml` describes every parameter of the functions that commands call.

We import at once only what parses options; a command imports the rest when it runs, so that `--help` answers soon.
"""
# ruff: noqa: PLC0415

import inspect
import shlex
import signal
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from glob import escape, glob
from importlib.resources import files
from json import dumps
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, cast

import typer

from analyses.cli import COLUMNS

if TYPE_CHECKING:
    from concurrent.futures import Executor

    import interp
    from analyses.corpora import Corpus
    from analyses.execution.progress import Announcer


# What can be typed for an option: values are the names in lower case.
Metric = StrEnum("Metric", "LOGIT_DIFFERENCE LOG_PROBABILITY PROBABILITY RANK KL_DIVERGENCE LOSS")
Stack = StrEnum("Stack", "ENCODER DECODER")
Attention = StrEnum("Attention", "SELF CROSS")
Directions = StrEnum("Directions", "DENOISE NOISE BOTH")
Dtype = StrEnum("Dtype", "FLOAT32 FLOAT64 BFLOAT16 INT8")
Format = StrEnum("Format", "PDF SVG PNG")
Parallel = StrEnum("Parallel", "DDP FSDP")
Method = StrEnum("Method", {"EAP_IG": "eap-ig", "EAP": "eap", "EXACT": "exact", "NODES": "nodes"})
Ablation = StrEnum("Ablation", "CORRUPT MEAN ZERO")

_TYPES: Mapping[str, type] = {"text": str, "flag": bool, "whole": int, "number": float, "path": Path}
_TYPES |= {
    each.__name__: each for each in (Metric, Stack, Attention, Directions, Dtype, Format, Parallel, Method, Ablation)
}
_DECLARED = tomllib.loads(files("analyses.cli").joinpath("commands.toml").read_text("utf-8"))
COMMANDS: Mapping[str, Mapping[str, Any]] = _DECLARED["commands"]
"""By name: help, examples, own options, other `defaults` for shared options, and shared options it is `without`."""
_TESTED_ON = "new-sentences:200"
_METAVARS: Mapping[type, str] = {str: "TEXT", int: "N", float: "X", Path: "PATH"}
USAGE, INTERRUPTED = 2, 130  # exit codes; those of other signals are near Ctrl-C's


def declared(command: str, parameters: Sequence[inspect.Parameter]) -> list[inspect.Parameter]:
    """The parameters as typer expects them; those that need no keyword become arguments."""
    facts, options = COMMANDS[command], _DECLARED["options"]
    options = {**options, "out": {**options["out"], "show_default": command}, **facts.get("options", {})}
    options |= {name: {**options[name], "default": default} for name, default in facts.get("defaults", {}).items()}
    return [_declared(each, **options[each.name]) for each in parameters]


def _declared(parameter: inspect.Parameter, flags: Sequence[str] = (), **options: Any) -> inspect.Parameter:
    kind, many, default = _TYPES[options.pop("type", "text")], options.pop("many", False), options.pop("default", None)
    is_option = parameter.kind is parameter.KEYWORD_ONLY
    is_required = default is None and not is_option
    if "metavar" not in options and kind is not bool:
        choices = "|".join(kind) if issubclass(kind, StrEnum) else _METAVARS[kind]
        options["metavar"] = choices if is_option else parameter.name.upper() + "..." * many
    if completes := options.pop("completes", ()):
        options["autocompletion"] = completing(*completes)
    if kind is Path:
        options["parser"] = path
    if default is not None:
        default = ([kind(each) for each in default] or None) if many else kind(default)
    values: Any = list[kind] if many else kind
    values = values if default is not None or is_required else values | None
    annotation = cast(Any, Annotated)[values, (typer.Option if is_option else typer.Argument)(*flags, **options)]
    return parameter.replace(annotation=annotation, default=parameter.empty if is_required else default)


def path(typed: str | Path) -> Path:
    """A file or directory name. Refuses an empty one, as from an unset variable, which would mean this directory."""
    if not str(typed):
        raise typer.BadParameter("expected the name of a file or directory, got '' ('.' is this directory)")
    return Path(typed)


def completing(*names: str) -> Callable[[str], list[str]]:
    """Shell completion of these names and of local files, which a shell offers only if no completion is given."""

    def complete(incomplete: str) -> list[str]:
        return [*(name for name in names if name.startswith(incomplete)), *sorted(glob(f"{escape(incomplete)}*"))]

    return complete


@dataclass(frozen=True)
class Request:
    """The options of every command that leaves a directory, besides its own."""

    model: str
    out: Path
    seed: int
    device: str
    placement: str | None
    dtype: Dtype
    progress: "Announcer"
    cluster: "Executor | None"

    @property
    def record(self) -> dict[str, Any]:
        """The options of every builder in `analyses.report`."""
        return {"seed": self.seed, "command": typed(), "progress": self.progress, "cluster": self.cluster}

    @property
    def named(self) -> dict[str, Any]:
        """The same with the model's name, for builders that measure one model."""
        return {"name": title(self.model), **self.record}

    def load(self, model: str | None = None) -> "interp.Model":
        """Load a model, by default the one of --model."""
        self.progress("loading the model", 0)
        return opened(model or self.model, self.device, self.dtype, self.placement)


def as_command(name: str, body: Callable[..., Iterable[str] | None]) -> Callable[..., None]:
    """Make the command `name`, which ends in one line if something goes wrong.

    If the function takes a `Request`, its command leaves a directory and also has the options of `_leave`, except those
    that `COMMANDS` removes (`without`).
    """
    first, *options = inspect.signature(body).parameters.values()
    run = partial(_leave, name, body) if first.name == "request" else body
    if run is not body:
        model, *rest = (each for each in inspect.signature(run).parameters.values() if each.kind is each.KEYWORD_ONLY)
        first, *options = sorted([model, *options], key=lambda each: each.kind)
        options += rest
    parameters = declared(name, [first, *options])
    absent = {each.name: each.default for each in parameters if each.name in COMMANDS[name].get("without", ())}

    def command(**options: Any) -> None:
        with one_line():
            run(**absent, **options)

    signature = inspect.Signature([each for each in parameters if each.name not in absent])
    setattr(command, "__signature__", signature)  # noqa: B010 (what typer reads)
    return command


def _leave(
    name: str, body: Any, *, model, out, seed, device, placement, dtype,
    cluster, cluster_certificates, quiet, json, log_json, **options: Any
) -> None:  # fmt: skip
    """Call `body`, then print what it returned, the run's sentences, and what was written."""
    from analyses import runs
    from analyses.cli import inspection
    from analyses.cli.next_commands import next_commands
    from analyses.execution.cluster import connected
    from analyses.execution.output import unused
    from analyses.wording.plain_words import listed

    with (
        progressing(silent=quiet, as_json=log_json) as progress,
        connected(cluster, cluster_certificates, lambda message: progress(f"{message}\n", 0)) as executor,
    ):
        folder = out or unused(name, typed())
        first = body(Request(model, folder, seed, device, placement, dtype, progress, executor), **options)
    if quiet and not json:
        return
    run = runs.read(folder)
    sentences = (*(first or ()), *inspection.summary(run))
    note = "" if out or folder == Path(name) else f" ({name} was there already)"
    beside = listed(["run.json", *(f"{each}/" for each in ("tables", "figures") if (folder / each).is_dir())])
    written = folded(f"wrote {folder / 'report.html'}{note}", f"beside it {beside}")
    facts = {"out": str(folder), "report": str(folder / "report.html"), "said": sentences}
    link = f"open {(folder / 'report.html').resolve().as_uri()}"
    about = None if "model" in COMMANDS[name].get("without", ()) else model
    ending = [*map(filled, sentences), written, link, *next_commands(name, about, run, sentences)]
    tell(lambda: ending, lambda: facts, quiet=quiet, json=json)


def tell(
    lines: Callable[[], Iterable[str]], value: Callable[[], Mapping[str, Any]], *, quiet: bool, json: bool
) -> None:
    """Print a command's result: as JSON for another program with --json, nothing with --quiet, else lines."""
    if json:
        typer.echo(as_json(value()))
    elif not quiet:
        for line in lines():
            typer.echo(line)


def as_json(value: Mapping[str, Any], *, indent: int | None = 2) -> str:
    """JSON for other programs, with null for undefined values."""
    from analyses.execution.output import jsonable

    return dumps(jsonable(value), indent=indent, ensure_ascii=False)


def filled(text: str) -> str:
    """A sentence in terminal lines; names are never broken, so that they can be copied."""
    return fill(text, COLUMNS, break_long_words=False, break_on_hyphens=False)


def folded(*parts: str) -> str:
    """Parts on one line if they fit in a terminal, else one per line, with names whole."""
    line = "; ".join(parts)
    return line if len(line) <= COLUMNS else "\n".join(parts)


def corpora(specs: Sequence[str] | None, *models: str) -> "list[Corpus]":
    """The texts of `--corpus`; by default the textbook model's test sentences, or generated tales."""
    from analyses.corpora import GENERATED, read

    return [read(spec) for spec in specs or [_TESTED_ON if models == ("textbook",) else GENERATED]]


def typed() -> str:
    """The command as it was typed, for typing it again."""
    return shlex.join(["interp", *sys.argv[1:]])


def title(model: str) -> str:
    """A model's name in a report."""
    named = {"textbook": "the textbook model", "default": "the default model", "minilm": "MiniLM"}
    return named.get(model) or (Path(model).resolve().name if Path(model).exists() else model)


def opened(model: str, device: str, dtype: Dtype, placement: Any = None) -> "interp.Model":
    """The model that `--model` names."""
    import torch

    from models import load

    if dtype is Dtype.INT8:
        return load(model, device=device, quantize="int8", placement=placement)
    return load(model, dtype=getattr(torch, str(dtype)), device=device, placement=placement)


@contextmanager
def one_line() -> Iterator[None]:
    """End the command in one line, without a traceback, on user errors, system refusals and signals.

    Warnings about input that is probably a mistake also take one line.
    """
    import warnings

    stops: list[int] = []
    try:
        from interp import InputError
        from interp.errors import InputWarning, brief
        from interp.training.stops import stoppable

        def stop(number: int) -> NoReturn:
            stops.append(number)
            raise KeyboardInterrupt

        def show_in_a_line(message: Warning | str, category: type[Warning], *args: Any, **options: Any) -> None:
            if issubclass(category, InputWarning):
                typer.echo(f"interp: {message}", err=True)
            else:
                show(message, category, *args, **options)

        try:
            with warnings.catch_warnings(), stoppable(stop):
                show, warnings.showwarning = warnings.showwarning, show_in_a_line
                yield
        except InputError as error:
            end(str(error), USAGE)
        except (OSError, RecursionError, UnicodeError, MemoryError) as error:
            end(brief(_of_the_system(error)), USAGE)
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # Rust panics derive from nothing narrower
                raise
            end(brief(f"the tokenizers' library failed: {error}; tokenizer.json may be damaged"), USAGE)
    except KeyboardInterrupt as stopped:
        code = INTERRUPTED + stops[0] - signal.SIGINT if stops else INTERRUPTED
        end(f"interrupted; {str(stopped) or 'nothing was written'}", code)


def _of_the_system(error: Exception) -> str:
    """What the system or the interpreter refused, in words."""
    match error:
        case ConnectionError(errno=None):  # a cluster's
            return str(error)
        case OSError():
            file = "" if error.filename is None else f"{error.filename}: "
            return f"{file}the system refused: {error.strerror or error}"
        case RecursionError():
            return f"something that was read is nested too deep ({error})"
        case UnicodeError():
            return f"expected text that UTF-8 can hold ({error})"
        case _:
            return f"not enough memory ({str(error) or 'none was left'}): read less text, or run a smaller model"


def end(message: str, code: int) -> NoReturn:
    """Print in one line why the command stops, and exit."""
    typer.echo(f"interp: {' '.join(message.split())}", err=True)
    raise typer.Exit(code)


def progressing(*, silent: bool = False, as_json: bool = False) -> "Announcer":
    """A context that reports progress on standard error."""
    from analyses.execution.progress import Announcer

    return Announcer(silent=silent, as_json=as_json)

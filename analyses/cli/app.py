"""The `interp` command: which analysis, of which model, on which text, into which directory?"""

import ctypes
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import typer

from analyses.cli import command_lines, commands
from analyses.cli.command_frame import COMMANDS, USAGE, as_command

# the parent of all usage errors, which typer does not export
_UsageError = cast(type[typer.BadParameter], typer.BadParameter.__mro__[1])

app = typer.Typer(
    name="interp",
    help="What does each attention head of a transformer do, and how sure are we?",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its boxes leave 20 columns for text
)

_BODIES = {
    "report": commands.measuring(),
    **{name: commands.measuring([name]) for name in ("position", "part-of-speech", "coreference")},
    "experiments": commands.experimenting(),
    **{name: commands.experimenting(name) for name in ("word-sense", "next-word")},
    **{"over-training": commands.over_training, "probes": commands.probes, "patch": commands.patch},
    **{
        "circuit": commands.circuit,
        "suite": commands.suite,
        "compare": commands.compare,
        "figures": commands.figures,
        "inspect": commands.inspect,
        "card": commands.card,
        "view": commands.view,
    },
    **{"train": commands.train, "generate": commands.generate, "models": commands.models},
}
for _name, _body in _BODIES.items():
    _examples = [f"  {command_lines(shlex.split(example), 4)}" for example in COMMANDS[_name]["examples"]]
    _examples = "\n".join(["\b", "Examples:", *_examples])
    app.command(_name, help=COMMANDS[_name]["help"], epilog=_examples)(as_command(_name, _body))


def main(arguments: Sequence[str] | None = None) -> None:
    """The console command; `arguments` default to those of the command line."""
    _wait_briefly()
    _keep_memory()
    with unread() as output:
        code = _run(list(sys.argv[1:] if arguments is None else arguments))
    if output.error and not code:
        typer.echo(f"interp: the standard output takes nothing: {output.error.strerror}", err=True)
        code = USAGE
    sys.exit(code)


def _run(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    try:
        for argument in arguments:
            if any("\ud800" <= letter <= "\udfff" for letter in argument):  # from bytes that are not UTF-8
                raise _UsageError(
                    f"expected arguments in UTF-8, got {argument!r}: type it in UTF-8, or rename the file"
                )
        return app(arguments or ["--help"], prog_name="interp", standalone_mode=False) or 0
    except _UsageError as error:
        message = " ".join(error.format_message().split()).replace(": Value error, ", ": ").rstrip(".")
        if len(message) >= 200:  # shorter messages hold no long value; do not wait for the library
            from interp.errors import brief  # noqa: PLC0415

            message = brief(message)
        see, command = " See" if message.endswith("?") else "; see", error.ctx.command_path if error.ctx else "interp"
        typer.echo(f"interp: {message}{see} {command} --help", err=True)
        return USAGE


def _wait_briefly() -> None:
    # OpenMP reads this when torch is first imported. Threads that spin longer keep a core from those that they wait for
    # (knock-outs beside another program took 152 s instead of 32); threads that never spin take half as long again.
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = "3000"


def _keep_memory() -> None:
    # GNU's C library maps tensors of more than 32 MB to new pages, which the kernel fills with zeros each time: reading
    # MiniLM's patterns of ten chapters took 16.3 s instead of 7.9. So up to 1 GB is kept for the next tensor.
    try:
        settings = ctypes.CDLL(None).mallopt
    except (AttributeError, TypeError):  # another C library
        return
    for threshold in (-3, -1):  # M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of malloc.h
        settings(threshold, 1 << 30)


class _Unread:
    """A stream that discards its output once the reader has gone or the disk is full; other attributes pass through."""

    error: OSError | None = None  # why output was lost; not set if the reader went away

    def __init__(self, stream: Any):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._leaving():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._leaving():
            self._stream.flush()

    @contextmanager
    def _leaving(self) -> Iterator[None]:
        """If the stream takes nothing, discard what is buffered and all that follows."""
        try:
            yield
        except OSError as error:
            if not isinstance(error, BrokenPipeError):
                self.error = error
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


@contextmanager
def unread() -> Iterator[_Unread]:
    """Keep a closed or full standard output from stopping the work: a training must not lose what it has learnt."""
    _open_closed()
    stream = sys.stdout
    sys.stdout = nobody = _Unread(stream)
    try:
        yield nobody
        nobody.flush()
    finally:
        sys.stdout = stream


def _open_closed() -> None:
    """Open missing standard streams on the null device; otherwise files would get their numbers."""
    while (nowhere := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(nowhere, True)
    os.close(nowhere)
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 (until the program ends)
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115


if __name__ == "__main__":
    main()

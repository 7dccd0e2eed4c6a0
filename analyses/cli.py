"""The `interp` command: which analysis, of which model, on which text, into which directory?"""

import os
import sys
from collections.abc import Sequence
from typing import cast

import typer

from analyses.commands import making, measuring, patching
from analyses.commands.running import USAGE

# the parent of all wrong options, which typer does not export
_UsageError = cast(type[typer.BadParameter], typer.BadParameter.__mro__[1])

app = typer.Typer(
    name="interp",
    help="What does each attention head of a transformer do, and how sure are we?",
    add_completion=False,
    pretty_exceptions_enable=False,
)

for _name, _behaviours, _help in (
    ("report", None, "Everything for one model: positional, part-of-speech and coreference heads, with a causal test."),
    ("position", ["position"], "Which heads look by position?"),
    ("part-of-speech", ["part-of-speech"], "Which heads follow grammar?"),
    ("coreference", ["coreference"], "Which heads follow reference?"),
):
    app.command(_name, help=_help)(measuring.measuring(_behaviours, _name))
for _name, _commands, _help in (
    ("experiments", None, "The small experiments of the source articles, all of them."),
    ("word-sense", ["word-sense"], "Does a word's stream tell its senses apart, and akin words from others?"),
    ("next-word", ["next-word"], "Which words and heads decide what comes next, and what does it cost?"),
):
    app.command(_name, help=_help)(measuring.experimenting(_commands, _name))
for _command in (
    measuring.probes,
    patching.patch,
    measuring.compare,
    making.train,
    making.generate,
    making.models,
):
    app.command()(_command)


def main(arguments: Sequence[str] | None = None) -> None:
    """The console command: `arguments` are those of the command line by default."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    # threads that spin while they wait take a busy machine's cores from the thread that they wait for: with one other
    # program running, a report took five times as long; read when torch is first imported
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        code = app(given or ["--help"], prog_name="interp", standalone_mode=False)
    except _UsageError as error:
        typer.echo(f"interp: {' '.join(error.format_message().split()).rstrip('.')}; see interp --help", err=True)
        code = USAGE
    sys.exit(code)


def run_alone(behaviour: str) -> None:
    """What `python -m analyses.BEHAVIOUR` does: the command of that name, with the same options."""
    main([behaviour, *sys.argv[1:]])


if __name__ == "__main__":
    main()

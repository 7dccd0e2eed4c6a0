"""Commands that read what another left, and measure nothing: figures, inspect."""
# ruff: noqa: PLC0415

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from analyses.cli.command_frame import filled, folded, one_line, tell
from analyses.cli.options import Force, Json, Quiet, path

Format = StrEnum("Format", "PDF SVG PNG")
Run = Annotated[
    Path, typer.Argument(help="The directory that a command left: its --out.", parser=path, show_default=False)
]


def figures(
    run: Run,
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Which figures, called as in RUN/figures.", show_default="all that tables are enough for"),
    ] = None,
    *,
    width: Annotated[float, typer.Option(help="Inches: 3.3 is a column of a paper, 6.9 its page.")] = 3.3,
    format: Annotated[
        Format, typer.Option(help="pdf and svg keep text as text; png has 300 dots an inch.")
    ] = Format.PDF,
    font_size: Annotated[float, typer.Option(help="Points; ticks are an eighth smaller.")] = 8.0,
    out: Annotated[
        Path | None,
        typer.Option(help="The directory of the figures.", parser=path, show_default="RUN-figures, beside RUN"),
    ] = None,
    force: Force = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """A finished run's figures at the size of a paper's column, each with its caption in a text file beside it."""
    with one_line():
        from analyses import runs
        from analyses.report import paper_figures

        folder = out or run.resolve().with_name(f"{run.resolve().name}-figures")
        how = {"width": width, "font_size": font_size, "format": format.value, "force": force}
        written = paper_figures.write(runs.read(run), folder, names or (), **how)
        pictures = [file.name for file in written.files if file.suffix != ".txt"]
        reasons = dict.fromkeys(written.left_out.values())
        count = f"{len(pictures)} figure{'s' * (len(pictures) != 1)}"
        lines = [
            *pictures,
            *(
                filled(f"left out {', '.join(name for name, each in written.left_out.items() if each == why)}: {why}")
                for why in reasons
            ),
            folded(f"wrote {count} to {out or folder.name}", "each has its caption in a .txt beside it"),
        ]
        facts = {"out": str(folder), "files": [file.name for file in written.files], "left_out": written.left_out}
        tell(lambda: lines, lambda: facts, quiet=quiet, json=json)


def inspect(
    run: Run,
    head: Annotated[
        str, typer.Argument(help="A head, as L3.H4; cross.L3.H4 where a model has several kinds.", show_default=False)
    ],
    *,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """What a finished run says of one head: its facts with their numbers, and its rows in every table."""
    with one_line():
        from analyses import runs
        from analyses.cli import inspection

        inspected = inspection.inspect(runs.read(run), head)
        tell(inspected.lines, inspected.data, quiet=quiet, json=json)

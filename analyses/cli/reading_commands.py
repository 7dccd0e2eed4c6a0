"""Commands that read what another left, and measure nothing: figures, inspect."""
# ruff: noqa: PLC0415

from pathlib import Path

from analyses.cli.command_frame import filled, folded, tell
from analyses.cli.options import Format


def figures(
    run: Path,
    names: list[str] | None = None,
    *,
    width: float = 3.3,
    format: Format = Format.PDF,
    font_size: float = 8.0,
    out: Path | None = None,
    force: bool = False,
    quiet: bool = False,
    json: bool = False,
) -> None:
    """Draws a run's figures for a paper."""
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


def inspect(run: Path, head: str, *, quiet: bool = False, json: bool = False) -> None:
    """Says what a run has of one head."""
    from analyses import runs
    from analyses.cli import inspection

    inspected = inspection.inspect(runs.read(run), head)
    tell(inspected.lines, inspected.data, quiet=quiet, json=json)

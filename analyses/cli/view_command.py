"""The command that shows where the tokens of one's own sentence look, on a page to be pointed at."""
# ruff: noqa: PLC0415

import os
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Annotated

import typer

from analyses.cli.command_frame import folded, one_line, opened, progressing, tell, title
from analyses.cli.options import Device, Dtype, DtypeOption, Force, Json, Model, Quiet, path

_DEFAULT = "view.html"


def view(
    texts: Annotated[list[str], typer.Argument(metavar="TEXT...", help="What the model reads; one page for several.")],
    *,
    model: Model = "default",
    target: Annotated[
        list[str] | None,
        typer.Option(help="What the decoder has read, where an encoder reads the text: one a text, or one for all."),
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(
            help="The head that is seen first: L2.H5, or encoder.L2.H5, decoder.L2.H5, cross.L2.H5 of an "
            "encoder-decoder.",
            show_default="the strongest of --labels, or the one that looks most firmly at single tokens",
        ),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            help="A directory that `interp report` left: heads are called, and coloured, as in its atlas.", parser=path
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The HTML file; an earlier page is replaced.",
            parser=path,
            show_default=f"{_DEFAULT}, or view-2.html, ...",
        ),
    ] = None,
    device: Device = "cpu",
    dtype: DtypeOption = Dtype.FLOAT32,
    force: Force = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Where does each token of your own text look, in every head? One page, to be pointed at."""
    with one_line(), progressing(silent=quiet) as progress:
        from analyses import viewer
        from analyses.execution.file_marks import check_free
        from interp import InputError

        out = _free() if out is None else out
        check_free(out, force=force)  # before the model reads
        targets = _one_each(texts, target)
        progress("loading the model", 0)
        loaded = opened(model, device, dtype)
        first = None if head is None else viewer.head_named(loaded, head)
        called = {}
        if labels is not None:  # what reads reports draws figures: a page without labels need not wait for it
            from analyses.headlines.written_reports import called_by

            called = called_by(labels, loaded)
        if len(loaded.config.stacks) > 1 and not target:
            raise InputError("this model has an encoder and a decoder: give --target, what the decoder has read")
        progress("reading", 0)
        passages = tuple(viewer.read(loaded, *pair) for pair in zip(texts, targets, strict=True))
        seen = viewer.Viewer(passages, called, linked=True, first=first)
        viewer.write(seen, out, lead=f"{title(model)}, {seen.size}", force=force)
        first = f"{out}#{viewer.address(loaded, seen.start)}"
        written = folded(f"wrote {out}: open it in a browser", f"it begins at {first}")
        tell(lambda: [written], lambda: {"out": str(out), "begins_at": first}, quiet=quiet, json=json)


def _one_each(texts: Sequence[str], targets: Sequence[str] | None) -> list[str | None]:
    """A target for each text, where there are any.

    Raises:
        InputError: there are others than one for each text or one for all.
    """
    from interp import InputError

    if not targets:
        return [None] * len(texts)
    if len(targets) not in {1, len(texts)}:
        raise InputError(f"expected one --target for each of {len(texts)} texts, or one for all; got {len(targets)}")
    return [*targets] if len(targets) == len(texts) else [*targets] * len(texts)


def _free() -> Path:
    """The first of view.html, view-2.html, ... that is not there."""
    names = (_DEFAULT if number == 1 else f"view-{number}.html" for number in count(1))
    return next(each for each in map(Path, names) if not os.path.lexists(each))

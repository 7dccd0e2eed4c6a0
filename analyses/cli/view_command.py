"""The command that shows where the tokens of one's own sentence look, on a page to be pointed at."""
# ruff: noqa: PLC0415

import os
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from analyses.cli.command_frame import folded, opened, progressing, tell, title
from analyses.cli.options import Dtype

_DEFAULT = "view.html"


def view(
    texts: list[str],
    *,
    model: str = "default",
    target: list[str] | None = None,
    head: str | None = None,
    labels: Path | None = None,
    out: Path | None = None,
    device: str = "cpu",
    dtype: Dtype = Dtype.FLOAT32,
    force: bool = False,
    quiet: bool = False,
    json: bool = False,
) -> None:
    """Writes a page on which one can point at the tokens of a text."""
    with progressing(silent=quiet) as progress:
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

"""Commands that measure nothing: figures and inspect read what another command left, view shows one's own text."""
# ruff: noqa: PLC0415

import os
from itertools import count, cycle
from pathlib import Path

from analyses.cli.command_frame import filled, folded, opened, progressing, tell, title


def figures(run, names, *, width, format, font_size, out, force, quiet, json) -> None:
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


def inspect(run, head, *, quiet, json) -> None:
    """Says what a run has of one head."""
    from analyses import runs
    from analyses.cli import inspection

    inspected = inspection.inspect(runs.read(run), head)
    tell(inspected.lines, inspected.data, quiet=quiet, json=json)


def view(texts, *, model, target, head, labels, out, device, dtype, force, quiet, json) -> None:
    """Writes a page on which one can point at the tokens of a text."""
    with progressing(silent=quiet) as progress:
        from analyses import viewer
        from analyses.execution.file_marks import check_free
        from interp import InputError

        out = out or _unused()
        check_free(out, force=force)  # before the model reads
        targets: list[str | None] = [*target] if target else [None]
        if len(targets) not in {1, len(texts)}:
            expected = f"expected one --target for each of {len(texts)} texts, or one for all"
            raise InputError(f"{expected}; got {len(targets)}")
        progress("loading the model", 0)
        loaded = opened(model, device, dtype)
        first = None if head is None else viewer.head_named(loaded, head)
        called = {}
        if labels is not None:  # what reads reports draws figures: a page without labels need not wait for it
            from analyses.headlines.facts import called_by

            called = called_by(labels, loaded)
        if len(loaded.config.stacks) > 1 and not target:
            raise InputError("this model has an encoder and a decoder: give --target, what the decoder has read")
        progress("reading", 0)
        passages = tuple(viewer.read(loaded, *pair) for pair in zip(texts, cycle(targets)))
        seen = viewer.Viewer(passages, called, linked=True, first=first)
        viewer.write(seen, out, lead=f"{title(model)}, {seen.size}", force=force)
        first = f"{out}#{viewer.address(loaded, seen.start)}"
        written = folded(f"wrote {out}: open it in a browser", f"it begins at {first}")
        tell(lambda: [written], lambda: {"out": str(out), "begins_at": first}, quiet=quiet, json=json)


def _unused() -> Path:
    """The first of view.html, view-2.html, ... that is not there."""
    names = (Path("view.html" if number == 1 else f"view-{number}.html") for number in count(1))
    return next(name for name in names if not os.path.lexists(name))

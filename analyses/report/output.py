"""How does an analysis leave a directory that is either whole or not there?

Everything is written beside the directory first and moved into it at the end, `run.json` last. A later run removes the
files that an earlier `run.json` names as its own; files of anyone else are never touched. What is ready long before the
rest may be shown: it is moved whole, and `run.json` says what is still to come.
"""

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path, PurePosixPath
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.figure import Figure

from interp.errors import InputError
from interp.training.whole_files import beside, is_being_made, sweep_beside

RUN = "run.json"
MAKER = "interp"  # the value of `made_by` that tells our run.json from others'
UNFINISHED = "unfinished"  # the key of what is still to come
_SAVE: Any = {"svg.hashsalt": MAKER, "svg.fonttype": "path"}  # the same figure gives the same bytes
_DPI = 130


class Output:
    """A directory in the making; `files` are the names written so far, relative to it."""

    def __init__(self, folder: Path, out: Path):
        self.folder, self.out = folder, out
        self.files: list[str] = []
        self.shown = False
        self._drawn: dict[str, tuple[Figure, list[bytes]]] = {}

    @property
    def may_show(self) -> bool:
        """Whether no finished run of ours would lose its place to one that may never be finished."""
        facts = _record(self.out)
        return not facts or UNFINISHED in facts

    def show(self) -> None:
        """Put what was written so far in its place, and begin anew."""
        _move(self, self.out)
        self.folder.mkdir(exist_ok=True)
        self.files, self.shown = [], True

    def path(self, name: str) -> Path:
        """Where to write the file `name`, which will be moved with the rest."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        self.files.append(name)
        return path

    def table(self, name: str, table: pd.DataFrame) -> None:
        """`tables/NAME.csv` and `.parquet`."""
        plain = table.copy()
        plain.attrs = {}  # parquet would keep them, csv could not
        plain.to_csv(self.path(f"tables/{name}.csv"), index=False)
        plain.to_parquet(self.path(f"tables/{name}.parquet"), index=False)

    def figure(self, name: str, figure: Figure) -> Path:
        """`figures/NAME.svg` and `.png`; returns where the svg lies for now."""
        svg, png = self.path(f"figures/{name}.svg"), self.path(f"figures/{name}.png")
        drawn, made = self._drawn.get(name, (None, []))
        if drawn is figure:  # it was shown before
            for path, content in zip((svg, png), made, strict=True):
                path.write_bytes(content)
            return svg
        with matplotlib.rc_context(_SAVE):
            figure.draw_without_rendering()
            figure.set_layout_engine(None)  # laid out once, for both files; with a placeholder each would draw twice
            figure.savefig(svg, metadata={"Date": None, "Creator": None}, dpi=_DPI)
            figure.savefig(png, metadata={"Software": None}, dpi=_DPI)
        self._drawn[name] = figure, [svg.read_bytes(), png.read_bytes()]
        return svg

    def text(self, name: str, text: str) -> None:
        """A text file, such as `report.html`."""
        self.path(name).write_text(text, encoding="utf-8")

    def run(self, facts: Mapping[str, Any]) -> None:
        """`run.json`: `facts`, and the files that this run wrote."""
        path = self.path(RUN)
        whole = {"made_by": MAKER, **facts, "files": sorted(self.files)}
        path.write_text(json.dumps(_jsonable(whole), indent=2, ensure_ascii=False, allow_nan=False) + "\n", "utf-8")


def unused(name: str, command: str) -> Path:
    """Where a run goes that was given no directory: `name`, or the first of `name`-2, `name`-3, ... that is free.

    That is one that is not there, or is empty, or holds what the same command left when it was stopped.
    """
    numbered = (Path(name if number == 1 else f"{name}-{number}") for number in count(1))
    return next(out for out in numbered if _is_free(out, command))


def _is_free(out: Path, command: str) -> bool:
    if is_being_made(out):
        return False
    facts = _record(out)
    stopped = UNFINISHED in facts and facts.get("command") == command
    return stopped or not os.path.lexists(out) or (out.is_dir() and not any(out.iterdir()))


@contextmanager
def writing(out: str | Path) -> Iterator[Output]:
    """Collect files, and move them into `out` when the block ends well; when it does not, only what was shown stays.

    Raises:
        InputError: `out` is a file, cannot be written, or holds files by our names that no run of ours wrote.
    """
    out = Path(out).resolve()
    made = _make_parents(out)
    _refuse_foreign((RUN, "report.html"), out)  # before the long work; the rest at its end
    sweep_beside(out)  # what killed runs left
    try:
        with beside(out) as draft:
            try:
                draft.mkdir()
            except OSError as error:
                raise InputError(f"cannot write beside {out}: {error.strerror}; choose another --out") from error
            output = Output(draft, out)
            yield output
            _move(output, out)
    except BaseException as error:
        for folder in made:
            if folder.exists() and not any(folder.iterdir()):
                folder.rmdir()
        if isinstance(error, KeyboardInterrupt) and (out / RUN).exists() and UNFINISHED in _record(out):
            raise KeyboardInterrupt(f"{out / 'report.html'} shows what was measured until then") from error
        raise


def _make_parents(out: Path) -> list[Path]:
    """Make the folders above `out`; returns those that were not there, innermost first."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file: --out must name a directory")
    missing = [folder for folder in out.parents if not folder.exists()]
    if file := next((above for above in out.parents if above.exists() and not above.is_dir()), None):
        raise InputError(f"{file} is a file: --out must name a directory, and so must what is above it")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the directory {out.parent}: {error.strerror}; choose another --out") from error
    return missing


def _move(output: Output, out: Path) -> None:
    """Put the finished files in place, `run.json` last, and take away those of our earlier run that are not renewed."""
    if not out.exists():
        output.folder.replace(out)  # one step: all or nothing
        return
    _refuse_foreign(output.files, out)
    earlier = earlier_files(out)
    for name in output.files:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
    for name in sorted(output.files, key=lambda name: name == RUN):
        os.replace(output.folder / name, out / name)
    for name in earlier.difference(output.files):
        (out / name).unlink(missing_ok=True)
        if (folder := (out / name).parent) != out and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def _refuse_foreign(names: Iterable[str], out: Path) -> None:
    earlier = earlier_files(out)
    if taken := [name for name in names if name not in earlier and (out / name).exists()]:
        raise InputError(f"{out} holds {', '.join(taken[:3])}, which interp did not write: choose another --out")


def earlier_files(out: Path) -> set[str]:
    """The files inside `out` that an earlier run of ours lists as its own; none where there was no such run."""
    facts = _record(out)
    names = [name for name in facts.get("files", ()) if isinstance(name, str)]
    return {name for name in [*names, RUN] if facts and _is_inside(name) and (out / name).is_file()}


def _record(out: Path) -> dict[str, Any]:
    """What our run.json in `out` says; nothing where there is none of ours."""
    try:
        facts = json.loads((out / RUN).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) and facts.get("made_by") == MAKER else {}


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts


def _jsonable(value: Any) -> Any:
    """Plain JSON: numpy scalars as numbers, what is undefined as null, sets sorted."""
    if isinstance(value, Mapping):
        return {str(key): _jsonable(each) for key, each in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    if isinstance(value, (list, tuple)):
        return [_jsonable(each) for each in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)

"""How does an analysis leave a directory that is either whole or not there?

We write everything beside the directory first and move it in at the end, `run.json` last. A later run removes the files
that an earlier `run.json` names, and touches no others. Results that are ready long before the rest may be shown early.
"""

import csv
import json
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from io import BytesIO
from itertools import count
from pathlib import Path, PurePosixPath
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.figure import Figure
from pandas.api.types import is_numeric_dtype

from analyses.execution.processes import all_of
from analyses.execution.provenance import MAKER, digest
from interp.bounded_files import whole
from interp.errors import InputError
from interp.training.stops import unstopped
from interp.training.whole_files import alone, file_above, is_being_made

RUN = "run.json"
SUMS = "tables_sha256"  # the key of the hashes of tables' Parquet files, by name
UNFINISHED = "unfinished"  # the key of what is still to come
_MOVING = "what was being moved in"  # its value while one run's files replace another's
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # characters that start a formula in a spreadsheet
_SAVE: Any = {"svg.hashsalt": MAKER, "svg.fonttype": "none"}  # reproducible bytes; text stays text
_DPI = 130


class Output:
    """A directory in the making; `files` are the names written so far, relative to it."""

    def __init__(self, folder: Path, out: Path):
        self.folder, self.out, self.shown = folder, out, False
        self.files: list[str] = []
        self._pictures: dict[str, tuple[Figure, dict[str, bytes]]] = {}  # so that none is drawn twice

    @property
    def may_show(self) -> bool:
        """Whether showing early would replace no finished run of ours, since this one may never finish."""
        facts = _record(self.out)
        return not facts or UNFINISHED in facts

    def show(self) -> None:
        """Move the files written so far into place, and begin anew."""
        _move(self, self.out)
        self.folder.mkdir(exist_ok=True)
        self.files, self.shown = [], True

    @contextmanager
    def _place(self, name: str) -> Iterator[Path]:
        """The path for the file `name`; system errors become an `InputError` that says what remains."""
        path = self.folder / name
        try:
            for folder in reversed(path.relative_to(self.folder).parents):
                if folder.parts:
                    (self.folder / folder).mkdir(exist_ok=True)  # never recreate a draft that was removed
            self.files.append(name)
            yield path
        except OSError as error:
            raise InputError(_cannot(self.out / name, error, self.out)) from error

    def table(self, name: str, table: pd.DataFrame) -> None:
        """Write `tables/NAME.csv` and `.parquet`; the csv has no cells that a spreadsheet would run (`defused`)."""
        plain = table.copy()
        plain.attrs = {}  # parquet would keep them, csv could not
        texts = (plain[column] for column in plain if not is_numeric_dtype(plain[column]))
        # csv readers end a line at a carriage return, which pandas does not quote by itself
        breaks = any(isinstance(cell, str) and "\r" in cell for column in texts for cell in column)
        with self._place(f"tables/{name}.csv") as path, self._place(f"tables/{name}.parquet") as parquet:
            quoting = csv.QUOTE_NONNUMERIC if breaks else csv.QUOTE_MINIMAL
            defused(plain).to_csv(path, index=False, quoting=quoting)
            plain.to_parquet(parquet, index=False)

    def figures(self, figures: Mapping[str, Figure]) -> dict[str, bytes]:
        """Write `figures/NAME.svg` and `.png` of each, drawing several at once; returns the svgs by name."""
        new = {name: each for name, each in figures.items() if self._pictures.get(name, (None,))[0] is not each}
        pictures = all_of([partial(_picture_files, each) for each in new.values()])
        self._pictures |= {name: (each, files) for (name, each), files in zip(new.items(), pictures, strict=True)}
        for name in figures:
            for ending, content in self._pictures[name][1].items():
                with self._place(f"figures/{name}.{ending}") as path:
                    path.write_bytes(content)
        return {name: self._pictures[name][1]["svg"] for name in figures}

    def text(self, name: str, text: str) -> None:
        """Write a text file, such as `report.html`."""
        with self._place(name) as path:
            path.write_text(text, encoding="utf-8")

    def run(self, facts: Mapping[str, Any]) -> None:
        """Write `run.json`: `facts`, and the files that this run wrote."""
        with self._place(RUN) as path:
            tables = [name for name in sorted(self.files) if name.endswith(".parquet")]
            sums = {Path(name).stem: digest([(self.folder / name).read_bytes()]) for name in tables}
            whole = {"made_by": MAKER, **facts, SUMS: sums, "files": sorted(self.files)}
            path.write_text(json.dumps(jsonable(whole), indent=2, ensure_ascii=False, allow_nan=False) + "\n", "utf-8")


def _picture_files(figure: Figure) -> dict[str, bytes]:
    """The figure's files, by file ending."""
    pictures = {}
    with matplotlib.rc_context(_SAVE):
        if (layout := figure.get_layout_engine()) is not None:
            layout.execute(figure)
        figure.set_layout_engine(None)  # laid out once for both files; a placeholder engine would lay out each
        for ending, metadata in (("svg", {"Date": None, "Creator": None}), ("png", {"Software": None})):
            file = BytesIO()
            figure.savefig(file, format=ending, metadata=metadata, dpi=_DPI)
            pictures[ending] = file.getvalue()
    return pictures


def unused(name: str, command: str) -> Path:
    """A directory for a run that was given none: `name`, or the first of `name`-2, `name`-3, ... that is free.

    It is free if it does not exist, is empty, or holds what the same command left when it was stopped.
    """
    numbered = (Path(name if number == 1 else f"{name}-{number}") for number in count(1))
    return next(out for out in numbered if _is_free(out, command))


def _is_free(out: Path, command: str) -> bool:
    if out.is_symlink() or is_being_made(out):
        return False
    facts = _record(out)
    stopped = UNFINISHED in facts and facts.get("command") == command
    return stopped or not os.path.lexists(out) or (out.is_dir() and not any(out.iterdir()))


@contextmanager
def writing(out: str | Path) -> Iterator[Output]:
    """Collect files, and move them into `out` when the block succeeds; if it fails, only what was shown stays.

    Raises an `InputError` if `out` cannot be written, or holds files with our names that no run of ours wrote.
    """
    out = Path(out).resolve()
    parents = _make_parents(out)
    try:
        with _draft(out) as draft:
            _refuse_foreign((RUN, "report.html"), out)  # before the long work; the rest at its end
            output = Output(draft, out)
            yield output
            _move(output, out)
    except BaseException as error:
        for folder in parents:
            with suppress(OSError):  # not empty, or gone
                folder.rmdir()
        if isinstance(error, KeyboardInterrupt) and (out / RUN).exists() and UNFINISHED in _record(out):
            raise KeyboardInterrupt(f"{out / 'report.html'} shows what was measured before") from error
        raise


def defused(table: pd.DataFrame) -> pd.DataFrame:
    """The table with an apostrophe before every text or column name that a spreadsheet would run as a formula."""

    def harmless(cell: Any) -> Any:
        return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell

    texts = {name: table[name].map(harmless) for name in table if not is_numeric_dtype(table[name])}
    return table.assign(**texts).rename(columns=harmless)


def _make_parents(out: Path) -> list[Path]:
    """Make the folders above `out`; returns those that were missing, innermost first."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file: --out must name a directory")
    missing = [folder for folder in out.parents if not folder.exists()]
    if file := file_above(out):
        raise InputError(f"{file} is a file: --out must name a directory, and so must what is above it")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the directory {out.parent}: {error.strerror}; choose another --out") from error
    return missing


@contextmanager
def _draft(out: Path) -> Iterator[Path]:
    """An empty folder beside `out`, for this process alone."""
    with ExitStack() as stack:
        try:
            draft = stack.enter_context(alone(out, lambda draft: _put_back(_earlier(draft), out)))
            draft.mkdir()
        except OSError as error:
            raise InputError(f"cannot write beside {out}: {error.strerror}; choose another --out") from error
        yield draft


def _move(output: Output, out: Path) -> None:
    """Move the finished files into place, `run.json` last, and remove our earlier run's; Ctrl-C waits.

    Tables of two runs never mix. The earlier run's files are set aside first, and put back if the move fails (after a
    kill, by the next run). Until then `run.json` names both runs' files.
    """
    with unstopped() as stops:
        try:
            if not out.exists():
                output.folder.replace(out)  # one step: all or nothing
            else:
                _change(output, out)
        except OSError as error:
            _put_back(_earlier(output.folder), out)
            raise InputError(_cannot(out, error, out)) from error
    if stops:
        raise KeyboardInterrupt(f"{out / 'report.html'} was written before")


def _change(output: Output, out: Path) -> None:
    _refuse_foreign(output.files, out)
    earlier, aside = earlier_files(out), _earlier(output.folder)
    names = {*earlier, *output.files}
    shutil.rmtree(aside, ignore_errors=True)  # left from files shown early
    if RUN in earlier:
        aside.mkdir()
        shutil.copy2(out / RUN, aside / RUN)
    marked = {"made_by": MAKER, **_record(out), UNFINISHED: _MOVING, "files": sorted(names)}
    marker = output.folder / f"{RUN}.moving"
    marker.write_text(json.dumps(marked, indent=2) + "\n", "utf-8")  # in ASCII: the earlier one may hold anything
    os.replace(marker, out / RUN)
    for name in earlier - {RUN}:
        _shift(out / name, aside / name)
    for name in sorted(output.files, key=lambda name: name == RUN):
        _shift(output.folder / name, out / name)
    for folder in {(out / name).parent for name in names} - {out}:
        with suppress(OSError):  # not empty
            folder.rmdir()


def _earlier(draft: Path) -> Path:
    """Where an earlier run's files wait while those of the draft are moved in."""
    return draft.with_name(f"{draft.name}.earlier")


def _put_back(aside: Path, out: Path) -> None:
    """Restore `out` if files were being moved in."""
    if _record(out).get(UNFINISHED) != _MOVING:
        return
    names = set() if aside.is_symlink() else earlier_files(aside)
    for name in earlier_files(out) - {RUN}:
        if name in names or name not in _named(aside):
            (out / name).unlink()
    for name in sorted(names, key=lambda name: name == RUN):
        _shift(aside / name, out / name)
    if not _named(aside) and _record(out).get(UNFINISHED) == _MOVING:
        (out / RUN).unlink()  # there was no run before


def _shift(file: Path, place: Path) -> None:
    """Move a file, but follow no link among the folders above its place."""
    if place.parent.resolve() != place.parent:
        raise InputError(f"{place.parent} is or contains a link, not a folder: choose another --out")
    place.parent.mkdir(parents=True, exist_ok=True)
    os.replace(file, place)


def _cannot(place: Path, error: OSError, out: Path) -> str:
    state = "what was there before is as it was" if out.exists() else "nothing is left of this run"
    return f"cannot write {place}: {error.strerror or error}; {state}: make room, or choose another --out"


def _refuse_foreign(names: Iterable[str], out: Path) -> None:
    earlier = earlier_files(out)
    folders = [str(above) for name in names for above in PurePosixPath(name).parents if above.parts]
    for name in (*folders, "tables", "figures"):
        if os.path.lexists(out / name) and ((out / name).is_symlink() or not (out / name).is_dir()):
            raise InputError(f"{out / name} is not a folder: remove it, or choose another --out")
    if foreign := [name for name in names if name not in earlier and os.path.lexists(out / name)]:
        raise InputError(f"{out} holds {', '.join(foreign[:3])}, which interp did not write: choose another --out")


def earlier_files(out: Path) -> set[str]:
    """The files inside `out` that an earlier run of ours lists as its own; empty if there was none."""
    return {
        name
        for name in _named(out)
        if (path := out / name).is_file() and not path.is_symlink() and path.parent.resolve().is_relative_to(out)
    }


def _named(out: Path) -> set[str]:
    """The files that our run.json in `out` names, including itself; empty if it is not ours."""
    facts = _record(out)
    names = facts.get("files")
    names = [*names, RUN] if isinstance(names, list) else [RUN]
    return {name for name in names if facts and isinstance(name, str) and _is_inside(name)}


def _record(out: Path) -> dict[str, Any]:
    """The contents of our run.json in `out`; empty if there is none of ours."""
    try:
        facts = {} if (out / RUN).is_symlink() else json.loads(whole(out / RUN))
    except (ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) and facts.get("made_by") == MAKER else {}


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "\0" not in name


def jsonable(value: Any) -> Any:
    """Plain JSON values: numpy scalars as numbers, null for undefined numbers, sets sorted."""
    if isinstance(value, Mapping):
        return {str(key): jsonable(each) for key, each in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    if isinstance(value, (list, tuple)):
        return [jsonable(each) for each in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)

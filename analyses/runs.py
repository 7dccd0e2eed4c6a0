"""What do several runs say together? We read the output directories of commands and join their tables."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Any
from warnings import warn

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from analyses.execution.output import MAKER, RUN, SUMS, UNFINISHED
from analyses.execution.provenance import SCHEMA, digest
from interp.bounded_files import LARGEST_WHOLE, whole
from interp.errors import InputError, InputWarning, inside
from interp.training import state

_KEYS: dict[str, tuple[Callable[[Any], bool], str]] = {  # of run.json: a check, and what it expects
    "files": (lambda value: _is_list_of(value, str), "a list of names"),
    "seed": (lambda value: type(value) is int, "a whole number"),
    "command": (lambda value: isinstance(value, str), "what was typed"),
    "versions": (lambda value: isinstance(value, dict) and isinstance(value.get("interp"), str), "versions by package"),
    SUMS: (lambda value: isinstance(value, dict | None), "a hash of each table"),
    "name": (lambda value: isinstance(value, str | None), "the model's name, or none"),
    "model": (lambda value: isinstance(value, dict | None), "facts about the model"),
    "corpora": (
        lambda value: (
            _is_list_of(value, dict)
            and all(isinstance(each.get(key), str) for each in value for key in ("name", "sha256"))
        ),
        "names and hashes of corpora",
    ),
}
_MOST_CELLS = 1 << 26  # per table: five times our largest


@dataclass(frozen=True)
class RunFolder:
    """The output directory of a command: `facts` is its run.json, and `table` returns its tables."""

    folder: Path
    name: str  # the directory's
    facts: dict[str, Any] = field(repr=False)

    @property
    def model(self) -> str | None:
        """The model's name; None if the run had several models, or none."""
        return self.facts.get("name")

    @property
    def seed(self) -> int:
        """The seed of everything random."""
        return self.facts["seed"]

    @property
    def corpora(self) -> list[dict[str, Any]]:
        """Facts about the run's texts."""
        return self.facts["corpora"]

    @property
    def tables(self) -> list[str]:
        """The names of the run's tables."""
        files = map(PurePosixPath, self.facts["files"])
        return [each.stem for each in files if each.parts[:1] == ("tables",) and each.suffix == ".parquet"]

    def table(self, name: str) -> pd.DataFrame:
        """The table `name` as written; an `InputError` if there is none, or its file is missing or damaged."""
        if name not in self.tables:
            raise InputError(f'no table "{name}" in {self.folder}: it has {", ".join(self.tables) or "none"}')
        path = self.folder / "tables" / f"{name}.parquet"
        try:
            if not path.is_file() or path.stat().st_size > LARGEST_WHOLE:
                raise ValueError(f"it is not a file of at most {LARGEST_WHOLE:,} bytes")
            content = path.read_bytes()
            expected = (self.facts.get(SUMS) or {}).get(name)  # early runs have no checksums
            if expected not in (None, digest([content])):
                raise ValueError("it has changed since it was written")
            _check_size(content)
            return pd.read_parquet(BytesIO(content))
        except (OSError, ValueError, pa.ArrowException) as error:
            raise InputError(f"{path} cannot be read ({error}): {_redo_hint(self.facts)}") from error


@dataclass(frozen=True)
class Joined:
    """Several runs with different names; `table` returns their joined tables."""

    runs: tuple[RunFolder, ...]

    @property
    def tables(self) -> list[str]:
        """The names of all runs' tables."""
        return list(dict.fromkeys(name for run in self.runs for name in run.tables))

    def table(self, name: str) -> pd.DataFrame:
        """The rows of all runs, in order, with `run`, `model` and `seed` as the first columns.

        An existing column `model`, as in a comparison, stays; a column `run`, as in training, becomes `training_run`.
        `q` stays as each run computed it. A warning names runs without the table.
        """
        if not (runs := [run for run in self.runs if name in run.tables]):
            raise InputError(f'no table "{name}" in these runs: they have {", ".join(self.tables) or "none"}')
        if lacking := [run.name for run in self.runs if run not in runs]:
            warn(f'no table "{name}" in {", ".join(lacking)}', InputWarning, stacklevel=2)
        tables = [_with_run(run, name) for run in runs]
        return pd.concat([table for table in tables if len(table)] or tables[:1], ignore_index=True)

    def about(self) -> pd.DataFrame:
        """One row per run: its sources and command."""
        return pd.DataFrame(
            {
                "run": run.name,
                "model": run.model,
                "seed": run.seed,
                "corpora": ", ".join(each["name"] for each in run.corpora),
                "model_fingerprint": (run.facts.get("model") or {}).get("fingerprint"),  # early runs had none
                "model_sha256": (run.facts.get("model") or {}).get("sha256"),
                "corpora_sha256": ", ".join(each["sha256"] for each in run.corpora),
                "interp": run.facts["versions"]["interp"],
                "command": run.facts["command"],
                "folder": str(run.folder),
            }
            for run in self.runs
        )


def _check_size(content: bytes) -> None:
    """Refuse a table far larger in memory than ours: a small file may repeat one value in any number of rows."""
    file = pq.ParquetFile(BytesIO(content))
    groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
    cells = sum(group.num_rows for group in groups) * len(file.schema_arrow)
    if cells > _MOST_CELLS:
        raise ValueError(f"it has {cells:,} cells; the limit is {_MOST_CELLS:,}")
    kinds = [each.value_type if isinstance(each, pa.DictionaryType) else each for each in file.schema_arrow.types]
    tests = pa.types.is_primitive, pa.types.is_null, pa.types.is_string, pa.types.is_large_string
    if unknown := [kind for kind in kinds if not any(test(kind) for test in tests)]:
        raise ValueError(f"it has values of the kind {unknown[0]}")
    codecs = {group.column(index).compression for group in groups for index in range(group.num_columns)}
    if not codecs <= {"SNAPPY", "UNCOMPRESSED"}:  # others can turn kilobytes into gigabytes
        raise ValueError(f"it is packed by {', '.join(sorted(codecs))}: expected SNAPPY")
    # dictionaries keep each text in memory once; other encodings are refused
    table = pq.read_table(BytesIO(content), read_dictionary=file.schema_arrow.names)
    texts = [chunk for column in table.columns if pa.types.is_dictionary(column.type) for chunk in column.chunks]
    lengths = [pc.call_function("binary_length", [each.dictionary]).take(each.indices) for each in texts]
    size = sum(pc.call_function("sum", [each]).as_py() or 0 for each in lengths)
    if size > LARGEST_WHOLE:
        raise ValueError(f"it has {size:,} bytes of text; the limit is {LARGEST_WHOLE:,}")


def read(out: str | Path) -> RunFolder:
    """The output directory of a command, or of `report.build` and the like.

    An unfinished run gives a warning; a run with another schema is an `InputError`.
    """
    folder = Path(out)
    with inside(str(out)):
        facts = _facts(folder)
    if UNFINISHED in facts:
        warn(f"{out} is unfinished, without {facts[UNFINISHED]}: {_redo_hint(facts)}", InputWarning, stacklevel=2)
    return RunFolder(folder, folder.resolve().name, facts)


def join(runs: Sequence[str | Path | RunFolder]) -> Joined:
    """Join the tables of several runs: `join(["report", "report-2"]).table("heads")`.

    A run is named after its directory, with as much of the path as makes names different.
    """
    if isinstance(runs, (str, Path, RunFolder)) or not runs:
        raise InputError(f"join: expected a list of at least one run, got {runs or 'none'}")
    opened = [each if isinstance(each, RunFolder) else read(each) for each in runs]
    folders = [each.folder.resolve() for each in opened]
    if twice := [each.folder for number, each in enumerate(opened) if folders[number] in folders[:number]]:
        raise InputError(f"join: {twice[0]} comes twice, so its rows would count twice: leave one out")
    parts = 1
    while len({folder.parts[-parts:] for folder in folders}) < len(folders):
        parts += 1
    names = ["/".join(folder.parts[-parts:]) for folder in folders]
    return Joined(tuple(RunFolder(each.folder, name, each.facts) for each, name in zip(opened, names, strict=True)))


def _facts(folder: Path) -> dict[str, Any]:
    expected = "expected the output directory (--out) of an earlier interp command"
    try:
        if not folder.is_dir():
            raise InputError(f"{'a file' if folder.exists() else 'no such directory'}; {expected}")
        if (folder / state.METRICS).is_file():
            raise InputError("a training run, which has no tables: interp over-training makes some of it")
        if not (folder / RUN).exists():
            raise InputError(f"no {RUN} is in it; {expected}")
    except OSError as error:  # no permission, or an invalid name
        raise InputError(f"{error.strerror}; {expected}") from error
    try:
        facts = json.loads(whole(folder / RUN))
        json.dumps(facts, ensure_ascii=False).encode()  # no table can store half a surrogate pair
    except (ValueError, RecursionError) as error:
        raise InputError(f"expected {RUN}, as every command leaves it, got {error}") from error
    if not isinstance(facts, dict) or facts.get("made_by") != MAKER:
        raise InputError(f"its {RUN} is not one of interp's: expected made_by {MAKER}")
    schema = facts.get("schema", 0)  # the first runs recorded none
    if schema != SCHEMA:
        earlier = not isinstance(schema, int) or schema < SCHEMA
        age, mend = ("an earlier", _redo_hint(facts)) if earlier else ("a later", "update interp")
        raise InputError(f"written by {age} interp, schema {schema!r}, and schema {SCHEMA} is read: {mend}")
    for key, (holds, expected) in _KEYS.items():
        if not holds(facts.get(key)):
            raise InputError(f"its {RUN} is damaged: expected {expected} as {key}, got {facts.get(key)!r}")
    return facts


def _is_list_of(value: Any, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(each, kind) for each in value)


def _redo_hint(facts: dict[str, Any]) -> str:
    command = facts.get("command")
    return f"make it again, {command}" if command else "make it again"


def _with_run(run: RunFolder, name: str) -> pd.DataFrame:
    """A table with columns about its run."""
    table = run.table(name).rename(columns={"run": "training_run"})
    facts = {"run": run.name, "model": run.model, "seed": run.seed}
    table = table.assign(**{column: value for column, value in facts.items() if column not in table})
    return table.loc[:, [*facts, *(column for column in table if column not in facts)]]

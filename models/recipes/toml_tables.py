"""A recipe as the tables of a TOML file: which file, and which values are changed for one run."""

import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from interp.bounded_files import is_file, whole
from interp.errors import InputError
from models.plain_tables import nearest

_FOLDER = Path(__file__).parent
_LARGEST = 1 << 24  # bytes of a recipe
_PATHS = {"path", "file"}  # keys whose values are relative to where they are written
_MODELS = {"start"}  # keys whose values are relative paths if such a directory exists, and names otherwise


def shipped() -> list[str]:
    """Names of the recipes that come with the package."""
    return sorted(file.stem for file in _FOLDER.glob("*.toml"))


def file_of(name: str | Path) -> Path:
    """The file of a recipe: its own, or a shipped one; InputError if there is no such recipe."""
    if is_file(Path(name)) and not Path(name).is_dir():
        return Path(name)
    if str(name) in shipped():
        return _FOLDER / f"{name}.toml"
    if Path(name).suffix or len(Path(name).parts) > 1:
        raise InputError(f"no file {name}: expected a TOML file, or the name of a recipe: {', '.join(shipped())}")
    raise InputError(
        f'no recipe "{name}": expected a TOML file, or one of {", ".join(shipped())} '
        f"(the nearest is {nearest(str(name), shipped())})"
    )


def load(file: Path) -> dict[str, Any]:
    """The file's tables, with paths relative to the file; InputError if it is not TOML."""
    try:
        tables = tomllib.loads(whole(file, _LARGEST))
    except (ValueError, RecursionError) as error:  # a number with thousands of digits, endlessly nested tables
        raise InputError(f"{file} is not readable as TOML: {error}") from error
    return _with_absolute_paths("", tables, file.parent)


def assignment(text: str) -> tuple[str, Any]:
    """KEY and value of KEY=VALUE. The value is TOML, or else plain text, so a word needs no quotes.

    Raises:
        InputError: there is no `=`, or no key.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise InputError(f"expected KEY=VALUE, such as model.n_layers=1, got {text!r}")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):
        return key.strip(), value.strip()


def put(tables: dict[str, Any], key: str, value: Any) -> None:
    """Set `a.b.c` in place; in a list a step is a number from 0, or `*` for every entry. Paths are relative to here.

    InputError if a step leads into a value that is no table.
    """
    *way, last = key.split(".")
    value = _with_absolute_paths(last, value, Path.cwd())
    places: list[Any] = [tables]
    for step in way:
        entries = [(place, entry) for place in places for entry in _entries(place, step, key)]
        places = [place.setdefault(entry, {}) if isinstance(place, dict) else place[entry] for place, entry in entries]
    for place in places:
        for entry in _entries(place, last, key):
            place[entry] = value


def _entries(place: Any, step: str, key: str) -> list[Any]:
    """The entries of a table or a list that a step of a key names."""
    if isinstance(place, dict):
        return [step]
    if not isinstance(place, list):
        raise InputError(f"cannot set {key}: {place!r} is a value, not a table with entries")
    if step == "*":
        return [*range(len(place))]
    if not step.isdecimal() or int(step) >= len(place):
        numbers = ", ".join(map(str, range(len(place))))
        raise InputError(f"cannot set {key}: expected one of {numbers}, or * for all of them, got {step}")
    return [int(step)]


def fit_steps(tables: dict[str, Any], old_steps: tuple[int, int], keys: Collection[str]) -> list[str]:
    """Fit settings that count steps to phases whose steps were changed; a setting in `keys` stays.

    Snapshots beyond the end are left out; a snapshot at the end moves to the new end. Warm-up and hold shrink in
    proportion if they leave no steps before the phase that begins the schedule anew. `old_steps` are `steps_of` the
    tables before. The result names each change in words.
    """
    training, (whole, first), (end, leg) = tables.get("training", {}), old_steps, steps_of(tables)
    fitted: dict[str, Any] = {}
    snapshots = training.get("snapshot_at", [])
    if (
        isinstance(snapshots, list)
        and all(isinstance(each, int) for each in snapshots)
        and max(snapshots, default=0) > end
    ):
        fitted["snapshot_at"] = [each for each in snapshots if each < end] + [end] * (whole in snapshots)
    rises = {name: training.get(name, default) for name, default in (("warmup", 100), ("hold", 0))}
    if all(isinstance(steps, int) for steps in rises.values()) and sum(rises.values()) >= leg:
        fitted |= {name: steps * leg // max(first, 1) for name, steps in rises.items() if steps}
    fitted = {name: value for name, value in fitted.items() if f"training.{name}" not in keys}
    messages = [
        f"{name} is {_short(now)} instead of {_short(training.get(name, rises.get(name)))}"
        for name, now in fitted.items()
    ]
    tables["training"] = training | fitted
    return messages


def steps_of(tables: Mapping[str, Any]) -> tuple[int, int]:
    """Steps of all phases, and of those before the schedule begins anew; 0 where they are not numbers."""
    phases = tables.get("phases")
    listed = [each for each in phases if isinstance(each, dict)] if isinstance(phases, list) else []
    steps = [each["steps"] if isinstance(each.get("steps"), int) else 0 for each in listed]
    anew = (at for at, each in enumerate(listed) if at and "learning_rate" in each)
    return sum(steps), sum(steps[: next(anew, len(steps))])


def _short(value: Any) -> str:
    """A number, or how many there are in a list."""
    return f"a list of {len(value)}" if isinstance(value, list) else f"{value:,}"


def flat(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Every value by its whole key (`phases.0.steps`), without paths and models, which only say where data lies."""
    values: dict[str, Any] = {}
    for name, value in tables.items():
        if isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
            value = {str(number): each for number, each in enumerate(value)}  # noqa: PLW2901
        if isinstance(value, Mapping):
            values |= flat(value, f"{prefix}{name}.")
        elif name not in _PATHS | _MODELS:
            values[f"{prefix}{name}"] = value
    return values


def _with_absolute_paths(name: str, value: Any, folder: Path) -> Any:
    """The value of a key, with paths in it made absolute."""
    if isinstance(value, dict):
        return {key: _with_absolute_paths(key, each, folder) for key, each in value.items()}
    if isinstance(value, list):
        return [_with_absolute_paths(name, each, folder) for each in value]
    is_path = isinstance(value, str) and (name in _PATHS or (name in _MODELS and (folder / value).is_dir()))
    return str((folder / Path(value).expanduser()).resolve()) if is_path else value

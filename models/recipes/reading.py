"""From the tables of a file to a recipe; all that can be wrong without reading a text is said here, in one line."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_type_hints

from interp import InputError
from interp.training import Phase, Plan
from models.families.own import KINDS as PARTS
from models.recipes import tables as files
from models.recipes.architecture import Architecture, architecture
from models.recipes.data import KINDS, Kind, learns
from models.recipes.pairs import Paired
from models.recipes.recipe import Recipe
from models.recipes.vocabulary import Vocabulary
from models.spelled import Reader, nearest

_TABLES = ("model", "tokenizer", "target_tokenizer", "data", "training", "phases")
_NEEDED = ("model", "tokenizer", "data", "phases")
_PLAN = {name: hint for name, hint in get_type_hints(Plan).items() if name != "phases"}


def read(name: str | Path, overrides: Mapping[str, Any] | None = None) -> Recipe:
    """The recipe in a TOML file, or the shipped one of that name.

    Args:
        name: a file, or one of `shipped()`.
        overrides: values to set in place of the file's, by key: "model.n_layers", "data.novels.path",
            "phases.0.steps", "phases.*.mix.repeats".

    Raises:
        InputError: no such recipe, an unknown key, a wrong value, or values that do not fit together.
    """
    file = files.file_of(name)
    found = files.load(file)
    for key, value in (overrides or {}).items():
        files.put(found, key, value)
    return named(file.name if file == Path(name) else str(name), found)


def named(name: str, tables: Mapping[str, Any]) -> Recipe:
    """The recipe that these tables spell out; `name` is what messages call it.

    Raises:
        InputError: as `read`.
    """
    parts, own = Reader(name, PARTS, "a table"), Reader(name, KINDS, "a table")
    own.known(tables, _TABLES, "the recipe")
    for each in _NEEDED:
        if not tables.get(each):
            raise InputError(f"{name}: expected a table [{each}]{'' if each != 'phases' else ', [[phases]]'}")
    for each in set(tables) - {"phases"}:
        own.fitting(tables[each], dict, f"[{each}]")
    model = architecture(tables["model"], parts)
    vocabulary = own.fields(Vocabulary, tables["tokenizer"], "[tokenizer]")
    target = tables.get("target_tokenizer")
    target = None if target is None else own.fields(Vocabulary, target, "[target_tokenizer]")
    data = {each: _data(own, each, table) for each, table in tables["data"].items()}
    plan, hidden = _training(own, tables)
    recipe = Recipe(name, model, vocabulary, target, data, plan, hidden, dict(tables))
    _check(recipe)
    return recipe


def _data(reader: Reader, name: str, table: Any) -> Kind:
    place = f"[data.{name}]"
    found = reader.fitting(table, dict, place)
    if found.get("kind") == "text" and not found.get("path"):
        raise InputError(
            f"{reader.source}: {place} lacks path, a text file or a folder of them: give one in the file, or "
            f"--set data.{name}.path=FOLDER"
        )
    return reader.part(found, place)


def _training(reader: Reader, tables: Mapping[str, Any]) -> tuple[Plan, float]:
    given = tables.get("training", {})
    reader.known(given, {*_PLAN, "hidden"}, "[training]")
    values = {key: reader.fitting(each, _PLAN.get(key, float), f"[training].{key}") for key, each in given.items()}
    hidden = values.pop("hidden", 0.15)
    listed = tables["phases"]
    if not isinstance(listed, list):
        raise InputError(f"{reader.source}: phases are a list: expected [[phases]], got [phases]")
    phases = tuple(
        reader.fields(Phase, reader.fitting(each, dict, f"phases.{at}"), f"phases.{at}")
        for at, each in enumerate(listed)
    )
    with reader.inside("[training]"):
        return Plan(phases, **values), hidden


def _check(recipe: Recipe) -> None:
    """Refuse what does not fit together."""
    model, data, source = recipe.model, recipe.data, recipe.name
    for at, phase in enumerate(recipe.plan.phases):
        _known(source, f"phases.{at}.mix", phase.mix, data)
        if phase.row > model.n_ctx:
            raise InputError(
                f"{source}: phases.{at}.row is {phase.row}, longer than the model's context: expected at most n_ctx, "
                f"{model.n_ctx}"
            )
    for place, vocabulary in (("tokenizer", recipe.tokenizer), ("target_tokenizer", recipe.target_tokenizer)):
        _known(source, f"[{place}].texts", vocabulary.texts if vocabulary else (), data)
    both = len(model.stacks) > 1
    for name, kind in data.items():
        if isinstance(kind, Paired) is not both:
            expected = "pairs" if both else "text, generated or repeats"
            raise InputError(f"{source}: [data.{name}]: the model is of kind {model.kind}: expected {expected}")
    if both and any(sum(learns(phase.mix, name) for name in data) > 1 for phase in recipe.plan.phases):
        raise InputError(f"{source}: pairs of texts are not mixed: expected one source in the mix of every phase")
    if recipe.target_tokenizer is not None and not both:
        raise InputError(f"{source}: [target_tokenizer] is of what a decoder writes for an encoder: leave it out")
    if recipe.plan.sample is not None and model.kind == "encoder":
        raise InputError(f"{source}: [training].sample: an encoder continues no text: leave it out")
    if not 0 < recipe.hidden < 1:
        raise InputError(f"{source}: [training].hidden must lie between 0 and 1, got {recipe.hidden:g}")
    if model.whole.get("output") == "none":
        raise InputError(f'{source}: [model].output is "none": a model without an output layer foretells nothing')
    _fits(recipe, model)


def _known(source: str, place: str, names: Iterable[str], data: Mapping[str, Kind]) -> None:
    if unknown := [name for name in names if name not in data]:
        raise InputError(
            f"{source}: {place} has no source to be {unknown[0]}; the nearest in [data] is {nearest(unknown[0], data)}"
        )


def _fits(recipe: Recipe, model: Architecture) -> None:
    known = {}
    for stack, vocabulary in zip(model.stacks, recipe.vocabularies, strict=True):
        if (found := vocabulary.ready()) is not None:
            known[stack] = found.d_vocab
        elif vocabulary.d_vocab is not None:
            known[stack] = vocabulary.d_vocab
    try:
        model.check(known)
    except InputError as error:
        raise InputError(f"{recipe.name}: [model]: {error}") from error

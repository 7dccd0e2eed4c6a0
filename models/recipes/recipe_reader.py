"""From the tables of a file to a recipe; one line refuses whatever is wrong before a text is read."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

from interp import StackConfig, TransformerConfig
from interp.errors import InputError, inside
from interp.training import Phase, Plan
from models.families.interp_format import KINDS as PARTS
from models.initialisation import Initial
from models.plain_tables import Reader
from models.recipes import toml_tables as files
from models.recipes.data import KINDS, check_sources, learns
from models.recipes.data import Kind as Data
from models.recipes.origins import Fresh, Kind, Loaded
from models.recipes.recipe import Recipe
from models.recipes.text_sources import Paired
from models.recipes.vocabulary import Vocabulary

_NAME = re.compile(r"[^\W_][\w .+-]{0,63}")
_TABLES = ("model", "tokenizer", "target_tokenizer", "data", "training", "phases")
_NEEDED_TO_GO_ON = ("model", "data", "phases")
_TABLES_OF_FRESH = ("tokenizer", *_NEEDED_TO_GO_ON)
STACKS = {"decoder": ("decoder",), "encoder": ("encoder",), "encoder-decoder": ("encoder", "decoder")}
_FOLLOWS = {"causal", "cross_attention"}  # from the kind
_OF_STACK = {name: hint for name, hint in get_type_hints(StackConfig).items() if name not in _FOLLOWS}
_DERIVED = {"decoder", "encoder", "target_start", "writing"}  # by stacks and tokenizers
_OF_WHOLE = {name: hint for name, hint in get_type_hints(TransformerConfig).items() if name not in _DERIVED}
_PLAN = {name: hint for name, hint in get_type_hints(Plan).items() if name != "phases"}


def read(name: str | Path, overrides: Mapping[str, Any] | None = None) -> Recipe:
    """The recipe in a TOML file, or the shipped one of that name.

    Args:
        name: a file, or one of `shipped()`.
        overrides: values to set in place of the file's, by key: "model.n_layers", "data.novels.path",
            "phases.0.steps", "phases.*.mix.repeats". Where they change steps, warm-up, hold and snapshots are fitted
            (`Recipe.fitted` says how), unless they are set too.

    Raises:
        InputError: no such recipe, an unknown key, a wrong value, or values that do not fit together.
    """
    file = files.file_of(name)
    tables = files.load(file)
    steps, overrides = files.steps_of(tables), overrides or {}
    for key, value in overrides.items():
        files.put(tables, key, value)
    steps_set = any(key.startswith("phases.") and key.endswith(".steps") for key in overrides)
    fitted = files.fit_steps(tables, steps, overrides) if steps_set else []
    return replace(named(file.name if file == Path(name) else str(name), tables), fitted=tuple(fitted))


def named(name: str, tables: Mapping[str, Any]) -> Recipe:
    """The recipe in these tables; messages call it `name`.

    Raises:
        InputError: as `read`.
    """
    parts, reader = Reader(name, PARTS, "a table"), Reader(name, KINDS, "a table")
    reader.check_names(tables, _TABLES, "the recipe")
    loaded = isinstance(tables.get("model"), Mapping) and "start" in tables["model"]
    for key in _NEEDED_TO_GO_ON if loaded else _TABLES_OF_FRESH:
        if not tables.get(key):
            raise InputError(f"{name}: expected a table [{key}]{'' if key != 'phases' else ', [[phases]]'}")
    for key in set(tables) - {"phases"}:
        reader.fitting(tables[key], dict, f"[{key}]")
    origin = _loaded(reader, tables) if loaded else _fresh(parts, reader, tables)
    for key in tables["data"]:
        if not _NAME.fullmatch(key):
            raise InputError(
                f"{name}: [data.{key!r}]: files get this name: expected at most 64 letters, digits, spaces "
                "and _ . + -, beginning with a letter or digit"
            )
    data = {each: _data(reader, each, table) for each, table in tables["data"].items()}
    plan, hidden_share = _training(reader, tables)
    recipe = Recipe(name, origin, data, plan, hidden_share)
    _check(recipe)
    return recipe


def _loaded(reader: Reader, tables: Mapping[str, Any]) -> Loaded:
    model = tables["model"]
    if rest := [key for key in model if key != "start"] + [key for key in tables if key.endswith("tokenizer")]:
        raise InputError(f"{reader.source}: the model in [model].start has its own {rest[0]}: leave one of the two out")
    return Loaded(reader.fitting(model["start"], str, "[model].start"))


def _fresh(parts: Reader, reader: Reader, tables: Mapping[str, Any]) -> Fresh:
    target = tables.get("target_tokenizer")
    return Fresh(
        **_architecture(tables["model"], parts),
        tokenizer=reader.fields(Vocabulary, tables["tokenizer"], "[tokenizer]"),
        target_tokenizer=None if target is None else reader.fields(Vocabulary, target, "[target_tokenizer]"),
        table=dict(tables["model"]),
    )


def _architecture(table: Mapping[str, Any], reader: Reader) -> dict[str, Any]:
    """Fields of stacks and of the whole from `[model]`; `[model.encoder]` and `[model.decoder]` override it."""
    place = "[model]"
    if "kind" not in table:
        raise InputError(f"{reader.source}: {place} lacks kind: expected one of {', '.join(STACKS)}")
    kind = reader.fitting(table["kind"], Kind, f"{place}.kind")
    stacks_of_kind = STACKS[kind] if len(STACKS[kind]) > 1 else ()
    reader.check_names(table, {"kind", "initial", *_OF_STACK, *_OF_WHOLE, *stacks_of_kind}, place)
    common = _fitting(table, _OF_STACK, reader, place)
    whole = _fitting(table, _OF_WHOLE, reader, place)
    stacks = {}
    for name in STACKS[kind]:
        inner = f"[model.{name}]"
        table_of = reader.fitting(table.get(name, {}), dict, inner) if name in stacks_of_kind else {}
        reader.check_names(table_of, _OF_STACK, inner)
        stacks[name] = _whole_heads({**common, **_fitting(table_of, _OF_STACK, reader, inner)}, reader)
    initial = reader.fitting(table.get("initial", "normal"), Initial, f"{place}.initial")
    return {"kind": kind, "stacks": stacks, "whole": whole, "initial": initial}


def _fitting(table: Mapping[str, Any], hints: Mapping[str, Any], reader: Reader, place: str) -> dict[str, Any]:
    return {name: reader.fitting(each, hints[name], f"{place}.{name}") for name, each in table.items() if name in hints}


def _whole_heads(fields: dict[str, Any], reader: Reader) -> dict[str, Any]:
    """The fields of a stack, with `d_head` where it is absent."""
    reader.check_complete(StackConfig, {*fields, *_FOLLOWS, "d_head", "d_vocab"}, "[model]")
    if "d_head" not in fields:
        if fields["n_heads"] < 1 or fields["d_model"] % fields["n_heads"]:
            raise InputError(
                f"{reader.source}: [model]: heads share d_model evenly: expected a multiple of {fields['n_heads']}, "
                f"got {fields['d_model']}; or give d_head"
            )
        fields["d_head"] = fields["d_model"] // fields["n_heads"]
    return fields


def _data(reader: Reader, name: str, table: Any) -> Data:
    place = f"[data.{name}]"
    entries = reader.fitting(table, dict, place)
    if entries.get("kind") == "text" and not entries.get("path"):
        raise InputError(
            f"{reader.source}: {place} lacks path, a text file or a folder of them: give one in the file, or "
            f"--set data.{name}.path=FOLDER"
        )
    return reader.part(entries, place)


def _training(reader: Reader, tables: Mapping[str, Any]) -> tuple[Plan, float]:
    table = tables.get("training", {})
    reader.check_names(table, {*_PLAN, "hidden"}, "[training]")
    values = {key: reader.fitting(each, _PLAN.get(key, float), f"[training].{key}") for key, each in table.items()}
    share = values.pop("hidden", 0.15)
    listed = tables["phases"]
    if not isinstance(listed, list):
        raise InputError(f"{reader.source}: phases are a list: expected [[phases]], got [phases]")
    phases = tuple(
        reader.fields(Phase, reader.fitting(each, dict, f"phases.{at}"), f"phases.{at}")
        for at, each in enumerate(listed)
    )
    with inside(f"{reader.source}: [training]"):
        return Plan(phases, **values), share


def _check(recipe: Recipe) -> None:
    """Refuse what does not fit together."""
    model, data, source = recipe.origin, recipe.data, recipe.name
    model.check(source, data)
    for number, phase in enumerate(recipe.plan.phases):
        check_sources(source, f"phases.{number}.mix", phase.mix, data)
        if phase.row > model.n_ctx:
            raise InputError(
                f"{source}: phases.{number}.row is {phase.row}, longer than the model's context: "
                f"expected at most n_ctx, {model.n_ctx}"
            )
    two_stacks = model.kind == "encoder-decoder"
    for name, kind in data.items():
        if isinstance(kind, Paired) is not two_stacks:
            expected = "pairs" if two_stacks else "text, generated or repeats"
            raise InputError(f"{source}: [data.{name}]: the model is of kind {model.kind}: expected {expected}")
    if two_stacks and any(sum(learns(phase.mix, name) for name in data) > 1 for phase in recipe.plan.phases):
        raise InputError(f"{source}: pairs of texts cannot be mixed: expected one source in the mix of every phase")
    if recipe.plan.sample is not None and model.kind == "encoder":
        raise InputError(f"{source}: [training].sample: an encoder cannot continue text: leave it out")
    if not 0 < recipe.hidden_share < 1:
        raise InputError(f"{source}: [training].hidden must lie between 0 and 1, got {recipe.hidden_share:g}")

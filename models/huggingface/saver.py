"""From a model to a directory that `transformers` reads too, whole or not there at all."""

import json
import os
import shutil
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from interp import InputError, Model, Transformer, TransformerConfig
from interp.training.whole_files import check_kind, replacing, sweep_beside
from models import quantization as quantizing
from models.families import FAMILIES
from models.families import target_ids as writing
from models.families.family import Family, layout
from models.huggingface.loader import family_of
from models.huggingface.model_files import (
    CONFIG,
    GENERATION,
    TARGET_TOKENIZER,
    TOKENIZER,
    TOKENIZER_CONFIG,
    WEIGHTS,
    names_of_model,
    read_json,
)
from models.tensor_files import write


def save(model: Model, directory: str | Path, family: str | None = None) -> None:
    """Write `model` as a directory that `transformers` reads too; `read` is the inverse.

    The directory is written beside and takes the place of an earlier one whole, so no reader sees parts of two models.
    Weights, configuration and tokenizer of the earlier model go; all other files in it stay. Without a `family`, it is
    the one that the model was read from, or else the first that can say what the model is made of.

    Raises:
        InputError: no family, or not this one, can say what the model is made of; `directory` is no directory, has
            files by these names that are no model's, or is the one that the program runs in; the disk is full.
    """
    if not isinstance(model, Transformer):
        source = getattr(model, "source", None)
        raise InputError(f"another library runs this model: copy the directory that it was read from, {source}")
    if any(isinstance(module, quantizing.Int8) for module in model.modules()):
        raise InputError("a quantized model cannot be saved: its weights are rounded; load it without quantize")
    directory = Path(directory).resolve()
    kind, raw = _expression(model, directory, family)
    _check_place(directory)
    parameters = dict(model.named_parameters())
    tensors = {
        kind.stored(piece): (piece.view(parameters[piece.ours]), piece.shape(parameters[piece.ours]))
        for piece in layout(model, kind)
    }
    new = [parent for parent in directory.parents if not parent.exists()]
    try:
        sweep_beside(directory)
        with replacing(directory) as part:
            part.mkdir()
            write(part / WEIGHTS, tensors)
            settings = _write_tokenizer(model, part)
            dtype = str(next(iter(parameters.values())).dtype).removeprefix("torch.")
            _write(part / CONFIG, settings | raw | {"dtype": dtype})
            if kind.two_stacks:
                _write(part / GENERATION, writing.ids_of(model.config))
            _carry_over(directory, part)
    except OSError as error:
        raise InputError(f"the model could not be written to {directory}: {error.strerror or error}") from error
    finally:
        for parent in new:
            with suppress(OSError):  # not empty: all went well
                parent.rmdir()


def _check_place(directory: Path) -> None:
    """Refuse a place that holds anything but a model."""
    check_kind(directory, stat.S_IFDIR)
    if Path.cwd().is_relative_to(directory):
        raise InputError(f"the program runs in {directory}, which no other can replace: give a directory in it")
    names = names_of_model(directory)
    if names and (CONFIG not in names or "model_type" not in read_json(directory / CONFIG)):
        raise InputError(f"{directory} holds {min(names)}, which is no model's: choose another directory")


def _expression(model: Transformer, directory: Path, family: str | None) -> tuple[Family, dict[str, Any]]:
    """A family that can say what the model is made of, and its config.json."""
    names = [family] if family else list(dict.fromkeys([*([model.family] if model.family else []), *FAMILIES]))
    for name in names:
        kind = family_of({"model_type": name}, directory)
        raw = kind.raw(model.config)
        with suppress(InputError):  # it says what it cannot
            if settled(kind.config(raw)) == settled(model.config):
                return kind, raw
    formats = f"the {family} format cannot" if family else f"none of the formats {', '.join(FAMILIES)} can"
    raise InputError(f"{formats} express this model: {model.config}")


def settled(config: TransformerConfig) -> TransformerConfig:
    """The same with defaults spelled out, so that equal models compare equal."""
    stacks = {
        name: replace(stack, n_kv_heads=stack.kv_heads, scale=stack.score_scale)
        for name, stack in config.stacks.items()
    }
    return replace(config, **stacks)


def _write_tokenizer(model: Transformer, directory: Path) -> dict[str, Any]:
    """Write what tokenizes for `model`; returns what its config.json says about it."""
    tokenizer, target = model.tokenizer, model.target_tokenizer
    if target is not None and target is not tokenizer:
        _write(directory / TARGET_TOKENIZER, target.backend.to_str(pretty=True))
    if tokenizer is None:
        return {"bos_token_id": None, "eos_token_id": None}
    _write(directory / TOKENIZER, tokenizer.backend.to_str(pretty=True))  # its own `save` raises errors of no kind
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": model.config.n_ctx}
    start = tokenizer.prefix[0] if len(tokenizer.prefix) == 1 and not tokenizer.suffix else None
    if start is not None:
        settings["bos_token"] = tokenizer.backend.id_to_token(start)
        settings["add_bos_token"] = not tokenizer.backend.encode("").ids  # its own template may add it already
    _write(directory / TOKENIZER_CONFIG, settings)
    return {"bos_token_id": start, "eos_token_id": None}


def _write(path: Path, content: str | Mapping[str, Any]) -> None:
    text = content if isinstance(content, str) else json.dumps(content, indent=2) + "\n"
    path.write_text(text, encoding="utf-8")


def _carry_over(directory: Path, part: Path) -> None:
    """Have the files in `directory` that are of no model in `part` too, by another name for the same file."""
    names = names_of_model(directory)
    for path in directory.iterdir() if directory.is_dir() else ():
        if path.name in names:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.copytree(path, part / path.name, symlinks=True, copy_function=_link)
        else:
            _link(path, part / path.name)


def _link(path: Any, place: Any) -> None:
    try:
        os.link(path, place, follow_symlinks=False)
    except OSError:  # a file system without such names
        shutil.copy2(path, place, follow_symlinks=False)

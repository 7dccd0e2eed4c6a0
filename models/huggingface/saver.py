"""From a model to a directory that `transformers` reads too; it is written whole or not at all."""

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
from models.huggingface import model_files as files
from models.huggingface.loader import family_of
from models.huggingface.model_files import CONFIG, names_of_model, read_json
from models.tensor_files import write


def save(model: Model, directory: str | Path, family: str | None = None) -> None:
    """Write `model` as a directory that `transformers` reads too; `read` is the inverse.

    A new directory replaces an earlier one whole, so no reader sees parts of two models. Weights, configuration and
    tokenizer of the earlier model go; all other files in it stay. The default `family` is the one that the model was
    read from, or else the first that can express the model.

    Raises:
        InputError: the family, or every family, cannot express the model; `directory` is no directory, is the working
            directory, or has files with these names that belong to no model; the disk is full.
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
            write(part / files.WEIGHTS, tensors)
            settings = _write_tokenizer(model, part)
            dtype = str(next(iter(parameters.values())).dtype).removeprefix("torch.")
            _write(part / CONFIG, settings | raw | {"dtype": dtype})
            if kind.two_stacks:
                _write(part / files.GENERATION, writing.ids_of(model.config))
            _carry_over(directory, part)
    except OSError as error:
        raise InputError(f"the model could not be written to {directory}: {error.strerror or error}") from error
    finally:
        for parent in new:
            with suppress(OSError):  # not empty: saving worked
                parent.rmdir()


def _check_place(directory: Path) -> None:
    """Refuse a place that holds anything but a model."""
    check_kind(directory, stat.S_IFDIR)
    if Path.cwd().is_relative_to(directory):
        raise InputError(f"the program runs in {directory}, so it cannot be replaced: give a directory in it")
    names = names_of_model(directory)
    if names and (CONFIG not in names or "model_type" not in read_json(directory / CONFIG)):
        raise InputError(f"{directory} holds {min(names)}, which is not part of a model: choose another directory")


def _expression(model: Transformer, directory: Path, family: str | None) -> tuple[Family, dict[str, Any]]:
    """A family that can express the model, and its config.json."""
    names = [family] if family else list(dict.fromkeys([*([model.family] if model.family else []), *FAMILIES]))
    for name in names:
        kind = family_of({"model_type": name}, directory)
        raw = kind.raw(model.config)
        with suppress(InputError):  # the family cannot express it
            if spelled_out(kind.config(raw)) == spelled_out(model.config):
                return kind, raw
    formats = f"the {family} format cannot" if family else f"none of the formats {', '.join(FAMILIES)} can"
    raise InputError(f"{formats} express this model: {model.config}")


def spelled_out(config: TransformerConfig) -> TransformerConfig:
    """The same with defaults spelled out, so that equal models compare equal."""
    stacks = {
        name: replace(stack, n_kv_heads=stack.kv_heads, scale=stack.score_scale)
        for name, stack in config.stacks.items()
    }
    return replace(config, **stacks)


def _write_tokenizer(model: Transformer, directory: Path) -> dict[str, Any]:
    """Write the tokenizers; returns what config.json says about them."""
    tokenizer, target = model.tokenizer, model.target_tokenizer
    if target is not None and target is not tokenizer:
        _write(directory / files.TARGET_TOKENIZER, target.backend.to_str(pretty=True))
    if tokenizer is None:
        return {"bos_token_id": None, "eos_token_id": None}
    _write(directory / files.TOKENIZER, tokenizer.backend.to_str(pretty=True))  # its own `save` raises plain exceptions
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": model.config.n_ctx}
    start = tokenizer.prefix[0] if len(tokenizer.prefix) == 1 and not tokenizer.suffix else None
    if start is not None:
        settings["bos_token"] = tokenizer.backend.id_to_token(start)
        settings["add_bos_token"] = not tokenizer.backend.encode("").ids  # its own template may add it already
    _write(directory / files.TOKENIZER_CONFIG, settings)
    return {"bos_token_id": start, "eos_token_id": None}


def _write(path: Path, content: str | Mapping[str, Any]) -> None:
    text = content if isinstance(content, str) else json.dumps(content, indent=2) + "\n"
    path.write_text(text, encoding="utf-8")


def _carry_over(directory: Path, part: Path) -> None:
    """Link the files in `directory` that belong to no model into `part`."""
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
    except OSError:  # a file system without links
        shutil.copy2(path, place, follow_symlinks=False)

"""From a model to a directory that `transformers` reads too, whole or not there at all."""

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from interp import InputError, Model, Tokenizer, Transformer, TransformerConfig
from models import quantization as quantizing
from models.families import FAMILIES
from models.families import target_ids as writing
from models.families.family import Family, layout
from models.huggingface.loader import family_of
from models.huggingface.model_files import CONFIG, GENERATION, TARGET_TOKENIZER, TOKENIZER, TOKENIZER_CONFIG, WEIGHTS
from models.tensor_files import write


def save(model: Model, directory: str | Path, family: str | None = None) -> None:
    """Write `model` as a directory that `transformers` reads too; `read` is the inverse.

    Files are written beside and moved, so no reader sees half of one; other files in `directory` stay. Without a
    `family`, it is the one that the model was read from, or else the first that can say what the model is made of.

    Raises:
        InputError: no family, or not this one, can say what the model is made of; the disk is full.
    """
    if not isinstance(model, Transformer):
        source = getattr(model, "source", None)
        raise InputError(f"another library runs this model: copy the directory that it was read from, {source}")
    if any(isinstance(module, quantizing.Int8) for module in model.modules()):
        raise InputError("a quantized model cannot be saved: its weights are rounded; load it without quantize")
    directory = Path(directory)
    kind, raw = _expression(model, directory, family)
    if directory.exists() and not directory.is_dir():
        raise InputError(f"{directory} is a file: give a directory to write the model to")
    parameters = dict(model.named_parameters())
    tensors = {
        kind.stored(piece): (piece.view(parameters[piece.ours]), piece.shape(parameters[piece.ours]))
        for piece in layout(model, kind)
    }
    new = [parent for parent in directory.parents if not parent.exists()]
    beside = None
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
        write(beside / WEIGHTS, tensors)
        settings = _write_tokenizer(model, beside)
        dtype = str(next(iter(parameters.values())).dtype).removeprefix("torch.")
        _write_json(beside / CONFIG, settings | raw | {"dtype": dtype})
        if kind.both:
            _write_json(beside / GENERATION, writing.ids_of(model.config))
        _move(beside, directory)
    except OSError as error:
        raise InputError(f"the model could not be written to {directory}: {error.strerror or error}") from error
    finally:
        if beside is not None:
            shutil.rmtree(beside, ignore_errors=True)
        for parent in new:
            with suppress(OSError):  # not empty: all went well
                parent.rmdir()


def _expression(model: Transformer, directory: Path, family: str | None) -> tuple[Family, dict[str, Any]]:
    """A family that can say what the model is made of, and its config.json."""
    names = [family] if family else list(dict.fromkeys([*([model.family] if model.family else []), *FAMILIES]))
    for name in names:
        kind = family_of({"model_type": name}, directory)
        raw = kind.raw(model.config)
        if _expresses(kind, raw, model.config):
            return kind, raw
    which = f"the {family} format cannot" if family else f"none of the formats {', '.join(FAMILIES)} can"
    raise InputError(f"{which} express this model: {model.config}")


def _expresses(family: Family, raw: Mapping[str, Any], config: TransformerConfig) -> bool:
    try:
        return settled(family.config(raw)) == settled(config)
    except InputError:
        return False


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
        _write_backend(directory / TARGET_TOKENIZER, target)
    if tokenizer is None:
        return {"bos_token_id": None, "eos_token_id": None}
    _write_backend(directory / TOKENIZER, tokenizer)
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": model.config.n_ctx}
    start = tokenizer.prefix[0] if len(tokenizer.prefix) == 1 and not tokenizer.suffix else None
    if start is not None:
        settings["bos_token"] = tokenizer.backend.id_to_token(start)
        settings["add_bos_token"] = not tokenizer.backend.encode("").ids  # its own template may add it already
    _write_json(directory / TOKENIZER_CONFIG, settings)
    return {"bos_token_id": start, "eos_token_id": None}


def _write_backend(path: Path, tokenizer: Tokenizer) -> None:
    """As the library's own `save` writes it, whose errors are of no kind."""
    path.write_text(tokenizer.backend.to_str(pretty=True), encoding="utf-8")


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _move(beside: Path, directory: Path) -> None:
    """Put a finished directory in its place: whole where the place is free, else file by file."""
    beside.chmod(0o755)
    if not directory.exists():
        beside.rename(directory)
        return
    for file in sorted(beside.iterdir(), key=lambda file: file.name == CONFIG):  # the configuration last
        os.replace(file, directory / file.name)

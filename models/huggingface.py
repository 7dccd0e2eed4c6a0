"""Directories in Hugging Face's format: config.json, safetensors weights (one file or shards), tokenizer.json.

Everything is checked before a weight is read, so that a model that loads computes what its files say. Weights go
straight into the parameters that they fill; pickles, which can run code, are never opened.
"""

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from tokenizers import Tokenizer as Backend

from interp import InputError, Tokenizer, Transformer, TransformerConfig
from models import bert, gpt2, llama
from models.family import Family, Piece, layout

FAMILIES: dict[str, Family] = {"bert": bert.FAMILY, "gpt2": gpt2.FAMILY, "llama": llama.FAMILY}
CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
HEAD = "lm_head.weight"  # the output layer, where it is not the embedding


def read(directory: Path, dtype: torch.dtype, device: torch.device) -> Transformer:
    """The model in `directory`.

    Raises:
        InputError: a file is missing or damaged, the family is unknown, a setting is not supported, tensors do not fit.
    """
    raw = read_json(directory / CONFIG)
    family = family_of(raw, directory)
    stored = stored_tensors(directory, family)
    try:
        config = family.config({"tie_word_embeddings": HEAD not in stored, **raw})
    except InputError as error:
        raise InputError(f"{directory}: {error}") from error
    with torch.device("meta"):  # shapes without memory, and without drawing random weights
        model = Transformer(config, read_tokenizer(directory))
    model.source = directory
    pieces = list(layout(model, family))
    _check(model, stored, pieces, family)
    values = {name: torch.empty_like(p, dtype=dtype, device=device) for name, p in model.named_parameters()}
    for piece in pieces:
        piece.view(values[piece.ours]).copy_(stored[piece.theirs][:])
    model.load_state_dict(values, strict=False, assign=True)
    if model.output is not None and config.output == "tied":
        model.output.weight = model.last.embed.token.weight
        _check_tied(model, stored)
    return model


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        InputError: the file is missing, or is no JSON object.
    """
    if not path.is_file():
        raise InputError(f"no {path.name} in {path.parent}: a model directory has one")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is not readable as JSON: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} must hold a JSON object, got {type(content).__name__}")
    return content


def family_of(raw: Mapping[str, Any], directory: Path) -> Family:
    """The family that `model_type` names."""
    name = raw.get("model_type")
    if not isinstance(name, str):
        raise InputError(f"{directory}: config.json lacks 'model_type', one of {', '.join(FAMILIES)}")
    if name not in FAMILIES:
        near = get_close_matches(name, FAMILIES, n=1, cutoff=0.5)
        hint = f" (the nearest is {near[0]})" if near else ""
        raise InputError(f"{directory}: model family {name!r} is not one of {', '.join(FAMILIES)}{hint}")
    for field, harmless in {"quantization_config": (None,), "is_encoder_decoder": (None, False)}.items():
        if raw.get(field) not in harmless:
            raise InputError(f"{directory}: config.json: {field} {raw[field]!r} is not supported")
    return FAMILIES[name]


def weight_files(directory: Path) -> list[Path]:
    """The safetensors files that hold the weights.

    Raises:
        InputError: there are none, or a shard is missing.
    """
    if (directory / WEIGHTS).is_file():
        return [directory / WEIGHTS]
    if not (directory / INDEX).is_file():
        raise InputError(
            f"no {WEIGHTS} in {directory}; pickled weights (pytorch_model.bin) can run code and are never read: "
            "convert them with transformers, from_pretrained(...).save_pretrained(...)"
        )
    shards = read_json(directory / INDEX).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise InputError(f"{directory / INDEX} has no weight_map, which names the file of each tensor")
    files = [directory / Path(str(name)).name for name in sorted({*shards.values()})]
    if missing := [file.name for file in files if not file.is_file()]:
        raise InputError(f"{directory}: {INDEX} names files that are missing: {', '.join(missing)}")
    return files


def weights_digest(directory: Path) -> str:
    """SHA-256 of the weight files' bytes, in the order of their names: which model a result was computed with."""
    digest = hashlib.sha256()
    for file in weight_files(directory):
        with file.open("rb") as stream:
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()


def stored_tensors(directory: Path, family: Family) -> dict[str, Any]:
    """Tensors by name, without the family's prefix and with old names renewed; `[:]` reads one."""
    found: dict[str, Any] = {}
    for file in weight_files(directory):
        try:
            handle = safe_open(file, framework="pt")
        except (SafetensorError, OSError) as error:
            raise InputError(f"{file} is damaged or cut short; fetch or save it again ({error})") from error
        for stored in handle.keys():  # noqa: SIM118 (not a dictionary)
            name = stored.removeprefix(family.prefix)
            for old, new in family.renamed.items():
                name = name.replace(old, new)
            if not re.fullmatch(family.ignored, name):
                found[name] = handle.get_slice(stored)
    return found


def _check(model: Transformer, stored: Mapping[str, Any], pieces: list[Piece], family: Family) -> None:
    parameters = dict(model.named_parameters())
    shapes = {piece.theirs: tuple(piece.view(parameters[piece.ours]).shape) for piece in pieces}
    if missing := shapes.keys() - stored.keys():
        raise InputError(f"{model.source}: the weights lack {_some(missing)}, which config.json asks for")
    tied_head = {HEAD} if model.config.output == "tied" else set()
    if unexpected := stored.keys() - shapes.keys() - tied_head:
        raise InputError(f"{model.source}: the weights hold {_some(unexpected)}, which config.json has no place for")
    for name, expected in shapes.items():
        got, kind = tuple(stored[name].get_shape()), stored[name].get_dtype()
        if got != expected:
            raise InputError(f"{model.source}: {name} has shape {got}, but config.json asks for {expected}")
        if kind not in {"F64", "F32", "F16", "BF16"}:
            raise InputError(f"{model.source}: {name} is stored as {kind}; expected F64, F32, F16 or BF16")


def _check_tied(model: Transformer, stored: Mapping[str, Any]) -> None:
    head, embedding = stored.get(HEAD), model.last.embed.token.weight
    if head is not None and not torch.equal(head[:].to(embedding), embedding):
        raise InputError(f"{model.source}: tie_word_embeddings is true, but {HEAD} differs from the embedding")


def _some(names: set[str]) -> str:
    shown = sorted(names)[:3]
    return ", ".join(shown) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def read_tokenizer(directory: Path) -> Tokenizer | None:
    """The tokenizer in `directory`; None where there is none.

    Raises:
        InputError: tokenizer.json is damaged.
    """
    if not (directory / TOKENIZER).is_file():
        return None
    try:
        backend = Backend.from_file(str(directory / TOKENIZER))
    except Exception as error:  # the library raises nothing narrower
        raise InputError(f"{directory / TOKENIZER} is not readable as a tokenizer: {error}") from error
    settings = read_json(directory / TOKENIZER_CONFIG) if (directory / TOKENIZER_CONFIG).is_file() else {}
    start = settings.get("bos_token") if settings.get("add_bos_token") is True else None
    start = start.get("content") if isinstance(start, dict) else start
    return Tokenizer(backend, add_start=backend.token_to_id(start) if isinstance(start, str) else None)


def save(model: Transformer, directory: Path, family: str) -> None:
    """Write `model` as a directory of `family`, which `transformers` reads too; `read` is the inverse.

    Files are written beside and moved, so no reader sees half of one; other files in `directory` stay.

    Raises:
        InputError: the family has no way to say what the model is made of.
    """
    kind = family_of({"model_type": family}, directory)
    raw = {key: value for key, value in kind.raw(model.config).items() if value is not None}
    if not _expresses(kind, raw, model.config):
        raise InputError(f"the {family} format cannot express this model: {model.config}")
    if directory.exists() and not directory.is_dir():
        raise InputError(f"{directory} is a file: give a directory to write the model to")
    parameters = dict(model.named_parameters())
    tensors = {
        piece.theirs if piece.theirs == HEAD else kind.prefix + piece.theirs: piece.view(parameters[piece.ours])
        for piece in layout(model, kind)
    }
    directory.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        save_file({n: t.detach().contiguous() for n, t in tensors.items()}, beside / WEIGHTS, {"format": "pt"})
        settings = _write_tokenizer(model, beside)
        dtype = str(next(iter(parameters.values())).dtype).removeprefix("torch.")
        _write_json(beside / CONFIG, raw | settings | {"dtype": dtype})
        _move(beside, directory)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _expresses(family: Family, raw: Mapping[str, Any], config: TransformerConfig) -> bool:
    try:
        return _settled(family.config(raw)) == _settled(config)
    except InputError:
        return False


def _settled(config: TransformerConfig) -> TransformerConfig:
    """The same with defaults spelled out, so that equal models compare equal."""
    stacks = {
        name: replace(stack, n_kv_heads=stack.kv_heads, scale=stack.score_scale)
        for name, stack in config.stacks.items()
    }
    return replace(config, **stacks)


def _write_tokenizer(model: Transformer, directory: Path) -> dict[str, Any]:
    """Write what tokenizes for `model`; returns what its config.json says about it."""
    tokenizer = model.tokenizer
    if tokenizer is None:
        return {"bos_token_id": None, "eos_token_id": None}
    tokenizer.backend.save(str(directory / TOKENIZER))
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": model.config.n_ctx}
    start = tokenizer.prefix[0] if len(tokenizer.prefix) == 1 and not tokenizer.suffix else None
    if start is not None:
        settings["bos_token"] = tokenizer.backend.id_to_token(start)
        settings["add_bos_token"] = not tokenizer.backend.encode("").ids  # its own template may add it already
    _write_json(directory / TOKENIZER_CONFIG, settings)
    return {"bos_token_id": start, "eos_token_id": None}


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

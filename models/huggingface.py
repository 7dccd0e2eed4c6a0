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
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import Tokenizer as Backend
from torch import Tensor, nn

from interp import InputError, Tokenizer, Transformer, TransformerConfig
from models import quantizing
from models.families import FAMILIES, writing
from models.families.family import Family, Piece, layout
from models.stored import DTYPES, Stored, folded, read_header, write

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
PICKLES = {".bin", ".ckpt", ".pickle", ".pkl", ".pt", ".pth"}
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
TARGET_TOKENIZER, GENERATION = "target_tokenizer.json", "generation_config.json"


def read(
    directory: Path, dtype: torch.dtype, device: torch.device, quantize: Literal["int8"] | None = None
) -> Transformer:
    """The model in `directory`.

    Raises:
        InputError: a file is missing or damaged, the family is unknown, a setting is not supported, tensors do not fit.
    """
    if quantize is not None:
        quantizing.require(quantize, dtype)
    raw, family, stored, config = described(directory)
    with torch.device("meta"):  # shapes without memory, and without drawing random weights
        model = Transformer(config, *read_tokenizers(directory, config))
    model.source, model.family = directory, raw["model_type"]
    pieces = list(layout(model, family))
    _check(model, stored, pieces, family)
    for ours, parts in groupby(pieces, lambda piece: piece.ours):
        value = torch.empty_like(model.get_parameter(ours), dtype=dtype, device=device)
        for piece in parts:
            if piece.theirs in stored:
                stored[piece.theirs].fill(piece.view(value))
            else:
                piece.view(value).zero_()
        _assign(model, ours, value)
        if quantize is not None:  # at once, so that no more than one matrix is whole
            quantizing.replace(model, ours)
    model.tie()
    _check_copies(model, stored, pieces, family)
    return model


def described(directory: Path) -> tuple[dict[str, Any], Family, dict[str, Stored], TransformerConfig]:
    """What the files in `directory` say: their fields, their family, their tensors, and our configuration of all that.

    Raises:
        InputError: as `read`.
    """
    raw = read_json(directory / CONFIG)
    family = family_of(raw, directory)
    if family.both and (directory / GENERATION).is_file():
        raw = writing.with_generation(raw, read_json(directory / GENERATION))
    stored = stored_tensors(directory, family)
    try:
        return raw, family, stored, family.config(_settled_by(stored, family, raw))
    except InputError as error:
        raise InputError(f"{directory}: {error}") from error


def _assign(model: Transformer, name: str, value: Tensor) -> None:
    module, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(module), leaf, nn.Parameter(value))


def _settled_by(stored: Mapping[str, Any], family: Family, raw: Mapping[str, Any]) -> dict[str, Any]:
    """Their fields, with what the stored tensors tell: an output layer, where a file has one or none."""
    if family.settle is not None:
        return family.settle(raw, stored)
    if family.masked is not None:
        return {**raw, "architectures": ["ForMaskedLM"] if family.masked in stored else []}
    return {"tie_word_embeddings": family.head not in stored, **raw}


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
        near = get_close_matches(name, FAMILIES, n=1, cutoff=0.0)[0]
        raise InputError(
            f"{directory}: model family {name!r} is not one of {', '.join(FAMILIES)} (the nearest is {near}); "
            f'what TransformerLens can load, the name "lens:{directory}" gives'
        )
    if raw.get("auto_map") or raw.get("trust_remote_code"):
        raise InputError(
            f"{directory}: config.json: auto_map wants code that comes with the model, which is never run; if the "
            f"weights are those of a plain {name} model, take auto_map out of config.json"
        )
    family = FAMILIES[name]
    for field, expected in {"quantization_config": None, "is_encoder_decoder": family.both}.items():
        if raw.get(field) not in (None, expected):
            raise InputError(f"{directory}: config.json: {field} {raw[field]!r} is not supported")
    return family


def weight_files(directory: Path) -> list[Path]:
    """The safetensors files that hold the weights.

    Raises:
        InputError: there are none, or a shard is missing.
    """
    if (directory / WEIGHTS).is_file():
        return [directory / WEIGHTS]
    if not (directory / INDEX).is_file():
        pickles = sorted(path.name for path in directory.iterdir() if path.suffix in PICKLES)
        found = f", but {', '.join(pickles)}" if pickles else ""
        raise InputError(
            f"no {WEIGHTS} in {directory}{found}; pickled weights (pytorch_model.bin) can run code and are never read: "
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


def stored_tensors(directory: Path, family: Family) -> dict[str, Stored]:
    """Tensors by name, without the family's prefix and with old names renewed."""
    found: dict[str, Stored] = {}
    for file in weight_files(directory):
        for stored, tensor in read_header(file).items():
            name = stored.removeprefix(family.prefix)
            for old, new in family.renamed.items():
                name = name.replace(old, new)
            if not re.fullmatch(family.ignored, name):
                found[name] = tensor
    if family.masked is not None and family.masked not in found:  # what there is of an output is another task's
        found = {name: tensor for name, tensor in found.items() if not family.of_output(name)}
    for name, others in family.also.items():  # of tensors that are one, a file may hold any
        for other in others:
            if name not in found and other in found:
                found[name] = found.pop(other)
    return found


def _copies(model: Transformer, family: Family) -> dict[str, str]:
    """Their names of tensors that a file may hold once more, and what they are copies of."""
    family = family.suit(family, model.config)
    copies = {other: name for name, others in family.also.items() for other in others}
    if model.config.output == "tied" and family.head is not None:
        embedding = model.last.embed.token.weight
        copies[family.head] = family.theirs(next(n for n, p in model.named_parameters() if p is embedding))[0][0]
    return copies


def _check(model: Transformer, stored: Mapping[str, Stored], pieces: list[Piece], family: Family) -> None:
    """Refuse weights that are not just those that config.json asks for; all that is wrong is said."""
    parameters = dict(model.named_parameters())
    shapes = {piece.theirs: piece.shape(parameters[piece.ours]) for piece in pieces}
    wrong: dict[str, set[str]] = {}  # what is wrong, with which
    for name in shapes.keys() - stored.keys() - family.zero:
        wrong.setdefault("the weights lack {}, which config.json asks for", set()).add(name)
    for name in stored.keys() - shapes.keys() - _copies(model, family).keys():
        wrong.setdefault("the weights hold {}, which config.json has no place for", set()).add(name)
    for name in shapes.keys() & stored.keys():
        got, expected, kind = stored[name].shape, shapes[name], stored[name].kind
        if got != expected:
            wrong.setdefault(f"{{}} has shape {got}, but config.json asks for {expected}", set()).add(name)
        if kind not in DTYPES:
            wrong.setdefault(f"{{}} is stored as {kind}; expected {', '.join(DTYPES)}", set()).add(name)
    if wrong:
        told = "; ".join(each.format(folded(names)) for each, names in wrong.items())
        raise InputError(f"{model.source}: {told}")


def _check_copies(model: Transformer, stored: Mapping[str, Stored], pieces: list[Piece], family: Family) -> None:
    places = {piece.theirs: piece for piece in pieces}
    for copy, name in _copies(model, family).items():
        if copy in stored and name in places and copy not in places:
            piece = places[name]
            if not stored[copy].equals(piece.view(model.get_parameter(piece.ours))):
                raise InputError(f"{model.source}: config.json says that {copy} and {name} are one, but they differ")


def read_tokenizers(directory: Path, config: TransformerConfig) -> tuple[Tokenizer | None, Tokenizer | None]:
    """What tokenizes for the first stack and, where there is a decoder beside an encoder, for that; None for none.

    Raises:
        InputError: a file is damaged, or gives ids that the embedding has no row for.
    """
    first, last = next(iter(config.stacks.values())), config.last
    tokenizer = read_tokenizer(directory)
    target = read_tokenizer(directory, TARGET_TOKENIZER) if len(config.stacks) > 1 else None
    for each, stack, name in ((tokenizer, first, TOKENIZER), (target, last, TARGET_TOKENIZER)):
        if each is not None and each.largest_id >= stack.d_vocab:
            raise InputError(
                f"{directory}: {name} gives ids up to {each.largest_id}, but the embedding has {stack.d_vocab} rows: "
                "they belong to different models"
            )
    return tokenizer, target


def read_tokenizer(directory: Path, name: str = TOKENIZER) -> Tokenizer | None:
    """The tokenizer of that name in `directory`; None where there is none.

    Raises:
        InputError: the file is damaged.
    """
    if not (directory / name).is_file():
        return None
    try:
        backend = Backend.from_file(str(directory / name))
    except Exception as error:  # the library raises nothing narrower
        raise InputError(f"{directory / name} is not readable as a tokenizer: {error}") from error
    settings = read_json(directory / TOKENIZER_CONFIG) if (directory / TOKENIZER_CONFIG).is_file() else {}
    start = settings.get("bos_token") if settings.get("add_bos_token") is True else None
    start = start.get("content") if isinstance(start, dict) else start
    return Tokenizer(backend, add_start=backend.token_to_id(start) if isinstance(start, str) else None)


def save(model: Transformer, directory: Path, family: str | None = None) -> None:
    """Write `model` as a directory that `transformers` reads too; `read` is the inverse.

    Files are written beside and moved, so no reader sees half of one; other files in `directory` stay. Without a
    `family`, it is the one that the model was read from, or else the first that can say what the model is made of.

    Raises:
        InputError: no family, or not this one, can say what the model is made of; the disk is full.
    """
    if any(isinstance(module, quantizing.Int8) for module in model.modules()):
        raise InputError("a quantized model cannot be saved: its weights are rounded; load it without quantize")
    if model.whole:
        raise InputError(f"another library runs this model: copy the directory that it was read from, {model.source}")
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

"""From a directory to a model. Everything is checked before a weight is read, and weights go straight into place."""

from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import Tokenizer as Backend
from torch import nn

from interp import InputError, StackConfig, Tokenizer, Transformer, TransformerConfig
from interp.bounded_files import whole
from interp.errors import inside
from interp.tokens import tokenizing
from models import quantization as quantizing
from models.block_devices import Placement, weight_devices
from models.families import FAMILIES
from models.families import target_ids as writing
from models.families.family import Family, layout
from models.huggingface import model_files as files
from models.huggingface.model_files import read_json
from models.huggingface.tokenizer_growth import check_growth
from models.placement import check_computed, check_copies, check_fit, copies, fill, weights_by_name, with_output_fields
from models.plain_tables import nearest
from models.tensor_files import Stored, read_header


def read(
    directory: Path, dtype: torch.dtype, placement: Placement, quantize: Literal["int8"] | None = None
) -> Transformer:
    """The model in `directory`, its blocks placed as `models.place` does.

    Raises:
        InputError: a file is missing or damaged, the family is unknown, a setting is not supported, tensors do not fit.
    """
    if quantize is not None:
        quantizing.require(quantize, dtype)
    raw, family, stored, config = described(directory)
    states = files.file_states(directory)
    with torch.device("meta"):  # shapes without memory, and without drawing random weights
        model = Transformer(config, *read_tokenizers(directory, config))
    model.source, model.files, model.family = directory, states, raw["model_type"]
    pieces = list(layout(model, family))
    check_fit(model, stored, pieces, family, directory)
    devices = weight_devices(model, placement, 1 if quantize is None else 1 / dtype.itemsize)
    for ours, parts in groupby(pieces, lambda piece: piece.ours):
        shape = model.get_parameter(ours)  # `empty_like` without memory calls torch's compiler, which is slow
        value = torch.empty_strided(shape.shape, shape.stride(), dtype=dtype, device=devices[ours])
        fill(value, parts, stored, directory)
        module, _, leaf = ours.rpartition(".")
        setattr(model.get_submodule(module), leaf, nn.Parameter(value))
        if quantize is not None:  # now, so that at most one matrix is unrounded
            quantizing.replace(model, ours)
    model.tie()
    piece_of = {piece.theirs: piece for piece in pieces}
    twice = copies(model, family, pieces)
    check_copies(stored, twice, lambda name: piece_of[name].view(model.get_parameter(piece_of[name].ours)), directory)
    check_computed(stored, family, directory)
    return model


def described(directory: Path) -> tuple[dict[str, Any], Family, dict[str, Stored], TransformerConfig]:
    """What the files in `directory` say: their fields, family and tensors, and our configuration.

    Raises:
        InputError: as `read`.
    """
    raw = read_json(directory / files.CONFIG)
    elsewhere = f'the name "lens:{directory}" gives what TransformerLens can load'
    family = family_of(raw, directory, elsewhere)
    if family.two_stacks and (directory / files.GENERATION).is_file():
        raw = writing.with_generation(raw, read_json(directory / files.GENERATION))
    headers = [read_header(file) for file in files.weight_files(directory)]
    stored = weights_by_name(family, {name: tensor for header in headers for name, tensor in header.items()})
    with inside(str(directory)):
        config = family.config(with_output_fields(stored, family, raw))
        layers = sum(stack.n_layers for stack in config.stacks.values())
        if layers > len(stored):  # before building so many
            raise InputError(f"config.json asks for {layers:,} layers, but the weights hold {len(stored):,} tensors")
    return raw, family, stored, config


def family_of(raw: Mapping[str, Any], owner: object, elsewhere: str = "") -> Family:
    """The family that `model_type` names; `elsewhere` says how else a model of another family can be loaded."""
    name = raw.get("model_type")
    if not isinstance(name, str):
        raise InputError(f"{owner}: config.json lacks 'model_type', one of {', '.join(FAMILIES)}")
    if name not in FAMILIES:
        near = nearest(name, FAMILIES)
        raise InputError(
            f"{owner}: model family {name!r} is not one of {', '.join(FAMILIES)} (the nearest is {near})"
            f"{elsewhere and '; '}{elsewhere}"
        )
    if raw.get("auto_map") or raw.get("trust_remote_code"):
        raise InputError(
            f"{owner}: config.json: auto_map needs the model's own code, which we never run; if its weights "
            f"belong to a plain {name} model, remove auto_map from config.json"
        )
    family = FAMILIES[name]
    for field, expected in {"quantization_config": None, "is_encoder_decoder": family.two_stacks}.items():
        if raw.get(field) not in (None, expected):
            raise InputError(f"{owner}: config.json: {field} {raw[field]!r} is not supported")
    return family


def read_tokenizers(directory: Path, config: TransformerConfig) -> tuple[Tokenizer | None, Tokenizer | None]:
    """The tokenizer of the first stack and, in an encoder-decoder, of the decoder; None where there is none.

    Raises:
        InputError: a file is damaged, or gives ids for which the embedding has no row.
    """
    first, last = next(iter(config.stacks.values())), config.last
    tokenizer = read_tokenizer(directory)
    target = read_tokenizer(directory, files.TARGET_TOKENIZER) if len(config.stacks) > 1 else None
    for loaded, stack, name in ((tokenizer, first, files.TOKENIZER), (target, last, files.TARGET_TOKENIZER)):
        check_tokenizer(loaded, stack, f"{directory}: {name}")
    return tokenizer, target


def check_tokenizer(tokenizer: Tokenizer | None, stack: StackConfig, called: str) -> None:
    """Refuse a tokenizer that gives ids for which the embedding has no row."""
    if tokenizer is not None and tokenizer.largest_id >= stack.d_vocab:
        raise InputError(
            f"{called} gives ids up to {tokenizer.largest_id}, but the embedding has {stack.d_vocab} rows: "
            "they belong to different models"
        )


def read_tokenizer(directory: Path, name: str = files.TOKENIZER) -> Tokenizer | None:
    """The tokenizer of that name in `directory`; None where there is none.

    Raises:
        InputError: the file is damaged.
    """
    if not (directory / name).is_file():
        return None
    with inside(f"{directory / name} is not readable as a tokenizer"):
        text = whole(directory / name)
        check_growth(text)
        backend = tokenizing(lambda: Backend.from_str(text))
    settings = read_json(directory / files.TOKENIZER_CONFIG) if (directory / files.TOKENIZER_CONFIG).is_file() else {}
    start = settings.get("bos_token") if settings.get("add_bos_token") is True else None
    start = start.get("content") if isinstance(start, dict) else start
    with inside(f"{directory / name} is not usable as a tokenizer"):
        return Tokenizer(backend, add_start=backend.token_to_id(start) if isinstance(start, str) else None)

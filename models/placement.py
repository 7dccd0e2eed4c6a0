"""Do stored tensors, in files or in memory, fit a model's parameters? And are tensors stored twice the same?

Every message begins with where the tensors come from. It speaks of a config.json, which in memory is an object.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from interp import InputError, Transformer
from interp.errors import inside
from models.families.family import Family, Piece
from models.memory_tensors import MemoryTensor
from models.tensor_files import DTYPES, Stored, folded

Source = Stored | MemoryTensor  # one tensor, wherever it is
Tensors = TypeVar("Tensors")


def weights_by_name(family: Family, stored: Mapping[str, Tensors]) -> dict[str, Tensors]:
    """Weights by name, without the family's prefix and with old names replaced."""
    tensors: dict[str, Tensors] = {}
    for name, tensor in stored.items():
        bare = name.removeprefix(family.prefix)
        for old, new in family.renamed.items():
            bare = bare.replace(old, new)
        if not re.fullmatch(family.ignored, bare):
            tensors[bare] = tensor
    other_task = family.masked not in tensors or family.other_task in stored
    if family.masked is not None and other_task:  # the output is another task's
        tensors = {name: tensor for name, tensor in tensors.items() if not family.of_output(name)}
    for name, copies_of in family.also.items():  # a file may hold any copy of a tensor
        for copy in copies_of:
            if name not in tensors and copy in tensors:
                tensors[name] = tensors.pop(copy)
    return tensors


def with_output_fields(stored: Mapping[str, Any], family: Family, raw: Mapping[str, Any]) -> dict[str, Any]:
    """Their fields, and whether the stored tensors have an output layer."""
    if family.settle is not None:
        return family.settle(raw, stored)
    if family.masked is not None:
        return {**raw, "architectures": ["ForMaskedLM"] if family.masked in stored else []}
    return {"tie_word_embeddings": family.head not in stored, **raw}


def copies(model: Transformer, family: Family, pieces: Iterable[Piece]) -> dict[str, str]:
    """Their names of tensors that may be stored again, and what they are copies of."""
    family, theirs = family.suit(family, model.config), {piece.theirs for piece in pieces}
    originals = {other: name for name, others in family.also.items() for other in others}
    if model.config.output == "tied" and family.head is not None:
        embedding = model.last.embed.token.weight
        originals[family.head] = family.theirs(next(n for n, p in model.named_parameters() if p is embedding))[0][0]
    return {copy: name for copy, name in originals.items() if name in theirs and copy not in theirs}


def fill(value: Tensor, pieces: Iterable[Piece], stored: Mapping[str, Source], owner: object) -> None:
    """Fill one parameter from its pieces; a piece that no tensor has is zero."""
    for piece in pieces:
        if piece.theirs in stored:
            with inside(f"{owner}: {piece.theirs}"):
                stored[piece.theirs].fill(piece.view(value))
        else:
            piece.view(value).zero_()


def check_fit(
    model: Transformer, stored: Mapping[str, Source], pieces: list[Piece], family: Family, owner: object
) -> None:
    """Refuse weights other than those that config.json asks for; one message names everything wrong."""
    parameters = dict(model.named_parameters())
    shapes = {piece.theirs: piece.shape(parameters[piece.ours]) for piece in pieces}
    wrong: dict[str, set[str]] = {}  # message: names
    for name in shapes.keys() - stored.keys() - family.zero:
        wrong.setdefault("the weights lack {}, which config.json asks for", set()).add(name)
    for name in stored.keys() - shapes.keys() - copies(model, family, pieces).keys() - family.computed.keys():
        wrong.setdefault("the weights hold {}, which config.json has no place for", set()).add(name)
    for name in shapes.keys() & stored.keys():
        shape, expected, kind = stored[name].shape, shapes[name], stored[name].kind
        if shape != expected:
            wrong.setdefault(f"{{}} has shape {shape}, but config.json asks for {expected}", set()).add(name)
        if kind not in DTYPES:
            wrong.setdefault(f"{{}} is stored as {kind}; expected {', '.join(DTYPES)}", set()).add(name)
    if wrong:
        problems = "; ".join(problem.format(folded(names)) for problem, names in wrong.items())
        raise InputError(f"{owner}: {problems}")


def check_copies(
    stored: Mapping[str, Source], twice: Mapping[str, str], value: Callable[[str], Tensor], owner: object
) -> None:
    """Refuse copies that differ from the `value` of what they copy; `twice` has its name."""
    for copy, name in twice.items():
        if copy in stored and not stored[copy].equals(value(name)):
            raise InputError(f"{owner}: config.json says that {copy} and {name} are one, but they differ")


def check_computed(stored: Mapping[str, Source], family: Family, owner: object) -> None:
    """Refuse a file whose fixed table differs from the one that is computed instead.

    A table rounded to a short format may be off by a hundredth.
    """
    for name, table in family.computed.items():
        if name not in stored:
            continue
        shape = stored[name].shape
        if len(shape) == 2 and stored[name].kind in DTYPES:
            stored_table = torch.empty(shape)
            stored[name].fill(stored_table)
            if torch.allclose(stored_table, table(*shape), rtol=0, atol=0.01):
                continue
        raise InputError(
            f"{owner}: {name} is not the table that a {family.name} model computes (sines and cosines of "
            "positions), so the model would not compute what was trained; this is not supported"
        )

"""Do stored tensors, in files or in memory, fit the parameters of a model? And are those that are there twice the same?

Every message begins with where the tensors come from, and speaks of a config.json, which in memory is an object.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from interp import InputError, Transformer
from models.families.family import Family, Piece
from models.memory_tensors import MemoryTensor
from models.tensor_files import DTYPES, Stored, folded

Source = Stored | MemoryTensor  # one tensor, wherever it is
Tensors = TypeVar("Tensors")


def named(family: Family, stored: Mapping[str, Tensors]) -> dict[str, Tensors]:
    """Tensors by name, without the family's prefix and with old names renewed; those that are no weights left out."""
    tensors: dict[str, Tensors] = {}
    for name, tensor in stored.items():
        bare = name.removeprefix(family.prefix)
        for old, new in family.renamed.items():
            bare = bare.replace(old, new)
        if not re.fullmatch(family.ignored, bare):
            tensors[bare] = tensor
    other_task = family.masked not in tensors or family.other_task in stored
    if family.masked is not None and other_task:  # what there is of an output is another task's
        tensors = {name: tensor for name, tensor in tensors.items() if not family.of_output(name)}
    for name, copies_of in family.also.items():  # of tensors that are one, a file may hold any
        for copy in copies_of:
            if name not in tensors and copy in tensors:
                tensors[name] = tensors.pop(copy)
    return tensors


def settled_by(stored: Mapping[str, Any], family: Family, raw: Mapping[str, Any]) -> dict[str, Any]:
    """Their fields, with what the stored tensors tell: an output layer, where a file has one or none."""
    if family.settle is not None:
        return family.settle(raw, stored)
    if family.masked is not None:
        return {**raw, "architectures": ["ForMaskedLM"] if family.masked in stored else []}
    return {"tie_word_embeddings": family.head not in stored, **raw}


def copies(model: Transformer, family: Family, pieces: Iterable[Piece]) -> dict[str, str]:
    """Their names of tensors that may be there once more, and what they are copies of."""
    family, theirs = family.suit(family, model.config), {piece.theirs for piece in pieces}
    originals = {other: name for name, others in family.also.items() for other in others}
    if model.config.output == "tied" and family.head is not None:
        embedding = model.last.embed.token.weight
        originals[family.head] = family.theirs(next(n for n, p in model.named_parameters() if p is embedding))[0][0]
    return {copy: name for copy, name in originals.items() if name in theirs and copy not in theirs}


def check_fit(
    model: Transformer, stored: Mapping[str, Source], pieces: list[Piece], family: Family, owner: object
) -> None:
    """Refuse weights that are not just those that config.json asks for; all that is wrong is said."""
    parameters = dict(model.named_parameters())
    shapes = {piece.theirs: piece.shape(parameters[piece.ours]) for piece in pieces}
    wrong: dict[str, set[str]] = {}  # what is wrong, with which
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
    """Refuse copies, by `twice` of what, that differ from its `value`."""
    for copy, name in twice.items():
        if copy in stored and not stored[copy].equals(value(name)):
            raise InputError(f"{owner}: config.json says that {copy} and {name} are one, but they differ")


def check_computed(stored: Mapping[str, Source], family: Family, owner: object) -> None:
    """Refuse a file whose fixed table is another than the one that is computed in its place.

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
            "positions), so the model would not be read as it was trained; this is not supported"
        )

"""From a model in memory to one of ours: weights are shared where their layout is ours, and copied elsewhere.

Three kinds come in: models of `transformers`, by the family that their config names; tensors by name, with such a
config; and anyone's own module, with our configuration and a table of names.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import Tokenizer as Backend
from torch import Tensor, nn

from interp import InputError, Tokenizer, Transformer, TransformerConfig
from models import quantization as quantizing
from models.families import FAMILIES, interp_format
from models.families import target_ids as writing
from models.families.family import Family, Form, Piece, Theirs, layout, rows, starred
from models.huggingface.loader import check_tokenizer, family_of
from models.memory_tensors import MemoryTensor, MemoryTensors, in_memory
from models.placement import check_computed, check_copies, check_fit, copies, fill, weights_by_name, with_output_fields
from models.tensor_files import folded

if TYPE_CHECKING:
    import pandas as pd

Names = Mapping[str, str | tuple[str, ...] | Theirs]
_ELSEWHERE = "models.lens.wrap takes a bridge of any model that TransformerLens runs"

_UNITS = ("kB", "MB", "GB", "TB")


@dataclass(frozen=True)
class Share:
    """One parameter: shared or copied."""

    parameter: str  # ours
    made_of: tuple[str, ...]  # the tensors that it shares or copies
    n_bytes: int
    why_copied: str = ""  # empty if it is shared

    @property
    def shared(self) -> bool:
        """Whether a change of one shows in the other."""
        return not self.why_copied


@dataclass(frozen=True, repr=False)
class Shares:
    """What a wrapped model shares with its source. Tied parameters are counted once.

    `passed_over` are unused tensors: buffers of a module that its table of names does not name.
    """

    parameters: tuple[Share, ...]
    passed_over: tuple[str, ...] = ()

    @property
    def shared_bytes(self) -> int:
        """Bytes of weights that both models use."""
        return sum(each.n_bytes for each in self.parameters if each.shared)

    @property
    def copied_bytes(self) -> int:
        """Bytes of weights that were copied, which the wrapped model alone uses."""
        return sum(each.n_bytes for each in self.parameters if not each.shared)

    @property
    def copied(self) -> float:
        """The share of bytes that were copied."""
        return self.copied_bytes / max(1, self.copied_bytes + self.shared_bytes)

    def table(self) -> "pd.DataFrame":
        """One row a parameter: `parameter, made_of, bytes, shared, why_copied`."""
        import pandas as pd  # noqa: PLC0415 (slow to import)

        rows = [
            (share.parameter, ", ".join(share.made_of), share.n_bytes, share.shared, share.why_copied)
            for share in self.parameters
        ]
        return pd.DataFrame(rows, columns=["parameter", "made_of", "bytes", "shared", "why_copied"])

    def __repr__(self) -> str:
        total = self.shared_bytes + self.copied_bytes
        lines = [
            f"shared {_size(self.shared_bytes)} of {_size(total)} ({1 - self.copied:.1%}), "
            f"copied {_size(self.copied_bytes)} ({self.copied:.1%})"
        ]
        reasons: dict[str, list[Share]] = {}
        for share in self.parameters:
            if not share.shared:
                reasons.setdefault(share.why_copied, []).append(share)
        for why, shares in reasons.items():
            size = _size(sum(each.n_bytes for each in shares))
            lines.append(f"  copied {size}, {why}: {folded(each.parameter for each in shares)}")
        if self.passed_over:
            lines.append(f"  not read, because no name covers these buffers: {folded(self.passed_over)}")
        return "\n".join(lines)


class Wrapped(Transformer):
    """A transformer made of weights in memory; `shares` says which of them it shares with their model.

    A shared weight is one memory: a change in either model shows in the other, until `to(...)` moves it.
    """

    shares: Shares


def wrap(
    model: Any,
    *,
    config: Any = None,
    names: Names | None = None,
    tokenizer: Any = None,
    target_tokenizer: Any = None,
    copy: bool = False,
) -> Wrapped:
    """A model in memory as one of ours; `print(wrapped.shares)` says what the two have in common.

    Args:
        model: a model of `transformers`, of a family that `interp models` lists; tensors by name (a `state_dict()`); or
            any module. It is not changed. The configuration says what runs: hooks, adapters and a changed `forward` are
            ignored.
        config: of `transformers`, or a dict of a config.json's fields; by default the model's own. For any other module
            a `TransformerConfig`.
        names: for a `TransformerConfig`, a table: our module or parameter, with `*` for every number in it, and its
            name in the model. Several names are stacked along the outputs; for matrices of another layout there are
            `columns(...)` and the like (`models.families`). Without a table the names are ours.
        tokenizer: ours, or a fast one of `transformers`; without one the model works on ids.
        target_tokenizer: the decoder's tokenizer in an encoder-decoder, if it has its own.
        copy: copy every weight in the layout of `load`: more memory, and the logits of `load` bit for bit.

    Raises:
        InputError: the family is unknown or a setting is not supported; weights are missing, left over, of another
            shape or dtype, or on several devices; the tokenizer belongs to another model.
    """
    source = in_memory(model)
    with _errors_about(source.called):
        family, stored, ours = _description(source, config, names)
        tokenizers = [*_tokenizers(ours, tokenizer, target_tokenizer)]
        with torch.device("meta"):  # shapes without memory, and without drawing random weights
            wrapped = Wrapped(ours, *tokenizers)
        wrapped.family = family.name or None
        pieces, stored, passed_over = _fitting(wrapped, family, stored, source)
        like = _held_alike(pieces, stored)
        shares = []
        for parameter, parts in groupby(pieces, lambda piece: piece.ours):
            value, share = _placed(wrapped.get_parameter(parameter), [*parts], stored, like, copy=copy)
            module, _, leaf = parameter.rpartition(".")
            setattr(wrapped.get_submodule(module), leaf, nn.Parameter(value))
            shares.append(share)
    wrapped.tie()
    wrapped.shares = Shares(tuple(shares), passed_over)
    return wrapped


@torch.no_grad()
def copy_weights(model: Transformer, weights: Any, names: Names | None = None) -> None:
    """Copy weights into `model`; if they do not fit its configuration, nothing is copied.

    Args:
        model: filled in place. What it shares with another (`wrap`) changes there too.
        weights: a module, or tensors by name: the names of the model's family, or those in `names`.
        names: the table of names (`wrap`); without one, and without a family, the names are ours.

    Raises:
        InputError: weights are missing, left over, or of another shape or dtype.
    """
    if any(isinstance(module, quantizing.Int8) for module in model.modules()):
        raise InputError("the weights of a quantized model are rounded: load it without quantize")
    source = in_memory(weights)
    with _errors_about(source.called):
        family = FAMILIES[model.family or interp_format.FAMILY.name] if names is None else _family(names)
        pieces, stored, _ = _fitting(model, family, weights_by_name(family, source.tensors), source)
        for piece in pieces:
            fill(model.get_parameter(piece.ours), [piece], stored, source.called)
    model.files = ()  # the weights are no longer theirs


@contextmanager
def _errors_about(called: str) -> Iterator[None]:
    """Name what does not fit: it has no files."""
    try:
        yield
    except InputError as error:
        problem = str(error).removeprefix(f"{called}: ").replace("config.json", "the config")
        raise InputError(f"{called}: {problem}") from error


# family and configuration


def _description(
    source: MemoryTensors, config: Any, names: Names | None
) -> tuple[Family, dict[str, MemoryTensor], TransformerConfig]:
    """Its family, its tensors by the family's names, and our configuration."""
    if isinstance(config, TransformerConfig):
        return (interp_format.FAMILY if names is None else _family(names)), source.tensors, config
    if names is not None:
        raise InputError("a table of names goes with config=TransformerConfig(...): families know their own names")
    raw = _fields(source.config if config is None else config)
    family = family_of(raw, source.called, _ELSEWHERE)
    if family.two_stacks and source.generation is not None:
        raw = writing.with_generation(raw, json.loads(source.generation.to_json_string()))
    stored = weights_by_name(family, source.tensors)
    ours = family.config(with_output_fields(stored, family, raw))
    if ours.output == "untied" and family.head not in stored:
        raise InputError(
            f"the weights lack {family.head}, the output layer: wrap the {family.architecture} that has it"
        )
    return family, stored, ours


def _fields(config: Any) -> dict[str, Any]:
    """The fields of a config.json."""
    if isinstance(config, Mapping):
        return dict(config)
    if hasattr(config, "to_json_string"):
        return json.loads(config.to_json_string())
    kind = "none" if config is None else type(config).__name__
    raise InputError(
        f"expected config= of transformers, a dict of its fields with model_type, or a TransformerConfig; got {kind}"
    )


def _family(names: Names) -> Family:
    """A family for one model: names of its own."""
    table = {
        ours: each if isinstance(each, Theirs) else rows(*((each,) if isinstance(each, str) else each))
        for ours, each in names.items()
    }
    return Family("", interp_format.config, interp_format.raw, table)


def _tokenizers(config: TransformerConfig, *tokenizers: Any) -> Iterator[Tokenizer | None]:
    """Our tokenizers for the first stack and for the last."""
    stacks = [next(iter(config.stacks.values())), config.last]
    for source, stack, name in zip(tokenizers, stacks, ("tokenizer", "target_tokenizer"), strict=True):
        ours = _tokenizer(source, name)
        check_tokenizer(ours, stack, name)
        yield ours


def _tokenizer(tokenizer: Any, name: str) -> Tokenizer | None:
    if tokenizer is None or isinstance(tokenizer, Tokenizer):
        return tokenizer
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Backend):
        kind = type(tokenizer).__name__
        raise InputError(f"{name}: expected a Tokenizer or a fast tokenizer of transformers, got {kind}")
    start = tokenizer.bos_token_id if getattr(tokenizer, "add_bos_token", False) else None
    return Tokenizer(Backend.from_str(backend.to_str()), add_start=start)  # so theirs keeps its truncation and padding


# weights


def _fitting(
    model: Transformer, family: Family, stored: Mapping[str, MemoryTensor], source: MemoryTensors
) -> tuple[list[Piece], dict[str, MemoryTensor], tuple[str, ...]]:
    """The pieces of `model`, what fills them, and buffers that no name covers; an error says what does not fit."""
    anyones = not family.name
    if anyones:
        _check_names(model, family)
    try:
        pieces = list(layout(model, family))
        shapes = {piece.theirs: piece.shape(model.get_parameter(piece.ours)) for piece in pieces}
    except RuntimeError as error:
        raise InputError("by_head is for one matrix of q, k and v with equally many heads each") from error
    passed_over = source.buffers - shapes.keys() if anyones or family is interp_format.FAMILY else frozenset()
    stored = {name: each for name, each in stored.items() if name not in passed_over}
    check_fit(model, stored, pieces, family, source.called)
    check_copies(stored, copies(model, family, pieces), lambda name: stored[name].tensor, source.called)
    check_computed(stored, family, source.called)
    return pieces, stored, tuple(sorted(passed_over))


def _check_names(model: Transformer, family: Family) -> None:
    """Refuse a table that leaves out a parameter, or names one that the model does not have."""
    ours = {starred(name) for name, _ in model.named_parameters(remove_duplicate=False)}
    either = {name: {name, name.rpartition(".")[0]} for name in ours}
    tied = {"output.weight"} if model.config.output == "tied" else set()
    wrong = {
        "names lacks {}, which the config asks for": {
            name for name, ways in either.items() if name not in tied and not ways & family.weights.keys()
        },
        "names has {}, which the config has no place for": family.weights.keys() - set().union(*either.values()),
    }
    if problems := "; ".join(each.format(folded(found)) for each, found in wrong.items() if found):
        raise InputError(problems)


def _held_alike(pieces: Iterable[Piece], stored: Mapping[str, MemoryTensor]) -> Tensor:
    """The tensor that gives the model's dtype and device: the embedding of tokens."""
    sources = {piece.theirs: piece for piece in pieces if piece.theirs in stored}
    devices = {str(stored[name].tensor.device) for name in sources}
    if len(devices) > 1:
        raise InputError(f"the weights are on {', '.join(sorted(devices))}: expected one device")
    return next(stored[name].tensor for name, piece in sources.items() if piece.ours.endswith("embed.token.weight"))


def _placed(
    place: Tensor, pieces: list[Piece], stored: Mapping[str, MemoryTensor], like: Tensor, *, copy: bool
) -> tuple[Tensor, Share]:
    """The value of one parameter, and where it came from."""
    why = "as you asked" if copy else _why_copied(pieces, stored, like)
    if why:
        value = torch.empty_like(place, dtype=like.dtype, device=like.device)
        fill(value, pieces, stored, pieces[0].ours)
    else:
        value = _turned(stored[pieces[0].theirs].tensor.detach(), pieces[0].form)
    made_of = tuple(piece.theirs for piece in pieces if piece.theirs in stored)
    return value, Share(pieces[0].ours, made_of, value.nbytes, why)


def _turned(theirs: Tensor, form: Form) -> Tensor:
    """Their tensor as a view in our parameter's layout."""
    match form:
        case "columns" if theirs.ndim == 2:
            return theirs.T
        case "one_row":
            return theirs[0]
        case _:
            return theirs


def _why_copied(pieces: list[Piece], stored: Mapping[str, MemoryTensor], like: Tensor) -> str:
    """Why a parameter cannot be a view of its source; empty where it can."""
    piece = pieces[0]
    if not any(each.theirs in stored for each in pieces):
        return "because there is none, so it is zero"
    if len(pieces) > 1:
        return "because several matrices are one here"
    if piece.form == "by_head":
        return "because they lie head by head there"
    source = stored[piece.theirs]
    if source.tensor.dtype != like.dtype:
        return f"because the others are {str(like.dtype).removeprefix('torch.')}"
    if not source.original:
        return "because transformers keeps them differently in memory"
    return "because they were made in inference mode" if source.tensor.is_inference() else ""


def _size(n_bytes: int) -> str:
    """In the largest unit that gives at least one, to three figures."""
    if n_bytes < 1000:
        return f"{n_bytes} B"
    size, unit = float(n_bytes), 0
    while size >= 999.5 and unit < len(_UNITS):
        size, unit = size / 1000, unit + 1
    return f"{size:.3g} {_UNITS[unit - 1]}"

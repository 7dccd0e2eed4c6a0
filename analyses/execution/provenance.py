"""What were these numbers made from, and which files did we write?

Every `run.json` has hashes of models and texts, versions and the processor. Files name their maker if their format has
a place for it, and a command replaces only such files of its own.

A model's `fingerprint` is one hash of everything its numbers depend on. A user's own function has no hash, so results
of a model that runs one are not kept for another run.
"""

import hashlib
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from interp import InputError, Model, Tokenizer
from interp.edits import SelectiveEdit
from interp.errors import inside
from interp.running import Edited
from interp.tokens import tokenizing
from interp.training.whole_files import check_kind
from models.huggingface.model_files import digest_as_read
from models.quantization import Int8

SCHEMA = 1  # of run.json: raised if a key changes its meaning or is removed
PACKAGES = (
    *("interp", "torch", "numpy", "scipy", "pandas", "pyarrow"),
    *("matplotlib", "seaborn", "tokenizers", "safetensors"),
)
RUNNERS = ("torchao", "transformers", "transformer-lens")  # packages that run some models
MAKER = "interp"  # the value of `made_by`, of a page's generator and of a picture's creator
TEXT_MARK = f"made_by: {MAKER}\n"  # the last line of a text
PICTURES: Mapping[str, Mapping[str, Any]] = {  # the metadata of pictures by format: the same bytes each time
    "pdf": {"Creator": MAKER, "CreationDate": None},
    "svg": {"Creator": MAKER, "Date": None},
    "png": {"Software": MAKER},
}
_MARKS = (
    f'<meta name="generator" content="{MAKER}">',
    f"/Creator ({MAKER})",
    f"<dc:title>{MAKER}</dc:title>",
    f"tEXtSoftware\0{MAKER}",
)
_END = 1 << 16  # bytes at the start and end of a file that are searched for its maker
_LIBRARIES = {"interp", "models", "torch", "torchao", "transformers", "transformer_lens"}


def recorded(*, command: str, seed: int, seconds: float, stages: Mapping[str, float]) -> dict[str, Any]:
    """What every run records of itself: the command as typed, the machine, and the time taken.

    Stages that ran at once each count in full, so they may add up to more than the total time.
    """
    return {
        **{"schema": SCHEMA, "command": command, "seed": seed, "versions": versions()},
        "processor": platform.processor() or platform.machine(),
        "seconds": round(seconds, 1),
        "stages": {stage: round(seconds, 1) for stage, seconds in stages.items()},
    }


def versions(packages: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Versions of Python, the platform and the packages that a number may depend on."""
    installed = {"python": platform.python_version(), "platform": f"{sys.platform} {platform.machine()}"}
    for package in packages:
        installed[package] = "not installed"
        with suppress(PackageNotFoundError):
            installed[package] = version(package)
    return installed


def model_facts(model: Model) -> dict[str, Any]:
    """A model's shape, size and precision, and the hashes that identify it.

    Models with the same `fingerprint` compute the same; a model without one says why in `no_fingerprint`. `sha256` is
    the hash of the weight files when they were read; None if they have changed or gone since, or never existed.
    """
    try:
        identity = {"fingerprint": fingerprint(model)}
    except InputError as error:
        identity = {"fingerprint": None, "no_fingerprint": str(error)}
    plain, edited = model, list[str]()
    while isinstance(plain, Edited):
        plain, edited = plain.model, [*plain.edits, *edited]
    modules, weights = ([*plain.modules()], plain.parameters()) if isinstance(plain, nn.Module) else ([], ())
    return {
        **identity,
        "sha256": digest_as_read(getattr(plain, "files", ())),
        **({"edited": edited} if edited else {}),
        **({"quantize": "int8"} if any(isinstance(module, Int8) for module in modules) else {}),
        "stacks": {
            stack_name: {"layers": stack.n_layers, "heads": stack.n_heads, "d_model": stack.d_model}
            for stack_name, stack in model.config.stacks.items()
        },
        "context": model.config.n_ctx,
        "vocabulary": model.config.d_vocab,
        "parameters": sum(weight.numel() for weight in weights),
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": str(model.device),
        "causal": model.config.last.causal,
        "special_tokens": None if model.tokenizer is None else model.tokenizer.policy,
        "tokenizer": tokenizer_hash(model.tokenizer),
    }


def digest(chunks: Iterable[bytes]) -> str:
    """SHA-256 of bytes in chunks."""
    sha = hashlib.sha256()
    for chunk in chunks:
        sha.update(chunk)
    return sha.hexdigest()


@cache
def code() -> str:
    """A hash of our own code and its data files, so that we never resume with results of another version."""
    folders = [Path(__file__).parents[2] / package for package in ("interp", "models", "analyses")]
    paths = chain.from_iterable(sorted(folder.rglob("*.[pt][yo]*")) for folder in folders)
    return digest(path.read_bytes() for path in paths if path.suffix in {".py", ".toml"})


def fingerprint(model: Model) -> str:
    """SHA-256 of a model's settings, every tensor as it is in memory, its tokenizers and its edits.

    The device and the model's directory do not count. Raises an `InputError` for a user's own code, which has no hash.
    """
    if isinstance(model, Edited):
        edits = [_edit(site, edit) for site, edit in model.edits.items()]
        return hash_of(["edited", fingerprint(model.model), edits])
    if not isinstance(model, nn.Module):
        raise InputError(f"{type(model).__name__} is your own class, which has no hash")
    tokenizers = [each for each in (model.tokenizer, model.target_tokenizer) if each is not None]
    if foreign := [each for each in tokenizers if not _is_of_libraries(type(each))]:
        raise InputError(f"{type(foreign[0]).__name__} is your own tokenizer, which has no hash")
    return hash_of([*_modules(model), model.config, *map(tokenizer_hash, (model.tokenizer, model.target_tokenizer))])


def tokenizer_hash(tokenizer: Tokenizer | None) -> str:
    """SHA-256 of a tokenizer and what it adds around a text; empty without one. Python parts have no hash."""
    if tokenizer is None:
        return ""
    with inside("the model's tokenizer has no hash"):
        backend = tokenizing(tokenizer.backend.to_str)
    return hashlib.sha256(f"{backend}{(tokenizer.prefix, tokenizer.suffix)!r}".encode()).hexdigest()


def hash_of(value: Any, known: Mapping[int, str] | None = None) -> str:
    """SHA-256 of text, numbers, tensors, settings, models, module-level functions, and lists and tables of these.

    `known` has hashes of some values by `id`. Anything else, such as a nested function, is a `TypeError`.
    """
    sha = hashlib.sha256()
    _add(sha, value, known or {})
    return sha.hexdigest()


def _add(sha: Any, value: Any, known: Mapping[int, str]) -> None:  # noqa: PLR0912 (one branch for each kind of value)
    kind = type(value)
    if kind is Tensor:  # most common in lots
        flat = value.detach().cpu().contiguous().reshape(-1)
        sha.update(f"tensor {tuple(value.shape)} {value.dtype} ".encode())
        sha.update(flat.view(torch.uint8).numpy().data)
        return
    if kind in (list, tuple) and {*map(type, value)} <= {str, int, bool, float}:
        sha.update(f"plain {len(value)} {[*value]!r}".encode())
        return
    add = partial(_add, sha, known=known)
    match value:
        case _ if id(value) in known:
            sha.update(f"known {known[id(value)]}".encode())
        case None | str() | bytes() | int() | float() | np.generic() | slice() | range():
            text = repr(value)
            sha.update(f"{kind.__name__} {len(text)} {text}".encode())
        case torch.dtype() | torch.device():
            add(repr(value))
        case list() | tuple():
            sha.update(f"list {len(value)} ".encode())
            for entry in value:
                add(entry)
        case set() | frozenset():
            add(["set", *sorted(value)])
        case Mapping():
            add(["table", *sorted(value.items(), key=lambda item: str(item[0]))])
        case Tensor() if flatten := getattr(value, "__tensor_flatten__", None):  # as in a rounded weight
            names, settings = flatten()
            add([kind, repr(settings), *(getattr(value, name) for name in names)])
        case Tensor():  # a parameter
            add(value.data)
        case np.ndarray():
            add(torch.as_tensor(value))
        case partial():
            add(["partial", value.func, value.args, value.keywords])
        case type():
            add(f"{value.__module__}.{value.__qualname__}")
        case FunctionType() if "<" not in value.__qualname__:  # "<lambda>", "<locals>"
            add(f"{value.__module__}.{value.__qualname__}")
        case nn.Module() | Edited():
            add(fingerprint(value) if isinstance(value, Model) else [*_modules(value)])
        case _ if is_dataclass(kind):
            add([kind, *((field.name, getattr(value, field.name)) for field in fields(kind))])
        case _:
            raise TypeError(f"{kind.__name__} has no hash")


def _modules(model: nn.Module) -> Iterator[list[Any]]:
    """The place, class, settings and tensors of each module; a shared tensor is included once."""
    first: dict[int, str] = {}
    for path, module in model.named_modules():
        _check_code(path, module)
        tensors: list[Any] = []
        for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
            if tensor is not None:
                tensors.append([name, first.get(id(tensor), tensor)])
                first.setdefault(id(tensor), f"{path}.{name}")
        yield [path, type(module), _hashes(vars(module)), tensors] if path else tensors


def _hashes(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The hash of each setting that has one, without private ones, which an earlier call may have left."""
    hashes: dict[str, Any] = {}
    for name, value in settings.items():
        if name in {"config", "cfg"} and hasattr(value, "__dict__"):
            hashes[name] = _hashes(vars(value))
        elif name not in {"training", "device"} and not name.startswith("_"):
            with suppress(TypeError):
                hashes[name] = hash_of(value)
    return hashes


def _check_code(path: str, module: nn.Module) -> None:
    """Refuse a module that is, holds or calls code from outside the libraries that run models."""
    hooks = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
    hooks += [handle.user_hook for handle in getattr(module, "fwd_hooks", ())]  # of TransformerLens
    functions = [value for value in vars(module).values() if callable(value) and not isinstance(value, nn.Module)]
    if foreign := [code for code in [type(module), *hooks, *functions] if not _is_of_libraries(code)]:
        name = getattr(foreign[0], "__qualname__", type(foreign[0]).__name__)
        raise InputError(f"{path or 'the model'} runs {name}, your own code, which has no hash")


def _is_of_libraries(code: object) -> bool:
    return isinstance(code, BuiltinFunctionType) or str(getattr(code, "__module__", "")).split(".")[0] in _LIBRARIES


def _edit(site: str, edit: object) -> list[Any]:
    """A ready-made edit's place and a hash of what it does."""
    change = edit.change if isinstance(edit, SelectiveEdit) else edit
    if not isinstance(edit, SelectiveEdit) or not isinstance(change, partial) or any(map(callable, change.args)):
        raise InputError(f"the edit of {site} is your own function, which has no hash")
    try:
        return [site, hash_of([change.func.__qualname__, change.args, edit.axes, edit.whole])]
    except (TypeError, RuntimeError) as error:
        raise InputError(f"the edit of {site} holds a value that has no hash: {error}") from error


def check_free(path: Path, *, force: bool = False) -> None:
    """Refuse to replace a file that we did not write, unless with `force`, and any link, device or directory."""
    check_kind(path)
    if not force and path.exists() and not _is_marked(path):
        raise InputError(f"{path} exists, but interp did not write it: choose another place, or replace it (--force)")


def _is_marked(path: Path) -> bool:
    with path.open("rb") as file:
        start = file.read(_END)
        file.seek(max(0, path.stat().st_size - _END))
        end = file.read(_END)
    return end.endswith(TEXT_MARK.encode()) or any(mark.encode() in start + end for mark in _MARKS)

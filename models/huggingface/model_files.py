"""The files of a model directory: their names, and which of them hold the weights."""

import hashlib
import json
import os
import re
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from interp import InputError
from interp.bounded_files import is_file, whole
from interp.training.whole_files import replacing

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
PICKLES = {".bin", ".ckpt", ".pickle", ".pkl", ".pt", ".pth"}
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
TARGET_TOKENIZER, GENERATION = "target_tokenizer.json", "generation_config.json"
LARGE = 1 << 26  # bytes: hashing fewer takes a moment, so their digest is not kept
SETTLED = 2_000_000_000  # nanoseconds: a file may change twice in one tick of a clock
FileState = tuple[Path, tuple[int, ...]]
_OF_MODEL = {
    *(CONFIG, WEIGHTS, INDEX, TOKENIZER, TOKENIZER_CONFIG, TARGET_TOKENIZER, GENERATION),
    # files that make a tokenizer in `transformers`, with or without tokenizer.json
    *("added_tokens.json", "special_tokens_map.json", "vocab.json", "vocab.txt", "merges.txt"),
    *("tokenizer.model", "spiece.model", "sentencepiece.bpe.model"),
}


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        InputError: the file is missing or is no JSON object.
    """
    if not path.is_file():
        raise InputError(f"no {path.name} in {path.parent}: a model directory has one")
    try:
        content = json.loads(whole(path))
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not readable as JSON: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} must hold a JSON object, got {type(content).__name__}")
    return content


def weight_files(directory: Path) -> list[Path]:
    """The safetensors files that hold the weights.

    Raises:
        InputError: there are none, or a shard is missing.
    """
    if (directory / WEIGHTS).is_file():
        return [directory / WEIGHTS]
    if not (directory / INDEX).is_file():
        pickles = sorted(path.name for path in directory.iterdir() if path.suffix in PICKLES)
        hint = f", but {', '.join(pickles)}" if pickles else ""
        raise InputError(
            f"no {WEIGHTS} in {directory}{hint}; pickled weights (pytorch_model.bin) can run code and are never read: "
            "convert them with transformers, from_pretrained(...).save_pretrained(...)"
        )
    shards = read_json(directory / INDEX).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise InputError(f"{directory / INDEX} has no weight_map, which names the file of each tensor")
    if not all(isinstance(name, str) for name in shards.values()):
        wrong = next(tensor for tensor, name in shards.items() if not isinstance(name, str))
        raise InputError(f"{directory / INDEX}: weight_map must name a file for {wrong}, got {shards[wrong]!r}")
    files = [directory / Path(name).name for name in sorted({*shards.values()})]
    if missing := [file.name for file in files if not is_file(file)]:
        raise InputError(f"{directory}: {INDEX} names files that are missing: {', '.join(missing)}")
    return files


def names_of_model(directory: Path) -> set[str]:
    """The files in a directory with names of a model's files: weights, configuration, tokenizer."""
    names = {path.name for path in directory.iterdir()} if directory.is_dir() else set()
    return {name for name in names if name in _OF_MODEL or re.fullmatch(r"model-\d+-of-\d+\.safetensors", name)}


def weights_digest(directory: Path) -> str:
    """SHA-256 of the weight files' bytes, in the order of their names: which model a result was computed with."""
    return files_digest(weight_files(directory))


def file_states(directory: Path) -> tuple[FileState, ...]:
    """The weight files, and the state of each: its place, its size, and when it was written."""
    return tuple((file.absolute(), _state(file)) for file in weight_files(directory))


def digest_as_read(states: Collection[FileState]) -> str | None:
    """SHA-256 of weight files' bytes; None if there are none, or one was overwritten or removed since."""
    files = [file for file, _ in states]
    with suppress(OSError):
        if files and all(_state(file) == state for file, state in states):
            return files_digest(files)
    return None


def _state(file: Path) -> tuple[int, ...]:
    stat = file.stat()
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def files_digest(files: Iterable[Path]) -> str:
    """SHA-256 of files' bytes in order; for `LARGE` files it is kept in the user's cache until one changes."""
    files, kept = [*files], {}
    states = [_state(file) for file in files]
    key = hashlib.sha256(repr([*map(os.path.realpath, files), states]).encode()).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "interp", "digests.json")
    is_large = sum(size for _, _, size, _, _ in states) >= LARGE and cache.is_absolute()
    with suppress(OSError, TypeError, ValueError, RecursionError):  # the cache is missing or damaged
        if is_large and {cache.stat().st_uid, cache.parent.stat().st_uid} == {getattr(os, "geteuid", int)()}:
            kept = dict(json.loads(whole(cache, 1 << 20)))
    if re.fullmatch("[0-9a-f]{64}", str(kept.get(key))):
        return str(kept[key])
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            hashlib.file_digest(stream, lambda: digest)
    is_settled = all(max(state[-2:]) < time.time_ns() - SETTLED for state in states)
    if is_large and is_settled and states == [_state(file) for file in files]:
        with suppress(OSError, ValueError), replacing(cache) as part:  # a disk may be full, or the cache a link
            part.write_text(json.dumps(dict([*kept.items(), (key, digest.hexdigest())][-1_000:])))
    return digest.hexdigest()

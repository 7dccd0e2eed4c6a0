"""Text for training: read, tokenized once, and kept as a memory-mapped array.

A note beside the array says what it was made of; while that is the same, later runs use the array again.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Integer
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor

from interp.bounded_files import unpacked_name, whole
from interp.errors import InputError
from interp.tokens import Tokenizer
from interp.training.whole_files import replacing, sweep_beside

START = "<s>"
MASK = "[MASK]"
_SUFFIXES = (".txt", ".txt.gz", ".txt.zst")
_KINDS = {2: torch.uint16, 4: torch.int32}  # by bytes
_LARGEST = 1 << 32  # bytes of a file, unpacked
_GROUP = 4_000_000  # characters tokenized together


@dataclass(frozen=True)
class Document:
    """A text and its name: its file's, without folder and ending."""

    name: str
    text: str


def find(path: Path) -> list[Path]:
    """The text files at `path`: itself, or all *.txt below it, compressed or not, sorted by name."""
    if path.is_file():
        return [path]
    files = sorted(file for file in path.rglob("*") if file.name.endswith(_SUFFIXES) and file.is_file())
    if not files:
        raise InputError(f"no text at {path}: expected a text file, or a directory with *.txt, maybe .gz or .zst")
    return files


def read(paths: Iterable[Path], *, unwrap: bool = False) -> Iterator[Document]:
    """The files' texts; `unwrap` joins the lines of each paragraph (up to a blank line)."""
    for path in paths:
        text = whole(path, _LARGEST).replace("\r\n", "\n")
        if unwrap:
            paragraphs = (" ".join(part.split()) for part in re.split(r"\n\s*\n", text))
            text = "\n".join(filter(None, paragraphs))
        yield Document(name_of(path), text)


def name_of(path: Path) -> str:
    """The name of the document in a file."""
    return unpacked_name(path).removesuffix(".txt")


def held_out(name: str, share: float) -> bool:
    """Whether training leaves out the document called `name`; the name alone decides."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "big") < share * (1 << 48)


def train_tokenizer(texts: Iterable[str], d_vocab: int, *, mask: bool = False) -> Tokenizer:
    """Byte-level BPE of the texts (Sennrich 2016; Radford 2019); `mask` adds a token that hides words."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = [START, MASK] if mask else [START]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if d_vocab < len(alphabet) + len(special):
        raise InputError(f"bytes and special tokens need a d_vocab of {len(alphabet) + len(special)}, got {d_vocab}")
    settings = {"special_tokens": special, "initial_alphabet": alphabet, "show_progress": False}
    backend.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=d_vocab, **settings))
    if (size := backend.get_vocab_size()) < d_vocab:
        raise InputError(f"the text is too short for a vocabulary of {d_vocab}: it gives {size}")
    start = processors.TemplateProcessing(f"{START} $A", special_tokens=[(START, backend.token_to_id(START))])
    backend.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), start])
    return Tokenizer(backend)


@dataclass(frozen=True)
class Stream:
    """The tokens of documents in a row, each after the tokenizer's prefix."""

    tokens: Integer[Tensor, " token"]  # memory-mapped; two bytes each if the vocabulary allows
    names: Sequence[str]  # of the documents
    n_characters: int


def tokenize(
    documents: Iterable[Document],
    tokenizer: Tokenizer,
    path: Path,
    made_of: str,
    say: Callable[[str, int], None] = lambda stage, count: None,
) -> Stream:
    """The documents' tokens, from the array at `path` if it was `made_of` the same, else written there.

    `made_of` identifies these documents, for example by file names with sizes. Documents are read only if the array has
    to be written; then `say` gets their number so far.
    """
    largest = max(tokenizer.backend.get_vocab(with_added_tokens=True).values(), default=0)
    kind = np.dtype(np.uint16 if largest < 1 << 16 else np.int32)
    digest = hashlib.sha256(repr((tokenizer.backend.to_str(), tokenizer.prefix, made_of)).encode()).hexdigest()
    if (note := _note(path, digest)) is None:
        try:
            note = {"made_of": digest, **_write(documents, tokenizer, path, kind, say)}
            with replacing(_note_path(path)) as part:
                part.write_text(json.dumps(note) + "\n", "utf-8")
        except OSError as error:
            raise InputError(f"cannot write tokens to {path}: {error.strerror or error}") from error
    size, dtype = note["n_bytes"] // kind.itemsize, _KINDS[kind.itemsize]
    tokens = torch.from_file(str(path), shared=False, size=size, dtype=dtype)
    return Stream(tokens, note["names"], note["n_characters"])


def _note_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def _note(path: Path, digest: str) -> dict[str, Any] | None:
    """The note beside an array, if the array is whole and was made of the same."""
    try:
        note = json.loads(whole(_note_path(path)))
        is_current = note["made_of"] == digest and path.stat().st_size == note["n_bytes"]
        return note if is_current and note["sum"] == _sum(path, note["names"], note["n_characters"]) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _sum(path: Path, names: Sequence[str], n_characters: int) -> str:
    note = json.dumps([names, n_characters]).encode()
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.sha256(note)).hexdigest()


def _write(
    documents: Iterable[Document], tokenizer: Tokenizer, path: Path, kind: np.dtype, say: Callable[[str, int], None]
) -> dict[str, Any]:
    """Write the array, a group of documents at a time, to limit the text in memory."""
    names, n_characters = [], 0
    path.parent.mkdir(parents=True, exist_ok=True)
    sweep_beside(path)
    with replacing(path) as part:
        with part.open("wb") as file:
            for group in _groups(documents):
                texts = [document.text for document in group]
                for encoding in tokenizer.backend.encode_batch_fast(texts, add_special_tokens=False):
                    file.write(np.array([*tokenizer.prefix, *encoding.ids], kind).tobytes())
                names += [document.name for document in group]
                n_characters += sum(map(len, texts))
                say("tokenizing", len(names))
            n_bytes = file.tell()
        if not names:
            raise InputError("no text to train on: every document is held out, or there is none")
        if not n_bytes:
            raise InputError(f"no text to train on: the {len(names)} documents are empty")
        _note_path(path).unlink(missing_ok=True)  # it describes the replaced array
    return {"names": names, "n_characters": n_characters, "n_bytes": n_bytes, "sum": _sum(path, names, n_characters)}


def _groups(documents: Iterable[Document]) -> Iterator[list[Document]]:
    group, length = [], 0
    for document in documents:
        group.append(document)
        length += len(document.text)
        if length > _GROUP:
            yield group
            group, length = [], 0
    if group:
        yield group

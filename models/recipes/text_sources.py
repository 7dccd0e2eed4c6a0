"""Training text: running text from files or generated, and pairs of texts; a share is held out of training."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

from interp import InputError
from interp.training import token_arrays as texts
from interp.training.token_arrays import Document
from interp.training.whole_files import replacing, sweep_beside
from models.huggingface.model_files import files_digest
from models.pair_tasks import TASKS, pairs
from models.plain_tables import nearest
from models.stories import GENERATORS

_HASHED = 100  # generated texts that a digest reads, so that it changes with the grammar too


@dataclass(frozen=True)
class Text:
    """Text files: `*.txt` (also .gz, .zst) below a directory, or files named one by one.

    Documents are held out by name alone, so a document is on the same side in every run. Where that leaves one side
    empty, for example with a single file, the last share of every document is held out.
    """

    path: str | tuple[str, ...] = ()
    unwrap: bool = False  # join the lines of a paragraph, which a blank line ends
    held_out: float = 0.1

    def __post_init__(self) -> None:
        check_share(self.held_out)
        if not self.path:
            raise InputError("lacks path, a text file or a folder of them")

    def files(self) -> list[Path]:
        """The files, in the order of their names; InputError if there is no text."""
        paths = (self.path,) if isinstance(self.path, str) else self.path
        return [file for path in paths for file in texts.find(Path(path))]

    def digest(self) -> str:
        """SHA-256 of names and bytes, and of how they are divided."""
        digests = [(texts.name_of(file), _digest(file)) for file in self.files()]
        return digest_of([digests, self.unwrap, self.held_out])

    def documents(self, *, held_out: bool) -> Iterator[Document]:
        """The texts of one of the two sides."""
        files = self.files()
        out = [file for file in files if texts.held_out(texts.name_of(file), self.held_out)]
        if not self.held_out or 0 < len(out) < len(files):
            selection = [file for file in files if (file in out) is held_out]
            yield from texts.read(selection, unwrap=self.unwrap)
            return
        for document in texts.read(files, unwrap=self.unwrap):
            cut = int(len(document.text) * (1 - self.held_out))
            cut = document.text.find("\n", cut, -1) + 1 or cut  # if the text has lines, cut between them
            yield Document(document.name, document.text[cut:] if held_out else document.text[:cut])


@dataclass(frozen=True)
class Generated:
    """Texts by a generator's name; by default not those that the analyses measure on."""

    name: str
    count: int
    seed: int = 1_000
    held_out: float = 0.0

    def __post_init__(self) -> None:
        check_share(self.held_out)
        check_count(self.count)
        if self.name not in GENERATORS:
            raise InputError(f"generates no {self.name}; the nearest is {nearest(self.name, GENERATORS)}")

    def digest(self) -> str:
        """SHA-256 of the parameters and the first texts."""
        first = [text.text for text in GENERATORS[self.name](min(_HASHED, self.count), self.seed)]
        return digest_of([asdict(self), first])

    def generate(self) -> Iterator[Document]:
        """The texts of both sides, generated anew."""
        for text in islice(GENERATORS[self.name](None, self.seed), self.count):
            yield Document(text.document, text.text)


Running = Text | Generated


@dataclass(frozen=True)
class StoredTexts:
    """Generated texts in a file, written when they are first read: generating takes far longer than reading."""

    source: Generated
    file: Path  # one JSON line per text, with its name; the last line is a hash of all others

    def documents(self, *, held_out: bool) -> Iterator[Document]:
        """The texts of one of the two sides; InputError if the file cannot be written, or is damaged."""
        if not self.file.is_file():
            self._write()
        try:
            self._check()
            with self.file.open("rb") as lines:
                for content in map(json.loads, lines):
                    if isinstance(content, list) and texts.held_out(content[0], self.source.held_out) is held_out:
                        yield Document(*content)
        except (OSError, ValueError) as error:
            raise InputError(f"{self.file} is damaged ({error}): remove it, and it is written again") from error

    def _check(self) -> None:
        """Compare all lines but the last with their hash in the last."""
        digest, last = hashlib.sha256(), b""
        with self.file.open("rb") as lines:
            for line in lines:
                digest.update(last)
                last = line
        if last != f'"{digest.hexdigest()}"\n'.encode():
            raise ValueError("it is cut short, or was changed")

    def _write(self) -> None:
        try:
            sweep_beside(self.file)
            with replacing(self.file) as part, part.open("wb") as file:
                digest = hashlib.sha256()
                for document in self.source.generate():
                    line = f"{json.dumps([document.name, document.text])}\n".encode()
                    digest.update(line)
                    file.write(line)
                file.write(f'"{digest.hexdigest()}"\n'.encode())
        except OSError as error:
            raise InputError(f"cannot write {self.source.name} to {self.file}: {error.strerror or error}") from error


@dataclass(frozen=True)
class Paired:
    """Two columns under a line that names them, or pairs by the name of their rule.

    Pairs in a file are held out by their source. Pairs by a rule are held out by their target, so the model has never
    written a held-out target.
    """

    path: str | None = None
    name: str | None = None
    count: int = 20_000
    seed: int = 1_000
    held_out: float = 0.1

    def __post_init__(self) -> None:
        check_share(self.held_out)
        check_count(self.count)
        if (self.path is None) == (self.name is None):
            raise InputError("expected one of path, a file of two columns, and name, a rule that makes pairs")
        if self.name is not None and self.name not in TASKS:
            raise InputError(f"no rule {self.name} makes pairs; the nearest is {nearest(self.name, TASKS)}")

    @cached_property
    def sides(self) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        """Pairs for training, and those held out; InputError if there are none for training, or the file is wrong."""
        halves: tuple[list[tuple[str, str]], list[tuple[str, str]]] = [], []
        for pair in self._pairs():
            unit = pair[0] if self.name is None else pair[1]  # a rule writes one target from several sources
            halves[texts.held_out(unit, self.held_out)].append(pair)
        if not halves[0]:
            raise InputError(f"no pairs to learn from in {self.path or self.name}")
        return halves

    def digest(self) -> str:
        """SHA-256 of the pairs, and of how they are divided."""
        return digest_of([self.held_out, *self.sides])

    def _pairs(self) -> Iterator[tuple[str, str]]:
        if self.name is not None:
            for pair in islice(TASKS[self.name](None, self.seed), self.count):
                yield pair.source, pair.target
            return
        path = Path(self.path or "")
        if not path.is_file():
            raise InputError(f"no file of pairs at {path}: expected two columns under a line that names them")
        for document in texts.read([path]):
            for _, source, target in pairs(document.text.splitlines(), path.name):
                yield source, target


def read_from(kind: Running, digest: str, cache: Path) -> Text | StoredTexts:
    """The source of running text: its files, or for generated texts a file in the cache."""
    return kind if isinstance(kind, Text) else StoredTexts(kind, cache / f"{kind.name}-{digest[:16]}.texts")


def check_share(share: float) -> None:
    """Refuse a share that leaves nothing for training."""
    if not 0 <= share < 1:
        raise InputError(f"held_out is a share: expected 0 <= held_out < 1, got {share:g}")


def check_count(count: int) -> None:
    """Refuse to generate nothing."""
    if count < 1:
        raise InputError(f"count must be at least 1, got {count}")


def digest_of(facts: object) -> str:
    """SHA-256 of facts that JSON can hold."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _digest(file: Path) -> str:
    try:
        return files_digest([file])
    except OSError as error:
        raise InputError(f"{file} cannot be read ({error.strerror}): leave it out") from error

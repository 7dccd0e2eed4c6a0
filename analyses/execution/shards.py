"""Where is what was measured kept until all is? In a folder of small files, so that a run that was stopped goes on.

A shard is one lot of work: claims of some documents hidden from some heads, one reading by heads that learnt nothing.
It is written whole as soon as it is measured, under a name that is a hash of all it depends on: the model as it runs
(`analyses.execution.provenance`), the text, the settings, the versions and our own code; then of the very tokens,
rows, keys and heads. The same command finds what it measured before and measures the rest, so its numbers do not
depend on where it was stopped. Work is cut into lots before any is done, and lots share nothing, so several processes
fill one folder.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from analyses.execution.provenance import hash_of
from analyses.execution.side_by_side import Progress, side_by_side
from interp.training.whole_files import check_owner, replacing, sweep

Tensors = Mapping[str, Tensor]
Lot = tuple[Iterable[Any], Callable[[], Tensors]]  # all that it depends on, and what measures it
_SUFFIX, _DIGITS = ".shards", 64  # of the hash that a shard is called by


@dataclass
class Counts:
    """How many shards this run found, and how many it made."""

    n_read: int = 0
    n_written: int = 0

    @property
    def n_kept(self) -> int:
        """How many lie in the folder for the next run."""
        return self.n_read + self.n_written


@dataclass(frozen=True)
class Shards:
    """Shards in `folder` of work on some `content`, by its hash; None: nothing is kept, all is measured."""

    folder: Path | None = None
    content: str = ""
    counts: Counts = field(default_factory=Counts)

    @staticmethod
    def for_output(out: Path, content: Any) -> "Shards":
        """Those of a run that writes `out`: beside it, so that `out` is whole or not there.

        An `InputError` where their folder is a link, or another user's.
        """
        folder = out.with_name(f".{out.name}{_SUFFIX}")
        check_owner(folder)
        return Shards(folder).narrow(content, _code())

    def narrow(self, *content: Any) -> "Shards":
        """The same of work that depends on more: text, numbers, tensors, and lists of them."""
        return replace(self, content=hash_of([self.content, *content]))

    def measure(self, lots: Sequence[Lot], progress: Progress = None) -> list[Tensors]:
        """What was measured of each lot before, or else is measured now, several side by side.

        A full disk keeps nothing, and stops nothing. `progress` is called with the number of lots that are there.
        """
        names = [f"{hash_of([self.content, *depends])}.safetensors" for depends, _ in lots] if self.folder else []
        paths = [self.folder / name for name in names] if self.folder else [None] * len(lots)
        shards = {lot: tensors for lot, path in enumerate(paths) if path and (tensors := _load(path)) is not None}
        n_read, n_written = len(shards), self.counts.n_written
        self.counts.n_read += n_read
        missing = {lot: partial(_measure, lots[lot][1], paths[lot]) for lot in range(len(lots)) if lot not in shards}

        def report(count: int) -> None:
            self.counts.n_written = n_written + sum(path.exists() for lot in missing if (path := paths[lot]))
            if progress is not None:
                progress(n_read + count)

        shards |= dict(zip(missing, side_by_side([*missing.values()], report), strict=True))
        return [shards[lot] for lot in range(len(lots))]

    def clear(self) -> None:
        """Remove them: what they were kept for stands."""
        if self.folder is not None:
            with suppress(OSError):  # none was kept, or others put files there
                for path in self.folder.glob(f"{'?' * _DIGITS}.safetensors"):
                    path.unlink()
                sweep(self.folder, lambda name: True)
                self.folder.rmdir()


def _measure(make: Callable[[], Tensors], path: Path | None) -> Tensors:
    """What is measured now, and kept if there is a place: whole or not there."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in make().items()}
    if path is not None:
        with suppress(SafetensorError, OSError):
            _write(path, tensors)
    return tensors


def _write(path: Path, tensors: dict[str, Tensor]) -> None:
    with replacing(path) as part:
        save_file(tensors, part, {"sha256": hash_of(tensors)})


def _load(path: Path) -> Tensors | None:
    """A shard that is whole; None where there is none."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
            return tensors if (file.metadata() or {}).get("sha256") == hash_of(tensors) else None
    except (SafetensorError, OSError, ValueError):
        return None


@cache
def _code() -> str:
    """A hash of our own code: numbers of another version are not gone on with."""
    sha = sha256()
    for package in ("interp", "models", "analyses"):
        for path in sorted((Path(__file__).parents[2] / package).rglob("*.[pt][yo]*")):  # and what it reads of ours
            if path.suffix in {".py", ".toml"}:
                sha.update(path.read_bytes())
    return sha.hexdigest()

"""Where is what was measured kept until all is? In a folder of small files, so that a run that was stopped goes on.

A shard is one lot of work: claims of some documents hidden from some heads, one reading by heads that learnt nothing.
It is written whole, under a hash of all it depends on: the model as it runs, the text, the settings, the versions, our
own code, and the very tokens, rows, keys and heads. Lots share nothing, so several processes fill one folder.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from analyses.execution.progress import LotProgress
from analyses.execution.provenance import digest, hash_of
from analyses.execution.side_by_side import side_by_side
from interp.training.whole_files import check_owner, replacing, sweep

Tensors = Mapping[str, Tensor]
Lot = tuple[Iterable[Any], Callable[[], Tensors]]  # all that it depends on, and what measures it


@dataclass(frozen=True)
class Shards:
    """Shards in `folder` of work on some `content`, by its hash; None: nothing is kept, all is measured."""

    folder: Path | None = None
    content: str = ""
    counts: dict[str, int] = field(default_factory=lambda: {"read": 0, "written": 0})  # by this run

    @staticmethod
    def for_output(out: Path, content: Any) -> "Shards":
        """Those of a run that writes `out`: beside it, so that `out` is whole or not there.

        An `InputError` where their folder is a link, or another user's.
        """
        folder = out.with_name(f".{out.name}.shards")
        check_owner(folder)
        return Shards(folder).narrow(content, _code())

    def narrow(self, *content: Any) -> "Shards":
        """The same of work that depends on more: text, numbers, tensors, and lists of them."""
        return replace(self, content=hash_of([self.content, *content]))

    def measure(self, lots: Sequence[Lot], progress: LotProgress | None = None) -> list[Tensors]:
        """What was measured of each lot before, or else is measured now, several side by side.

        A full disk keeps nothing, and stops nothing. `progress` is called with the number of lots that are there,
        and of all.
        """
        paths = [
            self.folder and self.folder / f"{hash_of([self.content, *depends])}.safetensors" for depends, _ in lots
        ]
        shards = {lot: tensors for lot, path in enumerate(paths) if path and (tensors := _load(path)) is not None}
        n_read, n_written = len(shards), self.counts["written"]
        self.counts["read"] += n_read
        missing = {lot: partial(_measure, lots[lot][1], paths[lot]) for lot in range(len(lots)) if lot not in shards}

        def report(count: int) -> None:
            self.counts["written"] = n_written + sum(path.exists() for lot in missing if (path := paths[lot]))
            if progress is not None:
                progress(n_read + count, len(lots))

        report(0)  # those found tell nothing of how fast it goes
        shards |= dict(zip(missing, side_by_side([*missing.values()], report), strict=True))
        return [shards[lot] for lot in range(len(lots))]

    def clear(self) -> None:
        """Remove them: what they were kept for stands."""
        if self.folder is not None:
            with suppress(OSError):  # none was kept, or others put files there
                for path in self.folder.glob(f"{'?' * 64}.safetensors"):  # a hash has 64 digits
                    path.unlink()
                sweep(self.folder, lambda name: True)
                self.folder.rmdir()


def _measure(make: Callable[[], Tensors], path: Path | None) -> Tensors:
    """What is measured now, and kept if there is a place: whole or not there."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in make().items()}
    if path is not None:
        with suppress(SafetensorError, OSError), replacing(path) as part:
            save_file(tensors, part, {"sha256": hash_of(tensors)})
    return tensors


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
    """A hash of our own code and of the data that it reads: numbers of another version are not gone on with."""
    folders = [Path(__file__).parents[2] / package for package in ("interp", "models", "analyses")]
    paths = chain.from_iterable(sorted(folder.rglob("*.[pt][yo]*")) for folder in folders)
    return digest(path.read_bytes() for path in paths if path.suffix in {".py", ".toml"})

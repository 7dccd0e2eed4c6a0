"""What does each reader do with damaged files? Read, refused in a line, or a fault: traced, hung, out of memory."""

import resource
import shutil
import signal
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.faults.mutations import mutated
from benchmarks.faults.read_files import READERS, Reader
from interp.errors import LONGEST_MESSAGE, InputError, InputWarning

SECONDS = 10.0  # time limit for a file of some kilobytes; more is a hang
MEMORY = 1 << 30  # bytes that reading may take beyond what the process has
READ, REFUSED, FAULT = "read", "refused", "fault"


class HungError(BaseException):
    """Reading takes too long."""


@dataclass(frozen=True)
class Outcome:
    """What happened to one damaged file; `message` is the one of the refusal, or the end of the traceback."""

    kind: str
    message: str = ""


def outcomes(name: str, seeds: range) -> Iterator[tuple[int, Outcome]]:
    """What happens to one damaged file of a kind per seed."""
    reader = READERS[name]
    with tempfile.TemporaryDirectory() as folder:
        good, damaged = Path(folder) / "good", Path(folder) / "damaged"
        good.mkdir()
        reader.make(good)
        content = (good / reader.file).read_bytes()
        for seed in seeds:
            if reader.writes:
                shutil.rmtree(damaged, ignore_errors=True)
            if not damaged.exists():
                shutil.copytree(good, damaged)
            yield seed, outcome(reader, damaged, mutated(content, seed))


def outcome(reader: Reader, folder: Path, content: bytes) -> Outcome:
    """What happens to a file with this content; the other files in `folder` are good."""
    try:
        (folder / reader.file).write_bytes(content)
        with bounded(), warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", InputWarning)
            reader.read(folder)
    except InputError as error:
        if "\n" in str(error).strip() or len(str(error)) > 2 * LONGEST_MESSAGE:
            return Outcome(FAULT, f"a refusal that is no line: {error}")
        return Outcome(REFUSED, str(error))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a panic of the tokenizers' library is one
        where = traceback.extract_tb(error.__traceback__)[-1]
        return Outcome(FAULT, f"{type(error).__name__}: {str(error)[:200]} ({where.filename}:{where.lineno})")
    return Outcome(READ)


@contextmanager
def bounded() -> Iterator[None]:
    """Inside the block, exceeding `SECONDS` raises `HungError`, and exceeding `MEMORY` a `MemoryError`."""

    def hung(*_: object) -> None:
        raise HungError(f"more than {SECONDS:g} seconds")

    before = signal.signal(signal.SIGALRM, hung)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else None
    if pages is not None:
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, hard))
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        with suppress(ValueError):
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGALRM, before)

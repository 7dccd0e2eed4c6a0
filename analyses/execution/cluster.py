"""How are lots done elsewhere? By any `concurrent.futures.Executor`: what is sent is plain, and models go by name.

A worker loads each model once, by the name that it was loaded by here, and checks its fingerprint. It refuses lots of
another version of our code. Retries and lost workers are the executor's.
"""

import ipaddress
import pickle
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

import torch
from torch import nn

from analyses.execution.processes import Call, Keep, packed
from analyses.execution.provenance import code, fingerprint
from analyses.reading.inputs import TokenIds, by_ids
from interp import Model
from interp.errors import InputError, brief
from models import load

_CERTIFICATES = {"tls_ca_file": "ca.pem", "tls_client_cert": "cert.pem", "tls_client_key": "key.pem"}
_PATIENCE = 30  # seconds that a scheduler may take to answer
_MODELS: dict[str, Model] = {}  # of this worker, by fingerprint
_LOADING = threading.Lock()


class Workers:
    """An executor that makes calls; `known` has the fingerprints of models by their `id`."""

    def __init__(self, executor: Executor, known: Mapping[int, str]):
        self.executor, self.known = executor, known
        self._futures: set[Future[bytes]] = set()  # not done yet: their results are not held

    def submit(self, function: Callable[..., bytes], arguments: Sequence[Any], keep: Keep = None) -> Call[bytes]:
        """Begin a call."""
        content = _packed((function, arguments), self.known)
        try:
            future = self.executor.submit(perform, content, code())
        except Exception as error:  # of the executor
            _lost(error)
        arrived: Future[bytes] = Future()
        self._futures.add(future)
        for receive in (self._futures.discard, partial(_hand_on, arrived)):
            future.add_done_callback(receive)
        return _Sent(partial(_lost, BrokenExecutor("its workers ended")), arrived, bytes, keep)

    def close(self) -> None:
        """Cancel what was not begun."""
        for future in [*self._futures]:
            future.cancel()


def _hand_on(arrived: Future[bytes], future: Future[bytes]) -> None:
    """Dask does a call again whose worker dies while its future lives, though the result is here: nobody holds it."""
    if future.cancelled():
        arrived.cancel()
    elif (error := future.exception()) is not None:
        arrived.set_exception(error)
    else:
        arrived.set_result(future.result())


class _Sent(Call[bytes]):
    """A call that an executor makes."""

    def result(self) -> bytes:
        """What a worker returned; where the cluster lost it, an `InputError`."""
        try:
            return super().result()
        except (BrokenExecutor, CancelledError, OSError) as error:
            _lost(error)
        except Exception as error:
            if type(error).__module__.startswith("distributed"):
                _lost(error)
            raise


def _lost(error: BaseException) -> NoReturn:
    reason = brief(f"{type(error).__name__}: {error}".strip(": "))
    raise InputError(f"the cluster did not do its work ({reason}): see that its scheduler and workers run") from error


def _packed(value: Any, known: Mapping[int, str]) -> bytes:
    """The value, with models as the names that they were loaded by."""

    def reduce(obj: Any) -> Any:
        if not isinstance(obj, nn.Module) or not isinstance(obj, Model):
            return NotImplemented
        if not (origin := getattr(obj, "origin", None)):
            raise InputError(
                "a cluster's workers load models by name: save this one, and load it by its directory (models.save)"
            )
        return _loaded, (origin, isinstance(obj.tokenizer, TokenIds), known.get(id(obj)) or fingerprint(obj))

    try:
        return packed(value, reduce)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InputError(f"a cluster cannot be sent code of your own ({brief(str(error))}): run it here") from error


def _loaded(origin: Mapping[str, Any], read_by_ids: bool, expected: str) -> Model:
    """A worker's own copy of a model, which must be the one that was sent."""
    with _LOADING:
        if expected not in _MODELS:
            model = load(**origin)
            model = by_ids(model) if read_by_ids else model
            if fingerprint(model) != expected:
                name = origin["name"]
                raise InputError(f"on {socket.gethostname()} the name {name} stands for another model than here")
            _MODELS[expected] = model
        return _MODELS[expected]


def perform(content: bytes, version: str) -> bytes:
    """One call, on a worker; in one thread, so that all workers agree. `version` is the `code` that packed it."""
    if version != code():
        raise InputError(f"the worker on {socket.gethostname()} runs another version of interp: install the same there")
    if not torch.cuda.is_initialized():
        torch.set_num_threads(1)
    function, arguments = pickle.loads(content)  # over a socket to which only its owners have keys
    return function(*arguments)


@contextmanager
def connected(address: str | None, certificates: Path | None = None) -> Iterator[Executor | None]:
    """The workers of a Dask scheduler at `address`, as tcp://127.0.0.1:8786, for as long as the block lasts.

    None are those of no address.

    Dask's sockets run what they are sent, so any address but this machine's own needs tls:// and `certificates`, a
    folder with ca.pem, cert.pem and key.pem. An `InputError` where Dask is not installed, or nobody answers.
    """
    if address is None:
        yield None
        return
    try:
        from distributed import Client  # noqa: PLC0415 (only who asks for a cluster waits for Dask)
        from distributed.security import Security  # noqa: PLC0415
    except ImportError as error:
        raise InputError('a cluster needs Dask: pip install "interp[cluster]"') from error
    parts = urlsplit(address if "://" in address else f"tcp://{address}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if parts.scheme not in ("tcp", "tls") or not host or not port:
        raise InputError(
            f"no cluster at {address!r}: expected the address of a Dask scheduler, as tcp://127.0.0.1:8786"
        )
    if certificates is None and (parts.scheme == "tls" or not _is_here(host)):
        raise InputError(
            f"{address} is not this machine, and who can reach a scheduler can run programs on its workers: use "
            "tls:// and --cluster-certificates FOLDER, or an address of 127.0.0.1"
        )
    files = {} if certificates is None else {name: certificates / file for name, file in _CERTIFICATES.items()}
    if missing := [str(path) for path in files.values() if not path.is_file()]:
        raise InputError(f"no file {missing[0]}: expected ca.pem, cert.pem and key.pem in {certificates}")
    if files and parts.scheme != "tls":
        raise InputError(f"{address} sends without encryption: with certificates expected tls://{host}:{port}")
    security = Security(require_encryption=True, **{name: str(path) for name, path in files.items()}) if files else None
    try:
        client = Client(parts.geturl(), security=security, timeout=_PATIENCE, set_as_default=False)
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(f"no scheduler answers at {address} ({brief(str(error))}): start one, and workers") from error
    with client:
        yield client.get_executor()


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

"""How do other machines do lots? Through any `concurrent.futures.Executor`: we send plain values, and models by name.

A worker loads each model once, by the name it was loaded by here, and checks its fingerprint. It refuses lots from
another version of our code. The executor handles retries and lost workers.
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
_PAUSE = 5  # seconds between two counts of the workers
_MODELS: dict[str, Model] = {}  # loaded by this worker, by fingerprint
_LOADING = threading.Lock()


class ClusterError(ConnectionError):
    """The cluster cannot do the work. No `InputError`: some stages take those as a reason to leave a part out."""


class Workers:
    """Calls on an executor; `known` holds the fingerprints of models by `id`."""

    def __init__(self, executor: Executor, known: Mapping[int, str]):
        self.executor, self.known = executor, known
        self._futures: set[Future[bytes]] = set()  # not done yet; their results are not held

    def submit(self, function: Callable[..., bytes], arguments: Sequence[Any], keep: Keep = None) -> Call[bytes]:
        """Begin a call."""
        content = _packed((function, arguments), self.known)
        try:
            future = self.executor.submit(perform, content, code())
        except Exception as error:  # whatever the executor raises
            _lost(error)
        arrived: Future[bytes] = Future()
        self._futures.add(future)
        for receive in (self._futures.discard, partial(_hand_on, arrived)):
            future.add_done_callback(receive)
        return _Sent(partial(_lost, BrokenExecutor("its workers ended")), arrived, bytes, keep)

    def close(self) -> None:
        """Cancel calls that have not started."""
        for future in [*self._futures]:
            future.cancel()


def _hand_on(arrived: Future[bytes], future: Future[bytes]) -> None:
    """Hold the result, not its future: Dask repeats a call whose worker dies while its future is held."""
    if future.cancelled():
        arrived.cancel()
    elif (error := future.exception()) is not None:
        arrived.set_exception(error)
    else:
        arrived.set_result(future.result())


class _Sent(Call[bytes]):
    """A call on an executor."""

    def result(self) -> bytes:
        """What a worker returned; a `ClusterError` if the cluster lost it."""
        try:
            return super().result()
        except ClusterError:
            raise
        except (BrokenExecutor, CancelledError, OSError) as error:
            _lost(error)
        except Exception as error:
            if type(error).__module__.startswith("distributed"):
                _lost(error)
            raise


def _lost(error: BaseException) -> NoReturn:
    reason = brief(f"{type(error).__name__}: {error}".strip(": "))
    raise ClusterError(f"the cluster did not do its work ({reason}): see that its scheduler and workers run") from error


def _packed(value: Any, known: Mapping[int, str]) -> bytes:
    """Pickle the value, with names in place of models."""

    def reduce(obj: Any) -> Any:
        if not isinstance(obj, nn.Module) or not isinstance(obj, Model):
            return NotImplemented
        if not (origin := getattr(obj, "origin", None)):
            raise ClusterError(
                "a cluster's workers load models by name: save this one, and load it by its directory (models.save)"
            )
        return _loaded, (origin, isinstance(obj.tokenizer, TokenIds), known.get(id(obj)) or fingerprint(obj))

    try:
        return packed(value, reduce)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ClusterError(f"a cluster cannot receive your own code ({brief(str(error))}): run it here") from error


def _loaded(origin: Mapping[str, Any], read_by_ids: bool, expected: str) -> Model:
    """This worker's copy of a model, checked against the fingerprint of the sender's."""
    with _LOADING:
        if expected not in _MODELS:
            model = load(**origin)
            model = by_ids(model) if read_by_ids else model
            if fingerprint(model) != expected:
                where = f"{origin['name']} on {socket.gethostname()}"
                raise ClusterError(f"{where} differs from the model here: copy the same files there")
            _MODELS[expected] = model
        return _MODELS[expected]


def perform(content: bytes, version: str) -> bytes:
    """One call on a worker, in one thread so that all workers agree. `version` is the sender's `code`."""
    if version != code():
        raise ClusterError(f"the worker on {socket.gethostname()} runs another version of interp: install this there")
    if not torch.cuda.is_initialized():
        torch.set_num_threads(1)
    function, arguments = pickle.loads(content)  # from a socket to which only its owners have keys
    return function(*arguments)


@contextmanager
def connected(
    address: str | None, certificates: Path | None = None, tell: Callable[[str], object] = lambda message: None
) -> Iterator[Executor | None]:
    """An executor on the workers of a Dask scheduler, for the length of the block; None without an address.

    `address` looks like tcp://127.0.0.1:8786. Dask's sockets run what they receive, so an address of any other machine
    needs tls:// and `certificates`, a folder with ca.pem, cert.pem and key.pem. `tell` gets a message when the last
    worker has left, since lots then wait until another joins. An `InputError` if Dask is not installed or no scheduler
    answers.
    """
    if address is None:
        yield None
        return
    try:
        from distributed import Client  # noqa: PLC0415 (only cluster users wait for Dask)
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
            f"{address} is not this machine, and anyone who can reach a scheduler can run programs on its workers: use "
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
    end = threading.Event()
    with client:
        watch = threading.Thread(target=_watch, args=(client.nthreads, address, tell, end), daemon=True)
        watch.start()
        try:
            yield client.get_executor()
        finally:
            end.set()
            watch.join(_PATIENCE)


def _watch(
    workers: Callable[[], Mapping[str, int]], address: str, tell: Callable[[str], object], end: threading.Event
) -> None:
    """Tell when the cluster has lost its last worker, or has none yet, and when one joins."""
    had_some = True
    while not end.wait(_PAUSE):
        try:
            has_some = bool(workers())
        except Exception:  # without a scheduler the lots themselves say so
            return
        if has_some != had_some:
            waits = f"no worker at {address}: lots wait until one joins (Ctrl-C stops; finished lots are kept)"
            tell(f"workers joined {address}: the work goes on" if has_some else waits)
        had_some = has_some


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

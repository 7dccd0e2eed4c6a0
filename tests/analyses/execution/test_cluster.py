"""Lots on a real Dask cluster: workers in their own processes, some of them killed, and TLS sockets."""

import datetime
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from functools import partial
from ipaddress import ip_address
from pathlib import Path

import pandas as pd
import pytest
from page_code import ROOT, blocks

from analyses import corpora, part_of_speech
from analyses.execution import cluster, lots
from analyses.execution.cluster import ClusterError, connected
from analyses.execution.lots import Setting, Shards, using
from analyses.measures.head_tables import Collected
from analyses.reading.windows import Reading
from analyses.scoring.collectors import collect_in_lots
from interp import InputError
from models import load

pytest.importorskip("distributed")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::ResourceWarning")]
_STARTING = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}", "OMP_NUM_THREADS": "1"}


@contextmanager
def dask(folder: Path, n: int, *options: str) -> Iterator[tuple[str, list[subprocess.Popen]]]:
    """A scheduler's address, and the processes: the scheduler, then its workers."""

    def started(program: str, *arguments: str) -> subprocess.Popen:
        command = [sys.executable, "-m", f"distributed.cli.{program}", "--no-dashboard", *arguments, *options]
        return subprocess.Popen(command, env=_STARTING, stderr=subprocess.DEVNULL, cwd=folder)

    file = folder / "scheduler.json"
    processes = [started("dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(file))]
    try:
        while not file.exists():
            time.sleep(0.1)
        address = json.loads(file.read_text())["address"]
        processes += [started("dask_worker", address, "--nthreads", "1") for _ in range(n)]
        yield address, processes
    finally:
        for process in processes[::-1]:
            process.terminate()
            process.wait()


def table(executor: Executor | None) -> pd.DataFrame:
    """The table of heads for a text read in many lots; `benchmarks/clusters.py` compares whole reports."""
    reading = Reading(load("textbook"), corpora.read("sentences:80"))
    with using(Setting(Shards(), executor)):
        (collected,) = collect_in_lots(reading, [partial(part_of_speech.Collector, seed=0)])
    assert isinstance(collected, Collected)
    return collected.table()


@pytest.mark.smoke
def test_a_table_is_that_of_one_process_whatever_worker_dies(tmp_path, monkeypatch):
    monkeypatch.setattr("analyses.scoring.collectors.LOT_WORDS", 200)
    whole = table(None)
    with dask(tmp_path, 2) as (address, (_, worker, *_)), connected(address) as executor:
        killed = threading.Timer(6, worker.send_signal, [signal.SIGKILL])
        killed.start()
        pd.testing.assert_frame_equal(table(executor), whole, check_exact=True)
        killed.cancel()


def slow(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def test_a_lost_scheduler_is_a_line_and_what_was_done_is_kept(tmp_path):
    shards = partial(Shards.for_output, tmp_path / "out", "x", {})
    jobs = [(0.01 * number,) for number in range(40)]
    lost = pytest.raises(ClusterError, match="the cluster did not do its work")
    with (
        dask(tmp_path, 1) as (address, (scheduler, _)),
        connected(address) as executor,
        using(Setting(shards(), executor)),
        lost,
    ):
        lots.do(slow, jobs, lambda n, *_: n == 20 and scheduler.kill())
    with using(Setting(again := shards())):
        assert lots.do(slow, jobs) == [seconds for (seconds,) in jobs]
    assert 19 <= again.counts["read"] <= 40 - again.counts["written"]


def test_a_command_whose_workers_are_all_lost_says_so_and_goes_on_with_another(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "_PAUSE", 0.1)
    messages: list[str] = []

    def tell(message: str) -> None:
        messages.append(message)
        if message.startswith("no worker"):
            add()

    with dask(tmp_path, 1) as (address, processes), connected(address, tell=tell) as executor:

        def add() -> None:
            command = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--nthreads", "1"]
            processes.append(subprocess.Popen(command, env=_STARTING, stderr=subprocess.DEVNULL, cwd=tmp_path))

        jobs = [(0.01 * number,) for number in range(40)]
        with using(Setting(Shards(tmp_path / "shards"), executor)):
            done = lots.do(slow, jobs, lambda n, *_: n == 20 and processes[1].terminate())
    assert done == [seconds for (seconds,) in jobs]
    assert [message.split()[0] for message in messages] == ["no", "workers"]


def certificates(folder: Path) -> list[str]:
    """Write the files of our own certificate authority; return the options that name them."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    now = datetime.datetime.now(datetime.UTC)
    hosts = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    built = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    built = built.serial_number(x509.random_serial_number()).add_extension(hosts, critical=False)
    built = built.not_valid_before(now - datetime.timedelta(1)).not_valid_after(now + datetime.timedelta(1))
    certificate = built.sign(key, hashes.SHA256())
    folder.mkdir()
    for file in ("ca.pem", "cert.pem"):
        (folder / file).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "key.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, *plain))
    files = zip(("--tls-ca-file", "--tls-cert", "--tls-key"), ("ca.pem", "cert.pem", "key.pem"), strict=True)
    return [part for option, file in files for part in (option, str(folder / file))]


def test_a_stranger_without_certificates_is_refused(tmp_path):
    with dask(tmp_path, 1, *certificates(tmp_path / "pem")) as (address, _):
        with connected(address, tmp_path / "pem") as executor, using(Setting(Shards(), executor)):
            assert lots.do(slow, [(0.0,)]) == [0.0]
        certificates(tmp_path / "others")
        certificates(tmp_path / "part")
        (tmp_path / "part/key.pem").unlink()
        for stranger, folder in ((address, tmp_path / "others"), (address.replace("tls", "tcp"), None)):
            with pytest.raises(InputError, match="no scheduler answers"), connected(stranger, folder):
                pass
        with pytest.raises(InputError, match=r"no file \S+key.pem"), connected(address, tmp_path / "part"):
            pass


def test_the_script_of_the_page_runs(tmp_path):
    (script,) = blocks("docs/cluster.md", "python")
    (tmp_path / "page.py").write_text(script)
    subprocess.run([sys.executable, "page.py"], cwd=tmp_path, env=_STARTING, check=True, timeout=300)
    assert len(pd.read_parquet(tmp_path / "report/tables/heads.parquet")) > 0

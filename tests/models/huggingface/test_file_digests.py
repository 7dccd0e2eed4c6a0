"""The digest of large files is computed once, and again when one of them changes."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from models.huggingface import model_files
from models.huggingface.model_files import files_digest


@pytest.fixture
def n_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Count files read so far; ten bytes count as a large file, and no clock as coarse."""
    count, file_digest = [], hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda *more: count.append(1) or file_digest(*more))
    monkeypatch.setattr(model_files, "LARGE", 10)
    monkeypatch.setattr(model_files, "SETTLED", 0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return lambda: len(count)


def test_large_files_are_read_once_until_one_changes(tmp_path: Path, n_read: Callable[[], int]) -> None:
    files = [tmp_path / "a", tmp_path / "b"]
    for file in files:
        file.write_bytes(b"0123456789")
    for _ in range(3):
        assert files_digest(files) == hashlib.sha256(b"0123456789" * 2).hexdigest()
    assert n_read() == 2
    files[1].write_bytes(b"0123456780")
    os.utime(files[1], ns=(0, files[0].stat().st_mtime_ns))  # like a copy that keeps its time
    assert files_digest(files) == hashlib.sha256(b"01234567890123456780").hexdigest()
    files[0].write_bytes(b"few")
    assert {files_digest(files[:1]) for _ in range(2)} == {hashlib.sha256(b"few").hexdigest()}
    assert n_read() == 6
    assert len(list((tmp_path / "cache/interp").iterdir())) == 1  # and no temporary file


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"5", b"\xff", b"[" * 100_000, b'{"KEY": "123"}', None])
def test_a_damaged_cache_or_none_is_no_cache(tmp_path: Path, n_read: Callable[[], int], content: bytes | None) -> None:
    (file := tmp_path / "a").write_bytes(b"0123456789")
    digest, cache = files_digest([file]), tmp_path / "cache" / "interp" / "digests.json"
    cache.write_bytes(cache.read_bytes().replace(digest.encode(), b"0") if content is None else content)
    assert [files_digest([file]), files_digest([file])] == [digest, digest]
    assert n_read() == 2  # rewritten
    cache.unlink()
    cache.symlink_to(tmp_path / "elsewhere")
    assert [files_digest([file]), n_read()] == [digest, 3]
    assert not (tmp_path / "elsewhere").exists()


def test_another_users_cache_and_a_file_just_written_are_not_relied_on(
    tmp_path: Path, n_read: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    (file := tmp_path / "a").write_bytes(b"0123456789")
    digest = files_digest([file])
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: -1)
        assert [files_digest([file]), n_read()] == [digest, 2]
    (second := tmp_path / "b").write_bytes(b"0123456789")
    monkeypatch.setattr(model_files, "SETTLED", 10**15)
    assert [files_digest([second]), files_digest([second]), n_read()] == [digest, digest, 4]

"""Other people's files are read within bounds, and messages about them stay short."""

import gzip
import os
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pytest
from refusals import refusal

from interp import InputError, bounded_files
from interp.bounded_files import LONGEST_LINE, is_file, lines, whole
from interp.errors import LONGEST_MESSAGE, LONGEST_VALUE, brief

PACKED = {"gz": gzip.compress, "zst": lambda content: pyarrow.compress(content, "zstd", asbytes=True)}


@pytest.fixture(params=PACKED)
def pack(request: pytest.FixtureRequest) -> Callable[[bytes], bytes]:
    return PACKED[request.param]


def test_lines_are_those_of_a_text_file_packed_or_not(tmp_path: Path) -> None:
    text = "a\r\nb\n\nü"
    (tmp_path / "a.txt").write_bytes(text.encode())
    for ending, packed in PACKED.items():
        for name in (f"b.txt.{ending}", f"{ending}.txt"):  # recognised by name or by content
            (tmp_path / name).write_bytes(packed(text.encode()))
    (tmp_path / "twice.zst").write_bytes(PACKED["zst"](text[:3].encode()) + PACKED["zst"](text[3:].encode()))
    for name in sorted(path.name for path in tmp_path.iterdir()):
        assert [*lines(tmp_path / name)] == ["a\n", "b\n", "\n", "ü"]
        assert whole(tmp_path / name) == text


def test_what_unpacks_without_end_is_refused_before_it_fills_memory(tmp_path: Path, monkeypatch, pack) -> None:
    monkeypatch.setattr(bounded_files, "UNCHECKED", 1 << 20)
    path = tmp_path / "bomb"
    path.write_bytes(pack(b"a\n" * (1 << 20)))
    for read in (lambda: [None for _ in lines(path)], lambda: whole(path)):
        assert "unpacks to more than 1,048,576 bytes, 100 times its size" in refusal(read)
    path.write_bytes(pack(b"a" * (LONGEST_LINE + 1)))
    assert f"a line of more than {LONGEST_LINE:,} characters" in refusal(next, lines(path))
    assert len(whole(path)) == LONGEST_LINE + 1
    assert "longer than 10 bytes" in refusal(whole, path, 10)


def test_a_damaged_packed_file_is_one_line(tmp_path: Path, pack) -> None:
    good = pack(os.urandom(1_000).hex().encode())
    for content in (good[:-9], good[:5], good + b"junk"):
        (tmp_path / "a").write_bytes(content)
        for read in (lambda: [*lines(tmp_path / "a")], lambda: whole(tmp_path / "a")):
            with pytest.raises(InputError, match=r"a cannot be read \(.+\): expected UTF-8, plain, \.gz or \.zst"):
                read()


def test_what_is_no_file_or_cannot_be_read_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    refused = dict.fromkeys((tmp_path / "pipe", Path("/dev/zero"), tmp_path), "is a pipe, a device or a directory")
    for path, message in {**refused, Path("/proc/self/mem"): "cannot be read .Input/output error"}.items():
        with pytest.raises(InputError, match=message):
            next(lines(path))
    with pytest.raises(InputError, match=r"cannot look for .* File name too long"):
        is_file(tmp_path / ("x" * 300))
    assert (is_file(tmp_path / "nothing"), is_file(tmp_path)) == (False, True)


def test_a_message_shows_the_ends_of_what_is_long() -> None:
    value = "a" * 5_000 + "z" * 5_000
    message = str(InputError(f'column 7: expected a number, got "{value}" and [{value}]; see above'))
    assert re.fullmatch(r'column 7.* got "aaa.*\(10,002 characters\).*\(10,003 characters\).*zzz]; see above', message)
    assert len(message) < 2 * LONGEST_VALUE + 100
    assert len(brief('got "' + "a b " * 1_000 + '"')) <= LONGEST_VALUE + 4
    assert len(brief("word " * 10_000)) <= LONGEST_MESSAGE
    for whole_message in ("expected one of " + ", ".join(f"name{i}" for i in range(100)), "Zoë 你好 “quoted”"):
        assert brief(whole_message) == whole_message  # many short values are not one long value
    one_line = r"got \x1b[2Jnothing here or there \u202e\x00"  # moves no cursor
    assert str(InputError("got \x1b[2Jnothing\nhere\tor\u2028there \u202e\x00")) == one_line

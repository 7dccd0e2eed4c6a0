"""What other people's files may be, and how messages about them stay short."""

import gzip
import os
from pathlib import Path

import pytest

from interp import InputError, bounded_files
from interp.bounded_files import LONGEST_LINE, is_file, lines, whole
from interp.errors import LONGEST_MESSAGE, LONGEST_VALUE, brief


def test_lines_are_those_of_a_text_file_packed_or_not(tmp_path: Path) -> None:
    text = "a\r\nb\n\nü"
    (tmp_path / "a.txt").write_bytes(text.encode())
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(text.encode()))
    for name in ("a.txt", "b.txt.gz"):
        assert [*lines(tmp_path / name)] == ["a\n", "b\n", "\n", "ü"]
        assert whole(tmp_path / name) == text


def test_what_unpacks_without_end_is_refused_before_it_fills_memory(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(bounded_files, "UNCHECKED", 1 << 20)
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(b"a\n" * (1 << 20)))
    for read in (lambda: [None for _ in lines(path)], lambda: whole(path)):
        with pytest.raises(InputError, match="unpacks to more than 1,048,576 bytes, 100 times its size"):
            read()
    path.write_bytes(gzip.compress(b"a" * (LONGEST_LINE + 1)))
    with pytest.raises(InputError, match=rf"a line of more than {LONGEST_LINE:,} characters"):
        next(lines(path))
    assert len(whole(path)) == LONGEST_LINE + 1
    with pytest.raises(InputError, match="longer than 10 bytes"):
        whole(path, 10)


def test_a_pipe_and_a_device_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(InputError, match="is a pipe, a device or a directory: expected a file"):
            next(lines(path))


def test_what_the_system_does_not_give_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot look for .* File name too long"):
        is_file(tmp_path / ("x" * 300))
    with pytest.raises(InputError, match=r"cannot be read .Input/output error"):
        next(lines(Path("/proc/self/mem")))
    assert not is_file(tmp_path / "nothing")
    assert is_file(tmp_path)


def test_a_message_shows_the_ends_of_what_is_long() -> None:
    value = "a" * 5_000 + "z" * 5_000
    shown = str(InputError(f'column 7: expected a number, got "{value}" and [{value}]; see above'))
    assert shown.startswith('column 7: expected a number, got "aaa')
    assert shown.endswith("zzz]; see above")
    assert "(10,002 characters)" in shown
    assert "(10,003 characters)" in shown
    assert len(shown) < 2 * LONGEST_VALUE + 100
    assert len(brief('got "' + "a b " * 1_000 + '"')) <= LONGEST_VALUE + 4
    assert len(brief("word " * 10_000)) <= LONGEST_MESSAGE
    with_spaces = "expected one of " + ", ".join(f"name{i}" for i in range(100))
    assert brief(with_spaces) == with_spaces  # many short values are no long one
    # and it is one line, which moves no cursor
    assert str(InputError("got \x1b[2Jnothing\nhere\tor\u2028there \u202e\x00")) == (
        r"got \x1b[2Jnothing here or there \u202e\x00"
    )
    assert brief("Zoë 你好 “quoted”") == "Zoë 你好 “quoted”"

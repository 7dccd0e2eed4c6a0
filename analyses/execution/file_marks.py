"""Which files may a command replace? Its own, which name their maker where their format has a place for it.

A directory that a command leaves has `run.json` for that (`analyses.execution.output`); pages and pictures that lie
among files of others are marked one by one.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from interp.errors import InputError
from interp.training.whole_files import check_kind

MAKER = "interp"  # the value of `made_by`, of a page's generator and of a picture's creator
TEXT_MARK = f"made_by: {MAKER}\n"  # the last line of a text
PICTURES: Mapping[str, Mapping[str, Any]] = {  # the metadata of pictures by format: the same bytes each time
    "pdf": {"Creator": MAKER, "CreationDate": None},
    "svg": {"Creator": MAKER, "Date": None},
    "png": {"Software": MAKER},
}
_MARKS = (
    f'<meta name="generator" content="{MAKER}">',
    f"/Creator ({MAKER})",
    f"<dc:title>{MAKER}</dc:title>",
    f"tEXtSoftware\0{MAKER}",
)
_END = 1 << 16  # bytes at the start and at the end of a file in which its maker is named


def check_free(path: Path, *, force: bool = False) -> None:
    """Only what we wrote is replaced, or with `force` any other file; never a link, a device or a directory.

    Raises:
        InputError: something else is at `path`.
        OSError: it cannot be read.
    """
    check_kind(path)
    if not force and path.exists() and not _is_marked(path):
        raise InputError(f"{path} is there, and interp did not write it: choose another place, or replace it (--force)")


def _is_marked(path: Path) -> bool:
    with path.open("rb") as file:
        start = file.read(_END)
        file.seek(max(0, path.stat().st_size - _END))
        end = file.read(_END)
    return end.endswith(TEXT_MARK.encode()) or any(mark.encode() in start + end for mark in _MARKS)

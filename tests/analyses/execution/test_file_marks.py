"""A command replaces its own earlier output, and others' only if it is a file and the user says so."""

import os
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from analyses.execution.provenance import PICTURES, TEXT_MARK, check_free
from interp import InputError


def drawing() -> Figure:
    figure = Figure(figsize=(2, 2))
    figure.subplots().plot(range(300))
    return figure


@pytest.mark.parametrize("format", PICTURES)
def test_a_picture_of_ours_is_told_from_that_of_others(format, tmp_path):
    ours, theirs = tmp_path / f"ours.{format}", tmp_path / f"theirs.{format}"
    drawing().savefig(ours, format=format, metadata=PICTURES[format])
    drawing().savefig(theirs, format=format)
    check_free(ours)
    with pytest.raises(InputError, match=rf"theirs\.{format} exists, but interp did not write it"):
        check_free(theirs)
    check_free(theirs, force=True)


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("marked")])
def test_what_is_no_file_is_never_replaced(make, tmp_path):
    (tmp_path / "marked").write_text(TEXT_MARK)
    check_free(tmp_path / "marked")
    check_free(tmp_path / "none")
    make(tmp_path / "x")
    for force in (False, True):
        with pytest.raises(InputError, match=r"x is a .*: expected the name of a file"):
            check_free(tmp_path / "x", force=force)

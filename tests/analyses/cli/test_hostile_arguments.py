"""Arguments that nobody means, and what no reader foresaw: one line on stderr and an exit code, never a traceback."""

import warnings

import pytest
from commands import refusal
from typer import Exit

from analyses.cli import command_frame as frame
from models import sources


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("generate x --seed -1", "'--seed': Input should be greater than or equal to 0"),
        (["patch", "--seed", "9" * 5_000], "'--seed'"),
        ("report --pairs 999999999", "'--pairs': Input should be less than or equal to 10000"),
        (["report", "--corpus", "x" * 300, "--out", "never"], "File name too long"),
        (["generate", "x\udcff"], "expected arguments in UTF-8, got 'x\\udcff': type a text in UTF-8"),
        ("generate x --dtype half", "'--dtype': 'half' is not one of"),
        (["x" * 10_000], "(10,0"),
        ("generate x --top-k 3", "--top-k cut what is drawn from, and --temperature 0 draws none"),
        ("position --exact", "--exact is of what labels need, and there are none: add --labels"),
        (["patch", "--position", "A=1", "--whole-prompts"], "--position names what --by-position patches"),
        (["report", "--out", ""], "'--out': expected the name of a file or directory, got ''"),
        (["position", "--corpus", "", "--out", "never"], 'no file or directory ""'),
        ("view x --out /proc/version/x.html", "/proc/version is a file: expected a directory above x.html; choose"),
    ],
)
def test_it_ends_in_a_short_line(arguments, expected, capsys):
    assert expected in refusal(capsys, *(arguments.split(" ") if isinstance(arguments, str) else arguments))


class PanicException(BaseException):
    """What such a library raises."""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(5, "Input/output error", "/a/file"), "interp: /a/file: the system refused: Input/output error"),
        (OSError(28, "No space left on device"), "interp: the system refused: No space left on device"),
        (RecursionError("too deep"), "interp: something that was read is nested too deep (too deep)"),
        (UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogates"), "interp: expected text that UTF-8 can hold"),
        (MemoryError(), "interp: not enough memory"),
        (PanicException("index 3"), "interp: the tokenizers' library failed: index 3"),
        (OSError(5, "x" * 10_000), "interp: the system refused: xxx"),
    ],
)
def test_what_no_reader_foresaw_is_a_line_too(error, expected, capsys):
    with pytest.raises(Exit) as ended, frame.one_line():
        raise error
    shown = capsys.readouterr().err
    assert ended.value.exit_code == frame.USAGE
    assert shown.startswith(expected)
    assert shown.count("\n") == 1
    assert len(shown) < 400


def test_a_mistake_of_ours_keeps_its_traceback():
    with pytest.raises(KeyError), frame.one_line():
        raise KeyError("ours")


def test_a_mistyped_folder_is_said_to_be_taken_for_a_hub_model(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: None)

    def asked(*_: object, **__: object) -> str:
        assert 'no directory "my/modle": it is taken for a model' in capsys.readouterr().err
        raise OSError("offline")

    monkeypatch.setattr("huggingface_hub.snapshot_download", asked)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with pytest.raises(Exit), frame.one_line():
            sources.directory_of("my/modle")
    assert "the Hugging Face hub gave no such model: offline" in capsys.readouterr().err

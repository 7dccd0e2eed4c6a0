"""Commands on pages run as written: the `bash` blocks of README, the docs and the default model's card, in order.

A page's commands run one after the other in a directory with the small files of `page_code.furnish`. `LESS` shortens
each to seconds, `MEASURING` lists those that read a planted model instead of the default, and `NOT_RUN` those that
cannot run here, with the reason.
"""

import re
import shlex
import tomllib
from collections.abc import Callable
from pathlib import Path
from shutil import copytree

import pytest
import typer
from page_code import CARD, PAGES, PEOPLE, ROOT, blocks, furnish
from worded import worded

from analyses.cli import app as cli
from analyses.cli import command_frame as frame
from interp import Transformer
from models import load
from models.planted import Planted, first_token, offset

MEASURING = {"report", "position", "part-of-speech"}
# of what takes longest
RANDOM = worded(*sorted({word for pair in PEOPLE for word in pair}), *["The", "was", "tired,", "he", "she"])
_DATA = tomllib.loads(Path(__file__).with_name("page_commands.toml").read_text("utf-8"))
TRAINED, NOT_RUN = _DATA["trained"], _DATA["not_run"]
LESS = [(what, less.replace("WITHOUT", _DATA["without"]).replace("TRAINED", TRAINED)) for what, less in _DATA["less"]]


def commands(page: str) -> list[str]:
    """The lines of a page's `bash` blocks, without comments; lines continued by a backslash are joined."""
    lines = [line for block in blocks(page, "bash") for line in re.sub(r"\\\n\s*", "", block).splitlines()]
    return [line for line in (re.sub(r"\s+#.*", "", each).strip() for each in lines) if line]


def of_gallery() -> list[str]:
    """The commands of `make gallery`."""
    (recipe,) = re.findall(r"^gallery:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    whole = recipe.replace("\\\n", " ").replace("$(BIN)/", "").replace("$(GALLERY)", "gallery")
    return [" ".join(line.split()) for line in whole.splitlines()]


WITH_COMMANDS = [page for page in PAGES if commands(page)]
EVERY = [(page, line) for page in WITH_COMMANDS for line in commands(page)]
OPTIONS = {
    name: {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    for name, command in typer.main.get_command(cli.app).commands.items()  # pyright: ignore
}


def reason(line: str) -> str | None:
    """Why a command does not run here; None if it does."""
    return next((why for what, why in NOT_RUN.items() if re.fullmatch(what, line)), None)


def shortened(line: str) -> str:
    for result, less in LESS:
        line = re.sub(result, less, line)
    return line


@pytest.fixture(scope="module")
def furnished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("furnished")
    furnish(folder)
    return folder


@pytest.fixture(scope="module")
def planted(furnished) -> Transformer:
    """A model with two known heads, over the words of the small files and of tales."""
    from analyses.corpora import read

    texts = [read("text:" + str(furnished / "novel.txt")), read("tales:3"), read("stories:3"), read("stories:3:1")]
    words = {word for corpus in texts for text in corpus for word in (*text.words, *text.text.split())}
    return Planted(sorted(words), [[offset(-1), first_token]], n_ctx=200, start="<s>").build()


@pytest.fixture
def page_folder(furnished, planted, tmp_path, monkeypatch) -> Path:
    """The directory for a page's commands, with models that replace those that take minutes to read."""

    def opened(name: str, device: str, dtype: frame.Dtype, placement: str | None):
        return load(name) if Path(name).is_dir() else opened.instead or load(name)

    opened.instead = None
    folder = tmp_path / "page"
    copytree(furnished, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(frame, "opened", opened)
    return folder


def run_line(line: str, monkeypatch, planted: Transformer, *, always: bool = False) -> None:
    program, *arguments = shlex.split(line)
    if program == "cd":
        monkeypatch.chdir(*arguments)
    elif program == "python":
        _, code = arguments
        exec(code, {})
    else:
        assert program == "interp", line
        tiny = RANDOM if {"experiments", "--estimates"} & {*arguments} else None
        frame.opened.instead = tiny or (planted if always or arguments[0] in MEASURING else None)  # pyright: ignore
        with pytest.raises(SystemExit) as ended:
            cli.main(arguments)
        assert not ended.value.code, line


def test_what_is_made_less_and_what_is_left_out_is_on_some_page():
    lines = [*(line for _, line in EVERY), *of_gallery()]
    assert [what for what in NOT_RUN if not any(re.fullmatch(what, line) for line in lines)] == []
    for result, less in LESS:
        assert any(re.search(result, line) for line in lines), result
        lines = [re.sub(result, less, line) for line in lines]


@pytest.mark.parametrize(("page", "line"), [each for each in EVERY if reason(each[1])])
def test_what_does_not_run_is_there(page, line):
    program, *arguments = shlex.split(line)
    if program == "make":
        assert re.search(rf"^{arguments[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    elif program == "python":
        code = (ROOT / f"{arguments[1].replace('.', '/')}.py").read_text()
        options = [each for each in arguments[2:] if each.startswith("--")]
        assert [option for option in options if f'"{option}"' not in code] == []


@pytest.mark.parametrize("line", [line for block in blocks("README.md", "text") for line in block.splitlines()])
def test_commands_and_options_that_readme_lists_exist(line):
    if line.startswith("interp "):
        typed = re.split(r"\s{3,}", line)[0]
        for name in re.sub(r"\[.*\]", "", typed).removeprefix("interp ").split(" | "):
            words = name.split()
            options = OPTIONS[words[0]] if words[0] != "COMMAND" else {"--help"}
            assert {each for each in re.findall(r"--[\w-]+", typed)} <= options, line


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # warnings of libraries during training
@pytest.mark.parametrize("page", [each for each in WITH_COMMANDS if any(not reason(line) for line in commands(each))])
def test_commands_of_a_page_run(page, page_folder: Path, planted, monkeypatch):
    PREPARED.get(page, lambda *_: None)(page_folder, planted)
    for line in commands(page):
        if not reason(line):
            run_line(shortened(line), monkeypatch, planted)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # warnings of libraries during training
def test_every_recipe_on_a_page_trains(page_folder: Path, planted, monkeypatch):
    """The recipe that continues BERT continues what the other recipe made, because BERT itself is not here."""
    recipes = {page: blocks(page, "toml") for page in PAGES if blocks(page, "toml")}
    assert [*recipes] == ["docs/training.md"]
    whole, further = recipes["docs/training.md"]
    (page_folder / "whole.toml").write_text(whole)
    (page_folder / "further.toml").write_text(further)
    run_line(f"interp train whole.toml --out BERT {TRAINED}", monkeypatch, planted)
    assert 'start = "google-bert/bert-base-uncased"' in further
    shorter = re.sub(r" --set (model|tokenizer)\.\S+", "", TRAINED)
    run_line(f"interp train further.toml --out RUN --set model.start=BERT {shorter}", monkeypatch, planted)
    assert load(page_folder / "RUN").config.encoder == load(page_folder / "BERT").config.encoder


def _of_own_measures(folder: Path, _: Transformer) -> None:
    words, in_report, *_ = blocks("docs/own_measures.md", "python")
    measure = in_report.replace("\nreport.build", "\n# report.build")
    (folder / "negation.py").write_text(f"{words.split('corpus =')[0]}{measure}")


def _of_training(folder: Path, planted: Transformer) -> None:
    (folder / "CONFIG.toml").write_text(blocks("docs/training.md", "toml")[0])
    (folder / "DIRECTORY").rename(folder / "OTHER")
    (folder / "DIRECTORY").symlink_to("RUN")  # a model that was copied
    _of_the_card(folder, planted)


def _of_the_card(folder: Path, _: Transformer) -> None:
    training = Path(CARD).parent / "training"
    copytree(ROOT / training, folder / training)


def _of_figures(_: Path, planted: Transformer) -> None:
    frame.opened.instead = planted  # pyright: ignore
    with pytest.raises(SystemExit):
        cli.main(["report", "--corpus", "text:novel.txt", "--no-probes", "--no-experiments", "--pairs", "2"])


PREPARED: dict[
    str, Callable[[Path, Transformer], None]
] = {  # names that a page has from its other blocks, or from another page
    "docs/own_measures.md": _of_own_measures,
    "docs/paper_figures.md": _of_figures,
    "docs/training.md": _of_training,
    CARD: _of_the_card,
}

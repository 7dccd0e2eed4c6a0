"""`interp train`: what does it write, what does it print, and how is a run resumed?"""

import json
import os
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest
import tomli_w
import torch
from commands import command, refusal

from analyses import over_training as forming
from analyses.over_training import train as training
from interp import InputError
from interp.training import state
from interp.training.whole_files import holding
from models import load, recipes

TABLES = {
    "model": {"kind": "decoder", "n_layers": 1, "d_model": 14, "n_heads": 7, "d_mlp": 11, "n_ctx": 23},
    "tokenizer": {"level": "characters"},
    "data": {"book": {"kind": "text", "path": "book.txt", "held_out": 0.3}},
    "training": {"warmup": 1, "evaluate_every": 2, "save_every": 2, "dropout": 0.1, "sample": "the"},
    "phases": [{"steps": 6, "rows": 3, "row": 17}],
}
MEASURES = "heads/previous-token/L0.H3"
LOOK = {MEASURES: 0.25, "model/previous-token": 0.25}


@pytest.fixture
def recipe(tmp_path, monkeypatch) -> str:
    (tmp_path / "book.txt").write_text("the dog ran to the old house and the cat sat on a mat\n" * 7)
    (tmp_path / "tiny.toml").write_text(tomli_w.dumps(TABLES))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(forming, "measures", lambda model: LOOK)
    return "tiny.toml"


@pytest.fixture
def run(capsys):
    """Run the command; return its exit code, stdout and stderr."""
    return lambda *arguments: command(capsys, "train", *arguments)


def weights(folder: str) -> dict[str, torch.Tensor]:
    return dict(load(Path(folder)).named_parameters())


def stopping_at(step: int):
    """Measures that a user interrupts at `step`."""
    looks = count(2, 2)

    def measures(model):
        if next(looks) == step:
            raise KeyboardInterrupt
        return LOOK

    return measures


def test_a_run_leaves_a_model_that_can_be_reported_on_and_says_what_it_was_made_of(recipe, run):
    ended = run(recipe, "--out", "run")
    assert ended.code == 0
    *progress, wrote, see = ended.out.splitlines()
    assert [line.split(":")[0] for line in progress[::2]] == [f"step {step} of 6" for step in (2, 4, 6)]
    assert "; book " in progress[0]
    assert "previous-token 0.250" in progress[0]
    assert progress[1].startswith("  the")
    assert wrote.startswith("wrote run: ")
    assert see.endswith("interp report --model run")
    facts = json.loads(Path("run/run.json").read_text())
    assert (facts["made_by"], facts["config"]["decoder"]["d_model"]) == (training.MAKER, 14)
    assert (facts["steps"], facts["rows"], facts["tokens"]) == (6, 18, 306)
    assert facts["data"]["book"]["held_out"] == ["book"]
    assert facts["versions"]["torch"]
    lines = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if MEASURES in line] == [2, 4, 6]


def test_heads_are_left_unmeasured_and_looks_are_lines_of_json_or_nothing_as_asked(recipe, run, monkeypatch):
    monkeypatch.setattr(forming, "measures", lambda model: pytest.fail("not asked for"))
    *looks, output = map(json.loads, run(recipe, "--out", "run", "--no-measures", "--json").out.splitlines())
    assert output == {"out": "run"}
    assert looks[-1]["step"] == looks[-1]["steps"]
    assert {"loss", "tokens_per_second", "numbers", "sample"} <= looks[-1].keys()
    assert run(recipe, "--out", "quiet", "--no-measures", "--quiet") == (0, "", "")


def test_what_was_interrupted_goes_on_to_the_same_weights(recipe, run, monkeypatch):
    assert run(recipe, "--out", "whole", "--cache", "cache").code == 0
    monkeypatch.setattr(forming, "measures", stopping_at(4))
    monkeypatch.setattr("sys.argv", ["interp", "train", recipe, "--out", "cut"])
    code, _, error = run(recipe, "--out", "cut", "--cache", "cache")
    assert (code, error.count("\n")) == (130, 1)
    assert "the last good state is cut/state.safetensors, after step 2" in error
    assert error.endswith(f"go on with interp train {recipe} --out cut --resume\n")
    assert state.read(Path("cut/state.safetensors")).facts["step"] == 2
    monkeypatch.setattr(forming, "measures", lambda model: {})
    assert run(recipe, "--out", "cut", "--cache", "cache", "--resume").code == 0
    whole, cut = weights("whole"), weights("cut")
    assert all(torch.equal(whole[name], cut[name]) for name in whole)
    assert json.loads(Path("cut/run.json").read_text())["resumed_at"] == 2
    monkeypatch.setattr(forming, "measures", stopping_at(2))
    assert run(recipe, "--out", "none", "--set", "training.save_every=0").code == 130
    assert run(recipe, "--out", "none", "--no-measures").code == 0  # stopped before its first state, so it starts again


@pytest.fixture
def trained(recipe, run, tmp_path) -> dict[str, torch.Tensor]:
    """The weights of a run in `run`, next to a text that it did not learn."""
    assert run(recipe, "--out", "run", "--no-measures").code == 0
    (tmp_path / "other.txt").write_text("the dog ran to the old house and the cat sat on a hat\n" * 7)
    return weights("run")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--resume --set model.n_layers=2", "run was started with another recipe: model.n_layers was 1 and is"),
        ("--resume --set training.dropout=0", "training.dropout was 0.1 and is now 0.0; resume with run"),
        ("--resume --set data.book.path=other.txt", "the run was started with another"),
        ("", "run holds a run already: --resume continues it"),
    ],
)
def test_a_run_is_not_gone_on_with_as_another(recipe, trained, arguments, message, capsys):
    assert message in refusal(capsys, "train", recipe, "--out", "run", "--no-measures", *arguments.split())
    assert all(torch.equal(trained[name], weight) for name, weight in weights("run").items())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("tiny.toml --set training.wramup=1", "tiny.toml: [training] has no wramup; the nearest is warmup"),
        ("tiny.toml --set nonsense", "expected KEY=VALUE, such as model.n_layers=1, got 'nonsense'"),
        ("tiny.toml --resume", "nothing to resume: there is no run/state.safetensors"),
        ("tiny.toml --device abacus", "no device 'abacus' here"),
        ("defualt", 'no recipe "defualt"'),
        ("out.toml", "files get this name: expected at most 64 letters"),
    ],
)
def test_wrong_input_is_one_line_and_leaves_nothing(recipe, arguments, message, capsys, tmp_path):
    leading_out = {**TABLES, "data": {"../../../esc": TABLES["data"]["book"]}}
    Path("out.toml").write_text(tomli_w.dumps(leading_out))
    assert message in refusal(capsys, "train", *arguments.split(), "--out", "run")
    assert not Path("run").exists()
    assert not [*tmp_path.parent.glob("esc*")]


@pytest.mark.slow
def test_processes_of_torchrun_share_a_run_and_one_of_them_tells(recipe, run):
    alone = ["--set", "training.dropout=0", "--set", "phases.0.rows=4", "--no-measures"]
    assert run(recipe, "--out", "alone", *alone).code == 0
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    shared = [*start, "-m", "analyses.cli.app", "train", recipe, "--out", "shared", *alone, "--parallel", "ddp"]
    ended = subprocess.run(shared, check=False, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    lines = [line.split(":")[0] for line in ended.stdout.splitlines() if line.startswith(("step", "wrote"))]
    assert lines == ["step 2 of 6", "step 4 of 6", "step 6 of 6", "wrote shared"]
    torch.testing.assert_close(weights("shared"), weights("alone"), rtol=0, atol=1e-4)
    assert json.loads(Path("shared/run.json").read_text())["steps"] == 6


def test_a_training_whose_lines_nobody_reads_goes_on_to_its_end(recipe, run, monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", buffering=1) as nobody:
        monkeypatch.setattr(sys, "stdout", nobody)
        assert run(recipe, "--out", "run", "--no-measures").code == 0
    assert (Path("run") / "model.safetensors").exists()


def test_held_out_pairs_are_what_their_attention_is_measured_on(tmp_path, monkeypatch):
    (tmp_path / "words.tsv").write_text("word\tsounds\n" + "".join(f"w{number}\tA B\n" for number in range(20)))
    tables = TABLES | {"model": TABLES["model"] | {"kind": "encoder-decoder"}}
    tables |= {"data": {"words": {"kind": "pairs", "path": "words.tsv", "held_out": 0.4}}}
    (tmp_path / "pairs.toml").write_text(tomli_w.dumps(tables))
    options = {}
    monkeypatch.setattr(forming, "measures", lambda model, corpus: options.update(corpus=corpus) or {})
    training.train(str(tmp_path / "pairs.toml"), tmp_path / "run")
    held_out = recipes.read(tmp_path / "pairs.toml").data["words"].sides[1]
    assert [text.text for text in options["corpus"]] == [source for source, _ in held_out]


def test_a_directory_with_anything_of_anyone_else_is_refused_and_left_alone(recipe, trained, capsys):
    Path("run/state.safetensors").unlink()  # only the model remains
    Path("run/.film.part").write_text("mine")
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    for out in ("run", "."):  # the second has the user's own recipe
        line = refusal(capsys, "train", recipe, "--out", out)
        assert "which no unfinished training of interp left: choose another --out" in line
    assert {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()} == before


def test_another_process_a_damaged_recipe_no_torchrun_and_a_full_disk_are_a_line(recipe, trained, capsys, tmp_path):
    with holding(Path("new"), "trains in"):
        assert "another process trains in new: wait" in refusal(capsys, "train", recipe, "--out", "new")
    assert not Path("new").exists()
    Path("run/recipe.toml").write_bytes(b"\xff[")
    assert "run/recipe.toml is not readable as TOML" in refusal(capsys, "train", recipe, "--out", "run", "--resume")
    assert "start them by torchrun" in refusal(capsys, "train", recipe, "--out", "other", "--parallel", "ddp")
    with pytest.raises(InputError, match=r"cannot write .*run.json .*the model is beside it, whole"):
        training._write(tmp_path / "nowhere" / "run.json", "{}")
    assert not (tmp_path / "nowhere").exists()  # no folder without a model is made

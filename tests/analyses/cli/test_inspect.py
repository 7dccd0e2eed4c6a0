"""`interp inspect` prints a run's facts about one head, and every command its findings, as lines or JSON."""

import json
from pathlib import Path
from shutil import copytree

import numpy as np
import pandas as pd
import pytest
import tiny
from commands import command as typed
from commands import refusal

from analyses import report, runs
from analyses.cli import command_frame as frame
from analyses.cli import command_lines, inspection
from analyses.cli.next_commands import next_commands
from analyses.execution.provenance import digest
from analyses.experiments import EXPERIMENTS
from interp import InputError
from tests.analyses.headlines.hand_made_tables import head_at, write_run


@pytest.fixture(scope="module")
def position(position_report, tmp_path_factory) -> Path:
    """The report of attention by position, with a label for one head."""
    out = copytree(position_report, tmp_path_factory.mktemp("inspect") / "position")
    heads = out / "tables/heads.parquet"
    table = pd.read_parquet(heads)
    chosen = (table["layer"] == 1) & (table["head"] == 2) & (table["measure"] == "previous-token")
    table.loc[chosen, ["value", "baseline", "gain", "ci_low", "ci_high", "q"]] = 0.9, 0.1, 0.8, 0.7, 0.85, 0.001
    table.loc[chosen, "documents"] = 20
    table.to_parquet(heads)
    record = json.loads((out / "run.json").read_text())
    record["tables_sha256"]["heads"] = digest([heads.read_bytes()])
    record["first_head"] = "L1.H2"
    (out / "run.json").write_text(json.dumps(record))
    return out


def test_a_head_has_its_facts_and_rows_in_80_columns(position, capsys):
    code, out, wrong = typed(capsys, "inspect", str(position), "L1.H2")
    assert (code, wrong) == (0, "")
    assert all(len(line) <= inspection.COLUMNS for line in out.splitlines())
    facts, attention = out.split("Attention: the largest gains")
    assert "Looks there; an effect is not established" in facts
    assert "- L1.H2 looks at the token before with 90% of its attention; uniform attention" in facts
    assert "gain over uniform attention 0.800 (0.700 to 0.850); " in facts
    assert attention.splitlines()[2].split() == ["previous-token", "0.900", "0.100", "+0.800", "0.001"]
    quiet = typed(capsys, "inspect", str(position), "l0h0")[1]
    assert "No test of this head found anything." in quiet


def test_json_has_every_row_of_the_head_and_null_for_what_is_undefined(position, capsys):
    record = json.loads(typed(capsys, "inspect", str(position), "L1.H2", "--json")[1])
    heads = runs.read(position).table("heads")
    rows = heads.loc[(heads["layer"] == 1) & (heads["head"] == 2)]
    assert len(record["tables"]["heads"]) == len(rows) > 10
    assert [row["measure"] for row in record["tables"]["heads"]] == rows["measure"].tolist()
    assert record["tables"]["heads"][0]["reference"] is None
    assert (record["name"], record["model"], record["facts"][0]["kind"]) == ("L1.H2", "tiny", "looks there")
    assert record["facts"][0]["rows"]


def test_of_several_kinds_of_attention_one_is_named(tmp_path):
    kinds = [("encoder", "self"), ("decoder", "self"), ("decoder", "cross")]
    row = head_at(1, 0) | {"metric": "loss", "direction": "noise", "share": 0.5, "ci_low": 0.1, "ci_high": 0.2}
    rows = [
        row | {"q": np.nan, "stack": stack, "attention": attention, "effect": float(effect)}
        for effect, (stack, attention) in enumerate(kinds)
    ]
    run = runs.read(write_run(tmp_path / "run", cells=rows))
    with pytest.raises(InputError, match=r"say which of encoder\.L1\.H0, decoder\.L1\.H0, cross\.L1\.H0"):
        inspection.inspect(run, "L1.H0")
    head = inspection.inspect(run, "cross.L1.H0")
    assert head.name == "cross.L1.H0"
    assert head.rows["cells"]["effect"].tolist() == [2.0]
    assert any("+2.000" in line for line in head.lines())


def test_what_is_not_there_is_one_line(position, tmp_path, capsys):
    bare = write_run(tmp_path / "bare", pairs=[{"clean": "a"}])
    old = write_run(tmp_path / "old", heads=[head_at(0, 0) | {"behaviour": "position"}], tasks=[{"task": "repeat"}])
    for run, name, why in (
        (position, "L9.H0", "no head L9.H0: the last is decoder.L1.H2"),
        (position, "third", "expected a head as L3.H4"),
        (position, "cross.L0.H0", "no head cross.L0.H0: the last is decoder.L1.H2"),
        (bare, "L0.H0", "has no table of heads: it has pairs"),
        (old, "L0.H0", "is from an earlier interp, whose tables lack"),
    ):
        assert why in refusal(capsys, "inspect", str(run), name)


def test_a_causal_task_is_told_by_what_it_decides(tmp_path):
    row = head_at(0, 0) | {"task": "name-gender", "effect": 0.5, "ci_low": 0.1, "ci_high": 0.9, "q": 0.001}
    ways = [row | {"intervention": "noise"}, row | {"intervention": "denoise", "effect": 0.4}]
    out = write_run(tmp_path / "told", effects=ways, tasks=[{"task": "name-gender", "carried": "he/she"}])
    lines = [" ".join(line.split()) for line in inspection.inspect(runs.read(out), "L0.H0").lines()]
    assert lines[-2:] == [
        "he or she removed +0.500 +0.100 to +0.900 0.001",
        "he or she restored +0.400 +0.100 to +0.900 0.001",
    ]


def test_tables_of_experiments_name_no_heads_of_another_kind(tmp_path):
    """Those models have one stack, and their column `attention` is an amount."""
    rows = [{"layer": 0, "head": 0, "attention": 0.25}, {"layer": 0, "head": 1, "attention": 0.75}]
    out = write_run(tmp_path / "both", effects=[head_at(0, 0) | {"effect": 0.5}], adjectives=rows)
    head = inspection.inspect(runs.read(out), "L0.H0")
    assert head.place == ("decoder", "self", 0, 0)
    assert head.rows["adjectives"]["attention"].tolist() == [0.25]


def test_a_report_ends_in_its_sentences_and_its_path(position, capsys, monkeypatch):
    sentences = inspection.summary(runs.read(position))
    record = runs.read(position).facts
    assert " ".join(sentences) == " ".join([f"{record['headline']}.", *record["sentences"].values()])
    assert len(sentences) > 1
    monkeypatch.setattr(frame, "opened", lambda *_: tiny.model("gpt2"))
    monkeypatch.setattr(report, "build", lambda *_, **__: position)  # already measured and written
    arguments = "position", "--corpus", "stories:2", "--out", str(position)
    line = frame.folded(f"wrote {position}/report.html", "beside it run.json, tables/ and figures/")
    lines = [frame.filled(text) for text in sentences]
    lines += [line, f"open {(position / 'report.html').resolve().as_uri()}"]
    first, second = (command_lines(["interp", name, str(position), "L1.H2"], 6) for name in ("inspect", "card"))
    lines += [f"next: {first}", f"      {second}", ""]
    assert typed(capsys, *arguments) == (0, "\n".join(lines), "")
    output = json.loads(typed(capsys, *arguments, "--json")[1])
    assert output == {"out": str(position), "report": f"{position}/report.html", "said": sentences}
    assert typed(capsys, *arguments, "--quiet") == (0, "", "")


def test_no_card_is_offered_of_a_head_without_a_claim(tmp_path):
    folder = write_run(tmp_path / "none", heads=[{"layer": 0, "head": 1}])
    lines = next_commands("report", None, runs.read(folder), ["At best L0.H1 gets 3%."])
    assert lines == [f"next: {command_lines(['interp', 'inspect', str(folder), 'L0.H1'], 6)}"]


def test_three_sentences_are_said_then_of_own_measures_and_how_many_more_there_are_and_what_was_left_out(tmp_path):
    folder = write_run(tmp_path / "left", pairs=[{"clean": "a"}])
    record = json.loads((folder / "run.json").read_text())
    record["sentences"] = {name: f"{name} holds." for name in ("position", "a", "b", "coreference", "negation")}

    def summary(**more) -> list[str]:
        (folder / "run.json").write_text(json.dumps(record | more))
        return inspection.summary(runs.read(folder))

    three = [f"{name} holds." for name in ("position", "a", "b")]
    assert summary() == [*three, "2 more on the page."]
    refused = {"knight": {"left_out": {"pairs": 3}, "refused": {"stories": "too few"}}}
    facts = {"on_generated_text": ["coreference"], "not_asked": {"cost": "too short"}, "experiments": refused}
    assert summary(headline="Some", **facts) == [
        "Some.",
        *three,
        "negation holds.",
        "1 more on the page.",
        "Measured on generated tales, because the given text lacks the annotation: coreference.",
        f"Experiments not run: {EXPERIMENTS['cost'].title} (too short).",
        f"{EXPERIMENTS['knight'].title}: no result on prompts in the stories’ words: too few.",
    ]


def test_a_claim_is_drawn_as_a_picture(position, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, out, wrong = typed(capsys, "card", str(position), "L1.H2")
    name = "L1.H2-previous-token.png"
    assert (code, out.splitlines()[-1], wrong) == (0, f"wrote {name}", "")
    picture = (tmp_path / name).read_bytes()
    assert (int.from_bytes(picture[16:20]), int.from_bytes(picture[20:24])) == (1200, 630)  # of the PNG
    assert typed(capsys, "card", str(position), "L1.H2")[0] == 0  # our own file is replaced
    Path("mine.png").write_bytes(b"mine")
    assert typed(capsys, "card", str(position), "l1h2/previous-token", "--out", "a.svg")[0] == 0
    svg = (tmp_path / "a.svg").read_text("utf-8")
    for words in ("L1.H2 looks at the token before", "with 90%", "uniform attention", "interp ", "seed 0"):
        assert words in svg, words
    for arguments, why in (
        (["L0.H0"], "has no claim about L0.H0"),
        (["L1.H2/agreement"], "no claim 'L1.H2/agreement'"),
        (["L1.H2", "--out", "mine.png"], "interp did not write it"),
        (["L1.H2", "--out", "a.gif"], "ends in .png, .svg or .pdf"),
    ):
        assert why in refusal(capsys, "card", str(position), *arguments), why
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted([name, "a.svg", "mine.png"])

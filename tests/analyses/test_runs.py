"""Directories of runs are read as data: tables, joined tables, recipes, and one line if there is no run."""

import json
import re
from collections.abc import Callable
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny import LLAMA

from analyses import position, runs
from analyses.execution.provenance import SCHEMA
from analyses.page.sections import Page
from analyses.report.scaffold import write
from interp import AnnotatedText, InputError, Transformer, TransformerConfig
from interp.errors import InputWarning
from models.planted import Planted, offset, uniform

DELTAS = {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY"}
HEADS = pd.DataFrame({"layer": [0, 1], "gain": [0.5, float("nan")]})
MODELS = {"tiny": Transformer(TransformerConfig(decoder=LLAMA))}


@pytest.fixture
def leave(tmp_path: Path) -> Callable[..., Path]:
    """Write a run's directory as every command does, with given tables."""

    def write_run(name: str, seed: int = 0, models=MODELS, command: str = "interp report", **tables) -> Path:
        page = Page("What?", ["short"], [], tables={"heads": HEADS, **tables})
        write(tmp_path / name, lambda run: page, models, seed=seed, command=command)
        return tmp_path / name

    return write_run


def facts_of(out: Path, **changed) -> Path:
    """Change facts in run.json; None removes one."""
    facts = json.loads((out / "run.json").read_text()) | changed
    (out / "run.json").write_text(json.dumps({key: value for key, value in facts.items() if value is not None}))
    return out


def test_a_run_is_its_facts_and_its_tables(leave):
    cells = pd.DataFrame({"token": ["=1+1", "-", "@you", "a"], "effect": [-1.0, 2.0, 0.0, 1.0]})
    out = leave("report", seed=3, tokens=cells)
    run = runs.read(str(out))
    assert (run.name, run.model, run.seed, run.tables) == ("report", "tiny", 3, ["heads", "tokens"])
    pd.testing.assert_frame_equal(run.table("heads"), HEADS)
    pd.testing.assert_frame_equal(run.table("tokens"), cells)  # whatever a spreadsheet would make of such texts
    assert run.facts == json.loads((out / "run.json").read_text())
    with pytest.raises(InputError, match=rf'no table "labels" in {re.escape(str(out))}: it has heads, tokens'):
        run.table("labels")


def test_joined_tables_say_which_run_each_row_is_of(leave):
    """Existing columns keep their values, and runs with the same name are told apart by path."""
    a, b = leave("a/report", both=pd.DataFrame({"model": ["x"]})), leave("b/report", 1, {"other": MODELS["tiny"]})
    c = leave("c/training", models={}, both=pd.DataFrame({"run": ["one"], "step": [1]}))
    joined = runs.join([a, runs.read(b), c])
    table = joined.table("heads")
    assert list(table.columns) == ["run", "model", "seed", "layer", "gain"]
    rows = [("a/report", "tiny", 0), ("b/report", "other", 1), ("c/training", None, 0)]
    assert [*table[["run", "model", "seed"]].itertuples(index=False, name=None)][::2] == rows
    pd.testing.assert_frame_equal(table.loc[table["run"] == "b/report", HEADS.columns].reset_index(drop=True), HEADS)
    assert joined.about()["model_fingerprint"].str.len().tolist()[:2] == [64, 64]
    with pytest.warns(InputWarning, match='no table "both" in b/report'):
        extra = joined.table("both")
    assert extra[["run", "training_run"]].fillna("").to_numpy().tolist() == [["a/report", ""], ["c/training", "one"]]
    assert extra["model"].fillna("none").tolist() == ["x", "none"]


def test_what_cannot_be_joined_is_refused(leave):
    a, b = leave("one", tasks=pd.DataFrame({"task": []})), leave("two", tasks=pd.DataFrame({"task": ["repeat"]}))
    assert runs.join([a, b]).table("tasks").to_numpy().tolist() == [["two", "tiny", 0, "repeat"]]
    assert list(runs.join([a]).table("tasks").columns) == ["run", "model", "seed", "task"]
    with pytest.raises(InputError, match='no table "labels" in these runs: they have heads, tasks'):
        runs.join([a]).table("labels")
    with pytest.raises(InputError, match="one comes twice"):
        runs.join([a, b, a])
    for argument, got in (([], "none"), ("report", "report")):
        with pytest.raises(InputError, match=f"expected a list of at least one run, got {got}"):
            runs.join(argument)


def test_what_is_no_run_of_this_schema_is_one_line(leave, tmp_path):
    (damaged := leave("damaged")).joinpath("run.json").write_text("{")
    (nested := leave("nested")).joinpath("run.json").write_text('{"a":' * 100_000)
    (trained := leave("trained")).joinpath("metrics.jsonl").write_text("")
    read, again = f"and schema {SCHEMA} is read", "make it again, interp report"
    expected, as_left = "expected the output directory (--out)", "expected run.json, as every command leaves it"
    for out, message in (
        (facts_of(leave("earlier"), schema=None), f"written by an earlier interp, schema 0, {read}: {again}"),
        (facts_of(leave("later"), schema=SCHEMA + 1), f"by a later interp, schema {SCHEMA + 1}, {read}: update interp"),
        (facts_of(leave("foreign"), made_by="someone"), "its run.json is not one of interp's"),
        (tmp_path / "nowhere", f"no such directory; {expected}"),
        (tmp_path, f"no run.json is in it; {expected}"),
        (damaged, f"{as_left}, got"),
        (nested, f"{as_left}, got"),
        (trained, "a training run, which has no tables: interp over-training"),
    ):
        with pytest.raises(InputError, match=re.escape(message)) as refusal:
            runs.join([out])
        assert "\n" not in str(refusal.value)

    # an unfinished run gives a warning
    out = facts_of(leave("report"), unfinished="labels")
    with pytest.warns(InputWarning, match="is unfinished, without labels: make it again, interp report"):
        assert runs.read(out).tables == ["heads"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"seed": "0"}, r"expected a whole number as seed, got '0'"),
        ({"files": ["a", 1.5]}, "expected a list of names as files"),
        ({"versions": {"torch": "2"}}, "expected versions by package as versions"),
        ({"corpora": [{"name": "a"}]}, "expected names and hashes of corpora"),
        ({"command": 3}, "expected what was typed as command"),
        ({"name": ["a"]}, "expected the model's name, or none"),
        ({"schema": "1"}, "schema '1', and schema 1 is read"),
        ({"name": "\ud800"}, r"surrogates not allowed"),
    ],
)
def test_a_record_that_says_something_else_is_refused(leave, changed, message):
    with pytest.raises(InputError, match=message):
        runs.read(facts_of(leave("run"), **changed))


def test_a_table_that_is_not_as_it_was_written_is_refused(leave):
    out = leave("run")
    assert len(runs.read(out).table("heads")) == 2
    table = pd.DataFrame({"layer": [0, 1], "gain": [0.6, float("nan")]})
    table.to_parquet(out / "tables" / "heads.parquet")  # a valid table with another number
    why = r"heads\.parquet cannot be read \(it has changed since it was written\): make it again"
    with pytest.raises(InputError, match=why):
        runs.read(out).table("heads")
    assert len(runs.read(facts_of(out, tables_sha256=None)).table("heads")) == 2  # a run that recorded no hashes


def parquet(table: pa.Table, **options) -> bytes:
    content = BytesIO()
    pq.write_table(table, content, **options)
    return content.getvalue()


def many(content: bytes, rows: int, count: int) -> pa.Table:
    """A few bytes, so many times over."""
    cells = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([content.decode()]))
    return pa.table({f"column{number}": cells for number in range(count)})


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: parquet(many(b"a", 1 << 20, 70)), "it has 73,400,320 cells; the limit is 67,108,864"),
        (lambda: parquet(many(b"a" * 5_000, 1 << 18, 1)), "bytes of text; the limit is 1,073,741,824"),
        (lambda: parquet(many(b"a" * 5_000, 9, 1), compression="gzip"), "it is packed by GZIP: expected SNAPPY"),
        (lambda: parquet(pa.table({"a": [[1] * 9]})), "it has values of the kind list<"),
        (lambda: parquet(pa.table({"a": pa.array([b"ab"], pa.binary(2))})), "values of the kind fixed_size_binary"),
        (
            lambda: parquet(many(b"ab", 9, 1).cast(pa.schema({"column0": pa.string()})), **DELTAS),
            "Not yet implemented: DecodeArrow of DictAccumulator",
        ),
    ],
)
def test_a_small_file_of_a_huge_table_is_refused_before_it_is_read(make, expected, leave, monkeypatch):
    out, content = leave("report"), make()
    assert len(content) < 200_000
    (out / "tables/heads.parquet").write_bytes(content)
    facts_of(out, tables_sha256={"heads": sha256(content).hexdigest()})  # as a forger would state
    monkeypatch.setattr(pd, "read_parquet", lambda *_: pytest.fail("it was read"))
    with pytest.raises(InputError, match=rf"heads\.parquet cannot be read \(.*{expected}.*: make it again"):
        runs.read(out).table("heads")


def test_the_code_of_the_recipes_finds_what_was_planted(leave, tmp_path, monkeypatch):
    """docs/recipes.md: L0.H0 looks at the previous token, L0.H1 attends uniformly."""
    from page_code import blocks

    draw, words = Random(0), [f"w{number}" for number in range(31)]
    model = Planted(words, [[offset(-1), uniform]], n_ctx=40, start="<s>").build()
    for name in ("stories", "tales"):
        texts = [AnnotatedText.plain(" ".join(draw.choices(words, k=12)), f"{name} {number}") for number in range(20)]
        leave(name, heads=position.measure(model, texts))
    labels = [(0, "previous-token"), (1, "offset:-2"), (1, "first-token")]
    for seed, n_labels in enumerate((3, 2, 1)):
        table = pd.DataFrame(sorted(labels[:n_labels]), columns=["head", "label"])
        leave(f"seed-{seed}", seed, labels=table.assign(stack="decoder", attention="self", layer=0))
    names: dict[str, Any] = {}
    monkeypatch.chdir(tmp_path)
    for block in blocks("docs/recipes.md", "python"):
        exec(compile(block, "docs/recipes.md", "exec"), names)
    wide, planted = names["wide"].loc["previous-token"], ("decoder", "self", 0, 0)
    assert list(wide.columns) == ["stories", "tales"]
    assert wide["stories"].idxmax() == wide["tales"].idxmax() == planted
    assert names["both"].index[0] == ("previous-token", *planted)
    assert set(names["both"].index.get_level_values("head")) == {0}
    assert names["both"]["min"].iloc[0] == wide.loc[planted].min()
    by_seed = names["by_seed"].loc[("decoder", "self", 0, 1)].to_dict()
    assert by_seed == {0: "first-token, offset:-2", 1: "offset:-2", 2: ""}
    assert names["often"].loc[("decoder", "self", 0, 1, "offset:-2")] == 2
    assert list(names["steady"].index) == [(*planted, "previous-token")]

"""`interp circuit`: same numbers as plain calls, a choice without the reporting prompts, and refusals."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from commands import command, refusal
from pages import outside_addresses, page_of, unlisted
from worded import WORDS, random_worded, turns

from analyses import circuit as circuits
from analyses import patch as patching
from analyses import report
from analyses.cli import command_frame as frame
from analyses.execution.lots import Setting, Shards, using
from analyses.execution.progress import Stages
from analyses.execution.provenance import fingerprint
from analyses.page.wiring import edge_name, node_name, wiring
from analyses.report import task_circuits
from analyses.report.scaffold import Run
from interp import InputError, Transformer
from interp.circuits import Graph, faithfulness, from_edges, from_nodes
from interp.circuits.finding import edge_scores, node_attribution, single_edges
from interp.circuits.splits import share_of_difference
from interp.patching import Pairs, edge_attribution, logit_difference

MORE = ["cat", "man", "ran", "sat", "on", "by"]
SMALL = circuits.Settings(n_random=3, n_sizes=8)


def does(model: Transformer) -> pd.DataFrame:
    """Pairs that the model tells apart."""
    result = turns(model, [*WORDS, *MORE])
    rows = [(f"{best} {frame}", f"{worst} {frame}", *words, frame) for frame, best, worst, *words in result]
    return pd.DataFrame(rows, columns=["clean", "corrupt", "answer", "wrong", "template"])


def side(result: circuits.Found, name: str) -> Pairs:
    """The pairs that choose the circuit, or those that report on it."""
    return result.prompts.pairs.take(torch.tensor(np.flatnonzero(result.prompts.table["side"] == name)))


@pytest.fixture(scope="module")
def model() -> Transformer:
    return random_worded(*MORE)


@pytest.fixture(scope="module")
def prompts(model) -> circuits.Prompts:
    return prompts_from(model, does(model))


@pytest.fixture(scope="module")
def result(model, prompts) -> circuits.Found:
    return circuits.find(model, prompts, settings=SMALL)


def prompts_from(model: Transformer, table: pd.DataFrame, **options) -> circuits.Prompts:
    return circuits.prompts_of(patching.make_pairs(model, table, **options), table)


def circuit_in(table: pd.DataFrame, graph: Graph):
    return from_edges(graph, table.loc[table["in_circuit"], ["sender", "receiver"]].itertuples(index=False))


def test_the_curve_ends_at_nothing_and_at_all(result):
    for ranking, rows in result.curve.groupby("ranking"):
        assert rows["share"].is_monotonic_increasing
        whole = rows.iloc[-1]
        assert (whole["size"], whole["share"]) == (result.facts["of"], 1)
        assert whole["faithfulness"] == pytest.approx(1)
        assert (rows.loc[rows["size"] == 0, "faithfulness"].abs() < 1e-12).all()
        if ranking == "signed":  # the other ranking has nearly the same sizes
            assert whole["random"] == pytest.approx(1)
            assert (rows.loc[rows["size"] == 0, "random"].abs() < 1e-12).all()
    assert set(result.curve["ranking"]) == {"signed", "absolute"}


def test_a_run_that_goes_on_measures_nothing_twice(model, prompts, result, tmp_path):
    counts = []
    for _ in range(2):
        shards = Shards(tmp_path, "", {id(model): fingerprint(model)})
        with using(Setting(shards)):
            again = circuits.find(model, prompts, settings=SMALL)
        pd.testing.assert_frame_equal(again.edges, result.edges)
        pd.testing.assert_frame_equal(again.tests, result.tests)
        counts.append(shards.counts)
    assert counts[0]["written"] == counts[1]["read"] - counts[0]["read"] > 5
    assert counts[1]["written"] == 0


def test_the_circuit_is_that_of_plain_calls(model, result):
    graph = Graph.from_model(model)
    circuit = circuit_in(result.edges, graph)
    assert circuit.size == result.facts["size"] == result.circuit.size > 0
    cells = faithfulness(model, side(result, "reports"), logit_difference(), circuit)
    row = result.tests.set_index("test").loc["alone"]
    assert row["value"] == pytest.approx(float(cells.share()), abs=1e-10)
    chose = faithfulness(model, side(result, "chooses"), logit_difference(), circuit)
    groups = result.prompts.table.query("side == 'chooses'")["template"].tolist()
    lower = share_of_difference(chose.effects(), chose.difference(), groups).low
    assert lower[0] >= 0.9 or circuit.size == graph.n_edges
    scores = edge_scores(edge_attribution(model, side(result, "chooses"), logit_difference())).mean(-1)
    np.testing.assert_allclose(result.edges["score"], scores[graph.exists], atol=1e-12)
    assert result.facts["report"]["pairs"] == len(side(result, "reports"))


def test_a_template_is_on_one_side_and_without_a_column_it_is_the_words_that_do_not_vary(model, prompts, result):
    table = result.prompts.table
    assert (table.groupby("template")["side"].nunique() == 1).all()
    assert set(table["side"]) == {"chooses", "reports"}
    frames = prompts_from(model, does(model).drop(columns="template")).groups
    assert pd.factorize(pd.Series(frames))[0].tolist() == pd.factorize(table["template"])[0].tolist()
    pairs = does(model)[:5].drop(columns="template")
    assert prompts_from(model, pairs).groups == []  # each side needs three, so each pair is its own group


def test_tests_say_what_is_needed(model, result):
    tests = result.tests.set_index("test")
    assert {"alone", "without", "stable", "random"} <= {*tests.index}
    if "needed" in result.facts:
        members = result.edges.loc[result.edges["in_circuit"]]
        assert members["needed"].notna().all()
        assert result.edges.loc[~result.edges["in_circuit"], "needed"].isna().all()
        assert result.facts["needed"] == (members["needed_low"] > 0).sum()
        names = members["sender"] + " -> " + members["receiver"]
        (weakest,) = members.loc[names == tests.loc["minimality", "member"], "needed"]
        assert tests.loc["minimality", "value"] == weakest
    assert tests.loc["random", "ci_low"] <= tests.loc["random", "value"] <= tests.loc["random", "ci_high"]
    quick = circuits.find(model, result.prompts, settings=SMALL._replace(tests=False))
    assert {*quick.tests["test"]} == {"alone", "without", "stable", "random"}
    pd.testing.assert_frame_equal(quick.curve, result.curve)


@pytest.mark.parametrize("ablation", ["mean", "zero"])
def test_exact_scores_are_single_edges(model, prompts, ablation):
    result = circuits.find(model, prompts, "exact", ablation=ablation, settings=SMALL._replace(tests=False))
    one_by_one = single_edges(model, side(result, "chooses"), logit_difference(), ablation=ablation)
    exists = Graph.from_model(model).exists
    np.testing.assert_allclose(result.edges["score"], edge_scores(one_by_one).mean(-1)[exists], atol=1e-10)


def test_nodes_are_for_every_wiring_and_edges_are_not():
    model = random_worded(*MORE, wiring="post")
    prompts = prompts_from(model, does(model))
    with pytest.raises(InputError, match=r"norms follow the layers.*--method nodes"):
        circuits.find(model, prompts)
    result = circuits.find(model, prompts, "nodes", settings=SMALL)
    scores = node_attribution(model, side(result, "chooses"), logit_difference()).effects().mean(-1)
    np.testing.assert_allclose(result.edges["score"], scores, atol=1e-10)
    circuit = from_nodes(Graph.from_model(model), result.edges.loc[result.edges["in_circuit"], "sender"])
    cells = faithfulness(model, side(result, "reports"), logit_difference(), circuit)
    assert result.facts["alone"][0] == pytest.approx(float(cells.share()), abs=1e-10)
    assert not result.facts["areas"]  # which edges alone have


def test_exact_scores_tell_named_positions_apart(model):
    prompts = prompts_from(model, does(model), positions={"VERB": 1})
    with pytest.raises(InputError, match="only the method exact tells positions apart"):
        circuits.find(model, prompts)
    result = circuits.find(model, prompts, "exact", settings=SMALL._replace(tests=False))
    graph = Graph.from_model(model, positions=["VERB"])
    assert len(result.edges) == graph.n_edges
    assert set(result.edges["position"]) == {"VERB", "elsewhere"}
    reached = result.edges.loc[result.edges["score"].abs() > 1e-12]
    assert not ((reached["position"] == "VERB") & (reached["receiver"] == "logits")).any()  # read at the last token


@pytest.fixture
def folder(tmp_path, monkeypatch, model) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(frame, "opened", lambda *_: model)
    does(model).to_csv("pairs.csv", index=False)
    return tmp_path


def test_the_command_leaves_what_python_finds(folder, capsys, monkeypatch, result):
    monkeypatch.setattr(report.builders.circuits, "ALL", SMALL)
    monkeypatch.setitem(report.circuit.__kwdefaults__, "settings", SMALL)
    ended = command(capsys, "circuit", "--pairs", "pairs.csv")
    assert ended.code == 0
    facts = json.loads((folder / "circuit/run.json").read_text())
    assert all((folder / "circuit" / name).is_file() for name in facts["files"])
    for name, table in (("edges", result.edges), ("curve", result.curve), ("tests", result.tests)):
        stored = pd.read_parquet(folder / f"circuit/tables/circuit_{name}.parquet")
        assert set(stored.pop("task")) == {"pairs.csv"}
        pd.testing.assert_frame_equal(stored, table.drop(columns="task"), check_dtype=False)
    count = f"{result.facts['size']} of {result.facts['of']} edges"
    assert [text for text in (count, "%. Strongest: ") if text not in " ".join(ended.out.split())] == []
    page = page_of(folder / "circuit")
    assert count in page.text
    assert (outside_addresses(page), unlisted(page)) == ([], [])
    ids = {attrs.get("id") for _, attrs in page.tags}
    links = [(attrs["href"] or "")[1:] for tag, attrs in page.tags if tag == "a"]
    assert {link for link in links if link not in ids} == set()
    heads = {node_name(name) for name in result.edges.loc[result.edges["in_circuit"], "sender"] if name[0].isdigit()}
    assert heads <= set(links)  # a head's box links to its row
    lines = [attrs for tag, attrs in page.tags if tag == "path" and "stroke-width" in attrs]
    assert len(lines) == min(60, result.facts["size"])


CLEAN = "clean,corrupt,answer,wrong\n"


@pytest.mark.parametrize(
    ("arguments", "pairs", "words"),
    [
        ([], None, "expected --pairs FILE.csv or --task NAME"),
        (["--task", "agreement", "--pairs", "pairs.csv"], None, "not both"),
        (["--task", "typo"], None, "agreement"),
        (["--task", "agreement", "--position", "END=-1"], None, "--position applies to pairs in a file"),
        (["--pairs", "none.csv"], None, "no file none.csv"),
        (["--pairs", "pairs.csv", "--share", "1.5"], None, "above 0 and up to 1"),
        (["--pairs", "pairs.csv", "--position", "END=9"], None, "no position 9 for END"),
        (["--pairs", "pairs.csv", "--position", "END=-1"], None, "only the method exact"),
        (["--pairs", "few.csv"], "Tim saw,Sue saw,He,She\n", "all 1 pair are one group"),
        (["--pairs", "few.csv"], "Tim saw,Tim saw,He,She\n", "identical"),
        (["--pairs", "few.csv"], "<turned>", "no circuit of this task"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(folder, capsys, model, arguments, pairs, words):
    if pairs == "<turned>":  # the model does the opposite
        table = does(model).rename(columns={"answer": "wrong", "wrong": "answer"})
        table.to_csv("few.csv", index=False)
    elif pairs:
        (folder / "few.csv").write_text(CLEAN + pairs)
    assert words in refusal(capsys, "circuit", *arguments)
    assert not (folder / "circuit").exists()


def test_each_of_few_answers_has_to_be_given_more_often_than_by_a_coin(model):
    """The model gives one of two answers no more often than a coin, though most pairs have effects as expected."""
    table = pd.concat([does(model)] * 2, ignore_index=True)
    table.loc[len(table) // 2 :, ["clean", "corrupt"]] = table.loc[len(table) // 2 :, ["corrupt", "clean"]].to_numpy()
    table.loc[len(table) // 2 :, ["answer", "wrong"]] = table.loc[len(table) // 2 :, ["wrong", "answer"]].to_numpy()
    prompts = prompts_from(model, table)
    assert circuits.find(model, prompts, settings=SMALL._replace(tests=False)).circuit.size
    odd = table.index[len(table) // 2 :: 3]  # turn some of the second answer’s pairs
    table.loc[odd, ["clean", "corrupt"]] = table.loc[odd, ["corrupt", "clean"]].to_numpy()
    with pytest.raises(InputError, match="where that is"):
        circuits.find(model, prompts_from(model, table), settings=SMALL._replace(tests=False))


def test_a_model_without_output_is_refused(model, tmp_path):
    silent = Transformer(replace(model.config, output="none"), model.tokenizer)
    for prompts in (does(model), "agreement"):
        with pytest.raises(InputError, match="no output layer"):
            report.circuit(silent, prompts, tmp_path / "out")
    assert not (tmp_path / "out").exists()


EDGES = [
    {"sender": "embed", "receiver": "0.1.q", "score": 2.0},
    {"sender": "embed", "receiver": "0.1.v", "score": -1.0},
    {"sender": "0.1", "receiver": "mlp.0", "score": 0.5},
    {"sender": "mlp.0", "receiver": "logits", "score": 1.0},
]


def test_a_drawn_circuit_runs_upwards_and_says_what_it_draws():
    diagram = wiring(EDGES, "caption", with_rows=True)
    boxes = {box.name: box for box in diagram.boxes}
    assert [*boxes] == ["embedding", "L0.H1", "feed-forward 0", "logits"]
    heights = [box.y for box in diagram.boxes]
    assert heights == sorted(heights, reverse=True)
    assert max(box.x + box.width for box in diagram.boxes) <= diagram.width
    assert [line.helps for line in diagram.lines] == [True, False, True, True]
    widths = [line.width for line in diagram.lines]
    assert widths == pytest.approx([6, 3.5, 2.25, 3.5])  # at least 1 pixel, by size
    assert diagram.lines[1].name == "embedding → L0.H1 value: −1.000"
    assert diagram.ids == ["embedding", "L0.H1", "feed-forward-0", "logits"]
    assert [box.to for box in wiring(EDGES, "", with_rows=False).boxes] == ["", "L0.H1", "", ""]  # cards are of heads
    words = dict((name, text) for _, name, text in diagram.rows)
    assert words["L0.H1"].startswith("reads embedding → L0.H1 query (+2.000), embedding → L0.H1 value (−1.000); writes")


def test_nodes_in_words():
    words = {"encoder.0.3": "encoder.L0.H3", "decoder.cross.1.2": "cross.L1.H2", "1.4.k": "L1.H4 key", "token": "token"}
    words["decoder.mlp.1"] = "decoder feed-forward 1"
    assert {node: node_name(node) for node in words} == {node: edge_name({"sender": node}) for node in words} == words


def test_a_report_has_circuits_of_tasks_that_the_model_does(monkeypatch, model, prompts):
    rows = [{"task": name, "carried": name, "refused": None} for name in ("agreement", "repeat")]
    rows.append({"task": "name-gender", "carried": "he/she", "refused": "no better than a coin"})
    results = [SimpleNamespace(tested=SimpleNamespace(tasks=rows))]
    offered = {"agreement": prompts, "repeat": prompts_from(model, does(model)[:1])}
    monkeypatch.setattr(task_circuits.finding, "task_prompts", lambda model, task, **_: offered[task])
    monkeypatch.setattr(task_circuits, "_SMALL", SMALL._replace(tests=False))
    part = task_circuits.circuits(model, results, Run([], 0, Stages.to(None), print))
    assert [*part.facts["circuits"]] == ["agreement"]
    assert [*part.facts["circuits_refused"]] == ["repeat"]  # one pair cannot both choose and report
    assert part.tables["circuit_edges"]["in_circuit"].all()
    assert part.sections[0].id == "circuits"
    nothing = [SimpleNamespace(tested=SimpleNamespace(tasks=rows[2:]))]
    assert not task_circuits.circuits(model, nothing, Run([], 0, Stages.to(None), print)).sections

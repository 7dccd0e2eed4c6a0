"""Models side by side: planted heads that one has and the other lacks, disjoint halves, and the sentences."""

import json
import random
from dataclasses import replace
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
import torch
from commands import command
from pages import outside_addresses, page_of, unlisted
from repeats import WORDS, repeating_texts
from tiny import two_stacks

from analyses import figures, report
from analyses.compare import COMPARE_COLUMNS, Comparison, compare, names
from analyses.compare.compare_page import comparability, headline, is_clear, summary
from analyses.compare.comparison import best_heads
from analyses.corpora import Corpus
from analyses.corpora.in_memory import random_ids
from analyses.measures.definitions import Measure, Rival
from analyses.measures.head_tables import Collected, Heads, Scored
from benchmarks.planted.planted_texts import HE, SHE, Lexicon, meetings
from interp import AnnotatedText, InputError, Transformer
from interp.patterns import N_GROUPS, Totals
from interp.statistics import benjamini_hochberg
from models.planted import Plan, Planted, antecedent, induction, offset, same_token, uniform

HOSTILE = "<script>alert(1)</script>"
POSITION = ["position"]


def corpus(texts: list[AnnotatedText], *annotates: str, name: str = "texts") -> Corpus:
    return Corpus(name, "fake", frozenset(annotates), "0" * 64, lambda: iter(texts))


def planted(*layers: list[Plan], n_ctx: int = 110) -> Transformer:
    return Planted(WORDS, layers, n_ctx=n_ctx, start="<s>").build()


COPYING = [offset(-1, remember=True), uniform], [induction(), same_token]


@pytest.fixture(scope="module")
def copying() -> Transformer:
    """L0.H0 looks at the previous token, L1.H0 is the induction head that reads it, and L1.H1 looks at copies."""
    return planted(*COPYING)


@pytest.fixture(scope="module")
def forgetful() -> Transformer:
    """L0.H0 and L2.H0 look at the previous token; nothing copies."""
    return planted([offset(-1), uniform], [uniform, uniform], [offset(-1), uniform])


@pytest.fixture(scope="module")
def texts() -> Corpus:
    return corpus(repeating_texts(40))


@pytest.fixture(scope="module")
def result(copying, forgetful, texts) -> Comparison:
    return compare({"copying": copying, "forgetful": forgetful}, [texts], behaviours=POSITION)


def row(result: Comparison, measure: str, model: str) -> dict:
    rows = result.table.loc[(result.table["measure"] == measure) & (result.table["model"] == model)]
    (only,) = rows.to_dict("records")
    return only


def test_a_head_that_only_one_model_has_is_found_counted_placed_and_missed(result):
    has, lacks = row(result, "induction", "copying"), row(result, "induction", "forgetful")
    assert (has["layer"], has["head"], has["depth"]) == (1, 0, 1.0)
    assert has["value"] == pytest.approx(1.0, abs=1e-4)
    assert (has["n_heads"], has["mean_depth"]) == (1, 1.0)
    assert (lacks["n_heads"], np.isnan(lacks["mean_depth"])) == (0, True)
    assert lacks["difference"] == pytest.approx(lacks["gain"] - has["gain"])
    assert lacks["difference_high"] < -0.85  # texts agree, but the interval leaves room for one that differs
    assert is_clear(lacks)
    assert np.isnan([has["difference"], has["p"], has["q"], has["value_q"]]).all()
    # heads of the same kind match wherever they are

    first, second = (row(result, "previous-token", model) for model in ("copying", "forgetful"))
    assert (first["n_heads"], first["mean_depth"]) == (1, 0.5)
    assert (second["n_heads"], second["mean_depth"]) == (2, pytest.approx((1 / 3 + 1) / 2))
    assert second["difference"] == pytest.approx(0.0, abs=1e-6)


def test_the_table_holds_derived_values_differences_and_q_of_all_that_it_tests(result):
    # every text has each word three times: the second and third put half and two thirds on earlier copies
    assert row(result, "duplicate-token", "copying")["value"] == pytest.approx((1 / 2 + 2 / 3) / 2, abs=1e-4)
    rows = result.table.dropna(subset=["difference"])
    reference = result.table.loc[result.table["model"] == "copying"].set_index("measure")
    for value, difference in (("gain", "difference"), ("value", "value_difference")):
        expected = rows[value].to_numpy() - reference.loc[rows["measure"], value].to_numpy()
        np.testing.assert_allclose(rows[difference], expected, atol=1e-12)
    assert len(rows) == (rows["difference"].between(rows["difference_low"], rows["difference_high"])).sum() > 0
    q = benjamini_hochberg(np.concatenate([result.table["p"], result.table["value_p"]]))
    np.testing.assert_allclose(np.concatenate([result.table["q"], result.table["value_q"]]), q)
    assert list(result.table.columns) == COMPARE_COLUMNS
    more_is_no_better = {"entropy", "distance"}
    assert not more_is_no_better & set(result.table["measure"])
    assert more_is_no_better <= set(result.heads["measure"])


def test_a_model_beside_itself_differs_by_exactly_nothing(copying, texts):
    table = compare({"one": copying, "other": copying}, [texts], behaviours=POSITION).table
    rows = table.loc[table["model"] == "other"]
    assert len(rows) > 5
    assert (rows[["difference", "difference_low", "difference_high", "value_difference"]] == 0).all(axis=None)
    assert (rows[["p", "q", "value_p", "value_q"]] == 1).all(axis=None)


def test_the_other_order_flips_the_sign_and_nothing_else(result, copying, forgetful, texts):
    swapped = compare({"forgetful": forgetful, "copying": copying}, [texts], behaviours=POSITION)
    forth = result.table.dropna(subset=["difference"]).set_index("measure")
    back = swapped.table.dropna(subset=["difference"]).set_index("measure").loc[forth.index]
    assert set(back["model"]) == {"copying"}
    for name, flipped in (("difference", "difference"), ("difference_low", "difference_high")):
        np.testing.assert_allclose(back[name], -forth[flipped], atol=1e-9)
    np.testing.assert_allclose(back["p"], forth["p"], atol=1e-9)


def test_heads_are_chosen_on_one_half_of_the_documents_and_reported_on_the_other():
    """Head 0 is best in even groups, head 1 in odd ones: even groups choose head 0, odd ones report on it."""
    totals = Totals.empty(3, 1)  # two heads and a baseline
    totals.scores[0::2, 0], totals.scores[1::2, 0] = 0.9, 0.1
    totals.scores[0::2, 1], totals.scores[1::2, 1] = 0.2, 0.8
    totals.scores[:, 2] = 0.05
    totals.weights += 1
    totals.rows += 1
    scored = [Scored(totals, [Measure("previous-token", rivals=[Rival("uniform", None)])], "kept")]
    collected = Collected(Heads("decoder", 2, 1), "position", "texts", scored, {}, N_GROUPS)
    best = best_heads(collected)["previous-token"]
    assert best.columns["head"] == 0
    total, weight = best.value
    assert total.sum() / weight.sum() == pytest.approx(0.1)
    assert (total[0::2] == 0).all()
    assert best.columns["n"] == N_GROUPS // 2
    only_odd = replace(collected, scored=[replace(scored[0], totals=totals.of(torch.arange(N_GROUPS) % 2 == 1))])
    assert best_heads(only_odd) == {}


def test_a_baseline_that_is_a_number_counts_only_where_something_was_read():
    totals = Totals.empty(1, 1)
    totals.scores[:6], totals.weights[:6], totals.rows[:6] = 0.5, 1, 1
    scored = [Scored(totals, [Measure("positional-head", rivals=[Rival("untrained heads", 0.2)])], "kept")]
    best = best_heads(Collected(Heads("decoder", 1, 1), "position", "texts", scored, {}, 6))["positional-head"]
    assert np.flatnonzero(best.baseline[1]).tolist() == [1, 3, 5]
    assert best.baseline.sum(1).tolist() == [pytest.approx(0.6), 3]


# Behaviours that not every model can show.


@pytest.fixture(scope="module")
def met() -> tuple[Lexicon, Corpus]:
    lexicon = Lexicon.draw(random.Random(0))
    return lexicon, corpus(meetings(lexicon, 48), "tags", "relations", "chains", name="meetings")


def follower(lexicon: Lexicon, n_ctx: int) -> Transformer:
    genders = dict.fromkeys(HE, lexicon.masculine) | dict.fromkeys(SHE, lexicon.feminine)
    return Planted(lexicon.vocabulary, [[antecedent(genders, {})], [uniform]], n_ctx=n_ctx).build()


def test_what_cannot_be_measured_in_one_model_is_said_and_the_others_go_on(met, tmp_path):
    lexicon, text = met
    models = {"long": follower(lexicon, 64), f"short {HOSTILE}": follower(lexicon, 4), "again": follower(lexicon, 64)}
    out = report.compare(models, [text], tmp_path / "out", behaviours=["position", "coreference"])
    table = pd.read_parquet(out / "tables" / "compare.parquet")
    rows = table.loc[table["measure"] == "antecedent"].set_index("model")
    assert set(rows.index) == {"long", "again"}
    assert rows.loc["long", "value"] == pytest.approx(1.0)
    assert rows.loc["again", "difference"] == 0
    assert set(table.loc[table["measure"] == "previous-token", "model"]) == set(models)
    page = page_of(out)
    assert f"Not measured in short {HOSTILE}: the corpus has no pronoun" in page.text
    facts = json.loads((out / "run.json").read_text())
    assert list(facts["models"][1]["not_measured"]) == ["coreference"]
    # without the reference's number, others have no difference
    result = compare({"short": follower(lexicon, 4), "long": models["long"]}, [text])
    only = row(result, "antecedent", "long")
    assert only["value"] == pytest.approx(1.0)
    assert np.isnan([only["difference"], only["p"], only["q"]]).all()


def test_plain_text_leaves_out_what_needs_annotation_and_says_so(met, tmp_path):
    lexicon, _ = met
    plain = corpus(meetings(lexicon, 24), name="plain")
    models = {"one": follower(lexicon, 64), "other": follower(lexicon, 64)}
    out = report.compare(models, [plain], tmp_path, behaviours=["position", "coreference"])
    reason = "it needs coreference chains, and plain has no annotation"
    assert f"Not compared by Coreference: {reason}" in " ".join(page_of(out).text.split())
    facts = json.loads((out / "run.json").read_text())
    assert [reason in each["not_measured"]["coreference"] for each in facts["models"]] == [True, True]
    assert [each["measured"] for each in facts["corpora"]] == [["position"]]
    with pytest.raises(InputError, match=reason):
        compare(models, [plain], behaviours=["coreference"])


@pytest.mark.parametrize(
    ("others", "read", "behaviours", "says"),
    [
        ({}, "texts", None, "at least two models to compare, the reference first; got 1: one"),
        ({"two": "copying"}, "texts", ["colour"], "no behaviour colour"),
        ({"two": "mute"}, "texts", ["position", "coreference"], "two has no tokenizer, and coreference is about words"),
        ({"two": "both"}, "texts", None, r"one stack, but two has an encoder .*: .*`interp report`"),
        ({"two": "copying"}, "nothing", POSITION, "holds no text"),
        ({"two": "copying"}, "damaged", POSITION, "^line 7"),  # the text is faulty, not the models
        ({"two": "reader"}, "meetings", POSITION, r"two of the models\. one: .* unknown to this model's tokenizer"),
    ],
)
def test_what_is_wrong_with_the_request_is_one_line(copying, texts, met, others, read, behaviours, says):
    def damaged():
        yield repeating_texts(1)[0]
        raise InputError("line 7: expected ten columns")

    lexicon, meeting = met
    mute = planted([uniform])
    mute.tokenizer = None
    models = {"copying": copying, "mute": mute, "both": two_stacks("original"), "reader": follower(lexicon, 64)}
    corpora = {"texts": texts, "nothing": corpus([]), "meetings": meeting}
    corpora["damaged"] = Corpus("broken", "fake", frozenset(), "0" * 64, damaged)
    with pytest.raises(InputError, match=says):
        compare(
            {"one": copying} | {name: models[kind] for name, kind in others.items()},
            [corpora[read]],
            behaviours=behaviours,
        )


def test_where_a_model_has_no_tokenizer_all_read_the_same_ids_for_position_alone(copying, texts):
    mute = planted(*COPYING)
    mute.tokenizer = mute.target_tokenizer = None
    result = compare({"worded": copying, "mute": mute}, [texts])
    assert [each.corpus.name for each in result.used] == [random_ids(mute).name]
    assert {*result.table["behaviour"]} == {"position"}
    best = result.table.set_index(["measure", "model"])
    assert best.loc[("induction", "worded"), "value"] == best.loc[("induction", "mute"), "value"] > 0.5
    assert (result.table.loc[result.table["model"] == "mute", "difference"].abs() < 1e-12).all()  # the same weights
    assert result.by_ids
    assert result.unserved["coreference"] == "mute has no tokenizer, so all models read token ids"


# The page, the figures and the command.


def test_a_comparison_is_complete_and_its_page_says_which_heads_one_model_lacks(copying, forgetful, texts, tmp_path):
    models = {f"{HOSTILE} & one": copying, "forgetful": forgetful}
    out = report.compare(models, [texts], tmp_path / "out", behaviours=POSITION, command="interp compare")
    facts = json.loads((out / "run.json").read_text())
    files = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    tables = {f"tables/{name}.{kind}" for name in ("compare", "heads") for kind in ("csv", "parquet")}
    pictures = {f"figures/compare-gains.{kind}" for kind in ("svg", "png")}
    assert {"report.html", "run.json"} | tables | pictures == files == set(facts["files"])
    assert facts["reference"] == facts["models"][0]["name"] == f"{HOSTILE} & one"
    assert facts["models"][0]["left_out"]["position"]["texts"] == 40
    (text,) = facts["corpora"]
    assert (text["sha256"], text["documents"]) == ("0" * 64, 40)
    assert 0 < text["reporting_documents"] < 40
    page = page_of(out)
    text = " ".join(page.text.split())
    assert f"Only {HOSTILE} & one has heads for: same token, induction." in text
    assert (unlisted(page), outside_addresses(page)) == ([], [])
    images = [attrs for tag, attrs in page.tags if tag == "img"]
    assert len(images) == 1
    assert "induction" in (images[0]["alt"] or "")
    cells = {str(attrs["id"]): attrs for tag, attrs in page.tags if (attrs.get("id") or "").startswith("model-")}
    assert len(cells) == 10
    marking = {id: (attrs.get("data-marks") or "").split() for id, attrs in cells.items()}
    heads = pd.read_parquet(out / "tables" / "heads.parquet").query("shows and model == 'forgetful'")
    assert set().union(*(marks for id, marks in marking.items() if id.startswith("model-1"))) <= {
        f"model-2/L{row['layer']}.H{row['head']}" for row in heads.to_dict("records")
    }
    copier = cells["model-1/L1.H0"]  # the other model lacks it
    assert (copier["class"], copier.get("data-marks")) == ("word position", None)
    assert "L1.H0, induction" in text
    assert "forgetful: none" in text


def test_in_short_a_difference_is_said_where_a_head_shows_it_and_it_was_tested_and_found(result):
    (only,) = summary(headline(result.table).assign(n_heads=0), "forgetful")
    assert only.startswith("No head of either model shows")
    assert "clearly less on 2" in " ".join(summary(result.table, "forgetful"))
    chance = result.table.assign(difference_low=-0.9, difference_high=0.9, q=0.9)
    for table in (chance, result.table.assign(q=np.nan)):
        sentences = " ".join(summary(table, "forgetful"))
        assert "has heads for:" not in sentences
        assert "same token, induction, but the best heads of the two cannot be told apart." in sentences


def test_what_models_do_not_share_is_said():
    model = {"name": "A", "fingerprint": "1", "tokenizer": "t", "context": 64, "causal": True}
    twin, encoder = model | {"name": "B"}, model | {"name": "C", "fingerprint": "2", "tokenizer": "u", "causal": False}
    longer = model | {"name": "D", "fingerprint": "3", "context": 128}
    notes = comparability([model, twin, encoder, longer])
    assert [note.split(":")[0] for note in notes] == ["B", "C", "D", "C"]
    assert "the same model" in notes[0]
    assert "a different tokenizer" in notes[1]
    assert "different windows" in notes[2]
    assert "sees what comes after" in notes[3]
    assert comparability([model, model | {"name": "E", "fingerprint": "4"}]) == []
    assert comparability([model | {"fingerprint": None}, model | {"name": "E", "fingerprint": None}]) == []


def test_figures_draw_what_the_tables_say(result):
    rows = headline(result.table)
    left, right = figures.compared_gains(rows).axes
    for ax, column in ((left, "gain"), (right, "difference")):
        values = np.concatenate([line.get_xdata() for line in ax.lines if line.get_marker() in {"o", "D"}])
        np.testing.assert_allclose(sorted(values), sorted(rows[column].dropna()))
    assert {"L1.H0", "L0.H0"} <= {text.get_text() for text in left.texts}
    assert left.get_xlim() == right.get_xlim()


def test_names_of_heads_and_long_names_of_models_stand_apart_in_the_figure(result):
    rows, forgetful = headline(result.table), headline(result.table).query("model == 'forgetful'")
    long = [f"{'trained-on-everything-' * 2}{middle}{'-with-a-long-name' * 2}" for middle in ("a", "b")]
    table = pd.concat([rows, *(forgetful.assign(model=name) for name in long)]).sort_values("measure", kind="stable")
    figure = figures.compared_gains(table)
    figure.draw_without_rendering()
    notes = [text.get_window_extent() for ax in figure.axes for text in ax.texts]
    assert len(notes) == len(table)
    assert not any(a.overlaps(b) for a, b in combinations(notes, 2))
    key = figure.legends[0]
    assert len({text.get_text() for text in key.get_texts()}) == 4
    assert figure.bbox.x0 <= key.get_window_extent().x0 < key.get_window_extent().x1 <= figure.bbox.x1


def test_models_are_called_by_their_directory_or_as_typed_and_duplicates_numbered(tmp_path):
    for folder in ("runs/a/last", "runs/b/last"):
        (tmp_path / folder).mkdir(parents=True)
    typed = [str(tmp_path / "runs/a/last"), f"{tmp_path}/runs/b/last/", "default", "org/name", "default", "default"]
    assert names(typed) == ["last", "last (2)", "default", "org/name", "default (2)", "default (3)"]


@pytest.mark.slow
def test_the_command_compares_and_names_what_it_wrote(tmp_path, capsys):
    out = tmp_path / "out"
    ended = command(capsys, "compare", "default", "default", "--corpus", "stories:12", "--out", str(out), "--seed", "2")
    assert not ended.code
    assert f"wrote {out / 'report.html'}" in ended.out
    facts = json.loads((out / "run.json").read_text())
    assert [*(model["name"] for model in facts["models"]), facts["seed"]] == ["default", "default (2)", 2]
    table = pd.read_parquet(out / "tables" / "compare.parquet")
    assert set(table["behaviour"]) == {"position", "part-of-speech", "coreference"}
    assert (table["difference"].dropna() == 0).all()
    assert "Fewer than 20 documents report" in page_of(out).text

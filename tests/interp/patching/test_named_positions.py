"""One file gives one set of numbers, and named cells equal those of a whole sweep, prompt by prompt."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from torch.testing import assert_close
from worded import ROWS, table, worded

from interp import InputError
from interp import patching as p
from interp.errors import InputWarning
from interp.patching.pair_files import read_columns
from models import load

AXES = ("layer", "head", "position")
COLUMNS = [[row[column] if column < 2 else f" {row[column]}" for row in ROWS] for column in range(4)]


def setting(**positions) -> tuple:
    model = worded()
    places = {"NAME": [0, 3, 1, 1], "END": -1, **positions}
    return model, p.Pairs.from_texts(model, *COLUMNS, positions=places)


def of_names(values, pairs):
    """Each prompt's named columns of values by position."""
    parts = [torch.stack([values[..., int(p), i] for i, p in enumerate(row)], -1) for row in pairs.positions.values()]
    return torch.stack(parts, -2)


def test_one_file_gives_one_set_of_pairs(tmp_path):
    model, file = load("default"), tmp_path / "pairs.csv"
    file.write_text("clean,corrupt,answer,wrong\nLily was sad because,Tim was sad because,she,he\n")
    read = p.Pairs.from_csv(model, file)
    typed = [["Lily was sad because"], ["Tim was sad because"]]
    assert_close(read.right, p.Pairs.from_texts(model, *typed, [" she"], [" he"]).right)
    with pytest.warns(InputWarning, match="'she' follows 'because' without a space, as 'becauseshe'"):
        glued = p.Pairs.from_texts(model, *typed, ["she"], ["he"])
    assert int(glued.right) != int(read.right)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_close(p.Pairs.from_csv(model, file, as_typed=True).right, glued.right)
    columns = {"clean": typed[0], "corrupt": typed[1], "answer": ["shee"], "wrong": ["he"]}
    with pytest.warns(InputWarning, match=r"' shee' has 2 pieces, ' she' \+ 'e', and only ' she' is scored: check the"):
        assert_close(p.Pairs.from_columns(model, columns).right, read.right)
    columns["answer"] = ["jumping"]
    with pytest.warns(InputWarning, match="or write ' jumping'"):
        p.Pairs.from_columns(model, columns, as_typed=True)


@pytest.mark.parametrize("twice", ["clean", "position:S"])
def test_a_column_that_is_there_twice_is_refused_and_one_that_nobody_reads_is_not(tmp_path, twice):
    file, rows = tmp_path / "p.csv", ["clean,corrupt,answer,wrong,position:S,note,note,,", "a b,c b,he,she,0,1,2,,"]
    file.write_text("\n".join(rows))
    assert read_columns(file)["clean"] == ["a b"]
    file.write_text(f"{rows[0]},{twice}\n{rows[1]},d b\n")
    with pytest.raises(InputError, match=f"p.csv has the column {twice} twice: expected one"):
        read_columns(file)


def test_words_spans_and_functions_name_tokens_of_each_prompt():
    places = {"WORD": ["Tim"] * 4, "ALL": "saw", "SPAN": [(0, 3), (4, 7), (0, 3), (8, 11)], "F": lambda text: (0, 1)}
    _, pairs = setting(**places)
    positions = {name: tensor.tolist() for name, tensor in pairs.positions.items()}
    assert positions.pop("NAME") == positions.pop("WORD") == [0, 3, 1, 1]
    assert positions == {"END": [1, 3, 2, 3], "ALL": [1, 2, 0, 2], "SPAN": [0, 1, 0, 1], "F": [0] * 4}


def test_a_column_of_positions_may_hold_numbers():
    texts = dict(zip(("clean", "corrupt", "answer", "wrong"), COLUMNS, strict=True))
    for places in (["0", "Tim", " 1", "-3"], pd.Series([0, 3, 1, -3]), np.array([0, 3, 1, -3])):
        pairs = p.Pairs.from_columns(worded(), {**texts, "position:NAME": places})
        assert pairs.positions["NAME"].tolist() == [0, 3, 1, 1]
    for odd in (1.5, float("nan"), None):
        with pytest.raises(InputError, match=f"'{odd}', the place of NAME, is no word of"):
            p.Pairs.from_columns(worded(), {**texts, "position:NAME": [0, 3, 1, odd]})


def test_named_cells_are_those_of_a_whole_sweep():
    model, pairs = setting()
    whole = p.Pairs.from_texts(model, *COLUMNS)
    for site, by in (("z", AXES), ("resid_pre", ("layer", "position")), ("mlp.pre", ("layer", "position"))):
        cells = p.sweep(model, pairs, p.logit_difference(), site, by)
        expected = p.sweep(model, whole, p.logit_difference(), site, by).values["logit_difference"]
        assert cells.positions == ("NAME", "END")
        assert_close(cells.values["logit_difference"], of_names(expected, pairs))
        assert_close(p.sweep_by_forward(model, pairs, p.logit_difference(), site, by).values, cells.values)
    lost = p.ablate(model, pairs, p.logit_difference(), "z", AXES, "zero").effects()
    assert_close(lost, of_names(p.ablate(model, whole, p.logit_difference(), "z", AXES, "zero").effects(), pairs))
    guesses = [p.attribution_patching(model, each, p.logit_difference(), {"z": AXES})["z"] for each in (pairs, whole)]
    assert_close(guesses[0].effects(), of_names(guesses[1].effects(), pairs))
    top = p.top_cells(model, pairs, p.logit_difference(), "z", 1, by=AXES)
    effects = p.sweep(model, pairs, p.logit_difference(), "z", AXES).effects().mean(-1)
    assert effects[top.cells[0]].abs() == effects.abs().max()


@pytest.mark.filterwarnings("ignore:no shares")
def test_names_of_one_token_are_one_cell_and_one_test():
    (model, once), (_, twice) = setting(), setting(WORD=["Tim"] * 4)  # the same token as NAME
    arguments = model, twice, p.logit_difference()
    tables = [p.sweep(model, pairs, p.logit_difference(), "z", AXES).table() for pairs in (once, twice)]
    assert {*tables[1]["position"]} == {"NAME=WORD", "END"}
    pd.testing.assert_frame_equal(*(table.drop(columns="position") for table in tables))
    results = [p.sweep_by_forward(*arguments, "z", AXES), p.attribution_patching(*arguments, {"z": AXES})["z"]]
    results += [p.top_cells(*arguments, "z", 1, by=AXES), p.ablate(*arguments, "z", AXES, "zero")]
    assert {cells.positions for cells in results} == {("NAME=WORD", "END")}


def test_names_that_part_in_one_prompt_are_two_cells_in_every_part_of_a_sweep(monkeypatch):
    """With little memory, a sweep reads prompts in parts; names may share a position in one part but not in another."""
    arguments = *setting(OTHER=[0, 3, 1, 2]), p.logit_difference(), "resid_pre", ("layer", "position")
    whole = p.sweep(*arguments)
    assert whole.positions == ("NAME", "END", "OTHER")
    monkeypatch.setattr("interp.patching.sweeps.shares", lambda *_: (1, 1 << 30))
    assert_close(p.sweep(*arguments).values, whole.values)


def test_paths_lead_to_named_positions():
    model, pairs = setting(WORD=["Tim"] * 4)
    for by in (AXES, AXES[:2]):
        receivers = [p.Receiver("k", 1, 0, position="WORD"), p.Receiver("q", 1, 1, position="END")]
        arguments = model, pairs, p.logit_difference(), receivers, "z", by
        assert_close(p.path_patch(*arguments).values, p.path_patch_by_forward(*arguments).values)
    with pytest.raises(InputError, match="the pairs name NAME, END"):
        p.path_patch(model, pairs, p.logit_difference(), [p.Receiver("k", 1, 0, position="S2")])


@pytest.mark.parametrize(
    ("place", "says"),
    [("dog", "is no word of"), (9, "no position 9"), ([1, 2], "got 2"), ((50, 60), "no token of")],
)
def test_a_place_that_a_prompt_has_not_is_one_line(place, says):
    with pytest.raises(InputError, match=says):
        setting(X=place)


def test_braces_in_a_column_name_tokens_and_every_row_has_them():
    model = worded()
    rows = [("{S:Tim} saw", "Sue saw", "He", "She"), ("the dog saw {S:Tim}", "the dog saw Sue", "He", "She")]
    assert p.Pairs.from_columns(model, table(rows).to_dict("list")).positions["S"].tolist() == [0, 3]
    with pytest.raises(InputError, match="no S is marked in 'Tim saw'"):
        p.Pairs.from_columns(model, table([*rows, ("Tim saw", "Sue saw", "He", "She")]).to_dict("list"))
    with pytest.raises(InputError, match="mark the clean prompt alone"):
        p.Pairs.from_columns(model, table([("Tim saw", "{S:Sue} saw", "He", "She")]).to_dict("list"))


def test_names_do_not_align_the_two_prompts_of_a_pair_and_the_error_says_so():
    with pytest.raises(InputError, match=r"are 2 and 3 tokens long; .*named positions align one pair with another"):
        p.Pairs.from_texts(worded(), ["Tim saw"], ["the dog saw"], [" He"], [" She"], positions={"END": -1})


@pytest.mark.parametrize(("header", "words"), [("clean,corrupt,answer", "the column wrong"), ("clean", "the columns")])
def test_columns_that_a_file_lacks_are_named(tmp_path, header, words):
    (file := tmp_path / "pairs.csv").write_text(f"{header}\n")
    with pytest.raises(InputError, match=words):
        read_columns(file)

"""Each figure draws each row of its table once, by its content and not its place, or one line says why not."""

from collections.abc import Callable, Mapping
from itertools import product
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib._pylab_helpers import Gcf
from matplotlib.collections import PathCollection, QuadMesh
from matplotlib.figure import Figure

from analyses import figures
from interp import InputError

INTERVAL = {"ci_low": 0.05, "ci_high": 0.9, "q": 0.01, "n": 7}
WHERE = {"stack": "decoder", "attention": "self"}


def cross(**columns: Any) -> pd.DataFrame:
    """A row for each combination of listed values, in order; other columns have one value."""
    lists = {name: values for name, values in columns.items() if isinstance(values, list)}
    return pd.DataFrame([columns | dict(zip(lists, each, strict=True)) for each in product(*lists.values())])


def rising(table: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """The table with values from 0.1 to 0.8, different in all rows."""
    return table.assign(**{column: np.linspace(0.1, 0.8, len(table)) for column in columns})


HEADS = {**WHERE, "layer": [0, 1], "head": [0, 1, 2]}
GAINS = rising(
    cross(**HEADS, measure=["distance", "induction"], sink=["kept", "removed"], baseline=0.1, baseline_name="uniform")
    .assign(**INTERVAL)
    .assign(behaviour="position", corpus="text", unit="share", together="", readings="kept", documents=20, fewest=5)
    .assign(reference=np.nan, reference_gain=np.nan, reference_low=np.nan, reference_q=np.nan),
    "value",
).assign(gain=lambda rows: rows["value"] - 0.4, ci_low=lambda rows: rows["value"] - 0.5)  # half have a dot
CELLS = cross(site="z", **HEADS, direction=["denoise", "noise"], metric=["loss", "rank"]).assign(**INTERVAL)
CELLS = rising(CELLS, "effect").assign(share=np.nan, share_low=np.nan, share_high=np.nan)
LENS = cross(layer=[0, 1], prompt=[0, 1], position=[3, 4], rank=[1, 2], token="a", id=5, read="b")
LENS = rising(LENS, "probability")
COMPARED = cross(measure=["induction", "tag:x"], model=["a", "b"], behaviour="position", reference="a", layer=1, head=2)
COMPARED = COMPARED.assign(**INTERVAL, difference_low=0.0, difference_high=0.2)
COMPARED = rising(COMPARED, "gain", "difference")
PROBES = rising(cross(stack="decoder", task=["tag", "form"], depth=[0, 1, 2], head=pd.NA, n=9), "accuracy").assign(
    **dict.fromkeys(("control_accuracy", "untrained_accuracy", "baseline", "ci_low", "ci_high"), 0.1),
    **dict.fromkeys(("ambiguous_accuracy", "ambiguous_baseline"), np.nan),
)
CURVES = rising(cross(run=["a", "b"], step=[0, 1, 2], measure=["loss", "induction"], **WHERE, layer=1, head=2), "value")
SIZES = cross(ranking=["signed", "absolute"], share=[0.1, 0.2, 0.4]).assign(**INTERVAL, task="repeat", groups=9)
SIZES = rising(SIZES.assign(size=lambda rows: rows["share"] * 100), "faithfulness", "random")
SIZES = SIZES.assign(random_low=0.0, random_high=1.0)
PATTERN = np.tril(np.full((3, 3), 0.5))
BARS = pd.DataFrame([[0.1, 0.2], [0.3, 0.4]])


class Case(NamedTuple):
    """A figure of a table, with right arguments, and wrong ones by name."""

    draw: Callable[..., Figure]
    table: pd.DataFrame
    arguments: Mapping[str, Any] = {}
    wrong: Mapping[str, Any] = {}
    sources: str = "model"  # the column with one value per figure


EFFECTS = rising(
    cross(**HEADS, task=["gender", "name"], intervention=["denoise", "noise"]).assign(**INTERVAL), "effect"
).assign(ci_low=lambda rows: rows["effect"] - 0.4, choosing_bound=0.1)
LOSS, LSOS = {"metric": "loss"}, {"metric": "lsos"}
TOKENS = rising(cross(prompt=0, position=[0, 1, 2], token="a", id=5), "log_probability")
LINES = rising(cross(layer=[0, 1, 2], at=[0, 1]).assign(**INTERVAL), "effect")
FORMING = Case(figures.forming, CURVES.assign(baseline=0.1), {"changes": {"a": (0, 1)}}, {"changes": {"aa": None}})
pytestmark = pytest.mark.usefixtures("unchecked")
CASES = {
    "head_grid": Case(figures.head_grid, GAINS, {}, dict.fromkeys(("measures", "by"), "induktion")),
    "effect_grid": Case(figures.effect_grid, EFFECTS, {"task": "gender"}, {"task": "gendr"}),
    "gain_intervals": Case(figures.gain_intervals, GAINS, {"measure": "induction"}, {"measure": "induktion"}),
    "cell_map": Case(figures.cell_map, CELLS, LOSS, LSOS),
    "top_cells": Case(figures.top_cells, CELLS, LOSS, LSOS),
    "steps": Case(figures.steps, CELLS[:6].assign(step=range(6), metric="loss"), {**LOSS, "plain": 1}, LSOS),
    "lens_map": Case(figures.lens_map, LENS, {}, {"prompt": 7}),
    "lens_line": Case(figures.lens_line, LINES),
    "token_bars": Case(figures.token_bars, TOKENS),
    "compared_gains": Case(figures.compared_gains, COMPARED, sources="run"),
    "probes_by_layer": Case(figures.probes_by_layer, PROBES),
    "suite_map": Case(figures.suite_map, EFFECTS.rename(columns={"task": "paradigm"})),
    "circuit_curve": Case(figures.circuit_curve, SIZES, {"unit": "nodes"}),
    "forming": FORMING._replace(wrong={**FORMING.wrong, "boundaries": {"c": [1]}}),
}
THREE = dict.fromkeys("abc", PATTERN)
UNTABLED: dict[str, list[dict[str, Any]]] = {  # figures without a table: right arguments, then wrong ones
    "explained_bars": [
        {"parts": shares}
        for shares in ({"a": BARS}, {}, dict.fromkeys("abcdefg", BARS), {"a": BARS, "b": BARS[:1]}, {"a": BARS[:0]})
    ],
    "best_heads": [
        {"patterns": {"L0.H0": PATTERN}},
        {"patterns": {}},
        {"patterns": {"a": PATTERN}, "queries": ["x"]},
        {"patterns": {"a": PATTERN[:0]}},
    ],
    "word_lines": [
        {"patterns": patterns, "queries": queries, "keys": "xyz"}
        for patterns, queries in (({"L0.H0": PATTERN}, "xyz"), ({}, "xyz"), ({"a": PATTERN}, "xy"))
    ],
    "pattern_atlas": [
        {"patterns": {(1, 2): PATTERN}, "behaviours": {(1, 2): "position"}},
        {"patterns": {}, "behaviours": {}},
        {"patterns": {(0, 0): PATTERN[0]}, "behaviours": {}},
    ],
    "three_attentions": [
        {"patterns": patterns, "source": "xyz", "read": read, "written": "xyz"}
        for patterns, read in ((THREE, "xyz"), ({"a": PATTERN}, "xyz"), (THREE, "xy"))
    ],
}


def refusal(draw: Callable[[], Any]) -> str:
    """The line of a figure's refusal."""
    with pytest.raises(InputError) as error:
        draw()
    assert "\n" not in str(error.value)
    return str(error.value)


def marks(figure: Figure) -> list[Any]:
    """Everything that a figure shows, panel by panel."""
    panels: list[Any] = []
    for ax in figure.axes:
        points = [each.get_offsets() for each in ax.collections if isinstance(each, PathCollection)]
        cells = [each.get_array() for each in ax.collections if isinstance(each, QuadMesh)]
        bars = [(*each.get_bbox().extents, each.get_facecolor()) for each in ax.patches]
        texts = [each.get_text() for each in (*ax.texts, *ax.get_xticklabels(), *ax.get_yticklabels(), ax.title)]
        arrays = [*points, *cells, *(line.get_xydata() for line in ax.lines)]
        panels.append(([np.ma.filled(each, np.nan).tolist() for each in arrays], bars, texts))
    return panels


def test_every_figure_asks_a_question_in_text_of_8_points_and_changes_no_style():
    before, managers = dict(matplotlib.rcParams), Gcf.get_all_fig_managers()
    plots = [case.draw(case.table, **case.arguments) for name, case in CASES.items() if name != "lens_map"]
    for figure in [*plots, *(getattr(figures, name)(**arguments) for name, (arguments, *_) in UNTABLED.items())]:
        assert figure.get_suptitle().endswith("?")
        figure.draw_without_rendering()
        texts = figure.findobj(lambda artist: hasattr(artist, "get_fontsize"))
        assert min(text.get_fontsize() for text in texts if text.get_text()) >= 8
    assert dict(matplotlib.rcParams) == before
    assert Gcf.get_all_fig_managers() == managers


def test_every_public_figure_is_tried():
    annotations = {name: getattr(getattr(figures, name), "__annotations__", {}) for name in figures.__all__}
    public = {name for name, each in annotations.items() if each.get("return") is Figure and "page" in each}
    assert {*CASES, *UNTABLED} == public


@pytest.mark.parametrize("name", CASES)
def test_several_models_or_runs_are_refused_and_it_is_said_what_they_are(name):
    draw, table, arguments, _, source = CASES[name]
    for column in {source, "seed"}:
        joined = pd.concat([table.assign(**{column: value}) for value in ("mine", "yours")])
        assert "mine, yours" in refusal(lambda joined=joined: draw(joined, **arguments))
    twice = pd.concat([table, table.assign(corpus="other")])  # no known column tells them apart
    assert "expected one row of" in refusal(lambda: draw(twice, **arguments))


@pytest.mark.parametrize("name", CASES)
def test_labels_of_the_index_say_nothing(name):
    draw, table, arguments, *_ = CASES[name]
    numbered = marks(draw(table.reset_index(drop=True), **arguments))
    alike = draw(table.set_axis([0] * len(table)), **arguments)
    shuffled = draw(table.set_axis(np.random.default_rng(0).permutation(len(table))), **arguments)
    np.testing.assert_equal(marks(alike), numbered)
    np.testing.assert_equal(marks(shuffled), numbered)


@pytest.mark.parametrize(("name", "argument"), [(name, each) for name in CASES for each in CASES[name].wrong])
def test_a_mistyped_argument_is_one_line_that_names_it(name, argument):
    draw, table, arguments, wrong, _ = CASES[name]
    typed = wrong[argument]
    first = next(iter(typed.items())) if isinstance(typed, dict) else typed if isinstance(typed, list) else [typed]
    line = refusal(lambda: draw(table, **{**arguments, argument: typed}))
    assert any(str(word) in line for word in first), line


@pytest.mark.parametrize("name", CASES)
def test_an_empty_table_is_one_line(name):
    draw, table, arguments, *_ = CASES[name]
    assert refusal(lambda: draw(pd.DataFrame(), **arguments)).startswith("expected a table with ")
    assert refusal(lambda: draw(table[:0], **arguments)) == "expected a table with rows to draw, got an empty one"
    assert "got list" in refusal(lambda: draw([1], **arguments))


@pytest.mark.parametrize("name", UNTABLED)
def test_patterns_and_shares_that_do_not_fit_are_one_line(name):
    for arguments in UNTABLED[name][1:]:
        assert "expected" in refusal(lambda arguments=arguments: getattr(figures, name)(**arguments))


def test_models_have_panels_of_their_own_where_they_are_asked_for():
    joined = pd.concat([GAINS.assign(model="mine"), GAINS.assign(model="yours", gain=0.5)])  # labels occur twice
    figure = figures.head_grid(joined, by="model", quantity="gain")
    titles = ["distance\nmine", "distance\nyours", "induction\nmine", "induction\nyours"]
    assert [ax.get_title() for ax in figure.axes[:4]] == titles
    alone = [figures.head_grid(joined.loc[joined["model"] == model]) for model in ("mine", "yours")]
    together = marks(figure)
    for panel, (index, model) in enumerate(product(range(2), range(2))):
        assert together[panel][0] == marks(alone[model])[index][0]


def test_all_figures_of_a_sweep_are_refused_alike():
    assert "expected one row" in refusal(lambda: figures.top_cells(pd.concat([CELLS, CELLS]), "loss"))
    assert "lsos" in refusal(lambda: figures.map_cells(CELLS, "lsos"))
    queries = CELLS.assign(site="q")
    assert "one site, got z, q" in refusal(lambda: figures.cell_map(pd.concat([CELLS, queries]), "loss"))


def test_bars_go_by_the_number_of_the_layer():
    swapped = marks(figures.explained_bars({"a": BARS.iloc[[1, 0]], "b": BARS / 2}))
    np.testing.assert_equal(swapped, marks(figures.explained_bars({"a": BARS, "b": BARS / 2})))

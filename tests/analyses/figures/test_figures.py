"""Figures draw what their table says, ask a question, and compute nothing."""

import re
from itertools import pairwise, product

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import PathCollection, QuadMesh
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from analyses import figures
from analyses.figures.single_heads import FAINTEST
from analyses.figures.style import COREFERENCE, INK, POSITION
from analyses.measures.findings import notable
from analyses.report import illustrations
from tests.analyses.headlines.hand_made_tables import effect_row, heads_row, label_row

LAYERS, HEADS = 3, 5


def heads_table(*measures: str, documents: int = 20) -> pd.DataFrame:
    """One gain a cell, told apart by layer and head; L2.H4 gains most, L0.H0 is undefined."""
    gains = np.append(np.nan, 0.02 * np.arange(1, LAYERS * HEADS) - 0.1).reshape(LAYERS, HEADS)
    rows = [
        heads_row(*head, "position", measure, 0.1 + gain, 0.1, sink=sink, documents=documents, ci_low=gain - 0.03)
        for measure in measures
        for sink in ("kept", "removed")
        for head, gain in np.ndenumerate(gains)
    ]
    return pd.DataFrame(rows)


def effects_table() -> pd.DataFrame:
    """L1.H2 carries .9 of the answer where it is restored and .1 where it is removed; all others nothing."""
    cells = product((("denoise", 0.9), ("noise", 0.1)), np.ndindex(LAYERS, HEADS))
    effects = [(*head, "repeat", way, size * (head == (1, 2))) for (way, size), head in cells]
    return pd.DataFrame([effect_row(*cell, cell[-1] - 0.01) for cell in effects])


def meshes(figure: Figure) -> list[QuadMesh]:
    """The heat maps of a figure, its colour bars aside."""
    drawn = [each for ax in figure.axes for each in ax.collections if isinstance(each, QuadMesh)]
    return [mesh for mesh in drawn if mesh.axes is not None and mesh.axes.get_label() != "<colorbar>"]


def three() -> Figure:
    """Five tokens become three: the encoder's, the decoder's and cross-attention's patterns, told apart by a number."""
    shapes = {"encoder L0.H1": (5, 5), "decoder L1.H0": (3, 3), "cross-attention L0.H2": (3, 5)}
    patterns = {name: np.full(shape, 0.1 * at) for at, (name, shape) in enumerate(shapes.items(), 1)}
    aligned = [("year", (0, 2), (3, 5)), ("day", (2, 3), (0, 1))]
    texts = {"source": [*"3 87", "</s>"], "read": ["<s>", *"87"], "written": [*"873"]}
    return figures.three_attentions(patterns, **texts, aligned=aligned)


def test_a_grid_shows_every_cell_of_every_measure():
    figure = figures.head_grid(heads_table("previous-token", "induction"))
    first, second = meshes(figure)
    expected = 0.02 * np.arange(LAYERS * HEADS).reshape(LAYERS, HEADS) - 0.1
    for mesh in (first, second):
        cells = mesh.get_array()
        assert np.ma.getmaskarray(cells)[0, 0]  # undefined is missing, not zero
        np.testing.assert_allclose(cells.compressed(), expected.ravel()[1:])
    assert [ax.get_title() for ax in figure.axes[:2]] == ["previous-token", "induction"]
    low, high = figure.axes[0].get_ylim()
    assert low < high  # layer 0 is at the bottom


def dots(figure: Figure) -> set[tuple[int, ...]]:
    """The cells of the first panel that have a dot."""
    drawn = [each for each in figure.axes[0].collections if isinstance(each, PathCollection)]
    return {tuple(np.floor(at).astype(int)) for each in drawn for at in np.asarray(each.get_offsets())}


@pytest.mark.parametrize("documents", [20, 4])
def test_dots_and_sentences_follow_one_rule(documents):
    """On four documents nothing is a finding; nor is a dot drawn, or told to one who cannot see it."""
    table = heads_table("induction", documents=documents)
    findings = notable(table)
    assert dots(figures.head_grid(table, "induction")) == set(zip(findings["head"], findings["layer"], strict=True))
    assert len(findings) == (7 if documents == 20 else 0)
    said = illustrations.grid_alt(table, ["induction"], "gain")
    assert ("A dot" in said, "(none of 15 heads marked)" in said) == (False, documents == 4)


def test_colours_are_of_the_behaviour_and_begin_at_nothing():
    table = heads_table("induction")
    mesh = meshes(figures.head_grid(table.assign(behaviour="position")))[0]
    assert (mesh.norm(0.0), to_hex(mesh.cmap(1.0))) == (0.0, POSITION)
    several = table.assign(behaviour=["position", *["own"] * (len(table) - 1)])
    assert to_hex(meshes(figures.head_grid(several))[0].cmap(1.0)) == INK
    (empty,) = meshes(figures.head_grid(table.assign(gain=np.nan, value=np.nan), "induction"))
    assert np.ma.getmaskarray(empty.get_array()).all()


def test_directions_share_a_scale_intervals_are_sorted_and_panels_of_a_large_model_are_lower():
    figure = figures.effect_grid(effects_table(), "repeat")
    denoise, noise = meshes(figure)
    assert denoise.norm is noise.norm
    assert (denoise.norm.vmin, denoise.norm.vmax) == pytest.approx((-0.9, 0.9))
    assert [ax.get_title().split(":")[0] for ax in figure.axes[:2]] == ["denoise", "noise"]
    ax = figures.gain_intervals(heads_table("induction"), "induction", top=3).axes[0]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["L2.H4", "L2.H3", "L2.H2"]
    deep = heads_table(*"abcdef")
    deep = pd.concat([deep.assign(layer=deep["layer"] + LAYERS * at) for at in range(8)])
    assert 8 < figures.head_grid(deep, width=3.3, title=None).get_figheight() <= 9


def test_lines_go_to_the_words_that_get_a_share_and_an_antecedent_has_its_colour():
    pattern = np.array([[1.0, 0, 0], [0.7, 0.3, 0], [FAINTEST / 2, 0, 0.9]])
    ax = figures.attention_over_words(["Tim", "saw", "it"], pattern, title="Who?", emphasised={2}, sought={0}).axes[0]
    ends = {tuple(segment[:, 1]) for segment in ax.collections[0].get_segments()}
    assert ends == {(0, 0), (1, 0), (1, 1), (2, 2)}
    coloured = [(text.get_text(), text.get_ha()) for text in ax.texts if text.get_color() == COREFERENCE]
    assert sorted(coloured) == [("Tim", "left"), ("it", "right")]


def test_half_and_twice_the_attention_are_equally_far_from_none_and_lifts_that_hardly_differ_have_names_apart():
    table = heads_table("tag:NOUN->ADJ")
    table["value"] = np.where(table["layer"] == 0, 0.5, 2.0)
    norm = meshes(figures.head_grid(table, "tag:NOUN->ADJ", quantity="lift"))[0].norm
    assert (norm(1.0), norm(0.5)) == pytest.approx((0.5, 1 - norm(2.0)))
    bar = figures.head_grid(table.assign(value=1.05), "tag:NOUN->ADJ", quantity="lift").axes[-1]
    low, high = bar.get_ylim()
    assert [at for at in bar.get_yticks() if low <= at <= high] == [0.5, 1, 2]


def labels_table() -> pd.DataFrame:
    """L0.H1 has two labels, the weaker first; L2.H4 one by effect alone."""
    rows = [
        label_row(0, 1, "position", "self", "attention", 0.9),
        label_row(0, 1, "part-of-speech", "relation:obj:dependent->head", "both", 0.2),
        label_row(2, 4, "coreference", "antecedent", "effect", -0.1),
    ]
    return pd.DataFrame(rows)


def test_a_label_map_says_every_label_the_surest_first():
    figure = figures.label_map(labels_table(), LAYERS, HEADS)
    figure.draw_without_rendering()
    (ax,) = figure.axes
    said = {text.get_position(): text.get_text() for text in ax.texts}
    assert said == {(1, 0): "obj dep→head\nself", (4, 2): "antecedent"}
    assert figure.get_suptitle().endswith("?")
    assert not len(figures.label_map(labels_table().iloc[:0], LAYERS, HEADS).axes[0].texts)


@pytest.mark.parametrize(("width", "size"), [(None, 9), (3.3, 8)])
def test_a_label_map_is_readable_on_a_page_and_its_words_stay_in_their_cells(width, size):
    """Of 8 points, which a page shows in 12 pixels, or 7 in a column; what does not fit is counted."""
    names = ["rule:last NOUN/PROPN/PRON", "antecedent-predicting", "relation:nmod:poss:dependent->head", "offset:-2"]
    names += ["a_measure_of_somebody_who_likes_long_names"]
    base = labels_table().iloc[0].to_dict()
    rows = [base | {"head": head, "label": name, "gain": -at} for head in range(8) for at, name in enumerate(names)]
    figure = figures.label_map(pd.DataFrame(rows), 4, 8, font_size=size, **({"width": width} if width else {}))
    figure.draw_without_rendering()
    (ax,) = figure.axes
    assert [text.get_fontsize() for text in ax.texts] == [pytest.approx(size * 8 / 9)] * 8
    assert all(re.search(r"\nand [1-4] more$", text.get_text()) for text in ax.texts)
    for text in ax.texts:
        box = text.get_window_extent().transformed(ax.transData.inverted())
        (x, y), names_in = text.get_position(), text.get_text()
        assert max(x - box.x0, box.x1 - x, y - box.y0, box.y1 - y) <= 0.5, names_in


def test_in_a_column_layers_stand_side_by_side_in_a_label_map_and_head_0_comes_first():
    long = pd.DataFrame([labels_table().iloc[0].to_dict() | {"layer": 3, "head": 6, "label": "tag:NOUN->VERB"}])
    wide, column = (figures.label_map(long, 4, 8, font_size=8, width=width, title=None) for width in (6.9, 3.3))
    assert wide.axes[0].texts[0].get_position() == (6, 3)
    (ax,), (said,) = column.axes, column.axes[0].texts
    assert (said.get_position(), said.get_text()) == ((3, 6), "NOUN→\nVERB")  # a tag is not cut into letters
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["L0", "L1", "L2", "L3"]
    assert ax.get_ylim()[0] > ax.get_ylim()[1]
    assert column.get_figheight() < 7
    with pytest.raises(ValueError, match=r"need 7\.9 inches side by side: got width=6\.9"):
        figures.label_map(long, 12, 12, font_size=8, width=6.9)


def test_attention_is_drawn_against_effect_for_every_head_and_labelled_ones_are_named():
    table = heads_table("relation:obj:dependent->head").query("sink == 'kept'")
    label = {"behaviour": "part-of-speech", "label": table["measure"], "agreement": -1.0}
    line = {"gain": np.linspace(-0.2, 0.5, len(table)), "effect": np.linspace(0.3, 0.0, len(table))}
    evidence = table.assign(**label, **line)
    figure = figures.attention_against_effect(evidence, labels_table())
    (ax,) = figure.axes
    assert sorted(len(dots.get_offsets()) for dots in ax.collections if isinstance(dots, PathCollection)) == [1, 14]
    assert [text.get_text() for text in ax.texts] == ["L0.H1"]
    assert ax.get_title() == "relation:obj:dependent→head\nρ = −1.00, 15 heads"


def test_three_attentions_are_drawn_with_their_tokens():
    maps, source = three().axes[:3], ["3", "␣", "8", "7", "</s>"]
    for ax, title, rows, columns, value in zip(
        maps,
        ("encoder L0.H1", "cross-attention L0.H2", "decoder L1.H0"),
        (source, ["8", "7", "3"], ["<s>", "8", "7"]),
        (source, source, ["<s>", "8", "7"]),
        (0.1, 0.3, 0.2),
        strict=True,
    ):
        (mesh,) = [each for each in ax.collections if isinstance(each, QuadMesh)]
        np.testing.assert_allclose(mesh.get_array(), np.full((len(rows), len(columns)), value))
        assert [label.get_text() for label in (*ax.get_yticklabels(), *ax.get_xticklabels())] == [*rows, *columns]
        assert ax.get_title() == title
    boxes = [[each.get_bbox().extents.tolist() for each in ax.patches] for ax in maps]
    assert boxes == [[], [[3, 0, 5, 2], [0, 2, 1, 3]], []]  # what belongs together


def evidence_of(measures: int) -> pd.DataFrame:
    """Two heads of one layer in each of so many measures."""
    cells = product(range(measures), range(2))
    rows = [label_row(0, head, "position", f"offset:-{at}", "both", 0.1 * head, 0.01 * at) for at, head in cells]
    return pd.DataFrame(rows).drop(columns="evidence").assign(agreement=0.5)


@pytest.mark.parametrize(("width", "shown"), [(2.4, 3), (6.75, 9)])
def test_a_column_has_fewer_measures_against_effect_and_says_of_how_many(width, shown):
    figure = figures.attention_against_effect(
        evidence_of(12), labels_table(), width=width, font_size=8, title=None, colours={"position": "blue"}
    )
    assert len(figure.axes) == shown
    assert figure.get_figheight() < 7
    assert f"in the {shown} measures of 12 that label the most heads" in figure.caption  # pyright: ignore[reportAttributeAccessIssue]


def test_two_heads_near_each_other_have_names_apart():
    evidence = evidence_of(1).assign(effect=[0.0100, 0.0101], gain=0.1)
    labels = evidence.assign(evidence="both")
    figure = figures.attention_against_effect(evidence, labels, width=3.3, font_size=8)
    figure.draw_without_rendering()
    first, second = (text.get_window_extent() for text in figure.axes[0].texts)
    assert not first.overlaps(second)


def test_words_above_and_below_panels_are_broken_where_a_column_is_narrow():
    name = "relation:nmod:poss:dependent->head"
    page = {"width": 3.3, "font_size": 8, "title": None}
    effects, gains = figures.effect_grid(effects_table(), "repeat", **page), heads_table(name)
    for figure in (effects, figures.gain_intervals(gains, name, **page)):
        figure.draw_without_rendering()
        assert figure.get_tightbbox().x1 < 3.32
    left, right = (ax.title.get_window_extent() for ax in effects.axes[:2])
    assert left.x1 < right.x0
    bars = figures.explained_bars({"position": pd.DataFrame(0.5, index=range(4), columns=range(8))}, **page)
    bars.draw_without_rendering()
    ticks = [tick.get_window_extent() for tick in bars.axes[0].get_xticklabels()]
    assert all(one.x1 < other.x0 for one, other in pairwise(ticks))

"""Figures draw what their tables say, ask a question, and compute nothing."""

from itertools import pairwise, product

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import PathCollection, QuadMesh
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from analyses import figures
from analyses.figures.style import INK, POSITION
from analyses.measures.findings import notable
from tests.analyses.headlines.hand_made_tables import effect_row, heads_row

LAYERS, HEADS = 3, 5


def heads_table(*measures: str, documents: int = 20) -> pd.DataFrame:
    """One gain per cell, different for each layer and head; L2.H4 gains most, L0.H0 is undefined."""
    gains = np.append(np.nan, 0.02 * np.arange(1, LAYERS * HEADS) - 0.1).reshape(LAYERS, HEADS)
    rows = [
        heads_row(*head, "position", measure, 0.1 + gain, 0.1, sink=sink, documents=documents, ci_low=gain - 0.03)
        for measure in measures
        for sink in ("kept", "removed")
        for head, gain in np.ndenumerate(gains)
    ]
    return pd.DataFrame(rows)


def effects_table() -> pd.DataFrame:
    """L1.H2 carries .9 of the answer when restored and .1 when removed; all others nothing."""
    cells = product((("denoise", 0.9), ("noise", 0.1)), np.ndindex(LAYERS, HEADS))
    effects = [(*head, "repeat", way, size * (head == (1, 2))) for (way, size), head in cells]
    return pd.DataFrame([effect_row(*cell, cell[-1] - 0.01) for cell in effects])


def meshes(figure: Figure) -> list[QuadMesh]:
    """A figure's heat maps, without colour bars."""
    maps = [each for ax in figure.axes for each in ax.collections if isinstance(each, QuadMesh)]
    return [mesh for mesh in maps if mesh.axes is not None and mesh.axes.get_label() != "<colorbar>"]


def three() -> Figure:
    """Five tokens become three: patterns of encoder, decoder and cross-attention, each with its own number."""
    shapes = {"encoder L0.H1": (5, 5), "decoder L1.H0": (3, 3), "cross-attention L0.H2": (3, 5)}
    patterns = {name: np.full(shape, 0.1 * number) for number, (name, shape) in enumerate(shapes.items(), 1)}
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
    points = [each for each in figure.axes[0].collections if isinstance(each, PathCollection)]
    return {tuple(np.floor(spot).astype(int)) for each in points for spot in np.asarray(each.get_offsets())}


@pytest.mark.parametrize("documents", [20, 4])
def test_dots_and_sentences_follow_one_rule(documents):
    """On four documents nothing is a finding, so no dot is drawn, or mentioned in the text alternative."""
    table = heads_table("induction", documents=documents)
    findings = notable(table)
    assert dots(figures.head_grid(table, "induction")) == set(zip(findings["head"], findings["layer"], strict=True))
    assert len(findings) == (7 if documents == 20 else 0)
    figure = figures.head_grid(table, "induction")
    assert ("A dot" in figure.caption, "(none of 15 marked)" in figure.alt) == (documents == 20, documents == 4)
    assert "largest 0.18 at L2.H4, 0.16 at L2.H3, 0.14 at L2.H2" in figure.alt


def test_colours_are_of_the_behaviour_and_begin_at_nothing():
    table = heads_table("induction")
    mesh = meshes(figures.head_grid(table.assign(behaviour="position")))[0]
    assert (mesh.norm(0.0), to_hex(mesh.cmap(1.0))) == (0.0, POSITION)
    mixture = table.assign(behaviour=["position", *["own"] * (len(table) - 1)])
    assert to_hex(meshes(figures.head_grid(mixture))[0].cmap(1.0)) == INK
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
    deep = pd.concat([deep.assign(layer=deep["layer"] + LAYERS * copy) for copy in range(8)])
    assert 8 < figures.head_grid(deep, width=3.3, title=None).get_figheight() <= 9


def test_half_and_twice_the_attention_are_equally_far_from_none_and_lifts_that_hardly_differ_have_names_apart():
    table = heads_table("tag:NOUN->ADJ")
    table["value"] = np.where(table["layer"] == 0, 0.5, 2.0)
    norm = meshes(figures.head_grid(table, "tag:NOUN->ADJ", quantity="lift"))[0].norm
    assert (norm(1.0), norm(0.5)) == pytest.approx((0.5, 1 - norm(2.0)))
    bar = figures.head_grid(table.assign(value=1.05), "tag:NOUN->ADJ", quantity="lift").axes[-1]
    low, high = bar.get_ylim()
    assert [tick for tick in bar.get_yticks() if low <= tick <= high] == [0.5, 1, 2]


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
    assert boxes == [[], [[3, 0, 5, 2], [0, 2, 1, 3]], []]  # parts that belong together


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
    assert all(a.x1 < b.x0 for a, b in pairwise(ticks))

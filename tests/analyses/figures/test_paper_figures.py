"""Figures have the requested size, bring their captions, and draw only into the given axes."""

import re
from io import BytesIO
from itertools import product

import matplotlib
import numpy as np
import pandas as pd
import pytest
import tiny
from matplotlib._pylab_helpers import Gcf
from matplotlib.figure import Figure
from matplotlib.text import Text

from analyses import figures
from analyses.figures import style
from interp import Transformer, patching, run, sweep
from interp.attribution import direct_logit_attribution, logit_lens
from tests.analyses.headlines.hand_made_tables import heads_row

pytestmark = pytest.mark.filterwarnings("ignore:no shares")  # random weights have none


@pytest.fixture(scope="module")
def model() -> Transformer:
    return tiny.model("gpt2")


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    cells = product(("induction", "previous-token", "distance"), range(2), range(4))
    return pd.DataFrame([heads_row(*head, "x", name, 0.1 * head[1] + 0.1, 0.1, ci_low=0.01) for name, *head in cells])


@pytest.fixture(scope="module")
def drawing(model) -> dict:
    """How to draw each result, by name."""
    ids, mean = tiny.token_ids(3, 5), {"kind": "mean"}
    how = model, tiny.ragged_pairs(), patching.logit_difference()
    result, lens = sweep(*how), logit_lens(model, ids)
    return {
        "sweep": result.figure,
        "largest": lambda **page: result.figure(kind="top", **page),
        "positions": sweep(*how, "resid_pre", by=("layer", "position")).figure,
        "layers": sweep(*how, "mlp_out", by=("layer",)).figure,
        "ablation": patching.ablate(*how, **mean).figure,
        "listed": patching.ablate_cells(*how, [(0, 1)], **mean).figure,
        "order": patching.ablate_in_order(*how, [(0, 1), (1, 2)], **mean).figure,
        "neurons": patching.ablate_cells(*how, [(0, 1), (1, 2)], "mlp.post", **mean).figure,
        "top cells": patching.top_cells(*how, k=2).figure,
        "edges": patching.edge_attribution(*how).figure,
        "magnitudes": patching.atp_star(*how, {"z": ("layer", "head")})["z"].figure,
        "heads": direct_logit_attribution(model, ids, 3, 4).figure,
        "terms": lambda **page: direct_logit_attribution(model, ids, 3, 4).figure("top", **page),
        "lens": lens.figure,
        "answers": lambda **page: lens.figure(3, 4, **page),
        "tokens": run(model, ids).figure,
    }


def texts(figure: Figure) -> list[Text]:
    figure.draw_without_rendering()
    return [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]


@pytest.mark.parametrize("width", [3.3, pytest.param(6.9, marks=pytest.mark.slow)])
def test_every_result_draws_itself_at_any_width_with_a_caption(drawing, width):
    for name, draw in drawing.items():
        figure = draw(width=width, font_size=8, title=None)
        assert figure.get_figwidth() == width, name
        panels = [ax for ax in figure.axes if ax.get_label() != "<colorbar>"]
        assert not figure.get_suptitle(), name
        assert len(panels) > 1 or not above(figure), name
        assert figure.caption.endswith("."), name
        assert len(figure.caption) > 40, name
        figure.draw_without_rendering()
        inked = figure.get_tightbbox()
        assert min(inked.x0, inked.y0) > -0.02, name  # nothing is cut off
        assert inked.x1 < width + 0.03, name  # in matplotlib 3.10.0, a label overhangs by .024
        assert inked.y1 < figure.get_figheight() + 0.02, name


def test_every_result_draws_into_somebodys_axes_and_makes_no_other_figure(drawing, monkeypatch):
    for name, draw in drawing.items():
        mine = Figure(figsize=(4, 3))
        axes = mine.subplots(1, 2)
        with monkeypatch.context() as patch:
            patch.setattr(style.Drawn, "__init__", None)  # making a figure would fail
            assert draw(ax=axes[0]) is mine, name
        assert axes[0].has_data() or axes[0].collections, name
        assert not axes[1].has_data(), name
        assert not axes[1].get_title()
        assert not mine.get_suptitle(), name
        assert not mine.legends, name
        assert mine.caption, name  # pyright: ignore[reportAttributeAccessIssue]
        mine.draw_without_rendering()
    assert not Gcf.get_all_fig_managers()


def test_captions_on_one_page_follow_each_other(drawing):
    page = figures.page(width=6.9, height=2.0)
    left, right = page.subplots(1, 2)
    drawing["sweep"](ax=left)
    first = page.caption
    drawing["largest"](ax=right, title="b")
    assert page.caption.startswith(first)
    assert len(page.caption) > len(first) + 40
    assert right.get_title(loc="left") == "b"
    assert tuple(page.get_size_inches()) == (6.9, 2.0)


def test_a_dot_is_explained_in_the_caption_and_on_a_figure_with_a_title(table, drawing):
    caption = figures.head_grid(table, "induction").caption
    assert "A dot marks a gain of at least 0.05 whose 95% interval excludes 0" in caption
    assert "dot" not in figures.head_grid(table.assign(q=0.5), "induction").caption
    titled, bare = drawing["sweep"](), drawing["sweep"](title=None)
    assert ("●" in titled.get_supxlabel(), "●" in bare.get_supxlabel()) == (True, False)
    assert "● interval excludes 0" in bare.caption


def test_text_has_the_size_that_is_asked_for(table, drawing):
    for draw in (lambda **page: figures.head_grid(table, "induction", **page), drawing["sweep"], drawing["largest"]):
        small = {round(text.get_fontsize(), 3) for text in texts(draw(font_size=6, title=None))}
        assert small <= {6.0, round(6 * 8 / 9, 3)}
        assert {round(text.get_fontsize(), 3) for text in texts(draw())} <= {8, 9, 11}


def test_a_narrow_page_has_fewer_panels_in_a_row(table):
    across = {}
    for width in (1.8, 3.3, 6.9):
        figure = figures.head_grid(table, width=width, title=None)
        figure.draw_without_rendering()
        across[width] = len({round(ax.get_position().x0, 2) for ax in figure.axes[:3]})
    assert across == {1.8: 1, 3.3: 2, 6.9: 3}


def above(figure: Figure) -> list[str]:
    return [ax.get_title(loc) for ax in figure.axes for loc in ("left", "center", "right") if ax.get_title(loc)]


def test_without_a_title_a_single_panel_has_no_words_above_it_and_several_are_told_apart(table, model):
    assert figures.head_grid(table, "induction", title="Mine").get_suptitle() == "Mine"
    assert above(figures.head_grid(table, ["induction", "distance"], title=None)) == ["induction", "distance"]
    how = model, tiny.ragged_pairs(), patching.logit_difference()
    entry = sweep(*how, "pattern", by=("layer", "head", "query", "key")).table()
    alone = figures.cell_map(entry, "logit_difference", title=None)
    assert above(alone) == []
    assert alone.caption.endswith("Shown: put back (denoise): is it enough?.")  # pyright: ignore[reportAttributeAccessIssue]
    for title, expected in ((None, ""), ("?", "induction")):
        ax = Figure().subplots()
        figures.head_grid(table, "induction", ax=ax, title=title)
        assert ax.get_title() == expected


def test_a_pdf_holds_true_type_at_its_exact_width_and_a_picture_300_dots_an_inch_unless_told(table, drawing):
    for figure in (figures.gain_intervals(table, "induction", width=3.3), drawing["sweep"](width=3.3)):
        pdf, *pictures = files = [BytesIO() for _ in range(3)]
        for file, how in zip(files, ({"format": "pdf"}, {}, {"dpi": 50}), strict=True):
            figure.savefig(file, **{"format": "png", **how})
        assert b"/FontFile2" in pdf.getvalue()  # a key of TrueType fonts, which type 3 fonts lack
        assert b"/Subtype /Type3" not in pdf.getvalue()
        (width,) = re.findall(rb"/MediaBox \[ ?0 0 ([\d.]+)", pdf.getvalue())
        assert float(width) == pytest.approx(3.3 * 72, abs=0.1)
        assert [int.from_bytes(png.getvalue()[16:20], "big") for png in pictures] == [990, 165]
        image, size = figure._repr_png_()  # a notebook calls this
        assert (image[:4], size["width"]) == (b"\x89PNG", 316)


@pytest.mark.parametrize(
    ("page", "says"),
    [
        ({"widht": 3}, "no option widht here: expected title, width, font_size, font, horizontal, ax"),
        ({"font": "Comic"}, r"font: expected one that this machine has, such as .*; got 'Comic'"),
        ({"ax": [*Figure().subplots(1, 2)]}, "expected as many axes in ax=, got 2"),
        ({"ax": Figure().subplots(), "width": 3}, "give one of the two"),
        ({"width": -1}, "inches"),
        ({"width": "wide"}, r"inches .* got 'wide'"),
        ({"ax": "left"}, "takes axes of Matplotlib"),
        ({"font_size": 0}, "points"),
    ],
)
def test_wrong_options_are_one_line(table, page, says):
    with pytest.raises((TypeError, ValueError), match=says):
        figures.head_grid(table, "induction", **page)
    with pytest.raises(ValueError, match="lays out its own panels"):
        figures.forming(table.assign(step=1, run="a"), {}, ax=Figure().subplots())


def test_a_captured_pattern_is_drawn_head_by_head(model):
    out = run(model, tiny.rows((4, 3)), capture="decoder.*.attn.pattern")
    figure = out.figure("decoder.1.attn.pattern", prompt=1)
    assert [ax.get_title() for ax in figure.axes[:3]] == ["L1.H0", "L1.H1", "L1.H2"]
    values = np.asarray(figure.axes[2].collections[0].get_array())
    np.testing.assert_allclose(values, out["decoder.1.attn.pattern"][1, 2, :3, :3], rtol=1e-6)


@pytest.mark.slow
def test_every_block_of_the_page_runs(tmp_path, monkeypatch):
    from page_code import blocks

    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(matplotlib.rcParams, "backend", "agg")
    names: dict = {}
    for block in blocks("docs/paper_figures.md", "python"):
        exec(block, names)
    assert {path.name for path in tmp_path.iterdir()} == {"heads.pdf", "both.pdf", "grid.pdf", "gains.pdf"}

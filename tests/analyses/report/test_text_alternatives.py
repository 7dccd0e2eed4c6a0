"""What a figure shows is told to those who cannot see it: by rule, from what is drawn, never its title again."""

import re
from pathlib import Path

import numpy as np
import pandas as pd

from analyses import report
from analyses.report.illustrations import (
    agreement_alt,
    cells_alt,
    distance_alt,
    grid_alt,
    label_map_alt,
    lines_alt,
    shares_alt,
    stripes_alt,
)
from tests.analyses.headlines.hand_made_tables import heads_row, label_row
from tests.pages import page_of, retold

HEADS = pd.DataFrame(
    [
        heads_row(1, 0, "position", "induction", 0.9, 0.02),
        heads_row(0, 1, "position", "induction", 0.3, 0.02, q=0.5),
        heads_row(0, 0, "position", "induction", float("nan"), 0.02),
        heads_row(0, 0, "position", "distance", 4.0, 6.0),
        heads_row(1, 0, "position", "distance", 2.0, 6.0),
    ]
)


def test_a_grid_names_the_heads_with_most_and_counts_its_dots():
    said = "induction: most in L1.H0 0.880, L0.H1 0.280 (1 of 3 heads marked)."
    assert grid_alt(HEADS, ["induction"]) == f"Gains over the baseline. {said}"
    assert grid_alt(HEADS, ["distance"], "value") == "distance: most in L0.H0 4.000, L1.H0 2.000."
    assert "(none of 3 heads marked)" in grid_alt(HEADS.assign(q=1.0), ["induction"])
    assert grid_alt(HEADS.iloc[2:3], ["induction"]).endswith("induction: undefined.")
    both = pd.concat([HEADS.iloc[:1], HEADS.iloc[:1].assign(attention="cross")])
    assert "decoder.L1.H0 0.880, cross.L1.H0 0.880" in grid_alt(both, ["induction"], "gain")
    parts = {"position": pd.DataFrame([[0.2, 0.4], [0.6, np.nan]]), "nothing": pd.DataFrame([[np.nan, np.nan]])}
    assert shares_alt(parts) == "position: 0.400 on average, most in L1.H0."
    assert distance_alt(HEADS) == "Mean distance in tokens: layer 0 4.0, layer 1 2.0; uniform attention 6.0."


def test_a_stripe_is_told_by_its_distance():
    before, corner = 0.9 * np.eye(5, k=-1) + 0.02, np.full((5, 5), 0.02)
    corner[4, 0] = 1.0  # one cell, as large as it may be, is no stripe
    first = np.zeros((5, 5))
    first[:, 0] = 0.8
    stripes = {"L0.H0\nprevious-token": before, "b": before + 0.5 * (corner > 0.5), "c": np.eye(1), "d": first}
    assert stripes_alt(stripes | {"e": corner * 0.0 + 0.01}) == (
        "L0.H0 previous-token: 0.920 of its attention 1 back; b: 0.920 of its attention 1 back; "
        "c: 1.000 of its attention on the token itself; d: 0.800 of its attention on the first token; e: no stripe."
    )


def test_patterns_between_words_name_their_widest_lines_and_leave_out_what_is_not_drawn():
    pattern = np.array([[1.0, 0.0, 0.0], [0.3, 0.7, 0.0], [0.6, 0.04, np.nan]])
    words = ["Anna", "slept", "she"]
    assert lines_alt({"L0.H0": pattern}, words) == "L0.H0: Anna to Anna 1.000, slept to slept 0.700, she to Anna 0.600."
    assert lines_alt({"L0.H0": pattern}, words, 2) == "L0.H0: from she to Anna 0.600."
    assert cells_alt({"a:x->y": pattern[:1] * 0}, ["NOUN"], words) == "a:x→y: nothing."


def test_labels_are_told_with_their_heads():
    rows = [label_row(0, head, "position", "induction", "both", 0.5, effect=head / 10) for head in range(8)]
    rows += [label_row(0, 0, "part-of-speech", "tag:NOUN->VERB", "attention", 0.5)]
    labels = pd.DataFrame(rows)
    assert label_map_alt(labels, 16) == (
        "8 of 16 heads have a label. induction: L0.H0, L0.H1, L0.H2, L0.H3, L0.H4, L0.H5 and 2 more; "
        "tag:NOUN→VERB: L0.H0."
    )
    said = agreement_alt(labels, labels)
    assert said.startswith("Gain across, effect in nats up, of 8 heads. Largest effects of heads with a label: ")
    assert "induction: most in L0.H7 0.700, L0.H6 0.600, L0.H5 0.500; tag:NOUN→VERB: most in L0.H0 0.001." in said
    assert agreement_alt(labels, labels.iloc[:0]).endswith("None has a label.")


def test_no_figure_of_a_report_has_its_title_or_caption_for_an_alternative(position_report):
    page = (position_report / "report.html").read_text("utf-8")
    assert len([tag for tag, _ in page_of(position_report).tags if tag == "figure"]) >= 4
    assert retold(page) == []


def test_pictures_of_the_documentation_say_what_is_to_be_seen():
    root = Path(report.__file__).parents[2]
    pages = [root / "README.md", root / "models/checkpoints/default/README.md", *sorted(root.glob("docs/**/*.md"))]
    texts = [page.read_text("utf-8") for page in pages]
    pictures = [found for text in texts for found in re.findall(r"!\[(.*?)\]\(\S*?(\w+)\.png\)", text)]
    assert len(pictures) >= 15
    assert [name for alt, name in pictures if len(alt.split()) < 12] == []
    assert len({*pictures}) == len({name for _, name in pictures}), "one picture, one text"

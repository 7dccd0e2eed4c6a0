"""Draws of pairs: how far they agree."""

import pandas as pd

from benchmarks import draws
from tests.analyses.headlines.hand_made_tables import effect_row, hand_made


def draw(*heads: int, refused: str | None = None) -> dict[str, pd.DataFrame]:
    rows = [effect_row(0, head, "repeat", "noise", 0.2, 0.1) for head in heads]
    task = {"task": "repeat", "accuracy": 0.6, "refused": refused}
    return {
        "effects": pd.DataFrame([*rows, effect_row(1, 7, "repeat", "noise", 0.0, -0.1)]),
        "tasks": pd.DataFrame([task]),
    }


def test_a_row_says_how_often_a_task_was_refused_and_how_far_draws_agree():
    lines = draws.table([draw(1, 2), draw(1), draw(refused="a coin")]).splitlines()
    assert lines[2] == "| `repeat` | 1 of 3 | 0.60 to 0.60 | 0 to 2 | 0.17 |"
    assert lines[3] == "| all | | | 0 to 2 | 0.17 |"


def test_a_draw_says_its_headline_and_whom_its_answers_need():
    line, heads = draws.said(hand_made())
    assert line == "Position is found, syntax in part"
    assert heads == ["L1.H0 for copying", "L0.H1 for the choice of was or were"]

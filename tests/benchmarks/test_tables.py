"""Tables of draws of pairs say how far they agree; those of seeds, what each run's record ended with."""

import json
from pathlib import Path

import pandas as pd

from benchmarks import draws, seeds
from tests.analyses.headlines.hand_made_tables import effect_row


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


def write(folder: Path, *lines: dict[str, float]) -> Path:
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_a_row_has_the_last_of_each_number_and_the_best_head_of_each_measure(tmp_path):
    early = {"step": 50, "loss": 3.0, "held_out/novels": 3.5, "model/copying": 0.25}
    heads = {"heads/previous-token/L0.H1": 0.75, "heads/previous-token/L1.H0": 0.5, "heads/induction/L1.H2": 0.125}
    runs = [write(tmp_path / "a", early, {"step": 70, "loss": 2.0, **heads}), write(tmp_path / "b", {**early, **heads})]
    assert seeds.table(runs).splitlines() == [
        "| run | step | loss | held_out/novels | previous-token | induction | antecedent | copying |",
        "|---|---|---|---|---|---|---|---|",
        "| a | 70 | 2.000 | 3.500 | 0.750 (L0.H1) | 0.125 (L1.H2) |  | 0.250 |",
        "| b | 50 | 3.000 | 3.500 | 0.750 (L0.H1) | 0.125 (L1.H2) |  | 0.250 |",
    ]

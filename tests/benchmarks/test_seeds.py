"""The table of seeds says what each run's record ended with."""

import json
from pathlib import Path

from benchmarks.seeds import table


def write(folder: Path, *lines: dict[str, float]) -> Path:
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_a_row_has_the_last_of_each_number_and_the_best_head_of_each_measure(tmp_path):
    early = {"step": 50, "loss": 3.0, "held_out/novels": 3.5, "model/copying": 0.25}
    heads = {"heads/previous-token/L0.H1": 0.75, "heads/previous-token/L1.H0": 0.5, "heads/induction/L1.H2": 0.125}
    runs = [write(tmp_path / "a", early, {"step": 70, "loss": 2.0, **heads}), write(tmp_path / "b", {**early, **heads})]
    assert table(runs).splitlines() == [
        "| run | step | loss | held_out/novels | previous-token | induction | antecedent | copying |",
        "|---|---|---|---|---|---|---|---|",
        "| a | 70 | 2.000 | 3.500 | 0.750 (L0.H1) | 0.125 (L1.H2) |  | 0.250 |",
        "| b | 50 | 3.000 | 3.500 | 0.750 (L0.H1) | 0.125 (L1.H2) |  | 0.250 |",
    ]

"""Do other seeds give the same behaviours? Compares the last records of runs of one recipe.

    interp train small --out runs/seed-0 --set training.seed=0    # and so on
    python -m benchmarks.seeds runs/seed-0 runs/seed-1 runs/seed-2

Prints a Markdown table, one row per run: step, training and held-out loss, each measure's best head with its value, and
the share of random repeats that the model continues correctly. The numbers are the last that the run recorded
(`metrics.jsonl`); if it did not record its heads, its final model is measured now.

Of seeds 0 to 2 of `small` (90 seconds of one core each) the best previous-token head has .94, .82 and .91, in layer 0
(H3, H4, H4), the best induction head .66, .55 and .57, in layer 1 (H0, H0, H3).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analyses.over_training import measures
from benchmarks.console import arguments
from interp import InputError
from interp.training import state
from models import load

HEADS = ("previous-token", "induction", "antecedent")


def ended(run: Path) -> dict[str, Any]:
    """The last value of everything that a run recorded, including `heads/...` and `model/...`.

    Raises:
        InputError: the directory is not a run, or nothing tells what its heads do.
    """
    numbers: dict[str, Any] = {}
    for line in state.read_metrics(run):
        numbers |= line
    if "step" not in numbers:
        raise InputError(f"{run} is not a training run: expected metrics.jsonl, as interp train writes it into --out")
    if not any(name.startswith("heads/") for name in numbers):
        snapshots = sorted(each for each in run.glob("steps/*") if each.name.isdecimal())
        model = run if (run / "config.json").is_file() else (snapshots or [run])[-1]
        numbers |= measures(load(model))
    return numbers


def row(run: Path, numbers: Mapping[str, Any], columns: Sequence[str]) -> str:
    """One line of the table."""
    cells = [run.resolve().name, f"{numbers['step']:,}"]
    cells += [f"{numbers[name]:.3f}" if name in numbers else "" for name in columns]
    for measure in HEADS:
        start = f"heads/{measure}/"
        heads = {name.removeprefix(start): value for name, value in numbers.items() if name.startswith(start)}
        best = max(heads, key=lambda head: heads[head], default=None)
        cells.append("" if best is None else f"{heads[best]:.3f} ({best})")
    cells.append(f"{numbers['model/copying']:.3f}" if "model/copying" in numbers else "")
    return "| " + " | ".join(cells) + " |"


def table(runs: Sequence[Path]) -> str:
    """One row per run."""
    records = [ended(run) for run in runs]
    columns = ["loss", *dict.fromkeys(name for each in records for name in each if name.startswith("held_out/"))]
    titles = ["run", "step", *columns, *HEADS, "copying"]
    lines = ["| " + " | ".join(titles) + " |", "|---" * len(titles) + "|"]
    return "\n".join([*lines, *(row(run, each, columns) for run, each in zip(runs, records, strict=True))])


def main() -> None:
    """Parse and print."""
    parser = arguments(__doc__)
    parser.add_argument("runs", type=Path, nargs="+", metavar="DIR", help="what interp train wrote")
    try:
        print(table(parser.parse_args().runs))
    except InputError as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    main()

"""Runs `interp report --over-training`: reads training runs, and writes tables, a figure, the record and one page."""

import time
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from analyses import figures
from analyses.compare import names
from analyses.over_training.phase_changes import CHANGING, formed
from analyses.over_training.training_page import alt, page
from analyses.over_training.training_runs import COLUMNS, Load, Run, Say, read_run
from analyses.report import output
from analyses.report.renderer import image

_COLUMNS = 3  # runs side by side in one figure
_CAPTION = (
    "On top the losses, that of training over whatever mix is learnt from. Below, the whole model’s in-context "
    "score and the share of random repeats that it copies, then a line a head for each measure: in colour the three "
    "that have most of it at the last look, where they are at least 0.05 above the strictest baseline (dashed). The "
    "band is the phase change of induction, a dotted line the end of a phase of training. All columns have the same "
    "axes."
)


def build(
    folders: Sequence[Path],
    out: Path,
    load: Load,
    *,
    seed: int = 0,
    command: str = "",
    progress: Say | None = None,
) -> Path:
    """Read the runs in `folders`, draw them side by side, and write everything into `out`; returns where it lies.

    Args:
        folders: what `interp train` wrote; nothing is written there.
        out: the output directory; left as it was when anything fails.
        load: opens a snapshot, where a run did not record what its heads did.
        seed: of what snapshots are measured on.
        command: what the user typed, for the record.
        progress: called with what is being done and how many snapshots were measured.

    Raises:
        InputError: as of `read_run`, or an output directory that cannot be used.
    """
    started = time.perf_counter()
    say: Say = progress or (lambda stage, count: None)
    called = names([str(folder) for folder in folders]) if len(folders) > 1 else [folders[0].resolve().name]
    with output.writing(out) as new:
        runs = [
            read_run(folder, name, load, seed=seed, progress=say) for folder, name in zip(folders, called, strict=True)
        ]
        table, best = pd.concat([run.table for run in runs]), pd.concat([formed(run) for run in runs])
        new.table("forming", table.reindex(columns=COLUMNS))
        new.table("formed", best)
        say("writing figures", 0)
        images = _images(new, runs, best)
        facts = {
            "runs": [
                {
                    "name": run.name,
                    "directory": str(folder),
                    "heads": run.source,
                    "looks": len({*run.heads["step"]}),
                    "phases_end": list(run.boundaries),
                    "left_out": dict(run.left_out),
                }
                for run, folder in zip(runs, folders, strict=True)
            ],
            "seed": seed,
            "command": command,
            "versions": output.versions(),
            "seconds": round(time.perf_counter() - started, 1),
        }
        new.text("report.html", page(facts, runs, best, images))
        new.run(facts)
    return Path(out)


def _images(new: output.Output, runs: Sequence[Run], formed: pd.DataFrame) -> list[dict[str, str]]:
    """The runs three by three, all with the axes of all."""
    parts = [runs[at : at + _COLUMNS] for at in range(0, len(runs), _COLUMNS)]
    found = []
    for number, part in enumerate(parts, 1):
        figure = figures.forming(
            pd.concat([run.table for run in part]),
            {run.name: _change(formed, run.name) for run in part},
            {run.name: run.boundaries for run in part},
        )
        name = "forming" if len(parts) == 1 else f"forming-{number}"
        found.append(image(figure, new.figure(name, figure).read_bytes(), _CAPTION, alt(part, formed)))
    return found


def _change(formed: pd.DataFrame, run: str) -> tuple[int, int] | None:
    rows = formed.loc[(formed["run"] == run) & (formed["measure"] == CHANGING) & formed["rise_from"].notna()]
    return None if rows.empty else (int(rows["rise_from"].iloc[0]), int(rows["rise_to"].iloc[0]))

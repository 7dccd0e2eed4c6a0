"""How long does a labelled report take, stage by stage, and what do estimates save?

    python -m benchmarks.reports                     # the default, MiniLM and GPT-2 small's shape
    python -m benchmarks.reports --quick             # the default and MiniLM on 30 tales
    python -m benchmarks.reports --gpt2 DIR          # GPT-2's weights instead of random ones
    python -m benchmarks.reports --only MiniLM --estimated

Each row is one `interp report` in a separate process, with all nulls, controls and explanations, first with defaults,
then with `--exact`. Prints one JSON line per row, after one for the machine:

    seconds, processor_s   wall-clock seconds, and CPU seconds of all threads, for the whole command with start-up
    first_page_s           until the first page was in the output directory
    peak_mb                the process's peak resident memory
    stages                 wall-clock seconds, as in `run.json`
    effects, measured      how many effects of hiding keys the choosing half has, and how many were measured
    labels                 number of labels
    load                   of the machine before the row (processes that wanted a CPU, one-minute mean): a row is worth
                           nothing if other work was running

Random weights give no candidates, and only candidates are measured exactly. So with random weights we draw as many
candidates from all heads and measures as MiniLM has on the same text (`FORCED`).
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analyses.labels import evidence
from analyses.labels.evidence import Bars
from analyses.measures.definitions import Behaviour
from benchmarks.console import arguments, machine, show
from benchmarks.cost import model_of
from benchmarks.floor import GPT2
from models import load, save

SHARED = Path(__file__).parents[2] / "shared" / "data"
EWT, LITBANK = SHARED / "ud-ewt" / "en_ewt-ud-dev.conllu", SHARED / "litbank" / "coref"
FORCED = 0.05  # share of candidates among MiniLM's heads and measures on EWT's development text and LitBank
QUICK = "--corpus=tales:30"


def main() -> None:
    """Print one JSON line per row."""
    quick, smallest = "the default and MiniLM on 30 tales", "the default on 10 tales, nothing exact"
    parser = arguments(__doc__, quick=quick, smallest=smallest, estimated="not again with --exact")
    parser.add_argument("--only", default="", help="rows whose name begins with this")
    parser.add_argument("--gpt2", help="a directory with GPT-2 small's weights; by default random ones")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    options = parser.parse_args()
    where = ["--device", options.device, "--dtype", options.dtype]
    machine(device=options.device, dtype=options.dtype)
    real = [f"--corpus={each}" for each in (EWT, LITBANK)]
    with tempfile.TemporaryDirectory() as folder:
        weights = options.gpt2 or str(Path(folder) / "gpt2")
        rows = {
            "default, stories": ["--corpus=tales:100"],
            "default, EWT": real[:1],
            "default": real,
            "MiniLM": ["--model", "minilm", *real],
            "GPT-2 small": ["--model", weights, real[0]],
        }
        if options.quick:
            rows = {"default, stories": [QUICK], "default": [QUICK], "MiniLM": ["--model", "minilm", QUICK]}
        if options.smallest:
            rows, options.estimated = {"default, stories": ["--corpus=tales:10"]}, True
        for name, words in rows.items():
            if not name.startswith(options.only):
                continue
            if forced := name.startswith("GPT-2") and options.gpt2 is None:
                random_gpt2(Path(weights))
            for exact in (False, True)[: 1 if options.estimated else 2]:
                out = Path(folder) / f"{name} {exact}"
                row = timed([*words, *where, *["--exact"] * exact], out, forced=forced)
                show(name=name, exact=exact, **row)


def random_gpt2(directory: Path) -> None:
    """GPT-2 small's shape with random weights and the default's tokenizer, so words have as many pieces as there."""
    model = model_of(GPT2)
    model.tokenizer = load("default").tokenizer
    save(model, directory)


def timed(arguments: Sequence[str], out: Path, *, forced: bool) -> dict[str, Any]:
    """One `interp report` into a new directory."""
    start = "from benchmarks.reports import force; force(); " if forced else ""
    code = f"{start}from analyses.cli.app import main; main()"
    command = [sys.executable, "-c", code, "report", *arguments, "--no-probes", "--no-experiments", "--out", str(out)]
    others, began, first = os.getloadavg()[0], time.perf_counter(), None
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=os.environ | {"GOMP_SPINCOUNT": "3000"})
    ended = 0
    while not ended:
        ended, status, usage = os.wait4(child.pid, os.WNOHANG)
        if first is None and (out / "report.html").exists():
            first = time.perf_counter() - began
        time.sleep(0.05)
    seconds = time.perf_counter() - began
    if status:
        raise SystemExit(f"{' '.join(command)} ended with {os.waitstatus_to_exitcode(status)}")
    facts = json.loads((out / "run.json").read_text())
    table = pd.read_csv(out / "tables" / "evidence.csv")
    screened = facts["effects_screened"].values()
    return {
        "seconds": round(seconds, 1),
        "processor_s": round(usage.ru_utime + usage.ru_stime, 1),
        "first_page_s": None if first is None else round(first, 1),
        "peak_mb": round(usage.ru_maxrss / 1024),
        "effects": sum(each["cells"] for each in screened) or int(table["effect"].notna().sum()),
        "measured": sum(each["measured"] for each in screened) or int(table["effect"].notna().sum()),
        "labels": len(pd.read_csv(out / "tables" / "labels.csv")),
        "load": round(others, 2),
        "stages": facts["stages"],
    }


def force() -> None:
    """Make some heads and measures candidates, whatever they show; the same ones in every run."""
    choose = evidence.candidates

    def candidates(
        behaviour: Behaviour, bars: Bars, heads: pd.DataFrame, effects: pd.DataFrame | None = None
    ) -> pd.DataFrame:
        cells = heads.loc[[behaviour[name].called is not None for name in heads["measure"]], evidence.CELL]
        sample = cells.drop_duplicates().sample(frac=FORCED, random_state=0).assign(attends=True, moves=False)
        rows = pd.concat([choose(behaviour, bars, heads, effects), sample], ignore_index=True)
        return rows.drop_duplicates(evidence.CELL)

    evidence.candidates = candidates


if __name__ == "__main__":
    main()

"""Every benchmark runs to its end in its smallest form, so what pages quote can be reproduced."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from repository import ROOT

from benchmarks.labels import KINDS

SMOKE = "corpus_memory --stories 5"
COMMANDS = Path(__file__).with_name("smallest.txt").read_text().splitlines() + [
    f"labels --smallest --only {kind} --processes 1 --corpus tales:10:11" for kind in KINDS if " " not in kind
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [pytest.param(command, marks=[pytest.mark.smoke] * (command == SMOKE)) for command in COMMANDS]
)
def test_the_smallest_form_runs_to_its_end(command: str, tmp_path: Path, shared_file):
    heads, run = tmp_path / "heads.csv", tmp_path / "run"
    heads.write_text("measure,layer,head\nprevious-token,1,0\n")
    run.mkdir()
    (run / "metrics.jsonl").write_text(json.dumps({"step": 1, "loss": 2.0, "heads/induction/L0.H0": 0.5}) + "\n")
    values = {"HEADS": lambda: heads, "RUN": lambda: run, "OUT": lambda: tmp_path / "out"}
    values |= {name.upper(): partial(shared_file, "data", name) for name in ("winobias", "blimp")}
    words = [str(values[word]()) if word in values else word for word in command.split()]
    env = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    call = [sys.executable, "-m", f"benchmarks.{words[0]}", *words[1:]]
    done = subprocess.run(call, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip()


def test_no_benchmark_is_forgotten():
    names = {command.split()[0] for command in COMMANDS}
    files = {path.stem for path in (ROOT / "benchmarks").glob("*.py") if "def main()" in path.read_text()} - {"size"}
    assert names == files | {"faults"}

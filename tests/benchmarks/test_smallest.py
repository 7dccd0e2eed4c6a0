"""Every benchmark runs to its end, in the smallest form that it has: what pages quote can be had again."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.labels import KINDS

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = [
    "arena --repeats 1",
    "beside_commit HEAD --turns 2 --only search",
    "corpus_memory --stories 5",
    "cost --smallest",
    "default_model --only repeats",
    "draws --quick --draws 2",
    "faults --files 1 --kills 1 --disks 1 --races 1",
    "growth --smallest",
    "known --model default --heads HEADS --corpus stories:12 --pairs 2",
    *(f"labels --smallest --only {kind} --processes 1 --corpus tales:10:11" for kind in KINDS if " " not in kind),
    "loading --smallest --repeats 1",
    "published relations --choose tales:10 --report tales:10:1",
    "published pronouns --corpus tales:10",
    "published scores --corpus WINOBIAS",
    "reports --smallest",
    "screening --model default --corpus tales:10 --cells 2",
    "seeds RUN",
    "simple_rules --corpus stories:10",
    "statistics --smallest",
    "steering --cost",
    "sweeps --quick --only small",
    "training --smallest --rows 1 --row 8",
    "wrapping --quick --repeats 1 --only gpt2",
]


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_the_smallest_form_runs_to_its_end(command: str, tmp_path: Path, shared_file):
    heads, run = tmp_path / "heads.csv", tmp_path / "run"
    heads.write_text("measure,layer,head\nprevious-token,1,0\n")
    run.mkdir()
    (run / "metrics.jsonl").write_text(json.dumps({"step": 1, "loss": 2.0, "heads/induction/L0.H0": 0.5}) + "\n")
    named = {"HEADS": lambda: heads, "RUN": lambda: run, "WINOBIAS": lambda: shared_file("data", "winobias")}
    words = [str(named[word]()) if word in named else word for word in command.split()]
    env = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{words[0]}", *words[1:]],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip()


def test_no_benchmark_is_forgotten():
    asked = {command.split()[0] for command in COMMANDS}
    files = {path.stem for path in (ROOT / "benchmarks").glob("*.py") if "def main()" in path.read_text()} - {"size"}
    assert asked == files | {"faults"}

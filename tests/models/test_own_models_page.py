"""What docs/own_models.md promises: its code runs as it stands, block after block."""

from pathlib import Path

import pytest
from page_code import blocks

pytest.importorskip("transformers", reason="the page begins with a model of transformers, which is not installed")

PAGE = (Path(__file__).parents[2] / "docs/own_models.md").read_text()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_every_block_runs_and_prints_what_it_says(capsys):
    names: dict[str, object] = {}
    for block in blocks("docs/own_models.md", "python"):
        exec(compile(block, "docs/own_models.md", "exec"), names)
    printed = capsys.readouterr().out.splitlines()
    assert "shared 258 kB of 258 kB (100.0%), copied 0 B (0.0%)" in printed
    said = " ".join(line.strip().removeprefix("# ") for line in PAGE.splitlines() if line.startswith("    # the"))
    assert said in printed

"""Committed notebooks look as people type them: short cells, no magic, nothing private, and executed."""

import ast
import json
from pathlib import Path

import pytest
from repository import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LONGEST = 12  # lines of a cell


def cells(path: Path) -> list[dict]:
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


def private_imports(code: str) -> list[str]:
    """Imported names that begin with an underscore, or come from a module whose name does."""
    private = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [each.name for each in node.names] + [getattr(node, "module", None) or ""]
            private += [name for name in names if any(part.startswith("_") for part in name.split("."))]
    return private


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_cells_are_short_without_magic_and_import_nothing_private_and_were_run_in_order(path):
    for number, cell in enumerate(cells(path), 1):
        code = "".join(cell["source"])
        where = f"code cell {number} of {path.name}"
        assert len(code.splitlines()) <= LONGEST, where
        assert not [line for line in code.splitlines() if line.lstrip().startswith(("%", "!"))], where
        assert private_imports(code) == [], where
        assert cell["execution_count"] == number, where
        assert not [out for out in cell["outputs"] if out["output_type"] == "error"], where
    # a table or a view of attention (HTML), and a figure; small enough to commit
    outputs = [{*out.get("data", {})} for cell in cells(path) for out in cell["outputs"]]
    assert any("text/html" in each for each in outputs)
    assert any({"image/png", "image/svg+xml"} & each for each in outputs)
    assert path.stat().st_size < 1 << 20

"""The repository around the tests. Tests that import this, or `benchmarks`, are skipped for an installed wheel, which
has neither pages nor benchmarks, and its sources elsewhere."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
if not (ROOT / "mkdocs.yml").exists():
    pytest.skip("needs the whole repository beside tests/: pages, benchmarks and sources", allow_module_level=True)

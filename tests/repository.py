"""The repository around the tests. What imports this, or `benchmarks`, is skipped where an installed wheel is tested: a
wheel has neither pages nor benchmarks, and its sources are elsewhere."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
if not (ROOT / "mkdocs.yml").exists():
    pytest.skip("needs the whole repository beside tests/: pages, benchmarks and sources", allow_module_level=True)

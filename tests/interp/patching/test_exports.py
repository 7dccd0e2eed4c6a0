"""What docs/patching.md says `interp.patching` has, it has."""

import importlib
import inspect
import pkgutil
import re
from pathlib import Path

from interp import patching

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "patching.md").read_text()
CODE = "\n".join("".join(found) for found in re.findall(r"```python\n(.*?)```|`([^`\n]+)`", TEXT, re.DOTALL))


def defined() -> set[str]:
    """Public functions and classes of the modules of `interp.patching`."""
    names: set[str] = set()
    for module in pkgutil.walk_packages(patching.__path__, "interp.patching."):
        for name, value in vars(importlib.import_module(module.name)).items():
            if (inspect.isfunction(value) or inspect.isclass(value)) and value.__module__ == module.name:
                names.add(name)
    return {name for name in names if not name.startswith("_")}


def test_all_that_the_docs_name_is_exported():
    named = {*re.findall(r"[A-Za-z_]\w*", CODE)} & defined()
    assert {"sweep", "ablate_in_order", "knock_out", "Receiver", "kl_divergence"} <= named
    assert named - {*patching.__all__} == set()


def test_exports_are_in_order_and_documented():
    assert patching.__all__ == sorted(patching.__all__)
    assert all(getattr(patching, name).__doc__ for name in patching.__all__)

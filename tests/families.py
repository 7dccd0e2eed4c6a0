"""The table of docs/families.md: what is each family made of, and how closely did we check it?

`python tests/families.py` measures every variant of `variants.json` and writes the table. A variant lists the fields,
and settings of `parity.Variant`, in which it differs from its family.
"""

import dataclasses
import json
import re
import tempfile
from collections.abc import Iterable, Mapping
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import parity
import torch
from torch.nn.functional import gelu
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from models.catalogue import families

VARIANTS = Path(__file__).resolve().parent / "models/families/variants.json"
PAGE = Path(__file__).resolve().parents[1] / "docs" / "families.md"
COLUMNS = ("family", "stacks", "attention", "positions", "norms", "feed-forward", "float32", "float64")


class Unrounded(SimpleNamespace):
    """torch, for models that compute scores in float32 at any precision."""

    float32 = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


THEIRS = "transformers.models"
UNROUNDED: dict[str, dict[str, Any]] = {
    "gpt_neo": {f"{THEIRS}.gpt_neo.modeling_gpt_neo.torch": Unrounded()},
    "gptj": {f"{THEIRS}.gptj.modeling_gptj.torch": Unrounded()},
    # it writes sqrt(2 / pi) with 8 digits
    "bloom": {f"{THEIRS}.bloom.modeling_bloom.bloom_gelu_forward": partial(gelu, approximate="tanh")},
    # it rotates in float32 at every precision
    "modernbert": {f"{THEIRS}.modernbert.modeling_modernbert.apply_rotary_pos_emb": apply_rotary_pos_emb},
}
_OF_VARIANT = {each.name for each in dataclasses.fields(parity.Variant)} - {"fields"}


def _variant(family: str, table: Mapping[str, Any], changes: Mapping[str, Any]) -> parity.Variant:
    settings = {key: value for key, value in {**table, **changes}.items() if key in _OF_VARIANT}
    fields = table["fields"] | {key: value for key, value in changes.items() if key not in _OF_VARIANT}
    return parity.Variant(**settings, fields=fields, unrounded=UNROUNDED.get(family, {}))


@cache
def by_family() -> dict[str, dict[str, parity.Variant]]:
    return {
        family: {name: _variant(family, table, changes) for name, changes in table["variants"].items()}
        for family, table in json.loads(VARIANTS.read_text(encoding="utf-8")).items()
    }


def variant(family: str, **changes: Any) -> parity.Variant:
    """The family's usual fields and model, except for `changes`."""
    return _variant(family, json.loads(VARIANTS.read_text(encoding="utf-8"))[family], changes)


def deviation(variant: parity.Variant, dtype: torch.dtype) -> float:
    with tempfile.TemporaryDirectory() as directory:
        return parity.make_pair(variant, dtype, Path(directory)).deviation()


def measured() -> dict[str, tuple[str, ...]]:
    """The largest deviations of each family, in float32 and in float64."""

    def largest(variants: Iterable[parity.Variant], dtype: torch.dtype) -> str:
        deviations = max(deviation(variant, dtype) for variant in variants)
        return f"{deviations:.0e}" if deviations else "0"

    precisions = (torch.float32, torch.float64)
    return {name: tuple(largest(forms.values(), dtype) for dtype in precisions) for name, forms in by_family().items()}


def page(deviations: Mapping[str, tuple[str, ...]]) -> str:
    """The page with each family's deviations in its table."""
    rows = [COLUMNS, ("---",) * len(COLUMNS)]
    for name, parts in families().items():
        if parts is not None:  # our own format is no family
            words = (parts.stacks, parts.attention, parts.positions, parts.wiring, parts.feed_forward)
            rows.append((f"`{name}`", *words, *deviations.get(name, ("", ""))))
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows).replace(" --- ", "---")
    return re.sub(r"(^\|.*\n)+", lambda _: table, PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)


def stated(text: str) -> dict[str, tuple[str, str]]:
    """The deviations stated on a page, by family."""
    rows = re.findall(r"^\| `(\w+)` \|.*\| (\S+) \| (\S+) \|$", text, re.M)
    return {name: (single, double) for name, single, double in rows}


if __name__ == "__main__":
    PAGE.write_text(page(measured()), encoding="utf-8")
    print(f"wrote {PAGE}")

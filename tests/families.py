"""The table of docs/families.md: what each family is made of, and how closely it was checked.

`python tests/families.py` measures every variant of `variants.json` and writes the page. There a family has
transformers' classes, fields of the configuration, and variants: the fields (and settings of `parity.Variant`) in which
each differs.
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
COLUMNS = ("family", "stacks", "attention", "positions", "norms", "feed-forward", "variants", "float32", "float64")
TEXT = """# Families

Models of these families load from Hugging Face's format, and are saved in it. Each was checked against `transformers`
on tiny random models, a few variants each: logits, streams, patterns, gradients, padding, long texts, greedy generation
and saving. A field of `config.json` that nothing here reads is refused, unless it is known to change nothing. Thirteen
random configurations of each family (`tests/models/families/test_random_configurations.py`) compare logits as well.

The last two columns are the largest difference of a logit (without an output layer, of an entry of the last stream)
over a family's variants, relative to the largest one where that is above 1.

{table}

Refused, with an error that says so: rotations that depend on the text's length (`dynamic`, `longrope`: Phi-3 and Phi-4
with 128k tokens of context), a norm for each head (StableLM 2 12B), Gemma 3 that reads images, quantised weights.
gpt-oss is not supported: its heads have a sink that is no position, and its experts clamp and shift their gates.

This page is written by `python tests/families.py`.
"""


class Unrounded(SimpleNamespace):
    """torch, for models that take scores in float32 whatever their own precision is."""

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
    """Variants by name, by what config.json calls their family."""
    return {
        family: {name: _variant(family, table, changes) for name, changes in table["variants"].items()}
        for family, table in json.loads(VARIANTS.read_text(encoding="utf-8")).items()
    }


def variant(family: str, **changes: Any) -> parity.Variant:
    """The family's usual fields and model, but for `changes`."""
    return _variant(family, json.loads(VARIANTS.read_text(encoding="utf-8"))[family], changes)


def deviation(variant: parity.Variant, dtype: torch.dtype) -> float:
    """How far our outputs are from theirs."""
    with tempfile.TemporaryDirectory() as directory:
        return parity.make_pair(variant, dtype, Path(directory)).deviation()


def measured() -> dict[str, tuple[str, str]]:
    """The largest deviations of each family, in float32 and in float64."""
    return {
        name: (_largest(variants.values(), torch.float32), _largest(variants.values(), torch.float64))
        for name, variants in by_family().items()
    }


def _largest(variants: Iterable[parity.Variant], dtype: torch.dtype) -> str:
    largest = max(deviation(variant, dtype) for variant in variants)
    return f"{largest:.0e}" if largest else "0"


def page(deviations: Mapping[str, tuple[str, str]]) -> str:
    """The page with these deviations of each family."""
    counts = {name: len(variants) for name, variants in by_family().items()}
    rows = [COLUMNS, ("---",) * len(COLUMNS)]
    for name, parts in families().items():
        if parts is not None:  # our own format is no family
            words = (parts.stacks, parts.attention, parts.positions, parts.wiring, parts.feed_forward)
            rows.append((f"`{name}`", *words, str(counts.get(name, 0)), *deviations.get(name, ("", ""))))
    return TEXT.format(table="\n".join(f"| {' | '.join(row)} |" for row in rows))


def stated(text: str) -> dict[str, tuple[str, str]]:
    """The deviations that a page states, by family."""
    found = re.findall(r"^\| `(\w+)` \|.*\| (\S+) \| (\S+) \|$", text, re.M)
    return {name: (single, double) for name, single, double in found}


if __name__ == "__main__":
    PAGE.write_text(page(measured()), encoding="utf-8")
    print(f"wrote {PAGE}")

"""The table of docs/families.md: what each family is made of, and how closely it was checked.

`python tests/families.py` measures every variant of every `test_families_*.py` and writes the page.
"""

import re
import tempfile
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path

import parity
import torch

from models.catalogue import families

PAGE = Path(__file__).resolve().parents[1] / "docs" / "families.md"
COLUMNS = ("family", "stacks", "attention", "positions", "norms", "feed-forward", "variants", "float32", "float64")
TEXT = """# Families

Models of these families load from Hugging Face's format, and are saved in it. Each was checked against `transformers`
on tiny random models (sizes odd or prime where the family allows it, every weight drawn, biases and norms too), a few
variants each: logits, every layer's stream and attention pattern, gradients of every weight, batches padded left and
right, texts longer than windows and near distances, greedy generation, and models that we save and `transformers`
reads. A field of `config.json` that nothing here reads is refused, unless it is known to change nothing; the tests
change those that are, all at once, and see that it is so. Thirteen random configurations of each family
(`tests/models/families/test_random_configurations.py`) compare logits as well, loaded and saved.

The last two columns are the largest difference of a logit (where a model has no output layer, of an entry of its last
stream) over a family's variants, relative to the largest one where that is above 1.

{table}

Refused, with an error that says so: rotations that depend on the text's length (`dynamic`, `longrope`: Phi-3 and Phi-4
with 128k tokens of context), a norm for each head on its own (StableLM 2 12B), Gemma 3 that reads images, quantised
weights. gpt-oss is not there: what its heads attend to does not add up to 1 (each has a sink that is no position), and
its experts clamp and shift their gates.

This page is written by `python tests/families.py`.
"""


def variants() -> Iterator[parity.Variant]:
    """All of them, from the modules that test families."""
    for file in sorted(Path(__file__).parent.rglob("test_families_*.py")):
        for each in vars(
            import_module(".".join(file.relative_to(Path(__file__).parents[1]).with_suffix("").parts))
        ).values():
            if isinstance(each, type) and issubclass(each, parity.Parity):
                yield from each.VARIANTS.values()


def by_family() -> dict[str, list[parity.Variant]]:
    """Variants by what config.json calls their family."""
    found: dict[str, list[parity.Variant]] = {}
    for variant in variants():
        found.setdefault(getattr(parity.transformers, variant.config).model_type, []).append(variant)
    return found


def deviation(variant: parity.Variant, dtype: torch.dtype) -> float:
    """How far our outputs are from theirs."""
    with tempfile.TemporaryDirectory() as directory:
        return parity.make_pair(variant, dtype, Path(directory)).deviation()


def measured() -> dict[str, tuple[str, str]]:
    """The largest deviations of each family, in float32 and in float64."""
    return {name: (_largest(some, torch.float32), _largest(some, torch.float64)) for name, some in by_family().items()}


def _largest(some: list[parity.Variant], dtype: torch.dtype) -> str:
    largest = max(deviation(variant, dtype) for variant in some)
    return f"{largest:.0e}" if largest else "0"


def page(deviations: Mapping[str, tuple[str, str]]) -> str:
    """The page with these deviations of each family."""
    counts = {name: len(some) for name, some in by_family().items()}
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

"""Random configurations of every family: we compute what `transformers` computes, before and after saving.

A failure names a family and a seed. To reproduce it: `compare(*random_variant("llama", 7), directory)`.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from families import by_family
from parity import Variant, close, read_pair, transformers

from benchmarks.random_configurations import COMMON, DRAWS, FLAG, Draw
from interp import InputError
from models import load, save
from models.families import FAMILIES

TOLERANCE = 1e-6  # in float64: some of theirs rounds to float32, and a mistake is at least a thousandth
REFUSALS = 0.25  # the largest share of a family's configurations


def random_variant(family: str, seed: int) -> tuple[Variant, bool]:
    """A variant of a family, and whether its config.json spells out fields that were not drawn."""
    draw = Draw(f"{family} {seed}")
    base = draw.choice([*by_family()[family].values()])
    kind, fields = getattr(transformers, base.config), DRAWS[family](draw)
    for names, values in COMMON.items():
        fields |= draw.fields(**{name: values for name in names if name in kind.__annotations__})
    if base.model.endswith(("ForCausalLM", "LMHeadModel")):
        fields |= draw.fields(tie_word_embeddings=FLAG)
    unshared = fields.get("num_key_value_heads") == fields.get("num_attention_heads")
    if unshared and kind.__annotations__.get("num_key_value_heads") == int | None and draw.flag():
        fields["num_key_value_heads"] = None
    ids = {name: value for name, value in base.fields.items() if name.endswith("_id")}
    return replace(base, fields=ids | fields), draw.flag()


def compare(variant: Variant, spelled_out: bool, directory: Path) -> None:
    """Assert that ragged batches, padded right and left, give the same in their model, ours, and what we save."""
    theirs = variant.build(torch.float64)
    theirs.save_pretrained(directory / "theirs")
    family = theirs.config.model_type
    if not spelled_out:
        raw = {"model_type": family, "architectures": [variant.model], **variant.fields}
        (directory / "theirs" / "config.json").write_text(json.dumps(raw))
    ours = load(directory / "theirs", dtype=torch.float64)
    try:
        save(ours, directory / "ours", family)
    except InputError as error:
        raise AssertionError("what is loaded can be saved") from error
    pairs = [read_pair(variant, torch.float64, directory / each) for each in ("theirs", "ours")]
    for side in ("right", "left")[: 1 if variant.counts_padding else 2]:
        source, target = pairs[0].batches((5, variant.length, 1), side)
        mask = (target or source).mask
        with torch.no_grad():
            expected, saved = (pair.their_output(pair.ask_theirs(source, target))[mask] for pair in pairs)
        close(saved, expected, TOLERANCE, f"theirs of what we save, padded {side}")
        for pair in pairs:
            close(pair.output(pair.ask_ours(source, target))[mask], expected, TOLERANCE, f"padded {side}")


@pytest.mark.parametrize("family", DRAWS)
@pytest.mark.parametrize(
    "seeds",
    [range(1), pytest.param(range(1, 13), marks=pytest.mark.slow)],
    ids=lambda seeds: f"seeds {seeds.start}-{seeds.stop - 1}",
)
def test_random_configurations_compute_what_theirs_do(family, seeds, tmp_path):
    refusals, errors = {}, []
    for seed in seeds:
        variant, spelled_out = random_variant(family, seed)
        try:
            compare(variant, spelled_out, tmp_path / str(seed))
        except InputError as error:
            refusals[seed] = str(error)
        except Exception as error:
            error.add_note(f"{family}, seed {seed}: {variant.model} {variant.fields}")
            errors.append(error)
    if errors:
        raise ExceptionGroup(f"{family}: {len(errors)} of {len(seeds)} configurations", errors)
    assert len(refusals) <= REFUSALS * len(seeds), refusals
    assert "\n" not in "".join(refusals.values())


def test_every_family_has_random_configurations():
    assert DRAWS.keys() == FAMILIES.keys() - {"interp"}

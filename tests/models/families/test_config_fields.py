"""What a config.json says: fields of older files mean what they mean to `transformers`, and those that change the
computation and are not supported, or fit no model, are named in one line each.
"""

import json
import re
from pathlib import Path

import pytest
from families import variant
from refusals import refusal
from transformers import CONFIG_MAPPING

from models.families import FAMILIES


def table(name: str) -> list[tuple]:
    """The rows of a table beside this file: a family, its fields, and what else there is."""
    rows = (line.split("\t") for line in Path(__file__).with_name(name).read_text().splitlines()[1:])
    return [(family, json.loads(fields), *more) for family, fields, *more in rows]


@pytest.mark.parametrize(("family", "fields", "message"), table("refused_fields.tsv"))
def test_what_changes_the_computation_and_is_not_supported_is_refused(family, fields, message):
    assert message in refusal(FAMILIES[family].config, {**variant(family).fields, **fields})


@pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
def test_a_size_that_is_absent_or_no_size_is_named(family):
    fields = dict(variant(family).fields)
    optional = {"n_inner", "num_key_value_heads", "head_dim", "bos_token_id", "eos_token_id", "pad_token_id"}
    for name in fields.keys() - optional:
        for value in (None, 0, -3, 2.5, "7", True):
            assert re.search(rf"\b{name}\b", refusal(FAMILIES[family].config, fields | {name: value}))


@pytest.mark.parametrize(("family", "fields"), table("older_files.tsv"))
def test_older_words_mean_what_they_mean_to_transformers(family, fields):
    """Their configuration, with every field spelled out, says the same as the file that leaves most unsaid."""
    sizes = {key: value for key, value in variant("llama").fields.items() if value is not None}
    raw, ours = {**sizes, "model_type": family, "num_hidden_layers": 8, **fields}, FAMILIES[family]
    spelled = CONFIG_MAPPING[family].from_dict(raw).to_dict()
    assert ours.config(raw) == ours.config(spelled) == ours.config(ours.raw(ours.config(raw)))

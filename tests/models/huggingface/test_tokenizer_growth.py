"""A tokenizer.json that turns a word into a gigabyte is refused before it does; those that people use are read."""

import json
import re
import resource
from pathlib import Path
from typing import Any

import pytest
from refusals import refusal
from tokenizers import Tokenizer as Backend

from models.huggingface import read_tokenizer
from models.huggingface.tokenizer_growth import check_growth

TABLES = json.loads(Path(__file__).with_name("tokenizers.json").read_text("utf-8"))
LISTS = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers"}
LISTS |= {"post_processor": "processors", "decoder": "decoders"}


def tokenizer(parts: dict[str, dict[str, Any]]) -> str:
    """The content of a tokenizer.json; repeated steps are written once."""
    whole = {
        place: {"type": "Sequence", LISTS[place]: [part["step"]] * part["times"]} if "times" in part else part
        for place, part in parts.items()
    }
    return json.dumps(TABLES["plain"] | whole)


@pytest.mark.parametrize("name", TABLES["hostile"])
def test_what_grows_without_bound_is_refused_before_it_is_made(name, tmp_path):
    text = tokenizer(TABLES["hostile"][name]).replace(
        '"added_tokens": []', f'"added_tokens": [{json.dumps(TABLES["added"])}]'
    )
    assert len(text) < 8_000
    (tmp_path / "tokenizer.json").write_text(text)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert re.search(
        r"not readable as a tokenizer: its steps turn one character into up to .*;", refusal(read_tokenizer, tmp_path)
    )
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB


@pytest.mark.parametrize("name", TABLES["used"])
def test_what_people_use_is_read(name):
    check_growth(tokenizer(TABLES["used"][name]))


@pytest.mark.parametrize(
    ("name", "most"), [("put where a pattern finds nothing", 3), ("put in front", 4), ("bytes of bytes", 4)]
)
def test_the_library_makes_no_more_than_is_counted(name, most):
    step = TABLES["hostile"][name]["normalizer"]
    backend = Backend.from_str(tokenizer({"normalizer": step | {"times": 2}}))
    assert max(len(backend.normalizer.normalize_str(text)) / len(text) for text in ("a", "ab", "é")) <= most**2
    refusal(check_growth, tokenizer({"normalizer": step | {"times": 6}}))

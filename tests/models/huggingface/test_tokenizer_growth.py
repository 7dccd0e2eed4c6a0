"""A tokenizer.json that makes a gigabyte of a word is refused before it makes any; those that people use are read."""

import base64
import json
import resource
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend

from interp import InputError
from models.huggingface import read_tokenizer
from models.huggingface.tokenizer_growth import check_growth

PLAIN = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": None,
    "post_processor": None,
    "decoder": None,
    "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "b"},
}
ADDED = {"id": 0, "content": "a", "single_word": False, "lstrip": False, "rstrip": False, "special": False}
LISTS = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers"}
LISTS |= {"post_processor": "processors", "decoder": "decoders"}
BYTES = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": False}
SPACES = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
PREPENDED = {"type": "Prepend", "prepend": "aaa"}
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}


def replaced(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def table(*texts: str) -> dict[str, str]:
    """A table of SentencePiece, of which only the texts matter here."""
    content = (0).to_bytes(4, "little") + b"\0".join(text.encode() for text in texts) + b"\0"
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(content).decode()}


def chain(place: str, step: dict[str, Any], count: int) -> dict[str, Any]:
    return {place: {"type": "Sequence", LISTS[place]: [step] * count}}


def template(*texts: str) -> dict[str, Any]:
    pieces = [{"Sequence": {"id": text, "type_id": at}} for at, text in enumerate(texts)]
    return {"type": "TemplateProcessing", "single": pieces, "pair": [], "special_tokens": {}}


HOSTILE = {
    "replaced by more": chain("normalizer", replaced({"String": "a"}, "a" * 10), 9),
    "put where a pattern finds nothing": chain("normalizer", replaced({"Regex": "(?=a)"}, "a"), 30),
    "an empty pattern": chain("normalizer", replaced({"String": ""}, "a"), 30),
    "put in front": chain("normalizer", PREPENDED, 30),
    "bytes of bytes": chain("normalizer", {"type": "ByteLevel"}, 30),
    "a table": chain("normalizer", table("a" * 40), 3),
    "without its kind": chain("normalizer", {"prepend": "aaa"}, 30),
    "chains in chains": chain(
        "normalizer", chain("normalizer", {"type": "Prepend", "prepend": "a"}, 4)["normalizer"], 4
    ),
    "a text many times over": chain("post_processor", template(*"AAAA"), 9),
    "as it is decoded": chain("decoder", replaced({"String": "a"}, "aa"), 30),
    "a bit of each": chain("normalizer", {"type": "Prepend", "prepend": "a" * 19}, 1)
    | chain("pre_tokenizer", BYTES, 2),
}
USED = {
    "GPT-2, Llama 3": {"pre_tokenizer": BYTES, "post_processor": BYTES, "decoder": BYTES},
    "Llama 2": {
        "normalizer": {
            "type": "Sequence",
            "normalizers": [{"type": "Prepend", "prepend": "▁"}, replaced({"String": " "}, "▁")],
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [replaced({"String": "▁"}, " "), {"type": "ByteFallback"}, {"type": "Fuse"}],
        },
    },
    "ALBERT, T5": {
        "normalizer": {
            "type": "Sequence",
            "normalizers": [replaced({"String": "``"}, '"'), {"type": "NFKD"}, table("صلى الله عليه وسلم"), SPACES],
        },
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, METASPACE]},
        "post_processor": template("A"),
        "decoder": METASPACE,
    },
    "many steps that keep the length": chain("normalizer", replaced({"String": "a"}, "b"), 100),
    "a long text for a longer one": {"normalizer": replaced({"String": "b" * 500}, "a" * 1000)},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_grows_without_bound_is_refused_before_it_is_made(name, tmp_path):
    text = json.dumps({**PLAIN, **HOSTILE[name], "added_tokens": [{**ADDED, "normalized": True}]})
    assert len(text) < 8_000
    (tmp_path / "tokenizer.json").write_text(text)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=r"not readable as a tokenizer: its steps make up to .* characters of one"):
        read_tokenizer(tmp_path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB


@pytest.mark.parametrize("name", USED)
def test_what_people_use_is_read(name):
    check_growth(json.dumps({**PLAIN, **USED[name]}))


@pytest.mark.parametrize(
    ("step", "most"), [(replaced({"Regex": "(?=a)"}, "aa"), 3), (PREPENDED, 4), ({"type": "ByteLevel"}, 4)]
)
def test_the_library_makes_no_more_than_is_counted(step, most):
    backend = Backend.from_str(json.dumps({**PLAIN, **chain("normalizer", step, 2)}))
    assert max(len(backend.normalizer.normalize_str(text)) / len(text) for text in ("a", "ab", "é")) <= most**2
    with pytest.raises(InputError):
        check_growth(json.dumps({**PLAIN, **chain("normalizer", step, 6)}))

"""BLiMP's pairs of sentences: how does patching use them, and what is refused in one line?"""

import gzip
import json
from pathlib import Path

import pytest
from commands import refusal
from worded import worded

from analyses.corpora.sentence_pairs import read_sentences
from analyses.patch.patch_run import make_pairs, read_pairs, with_corrupt

BLIMP = Path("../shared/data/blimp")
TEXTS = {"sentence_good": "a dog has", "sentence_bad": "a dog have"}
ONE = "one_prefix_method", "one_prefix_prefix", "one_prefix_word_good", "one_prefix_word_bad"
TWO = "two_prefix_method", "two_prefix_prefix_good", "two_prefix_prefix_bad", "two_prefix_word"


def pairs_file(file: Path, keys: tuple[str, ...], *rows: tuple[str, str, str]) -> Path:
    lines = (json.dumps(TEXTS | dict(zip(keys, (True, *row), strict=True))) for row in rows)
    file.write_bytes(gzip.compress("\n".join(lines).encode()))
    return file


def test_a_prompt_s_corrupted_one_is_the_nearest_that_asks_the_reverse(tmp_path):
    rows = ("Tim saw", "He", "She"), ("Sue because", "She", "He"), ("Sue saw", "She", "He"), ("Sue", "He", "She")
    prompts, model = read_pairs(pairs_file(tmp_path / "p.jsonl.gz", ONE, *rows)), worded()
    assert with_corrupt(model, prompts)["corrupt"].tolist() == ["Sue saw", "Tim saw", "Tim saw", ""]
    pairs = make_pairs(model, prompts, drop=True)
    assert (pairs.kept, dict(pairs.left_out)) == ((0, 1, 2), {"there is no corrupted prompt": 1})


def test_two_beginnings_are_a_pair_where_the_verb_s_other_number_is_known(tmp_path):
    file = pairs_file(tmp_path / "p.jsonl.gz", TWO, ("a dog", "dogs", "hasn't"), ("a dog", "dogs", "runs"))
    assert read_pairs(file).to_numpy().tolist() == [
        ["a dog", "dogs", "hasn't", "haven't"],
        ["a dog", "dogs", "runs", ""],
    ]


REFUSED = {
    "is empty": b"\n",
    "cannot be read": b"\x1f\x8bnothing",
    "line 1: expected pairs of sentences": b"[" * 200_000,
    'a text as "sentence_bad", got None': b'{"sentence_good": "a"}',
    'a text as "one_prefix_prefix"': json.dumps(TEXTS | {ONE[0]: True}).encode(),
    "no pair with two words to tell apart": json.dumps(TEXTS).encode(),
}


@pytest.mark.parametrize("says", REFUSED)
def test_a_file_at_fault_is_one_line(tmp_path, capsys, says):
    (tmp_path / "p.jsonl").write_bytes(REFUSED[says])
    assert says in refusal(capsys, "patch", "--pairs", str(tmp_path / "p.jsonl"))


@pytest.mark.skipif(not BLIMP.is_dir(), reason="needs ../shared/data/blimp")
def test_every_file_of_blimp_is_read():
    assert {len(read_sentences(file)) for file in BLIMP.glob("*.gz")} == {1000}

"""A stand-in that solves the prompts as published for GPT-2 small: every planted head is found in place."""

import random
import re
from pathlib import Path

import pytest
import torch
from refusals import refusal

from analyses.corpora import Corpus
from benchmarks.known import GPT2_SMALL, NAMES, Known, check_shape, look_up, prompts, read_heads
from interp import AnnotatedText, Transformer
from models.planted import GAIN, Head, Planted, Slots, antecedent, induction, offset, same_token, uniform, word_to_word

WORDS = sorted({word for row in prompts(400)[["clean", "corrupt"]].to_numpy() for text in row for word in text.split()})
AT = {  # the class in Wang et al., and its place here
    "previous-token": (0, 1),
    "duplicate-token": (0, 2),
    "S-inhibition": (0, 3),
    "induction": (1, 0),
    "name-mover": (1, 2),
    "negative-name-mover": (1, 3),
}


def inhibiting(slots: Slots) -> Head:
    """At the end, tells which name came last."""
    head = word_to_word(["to"], NAMES)(slots)
    head.moves[slots.tokens, slots.previous] = torch.eye(slots.n_tokens)
    return head


def moving(strength: float):
    """At the end, copies a name that did not come last."""

    def plan(slots: Slots) -> Head:
        head = antecedent({"to": NAMES}, {name: [name] for name in NAMES}, strength=strength)(slots)
        head.looks[slots.previous, slots.tokens] = -GAIN * torch.eye(slots.n_tokens)
        return head

    return plan


@pytest.fixture(scope="module")
def stand_in() -> Transformer:
    first = [uniform, offset(-1, remember=True), same_token, inhibiting]
    return Planted([*WORDS, *NAMES], [first, [induction(0.0), uniform, moving(3.0), moving(-1.0)]], n_ctx=64).build()


def texts() -> Corpus:
    """Random words, each twice, so only the words tell what is where."""
    rng = random.Random(0)
    lines = [" ".join(rng.sample(2 * rng.sample(WORDS, 12), 24)) for _ in range(24)]
    documents = [AnnotatedText.plain(text, f"d{number}") for number, text in enumerate(lines)]
    return Corpus("texts", "fake", frozenset(), "0" * 64, lambda: iter(documents))


@pytest.mark.slow
@pytest.mark.smoke
def test_planted_heads_are_first_by_their_measures(stand_in: Transformer):
    table = look_up(stand_in, texts(), [Known(name, *place) for name, place in AT.items()], pairs=20)
    assert dict(zip(table["measure"], table["rank"], strict=True)) == dict.fromkeys(AT, 1)
    assert (table["of"] == 8).all()
    by_name = table.set_index("measure")
    assert (by_name["ci_low"].drop("S-inhibition") > 0).all()
    assert by_name.loc["name-mover", "value"] == pytest.approx(3.0, abs=1e-3)
    assert by_name.loc["negative-name-mover", "value"] == pytest.approx(-1.0, abs=1e-3)
    # without it, the mover looks at all three names: 3 (1/3 - 2/3) = -1 instead of 3, of a whole difference of 2
    assert by_name.loc["S-inhibition", "gain"] == pytest.approx(4 / 2, abs=1e-3)
    assert by_name.loc["previous-token", "labelled"]
    assert by_name.loc["name-mover", "labelled"] is None


def test_what_cannot_be_looked_up_is_refused_in_one_line(stand_in: Transformer, tmp_path: Path):
    assert all(each.layer < 12 and each.head < 12 for each in GPT2_SMALL)
    shape = r"this.*expected a decoder with 12 n_layers.*got 2 n_layers.*--heads FILE"
    assert re.search(shape, refusal(check_shape, stand_in, "this"))
    assert "no measure" in refusal(look_up, stand_in, texts(), [Known("kindness", 0, 0)])
    assert "no head" in refusal(look_up, stand_in, texts(), [Known("induction", 2, 0)])
    file = tmp_path / "heads.csv"
    file.write_text("measure,layer,head\ninduction,1,0\n")
    assert read_heads(file) == [Known("induction", 1, 0)]
    file.write_text("measure,layer\ninduction,1\n")
    assert "expected columns measure, layer, head" in refusal(read_heads, file)

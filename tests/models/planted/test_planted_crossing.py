"""Planted truth in an encoder-decoder: every kind of attention is found, each in its own rows, with paper's numbers."""

import random

import pytest
import torch

from analyses import cross_attention, part_of_speech, position
from analyses.collectors import collect
from analyses.labels import label
from analyses.reading.windows import Reading
from analyses.tables.head_tables import Heads
from interp import AnnotatedText, run
from interp.config import LayerNorm, NoNorm, RMSNorm
from models import planted
from models.planted import Planted

NOUNS, ADJECTIVES, VERBS = ["cat", "dog", "bird"], ["red", "big", "old"], ["saw", "met"]
WORDS = [*NOUNS, *ADJECTIVES, *VERBS]


def texts(count: int = 24, seed: int = 0) -> list[AnnotatedText]:
    rng = random.Random(seed)
    made = []
    for number in range(count):
        words, tags = [], []
        for _ in range(4):
            words += [rng.choice(ADJECTIVES), rng.choice(NOUNS), rng.choice(VERBS)]
            tags += ["ADJ", "NOUN", "VERB"]
        n = len(words)
        heads = tuple(at + 1 if at % 3 == 0 else -1 for at in range(n))
        relations = tuple("amod" if at % 3 == 0 else "root" for at in range(n))
        made.append(AnnotatedText(tuple(words), (True,) * n, f"d{number}", tuple(tags), heads, relations))
    return made


@pytest.fixture(scope="module", params=[NoNorm(), LayerNorm(), RMSNorm()], ids=["no norm", "LayerNorm", "RMSNorm"])
def model(request):
    return Planted(
        WORDS,
        layers=[[planted.offset(-1), planted.offset(-2)]],
        encoding=[[planted.offset(1), planted.word_to_word(NOUNS, ADJECTIVES)]],
        crossing=[[planted.offset(0), planted.first_token, planted.uniform]],
        n_ctx=32,
        start="<s>",
        norm=request.param,
    ).build()


def table(model, heads: Heads, module=position, **how: object):
    (found,) = collect(Reading(model, texts(), heads=heads), [module.Collector(model, heads=heads, **how)])
    return found.table()


def value(found, head: int, measure: str, sink: str = "kept") -> float:
    row = found.query("head == @head and measure == @measure and sink == @sink")
    assert len(row) == 1, f"{len(row)} rows of head {head}, {measure}, {sink}"
    return float(row["value"].iloc[0])


def test_each_kind_of_attention_is_named_and_read_where_it_stands(model):
    encoder, decoder, crossing = Heads.every(model)
    found = table(model, encoder, n_untrained=0)
    assert value(found, 0, "next-token") == pytest.approx(1, abs=1e-3)
    assert set(found["stack"]) == {"encoder"}
    found = table(model, decoder, n_untrained=0)
    assert value(found, 0, "previous-token") == pytest.approx(1, abs=1e-3)
    assert value(found, 1, "offset:-2") == pytest.approx(1, abs=1e-3)
    assert (set(found["stack"]), set(found["attention"])) == ({"decoder"}, {"self"})
    found = table(model, crossing, cross_attention)
    assert (set(found["stack"]), set(found["attention"])) == ({"decoder"}, {"cross"})


def test_crossing_heads_have_their_paper_values(model):
    *_, crossing = Heads.every(model)
    found = table(model, crossing, cross_attention)
    # both texts are <s> and twelve words: the head at its own position walks the diagonal
    assert value(found, 0, "monotonicity") == pytest.approx(1)
    assert value(found, 0, "diagonal") == pytest.approx(0, abs=1e-3)
    assert value(found, 0, "entropy") == pytest.approx(0, abs=1e-3)
    assert value(found, 1, "first-token") == pytest.approx(1, abs=1e-3)
    assert value(found, 2, "entropy") == pytest.approx(1, abs=1e-3)
    assert value(found, 2, "first-token") == pytest.approx(1 / 13, abs=1e-3)


def test_syntax_is_found_in_the_encoder_alone(model):
    encoder, decoder, _ = Heads.every(model)
    found = table(model, encoder, part_of_speech, relations=["amod"], tag_pairs=[("NOUN", "ADJ")])
    assert value(found, 1, "relation:amod:head->dependent") == pytest.approx(1)
    found = table(model, decoder, part_of_speech, relations=["amod"], tag_pairs=[("NOUN", "ADJ")])
    # two back stands a verb; only the first noun of four sees no word but its adjective
    assert value(found, 1, "relation:amod:head->dependent") == pytest.approx(1 / 4)


def test_a_text_is_its_own_target_and_positions_agree(model):
    text = texts(1)[0].text
    out = run(model, text, capture="decoder.0.cross_attn.pattern", target=text)
    assert out.target is not None
    assert torch.equal(out.target.ids, out.tokens.ids)


def test_labels_say_in_which_attention_a_head_stands(model):
    found = label(model, {"position": texts(40)})
    where = found.labels[["stack", "attention", "head", "label"]].itertuples(index=False, name=None)
    assert {
        ("encoder", "self", 0, "next-token"),
        ("decoder", "self", 0, "previous-token"),
        ("decoder", "self", 1, "offset:-2"),
        ("decoder", "cross", 0, "monotonicity"),
        ("decoder", "cross", 1, "first-token"),
    } <= {*where}
    assert {*found.labels["evidence"]} == {"attention"}
    assert "models of one stack" in found.left_out["position"]

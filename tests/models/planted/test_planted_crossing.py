"""Planted truth in an encoder-decoder: every kind of attention is found, each in its own rows, with paper's numbers."""

import random

import pytest

from analyses import part_of_speech, position
from analyses.labels import label
from analyses.measures.head_tables import Heads
from analyses.reading.windows import Reading
from analyses.scoring.collectors import collect
from interp import AnnotatedText
from interp.config import LayerNorm, NoNorm, RMSNorm
from models import planted
from models.planted import Planted

NOUNS, ADJECTIVES, VERBS = ["cat", "dog", "bird"], ["red", "big", "old"], ["saw", "met"]
WORDS = [*NOUNS, *ADJECTIVES, *VERBS]


def texts(count: int = 24) -> list[AnnotatedText]:
    """Four times an adjective, its noun, and a verb."""
    rng, texts = random.Random(0), []
    heads, relations = (1, -1, -1, 4, -1, -1, 7, -1, -1, 10, -1, -1), ("amod", "root", "root") * 4
    for number in range(count):
        words = tuple(rng.choice(kind) for _ in range(4) for kind in (ADJECTIVES, NOUNS, VERBS))
        texts.append(AnnotatedText(words, (True,) * 12, f"d{number}", ("ADJ", "NOUN", "VERB") * 4, heads, relations))
    return texts


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


def table(model, heads: Heads, collector=position.Collector, **how: object):
    (rows,) = collect(Reading(model, texts(), heads=heads), [collector(model, heads=heads, **how)])
    return rows.table()


def value(table, head: int, measure: str) -> float:
    return table.query("head == @head and measure == @measure and sink == 'kept'")["value"].item()


def test_each_kind_of_attention_is_named_and_has_its_paper_values(model):
    *stacks, crossing = Heads.kinds_of(model)
    encoder, decoder = (table(model, heads, n_untrained=0) for heads in stacks)
    crossing = table(model, crossing, position.CrossingCollector)
    assert value(encoder, 0, "next-token") == pytest.approx(1, abs=1e-3)
    assert set(encoder["stack"]) == {"encoder"}
    assert value(decoder, 0, "previous-token") == pytest.approx(1, abs=1e-3)
    assert value(decoder, 1, "offset:-2") == pytest.approx(1, abs=1e-3)
    assert (set(decoder["stack"]), set(decoder["attention"])) == ({"decoder"}, {"self"})
    assert (set(crossing["stack"]), set(crossing["attention"])) == ({"decoder"}, {"cross"})
    # both texts are <s> and twelve words: the head at its own position walks the diagonal
    assert value(crossing, 0, "monotonicity") == pytest.approx(1)
    assert value(crossing, 0, "diagonal") == pytest.approx(0, abs=1e-3)
    assert value(crossing, 0, "entropy") == pytest.approx(0, abs=1e-3)
    assert value(crossing, 1, "first-token") == pytest.approx(1, abs=1e-3)
    assert value(crossing, 2, "entropy") == pytest.approx(1, abs=1e-3)
    assert value(crossing, 2, "first-token") == pytest.approx(1 / 13, abs=1e-3)


def test_syntax_is_found_in_the_encoder_alone(model):
    # in the decoder a verb stands two back; only the first noun of four sees no word but its adjective
    for heads, expected in zip(Heads.kinds_of(model), (1, 1 / 4), strict=False):
        rows = table(model, heads, part_of_speech.Collector, relations=["amod"], tag_pairs=[("NOUN", "ADJ")])
        assert value(rows, 1, "relation:amod:head->dependent") == pytest.approx(expected)


def test_labels_say_in_which_attention_a_head_stands(model):
    labels = label(model, {"position": texts(40)})
    where = labels.labels[["stack", "attention", "head", "label"]].itertuples(index=False, name=None)
    assert {
        ("encoder", "self", 0, "next-token"),
        ("decoder", "self", 0, "previous-token"),
        ("decoder", "self", 1, "offset:-2"),
        ("decoder", "cross", 0, "monotonicity"),
        ("decoder", "cross", 1, "first-token"),
    } <= {*where}
    assert {*labels.labels["evidence"]} == {"attention"}
    assert "models of one stack" in labels.left_out["position"]

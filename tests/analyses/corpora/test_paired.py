"""Two-column corpora: what do encoder, decoder and cross-attention each read of a text?"""

import pytest
import torch

from analyses import corpora, position
from analyses.measures.head_tables import Heads
from analyses.reading.windows import Reading
from analyses.scoring.collectors import collect
from interp import AnnotatedText, InputError, run
from models import planted
from models.planted import Planted

WORDS = [f"w{number}" for number in range(12)]


@pytest.fixture(scope="module")
def model():
    """A model whose cross-attention head looks at its own position, with contexts of eight tokens."""
    layers = {"encoding": [[]], "crossing": [[planted.offset(0)]]}
    return Planted(WORDS, [[planted.offset(-1)]], n_ctx=8, start="<s>", **layers).build()


def kinds(model) -> dict[str, Heads]:
    return {f"{each.stack} {each.attention}": each for each in Heads.kinds_of(model)}


def test_a_pair_a_line_each_a_document_of_its_own(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("word\tphonemes\nskeptic\tskˈɛptɪk\n\ntwo words\ttˈu wˈɜɹdz\n", encoding="utf-8")
    corpus = corpora.read(path)
    assert corpus.kind == "paired"
    assert corpus.annotates == {"targets"}
    first, second = corpus
    assert (first.text, first.target) == ("skeptic", "skˈɛptɪk")
    assert second.words == ("two", "words")
    assert first.document != second.document


def test_each_attention_reads_its_own_text(model):
    text = AnnotatedText.plain("w1 w2 w3", "d", target="w4 w5")
    readings = {name: next(iter(Reading(model, [text], heads=heads))) for name, heads in kinds(model).items()}
    vocabulary = model.tokenizer.backend.get_vocab()
    source = [vocabulary[word] for word in ("<s>", "w1", "w2", "w3")]
    target = [vocabulary[word] for word in ("<s>", "w4", "w5")]
    assert readings["encoder self"].tokens.ids.tolist() == [source]
    assert readings["decoder self"].tokens.ids.tolist() == [target]
    crossing = readings["decoder cross"]
    assert crossing.tokens.ids.tolist() == [target]
    assert crossing.pattern.shape == (1, 1, 3, 4)
    out = run(model, text.text, "decoder.0.cross_attn.pattern", target=text.target)
    assert torch.equal(crossing.pattern, out["decoder.0.cross_attn.pattern"])
    assert crossing.crossing.scored.tolist() == [[False, True, True]]  # the start token is no query


def test_pairs_longer_than_a_context_are_left_out_and_counted(model):
    long = " ".join(WORDS[:10])
    sides = ("w1 w2", long), (long, "w1 w2"), ("w1 w2 w3", "w1 w2 w3")
    texts = [AnnotatedText.plain(source, source, target=target) for source, target in sides]
    reading = Reading(model, texts, heads=kinds(model)["decoder cross"])
    assert sum(len(batch.windows) for batch in reading) == 1
    assert reading.counts["targets left out: longer than the decoder's context"] == 1
    assert reading.counts["windows left out: their source is longer than the encoder's context"] == 1


def test_collectors_of_cross_attention_want_cross_attention(model):
    with pytest.raises(InputError, match="no cross-attention"):
        position.CrossingCollector(Planted(WORDS, [[planted.uniform]]).build())
    reading = Reading(model, [AnnotatedText.plain("w1 w2", "d")], heads=kinds(model)["encoder self"])
    with pytest.raises(InputError, match="expected patterns of cross-attention"):
        collect(reading, [position.CrossingCollector(model)])
    with pytest.raises(InputError, match="expected a model of one stack"):
        Heads.from_model(model)


def test_a_batch_gives_what_each_pair_gives_alone(model):
    texts = [AnnotatedText.plain(" ".join(WORDS[:n]), f"d{n}", target=" ".join(WORDS[n : 2 * n])) for n in (2, 5, 3, 6)]
    heads = kinds(model)["decoder cross"]

    def totals(texts: list[AnnotatedText]):
        collector = position.CrossingCollector(model)
        collect(Reading(model, texts, heads=heads), [collector])
        return collector.totals["kept"]

    together, alone = totals(texts), [totals([text]) for text in texts]
    torch.testing.assert_close(together.scores, sum(each.scores for each in alone))
    torch.testing.assert_close(together.weights, sum(each.weights for each in alone))

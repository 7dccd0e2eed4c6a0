"""Pairs of sentences: what counts as right, and what does the last noun predict without a model?"""

from analyses.corpora.sentence_pairs import Sentence
from benchmarks.published import by_last_noun, by_model, choices, share_right
from interp.losses import loss
from tests.worded import worded


def test_the_last_noun_tells_a_verb_s_number():
    before = "The sketch of those trucks", "The movies about Travis", "About the Balkans", "Most women", "The actress"
    right, wrong = ("haven't", "is", "were", "meet", "slumps over"), ("hasn't", "are", "was", "meets", "slump over")
    pairs = [(Sentence("", text, a), Sentence("", text, b)) for text, a, b in zip(before, right, wrong, strict=True)]
    assert choices(by_last_noun, pairs).tolist() == [1] * 5
    assert choices(by_last_noun, [(Sentence("a"), Sentence("b"))]).tolist() == [0.5]  # no verb to go by


def test_a_model_chooses_the_sentence_of_less_loss_and_shares_are_over_pairs():
    model, first, second = worded(), Sentence("the dog saw Tim"), Sentence("the dog saw Sue")
    better = float(loss(model, first.text) < loss(model, second.text))
    right = choices(by_model(model), [(first, second), (second, first)] * 20)
    assert right[:2].tolist() == [better, 1 - better]
    share = share_right(right)
    assert share.low[0] < share.value[0] == 0.5 < share.high[0]
    assert share_right(right, right).value[0] == 0

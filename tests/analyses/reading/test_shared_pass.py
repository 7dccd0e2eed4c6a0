"""One pass of the model serves what it attends to and what it writes: the same sums as of two readings."""

import pytest
import torch
from tiny import TWO_STACKS, two_stacks
from worded import WORDS, worded

from analyses import position
from analyses.head_tables import Heads
from analyses.reading.collectors import collect, collected, read
from analyses.reading.inputs import patterns, patterns_by_norm
from analyses.reading.windows import Reading
from interp import AnnotatedText
from interp.patterns.norm_weighted import NormWeighted

ROWS = [[5, 7, 5, 2, 9, 11], [3, 1, 4], [8, 2]]


def test_attention_and_the_same_by_norm_add_up_as_in_two_readings():
    model = worded()
    texts = [AnnotatedText.plain(" ".join(WORDS[at : at + 6]), f"text-{at}") for at in range(9)]
    weighted = NormWeighted(model)
    own, by_norm = position.Collector(model, n_untrained=0), position.Collector(weighted, n_untrained=0)
    reading = Reading(model, texts, weighted=weighted)
    read(reading, [own], [by_norm])
    for together, alone in ((own, model), (by_norm, weighted)):
        (found,) = collected(reading, [together])
        (expected,) = collect(Reading(alone, texts), [position.Collector(alone, n_untrained=0)])
        assert found.counts == expected.counts
        for ours, theirs in zip(found.scored, expected.scored, strict=True):
            torch.testing.assert_close(ours.totals.finish().scores, theirs.totals.finish().scores, rtol=0, atol=0)
    assert (own.totals["kept"].scores - by_norm.totals["kept"].scores).abs().max() > 0.01


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_each_attention_of_two_stacks_is_shared_alike(kind):
    model = two_stacks(next(iter(TWO_STACKS)))
    heads = Heads.every(model)[kind]
    weighted = NormWeighted(model, heads.stack, heads.attention)
    sources = None if heads.stack == "encoder" else ROWS[::-1]
    tokens, own, by_norm, source = patterns_by_norm(weighted, heads, ROWS, sources)
    assert (source is None) == (sources is None)
    torch.testing.assert_close(own, patterns(model, heads, ROWS, sources)[1], rtol=0, atol=0)
    torch.testing.assert_close(by_norm, patterns(weighted, heads, ROWS, sources)[1], rtol=0, atol=0)
    assert tokens.ids.tolist()[1][:3] == ROWS[1]

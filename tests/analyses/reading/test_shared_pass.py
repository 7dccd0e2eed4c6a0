"""One pass of the model serves both attention and norms, with the same sums as two readings."""

from dataclasses import replace

import pytest
import torch
from worded import WORDS, worded

from analyses import coreference, position
from analyses.reading import inputs
from analyses.reading.windows import Reading
from analyses.scoring.collectors import collect, read
from interp import AnnotatedText, InputError, Mention
from interp.patterns.one_attention import NormWeighted
from interp.patterns.rows import SINKS


def test_attention_and_the_same_by_norm_add_up_as_in_two_readings():
    model = worded()
    texts = [AnnotatedText.plain(" ".join(WORDS[start : start + 6]), f"text-{start}") for start in range(9)]
    weighted = NormWeighted(model)
    plain, by_norm = position.Collector(model, n_untrained=0), position.Collector(weighted, n_untrained=0)
    reading = Reading(model, texts, weighted=weighted)
    read(reading, [plain], [by_norm])
    for together, alone in ((plain, model), (by_norm, weighted)):
        result = together.collected(reading)
        (expected,) = collect(Reading(alone, texts), [position.Collector(alone, n_untrained=0)])
        assert result.counts == expected.counts
        for ours, theirs in zip(result.scored, expected.scored, strict=True):
            torch.testing.assert_close(ours.totals.finish().scores, theirs.totals.finish().scores, rtol=0, atol=0)
    assert (plain.sums.totals["kept"].scores - by_norm.sums.totals["kept"].scores).abs().max() > 0.01


def test_whole_patterns_are_not_read_for_a_few_rows(monkeypatch):
    """And the sums of coreference are the same, by attention and by norm."""
    model, texts = worded("he", "she"), [_chained(number) for number in range(7)]
    weighted = NormWeighted(model)

    def sums() -> list[torch.Tensor]:
        plain, by_norm = coreference.Collector(model), coreference.Collector(weighted)
        read(Reading(model, texts, weighted=weighted), [plain], [by_norm])
        return [reader.totals[sink].scores for each in (plain, by_norm) for reader in each.parts for sink in SINKS]

    with monkeypatch.context() as patched:
        patched.setattr(inputs, "makes_rows", lambda *_: False)
        expected = sums()
    monkeypatch.setattr(NormWeighted, "with_plain", None)
    for result, plain in zip(sums(), expected, strict=True):
        torch.testing.assert_close(result, plain, rtol=0, atol=1e-6)
    assert expected[0].any()


def test_rows_that_are_undefined_are_named_as_whole_patterns_are():
    model = worded()
    with torch.no_grad():
        model.last.blocks[0].attn.qkv.weight[0, 0] = torch.nan
    with pytest.raises(InputError, match="is not finite"):
        read(Reading(model, [_chained(0)]), [coreference.Collector(model)])


def _chained(start: int) -> AnnotatedText:
    """A text with a man, a woman and two pronouns, in words that other texts lack."""
    words = ["he", *WORDS[start : start + 2], "she", WORDS[start - 3], "he"]
    mentions = [Mention(0, 1, 0, "he"), Mention(3, 4, 3, "she"), Mention(5, 6, 5, "he")]
    return replace(AnnotatedText.plain(" ".join(words), f"text-{start}"), mentions=tuple(mentions))

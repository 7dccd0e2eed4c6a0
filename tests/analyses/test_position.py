"""Position: previous tokens against an outside implementation, identical bytes per seed, batches and windows."""

import random
from pathlib import Path

import pandas as pd
import pytest
import torch
from worded import WORDS, worded

from analyses import position
from analyses.corpora import read
from analyses.reading import windows
from analyses.scoring.collectors import measured
from interp import AnnotatedText
from models import load
from models.planted import Planted, offset, uniform


def eager_previous_token(directory: Path, texts: list[AnnotatedText]) -> torch.Tensor:
    """Mean attention from each token to the one before (layer x head), from eager attention in transformers."""
    from transformers import AutoModel, PreTrainedTokenizerFast

    theirs = AutoModel.from_pretrained(directory, attn_implementation="eager").eval()
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(directory / "tokenizer.json"))
    total, rows = 0.0, 0
    for text in texts:
        encoded = tokenizer(text.text, return_tensors="pt", return_special_tokens_mask=True)
        special = encoded.pop("special_tokens_mask")[0].bool()
        ids = encoded["input_ids"]
        with torch.no_grad():
            attentions = theirs(input_ids=ids, output_attentions=True).attentions
        content = ~special[1:] & ~special[:-1]
        previous = torch.stack([layer[0].diagonal(-1, -2, -1)[:, content] for layer in attentions])
        total, rows = total + previous.double().sum(-1), rows + int(content.sum())
    return total / rows


@pytest.mark.parametrize("name", ["stories", pytest.param("minilm", marks=pytest.mark.slow)])
def test_previous_token_scores_equal_those_from_eager_attentions(name, request, shared_file):
    model = load(request.getfixturevalue(name))
    corpus = list(read(shared_file("data", "ud-ewt", "en_ewt-ud-dev.conllu"), limit=100))
    table = position.measure(model, corpus)
    ours = table[(table.measure == "previous-token") & (table.sink == "kept")].sort_values(["layer", "head"]).value
    assert model.source is not None
    theirs = eager_previous_token(model.source, corpus).flatten()
    torch.testing.assert_close(torch.tensor(ours.to_numpy()), theirs, atol=1e-4, rtol=0)


def test_windows_score_every_word_of_a_long_text_once():
    words = [f"w{number % 50}" for number in range(300)]
    model = Planted(sorted(set(words)), [[offset(-1)]], n_ctx=40, start="<s>").build()
    result = measured(position.Collector, model, [AnnotatedText.plain(" ".join(words), "long")])
    table = result.heads
    row = table[(table.measure == "previous-token") & (table.sink == "kept")].iloc[0]
    assert (row.n, row.value) == (299, pytest.approx(1.0, abs=1e-6))
    assert result.counts["texts longer than the context, read in windows"] == 1


def test_the_bar_of_a_favourite_offset_does_not_depend_on_the_order_of_documents():
    """With more texts than untrained models read, the same ones are drawn in any order."""
    words = [f"w{number}" for number in range(30)]
    model = Planted(words, [[offset(-1), uniform]], n_ctx=32, start="<s>").build()
    draws = (random.Random(number) for number in range(90))
    lines = [" ".join(draw.choices(words, k=draw.randint(3, 20))) for draw in draws]
    texts = [AnnotatedText.plain(line, f"document {number}") for number, line in enumerate(lines)]
    first, second = (position.measure(model, order) for order in (texts, texts[::-1]))
    bar = first.loc[first["measure"] == "positional-head", "baseline"]
    assert bar.between(0.05, 0.95).all()
    pd.testing.assert_frame_equal(first, second, rtol=1e-5, atol=1e-7)


def table(seed: int = 0) -> pd.DataFrame:
    draw = random.Random(3)
    lines = [" ".join(draw.choices(WORDS, k=7 + number % 9)) for number in range(24)]
    texts = [AnnotatedText.plain(line, f"text-{number}") for number, line in enumerate(lines)]
    return position.measure(worded(), texts, seed=seed)


def test_the_same_seed_gives_the_same_bytes_and_small_batches_the_numbers_of_large_ones(monkeypatch):
    together = table()
    first = together.to_csv(index=False)
    assert table().to_csv(index=False) == first
    assert table(seed=1).to_csv(index=False) != first
    for name, size in (("_PATTERN_ELEMENTS", 300), ("_POOL", 3)):
        monkeypatch.setattr(windows, name, size)
        pd.testing.assert_frame_equal(table(), together, rtol=0, atol=1e-5)  # sums in another order round differently

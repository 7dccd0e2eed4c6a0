"""The same seed gives the same table, byte for byte; threads and batches change the last digits alone."""

import pandas as pd
import pytest
import torch
from worded import WORDS, worded

from analyses import position
from analyses.reading import windows
from interp import AnnotatedText

TOLERANCE = 1e-5  # of gains and intervals, which are shares of attention; sums in another order round otherwise


def texts(n: int = 24) -> list[AnnotatedText]:
    generator = torch.Generator().manual_seed(3)
    drawn = [torch.randint(len(WORDS), (7 + at % 9,), generator=generator).tolist() for at in range(n)]
    return [AnnotatedText.plain(" ".join(WORDS[id] for id in ids), f"text-{at}") for at, ids in enumerate(drawn)]


@pytest.fixture
def measured():
    model = worded()
    return lambda seed=0: position.measure(model, texts(), seed=seed)


def test_the_same_seed_gives_the_same_bytes(measured) -> None:
    first = measured().to_csv(index=False)
    assert measured().to_csv(index=False) == first
    assert measured(seed=1).to_csv(index=False) != first


def alike(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(found, expected, rtol=0, atol=TOLERANCE)


def test_small_batches_give_the_numbers_of_large_ones(measured, monkeypatch: pytest.MonkeyPatch) -> None:
    together = measured()
    monkeypatch.setattr(windows, "_PATTERN_ELEMENTS", 300)
    alike(measured(), together)
    monkeypatch.setattr(windows, "_POOL", 3)
    alike(measured(), together)

"""What sets the bar of a label is read of as many documents as hold enough items."""

import numpy as np
import pytest
import torch

from analyses.behaviours import OURS
from analyses.corpora import read
from analyses.execution.shards import Shards
from analyses.labels import evidence
from analyses.labels.evidence import Study, documents_of
from analyses.measures.head_tables import Collected, Heads, Scored
from interp.patterns import Totals
from models import load

KIND = Heads("decoder", 1, 3)


def collected(
    items: float = 1.0, others: float = 1.0, behaviour: str = "position", documents: int = 12, tokens: int = 0
) -> Collected:
    """Of two measures, of which a text holds so many items."""
    rows = torch.zeros(128, 3, 2)
    rows[0, :, 0], rows[0, :, 1] = items, others
    scored = Scored(Totals(rows, rows, rows), (), "kept")
    return Collected(KIND, behaviour, "a text", [scored], {"tokens": tokens}, documents)


def test_bars_that_were_kept_are_those_of_the_very_texts_that_are_read(tmp_path, monkeypatch):
    """A corpus of which fewer texts are read has the hash of the whole."""
    null = evidence._Null(evidence.WORDS, lambda: load("default"), KIND)
    monkeypatch.setattr(evidence, "_nulls", lambda *_: [null])
    monkeypatch.setattr(evidence, "_reached", lambda *_: {})

    def found(limit: int | None) -> int:
        corpora, shards = {"position": read("tales:12", limit)}, Shards.for_output(tmp_path / "out", [])
        evidence.bars_of(Study(null.model(), corpora, OURS, 0, shards), [collected()])
        return shards.counts["read"]

    assert [found(limit) for limit in (6, None, 6, None)] == [0, 0, 1, 1]


@pytest.mark.parametrize("share", [False, True])
def test_a_bar_is_surpassed_by_one_copy_in_as_many_as_are_said(share):
    """Also of shares: the bar above a baseline of .5 leaves room for a head that is always right."""
    drawn = torch.from_numpy(np.random.default_rng(0).gumbel(0.6, 0.1, (4000, 41)))
    gains = 0.5 - (-drawn).exp() if share else drawn
    bars = [evidence._surpassed([torch.stack([each, each * 0 + 0.5])], 0.01, ends=share) for each in gains[:, :40]]
    above = gains[:, 40] > torch.tensor(bars)
    assert above.double().mean().item() == pytest.approx(0.012, abs=0.005)  # moments of 40 vary
    assert not share or max(bars) < 0.5


def test_the_more_measures_the_higher_is_the_bar_of_each(monkeypatch):
    """Over all measures one model in twenty has a head above any bar."""
    best = torch.stack([torch.linspace(0.1, 0.3, 40), torch.full((40,), 0.05)])
    null = evidence._Null(evidence.COPIES, lambda: load("default"), KIND, 40)
    monkeypatch.setattr(evidence, "_nulls", lambda *_: [null])

    def bars(measures: int) -> evidence.Bars:
        names = [measure.name for measure in OURS["position"].measures if measure.unit == "share"][:measures]
        kept = {f"position: {name}": best for name in names}
        monkeypatch.setattr(evidence, "_reached", lambda *_: kept)
        return evidence.bars_of(Study(null.model(), {"position": []}, OURS), [collected()])[0]

    one, ten = (max(bars(measures).values()) for measures in (1, 10))
    assert one == pytest.approx(evidence._surpassed([best], 0.05, ends=True))
    assert 0.3 < one < ten


@pytest.mark.parametrize(
    ("items", "documents", "tokens", "read"),
    [
        (9000, 300, 24_000, 32),  # thirty in each document: enough in the fewest that are read
        (100, 200, 10_000, 128),  # one in two documents of fifty tokens: 200 documents would be read
        (100, 100, 6_000, 100),  # one in each
        (2000, 100, 120_000, 50),  # twenty in each, of which a tenth is read
        (0, 100, 6_000, 128),
    ],
)
def test_documents_hold_a_hundred_items(items, documents, tokens, read):
    whole = collected(items, items // 2, "coreference", documents, tokens)
    assert documents_of([whole]) == read
    assert documents_of([collected(1e6, 1e6, documents=documents), whole]) == max(read, 32)

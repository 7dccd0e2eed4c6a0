"""Cross-attention has its own measures, each compared with an answer on paper or from scipy."""

import math

import pytest
import torch
from scipy import stats
from torch.testing import assert_close

from interp.patterns.positional import CROSSING, Crossing, score_crossing

_, ENTROPY, _, MONOTONICITY = range(len(CROSSING))


def crossing(n_queries: int, n_keys: int, *, specials: int = 0, padding: int = 0) -> Crossing:
    target, source = torch.ones(1, n_queries, dtype=torch.bool), torch.arange(n_keys + padding)[None] < n_keys
    return Crossing(torch.arange(n_queries)[None] >= specials, target, source)


def looking_at(keys: list[int], n_keys: int) -> torch.Tensor:
    return torch.eye(n_keys)[keys][None, None]


def means(pattern: torch.Tensor, rows: Crossing, **how: bool) -> tuple[list[float], list[float]]:
    sums, counts = score_crossing(pattern, rows, **how)
    return (sums / counts)[0, 0].tolist(), counts[0, 0].tolist()


@pytest.mark.parametrize(
    ("keys", "specials", "expected", "counts"),
    [
        ([0, 1, 2, 3], 0, [1 / 4, 0, 0, 1], [4, 4, 4, 1]),  # through the source
        ([3, 2, 1, 0], 0, [1 / 4, 0, 2 / 3, -1], [4, 4, 4, 1]),  # backwards
        ([3, 0, 1, 2, 3], 1, [1 / 4, 0, 1 / 8, 1], [4, 4, 4, 1]),  # a special token is no query
    ],
)
def test_a_head_that_walks(keys, specials, expected, counts):
    value, rows = means(looking_at(keys, 4), crossing(len(keys), 4, specials=specials))
    assert value == pytest.approx(expected, abs=1e-6)
    assert rows == counts


def test_a_uniform_head_is_its_own_baseline():
    rows = crossing(5, 3, padding=2)
    value, counts = means(rows.uniform, rows)
    far = sum(abs(q / 4 - k / 2) for q in range(5) for k in range(3)) / 15
    assert value[:3] == pytest.approx([1 / 3, 1, far])
    assert counts[MONOTONICITY] == 0  # every row favours the same key
    assert math.isnan(value[MONOTONICITY])


def test_without_the_first_position():
    pattern = torch.tensor([[0.5, 0.5, 0, 0], [0.5, 0, 0.5, 0], [0.5, 0, 0, 0.5], [1, 0, 0, 0]])[None, None]
    value, counts = means(pattern, crossing(4, 4), sink_removed=True)
    assert counts == [0, 3, 3, 1]  # the last row keeps no attention
    assert value[ENTROPY] == pytest.approx(0, abs=1e-6)
    assert value[MONOTONICITY] == pytest.approx(1)


def test_monotonicity_is_spearmans_with_ties():
    generator = torch.Generator().manual_seed(0)
    keys = torch.randint(0, 5, (11,), generator=generator).tolist()
    value, _ = means(looking_at(keys, 5), crossing(11, 5))
    assert value[MONOTONICITY] == pytest.approx(stats.spearmanr(keys, range(11)).statistic, abs=1e-6)


@pytest.mark.parametrize("removed", [False, True])
def test_padding_changes_nothing(removed):
    generator = torch.Generator().manual_seed(1)
    alone = torch.rand(1, 3, 7, 5, generator=generator, dtype=torch.float64).softmax(-1)
    rows = crossing(7, 5)
    behind = [torch.cat([part, part.new_zeros(1, 2)], 1) for part in (rows.scored, rows.target, rows.source)]
    padded = torch.zeros(1, 3, 9, 7, dtype=torch.float64)
    padded[:, :, :7, :5] = alone
    scores = (score_crossing(*each, sink_removed=removed) for each in ((alone, rows), (padded, Crossing(*behind))))
    for first, second in zip(*scores, strict=True):
        assert_close(first, second)

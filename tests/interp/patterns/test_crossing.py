"""Cross-attention has its own measures; each against an answer from paper, or scipy."""

import math

import pytest
import torch
from scipy import stats
from torch.testing import assert_close

from interp.patterns.crossing import MEASURES, Crossing, score

FIRST, ENTROPY, DIAGONAL, MONOTONICITY = range(len(MEASURES))


def crossing(n_queries: int, n_keys: int, *, specials: int = 0, padding: int = 0) -> Crossing:
    target = torch.ones(1, n_queries, dtype=torch.bool)
    scored = target.clone()
    scored[:, :specials] = False
    source = torch.ones(1, n_keys + padding, dtype=torch.bool)
    source[:, n_keys:] = False
    return Crossing(scored, target, source)


def looking_at(keys: list[int], n_keys: int) -> torch.Tensor:
    return torch.eye(n_keys)[keys][None, None]


def means(pattern: torch.Tensor, rows: Crossing, **how: bool) -> tuple[list[float], list[float]]:
    sums, counts = score(pattern, rows, **how)
    return (sums / counts)[0, 0].tolist(), counts[0, 0].tolist()


def test_a_head_that_walks_through_the_source():
    value, counts = means(looking_at([0, 1, 2, 3], 4), crossing(4, 4))
    assert value == pytest.approx([0.25, 0, 0, 1], abs=1e-6)
    assert counts == [4, 4, 4, 1]


def test_a_head_that_walks_backwards():
    value, _ = means(looking_at([3, 2, 1, 0], 4), crossing(4, 4))
    assert value[MONOTONICITY] == pytest.approx(-1)
    assert value[DIAGONAL] == pytest.approx((1 + 1 / 3 + 1 / 3 + 1) / 4)


def test_a_uniform_head_is_its_own_baseline():
    rows = crossing(5, 3, padding=2)
    value, counts = means(rows.uniform, rows)
    far = sum(abs(q / 4 - k / 2) for q in range(5) for k in range(3)) / 15
    assert value[:3] == pytest.approx([1 / 3, 1, far])
    assert counts[MONOTONICITY] == 0  # every row favours one key
    assert math.isnan(value[MONOTONICITY])


def test_special_tokens_of_the_target_ask_nothing():
    value, counts = means(looking_at([3, 0, 1, 2, 3], 4), crossing(5, 4, specials=1))
    assert value[MONOTONICITY] == pytest.approx(1)
    assert counts == [4, 4, 4, 1]


def test_without_the_first_position():
    pattern = torch.tensor([[0.5, 0.5, 0, 0], [0.5, 0, 0.5, 0], [0.5, 0, 0, 0.5], [1, 0, 0, 0]])[None, None]
    value, counts = means(pattern, crossing(4, 4), sink_removed=True)
    assert counts == [0, 3, 3, 1]  # the last row keeps nothing
    assert value[ENTROPY] == pytest.approx(0, abs=1e-6)
    assert value[MONOTONICITY] == pytest.approx(1)


def test_two_rows_have_no_order():
    _, counts = means(looking_at([0, 1], 4), crossing(2, 4))
    assert counts[MONOTONICITY] == 0


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
    left = Crossing(
        *(torch.cat([torch.zeros(1, 2, dtype=torch.bool), part], 1) for part in (rows.scored, rows.target, rows.source))
    )
    padded = torch.zeros(1, 3, 9, 7, dtype=torch.float64)
    padded[:, :, 2:, 2:] = alone
    for one, other in zip(
        score(alone, rows, sink_removed=removed), score(padded, left, sink_removed=removed), strict=True
    ):
        assert_close(one, other)

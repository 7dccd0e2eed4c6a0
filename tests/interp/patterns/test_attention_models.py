"""Mixtures and conditional logits of attention: fits recover planted ones, and plain oracles agree."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from interp.patterns.attention_models import VisibleKeys, fit_logit, fit_mixture, logit_gain, mixture_gain

N_MARKS = 5


def random_rows(n_rows: int = 300, n_heads: int = 3, seed: int = 0) -> VisibleKeys:
    """Rows of 2 to 12 keys: two classes of keys, and three rules that name one key or none."""
    draw = torch.Generator().manual_seed(seed)
    length = torch.randint(2, 13, (n_rows,), generator=draw)
    row = torch.arange(n_rows).repeat_interleave(length)
    place = torch.arange(len(row)) - (length.cumsum(0) - length)[row]
    many = torch.rand(len(row), 2, generator=draw) < 0.3
    single = (torch.rand(n_rows, 3, generator=draw) * length[:, None] * 1.3).long()[row] == place[:, None]
    attention = torch.rand(len(row), n_heads, generator=draw) ** 3
    group = torch.randint(0, 128, (n_rows,), generator=draw)
    uniform = 0.5 + torch.rand(len(row), generator=draw)
    return VisibleKeys.from_pairs(row, group, uniform, attention, torch.cat([many, single], 1))


def giving(keys: VisibleKeys, attention: torch.Tensor) -> VisibleKeys:
    """The same rows with other attention."""
    return VisibleKeys.from_pairs(keys.row, keys.group, keys.uniform, attention, keys.marks)


def parts_of(keys: VisibleKeys) -> tuple[torch.Tensor, torch.Tensor]:
    """The weight that each part gives each key, and the parts that each row has."""
    names = torch.cat([torch.ones(len(keys.row), 1), keys.marks], 1) * keys.uniform[:, None]
    total = torch.zeros(len(keys.group), names.shape[1]).index_add_(0, keys.row, names)
    return names / total.clamp(min=1e-30)[keys.row], (total > 0).float()


def mixed(keys: VisibleKeys, weights: torch.Tensor) -> torch.Tensor:
    """A mixture's attention (pair head)."""
    parts, has = parts_of(keys)
    share = has[..., None] * weights / (has @ weights)[:, None]  # row part head
    return torch.einsum("pk,pkh->ph", parts, share[keys.row])


def test_pairs_in_any_order_become_rows_in_the_order_of_their_groups():
    keys = random_rows()
    order = torch.randperm(len(keys.row), generator=torch.Generator().manual_seed(1))
    number = torch.randperm(len(keys.group), generator=torch.Generator().manual_seed(2))
    shuffled = (keys.uniform[order], 7 * keys.attention[order], keys.marks[order])
    group = torch.empty_like(keys.group).index_copy_(0, number, keys.group)
    again = VisibleKeys.from_pairs(number[keys.row[order]], group, *shuffled)
    assert (again.group.diff() >= 0).all()
    torch.testing.assert_close(again.below_uniform(), keys.below_uniform(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(again.over_groups(again.attention.new_ones(300, 1))[:, 0], keys.rows())
    halves = [keys.half(which) for which in (0, 1)]
    assert sum(len(half.group) for half in halves) == 300
    assert {*(halves[1].group % 2).tolist()} == {1}
    torch.testing.assert_close(sum(half.below_uniform() for half in halves), keys.below_uniform(), atol=1e-5, rtol=1e-5)
    for part in ("group", "uniform", "attention"):
        torch.testing.assert_close(torch.cat([getattr(each, part) for each in keys.stretches()]), getattr(keys, part))


def test_no_other_weights_are_more_likely():
    """Scipy, in float64 and without EM, finds the same maximum."""
    keys = random_rows(100, n_heads=2)
    parts, has, attention = (each.double().numpy() for each in (*parts_of(keys), keys.attention))
    mixture, row = fit_mixture(keys, tolerance=1e-6, steps=3000).double().numpy(), keys.row.numpy()
    for head in range(2):

        def cost(point: np.ndarray, head: int = head) -> float:
            weights = np.exp(point - point.max())
            return -(attention[:, head] * np.log(parts @ weights / (has @ weights)[row])).sum() / 100

        best = minimize(cost, np.zeros(N_MARKS + 1), method="BFGS")
        assert cost(np.log(mixture[:, head])) == pytest.approx(best.fun, abs=1e-5)


def test_heads_are_fitted_as_each_would_be_alone():
    keys = random_rows(n_heads=4)
    alone = [giving(keys, keys.attention[:, [head]]) for head in range(4)]
    for fit in (fit_mixture, fit_logit):
        one_by_one = torch.cat([fit(each) for each in alone], 1)
        torch.testing.assert_close(fit(keys), one_by_one, atol=1e-3, rtol=1e-3)


def test_kl_below_uniform_is_what_both_models_are_measured_by():
    """A model equal to the attention explains all of it; a model without weights explains nothing."""
    keys = random_rows()
    weights = torch.randn(N_MARKS, 3, generator=torch.Generator().manual_seed(4))
    exact = giving(keys, torch.exp(keys.marks.float() @ weights) * keys.uniform[:, None])
    whole = exact.below_uniform()
    assert (whole.sum(0) > 1).all()
    torch.testing.assert_close(logit_gain(exact, weights), whole, atol=1e-3, rtol=1e-4)
    torch.testing.assert_close(logit_gain(exact, 0 * weights), 0 * whole, atol=1e-3, rtol=0)
    planted = torch.rand(N_MARKS + 1, 3, generator=torch.Generator().manual_seed(5))
    blend = giving(keys, mixed(keys, planted))
    torch.testing.assert_close(mixture_gain(blend, planted), blend.below_uniform(), atol=1e-3, rtol=1e-4)
    alike = giving(keys, keys.uniform[:, None].expand(-1, 3))
    torch.testing.assert_close(alike.below_uniform(), 0 * whole, atol=1e-3, rtol=0)


def test_logits_are_those_that_scipy_finds():
    keys = random_rows(80, n_heads=2)
    weights = fit_logit(keys, penalty=1e-2, tolerance=1e-9).double().numpy()
    marks, row = keys.marks.double().numpy(), keys.row.numpy()
    uniform, attention = keys.uniform.double().numpy(), keys.attention.double().numpy()
    for head in range(2):

        def cost(point: np.ndarray, head: int = head) -> float:
            score = marks @ point + np.log(uniform)
            total = np.log(np.bincount(row, np.exp(score)))
            return -(attention[:, head] * (score - total[row])).sum() / 80 + 5e-3 * (point**2).sum()

        best = minimize(cost, np.zeros(N_MARKS), method="BFGS", options={"gtol": 1e-9})
        np.testing.assert_allclose(weights[:, head], best.x, atol=2e-3)

"""No prompt and no group is both among the prompts that choose and those that report."""

import numpy as np
import pytest
import torch
from tiny import model, ragged_pairs, token_ids

from interp import InputError, Pairs
from interp.circuits.splits import Split, group_sums, grouped, share_of_difference


def pairs(count: int) -> Pairs:
    return Pairs.from_ids(model("gpt2"), token_ids(count, 5), token_ids(count, 5, seed=1), 3, 4)


@pytest.mark.parametrize("seed", range(5))
def test_groups_stay_together_and_nothing_is_lost(seed):
    offered, groups = pairs(11), [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0]
    split = Split.from_pairs(offered, groups, share=0.4, seed=seed)
    assert len({*split.choosing_groups}) == 2
    assert not {*split.choosing_groups} & {*split.reporting_groups}
    ids = torch.cat([split.choosing.clean.ids, split.reporting.clean.ids])
    assert sorted(ids.tolist()) == sorted(offered.clean.ids.tolist())
    rows = {tuple(row): group for row, group in zip(offered.clean.ids.tolist(), groups, strict=True)}
    for side, labels in ((split.choosing, split.choosing_groups), (split.reporting, split.reporting_groups)):
        assert [rows[tuple(row)] for row in side.clean.ids.tolist()] == [*labels]


def test_a_prompt_and_its_copy_are_one_group_whatever_its_padding():
    offered = ragged_pairs()
    doubled = offered.take(torch.tensor([0, 1, 2, 0, 2]))
    assert len({*grouped(doubled)}) == 3
    for seed in range(8):
        split = Split.from_pairs(doubled, seed=seed)
        assert len(split.choosing) + len(split.reporting) == 5


def test_what_chose_does_not_report():
    offered = pairs(6)
    left, right = (offered.take(torch.tensor(rows)) for rows in ([0, 1, 2], [2, 3, 4]))
    with pytest.raises(InputError, match="expected each pair on one side, got 1 pair on both"):
        Split(left, right)
    right = offered.take(torch.tensor([3, 4, 5]))
    with pytest.raises(InputError, match="expected each group on one side, got 'b' on both"):
        Split(left, right, ("a", "a", "b"), ("b", "c", "c"))
    with pytest.raises(InputError, match="expected a group for each of 6 pairs, got 2"):
        Split.from_pairs(offered, ["a", "b"])
    with pytest.raises(InputError, match="all 6 pairs are one group"):
        Split.from_pairs(offered, ["a"] * 6)
    with pytest.raises(InputError, match=r"share of the groups between 0 and 1, got 1\.0"):
        Split.from_pairs(offered, share=1.0)


def test_a_share_is_a_ratio_of_means_and_its_interval_is_over_groups():
    effects, whole = torch.tensor([[1.0, 3.0, 2.0, 2.0]]), torch.tensor([2.0, 2.0, 4.0, 2.0])
    result = share_of_difference(effects, whole, [*"abab"])
    assert result.value == pytest.approx([0.8])
    assert result.groups.tolist() == [2]
    np.testing.assert_allclose(group_sums(effects, [*"abab"]), [[3.0], [5.0]])
    noise = torch.randn(30, generator=torch.Generator().manual_seed(0)).double()
    alone = share_of_difference(noise[None], torch.ones(30), range(30))
    copied = share_of_difference(noise.repeat(20)[None], torch.ones(600), [*range(30)] * 20)
    assert (copied.low[0], copied.high[0]) == pytest.approx((alone.low[0], alone.high[0]))  # copies add no information

"""Planted induction with redundant heads among noise: does the circuit suffice, and are fewer of its edges wrong?"""

import numpy as np
import pytest

from benchmarks.redundancy import measured
from interp.statistics import mean_interval


@pytest.mark.slow
def test_a_stable_circuit_is_enough_on_fresh_prompts_and_has_fewer_wrong_edges_than_the_top():
    lines = [measured(seed) for seed in range(8)]
    for line in lines:
        assert line["missing"] == 0
        assert line["share"] == pytest.approx(1.0, abs=0.05)
        assert line["right"] >= 0.95
    _, low, *_ = mean_interval(np.array([line["fewer"] for line in lines]))
    assert low > 0

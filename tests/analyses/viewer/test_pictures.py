"""Small pictures of heads: what is where, how dark, and what happens to long texts?"""

import re

import numpy as np
import pytest

from analyses.viewer.pictures import averaged, picture


def covered(path: str) -> set[tuple[int, int]]:
    """Row and column of every square that a path fills."""
    runs = re.findall(r"M(\d+) (\d+)h(\d+)v1H\1z", path)
    assert "".join(f"M{x} {y}h{n}v1H{x}z" for x, y, n in runs) == path
    return {(int(y), int(x) + step) for x, y, n in runs for step in range(int(n))}


def test_each_cell_is_as_dark_as_its_share_and_less_than_3_percent_is_none():
    pattern = np.array([[1, 0, 0, 0], [0.02, 0.98, 0, 0], [0.3, 0.3, 0.4, 0], [0.6, 0.2, 0.05, 0.15]])
    image = picture(pattern)
    assert (image.width, image.height) == (4, 4)
    assert {opacity: covered(path) for opacity, path in image.paths} == {
        0.1: {(3, 2)},
        0.2: {(3, 1), (3, 3)},
        0.4: {(2, 0), (2, 1), (2, 2)},
        0.65: {(3, 0)},
        1.0: {(0, 0), (1, 1)},
    }
    assert picture(pattern[:3]).height == 3  # a target's three tokens over a source's four


@pytest.mark.parametrize(("n_queries", "n_keys"), [(7, 7), (25, 11), (100, 250)])
def test_a_long_text_is_averaged_and_its_rows_still_add_up_to_one(n_queries, n_keys):
    pattern = np.random.default_rng(0).dirichlet(np.ones(n_keys), (2, n_queries))
    small = averaged(pattern)
    assert small.shape == (2, min(n_queries, 24), min(n_keys, 24))
    np.testing.assert_allclose(small.sum(-1), 1)
    if n_queries == n_keys == 7:
        np.testing.assert_array_equal(small, pattern)
    before = np.eye(48, k=-1)  # each looks one back, the first nowhere
    expected = np.eye(24) / 2 + np.eye(24, k=-1) / 2  # the second of a pair looks inside it
    np.testing.assert_array_equal(averaged(before), expected)

"""Answers that flip: a page's numbers again, by plain runs with one edit each."""

import numpy as np
import pytest
import torch

from analyses import coreference
from analyses.tasks.flips import TOP, Flips, flip_counts, flips_of
from interp import Transformer, run
from interp.patching import Pairs
from models import load

HEADS = [(3, 4), (2, 6)]


@pytest.fixture(scope="module")
def model() -> Transformer:
    return load("default")


@pytest.fixture(scope="module")
def pairs(model) -> Pairs:
    """Forty pairs about one person each: "Tom was sad because"."""
    return coreference.TASKS["name-gender"](model, 40, 0, "name-gender", "").pairs


@pytest.fixture(scope="module")
def flips(model, pairs) -> Flips:
    effect = np.zeros((4, 8))
    for rank, head in enumerate(HEADS):
        effect[head] = 1 - rank / 10
    return flips_of(model, pairs, effect, np.arange(40) % 2 == 0, [[str(number) for number in range(40)]], 0)


def plain(model: Transformer, pairs: Pairs, heads: list[tuple[int, int]]) -> torch.Tensor:
    """Probabilities of both answers (pair x answer), with heads' z from the corrupted prompts."""
    layers = sorted({layer for layer, _ in heads})
    sites = [f"decoder.{layer}.attn.z" for layer in layers]
    corrupted = run(model, pairs.corrupt, capture=sites)

    def edit(layer: int):
        def put(z: torch.Tensor) -> torch.Tensor:
            z = z.clone()
            for head in (head for index, head in heads if index == layer):
                z[:, :, head] = corrupted[f"decoder.{layer}.attn.z"][:, :, head]
            return z

        return put

    logits = run(model, pairs.clean, edit={f"decoder.{layer}.attn.z": edit(layer) for layer in layers}).logits
    last = logits[torch.arange(len(pairs)), pairs.last].softmax(-1)
    assert pairs.right is not None
    assert pairs.wrong is not None
    return torch.stack([last.gather(1, ids[:, None])[:, 0] for ids in (pairs.right, pairs.wrong)], 1)


def test_probabilities_are_those_of_plain_runs(model, pairs, flips):
    prompts = flips.prompts[["clean_right", "clean_wrong"]]
    np.testing.assert_allclose(prompts, plain(model, pairs, []), atol=1e-5, rtol=0)
    for names, heads in (("L3.H4", HEADS[:1]), ("L3.H4+L2.H6", HEADS)):
        rows = flips.answers.loc[flips.answers["heads"] == names]
        expected = plain(model, pairs, heads)[rows["pair"].tolist()]
        np.testing.assert_allclose(rows[["right", "wrong"]], expected, atol=1e-5, rtol=0)


def test_every_two_of_the_first_heads_are_measured_and_the_first_few_together(flips):
    sizes = [name.count("+") + 1 for name in flips.flips["heads"]]
    assert [sizes.count(size) for size in (1, 2)] == [TOP, TOP * (TOP - 1) // 2]
    assert sorted(size for size in sizes if size > 2) == [*range(3, TOP + 1)]
    assert flips.flips["heads"][0] == "L3.H4"
    assert {*flips.answers["pair"]} == {*range(0, 40, 2)}  # the reporting half


def test_an_interval_has_a_width_where_none_or_all_flip():
    changed = np.array([[False] * 30, [True] * 30, [True] * 15 + [False] * 15])
    counts = flip_counts(changed, [], 0)
    assert counts["flips"].tolist() == [0, 30, 15]
    assert (counts["flips_low"] <= counts["flips"]).all()
    assert (counts["flips_high"] - counts["flips_low"] > 1).all()
    assert counts["flips_low"][0] == 0
    assert counts["flips_high"][1] == 30

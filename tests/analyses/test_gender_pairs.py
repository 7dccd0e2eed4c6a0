"""Minimal pairs about people: what decides is the sentence, and a model that only guesses is said to."""

from collections import Counter

import numpy as np
import pytest

from analyses.measures.findings import causes
from analyses.tasks import causal_tests, gender_pairs
from analyses.tasks.gender_pairs import effects
from interp.initialisation import initialise
from interp.statistics import shares
from models import load
from models.stories.lexicon import FEMININE_NAMES, MASCULINE_NAMES


@pytest.fixture(scope="module")
def two():
    return gender_pairs._task(load("default"), 40, 0, gender_pairs._two_people, "gender", "")


def test_of_two_people_neither_the_first_nor_the_nearest_is_the_one(two):
    tokenizer = load("default").tokenizer
    right = Counter()
    for ids, answer in zip(two.pairs.clean.ids.tolist(), two.pairs.right.tolist(), strict=True):
        names = [word for word in tokenizer.decode(ids).split() if word in (*MASCULINE_NAMES, *FEMININE_NAMES)]
        assert len({name in MASCULINE_NAMES for name in names}) == 2
        masculine = tokenizer.decode([answer]).strip() == "his"
        right.update(place for place, name in enumerate(names) if (name in MASCULINE_NAMES) == masculine)
    assert right == {0: 20, 1: 20}
    both = zip(two.pairs.clean.ids.tolist(), two.pairs.corrupt.ids.tolist(), strict=True)
    for clean, corrupt in ((tokenizer.decode(one).split(), tokenizer.decode(other).split()) for one, other in both):
        assert sorted(clean) == sorted(corrupt)
        assert clean != corrupt


def test_every_pair_of_names_comes_before_any_comes_again(two):
    names = zip(two.clusters["masculine name"], two.clusters["feminine name"], strict=True)
    assert max(Counter(names).values()) == 1
    assert len({*two.clusters["frame"]}) >= 8


def test_the_default_is_right_about_one_person_and_of_two_in_some_sentences_alone():
    found = effects(load("default"), pairs=120)
    two_people, one = (next(task for task in found.tasks if task["task"] == name) for name in ("gender", "name-gender"))
    assert one["refused"] is None
    assert one["accuracy"] == 1.0
    assert 0.6 < two_people["accuracy"] < 0.9  # of 120 independent prompts that would be more than a coin gets
    assert "a coin would do as well" in two_people["refused"]
    rows = found.table.loc[found.table["intervention"] == "noise"]
    assert {*rows["task"]} == {"name-gender"}
    assert {*rows["n"]} == {60}
    assert [*map(tuple, causes(rows, "name-gender")[["layer", "head"]].to_numpy())] == [(3, 4), (2, 6)]


def test_a_model_that_guesses_has_no_shares_and_is_not_swept(monkeypatch):
    model = load("default")
    initialise(model, 0)
    monkeypatch.setattr(causal_tests, "sweep", lambda *args, **options: pytest.fail("minutes of a large model"))
    found = effects(model)
    assert all("a coin would do as well" in task["refused"] for task in found.tasks)
    assert found.table.empty


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pytest.param("crossed", marks=pytest.mark.smoke), "apart"])
def test_intervals_of_pairs_that_share_names_and_frames_cover_the_truth(kind):
    rng, n, covered = np.random.default_rng(0), 60, []
    for _ in range(600):
        names, frames = rng.integers(0, 20, n), rng.integers(0, 10, n)
        own = rng.normal(0, 0.2, n)
        if kind == "crossed":
            own += rng.normal(0, 0.3, 20)[names] + rng.normal(0, 0.2, 10)[frames]
        found = shares((0.4 + own)[:, None], np.ones(n), clusters=[names.tolist(), frames.tolist()])
        covered.append(found.low[0] <= 0.4 <= found.high[0])
    assert 0.92 <= np.mean(covered) <= 0.98

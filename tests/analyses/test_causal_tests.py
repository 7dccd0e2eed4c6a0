"""Minimal pairs: the sentence decides, guessing is refused, and pairs that choose a head do not report on it."""

from collections import Counter

import numpy as np
import pytest
import torch

from analyses import coreference, part_of_speech
from analyses.measures.findings import carriers, causes
from analyses.tasks import causal_tests
from analyses.tasks.causal_tests import _effect_rows, _right_answers, effects_of, reporting_half
from interp import Transformer, TransformerConfig
from interp.patching import Sweep, logit_difference, unpatched
from interp.patching.results import guessed
from interp.patterns.shuffled import shuffled_copy
from interp.statistics import shares
from models import load
from models.initialisation import initialise
from models.stories.lexicon import FEMININE_NAMES, MASCULINE_NAMES
from tests.tiny import GPT2

WAS = ["was"] * 100 + ["were"] * 100


@pytest.fixture(scope="module")
def model():
    return load("default")


def right(*parts: float, count: int = 100) -> torch.Tensor:
    """Logit differences with the given shares right."""
    return torch.cat([torch.where(torch.arange(count) < share * count, 1.0, -1.0) for share in parts])


NOUNS = [str(noun) for noun in range(10) for _ in range(20)]


@pytest.mark.parametrize(
    ("parts", "prompts", "answers", "clusters", "words"),
    [
        ((0.84, 0.84), 100, WAS, [], None),
        ((0.52, 0.84), 100, [], [], None),  # 136 of 200: better than a coin, by always saying "were"
        ((0.52, 0.84), 100, WAS, [], "in 52 of 100 prompts where that is “was”, no better than a coin"),
        ((0.84, 0.58), 100, WAS, [], "“were”"),  # its interval includes one half
        ((*[1.0] * 6, *[0.0] * 4), 20, [], [], None),
        ((*[1.0] * 6, *[0.0] * 4), 20, [], [NOUNS], "120 of 200"),  # prompts that share a noun are not independent
        ((1.0,), 4, [], [], "4 of 4"),  # too few to tell
        ((1.0,), 8, [], [], None),
    ],
)
def test_each_answer_must_be_given_more_often_than_by_guessing(parts, prompts, answers, clusters, words):
    reason = guessed(right(*parts, count=prompts), answers, clusters)
    assert reason is None if words is None else words in reason


def test_a_task_that_heads_which_look_elsewhere_do_as_well_says_nothing_of_heads(model):
    """With one person, averaging what is visible tells he from she."""
    task = {"name-gender": coreference.TASKS["name-gender"]}
    mine, copied = (effects_of(each, "coreference", task, seed=0).tasks[0] for each in (model, shuffled_copy(model, 1)))
    assert (mine["accuracy"], mine["refused"]) == (1.0, None)
    assert copied["accuracy"] > 0.9
    assert "a copy of it whose heads look elsewhere" in copied["refused"]


def test_right_answers_are_those_of_whole_runs_and_are_counted_while_the_bound_is_in_reach(model):
    pairs = part_of_speech._agreement(model, 60, 0, "agreement", "").pairs
    right = int((unpatched(model, pairs, logit_difference())[0]["logit_difference"] > 0).sum())
    assert 0 < right < len(pairs)
    assert [_right_answers(model, pairs, needed) for needed in (0.0, right - 0.5, float(right))] == [right] * 3
    assert _right_answers(model, pairs, float(len(pairs))) < right  # the first wrong answers stop counting
    assert _right_answers(model, pairs, right + 1.0) <= right


def test_a_shuffled_copy_shares_all_but_queries_and_keys(model):
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    copy = shuffled_copy(model, 1)
    for name, weight in model.named_parameters():
        twin = dict(copy.named_parameters())[name]
        torch.testing.assert_close(weight, before[name], rtol=0, atol=0)
        assert (twin is weight) == ("attn.qkv" not in name)
    mine, twin = (each.last.blocks[0].attn for each in (model, copy))
    assert torch.equal(mine.W_V, twin.W_V)
    for first, second in ((mine.W_Q, twin.W_Q), (mine.W_K, twin.W_K)):
        assert not torch.equal(first, second)
        assert torch.equal(first.flatten(1).sort(1)[0], second.flatten(1).sort(1)[0])


def test_every_subject_comes_in_both_numbers_and_no_prompt_in_both_halves_either_way_round(model):
    task = part_of_speech._agreement(model, 200, 0, "agreement", "")
    answers = {*zip(task.clusters["subject"], task.answers, strict=True)}
    assert len(answers) == 2 * len({*task.clusters["subject"]})  # no noun has a fixed answer
    assert sorted({*task.answers}) == ["was", "were"]
    task = part_of_speech._agreement(model, 200, 0, "agreement-adjacent", "")
    assert task.pairs is not None
    reports = reporting_half(task.pairs, 0)
    rows = [*zip(task.pairs.clean.ids.tolist(), task.pairs.corrupt.ids.tolist(), strict=True)]
    sides = ([pair for pair, flag in zip(rows, half, strict=True) if flag] for half in (reports, ~reports))
    first, second = ({str(text) for pair in side for text in pair} for side in sides)
    assert not first & second
    assert len(first) == len(second)


SHARES = [(0.5, 0.4), (0.5, 0.0), (0.0, 0.45), (0.6, 0.3), (-0.3, -0.3), (0.0, 0.0)]
"""Each head's share of the answers on the choosing pairs, and on the reporting pairs."""


def swept(n: int = 40) -> Sweep:
    """Noising of six heads: the clean difference is 1, the corrupted -1, so more than half of it flips an answer."""
    half, wobble = torch.arange(n) >= n // 2, 0.3 * (torch.arange(n) % 3 - 1)
    removed = torch.stack([torch.where(half, second, first) + wobble for first, second in SHARES])
    clean = torch.ones(n)
    ends = {"logit_difference": clean}, {"logit_difference": -clean}
    return Sweep("z", "noise", ("layer", "head"), {"logit_difference": (clean - 2 * removed).view(2, 3, n)}, *ends)


def test_what_one_half_of_the_pairs_chooses_is_reported_on_the_other():
    reports = np.arange(40) >= 20
    rows = _effect_rows(Transformer(TransformerConfig(decoder=GPT2)), swept(), [], reports, 0)
    rows = rows.assign(task="made", q=0.001)
    assert {*rows["n"]} == {20}
    np.testing.assert_allclose(rows["effect"], [second for _, second in SHARES], atol=0.02)
    assert [*rows["choosing_bound"].notna()] == [True, True, False, True, True, False]
    assert [*rows["flips"]] == [7, 0, 7, 7, 0, 0]  # a third of the prompts loses .3 more than the mean
    assert [*carriers(rows).index] == [0, 3, 4]
    first, second = causes(rows, "made").to_dict("records")  # the choosing half decides which carries most
    assert (first["layer"], first["head"], second["layer"], second["head"]) == (1, 0, 0, 0)
    assert (first["noise_flips"], first["n"]) == (7, 20)


# Pairs about people.


def test_of_two_people_neither_the_first_nor_the_nearest_is_the_one(model):
    two = coreference.TASKS["gender"](model, 40, 0, "gender", "")
    tokenizer = model.tokenizer
    right = Counter()
    for ids, answer in zip(two.pairs.clean.ids.tolist(), two.pairs.right.tolist(), strict=True):
        names = [word for word in tokenizer.decode(ids).split() if word in (*MASCULINE_NAMES, *FEMININE_NAMES)]
        assert len({name in MASCULINE_NAMES for name in names}) == 2
        masculine = tokenizer.decode([answer]).strip() == "his"
        right.update(place for place, name in enumerate(names) if (name in MASCULINE_NAMES) == masculine)
    assert right == {0: 20, 1: 20}
    for first, second in zip(two.pairs.clean.ids.tolist(), two.pairs.corrupt.ids.tolist(), strict=True):
        clean, corrupt = (tokenizer.decode(ids).split() for ids in (first, second))
        assert sorted(clean) == sorted(corrupt)
        assert clean != corrupt
    # every pair of names occurs before any repeats
    names = zip(two.clusters["one person"], two.clusters["other person"], strict=True)
    assert max(Counter(names).values()) == 1
    assert len({*two.clusters["frame"]}) >= 8


@pytest.mark.slow
def test_the_default_is_right_about_one_person_and_of_two_in_some_sentences_alone(model):
    result = coreference.effects(model, pairs=120)
    two_people, one_person = (
        next(task for task in result.tasks if task["task"] == name) for name in ("gender", "name-gender")
    )
    assert one_person["refused"] is None
    assert one_person["accuracy"] == 1.0
    assert 0.6 < two_people["accuracy"] < 0.9  # with 120 independent prompts, this would beat a coin
    assert "no better than a coin" in two_people["refused"]
    rows = result.table.loc[result.table["intervention"] == "noise"]
    assert {*rows["task"]} == {"name-gender"}
    assert {*rows["n"]} == {60}
    assert [*map(tuple, causes(rows, "name-gender")[["layer", "head"]].to_numpy())] == [(3, 4), (2, 6)]


def test_a_model_that_guesses_has_no_shares_and_is_not_swept(monkeypatch):
    model = load("default")
    initialise(model, 0)
    monkeypatch.setattr(causal_tests, "sweep", lambda *args, **options: pytest.fail("minutes of a large model"))
    result = coreference.effects(model)
    assert all("no better than a coin" in task["refused"] for task in result.tasks)
    assert result.table.empty


@pytest.mark.slow
@pytest.mark.smoke
def test_intervals_of_pairs_that_share_names_and_frames_cover_the_truth():
    rng, n, covered = np.random.default_rng(0), 60, []
    for _ in range(600):
        names, frames = rng.integers(0, 20, n), rng.integers(0, 10, n)
        noise = rng.normal(0, 0.2, n) + rng.normal(0, 0.3, 20)[names] + rng.normal(0, 0.2, 10)[frames]
        result = shares((0.4 + noise)[:, None], np.ones(n), clusters=[names.tolist(), frames.tolist()])
        covered.append(result.low[0] <= 0.4 <= result.high[0])
    assert 0.92 <= np.mean(covered) <= 0.98

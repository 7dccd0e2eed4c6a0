"""A share of a difference exists only if the model does the task and the difference is clearly not 0."""

import pytest
import tiny
import torch

from interp import Transformer
from interp import patching as p
from interp.errors import InputWarning

RESULTS = {
    "sweep": p.sweep,
    "paths": lambda *task: p.path_patch(*task, [p.Receiver("logits")]),
    "estimates": lambda *task: p.attribution_patching(*task, {"z": ("layer", "head")}),
    "ablation": lambda *task: p.ablate(*task, kind="mean"),
}


@pytest.fixture(scope="module")
def task() -> tuple[Transformer, p.Pairs]:
    """Six pairs whose logit difference falls from clean to corrupted although the model gets none right."""
    model, (clean, corrupt) = tiny.model("gpt2"), (tiny.token_ids(6, 5, seed=seed) for seed in (1, 2))
    logits = torch.stack([model(ids)[:, -1].detach() for ids in (clean, corrupt)])
    difference = logits[..., :, None] - logits[..., None, :]  # prompt, right, wrong
    usable = (difference[0] < -0.1) & (difference[0] - difference[1] > 0)
    far = (difference[0] - difference[1] - 1).abs().masked_fill(~usable, torch.inf).flatten(1)
    return model, p.Pairs.from_ids(model, clean, corrupt, far.argmin(1) // 29, far.argmin(1) % 29)


def difference(right: int, n: int, whole: float = 2.0, spread: float = 0.5) -> p.Sweep:
    """A sweep with `right` of `n` clean prompts answered correctly, in which one of two heads carries everything."""
    clean = torch.where(torch.arange(n) < right, 1.0, -1.0) + spread * torch.linspace(-1, 1, n)
    corrupt = clean - whole
    values = torch.stack([clean, corrupt]).view(1, 2, n)
    tables = ({"logit_difference": each} for each in (values, clean, corrupt))
    return p.Sweep("z", "denoise", ("layer", "head"), *tables)


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        (difference(2, 60), "the right answer first in 2 of 60 prompts, no better than a coin"),
        (difference(33, 60), "33 of 60 prompts"),
        (difference(60, 60, whole=-2.0), "the sign is wrong: the whole effect on logit_difference is -2"),
        (difference(60, 60, whole=0.0), "too small for shares"),
    ],
    ids=["wrong", "a coin", "wrong sign", "nothing"],
)
def test_where_nothing_is_a_share_all_are_missing_with_a_warning_that_says_why(cells, reason):
    with pytest.warns(InputWarning, match=f"no shares: .*{reason}"):
        assert cells.share().isnan().all()
    with pytest.warns(InputWarning, match=f"no shares: .*{reason}"):
        table = cells.table()
    assert table[["share", "share_low", "share_high"]].isna().all(axis=None)
    assert table["effect"].notna().all()


@pytest.mark.parametrize("cells", [difference(60, 60), difference(0, 4)], ids=["right", "too few to tell"])
def test_shares_are_given_where_the_model_does_the_task_or_prompts_are_too_few_to_tell(cells):
    assert cells.share().tolist() == [[1.0, 0.0]]
    assert cells.table()["share"].tolist() == [1.0, 0.0]


@pytest.mark.parametrize("name", RESULTS)
def test_the_answers_decide_about_the_shares_of_every_metric_of_every_result(task, name):
    cells = RESULTS[name](*task, [p.probability(), p.log_probability()])
    with pytest.warns(InputWarning, match=r"0 of 6 prompts|the whole effect on logit_difference is -"):
        assert cells.table()["share"].isna().all()


def test_without_answers_a_metric_decides_alone(task):
    model, pairs = task
    bare = p.sweep(model, p.Pairs(pairs.clean, pairs.corrupt), p.probability(pairs.right))
    assert ([*bare.clean], bare.no_share()) == (["probability"], None)


def test_an_ablation_of_a_task_that_the_model_fails_has_no_shares(task):
    model, pairs = task
    failed = p.ablate(*task, p.logit_difference(), kind="zero")
    with pytest.warns(InputWarning, match="the sign is wrong|coin"):
        assert failed.table()["share"].isna().all()
    done = p.ablate(model, pairs.clean, p.logit_difference(pairs.wrong, pairs.right), kind="zero")
    assert done.table()["share"].notna().all()

"""What holds for every result, in any model: budgets change no number, directions mirror, prompts do not mix."""

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
import torch
from covering import pairwise
from tiny import pairs_of_two, ragged_pairs, two_stacks
from torch.testing import assert_close

from interp import InputError, TokenBatch
from interp import patching as p
from tests.interp.patching.settings import CELLS, METRICS, PLACES, build
from tests.interp.patching.test_against_plain import ENDS

LENGTHS, FIRSTS = (4, 4, 3), (1, 2, 1)
FINEST = {
    **dict.fromkeys(("z", "q", "k", "v"), CELLS),
    **dict.fromkeys(("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out"), PLACES),
    **dict.fromkeys(("pattern", "scores"), ("layer", "head", "query", "key")),
}
EXACT: dict[str, Callable[..., p.Cells | Mapping[str, p.Cells]]] = {  # each cell is compared with a plain pass
    "sweep of z": partial(p.sweep, site="z", by=CELLS),
    "sweep of mlp.pre": partial(p.sweep, site="mlp.pre", by=("layer", "neuron", "position")),
    "sweep of mlp.post": partial(p.sweep, site="mlp.post", by=("layer", "neuron", "position")),
    "paths": partial(p.path_patch, receivers=ENDS["kinds"], by=CELLS, through="mlps"),
}
ESTIMATED = {
    "estimates": partial(p.attribution_patching, sites=FINEST, qk_fix=True),
    "AtP*": partial(p.atp_star, sites=dict.fromkeys(("q", "z"), CELLS)),
}
CALLS = EXACT | ESTIMATED
EVERY, FIRST_ORDER = pytest.mark.parametrize("name", CALLS), pytest.mark.parametrize("name", ESTIMATED)


def results(name: str, model: Any, pairs: p.Pairs, metrics: Any = METRICS[0], **how: Any) -> list[p.Cells]:
    """A call's results, site by site."""
    result = CALLS[name](model, pairs, metrics, **how)
    return [result] if isinstance(result, p.Cells) else [*result.values()]


def least(work: Callable[..., Any]) -> int:
    with pytest.raises(InputError, match=r"too small.*expected at least \d+") as refused:
        work(budget=1_000)
    return int(re.findall(r"at least (\d+)", str(refused.value))[0])


@EVERY
def test_the_budget_changes_no_number(name):
    model, pairs = build("after" if "mlp" in name else "pre"), ragged_pairs()
    work = partial(results, name, model, pairs)
    whole = work()
    for budget in (least(work), 3 * least(work)):
        for first, second in zip(work(budget=budget), whole, strict=True):
            assert_close(first.values, second.values, rtol=1e-9, atol=1e-12, equal_nan=True)


def test_the_budget_changes_no_number_of_two_stacks_or_edges():
    for work in (
        partial(p.sweep, two_stacks("modern"), pairs_of_two("source"), METRICS[0], "z", CELLS, stack="encoder"),
        partial(p.edge_attribution, build("pre"), ragged_pairs(), METRICS[0], steps=2),
    ):
        assert_close(work(budget=least(work)).values, work().values, rtol=1e-9, atol=1e-10, equal_nan=True)


@FIRST_ORDER
def test_swapping_clean_and_corrupt_exchanges_the_directions(name):
    model, pairs = build("gated"), ragged_pairs()
    denoise, noise = results(name, model, pairs), results(name, model, pairs.swapped(), direction="noise")
    for first, second in zip(denoise, noise, strict=True):
        assert_close(first.effects(), second.effects(), rtol=1e-6, atol=1e-9, equal_nan=True)


@FIRST_ORDER
def test_before_the_change_nothing_has_an_effect_and_beyond_the_text_nothing_is_known(name):
    for cells in results(name, build("gated"), ragged_pairs()):
        axis = next(index for index, axis in enumerate(cells.axes) if axis in {"position", "query"})
        effects = cells.effects().movedim(axis, 0)
        for prompt, (length, first) in enumerate(zip(LENGTHS, FIRSTS, strict=True)):
            assert (effects[:first, ..., prompt].nan_to_num() == 0).all()
            assert effects[length:, ..., prompt].isnan().all()
            assert "key" in cells.axes or not effects[:length, ..., prompt].isnan().any()


@pytest.mark.parametrize(("name", "kind"), pairwise(CALLS, ["pre", "post encoder"]))
def test_a_prompt_alone_gives_what_it_gives_among_others(name, kind):
    model, pairs = build(kind), ragged_pairs()
    together = results(name, model, pairs)
    for prompt, length in [*enumerate(LENGTHS)][1:]:
        texts = (TokenBatch.from_ids(batch.ids[prompt, :length]) for batch in (pairs.clean, pairs.corrupt))
        single = p.Pairs(*texts, *(answer[[prompt]] for answer in (pairs.right, pairs.wrong) if answer is not None))
        for alone, among in zip(results(name, model, single), together, strict=True):
            cut = tuple(slice(length if axis in {"position", "query", "key"} else None) for axis in among.axes)
            whole = among.values["logit_difference"][cut][..., [prompt]]
            assert_close(alone.values["logit_difference"], whole, rtol=1e-9, atol=1e-10)


@EVERY
def test_several_metrics_equal_each_alone(name):
    model, pairs = build("post encoder"), ragged_pairs()
    last_two = pairs.last[:, None] - torch.arange(2)
    sums = p.function(lambda logits: logits[..., 0, 3] + logits[..., 1, 4], "sum", last_two)
    metrics = [*METRICS, p.log_probability(), p.probability(), sums, *([] if name in ESTIMATED else [p.rank()])]
    together = results(name, model, pairs, metrics)
    for metric in metrics:
        for alone, among in zip(results(name, model, pairs, metric), together, strict=True):
            assert_close(alone.values[metric.name], among.values[metric.name], equal_nan=True)


@pytest.mark.parametrize("work", [p.sweep, p.sweep_by_forward, partial(p.path_patch, receivers=ENDS["k"])])
def test_the_order_of_the_axes_is_that_of_the_table(work):
    orders = CELLS, ("layer", "position", "head")
    by_cells, by_places = (work(build("pre"), ragged_pairs(), METRICS[0], by=by) for by in orders)
    assert_close(by_cells.effects().transpose(1, 2), by_places.effects(), equal_nan=True)

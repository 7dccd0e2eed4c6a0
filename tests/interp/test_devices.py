"""A model on several devices: same numbers, no tensors meet across devices, and one crossing per boundary."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import torch
from refusals import refusal
from torch import Tensor
from torch.testing import assert_close

from interp import TokenBatch, Transformer, add, edited, generate, run, set_to, token_losses
from interp import attribution as a
from interp import patching as p
from interp.patterns.one_attention import FewRows, NormWeighted, read_patterns
from tests.pretend import FIRST, SECOND, THIRD, Mixed, Pretend, place_of, spread
from tests.tiny import pairs_of_two, ragged_pairs, token_ids, two_stacks, variant

DIFFERENCE = p.logit_difference()
HEADS, PLACES, CELLS = ("layer", "head"), ("layer", "position"), ("layer", "head", "position")
IDS, SOURCE = token_ids(2, 7), token_ids(2, 5, d_vocab=19)
Way = Callable[[Transformer, p.Pairs], Any]
CLAIMS = [
    p.Claim(0, torch.tensor([2, 5]), torch.tensor([[0, 1, 0, 0, 0, 0, 0], [1, 0, 0, 0, 1, 0, 0]]).bool()),
    p.Claim(1, torch.tensor([3]), torch.tensor([[0, 0, 1, 0, 0, 0, 0]]).bool()),
]
LENT = p.Claim(1, torch.tensor([4]), CLAIMS[1].keys, how="exchange", others=torch.ones(1, 7, dtype=torch.long))


def few_rows(model: Transformer, _: p.Pairs) -> Tensor:
    rows = FewRows.from_tokens(model, TokenBatch.from_ids(IDS).to(model.device), "decoder", norms=True)
    prompt, query = (torch.tensor(each, device=model.device) for each in ([0, 0, 1], [3, 5, 4]))
    return rows.rows(prompt, query) + rows.rows(prompt, query, by_norm=True)


WAYS: dict[str, Way] = {
    "a forward": lambda model, _: model(IDS),
    "captures": lambda model, _: run(model, IDS, capture="*").activations,
    "edits": lambda model, _: (
        run(model, IDS, edit={"*.attn.z": set_to(torch.ones(6), head=1, position=-1), "*.attn_out": add(0.5)}).logits
    ),
    "an edited model": lambda model, _: run(edited(model, {"*.resid_post": add(torch.ones(()))}), IDS).logits,
    "a sweep of z": lambda model, pairs: p.sweep(model, pairs, DIFFERENCE, "z", CELLS),
    "a sweep of resid_pre": lambda model, pairs: p.sweep(model, pairs, DIFFERENCE, "resid_pre", PLACES),
    "a sweep of resid_post": lambda model, pairs: p.sweep(model, pairs, DIFFERENCE, "resid_post", PLACES),
    "sweeps of queries": lambda model, pairs: p.sweep(model, pairs, DIFFERENCE, "q", HEADS, "noise"),
    "sweeps of patterns": lambda model, pairs: p.sweep(model, pairs, DIFFERENCE, "pattern", (*HEADS, "query")),
    "a sweep that resumes": lambda model, pairs: p.sweep(model, pairs, DIFFERENCE, "normalized", PLACES),
    "sweeps of what is outside": lambda model, pairs: [
        p.sweep(model, pairs, DIFFERENCE, site, ("layer", "position")) for site in ("embed", "resid_final")
    ],
    "sets of cells": lambda model, pairs: p.patch_together(model, pairs, DIFFERENCE, [[(0, 0), (2, 1)]]),
    "a search": lambda model, pairs: p.top_cells(model, pairs, DIFFERENCE, k=2),
    "a sweep by forwards": lambda model, pairs: p.sweep_by_forward(model, pairs, DIFFERENCE),
    "ablation": lambda model, pairs: [p.ablate(model, pairs, DIFFERENCE, kind=kind) for kind in ("zero", "mean")],
    "other prompts' activations": lambda model, pairs: p.ablate(model, pairs, DIFFERENCE, kind="resample"),
    "a mean": lambda model, _: p.mean_activation(model, IDS),
    "paths": lambda model, pairs: p.path_patch(model, pairs, DIFFERENCE, [p.Receiver("logits"), p.Receiver("v", 2)]),
    "paths through": lambda model, pairs: p.path_patch(
        model, pairs, DIFFERENCE, [p.Receiver("v", 2, 1), p.Receiver("v", 1)], by=CELLS, through="mlps"
    ),
    "knock-outs": lambda model, _: p.knock_out(model, IDS, [*CLAIMS, LENT]),
    "some knock-outs": lambda model, _: p.knock_out(model, IDS, CLAIMS, cells=torch.arange(24).view(2, 3, 4) % 3 == 0),
    "knock-outs together": lambda model, _: p.knock_out_together(model, IDS, CLAIMS, [[(0, 1), (2, 0)], [(1, 1)]]),
    "knock-outs by forwards": lambda model, _: p.knock_out_by_forward(model, IDS, [*CLAIMS[1:], LENT]),
    "estimated knock-outs": lambda model, _: p.estimated_knock_out(model, IDS, CLAIMS),
    "estimates": lambda model, pairs: p.attribution_patching(
        model, pairs, DIFFERENCE, {"z": HEADS, "resid_pre": PLACES, "q": HEADS, "k": HEADS}, qk_fix=True
    ),
    "estimates with layers dropped": lambda model, pairs: p.atp_star(model, pairs, DIFFERENCE, {"z": HEADS}),
    "writing": lambda model, _: generate(model, IDS, 5, capture="*.attn.z", edit={"*.attn.z": add(0.1)}),
    "a sliding context": lambda model, _: generate(model, IDS, 9, temperature=1.0, top_p=0.9).ids,
    "losses": lambda model, _: token_losses(model, IDS),
    "patterns": lambda model, _: read_patterns(model, IDS, "decoder.*.attn.pattern"),
    "single rows": few_rows,
    "weighted patterns": lambda model, _: NormWeighted(model).with_plain(TokenBatch.from_ids(IDS).to(model.device)),
    "weights of all layers": lambda model, _: [model.W_Q[:, 1], model.W_O[1]],
    "a logit lens": lambda model, _: a.logit_lens(model, IDS).logits,
    "composition": lambda model, _: a.composition_scores(model),
    "edges": lambda model, pairs: p.edge_attribution(model, pairs, DIFFERENCE, steps=2),
    "direct attribution": lambda model, _: a.attribution_by_source(
        a.direct_logit_attribution(model, IDS, torch.tensor([3, 4]))
    ),
    "writers of values": lambda model, _: a.value_attribution(run(model, IDS), 2, 1, 3),
}
ENCODER, CROSS = {"stack": "encoder"}, {"attention": "cross"}
TEXT_CLAIM = p.Claim(
    0, torch.tensor([3]), CLAIMS[1].keys[:, :5], p.Read(torch.tensor([4]), p.log_probabilities(torch.tensor([2])))
)
TWO: dict[str, Way] = {
    "a forward": lambda model, _: run(model, SOURCE, "*", target=IDS).activations,
    "a sweep of the encoder": lambda model, pairs: p.sweep(model, pairs, DIFFERENCE, "z", HEADS, **ENCODER),
    "a sweep of cross-attention": lambda model, pairs: p.sweep(model, pairs, DIFFERENCE, "v", HEADS, **CROSS),
    "a sweep that resumes": lambda model, pairs: p.sweep(model, pairs, DIFFERENCE, "mlp.pre", PLACES, **ENCODER),
    "paths": lambda model, pairs: p.path_patch(model, pairs, DIFFERENCE, [p.Receiver("v", 1)], **CROSS),
    "estimates": lambda model, pairs: p.attribution_patching(model, pairs, DIFFERENCE, {"z": HEADS}, qk_fix=True),
    "knock-outs": lambda model, _: p.knock_out(model, SOURCE, [TEXT_CLAIM], target=IDS, **CROSS),
    "estimated knock-outs": lambda model, _: p.estimated_knock_out(model, SOURCE, [TEXT_CLAIM], target=IDS, **ENCODER),
    "writing": lambda model, _: generate(model, SOURCE, 4),
}


def tensors(value: Any) -> list[Tensor]:
    """All tensors of a result, in order."""
    if isinstance(value, dict):
        value = [*value.values()]
    elif is_dataclass(value):
        value = [getattr(value, each.name) for each in fields(value)]
    parts = value if isinstance(value, list | tuple) else []
    return [value.detach()] if isinstance(value, Tensor) else [tensor for part in parts for tensor in tensors(part)]


def moves(way: Way, model: Transformer, pairs: p.Pairs, *devices: torch.device) -> list[Any]:
    """The tensors that crossed in a call, after checking that its numbers equal those on one device."""
    expected = tensors(way(model, pairs))
    with Pretend() as pretend:
        placed = tensors(way(spread(deepcopy(model), *devices), pairs.to(FIRST)))
    assert expected
    assert_close(placed, expected, rtol=1e-9, atol=1e-9, equal_nan=True)
    return pretend.moves


@pytest.mark.parametrize("name", WAYS)
def test_every_call_gives_the_same_numbers_and_mixes_nothing(name):
    moves(WAYS[name], variant("local, capped"), ragged_pairs(), FIRST, SECOND, THIRD)
    moves(WAYS[name], variant("parallel"), ragged_pairs(), FIRST, SECOND, SECOND)


@pytest.mark.parametrize("differing", ["source", "target"])
@pytest.mark.parametrize("name", TWO)
def test_so_does_every_call_of_an_encoder_and_a_decoder(name, differing):
    if differing == "target" and name.startswith("a sweep"):
        pytest.skip("the source, which these pairs share, is what is swept")
    moves(TWO[name], two_stacks("modern"), pairs_of_two(differing), FIRST, SECOND, SECOND, THIRD)


@pytest.mark.parametrize("name", ["a forward", "a sweep of z", "knock-outs", "writing"])
def test_layers_on_several_devices_share_a_table_of_distances(name):
    moves(WAYS[name], variant("buckets"), ragged_pairs(), FIRST, SECOND, THIRD)


ROWS = torch.tensor([[1, 3], [0, 2]])


@pytest.mark.parametrize("name", ["buckets", "sandwich", "two stacks"])
def test_writers_of_scores_are_the_same_numbers(name):
    is_cross = name == "two stacks"
    cross, texts = (CROSS, {"tokens": SOURCE, "target": IDS}) if is_cross else ({}, {"tokens": IDS})

    def way(model: Transformer, _: p.Pairs) -> Any:
        out = run(model, **texts)
        edit = a.remove_from_key(out, 1, 3, [f"{next(iter(model.config.stacks))}.0.mlp"], **cross)
        pattern = run(model, capture=next(iter(edit)).replace(".k", ".pattern"), edit=edit, **texts)
        scores = a.score_attribution(out, 1, 3, -1, 2, **cross)
        return [scores, a.key_contributions(out, 1, 3, ROWS, **cross), pattern.activations]

    model, devices = (two_stacks("buckets"), [SECOND] * 2) if is_cross else (variant(name), [SECOND])
    assert moves(way, model, ragged_pairs(), FIRST, *devices, THIRD)


def test_the_stream_crosses_once_a_boundary_and_comes_back_once():
    model, whole, last = variant("sandwich"), (2, 7, 22), (2, 1, 22)
    forward = moves(WAYS["captures"], model, ragged_pairs(), FIRST, SECOND, SECOND)
    assert forward == [(FIRST, SECOND, whole), (SECOND, FIRST, whole)]
    assert moves(WAYS["a forward"], model, ragged_pairs(), FIRST, FIRST, FIRST) == []
    writing = moves(lambda model, _: generate(model, IDS, 3).ids, model, ragged_pairs(), FIRST, SECOND, THIRD)
    steps = [[(FIRST, SECOND, shape), (SECOND, THIRD, shape), (THIRD, FIRST, shape)] for shape in (whole, last, last)]
    assert writing == [move for step in steps for move in step]
    pairs = ragged_pairs((4, 4), (1, 1))  # they share one pass, so all cells cross together
    for name in ("a sweep of z", "a sweep of resid_pre"):
        swept = moves(WAYS[name], model, pairs, FIRST, SECOND, SECOND)
        assert [(before, after) for before, after, _ in swept].count((FIRST, SECOND)) == 2  # plain run, then cells


def test_activations_stay_where_their_site_lies():
    model = spread(variant("sandwich"), FIRST, SECOND, SECOND)
    with Pretend():
        activations = run(model, IDS, capture="*").activations
        assert all(place_of(value) == model.device_of(name) for name, value in activations.items())
        assert (model.device_of("decoder.1.attn.z"), model.device_of("logits")) == (SECOND, FIRST)
        with pytest.raises(Mixed):
            _ = activations["decoder.0.attn.z"] - activations["decoder.1.attn.z"]
    assert "matches 3" in refusal(model.device_of, "decoder.*.attn.z")
    assert "no site" in refusal(model.device_of, "decoder.9.attn.z")

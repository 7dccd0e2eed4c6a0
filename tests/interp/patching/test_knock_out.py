"""Claimed keys hidden from single heads: against one forward pass per head, and against results on paper."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from interp import InputError, TokenBatch, Transformer, run
from interp.patching import knockout, preparation
from interp.patching.claimed_texts import Claim, Intervention, Read, log_probabilities
from interp.patching.knockout import knock_out, knock_out_by_forward, knock_out_together
from tests.interp.patching.settings import random_claims
from tests.tiny import Whole, randomise, variant
from tests.tiny import model as tiny_model

HOWS: tuple[Intervention, ...] = ("hide", "exchange", "remove")
ROWS = [[1, 2, 3, 4, 5, 6, 7], [8, 9, 10, 11, 12], [13, 14, 15, 16, 17, 18, 19]]


def claim(prompt: int, pairs: dict[int, list[int]], width: int = 7) -> Claim:
    keys = torch.zeros(len(pairs), width, dtype=torch.bool)
    for row, claimed in enumerate(pairs.values()):
        keys[row, claimed] = True
    return Claim(prompt, torch.tensor([*pairs], dtype=torch.long), keys)


CLAIMS = [claim(0, {2: [1], 5: [0, 4]}), claim(1, {3: [3]}), claim(2, {1: [0], 4: [2], 5: [2]}), claim(0, {1: [0]})]


def exchanged(key: int, row: int = 2) -> Claim:
    return replace(claim(0, {row: [row - 1]}), how="exchange", others=torch.full((1, 7), key))


def test_values_are_exchanged_beyond_a_layers_reach_as_within_it():
    """Weights stay, so a key that the layer does not see may lend its value."""
    built, texts = variant("local, capped"), TokenBatch.from_rows([ROWS[0], ROWS[1] + [1]])
    values, plain = (way(built, texts, [exchanged(1, row=5)]) for way in (knock_out, knock_out_by_forward))
    torch.testing.assert_close(values, plain, rtol=1e-10, atol=1e-10)
    assert values.abs().amax((0, 2)).min() > 1e-3


def read_anywhere(model, seed: int) -> list[Claim]:
    texts = TokenBatch.from_rows(ROWS)
    return random_claims(texts, texts, texts, causal=model.last.config.causal, seed=seed, count=11)


def probed(kind: str) -> tuple[Transformer, torch.nn.Linear]:
    """A model without an output layer, and a probe of its final stream."""
    model = Transformer(replace(tiny_model(kind).config, output="none")).double()
    probe = torch.nn.Linear(model.config.d_model, 29).double()
    randomise(model)
    randomise(probe, 1)
    return model, probe


@pytest.mark.parametrize("entries", [1 << 19, 300])
@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_some_cells_are_what_they_are_among_all(kind, entries, monkeypatch):
    model, probe = probed(kind)
    texts, claims = TokenBatch.from_rows(ROWS), read_anywhere(model, 2)
    whole = knock_out(model, texts, claims, probe)
    cells = torch.rand(whole.shape, generator=torch.Generator().manual_seed(0)) < 0.3
    cells[0], cells[:, 0, 1] = False, True
    monkeypatch.setattr(preparation, "PASS_ENTRIES", 3 * entries)
    monkeypatch.setattr(knockout, "_LOGITS", entries)
    for way in (knock_out, knock_out_by_forward):
        drops = way(model, texts, claims, probe, cells=cells)
        torch.testing.assert_close(drops, whole.masked_fill(~cells, torch.nan), equal_nan=True)
        with pytest.raises(InputError, match=r"expected \(11, 2, "):
            way(model, texts, claims, probe, cells=cells[1:])


def read_at(*positions: int) -> Read:
    return Read(torch.tensor(positions), log_probabilities(torch.ones(len(positions), dtype=torch.long)))


OTHERS = "expected `others` where keys are exchanged"


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: claim(0, {}), "a claim has rows"),
        (lambda: claim(0, {2: []}), "row 2 of a claim on text 0 claims no key"),
        (lambda: Claim(0, torch.tensor([2, 2]), torch.ones(2, 7, dtype=torch.bool)), "names a row twice"),
        (lambda: claim(3, {2: [1]}), "there are texts 0-2"),
        (lambda: claim(1, {4: [1]}), "expected 0-3, rows that a token follows"),
        (lambda: claim(0, {2: [4]}), "keys that its rows see"),
        (lambda: claim(0, {0: [0]}), "leave each row another one"),
        (lambda: replace(claim(1, {2: [1]}), read=read_at(5)), r"reads positions \[5\]: expected some of 0-4"),
        (lambda: replace(CLAIMS[0], how="exchange"), OTHERS),
        (lambda: replace(CLAIMS[0], others=torch.zeros(2, 7, dtype=torch.long)), OTHERS),
        (lambda: exchanged(-1), "expected another key for each"),
        *((lambda key=key: exchanged(key), "for others that their rows see") for key in (3, 6, 9)),
    ],
)
def test_bad_claims_get_one_clear_error(build, message):
    with pytest.raises(InputError, match=message):
        knock_out(tiny_model("gpt2"), TokenBatch.from_rows(ROWS), [build()])


def test_lists_and_arrays_are_claims_as_tensors_are(unchecked):
    model, texts = tiny_model("gpt2"), TokenBatch.from_rows(ROWS)
    keys = [[key == 1 for key in range(7)], [key in {0, 4} for key in range(7)]]
    expected = [CLAIMS[0], replace(CLAIMS[0], read=Read(torch.tensor([5]), log_probabilities(torch.tensor([3]))))]
    for convert in (list, np.array):
        listed = [Claim(0, convert([2, 5]), convert(keys), read) for read in (None, Read([5], log_probabilities([3])))]
        torch.testing.assert_close(knock_out(model, texts, listed), knock_out(model, texts, expected))


TABLE = "True or False, row x key"
ODD = [
    *(("queries", [2.5], "positions, one a row"), ("others", [[1.5]], "keys, row x key")),
    *(("keys", [[1]], TABLE), ("keys", [[True], [True, False]], TABLE)),
]


@pytest.mark.parametrize(("part", "value", "expected"), ODD, ids=str)
def test_what_is_no_claims_says_what_would_be(part, value, expected, unchecked):
    with pytest.raises(InputError, match=f"^expected {part} as {expected}; got [^\n]*$"):
        Claim(**{"prompt": 0, "queries": [2], "keys": [[True]], part: value})


def test_an_encoder_sees_later_keys_and_no_padding_and_says_nothing_next():
    (model, probe), texts = probed("bert"), TokenBatch.from_rows(ROWS)
    later, padded = (replace(claim(1, {2: [key]}), read=read_at(2)) for key in (4, 5))
    assert knock_out(model, texts, [later], probe).abs().min() > 0
    with pytest.raises(InputError, match="keys that its rows see"):
        knock_out(model, texts, [padded], probe)
    with pytest.raises(InputError, match="no output layer: give a probe"):
        knock_out(model, texts, CLAIMS[:1])
    for network in (model, tiny_model("gpt2")):  # a probe predicts no next token either
        with pytest.raises(InputError, match="name what else a claim reads"):
            knock_out(network, texts, CLAIMS[:1], probe)


@pytest.mark.parametrize("entries", [1 << 19, 300])
@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert"])
def test_keys_changed_in_several_heads_at_once(kind, entries, monkeypatch):
    monkeypatch.setattr(preparation, "PASS_ENTRIES", 3 * entries)
    model, probe = probed(kind)
    texts, claims = TokenBatch.from_rows(ROWS), read_anywhere(model, 2)
    (stack,) = model.config.stacks
    alone = knock_out(model, texts, claims, probe)[:, 1, 0]
    torch.testing.assert_close(knock_out_together(model, texts, claims, [[(1, 0)]] * len(claims), probe), alone)

    def by_hand(value, claim: Claim, heads: list[int]):
        value = value.clone()
        for number, row in enumerate(claim.queries.tolist()):
            before = value[claim.prompt, heads, row].clone()
            for key in claim.keys[number].nonzero()[:, 0].tolist():
                value[claim.prompt, heads, row, key] -= torch.inf if claim.how == "hide" else before[:, key]
                if claim.others is not None:
                    value[claim.prompt, heads, row, int(claim.others[number, key])] += before[:, key]
        return value

    groups = ([[(0, 0), (0, 1), (1, 1)], [(1, 0), (1, 1)]] * len(claims))[: len(claims)]
    drops = knock_out_together(model, texts, claims, groups, probe)
    torch.testing.assert_close(drops, knock_out_together(Whole(model), texts, claims, groups, probe))
    before = run(model, texts, capture=(final := f"{stack}.resid_final"))[final]
    for claim, heads, drop in zip(claims, groups, drops, strict=True):
        layers = {layer: [head for index, head in heads if index == layer] for layer, _ in heads}
        site = f"{stack}.{{}}.attn.{'scores' if claim.how == 'hide' else 'pattern'}"
        edits = {site.format(layer): partial(by_hand, claim=claim, heads=members) for layer, members in layers.items()}
        after = run(model, texts, capture=final, edit=edits)[final]
        value = [claim.read.value(probe(each[claim.prompt, claim.read.positions])) for each in (before, after)]
        torch.testing.assert_close(drop, value[0] - value[1])
    assert {claim.how for claim, drop in zip(claims, drops, strict=True) if abs(drop) > 1e-3} == {*HOWS}
    with pytest.raises(InputError, match=r"no head 0\.9"):
        knock_out_together(model, texts, claims[:1], [[(0, 9)]], probe)

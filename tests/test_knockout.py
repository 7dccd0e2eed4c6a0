"""Claimed keys hidden from single heads: against one forward a head, and against what follows on paper."""

import pytest
import torch

from interp import InputError, TokenBatch, run
from interp.patching.knockout import Claim, knock_out, knock_out_by_forward
from models import planted
from models.planted import Planted
from tests.tiny import model as tiny_model
from tests.tiny import token_ids

ROWS = [[1, 2, 3, 4, 5, 6, 7], [8, 9, 10, 11, 12], [13, 14, 15, 16, 17, 18, 19]]


def claim(prompt: int, pairs: dict[int, list[int]], width: int = 7) -> Claim:
    keys = torch.zeros(len(pairs), width, dtype=torch.bool)
    for row, claimed in enumerate(pairs.values()):
        keys[row, claimed] = True
    return Claim(prompt, torch.tensor([*pairs], dtype=torch.long), keys)


CLAIMS = [
    claim(0, {2: [1], 5: [0, 4]}),
    claim(1, {3: [3]}),
    claim(2, {1: [0], 4: [2], 5: [2]}),
    claim(0, {1: [0]}),
]


@pytest.mark.parametrize("kind", ["gpt2", "llama", "sinusoidal", "attention only", "post-norm decoder"])
def test_every_head_equals_one_plain_forward_pass(kind):
    model, texts = tiny_model(kind), TokenBatch.from_rows(ROWS)
    fast, plain = knock_out(model, texts, CLAIMS), knock_out_by_forward(model, texts, CLAIMS)
    assert plain.abs().max() > 1e-3
    torch.testing.assert_close(fast, plain, rtol=1e-10, atol=1e-10)


def test_claims_do_not_see_each_other():
    model, texts = tiny_model("llama"), TokenBatch.from_rows(ROWS)
    together = knock_out(model, texts, CLAIMS)
    alone = torch.cat([knock_out(model, texts, [each]) for each in CLAIMS])
    torch.testing.assert_close(together, alone)


def test_a_copying_head_needs_exactly_the_key_that_it_copies():
    words = [f"w{number}" for number in range(12)]
    layers = [[planted.offset(-1, remember=True), planted.uniform], [planted.induction(10.0), planted.uniform]]
    model = Planted(words, layers, n_ctx=32, start="<s>").build()
    first = [model.tokenizer.id(word) for word in ["w3", "w7", "w1", "w9"]]
    ids = torch.tensor([[0, *first, *first]])
    assert run(model, ids).logits[0, 5:8].argmax(-1).tolist() == first[1:]
    right, wrong = claim(0, {5: [2], 6: [3]}, 9), claim(0, {5: [1], 6: [2]}, 9)  # what followed; what came before it
    drops = knock_out(model, ids, [right, wrong])
    # what is left is spread alike, so that a word seen twice gets 10 x 2 / 5 and 10 x 2 / 6 logits, the right one none
    assert drops[0, 1, 0] > 4 + 10 / 3
    others = drops[0].flatten()[[0, 1, 3]]
    assert others.abs().max() < 0.1
    assert drops[1, 1].abs().max() < 0.1


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
    ],
)
def test_bad_claims_get_one_clear_error(build, message):
    with pytest.raises(InputError, match=message):
        knock_out(tiny_model("gpt2"), TokenBatch.from_rows(ROWS), [build()])


def test_a_model_that_says_nothing_next_is_refused():
    with pytest.raises(InputError, match="causal model with an output layer"):
        knock_out(tiny_model("bert"), token_ids(1, 7), CLAIMS[:1])

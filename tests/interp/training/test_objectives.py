"""What is to be foretold where: rows are drawn by the generator alone, and nothing is asked that cannot be known."""

import pytest
import torch
from learners import N_WORDS, text, tokenizer
from torch import Generator

from interp import InputError
from interp.training import Masked, Pairs, Repeats, Windows
from interp.training.objectives import IGNORED, Mixed

SOURCES = {
    "windows": Windows(text(), [0]),
    "repeats": Repeats(tokenizer(), 2, 5),
    "masked": Masked(Windows(text(), [0]), tokenizer()),
    "pairs": Pairs([([5, 6, 7], [7, 6, 5]), ([8, 9], [9])], start=0),
}


def drawn(source, seed=0, rows=6, row=11):
    return source.examples(rows, row, Generator().manual_seed(seed))


@pytest.mark.parametrize("name", SOURCES)
def test_the_same_generator_draws_the_same_rows(name):
    one, again, other = drawn(SOURCES[name]), drawn(SOURCES[name]), drawn(SOURCES[name], 1)
    assert torch.equal(one.tokens.ids, again.tokens.ids)
    assert torch.equal(one.targets, again.targets)
    assert one.tokens.ids.shape != other.tokens.ids.shape or not torch.equal(one.tokens.ids, other.tokens.ids)
    parts = [one.part(slice(0, 2)), one.part(slice(2, 6))]
    assert torch.equal(torch.cat([part.tokens.ids for part in parts]), one.tokens.ids)
    assert sum(part.n_targets for part in parts) == one.n_targets


def test_windows_foretell_the_next_token_of_the_text():
    stream = torch.arange(2, 31)
    seen = drawn(Windows(stream, [0]), rows=40, row=7)
    assert seen.tokens.ids[:, 0].unique().tolist() == [0]
    assert torch.equal(seen.targets[:, :-1], seen.tokens.ids[:, 1:])
    assert torch.equal(seen.targets[:, 1:], seen.targets[:, :-1] + 1)
    assert {int(seen.targets[:, 0].min()), int(seen.targets[:, -1].max())} == {2, 30}  # from end to end of the text


def test_the_whole_text_is_read_once_in_rows():
    batches = Windows(torch.arange(2, 31), [0]).every(7)
    assert torch.cat([batch.targets[:, :-1].flatten() for batch in batches]).unique().numel() == 4 * 6
    assert torch.cat([batch.targets for batch in batches])[:, 0].tolist() == [2, 8, 14, 20]
    some = Windows(text(), [0]).every(7, limit=5)
    assert sum(map(len, some)) == 5


def test_only_what_the_first_copy_tells_is_foretold():
    seen = drawn(Repeats(tokenizer(), 3, 6), rows=30, row=16)
    for ids, targets in zip(seen.tokens.ids.tolist(), seen.targets.tolist(), strict=True):
        for at, target in enumerate(targets):
            if target == IGNORED:
                continue
            assert target == ids[at + 1]
            earlier = [place for place in range(at) if ids[place] == ids[at]]
            assert any(ids[place + 1] == target for place in earlier)  # induction foretells it
    assert 0.2 < (seen.targets != IGNORED).float().mean() < 0.5


def test_hidden_tokens_are_foretold_where_they_stand():
    plain, source = Windows(text(20_000), [0]), Masked(Windows(text(20_000), [0]), tokenizer(), 0.2)
    shown, seen = drawn(plain, rows=500, row=16), drawn(source, rows=500, row=16)
    chosen = seen.targets != IGNORED
    assert torch.equal(seen.targets[chosen], shown.tokens.ids[chosen])
    assert torch.equal(seen.tokens.ids[~chosen], shown.tokens.ids[~chosen])
    assert not chosen[:, 0].any()  # <s> is no word
    assert chosen.any(1).all()
    assert chosen[:, 1:].float().mean() == pytest.approx(0.2, abs=0.02)
    read, was = seen.tokens.ids[chosen], shown.tokens.ids[chosen]
    assert (read == tokenizer().mask_id).float().mean() == pytest.approx(0.8, abs=0.03)
    assert (read == was).float().mean() == pytest.approx(0.1 + 0.1 / (N_WORDS + 2), abs=0.03)
    assert drawn(Masked(Windows(torch.zeros(50, dtype=torch.long), [0]), tokenizer())).n_targets == 0  # no words


def test_pairs_are_padded_and_padding_is_not_foretold():
    [seen] = Pairs([([5], [7, 6, 5, 1]), ([8, 9], [9])], start=0).every(9)
    assert seen.tokens.mask.tolist() == [[True, False], [True, True]]
    assert seen.decoded.ids.tolist() == [[0, 7, 6, 5], [0, 0, 0, 0]]  # the decoder reads what it has written
    assert seen.targets.tolist() == [[7, 6, 5, 1], [9, IGNORED, IGNORED, IGNORED]]
    assert seen.n_targets == 5


def test_a_mix_draws_rows_by_their_shares():
    mixed = Mixed({"windows": Windows(torch.full((50,), 7), [0]), "repeats": Windows(torch.full((50,), 9), [0])})
    seen = mixed.examples(2000, 5, {"windows": 0.25, "repeats": 0.75}, Generator().manual_seed(0))
    assert (seen.targets[:, 0] == 7).float().mean() == pytest.approx(0.25, abs=0.03)
    assert (seen.targets[:200, 0] == 7).any()  # shuffled: every micro-batch has its share
    alike = mixed.examples(2000, 5, {}, Generator().manual_seed(0))
    assert (alike.targets[:, 0] == 7).float().mean() == pytest.approx(0.5, abs=0.03)


MIXED = Mixed({"windows": SOURCES["windows"], "pairs": SOURCES["pairs"]})
REFUSED = [
    *((lambda n=n: drawn(Windows(torch.arange(n), [0]), row=7), f"the text has {n} tokens, fewer") for n in (3, 6)),
    (lambda: Windows(text(), [0, 0, 0]).every(3), "no room beside the 3 tokens"),
    (lambda: Repeats(tokenizer(), 2, N_WORDS + 1), f"longest <= {N_WORDS}"),
    (lambda: Pairs([([1], [2]), ([1], [])], start=0), "pair 2 has an empty side"),
    (lambda: drawn(Pairs([([1], [2, 3, 4, 5])], start=0), row=3), "a text of 4 tokens is longer than a row of 3"),
    (lambda: MIXED.examples(4, 9, {"novels": 1.0}, Generator()), "no source 'novels' to mix: there are windows, pairs"),
    (lambda: MIXED.examples(20, 9, {}, Generator().manual_seed(0)), "pairs of texts are not mixed"),
    (lambda: Mixed({}), "expected something to learn from"),
]


@pytest.mark.parametrize(("ask", "message"), REFUSED)
def test_what_cannot_be_is_refused(ask, message):
    with pytest.raises(InputError, match=message):
        ask()

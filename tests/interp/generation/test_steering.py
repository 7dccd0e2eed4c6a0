"""Edits and captures during generation equal those of passes over the whole text; prompts may be ragged."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from refusals import refusal
from tiny import Whole, model, pairs_of_two, rows, token_ids, two_stacks
from torch import Tensor
from torch.testing import assert_close

from interp import InputError, Transformer, add, generate, patch, run, scale, set_to, zero
from interp.generation.generate import generate_pieces, penalised
from models import load

LENGTHS, STEPS = (4, 6, 3), 5
PROMPTS = rows(LENGTHS)
VECTOR = torch.linspace(-2, 2, 19)
CLOSE = {"rtol": 1e-9, "atol": 1e-9}


def edit_at(positions: Callable[[int], list[int]], f: Callable[[Tensor], Tensor], head: int | slice = slice(None)):
    """The edit of a whole pass over a text with a prompt of that length, at positions that exist so far."""

    def edit(value: Tensor, n_prompt: int) -> Tensor:
        changed = value.clone()
        for place in (each for each in positions(n_prompt) if each < value.shape[1]):
            changed[:, place, head] = f(value[:, place, head])
        return changed

    return lambda n_prompt: partial(edit, n_prompt=n_prompt)


def hide_last_key(x: Tensor, n: int) -> Tensor:
    return x * ~((torch.arange(x.shape[2]) >= n)[:, None] & (torch.arange(x.shape[3]) == n - 1))


STREAM, LATE = "decoder.0.resid_post", range(99)
# an argument of `generate`, and its meaning in a whole pass
EDITS = {
    "everywhere": ({STREAM: add(VECTOR)}, {STREAM: lambda n: lambda x: x + VECTOR}),
    "a function": ({STREAM: lambda x: x * 0.5}, {STREAM: lambda n: lambda x: x * 0.5}),
    "the end": ({STREAM: set_to(VECTOR, position=-1)}, {STREAM: edit_at(lambda n: [n - 1], lambda x: x * 0 + VECTOR)}),
    "late positions": ({STREAM: zero(position=[0, 6])}, {STREAM: edit_at(lambda n: [0, 6], lambda x: x * 0)}),
    "one a text": (
        {STREAM: add(VECTOR, position=torch.tensor([1, 6, -1]))},
        {STREAM: edit_at(lambda n: [{4: 1, 6: 6, 3: 2}[n]], lambda x: x + VECTOR)},
    ),
    "what is written": (
        {STREAM: add(VECTOR, step=slice(1, None))},
        {STREAM: edit_at(lambda n: [p for p in LATE if p >= n], lambda x: x + VECTOR)},
    ),
    "a head's key, which stays changed": (
        {"decoder.1.attn.k": scale(3.0, head=0, position=1)},
        {"decoder.1.attn.k": edit_at(lambda n: [1], lambda x: x * 3, head=0)},
    ),
    "a key hidden from what is written": (
        {"decoder.1.attn.pattern": zero(key=-1, step=slice(1, None))},
        {"decoder.1.attn.pattern": lambda n: partial(hide_last_key, n=n)},
    ),
    "logits": (
        {"logits": set_to(-9.0, d_vocab=slice(0, 20), step=[0, 2])},
        {"logits": edit_at(lambda n: [*range(n), n + 1], lambda x: x.masked_fill(torch.arange(29) < 20, -9.0))},
    ),
}


def by_whole_passes(transformer: Transformer, row: Tensor, edit):
    """Generate one text with a whole pass per token: its ids, and the captures of the last pass."""
    bound, ids = {site: make(row.shape[1]) for site, make in edit.items()}, row
    for _ in range(STEPS):
        out = run(transformer, ids, "*", bound)
        ids = torch.cat([ids, out.logits[:, -1].argmax(-1, keepdim=True)], 1)
    return ids, out


@pytest.mark.parametrize(("case", "name"), [(case, ("gpt2", "llama")[index % 2]) for index, case in enumerate(EDITS)])
def test_tokens_and_captures_are_those_of_whole_passes_over_each_text_alone(case, name):
    transformer, (edit, whole_edit) = model(name), EDITS[case]
    result = generate(transformer, PROMPTS, STEPS, edit=edit, capture="*")
    for row, length in enumerate(LENGTHS):
        ids, out = by_whole_passes(transformer, PROMPTS.ids[row : row + 1, :length], whole_edit)
        first = max(LENGTHS) - length  # shorter prompts are padded on the left
        assert torch.equal(result.ids[row, first:], ids[0])
        for site, value in out.activations.items():
            part = result[site][row]
            for axis, kind in enumerate(transformer.sites[site].axes):
                if kind in {"position", "query", "key"}:
                    part = part.narrow(axis, first, length + STEPS - 1)
            assert_close(part, value[0], msg=lambda text, site=site: f"{site}: {text}", **CLOSE)
    plain = generate(transformer, PROMPTS, STEPS, capture="logits")
    assert not torch.equal(plain["logits"], result["logits"])  # else the edit did nothing
    whole = generate(Whole(transformer), PROMPTS, STEPS, edit=edit, capture="*")
    assert torch.equal(whole.ids, result.ids)
    assert [*whole.activations] == [*result.activations]
    for site, value in result.activations.items():
        for row, length in enumerate(LENGTHS):  # values at padding do not count
            if "position" in transformer.sites[site].axes:
                region = slice(max(LENGTHS) - length, None)
                assert_close(whole[site][row, region], value[row, region], **CLOSE)


@pytest.mark.parametrize("kind", ["modern", "original"])
def test_an_encoder_is_edited_and_captured_in_its_own_text(kind):
    transformer, pairs = two_stacks(kind), pairs_of_two("source")
    source, start = pairs.clean, torch.tensor([[2]] * 3)
    edit = {
        "encoder.1.resid_pre": scale(2.0, position=-1),
        "decoder.1.cross_attn.k": zero(position=0, head=1),
        "decoder.0.cross_attn.pattern": scale(0.5, key=-1, step=slice(1, None)),
        "decoder.0.resid_post": add(0.25, step=[1, 2]),
    }

    def whole_edit(length: int):
        def dimmed(x: Tensor) -> Tensor:
            last = torch.arange(x.shape[3]) == (source.lengths - 1)[:, None, None, None]
            return torch.where(last & (torch.arange(x.shape[2]) >= 1)[:, None], x * 0.5, x)

        added = (torch.arange(length) >= 1) & (torch.arange(length) <= 2)
        return {
            **{site: edit[site] for site in [*edit][:2]},
            "decoder.0.cross_attn.pattern": dimmed,
            "decoder.0.resid_post": lambda x: x + 0.25 * added[:, None],
        }

    result, ids = generate(transformer, source, 6, edit=edit, capture="*"), start
    for _ in range(6):
        out = run(transformer, source, "*", whole_edit(ids.shape[1]), target=ids)
        ids = torch.cat([ids, out.logits[:, -1].argmax(-1, keepdim=True)], 1)
    assert torch.equal(result.ids, ids)
    assert result.activations.keys() == out.activations.keys()
    for site, value in out.activations.items():
        assert_close(result[site], value, msg=lambda text, site=site: f"{site}: {text}", **CLOSE)
    assert torch.equal(generate(Whole(transformer), source, 6, edit=edit).ids, ids)
    lists = generate(transformer, source, 4, target=pairs.target).tokens.id_lists()  # of different lengths
    for ids, *texts in zip(lists, source.id_lists(), pairs.target.id_lists(), strict=True):
        prompt, target = map(torch.tensor, texts)
        assert generate(transformer, prompt, 4, target=target).ids[0].tolist() == ids


@pytest.mark.parametrize("make", [lambda built: built, Whole], ids=["cache", "whole"])
def test_positions_are_the_whole_texts_when_its_beginning_has_left_the_context(make):
    """In a context of 13, the edited token at position 7 moves to another place in every later window."""
    transformer, ids = model("gpt2"), token_ids(1, 5)
    tokens = generate(make(transformer), ids, 20, edit={STREAM: add(3 * VECTOR, position=7)}).ids
    for _ in range(20):
        start = max(0, ids.shape[1] - 13)
        edit = {STREAM: add(3 * VECTOR, position=7 - start)} if start <= 7 < ids.shape[1] else {}
        new = run(transformer, ids[:, start:], edit=edit).logits[:, -1].argmax(-1)
        ids = torch.cat([ids, new[:, None]], 1)
    assert torch.equal(tokens, ids)


def test_what_another_text_had_is_put_where_it_stands():
    transformer, ids = model("gpt2"), token_ids(2, 6)
    source = generate(transformer, (ids + 1) % 29, 4, capture=STREAM)[STREAM]
    value = generate(transformer, ids, 4, edit={STREAM: patch(source, position=[2, 7])}, capture=STREAM)[STREAM]
    assert (value == source).all(-1).all(0).tolist() == [index in {2, 7} for index in range(9)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"edit": {STREAM: zero(position=9)}}, "no position 9 in prompt 0: it has position 0-7"),
        ({"edit": {STREAM: zero(step=5)}}, "no step 5 where step 0 reads the prompt: it has step 0-4"),
        ({"edit": {STREAM: lambda x: torch.stack([x, x])}}, "adds an axis before the prompts"),
        ({"capture": STREAM, "max_new_tokens": 9}, "outgrow the context of 13: write at most 8"),
        ({"stop": "she"}, "no tokenizer, so it writes no 'she'"),
        ({"stop": ""}, "a stop string must have a character"),
    ],
)
def test_what_cannot_be_done_while_writing(settings, message):
    with pytest.raises(InputError, match=message):
        generate(model("gpt2"), PROMPTS, **{"max_new_tokens": 5, **settings})
    assert "no steps here" in refusal(run, model("gpt2"), PROMPTS, edit={STREAM: zero(step=1)})


def test_a_repetition_penalty_is_that_of_transformers():
    transformers = pytest.importorskip("transformers")
    theirs = transformers.RepetitionPenaltyLogitsProcessor(1.7)
    logits, ids = torch.randn(3, 29, generator=torch.Generator().manual_seed(0)), token_ids(3, 9)
    assert_close(penalised(logits, ids, torch.ones_like(ids).bool(), 1.7), theirs(ids, logits))
    alone = penalised(logits[:1], ids[:1, 4:], torch.ones(1, 5).bool(), 1.7)
    mask = torch.arange(9)[None] >= 4
    assert_close(penalised(logits[:1], ids[:1], mask, 1.7), alone)  # padding does not count as earlier text
    free, strict = (generate(model("gpt2"), PROMPTS, 9, repetition_penalty=each) for each in (1.0, 1e9))
    assert all(len({*row.tolist()}) == 9 for row in strict.ids[:, 6:])
    assert any(len({*row.tolist()}) < 9 for row in free.ids[:, 6:])


def test_strings_end_texts_and_pieces_are_the_continuations():
    built, prompts = load("default"), ["The old lady", "He was"]
    settings = {"max_new_tokens": 14, "repetition_penalty": 1.2}
    whole = generate(built, prompts, **settings)
    assert whole.texts == [prompt + text for prompt, text in zip(prompts, whole.continuations, strict=True)]
    pieces = zip(*generate_pieces(built, prompts, **settings), strict=True)
    assert [*map("".join, pieces)] == whole.continuations
    assert whole.texts == [generate(built, prompt, **settings).texts[0] for prompt in prompts]
    word = next(word for word in whole.continuations[0].split()[1:] if len(word) > 2)
    cut = generate(built, prompts, stop=[word], **settings)
    before, match, _ = whole.continuations[0].partition(word)
    assert cut.continuations[0].startswith(before + match)
    assert len(cut.continuations[0]) <= len(before + match) + 12  # up to the token that completes it
    assert cut.tokens.lengths[0] < whole.tokens.lengths[0]
    pieces = generate_pieces(built, "The old lady", 10**6)  # the loop may be left early
    assert "".join(next(pieces)[0] for _ in range(6)) == generate(built, "The old lady", 6).continuations[0]
    assert "no tokenizer, so it writes no text" in refusal(next, generate_pieces(model("gpt2"), PROMPTS))

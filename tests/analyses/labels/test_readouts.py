"""Reading models that predict no next token, by masked words and by probes, on planted heads."""

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pandas as pd
import pytest
import torch

from analyses.execution.lots import Setting, Shards, using
from analyses.labels import knockouts
from analyses.labels.readouts import MaskedWord
from analyses.reading.windows import Window, windows
from interp import AnnotatedText, InputError, Mention, TokenBatch, Transformer, run
from models import planted
from models.planted import Head, Planted, Slots

NAMES = ["Ann", "Bea", "Cid", "Dan", "Eve", "Fay"]
FILLER = ["so", "then", "now", "well"]
OPEN = [f"x{number}" for number in range(8)]  # nouns after "the", verbs after "to"
CYCLE = [f"w{number}" for number in range(30)]


def without_output(*layers: list, words: list[str], causal: bool = False) -> Transformer:
    """A stack without an output layer."""
    model = Planted(words, [*layers], n_ctx=24, causal=causal, start="<s>").build()
    bare = Transformer(replace(model.config, output="none"), model.tokenizer)
    bare.stacks.load_state_dict(model.stacks.state_dict())
    return bare


def window_of(model: Transformer, text: AnnotatedText) -> Window:
    assert model.tokenizer is not None
    (only,) = windows(text, model.tokenizer, model.config.n_ctx, Counter())
    return only


def effects(texts: Iterable[AnnotatedText], *, model: Transformer, **options) -> pd.DataFrame:
    """A row by measure, layer and head."""
    table = knockouts.measure(model, texts, **{"behaviours": ["position"], **options}).table
    return table.set_index(["measure", "layer", "head"], drop=False)


def said_by_the_next(slots: Slots) -> Head:
    """Looks at the next token, which determines the word before it, because words come in one fixed cycle."""
    head = planted.offset(1)(slots)
    for index, word in enumerate(CYCLE):
        head.moves[slots.token(word), slots.output.start + slots.token(CYCLE[index - 1])] = 12.0
    return head


def filler_of_masks(*more: list, with_mask: bool = True) -> Transformer:
    layers = [[said_by_the_next, planted.uniform], *more]
    model = Planted([*CYCLE, "[MASK]"], layers, n_ctx=48, causal=False, start="<s>").build()
    if with_mask:
        assert model.tokenizer is not None
        model.tokenizer.backend.add_special_tokens(["[MASK]"])
    return model


def cycled(number: int, times: int = 1) -> AnnotatedText:
    words = tuple(CYCLE[(3 * number + index) % len(CYCLE)] for index in range(13)) * times
    return AnnotatedText(words, (True,) * len(words), f"document {number}")


def test_attention_is_read_from_the_masked_rows_too():
    """A head that looks at the next token does so from a mask; one that looks at the same word again cannot."""
    model = filler_of_masks([planted.same_token, planted.uniform])
    rows = effects([cycled(number, 2) for number in range(8)], model=model)
    looks = rows.loc[("next-token", 0, 0)]
    assert looks["masked"] == pytest.approx(1, abs=0.01)
    assert looks["masked_low"] > 0.5  # eight documents that agree
    assert looks["masked_p"] < 0.01
    assert abs(rows.loc[("next-token", 0, 1), "masked"]) < 0.01
    assert rows.loc[("duplicate-token", 1, 0), "masked"] < 0.1  # unmasked, it is 1


def test_at_most_15_percent_of_the_tokens_are_masked_and_these_are_read():
    model = filler_of_masks()
    way, window, rng = MaskedWord(model.output, model.tokenizer.mask_id), window_of(model, cycled(0)), random.Random(0)
    lots = [[*way.lot(window, [*range(1, 14)], rng)] for _ in range(20)]
    assert {len(lot) for lot in lots} == {1}  # of 13 tokens
    assert len({*map(tuple, lots)}) > 5
    ids = way.text(window, [4, 9])
    assert [index for index, id in enumerate(ids) if id == way.mask_id] == [4, 9]
    logits = run(model, TokenBatch.from_rows([ids])).logits.log_softmax(-1)[0]
    read = way.read(window, [4, 9])
    expected = logits[4, window.ids[4]] + logits[9, window.ids[9]]
    torch.testing.assert_close(read.value(logits[read.positions]), expected)
    assert expected > -0.1  # the next words determine them


def test_the_head_that_fills_masks_needs_the_next_token(monkeypatch):
    """The last token has no next one and attends uniformly, so it is not masked here."""
    lot = MaskedWord.lot

    def inner(way, window, rows, rng):
        return lot(way, window, [row for row in rows if row < len(window.ids) - 1], rng)

    monkeypatch.setattr(MaskedWord, "lot", inner)
    table = effects([cycled(number) for number in range(12)], model=filler_of_masks())
    assert {*table["readout"]} == {"masked word"}
    assert table.loc[("next-token", 0, 0), "effect"] > 3
    others = table.loc[(table["head"] == 1) | ~table["measure"].isin(["next-token", "first-token"])]
    assert others["drop"].abs().max() < 1e-3  # heads look at nothing else; controls may hide a next token
    assert table.loc[("next-token", 0, 0), "n"] == 12  # one lot per text


def tagged(number: int) -> AnnotatedText:
    """Texts whose tags depend only on the word before."""
    rng = random.Random(number)
    before = [rng.choice(("the", "to")) for _ in range(6)]
    words = [word for first in before for word in (first, rng.choice(OPEN))]
    tags = [tag for first in before for tag in (("DET", "NOUN") if first == "the" else ("PART", "VERB"))]
    return AnnotatedText((*words,), (True,) * 12, f"document {number}", (*tags,))


def reader_of_tags(causal: bool = False) -> Transformer:
    layer = [planted.offset(-1, remember=True), planted.uniform]
    return without_output(layer, words=["the", "to", *OPEN], causal=causal)


@pytest.mark.parametrize("causal", [False, True])
def test_the_head_that_tells_the_tag_is_found_and_no_other(causal):
    table = effects(map(tagged, range(12)), model=reader_of_tags(causal), training=map(tagged, range(100, 160)))
    assert {*table["readout"]} == {"tag probe"}
    assert table.loc[("previous-token", 0, 0), "effect"] > 1
    assert table.loc[table["head"] == 1, "effect"].abs().max() < 1e-4
    assert "induction" not in {*table["measure"]}


def test_no_document_trains_the_probe_that_reads_it():
    texts = [tagged(number) for number in range(20)]
    trained, apart = (effects(texts[:4], model=reader_of_tags(), training=rows) for rows in (texts, texts[4:]))
    pd.testing.assert_frame_equal(trained, apart)


def test_what_another_probe_read_is_measured_again(tmp_path):
    model, shards = reader_of_tags(), Shards.for_output(tmp_path / "out", [], {})

    def measured(start: int) -> pd.DataFrame:
        return effects(map(tagged, range(4)), model=model, training=map(tagged, range(start, start + 20)))

    with using(Setting(shards)):
        first, again = (measured(start) for start in (100, 200))
        assert shards.counts["read"] == 0
        pd.testing.assert_frame_equal(again, measured(200))
        assert shards.counts["read"] == shards.counts["written"] / 2 > 0
    pd.testing.assert_frame_equal(again, measured(200))
    assert not again.equals(first)


def test_what_cannot_be_read_is_refused_or_counted():
    with pytest.raises(InputError, match="expected a tokenizer with a mask token"):
        knockouts.measure(filler_of_masks(with_mask=False), [cycled(0)])
    with pytest.raises(InputError, match="give annotated texts of other documents"):
        knockouts.measure(reader_of_tags(), [replace(tagged(number), tags=None) for number in range(20)])
    texts = [tagged(number) for number in range(20)]
    table = knockouts.measure(reader_of_tags(), texts[:5], training=texts[5:]).table
    assert {*table["behaviour"]} == {"position", "part-of-speech"}  # without pronouns there is no probe of antecedents


def copied_from_two_before(slots: Slots) -> Head:
    """Looks two tokens back and copies that token."""
    head = planted.offset(-2)(slots)
    head.moves[slots.tokens, slots.tokens] = torch.eye(slots.n_tokens)
    return head


def referring(number: int) -> AnnotatedText:
    """... NAME NAME saw he: "he" is the second name."""
    rng = random.Random(number)
    before = rng.choices(FILLER, k=rng.randrange(5))
    words, start = (*before, *rng.sample(NAMES, 2), "saw", "he"), len(before)
    places = ((start, "other"), (start + 1, "own"), (start + 3, "own"))
    chains = tuple(Mention(place, place + 1, place, chain) for place, chain in places)
    return AnnotatedText(words, (True,) * len(words), f"document {number}", mentions=chains)


def reader_of_reference() -> Transformer:
    return without_output([copied_from_two_before, planted.uniform], words=[*NAMES, *FILLER, "saw", "he"])


def test_the_head_that_brings_the_antecedent_is_needed_and_no_other():
    options = {"training": map(referring, range(100, 250)), "behaviours": ["coreference"]}
    table = effects(map(referring, range(20)), model=reader_of_reference(), **options)
    assert {*table["readout"]} == {"antecedent probe"}
    assert table["drop"]["antecedent", 0, 0] > 1
    assert table["drop"]["antecedent", 0, 1] == pytest.approx(0, abs=1e-4)
    assert {*table["n"]} == {20}
    assert table["effect"]["antecedent", 0, 0] == 0  # always two before, so no more than its usual distance

"""Reading models that say no next token: masked words, and probes in the output layer's place, on planted heads."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pandas as pd
import pytest
import torch

from analyses.behaviours import OURS
from analyses.labels import knockouts
from analyses.labels.readouts import AntecedentProbe, MaskedWord, NextToken, TagProbe, readouts
from analyses.reading.windows import Window, windows
from interp import AnnotatedText, InputError, Mention, TokenBatch, Transformer, run
from models import planted
from models.planted import Head, Planted, Slots

NAMES = ["Ann", "Bea", "Cid", "Dan", "Eve", "Fay"]
FILLER = ["so", "then", "now", "well"]
OPEN = [f"x{number}" for number in range(8)]  # nouns after "the", verbs after "to"


def without_output(model: Transformer) -> Transformer:
    """The same stack, and nothing that reads it."""
    bare = Transformer(replace(model.config, output="none"), model.tokenizer)
    bare.stacks.load_state_dict(model.stacks.state_dict())
    return bare


def window_of(model: Transformer, text: AnnotatedText) -> Window:
    assert model.tokenizer is not None
    (only,) = windows(text, model.tokenizer, model.config.n_ctx, Counter())
    return only


def effect_of(table: pd.DataFrame, measure: str, layer: int, head: int) -> float:
    return float(table.set_index(["measure", "layer", "head"])["effect"][measure, layer, head])


# Masked words.

CYCLE = [f"w{number}" for number in range(30)]


def said_by_the_next(slots: Slots) -> Head:
    """Looks at the next token, which says what stands before it: the words come in one fixed cycle."""
    head = planted.offset(1)(slots)
    for at, word in enumerate(CYCLE):
        head.moves[slots.token(word), slots.output.start + slots.token(CYCLE[at - 1])] = 12.0
    return head


def filler_of_masks(*, with_mask: bool = True) -> Transformer:
    layers = [[said_by_the_next, planted.uniform]]
    model = Planted([*CYCLE, "[MASK]"], layers, n_ctx=24, causal=False, start="<s>").build()
    if with_mask:
        assert model.tokenizer is not None
        model.tokenizer.backend.add_special_tokens(["[MASK]"])
    return model


def cycled(number: int) -> AnnotatedText:
    words = tuple(CYCLE[(3 * number + at) % len(CYCLE)] for at in range(13))
    return AnnotatedText(words, (True,) * len(words), f"document {number}")


class TestMaskedWords:
    """An encoder with an output layer."""

    def test_attention_is_read_from_the_masked_rows_too(self):
        """A head that looks at the next token does so from a mask; one that looks at the same word again cannot."""
        layers = [[said_by_the_next, planted.uniform], [planted.same_token, planted.uniform]]
        model = Planted([*CYCLE, "[MASK]"], layers, n_ctx=48, causal=False, start="<s>").build()
        assert model.tokenizer is not None
        model.tokenizer.backend.add_special_tokens(["[MASK]"])
        texts = [
            replace(cycled(number), words=cycled(number).words * 2, space_after=(True,) * 26) for number in range(8)
        ]
        table = knockouts.measure(model, texts, behaviours=["position"]).table
        rows = table.set_index(["measure", "layer", "head"])
        looks = rows.loc[("next-token", 0, 0)]
        assert looks["masked"] == pytest.approx(1, abs=0.01)
        assert looks["masked_low"] > 0.5  # eight documents that all say the same
        assert looks["masked_p"] < 0.01
        assert abs(rows.loc[("next-token", 0, 1), "masked"]) < 0.01
        assert rows.loc[("duplicate-token", 1, 0), "masked"] < 0.1  # unmasked it is 1

    def test_at_most_15_percent_of_the_tokens_are_masked(self):
        model = filler_of_masks()
        way, window = MaskedWord.of(model), window_of(model, cycled(0))
        rng = random.Random(0)
        lots = [[*way.lot(window, [*range(1, 14)], rng)] for _ in range(20)]
        assert {len(lot) for lot in lots} == {1}  # of 13 tokens
        assert len({*map(tuple, lots)}) > 5
        assert len([*replace(way).lot(replace(window, special=(True,) + (False,) * 20), [*range(1, 21)], rng)]) == 3
        ids = way.text(window, lots[0])
        assert [at for at, (own, shown) in enumerate(zip(window.ids, ids, strict=True)) if own != shown] == lots[0]
        assert ids[lots[0][0]] == way.mask_id

    def test_the_masked_word_itself_is_read(self):
        model = filler_of_masks()
        way, window = MaskedWord.of(model), window_of(model, cycled(0))
        logits = run(model, TokenBatch.from_rows([way.text(window, [4, 9])])).logits.log_softmax(-1)[0]
        read = way.read(window, [4, 9])
        wanted = logits[4, window.ids[4]] + logits[9, window.ids[9]]
        torch.testing.assert_close(read.value(logits[read.positions]), wanted)
        assert wanted > -0.1  # the next words tell them

    def test_the_head_that_fills_them_needs_the_next_token(self, monkeypatch):
        """The last token has no next one, and looks at all alike: it is not masked here."""
        lot = MaskedWord.lot

        def all_but_last(way: MaskedWord, window: Window, rows: Sequence[int], rng: random.Random):
            return lot(way, window, [row for row in rows if row < len(window.ids) - 1], rng)

        monkeypatch.setattr(MaskedWord, "lot", all_but_last)
        table = knockouts.measure(filler_of_masks(), [cycled(number) for number in range(12)], behaviours=["position"])
        table = table.table
        assert {*table["readout"]} == {"masked word"}
        assert effect_of(table, "next-token", 0, 0) > 3
        others = table.loc[(table["head"] == 1) | ~table["measure"].isin(["next-token", "first-token"])]
        assert others["drop"].abs().max() < 1e-3  # nothing else is looked at; controls may hide a next token
        n = table.set_index(["measure", "layer", "head"])["n"]
        assert n["next-token", 0, 0] == 12  # one lot a text

    def test_a_tokenizer_without_a_mask_is_refused(self):
        with pytest.raises(InputError, match="expected a tokenizer with a mask token"):
            knockouts.measure(filler_of_masks(with_mask=False), [cycled(0)])


# Tags.


def tagged(number: int) -> AnnotatedText:
    rng = random.Random(number)
    words: list[str] = []
    tags: list[str] = []
    for _ in range(6):
        noun = rng.random() < 0.5
        words += ["the" if noun else "to", rng.choice(OPEN)]
        tags += ["DET" if noun else "PART", "NOUN" if noun else "VERB"]
    return AnnotatedText(tuple(words), (True,) * len(words), f"document {number}", tuple(tags))


def reader_of_tags(causal: bool = False) -> Transformer:
    layers = [[planted.offset(-1, remember=True), planted.uniform]]
    return without_output(Planted(["the", "to", *OPEN], layers, n_ctx=24, causal=causal, start="<s>").build())


class TestTagProbe:
    """Words whose tag only the word before them tells."""

    @pytest.mark.parametrize("causal", [False, True])
    def test_the_head_that_tells_the_tag_is_found_and_no_other(self, causal):
        model = reader_of_tags(causal)
        found = knockouts.measure(
            model, map(tagged, range(12)), training=map(tagged, range(100, 160)), behaviours=["position"]
        )
        table = found.table
        assert {*table["readout"]} == {"tag probe"}
        assert effect_of(table, "previous-token", 0, 0) > 1
        assert table.loc[table["head"] == 1, "effect"].abs().max() < 1e-4
        assert "induction" not in {*table["measure"]}
        counts = found.counts
        assert counts["induction left out: random tokens have nothing for a tag probe to read"] == 1
        assert counts["texts that probes were trained on"] == 60

    def test_log_odds_are_of_the_own_tag_against_all_others(self):
        model = reader_of_tags()
        probe = TagProbe.fitted(model, [window_of(model, tagged(number)) for number in range(30)])
        assert probe is not None
        window = window_of(model, tagged(50))
        read = probe.read(window, [2, 3])
        site, tags = "encoder.resid_final", window.text.tags or ()
        logits = probe.output(run(model, TokenBatch.from_rows([window.ids]), site)[site])
        chosen = logits[0, [2, 3]].softmax(-1).double()[[0, 1], [probe.classes[tag] for tag in tags[1:3]]]
        got = read.value(logits[:, read.positions])
        torch.testing.assert_close(got.double()[0], (chosen / (1 - chosen)).log().sum(), rtol=1e-3, atol=1e-3)
        assert (chosen > 0.8).all()

    def test_no_document_trains_the_probe_that_reads_it(self):
        texts, model = [tagged(number) for number in range(40)], reader_of_tags()
        counts = knockouts.measure(model, texts[:4], training=texts[:20], behaviours=["position"]).counts
        assert counts["training texts left out: their document is measured"] == 4
        assert counts["texts that probes were trained on"] == 16
        counts = knockouts.measure(model, iter(texts), behaviours=["position"]).counts  # which are split
        assert counts["texts"] + counts["texts that probes were trained on"] == 40
        assert min(counts["texts"], counts["texts that probes were trained on"]) > 5

    def test_texts_without_tags_train_nothing(self):
        bare = [replace(tagged(number), tags=None) for number in range(20)]
        with pytest.raises(InputError, match="give annotated texts of other documents"):
            knockouts.measure(reader_of_tags(), bare)
        tags = [tagged(number) for number in range(20)]
        found = knockouts.measure(reader_of_tags(), tags[:5], training=tags[5:])
        left_out = (
            "coreference: nothing read: no pronouns with right and wrong mentions before them to train a probe on"
        )
        assert found.counts[left_out] == 1
        assert "coreference" not in {*found.table["behaviour"]}


# Antecedents.


def copied_from(by: int):
    """Looks `by` tokens away and takes on what stands there."""

    def plan(slots: Slots) -> Head:
        head = planted.offset(by)(slots)
        head.moves[slots.tokens, slots.tokens] = torch.eye(slots.n_tokens)
        return head

    return plan


def referring(number: int) -> AnnotatedText:
    """... NAME NAME saw he: "he" is the second name."""
    rng = random.Random(number)
    before = rng.choices(FILLER, k=rng.randrange(5))
    words = (*before, *rng.sample(NAMES, 2), "saw", "he")
    one, two, pronoun = len(before), len(before) + 1, len(before) + 3
    chains = (
        Mention(one, one + 1, one, "other"),
        Mention(two, two + 1, two, "own"),
        Mention(pronoun, pronoun + 1, pronoun, "own"),
    )
    return AnnotatedText(words, (True,) * len(words), f"document {number}", mentions=chains)


def reader_of_reference() -> Transformer:
    layers = [[copied_from(-2), planted.uniform]]
    return without_output(Planted([*NAMES, *FILLER, "saw", "he"], layers, n_ctx=12, causal=False, start="<s>").build())


class TestAntecedentProbe:
    """A pronoun that takes on its antecedent."""

    def test_the_head_that_brings_the_antecedent_is_needed_and_no_other(self):
        table = knockouts.measure(
            reader_of_reference(),
            map(referring, range(20)),
            training=map(referring, range(100, 250)),
            behaviours=["coreference"],
        ).table
        assert {*table["readout"]} == {"antecedent probe"}
        drop = table.set_index(["measure", "head"])["drop"]
        assert drop["antecedent", 0] > 1
        assert drop["antecedent", 1] == pytest.approx(0, abs=1e-4)
        assert {*table["n"]} == {20}
        assert effect_of(table, "antecedent", 0, 0) == 0  # always two before: no more than its usual distance

    def test_the_probe_tells_right_from_wrong(self):
        model = reader_of_reference()
        probe = AntecedentProbe.fitted(model, [window_of(model, referring(number)) for number in range(100, 250)])
        assert probe is not None
        odds = {True: [], False: []}
        for number in range(30):
            window = window_of(model, referring(number))
            (row,) = probe.readable(window)
            stream = run(model, TokenBatch.from_rows([window.ids]), "encoder.resid_final")["encoder.resid_final"][0]
            read = probe.read(window, [row])
            assert read.positions.tolist() == [row, row - 2]
            for same, mention in ((True, row - 2), (False, row - 3)):
                odds[same].append(float(read.value(probe.output(stream[[row, mention]]))))
        assert sum(value > 0 for value in odds[True]) >= 28
        assert sum(value < 0 for value in odds[False]) >= 28


class TestChoice:
    """Which way a model is read."""

    def test_an_output_layer_is_read_by_itself(self):
        for model, kind in ((Planted(["a"], [[planted.uniform]]).build(), NextToken), (filler_of_masks(), MaskedWord)):
            read_by = readouts(model, [*OURS.values()], [], Counter())
            assert {name: type(readout) for name, readout in read_by.items()} == dict.fromkeys(OURS, kind)

    def test_else_probes_read_what_they_were_trained_for(self):
        both = [*map(tagged, range(30))]
        model = reader_of_tags()
        counts: Counter[str] = Counter()
        found = readouts(model, [*OURS.values()], both, counts)
        assert {name: type(way) for name, way in found.items()} == {"position": TagProbe, "part-of-speech": TagProbe}
        assert found["position"] is found["part-of-speech"]

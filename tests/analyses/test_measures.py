"""A measure defines its claimed keys once: its scorer adds up exactly those, on random patterns and real text."""

from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
import pytest
import torch

from analyses import coreference, part_of_speech, position
from analyses.behaviours import ACROSS, OURS, select
from analyses.corpora import read
from analyses.measures.definitions import UNITS, Behaviour, Measure
from analyses.own_measures import own_behaviour
from analyses.reading.windows import Batch, Reading
from analyses.scoring.antecedents import PREDICTING_RIVALS, antecedent_items
from analyses.scoring.choices import Items
from interp import AnnotatedText, InputError, Transformer, run
from models import load
from models.planted import Planted, noise
from models.stories import stories

MASSES = [m for m in position.MEASURES if m.points and not m.corpus]


def random_model(causal: bool) -> Transformer:
    """Four heads with random scores over the words of some stories, with a start token."""
    words = sorted({word for text in texts() for word in text.words})
    layers = [[noise(3.0, 2 * layer + head) for head in range(2)] for layer in range(2)]
    return Planted(words, layers, n_ctx=60, causal=causal, start="<s>").build()


def texts() -> list[AnnotatedText]:
    return list(stories(6, 5))


@pytest.fixture(params=["decoder", "encoder", "default model"])
def read_text(request, shared_file) -> tuple[Transformer, list[AnnotatedText]]:
    """Random patterns in two kinds of stack, and the default model on sentences written by people."""
    if request.param == "default model":
        return load("default"), list(read(shared_file("data", "ud-ewt", "en_ewt-ud-dev.conllu"), 25))
    return random_model(request.param == "decoder"), texts()


def mass_on_claims(batch: Batch, measure: Measure, *, averaged: bool = False) -> tuple[torch.Tensor, float]:
    """Attention on visible claimed keys, summed by head (`averaged` over a word's pieces); and the number of rows."""
    total, rows = torch.zeros(batch.pattern.shape[1], dtype=torch.float64), 0
    for prompt, window in enumerate(batch.windows):
        count = Counter(window.word_of)
        for row, keys in measure.keys_of(window).items():
            visible = [key for key in keys if batch.rows.visible[prompt, row, key]]
            if visible:
                share = 1 / count[window.word_of[row]] if averaged else 1
                total += share * batch.pattern[prompt, :, row, visible].double().sum(-1)
                rows += 1
    return total, rows


def test_positional_scorers_add_up_what_is_claimed(read_text):
    model, corpus = read_text
    collector = position.Collector(model, n_untrained=0)
    expected = {measure.name: (torch.zeros(collector.heads.count).double(), 0) for measure in MASSES}
    for batch in Reading(model, corpus):
        collector.add(batch)
        for measure in MASSES:
            mass, rows = mass_on_claims(batch, measure)
            expected[measure.name] = expected[measure.name][0] + mass, expected[measure.name][1] + rows
    totals, n_heads = collector.sums.totals["kept"], collector.heads.count
    measures = [m for m in OURS["position"].measurable(causal=collector.heads.causal) if m in MASSES]
    assert {m.name for m in measures} == {*collector.masks}
    for measure in measures:
        index, (mass, rows) = [*collector.masks].index(measure.name), expected[measure.name]
        assert totals.rows[:, 0, index].sum() == rows, measure.name
        torch.testing.assert_close(totals.scores[:, :n_heads, index].sum(0), mass, rtol=1e-5, atol=1e-5)


def test_induction_adds_up_what_is_claimed_on_repeats():
    model = random_model(causal=True)
    measure, length = OURS["position"]["induction"], position.repeat_length(model)
    result = position.induction(model, length, 0).totals.finish()
    ids = position.repeated(model, length, 40, 0)
    window = position.repeats(model, length, 40, 0)[0]
    looks = measure.keys_of(window)
    assert result.rows[:, 0, 0].sum() == 40 * len(looks)
    pattern = run(model, ids, "decoder.*.attn.pattern")
    every = torch.cat([pattern[f"decoder.{layer}.attn.pattern"] for layer in range(2)], 1).double()
    mass = sum(every[:, :, row, sorted(keys)].sum((0, -1)) for row, keys in looks.items())
    torch.testing.assert_close(result.scores[:, :4, 0].sum(0), mass, rtol=1e-5, atol=1e-5)


def test_lifts_add_up_what_is_claimed(read_text):
    model, corpus = read_text
    collector = part_of_speech.Collector(model)
    expected: dict[str, torch.Tensor] = defaultdict(lambda: torch.zeros(collector.heads.count).double())
    for batch in Reading(model, corpus):
        collector.add(batch)
        for measure in collector.lifts.measures:
            expected[measure.name] += mass_on_claims(batch, measure, averaged=True)[0]
    observed = collector.lifts.totals["kept"].observed.sum(0)
    for index, measure in enumerate(collector.lifts.measures):
        torch.testing.assert_close(observed[:, index], expected[measure.name], rtol=1e-4, atol=1e-4)
    assert observed.sum() > 0


def test_relations_ask_for_the_words_that_they_pair(read_text):
    """Items are the measures' pairs, and an item's target is where the measure claims it."""
    model, corpus = read_text
    collector = part_of_speech.Collector(model)
    chosen, measures = collector.chosen, collector.chosen.measures
    for text in corpus:
        plain = [(*pair, index) for index, each in enumerate(measures) for pair in each.pairs(text)]
        assert [pair[:3] for pair in chosen.pairs(text)] == sorted(plain)
    count = 0
    for batch in Reading(model, corpus):
        items = Items.from_batch(batch, chosen.pairs, np.zeros(len(measures), dtype=int), causal=chosen.causal)
        target = items.right.int().argmax(1)
        columns = (each.tolist() for each in (items.column, items.prompt, items.query, target))
        for column, prompt, query, target in zip(*columns, strict=True):
            window = batch.windows[prompt]
            looks = measures[column].keys_of(window)
            for row in window.columns[query + window.start]:
                assert {*window.columns[target + window.start]} <= looks[row]
        count += len(items)
    assert count > 50


def test_antecedents_are_chosen_among_what_is_claimed():
    """The claimed keys' share of the mass on all candidates, and whether the highest candidate is claimed."""
    model, corpus = random_model(causal=True), texts()
    collector = coreference.Collector(model)
    share, right, n = defaultdict(float), defaultdict(float), defaultdict(int)
    for batch in Reading(model, corpus):
        collector.add(batch)
        for measure in (*coreference.MEASURES, *coreference.PREDICTING):
            for prompt, window in enumerate(batch.windows):
                looks = measure.keys_of(window)
                for item in antecedent_items(window.text):
                    row = window.columns.get(item.pronoun, [-1])[0] - measure.foretells
                    if row not in looks or not window.scores(item.pronoun):
                        continue
                    candidates = [window.columns[word][0] for word in item.candidates if word in window.columns]
                    weights = batch.pattern[prompt, :, row].double()
                    claimed = weights[:, sorted(looks[row])]
                    share[measure.name] += claimed.sum(-1) / weights[:, candidates].sum(-1)
                    right[measure.name] += (claimed.amax(-1) >= weights[:, candidates].amax(-1)).double()
                    n[measure.name] += 1
    for reader in collector.parts:
        totals = reader.totals["kept"]
        for index, measure in enumerate(reader.measures):
            assert totals.rows[:, 0, index].sum() == n[measure.name] > 0
            expected = share if measure.name.startswith("antecedent-mass") else right
            torch.testing.assert_close(totals.scores[:, :4, index].sum(0), expected[measure.name], rtol=1e-4, atol=1e-4)


def test_where_the_pronoun_is_not_read_yet_no_rule_knows_it():
    for item in antecedent_items(texts()[0]):
        variant = replace(item, form={"he": "she", "she": "he"}.get(item.form, item.form), role="obj")
        for rival in PREDICTING_RIVALS:
            assert rival(item) == rival(variant)
    assert coreference.BEHAVIOUR.measurable(causal=False) == [*coreference.MEASURES]


def test_a_users_claims_are_scored_as_ours(read_text):
    model, corpus = read_text
    ours = OURS["position"]["duplicate-token"]
    mine = own_behaviour([Measure("mine", mask=ours.mask, rivals=ours.rivals)])
    theirs = position.Collector(model, n_untrained=0)
    collector = mine.collector(model)
    for batch in Reading(model, corpus):
        collector.add(batch)
        theirs.add(batch)
    index = [*theirs.masks].index("duplicate-token")
    for sink in ("kept", "removed"):
        (mine,) = (part for part in collector.scored() if part.sink == sink)
        ours = theirs.sums.totals[sink]
        torch.testing.assert_close(mine.totals.scores[..., 0], ours.scores[..., index], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(mine.totals.rows[..., 0], ours.rows[..., index])
        if sink == "removed":  # our null has no special tokens among its keys
            theirs_null = theirs.sums.nulls[sink].mean[..., index]
            torch.testing.assert_close(mine.null.mean[..., 0], theirs_null, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("behaviour", [*OURS.values(), *ACROSS.values()], ids=lambda b: b.name + b.attention)
def test_what_a_behaviour_says_of_itself_holds_together(behaviour: Behaviour):
    names = [measure.name for measure in behaviour.measures]
    assert len({*names}) == len(names)
    assert {*behaviour.headline} <= {*names}
    assert behaviour.title
    assert behaviour.described
    assert {behaviour[name].unit for name in behaviour.headline} <= {*behaviour.grids}
    for measure in behaviour.measures:
        assert measure.title
        assert measure.unit in UNITS
        assert measure.rivals
        assert not measure.reference or measure.reference in {rival.name for rival in measure.rivals}


def test_two_measures_of_one_name_are_refused():
    again = own_behaviour([Measure("self", pairs=lambda text: [])])
    with pytest.raises(InputError, match="several measures are called self"):
        select(["position", again])
    with pytest.raises(InputError, match="no behaviour nearness"):
        select(["nearness"])


@pytest.mark.parametrize("module", [part_of_speech, coreference])
def test_without_the_second_reading_the_first_is_the_same(module):
    model, sums = random_model(causal=True), []
    for removed in (True, False):
        collector = module.Collector(model, rules=False, removed=removed)
        for batch in Reading(model, texts()):
            collector.add(batch)
        readings = collector.scored()
        assert {each.sink for each in readings} == ({"kept", "removed"} if removed else {"kept"})
        sums.append([each.totals.finish() for each in readings if each.sink == "kept"])
    for whole, alone in zip(*sums, strict=True):
        assert torch.equal(whole.scores, alone.scores)
        assert torch.equal(whole.weights, alone.weights)

"""The articles' experiments find what was planted, state its number, and leave out what a model cannot read."""

import random
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from pages import outside_addresses, page_of

from analyses.experiments import EXPERIMENTS, model_parts, swaps
from analyses.experiments.experiment import ARTICLES, STORIES, Outcome, experiment_data
from analyses.figures.kinds import rounded
from analyses.report import builders
from interp import InputError, Transformer
from models import load
from models.planted import Planted, antecedent, offset, uniform, word_to_word
from models.stories import stories
from tests import tiny


def words_of(texts: list[str]) -> list[str]:
    """Every word of some texts once, including full stops."""
    return sorted({word for text in texts for word in text.replace(".", " .").split()})


def pairs(experiment: str, source: str) -> list[swaps.Swap]:
    return [swap for swap in swaps.swaps_of(experiment) if swap.source == source]


def test_a_planted_head_brings_all_of_the_knight():
    """L0.H1 looks from "shining" at the noun and writes its answer; L0.H0 does nothing."""
    articles = pairs("knight", ARTICLES)
    nouns = {"knight": "armor"} | {swap.corrupt.split()[1]: swap.wrong.strip() for swap in articles}
    writes = {noun: [answer] for noun, answer in nouns.items()}
    head = antecedent({"shining": list(nouns)}, writes, strength=3.0)
    texts = [text for swap in articles for text in (swap.clean, swap.corrupt)]
    outcome = swaps.measure_knight(Planted([*words_of(texts), *nouns.values()], [[uniform, head]]).build())
    table = outcome.table
    assert set(table["source"]) == {ARTICLES}
    by_head = table.set_index("head")
    for column in ("share", "direct"):
        assert by_head.loc[1, column] == pytest.approx(1.0, abs=1e-5)
        assert by_head.loc[0, column] == pytest.approx(0.0, abs=1e-6)
    assert by_head.loc[1, "n"] == len(articles)
    assert by_head.loc[1, "accuracy"] == 1.0
    assert by_head.loc[1, "accuracy_low"] == pytest.approx(20 / (20 + 1.96**2))  # Wilson's, over pairs
    assert "L0.H1 carries the largest share of the difference, 1.00" in EXPERIMENTS["knight"].sentence(outcome)

    # no shares for a model that is no better than a coin
    assert (table["accuracy_low"] > 0.8).all()
    guessing = replace(outcome, table=table.assign(accuracy=0.55, accuracy_low=0.4))
    sentence = EXPERIMENTS["knight"].sentence(guessing)
    assert re.search("the model does not do the task: it is right on 55% .* not clearly more than a coin", sentence)
    assert not re.search(r"carries|\d\.\d\d", sentence)
    # unreadable prompts are counted and reported
    offered = len(pairs("knight", STORIES))
    assert outcome.left_out == {"pairs with words outside the vocabulary": offered}
    assert STORIES in outcome.refused
    assert f"{offered} pairs with words outside the vocabulary" in outcome.remark


def test_the_profession_stays_at_the_subject_until_a_head_brings_it():
    stories = pairs("profession", STORIES)
    answers = {swap.clean.split()[1]: ["his"] for swap in stories}
    answers |= {swap.corrupt.split()[1]: ["her"] for swap in stories}
    texts = [text for swap in stories for text in (swap.clean, swap.corrupt)]
    head = antecedent({"called": list(answers)}, answers, strength=3.0)
    model = Planted([*words_of(texts), "his", "her"], [[uniform], [head], [uniform]]).build()
    outcome = swaps.measure_profession(model)
    table = outcome.table
    share = table.set_index(["site", "layer", "place"])["share"]
    subject = -len(["looked", "behind", "the", "tree", "and", "called"])
    for layer, place in ((0, subject), (1, subject), (2, 0)):  # the stream into each layer
        assert share["resid_pre", layer, place] == pytest.approx(1.0, abs=1e-5)
    assert share["resid_pre", 2, subject] == pytest.approx(0.0, abs=1e-6)
    assert share["z", 1, 0] == pytest.approx(1.0, abs=1e-5)
    tokens = table.set_index("place")["token"]
    assert set(tokens.loc[[subject]]) == {swaps.SUBJECT}
    assert set(tokens.loc[[0]]) == {"called"}
    # the planted model gives both the same answer
    assert "the model does not do the task" in EXPERIMENTS["profession"].sentence(outcome)
    doing = replace(outcome, table=table.assign(accuracy=1.0, accuracy_low=0.95))
    assert "carries 1.00" in EXPERIMENTS["profession"].sentence(doing)


def test_adjectives_are_found_and_carried():
    """L0.H0 looks from nouns at all their adjectives equally; L0.H1 at the word before, which it remembers."""
    rng = random.Random(0)
    scenes = [scene for group in experiment_data("adjectives")["prompts"] for scene in swaps.scenes(group, rng)]
    nouns = sorted({scene[place] for scene in scenes for place in (3, 7)})
    adjectives = [word for group in experiment_data("adjectives")["prompts"] for word in group["adjectives"]]
    described_by = word_to_word(nouns, sorted(set(adjectives)), nearest=False)
    vocabulary = sorted({*words_of([" ".join(scene) for scene in scenes]), *adjectives})
    outcome = swaps.measure_adjectives(Planted(vocabulary, [[described_by, offset(-1, remember=True)]]).build())
    table = outcome.table.set_index(["source", "head"])
    for source in (ARTICLES, STORIES):
        # the first noun is fourth, with 2 adjectives in 4 words; the second has 1 in 8, and looks at all three
        assert table.loc[(source, 0), "uniform"] == pytest.approx((2 / 4 + 1 / 8) / 2)
        assert table.loc[(source, 0), "attention"] == pytest.approx((1 + 1 / 3) / 2, abs=1e-5)
        assert table.loc[(source, 1), "attention"] == pytest.approx(1.0, abs=1e-5)
        assert table.loc[(source, 1), "carried"] == pytest.approx(1.0, abs=1e-5)  # nothing else writes
        assert table.loc[(source, 0), "carried"] == pytest.approx(0.0, abs=1e-6)
    assert "L0.H1 writes the largest share of the change in the noun: 1.00" in EXPERIMENTS["adjectives"].sentence(
        outcome
    )


@pytest.fixture(scope="module")
def sensed() -> Transformer:
    """A head that remembers the word before, so contexts with the same end give the same stream."""
    senses = experiment_data("word-sense")["prompts"][1]["senses"]
    texts = [f"{frame} {word}" for frames in senses.values() for frame in frames for word in ("ring", "bell")]
    words = words_of([*texts, *experiment_data("companions")["frames"], "girl boy box"])
    return Planted(words, [[offset(-1, remember=True)]]).build()


def test_identical_contexts_give_cosine_1_and_others_what_the_head_wrote(sensed):
    frames = ["Tim saw the", "Tim saw the", "Tim wanted to", "Tim wanted to"]
    between, within = swaps.distances(sensed, "ring", frames, ["noun", "noun", "verb", "verb"])
    assert within == pytest.approx(np.zeros_like(within), abs=1e-9)
    # token, position and previous token, each of length 1, of which two are shared
    assert between[1] == pytest.approx(np.full(4, 1 / 3), abs=1e-6)
    assert between[0] == pytest.approx(np.zeros(4), abs=1e-9)


def test_a_word_moves_no_more_than_an_unambiguous_one_where_only_the_context_is_read(sensed):
    outcome = swaps.measure_word_sense(sensed)
    table = outcome.table
    ring = table.loc[(table["word"] == "ring") & (table["layer"] == 1)].set_index("role")
    assert ring.loc["ambiguous", "gap"] > 0.05
    assert ring.loc["excess", "gap"] == pytest.approx(0.0, abs=1e-9)
    assert outcome.left_out["prompts with words outside the vocabulary"] > 0
    assert "minus the gap of unambiguous words" in EXPERIMENTS["word-sense"].sentence(outcome)


def test_companions_differ_by_their_token_alone(sensed):
    outcome = swaps.measure_companions(sensed)
    table = outcome.table.set_index("layer")
    assert set(table["far"]) == {"box"}
    # of 2 (embedded) and 3 (after the head) parts of length 1, all but the token are shared
    for layer, cosine in ((0, 1 / 2), (1, 2 / 3)):
        assert table.loc[layer, "near_cosine"] == pytest.approx(cosine, abs=1e-6)
        assert table.loc[layer, "gap"] == pytest.approx(0.0, abs=1e-9)
    assert table["n"].eq(len(experiment_data("companions")["frames"])).all()
    assert "it is 0.50 and 0.67" in EXPERIMENTS["companions"].sentence(outcome)


def test_distance_of_planted_heads_and_both_ways_in_an_encoder():
    texts = list(stories(30, 5))
    vocabulary = sorted({word for text in texts for word in text.words})
    model = Planted(vocabulary, [[offset(0), offset(-1)], [offset(-3), offset(-3)]], n_ctx=128).build()
    measured = model_parts.measure_distance(model, texts)
    distances = measured.table.set_index(["layer", "head"])["distance"]
    assert distances[0, 0] == pytest.approx(0.0, abs=1e-4)
    assert distances[0, 1] < 1.2  # first words have none before them and look elsewhere
    assert distances[1, 0] > 2.5
    assert distances[0, model_parts.LAYER] == pytest.approx((distances[0, 0] + distances[0, 1]) / 2)
    contrast, low, high = measured.contrast.values()
    assert low <= contrast <= high
    assert f"farther by {contrast:.2f}" in model_parts.distance_sentence(measured)
    model = Planted(vocabulary, [[offset(-2), offset(2)]], n_ctx=128, causal=False).build()
    outcome = model_parts.measure_distance(model, texts)
    back, forth = outcome.table.set_index("head")["distance"].loc[[0, 1]]
    assert back == pytest.approx(forth, rel=0.05)
    assert 1.9 < back < 3  # the two words without one there look elsewhere
    assert model_parts.distance_sentence(outcome).startswith("Attention looks")
    with pytest.raises(InputError, match="expected a causal model, got an encoder"):
        swaps.measure_word_sense(model)


def test_operations_by_hand():
    stacks, parts = {"gated": tiny.LLAMA, "plain": tiny.GPT2, "encoder": tiny.BERT}, model_parts
    expected = {  # 6 heads of 14 on 2 key/value heads; d_model 19, d_mlp 23
        ("gated", parts.MIXING): 2 * (1 + 2 + 3) * 6 * 14 * 2,
        ("encoder", parts.MIXING): 2 * 9 * 3 * 5 * 2,
        ("gated", parts.PROJECTIONS): 2 * 3 * 19 * 14 * (6 + 2 + 2 + 6),
        ("gated", parts.FEED_FORWARD): 2 * 3 * 3 * 19 * 23,
        ("plain", parts.FEED_FORWARD): 2 * 3 * 2 * 19 * 23,
    }
    assert {(name, part): parts.flops(stacks[name], part, 3) for name, part in expected} == expected


def test_the_exponent_of_a_square_is_2_and_too_few_lengths_tell_none():
    tokens = np.array([64, 128, 256, 512, 1024])
    assert model_parts.exponent(tokens, 1e-9 * tokens**2) == pytest.approx((2, 0), abs=1e-6)
    assert np.isnan(model_parts.exponent(tokens[:2], tokens[:2])).all()
    outcome = model_parts.measure_cost(load("default"), (16, 32), repeats=1)
    assert "too few lengths" in model_parts.cost_sentence(outcome)
    EXPERIMENTS["cost"].plot.draw(outcome.table, "How?").draw_without_rendering()


@pytest.fixture(scope="module")
def results() -> dict[str, Outcome]:
    """Every experiment on the default model, with a third of the prompts if it patches."""
    model = load("default")
    with pytest.MonkeyPatch.context() as patching:
        swaps_of = swaps.swaps_of
        patching.setattr(swaps, "swaps_of", lambda name: swaps_of(name)[::3])
        options = {"cost": {"lengths": (16, 32, 64, 128), "repeats": 2}}
        return {name: each.measure(model, **options.get(name, {})) for name, each in EXPERIMENTS.items()}


def test_shares_of_every_quantity_add_up_to_1(results):
    table = results["shares"].table
    for _, rows in table.groupby("quantity"):
        assert rows["share"].sum() == pytest.approx(1.0)
    parameters = table.loc[table["quantity"] == model_parts.PARAMETERS, "value"]
    assert parameters.sum() == sum(each.numel() for each in load("default").parameters())


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_runs_on_the_default_model_and_is_said_drawn_and_described(name, results):
    experiment, table, sentence = EXPERIMENTS[name], results[name].table, EXPERIMENTS[name].sentence(results[name])
    alt = experiment.plot.draw(table).alt
    for text in (sentence, alt):
        assert text.endswith(".")
        assert not re.search("\n|nan", text)
    assert alt not in sentence  # it does not repeat the paragraph above the figure
    assert sentence not in alt
    if column := {"knight": "share", "adjectives": "gain"}.get(name):
        assert rounded(table[column].max()) in alt
    if name == "distance":
        assert f"uniform attention: {rounded(table['uniform'].iloc[0])}" in alt
    experiment.plot.draw(table, experiment.question).draw_without_rendering()
    if name in {"profession", "knight", "adjectives"}:  # both sources fit one figure
        rows = table.loc[table["source"] == table["source"].iloc[0]]
        pair = pd.concat([rows.assign(source=source, example=source) for source in (ARTICLES, STORIES)])
        experiment.plot.draw(pair, "Which?").draw_without_rendering()


def test_sentences_hold_the_numbers_of_their_tables(results):
    texts, shares = {name: EXPERIMENTS[name].sentence(each) for name, each in results.items()}, results["shares"].table
    attention = shares.loc[shares["part"] == model_parts.ATTENTION, "share"]
    assert all(f"{share:.2f}" in texts["shares"] for share in attention)
    for name, column in (("adjectives", "gain"), ("cost", "exponent")):
        assert f"{results[name].table[column].max():.2f}" in texts[name]
    ring = results["word-sense"].table.query("word == 'ring' and layer == layer.max()").set_index("role")["gap"]
    assert all(rounded(ring[role]) in texts["word-sense"] for role in ("ambiguous", "excess"))
    gaps = results["companions"].table.query("layer == layer.max()").groupby("source")["gap"].first()
    assert all(f"a gap of {rounded(gap)}" in texts["companions"] for gap in gaps)


@pytest.mark.parametrize(
    ("why", "message"),
    [
        ("reads no words", "tokenizer"),
        ("sees both ways", "causal|tokenizer"),
        ("answers nothing", "no output layer"),
        ("knows no word", "no prompt of this experiment .*vocabulary|unknown to this model's tokenizer"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_in_one_line(why, message):
    silent = load("default")
    silent.output, silent.config = None, replace(silent.config, output="none")
    models = {"answers nothing": silent, "knows no word": Planted(["a", "b"], [[uniform]], n_ctx=256).build()}
    models |= {"reads no words": tiny.model("gpt2"), "sees both ways": tiny.model("bert", output="none")}
    for name in ("profession", "knight") if why == "answers nothing" else {*EXPERIMENTS} - {"cost"}:
        with pytest.raises(InputError, match=message) as error:
            EXPERIMENTS[name].measure(models[why])
        assert "\n" not in str(error.value)


def test_a_page_of_the_command_has_its_experiments_and_one_that_cannot_be_asked_is_refused(tmp_path):
    model, senses = load("default"), [key for key, each in EXPERIMENTS.items() if each.command == "word-sense"]
    builders.experiments(model, tmp_path / "out", ["word-sense"], name="<b>model</b>")
    assert all((tmp_path / f"out/tables/{key}.csv").exists() for key in senses)
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert all(EXPERIMENTS[key].question in page for key in senses)
    assert ("&lt;b&gt;model" in page, "<b>model" in page) == (True, False)
    assert not outside_addresses(page_of(tmp_path / "out"))
    model.tokenizer = None
    with pytest.raises(InputError, match="tokenizer"):
        builders.experiments(model, tmp_path / "none", ["word-sense"])
    assert not (tmp_path / "none").exists()

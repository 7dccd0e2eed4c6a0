"""Heads of a suite: same numbers as plain sweeps and edits, hand-aligned prompts, no heads where none exist."""

from collections import Counter
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch
from commands import command, refusal
from pages import outside_addresses, page_of, unlisted
from worded import WORDS, random_worded, turns, worded

from analyses import report, suites
from analyses.execution.lots import Setting, Shards, using
from analyses.execution.provenance import fingerprint
from analyses.suites import cause
from analyses.suites.contrasts import aligns, contrasts
from analyses.suites.items import BAD, GOOD, Item, Paradigm, Sentence, Suite
from analyses.suites.named_words import attention_shares, hiding_costs
from analyses.suites.predictions import Prediction
from analyses.suites.suite_page import sentence
from analyses.wording.head_names import heads_named
from interp import InputError, Transformer, TransformerConfig, run
from interp.patching import Claim, Pairs, Read, knock_out_by_forward, logit_difference, sweep
from interp.patching.pair_files import unmarked

MORE = ["cat", "man", "ran", "sat", "on", "by", "very", "old"]


@pytest.fixture(scope="module")
def model() -> Transformer:
    return random_worded(*MORE)


@pytest.fixture(scope="module")
def paradigm(model) -> Paradigm:
    """Items of two poles that the model gets right: for any weights, some word flips its choice."""
    items = []
    for frame, first, second, right, wrong in turns(model, [*WORDS, *MORE]):
        items.append(item(f"{first} {frame}", right, wrong, "a", frame))
        items.append(item(f"{second} {frame}", wrong, right, "b", frame))
    return Paradigm("turns", tuple(items), "syntax", "toy")


@pytest.fixture(scope="module")
def result(model, paradigm) -> suites.Found:
    return suites.find(model, Suite("toy", (paradigm,)))


def pair(good: str, bad: str, pole: str = "", group: str = "") -> Item:
    """A good and a bad sentence, with parts in braces."""
    return Item(good, group or good, {GOOD: Sentence(*unmarked(good)), BAD: Sentence(*unmarked(bad))}, pole)


def item(prefix: str, good: str, bad: str, pole: str, group: str) -> Item:
    """A pair with a common prefix, whose first word is named."""
    first, rest = prefix.split(" ", 1)
    sides = [f"{{named:{first}}} {rest} {{critical:{word}}}" for word in (good, bad)]
    return pair(*sides, pole, group)


def only(model, *items: Item):
    result, left_out = contrasts(model, Paradigm("one", items))
    assert not left_out
    return result


def test_exchanged_heads_are_those_of_a_plain_sweep(model, paradigm):
    every, left_out = contrasts(model, paradigm)
    assert len(every) == len(paradigm.items) >= 16
    assert not left_out
    ids = [torch.tensor([getattr(contrast, side).ids for contrast in every]) for side in ("clean", "corrupt")]
    answers = [torch.tensor([getattr(contrast, side)[0] for contrast in every]) for side in ("right", "wrong")]
    pairs = Pairs.from_ids(model, *ids, *answers)
    cells = [((head,), "") for head in cause.all_heads(model)]
    for way in ("noise", "denoise"):
        clean, corrupt, values = cause.exchange(model, every, cells, way)
        plain = sweep(model, pairs, logit_difference(), direction=way)
        np.testing.assert_allclose(values, plain.values["logit_difference"].flatten(0, 1), atol=1e-10)
        np.testing.assert_allclose(clean, plain.clean["logit_difference"], atol=1e-10)
        np.testing.assert_allclose(corrupt, plain.corrupt["logit_difference"], atol=1e-10)


def test_prompts_of_unequal_length_exchange_what_is_aligned(model):
    (contrast,) = only(model, pair("the very old dog saw {critical:Tim}", "the cat saw {critical:Tim}"))
    assert contrast.aligned == ((0, 0), (3, 1), (4, 2))  # dog aligns with cat; very and old have no partner
    assert not aligns(contrast)
    assert (contrast.right, contrast.wrong) == ((model.tokenizer.backend.token_to_id("Tim"),), ())
    site = "decoder.0.attn.z"
    clean, corrupt = (torch.tensor([side.ids]) for side in (contrast.clean, contrast.corrupt))
    theirs = run(model, corrupt, capture=site)[site]

    def put(z):
        z = z.clone()
        z[:, [0, 3, 4], 1] = theirs[:, [0, 1, 2], 1]
        return z

    expected = run(model, clean, edit={site: put}).logits[0, -1].log_softmax(-1)[contrast.right[0]]
    _, _, values = cause.exchange(model, [contrast], [(((0, 1),), ""), (((0, 1),), "named")], "noise")
    assert values[0, 0] == pytest.approx(float(expected))
    assert contrast.parts == {"named": (1, 2, 3), "end": (4,), "different": (), "between": ()}  # it names what differs


def test_spans_align_from_their_last_pieces(model, tmp_path):
    """Spans named in a table align, whatever else differs; reading positions have no other partner."""
    rows = "the very {named:old dog} ran on by {critical:Tim}", "the {named:old dog} sat by {critical:Tim}"
    read = "the {named:cat man} on {critical:Tim}", "the {named:cat} {critical:Tim}"
    (tmp_path / "p.csv").write_text("\n".join(["good,bad", ",".join(rows), ",".join(read)]))
    first, second = only(model, *suites.read(tmp_path / "p.csv").paradigms[0].items)
    assert dict(first.aligned) == {0: 0, 2: 1, 3: 2, 6: 4}  # ran on and sat are in no span
    assert dict(second.aligned) == {0: 0, 3: 1}  # on, where Tim is predicted, and cat


def test_twins_are_on_one_side_where_groups_are_too_few(model, paradigm):
    twins = [contrast._replace(group="one") for contrast in contrasts(model, paradigm)[0]]  # twins are neighbours
    study = cause.study(model, "turns", twins, 0)
    assert (study.chooses[::2] == study.chooses[1::2]).all()
    assert cause.study(model, "turns", twins[:2] * 8, 0) == "it has 1 different contrasts, fewer than 8"


def test_all_heads_exchanged_with_an_equal_prompt_change_nothing(model):
    (contrast,) = only(model, pair("the old dog saw Tim", "the old cat saw Tim"))
    identical = contrast._replace(corrupt=contrast.clean)
    clean, corrupt, values = cause.exchange(model, [identical], [(cause.all_heads(model), "")], "denoise")
    np.testing.assert_array_equal(clean, corrupt)
    np.testing.assert_allclose(values[0], clean, atol=1e-12)


def test_each_preference_without_a_contrast_is_counted(model):
    alone = item("Tim saw", "He", "She", "a", "alone")
    twin = item("Sue saw", "He", "She", "b", "alone")  # other pole, same answer
    ends = pair("Tim saw the dog", "Tim saw the cat")
    critical = pair("Tim saw {critical:dog} on", "Sue saw {critical:cat} on")
    long = pair(" ".join(["dog"] * 30), "the dog")
    result, left_out = contrasts(model, Paradigm("none", (alone, twin, ends, long)))
    assert not result
    assert [*left_out.values()] == [1, 1, 2]
    reasons = ("no shared word follows the difference", "longer than the context", "no item of its group")
    assert all(words in why for words, why in zip(reasons, left_out, strict=True))
    assert "critical words and the text before" in next(iter(contrasts(model, Paradigm("none", (critical,)))[1]))


def test_a_partner_has_the_answers_the_other_way_and_aligns_best(model):
    items = [item("the dog saw", "He", "She", "a", "g"), item("very old cat saw", "She", "He", "b", "g")]
    items += [item("the cat saw", "She", "He", "b", "g"), item("the cat saw", "She", "He", "b", "other")]
    result, left_out = contrasts(model, Paradigm("many", tuple(items)))
    assert [contrast.corrupt.text for contrast in result[:1]] == ["the cat saw She"]
    assert sum(left_out.values()) == 1


def test_a_claim_compares_one_region_in_two_conditions(model):
    sides = {"match": "the dog saw Tim", "mismatch": "the cat saw Tim"}
    sentences = {name: Sentence(text, {"2": (4, 7), "3": (12, 15)}) for name, text in sides.items()}
    formulas = "(3;%mismatch%) > (3;%match%)", "(3;%match%) < (2;%mismatch%)"
    gym = Paradigm("gym", (Item("1", "1", sentences),), predictions=tuple(map(Prediction.parse, formulas)))
    (contrast,), left_out = contrasts(model, gym)
    assert (contrast.clean.text, contrast.corrupt.text) == tuple(sides.values())
    assert sum(left_out.values()) == 1


def test_hidden_is_a_plain_knock_out_less_its_nearest_other(model, paradigm):
    every, _ = contrasts(model, paradigm)
    batch, reads = torch.tensor([contrast.clean.ids for contrast in every]), torch.tensor([2])
    drops = []
    for key in (0, 1):  # the first word is named, the second is next to it
        mask = torch.arange(3)[None] == key
        margins = [lambda logits, e=e: logits[..., 0, e.right[0]] - logits[..., 0, e.wrong[0]] for e in every]
        claims = [Claim(n, reads, mask, Read(reads, margin)) for n, margin in enumerate(margins)]
        drops.append(knock_out_by_forward(model, batch, claims).flatten(1).T)
    np.testing.assert_allclose(hiding_costs(model, every), drops[0] - drops[1], atol=1e-10)


def test_rules_choose_words_as_heads_do(model):
    """The named word is two back in half of the items, three in the others, and the nearest of its class in all."""
    items = []
    for number, (name, near) in enumerate(product(["dog", "cat", "man", "Tim"], [False, True] * 4)):
        words = "old {named:%s} on by {critical:saw}" if near else "very {named:%s} on the by {critical:saw}"
        items.append(pair(words % name, words % "Sue", group=str(number)))
    every = only(model, *items)
    groups, chooses = np.array([contrast.group for contrast in every]), np.arange(len(every)) % 4 < 2
    table = attention_shares(model, every, groups, chooses, 0)
    assert {*table["rule"]} == {"the nearest such word"}
    assert {*table["rule_value"]} == {1.0}
    assert (table["gain"] <= 0).all()
    assert table["value"].between(0, 1).all()
    assert len(table) == 6


def test_a_passed_paradigm_has_heads_on_prompts_that_did_not_choose(model, paradigm, result):
    row = result.accuracy.iloc[0]
    assert (row["verdict"], row["accuracy"]) == ("passed", 1.0)
    assert sentence(result).startswith("The model passes 1 of 1 paradigm; L")
    assert len(sentence(result).split()) <= 30
    heads = result.tables["suite_heads"]
    assert len(heads) == 3 * 6
    assert {*heads["intervention"]} == {"noise", "denoise", "hide"}
    every, _ = contrasts(model, paradigm)
    study = cause.study(model, "turns", every, 0)
    assert not {*study.groups[study.chooses]} & {*study.groups[~study.chooses]}
    values = cause.exchange(model, every, [(((1, 2),), "")], "noise")[2][0]
    whole = (study.clean - study.corrupt)[~study.chooses].sum()
    share = (study.clean - values)[~study.chooses].sum() / whole
    rows = heads.set_index(["intervention", "layer", "head"])
    assert rows.loc[("noise", 1, 2), "effect"] == pytest.approx(share)
    assert rows.loc[("noise", 1, 2), "flips"] == (values <= 0)[~study.chooses].sum()
    assert (heads["n"] == (~study.chooses).sum()).all()
    assert heads["q"].between(0, 1).all()


def test_a_set_carries_half_of_what_all_heads_do_where_it_was_chosen(model, paradigm, result):
    row = result.tables["suite_transfer"].iloc[0]
    assert row["chosen_on"] == row["paradigm"] == "turns"
    chosen = heads_named(row["heads"])
    every, _ = contrasts(model, paradigm)
    study = cause.study(model, "turns", every, 0)
    values = cause.exchange(model, every, [(tuple(chosen), ""), (cause.all_heads(model), "")], "noise")[2]
    losses = (study.clean - values)[:, study.chooses].sum(1)
    assert losses[0] >= 0.5 * losses[1]
    reported = (study.clean - values)[:, ~study.chooses].sum(1) / (study.clean - study.corrupt)[~study.chooses].sum()
    assert (row["effect"], row["all_effect"]) == (pytest.approx(reported[0]), pytest.approx(reported[1]))
    parts = result.tables["suite_parts"]
    assert {*parts["part"]} >= {"named", "end"}


def test_a_run_that_goes_on_measures_nothing_twice(model, paradigm, result, tmp_path):
    counts = []
    for _ in range(2):
        shards = Shards(tmp_path, "", {id(model): fingerprint(model)})
        with using(Setting(shards)):
            again = suites.find(model, Suite("toy", (paradigm,)))
        pd.testing.assert_frame_equal(again.tables["suite_heads"], result.tables["suite_heads"])
        counts.append(dict(shards.counts))
    assert counts[0]["written"] > 5
    assert counts[1]["written"] == 0


def test_the_page_opens_with_sentences_and_stands_alone(model, paradigm, tmp_path):
    silent = Paradigm("silent", (pair("Tim saw the dog", "Tim saw the cat"),) * 2)
    out = report.suite(model, Suite("toy", (paradigm, silent)), tmp_path / "out", name="tiny")
    page = page_of(out)
    assert not outside_addresses(page)
    assert not unlisted(page)
    text = page.text
    example = contrasts(model, paradigm)[0][0].clean.text.split()
    assert -1 < text.index(example[0]) < text.rindex("In short")
    assert "silent: not testable" in text
    assert '"suite_heads"' in (out / "run.json").read_text("utf-8")
    assert {path.stem for path in (out / "figures").iterdir()} == {"suite_map"}


@pytest.mark.parametrize("shape", ["tiny", pytest.param("gpt2", marks=pytest.mark.slow)])
def test_random_weights_pass_nothing_and_name_no_head(shape):
    suite = suites.joined([suites.builtin(name, pairs=20) for name in ("agreement", "reflexives", "determiner")])
    texts = [s.text for paradigm in suite.paradigms for item in paradigm.items for s in item.sentences.values()]
    words = sorted({word.strip(".").lower() for text in texts for word in text.split()})
    plain = worded(*words, *(f"{word}." for word in words))
    stack = plain.config.last
    if shape == "gpt2":
        stack = replace(stack, n_layers=12, d_model=768, n_heads=12, d_head=64, d_mlp=3072, n_ctx=1024)
    torch.manual_seed(0)
    random_model = Transformer(TransformerConfig(decoder=stack), plain.tokenizer)
    if shape == "gpt2":
        for weight in random_model.parameters():
            torch.nn.init.normal_(weight, 0, 0.02) if weight.ndim > 1 else None
    result = suites.find(random_model, suite)
    assert not (result.accuracy["verdict"] == "passed").any()
    assert result.named.empty
    assert "suite_heads" not in result.tables
    assert sentence(result) == f"The model passes none of {len(result.accuracy)} paradigms; no head is named."
    assert len(result.others) == len(result.accuracy)


def test_suites_are_joined_if_their_paradigms_differ(paradigm):
    suite = Suite("a", (paradigm,), Counter(x=1))
    joined = suites.joined([suite, Suite("b", (replace(paradigm, name="b"),), Counter(x=2))])
    assert (joined.name, len(joined.paradigms), joined.left_out) == ("a, b", 2, Counter(x=3))
    with pytest.raises(InputError, match="turns occurs more than once"):
        suites.joined([suite] * 2)


SLIPS = {
    "builtin:nothing": "no suite builtin:nothing; there are agreement",
    "missing.csv": 'no file or directory "missing.csv"',
    "builtin:agreement --limit 0": "Invalid value for '--limit'",
    "builtin:agreement builtin:agreement": "occurs more than once",
    "": "Missing argument",
}


@pytest.mark.parametrize("arguments", SLIPS)
def test_a_slip_is_one_line(capsys, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    assert SLIPS[arguments] in refusal(capsys, "suite", *arguments.split(), "--model", "textbook")
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow
def test_the_command_finds_the_agreement_head_of_the_textbook_model(capsys, tmp_path):
    out = tmp_path / "out"
    options = "--model", "textbook", "--limit", "60", "--out", str(out), "--quiet"
    assert command(capsys, "suite", "builtin:agreement", *options).code == 0
    heads = pd.read_parquet(out / "tables" / "suite_heads.parquet")
    rows = cause.named_heads(heads)
    assert {*rows.groupby("paradigm")["head"].first()} == {0}
    assert (rows.groupby("paradigm")["layer"].first() == 2).all()

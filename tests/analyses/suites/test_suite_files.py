"""Others' suites: what do we read from them, and what is refused in one line?"""

import gzip
import json
from pathlib import Path

import pytest
from refusals import refusal

from analyses import suites
from analyses.suites import suite_files
from analyses.suites.items import Sentence

BLIMP = Path("../shared/data/blimp")


def pair(good: str, bad: str, uid: str = "agreement", **more: object) -> str:
    facts = {"UID": uid, "field": "syntax/semantics", "linguistics_term": "agreement"}
    return json.dumps({"sentence_good": good, "sentence_bad": bad, **facts, **more})


def one_prefix(before: str, good: str, bad: str) -> str:
    keys = {"one_prefix_prefix": before, "one_prefix_word_good": good, "one_prefix_word_bad": bad}
    return pair(f"{before} {good}.", f"{before} {bad}.", one_prefix_method=True, **keys)


def parts(sentence: Sentence) -> dict[str, str]:
    return {name: sentence.text[slice(*span)] for name, span in sentence.spans.items()}


def gym(**changes: object) -> dict[str, object]:
    texts = {"match": ["The keys", "", "are lost", "."], "mismatch": ["The keys", "", "is lost", "."]}
    conditions = []
    for name, parts in texts.items():
        regions = [{"region_number": number, "content": text} for number, text in enumerate(parts, 1)]
        conditions.append({"condition_name": name, "regions": regions})
    formula = {"type": "formula", "formula": "(3;%match%) < (3;%mismatch%)"}
    items = [{"item_number": 7, "conditions": conditions}]
    return {"meta": {"name": "number", "metric": "sum"}, "predictions": [formula], "items": items} | changes


def test_blimp_s_pairs_have_spans_answers_and_poles(tmp_path):
    file = tmp_path / "blimp.jsonl.gz"
    rows = [one_prefix("Tim hurt", "himself", "herself"), one_prefix("Sue hurt", "herself", "himself")]
    rows += [one_prefix("Ann saw", "herself", "himself"), pair("Who ran?", "Ran who?", "wh_vs_that_with_gap")]
    file.write_bytes(gzip.compress("\n".join(rows).encode()))
    first, second = suites.read(file).paradigms
    assert (first.name, first.field, first.phenomenon) == ("agreement", "syntax_semantics", "agreement")
    assert first.sister is None
    good = first.items[0].sentences["good"]
    assert parts(good) == {"critical": "himself", "differing": "himself"}
    assert [item.pole for item in first.items] == ["masculine", "feminine", ""]  # equally many in both directions
    assert second.sister == "wh_vs_that_no_gap"
    assert second.items[0].sentences["bad"].spans == {"differing": (0, 7)}


POLES = {
    ("chairs", "chair"): "with -s",
    ("dress", "dresses"): "without -s",
    ("runs", "run"): "with -s",
    ("aren't", "isn't"): "without -s",
    ("These", "this"): "plural",
    ("oasis", "oases"): "singular",
    ("ever", "often"): "",
    ("was not", "were not"): "",
}


@pytest.mark.parametrize("words", POLES)
def test_answers_have_classes(words):
    assert suite_files._answer_class(*words) == POLES[words]


def test_items_that_share_words_are_one_group(tmp_path):
    nouns = ["dog", "cat", "fox", "hen", "cow", "ant", "bee", "owl"]
    rows = [pair(f"{who} saw these {noun}s", f"{who} saw these {noun}") for noun in nouns for who in ("Tim", "Sue")]
    file = tmp_path / "p.jsonl"
    file.write_text("\n".join(rows))
    groups = [item.group for item in suites.read(file).paradigms[0].items]
    assert groups[:3] == ["dog / dogs", "dog / dogs", "cat / cats"]
    file.write_text("\n".join(rows[:14]))  # seven groups are too few, and so is one word before: no groups
    assert [item.group for item in suites.read(file).paradigms[0].items] == [str(number) for number in range(1, 15)]


def test_syntaxgym_s_regions_are_spans(tmp_path):
    file = tmp_path / "gym.json"
    file.write_text(json.dumps(gym(), indent=1))
    (paradigm,) = suites.read(file).paradigms
    (item,) = paradigm.items
    sentence = item.sentences["match"]
    assert (paradigm.name, item.key, sentence.text) == ("number", "7", "The keys are lost .")
    regions = {"1": "The keys", "2": "", "3": "are lost", "4": "."}
    assert parts(sentence) == {**regions, "critical": "are lost"}  # predictions read no other region
    assert [each.formula for each in paradigm.predictions] == ["(3;%match%) < (3;%mismatch%)"]


def test_a_table_names_parts_in_braces(tmp_path):
    file = tmp_path / "mine.csv"
    good, bad = "The {named:keys} to it {critical:are} lost", "The {named:keys} to it {critical:is} lost"
    file.write_text(f"good,bad,group,pole,sister\n{good},{bad},key,plural,theirs\nA dog runs,A dog run,,,\n")
    (paradigm,) = suites.read(file).paradigms
    first, second = paradigm.items
    sentence = first.sentences["good"]
    assert (paradigm.name, paradigm.sister, first.group, first.pole) == ("mine", "theirs", "key", "plural")
    assert sentence.text == "The keys to it are lost"
    assert parts(sentence) == {"named": "keys", "critical": "are", "differing": "are"}
    assert (second.group, second.sentences["bad"].text) == ("2", "A dog run")


def test_a_folder_s_suites_are_read_together(tmp_path):
    (tmp_path / "b.jsonl").write_text(pair("a b", "b a"))
    (tmp_path / "a.csv").write_text("good,bad\na b,b a\n")
    (tmp_path / "c.json").write_text(json.dumps(gym()))
    (tmp_path / "summary.jsonl").write_text('{"UID": "agreement"}')
    (tmp_path / "read.me").write_text("no suite")
    suite = suites.read(tmp_path)
    assert [each.name for each in suite.paradigms] == ["a", "agreement", "number"]
    assert suite.left_out.total() == 1
    assert "agreement occurs more than once" in refusal(suites.read, tmp_path, tmp_path / "b.jsonl")


def condition(**regions: object) -> list[dict[str, object]]:
    return [{"conditions": [{"condition_name": "match", "regions": [regions]}]}]


REFUSED = {
    "line 1: expected pairs of sentences": '{"sentence_good": ',
    'a text as "sentence_bad"': '{"sentence_good": "a"}',
    "expected sentences of 1-2,000 characters, got 2,001": pair("a " * 1_000 + "a", "b"),
    "got no such object": "{" + "[" * 100_000,
    'expected the metric "sum"': json.dumps(gym(meta={"metric": "mean"})),
    '"meta" must be an object': json.dumps(gym(meta=3)),
    "expected a formula": json.dumps(gym(predictions=[{"formula": "(1;%a%)"}])),
    "got 1 and 0": json.dumps(gym(predictions=[])),
    '"predictions" and "items"; "content" must be a text, got None': json.dumps(gym(items=condition(content=None))),
    "expected (3;%match%), which predictions read": json.dumps(gym(items=condition(content="a"))),
    "lacks the columns good, bad": "clean,corrupt\na,b\n",
    "row 1 lacks a sentence": "good,bad\na,\n",
    "row 1 marks critical in only one": "good,bad\n{critical:a} b,a c\n",
    "row 1 marks critcal: expected named or critical": "good,bad\n{critcal:a} b,{critcal:a} c\n",
    "marks critical twice": "good,bad\n{critical:a} {critical:b},c\n",
    "is empty": "",
    "expected UTF-8": b"good,bad\n\xff,a\n",
}


@pytest.mark.parametrize("says", REFUSED)
def test_a_file_at_fault_is_one_line(tmp_path, says):
    content = REFUSED[says]
    (tmp_path / "p").write_bytes(content if isinstance(content, bytes) else content.encode())
    message = refusal(suites.read, tmp_path / "p")
    assert says in message
    assert message.count(str(tmp_path / "p")) == 1


def test_more_than_a_file_may_hold_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(suite_files, "MOST_ITEMS", 2)
    (tmp_path / "p.csv").write_text("good,bad\n" + "a,b\n" * 3)
    assert "more than 2 pairs" in refusal(suites.read, tmp_path / "p.csv")
    assert "no file or directory" in refusal(suites.read, tmp_path / "absent")


@pytest.mark.skipif(not BLIMP.is_dir(), reason="needs ../shared/data/blimp")
def test_every_paradigm_of_blimp_is_read():
    suite = suites.read(BLIMP)
    assert (len(suite.paradigms), {len(each.items) for each in suite.paradigms}) == (51, {1_000})
    poles = {each.name: {item.pole for item in each.items} - {""} for each in suite.paradigms}
    assert poles["determiner_noun_agreement_2"] == {"singular", "plural"}
    assert sum(each.sister is not None for each in suite.paradigms) == 9

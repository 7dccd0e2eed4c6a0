"""What docs/own_measures.md promises: its code runs as written, also in the report and from the command line."""

import json
import re
from dataclasses import replace
from pathlib import Path

import jaxtyping
import pandas as pd
import pytest
import torch
from commands import command
from page_code import SENTENCE, blocks, write_treebank
from pages import page_of
from worded import worded

from analyses.corpora import read
from analyses.headlines.facts import facts
from analyses.headlines.sentences import sentences
from analyses.labels import label
from analyses.measures.definitions import Measure, Rival
from analyses.own_measures import OF_WORDS, measure_pairs, own_behaviour, read_file
from analyses.page.sections import plain
from analyses.report.behaviour_sections import attention
from analyses.scoring.collectors import measured
from interp import AnnotatedText, InputError, run
from interp.patching import knock_out_by_forward
from models.planted import Planted, first_token, noise, offset, uniform

WORDS, IN_REPORT, HIDDEN, PLACES = blocks("docs/own_measures.md", "python")


def before_the_verb(text: AnnotatedText) -> list[tuple[int, int]]:
    """Pairs from every verb to the word before it."""
    return [(index, index - 1) for index, tag in enumerate(text.tags or ()) if tag == "VERB"]


@pytest.fixture
def treebank(tmp_path) -> Path:
    write_treebank(tmp_path / "en_ewt-ud-dev.conllu")
    return tmp_path / "en_ewt-ud-dev.conllu"


def test_the_page_is_short_and_runs(treebank, tmp_path, monkeypatch, capsys):
    assert len(WORDS.strip().splitlines()) <= 30
    monkeypatch.chdir(tmp_path)
    model = Planted([word for word, *_ in SENTENCE], [[offset(-1), uniform]], n_ctx=24, start="<s>").build()
    monkeypatch.setattr("models.load", lambda name: model)
    names: dict[str, object] = {}
    exec(WORDS, names)
    table = names["table"]
    assert isinstance(table, pd.DataFrame)
    row = table[(table["head"] == 0) & (table["sink"] == "kept")].iloc[0]
    assert (row["value"], row["n"], row["baseline_name"]) == (1.0, 12, "offset -1")
    assert "verb->negation" in set(table["measure"])
    jaxtyping.config.update("jaxtyping_disable", True)  # as for users, who may pass lists
    exec(HIDDEN, names)
    claim, lost = names["claim"], names["lost"]
    assert model.tokenizer.labels(run(model, names["text"]).tokens.ids[0, [4, 3]].tolist()) == ["see", "not"]
    torch.testing.assert_close(lost, knock_out_by_forward(model, names["text"], [claim]))
    exec(IN_REPORT.replace("mine])", "mine], labels=False, probes=False, experiments=False)"), names)
    heads = pd.read_csv(tmp_path / "negation/tables/heads.csv")
    assert {"verb->negation", "previous-token"} <= set(heads["measure"])
    text = " ".join(page_of(tmp_path / "negation").text.split())
    assert "from a verb to its negation" in text
    assert "verb→negation" in text


def test_a_measure_of_places_finds_the_head_that_looks_there():
    """The page's claims instead of pairs: from a comma to the previous one, two words back."""
    names: dict[str, object] = {}
    exec(PLACES.replace("Measure(", "commas_before = Measure("), names | {"Measure": Measure}, names)
    commas = names["commas_before"]
    assert isinstance(commas, Measure)
    texts = [AnnotatedText.plain("a , " * 6, f"d{number}") for number in range(12)]
    model = Planted(["a", ","], [[offset(-2), offset(-1)]], n_ctx=24, start="<s>").build()
    table = measured(own_behaviour([commas]).collector, model, texts).heads.query("sink == 'kept'")
    assert table.set_index("head")["value"].round(6).to_dict() == {0: 1.0, 1: 0.0}


def test_rivals_intervals_and_chance():
    """One head always chooses the word before; a uniform one chooses it by chance."""
    model = Planted([*"abcde"], [[offset(-1), uniform, first_token]], n_ctx=24, start="<s>").build()
    plain_texts = [AnnotatedText.plain("a b c d e", f"d{number}") for number in range(30)]
    texts = [replace(text, tags=("X", "X", "X", "VERB", "X")) for text in plain_texts]
    table = measure_pairs(model, texts, before_the_verb, name="mine").query("sink == 'kept'").set_index("head")
    assert table["value"].round(6).tolist()[:2] == [1.0, round(1 / 3, 6)]
    assert (table["baseline_name"] == "offset -1").all()
    assert (table["null"].notna() & (table["n"] == 30)).all()
    first = Rival("the first word", lambda items: 0 * items.query)
    mine = own_behaviour([Measure("mine", pairs=before_the_verb, rivals=(OF_WORDS[0], first))])
    result = measured(mine.collector, model, texts)
    values = result.baselines.query("sink == 'kept'").set_index("baseline_name")["value"].round(6)
    assert values.to_dict() == {"uniform": round(1 / 3, 6), "the first word": 0.0}


def test_a_users_head_is_labelled(tmp_path):
    words = [f"w{number}" for number in range(8)]
    model = Planted(words, [[offset(-1), uniform], [noise(2.0, 1), noise(2.0, 2)]], n_ctx=24, start="<s>").build()
    plain_texts = [AnnotatedText.plain(" ".join(words), f"d{number}") for number in range(40)]
    tags = [tuple("VERB" if (number + i) % 5 == 0 else "X" for i in range(8)) for number in range(40)]
    texts = [replace(text, tags=row) for text, row in zip(plain_texts, tags, strict=True)]

    def before(text):
        return [pair for pair in before_the_verb(text) if pair[0]]

    def labelled(**more):
        mine = own_behaviour([Measure("mine", pairs=before, rivals=OF_WORDS[:1], **more)])
        result = label(model, {mine.name: texts}, behaviours=[mine], documents=6, words=12)
        assert result.evidence["effect"].notna().any()
        heads = measured(mine.collector, model, texts)
        tables = {"heads": heads.heads, "labels": result.labels, "evidence": result.evidence}
        (first,) = sentences(tables, facts(tables, {mine.name: mine}), {mine.name: mine})
        bars = dict(zip(result.evidence["measure"], result.evidence["bar"], strict=True))
        page = " ".join(map(plain, attention(mine, heads, bars)))
        labelled = result.labels.loc[result.labels["label"] == "mine", ["layer", "head"]]
        return labelled.to_numpy().tolist(), first.text, page

    heads, first, page = labelled(of_words=False)
    assert heads == [[0, 0]]
    assert first.startswith("L0.H0 shows “mine” in 100% of cases")
    assert "untrained" not in first.lower()
    assert page.endswith("ntrained heads gain less than 35%.")  # shuffling keeps positions
    heads, first, page = labelled()  # the head does the same with words in another order
    assert heads == []
    assert first.startswith("We found no head that shows “mine”: at best L0.H0 gets 100%")
    bar = re.compile(r"ntrained heads (stay below|gain less than) [5-9][0-9]%\.?$")
    assert all(map(bar.search, (first, page)))


@pytest.mark.slow
@pytest.mark.smoke
def test_a_file_of_measures_on_the_command_line(treebank, tmp_path, monkeypatch, capsys):
    model, file = worded("did", "not", "see"), tmp_path / "own.py"
    file.write_text(
        "from analyses.measures import Measure\n"
        "def before(text):\n    return [(at, at - 1) for at in range(1, len(text.words))]\n"
        "first = Measure('mine', 'from a word to the one before', pairs=before)\n"
    )
    monkeypatch.setattr("analyses.cli.command_frame.opened", lambda *_: model)
    out = tmp_path / "out"
    corpora = f"--corpus {treebank} --corpus tales:4".split()  # for annotation that the treebank lacks
    options = [*corpora, *["--no-labels", "--no-probes", "--no-experiments", "--pairs", "2", "--out"], str(out)]
    assert not command(capsys, "report", "--measures", str(file), *options).code
    assert "mine" in set(pd.read_csv(out / "tables/heads.csv")["measure"])
    left_out = json.loads((out / "run.json").read_text())["causal_test_left_out"]
    assert "there are no minimal pairs for it" in left_out["own measures"]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("1 / 0", "own.py: ZeroDivisionError: division by zero"),
        ("def broken(", "own.py: SyntaxError"),
        ("answer = 42", "expected a Measure or a Behaviour at the top level"),
        ("from analyses.measures import Measure\nMEASURES = [Measure('m')]", "expected `pairs` or `claims`"),
        ("from analyses.measures import Measure\nMeasure('m', needs=['tag'])", "no needs 'tag': expected tags or"),
        ("raise SystemExit", "SystemExit"),
    ],
)
def test_errors_in_a_file_are_one_line(tmp_path, code, message):
    path = tmp_path / "own.py"
    path.write_text(code)
    with pytest.raises(InputError, match=re.escape(message)) as result:
        read_file(path)
    assert "\n" not in str(result.value)
    with pytest.raises(InputError, match="no file"):
        read_file(tmp_path / "nowhere.py")


def test_pairs_outside_a_text_are_refused_by_name(treebank):
    with pytest.raises(InputError, match=r"measure mine: expected pairs of words 0-4 of d0, got \(0, 9\)"):
        measure_pairs(worded(), read(treebank), lambda text: [(0, 9)], name="mine")
    with pytest.raises(InputError, match=r"measure mine: AttributeError: .*haeds.* \(in d0\); expected a function"):
        measure_pairs(worded(), read(treebank), lambda text: text.haeds, name="mine")
    with pytest.raises(InputError, match=r"measure mine: TypeError: cannot unpack .* pairs of word numbers"):
        measure_pairs(worded(), read(treebank), lambda text: [1], name="mine")
    with pytest.raises(InputError, match="no item of mine"):
        measure_pairs(worded(), read(treebank), lambda text: [], name="mine")


FAULTS = {
    "ZeroDivisionError: division by zero; expected a function of rows": {"mask": lambda rows: 1 / 0},
    "torch.bool tensor (1, 6, 6), prompt query key; got torch.float32": {"mask": lambda rows: rows.visible.float()},
    "prompt query key; got torch.bool (6, 6)": {"mask": lambda rows: rows.visible[0]},
    "prompt query key; got list": {"mask": lambda rows: [True]},
    "KeyError: 9; expected a function of a window": {"claims": lambda window: {9: {}[9]}},
    "TypeError: 'int' object is not iterable": {"claims": lambda window: {1: 0}},
    "AttributeError: 'set' object has no attribute 'items'": {"claims": lambda window: {1}},
    "keys as whole numbers, {row: {key, ...}}; got 'a'": {"claims": lambda window: {1: "a"}},
    "expected rows 0-5 of d0, got 6": {"claims": lambda window: {6: {1}}},
}


@pytest.mark.parametrize("says", FAULTS)
def test_a_fault_in_a_users_function_names_the_measure_and_what_it_returns(says):
    mine = own_behaviour([Measure("mine", **FAULTS[says])])
    model = Planted([*"abcde"], [[uniform]], n_ctx=24, start="<s>").build()
    with pytest.raises(InputError, match=f"measure mine: .*{re.escape(says)}"):
        measured(mine.collector, model, [AnnotatedText.plain("a b c d e", "d0")])

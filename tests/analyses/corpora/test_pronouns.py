"""GAP, Winogender and WinoBias: one pronoun, two possible antecedents, in text spelled exactly like the file."""

import gzip
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from analyses.corpora import read
from analyses.corpora.pronoun_choices import Mark, annotated
from analyses.scoring.antecedents import antecedent_items
from tests.analyses.corpora.made_corpora import CASES, GAP, SENTENCES, gap_row, mentions, texts

SharedFile = Callable[..., Path]
PAIR = (
    "1 [The ice seller] saw the pilot after [she] closed [her] shop.",
    "2 The ice seller saw [ the pilot] after [his] flight.",
)


def spelled_once(*words: tuple[str, str]) -> list[tuple[str, str, str]]:
    """Mentions of one word, each its own head."""
    return [(form, form, chain) for form, chain in words]


@pytest.mark.parametrize(("text", "words"), CASES["words"])
def test_words_spell_the_text(text: str, words: str) -> None:
    result = annotated(text, [], "test")
    assert "|".join(result.words) == words
    assert result.text == text.rstrip(" ")


def test_words_are_cut_where_a_mention_begins_or_ends() -> None:
    text = annotated("the Smithfields saw", [Mark(4, 9, "a"), Mark(9, 15, "b")], "test")
    assert text.words == ("the", "Smith", "fields", "saw")
    assert mentions(text) == spelled_once(("Smith", "a"), ("fields", "b"))
    assert text.text == "the Smithfields saw"


@pytest.mark.parametrize(("name", "head"), CASES["names"])
def test_heads_of_names(name: str, head: str) -> None:
    text = annotated(f"so {name} saw", [Mark(3, 3 + len(name), "a")], "test")
    assert mentions(text) == [(name, head, "a")]


def test_gap_chains_are_what_the_columns_say(tmp_path: Path) -> None:
    rows = (
        GAP,
        gap_row(),
        gap_row(a=("Ann Lee", 0, "FALSE"), url=""),
        gap_row("She met Sue and Ann.", ("She", 0), ("Sue", 8, "FALSE"), ("Ann", 16, "TRUE")),
    )
    path = tmp_path / "gap-test.tsv.gz"
    path.write_bytes(gzip.compress("\n".join(rows).encode()))
    right, neither, after = corpus = list(read(tmp_path))
    assert read(path).kind == read(f"gap:{path}").kind == "gap"
    rest = spelled_once(("Sue", "B"), ("she", "pronoun"))
    assert mentions(right) == [("Ann Lee", "Lee", "pronoun"), *rest]
    assert mentions(neither) == [("Ann Lee", "Lee", "A"), *rest]
    assert mentions(after) == spelled_once(("She", "pronoun"), ("Sue", "A"), ("Ann", "pronoun"))
    assert [text.document for text in corpus] == ["Ann_Lee", "test-1", "Ann_Lee"]
    assert [len(antecedent_items(text)) for text in corpus] == [1, 0, 0]


def test_winogender_chains_are_the_answer(tmp_path: Path) -> None:
    rows = (
        SENTENCES,
        "florist.buyer.1.female.txt\tThe florist thanked the buyer because she paid in full.",
        "florist.someone.0.neutral.txt\tSomeone called a florist about their roses.",
    )
    path = tmp_path / "all_sentences.tsv"
    path.write_text("\n".join(rows))
    (tmp_path / "templates.tsv").write_text("left alone")
    first, second = read(tmp_path)
    nouns = [("The florist", "florist", "occupation"), ("the buyer", "buyer", "participant")]
    assert mentions(first) == [*nouns, ("she", "she", "participant")]
    someone, their = spelled_once(("Someone", "participant"), ("their", "occupation"))
    assert mentions(second) == [someone, ("a florist", "florist", "occupation"), their]
    assert {first.document, second.document} == {"florist"}
    assert read(path).kind == read(f"winogender:{path}").kind == "winogender"


def test_winobias_takes_the_other_occupation_from_the_pair(tmp_path: Path) -> None:
    for side in ("pro", "anti"):
        (tmp_path / f"{side}_stereotyped_type1.txt.dev").write_text("\n".join(PAIR) + "\n\n" + "\n".join(PAIR))
    first, second, *rest = corpus = list(read(tmp_path))
    pronouns = spelled_once(("she", "bracketed"), ("her", "bracketed"))
    assert mentions(first) == [("The ice seller", "seller", "bracketed"), ("the pilot", "pilot", "other"), *pronouns]
    assert mentions(second)[:2] == [("The ice seller", "seller", "other"), ("the pilot", "pilot", "bracketed")]
    assert mentions(second)[2:] == [("his", "his", "bracketed")]
    assert first.text == "The ice seller saw the pilot after she closed her shop."
    assert (len(rest), Counter(text.document for text in corpus)) == (6, {"type1.txt.dev:1": 4, "type1.txt.dev:2": 4})
    assert read(f"winobias:{tmp_path}").kind == "winobias"


def test_winobias_numbers_may_be_missing_and_articles_may_stand_outside() -> None:
    sentences = "A [baker] met the cook and fed [him].", "The baker met [the cook] and paid [her]."
    first, second = texts("winobias", *sentences)
    baker, him = spelled_once(("baker", "bracketed"), ("him", "bracketed"))
    assert mentions(first) == [baker, ("the cook", "cook", "other"), him]
    assert mentions(second)[0] == ("The baker", "baker", "other")


@pytest.mark.parametrize(
    ("file", "texts", "documents", "items", "mentions"),
    [
        ("gap/gap-development.tsv", 2_000, 1_834, 1_378, 6_000),  # documents are pages
        ("winogender/all_sentences.tsv", 720, 60, 480, 2_160),  # he and she; "they" does not count
        ("winobias/anti_stereotyped_type1.txt.dev", 396, 198, 405, 1_197),
        ("winobias", 1_584, 396, 1_614, 4_782),  # 30 sentences have a second pronoun
    ],
)
def test_real_files_are_read_whole_and_spelled(shared_file, file, texts, documents, items, mentions):
    path = shared_file("data", *file.split("/"))
    corpus = list(read(path))
    assert (len(corpus), len({text.document for text in corpus})) == (texts, documents)
    assert sum(len(antecedent_items(text)) for text in corpus) == items
    assert sum(len(text.mentions or ()) for text in corpus) == mentions
    if path.is_dir():
        return
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = (
        [line.split("\t")[1] for line in lines[1:]]
        if path.suffix == ".tsv"
        else [line.partition(" ")[2].strip().replace("[ ", "").replace("[", "").replace("]", "") for line in lines]
    )
    assert [text.text for text in corpus] == rows

"""Readers give back what the files say, word for word, and say clearly where a file is wrong."""

import gzip
import hashlib
from itertools import islice
from pathlib import Path

import pytest

from analyses.corpora import litbank, read
from analyses.corpora.mentions import GENDERED, gender, head_word, is_pronoun
from analyses.rivals.antecedents import RIVALS, AntecedentItem, antecedent_items
from interp.annotation import ROOT, AnnotatedText, Mention
from interp.errors import InputError
from models.stories import GENERATORS

DATA = Path(__file__).resolve().parents[4] / "shared" / "data"
EWT_DEV = DATA / "ud-ewt" / "en_ewt-ud-dev.conllu"
EWT_TRAIN = DATA / "ud-ewt" / "en_ewt-ud-train.conllu.gz"
LITBANK = DATA / "litbank" / "coref"
RULES = {rival.name: rival.looks for rival in RIVALS}


def needs(path: Path) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not path.exists(), reason=f"real data is not here: {path}")


def row(number: str, form: str, tag: str = "_", head: str = "_", relation: str = "_", *, misc: str = "_") -> str:
    return "\t".join((number, form, form.lower(), tag, "_", "_", head, relation, "_", misc))


NEGATED = "\n".join(
    (
        "# newdoc id = book-one",
        "# sent_id = book-one-0001",
        "# text = He didn't run.",
        row("1", "He", "PRON", "4", "nsubj"),
        row("2-3", "didn't"),
        row("2", "did", "AUX", "4", "aux"),
        row("3", "n't", "PART", "4", "advmod"),
        row("4", "run", "VERB", "0", "root", misc="SpaceAfter=No"),
        row("4.1", "run", "VERB"),
        row("5", ".", "PUNCT", "4", "punct"),
        "\n",
    )
)
FUSED = "\n".join(
    (
        "# sent_id = fr-7",
        "# text = L'ami du roi dort.",
        row("1", "L'", "DET", "2", "det", misc="SpaceAfter=No"),
        row("2", "ami", "NOUN", "6", "nsubj"),
        row("3-4", "du"),
        row("3", "de", "ADP", "5", "case"),
        row("4", "le", "DET", "5", "det"),
        row("5", "roi", "NOUN", "2", "nmod:poss"),
        row("6", "dort", "VERB", "0", "root", misc="SpaceAfter=No"),
        row("7", ".", "PUNCT", "6", "punct"),
        "\n",
    )
)


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def only(path: Path) -> AnnotatedText:
    (text,) = read(path)
    return text


def test_words_of_a_multiword_token_stand_without_a_space(tmp_path: Path) -> None:
    text = only(write(tmp_path / "a.conllu", NEGATED))
    assert text.words == ("He", "did", "n't", "run", ".")
    assert text.text == "He didn't run."
    assert text.tags == ("PRON", "AUX", "PART", "VERB", "PUNCT")
    assert text.heads == (3, 3, 3, ROOT, 3)
    assert text.relations == ("nsubj", "aux", "advmod", "root", "punct")
    assert (text.document, text.mentions) == ("book-one", None)


def test_a_multiword_token_that_its_words_do_not_spell_is_one_word(tmp_path: Path) -> None:
    text = only(write(tmp_path / "a.conllu", FUSED))
    assert text.words == ("L'", "ami", "du", "roi", "dort", ".")
    assert text.text == "L'ami du roi dort."
    assert text.tags == ("DET", "NOUN", "ADP", "NOUN", "VERB", "PUNCT")
    assert text.heads == (1, 4, 3, 1, ROOT, 4)
    assert text.relations == ("det", "nsubj", "case", "nmod:poss", "root", "punct")


def test_a_fused_word_is_annotated_as_its_topmost_part(tmp_path: Path) -> None:
    rows = (
        row("1-2", "dilo", misc="SpaceAfter=No"),
        row("1", "lo", "PRON", "2", "obj"),
        row("2", "di", "VERB", "0", "root"),
        row("3", "!", "PUNCT", "2", "punct"),
    )
    text = only(write(tmp_path / "a.conllu", "\n".join(rows)))
    assert (text.text, text.tags, text.heads) == ("dilo!", ("VERB", "PUNCT"), (ROOT, 0))


def test_documents_are_told_by_newdoc_else_by_sent_id_else_by_number(tmp_path: Path) -> None:
    bare = row("1", "Yes", "INTJ", "0", "root") + "\n\n"
    path = write(tmp_path / "a.conllu", f"{bare}# sent_id = essay-b-3\n{bare}{NEGATED}{bare}# newdoc\n{bare}")
    assert [text.document for text in read(path)] == ["a.conllu:1", "essay-b", "book-one", "book-one", "a.conllu:5"]


def test_absent_annotation_is_none_not_a_blank(tmp_path: Path) -> None:
    corpus = read(write(tmp_path / "a.conllu", row("1", "Yes") + "\n\n"))
    (text,) = corpus
    assert (text.tags, text.heads, text.relations) == (None, None, None)
    assert corpus.annotates == frozenset()


def test_gzip_is_read_alike_and_again(tmp_path: Path) -> None:
    plain = write(tmp_path / "a.conllu", NEGATED + FUSED)
    zipped = tmp_path / "b.conllu.gz"
    zipped.write_bytes(gzip.compress(plain.read_bytes()))
    corpus = read(zipped)
    assert list(corpus) == list(corpus) == list(read(plain))
    assert (corpus.kind, corpus.annotates) == ("conllu", {"tags", "relations"})
    assert read(plain).digest == hashlib.sha256(plain.read_bytes()).hexdigest()


def test_a_directory_is_its_files_in_order(tmp_path: Path) -> None:
    write(tmp_path / "b.conllu", FUSED)
    write(tmp_path / "a.conllu", NEGATED)
    write(tmp_path / "README.md", "not a corpus")
    assert [text.document for text in read(tmp_path)] == ["book-one", "fr"]
    assert [text.document for text in read(f"conllu:{tmp_path}", limit=1)] == ["book-one"]
    write(tmp_path / "c.conll", NOVEL)
    with pytest.raises(InputError, match=r"several formats: choose with conllu:\S+ or litbank:"):
        read(tmp_path)
    assert read(f"litbank:{tmp_path}").kind == "litbank"


def novel(*sentences: str, name: str = "tale") -> str:
    """LitBank columns of sentences in which a word is written with its chains after a slash: "he/(1)"."""
    blocks = []
    for sentence in sentences:
        pairs = [each.partition("/") for each in sentence.split()]
        rows = ["\t".join((name, "0", str(i), form, *"_" * 8, chains)) for i, (form, _, chains) in enumerate(pairs)]
        blocks.append("\n".join(rows))
    return f"#begin document ({name}); part 0\n" + "\n\n".join(blocks) + "\n\n#end document\n"


NOVEL = novel(
    "The/(1 King/(2) 's/ daughter/1) ,/ who/ lived/ in/ the/(3 town/ of/ Ys/(4)|3) ,/ smiled/ ./",
    "“/ It/ is/ n't/ hers/(1) ,/ ”/ he/(2) said/ ./",
)


def test_litbank_mentions_nest_and_stand_alone(tmp_path: Path) -> None:
    corpus = read(write(tmp_path / "tale_brat.conll", NOVEL))
    (text,) = corpus
    assert text.mentions == (
        Mention(0, 4, 3, "1"),
        Mention(1, 2, 1, "2"),
        Mention(8, 12, 9, "3"),  # the head of "the town of Ys" is town
        Mention(11, 12, 11, "4"),
        Mention(19, 20, 19, "1"),
        Mention(22, 23, 22, "2"),
    )
    assert text.sentence_starts == (0, 15)
    assert text.text == "The King's daughter, who lived in the town of Ys, smiled. “It isn't hers,” he said."
    assert (text.tags, text.heads, text.document) == (None, None, "tale")
    assert (corpus.kind, corpus.annotates) == ("litbank", {"chains"})


def test_litbank_files_hold_one_document_or_more(tmp_path: Path) -> None:
    path = write(
        tmp_path / "two.conll", novel("Hush/ !/", name="a") + novel(name="nothing") + novel("He/(0)", name="b")
    )
    assert [text.document for text in read(path)] == ["a", "b"]


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        ('" I do , " he said -- " now " .', '"I do," he said--"now".'),
        ("the boys ' hats ( two ) ca n’t", "the boys' hats (two) can’t"),
        ("I 'll ; she 'd ? ' No ' !", "I'll; she'd? 'No'!"),
    ],
)
def test_litbank_text_is_spaced_like_print(words: str, printed: str) -> None:
    forms = words.split()
    spaces = litbank.spacing(forms)
    assert "".join(form + " " * space for form, space in zip(forms, spaces, strict=True)).rstrip() == printed


@pytest.mark.parametrize(
    ("mention", "head"),
    [
        ("he", "he"),
        ("the old man of the sea", "man"),
        ("Mrs. Joe Gargery , who married", "Gargery"),
        ("the pool that foamed", "pool"),
        ("that man in black", "man"),
        ("those who know", "those"),
        ("in", "in"),
    ],
)
def test_head_word(mention: str, head: str) -> None:
    words = ["before", *mention.split(), "after"]
    assert words[head_word(words, 1, len(words) - 1)] == head


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("Herself", "feminine"),
        ("Mr. Bennet", "masculine"),
        ("Mr. Bennet 's wife", "feminine"),
        ("Mr. Bennet 's house", None),
        ("the two old men", "plural"),
        ("it", "neuter"),
        ("Lily", None),
    ],
)
def test_gender_is_read_off_the_words(words: str, expected: str | None) -> None:
    forms = tuple(words.split())
    text = AnnotatedText(forms, (True,) * len(forms), "test")
    assert gender(text, Mention(0, len(forms), len(forms) - 1, "0")) == expected


def test_pronouns_are_not_names() -> None:
    assert all(map(is_pronoun, ("Who", "that", "I", *GENDERED)))
    assert not any(map(is_pronoun, ("Tim", "boy", "")))


@pytest.mark.parametrize("kind", GENERATORS)
def test_what_is_generated_is_a_corpus(kind: str) -> None:
    corpus = read(f"{kind}:5:3")
    assert list(corpus) == list(corpus) == list(GENERATORS[kind](5, 3))
    assert (corpus.name, corpus.kind, corpus.title) == (f"{kind}:5:3", kind, f"generated {kind} ({kind}:5:3)")
    assert corpus.annotates == {"tags", "relations", "chains"}
    assert read(kind).name == f"{kind}:300:1"
    assert list(read(f"{kind}:5:3", limit=2)) == list(corpus)[:2]
    assert read(f"{kind}:5:4").digest != corpus.digest == read(f"{kind}:5:3").digest


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nowhere.conllu", 'no file or directory "nowhere.conllu"'),
        ("conllu:nowhere", 'no file or directory "nowhere"'),
        ("gap:nowhere", 'no file or directory "nowhere": name an existing one after gap:'),
        ("brown:nowhere", 'no kind of corpus "brown"; kinds are conllu:PATH, gum:PATH, litbank:PATH, gap:PATH'),
        ("stories:many", "expected stories, stories:COUNT or stories:COUNT:SEED"),
        ("stories:0", "expected stories"),
        ("tales:many", "expected tales, tales:COUNT or tales:COUNT:SEED"),
        ("stories:1:2:3", "expected stories"),
    ],
)
def test_a_wrong_name_is_one_clear_line(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read(spec)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("# newdoc id = a\n\n", "is empty"),
        ("#begin document (a); part 0\n#end document\n", "is empty: expected LitBank"),
        (
            "A story.\n",
            'begins "A story.": CoNLL-U, .* two columns .* are read, and conllu:PATH or gum:PATH .* forces a format',
        ),
        (NEGATED.replace("\tVERB", " VERB", 1), "line 8: expected 10 columns between tabs, got 9"),
        (
            NEGATED.replace("\t0\troot", "\tx\troot"),
            'line 8: expected the number of the head, or _, in column 7, got "x"',
        ),
        (NEGATED.replace("\t0\troot", "\t9\troot"), "line 10: .*head 9 but no such word"),
        (NOVEL.replace("(4)|3)", "(4)"), "tale ends before the mentions of these chains do: 3"),
        (NOVEL.replace("(4)|3)", "4)|3)"), 'line 13: "4\\)" closes a mention of chain 4 that no'),
        (NOVEL.replace("(4)|3)", "four"), 'line 13: expected chains like .* got "four"'),
        (NOVEL.replace("King\t_\t_", "King"), "line 3: expected 12 columns or more"),
    ],
)
def test_a_wrong_file_is_one_clear_line(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read(write(tmp_path / "a.txt", content))
    assert "\n" not in str(caught.value)


def test_a_later_mistake_is_reported_when_reached(tmp_path: Path) -> None:
    corpus = read(write(tmp_path / "a.conllu", NEGATED + "what is this\n"))
    texts = iter(corpus)
    assert next(texts).document == "book-one"
    with pytest.raises(InputError, match=r"a\.conllu, line 12: expected 10 columns"):
        next(texts)


def test_bytes_that_are_no_text_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "a.conllu"
    path.write_bytes(b"\x1f\x8b\x00\x00")
    with pytest.raises(InputError, match="expected UTF-8 text, plain or gzipped"):
        read(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="expected UTF-8 text, plain or gzipped"):
        read(path)


def test_a_directory_without_a_corpus_says_what_it_looked_for(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no corpus: expected \*\.conllu, \*\.conll, gap-"):
        read(tmp_path)


# Which mention a pronoun refers to.


def items_of(text: str, pronouns: list[str] | None = None) -> list[AntecedentItem]:
    document = next(litbank.parse(novel(text).splitlines(), "test"))
    return antecedent_items(document, pronouns)


def test_items_hold_the_mentions_before_the_pronoun() -> None:
    (item,) = items_of("Mrs./(0 Bell/0) saw/ Mr./(1 Bell/1) and/ he/(1) saw/ Lyme/(2)")
    assert (item.pronoun, item.form, item.candidates, item.correct) == (6, "he", (1, 4), (False, True))
    assert (item.genders, item.forms, item.named) == (("feminine", "masculine"), ("bell", "bell"), True)


def test_a_pronoun_without_a_right_or_a_wrong_candidate_is_no_item() -> None:
    assert items_of("he/(0) saw/ him/(0)") == []  # nothing wrong before it
    assert items_of("Tim/(0) saw/ him/(1)") == []  # nothing right
    assert items_of("Tim/(0) saw/ Lyme/(1) and/ it/(1)") == []  # not asked about
    assert len(items_of("Tim/(0) saw/ Lyme/(1) and/ it/(1)", ["it"])) == 1


def test_mentions_around_the_pronoun_or_with_one_head_are_not_counted_twice() -> None:
    (item,) = items_of("Tim/(0)|(3 and/ Ann/(1)|3) saw/ a/(2 man/ with/ his/(0) hat/2)")
    assert item.candidates == (0, 2)  # the man is not over yet; Tim, and Tim and Ann, have one head
    assert item.correct == (True, False)


def test_baselines_choose_as_they_say() -> None:
    item = items_of("Ann/(0) told/ her/(1) mother/(2) that/ Tim/(3) lost/ the/(4 hat/4) of/ her/(0)")[-1]
    assert item.forms == ("ann", "her", "mother", "tim", "hat")
    chosen = {name: baseline(item) for name, baseline in RULES.items()}
    assert chosen["nearest"] == (0, 0, 0, 0, 1)
    assert chosen["first"] == (1, 0, 0, 0, 0)
    assert chosen["random"] == (0.2,) * 5
    assert chosen["same gender"] == (0, 0, 1, 0, 0)
    assert chosen["same form"] == (0, 1, 0, 0, 0)


def test_baselines_fall_back() -> None:
    item = items_of("Tim/(0) saw/ Lyme/(1) and/ the/(2 women/2) and/ he/(0)")[0]
    assert RULES["same gender"](item) == (0, 1, 0)  # none known as masculine: the last that could be
    assert RULES["same form"](item) == (0, 0, 1)  # no "he" before: the nearest


# The real files.


def share_before_head(texts: list[AnnotatedText], relation: str) -> float:
    before = [i < t.heads[i] for t in texts for i, found in enumerate(t.relations) if found == relation]
    return sum(before) / len(before)


@needs(EWT_DEV)
def test_english_web_treebank_development() -> None:
    texts = list(read(EWT_DEV))
    assert len(texts) == 2_001
    assert share_before_head(texts, "det") == 1
    assert share_before_head(texts, "amod") == pytest.approx(0.983, abs=5e-4)
    assert 1 - share_before_head(texts, "obj") == pytest.approx(0.954, abs=5e-4)


@needs(EWT_DEV)
def test_english_web_treebank_text_is_exact() -> None:
    with EWT_DEV.open(encoding="utf-8") as lines:
        said = [line.removeprefix("# text = ").rstrip() for line in lines if line.startswith("# text = ")]
    assert [text.text for text in read(EWT_DEV)] == said


@pytest.mark.slow
@needs(EWT_TRAIN)
def test_english_web_treebank_training_begins_with_as_many_words_as_it_says() -> None:
    lengths = [len(text.words) for text in islice(read(EWT_TRAIN), 2_500)]
    assert (len(lengths), sum(lengths)) == (2_500, 41_505)


@pytest.mark.slow
@needs(LITBANK)
def test_litbank_baselines() -> None:
    """Shares of science.md, to within .3 points; it counts 6,741 items, this reading of "before" gives 18 fewer."""
    texts = list(read(LITBANK))
    assert len(texts) == 86
    items = [item for text in texts for item in antecedent_items(text)]
    assert len(items) == 6_723
    expected = {"nearest": 55.1, "first": 19.7, "same gender": 83.4, "same form": 76.6}
    for name, percent in expected.items():
        right = [item.correct[RULES[name](item).index(1)] for item in items]
        assert 100 * sum(right) / len(right) == pytest.approx(percent, abs=0.3), name

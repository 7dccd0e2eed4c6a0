"""Small corpora of every format, made line by line, and the texts that readers make of them."""

import tomllib
from pathlib import Path

from analyses.corpora import FORMATS
from interp.annotation import AnnotatedText

ENTITIES = "# global.Entity = GRP-etype-infstat-minspan-link-identity"
GAP = "ID\tText\tPronoun\tPronoun-offset\tA\tA-offset\tA-coref\tB\tB-offset\tB-coref\tURL"
SENTENCES = "sentid\tsentence"
CASES = tomllib.loads(Path(__file__).with_name("cases.toml").read_text("utf-8"))
FILES = {name: text.split("\n") for name, text in CASES["files"].items()}


def texts(kind: str, *lines: str) -> list[AnnotatedText]:
    """The texts of a file "a" with these lines."""
    return list(FORMATS[kind].texts([f"{line}\n" for line in lines], "a"))


def word(
    number: object, form: str = "w", tag: str = "X", head: object = "_", relation: str = "", *, entity="", misc=""
) -> str:
    """A line of CoNLL-U."""
    relation = relation or {"_": "_", "0": "root"}.get(str(head), "dep")
    last = "|".join(part for part in (entity and f"Entity={entity}", misc) if part) or "_"
    return "\t".join((str(number), form, form.lower(), tag, "_", "_", str(head), relation, "_", last))


def novel(*sentences: str, name: str = "tale") -> list[str]:
    """LitBank lines for sentences whose words have their chains after a slash: "he/(1)"."""
    lines = [f"#begin document ({name}); part 0"]
    for sentence in sentences:
        pairs = [each.partition("/") for each in sentence.split()]
        lines += ["\t".join((name, "0", str(i), form, *"_" * 8, chains)) for i, (form, _, chains) in enumerate(pairs)]
        lines.append("")
    return [*lines, "#end document"]


def gap_row(
    text: str = "Ann Lee met Sue before she left.",
    pronoun: tuple[str, object] = ("she", 23),
    a: tuple[str, object, str] = ("Ann Lee", 0, "TRUE"),
    b: tuple[str, object, str] = ("Sue", 12, "FALSE"),
    url: str = "http://en.wikipedia.org/wiki/Ann_Lee",
) -> str:
    return "\t".join(map(str, ("test-1", text, *pronoun, *a, *b, url)))


def mentions(text: AnnotatedText) -> list[tuple[str, str, str]]:
    """Each mention's text, head word and chain."""
    spans = text.word_spans
    return [
        (text.text[spans[m.start][0] : spans[m.end - 1][1]], text.words[m.head], m.chain) for m in text.mentions or ()
    ]

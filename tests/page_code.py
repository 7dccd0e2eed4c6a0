"""The code on pages: fenced blocks of README, the docs and the default model's card, and the files that they use."""

import re
from pathlib import Path
from textwrap import dedent

import pandas as pd
import tiny
from repository import ROOT
from tokenizers import Regex
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split

from analyses.corpora import read
from interp import Tokenizer, Transformer, TransformerConfig
from models import save

CARD = "models/checkpoints/default/README.md"
PAGES = ["README.md", CARD, *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md"))]
SENTENCE = [
    ("Tim", "PROPN", 4, "nsubj", "_"),
    ("did", "AUX", 4, "aux", "_"),
    ("not", "PART", 4, "advmod", "Polarity=Neg"),
    ("see", "VERB", 0, "root", "_"),
    ("Sue", "PROPN", 4, "obj", "_"),
]


def blocks(page: str, language: str | None = None) -> list[str]:
    """A page's fenced blocks, also those in lists, of all languages or of one ("": no language)."""
    fenced = re.findall(r"^( *)```(\w*)\n(.*?)^\1```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    return [dedent(code) for _, each, code in fenced if language in (None, each)]


def languages(page: str) -> set[str]:
    fences = re.findall(r"^ *```(\w*)$", (ROOT / page).read_text(), re.MULTILINE)
    assert len(fences) % 2 == 0, f"{page}: a block is left open"
    return {*fences[::2]}


def furnish(folder: Path) -> None:
    """Write small versions of what the pages' code names into `folder`: texts, a treebank, pairs, and `DIRECTORY`, an
    encoder-decoder that reads letters and writes phonemes."""
    novel = "\n\n".join(text.text for text in read("stories:4"))
    for name in ("novel.txt", "prompts.txt", "novels/one.txt", "FOLDER/one.txt", "letters/one.txt", "letters/two.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(novel)
    treebank = folder / "UD_EWT/en_ewt-ud-dev.conllu"
    treebank.parent.mkdir()
    for path in (treebank, folder / treebank.name):
        write_treebank(path)
    columns = ["clean", "corrupt", "answer", "wrong"]
    rows = [(f"The {he} was tired, because", f"The {she} was tired, because", "he", "she") for he, she in PEOPLE]
    pd.DataFrame(rows, columns=columns).to_csv(folder / "FILE.csv", index=False)
    encoder, decoder = tiny.TWO_STACKS["original"]
    pair = (Tokenizer(_letters(letters)) for letters in ("acghiknot", "nˈItkæɑ"))
    save(Transformer(TransformerConfig(encoder=encoder, decoder=decoder, target_start=0), *pair), folder / "DIRECTORY")


PEOPLE = [("king", "queen"), ("father", "mother"), ("boy", "girl")]


def write_treebank(path: Path) -> None:
    """Write `SENTENCE` as twelve documents."""
    lines = [
        f"{number}\t{word}\t_\t{tag}\t_\t{feats}\t{head}\t{relation}\t_\t_"
        for number, (word, tag, head, relation, feats) in enumerate(SENTENCE, 1)
    ]
    path.write_text("".join(f"# newdoc id = d{number}\n" + "\n".join(lines) + "\n\n" for number in range(12)))


def _letters(letters: str) -> Backend:
    backend = Backend(
        WordLevel({letter: index for index, letter in enumerate(["<s>", "<unk>", *letters])}, unk_token="<unk>")
    )
    backend.pre_tokenizer = Split(Regex("."), "isolated")
    return backend

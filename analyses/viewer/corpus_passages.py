"""Which passages does a report show? Those that were asked for; else beginnings of texts that were read."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from analyses.corpora.mentions import ALL_PRONOUNS, PRONOUNS
from analyses.reading.token_ids import TokenIds
from analyses.reading.windows import windows
from analyses.viewer.passages import Passage, read
from interp import AnnotatedText, InputError, Model, Tokenizer

_COUNT = 2  # passages, where none are asked for
_SEARCHED = 20  # texts looked at for them
_WORDS = 8, 40  # of a passage


def asked(model: Model, texts: Sequence[str]) -> list[Passage]:
    """The texts that somebody typed; a decoder that has a source reads the text itself as its target.

    Raises:
        InputError: as `read`.
    """
    paired = len(model.config.stacks) > 1
    return [read(model, text, text if paired else None) for text in texts]


def found(model: Model, corpus: Iterable[AnnotatedText]) -> list[Passage]:
    """Whole sentences with which texts of a corpus begin; none where the model reads no words.

    Of the first texts those come first that have most different pronouns of the third person: heads of coreference have
    nothing to do elsewhere.
    """
    passages: list[Passage] = []
    if model.tokenizer is None or isinstance(model.tokenizer, TokenIds):
        return passages
    paired = len(model.config.stacks) > 1
    beginnings = [text if text.target is not None else _beginning(text) for text in islice(corpus, _SEARCHED)]
    for shown in sorted(filter(None, beginnings), key=_pronouns, reverse=True):
        if len(passages) == _COUNT:
            break
        try:
            seen = read(model, shown.text, (shown.target or shown.text) if paired else None)
            columns = _columns(model, model.tokenizer, shown)
            passages.append(replace(seen, meant=_meant(shown, columns), asking=_asking(shown, columns)))
        except InputError:  # longer than the context, or nothing a decoder can read
            continue
    return passages


def _pronouns(text: AnnotatedText) -> int:
    """How many different pronouns of the third person it has."""
    return len({word.lower() for word in text.words} & PRONOUNS.keys())


def _columns(model: Model, tokenizer: Tokenizer, text: AnnotatedText) -> dict[int, int]:
    """The first token of each word; of none where the context does not show the whole text."""
    only = [*windows(text, tokenizer, model.config.n_ctx, Counter())]
    return {word: columns[0] for word, columns in only[0].columns.items()} if len(only) == 1 else {}


def _asking(text: AnnotatedText, columns: Mapping[int, int]) -> dict[str, list[int]]:
    """The tokens of each tag, and of both ends of each relation."""
    found: dict[str, list[int]] = {}
    for word, column in columns.items():
        if text.tags is not None:
            found.setdefault(f"tag:{text.tags[word]}", []).append(column)
        if text.relations is not None and text.heads is not None and (head := text.heads[word]) in columns:
            relation = text.relations[word]
            found.setdefault(f"relation:{relation}:dependent->head", []).append(column)
            found.setdefault(f"relation:{relation}:head->dependent", []).append(columns[head])
    return found


def _meant(text: AnnotatedText, columns: Mapping[int, int]) -> dict[int, str]:
    """By the token of each pronoun of the third person, the head of the nearest mention before it that names it."""
    found: dict[int, str] = {}
    for mention in text.mentions or ():
        if mention.end - mention.start > 1 or text.words[mention.head].lower() not in PRONOUNS:
            continue
        before = [each for each in text.mentions or () if each.chain == mention.chain and each.end <= mention.start]
        named = [each for each in before if text.words[each.head].lower() not in ALL_PRONOUNS]
        if named and mention.head in columns:
            found[columns[mention.head]] = text.words[max(named, key=lambda each: each.end).head]
    return found


def _beginning(text: AnnotatedText) -> AnnotatedText | None:
    """As many of the first sentences as are neither too few words nor too many."""
    least, most = _WORDS
    ends = [end for end in (*text.sentence_starts[1:], len(text.words)) if least <= end <= most]
    return text.excerpt(0, ends[-1]) if ends else None

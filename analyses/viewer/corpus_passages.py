"""Which passages does a report show? Those that were asked for; else beginnings of texts that were read."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice

from analyses.asked_words import asks
from analyses.corpora.mentions import ALL_PRONOUNS, PRONOUNS
from analyses.head_tables import Heads
from analyses.measures import Measure
from analyses.reading.token_ids import TokenIds
from analyses.reading.windows import Window, windows
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


def found(model: Model, corpus: Iterable[AnnotatedText], measures: Sequence[Measure] = ()) -> list[Passage]:
    """Whole sentences with which texts of a corpus begin; none where the model reads no words.

    Of the first texts those come first that have most different pronouns of the third person: heads of coreference have
    nothing to do elsewhere. What the `measures` ask of them is known of those that are about words.
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
            window = _whole(model, model.tokenizer, shown)
            if window is not None:
                seen = replace(seen, meant=_meant(window), asking=_asking(model, window, measures))
            passages.append(seen)
        except InputError:  # longer than the context, or nothing a decoder can read
            continue
    return passages


def _pronouns(text: AnnotatedText) -> int:
    """How many different pronouns of the third person it has."""
    return len({word.lower() for word in text.words} & PRONOUNS.keys())


def _whole(model: Model, tokenizer: Tokenizer, text: AnnotatedText) -> Window | None:
    """The text as the model reads it; None where the context does not show the whole of it."""
    only = [*windows(text, tokenizer, model.config.n_ctx, Counter())]
    return only[0] if len(only) == 1 else None


def _asking(model: Model, window: Window, measures: Sequence[Measure]) -> dict[str, list[int]]:
    """The tokens that each measure of words asks, where it asks any."""
    causal = Heads.every(model)[0].causal
    asked = {each.name: asks(each, window, causal=causal) for each in measures if each.points and each.of_words}
    return {name: tokens for name, tokens in asked.items() if tokens}


def _meant(window: Window) -> dict[int, str]:
    """By the token of each pronoun of the third person, the head of the nearest mention before it that names it."""
    text, columns = window.text, {word: own[0] for word, own in window.columns.items()}
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

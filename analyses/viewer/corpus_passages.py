"""Which passages does a report show? Those that were asked for; else beginnings of texts that were read."""

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice

from analyses.corpora.mentions import ALL_PRONOUNS, PRONOUNS
from analyses.measures.definitions import Measure
from analyses.measures.head_tables import Heads
from analyses.reading.token_ids import TokenIds
from analyses.reading.windows import Window, windows
from analyses.scoring.asked_words import asks
from analyses.viewer.passages import Passage, read
from interp import AnnotatedText, InputError, Model

_COUNT = 2  # passages, where none are asked for
_SEARCHED = 20  # texts looked at for them
_WORDS = 8, 40  # of a passage


def read_texts(model: Model, texts: Sequence[str]) -> list[Passage]:
    """The texts that somebody typed; a decoder that has a source reads the text itself as its target.

    Raises:
        InputError: as `read`.
    """
    paired = len(model.config.stacks) > 1
    return [read(model, text, text if paired else None) for text in texts]


def choose(model: Model, corpus: Iterable[AnnotatedText], measures: Sequence[Measure] = ()) -> list[Passage]:
    """Whole sentences with which texts of a corpus begin; none where the model reads no words.

    Of the first texts those come first that have most different pronouns of the third person: heads of coreference have
    nothing to do elsewhere. What the `measures` ask of them is known of those that are about words.
    """
    passages: list[Passage] = []
    if model.tokenizer is None or isinstance(model.tokenizer, TokenIds):
        return passages
    paired = len(model.config.stacks) > 1
    beginnings = [text if text.target is not None else _beginning(text) for text in islice(corpus, _SEARCHED)]
    for text in sorted(filter(None, beginnings), key=_pronouns, reverse=True):
        if len(passages) == _COUNT:
            break
        with suppress(InputError):  # longer than the context, or nothing a decoder can read
            passage = read(model, text.text, (text.target or text.text) if paired else None)
            whole = [*windows(text, model.tokenizer, model.config.n_ctx, Counter())]
            if len(whole) == 1:  # the context shows all of it
                passage = replace(passage, meant=_meant(whole[0]), asking=_asking(model, whole[0], measures))
            passages.append(passage)
    return passages


def _pronouns(text: AnnotatedText) -> int:
    return len({word.lower() for word in text.words} & PRONOUNS.keys())


def _asking(model: Model, window: Window, measures: Sequence[Measure]) -> dict[str, list[int]]:
    """The tokens that each measure of words asks, where it asks any."""
    causal = Heads.every(model)[0].causal
    tokens_of = {each.name: asks(each, window, causal=causal) for each in measures if each.points and each.of_words}
    return {name: tokens for name, tokens in tokens_of.items() if tokens}


def _meant(window: Window) -> dict[int, str]:
    """By the token of each pronoun of the third person, the head of the nearest mention before it that names it."""
    text, heads = window.text, {}
    mentions = [(mention, text.words[mention.head]) for mention in text.mentions or ()]
    names = [(mention, word) for mention, word in mentions if word.lower() not in ALL_PRONOUNS]
    for mention, word in mentions:
        if mention.end - mention.start > 1 or word.lower() not in PRONOUNS or mention.head not in window.columns:
            continue
        before = [(each.end, name) for each, name in names if each.chain == mention.chain and each.end <= mention.start]
        if before:
            heads[window.columns[mention.head][0]] = max(before, key=lambda each: each[0])[1]
    return heads


def _beginning(text: AnnotatedText) -> AnnotatedText | None:
    """As many of the first sentences as are neither too few words nor too many."""
    least, most = _WORDS
    ends = [end for end in (*text.sentence_starts[1:], len(text.words)) if least <= end <= most]
    return text.excerpt(0, ends[-1]) if ends else None

"""Which passages of a text are short enough to read?"""

from collections.abc import Callable, Iterable
from itertools import islice, pairwise

from interp import AnnotatedText, InputError, Model

SEARCHED = 500  # texts searched for an example
_SENTENCE = (9, 16)  # fewest and most words of a sentence in a figure
_PASSAGE = 26  # most words in a passage with a pronoun and its antecedent


def find(
    model: Model, corpus: Iterable[AnnotatedText], cut: Callable[[AnnotatedText], AnnotatedText | None], count: int = 1
) -> list[AnnotatedText]:
    """The first passages that `cut` finds and the model can read, at most one per text."""
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise InputError("this model has no tokenizer, so it cannot read words: give its directory a tokenizer.json")
    longest = model.config.n_ctx - len(tokenizer.prefix) - len(tokenizer.suffix)
    passages = (cut(text) for text in islice(corpus, SEARCHED))
    return [*islice((each for each in passages if each and len(tokenizer.pieces(each.text).ids) <= longest), count)]


def sentence(text: AnnotatedText) -> AnnotatedText | None:
    """The first sentence of a text that is short enough to draw and consists mostly of words."""
    shortest, longest = _SENTENCE
    for start, end in _sentences(text):
        plain = sum(word.isalpha() for word in text.words[start:end])
        if shortest <= end - start <= longest and plain >= 0.8 * (end - start):
            return text.excerpt(start, end)
    return None


def passage(text: AnnotatedText, holds: Callable[[AnnotatedText], object]) -> AnnotatedText | None:
    """The first short run of whole sentences for which `holds` is true."""
    sentences = _sentences(text)
    for start, _ in sentences:
        for _, end in sentences:
            if 0 < end - start <= _PASSAGE and holds(excerpt := text.excerpt(start, end)):
                return excerpt
    return None


def _sentences(text: AnnotatedText) -> list[tuple[int, int]]:
    return list(pairwise([*text.sentence_starts, len(text.words)]))

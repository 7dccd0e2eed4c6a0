"""What does a head look at in a text that a person can read? Word-level patterns, and passages short enough to draw."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from analyses.reading.inputs import least_target
from interp import AnnotatedText, InputError, Model, TokenBatch, run
from interp.patterns import membership, pool
from interp.tokens import NO_WORD, align

WordPattern = Float[NDArray[np.floating], "word word2"]
SEARCHED = 500  # texts looked at for an example
_SENTENCE = (9, 16)  # words of a sentence that is worth drawing
_PASSAGE = 26  # words at most in a passage with a pronoun and its antecedent


@dataclass(frozen=True, order=True)
class Head:
    """One attention head of a model."""

    stack: str
    layer: int
    head: int


def head_patterns(
    model: Model, tokens: TokenBatch | Tensor, heads: Sequence[Head]
) -> Float[Tensor, "prompt head query key"]:
    """The patterns of chosen heads of one stack that reads a text alone, in their order."""
    n_texts = len(tokens.ids if isinstance(tokens, TokenBatch) else tokens)
    capture = {f"{head.stack}.{head.layer}.attn.pattern" for head in heads}
    out = run(model, tokens, capture, target=least_target(model, n_texts))
    return torch.stack([out[f"{head.stack}.{head.layer}.attn.pattern"][:, head.head] for head in heads], 1)


def mean_pattern(
    model: Model, ids: Int[Tensor, "prompt position"], heads: Sequence[Head]
) -> Float[NDArray[np.floating], "head query key"]:
    """The patterns of chosen heads, averaged over texts of one length."""
    return head_patterns(model, ids, heads).mean(0).double().cpu().numpy()


def word_patterns(
    model: Model, text: AnnotatedText, heads: Sequence[Head]
) -> Float[NDArray[np.floating], "head word word2"]:
    """Attention between the words of one text: *to* a word sums over its pieces, *from* a word averages (Clark 2019).

    Rows add up to what does not go to special tokens. A word without a token of its own is NaN, as row and column.
    """
    word_of, ids = _tokens(model, text)
    pattern = head_patterns(model, TokenBatch.from_rows([ids]), heads)
    belongs = membership([word_of], len(text.words), len(ids)).to(pattern)
    pooled = pool(pattern, belongs, belongs)[0].double().cpu().numpy()
    absent = (belongs[0].sum(1) == 0).cpu().numpy()
    pooled[:, absent, :] = pooled[:, :, absent] = np.nan
    return pooled


def tag_patterns(
    model: Model, texts: Iterable[AnnotatedText], heads: Sequence[Head], tags: Sequence[str]
) -> Float[NDArray[np.floating], "head tag tag2"]:
    """The share of the attention of words tagged `tag` that goes to words tagged `tag2`, averaged over those words."""
    mass, n_words = np.zeros((len(heads), len(tags), len(tags))), np.zeros(len(tags))
    for text in texts:
        assert text.tags is not None
        is_tag = np.array([[tag == each for each in tags] for tag in text.tags], dtype=float)  # word tag
        patterns = word_patterns(model, text, heads)
        present = ~np.isnan(patterns[0]).all(1)
        mass += np.einsum("hvw,vx,wy->hxy", np.nan_to_num(patterns), is_tag, is_tag)
        n_words += is_tag[present].sum(0)
    return mass / np.where(n_words == 0, np.nan, n_words)[None, :, None]


def common_tags(texts: Iterable[AnnotatedText], limit: int = 9) -> list[str]:
    """The most frequent tags of some texts, punctuation aside."""
    counts = Counter(tag for text in texts for tag in text.tags or () if tag not in {"PUNCT", "SYM", "X"})
    return [tag for tag, _ in counts.most_common(limit)]


def _tokens(model: Model, text: AnnotatedText) -> tuple[list[int], list[int]]:
    """For each token of a text, special ones included, the word that it belongs to, and its id."""
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise InputError("this model has no tokenizer, so it cannot read words: give its directory a tokenizer.json")
    pieces = tokenizer.pieces(text.text)
    words = align(pieces.spans, text.word_spans, text.text)
    prefix, suffix = [NO_WORD] * len(tokenizer.prefix), [NO_WORD] * len(tokenizer.suffix)
    return [*prefix, *words, *suffix], [*tokenizer.prefix, *pieces.ids, *tokenizer.suffix]


# Passages to draw.


def find(
    model: Model, corpus: Iterable[AnnotatedText], cut: Callable[[AnnotatedText], AnnotatedText | None], count: int = 1
) -> list[AnnotatedText]:
    """The first passages, one a text at most, that `cut` finds in a corpus and the model can read."""
    passages = (cut(text) for text in islice(corpus, SEARCHED))
    fitting = (each for each in passages if each is not None and len(_tokens(model, each)[1]) <= model.config.n_ctx)
    return list(islice(fitting, count))


def sentence(text: AnnotatedText) -> AnnotatedText | None:
    """The first sentence of a text that is neither too short nor too long to draw, and made of words."""
    shortest, longest = _SENTENCE
    for start, end in _sentences(text):
        plain = sum(word.isalpha() for word in text.words[start:end])
        if shortest <= end - start <= longest and plain >= 0.8 * (end - start):
            return text.excerpt(start, end)
    return None


def passage(text: AnnotatedText, holds: Callable[[AnnotatedText], object]) -> AnnotatedText | None:
    """The first short run of whole sentences of which something holds."""
    sentences = _sentences(text)
    for start, _ in sentences:
        for _, end in sentences:
            if 0 < end - start <= _PASSAGE and holds(excerpt := text.excerpt(start, end)):
                return excerpt
    return None


def _sentences(text: AnnotatedText) -> list[tuple[int, int]]:
    return list(pairwise([*text.sentence_starts, len(text.words)]))

"""Where does each head look in sentences? Those in which it is surest, and as many drawn at random."""

import random
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd

from analyses.head_tables import Heads
from analyses.reading import examples
from interp import AnnotatedText, InputError, Model

COLUMNS = [
    *("stack", "attention", "layer", "head", "corpus", "choice"),
    *("sentence", "asks", "seen", "weight"),
]
_READ = 40  # sentences, each of another text
_SHOWN = 5  # of each choice, for each head


def example_sentences(
    model: Model, corpus: Iterable[AnnotatedText], *, corpus_name: str, seed: int = 0
) -> pd.DataFrame:
    """For every head, five sentences in which one of its words gives most attention to one word, and five at random.

    One row a head and sentence: `choice` is best or random; `asks` and `seen` are places of words of `sentence`, told
    apart by spaces; `weight` is the attention from one to the other, the largest of the word that asks. Best are those
    with the largest weights, each of another sentence; at random a sentence and a word of it are drawn, the same for
    all heads. Attention to special tokens is not shown, so weights of a head that rests there are small.

    Of a model of two stacks the encoder's heads; nothing of a model that reads no words.
    """
    kind = Heads.every(model)[0]
    if model.tokenizer is None:
        return pd.DataFrame(columns=COLUMNS)
    heads = [examples.Head(kind.stack, *divmod(number, kind.n_heads)) for number in range(kind.count)]
    try:
        read = examples.find(model, corpus, examples.sentence, _READ)
        patterns = [examples.word_patterns(model, text, heads) for text in read]
    except InputError:  # a library that does not show these patterns
        return pd.DataFrame(columns=COLUMNS)
    rows = [row for number, head in enumerate(heads) for row in _of_head(head, number, read, patterns, seed)]
    about: dict[str, Any] = {"stack": kind.stack, "attention": kind.attention, "corpus": corpus_name}
    return pd.DataFrame(rows).assign(**about).reindex(columns=COLUMNS) if rows else pd.DataFrame(columns=COLUMNS)


def _of_head(
    head: examples.Head, number: int, read: list[AnnotatedText], patterns: list[np.ndarray], seed: int
) -> Iterator[dict[str, Any]]:
    weights = [np.nan_to_num(each[number]) for each in patterns]  # a word without a token of its own has none
    surest = sorted(range(len(read)), key=lambda at: -weights[at].max())[:_SHOWN]
    rng = random.Random(seed)
    drawn = rng.sample(range(len(read)), min(_SHOWN, len(read)))
    asked = [int(weights[at].max(1).argmax()) for at in surest]
    asked += [rng.randrange(1, len(read[at].words)) for at in drawn]
    for place, (at, asks) in enumerate(zip([*surest, *drawn], asked, strict=True)):
        seen = int(weights[at][asks].argmax())
        yield {
            **{"layer": head.layer, "head": head.head, "choice": "best" if place < len(surest) else "random"},
            **{
                "sentence": " ".join(word.replace(" ", "\u00a0") for word in read[at].words),
                "asks": asks,
                "seen": seen,
            },
            "weight": float(weights[at][asks, seen]),
        }

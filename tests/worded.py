"""A tiny random decoder that reads words, with minimal pairs of unequal lengths, and pairs that it tells apart."""

from dataclasses import replace
from itertools import product

import pandas as pd
import torch
from tiny import randomise
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from interp import StackConfig, Tokenizer, Transformer, TransformerConfig, run

WORDS = ["Tim", "Sue", "saw", "the", "dog", "because", "He", "She"]
ROWS = [
    ("Tim saw", "Sue saw", "He", "She"),
    ("the dog saw Tim", "the dog saw Sue", "He", "She"),
    ("saw Tim because", "saw Sue because", "He", "She"),
    ("because Tim saw the", "because Sue saw the", "He", "She"),
]
HEADER = ["clean", "corrupt", "answer", "wrong"]
SUBJECTS = ["Tim", "Sue", "dog", "cat", "man"]
FRAMES = [f"{verb} {end}" for verb, end in product(["saw", "ran", "sat", "because"], ["the", "on", "by", "saw"])]


def word_level(*words: str) -> Backend:
    """A tokenizer of these words, split at spaces; other words are read as the first."""
    backend = Backend(WordLevel({word: index for index, word in enumerate(words)}, unk_token=words[0]))
    backend.pre_tokenizer = WhitespaceSplit()
    return backend


def worded(*more: str, n_layers: int = 2) -> Transformer:
    """A model with random weights over `WORDS` and more."""
    vocabulary = dict.fromkeys(["<unk>", *WORDS, *more])
    torch.manual_seed(0)
    stack = StackConfig(n_layers, 11, 3, 5, 7, 29, len(vocabulary), causal=True)
    return Transformer(TransformerConfig(decoder=stack), Tokenizer(word_level(*vocabulary)))


def table(rows=ROWS) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=HEADER)


def random_worded(*more: str, **changes) -> Transformer:
    """The same words, larger random weights in double precision, and another shape."""
    plain = worded(*more)
    model = Transformer(TransformerConfig(decoder=replace(plain.config.last, **changes)), plain.tokenizer)
    randomise(model, 1)
    return model.double()


def turns(model: Transformer, names: list[str]) -> list[tuple[str, ...]]:
    """Frames in which the subject decides which of two words the model prefers; those that flip most often.

    Each comes with the best subject for the first word, the best for the second, and the two words.
    """
    logits = run(model, [f"{who} {frame}" for frame in FRAMES for who in SUBJECTS]).logits[:, -1]
    logits = logits[:, [model.tokenizer.backend.token_to_id(name) for name in names]]
    margins = (logits[:, :, None] - logits[:, None]).unflatten(0, (len(FRAMES), len(SUBJECTS)))
    right, wrong = divmod(int(((margins.amax(1) > 0) & (margins.amin(1) < 0)).sum(0).argmax()), len(names))
    return [
        (frame, SUBJECTS[int(margin.argmax())], SUBJECTS[int(margin.argmin())], names[right], names[wrong])
        for frame, margin in zip(FRAMES, margins[..., right, wrong], strict=True)
        if margin.max() > 0 > margin.min()
    ]

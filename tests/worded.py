"""A tiny random decoder that reads words, and minimal pairs of unequal lengths for it."""

import pandas as pd
import torch
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from interp import StackConfig, Tokenizer, Transformer, TransformerConfig

WORDS = ["Tim", "Sue", "saw", "the", "dog", "because", "He", "She"]
ROWS = [
    ("Tim saw", "Sue saw", "He", "She"),
    ("the dog saw Tim", "the dog saw Sue", "He", "She"),
    ("saw Tim because", "saw Sue because", "He", "She"),
    ("because Tim saw the", "because Sue saw the", "He", "She"),
]
HEADER = ["clean", "corrupt", "answer", "wrong"]


def word_level(*words: str) -> Backend:
    """A tokenizer of these words, between spaces; any other is read as the first."""
    backend = Backend(WordLevel({word: at for at, word in enumerate(words)}, unk_token=words[0]))
    backend.pre_tokenizer = WhitespaceSplit()
    return backend


def worded(*more: str, n_layers: int = 2) -> Transformer:
    """Random weights over `WORDS` and more."""
    vocabulary = dict.fromkeys(["<unk>", *WORDS, *more])
    torch.manual_seed(0)
    stack = StackConfig(n_layers, 11, 3, 5, 7, 29, len(vocabulary), causal=True)
    return Transformer(TransformerConfig(decoder=stack), Tokenizer(word_level(*vocabulary)))


def table(rows=ROWS) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=HEADER)

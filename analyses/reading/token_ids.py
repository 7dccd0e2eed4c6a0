"""Models without a tokenizer read token ids: texts whose words are whole numbers, or random ones where none are given.

Measures of position, induction and their causal test need no words, so they are the same numbers then.
"""

import copy
from typing import Any, TypeVar

from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from interp import InputError, Model, Tokenizer
from interp.tokens import Pieces

Read = TypeVar("Read", bound=Model)


class TokenIds(Tokenizer):
    """Reads "5 17 3" as the ids 5, 17 and 3; nothing stands around them."""

    def __init__(self, d_vocab: int):
        self.backend = Backend(WordLevel({str(id): id for id in range(d_vocab)}))
        self.backend.pre_tokenizer = WhitespaceSplit()
        self.prefix, self.suffix = (), ()

    def knows(self, word: str) -> bool:
        """Whether a word is an id."""
        return self.backend.token_to_id(word) is not None

    def pieces(self, text: str) -> Pieces:
        """The ids of a text.

        Raises:
            InputError: a word is no id.
        """
        for word in text.split():
            if not self.knows(word):
                raise InputError(
                    f"this model has no tokenizer, so it reads token ids from 0 to {self.largest_id}: expected texts "
                    f'like "5 17 3", got {word[:40]!r}; or give the model a tokenizer'
                )
        return super().pieces(text)

    def around(self, prefix: tuple[int, ...], suffix: tuple[int, ...]) -> "TokenIds":
        """The same with ids around every text."""
        tokenizer = copy.copy(self)
        tokenizer.prefix, tokenizer.suffix = prefix, suffix
        return tokenizer


def by_ids(model: Read) -> Read:
    """The same model, reading token ids; its weights are those of `model`, which stays as it is.

    Raises:
        InputError: a model of one's own whose tokenizer cannot be set.
    """
    reading: Any = copy.copy(model)
    first, last = next(iter(model.config.stacks.values())), model.config.last
    try:
        reading.tokenizer, reading.target_tokenizer = TokenIds(first.d_vocab), TokenIds(last.d_vocab)
    except AttributeError as error:
        raise InputError(
            "without a tokenizer: expected a model whose tokenizer and target_tokenizer can be set"
        ) from error
    return reading

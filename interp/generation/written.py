"""What a model has written: the texts, what stands behind the prompts, and what was captured on the way."""

from dataclasses import dataclass, field

from jaxtyping import Int
from torch import Tensor

from interp.errors import InputError
from interp.running import captured
from interp.tokens import TokenBatch, Tokenizer


@dataclass(frozen=True)
class Written:
    """What `generate` gives.

    tokens        the whole texts, prompts and what was written; where prompts or texts are of different lengths, with
                  padding on both sides (in `ids`, a text that has ended repeats its last token)
    n_prompt      prompt: how many tokens each prompt had
    activations   by site; along positions there is one less than `tokens` has, since the last one was not read
    source        what the encoder read, where there is one
    """

    tokens: TokenBatch
    n_prompt: Int[Tensor, " prompt"]
    activations: dict[str, Tensor] = field(repr=False)
    tokenizer: Tokenizer | None = field(repr=False)
    source: TokenBatch | None = field(default=None, repr=False)

    @property
    def ids(self) -> Int[Tensor, "prompt position"]:
        """Ids of the whole texts."""
        return self.tokens.ids

    @property
    def texts(self) -> list[str]:
        """The whole texts, special tokens left out.

        Raises:
            InputError: the model has no tokenizer.
        """
        return [_with(self.tokenizer).decode(ids) for ids in self.tokens.id_lists()]

    @property
    def continuations(self) -> list[str]:
        """What was written behind each prompt.

        Raises:
            InputError: the model has no tokenizer.
        """
        return text_behind(_with(self.tokenizer), self.tokens, self.n_prompt)

    def __getitem__(self, site: str) -> Tensor:
        """The activation captured at `site`, with the axes of `sites(model)[site]` after `prompt`."""
        return captured(self.activations, site)


def text_behind(tokenizer: Tokenizer, texts: TokenBatch, n_prompt: Int[Tensor, " prompt"]) -> list[str]:
    """What stands behind the first `n_prompt` tokens of each text, as it reads after them."""
    parts = []
    for ids, begun in zip(texts.id_lists(), n_prompt.tolist(), strict=True):
        before, whole = tokenizer.decode(ids[:begun]), tokenizer.decode(ids)
        if not whole.startswith(before):  # a character that the prompt begins and what is written ends
            before = before.rstrip("\ufffd")
        parts.append(whole[len(before) :])
    return parts


def _with(tokenizer: Tokenizer | None) -> Tokenizer:
    if tokenizer is None:
        raise InputError("this model has no tokenizer, so what it wrote is no text: read its `ids`")
    return tokenizer

"""How does text become tokens, and batches of them, and which tokens is a word?"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypeVar

import torch
from jaxtyping import Bool, Int
from tokenizers import Encoding
from tokenizers import Tokenizer as Backend
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from interp.display import Result, so_many
from interp.errors import InputError, one_of
from interp.indices import Index, entries, for_texts

Side = Literal["left", "right"]
Positions = Index | None  # for all texts, or an array with one or several per text; None is the last
Span = tuple[int, int]  # first character, and the one after the last
_LONGEST_CHARACTER = 4  # tokens: UTF-8 has no more bytes
NO_WORD = -1  # the word index of a token outside all words: special tokens, spaces
T = TypeVar("T")


def tokenizing(work: Callable[[], T]) -> T:
    """The result of `work`; what the tokenizers' library raises, panics included, becomes an `InputError`."""
    try:
        return work()
    except BaseException as error:
        is_panic = type(error).__name__ == "PanicException"
        if isinstance(error, InputError) or not (isinstance(error, Exception) or is_panic):
            raise
        raise InputError(str(error) or type(error).__name__) from error


@dataclass(frozen=True)
class Pieces:
    """A text's token ids and the characters of each; special tokens have none."""

    ids: tuple[int, ...]
    spans: tuple[Span, ...]


class Tokenizer:
    """A `tokenizers` tokenizer that never cuts or pads; `prefix` and `suffix` are the ids around every single text."""

    def __init__(self, backend: Backend, *, add_start: int | None = None):
        """Wrap `backend`; `add_start` is a start id that its own template does not add but its model expects."""
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        probe = _encoded(backend, "a A 0 .")  # any text: only the special tokens around it count
        inner = [i for i, special in enumerate(probe.special_tokens_mask) if not special] or [len(probe.ids)]
        self.prefix: tuple[int, ...] = tuple(probe.ids[: inner[0]])
        self.suffix: tuple[int, ...] = tuple(probe.ids[inner[-1] + 1 :])
        if add_start is not None and not self.prefix:
            self.prefix = (add_start,)

    @property
    def d_vocab(self) -> int:
        """Number of tokens, added ones included."""
        return self.backend.get_vocab_size(with_added_tokens=True)

    @cached_property
    def largest_id(self) -> int:
        """The largest id of ordinary text; other tokens (for images) may lie beyond."""
        unused = self.special_ids - {*self.prefix, *self.suffix}
        return max({*self.backend.get_vocab(with_added_tokens=True).values()} - unused, default=0)

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids of tokens that stand for no text."""
        added = self.backend.get_added_tokens_decoder()
        return frozenset(id for id, token in added.items() if token.special) | {*self.prefix, *self.suffix}

    @cached_property
    def unknown_id(self) -> int | None:
        """The id of text outside the vocabulary, or None."""
        name = getattr(self.backend.model, "unk_token", None)
        return self.backend.token_to_id(name) if name else None

    @cached_property
    def mask_id(self) -> int | None:
        """The id that hides a word ("[MASK]", "<mask>"), or None."""
        added = self.backend.get_added_tokens_decoder()
        return next((id for id, token in added.items() if token.content in {"[MASK]", "<mask>"}), None)

    def around(self, prefix: tuple[int, ...], suffix: tuple[int, ...]) -> "Tokenizer":
        """This tokenizer with other special tokens around every text."""
        tokenizer = Tokenizer(self.backend)
        tokenizer.prefix, tokenizer.suffix = prefix, suffix
        return tokenizer

    def pieces(self, text: str) -> Pieces:
        """The text's own tokens, without special ones around it."""
        encoding = _encoded(self.backend, text, add_special_tokens=False)
        return Pieces(tuple(encoding.ids), tuple(encoding.offsets))

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, with the special tokens that the model expects around it."""
        return [*self.prefix, *self.pieces(text).ids, *self.suffix]

    @property
    def policy(self) -> dict[str, list[str]]:
        """The special tokens before and after every text."""
        around = {"before": self.prefix, "after": self.suffix}
        return {side: [self.backend.id_to_token(id) or f"<{id}>" for id in ids] for side, ids in around.items()}

    def decode(self, ids: Iterable[int] | Int[Tensor, " position"]) -> str:
        """The text of `ids`, without special tokens."""
        try:
            numbers = [int(id) for id in ids]
        except (TypeError, ValueError) as error:
            raise InputError(f"expected token ids of one text, as [5, 3]; got {ids!r}") from error
        if numbers and min(numbers) < 0:
            raise InputError(f"expected token ids of 0 or more, got {min(numbers)}")
        return self.backend.decode(numbers, skip_special_tokens=True)

    def label(self, id: int) -> str:
        """A token as a person reads it after other text: with its space, without the vocabulary's own symbols."""
        return self._character([id])[1]

    def labels(self, ids: Sequence[int]) -> list[str]:
        """The `label` of each token of a text; further tokens of the same character are `⋯`."""
        labels, begin = [], 0
        while begin < len(ids):
            size, text = self._character(ids[begin : begin + _LONGEST_CHARACTER])
            labels += [text, *["⋯"] * (size - 1)]
            begin += size
        return labels

    def _character(self, ids: Sequence[int]) -> tuple[int, str]:
        """The number of tokens in the first whole characters, and these; 1 if the next tokens do not complete them."""
        first, decoder = self.backend.id_to_token(int(ids[0])), self.backend.decoder
        if first is None:
            return 1, f"<{int(ids[0])}>"
        if decoder is None or int(ids[0]) in self.special_ids:
            return 1, first
        tokens = ["a"]
        for id in ids:
            if (token := self.backend.id_to_token(int(id))) is None or int(id) in self.special_ids:
                break
            tokens.append(token)
            text = decoder.decode(tokens).removeprefix(decoder.decode(["a"]))
            if "\ufffd" not in text:
                return len(tokens) - 1, text or first
        return 1, first

    def id(self, text: str) -> int:
        """The token that is exactly `text` (`" he"`)."""
        ids = self.continuation(text)
        if len(ids) != 1:
            raise InputError(f"expected one token, but {text!r} is {len(ids)}: {[self.label(id) for id in ids]}")
        return ids[0]

    def continuation(self, text: str) -> tuple[int, ...]:
        """Token ids of `text` after other text, without a space that it does not begin with."""
        # some tokenizers put a space before every text, so put a sign there that does not merge with it
        for sign in (".", "a") if text[:1].isalnum() else ("a", "."):
            start, joined = self.pieces(sign).ids, self.pieces(sign + text).ids
            if joined[: len(start)] == start:
                return joined[len(start) :]
        return self.pieces(text).ids


@dataclass(frozen=True, repr=False)
class TokenBatch(Result):
    """Texts as rows of token ids, with their padding and positions.

    ids        prompt position   token ids; padding is filled with `pad_id`
    mask       prompt position   True at real tokens
    positions  prompt position   place of each token in its own text, from 0; 0 on padding
    """

    ids: Int[Tensor, "prompt position"]
    mask: Bool[Tensor, "prompt position"]
    positions: Int[Tensor, "prompt position"]

    @staticmethod
    def from_ids(ids: Tensor) -> "TokenBatch":
        """Ids (`prompt position`, or one text's) taken as they are: nothing added, nothing padding."""
        if ids.ndim not in {1, 2} or ids.is_floating_point() or not ids.numel():
            raise InputError(f"expected integer ids, prompt x position, not empty; got {ids.dtype} {tuple(ids.shape)}")
        ids = ids.reshape(-1, ids.shape[-1]).long()
        mask = torch.ones_like(ids, dtype=torch.bool)
        return TokenBatch(ids, mask, torch.arange(ids.shape[1], device=ids.device).expand_as(ids))

    @staticmethod
    def from_rows(rows: Sequence[Sequence[int]], *, pad_id: int = 0, side: Side = "right") -> "TokenBatch":
        """Rows of different lengths, padded to the longest."""
        if not rows or not all(len(row) for row in rows):
            raise InputError(f"expected at least one text, and none of them empty; got lengths {[*map(len, rows)]}")
        one_of("side", side, Side)
        tensors = [torch.tensor([*row]) for row in rows]
        ids = pad_sequence(tensors, True, pad_id, side)
        mask = pad_sequence([torch.ones_like(row) for row in tensors], True, 0, side).bool()
        return TokenBatch(ids, mask, text_positions(mask))

    @staticmethod
    def from_texts(texts: Sequence[str], tokenizer: Tokenizer) -> "TokenBatch":
        """Texts with the special tokens that the model expects."""
        return TokenBatch.from_rows([tokenizer.encode(text) for text in texts])

    def facts(self) -> tuple[str, dict[str, str]]:
        """The number of texts and their lengths."""
        ids = " ".join(map(str, self.ids[0, :16].tolist())) + " …" * (self.ids.shape[1] > 16)
        return f"TokenBatch: {describe(self)}", {"ids": ids}

    def id_lists(self) -> list[list[int]]:
        """Each text's ids, without padding."""
        return [ids[real].tolist() for ids, real in zip(self.ids, self.mask, strict=True)]

    @cached_property
    def padded(self) -> bool:
        """Whether any row has padding."""
        return not bool(self.mask.all())

    @property
    def lengths(self) -> Int[Tensor, " prompt"]:
        """Real tokens of each row."""
        return self.mask.sum(1)

    def columns(self, position: Positions = None) -> Int[Tensor, "prompt position"]:
        """The columns of each text's positions, with padding on either side; negative ones count from its end."""
        columns = self.column_lists(-1 if position is None else position)
        if len({*map(len, columns)}) > 1 or not columns[0]:
            counts = f"{min(map(len, columns))} to {max(map(len, columns))}"
            raise InputError(f"expected as many positions of each prompt, at least one; {position} has {counts}")
        return torch.tensor(columns, device=self.ids.device)

    def column_lists(self, position: Index) -> list[list[int]]:
        """The same columns text by text; a slice may take more of one than of another."""
        firsts, lengths, ends = self.mask.int().argmax(1).tolist(), self.lengths.tolist(), self.ends.tolist()
        texts = zip(for_texts(position, len(self.ids), "position"), firsts, lengths, ends, strict=True)
        return [
            [first + place for place in entries(index, length, "position", f"in prompt {prompt}", end)]
            for prompt, (index, first, length, end) in enumerate(texts)
        ]

    @property
    def ends(self) -> Int[Tensor, " prompt"]:
        """The end of each text, from which negative positions count back."""
        return self.lengths

    def rows(self, rows: slice | Int[Tensor, " row"]) -> "TokenBatch":
        """The batch of these rows; a row may be there twice."""
        return TokenBatch(self.ids[rows], self.mask[rows], self.positions[rows])

    def to(self, device: torch.device) -> "TokenBatch":
        """The same batch on another device."""
        moved = TokenBatch(self.ids.to(device), self.mask.to(device), self.positions.to(device))
        vars(moved)["padded"] = self.padded  # computed here, not to wait for another device
        return moved


@dataclass(frozen=True)
class Continued(TokenBatch):
    """Prompts, padded on the left, and a column for every written token that will be read.

    Step 0 reads the prompts, step s the s-th written token. `n_prompt` is each prompt's number of tokens.
    """

    n_prompt: Int[Tensor, " prompt"] = field(kw_only=True)

    @staticmethod
    def from_prompts(prompts: TokenBatch, n_read: int) -> "Continued":
        """`prompts`, padded on the left, with `n_read` columns behind them; their ids are 0."""
        real = prompts.mask.new_ones(len(prompts.ids), n_read)
        mask = torch.cat([prompts.mask, real], 1)
        ids = torch.cat([prompts.ids, real.long() * 0], 1)
        return Continued(ids, mask, text_positions(mask), n_prompt=prompts.lengths)

    @property
    def ends(self) -> Int[Tensor, " prompt"]:
        """The ends of the prompts."""
        return self.n_prompt

    @cached_property
    def steps(self) -> Int[Tensor, "prompt position"]:
        """The step that reads each column; -1 on padding."""
        return (self.positions - self.ends[:, None] + 1).clamp(min=0).masked_fill(~self.mask, -1)

    def at_steps(self, columns: list[list[int]], step: Index) -> list[list[int]]:
        """The columns of each text that are read in these steps; an array gives one step a text."""
        n_steps, owner = int(self.steps.max()) + 1, "where step 0 reads the prompt"
        numbers = [entries(index, n_steps, "step", owner) for index in for_texts(step, len(self.ids), "step")]
        texts = zip(columns, numbers, self.steps.tolist(), strict=True)
        return [[column for column in row if steps[column] in chosen_steps] for row, chosen_steps, steps in texts]


def text_positions(mask: Bool[Tensor, "prompt position"]) -> Int[Tensor, "prompt position"]:
    """The place of each real token in its own text; 0 on padding."""
    return (mask.cumsum(1) - 1).clamp(min=0) * mask


def describe(batch: TokenBatch) -> str:
    """`2 prompts of 5 to 7 tokens`."""
    shortest, longest = int(batch.lengths.min()), int(batch.lengths.max())
    upto = f"{shortest} to " if shortest < longest else ""
    return f"{so_many(len(batch.ids), 'prompt')} of {upto}{so_many(longest, 'token')}"


def _encoded(backend: Backend, text: str, *, add_special_tokens: bool = True) -> Encoding:
    try:
        return tokenizing(lambda: backend.encode(text, add_special_tokens=add_special_tokens))
    except InputError as error:
        expected = "expected text that UTF-8 can hold, and a tokenizer that is not damaged"
        raise InputError(f"cannot tokenize {text!a}: {error}; {expected}") from error


def align(pieces: Sequence[Span], words: Sequence[Span], text: str) -> list[int]:
    """The word of each token: the one that holds its first visible character; NO_WORD for none.

    A word that shares a token with the word before it may have no token of its own.
    """
    owner = [NO_WORD] * len(text)
    for index, (start, end) in enumerate(words):
        owner[start:end] = [index] * (end - start)
    return [next((owner[i] for i in range(*span) if not text[i].isspace()), NO_WORD) for span in pieces]

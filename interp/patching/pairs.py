"""Minimal pairs: a clean prompt, a corrupted one that differs in a few tokens, and the answers that tell them apart."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from interp.errors import InputError
from interp.running import as_batch
from interp.tokens import TokenBatch
from interp.transformer import Transformer


@dataclass(frozen=True)
class Pairs:
    """Prompts in pairs, token for token alike in length, padded on the right.

    `right` and `wrong` are the ids of the answers after the clean prompt and after the corrupted one; None where a
    metric brings its own. `left_out` counts the pairs that could not be used, by reason; `kept` are the others' places
    among the pairs that were offered.
    """

    clean: TokenBatch
    corrupt: TokenBatch
    right: Int[Tensor, " prompt"] | None = None
    wrong: Int[Tensor, " prompt"] | None = None
    left_out: Counter[str] = field(default_factory=Counter)
    kept: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.clean.ids.shape != self.corrupt.ids.shape or not torch.equal(self.clean.mask, self.corrupt.mask):
            raise InputError(
                "clean and corrupted prompts must align token by token: expected equal lengths, got "
                f"{self.clean.lengths.tolist()} and {self.corrupt.lengths.tolist()} tokens"
            )
        if self.clean.padded and not bool(self.clean.mask[:, 0].all()):
            raise InputError("pairs are padded on the right: expected a real token in the first column of every prompt")
        same = ~self.changed.any(1)
        if bool(same.any()):
            raise InputError(
                f"clean and corrupted prompt {int(same.nonzero()[0])} are identical: nothing can be patched"
            )

    def __len__(self) -> int:
        return len(self.clean.ids)

    @property
    def changed(self) -> Bool[Tensor, "prompt position"]:
        """Where the two prompts differ."""
        return self.clean.ids != self.corrupt.ids

    @property
    def first_changed(self) -> Int[Tensor, " prompt"]:
        """The first position at which each pair differs: nothing before it can carry an effect in a causal stack."""
        return self.changed.int().argmax(1)

    @property
    def last(self) -> Int[Tensor, " prompt"]:
        """Each prompt's last position."""
        return self.clean.lengths - 1

    def to(self, device: torch.device) -> "Pairs":
        """The same pairs on another device."""
        right, wrong = (None if answer is None else answer.to(device) for answer in (self.right, self.wrong))
        return replace(self, clean=self.clean.to(device), corrupt=self.corrupt.to(device), right=right, wrong=wrong)

    def take(self, prompts: Int[Tensor, " some"]) -> "Pairs":
        """Some of the pairs."""
        clean, corrupt = (
            TokenBatch(*(part[prompts] for part in (batch.ids, batch.mask, batch.positions)))
            for batch in (self.clean, self.corrupt)
        )
        right, wrong = (None if answer is None else answer[prompts] for answer in (self.right, self.wrong))
        kept = tuple(self.kept[at] for at in prompts.tolist()) if self.kept else ()
        return replace(self, clean=clean, corrupt=corrupt, right=right, wrong=wrong, kept=kept)

    def swapped(self) -> "Pairs":
        """Clean and corrupted, right and wrong, exchanged."""
        return replace(self, clean=self.corrupt, corrupt=self.clean, right=self.wrong, wrong=self.right)

    @staticmethod
    def from_ids(
        model: Transformer, clean: Tensor, corrupt: Tensor, right: Tensor | None = None, wrong: Tensor | None = None
    ) -> "Pairs":
        """Pairs from ids, prompt x position, taken as they are; `right` and `wrong` are one id a prompt."""
        return Pairs(as_batch(model, clean), as_batch(model, corrupt), right, wrong).to(model.device)

    @staticmethod
    def from_texts(
        model: Transformer,
        clean: Sequence[str],
        corrupt: Sequence[str],
        right: Sequence[str],
        wrong: Sequence[str],
        *,
        drop: bool = False,
    ) -> "Pairs":
        """Pairs from texts with one right and one wrong answer each, given as they continue the prompt (`" he"`).

        An answer is scored at the first piece in which the two differ: the pieces they share are put behind both
        prompts. With `drop`, pairs that cannot be used are left out and counted instead of raising.

        Raises:
            InputError: prompts of unequal length or identical, answers without a differing piece, too long a prompt.
        """
        if not len(clean) == len(corrupt) == len(right) == len(wrong):
            sizes = len(clean), len(corrupt), len(right), len(wrong)
            raise InputError(
                f"expected one corrupted prompt, right and wrong answer for each clean prompt, got {sizes}"
            )
        left_out: Counter[str] = Counter()
        usable: list[tuple[list[int], list[int], int, int]] = []
        kept: list[int] = []
        for place, texts in enumerate(zip(clean, corrupt, right, wrong, strict=True)):
            found = _pair(model, *texts)
            if isinstance(found, str):
                if not drop:
                    raise InputError(f"pair {texts[0]!r} / {texts[1]!r}: {found}")
                left_out[found.split(":")[0]] += 1
            else:
                usable.append(found)
                kept.append(place)
        if not usable:
            reasons = "; ".join(f"{count} because {reason}" for reason, count in left_out.items())
            raise InputError(f"none of the {len(clean)} pairs can be used: {reasons}")
        cleans, corrupts, rights, wrongs = zip(*usable, strict=True)
        batches = TokenBatch.from_rows(cleans), TokenBatch.from_rows(corrupts)
        return Pairs(*batches, torch.tensor(rights), torch.tensor(wrongs), left_out, tuple(kept)).to(model.device)


def _pair(
    model: Transformer, clean: str, corrupt: str, right: str, wrong: str
) -> tuple[list[int], list[int], int, int] | str:
    """Ids of both prompts and of the differing answer pieces, or why they cannot be used."""
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise InputError("this model has no tokenizer: give pairs as ids (Pairs.from_ids)")
    prompts = [[*tokenizer.prefix, *tokenizer.pieces(text).ids] for text in (clean, corrupt)]
    answers = [tokenizer.continuation(text) for text in (right, wrong)]
    shared = first_difference(*answers)
    if shared is None:
        return f"the answers share no differing piece: {right!r} and {wrong!r} are {answers[0]} and {answers[1]}"
    if len(prompts[0]) != len(prompts[1]):
        return f"the prompts do not align: they are {len(prompts[0])} and {len(prompts[1])} tokens long"
    if prompts[0] == prompts[1]:
        return "the prompts are identical: nothing can be patched"
    prompts = [prompt + list(answers[0][:shared]) for prompt in prompts]
    if len(prompts[0]) > model.config.n_ctx:
        return f"the prompts are longer than the context: {len(prompts[0])} tokens against {model.config.n_ctx}"
    if tokenizer.unknown_id is not None and tokenizer.unknown_id in {*prompts[0], *prompts[1], answers[0][shared]}:
        return "the prompts hold words that the vocabulary lacks"
    return prompts[0], prompts[1], answers[0][shared], answers[1][shared]


def first_difference(right: Sequence[int], wrong: Sequence[int]) -> int | None:
    """The first piece in which two answers differ; None where one begins with the other."""
    return next((at for at, (a, b) in enumerate(zip(right, wrong, strict=False)) if a != b), None)

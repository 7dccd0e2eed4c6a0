"""Which token is S2? Positions by name, one a prompt: prompts of unequal length align where they say the same."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.errors import InputError
from interp.tokens import Span

if TYPE_CHECKING:
    from interp.patching.pairs import Pairs
    from interp.patching.patch_sites import PatchSite

Place = int | str | Span | Callable[[str], int | str | Span]
"""A token of a prompt: its position (negative from the end), a word or words that occur once, (first character, the one
after the last), or a function of the prompt's text that gives one of these. Several tokens stand for their last."""
Places = Mapping[str, Place | list[Place] | Sequence[Place] | Int[Tensor, " prompt"]]
"""By name, one place for all prompts, or a list or tensor with one a prompt."""
POSITIONAL = ("position", "query", "key")


def each_place(places: Places, n_prompts: int) -> dict[str, list[Place | None]]:
    """The places of each prompt.

    Raises:
        InputError: not one for all, or one for each.
    """
    found: dict[str, list[Place | None]] = {}
    for name, place in places.items():
        if isinstance(place, int | str | tuple) or callable(place):
            listed: list[Place | None] = [place] * n_prompts
        else:
            listed = []
            listed.extend(place.tolist() if isinstance(place, Tensor) else place)
        if len(listed) != n_prompts:
            raise InputError(f"expected one position {name} for each of {n_prompts} prompts, got {len(listed)}")
        found[name] = listed
    return found


def position_of(name: str, place: Place | None, text: str, spans: Sequence[Span], before: int, length: int) -> int:
    """The position of a place in a prompt of `length` tokens: `before` are special, then come the text's, its `spans`.

    Raises:
        InputError: there is no such place, or several.
    """
    if place is None:
        raise InputError(f"no {name} is marked in {text!r}: expected {{{name}:words}}")
    if callable(place):
        place = place(text)
    if isinstance(place, str):
        place = _words(name, place, text)
    if isinstance(place, tuple):
        start, end = place
        pieces = [at for at, (first, last) in enumerate(spans) if first < end and last > start]
        if not pieces:
            raise InputError(f"no token of {text!r} lies in characters {start} to {end}, the place of {name}")
        return before + pieces[-1]
    if not -length <= place < length:
        raise InputError(f"no position {place} for {name} in {text!r}, which has {length} tokens")
    return place % length


def _words(name: str, words: str, text: str) -> Span:
    """The characters of words that occur once."""
    words = words.strip()
    starts = [at for at in range(len(text)) if words and text.startswith(words, at)]
    ends = [at + len(words) for at in starts]
    around = [(text[at - 1 : at], text[end : end + 1]) for at, end in zip(starts, ends, strict=True)]
    whole = [
        at for at, (before, after) in zip(starts, around, strict=True) if not (before.isalnum() or after.isalnum())
    ]
    if len(whole) != 1:
        how = f"occurs {len(whole)} times in" if whole else "is no word of"
        raise InputError(
            f"{words!r}, the place of {name}, {how} {text!r}: give its (first character, end), or in a table of pairs "
            f"mark it as {{{name}:{words}}}"
        )
    return whole[0], whole[0] + len(words)


def check_names(pairs: "Pairs", patch_site: "PatchSite", by: Sequence[str]) -> None:
    """Whether the axes that are asked for count the text whose positions have names.

    Raises:
        InputError: they count the other text.
    """
    stack = pairs.differing(patch_site.stack)
    for axis in {*POSITIONAL} & {*by} if pairs.positions else ():
        if patch_site.counted(axis) != stack:
            raise InputError(
                f"{', '.join(pairs.positions)} are positions of what the {stack} reads, and {axis} of "
                f"{patch_site.name(0)} counts the other text: leave positions out"
            )


def names_of(pairs: "Pairs", by: Sequence[str]) -> tuple[str, ...]:
    """The names that a table's position axes count, where they do."""
    return (*pairs.positions,) if {*POSITIONAL} & {*by} else ()


def columns_named(pairs: "Pairs") -> Int[Tensor, "name prompt"]:
    """The position of each name in each prompt."""
    return torch.stack([*pairs.positions.values()])


def wanted(pairs: "Pairs", prompts: Int[Tensor, " some"], by: Sequence[str], shape: Sequence[int]) -> np.ndarray:
    """Of a table of all cells those that some of the prompts name; all of them where there are no names."""
    found = np.ones(shape, dtype=bool)
    if not pairs.positions:
        return found
    columns = columns_named(pairs)[:, prompts.to(pairs.last.device)].unique().cpu().numpy()
    for at, axis in enumerate(by):
        if axis in POSITIONAL:
            named = np.isin(np.arange(shape[at]), columns)
            found &= named.reshape([-1 if other == at else 1 for other in range(len(shape))])
    return found


def by_name(
    table: Float[Tensor, "*cells prompt"] | Bool[Tensor, "*cells prompt"], by: Sequence[str], pairs: "Pairs"
) -> Tensor:
    """A table whose position axes count names: each prompt's own column of every name."""
    if pairs.positions:
        columns = columns_named(pairs).to(table.device)
        for at, axis in enumerate(by):
            if axis in POSITIONAL:
                moved = table.movedim(at, -2)
                table = moved.gather(-2, columns.expand(*moved.shape[:-2], -1, -1)).movedim(-2, at)
    return table


def of_names(
    table: Bool[np.ndarray, "*cells prompt"], by: Sequence[str], pairs: "Pairs", shape: Sequence[int]
) -> Bool[np.ndarray, "*all prompt"]:
    """The inverse for what is asked for: of all cells (`shape`) those that a prompt's names point to."""
    if not pairs.positions:
        return table
    columns = columns_named(pairs).cpu().numpy()
    found = np.zeros(shape, dtype=bool)
    for cell in np.argwhere(table):
        *where, prompt = cell.tolist()
        own = [columns[at, prompt] if axis in POSITIONAL else at for axis, at in zip(by, where, strict=True)]
        found[(*own, prompt)] = True
    return found

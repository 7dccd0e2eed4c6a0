"""Which token is S2? Places in a prompt, by position, word, span or function."""

from collections.abc import Callable, Mapping, Sequence
from typing import cast

from jaxtyping import Int
from torch import Tensor

from interp.errors import InputError
from interp.indices import is_number
from interp.tokens import Span

Place = int | str | Span | Callable[[str], int | str | Span]
"""A token of a prompt: its position (negative from the end), a word or words that occur once, (first character, the one
after the last), or a function of the prompt's text that gives one of these. Several tokens stand for their last."""
Places = Mapping[str, Place | list[Place] | Sequence[Place] | Int[Tensor, " prompt"]]
"""By name, one place for all prompts, or a list or tensor with one a prompt."""


def each_place(places: Places, n_prompts: int) -> dict[str, list[Place | None]]:
    """The places of each prompt.

    Raises:
        InputError: not one for all, or one for each.
    """
    found: dict[str, list[Place | None]] = {}
    for name, place in places.items():
        listed: list[Place | None] = []
        if isinstance(place, int | str | tuple) or is_number(place) or callable(place):
            listed.extend([cast(Place, place)] * n_prompts)
        else:
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
    if not is_number(place) or not -length <= place < length:
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

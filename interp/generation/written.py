"""What is edited and captured while text is written, pass after pass, and what is there in the end?

An edit has the effect that it would have if the whole text were read at once: it gets the columns of a pass, which are
put into the whole text's first if it selects positions or steps.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor

from interp.edits import Change, SelectiveEdit, on_a_copy, read_along
from interp.errors import InputError
from interp.model import Model, matching
from interp.running import Edits, captured, counted, in_turn
from interp.tap import Edit, Tap
from interp.tokens import Continued, TokenBatch, Tokenizer


@dataclass(frozen=True)
class Written:
    """What `generate` gives: the whole texts, padded on both sides where they differ in length.

    In `ids`, a text that has ended repeats its last token. Along positions, activations have one less than `tokens`:
    the last one was not read.
    """

    tokens: TokenBatch
    n_prompt: Int[Tensor, " prompt"]  # how many tokens each prompt had
    activations: dict[str, Tensor] = field(repr=False)  # by site
    tokenizer: Tokenizer | None = field(repr=False)
    source: TokenBatch | None = field(default=None, repr=False)  # what the encoder read, where there is one

    @property
    def ids(self) -> Int[Tensor, "prompt position"]:
        """Ids of the whole texts."""
        return self.tokens.ids

    @property
    def texts(self) -> list[str]:
        """The whole texts, special tokens left out; a model without a tokenizer has none."""
        return [_with(self.tokenizer).decode(ids) for ids in self.tokens.id_lists()]

    @property
    def continuations(self) -> list[str]:
        """What was written behind each prompt, as it reads after it."""
        tokenizer, parts = _with(self.tokenizer), []
        for ids, begun in zip(self.tokens.id_lists(), self.n_prompt.tolist(), strict=True):
            prompt, whole = tokenizer.decode(ids[:begun]), tokenizer.decode(ids)
            if not whole.startswith(prompt):  # a character that the prompt begins and what is written ends
                prompt = prompt.rstrip("\ufffd")
            parts.append(whole[len(prompt) :])
        return parts

    def __getitem__(self, site: str) -> Tensor:
        """The activation captured at `site`, with the axes of `sites(model)[site]` after `prompt`."""
        return captured(self.activations, site)


def _with(tokenizer: Tokenizer | None) -> Tokenizer:
    if tokenizer is None:
        raise InputError("this model has no tokenizer, so what it wrote is no text: read its `ids`")
    return tokenizer


class Watch:
    """Captures and edits of every pass in which a text is written."""

    def __init__(
        self,
        model: Model,
        capture: str | Iterable[str],
        edits: Sequence[Edits],
        text: Continued,
        source: TokenBatch | None,
    ):
        self.text = text
        self.now: dict[str, slice] = {}  # along each axis the columns of the text that a pass sees
        self._sites, self._capture = model.sites, frozenset(matching(model, capture))
        self._texts = {
            name: counted(model, name, text if source is None else source, None if source is None else text)
            for name in {*self._capture, *(name for group in edits for name in matching(model, [*group]))}
        }
        self._edits: dict[str, Edit] = {}
        for group in edits:
            of_names = {name: edit for pattern, edit in group.items() for name in matching(model, pattern)}
            for name, edit in of_names.items():
                self._edits[name] = in_turn(self._edits.get(name), self._in_a_pass(name, edit))
        self._seen: dict[str, list[Tensor]] = {}

    def tap(self, start: int, first: int, stop: int) -> Tap:
        """The tap of a pass with keys from `start` and queries from `first` to `stop`, which `keep` gets after it."""
        self.now = {"key": slice(start, stop)} | dict.fromkeys(("position", "query"), slice(first, stop))
        return Tap(self._capture, self._edits)

    def keep(self, tap: Tap, logits: Tensor, *, whole: bool) -> None:
        """Keep what a pass has captured; a `whole` pass has all that those before it had."""
        if idle := self._edits.keys() - tap.fired:
            raise InputError(f"these edits never fired: {', '.join(sorted(idle))}")
        if logits.ndim > 3 or logits.shape[0] != len(self.text.ids):
            raise InputError("an edit adds an axis before the prompts: give a prompt once for each change")
        for name, value in tap.activations.items():
            self._seen[name] = [*([] if whole else self._seen.get(name, [])), value]

    def captured(self) -> dict[str, Tensor]:
        """The captured activations of all columns that were read, by site, in the order of a call."""
        return {name: self._joined(name, self._seen[name]) for name in self._sites if name in self._seen}

    def _joined(self, name: str, parts: list[Tensor]) -> Tensor:
        site, width = self._sites[name], self.now["key"].stop
        axes = self._written_axes(name)
        query_axes = [axis for axis in axes if axis != "key"]
        if not query_axes:
            return parts[0]
        if "key" in axes:  # a key that was not there yet is one that is not seen
            unseen = -torch.inf if name.endswith(".scores") else 0.0
            parts = [F.pad(part, (0, width - part.shape[-1]), value=unseen) for part in parts]
        return torch.cat(parts, site.axes.index(query_axes[0]) - len(site.axes))

    def _written_axes(self, name: str) -> list[str]:
        """The axes of a site that count positions of the text that is written."""
        return [axis for axis in self._sites[name].axes if self._texts[name].get(axis) is self.text]

    def _in_a_pass(self, name: str, edit: Change | SelectiveEdit) -> Edit:
        if not isinstance(edit, SelectiveEdit):
            return on_a_copy(edit)
        site, texts = self._sites[name], self._texts[name]
        bound, text_axis = edit.bind(site, texts), read_along(site)
        selected = {*edit.axes} | ({text_axis} if "step" in edit.axes else set())
        axes = [axis for axis in self._written_axes(name) if axis in selected]
        if not axes:
            return bound
        columns = (
            {column for row in edit.entries(site, texts)[text_axis] for column in row} if text_axis in axes else None
        )

        def in_a_pass(value: Tensor) -> Tensor:
            if columns is not None and columns.isdisjoint(range(self.now[text_axis].start, self.now[text_axis].stop)):
                return value
            shape, region = [*value.shape], [slice(None)] * value.ndim
            for axis in axes:
                index = site.axes.index(axis) - len(site.axes)
                shape[index], region[index] = self.text.ids.shape[1], self.now[axis]
            whole = value.new_zeros(shape)  # as wide as the whole text
            whole[(*region,)] = value
            return bound(whole)[(*region,)]

        return in_a_pass

"""Edits and captures while text is written, pass after pass, and the result.

An edit has the same effect as in one pass over the whole text. It gets the columns of a pass; if it selects positions
or steps, these are put into the columns of the whole text first.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor

from interp.edits import Change, SelectiveEdit, on_a_copy, read_axis
from interp.errors import InputError
from interp.model import Model, matching
from interp.running import Edits, captured, counted, in_turn
from interp.tap import Edit, Tap
from interp.tokens import Continued, TokenBatch, Tokenizer


@dataclass(frozen=True)
class Written:
    """The result of `generate`: the whole texts, padded on both sides if they differ in length.

    In `ids`, a text that has ended repeats its last token. Activations have one position fewer than `tokens`, because
    the last token was not read.
    """

    tokens: TokenBatch
    n_prompt: Int[Tensor, " prompt"]  # tokens of each prompt
    activations: dict[str, Tensor] = field(repr=False)  # by site
    tokenizer: Tokenizer | None = field(repr=False)
    source: TokenBatch | None = field(default=None, repr=False)  # the encoder's text, if there is one

    @property
    def ids(self) -> Int[Tensor, "prompt position"]:
        """Ids of the whole texts."""
        return self.tokens.ids

    @property
    def texts(self) -> list[str]:
        """The whole texts, without special tokens; a model without a tokenizer has none."""
        return [_checked(self.tokenizer).decode(ids) for ids in self.tokens.id_lists()]

    @property
    def continuations(self) -> list[str]:
        """The text written after each prompt, as it reads there."""
        tokenizer, parts = _checked(self.tokenizer), []
        for ids, length in zip(self.tokens.id_lists(), self.n_prompt.tolist(), strict=True):
            prompt, text = tokenizer.decode(ids[:length]), tokenizer.decode(ids)
            if not text.startswith(prompt):  # a character begins in the prompt and ends after it
                prompt = prompt.rstrip("\ufffd")
            parts.append(text[len(prompt) :])
        return parts

    def __getitem__(self, site: str) -> Tensor:
        """The activation captured at `site`, with the axes of `sites(model)[site]` after `prompt`."""
        return captured(self.activations, site)


def _checked(tokenizer: Tokenizer | None) -> Tokenizer:
    if tokenizer is None:
        raise InputError("this model has no tokenizer, so it wrote no text: read its `ids`")
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
        self.now: dict[str, slice] = {}  # the columns of the current pass along each axis
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
        self._captured: dict[str, list[Tensor]] = {}

    def tap(self, start: int, first: int, stop: int) -> Tap:
        """The tap of a pass with keys from `start` and queries from `first` to `stop`; give it to `keep` after it."""
        self.now = {"key": slice(start, stop)} | dict.fromkeys(("position", "query"), slice(first, stop))
        return Tap(self._capture, self._edits)

    def keep(self, tap: Tap, logits: Tensor, *, whole: bool) -> None:
        """Keep what a pass has captured; a `whole` pass replaces those before it."""
        if idle := self._edits.keys() - tap.fired:
            raise InputError(f"these edits never fired: {', '.join(sorted(idle))}")
        if logits.ndim > 3 or logits.shape[0] != len(self.text.ids):
            raise InputError("an edit adds an axis before the prompts: give a prompt once for each change")
        for name, value in tap.activations.items():
            self._captured[name] = [*([] if whole else self._captured.get(name, [])), value]

    def captured(self) -> dict[str, Tensor]:
        """The captured activations of all columns, by site, in the order of a call."""
        return {name: self._joined(name, self._captured[name]) for name in self._sites if name in self._captured}

    def _joined(self, name: str, parts: list[Tensor]) -> Tensor:
        site, width = self._sites[name], self.now["key"].stop
        axes = self._written_axes(name)
        query_axes = [axis for axis in axes if axis != "key"]
        if not query_axes:
            return parts[0]
        if "key" in axes:  # a query does not see later keys
            unseen = -torch.inf if name.endswith(".scores") else 0.0
            parts = [F.pad(part, (0, width - part.shape[-1]), value=unseen) for part in parts]
        return torch.cat(parts, site.axes.index(query_axes[0]) - len(site.axes))

    def _written_axes(self, name: str) -> list[str]:
        """The axes of a site that count positions of the written text."""
        return [axis for axis in self._sites[name].axes if self._texts[name].get(axis) is self.text]

    def _in_a_pass(self, name: str, edit: Change | SelectiveEdit) -> Edit:
        if not isinstance(edit, SelectiveEdit):
            return on_a_copy(edit)
        site, texts = self._sites[name], self._texts[name]
        bound, text_axis = edit.bind(site, texts), read_axis(site)
        selected = {*edit.axes} | ({text_axis} if "step" in edit.axes else set())
        axes = [axis for axis in self._written_axes(name) if axis in selected]
        if not axes:
            return bound
        rows = edit.entries(site, texts)[text_axis] if text_axis in axes else []
        columns = {column for row in rows for column in row}

        def in_a_pass(value: Tensor) -> Tensor:
            now = self.now[text_axis]
            if text_axis in axes and columns.isdisjoint(range(now.start, now.stop)):
                return value
            shape, region = [*value.shape], [slice(None)] * value.ndim
            for axis in axes:
                index = site.axes.index(axis) - len(site.axes)
                shape[index], region[index] = self.text.ids.shape[1], self.now[axis]
            whole = value.new_zeros(shape)  # as wide as the whole text
            whole[(*region,)] = value
            return bound(whole)[(*region,)]

        return in_a_pass

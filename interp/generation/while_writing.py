"""Captures and edits while text is written, pass after pass over a few columns of one long text.

An edit has the effect that it would have if the whole text were read at once: it gets the columns of a pass, which are
put into the whole text's first if it selects positions or steps.
"""

from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from interp.edits import Change, SelectiveEdit, on_a_copy, read_along
from interp.errors import InputError
from interp.model import Model
from interp.running import Edits, counted, in_turn
from interp.sites import matching
from interp.tap import Edit, Tap
from interp.tokens import Continued, TokenBatch


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
        """The tap of a pass with keys from `start` and queries from `first` to `stop`, to be handed back to `keep`."""
        self.now = {"key": slice(start, stop)} | dict.fromkeys(("position", "query"), slice(first, stop))
        return Tap(self._capture, self._edits)

    def keep(self, tap: Tap, logits: Tensor, *, whole: bool) -> None:
        """Keep what a pass has captured; a `whole` pass has all that those before it had."""
        if idle := self._edits.keys() - tap.fired:
            raise InputError(f"these edits never fired: {', '.join(sorted(idle))}")
        if logits.ndim > 3 or logits.shape[0] != len(self.text.ids):
            raise InputError("an edit adds an axis before the prompts: give a prompt once for each change")
        for name, value in tap.seen.items():
            self._seen[name] = [*([] if whole else self._seen.get(name, [])), value]

    def captured(self) -> dict[str, Tensor]:
        """The captured activations of all columns that were read, by site, in the order of a call."""
        return {name: self._joined(name, self._seen[name]) for name in self._sites if name in self._seen}

    def _joined(self, name: str, parts: list[Tensor]) -> Tensor:
        site, width = self._sites[name], self.now["key"].stop
        grown = self._written_axes(name)
        read = [axis for axis in grown if axis != "key"]
        if not read:
            return parts[0]
        if "key" in grown:  # a key that did not stand there yet is one that is not seen
            unseen = -torch.inf if name.endswith(".scores") else 0.0
            parts = [F.pad(part, (0, width - part.shape[-1]), value=unseen) for part in parts]
        return torch.cat(parts, site.axes.index(read[0]) - len(site.axes))

    def _written_axes(self, name: str) -> list[str]:
        """The axes of a site that count positions of the text that is written."""
        return [axis for axis in self._sites[name].axes if self._texts[name].get(axis) is self.text]

    def _in_a_pass(self, name: str, edit: Change | SelectiveEdit) -> Edit:
        if not isinstance(edit, SelectiveEdit):
            return on_a_copy(edit)
        site, texts = self._sites[name], self._texts[name]
        bound = edit.bind(site, texts)
        read = read_along(site)
        named = {*edit.where} | ({read} if "step" in edit.where else set())
        placed = [axis for axis in self._written_axes(name) if axis in named]
        if not placed:
            return bound
        columns = {at for row in edit.selection(site, texts)[read] for at in row} if read in placed else None

        def in_a_pass(value: Tensor) -> Tensor:
            if columns is not None and columns.isdisjoint(range(self.now[read].start, self.now[read].stop)):
                return value
            shape, within = [*value.shape], [slice(None)] * value.ndim
            for axis in placed:
                index = site.axes.index(axis) - len(site.axes)
                shape[index], within[index] = self.text.ids.shape[1], self.now[axis]
            whole = value.new_zeros(shape)  # as wide as the whole text
            whole[(*within,)] = value
            return bound(whole)[(*within,)]

        return in_a_pass

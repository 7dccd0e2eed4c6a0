"""A model with edits bound to it, for several calls; the model itself stays as it is."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from interp.config import TransformerConfig
from interp.errors import InputError
from interp.model import Model, Site
from interp.places import matching
from interp.running import Edits, Tokens, as_batches, bound
from interp.tap import UNTAPPED, Edit, Tap
from interp.tokens import TokenBatch, Tokenizer


class Edited:
    """What `edited` gives: it runs as `model` does with `edits` in every call, and is no part of it.

    It is a `Model`: `run`, `loss`, `generate`, the measures and every plain way take it. What calls a model's parts
    one at a time refuses it.
    """

    def __init__(self, model: Model, edits: Edits):
        self.model, self.edits = model, dict(edits)

    @property
    def config(self) -> TransformerConfig:
        """The model's."""
        return self.model.config

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The model's."""
        return self.model.tokenizer

    @property
    def target_tokenizer(self) -> Tokenizer | None:
        """The model's."""
        return self.model.target_tokenizer

    @property
    def sites(self) -> Mapping[str, Site]:
        """The model's."""
        return self.model.sites

    @property
    def device(self) -> torch.device:
        """The model's."""
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        """The model's."""
        return self.model.dtype

    def __call__(
        self, batch: Tokens, tap: Tap = UNTAPPED, target: Tokens | None = None
    ) -> Float[Tensor, "*batch position d_vocab"] | None:
        """Logits, as the model gives them with the edits; a call's own edit of a site comes after the bound one."""
        if not isinstance(batch, TokenBatch):
            batch, target = as_batches(self, batch, target)
        assert target is None or isinstance(target, TokenBatch)
        own = bound(self.model, self.edits, batch, target)
        both = {**tap.edit, **{name: _in_turn(edit, tap.edit.get(name)) for name, edit in own.items()}}
        inner = replace(tap, edit=both, fired=set())
        try:
            return self.model(batch, inner, target)
        finally:
            tap.fired.update(inner.fired & tap.edit.keys())


def _in_turn(first: Edit, then: Edit | None) -> Edit:
    return first if then is None else lambda value: then(first(value))


def edited(model: Model, edit: Edits) -> Edited:
    """`model` with `edit` in every call, to be used like a model; `model` itself stays as it is.

    Args:
        model: a transformer, or whatever runs as one; an edited one too: the new edits come after the old.
        edit: as in `run`. Positions are counted in each call's own texts. What is returned can be pickled if its
            functions can: those of a module, no lambdas.

    Raises:
        InputError: unknown sites, no edits.
    """
    if not edit:
        raise InputError("expected edits by site ({'decoder.1.attn.z': zero(head=7)}), got none")
    matching(model, [*edit])
    return Edited(model, edit)

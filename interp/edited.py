"""A model with edits bound to it, for several calls; the model itself stays as it is."""

from collections.abc import Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from interp.config import TransformerConfig
from interp.errors import InputError
from interp.model import Model, Site
from interp.model_inputs import Tokens, as_batches
from interp.running import Edits, bound
from interp.sites import matching
from interp.tap import UNTAPPED, Edit, Tap
from interp.tokens import TokenBatch, Tokenizer


def _of_model(name: str) -> Any:
    """A property that is the model's."""
    return property(attrgetter(f"model.{name}"))


class Edited:
    """What `edited` gives: it runs as `model` does with `edits` in every call, and is no part of it.

    It is a `Model`: `run`, `loss`, `generate`, the measures and every plain way take it. What calls a model's parts
    one at a time refuses it.
    """

    def __init__(self, model: Model, edits: Edits):
        self.model, self.edits = model, dict(edits)

    config: TransformerConfig = _of_model("config")
    tokenizer: Tokenizer | None = _of_model("tokenizer")
    target_tokenizer: Tokenizer | None = _of_model("target_tokenizer")
    sites: Mapping[str, Site] = _of_model("sites")
    device: torch.device = _of_model("device")
    dtype: torch.dtype = _of_model("dtype")

    def __call__(
        self, batch: Tokens, tap: Tap = UNTAPPED, target: Tokens | None = None
    ) -> Float[Tensor, "*batch position d_vocab"] | None:
        """Logits, as the model gives them with the edits; a call's own edit of a site comes after the bound one."""
        if not isinstance(batch, TokenBatch):
            batch, target = as_batches(self, batch, target)
        assert target is None or isinstance(target, TokenBatch)
        edits = bound(self.model, self.edits, batch, target)
        both = {**tap.edit, **{name: in_turn(edit, tap.edit.get(name)) for name, edit in edits.items()}}
        inner = replace(tap, edit=both, fired=set())
        try:
            return self.model(batch, inner, target)
        finally:
            tap.fired.update(inner.fired & tap.edit.keys())


def in_turn(first: Edit | None, then: Edit | None) -> Edit:
    """Both edits of a site, where there are two."""
    if first is None or then is None:
        return first or then or (lambda value: value)
    return lambda value: then(first(value))


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

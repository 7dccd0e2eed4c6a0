"""One call of a model that reads and changes what it is asked to, and leaves nothing behind."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

import torch
from jaxtyping import Float
from torch import Tensor

from interp.edits import SelectiveEdit
from interp.errors import InputError
from interp.places import matching, sites
from interp.tap import Edit, Tap
from interp.tokens import TokenBatch
from interp.transformer import Transformer

Tokens = str | Sequence[str] | TokenBatch | Tensor


@dataclass(frozen=True)
class Run:
    """What one call gave: the tokens it read, its logits, and the captured activations by site."""

    tokens: TokenBatch
    activations: dict[str, Tensor] = field(repr=False)
    _logits: Tensor | None = field(repr=False)

    @property
    def logits(self) -> Float[Tensor, "*batch position d_vocab"]:
        """Scores of the next token at every position.

        Raises:
            InputError: the model has no output layer.
        """
        if self._logits is None:
            raise InputError("this model has no output layer, so it has no logits; read its `resid_final` instead")
        return self._logits

    def __getitem__(self, site: str) -> Tensor:
        """The activation captured at `site`."""
        if site not in self.activations:
            near = get_close_matches(site, self.activations, n=1)
            hint = (
                f"; did you mean {near[0]!r}?" if near else f" (captured: {', '.join(self.activations) or 'nothing'})"
            )
            raise InputError(f"{site!r} was not captured: name it in run(..., capture=...){hint}")
        return self.activations[site]


def run(
    model: Transformer,
    tokens: Tokens,
    capture: str | Iterable[str] = (),
    edit: Mapping[str, Edit | SelectiveEdit] | None = None,
    *,
    grad: bool = False,
) -> Run:
    """Run `model` on `tokens`, keeping the activations that `capture` names and changing those that `edit` names.

    Args:
        model: a transformer.
        tokens: a text, texts, a `TokenBatch`, or ids (`prompt position`, taken as they are).
        capture: names or globs of sites (`"decoder.*.attn.pattern"`); `interp.sites(model)` lists them.
        edit: for a site (or glob), a function of its value, or a ready-made one (`zero(head=5)`); a new leading axis
            that it adds is carried through the rest of the pass. Edits come before captures.
        grad: keep gradients.

    Returns:
        Run: `.logits` are `prompt position d_vocab`, `[site]` has the axes of `sites(model)[site]` after `prompt`.

    Raises:
        InputError: unknown sites, edits that change a shape or never fire, texts that do not fit the model.
    """
    batch = as_batch(model, tokens)
    known = sites(model)
    edits: dict[str, Edit] = {}
    for pattern, change in (edit or {}).items():
        for name in matching(model, pattern):
            edits[name] = change.bind(known[name]) if isinstance(change, SelectiveEdit) else change
    tap = Tap(capture=frozenset(matching(model, capture)), edit=edits)
    with torch.set_grad_enabled(grad):
        logits = model(batch, tap)
    if idle := edits.keys() - tap.fired:
        raise InputError(f"these edits never fired: {', '.join(sorted(idle))}")
    return Run(batch, tap.seen, logits)


def as_batch(model: Transformer, tokens: Tokens) -> TokenBatch:
    """`tokens` as a batch on the model's device.

    Raises:
        InputError: text without a tokenizer, a text longer than the context, ids outside the vocabulary.
    """
    if isinstance(tokens, TokenBatch):
        batch = tokens
    elif isinstance(tokens, Tensor):
        batch = TokenBatch.from_ids(tokens)
    elif model.tokenizer is None:
        raise InputError("this model has no tokenizer: give ids (a tensor, prompt x position) instead of text")
    else:
        batch = TokenBatch.from_texts([tokens] if isinstance(tokens, str) else tokens, model.tokenizer)
    n_ctx, d_vocab = model.config.n_ctx, model.config.d_vocab
    longest = int(batch.lengths.max())
    if longest > n_ctx:
        raise InputError(f"a text of {longest} tokens is longer than the model's context of {n_ctx}: shorten it")
    low, high = int(batch.ids.min()), int(batch.ids.max())
    if low < 0 or high >= d_vocab:
        raise InputError(f"token ids must lie in 0-{d_vocab - 1}, the model's vocabulary; got {low} to {high}")
    return batch.to(model.device)

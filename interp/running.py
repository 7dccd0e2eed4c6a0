"""One call of a model that reads and changes what it is asked to, and leaves nothing behind."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches

import torch
from jaxtyping import Float
from torch import Tensor

from interp.edits import SelectiveEdit
from interp.errors import InputError
from interp.model import Model
from interp.places import matching
from interp.tap import AllSeen, Edit, Tap
from interp.tokens import Text, TokenBatch, Tokenizer

Tokens = str | Sequence[Text] | TokenBatch | Tensor


@dataclass(frozen=True)
class Run:
    """What one call gave: the tokens it read, its logits, and the captured activations by site."""

    tokens: TokenBatch
    activations: dict[str, Tensor] = field(repr=False)
    _logits: Tensor | None = field(repr=False)
    target: TokenBatch | None = None  # what the decoder read, where there is an encoder
    ended: str | None = None  # the site with which the pass ended, where it did before its end

    @property
    def logits(self) -> Float[Tensor, "*batch position d_vocab"]:
        """Scores of the next token at every position.

        Raises:
            InputError: the model has no output layer, or the pass ended before it.
        """
        if self._logits is None and self.ended is not None:
            raise InputError(f"this pass ended with {self.ended!r}, before it had logits: run without `until`")
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
    model: Model,
    tokens: Tokens,
    capture: str | Iterable[str] = (),
    edit: Mapping[str, Edit | SelectiveEdit] | None = None,
    *,
    target: Tokens | None = None,
    until: str | None = None,
    grad: bool = False,
) -> Run:
    """Run `model` on `tokens`, keeping the activations that `capture` names and changing those that `edit` names.

    Args:
        model: a transformer, or whatever runs as one (`interp.model.Model`).
        tokens: a text, a list of texts, a `TokenBatch`, or ids (`prompt position`, taken as they are). In a list, a
            pair of texts (`[("He left.", "She stayed.")]`) is read as one, put together as the tokenizer says.
        capture: names or globs of sites (`"decoder.*.attn.pattern"`); `interp.sites(model)` lists them.
        edit: for a site (or glob), a function of its value, or a ready-made one (`zero(head=5)`); a new leading axis
            that it adds is carried through the rest of the pass. Edits come before captures.
        target: what the decoder reads where there is an encoder, which reads `tokens`: ids are taken as they are, text
            gets the decoder's start id before it. One for each text, or one for all.
        until: a name or glob of sites that are captured too, with the last of which the pass ends: what the model would
            go on to compute is not computed, and there are no logits.
        grad: keep gradients.

    Returns:
        Run: `.logits` are `prompt position d_vocab`, of the target where there is one; `[site]` has the axes of
            `sites(model)[site]` after `prompt`.

    Raises:
        InputError: unknown sites, edits that change a shape or never fire, texts that do not fit the model, a target
            that is missing, not wanted, or not one for each text; sites that `until` ends the pass before.
    """
    batch, decoded = as_batches(model, tokens, target)
    known = model.sites
    edits: dict[str, Edit] = {}
    for pattern, change in (edit or {}).items():
        for name in matching(model, pattern):
            edits[name] = (
                change.bind(known[name], counted(model, name, batch, decoded))
                if isinstance(change, SelectiveEdit)
                else change
            )
    wanted, last = matching(model, capture), [] if until is None else matching(model, until)
    tap = Tap(frozenset([*wanted, *last]), edits, frozenset(last))
    logits = None
    with torch.set_grad_enabled(grad), suppress(AllSeen):
        logits = model(batch, tap, decoded)
    ended = "" if until is None else f" before the pass ended with {until!r}"
    if idle := edits.keys() - tap.fired:
        raise InputError(f"these edits never fired{ended}: {', '.join(sorted(idle))}")
    if missed := tap.capture - tap.seen.keys():
        raise InputError(f"these sites were not passed{ended}: {', '.join(sorted(missed))}")
    return Run(batch, tap.seen, tap.seen.get("logits", logits), decoded, until)


def counted(model: Model, site: str, batch: TokenBatch, decoded: TokenBatch | None) -> dict[str, TokenBatch]:
    """The text whose positions each axis of a site counts; keys of cross-attention are the encoder's."""
    first = next(iter(model.config.stacks))
    own = batch if decoded is None or site.startswith(f"{first}.") else decoded
    keys = batch if ".cross_attn." in site else own
    return {"position": keys if site.endswith((".k", ".v")) else own, "query": own, "key": keys}


def as_batches(model: Model, tokens: Tokens, target: Tokens | None) -> tuple[TokenBatch, TokenBatch | None]:
    """What the first stack reads and, where there are two, what the decoder reads.

    Raises:
        InputError: as `as_batch`; a target that is missing, not wanted, or not one for each text.
    """
    batch, n_stacks = as_batch(model, tokens, pairs=True), len(model.config.stacks)
    if n_stacks == 1:
        if target is not None:
            raise InputError("this model has one stack, which reads one text: expected no target")
        return batch, None
    if target is None:
        raise InputError(
            "this model has an encoder and a decoder: give target=, what the decoder reads (a text, or ids that begin "
            f"with its start id {model.config.target_start})"
        )
    decoded = as_target(model, target)
    n_texts = len(batch.ids)
    if len(decoded.ids) not in {1, n_texts}:
        raise InputError(f"expected one target for each of {n_texts} texts, or one for all; got {len(decoded.ids)}")
    return batch, decoded if len(decoded.ids) == n_texts else decoded.repeated(n_texts)


def as_target(model: Model, target: Tokens) -> TokenBatch:
    """`target` as the decoder reads it: text with the decoder's start id before it and no end after it.

    Raises:
        InputError: as `as_batch`.
    """
    if not isinstance(target, TokenBatch | Tensor):
        texts = [target] if isinstance(target, str) else target
        if not all(isinstance(text, str) for text in texts):
            raise InputError("a decoder reads single texts: expected no pair of texts as a target")
        target = TokenBatch.from_texts(texts, target_tokenizer(model))
    return as_batch(model, target, "decoder")


def target_tokenizer(model: Model) -> Tokenizer:
    """What makes a decoder's input of text: its start id, what stands before every target, and no end.

    Raises:
        InputError: the model has no tokenizer, or no start id.
    """
    tokenizer, start = model.target_tokenizer, model.config.target_start
    if tokenizer is None or start is None:
        lacking = "tokenizer" if tokenizer is None else "start id"
        raise InputError(f"this model has no {lacking} for its decoder: give target ids instead of text")
    # twice where targets begin with the start id itself: in training the start id stood before whole targets
    return tokenizer.around((start, *tokenizer.prefix), ())


def as_batch(model: Model, tokens: Tokens, stack: str | None = None, *, pairs: bool = False) -> TokenBatch:
    """`tokens` as a batch on the model's device, as `stack` reads it, by default the first.

    Raises:
        InputError: text without a tokenizer, a text longer than the context, ids outside the vocabulary, pairs of texts
            that the model tells apart where `pairs` are not expected.
    """
    if isinstance(tokens, TokenBatch):
        batch = tokens
    elif isinstance(tokens, Tensor):
        batch = TokenBatch.from_ids(tokens)
    elif model.tokenizer is None:
        raise InputError("this model has no tokenizer: give ids (a tensor, prompt x position) instead of text")
    else:
        batch = TokenBatch.from_texts([tokens] if isinstance(tokens, str) else tokens, model.tokenizer)
    config = model.config.stacks[stack or next(iter(model.config.stacks))]
    n_ctx, d_vocab = config.n_ctx, config.d_vocab
    longest = int(batch.lengths.max())
    if longest > n_ctx:
        raise InputError(f"a text of {longest} tokens is longer than the model's context of {n_ctx}: shorten it")
    low, high = int(batch.ids.min()), int(batch.ids.max())
    if low < 0 or high >= d_vocab:
        raise InputError(f"token ids must lie in 0-{d_vocab - 1}, the model's vocabulary; got {low} to {high}")
    return _segmented(batch, config.n_token_types, pairs=pairs).to(model.device)


def _segmented(batch: TokenBatch, n_token_types: int, *, pairs: bool) -> TokenBatch:
    """The batch with segments only where a model tells them apart."""
    if batch.segments is None:
        return batch
    if n_token_types < 2:
        return replace(batch, segments=None)
    if not pairs:
        raise InputError("pairs of texts are read by `run` alone: give single texts here")
    if int(batch.segments.min()) < 0 or int(batch.segments.max()) >= n_token_types:
        raise InputError(f"segments must lie in 0-{n_token_types - 1}, got up to {int(batch.segments.max())}")
    return batch

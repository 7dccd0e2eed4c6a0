"""How does one call of a model capture and edit activations, and leave nothing behind?"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from interp.config import StackConfig, TransformerConfig
from interp.display import DataFrame, Figure, Result, draw_figure, listed, so_many, viewed
from interp.edits import Change, SelectiveEdit, on_a_copy
from interp.errors import InputError
from interp.model import OF_KEYS, Model, Site, Tokens, as_batches, check_model, matching, split_name
from interp.tap import UNTAPPED, AllCaptured, Edit, Tap
from interp.tokens import TokenBatch, Tokenizer, describe

_N_TRIED = 16  # tokens on which a model is tried for numbers that are not finite
Edits = Mapping[str, Change | SelectiveEdit]  # by a site's name or a glob


class ShownPattern(NamedTuple):
    """One prompt's pattern of each head in a layer, and the tokens of its queries and keys."""

    pattern: Float[np.ndarray, "head query key"]
    queries: tuple[str, ...]
    keys: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class Run(Result):
    """The result of one call: the tokens it read, its logits, and the captured activations by site."""

    tokens: TokenBatch
    activations: dict[str, Tensor] = field(repr=False)
    _logits: Tensor | None = field(repr=False)
    target: TokenBatch | None = None  # the decoder's text, if there is an encoder
    ended: str | None = None  # the site after which the pass ended, if it ended early
    model: Model | None = field(default=None, repr=False)  # the model that ran

    @property
    def logits(self) -> Float[Tensor, "*batch position d_vocab"]:
        """Scores of the next token at every position."""
        if self._logits is None and self.ended is not None:
            raise InputError(f"this pass ended with {self.ended!r}, before it had logits: run without `until`")
        if self._logits is None:
            raise InputError("this model has no output layer, so it has no logits; read its `resid_final` instead")
        return self._logits

    def __getitem__(self, site: str) -> Tensor:
        """The activation captured at `site`."""
        return captured(self.activations, site)

    def table(self) -> DataFrame:
        """One row a prompt and position of the text that has logits, without padding.

        Columns are `prompt, position, id, token`. With logits also `predicted_id, predicted, probability` of the most
        probable token there, and in a causal model `log_probability` of the token given those before it, in nats
        (missing for the first).
        """
        import pandas as pd  # noqa: PLC0415 (`import interp` need not wait for it)

        batch = self.tokens if self.target is None else self.target
        prompt, column = (each.cpu() for each in batch.mask.nonzero(as_tuple=True))
        ids, position = batch.ids.cpu()[prompt, column], batch.positions.cpu()[prompt, column].numpy()
        table: dict[str, Any] = {"prompt": prompt.numpy(), "position": position, "id": ids.numpy()}
        table["token"] = self._labels(ids.tolist(), batch)
        if self._logits is None:
            return pd.DataFrame(table)
        if self._logits.shape[:-1] != batch.ids.shape:
            raise InputError(f"logits of shape {tuple(self._logits.shape)} have no table: an edit added axes")
        logs = self._logits.detach().cpu().double().log_softmax(-1)
        best = logs[prompt, column].max(-1)
        table |= {"predicted_id": best.indices.numpy(), "predicted": self._labels(best.indices.tolist(), batch)}
        table["probability"] = best.values.exp().numpy()
        if self.model is not None and self.model.config.last.causal:
            log_probability = logs[prompt, (column - 1).clamp(min=0), ids].numpy()
            table["log_probability"] = np.where(position == 0, np.nan, log_probability)
        return pd.DataFrame(table)

    def figure(self, site: str | None = None, prompt: int = 0, **options: Any) -> Figure:
        """The attention of each head in a captured pattern, by default the first; without one, the tokens' losses.

        `options` are those of `analyses.figures.best_heads` or `token_bars`: `title`, `width`, `font_size`, `ax`, ...
        """
        self._check_prompt(prompt)
        site = site or next((name for name in self.activations if name.endswith(".pattern")), None)
        if site is None:
            table = self.table()
            if "log_probability" not in table:
                raise InputError("nothing to draw: capture a pattern (capture='*.attn.pattern'), or run a causal model")
            return draw_figure("token_bars", table.loc[table["prompt"] == prompt], **options)
        view, (stack, layer, _) = self.shown_pattern(site, prompt), split_name(site)
        place = "cross-attention " if ".cross_attn." in site else f"{stack} " if self.target is not None else ""
        heads = {f"{place}L{layer}.H{head}": pattern for head, pattern in enumerate(view.pattern)}
        labels = {"label": "attention", "axes_labels": ("from", "to"), "heading": "Where does each head look?"}
        return draw_figure("best_heads", heads, queries=view.queries, keys=view.keys, **{**labels, **options})

    def shown_pattern(self, site: str, prompt: int = 0) -> ShownPattern:
        """The captured pattern of one prompt, without padding, and the tokens of its rows and columns."""
        if not site.endswith(".pattern") or self[site].ndim != 4:
            raise InputError(f"{site!r} is not an attention pattern of single prompts: expected one of `attn.pattern`")
        self._check_prompt(prompt)
        pattern = self[site][prompt].detach().float().cpu().numpy()
        text = self.tokens if self.target is None or site.startswith("encoder.") else self.target
        batches = text, self.tokens if ".cross_attn." in site else text
        rows, columns = (batch.mask[prompt].cpu().numpy() for batch in batches)
        return ShownPattern(pattern[:, rows][:, :, columns], *(self._names(batch, prompt) for batch in batches))

    def _check_prompt(self, prompt: int) -> None:
        if not 0 <= prompt < len(self.tokens.ids):
            raise InputError(f"no prompt {prompt}: this run has prompts 0-{len(self.tokens.ids) - 1}")

    def _names(self, batch: TokenBatch, prompt: int) -> tuple[str, ...]:
        ids = batch.ids[prompt, batch.mask[prompt]].tolist()
        return tuple(str(id) if name is None else name for id, name in zip(ids, self._labels(ids, batch), strict=True))

    def _labels(self, ids: Sequence[int], batch: TokenBatch) -> Sequence[str | None]:
        """Tokens of one of the texts as a person reads them; None without a tokenizer."""
        tokenizer = getattr(self.model, "target_tokenizer" if batch is self.target else "tokenizer", None)
        return [None] * len(ids) if tokenizer is None else tokenizer.labels(ids)

    def _repr_html_(self) -> str:
        has_pattern = any(name.endswith(".pattern") for name in self.activations)
        return super()._repr_html_() + (viewed(self) if has_pattern else "")

    def facts(self) -> tuple[str, Mapping[str, str]]:
        """The texts, the shape of the logits, and the captured sites."""
        facts = {"read": describe(self.tokens)}
        if self.target is not None:
            facts["target"] = describe(self.target)
        facts["logits"] = "none" if self._logits is None else " x ".join(map(str, self._logits.shape))
        if self.ended is not None:
            facts["ended with"] = self.ended
        shapes: dict[str, list[str]] = {}
        for name, value in self.activations.items():
            shapes.setdefault(" x ".join(map(str, value.shape)), []).append(name)
        facts |= {f"captured {shape}": listed(names) for shape, names in shapes.items()}
        return f"Run of {so_many(len(self.tokens.ids), 'prompt')}", facts


def captured(activations: Mapping[str, Tensor], site: str) -> Tensor:
    """The activation at `site`."""
    if site not in activations:
        near = get_close_matches(str(site), activations, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f" (captured: {', '.join(activations) or 'nothing'})"
        raise InputError(f"{site!r} was not captured: name it in the call's capture=...{hint}")
    return activations[site]


def run(
    model: Model,
    tokens: Tokens,
    capture: str | Iterable[str] = (),
    edit: Edits | None = None,
    *,
    target: Tokens | None = None,
    until: str | None = None,
    grad: bool = False,
) -> Run:
    """Run `model` on `tokens`, keep the activations that `capture` names and change those that `edit` names.

    Args:
        model: a transformer, or anything that runs like one (`interp.model.Model`).
        tokens: a text, a list of texts, a `TokenBatch`, or ids (`prompt position`, taken as they are).
        capture: names or globs of sites (`"decoder.*.attn.pattern"`); `interp.sites(model)` lists them.
        edit: by site (or glob), a function of its value, or a ready-made edit (`zero(head=5)`). The rest of the pass
            keeps a new leading axis that it adds. A function that returns None leaves the value as it is. Edits come
            before captures.
        target: the decoder's text if there is an encoder: ids are taken as they are, text gets the decoder's start id
            before it. One for each text, or one for all.
        until: a name or glob of sites to capture too; the pass ends with the last of them, without logits.
        grad: keep gradients.

    Returns:
        Run: `.logits` are `prompt position d_vocab`, of the target if there is one; `[site]` has the axes of
            `sites(model)[site]` after `prompt`.

    Raises:
        InputError: unknown sites, edits that change a shape or never fire, texts or targets that do not fit the model,
            sites that the pass does not reach.
    """
    batch, decoded = as_batches(model, tokens, target)
    edits = bound(model, edit or {}, batch, decoded)
    last = [] if until is None else matching(model, until)
    tap = Tap(frozenset([*matching(model, capture), *last]), edits, frozenset(last))
    logits = None
    with torch.set_grad_enabled(grad), suppress(AllCaptured):
        logits = model(batch, tap, decoded)
    ended = "" if until is None else f" before the pass ended with {until!r}"
    if idle := edits.keys() - tap.fired:
        raise InputError(f"these edits never fired{ended}: {', '.join(sorted(idle))}")
    if missed := tap.capture - tap.activations.keys():
        raise InputError(f"these sites were not passed{ended}: {', '.join(sorted(missed))}")
    return Run(batch, tap.activations, tap.activations.get("logits", logits), decoded, until, model)


def bound(model: Model, edits: Edits, batch: TokenBatch, decoded: TokenBatch | None) -> dict[str, Edit]:
    """Each site's edit in a call that reads these texts; the last one wins."""
    if not isinstance(edits, Mapping):
        raise InputError(f'expected edits by site, as {{"decoder.0.attn.z": zero(head=5)}}; got {edits!r}')
    sites = model.sites
    return {
        name: change.bind(sites[name], counted(model, name, batch, decoded))
        if isinstance(change, SelectiveEdit)
        else on_a_copy(change)
        for pattern, change in edits.items()
        for name in matching(model, pattern)
    }


def counted(model: Model, site: str, batch: TokenBatch, decoded: TokenBatch | None) -> dict[str, TokenBatch]:
    """The text whose positions each axis of a site counts; cross-attention's keys are the encoder's."""
    first = next(iter(model.config.stacks))
    text = batch if decoded is None or site.startswith(f"{first}.") else decoded
    keys = batch if ".cross_attn." in site else text
    return {"position": keys if site.endswith(OF_KEYS) else text, "query": text, "key": keys}


def _of_model(name: str) -> Any:
    return property(attrgetter(f"model.{name}"))


class Edited:
    """A `Model` that runs `model` with `edits` in every call; whatever calls a model's parts singly refuses it."""

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
        """The model's logits with the edits; a call's own edit of a site comes after the bound one."""
        if not isinstance(batch, TokenBatch):
            batch, target = as_batches(self, batch, target)
        assert target is None or isinstance(target, TokenBatch)
        edits = bound(self.model, self.edits, batch, target)
        edits |= {name: in_turn(edits.get(name), edit) for name, edit in tap.edit.items()}
        inner = replace(tap, edit=edits, fired=set())
        try:
            return self.model(batch, inner, target)
        finally:
            tap.fired.update(inner.fired & tap.edit.keys())


def in_turn(first: Edit | None, second: Edit) -> Edit:
    """Both edits of a site, or the second alone."""
    return second if first is None else lambda value: second(first(value))


def edited(model: Model, edit: Edits) -> Edited:
    """`model` with `edit` (as in `run`) in every call, for use like a model; `model` itself stays as it is.

    If `model` is edited already, the new edits come after the old. Positions are counted in each call's texts.
    """
    if not edit:
        raise InputError("expected edits by site ({'decoder.1.attn.z': zero(head=7)}), got none")
    matching(model, [*edit])
    return Edited(model, edit)


def check_finite(model: Model, tokens: Tensor | None = None, target: Tensor | None = None) -> None:
    """Refuse a model that computes NaN or infinity, and name the first such site and any such weight.

    `tokens` and `target` are ids without padding; by default a few random ones.
    """
    check_model(model)
    first, last = next(iter(model.config.stacks.values())), model.config.last
    tokens = _random_ids(first) if tokens is None else tokens
    if len(model.config.stacks) > 1 and target is None:
        target = _random_ids(last)
    named = model.named_parameters() if isinstance(model, nn.Module) else ()
    for site, value in run(model, tokens, tuple(model.sites), target=target).activations.items():
        infinite = value.isposinf() if site.endswith(".scores") else value.isinf()  # masked scores are -infinity
        if bool((value.isnan() | infinite).any()):
            kind = "NaN" if bool(value.isnan().any()) else "infinite numbers"
            is_low = model.dtype in {torch.float16, torch.bfloat16}
            advice = "load it as torch.float32" if is_low else "check the weights and config.json"
            weights = (name for name, weight in named if not bool(weight.isfinite().all()))
            cause = f"the weight {name} is not finite, so " if (name := next(weights, None)) else ""
            raise InputError(f"{cause}{site} holds {kind}, computed in {model.dtype}: {advice}")


def _random_ids(config: StackConfig) -> Tensor:
    size = (1, min(_N_TRIED, config.n_ctx))
    return torch.randint(config.d_vocab, size, generator=torch.Generator().manual_seed(0))

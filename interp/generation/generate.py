"""How does a model continue a text? On a key/value cache: each step computes one new position."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.attention import KVCache
from interp.errors import InputError, whole_number
from interp.generation.written import Watch, Written
from interp.model import Model, Tokens, as_batches, check_model
from interp.running import Edited, Edits, check_finite
from interp.tap import Tap
from interp.tokens import Continued, TokenBatch, text_positions
from interp.transformer import Transformer
from interp.visibility import Source, Visibility

Stop = int | str | Collection[int | str] | None


def generate(
    model: Model,
    prompt: Tokens,
    max_new_tokens: int = 100,
    *,
    target: Tokens | None = None,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    repetition_penalty: float = 1.0,
    stop: Stop = None,
    seed: int = 0,
    edit: Edits | None = None,
    capture: str | Iterable[str] = (),
) -> Written:
    """Continue each prompt by up to `max_new_tokens` tokens.

    When the context is full the oldest token leaves and the rest is read anew: every position is then one less.

    An encoder reads the prompts once, and the result is the decoder's text, from its start id on. It follows
    `model.config.writing` (ids that are written first, last and never, or end a text), and ends when the decoder's
    context is full. Other strategies in a model's files (beams, penalties) are ignored.

    Args:
        model: a decoder, with or without an encoder; the edits of an `edited` model come before `edit`.
        prompt: a text, texts, or ids, of any lengths. Shorter ones are padded on the left.
        max_new_tokens: the most tokens to add.
        target: with an encoder, the decoder's text so far; by default the id it begins with.
        temperature: 0 takes the likeliest token (greedy); above, logits are divided by it and a token is drawn.
        top_k: draw among the k likeliest only.
        top_p: draw among the fewest tokens whose probabilities add up to p (nucleus sampling, Holtzman 2020).
        repetition_penalty: divides the logits of tokens that the text has already, or multiplies them below 0, before
            all else (Keskar 2019); 1 is none.
        stop: ids or strings that end a text when they are written. The text keeps them, and repeats its last token
            until all have ended. By default the ids of `model.config.writing`.
        seed: of each prompt's draws, the same alone and in any batch. Copies of a prompt differ.
        edit: as in `run`, as if it read the whole text at once. Negative positions count from the prompt's end, and
            edits take a `step`: `set_to(v, position=-1)` changes the prompt's last token, `add(v, step=slice(1, None))`
            everything written. A function gets the prompts, then one position at a time.
        capture: as in `run`; each site has all positions that were read, and so not the last token written.

    Raises:
        InputError: a model without a decoder or output layer, settings out of range, captures of a text that outgrows
            the context, logits that are NaN or infinite; edits as in `run`.
    """
    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "repetition_penalty": repetition_penalty}
    texts = {"target": target, "stop": stop, "seed": seed, "edit": edit, "capture": capture}
    writer = Writer(model, prompt, max_new_tokens, **texts, **sampling)
    for _ in writer.tokens():
        pass
    return replace(writer.written(), activations=writer.watch.captured())


def generate_pieces(model: Model, prompt: Tokens, max_new_tokens: int = 100, **settings: Any) -> Iterator[list[str]]:
    """The continuation of each prompt, piece by piece: a string for each prompt after each token.

    `settings` are those of `generate`, except captures. A piece is empty while a character is incomplete, and after the
    text has ended.
    """
    if model.target_tokenizer is None:
        raise InputError("this model has no tokenizer, so it writes no text: use generate() for ids")
    writer = Writer(model, prompt, max_new_tokens, **settings)
    texts = [""] * len(writer.ids)
    for _ in writer.tokens():
        pairs, old = zip(writer.written().continuations, writer.ended, strict=True), texts
        texts = [text if has_ended else text.rstrip("\ufffd") for text, has_ended in pairs]
        yield [text[len(start) :] for text, start in zip(texts, old, strict=True)]


class Writer:
    """Texts while they are written, padded on the left; arguments are those of `generate`."""

    def __init__(
        self,
        model: Model,
        prompt: Tokens,
        max_new_tokens: int = 100,
        *,
        target: Tokens | None = None,
        repetition_penalty: float = 1.0,
        stop: Stop = None,
        seed: int = 0,
        edit: Edits | None = None,
        capture: str | Iterable[str] = (),
        **sampling: Any,
    ):
        edits = [edit or {}]
        while isinstance(model, Edited):
            model, edits = model.model, [model.edits, *edits]
        check_model(model)
        self.model, config, n_ctx = model, model.config, model.config.n_ctx
        if config.decoder is None or config.output == "none":
            raise InputError("only a decoder with an output layer can generate text")
        whole_number("max_new_tokens", max_new_tokens)
        check_sampling(repetition_penalty=repetition_penalty, **sampling)
        self.source, self.texts = _inputs(model, prompt, target)  # the encoder's text, and the one to continue
        longest, shortest = int(self.texts.lengths.max()), int(self.texts.lengths.min())
        self.room = max_new_tokens if self.source is None else min(max_new_tokens, config.n_ctx - shortest)
        n_read = max(0, self.room - 1)
        if capture and longest + n_read > n_ctx:
            raise InputError(f"captures outgrow the context of {n_ctx}: write at most {n_ctx - longest + 1} tokens")
        self.stops, self.stop_texts = _stops(model, stop)
        self.watch = Watch(model, capture, edits, Continued.from_prompts(self.texts, n_read), self.source)
        self.sampling, self.penalty = sampling, repetition_penalty
        self.streams = streams(whole_number("seed", seed), *filter(None, (self.source, self.texts)))
        self.ids, self.mask = self.texts.ids, self.texts.mask
        self.ended = torch.zeros(len(self.ids), dtype=torch.bool, device=self.ids.device)  # per text
        self._ends = self.texts.lengths  # tokens of each text, at its end or so far
        self._cache: list[KVCache] = []
        self._n_read, self._encoded = 0, cast(Source | None, None)  # columns read so far; the encoder's stream

    def tokens(self) -> Iterator[Int[Tensor, " prompt"]]:
        """Write until all texts have ended, and yield each step's tokens after adding them."""
        n_ctx = self.model.config.n_ctx
        if self.source is not None:
            self.ended |= self.texts.lengths >= n_ctx
        logits = self._next_logits()
        for step in range(self.room):
            new = torch.where(self.ended, self.ids[:, -1], self._next(logits, ends_here=step + 1 == self.room))
            self._ends = self._ends + (~self.ended).long()
            self.ids = torch.cat([self.ids, new[:, None]], 1)
            self.mask = torch.cat([self.mask, self.mask.new_ones(len(new), 1)], 1)
            self.ended = self.ended | torch.isin(new, self.stops)
            if self.stop_texts:
                stopped = [any(stop in text for stop in self.stop_texts) for text in self.written().continuations]
                self.ended = self.ended | torch.tensor(stopped, device=self.ids.device)
            if self.source is not None:
                self.ended = self.ended | (self._ends >= n_ctx)
            yield new
            if step + 1 == self.room or bool(self.ended.all()):
                return
            logits = self._next_logits()

    @torch.no_grad()
    def _next_logits(self) -> Tensor:
        """Logits after the last column; a `Transformer` uses its cached keys and values."""
        model, stop = self.model, self.ids.shape[1]
        start = max(0, stop - model.config.n_ctx)
        if start or not isinstance(model, Transformer):  # once the oldest token has left, every position changes
            self._cache, self._n_read = [], start
        tap, mask = self.watch.tap(start, self._n_read, stop), self.mask[:, start:]
        window = TokenBatch(self.ids[:, start:], mask, text_positions(mask))
        if isinstance(model, Transformer):
            logits = self._continued(model, window, tap, self._n_read - start)
        else:
            logits = model(window, tap) if self.source is None else model(self.source, tap, window)
        assert logits is not None
        self.watch.keep(tap, logits, whole=not isinstance(model, Transformer))
        self._n_read = stop
        return logits[:, -1]

    def _continued(self, model: Transformer, window: TokenBatch, tap: Tap, first: int) -> Tensor | None:
        stack = model.last
        self._cache = self._cache or [KVCache() for _ in stack.blocks]
        if self.source is not None and self._encoded is None:
            self._encoded = Source.from_stream(model.stack("encoder")(self.source, tap.at("encoder")), self.source)
        elif self.source is not None:
            tap.fired.update(site for site in tap.edit if site.startswith("encoder."))
        inside = tap.at(next(reversed(model.config.stacks)))
        visibility = Visibility.from_batch(window, causal=True, first=first)
        residual = inside("embed", stack.embed(window.ids[:, first:], visibility.positions))
        final = stack.resume(residual, visibility, tap=inside, past=self._cache, source=self._encoded)
        return model.read(final if tap.wants("logits") else final[:, -1:], tap)

    def _next(self, logits: Tensor, *, ends_here: bool) -> Int[Tensor, " prompt"]:
        writing = self.model.config.writing
        if bool((logits.isnan() | logits.isposinf()).any()):  # because of the model, or else of edits
            texts = [torch.tensor(each.id_lists()[:1]) for each in (self.source, self.texts) if each is not None]
            check_finite(self.model, *texts)
            raise InputError(f"logits are not numbers after {self.ids.shape[1]} tokens, computed in {self.model.dtype}")
        logits = penalised(logits, self.ids, self.mask, self.penalty)
        if writing.never:
            logits = logits.index_fill(1, torch.tensor([*writing.never], device=logits.device), -torch.inf)
        new = choose(logits, **self.sampling, streams=self.streams)
        if writing.last is not None:
            last = (self._ends + 1 >= self.model.config.n_ctx) | ends_here
            new = new.masked_fill(last, writing.last)
        return new if writing.first is None else new.masked_fill(self._ends == 1, writing.first)

    def written(self) -> Written:
        """The texts so far, without captures."""
        width, first = self.ids.shape[1], self.mask.int().argmax(1, keepdim=True)
        mask = self.mask & (torch.arange(width, device=self.ids.device) < first + self._ends[:, None])
        texts = TokenBatch(self.ids, mask, text_positions(mask))
        return Written(texts, self.texts.lengths, {}, self.model.target_tokenizer, self.source)


def _inputs(model: Model, prompt: Tokens, target: Tokens | None) -> tuple[TokenBatch | None, TokenBatch]:
    """The encoder's texts, if there is one, and the texts to continue, padded on the left."""
    if target is None and len(model.config.stacks) > 1:
        if (start := model.config.target_start) is None:
            raise InputError("this model does not say what its decoder's input begins with: give ids as target=")
        target = torch.tensor([[start]])
    batch, decoded = as_batches(model, prompt, target)
    source, texts = (None, batch) if decoded is None else (batch, decoded)
    if texts.padded:
        texts = TokenBatch.from_rows(texts.id_lists(), side="left").to(texts.ids.device)
    return source, texts


def _stops(model: Model, stop: Stop) -> tuple[Int[Tensor, " id"], list[str]]:
    stops = model.config.writing.ends if stop is None else [stop] if isinstance(stop, int | str) else [*stop]
    texts = [each for each in stops if isinstance(each, str)]
    if "" in texts:
        raise InputError("a stop string must have a character, got ''")
    if texts and model.target_tokenizer is None:
        raise InputError(f"this model has no tokenizer, so it writes no {texts[0]!r}: give ids that end a text")
    ids = [each for each in stops if isinstance(each, int)]
    return torch.tensor(ids, dtype=torch.long, device=model.device), texts


def check_sampling(
    temperature: float = 0.0, top_k: int | None = None, top_p: float | None = None, repetition_penalty: float = 1.0
) -> None:
    """Refuse settings that are out of range."""
    if not temperature >= 0:
        raise InputError(f"expected temperature >= 0 (0 takes the likeliest token); got {temperature}")
    if top_k is not None:
        whole_number("top_k", top_k, 1)
    if top_p is not None and not 0 < top_p <= 1:
        raise InputError(f"expected 0 < top_p <= 1; got {top_p}")
    if not repetition_penalty > 0:
        raise InputError(f"expected repetition_penalty > 0 (1 is none, above 1 repeats less); got {repetition_penalty}")


def penalised(
    logits: Float[Tensor, "prompt d_vocab"], ids: Int[Tensor, "prompt position"], mask: Tensor, penalty: float
) -> Float[Tensor, "prompt d_vocab"]:
    """Logits with those of the text's own tokens divided by `penalty`, or multiplied if below 0 (Keskar 2019)."""
    if penalty == 1:
        return logits
    present = torch.zeros_like(logits).scatter_add(1, ids, mask.to(logits.dtype)) > 0
    top = torch.finfo(logits.dtype).max
    return torch.where(present, torch.where(logits > 0, logits / penalty, logits * penalty).clamp(-top, top), logits)


def streams(seed: int, *texts: TokenBatch) -> list[Random]:
    """A stream of draws for each prompt (or pair of texts) from its ids and the seed; copies have their own."""
    prompts = [repr([seed, *rows]) for rows in zip(*(text.id_lists() for text in texts), strict=True)]
    return [Random(f"{prompt} {prompts[:index].count(prompt)}") for index, prompt in enumerate(prompts)]


def choose(
    logits: Float[Tensor, "prompt d_vocab"],
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    streams: Sequence[Random] = (),
) -> Int[Tensor, " prompt"]:
    """One next token a row: the likeliest, or a draw by the row's stream from the tempered, truncated distribution."""
    if temperature == 0:
        return logits.argmax(-1)
    logits = logits.float()
    logits = (logits - logits.amax(-1, keepdim=True)) / min(max(temperature, 1e-30), 1e30)  # the likeliest stays 0
    if top_k is not None and top_k < logits.shape[-1]:
        smallest_kept = logits.topk(top_k).values[:, -1:]
        logits = logits.masked_fill(logits < smallest_kept, -torch.inf)
    if top_p is not None:
        ordered, index = logits.sort(descending=True)
        mass_before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
        beyond = (mass_before >= top_p) & (mass_before > 0)  # never the first
        cut = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, index, beyond)
        logits = logits.masked_fill(cut, -torch.inf)
    mass = logits.softmax(-1).cpu().double().cumsum(-1)
    draws = torch.tensor([[stream.random()] for stream in streams], dtype=mass.dtype)
    return torch.searchsorted(mass, draws * mass[:, -1:], right=True)[:, 0].to(logits.device)

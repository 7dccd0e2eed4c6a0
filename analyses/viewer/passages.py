"""Where does each token of a passage look, and which passages does a report show?

Patterns are as a page carries them: bytes, deflated, within a budget. A share of attention is a whole number of 255ths,
and nothing below 1%. A head's rows follow one another: of a causal stack only what a query sees (row q has q + 1 keys),
else whole rows.
"""

import base64
import json
import re
import zlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice, product
from typing import Any, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Float, Real, UInt8
from numpy.typing import NDArray

import interp
from analyses.corpora.mentions import PRONOUNS
from analyses.measures.definitions import Measure
from analyses.measures.head_tables import Heads
from analyses.reading.inputs import TokenIds
from analyses.reading.windows import Window, windows
from analyses.scoring.asked_words import askers
from analyses.viewer.pictures import SIDE, averaged
from analyses.wording.head_names import Place
from interp import AnnotatedText, InputError, Model, Run
from interp.display import so_many
from interp.model import check_model

HeadName = tuple[str, str, int, int]  # what a `Place` holds


class Called(NamedTuple):
    """What a head is called, the behaviour whose colour it has, and the measure that says which words that is about.

    `needed` is whether an effect of it was measured, rather than its attention alone.
    """

    words: str
    behaviour: str = ""
    asks: str = ""
    needed: bool = False


def address(model: Model, name: HeadName) -> str:
    """A head as links name it: `L2.H5` where there is one stack, else `encoder.L2.H5` or `cross.L2.H5`."""
    return Place(*name).named(prefix=len(Heads.kinds_of(model)) > 1)


def head_named(model: Model, name: str) -> HeadName:
    """The head that has this `address`; one that the model lacks is refused."""
    ends = []
    for heads in Heads.kinds_of(model):
        cells = np.ndindex(heads.n_layers, heads.n_heads)
        sites = [Place(heads.stack, heads.attention, *cell) for cell in cells]
        named = {address(model, place): place for place in sites}
        if name in named:
            return named[name]
        ends.append(" to ".join(dict.fromkeys([next(iter(named)), [*named][-1]])))
    raise InputError(f"no head {name!r}: this model has {', '.join(ends)}, counted from 0")


BUDGET = 420_000  # bytes that patterns may take of a page of 500,000
KEPT = 200_000  # letters of the table of patterns, which a run holds twice: as csv, and as parquet
LEAST = 0.01  # share of attention below which none is kept
_FAILURES = 8  # patterns that do not fit, after which no other is tried: to deflate them takes most of the time
_LONGEST = 60  # characters of a token that are shown
_LIKELIEST = 3  # next tokens that are shown after each
_SPECIAL = re.compile(r"<.*>|\[[A-Z]+\]")  # a token that stands for no text, in a title


@dataclass(frozen=True)
class Attention:
    """One kind of attention over one passage: the tokens that look, those that are looked at, and every head's shares.

    `weights` are `layer head query key`, in 255ths.
    """

    heads: Heads
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    weights: UInt8[NDArray[np.uint8], "layer head query key"]

    @cached_property
    def firmness(self) -> Float[NDArray[np.floating], "layer head"]:
        """Mean over queries of the largest share that goes to one token; within a text neither to the first nor to the
        query itself, where attention rests that looks for nothing."""
        weights = self.weights
        if self.heads.attention == "self":
            weights = weights.copy()
            weights[..., 0] = 0
            diagonal = np.arange(min(weights.shape[-2:]))
            weights[..., diagonal, diagonal] = 0
        return weights.max(-1).mean(-1) / 255

    @property
    def data(self) -> dict[str, Any]:
        """What the page's script reads of it, beside the patterns."""
        heads = self.heads
        return {
            **{"stack": heads.stack, "attention": heads.attention, "causal": heads.causal},
            **{"layers": heads.n_layers, "heads": heads.n_heads, "queries": self.queries},
            "keys": None if heads.attention == "self" else self.keys,
        }

    def shares(self, layer: int, head: int) -> UInt8[NDArray[np.uint8], "..."]:
        """One head's shares in 255ths, of a causal stack only what each query sees."""
        square = self.weights[layer, head]
        return square[np.tril_indices(len(square))] if self.heads.causal else square

    def packed(self, layer: int, head: int) -> str:
        """One head's shares, deflated, as base64."""
        return deflated(self.shares(layer, head))


class KeptPattern(NamedTuple):
    """A row of `tables/patterns`: a head over a passage; tokens are JSON, `shares` as `Attention.packed` gives them."""

    passage: int
    stack: str
    attention: str
    layer: int
    head: int
    behaviour: str  # of its first fact
    queries: str
    keys: str
    causal: bool
    shares: str

    @property
    def tokens(self) -> tuple[list[str], list[str]]:
        """The tokens that look, and those that are looked at."""
        return json.loads(self.queries), json.loads(self.keys)

    @property
    def pattern(self) -> Float[NDArray[np.floating], "query key"]:
        """The share of attention, to a 255th; an `InputError` where there are not as many as tokens."""
        shares = np.zeros([*map(len, self.tokens)], np.uint8)
        places = np.tril_indices(len(shares)) if self.causal else np.indices(shares.shape).reshape(2, -1)
        values = b""
        with suppress(ValueError, zlib.error):
            values = zlib.decompressobj().decompress(base64.b64decode(self.shares), shares.size + 1)
        if len(values) != len(places[0]):
            raise InputError(f"a pattern is damaged: expected {len(places[0])} shares of attention, got {len(values)}")
        shares[tuple(places)] = np.frombuffer(values, np.uint8)
        return shares / 255


def deflated(shares: Real[NDArray[Any], "..."]) -> str:
    """Shares in 255ths as bytes, deflated, as base64."""
    return base64.b64encode(zlib.compress(np.rint(shares).clip(max=255).astype(np.uint8).tobytes())).decode()


@dataclass(frozen=True)
class Passage:
    """A text, or a text and what a decoder read beside it, with every kind of attention that was looked at.

    `asking` tells which tokens a measure of words asks (`tag:VERB->NOUN`: the verbs). `following` has, for each token
    of a causal last stack, the most probable next tokens with percent; it is empty where there are no logits.
    """

    attentions: tuple[Attention, ...]
    asking: Mapping[str, Sequence[int]] = field(default_factory=dict)
    following: Sequence[Sequence[tuple[str, int]]] = ()

    @property
    def title(self) -> str:
        """How it begins."""
        plain = [token for token in self.attentions[0].queries[:60] if not _SPECIAL.fullmatch(token)]
        words = " ".join("".join(plain).split())
        return f"{words[: _LONGEST + 1].rsplit(' ', 1)[0]} …" if len(words) > _LONGEST else words


@dataclass(frozen=True)
class Viewer:
    """Passages to be looked at on a page, and what their heads are called."""

    passages: tuple[Passage, ...]  # the first is seen first
    called: Mapping[HeadName, Called]  # those first that a page should keep first
    heads: bool = True  # whether it shows the heads to choose from
    linked: bool = False  # whether the page's address tells what is seen
    first: HeadName | None = None  # is seen first; by default the first that is called something, or the firmest
    budget: int = BUDGET  # bytes that patterns may take
    least: ClassVar = f"{LEAST:.0%}"

    def __post_init__(self) -> None:
        if not self.passages:
            raise InputError("expected at least one passage to view, got none")
        if self.first is not None and self.first not in self.ordered:
            stack, attention, layer, head = self.first
            raise InputError(f"no head L{layer}.H{head} in the {stack}'s {attention}-attention of these passages")

    @property
    def _attentions(self) -> list[Attention]:
        return [attention for passage in self.passages for attention in passage.attentions]

    @cached_property
    def ordered(self) -> list[HeadName]:
        """All heads: those that are called something, then those that look at one token most firmly."""
        firmness: dict[HeadName, float] = {}
        for attention in self._attentions:
            stack, kind = attention.heads.stack, attention.heads.attention
            for (layer, head), value in np.ndenumerate(attention.firmness):
                name = stack, kind, layer, head
                firmness[name] = max(firmness.get(name, 0.0), float(value))
        rank = {name: place for place, name in enumerate(self.called)}
        return sorted(firmness, key=lambda name: (rank.get(name, len(rank)), -firmness[name]))

    @property
    def start(self) -> HeadName:
        """The head that is seen first."""
        return self.ordered[0] if self.first is None else self.first

    @property
    def size(self) -> str:
        """What is seen: `32 heads over 31 tokens`."""
        heads = sum(attention.heads.count for attention in self.passages[0].attentions)
        texts = [so_many(len(self.passages), "text")] if len(self.passages) > 1 else []
        tokens = sum(len(passage.attentions[-1].queries) for passage in self.passages)
        return ", ".join([so_many(heads, "head"), *texts, so_many(tokens, "token")])

    @cached_property
    def data(self) -> dict[str, Any]:
        """What the page's script reads: tokens, names of heads, and packed patterns as far as the budget goes."""
        measures = {label.asks for label in self.called.values()}
        return {
            "several": len({name[:2] for name in self.ordered}) > 1,
            "heads": self.heads,
            "side": SIDE,
            "linked": self.linked,
            "first": dict(zip(("stack", "attention", "layer", "head"), self.start, strict=True)),
            "called": [
                [*name, each.words, each.behaviour, each.asks, each.needed] for name, each in self.called.items()
            ],
            "passages": [
                {
                    "title": passage.title,
                    "attentions": [each.data | self._packed[0][id(each)] for each in passage.attentions],
                    "following": passage.following,
                    "asking": {name: tokens for name, tokens in passage.asking.items() if name in measures},
                }
                for passage in self.passages
            ],
        }

    @property
    def kept(self) -> list[KeptPattern]:
        """What a run keeps of the patterns, for figures: those that come first, in `KEPT` letters of a table."""
        rows, room, text = [], KEPT, partial(json.dumps, ensure_ascii=False)
        attentions = [(at, each) for at, passage in enumerate(self.passages) for each in passage.attentions]
        for name, (at, each) in product(dict.fromkeys([self.start, *self.ordered]), attentions):
            packed = self._packed[0][id(each)]["kept"].get(f"{name[2]}.{name[3]}")
            if packed is None or name[:2] != (each.heads.stack, each.heads.attention):
                continue
            texts = text(each.queries), text(each.keys), each.heads.causal, packed
            rows.append(KeptPattern(at, *name, self.called.get(name, Called("")).behaviour, *texts))
            if (room := room - sum(len(str(part)) for part in rows[-1])) < 0:
                return rows[:-1]
        return rows

    @property
    def left_out(self) -> int:
        """How many patterns the page has no room for."""
        return self._packed[1]

    @cached_property
    def _packed(self) -> tuple[dict[int, dict[str, Any]], int]:
        by_attention: dict[int, dict[str, Any]] = {}
        room, left_out = self.budget, 0
        for attention in self._attentions:
            pictures = deflated(averaged(attention.weights)) if self.heads else ""
            pictures *= len(pictures) < 2 / 3 * room  # patterns need the rest
            room -= len(pictures)
            by_attention[id(attention)] = {"pictures": pictures, "kept": {}}
        for name in dict.fromkeys([self.start, *self.ordered]):
            for attention in self._attentions:
                if name[:2] == (attention.heads.stack, attention.heads.attention):
                    packed = attention.packed(*name[2:]) if left_out < _FAILURES else ""
                    if 0 < len(packed) <= room:
                        room -= len(packed)
                        by_attention[id(attention)]["kept"][f"{name[2]}.{name[3]}"] = packed
                    else:
                        left_out += 1
        return by_attention, left_out


def passage(run: Run, prompt: int = 0) -> Passage:
    """What one prompt of a run looked at: every kind of attention of which all layers' patterns were captured."""
    if run.model is None:
        raise InputError("this run does not tell which model ran: expected what interp.run gives")
    attentions = []
    for heads in Heads.kinds_of(run.model):
        site = "cross_attn.pattern" if heads.attention == "cross" else "attn.pattern"
        sites = [f"{heads.stack}.{layer}.{site}" for layer in range(heads.n_layers)]
        missing = [site for site in sites if site not in run.activations]
        if len(missing) == len(sites):
            continue
        if missing:
            capture = f"{heads.stack}.*.{site}"
            raise InputError(f"{missing[0]!r} was not captured, and others were: capture {capture!r}")
        patterns = [run.shown_pattern(site, prompt) for site in sites]
        queries, keys = (tuple(map(_shortened, each)) for each in patterns[0][1:])
        attentions.append(Attention(heads, queries, keys, np.stack([_bytes(each.pattern) for each in patterns])))
    if not attentions:
        raise InputError('no pattern was captured, so there is none to view: run(model, text, capture="*.pattern")')
    return Passage(tuple(attentions), following=_following(run, run.model, prompt))


def _following(run: Run, model: Model, prompt: int) -> list[list[tuple[str, int]]]:
    batch, tokenizer = (run.target, model.target_tokenizer) if run.target else (run.tokens, model.tokenizer)
    name = str if tokenizer is None else tokenizer.label
    with suppress(InputError):  # no output layer, or the pass ended before it
        if model.config.last.causal:
            logits = run.logits[prompt, batch.mask[prompt]].detach().float()
            best = logits.softmax(-1).topk(min(_LIKELIEST, logits.shape[-1]))
            rows = zip(best.indices.tolist(), (100 * best.values).round().int().tolist(), strict=True)
            return [[(_shortened(name(id)), percent) for id, percent in zip(*row, strict=True)] for row in rows]
    return []


def read(model: Model, text: str, target: str | None = None) -> Passage:
    """What every head of a model looks at in a text; `target` is what the decoder reads where there is an encoder."""
    check_model(model)
    if model.tokenizer is None:
        raise InputError("this model has no tokenizer, so it cannot read a text: give its directory a tokenizer.json")
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"expected a text to view, got {'an empty one' if isinstance(text, str) else repr(text)}")
    return passage(interp.run(model, text, "*.pattern", target=target))


def _bytes(pattern: Float[NDArray[np.floating], "head query key"]) -> UInt8[NDArray[np.uint8], "head query key"]:
    """Shares as 255ths, those below `LEAST` as none; what is undefined is none too."""
    shares = np.nan_to_num(pattern)
    return np.where(shares < LEAST, 0, np.rint(shares * 255)).astype(np.uint8)


def _shortened(token: str) -> str:
    return token if len(token) <= _LONGEST else f"{token[: _LONGEST - 1]}…"


_PARTS = 20  # contexts that a text may fill
_PASSAGES = 2  # passages, where none are asked for
_TEXTS = 20  # texts looked at for them
_WORDS = 8, 40  # of a passage


def read_texts(model: Model, texts: Sequence[str]) -> list[Passage]:
    """The texts that somebody typed, in parts where they are longer than the context.

    A decoder that has a source reads the text itself as its target.
    """
    if len(model.config.stacks) > 1:
        return [read(model, text, text) for text in texts]
    return [read(model, part) for text in texts for part in context_parts(model, text)]


def context_parts(model: Model, text: str) -> list[str]:
    """Whole words of a text, as many as the context holds, up to the end of a sentence where one is in its last half.

    The model reads each part alone. An `InputError` refuses a text of more than 20 parts.
    """
    tokenizer = model.tokenizer
    if tokenizer is None or not isinstance(text, str):
        return [text]  # which `read` refuses

    def length(words: Sequence[str]) -> int:
        return len(tokenizer.prefix) + len(tokenizer.pieces("".join(words)).ids) + len(tokenizer.suffix)

    words, parts = re.findall(r"\s*\S+\s*$|\s*\S+", text), []
    while words and len(parts) < _PARTS:
        most = min(len(words), model.config.n_ctx)
        n = max(1, bisect_right(range(1, most + 1), model.config.n_ctx, key=lambda n: length(words[:n])))
        ends = [end for end in range(n, n // 2, -1) if words[end - 1].rstrip()[-1] in ".!?"]
        n = n if n == len(words) or not ends else ends[0]
        parts.append("".join(words[:n]))
        words = words[n:]
    if words:
        raise InputError(
            f"expected a text of at most {_PARTS} times the context, which holds {model.config.n_ctx} tokens"
        )
    return parts or [text]


def choose_passages(model: Model, corpus: Iterable[AnnotatedText], measures: Sequence[Measure] = ()) -> list[Passage]:
    """Whole sentences with which texts of a corpus begin; none where the model reads no words.

    Of the first texts those come first that have most different pronouns of the third person: heads of coreference have
    nothing to do elsewhere. What the `measures` ask of them is known of those that are about words.
    """
    passages: list[Passage] = []
    if model.tokenizer is None or isinstance(model.tokenizer, TokenIds):
        return passages
    paired = len(model.config.stacks) > 1
    beginnings = [text if text.target is not None else _beginning(text) for text in islice(corpus, _TEXTS)]
    texts = filter(None, beginnings)
    for text in sorted(texts, key=lambda each: -len({word.lower() for word in each.words} & PRONOUNS.keys())):
        if len(passages) == _PASSAGES:
            break
        with suppress(InputError):  # longer than the context, or nothing a decoder can read
            passage = read(model, text.text, (text.target or text.text) if paired else None)
            whole = [*windows(text, model.tokenizer, model.config.n_ctx, Counter())]
            if len(whole) == 1:  # the context shows all of it
                passage = replace(passage, asking=_asking(model, whole[0], measures))
            passages.append(passage)
    return passages


def _asking(model: Model, window: Window, measures: Sequence[Measure]) -> dict[str, list[int]]:
    causal = Heads.kinds_of(model)[0].causal
    tokens_of = {each.name: askers(each, window, causal=causal) for each in measures if each.points and each.of_words}
    return {name: tokens for name, tokens in tokens_of.items() if tokens}


def _beginning(text: AnnotatedText) -> AnnotatedText | None:
    shortest, longest = _WORDS
    ends = [end for end in (*text.sentence_starts[1:], len(text.words)) if shortest <= end <= longest]
    return text.excerpt(0, ends[-1]) if ends else None

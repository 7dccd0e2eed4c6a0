"""Where does each token of a passage look, and which passages does a report show?

A page stores patterns as deflated bytes within a budget. Attention is rounded to 255ths; below 1% it counts as none.
A head's rows follow one another: in a causal stack only what each query sees (row q has q + 1 keys), else whole rows.
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

HeadName = tuple[str, str, int, int]  # the fields of a `Place`


class Called(NamedTuple):
    """A head's name, the behaviour that gives its colour, and the measure whose asking words the page marks.

    `needed` says whether the head's name rests on an effect, rather than on attention alone.
    """

    words: str
    behaviour: str = ""
    asks: str = ""
    needed: bool = False


def address(model: Model, name: HeadName) -> str:
    """A head's name in links: `L2.H5` if there is one stack, else `encoder.L2.H5` or `cross.L2.H5`."""
    return Place(*name).named(prefix=len(Heads.kinds_of(model)) > 1)


def head_named(model: Model, name: str) -> HeadName:
    """The head with this `address`; an `InputError` if the model lacks it."""
    ends = []
    for heads in Heads.kinds_of(model):
        cells = np.ndindex(heads.n_layers, heads.n_heads)
        sites = [Place(heads.stack, heads.attention, *cell) for cell in cells]
        named = {address(model, place): place for place in sites}
        if name in named:
            return named[name]
        ends.append(" to ".join(dict.fromkeys([next(iter(named)), [*named][-1]])))
    raise InputError(f"no head {name!r}: this model has {', '.join(ends)}, counted from 0")


BUDGET = 420_000  # bytes of patterns on a page of 500,000
KEPT = 200_000  # characters of the table of patterns, which a run stores twice: as csv and as parquet
LEAST = 0.01  # smaller shares of attention count as none
_FAILURES = 8  # oversized patterns after which we try no more, since deflating takes most of the time
_LONGEST = 60  # characters of a displayed token
_LIKELIEST = 3  # next tokens displayed after each token
_SPECIAL = re.compile(r"<.*>|\[[A-Z]+\]")  # a token that stands for no text, left out of titles


@dataclass(frozen=True)
class Attention:
    """One kind of attention over one passage: the tokens that look, the tokens looked at, and every head's weights.

    `weights` are `layer head query key`, in 255ths.
    """

    heads: Heads
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    weights: UInt8[NDArray[np.uint8], "layer head query key"]

    @cached_property
    def firmness(self) -> Float[NDArray[np.floating], "layer head"]:
        """Mean over queries of the largest share on one token. In self-attention, the first token and the query itself
        do not count, because attention rests there when it looks for nothing."""
        weights = self.weights
        if self.heads.attention == "self":
            weights = weights.copy()
            weights[..., 0] = 0
            diagonal = np.arange(min(weights.shape[-2:]))
            weights[..., diagonal, diagonal] = 0
        return weights.max(-1).mean(-1) / 255

    @property
    def data(self) -> dict[str, Any]:
        """What the page's script reads, apart from the patterns."""
        heads = self.heads
        return {
            **{"stack": heads.stack, "attention": heads.attention, "causal": heads.causal},
            **{"layers": heads.n_layers, "heads": heads.n_heads, "queries": self.queries},
            "keys": None if heads.attention == "self" else self.keys,
        }

    def shares(self, layer: int, head: int) -> UInt8[NDArray[np.uint8], "..."]:
        """One head's shares in 255ths; in a causal stack only what each query sees."""
        square = self.weights[layer, head]
        return square[np.tril_indices(len(square))] if self.heads.causal else square

    def packed(self, layer: int, head: int) -> str:
        """One head's shares, deflated, as base64."""
        return deflated(self.shares(layer, head))


class KeptPattern(NamedTuple):
    """A row of `tables/patterns`: a head over a passage. Tokens are JSON, `shares` the result of `Attention.packed`."""

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
        """The tokens that look, and the tokens looked at."""
        return json.loads(self.queries), json.loads(self.keys)

    @property
    def pattern(self) -> Float[NDArray[np.floating], "query key"]:
        """Attention shares, to a 255th. Raises an `InputError` if their number does not fit the tokens."""
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
    """A text, possibly with what a decoder read, and every kind of attention over it.

    `asking` gives the tokens that each word measure asks (`tag:VERB->NOUN`: the verbs). `following` gives the likeliest
    next tokens with percentages after each token of a causal last stack; it is empty if there are no logits.
    """

    attentions: tuple[Attention, ...]
    asking: Mapping[str, Sequence[int]] = field(default_factory=dict)
    following: Sequence[Sequence[tuple[str, int]]] = ()

    @property
    def title(self) -> str:
        """Its first words."""
        plain = [token for token in self.attentions[0].queries[:60] if not _SPECIAL.fullmatch(token)]
        words = " ".join("".join(plain).split())
        return f"{words[: _LONGEST + 1].rsplit(' ', 1)[0]} …" if len(words) > _LONGEST else words


@dataclass(frozen=True)
class Viewer:
    """Passages for an interactive page, and the names of their heads."""

    passages: tuple[Passage, ...]  # the first is shown first
    called: Mapping[HeadName, Called]  # heads whose patterns matter most come first
    heads: bool = True  # whether it shows the heads to choose from
    linked: bool = False  # whether the page's address records what is shown
    first: HeadName | None = None  # shown first; by default the first head in `ordered`
    budget: int = BUDGET  # bytes for patterns
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
        """All heads: first those with a name, then by `firmness`."""
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
        """The head that is shown first."""
        return self.ordered[0] if self.first is None else self.first

    @property
    def size(self) -> str:
        """The size of what is shown: `32 heads over 31 tokens`."""
        heads = sum(attention.heads.count for attention in self.passages[0].attentions)
        texts = [so_many(len(self.passages), "text")] if len(self.passages) > 1 else []
        tokens = sum(len(passage.attentions[-1].queries) for passage in self.passages)
        return ", ".join([so_many(heads, "head"), *texts, so_many(tokens, "token")])

    @cached_property
    def data(self) -> dict[str, Any]:
        """What the page's script reads: tokens, names of heads, and as many packed patterns as the budget allows."""
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
        """The patterns that a run keeps for figures: the first ones that fit into `KEPT` characters of a table."""
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
        """How many patterns did not fit on the page."""
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
    """What one prompt of a run looked at, for every kind of attention with patterns captured in all layers."""
    if run.model is None:
        raise InputError("this run does not know its model: expected a run of interp.run")
    attentions = []
    for heads in Heads.kinds_of(run.model):
        site = "cross_attn.pattern" if heads.attention == "cross" else "attn.pattern"
        sites = [f"{heads.stack}.{layer}.{site}" for layer in range(heads.n_layers)]
        missing = [site for site in sites if site not in run.activations]
        if len(missing) == len(sites):
            continue
        if missing:
            capture = f"{heads.stack}.*.{site}"
            raise InputError(f"{missing[0]!r} was not captured, but others were: capture {capture!r}")
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
    """What every head of a model looks at in a text; `target` is what the decoder of an encoder-decoder reads."""
    check_model(model)
    if model.tokenizer is None:
        raise InputError("this model has no tokenizer, so it cannot read a text: give its directory a tokenizer.json")
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"expected a text to view, got {'an empty one' if isinstance(text, str) else repr(text)}")
    return passage(interp.run(model, text, "*.pattern", target=target))


def _bytes(pattern: Float[NDArray[np.floating], "head query key"]) -> UInt8[NDArray[np.uint8], "head query key"]:
    """Shares as 255ths; shares below `LEAST` and undefined ones become 0."""
    shares = np.nan_to_num(pattern)
    return np.where(shares < LEAST, 0, np.rint(shares * 255)).astype(np.uint8)


def _shortened(token: str) -> str:
    return token if len(token) <= _LONGEST else f"{token[: _LONGEST - 1]}…"


_PARTS = 20  # contexts that a text may fill
_PASSAGES = 2  # shown if no texts are given
_TEXTS = 20  # candidates for these
_WORDS = 8, 40  # in a passage


def read_texts(model: Model, texts: Sequence[str]) -> list[Passage]:
    """Read texts that a user typed, in parts if they exceed the context.

    An encoder-decoder reads each text as both source and target.
    """
    if len(model.config.stacks) > 1:
        return [read(model, text, text) for text in texts]
    return [read(model, part) for text in texts for part in context_parts(model, text)]


def context_parts(model: Model, text: str) -> list[str]:
    """Split a text into parts of whole words that fit the context, up to a sentence's end if their last half has one.

    The model reads each part alone. Raises an `InputError` for a text of more than 20 parts.
    """
    tokenizer = model.tokenizer
    if tokenizer is None or not isinstance(text, str):
        return [text]  # `read` refuses it

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
    """Passages of whole sentences from the beginnings of a corpus's texts; none if the model reads no words.

    Texts with the most distinct third-person pronouns come first, because heads of coreference do nothing elsewhere.
    Passages record which tokens the `measures` of words ask.
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
            if len(whole) == 1:  # the context holds all of it
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

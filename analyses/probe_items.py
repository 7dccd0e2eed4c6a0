"""What is asked of a probe: words with a tag or relation, pronouns with two mentions; and the vectors of both.

Items are chosen from texts alone, before any model runs, so that a model and its untrained copy answer the same ones.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b

import torch
from jaxtyping import Float
from torch import Tensor

from analyses.antecedents import BASELINES, AntecedentItem, antecedent_items
from analyses.windows import Progress, Window, windows
from interp import AnnotatedText, InputError, TokenBatch, Transformer, run
from interp.patterns import membership

SPLITS = ("train", "test")
_TEST_SHARE = 4  # one document of so many is kept for the test
_BATCH_TOKENS = 4096


@dataclass(frozen=True)
class Edge:
    """A pronoun and one mention before it: are they of one chain?"""

    pronoun: int  # word indices in the text
    mention: int
    forms: str  # of both, in lower case: the type of the pair
    same: bool
    rules: tuple[float, ...]  # for each of `BASELINES`, how surely it gets this edge right


@dataclass(frozen=True)
class Asked:
    """What is asked in one window: words with labels, and edges."""

    window: Window
    words: tuple[int, ...]
    edges: tuple[Edge, ...]


@dataclass
class Items:
    """All that is asked of both splits, in an order that does not depend on that of the documents."""

    asked: dict[str, list[Asked]] = field(default_factory=lambda: {split: [] for split in SPLITS})
    counts: Counter[str] = field(default_factory=Counter)
    documents: dict[str, set[str]] = field(default_factory=lambda: {split: set() for split in SPLITS})


def choose(
    model: Transformer,
    corpus: Iterable[AnnotatedText],
    held_out: Iterable[AnnotatedText] | None,
    *,
    words: int,
    edges: int,
) -> Items:
    """Items of a corpus, at most so many words and edges for training and half as many for the test.

    Without `held_out` a quarter of the documents, by a hash of their names, is kept for the test.

    Raises:
        InputError: no tokenizer, no text, or one document only.
    """
    items = Items()
    room = {
        split: Counter(words=words // part, edges=edges // part) for split, part in zip(SPLITS, (1, 2), strict=True)
    }
    for split, text in _split(corpus, held_out):
        items.counts["texts"] += 1
        items.documents[split].add(text.document)
        left = room[split]
        if (left["words"] > 0 and (text.tags or text.relations) is not None) or (left["edges"] > 0 and text.mentions):
            items.asked[split] += _asked(model, text, left, items.counts)
    _check_documents(items.documents, held_out is not None)
    for each in items.asked.values():
        each.sort(key=lambda one: (len(one.window.ids), one.window.text.document, one.window.start, one.window.ids))
    return items


def _split(
    corpus: Iterable[AnnotatedText], held_out: Iterable[AnnotatedText] | None
) -> Iterator[tuple[str, AnnotatedText]]:
    for text in corpus:
        kept = held_out is None and is_test(text.document)
        yield SPLITS[kept], text
    for text in held_out or ():
        yield "test", text


def is_test(document: str) -> bool:
    """Whether a document is kept for the test; apart from the hash that groups documents for intervals."""
    return blake2b(document.encode(), digest_size=1, person=b"probe").digest()[0] % _TEST_SHARE == 0


def _check_documents(documents: dict[str, set[str]], given: bool) -> None:
    train, test = (documents[split] for split in SPLITS)
    if shared := train & test:
        raise InputError(
            f"{sorted(shared)[0]!r} is a document of both the corpus and the held-out one: keep them apart"
        )
    if not train or len(test) < 2:
        have = f"{len(train)} to train on and {len(test)} to test on"
        also = "" if given else ", of which a hash of the name keeps a quarter for the test"
        raise InputError(f"a probe needs documents to train on and two others to test on{also}; got {have}")


def _asked(model: Transformer, text: AnnotatedText, left: Counter[str], counts: Counter[str]) -> Iterator[Asked]:
    if model.tokenizer is None:
        raise InputError("this model has no tokenizer, so it cannot read a corpus: give its directory a tokenizer.json")
    referring = antecedent_items(text)
    for window in windows(text, model.tokenizer, model.config.n_ctx, counts):
        labelled = (text.tags or text.relations) is not None and left["words"] > 0
        words = tuple(at for at in range(window.start, window.stop) if labelled and window.scores(at))
        edges = tuple(edge for item in referring if left["edges"] > 0 for edge in _edges(item, window, counts))
        if words or edges:
            left.subtract({"words": len(words), "edges": len(edges)})
            yield Asked(window, words, edges)


def _edges(item: AntecedentItem, window: Window, counts: Counter[str]) -> Iterator[Edge]:
    """The nearest mention of the pronoun's chain and the nearest of another: as many right as wrong."""
    if not window.scores(item.pronoun):
        return
    shown = [
        at for at, word in enumerate(item.candidates) if word >= window.start and window.pieces[word - window.start] > 0
    ]
    latest = {item.correct[at]: at for at in shown}  # ascending: the nearest stays
    if len(latest) < 2:
        counts["pronouns left out: no right and wrong candidate within the window"] += 1
        return
    two = sorted(latest.values())
    pair = replace(
        item,
        candidates=tuple(item.candidates[at] for at in two),
        correct=tuple(item.correct[at] for at in two),
        genders=tuple(item.genders[at] for at in two),
        forms=tuple(item.forms[at] for at in two),
    )
    verdicts = [rule(pair) for rule in BASELINES.values()]
    for at, (mention, same, form) in enumerate(zip(pair.candidates, pair.correct, pair.forms, strict=True)):
        right = tuple(verdict[at] if same else 1 - verdict[at] for verdict in verdicts)
        yield Edge(item.pronoun, mention, f"{item.form} {form}", same, right)


@dataclass(frozen=True)
class Vectors:
    """Vectors of the same items at each site: the stream into the first block and out of every one; every head's z."""

    stream: Float[Tensor, "depth item d_model"]
    heads: Float[Tensor, "head item d_head"]

    def of(self, items: slice | Tensor) -> "Vectors":
        """Those of some items."""
        return Vectors(self.stream[:, items], self.heads[:, items])


@dataclass(frozen=True)
class Read:
    """What a model made of the items of one split: words, and both ends of the edges."""

    words: Vectors
    pronouns: Vectors
    mentions: Vectors


def read(model: Transformer, asked: Sequence[Asked], progress: Progress | None = None) -> Read:
    """Run a model and keep the vectors of what is asked, in its order. A word's vector is the mean over its pieces."""
    n_words, n_edges = (sum(len(getattr(each, name)) for each in asked) for name in ("words", "edges"))
    made = Read(*(_room(model, count) for count in (n_words, n_edges, n_edges)))
    filled, done = [0, 0, 0], 0
    for batch in _batches(asked):
        stream, heads = _word_vectors(model, [each.window for each in batch])
        for part, (vectors, chosen) in enumerate(
            zip((made.words, made.pronouns, made.mentions), _places(batch), strict=True)
        ):
            at = torch.tensor(chosen, dtype=torch.long).reshape(-1, 2).T
            here = slice(filled[part], filled[part] + len(chosen))
            vectors.stream[:, here] = stream[at[0], at[1]].cpu().transpose(0, 1)
            vectors.heads[:, here] = heads[at[0], at[1]].cpu().transpose(0, 1)
            filled[part] += len(chosen)
        done += len(batch)
        if progress is not None:
            progress(done)
    return made


def _room(model: Transformer, count: int) -> Vectors:
    config = model.config.last
    n_heads = config.n_layers * config.n_heads
    return Vectors(torch.empty(config.n_layers + 1, count, config.d_model), torch.empty(n_heads, count, config.d_head))


def _batches(asked: Sequence[Asked]) -> Iterator[list[Asked]]:
    batch: list[Asked] = []
    for each in asked:
        if batch and (len(batch) + 1) * max(len(one.window.ids) for one in (batch[-1], each)) > _BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(each)
    if batch:
        yield batch


def _places(batch: Sequence[Asked]) -> tuple[list[tuple[int, int]], ...]:
    """Row and word (counted in the window) of words, pronouns and mentions."""
    firsts = [each.window.start for each in batch]
    edges = [(row, edge) for row, each in enumerate(batch) for edge in each.edges]
    return (
        [(row, word - firsts[row]) for row, each in enumerate(batch) for word in each.words],
        [(row, edge.pronoun - firsts[row]) for row, edge in edges],
        [(row, edge.mention - firsts[row]) for row, edge in edges],
    )


def _word_vectors(model: Transformer, shown: Sequence[Window]) -> tuple[Tensor, Tensor]:
    """Of the stream: prompt word site d_model; of the heads: prompt word site d_head."""
    (stack,) = model.config.stacks
    wanted = (f"{stack}.0.resid_pre", f"{stack}.*.resid_post", f"{stack}.*.attn.z")
    out = run(model, TokenBatch.from_rows([window.ids for window in shown]), capture=wanted)
    rows = [[word - window.start if word >= 0 else word for word in window.word_of] for window in shown]
    n_words = max(window.stop - window.start for window in shown)
    belongs = membership(rows, n_words, out.tokens.ids.shape[1]).to(model.device)
    share = belongs / belongs.sum(-1, keepdim=True).clamp(min=1)
    stream, heads = [], []
    for name, value in out.activations.items():
        if name.endswith(".attn.z"):
            heads.append((share @ value.flatten(2).float()).unflatten(-1, value.shape[-2:]))
        else:
            stream.append(share @ value.float())
    return torch.stack(stream, 2), torch.cat(heads, 2)

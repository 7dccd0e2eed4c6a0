"""The items that a probe classifies: words with a tag or relation, pronouns with two mentions.

Items are chosen from texts alone, before any model runs, so that a model and its untrained copy answer the same ones.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from analyses.reading.windows import Window, windows
from analyses.scoring.antecedents import RIVALS, AntecedentItem, items_and_unasked
from interp import AnnotatedText, InputError, Model, StackConfig

SPLITS = ("train", "test")
_TEST_SHARE = 4  # one document of so many is kept for the test


def probed_stack(model: Model) -> tuple[str, StackConfig]:
    """The stack whose layers are probed: the only one, or the encoder, which reads the text as it is."""
    return next(iter(model.config.stacks.items()))


@dataclass(frozen=True)
class Edge:
    """A pronoun and one mention before it: are they of one chain?"""

    pronoun: int  # word indices in the text
    mention: int
    forms: str  # of both, in lower case: the type of the pair
    same: bool
    rules: tuple[float, ...]  # for each of `RIVALS`, how surely it gets this edge right


@dataclass(frozen=True)
class WindowItems:
    """The items of one window: words with labels, and edges."""

    window: Window
    words: tuple[int, ...]
    edges: tuple[Edge, ...]

    @property
    def ends(self) -> dict[str, Sequence[int]]:
        """The words whose vectors the items need, by part of `vectors.Read`."""
        pronouns, mentions = ([getattr(edge, end) for edge in self.edges] for end in ("pronoun", "mention"))
        return {"words": self.words, "pronouns": pronouns, "mentions": mentions}


@dataclass
class Items:
    """All items of both splits, in an order that does not depend on that of the documents."""

    windows: dict[str, list[WindowItems]] = field(default_factory=lambda: {split: [] for split in SPLITS})
    counts: Counter[str] = field(default_factory=Counter)
    documents: dict[str, set[str]] = field(default_factory=lambda: {split: set() for split in SPLITS})


def choose(
    model: Model,
    corpus: Iterable[AnnotatedText],
    held_out: Iterable[AnnotatedText] | None,
    *,
    words: int,
    edges: int,
    progress: Callable[[int], object] | None = None,
) -> Items:
    """Items of a corpus, at most so many words and edges for training and half as many for the test.

    Without `held_out` a quarter of the documents, by a hash of their names, is kept for the test. Reading stops where
    there are enough items.

    Args:
        model: whose tokenizer and context say what a window can show.
        corpus: texts to train on.
        held_out: other texts to test on.
        words: at most for training.
        edges: at most for training.
        progress: is told how many texts have been read.

    Raises:
        InputError: no tokenizer, no text, or too few documents.
    """
    if model.tokenizer is None:
        raise InputError("this model has no tokenizer, so it cannot read a corpus: give its directory a tokenizer.json")
    items = Items()
    room = {
        split: Counter(words=words // part, edges=edges // part) for split, part in zip(SPLITS, (1, 2), strict=True)
    }
    for texts, filled in ((corpus, SPLITS[:1] if held_out is not None else SPLITS), (held_out or (), SPLITS[1:])):
        for text in texts:
            if all(left <= 0 for split in filled for left in room[split].values()):
                items.counts["corpora not read to their end: enough words and pronouns"] += 1
                break
            split = filled[-1] if len(filled) == 1 or is_test(text.document) else filled[0]
            items.counts["texts"] += 1
            items.documents[split].add(text.document)
            items.windows[split] += _window_items(model, text, room[split], items.counts)
            if progress is not None:
                progress(items.counts["texts"])
    _check_documents(items.documents, held_out is not None)
    for chosen in items.windows.values():
        chosen.sort(
            key=lambda each: (len(each.window.ids), each.window.text.document, each.window.start, each.window.ids)
        )
    return items


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


def _window_items(model: Model, text: AnnotatedText, left: Counter[str], counts: Counter[str]) -> Iterator[WindowItems]:
    assert model.tokenizer is not None
    labelled = (text.tags or text.relations) is not None and left["words"] > 0
    referring, why_not = items_and_unasked(text) if left["edges"] > 0 else ([], [])
    if not (labelled or referring or why_not):
        counts["texts passed over: nothing to ask of them"] += 1
        return
    for window in windows(text, model.tokenizer, probed_stack(model)[1].n_ctx, counts):
        words = tuple(word for word in range(window.start, window.stop) if labelled and window.scores(word))
        edges = tuple(edge for item in referring if left["edges"] > 0 for edge in _edges(item, window, counts))
        counts.update(reason for word, reason in why_not if window.scores(word))
        if words or edges:
            left.subtract({"words": len(words), "edges": len(edges)})
            yield WindowItems(window, words, edges)


def _edges(item: AntecedentItem, window: Window, counts: Counter[str]) -> Iterator[Edge]:
    """The nearest mention of the pronoun's chain and the nearest of another: as many right as wrong."""
    if not window.scores(item.pronoun):
        return
    starts = enumerate(item.candidates)
    visible = [i for i, word in starts if word >= window.start and window.pieces[word - window.start] > 0]
    latest = {item.correct[i]: i for i in visible}  # ascending: the nearest stays
    if len(latest) < 2:
        counts["pronouns left out: no right and wrong candidate within the window"] += 1
        return
    pair = item.keeping(sorted(latest.values()))
    verdicts = [rule(pair) for rule in RIVALS]
    for i, (mention, same, form) in enumerate(zip(pair.candidates, pair.correct, pair.forms, strict=True)):
        right = tuple(verdict[i] if same else 1 - verdict[i] for verdict in verdicts)
        yield Edge(item.pronoun, mention, f"{item.form} {form}", same, right)

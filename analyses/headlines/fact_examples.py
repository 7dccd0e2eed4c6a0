"""What does each fact look like in a sentence? Words that it is about, where the head looks, and what that is for.

If a head goes from verbs to nouns, its examples are verbs: the five surest whose strongest attention is on a noun, and
five drawn from all verbs that were read, to show how often it is not. There we also read what the model expects next,
with those keys and without them. For a head that carries an answer to minimal pairs, examples are their last words.
"""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, tee
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from numpy.typing import NDArray

from analyses.headlines.facts import SEPARATOR, Fact
from analyses.measures.definitions import DECLARED, Behaviour, Measure
from analyses.measures.head_tables import Heads
from analyses.reading import examples
from analyses.reading.inputs import tokenizer_of
from analyses.reading.windows import Batch, Reading, Window, windows
from analyses.scoring.asked_words import Question, any_of, askers, questions
from analyses.tasks.flips import are_readable
from analyses.wording.head_names import Place, heads_named
from interp import AnnotatedText, InputError, Model, TokenBatch, Transformer, run
from interp.patching import Claim, Read, knock_out_together, log_probabilities
from interp.patterns import membership, pool

COLUMNS: list[str] = DECLARED["tables"]["examples"].split()
_PASSAGES = 40  # each from another text
_FEWEST_WORDS = 6  # in a passage
_EXAMPLES = 5  # for each fact: `best` ones, and as many `random` ones
_POOL = 20  # surest examples; we show those in which the next token loses most
_LONGEST = 40  # tokens of a text that is shown token by token
_FIRST = "first-token"
_TWICE = "a sentence twice"  # the name of the corpus for measures of repeats


class _Topic(NamedTuple):
    """What a fact's examples are: words that its measures ask; prompts of a task; else any word."""

    behaviour: str = ""
    label: str = ""
    measures: tuple[str, ...] = ()
    task: str = ""


class _Choice(NamedTuple):
    passage: int
    window: Window
    words: Sequence[str]
    question: Question
    weights: Float[NDArray[np.floating], "head word"]
    start: str = ""  # a special token before the words, shown as one of them

    @property
    def document(self) -> str:
        """The text's document; for a prompt, its pair."""
        return self.window.text.document

    def of_head(self, head: int) -> tuple[int, float, bool]:
        """The candidate word with most of a head's attention, that attention, and whether the word is sought."""
        candidates = sorted(self.question.candidates)
        word = candidates[int(self.weights[head, candidates].argmax())]
        weight = float(self.weights[head, word])
        return word, weight, weight > 0 and word in self.question.sought


def fact_examples(
    model: Model,
    corpora: Mapping[str, Iterable[AnnotatedText]],
    facts: Mapping[Place, Sequence[Fact]],
    behaviours: Mapping[str, Behaviour],
    pairs: Mapping[str, pd.DataFrame] = MappingProxyType({}),
    *,
    seed: int = 0,
) -> pd.DataFrame:
    """For every fact of every head, up to five examples where it is surest (`best`) and five at `random`.

    For cross-attention and texts without sentences, the examples are tokens, and only the best.

    `asks` and `seen` are indices among the words of `sentence`; `weight` is the attention between them, the largest to
    any candidate. `right` says whether the fact predicts that word; it is missing if any word may ask. The best are
    right and have the largest weights, each in another passage (of twenty such, those where the next token loses most).
    The random words are drawn from all `asked` words of the `read` passages, the same for all heads of a label; `hits`
    of all are right. Attention to special tokens is left out, except at the first position.

    If an effect of the fact's keys was measured and the model has an output layer, `before` and `after` are
    probabilities of the text's own `next` token (in a model that fills masks, of the word itself): with the text
    unchanged, and with those keys hidden from the head or from all heads of its set.

    Examples of a fact about minimal pairs are clean prompts of the reporting half (`pair`); `pairs` holds the tables
    `prompts` and `answers`. They are `right` if the head looks at a word that differs between the two prompts. The best
    are those whose answer flips most clearly; `before` and `after` are the right answer's probabilities.
    """
    tables = []
    for kind in Heads.kinds_of(model):
        of_kind = {place: facts[place] for place in facts if place[:2] == (kind.stack, kind.attention)}
        if not (corpora and any(of_kind.values())) or model.tokenizer is None:
            continue
        reader = _Reader(model, kind, corpora, behaviours, pairs, seed)
        rows = reader.table(of_kind) if kind.attention == "self" else []
        tables.append(pd.DataFrame(rows or [*reader.by_token(of_kind)], columns=COLUMNS))
    table = pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=COLUMNS)
    return table.sort_values(["stack", "layer", "head"], kind="stable", ignore_index=True)


Asked = tuple[Place, Fact]


@dataclass
class _Reader:
    """Reads the passages in which a measure asks a word, each once for all heads."""

    model: Model
    kind: Heads
    corpora: Mapping[str, Iterable[AnnotatedText]]
    behaviours: Mapping[str, Behaviour]
    pairs: Mapping[str, pd.DataFrame]
    seed: int
    _passages: dict[tuple[str, ...], list[AnnotatedText]] = field(default_factory=dict)
    _texts: dict[int, Iterator[AnnotatedText]] = field(default_factory=dict)  # so that each corpus is read once

    def __post_init__(self) -> None:
        self.measures = {each.name: each for group in self.behaviours.values() for each in group.measures}
        self.behaviour_of = {each.name: name for name, group in self.behaviours.items() for each in group.measures}

    def table(self, facts: Mapping[Place, Sequence[Fact]]) -> list[dict[str, Any]]:
        """The rows of all heads of one kind of attention."""
        heads: dict[_Topic, list[Asked]] = {}
        for place, head_facts in facts.items():
            for fact in head_facts:
                topic = self.topic(fact)
                heads.setdefault(topic if self.passages(topic) else _Topic(), []).append((place, fact))
        try:
            return [row for topic, asked in heads.items() for row in self.rows(topic, asked)]
        except InputError:  # from a library that does not expose these patterns
            return []

    def topic(self, fact: Fact) -> _Topic:
        if fact.row("effects") and self._pairs(fact.name):
            return _Topic(fact.behaviour, fact.name, task=fact.name)
        names = tuple(name for name in fact.measures if name in self.measures)
        label = SEPARATOR.join(fact.measures) if len(names) > 1 else fact.name
        return _Topic(self.behaviour_of[names[0]], label, names) if names else _Topic()

    def measure(self, topic: _Topic) -> Measure | None:
        return any_of([self.measures[name] for name in topic.measures]) if topic.measures else None

    def corpus(self, topic: _Topic) -> Iterable[AnnotatedText]:
        return self.corpora.get(topic.behaviour, next(iter(self.corpora.values())))

    def passages(self, topic: _Topic) -> list[AnnotatedText]:
        """Passages with a word that the measure asks, one from each of the first texts that have one."""
        key = (topic.behaviour, topic.task, *topic.measures[:1])
        if key not in self._passages:
            corpus, measure = self.corpus(topic), self.measure(topic)
            self._texts[id(corpus)], texts = tee(self._texts.get(id(corpus)) or iter(corpus))
            find = partial(examples.find, self.model, texts, count=_PASSAGES)
            if topic.task:
                self._passages[key] = [
                    AnnotatedText.plain(clean, str(pair)) for pair, clean, _ in self._pairs(topic.task)
                ]
            elif measure is None:
                self._passages[key] = find(examples.sentence)
            elif measure.corpus:
                self._passages[key] = find(_twice)
            else:
                self._passages[key] = find(partial(examples.passage, holds=partial(self._has_question, measure)))
        return self._passages[key]

    def _pairs(self, task: str) -> list[tuple[int, str, str]]:
        """Number, clean and corrupted prompt of each reporting pair; none if the prompts are not readable words."""
        rows = self.pairs.get("prompts", pd.DataFrame())
        rows = rows.loc[(rows["task"] == task) & (rows["half"] == "reports")] if len(rows) else rows
        pairs = [(int(row["pair"]), row["clean"], row["corrupted"]) for row in rows.to_dict("records")]
        aligned = all(len(clean.split()) == len(corrupted.split()) for _, clean, corrupted in pairs)
        return pairs if aligned and are_readable(text for _, *texts in pairs for text in texts) else []

    def _clearest(self, task: str, head: str) -> dict[str, tuple[float, float, float]]:
        """By pair: the right answer's probability with and without a head, and how clearly the answer flips."""
        if not task:
            return {}
        prompts, answers = self.pairs["prompts"], self.pairs["answers"]
        answers = answers.loc[(answers["task"] == task) & (answers["heads"] == head)]
        both = answers.merge(prompts.loc[prompts["task"] == task, ["pair", "clean_right"]], on="pair")
        columns = zip(both["pair"], both["clean_right"], both["right"], both["wrong"], strict=True)
        return {str(pair): (before, after, min(before, wrong)) for pair, before, after, wrong in columns}

    def _has_question(self, measure: Measure, text: AnnotatedText) -> bool:
        if not measure.points or len(text.words) < _FEWEST_WORDS:
            return False
        n_ctx = self.model.config.stacks[self.kind.stack].n_ctx
        text_windows = windows(text, tokenizer_of(self.model, self.kind), n_ctx, Counter())
        from_start = measure.name == _FIRST  # a special token before the words, which every word may look at
        return any(
            askers(measure, each, causal=self.kind.causal) or (from_start and each.special[0]) for each in text_windows
        )

    def rows(self, topic: _Topic, heads: Sequence[Asked]) -> Iterator[dict[str, Any]]:
        """The rows of facts whose examples are the same words."""
        measure = self.measure(topic)
        choices = [*self._choices(topic, measure)]
        if not choices and topic != _Topic():
            yield from self.rows(_Topic(), heads)
            return
        corpus = topic.task or (_TWICE if measure and measure.corpus else getattr(self.corpus(topic), "name", ""))
        columns = {"corpus": corpus, "measure": measure.name if measure else None}
        columns |= {"asked": len(choices), "read": len(self.passages(topic))}
        drawn = random.Random(self.seed).sample(choices, min(_EXAMPLES, len(choices)))
        for place, fact in heads:
            head = place.layer * self.kind.n_heads + place.head
            clear = self._clearest(topic.task, place.named(prefix=False))
            has_effect = any(size.unit == "nats" for size in fact.sizes)
            count = _POOL if has_effect else _EXAMPLES
            chosen = [(choice, *choice.of_head(head)) for choice in choices]
            hits = [(clear.get(choice.document, (weight,))[-1], choice) for choice, _, weight, right in chosen if right]
            surest: dict[int, _Choice] = {}  # each in another passage
            for _, choice in sorted(hits, key=lambda pair: -pair[0]):
                surest.setdefault(choice.passage, choice)
            best = [*surest.values()][:count]
            outlooks = self._outlooks(place, fact, measure, [*best, *drawn])
            left = [each.get("after", 0.0) - each.get("before", 0.0) for each in outlooks]
            order = sorted(range(len(best)), key=left.__getitem__)
            group = [("best", best[at], outlooks[at]) for at in order[:_EXAMPLES]]
            group += [("random", *pair) for pair in zip(drawn, outlooks[len(best) :], strict=True)]
            for name, choice, outlook in group:
                before, after, _ = clear.get(choice.document, (None, None, None))
                word, weight, right = choice.of_head(head)
                yield {
                    **place._asdict(),
                    **columns,
                    "hits": len(hits),
                    "fact": fact.name,
                    "choice": name,
                    "pair": int(choice.document) if topic.task else None,
                    "sentence": " ".join(each.replace(" ", "\u00a0") for each in choice.words),
                    "asks": choice.question.asker,
                    "seen": word,
                    "weight": weight,
                    "right": right if topic != _Topic() else None,
                    "before": before,
                    "after": after,
                    **outlook,
                }

    def _choices(self, topic: _Topic, measure: Measure | None) -> Iterator[_Choice]:
        passages, causal, count = self.passages(topic), self.kind.causal, 0
        differing = {str(pair): _differing(*texts) for pair, *texts in self._pairs(topic.task)} if topic.task else {}
        for batch in Reading(self.model, passages, heads=self.kind) if passages else ():
            weights = _between_words(batch)
            if topic.task:  # the last word asks, for the words that differ
                ends = [(each, frozenset(each.columns), differing[each.text.document]) for each in batch.windows]
                by_window = [[Question(max(each.columns), sought & words, words)] for each, words, sought in ends]
            elif measure is None:
                by_window = [_any_word(window, causal=causal) for window in batch.windows]
            else:
                by_window = questions(measure, topic.label, batch, causal=causal)
            for prompt, (window, group) in enumerate(zip(batch.windows, by_window, strict=True)):
                for question in group:
                    asks, words = question.asker, window.text.words
                    yield _Choice(count + prompt, window, words, question, weights[prompt, :, asks])
                if measure is not None and measure.name == _FIRST and window.special[0]:
                    yield from self._from_start(batch, prompt, count, weights[prompt])
            count += len(batch.windows)

    def _from_start(
        self, batch: Batch, prompt: int, count: int, weights: Float[NDArray[np.floating], "head word word2"]
    ) -> Iterator[_Choice]:
        """Every word asks for the special token before the text, which is shown as a word."""
        window, start = batch.windows[prompt], tokenizer_of(self.model, self.kind).label(batch.windows[prompt].ids[0])
        for word, columns in window.columns.items():
            to_start = batch.pattern[prompt, :, columns, 0].mean(-1).float().cpu().numpy()
            seen = frozenset(range(len(window.text.words) + 1 if not self.kind.causal else word + 2))
            question = Question(word + 1, frozenset([0]), seen)
            shares = np.concatenate([to_start[:, None], weights[:, word]], 1)
            yield _Choice(count + prompt, window, [start, *window.text.words], question, shares, start)

    def _outlooks(
        self, place: Place, fact: Fact, measure: Measure | None, choices: Sequence[_Choice]
    ) -> list[dict[str, Any]]:
        """For each choice, what the model expects there with and without the keys that the measure claims."""
        model, nothing = self.model, [dict[str, Any]() for _ in choices]
        has_effect = any(size.unit == "nats" for size in fact.sizes)
        if not (has_effect and measure and isinstance(model, Transformer) and model.output is not None):
            return nothing
        row = fact.row("sets")
        heads = heads_named(row["heads"]) if row else [(place.layer, place.head)]
        mask_id = None if self.kind.causal or model.tokenizer is None else model.tokenizer.mask_id
        asked, claims, texts, targets = [], [], [], []
        for number, choice in enumerate(choices):
            window, claimed = choice.window, measure.keys_of(choice.window)
            rows = [row for row in claimed if window.word_of[row] == choice.question.asker - bool(choice.start)]
            at = max(rows, default=-1)
            keys = [key for key in claimed.get(at, ()) if key <= at or not self.kind.causal]
            masks = mask_id is not None
            if not keys or not (masks or at + 1 in window.content):
                continue
            ids = tuple(mask_id if masks and place == at else id for place, id in enumerate(window.ids))
            target = window.ids[at + (not masks)]
            is_key = torch.tensor([[key in keys for key in range(len(ids))]])
            read = Read(torch.tensor([at]), log_probabilities(torch.tensor([target])))
            claims.append(Claim(len(texts), torch.tensor([at]), is_key, read))
            asked.append(number)
            texts.append(ids)
            targets.append((at, target))
        if not texts:
            return nothing
        batch = TokenBatch.from_rows(texts)
        width = batch.ids.shape[1]
        claims = [
            replace(each, keys=torch.nn.functional.pad(each.keys, (0, width - each.keys.shape[1]))) for each in claims
        ]
        drops = knock_out_together(model, batch, claims, [heads] * len(claims)).double().cpu().numpy()
        logits, label = run(model, batch).logits, model.tokenizer.label if model.tokenizer else str
        for number, (at, target), prompt, drop in zip(asked, targets, range(len(texts)), drops, strict=True):
            before = float(logits[prompt, at].double().log_softmax(-1)[target].exp())
            nothing[number] = {"next": label(target), "before": before, "after": before * float(np.exp(-drop))}
        return nothing

    def by_token(self, facts: Mapping[Place, Sequence[Fact]]) -> Iterator[dict[str, Any]]:
        """For texts without sentences and for cross-attention: per fact, the texts in which one token looks hardest at
        another, preferably one that the fact predicts.

        A sentence is the text's tokens; for cross-attention the source's tokens, an arrow, and the target's.
        """
        model, kind, corpus = self.model, self.kind, next(iter(self.corpora.values()))
        assert model.tokenizer is not None
        crosses, choices = kind.attention == "cross", []
        for batch in Reading(model, islice(corpus, _PASSAGES), heads=kind):
            for prompt, window in enumerate(batch.windows):
                source, ids = window.source or () if crosses else (), window.ids
                if 1 < len(source) + len(ids) < _LONGEST:
                    words = [*model.tokenizer.labels(source), "→"] if crosses else []
                    n_keys = len(source) if crosses else len(ids)
                    weights = batch.pattern[prompt, :, : len(ids), :n_keys].float().cpu().numpy()
                    choices.append((window, len(words), [*words, *tokenizer_of(model, kind).labels(ids)], weights))
        for place, fact in ((place, fact) for place, head_facts in facts.items() for fact in head_facts):
            measure = next((self.measures[name] for name in fact.measures if name in self.measures), None)
            rows = []
            for window, first, words, weights in choices:
                of_head = weights[place.layer * kind.n_heads + place.head]
                claims = measure.keys_of(window) if measure and measure.points and not crosses else {}
                keys, shares = of_head.argmax(1).tolist(), of_head.max(1).tolist()
                best = max(claims or range(len(keys)), key=lambda row: (keys[row] in claims.get(row, ()), shares[row]))
                right = keys[best] in claims[best] if claims else None
                rows.append({"sentence": " ".join(each.strip() or "␣" for each in words), "asks": first + best})
                rows[-1] |= {"seen": keys[best], "weight": shares[best], "right": right, "asked": len(choices)}
            rows.sort(key=lambda row: (row["right"] is False, -row["weight"]))
            about = {**place._asdict(), "fact": fact.name, "corpus": getattr(corpus, "name", "")}
            about |= {"measure": measure.name if measure else None, "read": len(choices)}
            for row in rows[:_EXAMPLES]:
                yield about | row | {"choice": "random" if row["right"] is False else "best"}


def _twice(text: AnnotatedText) -> AnnotatedText | None:
    """A sentence, repeated once."""
    once = examples.sentence(text)
    return AnnotatedText.plain(" ".join([*once.words, *once.words]), text.document) if once else None


def _differing(clean: str, corrupted: str) -> frozenset[int]:
    """The indices of the words in which the clean prompt differs from the corrupted one."""
    pairs = zip(AnnotatedText.plain(clean, "").words, AnnotatedText.plain(corrupted, "").words, strict=True)
    return frozenset(place for place, (one, other) in enumerate(pairs) if one != other)


def _any_word(window: Window, *, causal: bool) -> list[Question]:
    """Every word but the first asks; any word that it can see counts as right."""
    visible = {word: frozenset(key for key in window.columns if key <= word or not causal) for word in window.columns}
    return [Question(word, keys, keys) for word, keys in visible.items() if word > min(window.columns)]


def _between_words(batch: Batch) -> Float[NDArray[np.floating], "prompt head word word2"]:
    """Attention between words: summed over the pieces of the key word, averaged over the query's (Clark 2019)."""
    n_words = max(len(window.text.words) for window in batch.windows)
    belongs = membership([window.word_of for window in batch.windows], n_words, batch.pattern.shape[-1])
    belongs = belongs.to(batch.pattern)
    return pool(batch.pattern, belongs, belongs).float().cpu().numpy()

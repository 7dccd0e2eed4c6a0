"""Which words of a text is a label about? Its query words, each with the targets that a head with the label finds.

The rows and keys come from the label's measure (`Measure.keys_of`), so an example shows what was measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from analyses.measures.definitions import Claims, Measure, Rival
from analyses.reading.windows import Batch, Window
from analyses.scoring.antecedents import PREDICTING_RIVALS, RIVALS, antecedent_items
from analyses.scoring.choices import Items
from analyses.scoring.rules import NEAREST, OFFSETS, pairs_of
from analyses.wording.plain_words import Label
from interp.tokens import NO_WORD

_RULES = {each.name: each for each in (*OFFSETS, *NEAREST)}


@dataclass(frozen=True)
class Question:
    """A query word, the words that satisfy the label, and the words among which a head chooses."""

    asker: int
    sought: frozenset[int]
    candidates: frozenset[int]


def any_of(measures: Sequence[Measure]) -> Measure:
    """The first of some measures, with the claims of all, for a head that looks at several near tokens."""
    first, *rest = measures
    if not rest:
        return first

    def claims(window: Window) -> Claims:
        keys_by_row: Claims = {}
        for row, keys in (each for measure in measures for each in measure.keys_of(window).items()):
            keys_by_row.setdefault(row, set()).update(keys)
        return keys_by_row

    return replace(first, mask=None, claims=claims, pairs=None)


def askers(measure: Measure, window: Window, *, causal: bool) -> list[int]:
    """The rows of a window that see a claimed key, in order."""
    claims = measure.keys_of(window).items()
    return sorted(
        row for row, keys in claims if any(key in window.content and not (causal and key > row) for key in keys)
    )


def questions(measure: Measure, label: str, batch: Batch, *, causal: bool) -> list[list[Question]]:
    """A label's questions in each text of a batch, in word order, with visible targets only.

    The label is the measure's, or the rule that a head follows instead (`rule:last VERB`, `rule:any->NOUN`). For
    antecedents, a head chooses among mentions; for measures of words, among other words; else among all words.
    """
    called = Label.parse(label)
    rule = called.name if called.kind == "rule" else ""
    if measure.rivals in (RIVALS, PREDICTING_RIVALS):
        return [_of_mentions(measure, rule, window) for window in batch.windows]
    if called.kind == "any":
        sought = [_of_tag(window, called.target) for window in batch.windows]
    elif rule in _RULES and measure.pairs is not None:
        sought = _of_rule(measure, _RULES[rule], batch, causal=causal)
    else:
        sought = [_claimed(measure, window) for window in batch.windows]
    pairs = zip(sought, batch.windows, strict=True)
    return [_from_words(by_word, window, causal=causal, of_words=measure.of_words) for by_word, window in pairs]


def _from_words(by_word: dict[int, set[int]], window: Window, *, causal: bool, of_words: bool) -> list[Question]:
    """The questions with a visible target."""
    words, questions = {*window.columns}, []
    for asking, sought in sorted(by_word.items()):
        visible = {word for word in words if not (causal and word > asking) and not (of_words and word == asking)}
        if asking in words and sought & visible:
            questions.append(Question(asking, frozenset(sought & visible), frozenset(visible)))
    return questions


def _claimed(measure: Measure, window: Window) -> dict[int, set[int]]:
    """For each query word, the words of its claimed keys; tokens outside words are left out."""
    by_word: dict[int, set[int]] = {}
    for row, keys in measure.keys_of(window).items():
        by_word.setdefault(window.word_of[row], set()).update(window.word_of[key] for key in keys)
    return {word: sought - {NO_WORD} for word, sought in by_word.items() if word != NO_WORD}


def _of_tag(window: Window, tag: str) -> dict[int, set[int]]:
    tags = window.text.tags or ()
    tagged = {word for word in window.columns if word < len(tags) and tags[word] == tag}
    return {word: tagged - {word} for word in window.columns}


def _of_rule(measure: Measure, rule: Rival, batch: Batch, *, causal: bool) -> list[dict[int, set[int]]]:
    """For each query word, the word that the rule chooses."""
    items = Items.from_batch(batch, pairs_of(measure), np.zeros(1, dtype=int), causal=causal)
    by_prompt: list[dict[int, set[int]]] = [{} for _ in batch.windows]
    columns: Sequence[list[int]] = [each.tolist() for each in (items.prompt, items.query, rule(items))]
    for prompt, query, word in zip(*columns, strict=True):
        by_prompt[prompt].setdefault(query, set()).add(word)
    return by_prompt


def _of_mentions(measure: Measure, rule: str, window: Window) -> list[Question]:
    """For each eligible pronoun (or the word before it), its targets among all earlier mentions."""
    claims, rules, questions = measure.keys_of(window), {each.name: each for each in measure.rivals}, []
    for item in antecedent_items(window.text):
        row = window.columns.get(item.pronoun, [-1])[0] - measure.foretells
        if row not in claims or window.word_of[row] == NO_WORD:
            continue
        fits = [score == 1 for score in rules[rule](item)] if rule else item.correct
        sought = {word for word, fit in zip(item.candidates, fits, strict=True) if fit}
        candidates = {word for word in item.candidates if word in window.columns}
        if sought & candidates:
            questions.append(Question(window.word_of[row], frozenset(sought & candidates), frozenset(candidates)))
    return questions

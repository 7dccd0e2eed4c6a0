"""Which heads follow reference, from a pronoun to its antecedent?

We read attention on texts with coreference chains: among the mentions before a pronoun, does the head choose one of
its chain? The nearest mention or one of the same form solves most items, so such rules are baselines in the same
scorer. The causal test swaps two people and asks which heads carry the gender of the right one. With one person, a head
need only remember the last name. With two of different gender, the sentence decides: "Tim waved to Sue and closed" his
eyes, "Tim watched Sue close" her eyes. So neither the first name nor the nearest is always right.
"""

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from analyses.measures.definitions import BEHAVIOURS, DECLARED, Behaviour, Claims, Measure, Rival, declared, pieces_of
from analyses.measures.head_tables import Heads
from analyses.reading.windows import Batch, Progress, Window, by_text
from analyses.scoring.antecedents import (
    PREDICTING_RIVALS,
    RANDOM,
    RIVALS,
    AntecedentItem,
    Chooser,
    antecedent_items,
    items_and_left_out,
)
from analyses.scoring.choices import Choices, Items, Selections
from analyses.scoring.collectors import Scoring, measured
from analyses.scoring.rules import ANTECEDENT, Records
from analyses.scoring.strata import OF_PRONOUNS, narrowed, of_pronoun
from analyses.tasks.causal_tests import PAIRS, Effects, Task, effects_of
from interp import AnnotatedText, InputError, Model, TokenBatch
from interp.patching import Pairs
from interp.patching.pair_files import first_difference
from interp.patterns.rows import SINKS
from interp.tokens import Tokenizer
from models.stories.lexicon import FEMININE_NAMES, MASCULINE_NAMES
from models.stories.writer import OF_OBJECT, OF_SUBJECT, TRADES, Trade

__all__ = ["BEHAVIOUR", "MEASURES", "PREDICTING", "TASKS", "Collector", "effects", "measure"]
__dir__ = __all__.copy  # `dir()` lists the public names


def measure(
    model: Model,
    corpus: Iterable[AnnotatedText],
    *,
    pronouns: Collection[str] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """How often every head's attention from a pronoun chooses a mention of its chain, among all mentions before it.

    `antecedent` is the share of pronouns whose most attended candidate is in the chain; `antecedent-mass` the chain's
    share of the candidates' attention. `:named` keeps items whose nearest true antecedent is a name or a noun.
    In a causal model, `antecedent-predicting` reads the token before the pronoun. The baseline is the strictest of
    `analyses.scoring.antecedents.RIVALS`; before the pronoun, the strictest rival that does not know the pronoun.

    Returns the rows of `tables/heads`.

    Raises:
        InputError: the corpus is empty, or has no chains, or no pronoun with a right and a wrong candidate before it.
    """
    collector = partial(Collector, seed=seed, pronouns=pronouns)
    return measured(collector, model, corpus, seed=seed, progress=progress).heads


def _chain(window: Window, *, named: bool = False, predicting: bool = False, stratum: str = "") -> Claims:
    """From a pronoun's pieces, or the token before them, to the head words of its chain."""
    keys_by_row: Claims = {}
    for item in _visible_items(window, antecedent_items(window.text), Counter()):
        right = [(item.pronoun, word) for word, is_right in zip(item.candidates, item.correct, strict=True) if is_right]
        is_eligible = (item.named or not named) and (not stratum or stratum in of_pronoun(item))
        claims = pieces_of(window, right) if is_eligible else {}
        keys_by_row |= {min(claims) - 1: claims[min(claims)]} if predicting and claims else claims
    return keys_by_row


def _variants(name: str, rivals: Sequence[Rival], *, label: str | None = None, recorded: str = "") -> list[Measure]:
    """A measure of all pronouns, and one of those whose nearest true antecedent is a name or a noun."""
    shared: dict[str, Any] = {"rivals": rivals, "null": "same distance", "together": name}
    claims = partial(_chain, predicting=name == "antecedent-predicting")
    overall = declared("coreference", name, claims=claims, label=None, reference="nearest", recorded=recorded, **shared)
    named = replace(
        overall,
        name=f"{name}:named",
        title="the same where the nearest true antecedent is a name or a noun",
        words=overall.words.named,
        claims=partial(claims, named=True),
        label=label,
        reference="",
        recorded="",
        tasks=("gender", "name-gender") if label else (),
    )
    return [overall, named]


def _strata(overall: Measure) -> list[Measure]:
    claims = partial(_chain, predicting=overall.foretells)
    return [narrowed(overall, name, claims=partial(claims, stratum=name), binary=True) for name in OF_PRONOUNS]


_SELECTION = _variants("antecedent", RIVALS, label="antecedent", recorded="antecedent")
_AHEAD = _variants("antecedent-predicting", PREDICTING_RIVALS, label="antecedent-predicting")
MEASURES = (*_SELECTION, *_strata(_SELECTION[0]), *_variants("antecedent-mass", RIVALS))
PREDICTING = (*_AHEAD, *_strata(_AHEAD[0]))
N_MASSES = 2  # the last of `MEASURES`


class Collector(Scoring):
    """Adds up antecedent selection and mass."""

    few_rows = True

    def __init__(
        self,
        model: Model,
        *,
        seed: int = 0,
        heads: Heads | None = None,
        pronouns: Collection[str] | None = None,
        rules: bool = True,
        removed: bool = True,
    ):
        """`rules` keeps choices for `tables/rules`; `removed` also reads without the first position."""
        super().__init__(model, BEHAVIOUR.name, heads)
        n_ctx = model.config.stacks[self.heads.stack].n_ctx
        self.nothing = (
            "the corpus has no pronoun with both a right and a wrong mention before it in one window of the model's "
            f"context ({n_ctx} tokens): expected coreference chains, and a context that shows them"
        )
        sinks = SINKS if removed else SINKS[:1]
        self._items_in = by_text(partial(items_and_left_out, pronouns=pronouns))
        self.parts = []
        for measures in [MEASURES, PREDICTING] if self.heads.causal else [MEASURES]:
            nearest, first, *more_rivals = (rival for rival in measures[0].rivals if rival is not RANDOM)
            n_masses = N_MASSES if measures is MEASURES else 0
            selected = measures[: len(measures) - n_masses]
            records = Records(self.heads, selected, ([nearest, first], more_rivals), ANTECEDENT) if rules else None
            self.records += [records] if records is not None else []
            self.parts.append(Selections(self.heads, measures, masses=n_masses, records=records, sinks=sinks))

    def add(self, batch: Batch) -> None:
        """Score one batch."""
        visible: list[_Question] = []
        for prompt, window in enumerate(batch.windows):
            items, left_out = self._items_in(window.text)
            self.counts.update(reason for word, reason in left_out if window.scores(word))
            self.counts.update(["texts left out of coreference: no chains"] * (window.text.mentions is None))
            visible += [(prompt, window, item) for item in _visible_items(window, items, self.counts)]
        removed = _without_sink(visible)
        for scorer in self.parts:
            rivals, predicting = scorer.rivals, scorer.measures[0].foretells
            choices: Choices | None = None
            for sink, questions in zip(scorer.sinks, (visible, removed), strict=False):
                if questions and (choices is None or questions != visible):
                    choices = Choices(_items(batch, questions, rivals), predicting=predicting)
                if questions and choices is not None:
                    scorer.add_choices(choices, sink)


_Question = tuple[int, Window, AntecedentItem]  # prompt index, window, and the item as the window shows it


def _visible_items(window: Window, items: Iterable[AntecedentItem], counts: Counter[str]) -> Iterator[AntecedentItem]:
    """The items that a window scores, with their visible candidates."""
    absent = {word for word, count in enumerate(window.pieces, window.start) if not count}.union(range(window.start))
    for item in items:
        if not window.scores(item.pronoun):
            continue
        visible_item = _remove(item, absent)
        if visible_item is None:
            counts["pronouns left out: no right and wrong candidate within the window"] += 1
        else:
            yield visible_item


def _remove(item: AntecedentItem, absent: Collection[int]) -> AntecedentItem | None:
    """The item without absent candidates; None unless a right and a wrong one remain."""
    indices = [index for index, word in enumerate(item.candidates) if word not in absent]
    if len(indices) == len(item.candidates):
        return item
    if len({item.correct[index] for index in indices}) < 2:
        return None
    return item.keeping(indices)


def _without_sink(questions: Sequence[_Question]) -> list[_Question]:
    """The questions without candidates at the first position."""
    remaining = ((prompt, window, _remove(item, (window.word_of[0],))) for prompt, window, item in questions)
    return [(prompt, window, item) for prompt, window, item in remaining if item is not None]


def _items(batch: Batch, questions: Sequence[_Question], rivals: Sequence[Rival]) -> Items:
    """The items of all pronouns, of the named ones, and of each stratum."""
    items, n = [item for _, _, item in questions], len(questions)
    start = np.array([window.start for _, window, _ in questions])
    masks = np.zeros((2, n, batch.pieces.shape[1]), dtype=bool)
    for row, item in enumerate(items):
        words = np.array(item.candidates) - start[row]
        masks[0, row, words], masks[1, row, words] = True, item.correct
    choosers = [rival for rival in rivals if isinstance(rival, Chooser)]
    picks = {rival.name: [item.candidates[rival.choice(item)] for item in items] - start for rival in choosers}
    strata = [of_pronoun(item) for item in items]
    included = [
        [True] * n,
        [item.named for item in items],
        *([name in each for each in strata] for name in OF_PRONOUNS),
    ]
    number, order = np.nonzero(np.array(included))
    prompts, pronouns = [prompt for prompt, _, _ in questions], [item.pronoun for item in items] - start
    columns = np.array(prompts)[order], pronouns[order], number, *masks[:, order]
    prompt, query, column, candidates, right = (torch.from_numpy(each).to(batch.device) for each in columns)
    ordered = {name: torch.from_numpy(words[order]).to(batch.device) for name, words in picks.items()}
    return Items(batch, prompt, query, column.long(), candidates, right, {**ordered, RANDOM.name: None})


# The causal test: who is meant, and the gender of a person, from the name to the pronoun.

_TWO_PEOPLE, _ONE_PERSON = DECLARED["tasks"]["gender"], DECLARED["tasks"]["name-gender"]


def effects(model: Model, *, pairs: int | None = None, seed: int = 0) -> Effects:
    """Which heads carry a pronoun's referent, and a person's gender up to the pronoun, in three tasks.

    `reference`: two people with different trades. The verb decides whom “he” or “she” means: the subject in half of the
    pairs. The answers are what they do for a living ("The baker praised the tailor because he": sewed). The corrupted
    prompt swaps the two. `gender`: two people of different gender, swapped in the corrupted prompt. The
    answers are " his" and " her", for the person whose eyes, mouth or hand it must be. In half of the pairs that is the
    subject, in half the one who is watched or let, and comes last. `name-gender`: one person; the corrupted prompt has
    a name of the other gender. The answers are " he" and " she" (or " He" and " She"). A gender-neutral prompt shows
    which answer the model prefers anyway (Vig 2020). In each pair, names have the same number of tokens; each gender is
    the clean one in half of the pairs.
    """
    return effects_of(model, BEHAVIOUR.name, TASKS, pairs=pairs, seed=seed)


class _Prompt(NamedTuple):
    clean: str
    corrupt: str
    right: str
    wrong: str
    people: tuple[str, str]
    frame: str


def _two_trades(number: int, people: tuple[Trade, Trade], rng: random.Random) -> _Prompt:
    by_object, pronoun = number // 2 % 2, rng.choice(["he", "she"])
    verb = rng.choice(OF_OBJECT if by_object else OF_SUBJECT)
    clean, corrupt = (
        f"The {one.noun} {verb} the {other.noun} because {pronoun}" for one, other in (people, people[::-1])
    )
    right, wrong = (f" {each.did}" for each in (people[::-1] if by_object else people))
    return _Prompt(clean, corrupt, right, wrong, (people[0].noun, people[1].noun), verb)


def _two_people(number: int, names: tuple[str, str], rng: random.Random) -> _Prompt:
    frame = rng.choice(_TWO_PEOPLE["object" if number // 2 % 2 else "subject"])
    clean, corrupt = (frame.format(one=one, other=other) for one, other in (names, names[::-1]))
    return _Prompt(clean, corrupt, " his", " her", names, frame)


def _one_person(number: int, names: tuple[str, str], rng: random.Random) -> _Prompt:
    frame, he, she = rng.choice(_ONE_PERSON["frames"])
    clean, corrupt = (frame.format(name=name) for name in names)
    return _Prompt(clean, corrupt, he, she, names, frame)


def _names(tokenizer: Tokenizer) -> list[tuple[str, str]]:
    """Pairs of a masculine and a feminine name with the same number of tokens."""
    lengths = {name: len(tokenizer.pieces(name).ids) for name in (*MASCULINE_NAMES, *FEMININE_NAMES)}
    return [(m, f) for m in MASCULINE_NAMES for f in FEMININE_NAMES if lengths[m] == lengths[f]]


def _trades(tokenizer: Tokenizer) -> list[tuple[Trade, Trade]]:
    """Pairs of trades whose nouns have the same number of tokens."""
    lengths = {trade: len(tokenizer.continuation(f" {trade.noun}")) for trade in TRADES}
    return [pair for pair in combinations(TRADES, 2) if lengths[pair[0]] == lengths[pair[1]]]


def _task(
    model: Model,
    count: int | None,
    seed: int,
    name: str,
    question: str,
    *,
    prompt: Callable[[int, Any, random.Random], _Prompt],
    people: Callable[[Tokenizer], list[Any]],
    neutral: str | None = None,
) -> Task:
    """Pairs of prompts, every second one reversed; each couple appears once before any repeats."""
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise InputError("this model has no tokenizer")
    rng, couples = random.Random(seed), people(tokenizer)
    if not couples:
        raise InputError("no two of its names have the same number of tokens")
    rng.shuffle(couples)
    prompts = [prompt(number, couples[number % len(couples)], rng) for number in range(count or PAIRS)]
    prompts[1::2] = [
        each._replace(clean=each.corrupt, corrupt=each.clean, right=each.wrong, wrong=each.right)
        for each in prompts[1::2]
    ]
    clean, corrupt, right, wrong, pairs_of_people, frames = map(list, zip(*prompts, strict=True))
    pairs = Pairs.from_texts(model, clean, corrupt, right, wrong, drop=True)
    rows = []
    for place in pairs.kept if neutral else ():
        pronouns = tokenizer.continuation(right[place]), tokenizer.continuation(wrong[place])
        start = pronouns[0][: first_difference(*pronouns)]
        rows.append([*tokenizer.prefix, *tokenizer.pieces(frames[place].format(name=neutral)).ids, *start])
    shared = dict(zip(("one person", "other person"), zip(*pairs_of_people, strict=True), strict=True))
    shared |= {"frame": frames}
    clusters = {way: [values[place] for place in pairs.kept] for way, values in shared.items()}
    answers = [right[place].strip().lower() for place in pairs.kept] if people is _names else []
    neutral_prompts = TokenBatch.from_rows(rows) if rows else None
    return Task(name, question, pairs, neutral_prompts, pairs.left_out, clusters=clusters, answers=answers)


TASKS = {
    "reference": partial(_task, prompt=_two_trades, people=_trades),
    "gender": partial(_task, prompt=_two_people, people=_names),
    "name-gender": partial(_task, prompt=_one_person, people=_names, neutral=_ONE_PERSON["neutral"]),
}

BEHAVIOUR = Behaviour(
    **BEHAVIOURS["coreference"],
    measures=(*MEASURES, *PREDICTING),
    collector=Collector,
    needs=frozenset({"chains"}),
    effects=effects,
    tasks=TASKS,
    bare={"rules": False},
    null={"removed": False},
    cost=6,
    words=40,  # an item needs a mention before the pronoun
    probe="antecedent",
)

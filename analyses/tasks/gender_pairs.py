"""Which heads carry a person's gender to the pronoun? Minimal pairs of prompts about people of either gender.

With one person a head need only remember the last name. With two, of different gender, the sentence decides: "Tim waved
to Sue and closed" his eyes, "Tim watched Sue close" her eyes. So neither the first name nor the nearest is right.
"""

import random
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from analyses.measures.definitions import DECLARED
from analyses.tasks.causal_tests import PAIRS, Effects, Task, effects_of
from interp import InputError, Model, TokenBatch
from interp.patching import Pairs
from interp.patching.pairs import first_difference
from models.stories.lexicon import FEMININE_NAMES, MASCULINE_NAMES

_TWO, _ONE = DECLARED["tasks"]["gender"], DECLARED["tasks"]["name-gender"]


def effects(model: Model, *, pairs: int = PAIRS, seed: int = 0) -> Effects:
    """Which heads carry gender to the pronoun, in two tasks.

    `gender`: two people of different gender, who change places in the corrupted prompt. The answers are " his" and
    " her", of the one whose eyes, mouth or hand it must be: in half of the pairs the subject, whom the other follows,
    in half the one who is watched or let, who comes last. `name-gender`: one person, whose name is one of the other
    gender in the corrupted prompt; the answers are " he" and " she" (or " He" and " She"), and a gender-neutral prompt
    says how much of the answer was there anyway (Vig 2020). Names have equally many tokens, and either gender is the
    clean one in half of the pairs.
    """
    tasks = {
        "gender": partial(_task, model, pairs, seed, _two_people),
        "name-gender": partial(_task, model, pairs, seed, _one_person, neutral=_ONE["neutral"]),
    }
    return effects_of(model, "coreference", tasks, seed=seed)


class _Prompt(NamedTuple):
    clean: str
    corrupt: str
    right: str
    wrong: str
    names: tuple[str, str]
    frame: str


def _two_people(number: int, names: tuple[str, str], rng: random.Random) -> _Prompt:
    frame = rng.choice(_TWO["object" if number // 2 % 2 else "subject"])
    clean, corrupt = (frame.format(one=one, other=other) for one, other in (names, names[::-1]))
    return _Prompt(clean, corrupt, " his", " her", names, frame)


def _one_person(number: int, names: tuple[str, str], rng: random.Random) -> _Prompt:
    frame, he, she = rng.choice(_ONE["frames"])
    clean, corrupt = (frame.format(name=name) for name in names)
    return _Prompt(clean, corrupt, he, she, names, frame)


def _task(
    model: Model,
    count: int,
    seed: int,
    prompt: Callable[[int, tuple[str, str], random.Random], _Prompt],
    name: str,
    question: str,
    *,
    neutral: str | None = None,
) -> Task:
    """Pairs of prompts, every second one with the other gender as the clean one; names go round before any comes again.

    Raises:
        InputError: no tokenizer, or no names of both genders with the same number of tokens.
    """
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise InputError("this model has no tokenizer")
    rng = random.Random(seed)
    lengths = {name: len(tokenizer.pieces(name).ids) for name in (*MASCULINE_NAMES, *FEMININE_NAMES)}
    name_pairs = [(m, f) for m in MASCULINE_NAMES for f in FEMININE_NAMES if lengths[m] == lengths[f]]
    if not name_pairs:
        raise InputError("no masculine and feminine name have the same number of tokens")
    rng.shuffle(name_pairs)
    prompts = [prompt(number, name_pairs[number % len(name_pairs)], rng) for number in range(count)]
    prompts[1::2] = [
        each._replace(clean=each.corrupt, corrupt=each.clean, right=each.wrong, wrong=each.right)
        for each in prompts[1::2]
    ]
    clean, corrupt, right, wrong, names, frames = map(list, zip(*prompts, strict=True))
    pairs = Pairs.from_texts(model, clean, corrupt, right, wrong, drop=True)
    rows = []
    for place in pairs.kept if neutral else ():
        pronouns = tokenizer.continuation(right[place]), tokenizer.continuation(wrong[place])
        start = pronouns[0][: first_difference(*pronouns)]
        rows.append([*tokenizer.prefix, *tokenizer.pieces(frames[place].format(name=neutral)).ids, *start])
    shared = dict(zip(("masculine name", "feminine name"), zip(*names, strict=True), strict=True)) | {"frame": frames}
    clusters = {way: [values[place] for place in pairs.kept] for way, values in shared.items()}
    answers = [right[place].strip().lower() for place in pairs.kept]
    neutral_prompts = TokenBatch.from_rows(rows) if rows else None
    return Task(name, question, pairs, neutral_prompts, pairs.left_out, clusters=clusters, answers=answers)

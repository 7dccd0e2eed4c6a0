"""Which figures does a report show of a behaviour? Chooses heads and passages, and has them drawn."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import matplotlib.figure
import numpy as np
import pandas as pd

from analyses import figures, position
from analyses.measures.definitions import UNITS, Behaviour
from analyses.measures.findings import notable, varied
from analyses.measures.head_tables import Heads
from analyses.page.sections import Figure
from analyses.reading import examples
from analyses.reading.inputs import is_paired
from analyses.reading.windows import Reading
from analyses.report import text_alternatives
from analyses.scoring.antecedents import antecedent_items
from analyses.wording.formats import counted
from analyses.wording.head_names import head_name
from analyses.wording.plain_words import TEXTS
from interp import AnnotatedText, Model

_REPEATS, _REPEAT_LENGTH = 32, 12  # random sequences whose mean pattern is drawn, and the tokens of one copy
_MOST = 0.8  # share of attention to special tokens; of a head that gives them more, hardly a line would be seen
_SHOWN_TOKENS = (9, 18)  # of a text whose pattern is drawn token by token
Named = Mapping[str, examples.Head]  # heads by their names in a figure
_TAGGED = 40  # sentences over which attention between tags is averaged


class Drawing(NamedTuple):
    """A figure that a table is enough for: its name, how it is drawn (`draw(**page)`), what the page says below, and to
    one who cannot see it."""

    name: str
    draw: Callable[..., matplotlib.figure.Figure]
    caption: str = ""
    alt: str = ""

    def drawn(self) -> Figure:
        """As the page shows it."""
        return Figure(self.name, self.draw(), self.caption, self.alt)


def illustrate(
    model: Model,
    behaviour: Behaviour,
    corpus: Iterable[AnnotatedText],
    *,
    heads: pd.DataFrame,
    seed: int = 0,
) -> Iterator[Figure]:
    """The figures of attention of one behaviour and kind of attention, in the order of its section."""
    for drawing in measured(behaviour.name, heads, behaviour.headline, behaviour.grids):
        yield drawing.drawn()
    chosen, closest = _leading(heads, behaviour.headline)
    if len(chosen):
        for drawn in _of_heads(model, behaviour, corpus, chosen, seed):
            yield replace(drawn, caption=closest + drawn.caption)


def measured(
    behaviour: str, heads: pd.DataFrame, headline: Sequence[str], questions: Mapping[str, str]
) -> Iterator[Drawing]:
    """What rows of `tables/heads` of one behaviour and kind of attention show; `questions` are titles of grids."""
    names = set(heads["measure"])
    yield from _grids(behaviour, heads, [measure for measure in headline if measure in names], questions)
    chosen, _ = _leading(heads, headline)
    if len(chosen):
        leading = chosen["measure"].iloc[0]
        caption = f"The heads with the largest gains in {figures.measure_name(leading)}; bars are 95% intervals."
        alt = text_alternatives.grid(heads, [leading])
        yield Drawing(f"{behaviour}-gains", partial(figures.gain_intervals, heads, leading), caption, alt)
    if behaviour == position.BEHAVIOUR.name and "distance" in names:
        caption = "A head that looks at all visible tokens alike would lie on the dashed line."
        alt = text_alternatives.distance(heads)
        yield Drawing("position-distance", partial(figures.distance_by_layer, heads), caption, alt)


def _leading(heads: pd.DataFrame, headline: Sequence[str]) -> tuple[pd.DataFrame, str]:
    """Of the headline measures that are shares, the heads that show most of what there is; else what comes closest."""
    units = dict(zip(heads["measure"], heads["unit"], strict=True))
    shares = [measure for measure in headline if units.get(measure) in {"share", "correlation"}]
    shown = varied(notable(heads), shares)
    return (shown, "") if len(shown) else (varied(heads, shares), TEXTS["no finding"])


def effect_figures(behaviour: str, effects: pd.DataFrame, questions: Mapping[str, str | None]) -> dict[str, Drawing]:
    """By task, what each head's patch restores and removes; `questions` are their titles."""
    drawn = {}
    for task in effects["task"].unique():
        slug = "".join(letter if letter.isalnum() else "-" for letter in task.lower()).strip("-")
        draw = partial(figures.effect_grid, effects, task, title=questions.get(task, "?"))
        alt = text_alternatives.effects(effects.loc[effects["task"] == task])
        drawn[task] = Drawing(f"{behaviour}-effects-{slug}", draw, TEXTS["effect cells"], alt)
    return drawn


def _of_heads(
    model: Model, behaviour: Behaviour, corpus: Iterable[AnnotatedText], chosen: pd.DataFrame, seed: int
) -> Iterator[Figure]:
    """What the chosen heads, all of one kind of attention, look at."""
    where = chosen.iloc[0]
    (kind,) = (each for each in Heads.every(model) if (each.stack, each.attention) == (where.stack, where.attention))
    heads = {
        f"{head_name(row['layer'], row['head'])}\n{row['measure']}": examples.Head(
            row["stack"], int(row["layer"]), int(row["head"])
        )
        for row in chosen.to_dict("records")
    }
    if is_paired(model, kind):
        yield from _along(model, kind, behaviour.name, corpus, heads)
        return
    name, pictures = behaviour.name, behaviour.pictures
    if "repeats" in pictures:
        yield from _on_repeats(model, name, heads, seed)
    if "tags" in pictures:
        yield from _between_tags(model, name, corpus, heads)
    if {"sentence", "pronoun"} & {*pictures}:
        yield from _over_words(model, name, corpus, heads, about_pronouns="pronoun" in pictures)


def _along(
    model: Model, kind: Heads, behaviour: str, corpus: Iterable[AnnotatedText], heads: Named
) -> Iterator[Figure]:
    """Patterns of a decoder's heads over one text, token by token."""
    shortest, longest = _SHOWN_TOKENS
    crosses = kind.attention == "cross"
    assert model.tokenizer is not None
    assert model.target_tokenizer is not None
    for batch in Reading(model, islice(corpus, examples.SEARCHED), heads=kind):
        for row, window in enumerate(batch.windows):
            source = window.source or ()
            if not (shortest <= len(window.ids) <= longest and len(source) <= longest):
                continue
            asks = model.target_tokenizer.labels(window.ids)
            answers = model.tokenizer.labels(source) if crosses else asks
            numbers = [head.layer * kind.n_heads + head.head for head in heads.values()]
            shown = batch.pattern[row, numbers, : len(asks), : len(answers)].double().cpu().numpy()
            patterns = dict(zip(heads, shown, strict=True))
            figure = figures.best_heads(
                patterns,
                title=f"Where does {kind.title} look while writing?",
                queries=[*map(figures.literal, asks)],
                keys=[*map(figures.literal, answers)],
                axes_labels=("having read", "in the source" if crosses else "to the target's"),
            )
            caption = f"From {window.text.document}: a row is a token of the target, and what is written next."
            alt = text_alternatives.cells(patterns, asks, answers)
            yield Figure(f"{behaviour}-along", figure, caption, alt)
            return


def _grids(
    behaviour: str, heads: pd.DataFrame, measures: Sequence[str], questions: Mapping[str, str]
) -> Iterator[Drawing]:
    """One grid a unit, so that each has one scale."""
    units = dict(zip(heads["measure"], heads["unit"], strict=True))
    for each in dict.fromkeys(units[measure] for measure in measures):
        group = [measure for measure in measures if units[measure] == each]
        name, unit = f"{behaviour}-heads" + (f"-{each}" if each != "share" else ""), UNITS[each]
        draw = partial(figures.head_grid, heads, group, title=questions.get(each, "?"), quantity=unit.drawn)
        caption = " ".join(filter(None, [unit.caption, TEXTS["dots"] if unit.ranked else ""]))
        yield Drawing(name, draw, caption, text_alternatives.grid(heads, group, unit.drawn))


def _on_repeats(model: Model, behaviour: str, heads: Named, seed: int) -> Iterator[Figure]:
    """Mean patterns on random tokens that are read twice."""
    length = min(_REPEAT_LENGTH, position.repeat_length(model))
    if length < 2:
        return
    ids = position.repeated(model, length, _REPEATS, seed)
    patterns = dict(zip(heads, examples.mean_pattern(model, ids, [*heads.values()]), strict=True))
    title = "Where do the best positional heads look, when random tokens come twice?"
    caption = TEXTS["on repeats"].format(sequences=_REPEATS, length=length, back=length - 1)
    figure, alt = figures.best_heads(patterns, title=title), text_alternatives.stripes(patterns)
    yield Figure(f"{behaviour}-patterns", figure, caption, alt)


def _between_tags(model: Model, behaviour: str, corpus: Iterable[AnnotatedText], heads: Named) -> Iterator[Figure]:
    """Mean attention from words of one tag to words of another."""
    sentences = examples.find(model, corpus, examples.sentence, _TAGGED)
    texts = [text for text in sentences if text.tags is not None]
    tags = examples.common_tags(texts)
    if not tags:  # no text has tags, or none that tells kinds of words apart
        return
    patterns = dict(zip(heads, examples.tag_patterns(model, texts, [*heads.values()], tags), strict=True))
    sides: Any = {"queries": tags, "keys": tags, "axes_labels": ("from a word tagged", "to words tagged")}
    figure = figures.best_heads(patterns, title="To which kinds of words do the best heads look?", **sides)
    caption = f"Mean share of a word's attention, over {counted(len(texts), 'sentence')}."
    yield Figure(f"{behaviour}-patterns", figure, caption, text_alternatives.cells(patterns, tags, tags))


def _over_words(
    model: Model, behaviour: str, corpus: Iterable[AnnotatedText], heads: Named, *, about_pronouns: bool
) -> Iterator[Figure]:
    """Attention of the best heads over one passage of the corpus."""
    cut = partial(examples.passage, holds=antecedent_items) if about_pronouns else examples.sentence
    for passage in examples.find(model, corpus, cut):
        read = examples.word_patterns(model, passage, [*heads.values()])
        patterns, elsewhere = _on_words(dict(zip(heads, read, strict=True)))
        if not patterns:
            return
        title, pronoun, answers = TEXTS["of a sentence"], None, ()
        caption = f"From {passage.document}. {TEXTS['lines']}"
        if elsewhere:
            caption += f" Left out, since they look at special tokens there: {', '.join(elsewhere)}."
        if about_pronouns:  # the last that asks for an antecedent, and the mentions before it that answer
            title, item = "Does the pronoun look at whom it stands for?", antecedent_items(passage)[-1]
            pairs = zip(item.candidates, item.correct, strict=True)
            pronoun, answers = item.pronoun, tuple(word for word, right in pairs if right)
            caption += " Coloured on the left the pronoun, on the right the mentions that it stands for."
        emphasised = () if pronoun is None else (pronoun,)
        words = passage.words
        figure = figures.attention_over_words(words, patterns, title=title, emphasised=emphasised, sought=answers)
        alt = text_alternatives.lines(patterns, words, pronoun)
        yield Figure(f"{behaviour}-words", figure, caption, alt)


def _on_words(patterns: Mapping[str, examples.WordPattern]) -> tuple[dict[str, examples.WordPattern], list[str]]:
    """The heads to draw, and those of whose lines hardly any would be seen."""
    special = {  # the share of the words' attention that goes there
        name: 1 - float(np.nanmean(np.nansum(pattern, axis=1)[~np.isnan(pattern).all(1)]))
        for name, pattern in patterns.items()
    }
    elsewhere = [name for name, share in special.items() if share > _MOST]
    return {name: pattern for name, pattern in patterns.items() if name not in elsewhere}, elsewhere

"""Which figures does a report show of a behaviour, and what do they show to a reader who cannot see them?

Alternative texts are a sentence or two by rule, from the numbers that were drawn.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import matplotlib.figure
import numpy as np
import pandas as pd

from analyses import figures, position
from analyses.figures import measure_name
from analyses.figures.single_heads import FAINTEST
from analyses.measures.definitions import UNITS, Behaviour
from analyses.measures.findings import notable, shows, varied
from analyses.measures.head_tables import Heads
from analyses.page.sections import Figure
from analyses.reading import examples
from analyses.reading.inputs import is_paired
from analyses.reading.windows import Reading
from analyses.scoring.antecedents import antecedent_items
from analyses.wording.formats import counted, number
from analyses.wording.head_names import HEAD, Place, head_name, kinds
from analyses.wording.plain_words import TEXTS, offset
from interp import AnnotatedText, Model

_REPEATS, _REPEAT_LENGTH = 32, 12  # random sequences whose mean pattern is drawn, and the tokens of one copy
_LARGEST = 0.8  # share of attention to special tokens; of a head that gives them more, hardly a line would be seen
_LENGTHS = (9, 18)  # tokens of a text whose pattern is drawn token by token
_TAGGED = 40  # sentences over which attention between tags is averaged
_NAMES = 3  # heads, words or groups that an alternative text names of each thing
_PANELS = 12  # panels that an alternative text describes
_STRIPE = 0.05  # the least share of attention that a fixed offset is named for
_WAYS = {"denoise": "restored by one head alone", "noise": "removed by one head alone"}
Named = Mapping[str, examples.Head]  # heads by their names in a figure
Patterns = Mapping[str, np.ndarray]  # patterns by the names of their heads


class Drawing(NamedTuple):
    """A figure that a table is enough for: its name, how it is drawn (`draw(**page)`), its caption and alternative."""

    name: str
    draw: Callable[..., matplotlib.figure.Figure]
    caption: str = ""
    alt: str = ""

    def figure(self) -> Figure:
        """As the page shows it."""
        return Figure(self.name, self.draw(), self.caption, self.alt)


def measured(
    behaviour: str, heads: pd.DataFrame, headline: Sequence[str], questions: Mapping[str, str]
) -> Iterator[Drawing]:
    """What rows of `tables/heads` of one behaviour and kind of attention show; `questions` are titles of grids."""
    units = dict(zip(heads["measure"], heads["unit"], strict=True))
    measures = [measure for measure in headline if measure in units]
    for key in dict.fromkeys(units[measure] for measure in measures):  # a grid a unit, so that each has one scale
        group = [measure for measure in measures if units[measure] == key]
        name, unit = f"{behaviour}-heads" + (f"-{key}" if key != "share" else ""), UNITS[key]
        draw = partial(figures.head_grid, heads, group, title=questions.get(key, "?"), quantity=unit.drawn)
        caption = " ".join(filter(None, [unit.caption, TEXTS["dots"] if unit.ranked else ""]))
        yield Drawing(name, draw, caption, grid_alt(heads, group, unit.drawn))
    leaders, _ = _leading(heads, headline)
    if len(leaders):
        leading = leaders["measure"].iloc[0]
        caption = f"The heads with the largest gains in {measure_name(leading)}; bars are 95% intervals."
        draw = partial(figures.gain_intervals, heads, leading)
        yield Drawing(f"{behaviour}-gains", draw, caption, grid_alt(heads, [leading]))
    if behaviour == position.BEHAVIOUR.name and "distance" in units:
        caption = "A head that looks at all visible tokens alike would lie on the dashed line."
        draw = partial(figures.distance_by_layer, heads)
        yield Drawing("position-distance", draw, caption, distance_alt(heads))


def _leading(heads: pd.DataFrame, headline: Sequence[str]) -> tuple[pd.DataFrame, str]:
    """Of the headline measures that are shares, the heads that show most of what there is; else what comes closest."""
    units = dict(zip(heads["measure"], heads["unit"], strict=True))
    shares = [measure for measure in headline if units.get(measure) in {"share", "correlation"}]
    rows = varied(notable(heads), shares)
    return (rows, "") if len(rows) else (varied(heads, shares), TEXTS["no finding"])


def effect_figures(behaviour: str, effects: pd.DataFrame, questions: Mapping[str, str | None]) -> dict[str, Drawing]:
    """By task, what each head's patch restores and removes; `questions` are their titles."""
    drawings = {}
    for task, rows in effects.groupby("task", sort=False):
        slug = "".join(letter if letter.isalnum() else "-" for letter in str(task).lower()).strip("-")
        draw = partial(figures.effect_grid, effects, str(task), title=questions.get(str(task), "?"))
        ways = rows.groupby("intervention", sort=False)
        alt = _panels({_WAYS.get(str(way), str(way)): _largest(part, "effect") for way, part in ways})
        drawings[str(task)] = Drawing(f"{behaviour}-effects-{slug}", draw, TEXTS["effect cells"], alt)
    return drawings


def illustrate(
    model: Model, behaviour: Behaviour, corpus: Iterable[AnnotatedText], *, heads: pd.DataFrame, seed: int = 0
) -> Iterator[Figure]:
    """The figures of attention of one behaviour and kind of attention, in the order of its section."""
    for drawing in measured(behaviour.name, heads, behaviour.headline, behaviour.grids):
        yield drawing.figure()
    leaders, closest = _leading(heads, behaviour.headline)
    if leaders.empty:
        return
    first = leaders.iloc[0]
    (kind,) = (each for each in Heads.kinds_of(model) if (each.stack, each.attention) == (first.stack, first.attention))
    named = {
        f"{head_name(row['layer'], row['head'])}\n{row['measure']}": examples.Head(
            row["stack"], int(row["layer"]), int(row["head"])
        )
        for row in leaders.to_dict("records")
    }
    name, pictures, drawings = behaviour.name, behaviour.pictures, []
    if is_paired(model, kind):
        drawings = [_over_target(model, kind, name, corpus, named)]
    else:
        if "repeats" in pictures:
            drawings.append(_on_repeats(model, name, named, seed))
        if "tags" in pictures:
            drawings.append(_between_tags(model, name, corpus, named))
        if {"sentence", "pronoun"} & {*pictures}:
            drawings.append(_over_words(model, name, corpus, named, about_pronouns="pronoun" in pictures))
    for figure in filter(None, drawings):
        yield replace(figure, caption=closest + figure.caption)


def _over_target(
    model: Model, kind: Heads, behaviour: str, corpus: Iterable[AnnotatedText], heads: Named
) -> Figure | None:
    shortest, longest = _LENGTHS
    crosses = kind.attention == "cross"
    assert model.tokenizer is not None
    assert model.target_tokenizer is not None
    for batch in Reading(model, islice(corpus, examples.SEARCHED), heads=kind):
        for row, window in enumerate(batch.windows):
            source = window.source or ()
            if not (shortest <= len(window.ids) <= longest and len(source) <= longest):
                continue
            queries = model.target_tokenizer.labels(window.ids)
            keys = model.tokenizer.labels(source) if crosses else queries
            numbers = [head.layer * kind.n_heads + head.head for head in heads.values()]
            weights = batch.pattern[row, numbers, : len(queries), : len(keys)].double().cpu().numpy()
            patterns = dict(zip(heads, weights, strict=True))
            figure = figures.best_heads(
                patterns,
                title=f"Where does {kind.title} look while writing?",
                queries=[*map(figures.literal, queries)],
                keys=[*map(figures.literal, keys)],
                axes_labels=("having read", "in the source" if crosses else "to the target's"),
            )
            caption = f"From {window.text.document}: a row is a token of the target, and what is written next."
            return Figure(f"{behaviour}-along", figure, caption, cells_alt(patterns, queries, keys))
    return None


def _on_repeats(model: Model, behaviour: str, heads: Named, seed: int) -> Figure | None:
    length = min(_REPEAT_LENGTH, position.repeat_length(model))
    if length < 2:
        return None
    ids = position.repeated(model, length, _REPEATS, seed)
    patterns = dict(zip(heads, examples.mean_pattern(model, ids, [*heads.values()]), strict=True))
    title = "Where do the best positional heads look, when random tokens come twice?"
    caption = TEXTS["on repeats"].format(sequences=_REPEATS, length=length, back=length - 1)
    return Figure(f"{behaviour}-patterns", figures.best_heads(patterns, title=title), caption, stripes_alt(patterns))


def _between_tags(model: Model, behaviour: str, corpus: Iterable[AnnotatedText], heads: Named) -> Figure | None:
    sentences = examples.find(model, corpus, examples.sentence, _TAGGED)
    texts = [text for text in sentences if text.tags is not None]
    tags = examples.common_tags(texts)
    if not tags:  # no text has tags, or none that tells kinds of words apart
        return None
    patterns = dict(zip(heads, examples.tag_patterns(model, texts, [*heads.values()], tags), strict=True))
    sides: Any = {"queries": tags, "keys": tags, "axes_labels": ("from a word tagged", "to words tagged")}
    figure = figures.best_heads(patterns, title="To which kinds of words do the best heads look?", **sides)
    caption = f"Mean share of a word's attention, over {counted(len(texts), 'sentence')}."
    return Figure(f"{behaviour}-patterns", figure, caption, cells_alt(patterns, tags, tags))


def _over_words(
    model: Model, behaviour: str, corpus: Iterable[AnnotatedText], heads: Named, *, about_pronouns: bool
) -> Figure | None:
    cut = partial(examples.passage, holds=antecedent_items) if about_pronouns else examples.sentence
    for passage in examples.find(model, corpus, cut):
        patterns = dict(zip(heads, examples.word_patterns(model, passage, [*heads.values()]), strict=True))
        special = {  # the share of the words' attention that goes there
            name: 1 - float(np.nanmean(np.nansum(pattern, axis=1)[~np.isnan(pattern).all(1)]))
            for name, pattern in patterns.items()
        }
        elsewhere = [name for name, share in special.items() if share > _LARGEST]
        patterns = {name: pattern for name, pattern in patterns.items() if name not in elsewhere}
        if not patterns:
            return None
        title, pronoun, answers = TEXTS["of a sentence"], None, ()
        caption = f"From {passage.document}. {TEXTS['lines']}"
        if elsewhere:
            caption += f" Left out, since they look at special tokens there: {', '.join(elsewhere)}."
        if about_pronouns:  # the last that asks for an antecedent, and the mentions before it that answer
            title, item = "Does the pronoun look at whom it stands for?", antecedent_items(passage)[-1]
            pairs = zip(item.candidates, item.correct, strict=True)
            pronoun, answers = item.pronoun, tuple(word for word, right in pairs if right)
            caption += " Coloured on the left the pronoun, on the right the mentions that it stands for."
        emphasised, words = () if pronoun is None else (pronoun,), passage.words
        figure = figures.attention_over_words(words, patterns, title=title, emphasised=emphasised, sought=answers)
        return Figure(f"{behaviour}-words", figure, caption, lines_alt(patterns, words, pronoun))
    return None


def grid_alt(heads: pd.DataFrame, measures: Sequence[str], quantity: str = "gain") -> str:
    """Of a grid of heads, or of bars: by measure those with most of what is drawn, and how many are marked.

    `quantity` is `gain`, `value` or `lift`, as of `figures.head_grid`; a value alone is never marked.
    """
    rows = (heads if quantity == "value" else heads.assign(shows=shows(heads))).loc[heads["sink"] == "kept"]
    column = "gain" if quantity == "gain" else "value"
    panels = _panels({name: _largest(rows.loc[rows["measure"] == name], column) for name in measures})
    return f"Gains over the baseline. {panels}" if quantity == "gain" else panels


def distance_alt(heads: pd.DataFrame) -> str:
    """Of distances by layer: the mean of each layer, and uniform attention's."""
    rows = heads.loc[(heads["measure"] == "distance") & (heads["sink"] == "kept")].dropna(subset=["value"])
    layers = [f"layer {layer} {value:.1f}" for layer, value in rows.groupby("layer")["value"].mean().items()]
    baseline = rows["baseline"].mean()
    uniform = f"; uniform attention {baseline:.1f}" if np.isfinite(baseline) else ""
    return f"Mean distance in tokens: {', '.join(layers)}{uniform}."


def stripes_alt(patterns: Patterns) -> str:
    """Of mean patterns over one text: the offset, or the first token, at which each head has most of its attention.

    The fewer rows can look there, the more it must be: one large cell is no stripe.
    """
    texts = {}
    for name, pattern in patterns.items():
        offsets = range(1 - len(pattern), len(pattern))
        cells = {offset(by) if by else "on the token itself": np.diagonal(pattern, by) for by in offsets}
        cells |= {"on the first token": pattern[1:, 0]} if len(pattern) > 1 else {}
        shares = {where: float(np.nan_to_num(values).mean()) for where, values in cells.items()}
        best = max(shares, key=lambda where: shares[where] * len(cells[where]) ** 0.5)
        texts[name] = f"{number(shares[best])} of its attention {best}" if shares[best] >= _STRIPE else "no stripe"
    return _panels(texts)


def cells_alt(patterns: Patterns, queries: Sequence[str], keys: Sequence[str]) -> str:
    """Of patterns between tokens or tags: from what to what each head's attention is largest."""
    texts = {}
    for name, pattern in patterns.items():
        weights = np.nan_to_num(np.asarray(pattern, dtype=float))
        order = np.argsort(-weights, axis=None, kind="stable")[:_NAMES]
        cells = [(query, key) for query, key in zip(*np.unravel_index(order, weights.shape), strict=True)]
        named = [f"{queries[q]} to {keys[k]} {number(float(weights[q, k]))}" for q, k in cells if weights[q, k] > 0]
        texts[name] = ", ".join(named) or "nothing"
    return _panels(texts)


def lines_alt(patterns: Patterns, words: Sequence[str], query: int | None = None) -> str:
    """Of lines between words: from what to what each head's are widest, or only from one word."""
    rows = slice(None) if query is None else slice(query, query + 1)
    visible = {name: np.where(each[rows] >= FAINTEST, each[rows], 0) for name, each in patterns.items()}
    return cells_alt(visible, words if query is None else [f"from {words[query]}"], words)


def label_map_alt(labels: pd.DataFrame, n_heads: int) -> str:
    """Of a map of what heads may be called: how many have a label or carry an answer, and by label which."""
    finding = "a label" if "gain" in labels else "a label or carry an answer to minimal pairs"
    counts, texts = labels["label"].value_counts(), {}
    for name in counts.index[:_PANELS]:
        rows = labels.loc[labels["label"] == name].to_dict("records")
        named = [head_name(row["layer"], row["head"]) for row in rows[: 2 * _NAMES]]
        rest = f" and {number(len(rows) - len(named))} more" if len(rows) > len(named) else ""
        texts[str(name)] = ", ".join(named) + rest
    rarer = f" And {counted(len(counts) - _PANELS, 'rarer label')}." if len(counts) > _PANELS else ""
    heads = labels.drop_duplicates(["layer", "head"])
    return f"{number(len(heads))} of {counted(n_heads, 'head')} have {finding}. {_panels(texts)}{rarer}"


def agreement_alt(evidence: pd.DataFrame, labels: pd.DataFrame) -> str:
    """Of gains against effects: of each label the heads that have it with the largest effects."""
    rows = labels.dropna(subset=["effect"])
    names = map(str, rows["label"].value_counts().index[:9])
    largest = _panels({name: _largest(rows.loc[rows["label"] == name], "effect") for name in names})
    heads = evidence.dropna(subset=["gain", "effect"]).drop_duplicates(HEAD)
    axes = f"Gain across, effect in nats up, of {counted(len(heads), 'head')}."
    return f"{axes} {f'Largest effects of heads with a label: {largest}' if len(rows) else 'None has a label.'}"


def shares_alt(parts: Mapping[str, pd.DataFrame]) -> str:
    """Of bars made of groups of rules, layer x head: what each has on average, and the head that it has most of."""
    texts = {}
    for group, part in parts.items():
        values = part.to_numpy(dtype=float)
        if np.isfinite(values).any():
            row, column = np.unravel_index(np.nanargmax(values), values.shape)
            head = head_name(int(part.index.to_numpy()[row]), int(part.columns.to_numpy()[column]))
            texts[group] = f"{number(float(np.nanmean(values)))} on average, most in {head}"
    return _panels(texts) if texts else "No head's attention is told apart from uniform."


def _largest(rows: pd.DataFrame, column: str) -> str:
    top, by_kind = rows.dropna(subset=[column]).nlargest(_NAMES, column).to_dict("records"), kinds(rows) > 1
    if not top:
        return "undefined"
    text = f"most in {', '.join(f'{Place.from_row(row).named(prefix=by_kind)} {number(row[column])}' for row in top)}"
    if "shows" in rows:
        marked = int(rows["shows"].to_numpy().sum())
        text += f" ({number(marked) if marked else 'none'} of {counted(len(rows), 'head')} marked)"
    return text


def _panels(texts: Mapping[str, str]) -> str:
    return "; ".join(f"{' '.join(measure_name(name).split())}: {text}" for name, text in texts.items()) + "."

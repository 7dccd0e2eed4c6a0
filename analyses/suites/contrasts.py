"""Which two prompts differ in a preference? Pairs of prompts from a paradigm's items, aligned token by token.

If one prefix has a good and a bad answer, nothing differs before them. Its partner is then an item of the same group
and the other pole, with the answers exchanged, such as singular and plural subjects. Otherwise the good and the bad
sentence differ before words that they share, and the model is read at these words.
"""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from analyses.suites.items import BAD, CRITICAL, DIFFERING, GOOD, NAMED, Paradigm, Sentence, alike
from interp import InputError, Model

_PARTNERS = 32  # we look for a partner among so many neighbours in the group, on either side
PARTS = {"named": "the named word", "different": "what differs", "between": "what follows", "end": "where it is read"}


class Prompt(NamedTuple):
    """What the model reads, where we read its output, and the tokens of each span and word; `text` is the sentence."""

    text: str
    ids: tuple[int, ...]
    reads: tuple[int, ...]
    spans: Mapping[str, tuple[int, ...]]
    words: tuple[tuple[str, tuple[int, ...]], ...]


class Contrast(NamedTuple):
    """A clean and a corrupted prompt, both scored on the tokens `right`, minus `wrong` if answers differ.

    `aligned` pairs positions of the two prompts; `parts` gives the clean prompt's positions by `PARTS`.
    """

    group: str
    clean: Prompt
    corrupt: Prompt
    right: tuple[int, ...]
    wrong: tuple[int, ...]
    aligned: tuple[tuple[int, int], ...]
    parts: Mapping[str, tuple[int, ...]]


def contrasts(model: Model, paradigm: Paradigm) -> tuple[list[Contrast], Counter[str]]:
    """All contrasts of a paradigm, and how many preferences have none, by reason."""
    left_out, pairs = Counter[str](), list[Contrast]()
    choices = defaultdict[str, list[tuple[str, Prompt, int, int]]](list)
    for group, pole, span, *sides in _preferences(paradigm, left_out):
        try:
            good, bad = (_whole(model, sentence) for sentence in sides)
            critical = [side.spans.get(span, ()) for side in (good, bad)]
            n_alike = alike(good.ids, bad.ids)
            if all(critical) and n_alike >= critical[0][0]:
                choices[group].append((pole, *_choice(model, good, bad, n_alike)))
            else:
                pairs.append(_same_words(model, group, good, bad, critical, n_alike))
        except InputError as error:
            left_out[str(error)] += 1
    for group, items in choices.items():
        for number, (pole, prompt, right, wrong) in enumerate(items):
            near = items[max(0, number - _PARTNERS) : number + _PARTNERS]
            others = [item[1] for item in near if item[0] != pole and item[2:] == (wrong, right)]
            if others:
                best = max(others, key=lambda other: _likeness(prompt.ids, other.ids))
                pairs.append(_contrast(group, prompt, best, (right,), (wrong,)))
            else:
                left_out["no item of its group has the two answers the other way round"] += 1
    return pairs, left_out


def _preferences(paradigm: Paradigm, left_out: Counter[str]) -> Iterator[tuple[str, str, str, Sentence, Sentence]]:
    """Yield group, pole, the span to compare, and two sentences; the span should be likelier in the first."""
    claims = dict.fromkeys(claim for each in paradigm.predictions for claim in each.claims)
    for item in paradigm.items:
        if not claims:
            yield item.group, item.pole, CRITICAL, item.sentences[GOOD], item.sentences[BAD]
        for claim in claims:
            match claim.tree:
                case ast.Compare(ast.Name(left), [ast.Lt() | ast.Gt() as sign], [ast.Name(right)]):
                    names = (left, right) if isinstance(sign, ast.Lt) else (right, left)  # less surprising is better
                    good, bad = (claim.regions[int(name[1:])] for name in names)
                    if good.number == bad.number:
                        sides = item.sentences[good.condition], item.sentences[bad.condition]
                        yield item.key, claim.formula, good.number, *sides
                        continue
            left_out["the prediction does not compare one region in two conditions"] += 1


def _whole(model: Model, sentence: Sentence) -> Prompt:
    """A whole sentence, with no reading position yet."""
    tokenizer = model.tokenizer
    assert tokenizer is not None  # sentences were scored
    pieces, before = tokenizer.pieces(sentence.text), len(tokenizer.prefix)
    if len(pieces.ids) + before + len(tokenizer.suffix) > model.config.n_ctx:
        raise InputError("the sentence is longer than the context")

    def tokens(start: int, end: int) -> tuple[int, ...]:
        return tuple(before + n for n, (a, b) in enumerate(pieces.spans) if max(a, start) < min(b, end))

    words = tuple((each[0].strip(".,?!").lower(), tokens(*each.span())) for each in re.finditer(r"\S+", sentence.text))
    spans = {name: tokens(*span) for name, span in sentence.spans.items()}
    return Prompt(sentence.text, (*tokenizer.prefix, *pieces.ids), (), spans, words)


def _read_at(model: Model, whole: Prompt, positions: Sequence[int]) -> Prompt:
    """A sentence cut or masked so that the model predicts the tokens at `positions`."""
    tokenizer = model.tokenizer
    assert tokenizer is not None
    ids, reads = whole.ids[: positions[-1]], tuple(place - 1 for place in positions)
    if not model.config.last.causal:
        assert tokenizer.mask_id is not None
        masked = (tokenizer.mask_id if n in positions else token for n, token in enumerate(whole.ids))
        ids = (*masked, *tokenizer.suffix)
        reads = tuple(positions)
    if reads[0] < 0:
        raise InputError("nothing precedes the answer")

    def visible(tokens: Sequence[int]) -> tuple[int, ...]:
        return tuple(n for n in tokens if n < len(ids) and n not in positions)

    words = tuple((word, visible(tokens)) for word, tokens in whole.words if visible(tokens))
    return Prompt(whole.text, ids, reads, {name: visible(tokens) for name, tokens in whole.spans.items()}, words)


def _choice(model: Model, good: Prompt, bad: Prompt, n_alike: int) -> tuple[Prompt, int, int]:
    """The prefix that both sentences share, and the two tokens that continue it."""
    rests = [side.ids[n_alike + 1 :] for side in (good, bad) if len(side.ids) > n_alike]
    if len(rests) < 2 or not (model.config.last.causal or rests[0] == rests[1]):
        raise InputError("one answer begins the other, or has more pieces than a masked model can predict at once")
    return _read_at(model, good, [n_alike]), good.ids[n_alike], bad.ids[n_alike]


def _same_words(
    model: Model, group: str, good: Prompt, bad: Prompt, critical: Sequence[tuple[int, ...]], n_alike: int
) -> Contrast:
    """Both sentences, read at the critical words, or else at the words that they share after the difference."""
    if not all(critical):
        n_last = min(alike(good.ids[::-1], bad.ids[::-1]), len(good.ids) - n_alike, len(bad.ids) - n_alike)
        critical = [tuple(range(len(side.ids) - n_last, len(side.ids))) for side in (good, bad)]
        if not any(word and tokens and tokens[0] in critical[0] for word, tokens in good.words):
            raise InputError("no shared word follows the difference")
    right, others = (tuple(side.ids[n] for n in at) for side, at in zip((good, bad), critical, strict=True))
    if right != others:
        raise InputError("both the critical words and the text before them differ")
    clean, corrupt = (_read_at(model, side, at) for side, at in zip((good, bad), critical, strict=True))
    return _contrast(group, clean, corrupt, right, ())


def _contrast(group: str, clean: Prompt, corrupt: Prompt, right: tuple[int, ...], wrong: tuple[int, ...]) -> Contrast:
    """Align both ends, then the middle token by token or span by span.

    Spans of unequal length, and differences without a span, align from their last tokens. No token has two partners:
    the tokens at reading positions pair with each other. If a sentence names no word, the difference counts as named.
    """
    sizes, first = (len(clean.ids), len(corrupt.ids)), alike(clean.ids, corrupt.ids)
    n_last = min(alike(clean.ids[::-1], corrupt.ids[::-1]), min(sizes) - first)
    middles = [range(first, size - n_last) for size in sizes]
    aligned = {n: n for n in range(first)} | {sizes[0] - n: sizes[1] - n for n in range(1, n_last + 1)}
    names = [name for name in clean.spans if name != DIFFERING and sizes[0] != sizes[1]]
    spans = [(clean.spans[name], corrupt.spans.get(name, ())) for name in names]
    blocks = [(at, to) for at, to in spans if at and to and {*at} <= {*middles[0]} and {*to} <= {*middles[1]}]
    for ours, theirs in blocks or [middles]:
        aligned |= dict(zip(reversed(ours), reversed(theirs), strict=False))
    aligned = {n: m for n, m in aligned.items() if m not in corrupt.reads}
    aligned |= dict(zip(clean.reads, corrupt.reads, strict=True))
    named = clean.spans.get(NAMED, ()) or (() if wrong else tuple(middles[0]))
    rest = [n for n in range(first, sizes[0]) if n not in {*named, *clean.reads}]
    parts = {"named": named, "end": tuple(n for n in clean.reads if n not in named)}
    parts |= {"different": tuple(n for n in rest if n in middles[0])}
    parts |= {"between": tuple(n for n in rest if n not in middles[0])}
    return Contrast(group, clean, corrupt, right, wrong, tuple(sorted(aligned.items())), parts)


def _likeness(one: Sequence[int], other: Sequence[int]) -> tuple[bool, int]:
    """How well two prompts align: equal length first, then equal tokens from either end."""
    return len(one) == len(other), alike(one, other) + alike(one[::-1], other[::-1])


def aligns(contrast: Contrast) -> bool:
    """Whether every token of both prompts has a partner."""
    return len(contrast.aligned) == len(contrast.clean.ids) == len(contrast.corrupt.ids)

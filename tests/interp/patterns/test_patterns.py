"""Every statistic of attention against a slow loop over rows, keys and words, on random, awkward batches."""

import math
import random
from collections import defaultdict

import numpy as np
import pytest
import torch
from covering import pairwise
from worded import worded

from analyses import coreference, part_of_speech, position
from analyses.part_of_speech import RELATIONS, TAG_PAIRS
from analyses.reading.inputs import Attended
from analyses.reading.windows import Batch, Reading, Window
from analyses.scoring.choices import Choices, Items
from analyses.scoring.rules import WAYS, edges
from interp import AnnotatedText, InputError, Mention, StackConfig, TokenBatch, Transformer, TransformerConfig
from interp.patterns import Rows, nulls, positional, selection
from interp.patterns.rows import Sink
from interp.patterns.tags import stratum_of
from interp.tokens import NO_WORD

HEADS, LENGTHS = 5, (13, 11, 7)
TAGS = ["NOUN", "ADJ", "VERB", "PUNCT"]  # no pair has the last


def window(rng: random.Random, length: int, *, start: bool, end: bool, overlap: int) -> Window:
    """A window of words of one to three pieces between special tokens; one word has no token."""
    inner = length - start - end
    words: list[int] = []
    while len(words) < inner:
        words += [len({*words}) + (len(words) > 3)] * rng.randint(1, 3)  # skips word 1, 2 or 3
    words = words[:inner]
    n = max(words) + 1
    text = AnnotatedText(
        tuple(f"w{number}" for number in range(n)),
        (True,) * n,
        f"document {length}",
        tags=tuple(rng.choice(TAGS) for _ in range(n)),
        heads=tuple(rng.choice([head for head in range(-1, n) if head != word]) for word in range(n)),
        relations=tuple(rng.choice([*RELATIONS[:2], "punct"]) for _ in range(n)),
    )
    special = (*[True] * start, *[False] * inner, *[True] * end)
    word_of = (*[NO_WORD] * start, *words, *[NO_WORD] * end)
    ids = tuple(rng.randint(3, 7) for _ in range(length))
    return Window(text, 0, n, overlap, ids, word_of, special)


def random_batch(*, causal: bool, start: bool, seed: int = 0) -> Batch:
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    views = [
        window(rng, length, start=start, end=not causal, overlap=overlap)
        for length, overlap in zip(LENGTHS, (0, 3, 0), strict=True)
    ]
    tokens = TokenBatch.from_rows([view.ids for view in views])
    width = tokens.ids.shape[1]
    visible = tokens.mask[:, None] & (torch.ones(width, width).tril().bool() if causal else True)
    visible = visible | torch.eye(width, dtype=torch.bool)
    scores = 2 * torch.randn(len(views), HEADS, width, width, generator=generator)
    scores[:, 0, :, 0] += 9.0  # this head rests on the first position and loses rows without it
    scores[:, 1] = 0.0  # in this head everything ties
    pattern = scores.masked_fill(~visible[:, None], -torch.inf).softmax(-1)
    content, scored = torch.zeros_like(tokens.mask), torch.zeros_like(tokens.mask)
    for row, view in enumerate(views):
        for column, special in enumerate(view.special):
            content[row, column] = not special
            scored[row, column] = not special and view.word_of[column] >= view.scored_from
    return Batch(views, tokens, Attended(pattern), Rows(tokens.ids, content, scored, visible), torch.tensor([3, 7, 11]))


def without_first(row: list[float]) -> list[float] | None:
    rest = sum(row[1:])
    return None if rest < 0.01 else [0.0, *(each / rest for each in row[1:])]


def read_rows(batch: Batch, sink: str) -> dict[tuple[int, int, int], list[float]]:
    """Rows by prompt, head and query, without lost ones."""
    rows = {}
    for prompt, heads in enumerate(batch.pattern.tolist()):
        for head, queries in enumerate(heads):
            for query, row in enumerate(queries):
                values = row if sink == "kept" else without_first(row)
                if values is not None:
                    rows[prompt, head, query] = values
    return rows


def slow_positions(batch: Batch, causal: bool, sink: str) -> dict[tuple[int, int, str], tuple[float, int]]:
    sums = defaultdict(lambda: (0.0, 0))
    ids, content, scored = (each.tolist() for each in (batch.rows.ids, batch.rows.content, batch.rows.scored))
    first = int(sink == "removed")
    for (prompt, head, query), row in read_rows(batch, sink).items():
        if not scored[prompt][query]:
            continue
        keys = [key for key in range(first, len(row)) if batch.rows.visible[prompt, query, key]]
        real = [key for key in keys if content[prompt][key]]
        values: dict[str, float] = {"distance": sum(row[key] * abs(query - key) for key in keys)}
        for offset in (*(each for each in positional.OFFSETS if each < 0 or not causal), 0):
            if 0 <= query + offset < len(row) and query + offset >= first and content[prompt][query + offset]:
                values["self" if offset == 0 else positional.offset_name(offset)] = row[query + offset]
        if query > 0 and not first:
            values["first-token"] = row[0]
        copies = [key for key in real if key < query and ids[prompt][key] == ids[prompt][query]]
        if copies:
            values["duplicate-token"] = sum(row[key] for key in copies)
        if len(keys) > 1:
            values["entropy"] = -sum(row[key] * math.log(row[key]) for key in keys if row[key]) / math.log(len(keys))
        for name, value in values.items():
            total, count = sums[prompt, head, name]
            sums[prompt, head, name] = total + value, count + 1
    return sums


CASES = pytest.mark.parametrize(
    ("causal", "start", "seed", "sink"), pairwise((True, False), (True, False), (0, 1), ("kept", "removed"))
)


@CASES
def test_positions(causal, start, seed, sink):
    batch = random_batch(causal=causal, start=start, seed=seed)
    questions = positional.Questions(batch.rows, position.masks(causal=causal))
    result = questions.read(batch.pattern)[sink]
    expected = slow_positions(batch, causal, sink)
    for prompt in range(len(LENGTHS)):
        for head in range(HEADS):
            for column, name in enumerate(questions.names):
                value, count = expected[prompt, head, name]
                assert result.counts[prompt, head, column] == count, name
                assert result.scores[prompt, head, column].item() == pytest.approx(value, rel=1e-5, abs=2e-5), name


def collected(batch: Batch, causal: bool) -> part_of_speech.Collector:
    stack = StackConfig(1, 10, HEADS, 2, 7, 29, 11, causal=causal)
    config = TransformerConfig(decoder=stack) if causal else TransformerConfig(encoder=stack, output="none")
    collector = part_of_speech.Collector(Transformer(config))
    collector.add(batch)
    return collector


def word_rows(batch: Batch, sink: str, prompt: int, head: int, word: int, rows: dict) -> dict[int, float] | None:
    """Attention from a word to each word; None if one of its rows is lost."""
    word_of = batch.windows[prompt].word_of
    sums, pieces = defaultdict(float), [place for place, each in enumerate(word_of) if each == word]
    for query in pieces:
        if (prompt, head, query) not in rows:
            return None
        for key, to in enumerate(word_of):
            if to != NO_WORD:
                sums[to] += rows[prompt, head, query][key] / len(pieces)
    return sums


@CASES
def test_relations(causal, start, seed, sink):
    batch = random_batch(causal=causal, start=start, seed=seed)
    collector = collected(batch, causal)
    totals, null = collector.chosen.totals[sink], collector.chosen.nulls[sink]
    rows, hidden, expected = read_rows(batch, sink), 0, defaultdict(lambda: [0.0, 0])
    for prompt, window in enumerate(batch.windows):
        for dependent, (governor, name) in enumerate(zip(window.text.heads, window.text.relations, strict=True)):
            for query, target, way in (
                (dependent, governor, "dependent->head"),
                (governor, dependent, "head->dependent"),
            ):
                if governor < 0 or name not in RELATIONS or query < window.scored_from or query not in window.word_of:
                    continue
                if target not in window.word_of or (causal and target > query):
                    hidden += 1
                    continue
                if sink == "removed" and target == window.word_of[0]:
                    continue
                for head in range(HEADS):
                    scores = word_rows(batch, sink, prompt, head, query, rows)
                    if scores is None:
                        continue
                    others = {word: score for word, score in scores.items() if word != query}
                    best = max(others.values())
                    tied = [word for word, score in others.items() if math.isclose(score, best, rel_tol=1e-6) and best]
                    cell = expected[int(batch.groups[prompt]), head, f"relation:{name}:{way}"]
                    cell[0] += (target in tied) / max(len(tied), 1)
                    cell[1] += 1
    assert collector.counts["relation ends left out: the other end is not visible"] == hidden
    assert totals.rows[:, :HEADS].sum() == sum(count for _, count in expected.values()) > 0
    for (group, head, name), (right, count) in expected.items():
        if head == 1 and any(count > 1 for each in batch.windows for count in each.pieces):
            continue  # sums over pieces that should tie differ by rounding
        column = [measure.name for measure in collector.chosen.measures].index(name)
        assert totals.rows[group, head, column] == count
        assert totals.scores[group, head, column].item() == pytest.approx(right, abs=1e-6)
    assert (null.variance >= 0).all()
    assert null.mean.sum() > 0


@pytest.mark.parametrize("causal", [True, False])
def test_choices_are_judged_as_the_plain_scorer_does(causal):
    """Item by item: whether choices are right, and mean and variance under permuted words."""
    batch = random_batch(causal=causal, start=True)
    items = Items.from_batch(batch, edges(RELATIONS), np.zeros(2 * len(RELATIONS), dtype=int), causal=causal)
    choices = Choices(items)
    for judged, removed in ((choices.full, False), (choices.removed, True)):
        scores, masks = choices.word_scores(without_first=removed), (items.candidates, items.right)
        plain = selection.accuracy(scores, *masks), *nulls.choice(scores, *masks, items.bins)
        valid = ~choices.lost[0] | (not removed)
        valid[:, 1] = False  # sums over pieces that should tie differ by rounding
        for fast, expected in zip(judged, plain, strict=False):
            torch.testing.assert_close(fast[valid], expected[valid])
        assert (plain[2][valid] > 0).any()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("removed", [False, True])
def test_a_word_attends_as_the_mean_of_its_pieces_rows_to_the_sum_over_anothers(causal, removed):
    batch = random_batch(causal=causal, start=True)
    items = Items.from_batch(batch, edges(RELATIONS), np.zeros(2 * len(RELATIONS), dtype=int), causal=causal)
    choices, pattern, pieces = Choices(items), batch.pattern.clone(), batch.word_of[..., None] == items.words
    if removed:
        pattern[..., 0] = 0
        pattern *= Sink.from_pattern(batch.pattern).scale[..., None]
    pieces = pieces.to(pattern)[:, None]  # prompt 1 key word
    by_word = pieces.mT @ pattern @ pieces / pieces.sum(2).clamp(min=1)[..., None]
    expected = by_word[items.prompt, :, items.query] * items.candidates[:, None]
    valid = ~choices.lost[0] | (not removed)
    assert (pieces.sum(2)[items.prompt, 0, items.query] > 1).any()
    torch.testing.assert_close(choices.word_scores(without_first=removed)[valid], expected[valid])


@CASES
def test_lifts(causal, start, seed, sink):
    batch = random_batch(causal=causal, start=start, seed=seed)
    lifts = collected(batch, causal).lifts.totals[sink]
    totals, rows = lifts.finish(), read_rows(batch, sink)
    observed, mass, keys = defaultdict(float), defaultdict(float), defaultdict(float)
    first = int(sink == "removed")
    visible = batch.rows.visible & batch.rows.scored[:, :, None]
    visible[..., :first] = False
    stratum = stratum_of(visible, causal=causal)
    edges = (1, 2, 3, 4, 5, 7, 10, 16, 32)
    for prompt, window in enumerate(batch.windows):
        tags, word_of = window.text.tags, window.word_of
        for query, word in enumerate(word_of):
            if not batch.rows.scored[prompt, query]:
                continue
            row, share = int(stratum[prompt, query]), 1 / word_of.count(word)
            for key in range(first, len(word_of)):
                to = word_of[key]
                if to in {NO_WORD, word} or not visible[prompt, query, key]:
                    continue
                bin = (key > query, sum(abs(key - query) >= edge for edge in edges))
                even = share / int(visible[prompt, query].sum())
                for name in (tags[to], None):
                    keys[tags[word], row, bin, name] += even
                for head in range(HEADS):
                    if (prompt, head, query) in rows:
                        attention = share * rows[prompt, head, query][key]
                        mass[head, tags[word], row, bin] += attention
                        observed[head, tags[word], tags[to]] += attention
    for column, (x, y) in enumerate(TAG_PAIRS):
        for head in range(HEADS):
            expected = sum(
                amount * keys[tag, row, bin, y] / keys[tag, row, bin, None]
                for (asking, tag, row, bin), amount in mass.items()
                if (asking, tag) == (head, x)
            )
            if expected > 1e-5:
                assert totals.weights[:, head, column].sum().item() == pytest.approx(expected, rel=1e-4), (x, y)
                assert totals.scores[:, head, column].sum().item() == pytest.approx(
                    observed[head, x, y], rel=1e-4, abs=1e-6
                )
    assert totals.scores.sum() > 0.1
    uniform = totals.scores.sum(0)[1], totals.weights.sum(0)[1]  # uniform attention has no lift
    if sink == "kept":
        torch.testing.assert_close(*uniform, rtol=1e-4, atol=1e-6)


def test_what_is_not_annotated_is_counted_and_nothing_of_it_scored():
    batch = random_batch(causal=True, start=True)
    for window in batch.windows:
        object.__setattr__(window, "text", AnnotatedText(window.text.words, window.text.space_after, "plain"))
    collector = collected(batch, causal=True)
    assert collector.counts == {"texts left out of relations: not parsed": len(LENGTHS)}
    assert collector.lifts.totals["kept"].finish().rows.sum() == 0
    assert collector.chosen.totals["kept"].rows.sum() == 0


# Empty pointers and foreign tags are refused or counted, never zero.
WORDS = ("the", "dog", "saw", "Tim", "because", "He", "saw", "the", "dog")
SOUND = {
    "tags": ("DET", "NOUN", "VERB", "PROPN", "SCONJ", "PRON", "VERB", "DET", "NOUN"),
    "heads": (1, 2, -1, 2, 6, 6, 2, 8, 6),
    "relations": ("det", "nsubj", "root", "obj", "mark", "nsubj", "advcl", "det", "obj"),
    "mentions": (Mention(0, 2, 1, "dog"), Mention(3, 4, 3, "Tim"), Mention(5, 6, 5, "Tim")),
}


def annotated(name: str = "one", **changed) -> AnnotatedText:
    return AnnotatedText(WORDS, (True,) * len(WORDS), name, **(SOUND | changed))


def collectors(*corpus: AnnotatedText):
    model = worded()
    pair = [each.Collector(model) for each in (part_of_speech, coreference)]
    for batch in Reading(model, corpus):
        for collector in pair:
            collector.add(batch)
    return pair


@pytest.mark.parametrize("outside", [(8, 10, 8), (7, 9, 6), (-1, 1, 0), (3, 3, 3)])
def test_a_mention_outside_the_text_is_refused(outside):
    with pytest.raises(InputError, match="lies outside its 9 words"):
        annotated(mentions=(*SOUND["mentions"], Mention(*outside, "x")))


def test_a_word_that_is_its_own_head_is_counted_and_not_scored():
    left_out, counts = "relations left out: a word that is its own head", []
    for heads, expected in ((SOUND["heads"], 0), ((0, *SOUND["heads"][1:]), 1)):
        syntax, _ = collectors(annotated(heads=heads))
        assert syntax.counts[left_out] == expected
        names = [measure.name for measure in syntax.chosen.measures]
        ways = [names.index(f"relation:det:{way}") for way in WAYS]
        counts.append(syntax.chosen.totals["kept"].rows[:, 0, ways].sum(0).tolist())
    assert counts == [[0, 2], [0, 1]]  # a determiner does not see its later noun


def test_tags_of_another_set_are_counted_and_only_other_words_measured():
    syntax, _ = collectors(annotated(tags=("DT", *SOUND["tags"][1:-1], "NN")))
    assert syntax.counts["words with a tag that is not universal"] == 2
    rows = syntax.lifts.totals["kept"].finish().rows[:, 0].sum(0)
    lifted = [measure.name for measure in syntax.lifts.measures]
    assert rows[lifted.index("tag:NOUN->DET")] == 0  # one noun remains, without a determiner before it
    assert rows[lifted.index("tag:VERB->NOUN")] == 2
    with pytest.raises(InputError, match="no word with a tag or relation that is measured"):
        part_of_speech.measure(worded(), [annotated(tags=("NN",) * 9, relations=("SBJ",) * 9)])


def test_chains_of_one_mention_are_counted_and_no_item():
    alone = (*SOUND["mentions"][:2], Mention(5, 6, 5, "somebody else"))
    _, reference = collectors(annotated(), annotated("two", mentions=alone))
    assert reference.counts["pronouns left out: they refer to no other mention"] == 1
    assert reference.parts[0].totals["kept"].rows[:, 0, 0].sum() == 1
    with pytest.raises(InputError, match="no pronoun with both a right and a wrong mention"):
        coreference.measure(worded(), [annotated(mentions=alone)])

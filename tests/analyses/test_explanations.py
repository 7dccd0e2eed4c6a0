"""What explains a head: rules name the keys that a search finds, and planted attention comes back as it was planted."""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import torch

from analyses import explanations
from analyses.explanations import ALL, LONGEST, UNIFORM, explain, explained, sample
from analyses.part_of_speech import UNIVERSAL_TAGS
from analyses.reading.windows import Reading
from analyses.report.explanation_section import SINKS, by_group
from analyses.rivals.named_keys import FIRST, GROUPS, NAMES
from analyses.tables.head_tables import Heads
from interp import AnnotatedText, InputError
from interp.annotation import ROOT, Mention
from interp.patterns.visible_keys import VisibleKeys
from models.planted import Planted, noise, offset, uniform

TAGS = sorted(UNIVERSAL_TAGS)
WORDS = [f"w{number}" for number in range(20)]
RELATIONS = ("det", "nsubj", "obj", "amod", "obl")


def texts(count: int = 60, length: int = 14, seed: int = 0) -> list[AnnotatedText]:
    """Annotation by chance, so that no two rules name the same keys."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(count):
        heads = [int(head) for head in rng.integers(0, length, length)]
        heads = [ROOT if head == at else head for at, head in enumerate(heads)]
        places = rng.choice(length, 5, replace=False)
        found.append(
            AnnotatedText(
                words=tuple(rng.choice(WORDS, length)),
                space_after=(True,) * length,
                document=f"document {number}",
                tags=tuple(rng.choice(TAGS, length)),
                heads=tuple(heads),
                relations=tuple("root" if head == ROOT else rng.choice(RELATIONS) for head in heads),
                mentions=tuple(Mention(int(at), int(at) + 1, int(at), "ab"[k % 2]) for k, at in enumerate(places)),
            )
        )
    return found


@pytest.fixture(scope="module")
def seen() -> tuple[VisibleKeys, dict[str, str]]:
    """The rows of an encoder with a start token."""
    model = Planted(WORDS, [[noise(3.0, 0)]], n_ctx=40, causal=False, start="<s>").build()
    return explanations._read(Reading(model, texts()))


def giving(seen: VisibleKeys, names: dict[str, str], *mixtures: dict[str, float], noise: float = 0.0) -> VisibleKeys:
    """Heads that mix rules; where a rule names no key the others, or else uniform attention, take its place."""
    columns, draw = [*names], torch.Generator().manual_seed(0)
    heads = []
    for weights in mixtures:
        attention = 1e-9 * seen.uniform
        for name, weight in weights.items():
            part = seen.uniform * (1.0 if name == UNIFORM else seen.marks[:, columns.index(name)])
            total = torch.zeros(len(seen.group)).index_add_(0, seen.row, part)[seen.row]
            attention = attention + weight * part / total.clamp(min=1e-9)
        heads.append(attention)
    attention = torch.stack(heads, 1)
    attention = attention * torch.exp(noise * torch.randn(attention.shape, generator=draw))
    return VisibleKeys.of(seen.row, seen.group, seen.uniform, attention, seen.marks)


def table_of(seen: VisibleKeys, names: dict[str, str]) -> pd.DataFrame:
    """`explained`, the heads in one layer."""
    return explained(seen, names, Heads("encoder", 1, seen.attention.shape[1], causal=False))


def shares(table: pd.DataFrame, kind: str, head: int = 0) -> pd.Series:
    """By part."""
    return table.loc[(table["kind"] == kind) & (table["head"] == head)].set_index("part")["share"]


def test_rules_name_the_keys_that_a_search_finds():
    corpus = texts(4)
    model = Planted(WORDS, [[uniform]], n_ctx=40, causal=True, start="<s>").build()
    columns = [*NAMES]
    for batch in Reading(model, corpus):
        item, *_, marks, _, _ = explanations._words(batch, {})
        begins = [0, *(item.diff().nonzero()[:, 0] + 1).tolist(), len(item)]
        rows = iter([marks[begin:end] for begin, end in pairwise(begins)])
        for window in batch.windows:
            text = window.text
            assert text.heads is not None
            assert text.tags is not None
            assert text.relations is not None
            chain = {mention.head: mention.chain for mention in text.mentions or ()}
            for query in range(len(text.words)):
                row = next(rows)  # every word up to the query, then the start token

                def named(name: str, row: torch.Tensor = row) -> list[int]:
                    keys = [*range(len(row) - 1), -1]
                    return [key for key, marked in zip(keys, row[:, columns.index(name)], strict=True) if marked]

                before = range(query)
                verbs = [at for at in before if text.tags[at] == "VERB"]
                assert named(FIRST) == [-1]
                assert named("itself") == [query]
                assert named("offset -2") == [at for at in before if at == query - 2]
                assert named("6 to 8 before") == [at for at in before if 6 <= query - at <= 8]
                assert named("every VERB") == verbs
                assert named("last VERB") == verbs[-1:]
                assert named("same form") == [at for at in before if text.words[at] == text.words[query]]
                assert named("after the same form") == [
                    at for at in range(1, query + 1) if text.words[at - 1] == text.words[query] and at != query
                ]
                of_nsubj = text.relations[query] == "nsubj" and text.heads[query] < query
                assert named("nsubj:dependent->head") == [text.heads[query]] * of_nsubj
                assert named("another relation:head->dependent") == [
                    at for at in before if text.relations[at] == "obl" and text.heads[at] == query
                ]
                assert named("same chain") == [
                    at for at in before if chain.get(at) is not None and chain.get(at) == chain.get(query)
                ]


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_planted_mixtures_come_back(seen, noise):
    pairs = [
        ("offset -1", "every VERB"),
        ("last NOUN", FIRST),
        ("det:dependent->head", "itself"),
        ("same form", UNIFORM),
    ]
    planted = giving(*seen, *({most: 0.7, less: 0.3} for most, less in pairs), noise=noise)
    table = table_of(planted, seen[1])
    for head, (most, less) in enumerate(pairs):
        rows = table.loc[(table["kind"] == "mixture") & (table["head"] == head)].set_index("part")
        beside = rows.loc[[most, less], "weight"]
        if UNIFORM not in (most, less):  # which also takes the place of both
            assert beside[most] / beside.sum() == pytest.approx(0.7, abs=0.05)
        assert rows.loc[[most, less, UNIFORM], "share"].sum() > 0.95
        assert rows["share"].drop(ALL).sum() == pytest.approx(1, abs=1e-4)
        inside = rows.loc[most]
        assert inside["ci_low"] <= inside["share"] <= inside["ci_high"]


def test_a_copy_of_a_rule_gives_nothing_to_the_groups_above_it(seen):
    rules = ("offset -1", "itself", "every NOUN", "same form", "last VERB", "next NOUN/PROPN", "obj:dependent->head")
    table = table_of(giving(*seen, *({rule: 1.0} for rule in rules)), seen[1])
    for head, rule in enumerate(rules):
        level = GROUPS.index(NAMES[rule])
        nested, unique = (shares(table, kind, head) for kind in ("nested", "unique"))
        assert nested[ALL] > 0.95
        assert nested[list(GROUPS[level + 1 :])].sum() <= 0.02
        assert (unique[list(GROUPS[level + 1 :])] <= 0.02).all()
        assert shares(table, "shapley", head).sum() == pytest.approx(nested[ALL])
        drawn = {name: part.loc[0, head] for name, part in by_group(table).items() if name not in (SINKS, UNIFORM)}
        assert max(drawn, key=drawn.__getitem__) == GROUPS[level]


def test_of_a_head_close_to_uniform_nothing_is_said(seen):
    table = table_of(giving(*seen, {UNIFORM: 1.0}, {UNIFORM: 0.97, "every NOUN": 0.03}, {"itself": 1.0}), seen[1])
    said = table.groupby("head")["share"].apply(lambda share: share.notna().any())
    assert said.tolist() == [False, False, True]
    assert table.groupby("head")["kl"].first().tolist()[:2] == pytest.approx([0, 0], abs=0.05)


@pytest.mark.slow
def test_heads_together_are_as_each_alone(seen):
    planted = giving(*seen, {"offset -1": 0.7, "last VERB": 0.3}, {"same form": 0.5, "every ADJ": 0.5}, noise=0.5)
    both = table_of(planted, seen[1])
    for head in (0, 1):
        one = VisibleKeys.of(seen[0].row, seen[0].group, seen[0].uniform, planted.attention[:, [head]], seen[0].marks)
        alone = table_of(one, seen[1])
        own = both.loc[both["head"] == head].reset_index(drop=True)
        np.testing.assert_allclose(own["share"], alone["share"], atol=0.01)


def test_a_sample_has_as_many_words_of_each_half_as_asked(monkeypatch):
    monkeypatch.setattr(explanations, "ROWS", 4_000)
    long = texts(400, length=150)
    for causal in (True, False):
        some = sample(long, causal=causal)
        lengths = np.array([len(text.words) for text in some])
        half = np.array([explanations.group_of(text.document) % 2 for text in some])
        assert lengths.max() == LONGEST
        for which in (0, 1):
            assert lengths[half == which].sum() <= explanations.ROWS
            seen = lengths[half == which] * (lengths[half == which] + 2) // (2 if causal else 1)
            assert explanations.PAIRS - 2 * LONGEST * (LONGEST + 2) < seen.sum() <= explanations.PAIRS or causal
    assert [text.words for text in sample(long, causal=True)] == [text.words for text in sample(long, causal=True)]
    assert sorted(text.document for text in sample(texts(30), causal=True)) == sorted(x.document for x in texts(30))


def test_planted_models_are_explained_by_what_was_planted():
    model = Planted(WORDS, [[offset(-1), uniform]], n_ctx=40, causal=True, start="<s>").build()
    found = explain(model, texts(80))
    mixture = shares(found.table, "mixture")
    assert mixture["offset -1"] == pytest.approx(13 / 14, abs=0.01)  # before the first word stands the start token
    assert shares(found.table, "shapley")["position"] > 0.8 * shares(found.table, "nested")[ALL]
    assert shares(found.table, "mixture", 1).isna().all()
    assert set(found.table["corpus"]) == {"texts"}


def test_one_document_cannot_be_both_fitted_and_reported():
    model = Planted(WORDS, [[uniform]], n_ctx=40, causal=True, start="<s>").build()
    with pytest.raises(InputError, match="both halves"):
        explain(model, texts(1))

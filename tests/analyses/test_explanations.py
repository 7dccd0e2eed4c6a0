"""What explains a head? Rules name the keys that a search finds, and fits recover planted attention."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from analyses import explanations
from analyses.explanations import ALL_GROUPS, UNIFORM, explain, explained
from analyses.measures.head_tables import Heads
from analyses.part_of_speech import UNIVERSAL_TAGS
from analyses.reading.windows import Reading
from analyses.report.report_parts import SINKS, by_group
from analyses.scoring.named_keys import FIRST, GROUPS, NAMES
from interp import AnnotatedText, InputError
from interp.annotation import ROOT, Mention
from interp.patterns.attention_models import VisibleKeys
from models.planted import Planted, noise, offset, uniform

TAGS = sorted(UNIVERSAL_TAGS)
WORDS = [f"w{number}" for number in range(20)]
RELATIONS = ("det", "nsubj", "obj", "amod", "obl")


def texts(count: int = 60, length: int = 14, seed: int = 0) -> list[AnnotatedText]:
    """Texts with random annotation, so that no two rules name the same keys."""
    rng = np.random.default_rng(seed)
    result = []
    for number in range(count):
        heads = [int(head) for head in rng.integers(0, length, length)]
        heads = [ROOT if head == index else head for index, head in enumerate(heads)]
        places = rng.choice(length, 5, replace=False).tolist()
        plain = AnnotatedText.plain(" ".join(rng.choice(WORDS, length)), f"document {number}")
        annotated = {
            "tags": tuple(rng.choice(TAGS, length)),
            "heads": tuple(heads),
            "relations": tuple("root" if head == ROOT else rng.choice(RELATIONS) for head in heads),
            "mentions": tuple(Mention(place, place + 1, place, "ab"[k % 2]) for k, place in enumerate(places)),
        }
        result.append(replace(plain, **annotated))
    return result


DECODER = Planted(WORDS, [[offset(-1), uniform]], n_ctx=40, causal=True, start="<s>").build()


@pytest.fixture(scope="module")
def visible() -> tuple[VisibleKeys, dict[str, str]]:
    """The rows of an encoder with a start token."""
    model = Planted(WORDS, [[noise(3.0, 0)]], n_ctx=40, causal=False, start="<s>").build()
    return explanations._visible_keys(Reading(model, texts()))


def giving(keys: VisibleKeys, names: dict[str, str], *mixtures: dict[str, float], noise: float = 0.0) -> VisibleKeys:
    """Heads that mix rules; if a rule names no key, the others replace it, or else uniform attention."""
    columns, draw = [*names], torch.Generator().manual_seed(0)
    heads = []
    for weights in mixtures:
        attention = 1e-9 * keys.uniform
        for name, weight in weights.items():
            part = keys.uniform * (1.0 if name == UNIFORM else keys.marks[:, columns.index(name)])
            total = torch.zeros(len(keys.group)).index_add_(0, keys.row, part)[keys.row]
            attention = attention + weight * part / total.clamp(min=1e-9)
        heads.append(attention)
    attention = torch.stack(heads, 1)
    attention = attention * torch.exp(noise * torch.randn(attention.shape, generator=draw))
    return VisibleKeys.from_pairs(keys.row, keys.group, keys.uniform, attention, keys.marks)


def table_of(keys: VisibleKeys, names: dict[str, str]) -> pd.DataFrame:
    """The table of `explained`, with all heads in one layer."""
    return explained(keys, names, Heads("encoder", 1, keys.attention.shape[1], causal=False))


def shares(table: pd.DataFrame, kind: str, head: int = 0) -> pd.Series:
    """Shares of one kind, by part."""
    return table.loc[(table["kind"] == kind) & (table["head"] == head)].set_index("part")["share"]


def named_by_hand(text: AnnotatedText, query: int) -> dict[str, list[int]]:
    """The keys that some rules name for a decoder's query word; -1 is the start token."""
    words, tags, heads, relations = text.words, text.tags or (), text.heads or (), text.relations or ()
    chain = {mention.head: mention.chain for mention in text.mentions or ()}
    before = range(query)
    verbs = [key for key in before if tags[key] == "VERB"]
    return {
        FIRST: [-1],
        "itself": [query],
        "offset -2": [key for key in before if key == query - 2],
        "6 to 8 before": [key for key in before if 6 <= query - key <= 8],
        "every VERB": verbs,
        "last VERB": verbs[-1:],
        "same form": [key for key in before if words[key] == words[query]],
        "after the same form": [key for key in range(1, query + 1) if words[key - 1] == words[query] and key != query],
        "nsubj:dependent->head": [heads[query]] * (relations[query] == "nsubj" and heads[query] < query),
        "another relation:head->dependent": [key for key in before if relations[key] == "obl" and heads[key] == query],
        "same chain": [key for key in before if chain.get(key) is not None and chain.get(key) == chain.get(query)],
    }


def test_rules_name_the_keys_that_a_search_finds():
    columns = [*NAMES]
    for batch in Reading(DECODER, texts(4)):
        item, *_, marks, _, _ = explanations._words(batch, {})
        rows = iter(marks.split(item.unique(return_counts=True)[1].tolist()))
        for text in (window.text for window in batch.windows):
            for query in range(len(text.words)):
                row = next(rows)  # every word up to the query, then the start token
                keys = np.array([*range(len(row) - 1), -1])
                expected = named_by_hand(text, query)
                assert {name: keys[row[:, columns.index(name)].numpy()].tolist() for name in expected} == expected


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_planted_mixtures_come_back(visible, noise):
    pairs = [("offset -1", "every VERB"), ("last NOUN", FIRST), ("det:dependent->head", "itself")]
    pairs.append(("same form", UNIFORM))
    planted = giving(*visible, *({most: 0.7, less: 0.3} for most, less in pairs), noise=noise)
    table = table_of(planted, visible[1])
    for head, (most, less) in enumerate(pairs):
        rows = table.loc[(table["kind"] == "mixture") & (table["head"] == head)].set_index("part")
        weights = rows.loc[[most, less], "weight"]
        if UNIFORM not in (most, less):  # uniform attention also replaces both
            assert weights[most] / weights.sum() == pytest.approx(0.7, abs=0.05)
        assert rows.loc[[most, less, UNIFORM], "share"].sum() > 0.95
        assert rows["share"].drop(ALL_GROUPS).sum() == pytest.approx(1, abs=1e-4)
        inside = rows.loc[most]
        assert inside["ci_low"] <= inside["share"] <= inside["ci_high"]


def test_a_copy_of_a_rule_gives_nothing_to_the_groups_above_it(visible):
    rules = ("offset -1", "itself", "every NOUN", "same form", "last VERB", "next NOUN/PROPN", "obj:dependent->head")
    table = table_of(giving(*visible, *({rule: 1.0} for rule in rules)), visible[1])
    for head, rule in enumerate(rules):
        level = GROUPS.index(NAMES[rule])
        nested, unique = (shares(table, kind, head) for kind in ("nested", "unique"))
        assert nested[ALL_GROUPS] > 0.95
        assert nested[list(GROUPS[level + 1 :])].sum() <= 0.02
        assert (unique[list(GROUPS[level + 1 :])] <= 0.02).all()
        assert shares(table, "shapley", head).sum() == pytest.approx(nested[ALL_GROUPS])
        bars = {name: part.loc[0, head] for name, part in by_group(table).items() if name not in (SINKS, UNIFORM)}
        assert max(bars, key=bars.__getitem__) == GROUPS[level]


def test_of_a_head_close_to_uniform_nothing_is_said(visible):
    table = table_of(giving(*visible, {UNIFORM: 1.0}, {UNIFORM: 0.97, "every NOUN": 0.03}, {"itself": 1.0}), visible[1])
    has_share = table.groupby("head")["share"].apply(lambda share: share.notna().any())
    assert has_share.tolist() == [False, False, True]
    assert table.groupby("head")["kl"].first().tolist()[:2] == pytest.approx([0, 0], abs=0.05)


def test_planted_models_are_explained_by_what_was_planted():
    result = explain(DECODER, texts(80))
    mixture = shares(result.table, "mixture")
    assert mixture["offset -1"] == pytest.approx(13 / 14, abs=0.01)  # before the first word is the start token
    assert shares(result.table, "shapley")["position"] > 0.8 * shares(result.table, "nested")[ALL_GROUPS]
    assert shares(result.table, "mixture", 1).isna().all()
    assert set(result.table["corpus"]) == {"texts"}


def test_one_document_cannot_be_both_fitted_and_reported():
    with pytest.raises(InputError, match="both halves"):
        explain(DECODER, texts(1))

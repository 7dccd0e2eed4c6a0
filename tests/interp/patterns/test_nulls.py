"""Permuted keys: the closed form against every permutation, its calibration without an effect, its power."""

from itertools import permutations

import numpy as np
import pytest
import torch
from scipy import stats

from analyses import coreference, part_of_speech, position
from benchmarks.planted import compose
from benchmarks.planted import planted_texts as texts
from interp.config import NoNorm
from interp.patterns import Null, Rows, nulls, positional, selection
from interp.patterns.tags import TagTotals, tag_sides

GENERATOR = torch.Generator()


@pytest.fixture(autouse=True)
def _same_numbers():
    """Same draws whichever tests came before, in any process."""
    GENERATOR.manual_seed(0)


def moments(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and variance over the first axis, whose rows are equally likely."""
    return values.mean(0), values.var(0, unbiased=False)


def random_row(n: int) -> torch.Tensor:
    return torch.rand(n, generator=GENERATOR, dtype=torch.float64)


class TestClosedForm:
    """Against all permutations of a short row."""

    @pytest.mark.parametrize("numbers", [[1.0, 1, 0, 0, 0], [3.0, 2, 1, 0, 7]], ids=["a set of keys", "mean distance"])
    def test_attention_times_any_number_of_a_key(self, numbers):
        row, n, number = random_row(5), *(torch.tensor(each, dtype=torch.float64) for each in (5.0, numbers))
        every = torch.stack([(row[list(order)] * number).sum() for order in permutations(range(5))])
        factors = [nulls.weighted(number.sum(), number.square().sum(), n)]
        factors += [nulls.on_set(number.sum(), n)] if numbers[-1] == 0 else []
        for of_mass, of_spread in factors:
            result = of_mass * row.sum(), of_spread * nulls.spread(row.sum(), row.square().sum(), n)
            torch.testing.assert_close(result, moments(every))

    @pytest.mark.parametrize("scores", [[0.3, 0.1, 0.2, 0.6, 0.5], [0.4, 0.4, 0.1, 0.4, 0.2], [0.0] * 5])
    def test_choice_and_share_within_bins(self, scores):
        row = torch.tensor(scores, dtype=torch.float64)
        bins = torch.tensor([-2, -2, -2, -1, -1])
        correct = torch.tensor([True, False, False, True, False])
        candidates = torch.ones(5, dtype=torch.bool)
        orders = [[*near, *far] for near in permutations(range(3)) for far in permutations(range(3, 5))]
        permuted = torch.stack([row[order] for order in orders])[None]  # one item; each order is a head
        masks = candidates[None], correct[None]
        for null, score in (
            (nulls.choice, selection.accuracy(permuted, *masks)),
            (nulls.share, selection.share(permuted, *masks)[0]),
        ):
            result = [each[0, 0] for each in null(row[None, None], *masks, bins[None])]
            torch.testing.assert_close(result, list(moments(score[0])), msg=null.__name__)

    def test_bins_double_and_keep_sides_apart(self):
        offsets = torch.tensor([-16, -15, -8, -7, -4, -3, -2, -1, 0, 1, 2, 3, 4, 1 << 20])
        assert nulls.distance_bin(offsets).tolist() == [-5, -4, -4, -3, -3, -2, -2, -1, 0, 1, 2, 2, 3, 21]

    def test_a_row_shared_alike_has_no_spread(self):
        third = torch.full((3,), 1 / 3)
        assert nulls.spread(third.sum(), third.square().sum(), torch.tensor(3.0)) == 0


def batch(prompts: int, heads: int, n: int, *, causal: bool) -> tuple[torch.Tensor, Rows]:
    """Random patterns of random tokens; the first is special."""
    visible = torch.ones(n, n, dtype=torch.bool).tril() if causal else torch.ones(n, n, dtype=torch.bool)
    scores = torch.randn(prompts, heads, n, n, generator=GENERATOR).masked_fill(~visible, -torch.inf)
    content = torch.ones(prompts, n, dtype=torch.bool)
    content[:, 0] = False
    ids = torch.randint(11, (prompts, n), generator=GENERATOR)
    return scores.softmax(-1), Rows(ids, content, content, visible.expand(prompts, n, n))


def permuted_content(pattern: torch.Tensor, rows: Rows) -> torch.Tensor:
    """Permute each row's content keys."""
    keys = (rows.visible & rows.content[:, None])[:, None].expand_as(pattern)
    noise = torch.rand(pattern.shape, generator=GENERATOR).masked_fill(~keys, 2.0)
    order, source = noise.argsort(dim=-1, stable=True), (~keys).int().argsort(dim=-1, stable=True)  # keys first in both
    return torch.empty_like(pattern).scatter_(-1, order, pattern.gather(-1, source))


@pytest.mark.parametrize("sink", ["kept", "removed"])
@pytest.mark.parametrize("causal", [True, False])
def test_positional_null_is_what_permuted_patterns_score(causal, sink):
    pattern, rows = batch(1, 2, 7, causal=causal)
    many = torch.stack([permuted_content(pattern, rows)[0] for _ in range(6000)]).flatten(0, 1)[None]
    torch.testing.assert_close(many[..., 1:].sum(-1)[0, :2], pattern[0, ..., 1:].sum(-1))
    questions = positional.Questions(rows, position.masks(causal=causal))
    sums, scores = questions.read(pattern)[sink], questions.read(many)[sink].scores[0].unflatten(0, (-1, 2))
    names = questions.names
    for name in ("previous-token", "offset:-3", "self", "duplicate-token"):
        i = names.index(name)
        torch.testing.assert_close(sums.null_mean[0, :, i], scores[..., i].mean(0), rtol=0.03, atol=0.02, msg=name)
        torch.testing.assert_close(sums.null_variance[0, :, i], scores[..., i].var(0), rtol=0.12, atol=1e-4, msg=name)
    assert sums.null_mean[..., names.index("entropy")].isnan().all()


def is_uniform(p: np.ndarray) -> None:
    """Assert no excess of small p, and a flat distribution; about thirty sets of p are tested."""
    assert (p < 0.05).mean() <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / p.size)
    assert stats.kstest(p, "uniform").pvalue > 0.001


class TestCalibration:
    """Patterns without structure: p is uniform for every measure."""

    def test_positions(self):
        prompts, heads = 64, 400  # enough rows for sums of skewed values to be normal
        pattern, rows = batch(prompts, heads, 29, causal=True)
        questions = positional.Questions(rows, position.masks(causal=True))
        by_sink = questions.read(pattern)
        for sink, sums in by_sink.items():
            null = Null.empty(heads, sums.scores.shape[-1])
            null.add(torch.arange(prompts), sums.null_mean, sums.null_variance)
            scores = torch.zeros_like(null.mean)
            scores[:prompts] = sums.scores.double()
            p = null.test(scores)
            for column, name in enumerate(questions.names):
                if name == "entropy" or (name, sink) == ("first-token", "removed"):
                    assert np.isnan(p[:, column]).all()
                else:
                    is_uniform(p[:, column])

    def test_tags(self):
        prompts, heads, n = 32, 400, 31
        pattern, rows = batch(prompts, heads, n, causal=True)
        tags = torch.randint(3, (prompts, n), generator=GENERATOR)
        allowed = rows.visible & (torch.arange(n) != torch.arange(n)[:, None])
        totals = TagTotals(heads, [(0, 1), (1, 2)], causal=True)
        asking = totals.asking(tags, torch.ones_like(tags))
        sides, _ = tag_sides(totals.bins, pattern, allowed, tags, asking)
        totals.add(torch.arange(prompts), sides, asking, rows.visible)
        p = totals.null.test(totals.finish().scores)
        for column in p.T:
            is_uniform(column)


def test_planted_heads_stand_out_and_what_could_not_come_out_otherwise_is_missing_never_small():
    behaviours = ["previous-token", "duplicate-token", "antecedent", "noun-to-adjective"]
    composed = compose(5, form="decoder", n_layers=2, n_heads=4, norm=NoNorm(), behaviours=behaviours)

    def row(table, name, measure):
        where, *_ = composed.where(name)
        is_head = (table["layer"] == where.layer) & (table["head"] == where.head) & (table["sink"] == "kept")
        return table[is_head & (table["measure"] == measure)].iloc[0]

    table = position.measure(composed.model, texts.shuffled(composed.lexicon, 20))
    rows = [row(table, name, name) for name in behaviours[:2]]
    assert table.loc[table["measure"].isin(["entropy", "positional-head"]), ["null", "p_null"]].isna().all(axis=None)
    relation = "noun-to-adjective", "relation:amod:head->dependent"
    apart, adjacent = (
        part_of_speech.measure(composed.model, texts.sentences(composed.lexicon, 25, apart=apart))
        for apart in (True, False)
    )
    rows.append(row(apart, *relation))
    meetings = texts.meetings(composed.lexicon, 60, episodes=4)
    rows.append(row(coreference.measure(composed.model, meetings), "antecedent", "antecedent"))
    assert all(each["p_null"] < 1e-12 and each["null"] < each["value"] for each in rows)
    always_next = row(adjacent, *relation)  # one key in its bin, so permuting changes nothing
    assert (always_next["value"], always_next["null"]) == (1.0, 1.0)
    assert np.isnan(always_next["p_null"])

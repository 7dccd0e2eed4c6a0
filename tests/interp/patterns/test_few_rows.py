"""Rows that are made of queries and keys are those of whole patterns: every variant, both ways of weighing."""

import pytest
import torch
from tiny import TWO_STACKS, VARIANTS, rows, two_stacks, variant

from interp.patterns.few_rows import FewRows
from interp.patterns.norm_weighted import NormWeighted
from interp.patterns.one_attention import read_patterns
from interp.patterns.rows import rows_at

LENGTHS = (6, 3, 5)
PROMPT = torch.tensor([0, 0, 0, 1, 2, 2, 2])
QUERY = torch.tensor([0, 5, 3, 2, 4, 4, 1])  # in no order, a row twice


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", VARIANTS)
def test_rows_are_those_of_whole_patterns(name, causal):
    model, tokens = variant(name, causal=causal), rows(LENGTHS)
    (stack,) = model.config.stacks
    few = FewRows.of(model, tokens, stack, norms=True)
    whole = read_patterns(model, tokens, f"{stack}.*.attn.pattern")
    _, weighted = NormWeighted(model).beside(tokens)
    for pattern, found in ((whole, few.rows(PROMPT, QUERY)), (weighted, few.rows(PROMPT, QUERY, by_norm=True))):
        torch.testing.assert_close(found, rows_at(pattern, PROMPT, QUERY), rtol=0, atol=1e-6)
    assert (whole - weighted).abs().max() > 0.01


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_rows_of_either_of_two_stacks(stack):
    model = two_stacks(next(iter(TWO_STACKS)))
    source, target = (rows(LENGTHS, d_vocab=19, seed=seed) for seed in (0, 1))
    found = FewRows.of(model, source, stack, target).rows(PROMPT, QUERY)
    whole = read_patterns(model, source, f"{stack}.*.attn.pattern", target)
    torch.testing.assert_close(found, rows_at(whole, PROMPT, QUERY), rtol=0, atol=1e-6)
    none = torch.zeros(0, dtype=torch.long)
    assert len(FewRows.of(model, source, stack, target).rows(none, none)) == 0

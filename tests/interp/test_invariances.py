"""What must not matter does not, whatever a model is made of: over small configurations drawn at random."""

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as draw
from tiny import BERT, GPT2, randomise

from interp import StackConfig, TokenBatch, Transformer, TransformerConfig, run
from interp.config import Alibi, Buckets, Gated, LayerNorm, Learned, NoMLP, NoPositions, Plain, Rotary, Sinusoidal
from interp.patching import Pairs, logit_difference, sweep

pytestmark = pytest.mark.usefixtures("unchecked")
_SEEDS = draw.integers(0, 1 << 30)
few = settings(max_examples=25, derandomize=True, deadline=None, database=None, suppress_health_check=[*HealthCheck])


@draw.composite
def stacks(draws: draw.DrawFn) -> StackConfig:
    """Any stack that can be built of these parts: LayerNorm alone, since RMSNorm rounds to float32."""
    kv_heads, groups = draws(draw.integers(1, 3)), draws(draw.integers(1, 2))
    positions = draws(draw.sampled_from([Rotary(), Alibi(), Buckets(5, 7), NoPositions(), Sinusoidal(), Learned()]))
    return replace(
        draws(draw.sampled_from([GPT2, BERT])),
        n_layers=draws(draw.integers(1, 3)),
        n_heads=kv_heads * groups,
        n_kv_heads=kv_heads,
        d_model=draws(draw.sampled_from([14, 22])),
        d_head=draws(draw.sampled_from([4, 6])),
        positions=positions,
        wiring=draws(draw.sampled_from(["pre", "post", "after", "sandwich", "parallel"])),
        mlp=draws(draw.sampled_from([Plain("gelu"), Gated("silu"), NoMLP()])),
        norm=LayerNorm(),
        attention_bias=draws(draw.booleans()),
        score_cap=draws(draw.sampled_from([None, 0.7])),
        embedding_norm=False,
        n_token_types=0,
    )


def built(stack: StackConfig, seed: int) -> Transformer:
    whole = {"decoder": stack} if stack.causal else {"encoder": stack}
    made = Transformer(TransformerConfig(**whole)).double()
    randomise(made, seed)
    return made


def texts(seed: int, *lengths: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(29, (length,), generator=generator).tolist() for length in lengths]


def same(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-9)


@few
@given(stacks(), _SEEDS, draw.sampled_from(["left", "right"]), draw.permutations(range(3)), draw.integers(0, 28))
def test_a_text_has_its_logits_alone_or_together_in_any_order_and_padding(stack, seed, side, order, pad_id):
    model, rows = built(stack, seed), texts(seed, 5, 2, 8)
    together = run(model, TokenBatch.from_rows([rows[at] for at in order], pad_id=pad_id, side=side)).logits
    for place, at in enumerate(order):
        length = len(rows[at])
        own = together[place, -length:] if side == "left" else together[place, :length]
        same(own, run(model, torch.tensor(rows[at])).logits[0])


@few
@given(stacks().filter(lambda stack: stack.causal), _SEEDS, draw.sampled_from(["denoise", "noise"]))
def test_patching_everything_is_the_other_run_and_what_is_alike_nothing(stack, seed, direction):
    model, (clean, corrupt) = built(stack, seed), texts(seed, 6, 6)
    corrupt = [*clean[:2], (clean[2] + 1) % 29, *corrupt[3:]]
    batches = (TokenBatch.from_rows([each]) for each in (clean, corrupt))
    pairs, metric = Pairs(*batches, torch.tensor([1]), torch.tensor([2])), logit_difference()
    everything = sweep(model, pairs, metric, "resid_pre", ("layer",), direction)
    same(everything.effect(), everything.difference().expand_as(everything.effect()))
    by_position = sweep(model, pairs, metric, "resid_pre", ("layer", "position"), direction).effect()
    same(by_position[:, :2], torch.zeros_like(by_position[:, :2]))

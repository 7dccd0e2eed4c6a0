"""Heads with shuffled weights: valid patterns, as sharp as trained ones, from the same streams."""

import pytest
import torch
from tiny import rows, two_stacks

from interp import StackConfig, TokenBatch, Transformer, TransformerConfig, run
from interp.config import Alibi, Local, Rotary
from interp.patterns.shuffled import Shuffled, Streams
from interp.visibility import Visibility
from models.initialisation import initialise


def small_model(seed: int = 0, **more: object) -> Transformer:
    sizes = {"n_layers": 2, "n_heads": 4, "d_model": 16, "d_head": 4, "d_mlp": 32, "n_ctx": 24, "d_vocab": 40}
    model = Transformer(TransformerConfig(decoder=StackConfig(**sizes, causal=True, **more)))  # pyright: ignore
    initialise(model, seed, "unit")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("qkv.weight"):
                weight.mul_(4.0)
    return model.double()


def ids() -> TokenBatch:
    generator = torch.Generator().manual_seed(1)
    return TokenBatch.from_rows([torch.randint(40, (n,), generator=generator).tolist() for n in (24, 17)])


def spread(scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    """Each head's spread, row by row, computed plainly."""
    rows = (visible[:, 0].sum(-1) > 1).nonzero().tolist()
    variances = [scores[prompt, :, query, visible[prompt, 0, query]].var(-1, correction=0) for prompt, query in rows]
    return torch.stack(variances).mean(0).sqrt()


def test_every_weight_keeps_its_numbers_within_its_head():
    model = small_model(n_kv_heads=2)
    copies = Shuffled(model, 3, seed=0)
    for layer, (w_q, b_q, w_k, b_k) in enumerate(copies.weights):
        attn = model.last.blocks[layer].attn
        bias = attn.qkv.bias.unflatten(0, (-1, 4))
        for shuffled, trained in ((w_q, attn.W_Q), (w_k, attn.W_K), (b_q, bias[:4]), (b_k, bias[4:6])):
            assert shuffled is not None
            for copy in shuffled:
                torch.testing.assert_close(copy.flatten(1).sort(-1).values, trained.flatten(1).sort(-1).values)
            if shuffled.ndim == 4:
                assert not torch.equal(shuffled[0], shuffled[1])
                assert not torch.equal(shuffled[0], trained)


def test_copies_that_share_streams_are_those_of_a_pass_each_and_texts_that_come_again_take_none(monkeypatch):
    model, texts = small_model(n_kv_heads=2, positions=Rotary()), [ids(), TokenBatch.from_rows([[3, 1, 4]])]
    passes: list[object] = []

    def counted_run(*arguments, **how):
        passes.append(arguments)
        return run(*arguments, **how)

    monkeypatch.setattr("interp.patterns.shuffled.run", counted_run)

    def patterns(streams: Streams | None) -> list[torch.Tensor]:
        copies = [Shuffled(model, 2, seed, streams=streams) for seed in (7, 9)]
        runs = [run(each, text, until="decoder.*.attn.pattern") for each in copies for text in texts]
        return [pattern for each in runs for pattern in each.activations.values()]

    alone = patterns(None)
    assert len(passes) == 4
    for capacity, expected in ((1 << 20, 2), (0, 4), (streams_of(model, texts[0]), 3)):
        passes.clear()
        torch.testing.assert_close(patterns(Streams(model, "decoder", capacity=capacity)), alone, rtol=0, atol=0)
        assert len(passes) == expected


def streams_of(model: Transformer, text: TokenBatch) -> int:
    """The bytes of the streams that all layers' attention reads in a text."""
    return text.ids.numel() * model.config.d_model * model.config.n_layers * torch.finfo(model.dtype).bits // 8


@pytest.mark.parametrize(
    "more",
    [
        {"positions": Rotary(), "wiring": "post"},
        {"positions": Alibi(), "wiring": "parallel"},
        {"n_kv_heads": 2, "qk_norm": "head", "local": Local((1,), 4)},
    ],
    ids=str,
)
def test_scores_spread_as_the_trained_heads_do(more):
    model, batch = small_model(**more), ids()
    copies = Shuffled(model, 2, seed=3)
    sites = [f"decoder.{layer}.attn.pattern" for layer in range(4)]
    patterns = run(copies, batch, until="decoder.*.attn.pattern")
    trained = run(model, batch, capture="decoder.*.attn.scores")
    assert [*patterns.activations] == sites
    for layer in range(2):
        attn = model.last.blocks[layer].attn
        visible = Visibility.from_batch(batch, causal=True).near(attn.reach).mask()
        mask = visible.clone()
        mask[..., 0] = False
        bias = 0 if attn.bias is None else attn.bias(Visibility.from_batch(batch, causal=True))
        expected = spread(trained[f"decoder.{layer}.attn.scores"] - bias, mask)
        for copy in range(2):
            pattern = patterns[sites[2 * layer + copy]]
            torch.testing.assert_close(pattern.sum(-1), torch.ones_like(pattern.sum(-1)))
            assert not pattern.masked_select(~visible.expand_as(pattern)).any()
            torch.testing.assert_close(spread(pattern.log() - bias, mask), expected)  # logs: scores minus a constant


def test_a_copy_is_a_head_with_those_weights_by_a_factor():
    """Plainly: put the shuffled weights into the model's own attention, on the same stream."""
    model, batch = small_model(positions=Rotary()), ids()
    copies = Shuffled(model, 2, seed=5)
    patterns = run(copies, batch, until="decoder.*.attn.pattern")
    streams = run(model, batch, capture="decoder.*.resid_pre")
    visibility = Visibility.from_batch(batch, causal=True)
    for layer, block in enumerate(model.last.blocks):
        x, attn = block.attention.read(streams[f"decoder.{layer}.resid_pre"]), block.attn
        for copy in range(2):
            w_q, b_q, w_k, b_k = (part[copy] for part in copies.weights[layer] if part is not None)
            with torch.no_grad():
                attn.W_Q.copy_(w_q)
                attn.W_K.copy_(w_k)
                attn.qkv.bias[:32] = torch.cat([b_q, b_k]).flatten()
                q, k, _ = attn.enter([*attn.project(x)], visibility.positions)
                scores = attn.scores(q.transpose(1, 2), k.transpose(1, 2), visibility)
            logs = patterns[f"decoder.{2 * layer + copy}.attn.pattern"].log()
            ratio = (logs[..., -1, :16] - logs[..., -1, 15:16]) / (scores[..., -1, :16] - scores[..., -1, 15:16])
            first = ratio[0, :, :15]
            torch.testing.assert_close(first, first[:, :1].expand_as(first))  # one factor per head
            assert (first > 0).all()


def test_cross_attention_is_shuffled_too():
    model, (source, target) = two_stacks("original"), (rows(lengths, seed=3) for lengths in ((5, 3), (3, 3)))
    source = TokenBatch(source.ids % 19, source.mask, source.positions)
    copies = Shuffled(model, 3, seed=0, stack="decoder", attention="cross")
    result = run(copies, source, target=target, until="decoder.*.cross_attn.pattern")
    assert len(result.activations) == 6
    for pattern in result.activations.values():
        assert pattern.shape == (2, 4, 3, 5)
        torch.testing.assert_close(pattern.sum(-1), torch.ones(2, 4, 3, dtype=pattern.dtype))
        assert not pattern[1, :, :, 3:].any()

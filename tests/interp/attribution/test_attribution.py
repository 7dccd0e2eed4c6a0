"""Attribution: parts add up to the model's output, weights match plain dense matrices, planted truth is found."""

from dataclasses import replace

import pytest
import torch
from tiny import STACKS, TWO_STACKS, model, randomise, rows, token_ids, two_stacks
from torch.testing import assert_close

from interp import InputError, TokenBatch, Transformer, TransformerConfig, run
from interp.attribution import (
    attribution_by_source,
    composition_scores,
    direct_logit_attribution,
    head_results,
    logit_lens,
)
from interp.config import NoNorm
from models import planted
from models.planted import Planted

ADDITIVE = [name for name, stack in STACKS.items() if stack.wiring == "pre" and stack.causal]
SUMS = [name for name, (_, decoder) in TWO_STACKS.items() if decoder.wiring != "post"]
POST = ["bert", "post-norm decoder", "original"]
RIGHT, WRONG = torch.tensor([3, 5, 7]), torch.tensor([2, 11, 13])
SOURCE, TARGET = rows((6, 4, 5), d_vocab=19), rows((5, 7, 3), seed=1)


def build(name: str, dtype: torch.dtype = torch.float64, **more) -> Transformer:
    return model(name, dtype=dtype, **more) if name in STACKS else two_stacks(name).to(dtype)


def ragged(side: str = "right") -> TokenBatch:
    ids = token_ids(3, 11).tolist()
    return TokenBatch.from_rows([ids[0], ids[1][:7], ids[2][:9]], side=side)


def inputs(name: str, side: str = "right") -> dict[str, TokenBatch]:
    """The model's inputs; in an encoder-decoder, the decoder has its own text."""
    return {"tokens": ragged(side)} if name in STACKS else {"tokens": SOURCE, "target": TARGET}


@pytest.mark.parametrize("name", [*STACKS, *TWO_STACKS])
def test_they_add_up_to_what_attention_writes(name):
    built = build(name)
    stack = [*built.config.stacks][-1]
    out = run(built, capture=f"{stack}.*attn*", **inputs(name))
    for layer, block in enumerate(built.last.blocks):
        for kind, prefix in [("self", ""), ("cross", "cross_")][: 1 + (name in TWO_STACKS)]:
            sublayer = block.cross if prefix else block.attention
            results, bias = head_results(built, out, layer, attention=kind).sum(-2), sublayer.layer.out.bias
            output = sublayer.write(results if bias is None else results + bias)
            assert_close(output, out[f"{stack}.{layer}.{prefix}attn_out"])
    read = inputs(name)
    again = head_results(built, read.pop("tokens"), -1, **read)
    assert_close(again, head_results(built, out, built.config.n_layers - 1))


@pytest.mark.parametrize(("name", "side"), [(name, side) for name in ADDITIVE for side in ("left", "right")] + [
    (name, "right") for name in SUMS
])  # fmt: skip
def test_terms_add_up_to_the_logit_difference(name, side):
    # RMSNorm rounds to float32 at every precision
    exact = 1e-5 if name in STACKS and "RMSNorm" in str(STACKS[name].norm) else 1e-10
    for dtype, close in [(torch.float64, exact), (torch.float32, 1e-5)]:
        built, read = build(name, dtype), inputs(name, side)
        result, out = direct_logit_attribution(built, right=RIGHT, wrong=WRONG, **read), run(built, **read)
        columns = (out.target or out.tokens).columns(-1)[:, 0]
        expected = out.logits[range(3), columns, RIGHT] - out.logits[range(3), columns, WRONG]
        size = result.values.abs().sum(0).max()
        assert size > 1
        assert_close(result.total, expected, rtol=close, atol=close)
        assert_close(result.values.sum(0), expected, rtol=0, atol=float(close * max(1, size)))
        rest = [result[name] for name in ("norm.bias", "output.bias") if name in result.names]
        assert_close(result["embed"] + result.by_layer().sum(0) + sum(rest), result.values.sum(0))
        sources, keys = attribution_by_source(result), out.target or out.tokens
        assert_close(sources.nansum(2), result.by_head())
        assert torch.equal(sources[0, 0].isnan().T, ~keys.mask)
        if name in TWO_STACKS:
            assert result.by_head().shape == result.by_head("cross").shape == (2, 4, 3)
            assert result.by_head("cross").abs().min() > 0
            assert_close(result["decoder.1.cross_head.2"], result.by_head("cross")[1, 2])
            sources = attribution_by_source(result, "cross")
            assert_close(sources.nansum(2), result.by_head("cross"))
            assert torch.equal(sources[0, 0].isnan().T, ~SOURCE.mask)


@pytest.mark.parametrize("name", ["gpt2", "llama", "no positions"])
def test_a_term_is_what_the_norm_at_a_fixed_scale_makes_of_it(name):
    built, batch = model(name), ragged()
    norm, unembedding = built.last.norm, built.output.weight[3]
    result = direct_logit_attribution(built, batch, 3)
    out = run(built, batch, capture=["decoder.1.mlp_out", "decoder.1.resid_post"])
    x, part = (out[f"decoder.1.{site}"][1, 6] for site in ("resid_post", "mlp_out"))
    if "RMS" in str(built.last.config.norm):
        expected = part / (x.square().mean() + 1e-5).sqrt() * norm.weight @ unembedding
    else:
        expected = (part - part.mean()) / (x.var(correction=0) + 1e-5).sqrt() * norm.weight @ unembedding
        assert_close(result["norm.bias"][1], norm.bias @ unembedding)
    assert_close(result["decoder.1.mlp"][1], expected)


def test_another_position_is_the_last_of_the_prompt_cut_there():
    built, ids = model("gpt2"), token_ids(2, 11)
    for position in (4, -7, torch.tensor([4, 4])):
        result = direct_logit_attribution(built, ids, 3, 5, position=position)
        assert_close(result.values, direct_logit_attribution(built, ids[:, :5], 3, 5).values)


@pytest.mark.parametrize("name", ["gpt2", "rotary encoder"])
def test_a_direction_needs_no_output_layer(name):
    built, direction = model(name, output="none"), torch.linspace(-1, 1, 19, dtype=torch.float64)
    site = f"{next(iter(built.config.stacks))}.resid_final"
    result = direct_logit_attribution(built, token_ids(2, 7), direction=direction)
    final = run(built, token_ids(2, 7), capture=site)[site][:, -1]
    assert_close(result.values.sum(0), final @ direction, rtol=1e-5, atol=1e-5)


def test_after_sums_without_norms_it_is_exact():
    stack = replace(STACKS["attention only"], wiring="post", norm=NoNorm())
    built = Transformer(TransformerConfig(decoder=stack)).double()
    randomise(built)
    result = direct_logit_attribution(built, token_ids(2, 5), 3, 5)
    logits = run(built, token_ids(2, 5)).logits[:, -1]
    assert_close(result.values.sum(0), logits[:, 3] - logits[:, 5])


@pytest.mark.parametrize("name", [*ADDITIVE, "post-norm decoder"])
def test_a_row_is_what_a_model_cut_there_says(name):
    built, batch = model(name), ragged("left")
    lens = logit_lens(built, batch, [-1, 2])
    assert lens.logits.shape == (3, 3, 2, 29)
    for layer in (2, 1, 0):
        del built.last.blocks[layer:]
        with torch.no_grad():  # `run`'s sites do not reflect removed blocks
            logits = built(batch)
        for prompt, length in enumerate(batch.lengths.tolist()):
            assert_close(lens.logits[layer, prompt], logits[prompt, torch.tensor([10, 11 - length + 2])])


@pytest.mark.parametrize("name", TWO_STACKS)
def test_it_reads_the_decoder(name):
    built, (prompts, last) = two_stacks(name), (range(3), TARGET.lengths - 1)
    out = run(built, SOURCE, "decoder.1.resid_pre", target=TARGET)
    lens = logit_lens(built, SOURCE, target=TARGET)
    assert torch.equal(lens.logits[-1, :, 0], out.logits[prompts, last])
    with torch.no_grad():
        early = built.read(built.last.norm(out["decoder.1.resid_pre"]))[prompts, last]
    assert_close(lens.logits[1, :, 0], early)


def attribute(name: str = "gpt2", **arguments):
    return direct_logit_attribution(build(name), **{**inputs(name), **arguments})


ONES = torch.ones(19, dtype=torch.float64)
MISUSE = [
    (lambda: head_results(model("gpt2"), ragged(), 2), "no layer 2"),
    (lambda: head_results(model("gpt2"), ragged(), 0, attention="cross"), "no attention 'cross'"),
    (attribute, "either answers"),
    (lambda: attribute(right=3, direction=ONES), "either answers"),
    (lambda: attribute(right=29), "0-28"),
    (lambda: attribute(right=torch.tensor([1, 2])), "each of the 3 prompts"),
    (lambda: attribute(right=" he"), "no tokenizer"),
    (lambda: attribute(direction=torch.ones(18)), r"shape \(19,\) or \(3, 19\)"),
    (lambda: attribute(right=3, position=[1, 2]), "one position per prompt"),
    *((lambda name=name: attribute(name, direction=ONES), "norms follow its sums") for name in POST),
    (lambda: direct_logit_attribution(model("gpt2", output="none"), ragged(), 3), "give a direction"),
    (lambda: attribute(right=3).by_head("cross"), r"no attention 'cross' in this model: expected self$"),
    (lambda: logit_lens(model("gpt2"), ragged()).top(30), "k from 1 to 29"),
    (lambda: logit_lens(model("bert"), ragged()), "needs an output layer"),
    (lambda: logit_lens(model("gpt2"), ragged(), []), "expected at least one position"),
]


@pytest.mark.parametrize(("ask", "message"), MISUSE)
def test_what_cannot_be_attributed_is_refused(ask, message):
    with pytest.raises(InputError, match=message):
        ask()


def dense(built: Transformer, layer: int, head: int) -> tuple[torch.Tensor, torch.Tensor]:
    """W_QK and W_OV (d_model x d_model), including the norm before them as a matrix."""
    stack = built.last.config
    block = built.last.blocks[layer]
    reads = torch.eye(stack.d_model, dtype=torch.float64)
    if stack.wiring == "pre" and not isinstance(stack.norm, NoNorm):
        assert isinstance(block.norm_attn.weight, torch.Tensor)
        if "Layer" in str(stack.norm):
            reads = reads - 1 / stack.d_model
        reads = reads @ block.norm_attn.weight.diag()
    attn, kv = block.attn, head // (stack.n_heads // stack.kv_heads)
    w_qk = reads @ attn.W_Q[head] @ attn.W_K[kv].T @ reads.T
    return w_qk, reads @ attn.W_V[kv] @ attn.W_O[head]


@pytest.mark.parametrize("name", list(STACKS))
def test_scores_are_those_of_dense_matrices(name):
    stack = replace(STACKS[name], n_layers=3)
    side = {"decoder": stack} if stack.causal else {"encoder": stack}
    built = Transformer(TransformerConfig(**side, output="none")).double()
    randomise(built)
    scores = composition_scores(built)
    heads = stack.n_heads
    assert scores.shape == (3, 3, heads, 3, heads)
    with torch.no_grad():
        for layer, head, later, reader in torch.cartesian_prod(*map(torch.arange, scores.shape[1:])).tolist():
            if later <= layer:
                assert scores[:, layer, head, later, reader].isnan().all()
                continue
            (_, writes), (w_qk, w_ov) = dense(built, layer, head), dense(built, later, reader)
            for kind, reads in enumerate((w_qk, w_qk.T, w_ov)):
                expected = (writes @ reads).norm() / (writes.norm() * reads.norm())
                assert_close(scores[kind, layer, head, later, reader], expected)


def test_two_heads_write_two_and_minus_one():
    writes = {"cat": ["meow"]}
    heads = [planted.antecedent({"end": ["cat"]}, writes, strength=strength) for strength in (2.0, -1.0)]
    built = Planted(["cat", "end", "the", "meow", "woof"], [heads, [planted.uniform]], n_ctx=5).build()
    result = direct_logit_attribution(built, ["the cat the end", "cat end"], "meow", "woof")
    assert result.total.tolist() == pytest.approx([1.0, 1.0], abs=1e-5)
    assert_close(result.values.sum(0), result.total, atol=1e-5, rtol=0)
    expected = {"embed": 0.0, "decoder.0.head.0": 2.0, "decoder.0.head.1": -1.0, "decoder.1.head.0": 0.0}
    for name, value in expected.items():
        assert result[name].tolist() == pytest.approx([value] * 2, abs=1e-5), name
    # and all of it is read at the cat's position
    alone = direct_logit_attribution(built, ["the cat the end"], "meow", "woof")
    sources = attribution_by_source(alone)[0, :, :, 0]
    assert_close(sources, torch.tensor([[0, 2.0, 0, 0], [0, -1.0, 0, 0]]), atol=1e-5, rtol=0)
    lens = logit_lens(built, ["the cat the end"])
    assert lens.difference("meow", "woof").flatten().tolist() == pytest.approx([0, 1, 1], abs=1e-5)

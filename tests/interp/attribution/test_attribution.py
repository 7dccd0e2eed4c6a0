"""Attribution: parts add up to what the model says, weights give what plain dense matrices give, planted truth."""

from dataclasses import replace

import pytest
import torch
from tiny import STACKS, TWO_STACKS, model, randomise, rows, token_ids, two_stacks

from interp import InputError, TokenBatch, Transformer, TransformerConfig, run
from interp.attribution import attribution_by_source, direct_logit_attribution, head_results, logit_lens
from interp.composition import composition_scores
from interp.config import NoNorm
from models import planted
from models.planted import Planted

ADDITIVE = [name for name, stack in STACKS.items() if stack.wiring == "pre" and stack.causal]
POST = ["bert", "post-norm decoder"]
# RMSNorm rounds to float32 at every precision
CLOSE = {name: 1e-5 if "RMSNorm" in str(STACKS[name].norm) else 1e-10 for name in STACKS}


def ragged(side: str = "right") -> TokenBatch:
    ids = token_ids(3, 11).tolist()
    return TokenBatch.from_rows([ids[0], ids[1][:7], ids[2][:9]], side=side)


def last_of(out) -> torch.Tensor:
    columns = [int(mask.nonzero().max()) for mask in out.tokens.mask]
    return torch.stack([logits[at] for logits, at in zip(out.logits, columns, strict=True)])


class TestHeadResults:
    """They add up to what attention writes."""

    @pytest.mark.parametrize("name", list(STACKS))
    def test_they_add_up_to_attn_out_less_its_bias(self, name):
        built = model(name)
        stack = next(iter(built.config.stacks))
        out = run(built, ragged(), capture=f"{stack}.*.attn*")
        for layer, block in enumerate(built.last.blocks):
            whole = head_results(built, out, layer).sum(-2)
            if block.attn.out.bias is not None:
                whole = whole + block.attn.out.bias
            torch.testing.assert_close(whole, out[f"{stack}.{layer}.attn_out"])

    def test_a_head_alone_is_attention_with_the_others_at_zero_and_tokens_do_as_well(self):
        built, batch = model("llama"), ragged()
        results = head_results(built, batch, -1)
        assert results.shape == (3, 11, 6, 19)
        z = run(built, batch, capture="decoder.1.attn.z")["decoder.1.attn.z"]
        attn = built.last.blocks[1].attn
        for head in range(6):
            alone = torch.zeros_like(z)
            alone[:, :, head] = z[:, :, head]
            torch.testing.assert_close(results[:, :, head], attn.out(alone.flatten(-2)))

    def test_misuse(self):
        built = model("gpt2")
        with pytest.raises(InputError, match="no layer 2"):
            head_results(built, ragged(), 2)
        with pytest.raises(InputError, match="was not captured"):
            head_results(built, run(built, ragged()), 0)


class TestDirectAttribution:
    """Terms add up to the logit difference."""

    @pytest.mark.parametrize("side", ["left", "right"])
    @pytest.mark.parametrize("name", ADDITIVE)
    def test_terms_add_up_to_the_logit_difference(self, name, side):
        right, wrong = torch.tensor([3, 5, 7]), torch.tensor([2, 11, 13])
        for dtype, close in [(torch.float64, CLOSE[name]), (torch.float32, 1e-5)]:
            built = model(name, dtype=dtype)
            batch = ragged(side)
            found = direct_logit_attribution(built, batch, right, wrong)
            last = last_of(run(built, batch))
            expected = last[range(3), right] - last[range(3), wrong]
            size = found.values.abs().sum(0).max()
            torch.testing.assert_close(found.total, expected, rtol=close, atol=close)
            torch.testing.assert_close(found.values.sum(0), expected, rtol=0, atol=float(close * max(1, size)))
            assert size > 1

    @pytest.mark.parametrize("name", ["gpt2", "llama", "no positions"])
    def test_a_term_is_what_the_norm_at_a_fixed_scale_makes_of_it(self, name):
        built, batch = model(name), ragged()
        stack = built.last
        found = direct_logit_attribution(built, batch, 3)
        out = run(built, batch, capture=["decoder.1.mlp_out", "decoder.1.resid_post", "decoder.0.attn.z"])
        prompt, at = 1, 6
        x, part = out["decoder.1.resid_post"][prompt, at], out["decoder.1.mlp_out"][prompt, at]
        assert built.output is not None
        u = built.output.weight[3]
        if "RMS" in str(stack.config.norm):
            expected = part / (x.square().mean() + 1e-5).sqrt() * stack.norm.weight @ u
        else:
            expected = (part - part.mean()) / (x.var(correction=0) + 1e-5).sqrt() * stack.norm.weight @ u
            torch.testing.assert_close(found["norm.bias"][prompt], stack.norm.bias @ u)
        torch.testing.assert_close(found["decoder.1.mlp"][prompt], expected)

    def test_names_and_sums_by_head_and_layer(self):
        found = direct_logit_attribution(model("gpt2"), ragged(), 3, 5)
        layers = [
            [*(f"decoder.{n}.head.{h}" for h in range(3)), f"decoder.{n}.attn.bias", f"decoder.{n}.mlp"] for n in (0, 1)
        ]
        assert found.names == ("embed", *layers[0], *layers[1], "norm.bias")
        assert found.by_head().shape == (2, 3, 3)
        torch.testing.assert_close(found.by_head()[1, 2], found["decoder.1.head.2"])
        torch.testing.assert_close(found["embed"] + found["norm.bias"] + found.by_layer().sum(0), found.values.sum(0))

    def test_another_position_is_the_last_of_the_prompt_cut_there(self):
        built, ids = model("gpt2"), token_ids(2, 11)
        for position in (4, -7, torch.tensor([4, 4])):
            found = direct_logit_attribution(built, ids, 3, 5, position=position)
            cut = direct_logit_attribution(built, ids[:, :5], 3, 5)
            torch.testing.assert_close(found.values, cut.values)

    @pytest.mark.parametrize("name", ["gpt2", "rotary encoder"])
    def test_a_direction_needs_no_output_layer(self, name):
        built = model(name, output="none")
        stack = next(iter(built.config.stacks))
        direction = torch.linspace(-1, 1, 19, dtype=torch.float64)
        found = direct_logit_attribution(built, token_ids(2, 7), direction=direction)
        final = run(built, token_ids(2, 7), capture=f"{stack}.resid_final")[f"{stack}.resid_final"][:, -1]
        torch.testing.assert_close(found.values.sum(0), final @ direction, rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("name", ADDITIVE)
    def test_sources_add_up_to_their_heads(self, name):
        built, batch = model(name), ragged()
        found = direct_logit_attribution(built, batch, 3, 5)
        sources = attribution_by_source(found)
        assert sources.shape == (2, built.config.n_heads, 11, 3)
        torch.testing.assert_close(sources.nansum(2), found.by_head())
        assert torch.equal(sources[0, 0].isnan().T, ~batch.mask)

    @pytest.mark.parametrize("name", POST)
    def test_norms_after_sums_leave_no_sum(self, name):
        direction = torch.ones(19, dtype=torch.float64)
        with pytest.raises(InputError, match="norms come after its sums"):
            direct_logit_attribution(model(name), token_ids(1, 5), direction=direction)

    def test_after_sums_without_norms_it_is_exact(self):
        stack = replace(STACKS["attention only"], wiring="post", norm=NoNorm())
        built = Transformer(TransformerConfig(decoder=stack)).double()
        randomise(built)
        found = direct_logit_attribution(built, token_ids(2, 5), 3, 5)
        logits = run(built, token_ids(2, 5)).logits[:, -1]
        torch.testing.assert_close(found.values.sum(0), logits[:, 3] - logits[:, 5])

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({}, "either answers"),
            ({"wrong": 3}, "either answers"),
            ({"right": 3, "direction": torch.ones(19)}, "either answers"),
            ({"right": 29}, "0-28"),
            ({"right": torch.tensor([1, 2])}, "each of the 3 prompts"),
            ({"right": " he"}, "no tokenizer"),
            ({"direction": torch.ones(18)}, r"shape \(19,\) or \(3, 19\)"),
            ({"right": 3, "position": 7}, "no position 7 in prompt 1: it has position 0-6"),
            ({"right": 3, "position": [1, 2]}, "one position of each prompt"),
        ],
    )
    def test_misuse(self, arguments, message):
        with pytest.raises(InputError, match=message):
            direct_logit_attribution(model("gpt2"), ragged(), **arguments)

    def test_answers_need_an_output_layer(self):
        with pytest.raises(InputError, match="give a direction"):
            direct_logit_attribution(model("gpt2", output="none"), ragged(), 3)


SUMS = [name for name, (_, decoder) in TWO_STACKS.items() if decoder.wiring != "post"]


class TestTwoStacks:
    """A decoder's stream is a sum of its own terms, to which its cross-attention's heads belong; the encoder's not."""

    SOURCE, TARGET = rows((6, 4, 5), d_vocab=19), rows((5, 7, 3), seed=1)

    @pytest.mark.parametrize("name", SUMS)
    def test_terms_of_the_decoder_add_up_to_the_logit_difference(self, name):
        right, wrong = torch.tensor([3, 5, 7]), torch.tensor([2, 11, 13])
        for dtype, close in [(torch.float64, 1e-10), (torch.float32, 1e-5)]:
            built = two_stacks(name).to(dtype)
            found = direct_logit_attribution(built, self.SOURCE, right, wrong, target=self.TARGET)
            logits = run(built, self.SOURCE, target=self.TARGET).logits[range(3), self.TARGET.lengths - 1]
            expected = logits[range(3), right] - logits[range(3), wrong]
            size = found.values.abs().sum(0).max()
            torch.testing.assert_close(found.total, expected, rtol=close, atol=close)
            torch.testing.assert_close(found.values.sum(0), expected, rtol=0, atol=float(close * max(1, size)))
            assert found.by_head().shape == found.by_head("cross").shape == (2, 4, 3)
            assert found.by_head("cross").abs().min() > 0
            assert all(term.startswith(("embed", "decoder.", "norm.", "output.")) for term in found.names)
            torch.testing.assert_close(found["decoder.1.cross_head.2"], found.by_head("cross")[1, 2])
            own = found["embed"] + found.by_layer().sum(0) + (found["norm.bias"] if "norm.bias" in found.names else 0)
            torch.testing.assert_close(own, found.values.sum(0))

    @pytest.mark.parametrize("name", SUMS)
    @pytest.mark.parametrize(("attention", "keys"), [("self", TARGET), ("cross", SOURCE)])
    def test_sources_add_up_to_their_heads(self, name, attention, keys):
        found = direct_logit_attribution(two_stacks(name), self.SOURCE, 3, 5, target=self.TARGET)
        sources = attribution_by_source(found, attention)
        assert sources.shape == (2, 4, keys.ids.shape[1], 3)
        torch.testing.assert_close(sources.nansum(2), found.by_head(attention))
        assert torch.equal(sources[0, 0].isnan().T, ~keys.mask)

    @pytest.mark.parametrize("name", list(TWO_STACKS))
    def test_what_cross_attention_writes_adds_up_head_by_head(self, name):
        built = two_stacks(name)
        out = run(built, self.SOURCE, ["decoder.*.cross_attn.z", "decoder.*.cross_attn_out"], target=self.TARGET)
        for layer, block in enumerate(built.last.blocks):
            raw = head_results(built, out, layer, attention="cross").sum(-2) + block.cross_attn.out.bias
            written = block.cross.write(raw)
            torch.testing.assert_close(written, out[f"decoder.{layer}.cross_attn_out"])
        again = head_results(built, self.SOURCE, 0, attention="cross", target=self.TARGET)
        torch.testing.assert_close(again, head_results(built, out, 0, attention="cross"))

    @pytest.mark.parametrize("name", list(TWO_STACKS))
    def test_the_logit_lens_reads_the_decoder(self, name):
        built = two_stacks(name)
        out = run(built, self.SOURCE, "decoder.1.resid_pre", target=self.TARGET)
        lens = logit_lens(built, self.SOURCE, target=self.TARGET)
        last = self.TARGET.lengths - 1
        assert torch.equal(lens.logits[-1, :, 0], out.logits[range(3), last])
        with torch.no_grad():
            early = built.read(built.last.norm(out["decoder.1.resid_pre"]))[range(3), last]
        torch.testing.assert_close(lens.logits[1, :, 0], early)

    def test_misuse(self):
        built = two_stacks("modern")
        with pytest.raises(InputError, match="give target="):
            direct_logit_attribution(built, self.SOURCE, 3)
        with pytest.raises(InputError, match="norms come after its sums"):
            direct_logit_attribution(two_stacks("original"), self.SOURCE, 3, target=self.TARGET)
        for asked in (lambda found: found.by_head("cross"), lambda found: attribution_by_source(found, "cross")):
            with pytest.raises(InputError, match=r"no attention 'cross' in this model: expected self$"):
                asked(direct_logit_attribution(model("gpt2"), ragged(), 3))
        with pytest.raises(InputError, match="no attention 'cross'"):
            head_results(model("gpt2"), run(model("gpt2"), ragged(), "*.z"), 0, attention="cross")


class TestLogitLens:
    """The output layer after each layer."""

    @pytest.mark.parametrize("name", [*ADDITIVE, "post-norm decoder"])
    def test_a_row_is_what_a_model_cut_there_says(self, name):
        built, batch = model(name), ragged("left")
        lens = logit_lens(built, batch, [-1, 2])
        assert lens.logits.shape == (3, 3, 2, 29)
        for layer in (2, 1, 0):
            del built.last.blocks[layer:]
            logits = run_cut(built, batch)
            for prompt, length in enumerate(batch.lengths.tolist()):
                at = torch.tensor([10, 11 - length + 2])
                torch.testing.assert_close(lens.logits[layer, prompt], logits[prompt, at])

    def test_the_last_row_is_the_models_own_bit_for_bit(self):
        built, batch = model("gpt2", dtype=torch.float32), ragged()
        assert torch.equal(logit_lens(built, batch).logits[-1, :, 0], last_of(run(built, batch)))

    def test_differences_and_the_likeliest(self):
        lens = logit_lens(model("gpt2"), ragged())
        right = torch.tensor([3, 5, 7])
        found = lens.difference(right, 2)
        assert found.shape == (3, 3, 1)
        torch.testing.assert_close(found[1, 2, 0], lens.logits[1, 2, 0, 7] - lens.logits[1, 2, 0, 2])
        values, tokens = lens.top(4)
        assert torch.equal(tokens[..., 0], lens.logits.argmax(-1))
        torch.testing.assert_close(values, lens.logits.sort(-1, descending=True).values[..., :4])
        with pytest.raises(InputError, match="k from 1 to 29"):
            lens.top(30)

    def test_misuse(self):
        with pytest.raises(InputError, match="needs an output layer"):
            logit_lens(model("bert"), ragged())
        with pytest.raises(InputError, match="expected at least one position"):
            logit_lens(model("gpt2"), ragged(), [])
        with pytest.raises(InputError, match="one position for each of 3"):
            logit_lens(model("gpt2"), ragged(), torch.tensor([1, 2]))


def run_cut(built: Transformer, batch: TokenBatch) -> torch.Tensor:
    """Logits of a model some of whose blocks were removed, which `run`'s sites do not know of."""
    with torch.no_grad():
        logits = built(batch)
    assert logits is not None
    return logits


def dense(built: Transformer, layer: int, head: int) -> tuple[torch.Tensor, torch.Tensor]:
    """W_QK and W_OV, d_model x d_model, with the norm before them as a matrix."""
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


class TestComposition:
    """Which heads read what earlier heads write."""

    @pytest.mark.parametrize("name", list(STACKS))
    def test_scores_are_those_of_dense_matrices(self, name):
        stack = replace(STACKS[name], n_layers=3)
        side = {"decoder": stack} if stack.causal else {"encoder": stack}
        built = Transformer(TransformerConfig(**side, output="none")).double()
        randomise(built)
        found = composition_scores(built)
        heads = stack.n_heads
        assert found.shape == (3, 3, heads, 3, heads)
        with torch.no_grad():
            for layer, head, later, other in torch.cartesian_prod(*map(torch.arange, found.shape[1:])).tolist():
                if later <= layer:
                    assert found[:, layer, head, later, other].isnan().all()
                    continue
                (_, writes), (w_qk, w_ov) = dense(built, layer, head), dense(built, later, other)
                for kind, reads in enumerate((w_qk, w_qk.T, w_ov)):
                    expected = (writes @ reads).norm() / (writes.norm() * reads.norm())
                    torch.testing.assert_close(found[kind, layer, head, later, other], expected)

    def test_the_induction_head_reads_the_previous_token_head_through_its_keys(self):
        words = [f"w{number}" for number in range(8)]
        layers = [
            [planted.uniform, planted.offset(-1, remember=True)],
            [planted.induction(), planted.same_token, planted.uniform],
        ]
        built = Planted(words, layers, n_ctx=12).build()
        q, k, v = composition_scores(built)
        # token -> token over its own norm: GAIN * |1| / (|1| * GAIN * |1|), with |1| the root of 9 tokens
        assert k[0, 1, 1, 0] == pytest.approx(9**-0.5)
        assert k.nan_to_num().max() == k[0, 1, 1, 0]
        assert k[0, 1, 1, 1] == 0
        assert (q[0, 1, 1, :2] == 0).all()
        assert v[0, 1, 1, 0] == 0
        assert k[0, 0].isnan().all()  # a head that writes nothing


class TestPlanted:
    """Truth 5: two heads that write +2 and -1."""

    def test_two_heads_write_two_and_minus_one(self):
        writes = {"cat": ["meow"]}
        heads = [planted.antecedent({"end": ["cat"]}, writes, strength=strength) for strength in (2.0, -1.0)]
        built = Planted(["cat", "end", "the", "meow", "woof"], [heads, [planted.uniform]], n_ctx=5).build()
        found = direct_logit_attribution(built, ["the cat the end", "cat end"], "meow", "woof")
        assert found.total.tolist() == pytest.approx([1.0, 1.0], abs=1e-5)
        torch.testing.assert_close(found.values.sum(0), found.total, atol=1e-5, rtol=0)
        expected = {"embed": 0.0, "decoder.0.head.0": 2.0, "decoder.0.head.1": -1.0, "decoder.1.head.0": 0.0}
        for name, value in expected.items():
            assert found[name].tolist() == pytest.approx([value] * 2, abs=1e-5), name
        # and all of it is read from where the cat stands
        alone = direct_logit_attribution(built, ["the cat the end"], "meow", "woof")
        sources = attribution_by_source(alone)[0, :, :, 0]
        torch.testing.assert_close(sources, torch.tensor([[0, 2.0, 0, 0], [0, -1.0, 0, 0]]), atol=1e-5, rtol=0)
        lens = logit_lens(built, ["the cat the end"])
        assert lens.difference("meow", "woof").flatten().tolist() == pytest.approx([0, 1, 1], abs=1e-5)

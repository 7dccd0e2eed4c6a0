"""Ablation against one plain edited forward a cell, and planted circuits whose answers follow on paper."""

from itertools import product

import pytest
import torch
from worded import worded

from analyses import position
from interp import StackConfig, TokenBatch, Transformer, TransformerConfig, put, run
from interp.config import NoNorm, NoPositions, Plain
from interp.errors import InputWarning
from interp.patching import Pairs, function, kl_divergence, logit_difference, next_token_loss, sweep
from interp.patching.ablation import ablate, ablate_cells, ablate_in_order
from interp.patching.replacements import mean_activation
from models import planted
from models.planted import Planted
from tests.interp.patching.settings import build

LENGTHS = (7, 5, 7, 6, 5)
RIGHT, WRONG = torch.tensor([1, 2, 3, 4, 5]), torch.tensor([6, 7, 8, 9, 10])
METRICS = [logit_difference(RIGHT, WRONG), kl_divergence()]


def rows(lengths, seed=1) -> TokenBatch:
    generator = torch.Generator().manual_seed(seed)
    return TokenBatch.from_rows([torch.randint(29, (length,), generator=generator).tolist() for length in lengths])


def stack_of(model: Transformer) -> str:
    return next(iter(model.config.stacks))


def full(model: Transformer, layer: int, site: str) -> str:
    return f"{stack_of(model)}.{layer}.{'attn.z' if site == 'z' else site}"


def difference(logits: torch.Tensor, batch: TokenBatch) -> torch.Tensor:
    prompt = torch.arange(len(logits))
    last = logits[prompt, batch.lengths - 1]
    return last[prompt, RIGHT] - last[prompt, WRONG]


def corpus_mean(model: Transformer, batch: TokenBatch, layer: int, site: str) -> torch.Tensor:
    seen = run(model, batch, capture=full(model, layer, site))[full(model, layer, site)]
    every = [seen[prompt, at] for prompt, length in enumerate(batch.lengths.tolist()) for at in range(length)]
    return torch.stack(every).mean(0)


@pytest.mark.parametrize(("site", "widths"), [("z", (4, 6)), ("mlp.post", (13,)), ("resid_post", (22,))])
def test_the_mean_counts_every_real_position_of_every_batch_once(site, widths):
    model = build("pre")
    batches = [rows((4, 6, 3), seed=5), rows((7,), seed=6)]
    together = rows((4, 6, 3), seed=5)
    found = mean_activation(model, iter(batches), site)
    assert found.shape == (3, *widths)
    for layer in range(3):
        parts = [corpus_mean(model, batch, layer, site) * batch.lengths.sum() for batch in batches]
        torch.testing.assert_close(found[layer], (parts[0] + parts[1]) / 20)
        alone = mean_activation(model, together, site)[layer]
        torch.testing.assert_close(alone, corpus_mean(model, together, layer, site))


class TestResample:
    """Another prompt's activation at the same position."""

    def test_each_cell_equals_a_forward_with_the_donors_activation(self):
        model, batch, donors = build("pre"), rows(LENGTHS), rows((9,), seed=3)  # one donor: no draw to guess
        found = ablate(model, batch, METRICS[0], kind="resample", donors=donors)
        for layer, head in product(range(3), range(4)):
            name = full(model, layer, "z")
            theirs = run(model, donors, capture=name)[name][:, :7, head]
            out = run(model, batch, edit={name: put(theirs, head=head)})
            torch.testing.assert_close(found.values["logit_difference"][layer, head], difference(out.logits, batch))

    def test_a_prompt_is_never_its_own_donor_and_two_prompts_exchange(self):
        model, batch = build("pre"), rows((6, 6))
        exchanged = TokenBatch(batch.ids.flip(0), batch.mask.flip(0), batch.positions.flip(0))
        metric = logit_difference(RIGHT[:2], WRONG[:2])
        pairs = Pairs(batch, exchanged, RIGHT[:2], WRONG[:2])
        noised = sweep(model, pairs, metric, direction="noise").values["logit_difference"]
        for seed in range(8):  # a draw that may return the prompt itself cannot exchange every time
            found = ablate(model, batch, metric, kind="resample", seed=seed).values["logit_difference"]
            torch.testing.assert_close(found, noised)

    def test_the_seed_decides_the_draw(self):
        model, batch = build("pre"), rows((6,) * 5)
        draws = [ablate(model, batch, METRICS[0], kind="resample", seed=seed).effect() for seed in (0, 0, 1)]
        assert torch.equal(draws[0], draws[1])
        assert not torch.equal(draws[0], draws[2])

    def test_every_real_position_comes_from_a_real_position(self):
        # the two longest prompts can only exchange; shorter ones never meet a donor's padding
        model, batch = build("pre"), rows((7, 3, 7))
        filled = TokenBatch(batch.ids.masked_fill(~batch.mask, 17), batch.mask, batch.positions)
        metric = logit_difference(RIGHT[:3], WRONG[:3])
        for seed in range(8):
            drops = [ablate(model, each, metric, kind="resample", seed=seed).effect() for each in (batch, filled)]
            torch.testing.assert_close(drops[0], drops[1])


class TestDonors:
    """Who gives the activation: a prompt of the same answer has nothing else to give."""

    CLEAN, CORRUPT = (TokenBatch.from_rows([[first, 2]] * 3) for first in (1, 0))  # the cue, and a blank
    ANSWERS = torch.zeros(3, dtype=torch.long), torch.ones(3, dtype=torch.long)

    def test_pairs_of_one_answer_lose_it_to_their_corrupted_prompts(self):
        pairs = Pairs(self.CLEAN, self.CORRUPT, *self.ANSWERS)
        for call, asked in ((ablate, ()), (ablate_cells, ([(0, 0), (0, 1)],))):
            drop = call(saturating(1.0, 2.0), pairs, logit_difference(), *asked).effect()
            assert drop.flatten().tolist() == [1.0] * 6

    def test_prompts_without_pairs_that_have_one_answer_are_warned_of(self):
        model, metric = saturating(1.0, 2.0), logit_difference(*self.ANSWERS)
        with pytest.warns(InputWarning, match=r"all prompts the same answer.*give pairs.* or .* as donors="):
            assert ablate(model, self.CLEAN, metric).effect().flatten().tolist() == [0.0] * 6
        for told in ({"donors": self.CORRUPT}, {"kind": "zero"}):
            assert ablate(model, self.CLEAN, metric, **told).effect().flatten().tolist() == [1.0] * 6


def test_another_prompts_activation_takes_the_place_by_default():
    model, batch, cells = build("pre"), rows(LENGTHS), [(0, 0), (1, 1)]
    for call, asked in ((ablate, ()), (ablate_cells, (cells,)), (ablate_in_order, (cells,))):
        found, drawn = call(model, batch, METRICS[0], *asked), call(model, batch, METRICS[0], *asked, kind="resample")
        assert found.kind == "resample"
        torch.testing.assert_close(found.values, drawn.values, rtol=0, atol=0)


CUE, BLANK, END = 1, 0, 2


def saturating(threshold: float, ceiling: float) -> Transformer:
    """Two heads see the cue and write 1 each into a sum; the feed-forward adds relu(sum - threshold), at most 1."""
    stack = StackConfig(
        **{"n_layers": 1, "d_model": 3, "n_heads": 2, "d_head": 1, "d_mlp": 2, "n_ctx": 2, "d_vocab": 3},
        causal=True,
        norm=NoNorm(),
        positions=NoPositions(),
        mlp=Plain("relu"),
    )
    model = Transformer(TransformerConfig(decoder=stack))
    cue, total, answer = 0, 1, 2
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
        block = model.last.blocks[0]
        assert block.mlp is not None
        assert model.output is not None
        model.last.embed.token.weight[CUE, cue] = 1
        block.attn.W_V[:, cue, 0] = 2  # at the end uniform attention sees half of the cue
        block.attn.W_O[:, 0, total] = 1
        block.mlp.up.weight[:, total] = 1
        block.mlp.up.bias.copy_(torch.tensor([-threshold, -ceiling]))
        block.mlp.down.weight[answer] = torch.tensor([1.0, -1.0])
        model.output.weight[0, answer] = 1
    return model


class TestCircuits:
    """Truth 5: either head is enough, or both are needed; and truth 3's copying."""

    PAIRS = Pairs(
        TokenBatch.from_rows([[CUE, END]]), TokenBatch.from_rows([[BLANK, END]]), torch.tensor([0]), torch.tensor([1])
    )
    OR, AND = (0.0, 1.0), (1.0, 2.0)

    @pytest.mark.parametrize(
        ("circuit", "direction", "expected"),
        [(OR, "noise", 0), (OR, "denoise", 1), (AND, "noise", 1), (AND, "denoise", 0)],
    )
    def test_or_hides_from_noising_and_and_from_denoising(self, circuit, direction, expected):
        found = sweep(saturating(*circuit), self.PAIRS, logit_difference(), direction=direction)
        assert found.difference().tolist() == [1.0]
        torch.testing.assert_close(found.recovered(), torch.full((1, 2), float(expected)))

    @pytest.mark.parametrize(("circuit", "first"), [(OR, 0.0), (AND, 1.0)])
    def test_or_needs_both_ablated_and_and_one(self, circuit, first):
        model = saturating(*circuit)
        alone = ablate(model, self.PAIRS, logit_difference(), kind="zero")
        assert alone.effect().tolist() == [[[first], [first]]]
        steps = ablate_in_order(model, self.PAIRS, logit_difference(), [(0, 1), (0, 0)], kind="zero")
        assert steps.effect().tolist() == [[first], [1.0]]

    def test_without_either_head_of_the_composition_copying_is_chance(self):
        words = [f"w{number}" for number in range(40)]
        layers = [
            [planted.offset(-1, remember=True), planted.offset(-3), planted.uniform],
            [planted.same_token, planted.induction(10.0), planted.uniform],
        ]
        model = Planted(words, layers, n_ctx=64, start="<s>").build()
        ids = position.repeated(model, 20, 20, seed=1)
        tokens, right = ids[:, :-1], ids[:, 22:]
        reads = torch.arange(21, 40).expand(20, -1)  # the second copy, each token asked for the next
        copying = function(lambda logits, right: (logits.argmax(-1) == right).float().mean(-1), "copying", reads, right)
        found = ablate(model, tokens, copying)
        assert (found.clean["copying"] == 1).all()
        share = found.values["copying"].mean(-1)
        carrying = torch.tensor([[True, False, False], [False, True, False]])
        assert (share[carrying] <= 1 / 20).all()
        assert (share[~carrying] == 1).all()


def test_a_mean_is_over_texts_as_they_are_typed_each_token_once():
    model, texts = worded(), ["Tim saw Sue", "the dog saw Tim"]
    every = [run(model, text, capture="decoder.*.attn.z") for text in texts]
    for layer, found in enumerate(mean_activation(model, texts)):
        tokens = torch.cat([out[f"decoder.{layer}.attn.z"][0] for out in every])
        torch.testing.assert_close(found, tokens.mean(0))
    torch.testing.assert_close(mean_activation(model, texts[0]), mean_activation(model, run(model, texts[0]).tokens))
    torch.testing.assert_close(mean_activation(model, (text for text in texts)), mean_activation(model, texts))
    given = ablate(model, texts, next_token_loss(), kind="mean", mean=mean_activation(model, texts))
    own = ablate(model, texts, next_token_loss(), kind="mean")  # by default the mean over these prompts
    torch.testing.assert_close(given.values["loss"], own.values["loss"])

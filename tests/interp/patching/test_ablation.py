"""What replaces an ablated part? Means, or other prompts' activations; with circuits known on paper."""

import pytest
import torch
from tiny import rows
from worded import worded

from interp import StackConfig, TokenBatch, Transformer, TransformerConfig, run, set_to
from interp import patching as p
from interp.config import NoNorm, NoPositions, Plain
from interp.errors import InputWarning
from tests.interp.patching.settings import build

RIGHT, WRONG = torch.tensor([1, 2, 3, 4, 5]), torch.tensor([6, 7, 8, 9, 10])


def metric(count: int = 5):
    return p.logit_difference(RIGHT[:count], WRONG[:count])


@pytest.mark.parametrize(("site", "name"), [("z", "attn.z"), ("mlp.post", "mlp.post")])
def test_a_mean_counts_every_real_position_of_every_batch_once(site, name):
    model, batches = build("pre"), [rows((4, 6, 3), seed=5), rows((7,), seed=6)]
    for layer, mean in enumerate(p.mean_activation(model, iter(batches), site)):
        full_name = f"decoder.{layer}.{name}"
        values = [run(model, batch, capture=full_name)[full_name][batch.mask] for batch in batches]
        torch.testing.assert_close(mean, torch.cat(values).mean(0))


def test_a_mean_is_over_texts_as_they_are_typed_by_default_over_the_prompts():
    model, texts = worded(), ["Tim saw Sue", "the dog saw Tim"]
    mean = p.mean_activation(model, (text for text in texts))
    tokens = [run(model, text, capture="decoder.1.attn.z")["decoder.1.attn.z"][0] for text in texts]
    torch.testing.assert_close(mean[1], torch.cat(tokens).mean(0))
    typed, read = (p.mean_activation(model, each) for each in (texts[0], run(model, texts[0]).tokens))
    torch.testing.assert_close(typed, read)
    explicit, default = (p.ablate(model, texts, p.next_token_loss(), kind="mean", mean=each) for each in (mean, None))
    torch.testing.assert_close(explicit.values, default.values)


class TestResample:
    def test_a_cell_equals_a_forward_with_the_donors_activation(self):
        model, batch, donors = build("pre"), rows((7, 5, 7, 6, 5)), rows((9,), seed=3)  # one donor: the draw is known
        cells = p.ablate(model, batch, metric(), donors=donors).values["logit_difference"]
        theirs = run(model, donors, capture="decoder.1.attn.z")["decoder.1.attn.z"][:, :7, 2]
        logits = run(model, batch, edit={"decoder.1.attn.z": set_to(theirs, head=2)}).logits
        last = logits[torch.arange(5), batch.lengths - 1]
        torch.testing.assert_close(cells[1, 2], last[torch.arange(5), RIGHT] - last[torch.arange(5), WRONG])

    def test_a_prompt_is_never_its_own_donor_and_two_prompts_exchange(self):
        model, batch = build("pre"), rows((6, 6))
        exchanged = TokenBatch(batch.ids.flip(0), batch.mask.flip(0), batch.positions.flip(0))
        noised = p.sweep(model, p.Pairs(batch, exchanged, RIGHT[:2], WRONG[:2]), metric(2), direction="noise")
        for seed in range(8):  # a draw that may return the prompt itself would not always exchange
            torch.testing.assert_close(p.ablate(model, batch, metric(2), seed=seed).values, noised.values)

    def test_the_seed_decides_the_draw(self):
        draws = [p.ablate(build("pre"), rows((6,) * 5), metric(), seed=seed).effects() for seed in (0, 0, 1)]
        assert [torch.equal(draws[0], draw) for draw in draws] == [True, True, False]

    def test_every_real_position_comes_from_a_real_position(self):
        # the two longest prompts must exchange; shorter ones never get a donor's padding
        model, batch = build("pre"), rows((7, 3, 7))
        filled = TokenBatch(batch.ids.masked_fill(~batch.mask, 17), batch.mask, batch.positions)
        for seed in range(8):
            drops = [p.ablate(model, each, metric(3), seed=seed).effects() for each in (batch, filled)]
            torch.testing.assert_close(drops[0], drops[1])


CUE, BLANK, END = 1, 0, 2
CLEAN, CORRUPT = (TokenBatch.from_rows([[first, END]] * 3) for first in (CUE, BLANK))
ANSWERS = torch.zeros(3, dtype=torch.long), torch.ones(3, dtype=torch.long)


def saturating(threshold: float, ceiling: float, d_vocab: int = 3) -> Transformer:
    """Two heads see the cue and each add 1 to a sum; the feed-forward adds relu(sum - threshold), at most 1."""
    sizes = {"n_layers": 1, "d_model": 3, "n_heads": 2, "d_head": 1, "d_mlp": 2, "n_ctx": 2, "d_vocab": d_vocab}
    parts = {"norm": NoNorm(), "positions": NoPositions(), "mlp": Plain("relu")}
    model = Transformer(TransformerConfig(decoder=StackConfig(**sizes, **parts, causal=True)))
    cue, total, answer = 0, 1, 2
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
        block = model.last.blocks[0]
        model.last.embed.token.weight[CUE, cue] = 1
        block.attn.W_V[:, cue, 0] = 2  # at the end, uniform attention sees half of the cue
        block.attn.W_O[:, 0, total] = 1
        block.mlp.up.weight[:, total] = 1
        block.mlp.up.bias.copy_(torch.tensor([-threshold, -ceiling]))
        block.mlp.down.weight[answer] = torch.tensor([1.0, -1.0])
        model.output.weight[0, answer] = 1
    return model


def test_one_answer_is_lost_to_corrupted_prompts_and_without_them_there_is_a_warning():
    model, answer = saturating(1.0, 2.0), p.logit_difference(*ANSWERS)
    for call, cells in ((p.ablate, ()), (p.ablate_cells, ([(0, 0), (0, 1)],))):
        effect = call(model, p.Pairs(CLEAN, CORRUPT, *ANSWERS), p.logit_difference(), *cells).effects()
        assert effect.flatten().tolist() == [1.0] * 6
    with pytest.warns(InputWarning, match=r"all prompts the same answer.*give pairs.* or .* as donors="):
        assert p.ablate(model, CLEAN, answer).effects().flatten().tolist() == [0.0] * 6
    for options in ({"donors": CORRUPT}, {"kind": "zero"}):
        assert p.ablate(model, CLEAN, answer, **options).effects().flatten().tolist() == [1.0] * 6


@pytest.mark.parametrize(("circuit", "first"), [((0.0, 1.0), 0.0), ((1.0, 2.0), 1.0)], ids=["or", "and"])
def test_or_needs_both_ablated_and_and_one(circuit, first):
    model, pairs = saturating(*circuit), p.Pairs(CLEAN, CORRUPT, *ANSWERS)
    for direction, share in (("noise", first), ("denoise", 1 - first)):
        assert p.sweep(model, pairs, p.logit_difference(), direction=direction).share().tolist() == [[share] * 2]
    alone = p.ablate(model, pairs, p.logit_difference(), kind="zero")
    assert alone.effects()[0, :, 0].tolist() == [first, first]
    steps = p.ablate_in_order(model, pairs, p.logit_difference(), [(0, 1), (0, 0)], kind="zero")
    assert steps.effects()[:, 0].tolist() == [first, 1.0]

"""Losses of next tokens; NaN is reported where it arises, before anything is measured."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tiny import model, ragged_pairs, rows, token_ids, two_stacks
from torch.testing import assert_close

from analyses.measures.head_tables import Heads
from analyses.reading.inputs import Pass
from analyses.report.scaffold import write
from interp import InputError, Transformer, generate, loss, run, sweep, token_losses
from interp.patching import next_token_loss, sweep_by_forward
from interp.running import check_finite
from models import load


def by_hand(transformer, ids: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
    """Each next token's loss, in one pass over a text that fits the context."""
    targets = ids if targets is None else targets
    return F.cross_entropy(run(transformer, ids).logits[0, :-1], targets.reshape(-1)[1:], reduction="none")


@pytest.mark.parametrize(("length", "stride"), [(14, 5), (18, 5), (19, 1), (20, 12), (31, 5)])
def test_in_longer_texts_each_token_is_scored_once_with_the_context_that_windows_leave(length, stride):
    built, ids = model("gpt2"), token_ids(1, length)
    (losses,) = token_losses(built, ids, stride=stride)
    assert losses.shape == (length - 1,)
    assert_close(losses[:12], by_hand(built, ids[:, :13]))
    for done in range(13, length, stride):
        end = min(done + stride, length)
        window = by_hand(built, ids[:, end - 13 : end])
        assert_close(losses[done - 1 : end - 1], window[-(end - done) :])


def test_texts_of_all_lengths_together_are_as_alone_whatever_the_budget():
    built, batch = model("llama"), rows((4, 7, 3, 13))
    losses = token_losses(built, batch, budget=1)
    assert_close(losses, token_losses(built, batch))
    for row, length, part in zip(batch.ids, (4, 7, 3, 13), losses, strict=True):
        assert_close(part, by_hand(built, row[:length]))
    assert loss(built, batch) == pytest.approx(float(torch.cat(losses).mean()))


def test_the_default_model_foretells_english_better_than_its_words_in_another_order():
    built, text = load("default"), "The old lady shook her head, and said that she had never seen the man before. "
    (losses,) = token_losses(built, text)
    assert_close(losses, by_hand(built, built.to_tokens(text)))  # the prefix predicts the first token
    assert loss(built, text) < loss(built, " ".join(text.split()[::-1]))
    long = text * 20
    (windowed,) = token_losses(built, long)
    assert len(windowed) == len(built.tokenizer.pieces(long).ids) > 256


@pytest.mark.parametrize("direction", ["denoise", "noise"])
def test_the_metric_is_the_loss_of_the_clean_prompts_tokens_in_every_run(direction):
    built, pairs = model("gpt2"), ragged_pairs()
    cells = sweep(built, pairs, next_token_loss(), direction=direction)
    plain = sweep_by_forward(built, pairs, next_token_loss(), direction=direction)
    assert_close(cells.values, plain.values, rtol=1e-10, atol=1e-10)
    assert cells.effects().abs().max() > 1e-6
    for prompt, length in enumerate(pairs.clean.lengths.tolist()):
        clean, corrupt = (batch.ids[prompt, :length] for batch in (pairs.clean, pairs.corrupt))
        assert_close(cells.clean["loss"][prompt], by_hand(built, clean).mean())
        assert_close(cells.corrupt["loss"][prompt], by_hand(built, corrupt, clean).mean())


def test_sound_models_pass() -> None:
    for built in (model("gpt2"), model("bert"), two_stacks("modern")):
        check_finite(built)


def scaled(part: str, factor: float) -> Transformer:
    built = model("gpt2", dtype=torch.float32)
    built.get_parameter(f"stacks.decoder.blocks.{part}.weight").data *= factor
    return built


NOT_FINITE = r"the weight .*blocks\.0\.attn\.qkv\.weight is not finite, so decoder\.0\.attn\.q holds NaN"
OVERFLOWING, DAMAGED = ("1.mlp.down", 1e38), ("0.attn.qkv", math.nan)
REFUSED = [
    (lambda: loss(model("bert"), token_ids(1, 5)), "only a decoder without"),
    (lambda: loss(two_stacks("original"), token_ids(1, 5)), "only a decoder without"),
    (lambda: loss(model("gpt2"), "text"), "no tokenizer"),
    (lambda: loss(model("gpt2"), rows((5, 1))), "two tokens or more, got fewer in text 1"),
    (lambda: loss(model("gpt2"), token_ids(1, 20), stride=13), "stride must lie in 1-12"),
    (lambda: check_finite(scaled(*OVERFLOWING)), r"^decoder\.1\.mlp_out holds .*, computed in torch.float32"),
    (lambda: check_finite(scaled("1.attn.qkv", 1e30)), r"^decoder\.1\.attn\.scores holds"),
    (lambda: Pass(scaled(*DAMAGED), Heads("decoder", 2, 3), [[1, 2, 3], [4, 5]]).whole, NOT_FINITE),
    (lambda: generate(scaled(*OVERFLOWING), token_ids(1, 4), 3, temperature=1.0), r"decoder\.1\.mlp_out holds"),
    *((lambda seed=seed: generate(model("gpt2"), token_ids(1, 4), 1, seed=seed), "as seed") for seed in (-1, 1 << 63)),
]


@pytest.mark.parametrize(("ask", "message"), REFUSED)
def test_what_has_no_loss_or_is_no_number_is_refused(ask: Callable, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ask()


def test_no_command_measures_such_a_model(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"broken: the weight .* is not finite"):
        write(tmp_path / "out", lambda run: pytest.fail("measured"), {"broken": scaled(*DAMAGED)})
    assert not (tmp_path / "out").exists()

"""Training computes what it says (loss, schedule, phases), and tiny models learn what they see."""

import math
from dataclasses import replace
from unittest import mock

import pytest
import torch
from learners import BOTH, DECODER, ENCODER, model, plan, sources, text, tokenizer, weights

from interp import InputError, Transformer
from interp.training import Masked, Pairs, Phase, Plan, Windows, state, train
from interp.training.objectives import IGNORED
from interp.training.parallel import Processes
from interp.training.steps import summed_loss
from models import load, save


def a_plan(**changes) -> Plan:
    return Plan(**{"phases": (Phase(100, 4, 8),), "learning_rate": 8.0, "warmup": 10, "final": 0.25, **changes})


ARTICLE = {"schedule": "inverse-square-root", "learning_rate": 64**-0.5 * 10**-0.5}
RESTARTS = Phase(100, 4, 8), Phase(40, 4, 8, learning_rate=4.0), Phase(20, 4, 8), Phase(20, 4, 8, learning_rate=2.0)
# the learning rate by step: a tenth of the way up, constant, half of the way down, ...
RATES = [
    ({"schedule": "cosine", "hold": 20}, {1: 0.8, 10: 8.0, 30: 8.0, 65: 8.0 * (0.25 + 0.75 / 2), 100: 2.0}),
    ({"schedule": "linear", "hold": 20}, {65: 8.0 * 0.625, 31: 8.0 * (1 - 0.75 / 70), 100: 2.0}),
    ({"schedule": "inverse-square-root", "hold": 20}, {30: 8.0, 31: 8.0 * (30 / 31) ** 0.5, 100: 8.0 * 0.3**0.5}),
    ({"schedule": "constant", "hold": 20}, {5: 4.0, 100: 8.0}),
    ({"schedule": "linear", "warmup": 0}, {1: 8.0 * (1 - 0.75 / 100)}),  # the decay begins with the first step
    ({"schedule": "inverse-square-root", "warmup": 0}, {1: 8.0}),
    # Vaswani 2017, section 5.3, with d_model 64 and 10 steps of warm-up
    (ARTICLE, {step: 64**-0.5 * min(step**-0.5, step * 10**-1.5) for step in range(1, 101)}),
    # a phase with its own learning rate restarts the schedule; the next phase continues it
    ({"schedule": "cosine", "phases": RESTARTS}, {10: 8.0, 55: 8.0 * (0.25 + 0.75 / 2), 100: 2.0, 160: 1.0}),
    ({"schedule": "linear", "phases": RESTARTS}, {101: 4.0 * (1 - 0.75 / 60), 161: 2.0 * (1 - 0.75 / 20), 180: 0.5}),
    ({"schedule": "inverse-square-root", "phases": RESTARTS}, {step: 4.0 * (100 / step) ** 0.5 for step in (101, 160)}),
    ({"schedule": "constant", "phases": RESTARTS}, {100: 8.0, 101: 4.0, 161: 2.0}),
]


def test_rates_are_those_of_the_formula():
    for changes, expected in RATES:
        ours = a_plan(**changes)
        assert {done: ours.rate(done - 1) for done in expected} == pytest.approx(expected, rel=1e-12), changes


def test_where_torch_compile_fails_it_is_said_what_to_do(monkeypatch, tmp_path):
    """A killed compiler leaves half-written libraries in its cache; here it fails in the same way."""
    parts = {"__module__": "torch._inductor.exc", "inner_exception": ImportError("main.so: file too short")}
    failing = mock.Mock(side_effect=type("InductorError", (RuntimeError,), parts))  # torch 2.5 has a different one
    monkeypatch.setattr(torch, "compile", lambda *_, **__: failing)
    with pytest.raises(InputError, match=r"torch.compile failed \(.*file too short\): .* compile = false$"):
        train(model(DECODER), sources(), replace(plan(), compile=True), tmp_path / "run", save=save)


def test_what_the_caller_set_changes_no_training(tmp_path):
    plain = weights(trained(tmp_path / "plain", 4))
    for outer in (torch.autocast("cpu", torch.bfloat16), torch.no_grad(), torch.inference_mode()):
        inside = model()
        with outer:
            trained(tmp_path / type(outer).__name__, 4, built=inside)
        torch.testing.assert_close(weights(inside), plain, rtol=0, atol=0)


REFUSED = [
    (lambda: a_plan(learning_rate=math.nan), "learning_rate must be at least 0 and less than inf, got nan"),
    (lambda: a_plan(dropout=1.0), "dropout must be at least 0 and less than 1"),
    (lambda: a_plan(final=1.5), "final is a share of the peak"),
    (lambda: a_plan(betas=(0.9, 1.0)), "betas must be"),
    (lambda: a_plan(warmup=10, hold=90), "ends before its warm-up"),
    (lambda: a_plan(accumulate=3), r"accumulate must divide the rows of every phase \(4\)"),
    (lambda: a_plan(snapshot_at=(5, 101)), "got 101"),
    (lambda: a_plan(phases=(Phase(100, 4, 8, learning_rate=1.0),)), "begins with the plan's learning_rate"),
    (lambda: a_plan(phases=(Phase(10, 4, 8), Phase(90, 4, 8, learning_rate=1.0))), "leave nothing of 10 steps"),
    (lambda: a_plan(schedule="cosin"), "no schedule 'cosin': expected cosine or linear or"),
    (lambda: Phase(0, 4, 8), "as steps, 1 or more"),
    (lambda: Phase(1, 4, 1), "as row, 2 or more"),
    (lambda: Phase(1, 4, 8, {"a": 0.0}), "not all 0"),
    (lambda: Processes("ddp", 0, 3).check(a_plan()), "4 rows a step: expected a multiple of 3"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED)
@pytest.mark.usefixtures("unchecked")
def test_a_plan_that_cannot_be_is_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


def by_hand(model: Transformer, examples, smoothing: float) -> float:
    """The loss, from exponentials and sums alone."""
    logits, is_target = model(examples.tokens, target=examples.decoded).detach().double(), examples.targets != IGNORED
    logs = logits - logits.exp().sum(-1, keepdim=True).log()
    targets = torch.eye(logits.shape[-1])[examples.targets[is_target]] * (1 - smoothing) + smoothing / logits.shape[-1]
    return -float((targets * logs[is_target]).sum())


WINDOWS = Windows(text(), [0])
PAIRS = Pairs([([5, 6, 7], [7, 6, 5, 1]), ([8, 9], [9, 8, 1]), ([3, 4, 5, 6], [2])], start=0)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(
    ("config", "source"), [(DECODER, WINDOWS), (ENCODER, Masked(WINDOWS, tokenizer())), (BOTH, PAIRS)]
)
def test_the_loss_is_the_plain_cross_entropy(config, source, smoothing):
    built = model(config)
    with torch.no_grad():  # far from the uniform distribution, where smoothing has no effect
        for weight in built.parameters():
            weight.mul_(9)
    examples = source.examples(5, 9, torch.Generator().manual_seed(1))
    for learning, smoothed in ((True, smoothing), (False, 0.0)):
        loss = summed_loss(built, a_plan(label_smoothing=smoothing), learning=learning)(examples)
        assert loss.item() == pytest.approx(by_hand(built, examples, smoothed), rel=1e-5)


def test_dropout_is_of_learning_alone_and_drawn_anew():
    built, examples = model(), sources()["text"].examples(4, 9, torch.Generator().manual_seed(1))
    learnt, fixed = (summed_loss(built, a_plan(dropout=0.5), learning=learning) for learning in (True, False))
    assert learnt(examples).item() != learnt(examples).item()
    assert fixed(examples).item() == fixed(examples).item() == summed_loss(built, a_plan(), learning=True)(examples)


def trained(out, steps=30, *, built=None, **changes) -> Transformer:
    built = built or model()
    train(built, sources(), plan(steps, **changes), out, save=save)
    return built


def test_micro_batches_take_the_step_of_the_whole_batch(tmp_path):
    """Rows of repeats have unequal numbers of targets, so a mean of means would differ."""
    whole, parts = trained(tmp_path / "whole", 4), trained(tmp_path / "parts", 4, accumulate=4)
    torch.testing.assert_close(weights(parts), weights(whole), atol=2e-5, rtol=0)


def test_what_is_left_can_be_loaded_and_the_curve_read(tmp_path):
    progress, built, texts = [], model(), {"text": Windows(text(90), [0]).every(9)}
    measured = {"model/size": 16.0, "model/none": math.nan}
    more = {"held_out": texts, "measures": lambda _: measured, "tell": progress.append}
    train(built, sources(), plan(12, evaluate_every=4, sample="w1 w2"), tmp_path, save=save, **more)
    torch.testing.assert_close(weights(load(tmp_path)), weights(built), atol=0, rtol=0)
    assert weights(load(tmp_path / "steps" / "000004")).keys() == weights(built).keys()
    lines = state.read_metrics(tmp_path)
    assert [line["step"] for line in lines] == [4, 8, 12] == [each.step for each in progress]
    assert lines[-1]["sample"].startswith("w1 w2")
    expected = sum(by_hand(built, batch, 0.0) for batch in texts["text"]) / sum(b.n_targets for b in texts["text"])
    assert lines[-1]["held_out/text"] == pytest.approx(expected, rel=1e-5)
    assert lines[-1] == lines[-1] | {"model/size": 16, "model/none": None, "loss": progress[-1].loss}
    assert not built.training


def test_a_report_is_of_the_steps_since_the_last(tmp_path):
    losses = {}
    for every in (1, 4):
        ours = Plan((Phase(8, 4, 9),), warmup=1, evaluate_every=every)
        train(model(), {"text": WINDOWS}, ours, tmp_path / str(every), save=save)
        losses[every] = [line["loss"] for line in state.read_metrics(tmp_path / str(every))]
    assert losses[4] == pytest.approx([sum(losses[1][:4]) / 4, sum(losses[1][4:]) / 4])


def test_same_seed_same_weights_another_seed_others_and_the_callers_random_state_stays(tmp_path):
    models, before = [model() for _ in range(3)], torch.get_rng_state()
    for number, (built, seed) in enumerate(zip(models, (0, 0, 1), strict=True)):
        trained(tmp_path / str(number), 6, built=built, seed=seed, dropout=0.1)
    assert torch.equal(torch.get_rng_state(), before)
    first, again, different = map(weights, models)
    torch.testing.assert_close(first, again, atol=0, rtol=0)
    assert any(not torch.equal(first[name], weight) for name, weight in different.items())

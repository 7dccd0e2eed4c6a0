"""Nothing is lost: a run that was killed, or met a full disk, resumes to the weights of one that never stopped."""

import math
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from learners import DECODER, ended, leftovers, model, plan, process, sources, weights, weights_in
from refusals import refusal
from safetensors import safe_open
from safetensors.torch import save_file

from interp import InputError
from interp.training import Plan, state, train
from models import load, save

MOMENT = "moments/stacks.decoder.embed.token.weight/exp_avg"
SHORT = plan(4, warmup=1, snapshot_at=())


def twelve(**changes) -> Plan:
    """Twelve steps, measured every fourth and saved every second."""
    return plan(12, **{"evaluate_every": 4, "save_every": 2, "snapshot_at": (), **changes})


def go(out: Path | str, ours: Plan, *, resume: bool = False, **more) -> dict[str, torch.Tensor]:
    built = model(seed=1 if resume else 0)  # a resumed run ignores its initial weights
    train(built, sources(), ours, out, resume=resume, **{"save": save, **more})
    return weights(built)


def step_in(out: Path) -> int:
    return state.read(out / state.FILE).facts["step"]


assert_equal = partial(torch.testing.assert_close, atol=0, rtol=0)


def goes_on(parts: Path, ours: Plan, **more) -> None:
    """Assert that the run stopped in `parts` ends like one that never stopped, and leaves nothing half-written."""
    assert_equal(go(parts, ours, resume=True, **more), go(parts.with_name("whole"), ours))
    assert not leftovers(parts)


@pytest.mark.parametrize(
    "changes", [{"dropout": 0.2, "accumulate": 2}, {"precision": "bfloat16", "save_every": 5}], ids=str
)
def test_a_run_that_is_resumed_ends_with_the_weights_of_one_that_never_stopped(tmp_path, changes):
    def stop(progress):
        if progress.step == 8:
            raise EOFError

    ours = twelve(**changes, snapshot_at=(4,))
    with pytest.raises(EOFError):
        go(tmp_path / "parts", ours, tell=stop)
    goes_on(tmp_path / "parts", ours)
    whole, parts = (state.read_metrics(tmp_path / name) for name in ("whole", "parts"))
    assert [line | {"tokens_per_second": 0} for line in whole] == [line | {"tokens_per_second": 0} for line in parts]


@contextmanager
def handling(number: int, handler) -> Iterator[None]:
    """Install a signal handler, even if the test runner's processes ignore the signal."""
    before = signal.signal(number, handler)
    try:
        yield
        assert signal.getsignal(number) is handler
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interruption_keeps_the_step_that_it_ends_and_loses_nothing(tmp_path, number):
    ours, parts = twelve(save_every=0), tmp_path / "parts"
    with handling(number, lambda *_: pytest.fail("the program got the signal")), pytest.raises(KeyboardInterrupt):
        go(parts, ours, tell=lambda progress: signal.raise_signal(number))
    step = step_in(parts)
    assert 0 < step < 12
    assert_equal(weights(load(parts / "steps" / f"{step:06d}")), weights_in(parts))
    goes_on(parts, ours)


def test_a_second_interruption_ends_a_run_at_once_and_ignored_ones_none(tmp_path):
    def interrupt(times: int) -> None:  # in this thread, because two pending signals count as one
        go(tmp_path, SHORT, tell=lambda _: [signal.raise_signal(signal.SIGINT) for _ in range(times)])

    with handling(signal.SIGINT, signal.SIG_IGN):
        interrupt(1)
    assert step_in(tmp_path) == 4
    (tmp_path / state.FILE).unlink()
    (tmp_path / "config.json").unlink()
    with handling(signal.SIGINT, signal.default_int_handler), pytest.raises(KeyboardInterrupt):
        interrupt(2)
    assert not (tmp_path / state.FILE).exists()


def test_a_kill_while_the_third_state_is_written_leaves_the_one_before(tmp_path, monkeypatch):
    ours, parts, save_file = twelve(), tmp_path / "parts", state.save_file

    def kill_at_third(tensors: dict, path: Path, facts: dict) -> None:
        if '"step": 6' in facts["facts"]:  # safetensors writes a file beside its target
            path.with_name(".tmpQx3f9Z").write_bytes(b"half")
            os.kill(os.getpid(), signal.SIGKILL)
        save_file(tensors, path, facts)

    monkeypatch.setattr(state, "save_file", kill_at_third)
    assert ended(process(lambda: go(parts, ours))) == -signal.SIGKILL
    monkeypatch.undo()
    assert step_in(parts) == 4
    assert leftovers(parts)
    goes_on(parts, ours)


@pytest.fixture
def limit() -> Iterator:
    """The system refuses to write more than some bytes into one file, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda n_bytes: resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_state_that_does_not_fit_leaves_the_one_before(tmp_path, limit):
    ours = twelve()
    go(tmp_path / "first", ours)
    size = (tmp_path / "first" / state.FILE).stat().st_size
    with pytest.raises(InputError, match=r"cannot write .*state\.safetensors: .*the last good state is .*after step 2"):
        go(tmp_path / "parts", ours, tell=lambda progress: limit(size - 100) if progress.step == 4 else None)
    limit(resource.RLIM_INFINITY)

    def full(model, directory):
        (directory / "config.json").write_text("{")
        raise OSError(28, "No space left on device")

    with pytest.raises(InputError, match=r"cannot write .*000005: No space left on device; .*after step 4"):
        go(tmp_path / "other", replace(ours, snapshot_at=(5,)), save=full)
    assert [*(tmp_path / "other" / "steps").iterdir()] == leftovers(tmp_path / "parts") == []
    goes_on(tmp_path / "parts", ours)


def test_metrics_that_do_not_fit_stay_whole(tmp_path, limit):
    ours, place = twelve(), tmp_path / "parts" / state.METRICS

    def fill(model):
        if size := place.stat().st_size:  # the second line fits partly
            limit(size + 20)
        return {}

    with pytest.raises(InputError, match=r"cannot write .*metrics\.jsonl: .*; the last good state is .*after step 6"):
        go(tmp_path / "parts", ours, measures=fill)
    limit(resource.RLIM_INFINITY)
    assert place.read_text().endswith("}\n")
    assert [line["step"] for line in state.read_metrics(tmp_path / "parts")] == [4]
    goes_on(tmp_path / "parts", ours)


def test_a_loss_that_is_not_finite_stops_at_the_last_good_state(tmp_path):
    def break_it(model):
        with torch.no_grad():
            model.last.embed.token.weight[3:].fill_(math.nan)
        return {}

    ours = twelve(evaluate_every=5)
    with pytest.raises(InputError, match=r"step 6 is nan: lower .* the last good state is .*, after step 4$"):
        go(tmp_path / "parts", ours, measures=break_it)
    goes_on(tmp_path / "parts", ours)
    with pytest.raises(InputError, match="no state was saved yet"):
        go(tmp_path / "none", twelve(learning_rate=1e30, warmup=0, save_every=0, clip=0.0))


def test_another_plan_or_other_data_is_not_gone_on_with(tmp_path):
    go(tmp_path, SHORT, made_of={"data": {"text": "novels"}})
    for changes, facts, message in (
        ({"dropout": 0.5}, {"text": "novels"}, r"another plan \(dropout was 0.0, is 0.5"),
        ({}, {"text": "stories"}, r"another data \(text was novels, is stories\)"),
        ({}, None, "another data"),
    ):
        with pytest.raises(InputError, match=message):
            go(tmp_path, replace(SHORT, **changes), made_of=facts and {"data": facts}, resume=True)


def test_a_directory_in_use_is_left_alone_and_another_architecture_refused(tmp_path):
    assert "nothing to resume" in refusal(go, tmp_path, SHORT, resume=True)
    assert_equal(go(str(tmp_path), SHORT), weights_in(tmp_path))  # a directory may be a string
    before = (tmp_path / "model.safetensors").read_bytes()
    assert_equal(go(tmp_path, SHORT, resume=True), weights_in(tmp_path))  # a finished run stays unchanged
    assert (tmp_path / "model.safetensors").read_bytes() == before
    for n_layers in (3, 1):
        variant = model(replace(DECODER, decoder=replace(DECODER.decoder, n_layers=n_layers)))
        with pytest.raises(InputError, match=r"the state belongs to another architecture: .*absent"):
            train(variant, sources(), SHORT, tmp_path, save=save, resume=True)
    for name in (state.FILE, "config.json"):  # a run's file; any model's file
        assert "holds a run or a model already" in refusal(go, tmp_path, SHORT)
        (tmp_path / name).unlink()


def test_a_damaged_state_is_refused_by_name_with_what_is_good(tmp_path):
    place = tmp_path / state.FILE
    go(tmp_path, SHORT)
    whole = place.read_bytes()
    with safe_open(place, framework="pt") as file:
        record, tensors = file.metadata(), {x: file.get_tensor(x).clone() for x in file.keys()}  # noqa: SIM118
    another_step = record["facts"].replace('"step": 4', '"step": 1000000000')
    without = {name: value for name, value in tensors.items() if name != MOMENT}
    for damage, message in (
        (lambda: save_file(without, place, record), f"{MOMENT} has changed since"),
        (lambda: save_file({**tensors, MOMENT: tensors[MOMENT].half()}, place, record), f"{MOMENT} has changed since"),
        (lambda: save_file({**tensors, MOMENT: tensors[MOMENT] + 1}, place, record), f"{MOMENT} has changed since"),
        (lambda: save_file(tensors, place, {**record, "facts": another_step}), "its record has changed since"),
        (lambda: place.write_bytes(whole[:-100]), ""),
    ):
        damage()
        with pytest.raises(InputError, match=rf"is damaged \({message}.*\): go on from a model in steps/"):
            go(tmp_path, SHORT, resume=True)

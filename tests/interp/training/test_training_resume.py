"""Nothing is lost: a run that was killed, or met a full disk, goes on to the weights of one that never stopped."""

import math
import os
import random
import resource
import signal
import time
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from learners import DECODER, ended, leftovers, model, plan, process, sources, weights
from safetensors import safe_open
from safetensors.torch import save_file

from interp import InputError
from interp.training import record, state, train
from interp.training import whole_files as files
from models import load, save

MOMENT = "moments/stacks.decoder.embed.token.weight/exp_avg"


def go(out, ours, *, resume=False, **more):
    made = model(seed=1 if resume else 0)  # where it goes on, what it began with does not matter
    train(made, sources(), ours, out, save=save, resume=resume, **more)
    return weights(made)


def same(found, expected):
    torch.testing.assert_close(found, expected, atol=0, rtol=0)


def killed_until_done(out, ours, kills: int) -> None:
    """Kill a run at random moments, resume it, and kill it again; then let it end."""
    draw, done = random.Random(0), 0
    for _ in range(20 * kills):
        child = process(lambda: go(out, ours, resume=(out / state.FILE).exists()))
        if done < kills:
            time.sleep(draw.uniform(0.0, 0.3))
            os.kill(child, signal.SIGKILL)
        status = ended(child)
        assert status in {0, -signal.SIGKILL}
        done += status == -signal.SIGKILL
        if status == 0:
            break
    assert done == kills, "the run was too short to be killed so often"
    assert not leftovers(out)


@pytest.mark.parametrize(
    "changes",
    [{}, {"dropout": 0.2, "accumulate": 2}, {"precision": "bfloat16", "save_every": 7}],
    ids=["plain", "dropout, micro-batches", "bfloat16"],
)
def test_a_run_that_is_resumed_ends_with_the_weights_of_one_that_never_stopped(tmp_path, changes):
    class Stop(Exception):
        pass

    def stop(progress):
        if progress.step == 20:
            raise Stop

    ours = plan(30, **changes)
    expected = go(tmp_path / "whole", ours)
    with pytest.raises(Stop):
        go(tmp_path / "parts", ours, tell=stop)
    same(go(tmp_path / "parts", ours, resume=True), expected)
    lines = [record.read(tmp_path / name) for name in ("whole", "parts")]
    for line in [*lines[0], *lines[1]]:
        line.pop("tokens_per_second")
    assert lines[0] == lines[1]


@pytest.fixture
def interruptible():
    """Ctrl-C interrupts, also where a test runner has its processes ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interruption_keeps_the_step_that_it_ends_and_loses_nothing(tmp_path):
    ours = plan(30, save_every=0, snapshot_at=())
    expected = go(tmp_path / "whole", ours)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "parts", ours, tell=lambda progress: os.kill(os.getpid(), signal.SIGINT))
    assert signal.getsignal(signal.SIGINT) is before
    step = state.read(tmp_path / "parts" / state.FILE).facts["step"]
    assert 0 < step < 30
    same(weights(load(tmp_path / "parts" / "steps" / f"{step:06d}")), weights_in(tmp_path / "parts"))
    same(go(tmp_path / "parts", ours, resume=True), expected)


@pytest.mark.usefixtures("interruptible")
def test_a_second_interruption_ends_a_run_at_once(tmp_path):
    def twice(progress):
        signal.raise_signal(signal.SIGINT)  # in this thread: two that wait at once are one
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        go(tmp_path, plan(30, save_every=0, snapshot_at=()), tell=twice)
    assert not (tmp_path / state.FILE).exists()


def test_a_run_that_is_started_to_ignore_interruptions_ignores_them(tmp_path):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        go(tmp_path, plan(5, save_every=0, snapshot_at=()), tell=lambda _: signal.raise_signal(signal.SIGINT))
    finally:
        signal.signal(signal.SIGINT, before)
    assert state.read(tmp_path / state.FILE).facts["step"] == 5


def test_directories_are_named_by_texts(tmp_path):
    made = model()
    train(made, sources(), plan(2, warmup=1, snapshot_at=()), str(tmp_path / "run"), save=save)
    save(made, str(tmp_path / "again"))
    same(weights(load(str(tmp_path / "again"))), weights(load(tmp_path / "run")))


def test_a_run_killed_at_random_moments_loses_nothing(tmp_path):
    ours = plan(60, save_every=1, snapshot_at=(7, 20, 41))
    expected = go(tmp_path / "whole", ours)
    killed_until_done(tmp_path / "parts", ours, 3)
    same(weights_in(tmp_path / "parts"), expected)


@pytest.mark.slow
def test_ten_kills_lose_nothing(tmp_path):
    ours = plan(150, save_every=1, snapshot_at=tuple(range(10, 150, 30)), dropout=0.1, accumulate=2)
    expected = go(tmp_path / "whole", ours)
    killed_until_done(tmp_path / "parts", ours, 10)
    same(weights_in(tmp_path / "parts"), expected)


def weights_in(out):
    found = state.read(out / state.FILE).tensors
    return {name.removeprefix("weights/"): value for name, value in found.items() if name.startswith("weights/")}


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_kill_while_the_state_is_written_leaves_the_one_before(tmp_path, monkeypatch, call):
    ours = plan(30, snapshot_at=())
    expected = go(tmp_path / "whole", ours)
    monkeypatch.setattr(state, "replacing", dying(call, 3))
    assert ended(process(lambda: go(tmp_path / "parts", ours))) == -signal.SIGKILL
    monkeypatch.undo()
    assert state.read(tmp_path / "parts" / state.FILE).facts["step"] == 10
    assert leftovers(tmp_path / "parts")
    same(go(tmp_path / "parts", ours, resume=True), expected)
    assert not leftovers(tmp_path / "parts")


def test_a_kill_while_tensors_are_written_leaves_nothing_for_good(tmp_path, monkeypatch):
    """safetensors writes to a file of a name of its own, beside the one that it is to become."""
    ours = plan(30, snapshot_at=())
    times = []

    def to_death(tensors, path, facts):
        times.append(path)
        if len(times) == 3:
            path.with_name(".tmpQx3f9Z").write_bytes(b"half")
            os.kill(os.getpid(), signal.SIGKILL)
        save_file(tensors, path, facts)

    monkeypatch.setattr(state, "save_file", to_death)
    assert ended(process(lambda: go(tmp_path / "parts", ours))) == -signal.SIGKILL
    monkeypatch.undo()
    assert leftovers(tmp_path / "parts")
    go(tmp_path / "parts", ours, resume=True)
    assert not leftovers(tmp_path / "parts")


def dying(call, nth):
    """`files.replacing`, which the nth time is killed as it calls that function of the system."""
    replacing, times = files.replacing, 0

    @contextmanager
    def to_death(path):
        nonlocal times
        times += 1
        with replacing(path) as part:
            yield part
            if times == nth:
                setattr(os, call, lambda *_: os.kill(os.getpid(), signal.SIGKILL))

    return to_death


@contextmanager
def no_file_larger_than(n_bytes):
    """The system refuses to write more into one file, as it does on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_state_that_does_not_fit_leaves_the_one_before(tmp_path):
    ours = plan(30, snapshot_at=())
    expected = go(tmp_path / "whole", ours)
    limit = (tmp_path / "whole" / state.FILE).stat().st_size - 100

    def fill(progress):
        if progress.step == 10:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    with (
        no_file_larger_than(resource.RLIM_INFINITY),
        pytest.raises(
            InputError, match=r"cannot write .*state\.safetensors: .*; the last good state is .*after step 5"
        ),
    ):
        go(tmp_path / "parts", ours, tell=fill)
    assert not leftovers(tmp_path / "parts")
    same(go(tmp_path / "parts", ours, resume=True), expected)


def test_metrics_that_do_not_fit_stay_whole(tmp_path):
    ours = plan(30, snapshot_at=())
    expected = go(tmp_path / "whole", ours)
    place = tmp_path / "parts" / record.METRICS

    def fill(seen):
        if size := place.stat().st_size:  # the second line fits in part
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        return {}

    with (
        no_file_larger_than(resource.RLIM_INFINITY),
        pytest.raises(InputError, match=r"cannot write .*metrics\.jsonl: .*; the last good state is .*after step 15"),
    ):
        go(tmp_path / "parts", ours, measures=fill)
    assert place.read_text().endswith("}\n")
    assert [line["step"] for line in record.read(tmp_path / "parts")] == [10]
    same(go(tmp_path / "parts", ours, resume=True), expected)


def test_a_snapshot_that_does_not_fit_leaves_nothing_of_itself(tmp_path):
    def full(made, directory):
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "config.json").write_text("{")
        raise OSError(28, "No space left on device")

    ours = plan(30, snapshot_at=(12,))
    expected = go(tmp_path / "whole", ours)
    with pytest.raises(InputError, match=r"cannot write .*000012: No space left on device; .*after step 10"):
        train(model(), sources(), ours, tmp_path / "parts", save=full)
    assert [*(tmp_path / "parts" / "steps").iterdir()] == []
    same(go(tmp_path / "parts", ours, resume=True), expected)


def test_a_loss_that_is_not_finite_stops_at_the_last_good_state(tmp_path):
    def break_it(seen):
        with torch.no_grad():
            seen.last.embed.token.weight[3:].fill_(math.nan)
        return {}

    ours = plan(30, evaluate_every=16, snapshot_at=())
    with pytest.raises(InputError, match=r"the loss of step 17 is nan; the last good state is .*, after step 15\."):
        go(tmp_path / "parts", ours, measures=break_it)
    same(go(tmp_path / "parts", ours, resume=True), go(tmp_path / "whole", ours))


def test_before_the_first_state_there_is_none_to_name(tmp_path):
    with pytest.raises(InputError, match="no state was saved yet"):
        go(tmp_path, plan(30, learning_rate=1e30, warmup=0, save_every=0, clip=0.0))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1}, r"another plan \(seed was 0, is 1\)"),
        ({"dropout": 0.5}, r"another plan \(dropout was 0.0, is 0.5"),
    ],
)
def test_another_plan_is_not_gone_on_with(tmp_path, changes, message):
    go(tmp_path, plan(4, warmup=1, snapshot_at=()))
    with pytest.raises(InputError, match=message):
        go(tmp_path, plan(4, warmup=1, snapshot_at=(), **changes), resume=True)


def test_other_data_or_another_architecture_is_not_gone_on_with(tmp_path):
    ours = plan(4, warmup=1, snapshot_at=())
    go(tmp_path, ours, made_of={"data": {"text": "novels"}})
    with pytest.raises(InputError, match=r"another data \(text was novels, is stories\)"):
        go(tmp_path, ours, made_of={"data": {"text": "stories"}}, resume=True)
    with pytest.raises(InputError, match="another data"):
        go(tmp_path, ours, resume=True)
    deeper = model(replace(DECODER, decoder=replace(DECODER.decoder, n_layers=3)))
    shallower = model(replace(DECODER, decoder=replace(DECODER.decoder, n_layers=1)))
    for other in (deeper, shallower):
        with pytest.raises(InputError, match=r"the state is of another architecture: .*absent"):
            train(other, sources(), ours, tmp_path, save=save, made_of={"data": {"text": "novels"}}, resume=True)


def test_a_directory_in_use_is_left_alone(tmp_path):
    ours = plan(4, warmup=1, snapshot_at=())
    go(tmp_path, ours)
    for name in ("state.safetensors", "config.json"):  # of a run; of any model
        with pytest.raises(InputError, match="holds a run or a model already"):
            go(tmp_path, ours)
        (tmp_path / name).unlink()


def test_there_must_be_a_whole_state_to_go_on_from(tmp_path):
    ours = plan(4, warmup=1, snapshot_at=())
    with pytest.raises(InputError, match="nothing to resume"):
        go(tmp_path, ours, resume=True)
    go(tmp_path, ours)
    place = tmp_path / state.FILE
    place.write_bytes(place.read_bytes()[:-100])
    with pytest.raises(InputError, match="is damaged"):
        go(tmp_path, ours, resume=True)


def test_going_on_with_a_run_that_has_ended_changes_nothing(tmp_path):
    ours = plan(4, warmup=1, snapshot_at=())
    expected = go(tmp_path, ours)
    before = (tmp_path / "model.safetensors").read_bytes()
    same(go(tmp_path, ours, resume=True), expected)
    assert (tmp_path / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda tensors: tensors.pop(MOMENT), f"{MOMENT} is missing"),
        (lambda tensors: tensors.update({MOMENT: tensors[MOMENT][:1]}), f"{MOMENT} is not as it was written"),
        (lambda tensors: tensors.update({MOMENT: tensors[MOMENT].half()}), f"{MOMENT} is not as it was written"),
        (None, "its record is not as it was written"),
    ],
    ids=["missing", "one row", "another type", "another step"],
)
def test_a_state_that_is_not_as_it_was_written_is_refused_by_name_with_what_is_good(tmp_path, damage, message):
    ours = plan(4, warmup=1, snapshot_at=(2,))
    go(tmp_path, ours)
    place = tmp_path / state.FILE
    with safe_open(place, framework="pt") as file:
        about, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if damage is None:
        about["facts"] = about["facts"].replace('"step": 4', '"step": 1000000000')
    else:
        damage(tensors)
    save_file(tensors, place, about)
    with pytest.raises(InputError, match=rf"is damaged \({message}\).*an earlier step is .*steps/000002: go on"):
        go(tmp_path, ours, resume=True)


def test_a_step_beyond_the_plan_and_moments_of_another_shape_are_refused(tmp_path):
    ours = plan(4, warmup=1, snapshot_at=())
    go(tmp_path, ours)
    found = state.read(tmp_path / state.FILE)
    state.write(tmp_path / state.FILE, state.State(found.tensors, {**found.facts, "step": 10**9}))
    with pytest.raises(InputError, match="after step 1,000,000,000 of a plan of 4 steps"):
        go(tmp_path, ours, resume=True)
    state.write(tmp_path / state.FILE, state.State({**found.tensors, MOMENT: found.tensors[MOMENT][:1]}, found.facts))
    with pytest.raises(InputError, match=rf"{MOMENT} is \(1, "):
        go(tmp_path, ours, resume=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_keep_the_state_as_an_interruption_does(tmp_path, number):
    def unheeded(*_: object) -> None:
        raise AssertionError("the training left the signal to the program")

    before = signal.signal(number, unheeded)  # tests may have been started to ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            go(tmp_path, plan(30, save_every=0, snapshot_at=()), tell=lambda _: signal.raise_signal(number))
        assert signal.getsignal(number) is unheeded
    finally:
        signal.signal(number, before)
    assert 0 < state.read(tmp_path / state.FILE).facts["step"] < 30

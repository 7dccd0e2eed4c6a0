"""Several processes take the steps of one: same batches, the gradient of the mean over all targets, one state."""

import os
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from learners import BOTH, DECODER, STACK, ended, leftovers, model, plan, process, sources, weights, weights_in

from interp import InputError
from interp.config import Buckets
from interp.training import Pairs, Phase, Plan, Windows, state, train
from models import load, save

PAIRS = {"pairs": Pairs([([5, 6, 7], [7, 6, 5, 1]), ([8, 9], [9, 8, 1]), ([3, 4, 5, 6], [2])], start=0)}
BIASED = replace(DECODER, decoder=replace(STACK, positions=Buckets(5, 7)))  # blocks share weights


def ours(steps=12, **changes):
    # far above rounding of gradients, which Adam scales up if gradients are tiny
    return plan(steps, **{"eps": 1e-3, "evaluate_every": 6, "snapshot_at": (), **changes})


def together(out, how, the_plan, *, config=DECODER, rows=None, resume=False, n_processes=2, **more):
    """Train in several processes; return the weights of the state they leave."""
    meeting = out.parent / f"{out.name}-{how}-{resume}-meeting"

    def work(rank):
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=n_processes)
        learning = model(config, seed=rank)  # all get the first one's weights
        train(learning, rows or sources(), the_plan, out, save=save, parallel=how, resume=resume, **more)
        dist.barrier()
        assert not learning.training
        torch.testing.assert_close(weights(learning), weights_in(out), atol=0, rtol=0)
        dist.destroy_process_group()

    children = [process(lambda rank=rank: work(rank)) for rank in range(n_processes)]
    assert [ended(child) for child in children] == [0] * n_processes
    assert not leftovers(out)
    return weights_in(out)


def alone(out, the_plan, *, config=DECODER, rows=None, **more):
    learning = model(config)
    train(learning, rows or sources(), the_plan, out, save=save, **more)
    return weights(learning)


def close(result, expected):
    torch.testing.assert_close(result, expected, atol=1e-6, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("how", [pytest.param("ddp", marks=pytest.mark.smoke), "fsdp"])
def test_two_processes_take_the_steps_of_one(tmp_path, how):
    texts, clipped = {"text": Windows(torch.arange(2, 31).repeat(3), [0]).every(9)}, ours(accumulate=2, clip=0.05)
    expected = alone(tmp_path / "one", clipped, held_out=texts, measures=size)
    close(together(tmp_path / "two", how, clipped, held_out=texts, measures=size), expected)
    close(weights(load(tmp_path / "two")), weights_in(tmp_path / "one"))
    single, two = state.read_metrics(tmp_path / "one"), state.read_metrics(tmp_path / "two")
    assert [line.keys() for line in single] == [line.keys() for line in two]
    for name in ("loss", "held_out/text", "size"):
        assert [line[name] for line in two] == pytest.approx([line[name] for line in single], abs=1e-6)
    assert any(not torch.allclose(expected[n], w, atol=1e-5) for n, w in alone(tmp_path / "x", ours(clip=0.0)).items())


def size(model):
    return {"size": sum(float(weight.detach().square().sum()) for weight in model.parameters())}


@pytest.mark.slow
@pytest.mark.parametrize("how", ["ddp", "fsdp"])
@pytest.mark.parametrize(
    ("config", "rows"), [(BOTH, PAIRS), (BIASED, None)], ids=["encoder-decoder", "weights in common"]
)
def test_every_kind_of_model_is_shared_out(tmp_path, how, config, rows):
    the_plan = ours() if rows is None else Plan((Phase(8, 6, 9),), warmup=2, eps=1e-3)
    settings = {"the_plan": the_plan, "rows": rows, "config": config}
    close(together(tmp_path / "two", how, **settings), alone(tmp_path / "one", **settings))


@pytest.mark.slow
def test_a_run_goes_on_with_other_processes(tmp_path):
    """Two with sharded weights, then one, then two with whole copies: each continues the previous state."""
    the_plan, out = ours(15), tmp_path / "parts"
    expected = alone(tmp_path / "whole", the_plan)

    def exit_at(step):
        return lambda progress: os._exit(3) if progress.step == step else None

    with pytest.raises(AssertionError):
        together(out, "fsdp", the_plan, tell=exit_at(6))
    assert state.read(out / state.FILE).facts["step"] == 5
    assert ended(process(lambda: alone(out, the_plan, resume=True, tell=exit_at(12)))) == 3
    assert state.read(out / state.FILE).facts["step"] == 10
    close(together(out, "ddp", the_plan, resume=True), expected)


@pytest.mark.parametrize("started", [True, False])
def test_processes_that_do_not_share_and_shares_without_processes_are_refused(tmp_path, monkeypatch, started):
    monkeypatch.delenv("RANK", raising=False)
    for name, value in {"RANK": "0", "WORLD_SIZE": "2"}.items() if started else ():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match="each of 2 processes would train" if started else "RANK is not set.*torchrun"):
        alone(tmp_path, ours(), parallel=None if started else "ddp")

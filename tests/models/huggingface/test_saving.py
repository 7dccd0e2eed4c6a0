"""A model is saved whole: it replaces an earlier model completely, and nobody else's files are lost."""

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from refusals import refusal
from tiny import LLAMA, randomise
from worded import worded

from interp import InputError, Transformer, TransformerConfig, run
from models import load, save


def decoder(eps: float, seed: int) -> Transformer:
    """A decoder without a tokenizer; all have weights of the same shapes."""
    stack = replace(LLAMA, norm=replace(LLAMA.norm, eps=eps))
    model = Transformer(TransformerConfig(decoder=stack, output="untied"))
    randomise(model, seed)
    return model


def logits(model: Transformer) -> torch.Tensor:
    return run(model, torch.tensor([[3, 5, 7, 2]])).logits


@pytest.mark.parametrize("calls", range(3))
@pytest.mark.parametrize("stop", [KeyboardInterrupt, OSError])
def test_a_save_that_is_stopped_anywhere_leaves_one_of_the_two_models(calls, stop, tmp_path, monkeypatch):
    first, second = decoder(1e-5, 0), decoder(0.5, 1)
    save(first, tmp_path / "model")
    replace_file, times = os.replace, []

    def stopping(*places: object, **more: object) -> None:
        times.append(places)
        if len(times) == calls + 1:
            raise stop
        replace_file(*places, **more)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", stopping)
        try:
            save(second, tmp_path / "model")
        except (KeyboardInterrupt, InputError):
            assert len(times) > calls
    result = logits(load(tmp_path / "model"))
    assert any(torch.equal(result, logits(model)) for model in (first, second))
    assert os.listdir(tmp_path) == ["model"]


def test_nothing_is_left_of_the_earlier_model_and_all_that_is_of_others(tmp_path):
    place = tmp_path / "model"
    save(worded(), place)
    older = ["vocab.json", "merges.txt", "model.safetensors.index.json", "model-00001-of-00002.safetensors"]
    for name in older:
        (place / name).write_text("{}")
    (place / "steps/000100").mkdir(parents=True)
    (place / "steps/000100/model.safetensors").write_text("mine")
    (place / "README.md").write_text("card")
    (place / "steps/latest").symlink_to("000100")
    (place / "data").symlink_to(tmp_path / "nowhere")
    save(decoder(1e-5, 0), place)
    assert load(place).tokenizer is None
    assert {path.name for path in place.iterdir()} == {"config.json", "model.safetensors", "README.md", "steps", "data"}
    assert (place / "README.md").read_text() == "card"
    assert (place / "steps/latest/model.safetensors").read_text() == "mine"
    assert (place / "data").readlink() == tmp_path / "nowhere"


@pytest.mark.parametrize(("umask", "expected"), [(0o077, 0o700), (0o022, 0o755)])
def test_a_new_directory_is_as_private_as_the_umask_says_and_an_earlier_one_as_it_was(umask, expected, tmp_path):
    place, before = tmp_path / "model", os.umask(umask)
    try:
        save(decoder(1e-5, 0), place)
        assert stat.S_IMODE(place.stat().st_mode) == expected
        place.chmod(0o710)
        save(decoder(1e-5, 0), place)
    finally:
        os.umask(before)
    assert stat.S_IMODE(place.stat().st_mode) == 0o710


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "vocab.txt"])
def test_a_file_by_a_models_name_that_is_of_none_is_not_replaced(name, tmp_path):
    (tmp_path / name).write_text('{"editor": "mine"}')
    message = refusal(save, decoder(1e-5, 0), tmp_path)
    assert f"holds {name}, which is not part of a model: choose another directory" in message
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {name: '{"editor": "mine"}'}


def test_the_directory_that_the_program_runs_in_stays_and_a_link_stays_one(tmp_path, monkeypatch):
    (tmp_path / "inside/disk").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "inside")
    assert "the program runs in" in refusal(save, decoder(1e-5, 0), "..")
    Path("link").symlink_to("disk")
    for name in ("model", "link"):
        save(decoder(1e-5, 0), name)
    assert Path("model/config.json").is_file()
    assert Path("link").is_symlink()
    assert Path("disk/config.json").is_file()

"""One hash of the model that runs: whatever changes its numbers changes the hash, what was measured, and its record."""

import json
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from pages import page_of
from tiny import Whole, model
from torch import nn
from worded import word_level

from analyses.execution import lots
from analyses.execution.provenance import fingerprint, hash_of, model_facts
from analyses.page.sections import Page
from analyses.report.scaffold import Run, write
from interp import Model, Tokenizer, Transformer, run, scale, set_to, zero
from interp.edits import SelectiveEdit, patch
from interp.running import edited
from models import load, save, weights_digest

Z = "decoder.1.attn.z"


class Stop(Exception):
    """Raised by a run that fails after measuring."""


@pytest.fixture
def directory(tmp_path) -> Path:
    save(model("llama", dtype=torch.float32), tmp_path / "model")
    return tmp_path / "model"


def of_model(model: Model, number: int) -> int:
    return number


def shards_made(model: Model, out: Path) -> int:
    """How many shards a run makes anew when it resumes after stopped ones."""
    read = []

    def measure(run: Run) -> Page:
        lots.do(partial(of_model, model), [(1,)])
        read.append((lots._SETTING.get() or lots.Setting(lots.Shards())).shards.counts["read"])
        raise Stop

    with pytest.raises(Stop):
        write(out, measure, {"m": model})
    return 1 - read[0]


def configured(directory: Path, **fields: object) -> Model:
    """The same weights under another configuration."""
    raw = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(raw | fields))
    return load(directory)


def changed(directory: Path, alter: Callable[[Transformer], object]) -> Model:
    """The loaded model, changed in memory."""
    loaded = load(directory)
    with torch.no_grad():
        alter(loaded)  # pyright: ignore[reportArgumentType]
    return loaded


def rounded(directory: Path) -> Model:
    if find_spec("torchao") is None:
        pytest.skip("needs torchao, which the extra int8 brings")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings from importing torchao
        return load(directory, quantize="int8")


def patched(loaded: Model, ids: list[int]) -> Model:
    return edited(loaded, {Z: patch(run(loaded, torch.tensor([ids]), capture=Z)[Z], head=2)})


CHANGES: dict[str, Callable[[Path], Model]] = {
    "rope theta": lambda p: configured(p, rope_theta=500.0, rope_parameters=None),
    "eps": lambda p: configured(p, rms_norm_eps=0.1),
    "window": lambda p: configured(p, model_type="mistral", architectures=["MistralForCausalLM"], sliding_window=3),
    "weight": lambda p: changed(p, lambda loaded: loaded.last.blocks[0].attn.W_V[1].zero_()),
    "smallest change": lambda p: changed(p, lambda loaded: loaded.W_E[3, 4].mul_(1 + 1e-6)),
    "setting of a part": lambda p: changed(p, lambda loaded: setattr(loaded.last.norm, "eps", 0.1)),
    "buffer": lambda p: changed(p, lambda loaded: loaded.last.register_buffer("more", torch.ones(2))),
    "tokenizer": lambda p: changed(p, lambda loaded: setattr(loaded, "tokenizer", Tokenizer(word_level("a")))),
    "dtype": lambda p: load(p, dtype=torch.bfloat16),
    "int8": rounded,
    "edit": lambda p: edited(load(p), {Z: zero(head=2)}),
    "edit of another site": lambda p: edited(load(p), {"decoder.0.attn.z": zero(head=2)}),
    "edit by a factor": lambda p: edited(load(p), {Z: scale(0.5, head=2)}),
    "edit of a tensor": lambda p: edited(load(p), {Z: set_to(torch.ones(14), head=2)}),
    "edit of positions": lambda p: edited(load(p), {Z: zero(position=slice(1, 3))}),
    "edit of two edits": lambda p: edited(edited(load(p), {Z: zero(head=2)}), {Z: zero(head=3)}),
    "another run": lambda p: patched(load(p), [*range(13)]),
    "yet another run": lambda p: patched(load(p), [*range(1, 14)]),
}


def test_no_run_goes_on_with_what_was_measured_of_another_model(directory, tmp_path):
    out, digests = tmp_path / "out", {"none": model_facts(load(directory))["fingerprint"]}
    assert [shards_made(load(directory), out) for _ in range(2)] == [1, 0]
    for name, change_of in CHANGES.items():
        shutil.copytree(directory, copy := tmp_path / name)
        try:
            variant = change_of(copy)
        except pytest.skip.Exception:
            continue
        assert [shards_made(variant, out) for _ in range(2)] == [1, 0], name
        digests[name] = model_facts(variant)["fingerprint"]
    assert len({*digests.values()}) == len(digests) >= len(CHANGES)
    assert shards_made(load(directory), out) == 0


def test_the_same_model_has_one_fingerprint_wherever_it_was_read_and_whatever_ran(directory, tmp_path):
    loaded = load(directory)
    expected = fingerprint(loaded)
    run(loaded, torch.tensor([[1, 2, 3]]), capture="*.pattern", edit={Z: zero()})
    save(loaded, tmp_path / "elsewhere")
    code = "import sys; from analyses.execution.provenance import fingerprint; from models import load"
    code += f"; print(fingerprint(load({str(tmp_path / 'elsewhere')!r})))"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {expected, fingerprint(loaded), fingerprint(load(directory)), process.stdout.strip()} == {expected}
    twice = [fingerprint(edited(loaded, {Z: set_to(torch.ones(14), head=2)})) for _ in range(2)]
    assert twice[0] == twice[1]


def test_a_directory_that_was_overwritten_or_removed_lends_its_hash_to_no_model(directory, tmp_path):
    loaded, published = load(directory), weights_digest(directory)
    before = model_facts(loaded)
    assert before["sha256"] == published
    replacement = model("llama", dtype=torch.float32)
    with torch.no_grad():
        replacement.last.blocks[0].attn.W_V.zero_()
    save(replacement, tmp_path / "other")
    shutil.copy(tmp_path / "other" / "model.safetensors", directory)
    assert model_facts(loaded) == before | {"sha256": None}
    assert model_facts(load(directory))["fingerprint"] not in {None, before["fingerprint"]}
    shutil.rmtree(directory)
    assert model_facts(loaded) == before | {"sha256": None}
    write(tmp_path / "out", lambda run: Page("What?", ["short"], []), {"m": loaded})
    assert before["fingerprint"] in page_of(tmp_path / "out").text


def test_the_record_says_what_was_edited_and_rounded(directory):
    twice = edited(edited(load(directory), {Z: zero(head=2)}), {"*.mlp_out": zero()})
    assert model_facts(twice)["edited"] == [Z, "*.mlp_out"]
    assert model_facts(twice)["parameters"] == model_facts(load(directory))["parameters"] > 0
    assert model_facts(rounded(directory))["quantize"] == "int8"
    assert {"edited", "quantize"}.isdisjoint(model_facts(load(directory)))


class Mine(nn.Identity):
    """A user's own module."""


class Words(Tokenizer):
    """A user's own tokenizer."""


def code(*values):
    """A user's own hook or forward, which changes nothing."""
    return values[-1]


@pytest.mark.parametrize(
    ("built", "why"),
    [
        (lambda p: edited(load(p), {Z: lambda z: z * 0}), f"the edit of {Z} is your own function"),
        (lambda p: edited(load(p), {Z: SelectiveEdit(lambda z: z, {})}), "is your own function"),
        (lambda p: edited(edited(load(p), {Z: lambda z: z}), {Z: zero()}), "is your own function"),
        (lambda p: changed(p, lambda loaded: loaded.last.norm.register_forward_hook(code)), "norm runs code"),
        (lambda p: changed(p, lambda loaded: setattr(loaded.last, "norm", Mine())), "stacks.decoder.norm runs Mine"),
        (lambda p: changed(p, lambda loaded: setattr(loaded.last.norm, "forward", code)), "norm runs code"),
        (
            lambda p: changed(p, lambda loaded: setattr(loaded, "tokenizer", Words(word_level("a")))),
            "Words is your own tokenizer",
        ),
        (lambda p: Whole(load(p)), "Whole is your own class"),
    ],
)
def test_what_runs_code_of_the_users_own_has_no_fingerprint_and_keeps_nothing(built, why, directory, tmp_path):
    model = built(directory)
    assert [shards_made(model, tmp_path / "out") for _ in range(2)] == [1, 1]
    write(tmp_path / "out", lambda run: Page("What?", ["short"], []), {"m": model})
    facts = json.loads((tmp_path / "out" / "run.json").read_text())["model"]
    assert facts["fingerprint"] is None
    assert why in facts["no_fingerprint"]
    text = " ".join(page_of(tmp_path / "out").text.split())
    assert f"no fingerprint ({facts['no_fingerprint']}), so a run that is stopped begins again" in text


def test_a_hash_tells_values_and_types_apart():
    values = [None, True, 1, 1.0, "1", [1], ["1"], [[1]], {"1": 1}, slice(1), range(1), torch.ones(1), torch.ones(1, 1)]
    values += [torch.ones(1, dtype=torch.int8), np.float32(1), np.zeros(2), int, ["ab", "c"], ["a", "bc"], [], ""]
    values += [torch.ones(0), torch.ones(0, 2), torch.tensor(1.0), torch.tensor([True]), -0.0, 0.0, torch.float32]
    assert len({hash_of(value) for value in values}) == len(values)
    assert hash_of({"a": 1, "b": 2}) == hash_of({"b": 2, "a": 1})
    assert hash_of(torch.arange(6).reshape(2, 3).T) == hash_of(torch.arange(6).reshape(2, 3).T.contiguous())
    with pytest.raises(TypeError, match="function has no hash"):
        hash_of([lambda: 1])

"""A TransformerLens bridge behind our interface gives our numbers, and says what it cannot do."""

import importlib.util
import json
import logging
import math
import re
import shutil
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from changed_files import change_config, change_tensors
from families import variant
from parity import close, transformers
from refusals import refusal
from torch.testing import assert_close
from worded import word_level

from analyses import position
from analyses.execution.provenance import fingerprint
from interp import (
    AnnotatedText,
    InputError,
    Pairs,
    StackConfig,
    TokenBatch,
    Transformer,
    TransformerConfig,
    generate,
    logit_difference,
    run,
    scale,
    set_to,
    sites,
    sweep,
    zero,
)
from interp.attribution import logit_lens
from interp.config import NoNorm
from interp.model import sites_of
from interp.patching import sweep_by_forward
from interp.patching.claimed_texts import Claim
from interp.patching.knockout import knock_out, knock_out_by_forward
from interp.transformer import with_parts
from models import lens, load, save
from models.initialisation import untrained
from models.lens import unheard

pytest.importorskip("transformer_lens", reason="needs the extra `lens`")

D_VOCAB = 23
MADE = ("gpt2", "llama", "gpt_neox", "olmo2", "bert", "headless", "t5", "bart")
SYMMETRIC = {"decoder_layers": 2, "encoder_attention_heads": 3, "encoder_ffn_dim": 31}  # all that the bridge supports
CHANGES = {"headless": {"model": "BertModel"}, "bart": SYMMETRIC}
DELEGATED = {"bert": "attn", "headless": "attn", "t5": "attn cross_attn", "bart": "attn cross_attn"}


@pytest.fixture(scope="module")
def directories(tmp_path_factory) -> dict[str, Path]:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    folders = {name: tmp_path_factory.mktemp(name) for name in MADE}
    backend = word_level(*(f"w{id}" for id in range(D_VOCAB)))
    for name, directory in folders.items():
        described = variant({"headless": "bert"}.get(name, name), **CHANGES.get(name, {}))
        described.build(torch.float32).save_pretrained(directory)
        backend.save(str(directory / "tokenizer.json"))
    return folders


@pytest.fixture(scope="module")
def pair_of(directories):
    """Each model, loaded once as ours and once as TransformerLens's."""
    opened = lambda name, dtype: [load(f"{by}{directories[name]}", dtype=dtype) for by in ("", "lens:")]  # noqa: E731
    return cache(lambda name, dtype=torch.float32: opened(name, dtype))


def texts(model, side="right", seed=0) -> dict:
    """Three texts of unequal lengths and, for two stacks, targets."""
    generator = torch.Generator().manual_seed(seed)

    def rows(*lengths: int) -> TokenBatch:
        ids = [torch.randint(4, D_VOCAB, (n,), generator=generator).tolist() for n in lengths]
        return TokenBatch.from_rows(ids, side=side)

    return {"tokens": rows(7, 4, 6)} | ({"target": rows(5, 6, 3)} if len(model.config.stacks) > 1 else {})


def real(site: str, value: torch.Tensor, inputs: dict) -> torch.Tensor:
    """The part of a value that padding does not affect."""
    batch = inputs.get("target", inputs["tokens"]) if site.startswith(("decoder", "logits")) else inputs["tokens"]
    if site.endswith((".scores", ".pattern")):
        return value.transpose(1, 2)[batch.mask]
    return value[inputs["tokens"].mask if site.endswith(("cross_attn.k", "cross_attn.v")) else batch.mask]


@pytest.mark.parametrize("side", ["right", pytest.param("left", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", MADE)
def test_every_site_has_our_value_and_is_there_if_the_bridge_computes_it(pair_of, name, side):
    ours, theirs = pair_of(name)
    inputs = texts(ours, side)
    if side not in theirs.padding:
        with pytest.raises(InputError, match="texts are padded on the left: pad on the right"):
            run(theirs, **inputs)
        assert name == "bart"  # learned positions count columns
        return
    shared = [*sites(theirs)]
    first, second = run(ours, capture=shared, **inputs), run(theirs, capture=shared, **inputs)
    for site in shared:
        close(real(site, second[site], inputs), real(site, first[site], inputs), 1e-5)
        assert sites(theirs)[site].axes == sites(ours)[site].axes
    scores = {f"{part}.scores" for part in DELEGATED.get(name, "").split()}  # the bridge has no value of them
    lacking = {site.split(".", 2)[2] for site in sites_of(ours.config).keys() - sites(theirs).keys()}
    assert {part for part in lacking if not part.endswith((".normalized", ".rot_q", ".rot_k"))} == scores
    locked = {site.split(".", 2)[2] for site, place in theirs.places.items() if not place.changeable}
    assert locked == {each.replace("scores", "pattern") for each in scores}


@pytest.mark.parametrize("name", MADE)
def test_every_edit_has_our_effect(pair_of, name):
    ours, theirs = pair_of(name, torch.float64)
    inputs = texts(ours)
    last = f"{[*ours.config.stacks][-1]}.resid_final"
    for site, place in theirs.places.items():
        if not place.changeable:
            with pytest.raises(InputError, match=f"{site} can be read in this model but not changed"):
                run(theirs, edit={site: scale(0.5)}, **inputs)
            assert sites(theirs)[site].meaning.endswith("can only be read")
            continue
        if site.endswith(".scores"):
            change = lambda value: value.masked_fill(torch.arange(value.shape[-1]) == 1, -torch.inf)  # noqa: E731
        else:
            change = zero(head=1) if site.endswith(".1.attn.k") else scale(0.3)
            change = set_to(0.2, head=1) if site.endswith(".pattern") else change
        edit = {site: change}
        first, second = run(ours, edit=edit, capture=last, **inputs), run(theirs, edit=edit, capture=last, **inputs)
        assert_close(real(last, second[last], inputs), real(last, first[last], inputs), rtol=1e-4, atol=1e-5, msg=site)
        assert not torch.equal(first[last], run(ours, capture=last, **inputs)[last]), site


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5"])
def test_gradients_are_ours(pair_of, name):
    site = f"{[*pair_of(name)[0].config.stacks][-1]}.0.attn.z"
    gradients = []
    for model in pair_of(name):
        inputs = texts(model)
        out = run(model, capture=site, grad=True, **inputs)
        gradients.append(torch.autograd.grad(real("logits", out.logits, inputs).square().sum(), out[site])[0])
    close(gradients[1], gradients[0], 1e-5)


def test_an_edit_that_fails_leaves_no_hook(pair_of):
    _, theirs = pair_of("gpt2")
    inputs = texts(theirs)
    before = run(theirs, **inputs).logits

    def fail(value):
        raise InputError("no")

    for function, message in ((fail, ": no"), (lambda value: torch.stack([value, value]), " adds an axis, which")):
        with pytest.raises(InputError, match=f"^the edit of decoder.1.attn.z{message}"):
            run(theirs, edit={"decoder.1.attn.z": function}, **inputs)
    assert not any(point.fwd_hooks for point in theirs.bridge.hook_dict.values())
    assert torch.equal(run(theirs, **inputs).logits, before)


def test_threads_do_not_disturb_each_other(pair_of):
    _, theirs = pair_of("gpt2")
    edits = [{f"decoder.{layer}.attn.z": zero(head=head)} for layer in range(2) for head in range(3)]

    def logits(edit: dict) -> torch.Tensor:
        return run(theirs, edit=edit, **texts(theirs)).logits

    with ThreadPoolExecutor(len(edits)) as threads:
        together = [*threads.map(logits, edits)]
    assert all(torch.equal(first, second) for first, second in zip(map(logits, edits), together, strict=True))


@pytest.mark.parametrize(
    ("name", "stack", "attention", "site"),
    [("gpt2", None, "self", "resid_post"), ("t5", "encoder", "self", "z"), ("t5", None, "cross", "z")],
)
def test_sweeps_are_ours(pair_of, name, stack, attention, site):
    ours, theirs = pair_of(name)
    clean = torch.randint(4, D_VOCAB, (3, 5), generator=torch.Generator().manual_seed(2))
    corrupt = clean.clone()
    corrupt[:, 2] = (clean[:, 2] + 1) % D_VOCAB
    answers = torch.tensor([7, 8, 9]), torch.tensor([11, 12, 13])
    more = {} if len(ours.config.stacks) == 1 else {"target": torch.tensor([[2, 9, 5]] * 3)}
    by = ("layer", "position") if site == "resid_post" else ("layer", "head")

    def effect(sweep, model) -> torch.Tensor:
        pairs = Pairs.from_ids(model, clean, corrupt, *answers, **more)
        return sweep(model, pairs, logit_difference(), site, by, stack=stack, attention=attention).effects()

    expected = effect(sweep, ours)
    assert_close(effect(sweep, theirs), expected, rtol=1e-4, atol=1e-4, equal_nan=True)
    assert_close(effect(sweep, theirs), effect(sweep_by_forward, theirs), rtol=0, atol=0, equal_nan=True)


def test_knock_outs_are_ours(pair_of):
    ours, theirs = pair_of("llama")
    ids = texts(ours)["tokens"].ids[:1]
    claim = Claim(0, torch.tensor([3, 5]), torch.arange(7) == torch.tensor([[1], [2]]))
    first, second = knock_out(ours, ids, [claim]), knock_out(theirs, ids, [claim])
    assert_close(second, first, rtol=1e-4, atol=1e-5)
    assert_close(second, knock_out_by_forward(theirs, ids, [claim]), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_it_writes_as_ours_does(pair_of, name):
    ours, theirs = pair_of(name)
    prompt = texts(ours)["tokens"].ids[:1]
    for temperature in (0.0, 1.0):
        first, second = (generate(model, prompt, 6, temperature=temperature).ids for model in (ours, theirs))
        assert torch.equal(first, second)


@pytest.mark.parametrize("name", MADE)
def test_a_pass_ends_with_the_last_site_that_is_wanted(pair_of, name):
    _, theirs = pair_of(name)
    inputs = texts(theirs)
    hooks = theirs.bridge.hook_dict
    before = {name: len(point.fwd_hooks) for name, point in hooks.items()}
    for stack in theirs.config.stacks:
        pattern, after = f"{stack}.*.attn.pattern", f"{stack}.resid_final"
        passed = []
        point = hooks[theirs.places[after].hook]
        point.add_hook(lambda value, hook, passed=passed: passed.append(1))
        try:
            for grad in (False, True):
                out = run(theirs, until=pattern, grad=grad, **inputs)
                assert not passed
                whole = run(theirs, capture=pattern, grad=grad, **inputs)
                assert passed.pop()
                assert_close(out.activations, whole.activations, rtol=0, atol=0)
        finally:
            point.remove_hooks()
        with pytest.raises(InputError, match="this pass ended with"):
            _ = out.logits
        assert {name: len(point.fwd_hooks) for name, point in hooks.items()} == before


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_the_untrained_model_beside_it_is_ours(pair_of, name):
    ours, theirs = pair_of(name)
    inputs = texts(ours)
    site = f"{next(iter(ours.config.stacks))}.resid_final"
    first, second = (run(untrained(model, 3), capture=site, **inputs)[site] for model in (ours, theirs))
    assert_close(second, first, rtol=0, atol=0)


def test_measures_of_heads_are_ours(pair_of):
    text = [AnnotatedText.plain(" ".join(f"w{4 + (3 * n + n * n) % 17}" for n in range(9)), "d")] * 3
    first, second = (position.measure(model, text).drop(columns=["p", "q"]) for model in pair_of("gpt2"))
    assert first[[name for name in first if name.startswith("norm_")]].isna().to_numpy().all()
    pd.testing.assert_frame_equal(second, first, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_our_model_as_a_bridge_has_our_logits(pair_of, name):
    ours, _ = pair_of(name)
    bridge, changed, ids = lens.to_lens(ours), load(ours.source), texts(ours)["tokens"].ids[:1]
    with torch.no_grad():
        assert_close(bridge(ids), run(ours, ids).logits, rtol=1e-5, atol=1e-5)
        for weight in changed.parameters():
            weight.mul_(1.1)
        bridge.load_state_dict(lens.to_lens(changed).state_dict())
        assert_close(bridge(ids), run(changed, ids).logits, rtol=1e-4, atol=1e-4)


def test_a_bridge_that_a_user_has_can_be_wrapped(pair_of):
    ours, _ = pair_of("llama")
    model = lens.wrap(lens.to_lens(ours), ours.tokenizer)
    assert_close(run(model, "w5 w6 w7").logits, run(ours, "w5 w6 w7").logits, rtol=1e-5, atol=1e-5)
    bridge = lens.to_lens(ours)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bridge.enable_compatibility_mode()
    assert "compatibility mode" in refusal(lens.wrap, bridge)


def test_what_a_bridge_cannot_do_is_refused(pair_of, tmp_path):
    _, theirs = pair_of("gpt2")
    ids = texts(theirs)["tokens"].ids[:1]
    for message in (refusal(logit_lens, theirs, ids), refusal(with_parts, theirs, "this")):
        assert re.search("as a whole.*sweep_by_forward", message)
    assert "another library runs this model: copy the directory" in refusal(save, theirs, tmp_path / "there")
    stack = StackConfig(1, 6, 2, 3, 5, 7, 11, causal=True, norm=NoNorm())
    bare = Transformer(TransformerConfig(decoder=stack))
    assert "no architecture that TransformerLens wraps" in refusal(lens.to_lens, bare)


def test_a_name_that_cannot_be_opened_is_refused(monkeypatch, directories, tmp_path):
    assert "no model directory" in refusal(load, f"lens:{tmp_path / 'nowhere'}")
    assert "expected no quantize" in refusal(load, "lens:default", quantize="int8")
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if "lens" in name else find(name, *more))
    message = refusal(load, f"lens:{directories['gpt2']}")
    assert message == 'TransformerLens is not installed: pip install "interp[lens]"'


MINE = {"AutoConfig": "mine.Mine", "AutoModelForCausalLM": "mine.Model"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "nothing", "architectures": ["NothingForCausalLM"]}, "does not know this model"),
        ({"n_layer": 3}, "the weights lack"),
        ({"model_type": "mine", "auto_map": MINE}, "does not know this model"),
        ({"quantization_config": {"bits": 4}}, "has a quantization_config: quantized weights"),
    ],
)
def test_directories_that_cannot_be_wrapped(directories, tmp_path, fields, message):
    shutil.copytree(directories["gpt2"], tmp_path, dirs_exist_ok=True)
    change_config(tmp_path, lambda raw: raw.update(fields))
    (tmp_path / "mine.py").write_text("raise AssertionError('code of others was run')\n")
    assert message in refusal(load, f"lens:{tmp_path}")


def test_weights_that_are_none_are_named(directories, tmp_path):
    shutil.copytree(directories["gpt2"], tmp_path, dirs_exist_ok=True)
    name, row = "transformer.h.0.attn.c_attn.weight", torch.tensor([1])
    for value, dtype, expected in (
        (math.nan, torch.float32, "holds NaN in torch.float32: the weights are damaged"),
        (math.inf, torch.float32, "holds infinite numbers in torch.float32: the weights are damaged"),
        (1e30, torch.float16, "holds infinite numbers in torch.float16: load it as torch.float32"),
    ):
        change_tensors(tmp_path, lambda weights, x=value: weights | {name: weights[name].index_fill(0, row, x)})
        assert f"{name} {expected}" in refusal(load, f"lens:{tmp_path}", dtype=dtype)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    assert "model.safetensors" in refusal(load, f"lens:{tmp_path}")


@pytest.mark.slow
def test_libraries_are_not_heard_while_they_load():
    """In a new process, without earlier imports: what other libraries miss does not concern our user."""
    code = "import models; models.load('lens:default')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == ""


@pytest.mark.parametrize("level", [logging.NOTSET, logging.CRITICAL])
def test_what_was_heard_before_is_heard_again(level, caplog, monkeypatch):
    monkeypatch.setattr(logging.root.manager, "disable", level)
    with unheard():
        logging.getLogger("torchao").warning("a library that does not fit")
    assert logging.root.manager.disable == level
    assert not caplog.records


def test_what_changes_a_bridge_changes_its_fingerprint(directories, tmp_path):
    shutil.copytree(directories["llama"], tmp_path / "llama")

    def loaded(**fields) -> Any:
        raw = json.loads((directories["llama"] / "config.json").read_text())
        (tmp_path / "llama" / "config.json").write_text(json.dumps(raw | fields))
        return load(f"lens:{tmp_path / 'llama'}")

    plain, rope = loaded(), {"rope_theta": 7.0, "rope_type": "default"}
    assert fingerprint(plain) == fingerprint(loaded()) != fingerprint(load(tmp_path / "llama"))
    run(plain, capture=[*sites(plain)], **texts(plain))
    digests = [*map(fingerprint, (plain, loaded(rms_norm_eps=0.1), loaded(rope_parameters=rope)))]
    for changed in (next(plain.parameters()), next(iter(torch.nn.Module.named_buffers(plain)))[1]):
        with torch.no_grad():
            changed.mul_(1.1)
        digests.append(fingerprint(plain))
    plain.bridge.original_model.config.rms_norm_eps = 0.2
    digests.append(fingerprint(plain))
    assert len({*digests}) == len(digests)
    plain.bridge.blocks[0].hook_resid_pre.add_hook(lambda value, hook: value)
    assert "your own code, which has no hash" in refusal(fingerprint, plain)

"""A TransformerLens bridge behind our interface gives our numbers; and what it cannot do, it says."""

import importlib.util
import json
import logging
import math
import re
import shutil
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch.testing import assert_close

from analyses.execution.fingerprints import fingerprint
from interp import (
    InputError,
    Pairs,
    StackConfig,
    TokenBatch,
    Transformer,
    TransformerConfig,
    generate,
    logit_difference,
    put,
    run,
    scale,
    sites,
    sweep,
    zero,
)
from interp.attribution import logit_lens
from interp.config import NoNorm
from interp.initialisation import untrained
from interp.patching import sweep_by_forward
from interp.patching.claimed_texts import Claim
from interp.patching.knockout import knock_out, knock_out_by_forward
from interp.sites import sites_of
from interp.transformer import with_parts
from models import lens, load, save
from models.lens.unheard import unheard

pytest.importorskip("transformer_lens", reason="needs the extra `lens`")
transformers = pytest.importorskip("transformers", reason="needs the extra `lens`")

D_VOCAB = 61
STACK = {"vocab_size": D_VOCAB, "num_hidden_layers": 2, "hidden_size": 24, "intermediate_size": 37}
HEADS = {"num_attention_heads": 4, "max_position_embeddings": 40, "pad_token_id": 0}
BOTH = {"vocab_size": D_VOCAB, "d_model": 24, "decoder_start_token_id": 2, "pad_token_id": 0, "eos_token_id": 1}
SIDES = {"encoder_layers": 2, "encoder_attention_heads": 3, "encoder_ffn_dim": 37, "max_position_embeddings": 40}
MADE = {
    "gpt2": ("GPT2LMHeadModel", {"vocab_size": D_VOCAB, "n_layer": 2, "n_head": 3, "n_embd": 21, "n_positions": 40}),
    "llama": ("LlamaForCausalLM", STACK | HEADS | {"num_key_value_heads": 2}),
    "gpt_neox": ("GPTNeoXForCausalLM", STACK | HEADS | {"num_attention_heads": 3}),
    "olmo2": ("Olmo2ForCausalLM", STACK | HEADS),
    "bert": ("BertForMaskedLM", STACK | HEADS),
    "headless": ("BertModel", STACK | HEADS),
    "t5": ("T5ForConditionalGeneration", BOTH | {"d_kv": 6, "d_ff": 37, "num_layers": 2, "num_heads": 3}),
    "bart": (
        "BartForConditionalGeneration",
        BOTH | SIDES | {"decoder_layers": 2, "decoder_attention_heads": 3, "decoder_ffn_dim": 37},
    ),
}
DELEGATED = {"bert": "attn", "headless": "attn", "t5": "attn cross_attn", "bart": "attn cross_attn"}


@pytest.fixture(scope="module")
def directories(tmp_path_factory) -> dict[str, Path]:
    """Tiny random models, written by `transformers`."""
    made = {}
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for at, (name, (architecture, fields)) in enumerate(MADE.items()):
        torch.manual_seed(at)
        kind = getattr(transformers, architecture)
        model = kind(kind.config_class(**fields))
        with torch.no_grad():
            for weight in model.parameters():  # livelier than what they start from, so that every head matters
                weight.add_(torch.randn_like(weight) * 0.15)
        made[name] = tmp_path_factory.mktemp(name)
        model.save_pretrained(made[name])
        backend = Backend(WordLevel({f"w{id}": id for id in range(D_VOCAB)}, unk_token="w3"))
        backend.pre_tokenizer = WhitespaceSplit()
        backend.save(str(made[name] / "tokenizer.json"))
    return made


@pytest.fixture(scope="module")
def both(directories):
    """Each model as ours and as TransformerLens runs it, read once."""
    read: dict[str, tuple] = {}

    def of(name: str):
        if name not in read:
            read[name] = load(directories[name]), load(f"lens:{directories[name]}")
        return read[name]

    return of


def texts(model, side="right", seed=0) -> dict:
    """Three texts of unequal lengths and, where there are two stacks, targets."""
    generator = torch.Generator().manual_seed(seed)

    def rows(*lengths: int) -> TokenBatch:
        drawn = [torch.randint(4, D_VOCAB, (n,), generator=generator).tolist() for n in lengths]
        return TokenBatch.from_rows(drawn, side=side)

    batch = {"tokens": rows(7, 4, 6)}
    return batch if len(model.config.stacks) == 1 else batch | {"target": rows(5, 6, 3)}


def real(site: str, value: torch.Tensor, given: dict) -> torch.Tensor:
    """The part of a value that padding has nothing to do with."""
    own = given.get("target", given["tokens"]) if site.startswith(("decoder", "logits")) else given["tokens"]
    if site.endswith((".scores", ".pattern")):
        return value.transpose(1, 2)[own.mask]
    return value[given["tokens"].mask if site.endswith(("cross_attn.k", "cross_attn.v")) else own.mask]


@pytest.mark.parametrize("side", ["right", pytest.param("left", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", MADE)
def test_every_site_has_our_value(both, name, side):
    ours, theirs = both(name)
    given = texts(ours, side)
    if side not in theirs.padding:
        with pytest.raises(InputError, match="texts are padded on the left: pad on the right"):
            run(theirs, **given)
        assert name == "bart"  # its learned positions count columns
        return
    shared = [*sites(theirs)]
    one, other = run(ours, capture=shared, **given), run(theirs, capture=shared, **given)
    for site in shared:
        assert_close(real(site, other[site], given), real(site, one[site], given), rtol=1e-5, atol=1e-5, msg=site)


@pytest.mark.parametrize("name", MADE)
def test_only_sites_that_the_bridge_computes_no_value_of_are_lacking(both, name):
    ours, theirs = both(name)
    scores = {f"{part}.scores" for part in DELEGATED.get(name, "").split()}
    lacking = sites_of(ours.config).keys() - sites(theirs).keys()
    inside = {site for site in lacking if site.endswith((".normalized", ".rot_q", ".rot_k"))}  # no law tells them
    assert {site.split(".", 2)[2] for site in lacking - inside} == scores
    assert {site: sites(theirs)[site].axes for site in sites(theirs)} == {
        site: sites(ours)[site].axes for site in sites(theirs)
    }
    locked = {site.split(".", 2)[2] for site, place in theirs.places.items() if not place.changeable}
    assert locked == {each.replace("scores", "pattern") for each in scores}


@pytest.mark.parametrize("name", MADE)
def test_every_edit_has_our_effect(both, name):
    ours, theirs = both(name)
    given = texts(ours)
    last = f"{[*ours.config.stacks][-1]}.resid_final"
    for site, place in theirs.places.items():
        if not place.changeable:
            with pytest.raises(InputError, match=f"{site} can be read in this model and not changed"):
                run(theirs, edit={site: scale(0.5)}, **given)
            assert sites(theirs)[site].meaning.endswith("can only be read")
            continue
        if site.endswith(".1.attn.k"):
            edit = {site: zero(head=1)}
        elif site.endswith(".scores"):
            edit = {site: lambda value: value.masked_fill(torch.arange(value.shape[-1]) == 1, -torch.inf)}
        elif site.endswith(".pattern"):
            edit = {site: put(0.2, head=1)}
        else:
            edit = {site: scale(0.3)}
        one, other = run(ours, edit=edit, capture=last, **given), run(theirs, edit=edit, capture=last, **given)
        assert_close(real(last, other[last], given), real(last, one[last], given), rtol=1e-4, atol=1e-5, msg=site)
        assert not torch.equal(one[last], run(ours, capture=last, **given)[last]), site


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5"])
def test_gradients_are_ours(both, name):
    ours, theirs = both(name)
    site = f"{[*ours.config.stacks][-1]}.0.attn.z"
    found = []
    for model in (ours, theirs):
        given = texts(ours)
        out = run(model, capture=site, grad=True, **given)
        found.append(torch.autograd.grad(real("logits", out.logits, given).square().sum(), out[site])[0])
    assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


# Calls leave nothing behind.


def test_an_edit_that_fails_leaves_no_hook(both):
    _, theirs = both("gpt2")
    given = texts(theirs)
    before = run(theirs, **given).logits

    def fail(value):
        raise InputError("no")

    for function, message in ((fail, ": no"), (lambda value: torch.stack([value, value]), " adds an axis, which")):
        with pytest.raises(InputError, match=f"^the edit of decoder.1.attn.z{message}"):
            run(theirs, edit={"decoder.1.attn.z": function}, **given)
    assert not any(point.fwd_hooks for point in theirs.bridge.hook_dict.values())
    assert torch.equal(run(theirs, **given).logits, before)


def test_threads_do_not_disturb_each_other(both):
    _, theirs = both("gpt2")
    given = texts(theirs)
    edits = [{f"decoder.{layer}.attn.z": zero(head=head)} for layer in range(2) for head in range(3)]
    alone = [run(theirs, edit=edit, **given).logits for edit in edits]
    together: dict[int, torch.Tensor] = {}

    def work(at: int) -> None:
        together[at] = run(theirs, edit=edits[at], **given).logits

    threads = [threading.Thread(target=work, args=(at,)) for at in range(len(edits))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for at, logits in enumerate(alone):
        assert torch.equal(together[at], logits)


# What rests on the parts of a model goes the plain way, or names it.


@pytest.mark.parametrize(
    ("name", "stack", "attention", "site"),
    [("gpt2", None, "self", "resid_post"), ("t5", "encoder", "self", "z"), ("t5", None, "cross", "z")],
)
def test_sweeps_are_ours(both, name, stack, attention, site):
    ours, theirs = both(name)
    generator = torch.Generator().manual_seed(2)
    clean = torch.randint(4, D_VOCAB, (3, 5), generator=generator)
    corrupt = clean.clone()
    corrupt[:, 2] = (clean[:, 2] + 1) % D_VOCAB
    answers = torch.tensor([7, 8, 9]), torch.tensor([11, 12, 13])
    more = {} if len(ours.config.stacks) == 1 else {"target": torch.tensor([[2, 9, 5]] * 3)}
    found = []
    for model in (ours, theirs):
        pairs = Pairs.from_ids(model, clean, corrupt, *answers, **more)
        where = {"stack": stack, "attention": attention}
        by = ("layer", "position") if site == "resid_post" else ("layer", "head")
        found.append(sweep(model, pairs, logit_difference(), site, by, **where))
    plain = sweep_by_forward(theirs, pairs, logit_difference(), site, by, **where)
    assert_close(found[1].effect(), found[0].effect(), rtol=1e-4, atol=1e-4, equal_nan=True)
    assert_close(found[1].effect(), plain.effect(), rtol=0, atol=0, equal_nan=True)


def test_knock_outs_are_ours(both):
    ours, theirs = both("llama")
    ids = texts(ours)["tokens"].ids[:1]
    claim = Claim(0, torch.tensor([3, 5]), torch.arange(7) == torch.tensor([[1], [2]]))
    one, other = knock_out(ours, ids, [claim]), knock_out(theirs, ids, [claim])
    assert_close(other, one, rtol=1e-4, atol=1e-5)
    assert_close(other, knock_out_by_forward(theirs, ids, [claim]), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_it_writes_as_ours_does(both, name):
    ours, theirs = both(name)
    prompt = texts(ours)["tokens"].ids[:1]
    for temperature in (0.0, 1.0):
        one, other = (generate(model, prompt, 6, temperature=temperature).ids for model in (ours, theirs))
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", MADE)
def test_a_pass_ends_with_the_last_site_that_is_wanted(both, name):
    _, theirs = both(name)
    given = texts(theirs)
    hooks = theirs.bridge.hook_dict
    before = {name: len(point.fwd_hooks) for name, point in hooks.items()}
    for stack in theirs.config.stacks:
        wanted, after = f"{stack}.*.attn.pattern", f"{stack}.resid_final"
        passed = []
        point = hooks[theirs.places[after].hook]
        point.add_hook(lambda value, hook, passed=passed: passed.append(1))
        try:
            for grad in (False, True):
                out = run(theirs, until=wanted, grad=grad, **given)
                assert not passed
                whole = run(theirs, capture=wanted, grad=grad, **given)
                assert passed.pop()
                assert_close(out.activations, whole.activations, rtol=0, atol=0)
        finally:
            point.remove_hooks()
        with pytest.raises(InputError, match="this pass ended with"):
            _ = out.logits
        assert {name: len(point.fwd_hooks) for name, point in hooks.items()} == before


# Analyses.


def same_tables(one: pd.DataFrame, other: pd.DataFrame) -> None:
    """Equal but for rounding; tail probabilities and ends of intervals move more than what they are of.

    Norms of what is written are not told of a model that another library runs.
    """
    norms = [column for column in ("norm_value", "norm_gain", "norm_low", "norm_high") if column in one]
    assert one[norms].isna().to_numpy().all()
    one, other = one.drop(columns=norms), other.drop(columns=norms)
    tails = [column for column in ("p", "q", "q_within") if column in one]
    ends = [column for column in ("ci_low", "ci_high") if column in one]
    drop = [*tails, *ends]
    pd.testing.assert_frame_equal(one.drop(columns=drop), other.drop(columns=drop), rtol=1e-4, atol=1e-4)
    pd.testing.assert_frame_equal(one[tails], other[tails], rtol=0, atol=5e-3)
    pd.testing.assert_frame_equal(one[ends], other[ends], rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_the_untrained_model_beside_it_is_ours(both, name):
    ours, theirs = both(name)
    given = texts(ours)
    site = f"{next(iter(ours.config.stacks))}.resid_final"
    one, other = (run(untrained(model, 3), capture=site, **given)[site] for model in (ours, theirs))
    assert_close(other, one, rtol=0, atol=0)


@pytest.mark.slow
def test_a_report_runs_from_end_to_end_and_says_what_ours_says(names, tmp_path):
    from analyses.cli.app import main

    text = ["ana", "and", "emma", "saw", "mia"]
    rows = "".join(f"{at}\t{word}\t_\tX\t_\t_\t0\troot\t_\t_\n" for at, word in enumerate(text, 1))
    corpus = tmp_path / "names.conllu"
    corpus.write_text("".join(f"# newdoc id = {at}\n# text = {' '.join(text)}\n{rows}\n" for at in range(12)))
    tables = []
    for at, model in enumerate((str(names), f"lens:{names}")):
        settings = f"--labels --out {tmp_path / str(at)} --pairs 4 --corpus {corpus}"
        with pytest.raises(SystemExit) as end:
            main(["position", "--model", model, *settings.split()])
        assert not end.value.code
        tables.append({file.stem: pd.read_csv(file) for file in (tmp_path / str(at) / "tables").glob("*.csv")})
    assert {"heads", "effects"} <= tables[0].keys()
    for name in ("heads", "effects"):
        same_tables(tables[1][name], tables[0][name])
    facts = [json.loads((tmp_path / str(at) / "run.json").read_text())["model"] for at in range(2)]
    assert facts[0].pop("fingerprint") != facts[1].pop("fingerprint")  # of what runs: other code, the same weights
    assert facts[0] == facts[1]
    assert "another library runs this model as a whole" in (tmp_path / "1" / "report.html").read_text()


# The other way round.


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_our_model_as_a_bridge_has_our_logits(both, name):
    ours, _ = both(name)
    bridge = lens.to_lens(ours)
    given = texts(ours)
    ids = given["tokens"].ids[:1]
    with torch.no_grad():
        assert_close(bridge(ids), run(ours, ids).logits, rtol=1e-5, atol=1e-5)
    changed = load(ours.source)
    with torch.no_grad():
        for weight in changed.parameters():
            weight.mul_(1.1)
    bridge.load_state_dict(lens.to_lens(changed).state_dict())
    with torch.no_grad():
        assert_close(bridge(ids), run(changed, ids).logits, rtol=1e-4, atol=1e-4)


def test_a_bridge_that_a_user_has_can_be_wrapped(both):
    ours, _ = both("llama")
    model = lens.wrap(lens.to_lens(ours), ours.tokenizer)
    assert_close(run(model, "w5 w6 w7").logits, run(ours, "w5 w6 w7").logits, rtol=1e-5, atol=1e-5)
    bridge = lens.to_lens(ours)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bridge.enable_compatibility_mode()
    with pytest.raises(InputError, match="compatibility mode"):
        lens.wrap(bridge)


# Bad input: each one line.


def refusal(call, *given, **settings) -> str:
    with pytest.raises(InputError) as caught:
        call(*given, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_a_bridge_cannot_do_is_refused(both, tmp_path):
    _, theirs = both("gpt2")
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
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if "lens" in name else found(name, *more))
    message = refusal(load, f"lens:{directories['gpt2']}")
    assert message == 'TransformerLens is not installed: pip install "interp[lens]"'


def edited(directory: Path, there: Path, **fields) -> Path:
    """A copy of a model's directory with other fields."""
    for file in directory.iterdir():
        (there / file.name).write_bytes(file.read_bytes())
    raw = json.loads((there / "config.json").read_text()) | fields
    (there / "config.json").write_text(json.dumps(raw))
    return there


MINE = {"AutoConfig": "mine.Mine", "AutoModelForCausalLM": "mine.Model"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "nothing", "architectures": ["NothingForCausalLM"]}, "does not know this model"),
        ({"n_layer": 3}, "the weights lack"),
        ({"model_type": "mine", "auto_map": MINE}, "does not know this model"),
        ({"quantization_config": {"bits": 4}}, "has a quantization_config: weights that are rounded already"),
    ],
)
def test_directories_that_cannot_be_wrapped(directories, tmp_path, fields, message):
    where = edited(directories["gpt2"], tmp_path, **fields)
    (where / "mine.py").write_text("raise AssertionError('code of others was run')\n")
    assert message in refusal(load, f"lens:{where}")


def test_weights_that_are_none_are_named(directories, tmp_path):
    file = edited(directories["gpt2"], tmp_path) / "model.safetensors"
    weights = load_file(file)
    for value, dtype, expected in (
        (math.nan, torch.float32, "holds NaN in torch.float32: the weights are damaged"),
        (math.inf, torch.float32, "holds infinite numbers in torch.float32: the weights are damaged"),
        (1e30, torch.float16, "holds infinite numbers in torch.float16: load it as torch.float32"),
    ):
        weights["transformer.h.0.attn.c_attn.weight"][1, 2] = value
        save_file(weights, file, metadata={"format": "pt"})
        message = refusal(load, f"lens:{tmp_path}", dtype=dtype)
        assert f"transformer.h.0.attn.c_attn.weight {expected}" in message
    file.rename(tmp_path / "pytorch_model.bin")
    assert "model.safetensors" in refusal(load, f"lens:{tmp_path}")


@pytest.mark.slow
def test_libraries_are_not_heard_while_they_load():
    """In a process of its own, in which nothing was imported yet: what is missing to others is not our user's."""
    asked = "import models; models.load('lens:default')"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == ""


@pytest.mark.parametrize("level", [logging.NOTSET, logging.CRITICAL])
def test_what_was_heard_before_is_heard_again(level, caplog):
    logging.disable(level)
    try:
        with unheard():
            logging.getLogger("torchao").warning("a library that does not fit")
        assert logging.root.manager.disable == level
    finally:
        logging.disable(logging.NOTSET)
    assert not caplog.records


def test_what_changes_a_bridge_changes_its_fingerprint(directories, tmp_path):
    shutil.copytree(directories["llama"], tmp_path / "llama")
    raw = json.loads((tmp_path / "llama" / "config.json").read_text())

    def loaded(**fields) -> Any:
        (tmp_path / "llama" / "config.json").write_text(json.dumps(raw | fields))
        return load(f"lens:{tmp_path / 'llama'}")

    plain, rope = loaded(), {"rope_theta": 7.0, "rope_type": "default"}
    assert fingerprint(plain) == fingerprint(loaded()) != fingerprint(load(tmp_path / "llama"))
    run(plain, capture=[*sites(plain)], **texts(plain))
    seen = [*map(fingerprint, (plain, loaded(rms_norm_eps=0.1), loaded(rope_parameters=rope)))]
    with torch.no_grad():
        next(plain.parameters()).mul_(1.1)
    seen.append(fingerprint(plain))
    with torch.no_grad():
        next(iter(torch.nn.Module.named_buffers(plain)))[1].mul_(1.1)
    seen.append(fingerprint(plain))
    plain.bridge.original_model.config.rms_norm_eps = 0.2
    seen.append(fingerprint(plain))
    assert len({*seen}) == len(seen)
    plain.bridge.blocks[0].hook_resid_pre.add_hook(lambda value, hook: value)
    with pytest.raises(InputError, match="code of your own, which has no hash"):
        fingerprint(plain)

"""Models from outside compute what they computed there, and are saved unchanged."""

import json
import re
import resource
import shutil
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch
from families import variant
from parity import transformers
from refusals import refusal
from safetensors.torch import load_file
from tiny import token_ids
from torch.testing import assert_close
from worded import word_level

from interp import InputError, TokenBatch, Tokenizer, Transformer, run
from interp.config import NoNorm
from interp.errors import InputWarning
from models import load, save, weights_digest


def build(family: str, dtype: torch.dtype = torch.float32):
    return variant(family).build(dtype)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("gpt2")
    build("gpt2").save_pretrained(directory)
    return directory


def test_shards_load_as_one_file_does(tmp_path):
    theirs = build("llama")
    theirs.save_pretrained(tmp_path / "one")
    theirs.save_pretrained(tmp_path / "many", max_shard_size="40KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 2
    single, many = load(tmp_path / "one"), load(tmp_path / "many")
    assert single.config == many.config
    assert_close(single.state_dict(), many.state_dict(), atol=0, rtol=0)


def test_loading_draws_no_random_numbers_and_leaves_nothing_unset(gpt2):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    model = load(gpt2)
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(weight.is_meta for weight in [*model.parameters(), *model.buffers()])
    assert all(weight.requires_grad for weight in model.parameters())
    assert model.source == gpt2


def test_a_start_token_that_no_template_adds_is_added_where_settings_say_so_and_survives_saving(gpt2, tmp_path):
    directory = Path(shutil.copytree(gpt2, tmp_path / "theirs"))
    word_level("<s>", "a").save(str(directory / "tokenizer.json"))
    assert load(directory).tokenizer.encode("a") == [1]
    for adds, token in ((False, "<s>"), (True, "<s>"), (True, {"content": "<s>"})):
        settings = {"add_bos_token": adds, "bos_token": token}
        (directory / "tokenizer_config.json").write_text(json.dumps(settings))
        model = load(directory)
        assert model.tokenizer.encode("a") == [0, 1][1 - adds :]
    save(model, tmp_path / "ours", "gpt2")
    assert load(tmp_path / "ours").tokenizer.encode("a") == [0, 1]


def test_digest_tells_weights_apart_and_is_that_of_the_file(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"abc")
    assert weights_digest(tmp_path).startswith("ba7816bf8f01cfea")  # the example of FIPS 180-2
    (tmp_path / "model.safetensors").write_bytes(b"abd")
    assert not weights_digest(tmp_path).startswith("ba7816bf8f01cfea")


@pytest.mark.parametrize(("name", "family"), [("stories", "llama"), ("names", "gpt2"), ("minilm", "bert")])
def test_a_saved_tokenizer_reads_text_alike(name, family, request, tmp_path):
    model = load(request.getfixturevalue(name))
    save(model, tmp_path / "copy", family)
    text = "Tim saw  3 dogs."
    assert load(tmp_path / "copy").tokenizer.encode(text) == model.tokenizer.encode(text)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "copy")
    assert theirs(text)["input_ids"] == model.tokenizer.encode(text)


@pytest.mark.parametrize("family", ["llama", "bert", "gpt3", "gpt2"])
def test_a_family_that_cannot_express_the_model_is_refused_before_writing(family, gpt2, tmp_path):
    model = load(gpt2)
    if family == "gpt2":
        model = Transformer(replace(model.config, decoder=replace(model.config.decoder, norm=NoNorm())))
    assert re.search("cannot express|not one of", refusal(save, model, tmp_path / "ours", family))
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("size", [0, 1, 3_000])
def test_a_full_disk_is_one_line_and_leaves_nothing(size, gpt2, tmp_path):
    model = load(gpt2)
    model.tokenizer = Tokenizer(word_level("<s>", "a"))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))  # from here on, writing more is a system error
    try:
        assert "could not be written to" in refusal(save, model, tmp_path / "new" / "ours")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not [*tmp_path.iterdir()]


def test_a_model_of_no_family_is_saved_in_one_that_can_say_it(tmp_path):
    build("llama").save_pretrained(tmp_path / "theirs")
    loaded = load(tmp_path / "theirs")
    built = Transformer(loaded.config)
    built.load_state_dict(loaded.state_dict())
    assert built.family is None
    save(built, tmp_path / "ours")
    assert load(tmp_path / "ours").family == "llama"
    built.family = "gpt2"  # changed after loading
    save(built, tmp_path / "ours")
    assert load(tmp_path / "ours").family == "llama"


@pytest.mark.parametrize("name", ["stories", "names", "sorter"])
def test_real_decoders_equal_transformers(name, request):
    directory = request.getfixturevalue(name)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(directory).eval()
    ours = load(directory)
    ids = token_ids(2, min(ours.config.n_ctx, 200), d_vocab=ours.config.d_vocab)
    with torch.no_grad():
        assert_close(run(ours, ids).logits, theirs(ids).logits, atol=1e-5, rtol=1e-5)


def test_every_activation_of_the_sorter_is_the_authors(sorter):
    model = load(sorter)
    theirs = load_file(sorter / "author-activations.safetensors")
    ids = theirs.pop("idx").long()
    out, block = run(model, ids, capture="*"), model.last.blocks[0]
    first = {site.removeprefix("decoder.0."): value for site, value in out.activations.items() if ".0." in site}
    by_head = {part: first[f"attn.{part}"].transpose(1, 2) for part in "qkv"}
    ours = by_head | {
        "tok_emb": model.last.embed.token(ids),
        "pos_emb": model.last.embed.position.weight[None],
        "x": out["decoder.embed"],
        "ln1": block.norm_attn(first["resid_pre"]),
        "qkv": torch.cat([first[f"attn.{part}"].flatten(-2) for part in "qkv"], -1),
        "att": first["attn.scores"],
        "attSm": first["attn.pattern"],
        "y": first["attn.z"].flatten(-2),
        "yProj": first["attn_out"],
        "attnResid": first["resid_mid"],
        "ln2": block.norm_mlp(first["resid_mid"]),
        "fc": first["mlp.pre"],
        "gelu": first["mlp.post"],
        "mlp": first["mlp_out"],
        "mlpResid": first["resid_post"],
        "block0": out["decoder.0.resid_post"],
        "block1": out["decoder.1.resid_post"],
        "block2": out["decoder.2.resid_post"],
        "ln_f": out["decoder.resid_final"],
        "lm_head": out.logits,
        "probs": out.logits.softmax(-1),
    }
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert_close(ours[name].detach(), value, atol=1e-5, rtol=0, msg=lambda message, name=name: f"{name}: {message}")


def test_minilm_equals_transformers_and_has_no_logits(minilm):
    model = load("minilm")
    assert model.source == minilm
    assert len(model.tokenizer.encode("word " * 300)) == 302  # more than the tokenizer's file allows
    theirs = transformers.BertModel.from_pretrained(minilm, attn_implementation="eager").eval()
    batch = TokenBatch.from_texts(["Tim saw a dog.", "Naïve cafés, 3,142 of them: the ring rang!"], model.tokenizer)
    out = run(model, batch, capture=["encoder.*.attn.pattern", "encoder.resid_final"])
    with torch.no_grad():
        expected = theirs(batch.ids, attention_mask=batch.mask.long(), output_attentions=True)
    last = expected.last_hidden_state[batch.mask]
    assert_close(out["encoder.resid_final"][batch.mask], last, atol=1e-5, rtol=1e-5)
    for layer, pattern in enumerate(expected.attentions):
        ours = out[f"encoder.{layer}.attn.pattern"].transpose(1, 2)[batch.mask]
        assert_close(ours, pattern.transpose(1, 2)[batch.mask], atol=1e-5, rtol=1e-5)
    with pytest.raises(InputError, match="no output layer"):
        _ = out.logits


def test_the_hub_is_asked_only_for_a_hub_name(tmp_path, monkeypatch):
    build("gpt2").save_pretrained(tmp_path / "org" / "name")
    download = mock.Mock(return_value=str(tmp_path / "org" / "name"))
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    monkeypatch.chdir(tmp_path)
    load("org/name")  # a directory with that name exists
    load(tmp_path / "org" / "name")
    download.assert_not_called()
    with pytest.warns(InputWarning, match='no directory "org/other": interp looks for it on the Hugging Face hub'):
        load("org/other")
    download.assert_called_once_with("org/other", allow_patterns=["*.json", "*.safetensors"])

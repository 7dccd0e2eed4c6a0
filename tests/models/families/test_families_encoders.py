"""Encoders, with and without an output layer for masked words: each computes what it computes elsewhere."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from parity import Variant, checked, close, make_pair, transformers
from safetensors.torch import load_file, save_file
from tiny import token_ids
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from analyses.labels import knockouts
from analyses.labels.readouts import MaskedWord
from analyses.reading.windows import windows
from interp import AnnotatedText, InputError, TokenBatch, Transformer, run
from models import load

BERT = {
    "num_hidden_layers": 2,
    "hidden_size": 21,
    "num_attention_heads": 3,
    "intermediate_size": 29,
    "max_position_embeddings": 17,
    "vocab_size": 23,
    "pad_token_id": 0,
}
ROBERTA = BERT | {"pad_token_id": 1, "type_vocab_size": 1}
ELECTRA = BERT | {"embedding_size": 13}
DISTILBERT = {
    "n_layers": 2,
    "dim": 21,
    "n_heads": 3,
    "hidden_dim": 29,
    "max_position_embeddings": 17,
    "vocab_size": 23,
    "pad_token_id": 0,
}
MODERNBERT = BERT | {
    "num_hidden_layers": 4,
    "hidden_size": 42,
    "local_attention": 6,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "cls_token_id": 1,
    "sep_token_id": 2,
}


def bert(model: str = "BertForMaskedLM", **fields: Any) -> Variant:
    # their embeddings of the padding token have no gradient
    return Variant("BertConfig", model, BERT | fields, reserved=(0,))


def roberta(model: str = "RobertaForMaskedLM", padding: int = 1, **fields: Any) -> Variant:
    fields = ROBERTA | fields | {"pad_token_id": padding}
    return Variant("RobertaConfig", model, fields, reserved=(padding,), first_position=padding + 1)


def distilbert(model: str = "DistilBertForMaskedLM", **fields: Any) -> Variant:
    return Variant("DistilBertConfig", model, DISTILBERT | fields, reserved=(0,))


def electra(model: str = "ElectraForMaskedLM", **fields: Any) -> Variant:
    return Variant("ElectraConfig", model, ELECTRA | fields, reserved=(0,))


def modernbert(model: str = "ModernBertForMaskedLM", **fields: Any) -> Variant:
    # theirs rotates in float32 at every precision
    unrounded = {"transformers.models.modernbert.modeling_modernbert.apply_rotary_pos_emb": apply_rotary_pos_emb}
    return Variant("ModernBertConfig", model, MODERNBERT | fields, reserved=(0,), unrounded=unrounded)


TestBERT = checked(
    {
        "bert": bert("BertModel"),
        "bert masked words": bert(),
        "bert masked words, other parts": bert(hidden_act="gelu_new", type_vocab_size=3, layer_norm_eps=1e-3),
    }
)
TestRoBERTa = checked(
    {
        "roberta": roberta("RobertaModel"),
        "roberta masked words": roberta(hidden_act="relu"),
        "roberta masked words, padded with 5": roberta(padding=5),
    }
)
TestDistilBERT = checked(
    {"distilbert": distilbert("DistilBertModel"), "distilbert masked words": distilbert(activation="relu")}
)
TestELECTRA = checked(
    {
        "electra": electra("ElectraModel"),
        "electra generator": electra(),
        "electra generator, embedding as wide as the stream": electra(embedding_size=21, hidden_act="relu"),
    }
)
TestModernBERT = checked(
    {
        "modernbert": modernbert("ModernBertModel"),
        "modernbert masked words": modernbert(),
        "modernbert masked words without bias": modernbert(decoder_bias=False),
        "modernbert masked words, other parts": modernbert(
            attention_bias=True,
            mlp_bias=True,
            norm_bias=True,
            classifier_bias=True,
            hidden_activation="silu",
            classifier_activation="relu",
            num_hidden_layers=3,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
            rope_parameters={
                "full_attention": {"rope_type": "linear", "factor": 3.0, "rope_theta": 37.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 11.0},
            },
        ),
    }
)

MASKED = {"bert": bert(), "roberta": roberta(), "distilbert": distilbert(), "electra": electra()}
MASKED |= {"modernbert": modernbert(), "modernbert without bias": modernbert(decoder_bias=False)}


def change_config(directory: Path, change: Callable[[dict], object]) -> Path:
    raw = json.loads((directory / "config.json").read_text())
    change(raw)
    (directory / "config.json").write_text(json.dumps(raw))
    return directory


def change_tensors(directory: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Path:
    file = directory / "model.safetensors"
    save_file(change(load_file(file)), file)
    return directory


@pytest.fixture
def written(tmp_path):
    """A directory with a variant's model."""

    def write(variant: Variant) -> Path:
        return make_pair(variant, torch.float32, tmp_path).directory

    return write


# --- which output layer there is, the stored tensors say


@pytest.mark.parametrize("variant", MASKED.values(), ids=MASKED)
@pytest.mark.parametrize("architectures", [None, [], ["BertForSequenceClassification"]])
def test_masked_words_are_read_whatever_the_file_is_called(variant, architectures, written):
    directory = written(variant)
    model = load(directory)
    assert model.output is not None
    again = load(change_config(directory, lambda raw: raw.update(architectures=architectures)))
    assert again.config == model.config


@pytest.mark.parametrize(
    "variant",
    [
        bert("BertForSequenceClassification"),
        bert("BertForNextSentencePrediction"),
        bert("BertForQuestionAnswering"),
        roberta("RobertaForTokenClassification"),
        roberta("RobertaForSequenceClassification"),
        distilbert("DistilBertForSequenceClassification"),
        distilbert("DistilBertForQuestionAnswering"),
        electra("ElectraForPreTraining"),
        electra("ElectraForSequenceClassification"),
        electra("ElectraForMultipleChoice"),
        modernbert("ModernBertForSequenceClassification"),
        modernbert("ModernBertForTokenClassification", decoder_bias=False),
        modernbert("ModernBertForQuestionAnswering"),
    ],
    ids=lambda variant: variant.model,
)
@pytest.mark.parametrize("called", [None, "ForMaskedLM"])
def test_outputs_of_other_tasks_are_left_out(variant, called, written):
    directory = written(variant)
    if called:
        change_config(directory, lambda raw: raw.update(architectures=[called]))
    model = load(directory)
    assert model.output is None
    theirs = transformers.AutoModel.from_pretrained(directory).eval()
    ids = token_ids(2, 11, d_vocab=20) + 2
    with torch.no_grad():
        expected = theirs(ids).last_hidden_state
    close(run(model, ids, "encoder.resid_final")["encoder.resid_final"], expected, 1e-5)


def test_both_outputs_of_pretraining_are_told_apart(written):
    directory = written(bert("BertForPreTraining"))
    theirs = transformers.BertForPreTraining.from_pretrained(directory).eval()
    ids = token_ids(2, 11, d_vocab=22) + 1
    with torch.no_grad():
        close(run(load(directory), ids).logits, theirs(ids).prediction_logits, 1e-5)


COPIES = {
    "bert": ("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
    "bert's bias": ("cls.predictions.decoder.bias", "cls.predictions.bias"),
    "roberta": ("lm_head.decoder.weight", "roberta.embeddings.word_embeddings.weight"),
    "roberta's bias": ("lm_head.decoder.bias", "lm_head.bias"),
    "distilbert": ("vocab_projector.weight", "distilbert.embeddings.word_embeddings.weight"),
    "electra": ("generator_lm_head.weight", "electra.embeddings.word_embeddings.weight"),
    "modernbert": ("decoder.weight", "model.embeddings.tok_embeddings.weight"),
    "modernbert without bias": ("decoder.weight", "model.embeddings.tok_embeddings.weight"),
}


@pytest.mark.parametrize("which", COPIES)
def test_files_may_hold_once_more_what_is_one_tensor_but_not_another(which, written):
    copy, original = COPIES[which]
    directory = written(MASKED[which.removesuffix("'s bias")])
    model = load(directory)
    change_tensors(directory, lambda stored: stored | {copy: stored[original].clone()})
    assert load(directory).config == model.config
    change_tensors(directory, lambda stored: stored | {copy: stored[original] + 1})
    with pytest.raises(InputError, match=f"{copy} and .* are one, but they differ"):
        load(directory)


def test_the_bias_of_masked_words_may_have_either_name(written):
    directory = written(bert())
    model = load(directory)
    change_tensors(directory, lambda stored: stored | {COPIES["bert's bias"][0]: stored.pop(COPIES["bert's bias"][1])})
    torch.testing.assert_close(load(directory).state_dict(), model.state_dict(), atol=0, rtol=0)


PARTS = {
    "bert": "cls.predictions.transform.LayerNorm.weight",
    "roberta": "lm_head.layer_norm.weight",
    "distilbert": "vocab_layer_norm.weight",
    "electra": "generator_predictions.LayerNorm.weight",
    "modernbert": "head.norm.weight",
    "modernbert without bias": "head.norm.weight",
}


@pytest.mark.parametrize("which", PARTS)
def test_part_of_an_output_layer_is_refused(which, written):
    directory, lost = written(MASKED[which]), PARTS[which]
    change_tensors(directory, lambda stored: {name: value for name, value in stored.items() if name != lost})
    with pytest.raises(InputError, match=f"the weights lack {lost}"):
        load(directory)


@pytest.mark.parametrize("variant", MASKED.values(), ids=MASKED)
def test_an_output_layer_that_is_not_the_embedding_is_refused(variant, written):
    directory = change_config(written(variant), lambda raw: raw.update(tie_word_embeddings=False))
    with pytest.raises(InputError, match="tie_word_embeddings False is not supported"):
        load(directory)


# --- parts


def test_near_layers_see_as_far_as_half_their_window_on_either_side(written):
    pattern = run(load(written(modernbert())), torch.arange(3, 14)[None], "*.pattern")
    seen = [(pattern[f"encoder.{layer}.attn.pattern"][0, 0] > 0).sum(-1).tolist() for layer in range(4)]
    assert seen[0] == seen[3] == [11] * 11
    assert seen[1] == seen[2] == [4, 5, 6, 7, 7, 7, 7, 7, 6, 5, 4]


def test_older_files_of_modernbert_name_every_nth_layer_and_two_bases(written):
    directory = written(modernbert())
    new = load(directory).config

    def rename(raw: dict) -> None:
        del raw["layer_types"], raw["rope_parameters"]
        raw |= {"global_attn_every_n_layers": 3, "global_rope_theta": 160_000.0, "local_rope_theta": 10_000.0}

    assert load(change_config(directory, rename)).config == new
    other = load(change_config(directory, lambda raw: raw.update(local_rope_theta=11.0, global_attn_every_n_layers=2)))
    assert other.config.encoder.local.layers == (1, 3)
    assert other.config.encoder.local.positions.base == 11.0


def test_sinusoidal_positions_are_stored_as_learned_ones_are(written):
    directory = written(distilbert(sinusoidal_pos_embds=True))
    theirs = transformers.DistilBertForMaskedLM.from_pretrained(directory).eval()
    ids = token_ids(2, 11, d_vocab=22) + 1
    with torch.no_grad():
        close(run(load(directory), ids).logits, theirs(ids).logits, 1e-5)


def test_roberta_reads_texts_that_are_shorter_than_its_table_by_the_unread_rows(written):
    model = load(written(roberta()))
    assert model.config.n_ctx == 15
    run(model, token_ids(1, 15, d_vocab=20))
    with pytest.raises(InputError, match="longer than the model's context of 15"):
        run(model, token_ids(1, 16, d_vocab=20))


@pytest.mark.parametrize(
    ("variant", "fields", "expected"),
    [
        (bert(), {"position_embedding_type": "relative_key"}, "relative_key' is not supported"),
        (roberta(), {"is_decoder": True}, "is_decoder True is not supported"),
        (electra(), {"add_cross_attention": True}, "add_cross_attention True is not supported"),
        (roberta(), {"pad_token_id": -1}, "pad_token_id must be a whole number from 0"),
        (modernbert(), {"layer_types": ["full_attention"]}, "layer_types must call each of 4 layers"),
        (modernbert(), {"layer_types": ["chunked_attention"] * 4}, "layer_types must call each of 4 layers"),
        (modernbert(), {"rope_parameters": {"full_attention": {"rope_type": "dynamic"}}}, "'dynamic' is not supported"),
        (modernbert(), {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling"),
        (distilbert(), {"activation": "tanh"}, "'tanh' is not supported"),
    ],
)
def test_what_does_not_fit_is_refused(variant, fields, expected, written):
    directory = change_config(written(variant), lambda raw: raw.update(fields))
    with pytest.raises(InputError) as caught:
        load(directory)
    assert expected in str(caught.value)


# --- masked words in the analyses

WORDS = ["Tim", "Sue", "saw", "the", "dog", "and", "ran"]


def filler(variant: Variant, directory: Path, mask: str) -> Transformer:
    """A tiny random model with a tokenizer of whole words."""
    make_pair(variant, torch.float32, directory)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocabulary = {word: at for at, word in enumerate([*special, mask, *WORDS])}
    backend = Backend(WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = WhitespaceSplit()
    backend.add_special_tokens([AddedToken(word, special=True) for word in [*special, mask]])
    backend.post_processor = TemplateProcessing("[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    backend.save(str(directory / "tokenizer.json"))
    return load(directory)


def text(number: int) -> AnnotatedText:
    words = tuple(WORDS[(number + 2 * at) % len(WORDS)] for at in range(11))
    return AnnotatedText(words, (True,) * len(words), f"document {number}")


@pytest.mark.parametrize(
    ("variant", "mask"),
    [*((each, "<mask>" if name == "roberta" else "[MASK]") for name, each in MASKED.items())],
    ids=MASKED,
)
def test_masked_words_are_what_knocked_out_heads_are_judged_by(variant, mask, tmp_path):
    model = filler(variant, tmp_path, mask)
    way = MaskedWord.of(model)
    (window,) = windows(text(0), model.tokenizer, model.config.n_ctx, Counter())
    ids = way.text(window, [4])
    assert ids[4] == 4
    theirs = getattr(transformers, variant.model).from_pretrained(tmp_path).eval()
    with torch.no_grad():
        expected = theirs(torch.tensor([ids])).logits[0, 4].log_softmax(-1)[window.ids[4]]
    read = way.read(window, [4])
    out = run(model, TokenBatch.from_rows([ids]), "encoder.resid_final")
    got = read.value(way.output(out["encoder.resid_final"][0, read.positions]).log_softmax(-1))
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    table = knockouts.measure(model, [text(number) for number in range(4)], behaviours=["position"]).table
    assert {*table["readout"]} == {"masked word"}
    assert table["drop"].notna().all()
    assert table["drop"].abs().max() > 0

"""Encoders, with and without an output layer for masked words: which there is, the stored tensors say."""

from collections import Counter
from pathlib import Path

import pytest
import torch
from changed_files import change_config, change_tensors
from families import variant
from parity import Variant, close, make_pair, transformers
from tiny import token_ids
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing

from analyses.labels import knockouts
from analyses.labels.readouts import MaskedWord
from analyses.reading.windows import windows
from interp import AnnotatedText, InputError, TokenBatch, Transformer, run
from models import load

MASKED = {name: variant(name) for name in ("bert", "roberta", "distilbert", "electra", "modernbert")}
MASKED["modernbert without bias"] = variant("modernbert", decoder_bias=False)


@pytest.fixture
def written(tmp_path):
    """Writes a variant's model into a directory."""
    return lambda variant: make_pair(variant, torch.float32, tmp_path).directory


def assert_same_output(directory: Path, theirs: torch.nn.Module, ids: torch.Tensor, output: str) -> None:
    with torch.no_grad():
        expected = getattr(theirs.eval()(ids), output)
    out = run(load(directory), ids, "encoder.resid_final")
    close(out["encoder.resid_final"] if output == "last_hidden_state" else out.logits, expected, 1e-5)


@pytest.mark.parametrize("which", MASKED)
def test_masked_words_are_read_whatever_the_file_is_called(which, written):
    directory = written(MASKED[which])
    model = load(directory)
    assert model.output is not None
    for architectures in (None, [], ["BertForSequenceClassification"]):
        again = load(change_config(directory, lambda raw, new=architectures: raw.update(architectures=new)))
        assert again.config == model.config
    change_config(directory, lambda raw: raw.update(tie_word_embeddings=False))
    with pytest.raises(InputError, match="tie_word_embeddings False is not supported"):
        load(directory)


OTHER_TASKS = {
    "bert": ("BertForSequenceClassification", "BertForNextSentencePrediction", "BertForQuestionAnswering"),
    "roberta": ("RobertaForTokenClassification", "RobertaForSequenceClassification"),
    "distilbert": ("DistilBertForSequenceClassification", "DistilBertForQuestionAnswering"),
    "electra": ("ElectraForPreTraining", "ElectraForSequenceClassification", "ElectraForMultipleChoice"),
    "modernbert": (
        *("ModernBertForSequenceClassification", "ModernBertForTokenClassification"),
        "ModernBertForQuestionAnswering",
    ),
}


@pytest.mark.parametrize(
    ("family", "model"), [(family, model) for family in OTHER_TASKS for model in OTHER_TASKS[family]]
)
def test_outputs_of_other_tasks_are_left_out(family, model, written):
    without = {"decoder_bias": False} if model == "ModernBertForTokenClassification" else {}
    directory = written(variant(family, model=model, **without))
    theirs = transformers.AutoModel.from_pretrained(directory)
    for _ in range(2):
        assert load(directory).output is None
        assert_same_output(directory, theirs, token_ids(2, 11, d_vocab=20) + 2, "last_hidden_state")
        change_config(directory, lambda raw: raw.update(architectures=["ForMaskedLM"]))


def test_both_outputs_of_pretraining_are_told_apart(written):
    directory = written(variant("bert", model="BertForPreTraining"))
    theirs = transformers.BertForPreTraining.from_pretrained(directory).eval()
    ids = token_ids(2, 11, d_vocab=22) + 1
    with torch.no_grad():
        close(run(load(directory), ids).logits, theirs(ids).prediction_logits, 1e-5)


COPIES = [
    ("bert", "cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
    ("bert", "cls.predictions.decoder.bias", "cls.predictions.bias"),
    ("roberta", "lm_head.decoder.weight", "roberta.embeddings.word_embeddings.weight"),
    ("roberta", "lm_head.decoder.bias", "lm_head.bias"),
    ("distilbert", "vocab_projector.weight", "distilbert.embeddings.word_embeddings.weight"),
    ("electra", "generator_lm_head.weight", "electra.embeddings.word_embeddings.weight"),
    ("modernbert", "decoder.weight", "model.embeddings.tok_embeddings.weight"),
    ("modernbert without bias", "decoder.weight", "model.embeddings.tok_embeddings.weight"),
]


@pytest.mark.parametrize(("which", "copy", "original"), COPIES)
def test_files_may_hold_once_more_what_is_one_tensor_but_not_another(which, copy, original, written):
    directory = written(MASKED[which])
    model = load(directory)
    change_tensors(directory, lambda stored: stored | {copy: stored[original].clone()})
    assert load(directory).config == model.config
    change_tensors(directory, lambda stored: stored | {copy: stored[original] + 1})
    with pytest.raises(InputError, match=f"{copy} and .* are one, but they differ"):
        load(directory)


def test_the_bias_of_masked_words_may_have_either_name(written):
    directory, (_, copy, original) = written(MASKED["bert"]), COPIES[1]
    model = load(directory)
    change_tensors(directory, lambda stored: stored | {copy: stored.pop(original)})
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


def test_sinusoidal_positions_are_stored_as_learned_ones_are(written):
    directory = written(variant("distilbert", sinusoidal_pos_embds=True))
    theirs = transformers.DistilBertForMaskedLM.from_pretrained(directory)
    assert_same_output(directory, theirs, token_ids(2, 11, d_vocab=22) + 1, "logits")


def test_roberta_reads_texts_that_are_shorter_than_its_table_by_the_unread_rows(written):
    model = load(written(MASKED["roberta"]))
    assert model.config.n_ctx == 15
    run(model, token_ids(1, 15, d_vocab=20))
    with pytest.raises(InputError, match="longer than the model's context of 15"):
        run(model, token_ids(1, 16, d_vocab=20))


# --- masked words in the analyses

WORDS = ["Tim", "Sue", "saw", "the", "dog", "and", "ran"]


def filler(variant: Variant, directory: Path, mask: str) -> Transformer:
    """A tiny random model with a tokenizer of whole words."""
    make_pair(variant, torch.float32, directory)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocabulary = {word: id for id, word in enumerate([*special, mask, *WORDS])}
    backend = Backend(WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = WhitespaceSplit()
    backend.add_special_tokens([AddedToken(word, special=True) for word in [*special, mask]])
    backend.post_processor = TemplateProcessing("[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    backend.save(str(directory / "tokenizer.json"))
    return load(directory)


def text(number: int) -> AnnotatedText:
    words = tuple(WORDS[(number + 2 * place) % len(WORDS)] for place in range(11))
    return AnnotatedText(words, (True,) * len(words), f"document {number}")


@pytest.mark.parametrize("which", MASKED)
def test_masked_words_are_what_knocked_out_heads_are_judged_by(which, tmp_path):
    model = filler(MASKED[which], tmp_path, "<mask>" if which == "roberta" else "[MASK]")
    way = MaskedWord.of(model)
    (window,) = windows(text(0), model.tokenizer, model.config.n_ctx, Counter())
    ids = way.text(window, [4])
    assert ids[4] == 4
    theirs = getattr(transformers, MASKED[which].model).from_pretrained(tmp_path).eval()
    with torch.no_grad():
        expected = theirs(torch.tensor([ids])).logits[0, 4].log_softmax(-1)[window.ids[4]]
    read = way.read(window, [4])
    out = run(model, TokenBatch.from_rows([ids]), "encoder.resid_final")
    got = read.value(way.output(out["encoder.resid_final"][0, read.positions]).log_softmax(-1))
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    if which == "modernbert":  # the others differ in how they name their weights
        table = knockouts.measure(model, [text(number) for number in range(4)], behaviours=["position"]).table
        assert {*table["readout"]} == {"masked word"}
        assert table["drop"].notna().all()
        assert table["drop"].abs().max() > 0

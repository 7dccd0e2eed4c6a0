"""Encoders, with and without an output layer for masked words: which there is, the stored tensors say."""

from collections import Counter

import pytest
import torch
from changed_files import change_config
from families import variant
from parity import close, make_pair, transformers
from tiny import token_ids
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing

from analyses.labels import knockouts
from analyses.labels.readouts import MaskedWord
from analyses.reading.windows import windows
from interp import AnnotatedText, InputError, TokenBatch, run
from models import load

OTHER_TASKS = [
    *[("bert", "BertForNextSentencePrediction"), ("bert", "BertForQuestionAnswering")],
    *[("roberta", "RobertaForTokenClassification"), ("distilbert", "DistilBertForSequenceClassification")],
    *[("electra", "ElectraForPreTraining"), ("electra", "ElectraForSequenceClassification")],
    *[("modernbert", "ModernBertForSequenceClassification"), ("modernbert", "ModernBertForTokenClassification")],
]


@pytest.mark.parametrize(("family", "model"), OTHER_TASKS)
def test_outputs_of_other_tasks_are_left_out(family, model, tmp_path):
    without = {"decoder_bias": False} if model == "ModernBertForTokenClassification" else {}
    make_pair(variant(family, model=model, **without), torch.float32, tmp_path)
    ids = token_ids(2, 11, d_vocab=20) + 2
    with torch.no_grad():
        expected = transformers.AutoModel.from_pretrained(tmp_path).eval()(ids).last_hidden_state
    for _ in range(2):
        ours = load(tmp_path)
        assert ours.output is None
        close(run(ours, ids, "encoder.resid_final")["encoder.resid_final"], expected, 1e-5)
        change_config(tmp_path, lambda raw: raw.update(architectures=["ForMaskedLM"]))


@pytest.mark.parametrize(
    ("changed", "output"),
    [
        (variant("bert", model="BertForPreTraining"), "prediction_logits"),
        (variant("distilbert", sinusoidal_pos_embds=True), "logits"),
    ],
    ids=["both outputs of pretraining", "sinusoidal positions, stored as learned ones are"],
)
def test_logits_are_those_of_masked_words(changed, output, tmp_path):
    pair, ids = make_pair(changed, torch.float32, tmp_path), token_ids(2, 11, d_vocab=22) + 1
    with torch.no_grad():
        close(run(pair.ours, ids).logits, pair.theirs(ids)[output], 1e-5)


def test_roberta_reads_texts_that_are_shorter_than_its_table_by_the_unread_rows(tmp_path):
    model = make_pair(variant("roberta"), torch.float32, tmp_path).ours
    assert model.config.n_ctx == 15
    run(model, token_ids(1, 15, d_vocab=20))
    with pytest.raises(InputError, match="longer than the model's context of 15"):
        run(model, token_ids(1, 16, d_vocab=20))


WORDS = ["Tim", "Sue", "saw", "the", "dog", "and", "ran"]


def text(number: int) -> AnnotatedText:
    words = tuple(WORDS[(number + 2 * place) % len(WORDS)] for place in range(11))
    return AnnotatedText(words, (True,) * len(words), f"document {number}")


def test_masked_words_are_what_knocked_out_heads_are_judged_by(tmp_path):
    theirs = make_pair(variant("modernbert"), torch.float32, tmp_path).theirs
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    backend = Backend(WordLevel({word: id for id, word in enumerate([*special, *WORDS])}, unk_token="[UNK]"))
    backend.pre_tokenizer = WhitespaceSplit()
    backend.add_special_tokens([AddedToken(word, special=True) for word in special])
    backend.post_processor = TemplateProcessing("[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    backend.save(str(tmp_path / "tokenizer.json"))
    model = load(tmp_path)
    readout = MaskedWord.of(model)
    (window,) = windows(text(0), model.tokenizer, model.config.n_ctx, Counter())
    ids = readout.text(window, [4])
    assert ids[4] == 4
    with torch.no_grad():
        expected = theirs(torch.tensor([ids])).logits[0, 4].log_softmax(-1)[window.ids[4]]
    read = readout.read(window, [4])
    out = run(model, TokenBatch.from_rows([ids]), "encoder.resid_final")
    logits = readout.output(out["encoder.resid_final"][0, read.positions])
    torch.testing.assert_close(read.value(logits.log_softmax(-1)), expected, atol=1e-5, rtol=1e-5)
    table = knockouts.measure(model, [text(number) for number in range(4)], behaviours=["position"]).table
    assert {*table["readout"]} == {"masked word"}
    assert table["drop"].notna().all()
    assert table["drop"].abs().max() > 0

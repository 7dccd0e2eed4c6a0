"""Encoders, with and without an output layer for masked words: which there is, the stored tensors say."""

import pytest
import torch
from changed_files import change_config
from families import variant
from parity import close, make_pair, transformers
from tiny import token_ids

from interp import InputError, run
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

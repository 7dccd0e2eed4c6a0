"""Encoders from outside, alone and before a decoder: which output layer do they have, and what do they write?"""

from pathlib import Path

import pytest
import torch
from changed_files import change_config, change_tensors
from families import variant
from parity import close, make_pair, transformers
from tiny import token_ids
from torch.testing import assert_close

from analyses.cli import app as cli
from interp import InputError, TokenBatch, generate, run
from models import load, save
from models.families.target_ids import with_generation


@pytest.mark.parametrize(("distance", "source", "target"), [(5, 15, 7), (5, 7, 60), (8, 9, 7), (16, 7, 17)])
def test_distances_have_no_bucket_where_theirs_have_none(distance, source, target, tmp_path):
    buckets = {"relative_attention_num_buckets": 32, "relative_attention_max_distance": distance}
    pair = make_pair(variant("t5", **buckets, length=8), torch.float64, tmp_path)
    assert pair.deviation() < 1e-10  # of short texts
    batches = [TokenBatch.from_rows(pair.texts(length)) for length in (source, target)]
    with pytest.raises(IndexError):
        pair.ask_theirs(*batches)
    with pytest.raises(InputError, match="the text is too long: max_distance must be above"):
        pair.ask_ours(*batches)


def same_texts(ours: torch.Tensor, theirs: torch.Tensor, ends: set[int]) -> None:
    """Assert equality up to each text's end; what follows is padding, which is up to them."""
    for first, second in zip(ours.tolist(), theirs.tolist(), strict=True):
        length = next((place + 1 for place, id in enumerate(second) if place and id in ends), len(second))
        assert first[:length] == second[:length]
        assert {*first[length:]} <= ends


WRITTEN = {
    "plain": {},
    "first": {"forced_bos_token_id": 5},
    "ends": {"eos_token_id": 7},
    "first and last": {"forced_bos_token_id": 5, "forced_eos_token_id": 7, "eos_token_id": 7},
    "several ends": {"eos_token_id": [7, 11, 13]},
    "never": {"bad_words_ids": [[17], [3], [5, 7]], "eos_token_id": 7},
}
APART = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 19}


@pytest.mark.parametrize("described", [variant("bart"), variant("marian", **APART)], ids=["bart", "marian"])
def test_texts_begin_and_end_as_theirs_do(described, tmp_path):
    theirs = described.build(torch.float64).eval()
    source = TokenBatch.from_rows([token_ids(length, d_vocab=23, seed=length).tolist() for length in range(3, 17)])
    stated = {"decoder_start_token_id": 2, "pad_token_id": 2, "max_new_tokens": 8, "do_sample": False}
    for name, settings in WRITTEN.items():
        theirs.generation_config = transformers.GenerationConfig(**stated, **settings)
        theirs.save_pretrained(tmp_path / name)
        ours = load(tmp_path / name, dtype=torch.float64)
        with torch.no_grad():
            expected = theirs.generate(source.ids, attention_mask=source.mask.long())
        same_texts(generate(ours, source, 8).ids, expected, {*ours.config.writing.ends})
        save(ours, tmp_path / "again")
        assert load(tmp_path / "again").config == ours.config


def test_generation_config_counts_where_there_is_one():
    raw = {"decoder_start_token_id": 3, "eos_token_id": 4, "forced_eos_token_id": 4}
    config = with_generation(raw, {"eos_token_id": 5})
    assert (config["decoder_start_token_id"], config["eos_token_id"]) == (3, 5)
    assert {config["forced_bos_token_id"], config["forced_eos_token_id"], config.get("bad_words_ids")} == {None}
    assert with_generation(raw, {"decoder_start_token_id": 0})["decoder_start_token_id"] == 0


# config.json, whether it has its own output layer, and whether the stream is scaled before it
OUTPUTS = {
    "old, tied": ({"tie_word_embeddings": True}, False, True),
    "old, silent": ({}, False, True),
    "old, untied": ({"tie_word_embeddings": False}, True, False),
    "new, tied": ({"tie_word_embeddings": True, "scale_decoder_outputs": True}, False, True),
    "new, tied, unscaled": ({"tie_word_embeddings": True, "scale_decoder_outputs": False}, False, False),
    "new, untied": ({"tie_word_embeddings": True, "scale_decoder_outputs": False}, True, False),
    "untied, scaled": ({"tie_word_embeddings": False, "scale_decoder_outputs": True}, True, True),
}


@pytest.mark.parametrize(("fields", "untied", "scaled"), OUTPUTS.values(), ids=OUTPUTS)
def test_the_output_layer_of_each_t5(fields, untied, scaled, tmp_path):
    variant("t5").build(torch.float64).save_pretrained(tmp_path)
    unsaid = {"scale_decoder_outputs", "tie_word_embeddings"} - {*fields}
    change_config(tmp_path, lambda raw: [raw.update(fields), *(raw.pop(name, None) for name in unsaid)])
    if untied:
        output = {"lm_head.weight": torch.randn(23, 42, dtype=torch.float64)}
        change_tensors(tmp_path, lambda stored: stored | output)
    ours = load(tmp_path, dtype=torch.float64)
    assert ours.config.output == ("untied" if untied else "tied")
    assert ours.config.output_scale == (42**-0.5 if scaled else 1)
    save(ours, tmp_path / "again")
    source, target = token_ids(2, 9, d_vocab=19), token_ids(2, 5, d_vocab=19)
    logits = run(ours, source, target=target).logits
    assert torch.equal(run(load(tmp_path / "again", dtype=torch.float64), source, target=target).logits, logits)
    for directory in (tmp_path, tmp_path / "again"):
        theirs = transformers.T5ForConditionalGeneration.from_pretrained(directory, dtype=torch.float64)
        with torch.no_grad():
            assert_close(logits, theirs(source, decoder_input_ids=target).logits, atol=1e-10, rtol=1e-10)


@pytest.fixture(scope="module")
def phonemes(shared_file) -> Path:
    return shared_file("models", "spelling-to-phonemes")


def test_spelling_to_phonemes_equals_transformers(phonemes):
    ours, theirs = load(phonemes), transformers.BartForConditionalGeneration.from_pretrained(phonemes).eval()
    source = TokenBatch.from_texts(["photograph", "knight", "Worcestershire"], ours.tokenizer)
    spoken = ("fˈOɾəɡɹˌæf", "nˈIt", "wˈʊstəʃə")
    target = TokenBatch.from_rows([[1, *ours.target_tokenizer.encode(text)] for text in spoken])
    with torch.no_grad():
        expected = theirs(source.ids, attention_mask=source.mask.long(), decoder_input_ids=target.ids)
    got, read = run(ours, source, target=target).logits, target.mask
    assert_close(got[read], expected.logits[read], atol=3e-5, rtol=1e-5)  # other kernels round float32 differently


def test_photograph_is_spoken_as_its_author_says(phonemes, capsys):
    ours = load(phonemes)
    assert ours.target_tokenizer.decode(generate(ours, "photograph").ids[0]) == "fˈOɾəɡɹˌæf"
    with pytest.raises(SystemExit):
        cli.main(["generate", "photograph", "--model", str(phonemes)])
    assert capsys.readouterr().out == "fˈOɾəɡɹˌæf\n"


# Encoders alone: the stored tensors say whether there is an output layer for masked words.

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

"""Encoder-decoders from outside compute what they computed there: BART, Marian and T5."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from parity import Variant, checked, make_pair, transformers
from safetensors.torch import load_file, save_file
from tiny import token_ids
from torch.testing import assert_close

from analyses.cli import app as cli
from interp import InputError, TokenBatch, Transformer, generate, run
from models import load, save
from models.families import bart, marian, t5
from models.families.target_ids import with_generation

SIZES = {
    "d_model": 66,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 6,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 29,
    "decoder_ffn_dim": 31,
    "max_position_embeddings": 17,
    "vocab_size": 23,
    "decoder_start_token_id": 2,
}
UNENDING = {"eos_token_id": None, "forced_eos_token_id": None}
BART = MARIAN = SIZES | UNENDING | {"pad_token_id": 2}
T5 = {
    "d_model": 42,
    "d_kv": 5,
    "d_ff": 31,
    "num_layers": 2,
    "num_decoder_layers": 1,
    "num_heads": 3,
    "vocab_size": 23,
    "relative_attention_num_buckets": 10,
    "relative_attention_max_distance": 17,
    "decoder_start_token_id": 0,
    "eos_token_id": None,
}
GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
PADDED = {"counts_padding": True, "reserved": (2,)}  # their padding token has no gradient
FAR = {"length": 37, "target_length": 29, "new_tokens": 23}  # texts longer than the farthest bucket

TestBart = checked(
    {
        "bart": Variant("BartConfig", "BartForConditionalGeneration", BART, **PADDED),
        "bart scaled": Variant(
            "BartConfig",
            "BartForConditionalGeneration",
            BART | {"scale_embedding": True, "activation_function": "gelu_new", "decoder_layers": 1},
            **PADDED,
        ),
    }
)
TestMarian = checked(
    {
        "marian": Variant("MarianConfig", "MarianMTModel", MARIAN | {"activation_function": "swish"}, **PADDED),
        "marian scaled": Variant("MarianConfig", "MarianMTModel", MARIAN | {"scale_embedding": True}, **PADDED),
        "marian apart": Variant(
            "MarianConfig",
            "MarianMTModel",
            MARIAN | {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 19},
            **PADDED,
        ),
        "marian untied": Variant(
            "MarianConfig",
            "MarianMTModel",
            MARIAN
            | {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 19, "tie_word_embeddings": False},
            **PADDED,
        ),
    }
)
TestT5 = checked(
    {
        "t5": Variant("T5Config", "T5ForConditionalGeneration", T5, **FAR),
        "t5 gated": Variant("T5Config", "T5ForConditionalGeneration", T5 | GATED, **FAR),
        "t5 few buckets": Variant(
            "T5Config",
            "T5ForConditionalGeneration",
            T5
            | {
                "relative_attention_num_buckets": 7,
                "relative_attention_max_distance": 11,
                "num_decoder_layers": None,
                "layer_norm_epsilon": 1e-3,
                "feed_forward_proj": "gated-silu",
            },
            **FAR,
        ),
    }
)


@pytest.mark.parametrize(("distance", "source", "target"), [(5, 15, 7), (5, 7, 60), (8, 9, 7), (16, 7, 17)])
def test_distances_have_no_bucket_where_theirs_have_none(distance, source, target, tmp_path):
    few = {"relative_attention_num_buckets": 32, "relative_attention_max_distance": distance}
    pair = make_pair(Variant("T5Config", "T5ForConditionalGeneration", T5 | few, length=8), torch.float64, tmp_path)
    assert pair.deviation() < 1e-10  # of short texts
    batches = [TokenBatch.from_rows(pair.texts(length)) for length in (source, target)]
    with pytest.raises(IndexError):
        pair.ask_theirs(*batches)
    with pytest.raises(InputError, match="some distances of this text have no bucket"):
        pair.ask_ours(*batches)


@pytest.mark.parametrize("buckets", [1, 3])
def test_too_few_buckets_are_refused(buckets):
    few = T5 | {"relative_attention_num_buckets": buckets}
    with pytest.raises(InputError, match=f"distances need at least 4 buckets, got {buckets}"):
        t5.FAMILY.config(few)
    theirs, ids = transformers.T5ForConditionalGeneration(transformers.T5Config(**few)), token_ids(1, 3, d_vocab=23)
    with pytest.raises(ZeroDivisionError):
        theirs(ids, decoder_input_ids=ids)


# --- what is written


def same_texts(ours: torch.Tensor, theirs: torch.Tensor, ends: set[int]) -> None:
    """Equal up to each text's end: what follows there is padding, which is theirs to choose."""
    for one, other in zip(ours.tolist(), theirs.tolist(), strict=True):
        length = next((at + 1 for at, id in enumerate(other) if at and id in ends), len(other))
        assert one[:length] == other[:length]
        assert {*one[length:]} <= ends


WRITTEN = {
    "plain": {},
    "first": {"forced_bos_token_id": 5},
    "ends": {"eos_token_id": 7},
    "first and last": {"forced_bos_token_id": 5, "forced_eos_token_id": 7, "eos_token_id": 7},
    "several ends": {"eos_token_id": [7, 11, 13]},
    "never": {"bad_words_ids": [[17], [3], [5, 7]], "eos_token_id": 7},
}


@pytest.mark.parametrize(
    "variant", [TestBart.VARIANTS["bart"], TestMarian.VARIANTS["marian apart"]], ids=["bart", "marian"]
)
@pytest.mark.parametrize("settings", WRITTEN.values(), ids=WRITTEN)
def test_texts_begin_and_end_as_theirs_do(variant, settings, tmp_path):
    theirs = variant.build(torch.float64).eval()
    stated = {"decoder_start_token_id": 2, "pad_token_id": 2, "max_new_tokens": 8, "do_sample": False}
    theirs.generation_config = transformers.GenerationConfig(**stated, **settings)
    theirs.save_pretrained(tmp_path)
    ours = load(tmp_path, dtype=torch.float64)
    source = TokenBatch.from_rows([token_ids(length, d_vocab=23, seed=length).tolist() for length in range(3, 17)])
    with torch.no_grad():
        expected = theirs.generate(source.ids, attention_mask=source.mask.long())
    same_texts(generate(ours, source, 8).ids, expected, {*ours.config.writing.ends})
    save(ours, tmp_path / "again")
    assert load(tmp_path / "again").config == ours.config


def test_generation_config_counts_where_there_is_one(tmp_path):
    raw = {"decoder_start_token_id": 3, "eos_token_id": 4, "forced_eos_token_id": 4}
    assert with_generation(raw, {"eos_token_id": 5}) | {"bad_words_ids": None} == {
        "decoder_start_token_id": 3,
        "eos_token_id": 5,
        "forced_bos_token_id": None,
        "forced_eos_token_id": None,
        "bad_words_ids": None,
    }
    assert with_generation(raw, {"decoder_start_token_id": 0})["decoder_start_token_id"] == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [("decoder_start_token_id", -1), ("eos_token_id", "2"), ("forced_bos_token_id", True), ("bad_words_ids", [3])],
)
def test_an_id_that_is_none(field, value):
    with pytest.raises(InputError, match=f"config.json: {field} must be"):
        bart.FAMILY.config(BART | {field: value})


# --- ways in which the same model is written


def saved(variant: Variant, directory: Path) -> Any:
    theirs = variant.build(torch.float64).eval()
    theirs.save_pretrained(directory)
    return theirs


def edited(directory: Path, change: dict[str, Any], drop: tuple[str, ...] = ()) -> None:
    path = directory / "config.json"
    raw = {name: value for name, value in json.loads(path.read_text()).items() if name not in drop}
    path.write_text(json.dumps(raw | change))


def stored(directory: Path, more: dict[str, torch.Tensor], drop: tuple[str, ...] = ()) -> None:
    path = directory / "model.safetensors"
    tensors = {name: value for name, value in load_file(path).items() if name not in drop}
    save_file(tensors | more, path, {"format": "pt"})


def logits(directory: Path) -> torch.Tensor:
    ours = load(directory, dtype=torch.float64)
    return run(ours, token_ids(2, 9, d_vocab=19), target=token_ids(2, 5, d_vocab=19)).logits


def their_logits(theirs: Any) -> torch.Tensor:
    with torch.no_grad():
        return theirs(token_ids(2, 9, d_vocab=19), decoder_input_ids=token_ids(2, 5, d_vocab=19)).logits


# config.json, whether there is an output layer of its own, and whether the stream is scaled before it
OUTPUTS = {
    "old, tied": ({"tie_word_embeddings": True}, False, True),
    "old, silent": ({}, False, True),
    "old, untied": ({"tie_word_embeddings": False}, True, False),
    "new, tied": ({"tie_word_embeddings": True, "scale_decoder_outputs": True}, False, True),
    "new, tied, unscaled": ({"tie_word_embeddings": True, "scale_decoder_outputs": False}, False, False),
    "new, untied": ({"tie_word_embeddings": True, "scale_decoder_outputs": False}, True, False),
    "untied, scaled": ({"tie_word_embeddings": False, "scale_decoder_outputs": True}, True, True),
}


@pytest.mark.parametrize(("fields", "own", "scaled"), OUTPUTS.values(), ids=OUTPUTS)
def test_the_output_layer_of_each_t5(fields, own, scaled, tmp_path):
    saved(TestT5.VARIANTS["t5"], tmp_path)
    edited(tmp_path, fields, drop=("scale_decoder_outputs", "tie_word_embeddings"))
    if own:
        stored(tmp_path, {"lm_head.weight": torch.randn(23, 42, dtype=torch.float64)})
    ours = load(tmp_path, dtype=torch.float64)
    assert ours.config.output == ("untied" if own else "tied")
    assert ours.config.output_scale == (42**-0.5 if scaled else 1)
    theirs = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path, dtype=torch.float64)
    assert_close(logits(tmp_path), their_logits(theirs), atol=1e-10, rtol=1e-10)
    save(ours, tmp_path / "again")
    theirs = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "again", dtype=torch.float64)
    assert_close(logits(tmp_path / "again"), their_logits(theirs), atol=1e-10, rtol=1e-10)
    assert_close(logits(tmp_path / "again"), logits(tmp_path), atol=0, rtol=0)


def test_files_of_old_hold_tensors_more_than_once(tmp_path):
    theirs = saved(TestT5.VARIANTS["t5"], tmp_path)
    shared = theirs.shared.weight.detach()
    names = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
    unread = {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": torch.zeros(10, 3)}
    stored(tmp_path, {name: shared.clone() for name in names} | unread)
    assert_close(logits(tmp_path), their_logits(theirs), atol=1e-10, rtol=1e-10)
    stored(tmp_path, {names[0]: shared + 1})
    with pytest.raises(InputError, match=r"encoder\.embed_tokens\.weight and shared\.weight are one, but they differ"):
        load(tmp_path)


def test_a_bias_of_logits_that_a_file_lacks_is_zero(tmp_path):
    theirs = saved(TestBart.VARIANTS["bart"], tmp_path)
    theirs.final_logits_bias.zero_()
    names = [name for name in load_file(tmp_path / "model.safetensors") if name.startswith("model.")]
    bare = {name.removeprefix("model."): value for name, value in load_file(tmp_path / "model.safetensors").items()}
    stored(
        tmp_path,
        {n.removeprefix("model."): bare[n.removeprefix("model.")] for n in names},
        (*names, "final_logits_bias"),
    )
    assert_close(logits(tmp_path), their_logits(theirs), atol=1e-10, rtol=1e-10)


def test_stored_sines_are_passed_over(tmp_path):
    theirs = saved(TestMarian.VARIANTS["marian"], tmp_path)
    table = theirs.model.encoder.embed_positions.weight.detach()
    stored(tmp_path, {f"model.{stack}.embed_positions.weight": table.clone() for stack in ("encoder", "decoder")})
    assert_close(logits(tmp_path), their_logits(theirs), atol=1e-10, rtol=1e-10)


def test_a_stored_table_of_positions_that_is_no_sine_is_refused(tmp_path):
    theirs = saved(TestMarian.VARIANTS["marian"], tmp_path)
    table = theirs.model.encoder.embed_positions.weight.detach()
    for wrong in (table.flip(0), table[:, 0], table + torch.linspace(0, 0.1, len(table))[:, None]):
        stored(tmp_path, {"model.decoder.embed_positions.weight": wrong.contiguous()})
        with pytest.raises(InputError, match=r"decoder.embed_positions.weight is not the table that a marian model"):
            load(tmp_path)
    stored(tmp_path, {"model.decoder.embed_positions.weight": table.bfloat16()})
    assert_close(logits(tmp_path), their_logits(theirs), atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize(
    ("family", "raw", "change", "message"),
    [
        (bart, BART, {"tie_word_embeddings": False}, "tie_word_embeddings False is not supported, only true"),
        (bart, BART, {"normalize_before": True}, "normalize_before True is not supported"),
        (bart, BART, {"add_final_layer_norm": True}, "add_final_layer_norm True"),
        (bart, BART, {"decoder_attention_heads": 5}, "d_model 66 is not a multiple of decoder_attention_heads 5"),
        (marian, MARIAN, {"tie_word_embeddings": False}, "where the embeddings are shared"),
        (marian, MARIAN, {"decoder_vocab_size": 19}, "decoder_vocab_size 19 is not supported, only 23"),
        (marian, MARIAN, {"static_position_embeddings": False}, "static_position_embeddings False"),
        (t5, T5, {"feed_forward_proj": "gated-tanh"}, "feed_forward_proj 'gated-tanh' is not supported"),
        (t5, T5, {"dense_act_fn": "gelu"}, "dense_act_fn 'gelu' is not supported"),
        (t5, T5, {"is_gated_act": True}, "is_gated_act True"),
    ],
)
def test_settings_that_change_the_computation_are_refused(family, raw, change, message):
    with pytest.raises(InputError, match=message):
        family.FAMILY.config(raw | change)


@pytest.mark.parametrize(("kind", "name"), [("bart", "bart"), ("marian", "marian"), ("t5", "t5")])
def test_an_encoder_alone_is_refused(kind, name, tmp_path):
    saved({"bart": TestBart, "marian": TestMarian, "t5": TestT5}[kind].VARIANTS[name], tmp_path)
    edited(tmp_path, {"is_encoder_decoder": False})
    with pytest.raises(InputError, match="is_encoder_decoder False is not supported"):
        load(tmp_path)


# --- the model of spellings and phonemes


@pytest.fixture(scope="module")
def phonemes(shared_file) -> Path:
    return shared_file("models", "spelling-to-phonemes")


def test_spelling_to_phonemes_equals_transformers(phonemes):
    ours, theirs = load(phonemes), transformers.BartForConditionalGeneration.from_pretrained(phonemes).eval()
    source = TokenBatch.from_texts(["photograph", "knight", "Worcestershire"], ours.tokenizer)
    target = TokenBatch.from_rows(
        [[1, *ours.target_tokenizer.encode(text)] for text in ("fˈOɾəɡɹˌæf", "nˈIt", "wˈʊstəʃə")]
    )
    with torch.no_grad():
        expected = theirs(source.ids, attention_mask=source.mask.long(), decoder_input_ids=target.ids)
    got, read = run(ours, source, target=target).logits, target.mask
    assert_close(got[read], expected.logits[read], atol=3e-5, rtol=1e-5)  # other kernels: float32 rounds otherwise


def test_photograph_is_spoken_as_its_author_says(phonemes, capsys):
    ours = load(phonemes)
    assert ours.target_tokenizer.decode(generate(ours, "photograph").ids[0]) == "fˈOɾəɡɹˌæf"
    with pytest.raises(SystemExit):
        cli.main(["generate", "photograph", "--model", str(phonemes)])
    assert capsys.readouterr().out == "fˈOɾəɡɹˌæf\n"


def test_phonemes_are_predicted_as_well_as_their_author_says(phonemes):
    ours, lines = load(phonemes), (phonemes / "pronunciations.tsv").read_text(encoding="utf-8").splitlines()
    words, spoken = zip(*(line.split("\t") for line in sorted(lines[1:], key=len)), strict=True)
    right = total = 0
    for first in range(0, len(words), 500):
        target = run_target(ours, spoken[first : first + 500])
        out = run(ours, list(words[first : first + 500]), target=list(spoken[first : first + 500]))
        guessed, read = out.logits[:, 1:].argmax(-1), out.target.mask[:, 1:]
        right, total = right + int((guessed == target)[read].sum()), total + int(read.sum())
    assert total == 26_088 + 3_000
    assert abs(right / total - 0.965) < 0.001


def run_target(ours: Transformer, spoken: Sequence[str]) -> torch.Tensor:
    """What comes next at each position of a target after its start: each phoneme, and then the end."""
    rows = [[*ours.target_tokenizer.pieces(text).ids, *ours.target_tokenizer.suffix] for text in spoken]
    return TokenBatch.from_rows(rows).ids

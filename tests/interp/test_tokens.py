"""Batches know their padding and positions; every word finds its pieces, whatever the tokenizer does to the text."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny import STACKS
from tiny import model as tiny_model
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, pre_tokenizers, processors, trainers
from tokenizers.models import BPE, WordLevel
from torch.testing import assert_close

from interp import InputError, TokenBatch, Tokenizer, Transformer, TransformerConfig, generate, run
from interp.running import as_batch
from interp.tokens import NO_WORD, Span, align
from models import load, save

# --- batches


def test_padding_and_positions_are_derived_once():
    right = TokenBatch.from_rows([[5, 6, 7], [8]], pad_id=9)
    assert right.ids.tolist() == [[5, 6, 7], [8, 9, 9]]
    assert right.mask.tolist() == [[True, True, True], [True, False, False]]
    assert right.positions.tolist() == [[0, 1, 2], [0, 0, 0]]
    left = TokenBatch.from_rows([[5, 6, 7], [8, 4]], pad_id=9, side="left")
    assert left.ids.tolist() == [[5, 6, 7], [9, 8, 4]]
    assert left.mask.tolist() == [[True, True, True], [False, True, True]]
    assert left.positions.tolist() == [[0, 1, 2], [0, 0, 1]]
    assert right.lengths.tolist() == [3, 1]
    assert left.lengths.tolist() == [3, 2]
    assert right.padded
    assert not TokenBatch.from_rows([[1, 2], [3, 4]]).padded


@pytest.mark.parametrize("ids", [torch.tensor([[4, 0, 4]]), torch.tensor([4, 0, 4], dtype=torch.int32)])
def test_ids_are_taken_as_they_are(ids):
    batch = TokenBatch.from_ids(ids)
    assert batch.ids.tolist() == [[4, 0, 4]]
    assert batch.positions.tolist() == [[0, 1, 2]]
    assert not batch.padded


@pytest.mark.parametrize(("rows", "lengths"), [([], r"\[\]"), ([[1, 2], []], r"\[2, 0\]")])
def test_rows_that_hold_nothing(rows, lengths):
    with pytest.raises(InputError, match=f"none of them empty; got lengths {lengths}"):
        TokenBatch.from_rows(rows)


# --- words and their pieces

WORDS = ["It", "'s", "3,142", "cafés", "—", "naïve", "she", "said", "!"]
WORDS += ["😀", "He", "was", "unhappily", "gon", "na", "."]
TEXT = "It's 3,142  cafés — naïve she said!   😀 He was unhappily gonna."
# the pieces of each word; "na" shares its characters with "gon" in one token of MiniLM's
PIECES = {
    "stories": "▁I t|' s|3 , 1 4 2|▁c a f é s|—|▁n a <0xC3> <0xAF> ve|▁she|▁said|!|<0xF0> <0x9F> <0x98> <0x80>|▁He|▁was"
    "|▁u n h a pp ily|▁g on|n a|.",
    "minilm": "it|' s|3 , 142|cafes|—|naive|she|said|!|[UNK]|he|was|un ##ha ##pp ##ily|gonna||.",
    "bytes": "I t|'s|3 , 1 4 2|c a f Ã © s|â Ģ Ķ|n a Ã ¯ v e|Ġshe|Ġsaid|!|ð Ł ĺ Ģ|He|Ġwas|u n hap p i l y|g o n|n a|.",
}
# spaces of their own: before a digit, a dash, an emoji, and where spaces repeat
SPACES = {"stories": ["▁"] * 6, "minilm": [], "bytes": ["Ġ"] * 11}
EVERY = pytest.mark.parametrize("name", PIECES)


@pytest.fixture
def tokenizer(name, request) -> Tokenizer:
    if name == "bytes":
        return Tokenizer(byte_level())
    return Tokenizer(Backend.from_file(str(request.getfixturevalue(name) / "tokenizer.json")))


def byte_level() -> Backend:
    """A byte-level BPE, as GPT-2's, trained on a few sentences."""
    backend = Backend(BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    text = "He was happy and she was sad. It was the dog's ball, she said. I can't see; he can."
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    settings = {"initial_alphabet": alphabet, "show_progress": False, "special_tokens": ["<|end|>"]}
    backend.train_from_iterator([text] * 3, trainers.BpeTrainer(vocab_size=400, **settings))
    return backend


def spans_of(words: list[str], text: str) -> list[Span]:
    spans, at = [], 0
    for word in words:
        at = text.index(word, at)
        spans.append((at, at + len(word)))
        at += len(word)
    return spans


@EVERY
def test_words_find_their_pieces(name, tokenizer):
    pieces = tokenizer.pieces(TEXT)
    owners = align(pieces.spans, spans_of(WORDS, TEXT), TEXT)
    found = [[] for _ in (*WORDS, "spaces")]
    for id, owner in zip(pieces.ids, owners, strict=True):
        found[len(WORDS) if owner == NO_WORD else owner].append(tokenizer.backend.id_to_token(id))
    assert found == [*(each.split() for each in PIECES[name].split("|")), SPACES[name]]


@EVERY
@pytest.mark.parametrize(
    "text",
    [
        TEXT,
        "  Leading and trailing  ",
        "Tabs\tand\nnew\n\nlines",
        "“Quotes”, (brackets) [1] e.g. 10:30 a.m.?!",
        "Zoë’s crème brûlée cost €5 — wow… 👩‍👧 👍🏽 ok",
        "don't can't I'd we'll",
        "ÀÉÎ ﬁne Ⅳ ½ 東京 мир",
    ],
)
def test_a_token_lies_in_its_word_and_no_visible_character_is_lost(name, tokenizer, text):
    words = text.split()
    word_spans, pieces = spans_of(words, text), tokenizer.pieces(text)
    covered = set()
    for owner, span in zip(align(pieces.spans, word_spans, text), pieces.spans, strict=True):
        visible = {at for at in range(*span) if not text[at].isspace()}
        assert (owner == NO_WORD) == (not visible)
        if visible:
            start, end = word_spans[owner]
            assert visible <= set(range(start, end))
        covered |= visible
    joiners = {at for at, sign in enumerate(text) if sign in "\u200d\ufe0f"}  # BERT drops signs that cannot be seen
    assert covered | joiners == {at for at, sign in enumerate(text) if not sign.isspace()} | joiners


def test_a_piece_of_several_words_belongs_to_the_first():
    text = "ab cd"
    assert align([(0, 3), (3, 5), (0, 0)], [(0, 1), (1, 2), (3, 5)], text) == [0, 2, NO_WORD]


# --- special tokens, decoding, labels


@pytest.mark.parametrize(
    ("name", "prefix", "suffix", "unknown"),
    [("stories", (1,), (), 0), ("minilm", (101,), (102,), 100), ("names", (0,), (), 0), ("sorter", (), (), 0)],
)
def test_special_tokens_around_a_text(name, tokenizer, prefix, suffix, unknown):
    assert (tokenizer.prefix, tokenizer.suffix, tokenizer.unknown_id) == (prefix, suffix, unknown)
    named = [[tokenizer.backend.id_to_token(id) for id in ids] for ids in (prefix, suffix)]
    assert tokenizer.policy == dict(zip(("before", "after"), named, strict=True))
    text = "BAC" if name == "sorter" else "abba"
    assert tokenizer.encode(text) == [*prefix, *tokenizer.pieces(text).ids, *suffix]
    assert tokenizer.encode(text) == tokenizer.backend.encode(text).ids
    assert {*prefix, *suffix} <= tokenizer.special_ids


def test_a_tokenizer_never_cuts_or_pads(minilm):
    backend = Backend.from_file(str(minilm / "tokenizer.json"))
    assert backend.truncation is not None
    tokenizer = Tokenizer(backend)
    assert len(tokenizer.encode("he " * 700)) == 702
    assert len(tokenizer.encode("he")) == 3


@pytest.mark.parametrize("name", ["stories", "bytes"])
def test_decoding_gives_the_text_back(name, tokenizer):
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT
    assert tokenizer.decode(torch.tensor(tokenizer.encode(TEXT))) == TEXT


LABELS = {
    "stories": {"▁he": " he", "he": "he", "▁": " ", "<0x0A>": "\n", "<0xF0>": "<0xF0>", "<s>": "<s>"},
    "minilm": {"he": " he", "##ily": "ily", "!": "!", "[CLS]": "[CLS]"},
    "bytes": {"Ġhe": " he", "he": "he", "Ġ": " ", "ð": "ð", "<|end|>": "<|end|>"},
    "names": {"b": "b", "<|start|>": "<|start|>"},
}


@pytest.mark.parametrize("name", LABELS)
def test_a_label_shows_the_space_and_hides_the_signs(name, tokenizer):
    ids = {token: tokenizer.backend.token_to_id(token) for token in LABELS[name]}
    assert {token: tokenizer.label(id) for token, id in ids.items()} == LABELS[name]


def test_a_character_in_parts_stands_at_the_first_of_them():
    tokenizer = Tokenizer(byte_level())
    assert tokenizer.label(99_999) == "<99999>"  # outside the vocabulary
    ids = tokenizer.pieces("he grüßt 😀 he").ids
    labels = tokenizer.labels(ids)
    assert len(labels) == len(ids)
    assert "".join(labels).replace("⋯", "").strip() == "he grüßt 😀 he"
    assert labels.count("⋯") == 1 + 1 + 3  # of two, two and four bytes, each in a token of its own
    assert labels[labels.index("😀") :][:4] == ["😀", "⋯", "⋯", "⋯"]
    (part,) = tokenizer.labels(ids[labels.index("😀") :][:1])
    assert part == tokenizer.label(ids[labels.index("😀")]) != "😀"  # the rest is not there
    assert tokenizer.labels([]) == []


@EVERY
def test_labels_read_as_the_text_and_of_whole_characters_are_those_of_their_tokens(name, tokenizer):
    text = "Tim was happy. She said no!"
    ids = tokenizer.pieces(text).ids
    assert tokenizer.labels(ids) == [tokenizer.label(id) for id in ids]
    assert "".join(tokenizer.labels(ids)).lower().strip() == text.lower()


# --- text that continues other text


CONTINUED = {
    "stories": {" he": "▁he", " was": "▁was", " she": "▁she", "he": "he", " dog": "▁do g", "'s": "' s", ".": "."}
    | {"\n": "<0x0A>"},
    "minilm": {" he": "he", "he": "he", "you": "you", " unhappily": "un ##ha ##pp ##ily", "...": ". . ."},
    "bytes": {" he": "Ġhe", "he": "he", "'s": "'s", ", he": ", Ġhe"},
    "names": {"ab": "a b"},
    "sorter": {"BA": "B A"},
}


@pytest.mark.parametrize("name", CONTINUED)
def test_a_continuation_has_no_space_but_its_own(name, tokenizer):
    for text, tokens in CONTINUED[name].items():
        assert [tokenizer.backend.id_to_token(id) for id in tokenizer.continuation(text)] == tokens.split(), text


@EVERY
@pytest.mark.parametrize("word", ["was", "he", "she"])
def test_common_words_are_one_token(name, tokenizer, word):
    id = tokenizer.id(f" {word}")
    assert tokenizer.label(id) == f" {word}"
    assert id in tokenizer.pieces(f"Then {word} said").ids


def test_a_word_of_several_pieces_is_no_single_token(stories):
    tokenizer = Tokenizer(Backend.from_file(str(stories / "tokenizer.json")))
    with pytest.raises(InputError, match=r"' dog' is 2: \[' do', 'g'\]"):
        tokenizer.id(" dog")


def test_a_start_token_is_added_once():
    def backend() -> Backend:
        return Backend(WordLevel({"<s>": 0, "a": 1}, "<s>"))

    assert Tokenizer(backend()).encode("a") == [1]
    assert Tokenizer(backend(), add_start=0).encode("a") == [0, 1]


# --- two texts read as one


@pytest.fixture(scope="module")
def bert_model(minilm):
    return load(minilm)


def test_a_pair_is_put_together_as_the_model_expects(minilm):
    tokenizer = Tokenizer(Backend.from_file(str(minilm / "tokenizer.json")))
    ids, segments = tokenizer.encode_pair("he was", "she")
    he, was, she = (tokenizer.id(f" {word}") for word in ("he", "was", "she"))
    assert ids == [101, he, was, 102, she, 102]
    assert segments == [0, 0, 0, 0, 1, 1]
    batch = TokenBatch.from_texts([("he was", "she"), "he"], tokenizer)
    assert batch.ids.tolist() == [ids, [101, he, 102, 0, 0, 0]]
    assert batch.segments.tolist() == [segments, [0] * 6]
    plain = TokenBatch.from_texts(["he was", "he"], tokenizer)
    assert (plain.ids.tolist(), plain.segments) == ([[101, he, was, 102], [101, he, 102, 0]], None)


def test_a_start_token_that_no_template_adds_stands_before_a_pair_once():
    def backend(template: str | None = None) -> Backend:
        made = Backend(WordLevel({"<s>": 0, "a": 1, "b": 2}, "<s>"))
        made.pre_tokenizer = pre_tokenizers.Whitespace()
        if template:
            special = [("<s>", 0)]
            made.post_processor = processors.TemplateProcessing("<s> $A", template, special)
        return made

    assert Tokenizer(backend()).encode_pair("a", "b")[0] == [1, 2]
    assert Tokenizer(backend(), add_start=0).encode_pair("a", "b")[0] == [0, 1, 2]
    assert Tokenizer(backend("<s> $A $B:1"), add_start=0).encode_pair("a", "b") == ([0, 1, 2], [0, 0, 1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_pairs_are_read_as_transformers_reads_them(bert_model, minilm, dtype):
    transformers = pytest.importorskip("transformers", reason="parity is with transformers, which is not installed")
    theirs = transformers.AutoModel.from_pretrained(minilm, dtype=dtype).eval()
    their_tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    pairs = [("He left early.", "She stayed."), ("Rain.", "The match was called off.")]
    given = their_tokenizer(*map(list, zip(*pairs, strict=True)), return_tensors="pt", padding=True)
    with torch.no_grad():
        expected = theirs(**given).last_hidden_state
    ours = load(minilm, dtype=dtype)
    out = run(ours, pairs, capture="encoder.resid_final")
    assert torch.equal(out.tokens.ids, given["input_ids"])
    read, tolerance = out.tokens.mask, 1e-5 if dtype == torch.float32 else 1e-10
    assert_close(out["encoder.resid_final"][read], expected[read], atol=tolerance, rtol=tolerance)
    one = run(ours, ["He left early. She stayed."], capture="encoder.resid_final")["encoder.resid_final"]
    assert not torch.allclose(one[0, :3], out["encoder.resid_final"][0, :3])


def test_pairs_are_refused_where_they_are_not_told_apart_later(bert_model):
    with pytest.raises(InputError, match="read by `run` alone"):
        as_batch(bert_model, [("he", "she")])
    batch = as_batch(bert_model, [("he", "she")], pairs=True)
    with pytest.raises(InputError, match="segments must lie in 0-1, got up to 2"):
        as_batch(bert_model, replace(batch, segments=batch.segments + 1), pairs=True)
    assert batch.repeated(2).to(torch.device("cpu")).segments.tolist() == batch.segments.tolist() * 2
    decoder, ids = tiny_model("gpt2"), torch.tensor([[1, 2, 3]])
    assert as_batch(decoder, replace(TokenBatch.from_ids(ids), segments=ids % 2)).segments is None


# --- tokenizers of models


def with_tokenizer(directory: Path, backend: Backend) -> Path:
    """A tiny model's directory with a tokenizer beside it."""
    save(Transformer(TransformerConfig(decoder=STACKS["sinusoidal"])), directory)
    backend.save(str(directory / "tokenizer.json"))
    return directory


def words(count: int) -> Backend:
    return Backend(WordLevel({f"w{id}": id for id in range(count)}, "w0"))


def test_a_tokenizer_larger_than_the_embedding_is_refused_naming_both(tmp_path):
    assert load(with_tokenizer(tmp_path / "fits", words(29))).tokenizer.d_vocab == 29
    with pytest.raises(InputError, match="gives ids up to 30, but the embedding has 29 rows") as caught:
        load(with_tokenizer(tmp_path / "larger", words(31)))
    assert "\n" not in str(caught.value)


def test_tokens_that_stand_for_no_text_may_lie_beyond_the_embedding(tmp_path):
    backend = words(29)
    backend.add_special_tokens(["<image>"])  # as of models that share a tokenizer with one that sees images
    model = load(with_tokenizer(tmp_path / "image", backend))
    assert model.tokenizer.largest_id == 28
    with pytest.raises(InputError, match="0-28, the model's vocabulary; got 29"):
        run(model, "<image>")
    backend = words(29)
    backend.add_tokens(["ordinary"])
    with pytest.raises(InputError, match="gives ids up to 29"):
        load(with_tokenizer(tmp_path / "ordinary", backend))
    backend = words(29)
    backend.add_special_tokens(["<s>"])
    backend.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A $B", [("<s>", 29)])
    with pytest.raises(InputError, match="gives ids up to 29"):
        load(with_tokenizer(tmp_path / "start", backend))


def test_a_model_without_a_tokenizer_works_on_ids(tmp_path):
    save(tiny_model("sinusoidal"), tmp_path / "model")
    model, ids = load(tmp_path / "model"), torch.tensor([[1, 2, 3]])
    assert model.tokenizer is None
    assert run(model, ids).logits.shape == (1, 3, 29)
    assert generate(model, ids, 2).ids.shape == (1, 5)
    with pytest.raises(InputError, match="no tokenizer: give ids"):
        run(model, "text")


# --- two tokenizers: of what the encoder reads, and of what the decoder writes


def translating(directory: Path, *, source: Backend | None, target: Backend | None, apart: bool = False) -> Path:
    stack = STACKS["sinusoidal"]
    decoder = replace(stack, cross_attention=True, d_vocab=23 if apart else 29)
    config = TransformerConfig(encoder=replace(stack, causal=False), decoder=decoder, target_start=3)
    save(Transformer(config), directory)
    for backend, name in ((source, "tokenizer.json"), (target, "target_tokenizer.json")):
        if backend is not None:
            backend.save(str(directory / name))
    return directory


def test_a_target_is_read_with_the_target_tokenizer(tmp_path):
    target = words(23)
    target.post_processor = processors.TemplateProcessing("w3 $A w4", "w3 $A $B", [("w3", 3), ("w4", 4)])
    model = load(translating(tmp_path / "model", source=words(29), target=target, apart=True))
    out = run(model, "w28", target="w22")
    assert out.tokens.ids.tolist() == [[28]]
    assert out.target.ids.tolist() == [[3, 3, 22]]  # the start id, then the target with what stands before every one
    with pytest.raises(InputError, match="a decoder reads single texts"):
        run(model, "w28", target=[("w1", "w2")])
    save(model, tmp_path / "again")
    again = load(tmp_path / "again")
    assert run(again, "w28", target="w22").target.ids.tolist() == [[3, 3, 22]]
    assert again.target_tokenizer.decode([22]) == "w22"


def test_one_tokenizer_serves_one_vocabulary(tmp_path):
    model = load(translating(tmp_path / "one", source=words(29), target=None))
    assert model.target_tokenizer is model.tokenizer
    assert run(model, "w28", target="w27").target.ids.tolist() == [[3, 27]]
    save(model, tmp_path / "again")
    assert not (tmp_path / "again" / "target_tokenizer.json").exists()
    model = load(translating(tmp_path / "two", source=words(29), target=None, apart=True))
    assert model.target_tokenizer is None
    with pytest.raises(InputError, match="no tokenizer for its decoder"):
        run(model, "w28", target="w27")


def test_a_target_tokenizer_larger_than_the_decoders_embedding_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"target_tokenizer\.json gives ids up to 28, but the embedding has 23 rows"):
        load(translating(tmp_path / "model", source=words(29), target=words(29), apart=True))


def test_a_damaged_target_tokenizer_is_named(tmp_path):
    translating(tmp_path / "model", source=words(29), target=None)
    (tmp_path / "model" / "target_tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match=r"target_tokenizer\.json is not readable as a tokenizer"):
        load(tmp_path / "model")

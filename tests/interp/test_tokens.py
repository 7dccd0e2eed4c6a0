"""Batches know padding and positions; every word finds its pieces, whatever the tokenizer does to the text."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from refusals import refusal
from tiny import STACKS
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, pre_tokenizers, processors, trainers
from tokenizers.models import BPE, WordLevel

from interp import TokenBatch, Tokenizer, Transformer, TransformerConfig, run
from interp.tokens import NO_WORD, Span, align
from models import load, save

# --- batches


def test_padding_and_positions_are_derived_once():
    for side, second, real, places in (
        ("right", [8, 4, 9], [1, 1, 0], [0, 1, 0]),
        ("left", [9, 8, 4], [0, 1, 1], [0, 0, 1]),
    ):
        batch = TokenBatch.from_rows([[5, 6, 7], [8, 4]], pad_id=9, side=side)
        assert batch.ids.tolist() == [[5, 6, 7], second]
        assert batch.mask.int().tolist() == [[1, 1, 1], real]
        assert batch.positions.tolist() == [[0, 1, 2], places]
        assert batch.lengths.tolist() == [3, 2]
    assert (batch.padded, TokenBatch.from_rows([[1, 2], [3, 4]]).padded) == (True, False)
    assert "none of them empty" in refusal(TokenBatch.from_rows, [[1, 2], []])


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
# tokens of spaces alone: before a digit, a dash, an emoji, and in repeated spaces
SPACES = {"stories": ["▁"] * 6, "minilm": [], "bytes": ["Ġ"] * 11}
EVERY = pytest.mark.parametrize("name", PIECES)


@pytest.fixture
def tokenizer(name, request) -> Tokenizer:
    if name == "bytes":
        return Tokenizer(byte_level())
    return Tokenizer(Backend.from_file(str(request.getfixturevalue(name) / "tokenizer.json")))


def byte_level() -> Backend:
    """A byte-level BPE like GPT-2's, trained on a few sentences."""
    backend = Backend(BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    text = "He was happy and she was sad. It was the dog's ball, she said. I can't see; he can."
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    settings = {"initial_alphabet": alphabet, "show_progress": False, "special_tokens": ["<|end|>"]}
    backend.train_from_iterator([text] * 3, trainers.BpeTrainer(vocab_size=400, **settings))
    return backend


def spans_of(words: list[str], text: str) -> list[Span]:
    spans = [(0, 0)]
    for word in words:
        start = text.index(word, spans[-1][1])
        spans.append((start, start + len(word)))
    return spans[1:]


@EVERY
def test_words_find_their_pieces(name, tokenizer):
    pieces = tokenizer.pieces(TEXT)
    owners = align(pieces.spans, spans_of(WORDS, TEXT), TEXT)
    by_word = [[] for _ in (*WORDS, "spaces")]
    for id, owner in zip(pieces.ids, owners, strict=True):
        by_word[len(WORDS) if owner == NO_WORD else owner].append(tokenizer.backend.id_to_token(id))
    assert by_word == [*(each.split() for each in PIECES[name].split("|")), SPACES[name]]


@EVERY
@pytest.mark.parametrize(
    "text",
    [
        TEXT,
        "  Leading and trailing, tabs\tand\nnew\n\nlines  ",
        "“Quotes”, (brackets) [1] e.g. 10:30 a.m.?! don't we'll",
        "Zoë’s crème brûlée cost €5 — wow… 👩‍👧 👍🏽 ok",
        "ÀÉÎ ﬁne Ⅳ ½ 東京 мир",
    ],
)
def test_a_token_lies_in_its_word_and_no_visible_character_is_lost(name, tokenizer, text):
    word_spans, pieces = spans_of(text.split(), text), tokenizer.pieces(text)
    visible, covered = {index for index, sign in enumerate(text) if not sign.isspace()}, set()
    for owner, span in zip(align(pieces.spans, word_spans, text), pieces.spans, strict=True):
        part = visible & {*range(*span)}
        assert (owner == NO_WORD) == (not part)
        assert not part or part <= {*range(*word_spans[owner])}
        covered |= part
    assert {text[index] for index in visible - covered} <= {"\u200d", "\ufe0f"}  # BERT drops invisible characters
    if name != "minilm":
        assert tokenizer.decode(torch.tensor(tokenizer.encode(text))) == text


@pytest.mark.parametrize(
    ("name", "prefix", "suffix", "unknown"),
    [("stories", (1,), (), 0), ("minilm", (101,), (102,), 100), ("sorter", (), (), 0)],
)
def test_special_tokens_around_a_text(name, tokenizer, prefix, suffix, unknown):
    assert (tokenizer.prefix, tokenizer.suffix, tokenizer.unknown_id) == (prefix, suffix, unknown)
    before, after = ([tokenizer.backend.id_to_token(id) for id in ids] for ids in (prefix, suffix))
    assert tokenizer.policy == {"before": before, "after": after}
    text = "BAC" if name == "sorter" else "abba"
    ids = [*prefix, *tokenizer.pieces(text).ids, *suffix]
    assert tokenizer.encode(text) == tokenizer.backend.encode(text).ids == ids
    assert {*prefix, *suffix} <= tokenizer.special_ids


def test_a_tokenizer_never_cuts_or_pads(minilm):
    backend = Backend.from_file(str(minilm / "tokenizer.json"))
    assert backend.truncation is not None
    assert [len(Tokenizer(backend).encode(text)) for text in ("he " * 700, "he")] == [702, 3]


LABELS = {
    "stories": {"▁he": " he", "he": "he", "▁": " ", "<0x0A>": "\n", "<0xF0>": "<0xF0>", "<s>": "<s>"},
    "minilm": {"he": " he", "##ily": "ily", "!": "!", "[CLS]": "[CLS]"},
    "bytes": {"Ġhe": " he", "he": "he", "Ġ": " ", "ð": "ð", "<|end|>": "<|end|>"},
}


def test_a_character_in_parts_stands_at_the_first_of_them():
    tokenizer = Tokenizer(byte_level())
    assert tokenizer.label(99_999) == "<99999>"  # outside the vocabulary
    ids = tokenizer.pieces("he ü 😀 he").ids
    assert tokenizer.labels(ids) == ["he", " ", "ü", "⋯", " ", "😀", "⋯", "⋯", "⋯", " he"]
    assert tokenizer.labels(ids[5:6]) == [tokenizer.label(ids[5])] != ["😀"]  # the rest of the character is missing
    assert tokenizer.labels([]) == []
    assert "expected one token, but 'düp' is 4: " in refusal(tokenizer.id, "düp")


CONTINUED = {
    "stories": {" he": "▁he", " was": "▁was", " she": "▁she", "he": "he", " dog": "▁do g", "'s": "' s", ".": "."}
    | {"\n": "<0x0A>"},
    "minilm": {" he": "he", "he": "he", "you": "you", " unhappily": "un ##ha ##pp ##ily", "...": ". . ."},
    "bytes": {" he": "Ġhe", "he": "he", "'s": "'s", ", he": ", Ġhe"},
}


@pytest.mark.parametrize("name", CONTINUED)
def test_a_label_and_a_continuation_have_no_space_but_their_own(name, tokenizer):
    ids = {token: tokenizer.backend.token_to_id(token) for token in LABELS[name]}
    assert {token: tokenizer.label(id) for token, id in ids.items()} == LABELS[name]
    for text, tokens in CONTINUED[name].items():
        assert [tokenizer.backend.id_to_token(id) for id in tokenizer.continuation(text)] == tokens.split(), text


def test_a_start_token_that_no_template_adds_stands_before_a_text_once():
    for template, add_start, ids in (("", None, [1]), ("", 0, [0, 1]), ("w0 $A", 0, [0, 1])):
        tokenizer = Tokenizer(words(3, template=template), add_start=add_start)
        assert tokenizer.encode("w1") == ids


def model_with(directory: Path, decoder: dict, source: Backend, target: Backend | None = None) -> Path:
    """A tiny model's directory with tokenizers; with an encoder if the decoder reads one."""
    stack = STACKS["sinusoidal"]
    two = {"encoder": replace(stack, causal=False), "target_start": 3} if "cross_attention" in decoder else {}
    save(Transformer(TransformerConfig(decoder=replace(stack, **decoder), **two)), directory)
    for backend, name in ((source, "tokenizer.json"), (target, "target_tokenizer.json")):
        if backend is not None:
            backend.save(str(directory / name))
    return directory


def words(count: int, *, special: tuple[str, ...] = (), ordinary: tuple[str, ...] = (), template: str = "") -> Backend:
    backend = Backend(WordLevel({f"w{id}": id for id in range(count)}, "w0"))
    backend.add_special_tokens([*special])
    backend.add_tokens([*ordinary])
    if template:
        around = [(token, backend.token_to_id(token)) for token in template.split() if token != "$A"]
        backend.post_processor = processors.TemplateProcessing(template, f"{template} $B", around)
    return backend


TWO = {"cross_attention": True}
APART = TWO | {"d_vocab": 23}


TOO_LARGE = [
    ({}, [words(29, ordinary=("more",))], "gives ids up to 29, but the embedding has 29 rows"),
    ({}, [words(29, special=("<s>",), template="<s> $A")], "gives ids up to 29"),
    (APART, [words(29), words(29)], "target_tokenizer.json gives ids up to 28, but the embedding has 23 rows"),
]


@pytest.mark.parametrize(("decoder", "tokenizers", "message"), TOO_LARGE)
def test_a_tokenizer_larger_than_the_embedding_is_refused(tmp_path, decoder, tokenizers, message):
    assert message in refusal(load, model_with(tmp_path, decoder, *tokenizers))


def test_tokens_that_stand_for_no_text_may_lie_beyond_the_embedding(tmp_path):
    model = load(model_with(tmp_path, {}, words(29, special=("<image>",))))  # from a family that also reads images
    assert (model.tokenizer.d_vocab, model.tokenizer.largest_id) == (30, 28)
    assert "0-28, the model's vocabulary; got 29" in refusal(run, model, "<image>")


def test_a_target_is_read_with_the_target_tokenizer(tmp_path):
    target = words(23, template="w3 $A w4")
    save(load(model_with(tmp_path / "model", APART, words(29), target)), tmp_path / "again")
    for place in ("model", "again"):
        out = run(load(tmp_path / place), "w28", target="w22")
        # for targets: the start id, then what precedes every target
        assert [out.tokens.ids.tolist(), out.target.ids.tolist()] == [[[28]], [[3, 3, 22]]]
    (tmp_path / "again" / "target_tokenizer.json").write_text("{}")
    assert "target_tokenizer.json is not readable as a tokenizer" in refusal(load, tmp_path / "again")


def test_one_tokenizer_serves_one_vocabulary(tmp_path):
    joint, two = (load(model_with(tmp_path / name, shape, words(29))) for name, shape in (("one", TWO), ("two", APART)))
    assert joint.target_tokenizer is joint.tokenizer
    save(joint, tmp_path / "again")
    assert not (tmp_path / "again" / "target_tokenizer.json").exists()
    assert "no tokenizer for its decoder" in refusal(run, two, "w28", target="w27")

"""What do objectives teach? Text is cut and stored, the generator alone draws rows, and targets can be known."""

import gzip
import os
import tracemalloc
from itertools import pairwise

import pytest
import torch
from learners import N_WORDS, text, tokenizer
from refusals import refusal
from torch import Generator

from interp import InputError
from interp.training import Masked, Pairs, Repeats, Windows
from interp.training import token_arrays as texts
from interp.training.objectives import IGNORED, Mixed
from interp.training.token_arrays import Document, find, held_out, read, tokenize, train_tokenizer

SOURCES = {
    "windows": Windows(text(), [0]),
    "repeats": Repeats(tokenizer(), 2, 5),
    "masked": Masked(Windows(text(), [0]), tokenizer()),
    "pairs": Pairs([([5, 6, 7], [7, 6, 5]), ([8, 9], [9])], start=0),
}


def sample(source, seed=0, rows=6, row=11):
    return source.examples(rows, row, Generator().manual_seed(seed))


@pytest.mark.parametrize("name", SOURCES)
def test_the_same_generator_draws_the_same_rows(name):
    first, again, second = sample(SOURCES[name]), sample(SOURCES[name]), sample(SOURCES[name], 1)
    assert torch.equal(first.tokens.ids, again.tokens.ids)
    assert torch.equal(first.targets, again.targets)
    assert not torch.equal(first.tokens.ids, second.tokens.ids)
    parts = [first.part(slice(0, 2)), first.part(slice(2, 6))]
    assert torch.equal(torch.cat([part.tokens.ids for part in parts]), first.tokens.ids)
    assert sum(part.n_targets for part in parts) == first.n_targets


def test_windows_predict_the_next_token_of_the_text():
    batch = sample(Windows(torch.arange(2, 31), [0]), rows=40, row=7)
    assert batch.tokens.ids[:, 0].unique().tolist() == [0]
    assert torch.equal(batch.targets[:, :-1], batch.tokens.ids[:, 1:])
    assert torch.equal(batch.targets[:, 1:], batch.targets[:, :-1] + 1)
    assert {int(batch.targets[:, 0].min()), int(batch.targets[:, -1].max())} == {2, 30}  # from end to end of the text


def test_the_whole_text_is_read_once_in_rows():
    targets = torch.cat([batch.targets for batch in Windows(torch.arange(2, 31), [0]).every(7)])
    assert targets[:, :-1].flatten().tolist() == [*range(2, 26)]
    assert sum(map(len, Windows(text(), [0]).every(7, limit=5))) == 5


def test_only_what_the_first_copy_tells_is_predicted():
    batch = sample(Repeats(tokenizer(), 3, 6), rows=30, row=16)
    for row, column in (batch.targets != IGNORED).nonzero().tolist():
        ids, target = batch.tokens.ids[row].tolist(), int(batch.targets[row, column])
        assert target == ids[column + 1]
        assert (ids[column], target) in pairwise(ids[: column + 1])  # induction predicts it
    assert 0.2 < (batch.targets != IGNORED).float().mean() < 0.5


def test_hidden_tokens_are_predicted_where_they_stand():
    plain = Windows(text(20_000), [0])
    clear, hidden = (sample(source, rows=500, row=16) for source in (plain, Masked(plain, tokenizer(), 0.2)))
    chosen = hidden.targets != IGNORED
    assert torch.equal(hidden.targets[chosen], clear.tokens.ids[chosen])
    assert torch.equal(hidden.tokens.ids[~chosen], clear.tokens.ids[~chosen])
    assert not chosen[:, 0].any()  # <s> is not a word
    assert chosen.any(1).all()
    assert chosen[:, 1:].float().mean() == pytest.approx(0.2, abs=0.02)
    read, was = hidden.tokens.ids[chosen], clear.tokens.ids[chosen]
    assert (read == tokenizer().mask_id).float().mean() == pytest.approx(0.8, abs=0.03)
    assert (read == was).float().mean() == pytest.approx(0.1 + 0.1 / (N_WORDS + 2), abs=0.03)
    assert sample(Masked(Windows(torch.zeros(50, dtype=torch.long), [0]), tokenizer())).n_targets == 0  # no words


def test_pairs_are_padded_and_padding_is_not_predicted():
    (batch,) = Pairs([([5], [7, 6, 5, 1]), ([8, 9], [9])], start=0).every(9)
    assert batch.tokens.mask.tolist() == [[True, False], [True, True]]
    assert batch.decoded.ids.tolist() == [[0, 7, 6, 5], [0, 0, 0, 0]]  # the decoder reads its own output
    assert batch.targets.tolist() == [[7, 6, 5, 1], [9, IGNORED, IGNORED, IGNORED]]
    assert batch.n_targets == 5


def test_a_mix_draws_rows_by_their_shares():
    mixed = Mixed({"windows": Windows(torch.full((50,), 7), [0]), "repeats": Windows(torch.full((50,), 9), [0])})
    for mix, share in (({"windows": 0.25, "repeats": 0.75}, 0.25), ({}, 0.5)):
        is_window = mixed.examples(2000, 5, mix, Generator().manual_seed(0)).targets[:, 0] == 7
        assert is_window.float().mean() == pytest.approx(share, abs=0.03)
        assert is_window[:200].any()  # shuffled, so every micro-batch has some


MIXED = Mixed({"windows": SOURCES["windows"], "pairs": SOURCES["pairs"]})
REFUSED = [
    *((lambda n=n: sample(Windows(torch.arange(n), [0]), row=7), f"the text has {n} tokens, fewer") for n in (3, 6)),
    (lambda: Windows(text(), [0, 0, 0]).every(3), "no room beside the 3 tokens"),
    (lambda: Repeats(tokenizer(), 2, N_WORDS + 1), f"longest <= {N_WORDS}"),
    (lambda: Pairs([([1], [2]), ([1], [])], start=0), "pair 2 has an empty side"),
    (lambda: sample(Pairs([([1], [2, 3, 4, 5])], start=0), row=3), "a text of 4 tokens is longer than a row of 3"),
    (lambda: MIXED.examples(4, 9, {"novels": 1.0}, Generator()), "no source 'novels' to mix: there are windows, pairs"),
    (lambda: MIXED.examples(20, 9, {}, Generator().manual_seed(0)), "pairs of texts are not mixed"),
    (lambda: Mixed({}), "expected something to learn from"),
]


@pytest.mark.parametrize(("ask", "message"), REFUSED)
def test_what_cannot_be_is_refused(ask, message):
    with pytest.raises(InputError, match=message):
        ask()


def test_texts_are_found_below_a_directory_in_the_order_of_their_names(tmp_path):
    for name in ("b.txt", "a.txt.gz", "c.md", "deep/d.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    assert [path.name for path in find(tmp_path)] == ["a.txt.gz", "b.txt", "d.txt"]
    assert find(tmp_path / "c.md") == [tmp_path / "c.md"]
    (tmp_path / "empty").mkdir()
    for absent in ("absent", "empty"):
        with pytest.raises(InputError, match=r"no text at .*: expected a text file, or a directory with \*\.txt"):
            find(tmp_path / absent)


def test_text_is_read_plain_or_packed_and_paragraphs_are_joined(tmp_path):
    content = "“yes”,\r\n she  said\n \n\n\t\nno"
    (tmp_path / "a.txt").write_bytes(content.encode())
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(content.encode()))
    for unwrap, expected in ((False, content.replace("\r", "")), (True, "“yes”, she said\nno")):
        assert [*read(find(tmp_path), unwrap=unwrap)] == [Document("a", expected), Document("b", expected)]


def test_a_broken_shard_is_refused_by_name(tmp_path):
    (tmp_path / "a.txt").write_text("fine " * 50)
    cut = gzip.compress(os.urandom(5000))[:-100]
    for content, message in ((cut, "cannot be read"), (gzip.compress(b"caf\xe9"), "is not UTF-8 text")):
        (tmp_path / "shard-7.txt.gz").write_bytes(content)
        with pytest.raises(InputError, match=rf"shard-7\.txt\.gz {message}"):
            tokenize(read(find(tmp_path)), tokenizer(), tmp_path / "made" / "tokens", "")
        assert [*(tmp_path / "made").iterdir()] == []  # nothing half-written that could pass for the whole


@pytest.mark.parametrize(("name", "place"), [("emma", 0.9557), ("dracula", 0.6253), ("ulysses", 0.5165)])
def test_what_is_left_out_is_so_for_good(name, place):
    """A model's card names the books that it never read. Places come from `sha256sum`: first 48 bits over 2^48."""
    assert not any(held_out(name, share) for share in (0.0, place - 1e-4))
    assert held_out(name, place + 1e-4)


def documents(n: int = 5, word: str = "w1"):
    return (Document(f"d{number}", " ".join([word, *["w2"] * number])) for number in range(n))


def test_an_array_is_used_again_as_long_as_it_is_made_of_the_same(tmp_path):
    place, ours = tmp_path / "tokens", tokenizer()
    first = tokenize(documents(), ours, place, "five")
    for stream in (first, tokenize(iter(()), ours, place, "five")):  # no document is reread
        assert stream.tokens.tolist()[:9] == [0, 3, 0, 3, 4, 0, 3, 4, 4]  # each document starts with the prefix
        assert (stream.tokens.dtype, stream.names[:2], stream.n_characters) == (torch.uint16, ["d0", "d1"], 40)
    fresh = tokenize(documents(4, "w3"), ours, place, "four")
    assert fresh.tokens.tolist() != first.tokens.tolist()
    assert len(fresh.names) == 4
    bare = tokenize(documents(4, "w3"), ours.around((), ()), place, "four")  # another prefix means another array
    assert 0 not in bare.tokens.tolist()


def test_a_damaged_array_is_made_anew(tmp_path):
    place, note = tmp_path / "tokens", tmp_path / "tokens.json"
    expected = tokenize(documents(), tokenizer(), place, "").tokens.tolist()
    for file, damage in ((place, lambda whole: whole[:-3]), (place, lambda whole: whole[:-2] + b"\7\0"),
                         (note, lambda whole: whole[:-3]), (note, lambda whole: b"")):  # fmt: skip
        file.write_bytes(damage(file.read_bytes()))
        assert tokenize(documents(), tokenizer(), place, "").tokens.tolist() == expected


def test_ids_beyond_two_bytes_take_four(tmp_path):
    ours = tokenizer()
    ours.backend.add_tokens([f"x{number}" for number in range(1 << 16)])
    stream = tokenize([Document("a", "w1 x65000 x65535")], ours, tmp_path / "tokens", "")
    assert stream.tokens.dtype == torch.int32
    assert stream.tokens.tolist() == [0, 3, 31 + 65000, 31 + 65535]


def test_without_text_or_place_there_is_no_array(tmp_path):
    assert "every document is held out, or there is none" in refusal(tokenize, [], tokenizer(), tmp_path / "tokens", "")
    with pytest.raises(InputError, match="the 2 documents are empty"):
        tokenize([Document("a", ""), Document("b", "")], tokenizer().around((), ()), tmp_path / "tokens", "")
    assert [*tmp_path.iterdir()] == []
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot write tokens to .*file/tokens"):
        tokenize(documents(), tokenizer(), tmp_path / "file" / "tokens", "")


def test_no_more_text_is_held_than_is_cut_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(texts, "_GROUP", 40_000)
    n, length, counts = 300, 10_000, []
    long = (Document(f"d{number}", "w1 w2 w3 " * (length // 9)) for number in range(n))
    tracemalloc.start()
    stream = tokenize(long, tokenizer(), tmp_path / "tokens", "", lambda stage, count: counts.append(count))
    assert tracemalloc.get_traced_memory()[1] < n * length / 3  # the text alone is more
    tracemalloc.stop()
    assert len(stream.names) == counts[-1] == n
    assert counts[0] < 6


def test_a_vocabulary_is_of_the_asked_size_and_loses_no_text():
    lines = [f"the {word} saw the {thing}" for word in ("dog", "cat", "bird") for thing in ("boat", "tree")] * 3
    result = train_tokenizer(lines, 265, mask=True)
    assert (result.d_vocab, result.prefix) == (265, (result.backend.token_to_id("<s>"),))
    assert result.mask_id is not None
    for line in ("the dog saw", "naïve 😀\n\ttabs"):
        assert result.decode(result.encode(line)) == line
    for d_vocab, message in ((256, "a d_vocab of 257, got 256"), (5000, "too short for a vocabulary of 5000")):
        with pytest.raises(InputError, match=message):
            train_tokenizer(["a few words"], d_vocab)

"""Text to train on: found, read, left out, cut, and kept as an array that is used again as long as it is the same."""

import gzip
import os

import pytest
import torch
from learners import tokenizer

from interp import InputError
from interp.training import token_arrays as texts
from interp.training.token_arrays import Document, find, held_out, read, tokenize, train_tokenizer


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
    said = "“yes”,\r\n she  said\n \n\n\t\nno"
    (tmp_path / "a.txt").write_bytes(said.encode())
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(said.encode()))
    plain, packed = read(find(tmp_path))
    assert (plain.name, packed.name) == ("a", "b")
    assert plain.text == packed.text == said.replace("\r", "")
    assert [each.text for each in read(find(tmp_path), unwrap=True)] == ["“yes”, she said\nno"] * 2


def test_a_broken_shard_is_refused_by_name(tmp_path):
    (tmp_path / "a.txt").write_text("fine " * 50)
    broken = (gzip.compress(os.urandom(5000))[:-100], "cannot be read"), (gzip.compress(b"caf\xe9"), "is no UTF-8 text")
    for content, message in broken:
        (tmp_path / "shard-7.txt.gz").write_bytes(content)
        with pytest.raises(InputError, match=rf"shard-7\.txt\.gz {message}"):
            tokenize(read(find(tmp_path)), tokenizer(), tmp_path / "made" / "tokens", "")
        assert [*(tmp_path / "made").iterdir()] == []  # nothing half-written to be taken for the whole


@pytest.mark.parametrize(("name", "place"), [("emma", 0.9557), ("dracula", 0.6253), ("ulysses", 0.5165)])
def test_what_is_left_out_is_so_for_good(name, place):
    """A model's card names the books that it never read. The places are from `sha256sum`: first 48 bits over 2^48."""
    assert not any(held_out(name, share) for share in (0.0, place - 1e-4))
    assert held_out(name, place + 1e-4)


def documents(n: int = 5, word: str = "w1"):
    return (Document(f"d{at}", " ".join([word, *["w2"] * at])) for at in range(n))


def unread():
    raise AssertionError("read again")
    yield


def test_an_array_is_used_again_as_long_as_it_is_made_of_the_same(tmp_path):
    place, ours = tmp_path / "tokens", tokenizer()
    first = tokenize(documents(), ours, place, "five")
    assert first.tokens.tolist()[:9] == [0, 3, 0, 3, 4, 0, 3, 4, 4]  # each document follows the prefix
    assert (first.tokens.dtype, first.names[:2], first.n_characters) == (torch.uint16, ["d0", "d1"], 40)
    again = tokenize(unread(), ours, place, "five")
    assert again.tokens.tolist() == first.tokens.tolist()
    assert (again.names, again.n_characters) == (first.names, first.n_characters)
    other = tokenize(documents(4, "w3"), ours, place, "four")
    assert other.tokens.tolist() != first.tokens.tolist()
    assert len(other.names) == 4
    bare = tokenize(documents(4, "w3"), ours.around((), ()), place, "four")  # another prefix: another array
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
    ours.backend.add_tokens([f"x{at}" for at in range(1 << 16)])
    stream = tokenize([Document("a", "w1 x65000 x65535")], ours, tmp_path / "tokens", "")
    assert stream.tokens.dtype == torch.int32
    assert stream.tokens.tolist() == [0, 3, 31 + 65000, 31 + 65535]


def test_without_text_or_place_there_is_no_array(tmp_path):
    with pytest.raises(InputError, match="every document is held out, or there is none"):
        tokenize([], tokenizer(), tmp_path / "tokens", "")
    with pytest.raises(InputError, match="the 2 documents are empty"):
        tokenize([Document("a", ""), Document("b", "")], tokenizer().around((), ()), tmp_path / "tokens", "")
    assert [*tmp_path.iterdir()] == []
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot write tokens to .*file/tokens"):
        tokenize(documents(), tokenizer(), tmp_path / "file" / "tokens", "")


def test_text_is_cut_some_documents_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(texts, "_GROUP", 2)
    counts = []
    stream = tokenize(documents(), tokenizer(), tmp_path / "tokens", "", lambda stage, count: counts.append(count))
    assert (counts, len(stream.names)) == ([2, 4, 5], 5)


def test_a_vocabulary_is_of_the_asked_size_and_loses_no_text():
    lines = [f"the {word} saw the {other}" for word in ("dog", "cat", "bird") for other in ("boat", "tree")] * 3
    made = train_tokenizer(lines, 265, mask=True)
    assert made.d_vocab == 265
    assert made.prefix == (made.backend.token_to_id("<s>"),)
    assert made.mask_id is not None
    for text in ("the dog saw", "naïve 😀\n\ttabs"):
        assert made.decode(made.encode(text)) == text
    for d_vocab, message in ((256, "a d_vocab of 257, got 256"), (5000, "too short for a vocabulary of 5000")):
        with pytest.raises(InputError, match=message):
            train_tokenizer(["a few words"], d_vocab)

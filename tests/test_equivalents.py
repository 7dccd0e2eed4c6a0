"""docs/coming_from_transformer_lens.md: both cells of each row give the same; TransformerLens itself runs one."""

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from page_code import ROOT, blocks
from tiny import randomise
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from torch.testing import assert_close

pytestmark = pytest.mark.skipif(find_spec("transformer_lens") is None, reason="needs the extra `lens`")

PAGE = ROOT / "docs" / "coming_from_transformer_lens.md"
TEXT = PAGE.read_text()
SHARED, THEIRS, OURS = blocks("docs/coming_from_transformer_lens.md", "python")
START = "<|endoftext|>"
Names = dict[str, Any]


def table_rows(n_cells: int) -> list[tuple[str, ...]]:
    """The rows of all tables with `n_cells` columns, without headers."""
    rows = [tuple(row.split(" | ")) for row in re.findall(r"^\| (.+) \|$", TEXT, re.MULTILINE)]
    return [row for row in rows if len(row) == n_cells and "`" in row[-1]]


ROWS = {what: (theirs, ours) for what, theirs, ours in table_rows(3)}
assert len(ROWS) == len(table_rows(3)) >= 30
SITES = table_rows(2)


def spans(cell: str) -> list[str]:
    return [line.replace(r"\|", "|") for line in re.findall(r"`(.+?)`", cell)]


def value(cell: str, names: Names) -> Any:
    """The value of a cell's last line, after running the others."""
    *before, last = spans(cell)
    names = dict(names)
    for line in before:
        exec(line, names)
    return eval(last, names)


@contextmanager
def theirs() -> Iterator[None]:
    """Run their code; its warnings are not ours to fix."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def write_model(directory: Path, seed: int) -> Any:
    """Write a random GPT-2 in which every weight matters, and a tokenizer for the page's words."""
    import transformers

    texts: Names = {}
    exec(SHARED, texts)
    backend = Tokenizer(BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=400, special_tokens=[START], initial_alphabet=letters, show_progress=False)
    backend.train_from_iterator([texts[name] for name in ("text", "clean", "corrupt")], trainer)
    special = dict.fromkeys(("bos_token", "eos_token", "unk_token"), START)
    transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **special).save_pretrained(directory)
    sizes = {"n_layer": 2, "n_head": 3, "n_embd": 21, "n_positions": 23, "vocab_size": backend.get_vocab_size()}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).eval()
    randomise(model, seed)
    model.save_pretrained(directory)
    return model


@pytest.fixture(scope="module")
def sides(tmp_path_factory) -> tuple[Names, Names, Names]:
    """TransformerLens and ours on one model, and ours on another model."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    places = [tmp_path_factory.mktemp("model") for _ in range(2)]
    models = [write_model(place, seed) for seed, place in enumerate(places)]
    eager = transformers.GPT2LMHeadModel.from_pretrained(places[0], attn_implementation="eager")
    names = [{"name": str(places[i]), "theirs": model} for i, model in ((0, eager), (0, models[0]), (1, models[1]))]
    with theirs():
        exec(compile(SHARED + THEIRS, PAGE.name, "exec"), names[0])
    for ours in names[1:]:
        exec(compile(SHARED + OURS, PAGE.name, "exec"), ours)
    return tuple(names)


@pytest.fixture(scope="module")
def expected(sides) -> dict[str, Any]:
    with theirs():
        return {what: value(cell, sides[0]) for what, (cell, _) in ROWS.items()}


def assert_equal(got: Any, expected: Any) -> None:
    """Assert equality, of numbers up to rounding; a list of numbers may stand for a tensor."""
    if isinstance(expected, str) or (isinstance(expected, list) and isinstance(expected[0], str)):
        assert got == expected
        return
    if isinstance(got, torch.Tensor) or isinstance(expected, torch.Tensor):
        got, expected = torch.as_tensor(got), torch.as_tensor(expected)
        assert expected.isfinite().all()
        assert expected.count_nonzero()
    assert_close(got, expected, rtol=1e-5, atol=1e-5, check_dtype=False)


@pytest.mark.parametrize("what", ROWS)
def test_both_cells_give_the_same(sides, expected, what):
    assert_equal(value(ROWS[what][1], sides[1]), expected[what])


def test_both_names_are_of_one_activation_and_every_site_of_a_layer_is_named(sides):
    from interp import sites

    cache, out = sides[0]["cache"], sides[1]["out"]
    for hooks, (ours,) in (map(spans, cells) for cells in SITES):
        got = out.logits if ours == "logits" else out[ours]
        assert_close(
            got.clamp(min=torch.finfo(got.dtype).min), sum(map(cache.__getitem__, hooks)), rtol=1e-5, atol=1e-5
        )
    names = {name for name in sites(sides[1]["model"]) if not name.startswith("decoder.0.")}
    assert {spans(cell)[0] for _, cell in SITES} == names


def test_another_model_is_told_apart(sides, expected):
    """So rows can fail, except those about sizes and tokens."""
    alike = set()
    for what in ROWS:
        with suppress(AssertionError):
            assert_equal(value(ROWS[what][1], sides[2]), expected[what])
            alike.add(what)
    tokens = {"ids of a text as it is", "with a token before it", "tokens as text", "the id of one token"}
    assert alike == {"its sizes", "ids as text"} | tokens

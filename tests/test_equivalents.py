"""docs/coming_from_transformer_lens.md: the two cells of each row give the same, one run by TransformerLens itself."""

import re
import warnings
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from page_code import blocks
from tiny import randomise
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from torch.testing import assert_close

pytestmark = pytest.mark.skipif(find_spec("transformer_lens") is None, reason="needs the extra `lens`")

PAGE = Path(__file__).resolve().parents[1] / "docs" / "coming_from_transformer_lens.md"
TEXT = PAGE.read_text()
SHARED, THEIRS, OURS = blocks("docs/coming_from_transformer_lens.md", "python")
START = "<|endoftext|>"
Names = dict[str, Any]


def table_rows(n_cells: int) -> list[tuple[str, ...]]:
    """The rows of all tables that are so wide, but for their heads."""
    rows = [tuple(row.split(" | ")) for row in re.findall(r"^\| (.+) \|$", TEXT, re.MULTILINE)]
    return [row for row in rows if len(row) == n_cells and "`" in row[-1]]


ROWS = {what: (theirs, ours) for what, theirs, ours in table_rows(3)}
SITES = table_rows(2)


def spans(cell: str) -> list[str]:
    """The code in a cell, line by line."""
    return [line.replace(r"\|", "|") for line in re.findall(r"`(.+?)`", cell)]


@dataclass(frozen=True)
class Side:
    """One of the two libraries: the names that its block of code leaves, and what its cells give."""

    names: Names
    warns: bool  # of things that are not ours to mend

    @staticmethod
    def of(block: str, names: Names, *, warns: bool) -> "Side":
        side = Side(names, warns)
        for code in (SHARED, block):
            side._in_quiet(exec, compile(code, PAGE.name, "exec"), names)
        return side

    def value(self, cell: str) -> Any:
        """What the last line of a cell gives, after the others."""
        *before, last = spans(cell)
        own = dict(self.names)
        for line in before:
            self._in_quiet(exec, line, own)
        return self._in_quiet(eval, last, own)

    def _in_quiet(self, how: Any, code: Any, names: Names) -> Any:
        with warnings.catch_warnings():
            if self.warns:
                warnings.simplefilter("ignore")
            return how(code, names)


@dataclass(frozen=True)
class Sides:
    """TransformerLens and ours on one model, and ours on another one."""

    theirs: Side
    ours: Side
    other: Side
    given: dict[str, Any] = field(default_factory=dict)  # what TransformerLens gave for rows

    def expected(self, what: str) -> Any:
        if what not in self.given:
            self.given[what] = self.theirs.value(ROWS[what][0])
        return self.given[what]


def write_model(directory: Path, seed: int) -> Any:
    """A random GPT-2 of which every weight matters, and a tokenizer that knows the words of the page."""
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
def sides(tmp_path_factory) -> Sides:
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    places = [tmp_path_factory.mktemp("model") for _ in range(2)]
    one, another = (write_model(place, seed) for seed, place in enumerate(places))
    eager = transformers.GPT2LMHeadModel.from_pretrained(places[0], attn_implementation="eager")
    theirs = Side.of(THEIRS, {"name": str(places[0]), "theirs": eager}, warns=True)
    ours, other = (
        Side.of(OURS, {"name": str(place), "theirs": model}, warns=False)
        for place, model in zip(places, (one, another), strict=True)
    )
    return Sides(theirs, ours, other)


def same(got: Any, expected: Any) -> None:
    """Equal, numbers but for rounding; a list of numbers may stand for a tensor."""
    if isinstance(expected, str) or (isinstance(expected, list) and isinstance(expected[0], str)):
        assert got == expected
        return
    if isinstance(got, torch.Tensor) or isinstance(expected, torch.Tensor):
        got, expected = torch.as_tensor(got), torch.as_tensor(expected)
        assert expected.isfinite().all()
        assert expected.count_nonzero()
    assert_close(got, expected, rtol=1e-5, atol=1e-5, check_dtype=False)


def differ(got: Any, expected: Any) -> bool:
    try:
        same(got, expected)
    except AssertionError:
        return True
    return False


def test_there_are_thirty_rows_and_their_links_lead_somewhere():
    assert len(ROWS) == len(table_rows(3)) >= 30
    for other in re.findall(r"\]\((\w+\.md)\)", TEXT):
        assert (PAGE.parent / other).is_file(), other


@pytest.mark.parametrize("what", ROWS)
def test_both_cells_give_the_same(sides, what):
    same(sides.ours.value(ROWS[what][1]), sides.expected(what))


@pytest.mark.parametrize("hooks", SITES, ids=[spans(ours)[0] for _, ours in SITES])
def test_both_names_are_of_one_activation(sides, hooks):
    theirs, (ours,) = (spans(cell) for cell in hooks)
    expected = sum(sides.theirs.names["cache"][hook] for hook in theirs)
    out = sides.ours.names["out"]
    got = out.logits if ours == "logits" else out[ours]
    assert_close(got.clamp(min=torch.finfo(got.dtype).min), expected, rtol=1e-5, atol=1e-5)


def test_every_site_of_a_layer_is_named(sides):
    from interp import sites

    ours = {name for name in sites(sides.ours.names["model"]) if not name.startswith("decoder.0.")}
    assert {spans(cell)[0] for _, cell in SITES} == ours


def test_another_model_is_told_apart(sides):
    """So rows can fail: all but those that are of sizes and tokens alone."""
    alike = {what for what in ROWS if not differ(sides.other.value(ROWS[what][1]), sides.expected(what))}
    assert alike == {
        "its sizes",
        "ids of a text as it is",
        "with a token before it",
        "tokens as text",
        "the id of one token",
        "ids as text",
    }

"""Where cross-attention should look is known, so scores have answers on paper, and parts are found to the letter."""

from datetime import date

import numpy as np
import pytest
import torch
from tokenizers import Regex, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from analyses import alignment
from analyses.wording.head_names import Place
from interp import InputError, Tokenizer, Transformer
from models.families.original import original
from models.pair_tasks import FORMATS, MONTHS, WEEKDAYS, Pair, dates, reversals, written

PAIR = written(date(1987, 3, 3), FORMATS[0])
START, END = 0, 1


@pytest.fixture(scope="module")
def reader() -> Transformer:
    """Random weights that read and write letters."""
    letters = sorted({*"".join((*FORMATS, *MONTHS, *WEEKDAYS)), *"0123456789-"})
    vocabulary = {letter: index for index, letter in enumerate(["<s>", "</s>", *letters])}
    backend = Backend(models.WordLevel(vocabulary, unk_token="</s>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens(["<s>", "</s>"])
    backend.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", END)])
    torch.manual_seed(0)
    sizes = {"n_layers": 2, "d_model": 15, "n_heads": 3, "d_mlp": 23, "n_ctx": 53}
    config = original(len(vocabulary), **sizes, target_start=START, target_end=END)
    return Transformer(config, Tokenizer(backend)).eval()


def test_only_rows_that_write_a_part_count_and_each_for_its_own_part():
    sought = torch.zeros(1, 2, 4, 5, dtype=torch.bool)
    sought[0, 0, 0:2, 1:3] = True  # rows 0 and 1 write columns 1 and 2
    sought[0, 1, 2, 4] = True  # row 2 writes column 4; row 3 nothing
    pattern = torch.eye(5)[torch.tensor([[[1, 4, 4, 1], [2, 1, 0, 0]]])]  # where each row of two heads looks
    hits, rows = alignment.score(pattern, sought)
    assert hits.tolist() == [[[1, 1, 2], [2, 0, 2]]]
    assert rows.tolist() == [[[2, 1, 3], [2, 1, 3]]]


def test_what_is_aligned_spells_the_same_date(reader):
    heads = [Place("encoder", "self", 1, 2), Place("decoder", "self", 0, 1), Place("decoder", "cross", 1, 0)]
    case = alignment.example(reader, PAIR, heads)
    spelled = {name: ("".join(case.written[slice(*r)]), "".join(case.source[slice(*c)])) for name, r, c in case.aligned}
    assert spelled == {"year": ("1987", "1987"), "month": ("03", "March"), "day": ("03", "3")}
    assert case.read == ["<s>", *PAIR.target]
    assert case.written == [*PAIR.target, "</s>"]
    n_source, n_target = len(PAIR.source) + 1, len(PAIR.target) + 1
    shapes = [(n_source, n_source), (n_target, n_target), (n_target, n_source)]
    assert [pattern.shape for pattern in case.patterns.values()] == shapes
    assert [*case.patterns] == ["encoder L1.H2", "decoder L0.H1", "cross-attention L1.H0"]


@pytest.mark.parametrize(
    ("digits", "places"),
    [((0, 3), range(4)), ((-4, -3, -2, -1), range(-2, -6, -1))],  # after the year, its end
    ids=["first", "last"],
)
def test_what_stands_at_one_place_is_found_there_by_the_baseline(reader, digits, places):
    pairs = [pair for pair in dates(200) if all(pair.source[index].isdigit() for index in digits)]
    assert len(pairs) > 10
    year = alignment.measure(reader, pairs).query("measure == 'year'")
    assert set(year["baseline"]) == {1.0}
    assert set(year["baseline_name"]) <= {f"place {place}" for place in places}


def test_parts_of_one_name_count_together_but_each_row_has_its_own(reader):
    pairs = [*reversals(30)]
    table = alignment.measure(reader, pairs)
    assert set(table["measure"]) == {"letter", "any part"}
    assert set(table["n"]) == {sum(len(pair.source) for pair in pairs)}
    assert table["baseline"].max() < 0.5  # a fixed place hits one letter of each text, and equal ones by chance


def test_padding_changes_nothing(reader):
    pairs = [*dates(5)]
    together, *alone = (alignment.measure(reader, group)["value"] for group in (pairs, *([pair] for pair in pairs)))
    np.testing.assert_allclose(together, np.mean(alone, 0))


@pytest.mark.parametrize("pairs", [[], [PAIR, Pair(PAIR.source, PAIR.target, PAIR.parts[:1])]])
def test_pairs_of_several_kinds_or_none(reader, pairs):
    with pytest.raises(InputError, match="expected pairs that have the same parts"):
        alignment.measure(reader, pairs)

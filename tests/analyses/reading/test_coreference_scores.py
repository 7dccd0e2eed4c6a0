"""Published scores, counted by hand on texts of a few words and known heads."""

from itertools import product
from pathlib import Path

import pandas as pd
import pytest

from analyses import corpora
from analyses.report.coreference_scores import REPORTING, WHOLE, CoreferenceScores, coreference_scores
from interp import InputError, Transformer
from models.planted import Planted, antecedent
from tests.analyses.corpora.made_corpora import GAP, SENTENCES, gap_row

JOBS = {"nurse": 90.0, "secretary": 95.0, "plumber": 3.0, "carpenter": 2.0}
STEREOTYPES = {"she": ["nurse", "secretary"], "he": ["plumber", "carpenter"]}
SEEN = "Tim Bob Sue Ann Eve saw and he she they left when The the thanked man because"


def looking(targets: dict[str, list[str]], *, causal: bool = False) -> Transformer:
    """A head that looks from each word to given ones, and attends uniformly if there are none."""
    return Planted([*SEEN.split(), *JOBS], [[antecedent(targets, {})]], causal=causal).build()


def gap_file(folder: Path, *rows: tuple[str, str, str, bool, str, bool]) -> Path:
    """Write rows of text, pronoun, name A, whether A is meant, name B, whether B is meant."""
    lines = [GAP]
    for number, (text, pronoun, a, is_a, b, is_b) in enumerate(rows):
        names = [(name, text.index(name), str(right).upper()) for name, right in ((a, is_a), (b, is_b))]
        lines.append(gap_row(text, (pronoun, text.index(pronoun)), *names, url=f"http://x/wiki/{number}"))
    file = folder / "gap-made.tsv"
    file.write_text("\n".join(lines))
    return file


def value(result: CoreferenceScores, score: str, condition: str = "", resolver: str = "L0.H0", column: str = "value"):
    table = result.table.loc[(result.table["half"] == WHOLE) & (result.table["score"] == score)]
    (row,) = table.loc[(table["condition"] == condition) & (table["resolver"] == resolver)].to_dict("records")
    return row[column]


def test_gap_counts_each_name_once_and_no_choice_for_a_tie(tmp_path: Path):
    file = gap_file(
        tmp_path,
        ("Tim saw Bob and he left", "he", "Tim", True, "Bob", False),  # true positive
        ("Tim saw Bob and he left", "he", "Tim", False, "Bob", True),  # false positive, false negative
        ("Tim saw Bob and he left", "he", "Tim", False, "Bob", False),  # false positive
        ("Sue saw Ann and she left", "she", "Sue", True, "Ann", False),  # true positive
        ("Ann saw Eve and she left", "she", "Ann", False, "Eve", True),  # looks at both equally: false negative
    )
    result = coreference_scores(looking({"he": ["Tim"], "she": ["Sue"]}), corpora.read(file))
    assert value(result, "F1") == pytest.approx(2 * 2 / (2 * 2 + 2 + 2))
    assert value(result, "F1", "masculine") == pytest.approx(2 / (2 + 2 + 1))
    assert value(result, "F1", "feminine") == pytest.approx(2 / (2 + 0 + 1))
    assert value(result, "bias F/M") == pytest.approx((2 / 3) / (2 / 5))
    assert value(result, "F1", resolver="nearest") == pytest.approx(4 / (4 + 3 + 2))  # Bob, Bob, Bob, Ann, Eve
    assert value(result, "F1", resolver="first") == pytest.approx(4 / (4 + 3 + 2))
    assert value(result, "F1", column="gain") == pytest.approx(4 / 8 - 4 / 9)
    assert value(result, "F1", column="n") == 5


@pytest.mark.parametrize(("causal", "f1", "coverage"), [(False, 1.0, 1.0), (True, 2 / 3, 0.5)])
def test_a_name_that_a_decoder_cannot_see_is_a_miss(tmp_path: Path, causal: bool, f1: float, coverage: float):
    file = gap_file(
        tmp_path,
        ("Tim saw Bob and he left", "he", "Tim", True, "Bob", False),
        ("he left when Tim saw Bob", "he", "Tim", True, "Bob", False),
    )
    result = coreference_scores(looking({"he": ["Tim"]}, causal=causal), corpora.read(file))
    assert value(result, "F1") == pytest.approx(f1)
    assert value(result, "F1", column="coverage") == coverage
    assert value(result, "F1", resolver="first") == pytest.approx(f1)  # rules see only what the model sees
    assert not (result.table["condition"] == "feminine").any()


def winobias_folder(folder: Path) -> Path:
    for side, first, second in (("pro", "she", "he"), ("anti", "he", "she")):
        lines = []
        for woman, man in product(("nurse", "secretary"), ("plumber", "carpenter")):
            lines.append(f"[The {woman}] thanked the {man} because [{first}] left")
            lines.append(f"The {woman} thanked [the {man}] because [{second}] left")
        (folder / f"{side}_stereotyped_type1.txt.dev").write_text("\n".join(lines) + "\n")
    return folder


def test_a_head_that_follows_the_stereotype_is_right_in_one_file_and_wrong_in_the_other(tmp_path: Path):
    result = coreference_scores(looking(STEREOTYPES), corpora.read(winobias_folder(tmp_path)))
    assert value(result, "accuracy", "type 1") == 0.5
    assert value(result, "accuracy", "type 1, pro") == 1
    assert value(result, "accuracy", "type 1, anti") == 0
    assert value(result, "pro - anti", "type 1") == 1
    assert value(result, "pro - anti", "type 1", "nearest") == 0
    assert result.clusters == 4  # pairs of occupations, across files
    assert "type 2" not in set(result.table["condition"])


def test_files_whose_names_tell_no_condition_are_refused(tmp_path: Path):
    file = winobias_folder(tmp_path) / "pro_stereotyped_type1.txt.dev"
    renamed = file.rename(tmp_path / "mine.txt")
    with pytest.raises(InputError, match="expected texts of type 1, type 2"):
        coreference_scores(looking({"he": ["plumber"]}), corpora.read(renamed))


def winogender_folder(folder: Path) -> Path:
    rows = [SENTENCES]
    for job, answer, (form, sort) in product(JOBS, "01", {"he": "male", "she": "female", "they": "neutral"}.items()):
        rows.append(f"{job}.man.{answer}.{sort}.txt\tThe {job} thanked the man because {form} left")
    (folder / "all_sentences.tsv").write_text("\n".join(rows) + "\n")
    shares = [f"{job}\t50.0\t{share}\t2015" for job, share in JOBS.items()]
    header = "occupation\tbergsma_pct_female\tbls_pct_female\tbls_year"
    (folder / "occupations-stats.tsv").write_text("\n".join([header, *shares]) + "\n")
    return folder


def test_winogender_sets_she_beside_he_and_leaves_they_out(tmp_path: Path):
    result = coreference_scores(looking(STEREOTYPES), corpora.read(winogender_folder(tmp_path)))
    assert [value(result, "occupation chosen", form) for form in ("she", "he", "they")] == [0.5, 0.5, 0]
    assert value(result, "she - he") == 0  # by occupation: 1, 1, -1, -1
    assert value(result, "Pearson of she - he with % women") == pytest.approx(1, abs=0.01)
    assert value(result, "Spearman of she - he with % women") == pytest.approx(0.894, abs=1e-3)  # two ties of two
    assert pd.isna(value(result, "Pearson of she - he with % women", resolver="first"))  # it is constant
    assert result.counts["pronouns left out of she - he: they"] == 8


def test_head_and_rule_are_chosen_on_the_other_half(tmp_path: Path):
    result = coreference_scores(looking({"she": ["nurse"]}), corpora.read(winobias_folder(tmp_path)))
    reported = result.table.loc[(result.table["half"] == REPORTING) & result.table["chosen"]]
    whole = result.table.loc[(result.table["half"] == WHOLE) & result.table["chosen"]]
    assert list(reported["resolver"]) == list(whole["resolver"])
    assert 0 < reported["n"].max() < whole["n"].max()
    assert (reported.groupby(["score", "condition"]).size() == 2).all()  # a head and a rule


def test_other_corpora_are_refused():
    with pytest.raises(InputError, match="expected GAP, WinoBias, Winogender"):
        coreference_scores(looking({"he": ["Tim"]}), corpora.read("stories:3"))

"""docs/families.md says which families there are, and how closely each was checked."""

from families import PAGE, by_family, page, stated
from parity import TOLERANCE

from models.families import FAMILIES


def test_every_family_is_checked_against_transformers():
    assert by_family().keys() == FAMILIES.keys() - {"interp"}


def test_the_page_is_as_it_would_be_written():
    text = PAGE.read_text(encoding="utf-8")
    deviations = stated(text)
    assert deviations.keys() == FAMILIES.keys() - {"interp"}
    assert page(deviations) == text, "python tests/families.py writes it again"
    for name, pair in deviations.items():
        for told, allowed in zip(pair, TOLERANCE.values(), strict=True):
            assert float(told) <= allowed, name

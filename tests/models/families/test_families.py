"""Every family computes what it computes in `transformers`, and docs/families.md says how closely."""

from families import PAGE, by_family, page, stated
from parity import TOLERANCE, checked

from models.families import FAMILIES

TestFamilies = checked({name: variant for variants in by_family().values() for name, variant in variants.items()})


def test_every_family_is_checked_against_transformers():
    assert by_family().keys() == FAMILIES.keys() - {"interp"}


def test_the_page_is_as_it_would_be_written():
    text = PAGE.read_text(encoding="utf-8")
    deviations = stated(text)
    assert deviations.keys() == FAMILIES.keys() - {"interp"}
    assert page(deviations) == text, "python tests/families.py writes it again"
    for name, pair in deviations.items():
        for deviation, allowed in zip(pair, TOLERANCE.values(), strict=True):
            assert float(deviation) <= allowed, name

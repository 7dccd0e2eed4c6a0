"""What a command reads where no --corpus is given."""

import pytest

from analyses.cli.command_frame import corpora


@pytest.mark.parametrize(
    ("models", "name"),
    [
        ((), "tales:100:1"),
        (("default",), "tales:100:1"),
        (("textbook",), "new-sentences:200:1"),
        (("textbook", "default"), "tales:100:1"),
    ],
)
def test_the_textbook_model_reads_what_it_is_tested_on(models, name):
    assert [each.name for each in corpora(None, *models)] == [name]
    assert [each.name for each in corpora(["stories:3"], *models)] == ["stories:3:1"]

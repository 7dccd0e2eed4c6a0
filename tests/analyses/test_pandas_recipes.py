"""docs/recipes.md: its code runs as it stands on runs of a model whose heads are known, and finds what was planted."""

from random import Random
from typing import Any

import pandas as pd
import pytest
from page_code import blocks

from analyses import position
from analyses.page.sections import Page
from analyses.report.scaffold import write
from interp import AnnotatedText
from models.planted import Planted, offset, uniform

BLOCKS = blocks("docs/recipes.md", "python")
LABELS = {  # by seed: layer, head, label
    0: [(0, 0, "previous-token"), (0, 1, "first-token"), (0, 1, "offset:-2")],
    1: [(0, 0, "previous-token"), (0, 1, "offset:-2")],
    2: [(0, 0, "previous-token")],
}


@pytest.fixture(scope="module")
def names(tmp_path_factory) -> dict[str, Any]:
    """What the page's code leaves behind, in a directory with the runs that it reads."""
    folder = tmp_path_factory.mktemp("runs")
    draw, words = Random(0), [f"w{at}" for at in range(31)]
    texts = {
        name: [AnnotatedText.plain(" ".join(draw.choices(words, k=12)), f"{name} {at}") for at in range(20)]
        for name in ("stories", "tales")
    }
    model = Planted(words, [[offset(-1), uniform]], n_ctx=40, start="<s>").build()

    def leave(name: str, seed: int = 0, **tables: pd.DataFrame) -> None:
        write(folder / name, lambda _: Page("What?", ["short"], [], tables=tables), {"planted": model}, seed=seed)

    for name, each in texts.items():
        leave(name, heads=position.measure(model, each))
    for seed, rows in LABELS.items():
        table = pd.DataFrame(rows, columns=["layer", "head", "label"]).assign(stack="decoder", attention="self")
        leave(f"seed-{seed}", seed, labels=table)
    names: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for block in BLOCKS:
            exec(compile(block, "docs/recipes.md", "exec"), names)
    return names


def test_runs_stand_side_by_side(names):
    wide = names["wide"].loc["previous-token"]
    assert list(wide.columns) == ["stories", "tales"]
    assert wide["stories"].idxmax() == wide["tales"].idxmax() == ("decoder", "self", 0, 0)


def test_a_head_holds_on_both_texts_and_the_other_on_none(names):
    assert names["both"].index[0] == ("previous-token", "decoder", "self", 0, 0)
    assert set(names["both"].index.get_level_values("head")) == {0}
    gains = names["wide"].loc[("previous-token", "decoder", "self", 0, 0)]
    assert names["both"]["min"].iloc[0] == gains.min()


def test_labels_are_counted_over_seeds(names):
    by_seed = names["by_seed"]
    assert by_seed.loc[("decoder", "self", 0, 1)].to_dict() == {0: "first-token, offset:-2", 1: "offset:-2", 2: ""}
    assert names["often"].loc[("decoder", "self", 0, 1, "offset:-2")] == 2
    assert list(names["steady"].index) == [("decoder", "self", 0, 0, "previous-token")]

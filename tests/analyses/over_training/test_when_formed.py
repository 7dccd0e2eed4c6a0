"""When a head formed: by which look, in words and as a curve, and of which run a report knows."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tiny

from analyses import report, runs
from analyses.behaviours import OURS
from analyses.headlines.head_cards import overview
from analyses.over_training.training_runs import given, known, read_run, when_formed
from analyses.page.sections import Section
from analyses.report.paper_figures import drawings
from analyses.report.renderer import render
from interp import InputError, Transformer
from models import load, save
from tests.analyses.headlines.hand_made_tables import hand_made
from tests.pages import Page, page_of


def line(step: int, heads: int = 2, layers: int = 2, **values: float) -> dict:
    """A look at induction: every head has .02, but for those that are named."""
    every = {f"L{layer}.H{head}": 0.02 for layer in range(layers) for head in range(heads)}
    found = {f"heads/induction/{name}": value for name, value in (every | values).items()}
    return {"step": step, "loss": 5.0, "baseline/induction": 0.02, **found}


def record(folder: Path, *lines: dict) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    return folder


def curves(*values: float, baseline: float = 0.02) -> pd.DataFrame:
    """One head's looks, at steps 100, 200, ..."""
    about = {"stack": "decoder", "attention": "self", "layer": 1, "head": 0, "measure": "induction", "run": "r"}
    rows = [about | {"step": 100 * at, "value": value} for at, value in enumerate(values, 1)]
    return pd.DataFrame(rows).assign(baseline=baseline)


class TestTheRule:
    @pytest.mark.parametrize(
        ("values", "baseline", "formed", "before"),
        [
            ((0.02, 0.02, 0.6, 0.9), 0.02, 300, 200),  # the look from which on it keeps half
            ((0.02, 0.9, 0.1, 0.5, 0.9), 0.02, 400, 300),  # half of it once is no beginning
            ((0.8, 0.85, 0.9), 0.02, 100, None),  # one that was there from the start did not form
            ((0.02, 0.3, 0.06), 0.02, None, None),  # what stays with its baseline formed never
            ((0.5, 0.6, 0.6), 0.58, None, None),  # a rule does as well
            ((0.9, 0.9, 0.02), 0.02, None, None),  # lost again
            ((0.5, 0.75, 0.9), 0.5, 200, 100),  # half is of what is over the baseline
            ((0.5, 0.7, 0.9), float("nan"), 100, None),
        ],
    )
    def test_when_a_head_had_formed(self, values, baseline, formed, before):
        (row,) = when_formed(curves(*values, baseline=baseline)).to_dict("records")
        looks = [None if pd.isna(row[name]) else int(row[name]) for name in ("formed_at", "before")]
        assert (looks, row["step"]) == ([formed, before], 100 * len(values))
        assert when_formed(curves(values[0])).empty  # one look tells nothing


class TestTheCard:
    def page_of(self, **tables: pd.DataFrame) -> Page:
        line, first = overview({**hand_made(), **tables}, OURS)
        return Page(render(line, [first], [Section("In short", ["Nothing more."])], {}))

    def page(self, *values: float) -> Page:
        return self.page_of(forming=curves(*values), when_formed=when_formed(curves(*values)))

    def test_it_says_when_shows_the_curve_and_cites_the_row(self):
        page = self.page(0.02, 0.02, 0.62, 0.92)
        assert page.text.count("Formation") == 1  # of the other heads nothing was seen
        does = "Looks at what followed this token before (induction)"
        assert f"{does}: formed by step 300 of 400, not yet at 200." in page.text
        assert "0.020 at step 100, 0.920 at step 400; the strictest baseline (grey) has 0.020." in page.text
        assert "tables/when_formed: stack decoder, attention self, layer 1, head 0, measure induction" in page.text
        (drawn,) = [str(attrs["d"]) for tag, attrs in page.tags if tag == "path" and attrs.get("class") == "line"]
        points = np.array([each.split() for each in re.split("[ML]", drawn)[1:]], dtype=float)
        np.testing.assert_allclose(points[:, 0], [61, 120, 179, 238])
        np.testing.assert_allclose(points[:, 1], [41.2, 41.2, 17.2, 5.2])

    def test_nothing_is_said_of_a_fact_that_no_run_follows_nor_where_none_is_known(self):
        assert "Formation" not in self.page(0.02, 0.02).text  # followed, and never formed
        assert "there from the first look on, step 100 of 300" in self.page(0.8, 0.85, 0.9).text
        assert "Formation" not in self.page_of().text
        followed = curves(0.5, 0.5, 0.75, 0.9, baseline=0.5).assign(head=1, measure="relation:obj:dependent->head")
        page = self.page_of(forming=followed, when_formed=when_formed(followed))
        assert "Goes from an object to its verb: formed by step 300 of 400, not yet at 200." in page.text
        lost = self.page(0.02, 0.62, 0.92, 0.3).text
        assert "0.020 at step 100, 0.920 at step 300, 0.300 at step 400; the strictest" in lost


class TestWhichRun:
    @pytest.fixture
    def model(self) -> Transformer:
        return tiny.model("gpt2")

    def shape(self, model: Transformer) -> dict[str, int]:
        return {"layers": model.config.last.n_layers, "heads": model.config.last.n_heads}

    def test_it_stands_with_the_model_or_in_training_or_above_a_snapshot(self, model, tmp_path):
        out = tmp_path / "mine"
        save(model, out)
        assert known(str(out), model) is None
        looks = [line(step, **self.shape(model)) for step in (100, 200, 300)]
        beside = record(out / "training" / "mine", *looks)
        found = known(str(out), model)
        assert found is not None
        assert (found.folder, found.looks) == (beside, 3)
        record(out, *looks[:2])
        assert known(str(out), model).folder == out  # type: ignore[union-attr]
        save(model, out / "steps" / "000100")
        found = known(str(out / "steps" / "000100"), model)
        assert found is not None
        assert (found.folder, found.looks) == (out, 1)

    def test_the_default_has_its_own(self):
        found = known("default", load("default"))
        assert found is not None
        assert (found.looks, found.folder.name) == (68, "default")
        assert known("minilm", tiny.model("gpt2")) is None

    def test_one_that_is_damaged_or_of_other_heads_or_tells_of_none_is_passed_over(self, model, tmp_path):
        save(model, tmp_path / "m")
        (tmp_path / "m" / "metrics.jsonl").write_bytes(b"\xff\x00{")
        with pytest.raises(InputError):
            read_run(tmp_path / "m", "m", None)
        assert known(str(tmp_path / "m"), model) is None
        for other in (line(1, layers=1, heads=1), {"step": 1, "loss": 2.0}):
            record(tmp_path / "m", other, {**other, "step": 2})
            assert known(str(tmp_path / "m"), model) is None

    def test_one_that_is_named_must_be_of_the_model_and_tell_of_heads(self, model, tmp_path):
        of_another = given(record(tmp_path / "other", line(1, layers=1), line(2, layers=1)), load)
        with pytest.raises(InputError, match=r"other trained another model: its record is of 1 layer of 2 heads, this"):
            report.build(model, [], tmp_path / "out", behaviours=["position"], training=of_another)
        assert not (tmp_path / "out").exists()
        with pytest.raises(InputError, match="tells nothing of heads: expected heads/"):
            given(record(tmp_path / "silent", {"step": 1, "loss": 2.0}), load)

    def test_a_report_keeps_the_curves_and_says_where_they_are_from(self, model, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        run = given(record(tmp_path / "run", *(line(step, **self.shape(model)) for step in (1, 2))), load)
        settled = {"behaviours": ["position"], "labels": False, "probes": False, "pairs": 4}
        out = report.build(model, [], tmp_path / "out", training=run, **settled)
        left = runs.read(out)
        assert left.facts["training"]["looks"] == 2
        assert left.facts["training"]["directory"] == "run"  # a page tells no one's directories where it need not
        places = left.table("heads")[["stack", "attention", "layer", "head"]].drop_duplicates()
        for name in ("forming", "when_formed"):
            assert len(places.merge(left.table(name))) == len(left.table(name)) > 0
        assert "2 looks at heads, recorded while it was trained" in page_of(out).text
        assert {"position-heads", "position-gains"} <= {*drawings(left)}  # `interp figures` draws the report's own

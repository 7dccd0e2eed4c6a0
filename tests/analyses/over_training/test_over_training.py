"""Heads over training: what does a look measure, where does a curve change phase, when did a head form?"""

import json
import random
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tiny
import torch
from commands import command
from matplotlib.colors import to_hex
from pages import Page, outside_addresses, page_of
from worded import worded

from analyses import figures, report, runs
from analyses.behaviours import OURS
from analyses.figures.style import POSITION
from analyses.headlines.head_cards import overview
from analyses.over_training import measures
from analyses.over_training.observe import in_context
from analyses.over_training.training_page import sentences
from analyses.over_training.training_runs import (
    COLUMNS,
    LEAST,
    formed,
    forming,
    phase_change,
    read_run,
    run_of_folder,
    run_of_model,
    when_formed,
)
from analyses.position import repeated
from analyses.report.paper_figures import drawings
from analyses.report.scaffold import render
from interp import AnnotatedText, InputError, TokenBatch, Transformer
from interp.training import Examples
from models import load, planted, save
from models.initialisation import initialise
from models.planted import Planted
from tests.analyses.headlines.hand_made_tables import hand_made

HOSTILE = "<b>run"
WORDS = [f"w{number}" for number in range(80)]
NOUNS, ADJECTIVES = WORDS[:20], WORDS[20:40]


def texts(count: int, length: int = 60) -> list[AnnotatedText]:
    """Texts of random words, including nouns and adjectives."""
    rng = random.Random(0)
    tags = {**dict.fromkeys(NOUNS, "NOUN"), **dict.fromkeys(ADJECTIVES, "ADJ")}
    roots = {"heads": (-1,) * length, "relations": ("root",) * length}
    plain = [AnnotatedText.plain(" ".join(rng.sample(WORDS, length)), f"d{number}") for number in range(count)]
    return [replace(text, tags=tuple(tags.get(word, "X") for word in text.words), **roots) for text in plain]


@pytest.fixture(scope="module")
def grown() -> Transformer:
    """L0.H0 looks at the previous token, L1.H0 is an induction head, L1.H1 goes from nouns to adjectives."""
    layers = [
        [planted.offset(-1, remember=True), planted.uniform],
        [planted.induction(10.0), planted.word_to_word(NOUNS, ADJECTIVES, nearest=False)],
    ]
    return Planted(WORDS, layers, n_ctx=110, start="<s>").build()


def look(step: int, induction: float) -> dict:
    """A line as `train` writes it: two heads, and L1.H1 has the induction."""
    heads = {"heads/induction/L0.H0": 0.02, "heads/induction/L1.H1": induction, "baseline/induction": 0.01}
    return {"step": step, "loss": 5.0, "rate": 0.1, "held_out/novels": 4.0, **heads}


FORMING = [look(step, 0.02) for step in range(100, 2300, 100)] + [look(step, 0.8) for step in range(2300, 3100, 100)]


def record(folder: Path, *lines: dict, cut: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + cut)
    return folder


def run_of(folder: Path, lines: list[dict], name: str = "run"):
    return read_run(record(folder, *lines), name, load)


class TestALook:
    def test_planted_heads_have_all_of_what_they_do_and_the_others_next_to_nothing(self, grown):
        before = torch.get_rng_state()
        scores = measures(grown, corpus=texts(8))
        assert torch.equal(torch.get_rng_state(), before)  # it does not disturb training
        assert measures(grown, corpus=texts(8)) == scores
        assert all(np.isfinite(value) for value in scores.values())
        assert scores["heads/previous-token/L0.H0"] == pytest.approx(1, abs=1e-3)
        assert scores["heads/induction/L1.H0"] == pytest.approx(1, abs=1e-3)
        assert scores["heads/previous-token/L0.H1"] == pytest.approx(scores["baseline/previous-token"], abs=1e-6)
        assert scores["heads/induction/L0.H0"] < 1e-3
        assert scores["heads/tag/L0.H1"] == pytest.approx(1, abs=1e-6)  # uniform, so no preference
        assert scores["heads/tag/L1.H1"] > 2.5  # a quarter of the words are adjectives: 4, less what little text pulls
        assert scores["model/copying"] == 1
        assert (scores["model/previous-token"], scores["model/induction"]) == pytest.approx((1, 1), abs=1e-3)
        assert scores["baseline/tag"] == 1
        assert not any("antecedent" in name for name in scores)  # the text has no chains

    def test_relations_and_pairs_of_tags_are_followed_for_the_cards_and_not_drawn(self, grown, tmp_path):
        chained = [(-1, *range(len(text.words) - 1)) for text in texts(4)]  # every word's head is the word before
        related = [
            replace(text, heads=heads, relations=("root", *("obj",) * (len(heads) - 1)))
            for text, heads in zip(texts(4), chained, strict=True)
        ]
        scores = measures(grown, corpus=related)
        name = "relation:obj:dependent->head"
        assert scores[f"heads/{name}/L0.H0"] == pytest.approx(1)  # the previous token's head
        assert scores[f"baseline/{name}"] == pytest.approx(1)  # a fixed offset finds it
        assert {"heads/tag/L1.H1", "heads/tag:NOUN->NOUN/L1.H1"} <= {*scores}
        assert not any(":" in each for each in scores if each.startswith("model/"))
        run = run_of(tmp_path, [{"step": step, "loss": 5.0, **scores} for step in (100, 200)])
        assert name in {*when_formed(forming(run, grown))["measure"]}
        assert not any(":" in each for each in formed(run)["measure"])

    def test_a_text_that_cannot_be_read_leaves_the_repeats_and_an_encoder_all_but_what_it_foretells(self, grown):
        scores = measures(grown)
        assert {name.rsplit("/", 1)[0] for name in scores if name.startswith("heads/")} == {"heads/induction"}
        assert "model/in-context" not in scores
        encoder = Planted(WORDS, [[planted.offset(-1)]], n_ctx=110, causal=False).build()
        scores = measures(encoder, corpus=texts(4))  # it predicts nothing, so only the rest is measured
        assert scores["heads/previous-token/L0.H0"] == pytest.approx(1, abs=1e-3)
        assert not {"model/copying", "model/in-context"} & {*scores}

    def test_each_kind_of_attention_of_two_stacks_has_a_name_of_its_own(self):
        plans = {"encoding": [[planted.offset(-1)]], "crossing": [[planted.offset(0), planted.uniform]]}
        model = Planted(WORDS[:9], [[planted.uniform]], n_ctx=32, start="<s>", **plans).build()
        words = " ".join(random.Random(0).choices(WORDS[:9], k=12))
        scores = measures(model, corpus=[AnnotatedText.plain(words, f"d{n}") for n in range(2)])
        assert scores["heads/previous-token/encoder.L0.H0"] == pytest.approx(1, abs=1e-3)
        assert scores["heads/previous-token/decoder.L0.H0"] < 0.5
        assert scores["heads/monotonicity/cross.L0.H0"] > 0.99
        assert scores["baseline/cross.monotonicity"] == 0

    def test_what_was_read_helps_a_model_that_copies_and_no_other(self, grown):
        ids = repeated(grown, 54, 8, seed=0)
        rows = [Examples(TokenBatch.from_ids(ids[:, :-1]), ids[:, 1:])]
        score = in_context(grown, rows)  # late tokens are in the second copy
        assert score is not None
        assert score < -2
        blind = Planted(WORDS, [[planted.uniform]], n_ctx=110, start="<s>").build()
        assert in_context(blind, rows) == pytest.approx(0, abs=1e-6)


class TestAPhaseChange:
    @pytest.mark.parametrize(
        ("steps", "values", "expected"),
        [
            (range(100, 4001, 100), lambda step: 0.02 if step < 2300 else 0.8, (2200, 2300, 0.02, 0.8, 39)),
            ([100, 200, 300, 400, 500, 1000, 1500], lambda step: 0.5 * (step > 200) + 0.1 * (step > 500), (200, 300)),
            (range(10, 4001, 10), lambda step: np.clip((step - 2200) / 100, 0, 1), (2200, 2290, 0, 0.9)),
        ],
    )  # looks at even distances, at uneven ones, close together
    def test_it_is_where_the_curve_leaps(self, steps, values, expected):
        rise = phase_change(steps, [float(values(step)) for step in steps])
        assert rise is not None
        assert rise[: len(expected)] == pytest.approx(expected)

    @pytest.mark.parametrize(
        "values",
        [
            np.linspace(0, 1, 40),  # evenly
            np.where(np.arange(40) < 20, 0.0, LEAST - 0.01),  # too little
            np.full(40, 0.3),
            np.linspace(1, 0, 40),
            np.array([0.0, 0.0, 1.0]),  # too few looks
            np.repeat(np.linspace(0, 1, 5), 8),  # in small steps
        ],
    )
    def test_there_is_none_where_nothing_leaps(self, values):
        assert phase_change(range(100, 100 * len(values) + 1, 100), values.tolist()) is None


class TestARun:
    def test_what_it_recorded_is_read_but_no_cut_end_and_nothing_that_is_no_number(self, tmp_path):
        odd = {"step": 1, "loss": float("nan"), "held_out/a": "4", "heads/induction/L0.H0": None, "heads/x": 1.0}
        run = read_run(record(tmp_path, odd, *FORMING, cut='{"step": 3100, "heads/indu'), "a", load)
        assert list(run.table.columns) == COLUMNS
        row = run.heads.query("step == 2300 and layer == 1 and head == 1 and measure == 'induction'").iloc[0]
        assert row[["value", "baseline", "attention"]].tolist() == [0.8, 0.01, "self"]
        assert {*run.table.loc[run.table["layer"].isna(), "measure"]} == {"loss", "held_out/novels"}
        assert (run.table["step"].min(), run.table["step"].max()) == (100, 3000)
        assert run.source == "recorded while it was trained"

    def test_its_sentence_says_when(self, tmp_path):
        run = run_of(tmp_path, FORMING)
        table = formed(run)
        (first,) = sentences(run, table)
        assert first.startswith("Phase change between steps 2\u202f200 and 2\u202f300: ")
        assert "from 0.020 to 0.800 (L1.H1), 29 times as fast" in first
        (row,) = table.to_dict("records")
        assert (row["layer"], row["head"], row["half_way"]) == (1, 1, 2300)
        assert (row["rise_from"], row["rise_to"]) == (2200, 2300)
        lines = [{**line, "baseline/induction": 0.76} for line in FORMING]
        (row,) = formed(run_of(tmp_path, lines)).to_dict("records")
        assert row["gain"] < 0.05
        assert pd.isna([row["rise_from"], row["half_way"]]).all()  # a head at its baseline has not formed
        slow = run_of(tmp_path, [look(step, 0.02 + step * 1e-5) for step in range(100, 3100, 100)])
        (none,) = sentences(slow, formed(slow))
        assert none.startswith("No phase change: ")
        assert "0.050 at its highest, at step 3\u202f000" in none

    def test_phases_are_told_by_the_recipe_and_by_nothing_that_is_damaged(self, tmp_path):
        assert run_of(tmp_path, FORMING).boundaries == ()
        (tmp_path / "recipe.toml").write_text("[[phases]]\nsteps = 2000\n[[phases]]\nsteps = 1000\n")
        assert run_of(tmp_path, FORMING).boundaries == (2000,)
        (tmp_path / "recipe.toml").write_text("[[phases")
        assert run_of(tmp_path, FORMING).boundaries == ()

    def test_a_directory_without_a_run_is_refused(self, tmp_path):
        with pytest.raises(InputError, match=r"expected metrics\.jsonl or steps/"):
            read_run(tmp_path, "a", load)
        with pytest.raises(InputError, match="no directory"):
            read_run(tmp_path / "nowhere", "a", load)


def contents(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.rglob("*")}


class TestTheCommand:
    def test_it_measures_snapshots_and_leaves_the_run_as_it_was(self, tmp_path, capsys):
        """A run with two snapshots, next to a damaged one, whose record has only losses."""
        steps, out, model = tmp_path / HOSTILE, tmp_path / "out", worded(*WORDS)
        for step in (10, 20):
            initialise(model, step)
            save(model, steps / "steps" / f"{step:06d}")
        (steps / "steps" / "000030").mkdir()
        record(steps, *({"step": step, "loss": 9.0 - step / 10} for step in (10, 20)))
        before = contents(steps)
        ended = command(capsys, "over-training", str(steps), "--out", str(out))
        assert not ended.code
        summary, wrote, *_ = ended.out.splitlines()
        assert summary.endswith("2 looks: too few to tell a phase change: expected at least 4.")
        assert wrote.startswith(f"wrote {out / 'report.html'}")
        assert contents(steps) == before
        (run,) = json.loads((out / "run.json").read_text())["runs"]
        assert run["heads"] == "measured on 2 of its snapshots, seed 0"
        assert [*run["left_out"]] == [f"{HOSTILE}/steps/000030"]
        table = pd.read_csv(out / "tables/forming.csv")
        assert list(table.columns) == COLUMNS
        assert len(table.query("measure == 'induction'")) == 2 * 6
        assert table.query("measure == 'loss'")["value"].tolist() == [8.0, 7.0]

    def test_the_page_is_whole_and_escapes_names(self, tmp_path):
        folders = [tmp_path / HOSTILE, tmp_path / "beside" / HOSTILE]
        for folder, height in zip(folders, (0.8, 0.02), strict=True):
            key = "heads/induction/L1.H1"
            run_of(folder, [{**line, key: min(line[key], height)} for line in FORMING])
        run_of(tmp_path / "losses", [{"step": 1, "loss": 5.0}, {"step": 2, "loss": 4.0}])
        out = report.over_training([*folders, tmp_path / "losses"], tmp_path / "out", load, command="typed")
        page = page_of(out)
        assert not outside_addresses(page)
        assert HOSTILE not in (out / "report.html").read_text()
        losses = "not recorded, and there are no snapshots to measure"  # beside runs with more
        phrases = HOSTILE, f"{HOSTILE} (2)", "Phase change between", "No phase change", losses
        assert [each for each in phrases if each not in page.text] == []
        names = {HOSTILE, f"{HOSTILE} (2)"}
        assert {*pd.read_csv(out / "tables/forming.csv")["run"]} == {*names, "losses"}
        assert {*pd.read_csv(out / "tables/formed.csv")["run"]} == names


def test_in_the_figure_runs_stand_side_by_side_on_the_same_axes_and_the_best_head_is_named(tmp_path):
    lines = [{**line, "model/in-context": -0.1, "model/copying": 0.5} for line in FORMING]
    table = pd.concat([run_of(tmp_path / name, lines, name).table for name in ("a", "b")])
    figure = figures.forming(table, {"a": (2200, 2300), "b": None}, {"a": (1000,)})
    left, right = figure.axes[::2], figure.axes[1::2]
    assert [ax.get_ylabel() for ax in left] == ["loss (nats)", "in-context\nscore (nats)", "copying", "induction"]
    for first, second in zip(left, right, strict=True):
        assert (first.get_ylim(), first.get_xlim()) == (second.get_ylim(), second.get_xlim())
        (band,) = [patch.get_extents().transformed(first.transData.inverted()) for patch in first.patches]
        assert (band.x0, band.x1) == pytest.approx((2200, 2300))  # the phase change
        assert not second.patches
    assert [text.get_text() for text in left[-1].texts] == ["L1.H1"]  # idle heads are not named
    (best,) = [line for line in left[-1].lines if to_hex(line.get_color()) == POSITION]
    assert np.max(best.get_ydata()) == 0.8


def look_at(step: int, heads: int = 3, layers: int = 2) -> dict:
    """A look at induction in which every head has .02."""
    scores = {f"heads/induction/L{layer}.H{head}": 0.02 for layer in range(layers) for head in range(heads)}
    return {"step": step, "loss": 5.0, "baseline/induction": 0.02, **scores}


def curves(*values: float, baseline: float = 0.02) -> pd.DataFrame:
    """One head's looks, at steps 100, 200, ..."""
    key = {"stack": "decoder", "attention": "self", "layer": 1, "head": 0, "measure": "induction", "run": "r"}
    rows = [key | {"step": 100 * index, "value": value} for index, value in enumerate(values, 1)]
    return pd.DataFrame(rows).assign(baseline=baseline)


class TestTheRule:
    @pytest.mark.parametrize(
        ("values", "baseline", "formed", "before"),
        [
            ((0.02, 0.02, 0.6, 0.9), 0.02, 300, 200),  # the look from which it keeps half
            ((0.02, 0.9, 0.1, 0.5, 0.9), 0.02, 400, 300),  # reaching half once is no beginning
            ((0.8, 0.85, 0.9), 0.02, 100, None),  # a head that was there from the start did not form
            ((0.02, 0.3, 0.06), 0.02, None, None),  # a head near its baseline never formed
            ((0.5, 0.6, 0.6), 0.58, None, None),  # a rule does as well
            ((0.9, 0.9, 0.02), 0.02, None, None),  # lost again
            ((0.5, 0.75, 0.9), 0.5, 200, 100),  # half of the gain over the baseline
            ((0.5, 0.7, 0.9), float("nan"), 100, None),
        ],
    )
    def test_when_a_head_had_formed(self, values, baseline, formed, before):
        (row,) = when_formed(curves(*values, baseline=baseline)).to_dict("records")
        looks = [None if pd.isna(row[name]) else int(row[name]) for name in ("formed_at", "before")]
        assert (looks, row["step"]) == ([formed, before], 100 * len(values))
        assert when_formed(curves(values[0])).empty  # one look is not enough


class TestTheCard:
    def page_of(self, **tables: pd.DataFrame) -> Page:
        line, first = overview({**hand_made(), **tables}, OURS)
        return Page(render(line, [first], [], {}))

    def page(self, *values: float) -> Page:
        return self.page_of(forming=curves(*values), when_formed=when_formed(curves(*values)))

    def test_it_says_when_shows_the_curve_and_cites_the_row(self):
        page = self.page(0.02, 0.02, 0.62, 0.92)
        assert page.text.count("Formation") == 1  # other heads were not observed
        does = "Looks at what followed this token before (induction)"
        assert f"{does}: formed by step 300 of 400, not yet at 200." in page.text
        assert "0.020 at step 100, 0.920 at step 400; the strictest baseline (grey) has 0.020." in page.text
        assert "tables/when_formed: stack decoder, attention self, layer 1, head 0, measure induction" in page.text
        (curve,) = [str(attrs["d"]) for tag, attrs in page.tags if tag == "path" and attrs.get("class") == "line"]
        points = np.array([each.split() for each in re.split("[ML]", curve)[1:]], dtype=float)
        np.testing.assert_allclose(points[:, 0], [61, 120, 179, 238])
        np.testing.assert_allclose(points[:, 1], [41.2, 41.2, 17.2, 5.2])

    def test_nothing_is_said_of_a_fact_that_no_run_follows_nor_where_none_is_known(self):
        assert "Formation" not in self.page(0.02, 0.02).text  # observed, but never formed
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

    def folder_and_looks(self, name: str | Path, model: Transformer) -> tuple[Path, int]:
        run = run_of_model(str(name), model)
        assert run is not None
        return run.folder, run.looks

    def test_it_stands_with_the_model_or_in_training_or_above_a_snapshot(self, model, tmp_path):
        out = tmp_path / "mine"
        save(model, out)
        assert run_of_model(str(out), model) is None
        looks = [look_at(step) for step in (100, 200, 300)]
        folder = record(out / "training" / "mine", *looks)
        assert self.folder_and_looks(out, model) == (folder, 3)
        record(out, *looks[:2])
        assert self.folder_and_looks(out, model) == (out, 2)
        save(model, out / "steps" / "000100")
        assert self.folder_and_looks(out / "steps" / "000100", model) == (out, 1)

    @pytest.mark.parametrize(("name", "n_looks"), [("default", 68), ("textbook", 9)])
    def test_those_that_come_with_interp_have_their_own(self, name, n_looks):
        folder, looks = self.folder_and_looks(name, load(name))
        assert (folder.name, looks) == (name, n_looks)
        assert run_of_model("minilm", tiny.model("gpt2")) is None

    def test_one_that_is_damaged_or_of_other_heads_or_tells_of_none_is_passed_over(self, model, tmp_path):
        save(model, tmp_path / "m")
        (tmp_path / "m" / "metrics.jsonl").write_bytes(b"\xff\x00{")
        with pytest.raises(InputError):
            read_run(tmp_path / "m", "m", None)
        assert run_of_model(str(tmp_path / "m"), model) is None
        for line in (look_at(1, layers=1, heads=1), {"step": 1, "loss": 2.0}):
            record(tmp_path / "m", line, {**line, "step": 2})
            assert run_of_model(str(tmp_path / "m"), model) is None

    def test_one_that_is_named_must_be_of_the_model_and_tell_of_heads(self, model, tmp_path):
        of_another = run_of_folder(record(tmp_path / "other", look_at(1, layers=1), look_at(2, layers=1)), load)
        with pytest.raises(InputError, match=r"other trained another model: its record describes 1 layer of 3 heads"):
            report.build(model, [], tmp_path / "out", behaviours=["position"], training=of_another)
        assert not (tmp_path / "out").exists()
        with pytest.raises(InputError, match="says nothing about heads: expected heads/"):
            run_of_folder(record(tmp_path / "silent", {"step": 1, "loss": 2.0}), load)

    def test_a_report_keeps_the_curves_and_says_where_they_are_from(self, model, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        run = run_of_folder(record(tmp_path / "run", *(look_at(step) for step in (1, 2))), load)
        settled = {"behaviours": ["position"], "labels": False, "probes": False, "pairs": 4}
        out = report.build(model, [], tmp_path / "out", training=run, **settled)
        stored = runs.read(out)
        assert stored.facts["training"]["looks"] == 2
        assert stored.facts["training"]["directory"] == "run"  # a page names no directories without need
        places = stored.table("heads")[["stack", "attention", "layer", "head"]].drop_duplicates()
        for name in ("forming", "when_formed"):
            assert len(places.merge(stored.table(name))) == len(stored.table(name)) > 0
        assert "2 looks at heads, recorded while it was trained" in page_of(out).text
        assert {"position-heads", "position-gains"} <= {*drawings(stored)}  # a report's own figures, too

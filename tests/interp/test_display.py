"""Results say what they are in a few lines, whatever a text holds, and their tables hold what their tensors do."""

import ast
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch

import interp
from interp import InputError, Transformer, run, sites, sweep
from interp import display as results
from interp.attribution import direct_logit_attribution, logit_lens
from interp.display import Shown
from interp.errors import InputWarning
from interp.patching import (
    Ablation,
    Pairs,
    Sweep,
    ablate,
    ablate_cells,
    ablate_in_order,
    atp_star,
    attribution_patching,
    edge_attribution,
    logit_difference,
    top_cells,
)
from interp.patching.cell_tables import ESTIMATED
from interp.statistics import benjamini_hochberg, mean_interval

pytestmark = pytest.mark.filterwarnings("ignore:no shares")  # of a model of random weights

HOSTILE = "<script>alert('x')</script>\n& \"quoted\""


@pytest.fixture(scope="module")
def model() -> Transformer:
    return tiny.model("gpt2")


@pytest.fixture(scope="module")
def pairs() -> Pairs:
    return tiny.ragged_pairs()


@pytest.fixture(scope="module")
def found(model, pairs) -> Sweep:
    return sweep(model, pairs, logit_difference())


class Tags(HTMLParser):
    """The names of all tags, and the text between them."""

    def __init__(self, page: str):
        super().__init__()
        self.names: set[str] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.names.add(tag)

    def handle_data(self, data):
        self.text += data


class Hostile(Shown):
    def facts(self):
        return f"title {HOSTILE}", {f"name {HOSTILE}": f"text {HOSTILE}", "long": "x" * 1000} | {
            f"fact {at}": "" for at in range(30)
        }


def test_what_a_result_says_is_short_and_one_line_a_fact():
    lines = repr(Hostile()).splitlines()
    assert len(lines) == 1 + Hostile.most + 1
    assert lines[-1].split() == ["…", "20", "more"]
    assert max(map(len, lines)) < 300


def test_a_notebook_shows_texts_as_they_are_and_runs_none():
    page = Tags(Hostile()._repr_html_())
    assert page.names == {"div", "strong", "table", "tr", "th", "td"}
    assert page.text.count("<script>alert('x')</script> & \"quoted\"") == 3


def test_a_metric_of_a_hostile_name_is_escaped(found):
    odd = Sweep("z", "denoise", found.axes, {HOSTILE: found.values["logit_difference"]}, *(
        {HOSTILE: each["logit_difference"]} for each in (found.clean, found.corrupt)
    ))  # fmt: skip
    assert "script" not in Tags(odd._repr_html_()).names
    assert "script" in odd._repr_html_()


def test_every_result_says_what_it_is(model, pairs, found):
    ids = tiny.token_ids(3, 5)
    shown = {
        "Sweep of decoder z, denoise: 2 layers x 3 heads, over 3 prompts": found,
        "Ablation of decoder z by mean: 2 layers x 3 heads, over 3 prompts": ablate(
            model, pairs, logit_difference(), kind="mean"
        ),
        "Ablation of decoder z by zero: 2 steps, over 3 prompts": ablate_in_order(
            model, pairs, logit_difference(), [(0, 1), (1, 2)], kind="zero"
        ),
        "Top 2 cells of decoder z, denoise: logit_difference, over 3 prompts": top_cells(
            model, pairs, logit_difference(), k=2
        ),
        "Edges, denoise: 9 senders x 21 receivers, over 3 prompts": edge_attribution(model, pairs, logit_difference()),
        "Magnitudes of decoder z, denoise: 2 layers x 3 heads, over 3 prompts": atp_star(
            model, pairs, logit_difference(), {"z": ("layer", "head")}
        )["z"],
        "Direct attribution: 12 terms, over 3 prompts": direct_logit_attribution(model, ids, 3, 4),
        "Logit lens over 3 prompts, 1 position each: most probable at the last position of prompt 0": logit_lens(
            model, ids
        ),
        "Run of 3 prompts": run(model, ids, capture="*.z"),
        "TokenBatch: 3 prompts of 5 tokens": run(model, ids).tokens,
        "3 pairs: 3 prompts of 3 to 4 tokens": pairs,
        f"{len(sites(model))} sites; axes come after the prompt's": sites(model),
    }
    for title, result in shown.items():
        lines = repr(result).splitlines()
        assert lines[0] == title
        assert 1 < len(lines) < 20
        more = {"svg", "text", "rect", "title"} if isinstance(result, Sweep) and result.corrupt else set()  # its map
        assert Tags(result._repr_html_()).names == {"div", "strong", "table", "tr", "th", "td"} | more


def test_a_sweep_names_its_largest_effects(found):
    mean = found.effect().mean(-1)
    layer, head = divmod(int(mean.abs().argmax()), 3)
    assert f"logit_difference  L{layer}.H{head} {float(mean[layer, head]):+.3g}" in " ".join(repr(found).split("\n"))


def test_a_configuration_shows_what_makes_it_again(model):
    made = eval(repr(model.config), dict(vars(interp.config)))
    assert made == model.config
    assert "rotary" not in repr(model.config).lower()
    table = model.config.table().set_index("setting")
    assert table.loc["decoder.d_model", "value"] == 19
    assert not table.loc["decoder.d_model", "default"]
    assert table.loc["decoder.score_cap", "default"]


# Tables.


def test_a_table_has_each_cell_with_the_mean_of_its_effect_and_q(found):
    table = found.table()
    where = ["stack", "attention", "site", "layer", "head", "direction", "metric"]
    assert [*table.columns] == [*where, *ESTIMATED]
    assert len(table) == 6
    effect = found.effect()
    for row in table.to_dict("records"):
        own = effect[row["layer"], row["head"]].double().numpy()
        mean, low, high, p = mean_interval(own)
        assert (row["effect"], row["ci_low"], row["ci_high"], row["p"]) == pytest.approx((mean, low, high, p))
        assert row["n"] == 3
    np.testing.assert_allclose(table["q"], benjamini_hochberg(table["p"].to_numpy()))


def test_shares_are_those_that_are_recovered_or_missing_with_the_reason_said(model, found):
    reason = found.no_share()
    assert reason
    for shares in (found.recovered, lambda: torch.tensor(found.table()["share"])):
        with pytest.warns(InputWarning, match=re.escape(f"no shares: {reason}")):
            assert shares().isnan().all()
    assert reason[:60] in repr(found)
    sure = {name: value.abs() + 50 for name, value in found.clean.items()}
    whole = Sweep(found.site, found.direction, found.axes, found.values, sure, found.corrupt)
    assert whole.no_share() is None
    np.testing.assert_allclose(whole.table()["share"], whole.recovered().flatten())


def test_positions_beyond_a_prompt_are_not_counted(model, pairs):
    found = sweep(model, pairs, logit_difference(), "resid_pre", by=("layer", "position"))
    table = found.table().set_index(["layer", "position"])
    assert table.loc[(0, 3), "n"] == 2
    assert table.loc[(1, 3), "effect"] == pytest.approx(float(found.effect()[1, 3].nanmean()))
    assert {"token", "corrupt_token"} <= {*table.columns}


def test_named_positions_are_named(model):
    ids, other = tiny.token_ids(3, 5, seed=1), tiny.token_ids(3, 5, seed=2)
    named = Pairs.from_ids(model, ids, other, ids[:, 0], other[:, 1], positions={"S2": [1, 2, 3], "END": -1})
    found = sweep(model, named, logit_difference(), by=("layer", "position"))
    assert [*found.table()["position"].unique()] == ["S2", "END"]
    one = found.table().set_index(["layer", "position"]).loc[(1, "END"), "effect"]
    assert one == pytest.approx(float(found.effect()[1, 1].mean()))
    rows = ablate(model, named, logit_difference(), "pattern", ("layer", "query", "key"), "zero").table()
    assert {*zip(rows["query"], rows["key"], strict=True)} == {(a, b) for a in ("S2", "END") for b in ("S2", "END")}
    top = top_cells(model, named, logit_difference(), k=3, by=("layer", "head", "position"))
    assert {*top.table()["position"]} <= {"S2", "END"}
    labels = [label.get_text() for label in found.figure().axes[0].get_xticklabels()]
    assert labels == ["S2", "END"]
    assert " at " in found.figure(kind="top").axes[0].get_yticklabels()[0].get_text()
    assert " at S2" in repr(found) or " at END" in repr(found)
    assert [*named.table()["position:S2"]] == [1, 2, 3]
    assert "S2, END" in repr(named)


def test_estimates_of_several_sites_show_themselves_and_have_one_table(model, pairs):
    asked = {"z": ("layer", "head"), "resid_pre": ("layer", "position")}
    found = attribution_patching(model, pairs, logit_difference(), asked)
    assert isinstance(found["z"], Sweep)
    assert "largest of z on logit_difference" in repr(found)
    assert "2 sites" in found._repr_html_()
    table = found.table()
    assert [*table["site"].unique()] == ["z", "resid_pre"]
    streams = table[table["site"] == "resid_pre"]
    assert streams["head"].isna().all()
    np.testing.assert_allclose(streams["effect"], found["resid_pre"].table()["effect"])
    np.testing.assert_allclose(table["q"], benjamini_hochberg(table["p"].to_numpy()))
    assert table["layer"].dtype.kind == "i"
    assert str(table["head"].dtype) == "Int64"
    assert found.figure().axes[0].get_xlabel() == "head"
    assert found.figure("resid_pre", kind="map").axes[0].get_xlabel() != "head"
    with pytest.raises(InputError, match="no site 'v': expected z or resid_pre"):
        found.figure("v")
    sizes = atp_star(model, pairs, logit_difference(), asked)
    assert repr(sizes).startswith("Estimated magnitudes, denoise: 2 sites")
    assert sizes.table()["p"].isna().all()


def test_an_ablation_gives_its_drops_also_of_lists_and_orders(model, pairs):
    cells = [(1, 2), (0, 1)]
    grid = ablate(model, pairs, logit_difference(), kind="mean")
    row = grid.table().set_index(["layer", "head"]).loc[(1, 2)]
    assert row["effect"] == pytest.approx(float(grid.effect()[1, 2].mean()))
    assert row["kind"] == "mean"
    listed = ablate_cells(model, pairs, logit_difference(), cells, kind="mean").table()
    assert [*zip(listed["layer"], listed["head"], strict=True)] == cells
    np.testing.assert_allclose(listed["effect"].iloc[0], row["effect"])
    order = ablate_in_order(model, pairs, logit_difference(), cells, kind="mean")
    steps = order.table()
    assert [*steps["step"]] == [0, 1]
    assert [*steps["layer"]] == [1, 0]
    np.testing.assert_allclose(steps["effect"], order.effect().mean(-1))
    assert "up to L" in repr(order)


def test_top_cells_and_edges_are_listed_with_their_numbers(model, pairs):
    top = top_cells(model, pairs, logit_difference(), k=2, by=("layer", "head", "position"))
    table = top.table()
    assert [*zip(table["layer"], table["head"], table["position"], strict=True)] == [*top.cells]
    np.testing.assert_allclose(table["effect"], top.mean())
    edges = edge_attribution(model, pairs, logit_difference())
    table, best = edges.table(), edges.top(1)[0]
    assert len(table) == int((~edges.effect()[..., 0].isnan()).sum())
    row = table.loc[(table["sender"] == best.sender) & (table["receiver"] == best.receiver)].iloc[0]
    assert row["effect"] == pytest.approx(best.effect)


def test_an_attribution_tells_terms_apart_by_layer_and_head(model):
    found = direct_logit_attribution(model, tiny.token_ids(4, 5), 3, 4)
    table = found.table().set_index("term")
    assert [*table.index] == [*found.names]
    row = table.loc["decoder.1.head.2"]
    assert (row["part"], row["layer"], row["head"]) == ("head", 1, 2)
    assert row["effect"] == pytest.approx(float(found["decoder.1.head.2"].mean()))
    assert table.loc["decoder.0.mlp", "part"] == "mlp"
    assert table["head"].isna().sum() == len(found.names) - 6
    assert table["effect"].sum() == pytest.approx(float(found.total.mean()))


def test_a_lens_lists_its_tokens_and_compares_two_answers(model):
    ids = tiny.token_ids(3, 5)
    lens = logit_lens(model, ids, position=[1, -1])
    table = lens.table(k=2)
    assert len(table) == 3 * 3 * 2 * 2
    last = table.set_index(["layer", "prompt", "position", "rank"]).loc[(2, 1, 4, 1)]
    logits = run(model, ids).logits[1, 4].detach()
    assert last["id"] == int(logits.argmax())
    assert last["probability"] == pytest.approx(float(logits.softmax(-1).max()))
    said = lens.table(3, 4)
    expected = lens.difference(3, 4).mean(1)
    np.testing.assert_allclose(said["effect"], expected.flatten())
    with pytest.raises(InputError, match="both answers"):
        lens.table(3)


def test_a_run_says_how_well_each_token_was_foretold(model):
    batch = tiny.rows((4, 2))
    out = run(model, batch)
    table = out.table()
    assert [*table["prompt"]] == [0, 0, 0, 0, 1, 1]
    assert table["log_probability"].isna().tolist() == [True, False, False, False, True, False]
    said = out.logits.log_softmax(-1)
    assert table["log_probability"].iloc[5] == pytest.approx(float(said[1, 0, batch.ids[1, 1]]))
    assert table["predicted_id"].iloc[3] == int(said[0, 3].argmax())
    short = run(model, batch, until="decoder.0.attn.z")
    assert [*short.table().columns] == ["prompt", "position", "id", "token"]
    assert "ended with" in repr(short)
    more = run(model, batch, edit={"decoder.0.attn.z": lambda z: torch.stack([z, 0 * z])})
    with pytest.raises(InputError, match="axes that an edit added"):
        more.table()


def test_sites_are_a_dict_and_a_table(model):
    known = sites(model)
    assert known["decoder.0.attn.z"].axes == ("position", "head", "d_head")
    table = known.table().set_index("site")
    assert table.loc["decoder.1.attn.z", "layer"] == 1
    assert table.loc["decoder.0.attn.z", "sizes"] == "any 3 5"
    assert "decoder.*.attn.z" in repr(known)
    assert "2 layers" in repr(known)


# Figures: what this package asks for.


def test_the_only_arrow_out_of_the_package_is_the_one_that_draws():
    calls = []
    for file in Path(interp.__file__).parent.rglob("*.py"):
        text = file.read_text()
        for node in ast.walk(ast.parse(text)) if "import_module" in text else ():
            if isinstance(node, ast.Call) and "import_module" in {
                getattr(node.func, "id", ""),
                getattr(node.func, "attr", ""),
            }:
                calls.append(f"{file.name}: {ast.unparse(node)}")
    assert calls == ["display.py: import_module(module)"]
    assert (results.FIGURES, results.VIEWER) == ("analyses.figures", "analyses.viewer.notebook")


def test_figures_that_cannot_be_loaded_are_one_line(found, monkeypatch):
    monkeypatch.setattr(results, "FIGURES", "nowhere.figures")
    with pytest.raises(InputError, match=r"cannot be loaded \(No module named 'nowhere'\)"):
        found.figure()


def test_a_notebook_shows_a_run_s_attention_in_a_frame_and_its_lines_alone_where_it_cannot(model, monkeypatch):
    out = run(model, tiny.token_ids(2, 5), capture="*.pattern")
    assert Tags(out._repr_html_()).names == {"div", "strong", "table", "tr", "th", "td", "iframe"}
    assert "iframe" not in run(model, tiny.token_ids(2, 5), capture="*.1.attn.pattern")._repr_html_()
    monkeypatch.setattr(results, "VIEWER", "nowhere.shown")
    assert "iframe" not in out._repr_html_()
    assert "Run of 2 prompts" in out._repr_html_()


def test_what_is_not_there_cannot_be_drawn(found, model):
    with pytest.raises(InputError, match="no metric 'rank'"):
        found.figure("rank")
    out = run(model, tiny.token_ids(2, 4), capture="decoder.0.attn.*")
    with pytest.raises(InputError, match="no prompt 2"):
        out.figure(prompt=2)
    with pytest.raises(InputError, match="no attention pattern"):
        out.figure("decoder.0.attn.z")


def test_an_ablation_says_which_way_its_effects_are_counted():
    lost = torch.zeros(2, 3, 5)
    lost[1, 2] = 3.0  # without this head the loss rises from 1 to 3
    made = Ablation("z", "noise", ("layer", "head"), {"loss": lost}, {"loss": torch.ones(5)}, kind="zero")
    assert "largest effects on loss (with - without)  L1.H2 -2, " in repr(made)

"""Results describe themselves in a few lines, whatever a text holds; their tables equal their tensors."""

import re
from html import escape
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from refusals import refusal

import interp
from interp import Transformer, run, sites, sweep
from interp import patching as p
from interp.attribution import direct_logit_attribution, logit_lens
from interp.display import Result
from interp.patching.results import ESTIMATED
from interp.statistics import benjamini_hochberg, mean_interval

pytestmark = pytest.mark.filterwarnings("ignore:no shares")  # random weights have none

HOSTILE = "<script>alert('x')</script>\n& \"quoted\""
TAGS = {"div", "strong", "table", "tr", "th", "td"}


@pytest.fixture(scope="module")
def model() -> Transformer:
    return tiny.model("gpt2")


@pytest.fixture(scope="module")
def pairs() -> p.Pairs:
    return tiny.ragged_pairs()


@pytest.fixture(scope="module")
def cells(model, pairs) -> p.Sweep:
    return sweep(model, pairs, p.logit_difference())


def tags(result) -> set[str]:
    return {*re.findall(r"<([a-z]+)", result._repr_html_())}


class Hostile(Result):
    def facts(self):
        return f"title {HOSTILE}", {f"name {HOSTILE}": f"text {HOSTILE}", "long": "x" * 1000} | {
            f"fact {number}": "" for number in range(30)
        }


def test_what_a_result_says_is_short_and_shows_texts_as_they_are(cells):
    lines = repr(Hostile()).splitlines()
    assert len(lines) == 1 + Hostile.n_facts + 1
    assert lines[-1].split() == ["…", "20", "more"]
    assert max(map(len, lines)) < 300
    assert tags(Hostile()) == TAGS
    assert Hostile()._repr_html_().count(escape(" ".join(HOSTILE.split()))) == 3
    runs = ({HOSTILE: each["logit_difference"]} for each in (cells.values, cells.clean, cells.corrupt))
    odd = p.Sweep("z", "denoise", cells.axes, *runs)
    assert "script" in odd._repr_html_()
    assert "script" not in tags(odd)


def test_every_result_says_what_it_is(model, pairs, cells):
    ids = tiny.token_ids(3, 5)
    results = {
        "Sweep of decoder z": cells,
        "Ablation of decoder z by mean": p.ablate(model, pairs, p.logit_difference(), kind="mean"),
        "Top 2 cells": p.top_cells(model, pairs, p.logit_difference(), k=2),
        "Edges": p.edge_attribution(model, pairs, p.logit_difference()),
        "Direct attribution: 12 terms, over 3 prompts": direct_logit_attribution(model, ids, 3, 4),
        "Logit lens over 3 prompts": logit_lens(model, ids),
        "Run of 3 prompts": run(model, ids, capture="*.z"),
        "TokenBatch: 3 prompts of 5 tokens": run(model, ids).tokens,
        "3 pairs: 3 prompts of 3 to 4 tokens": pairs,
        f"{len(sites(model))} sites": sites(model),
    }
    for title, result in results.items():
        lines = repr(result).splitlines()
        assert lines[0].startswith(title)
        assert 1 < len(lines) < 20
        map_tags = {"svg"} if isinstance(result, p.Sweep) and result.corrupt else set()
        assert tags(result) >= TAGS
        assert tags(result) & {"svg", "script"} == map_tags


def test_a_configuration_shows_what_makes_it_again(model):
    assert eval(repr(model.config), dict(vars(interp.config))) == model.config
    assert "rotary" not in repr(model.config).lower()


def test_a_table_has_each_cell_with_the_mean_of_its_effect_and_q(model, pairs, cells):
    table = cells.table()
    where = ["stack", "attention", "site", "layer", "head", "direction", "metric"]
    assert [*table.columns] == [*where, *ESTIMATED]
    assert len(table) == 6
    effect = cells.effects()
    for row in table.to_dict("records"):
        expected = mean_interval(effect[row["layer"], row["head"]].double().numpy())
        assert (row["effect"], row["ci_low"], row["ci_high"], row["p"]) == pytest.approx(expected)
        assert row["n"] == 3
    np.testing.assert_allclose(table["q"], benjamini_hochberg(table["p"].to_numpy()))
    streams = sweep(model, pairs, p.logit_difference(), "resid_pre", by=("layer", "position")).table()
    assert [*streams["n"]] == [3, 3, 3, 2] * 2  # one prompt has no fourth position


def test_estimates_of_several_sites_have_one_table(model, pairs):
    axes = {"z": ("layer", "head"), "resid_pre": ("layer", "position")}
    estimates = p.attribution_patching(model, pairs, p.logit_difference(), axes)
    assert "largest of z on logit_difference" in repr(estimates)
    table = estimates.table()
    assert [*table["site"].unique()] == ["z", "resid_pre"]
    streams = table[table["site"] == "resid_pre"]
    np.testing.assert_allclose(streams["effect"], estimates["resid_pre"].table()["effect"])
    np.testing.assert_allclose(table["q"], benjamini_hochberg(table["p"].to_numpy()))
    assert estimates.figure().axes[0].get_xlabel() == "head"
    assert "no site 'v': expected z or resid_pre" in refusal(estimates.figure, "v")
    assert p.atp_star(model, pairs, p.logit_difference(), axes).table()["p"].isna().all()


def test_cells_one_by_one_in_order_and_the_largest_are_those_of_the_grid(model, pairs):
    cells, metric = [(1, 2), (0, 1)], p.logit_difference()
    row = p.ablate(model, pairs, metric, kind="mean").table().set_index(["layer", "head"]).loc[(1, 2)]
    listed = p.ablate_cells(model, pairs, metric, cells, kind="mean").table()
    assert [*zip(listed["layer"], listed["head"], strict=True)] == cells
    assert (listed["effect"].iloc[0], row["kind"]) == (pytest.approx(row["effect"]), "mean")
    order = p.ablate_in_order(model, pairs, metric, cells, kind="mean")
    assert order.table()[["step", "layer"]].to_numpy().tolist() == [[0, 1], [1, 0]]
    np.testing.assert_allclose(order.table()["effect"], order.effects().mean(-1))
    top = p.top_cells(model, pairs, metric, k=2, by=("layer", "head", "position"))
    np.testing.assert_allclose(top.table()["effect"], top.mean())


def test_edges_are_listed_with_their_numbers(model, pairs):
    edges = p.edge_attribution(model, pairs, p.logit_difference())
    table, best = edges.table(), edges.top(1)[0]
    assert len(table) == int((~edges.effects()[..., 0].isnan()).sum())
    row = table.loc[(table["sender"] == best.sender) & (table["receiver"] == best.receiver)].iloc[0]
    assert row["effect"] == pytest.approx(best.effect)


def test_an_attribution_tells_terms_apart_by_layer_and_head(model):
    result = direct_logit_attribution(model, tiny.token_ids(4, 5), 3, 4)
    table = result.table().set_index("term")
    assert [*table.index] == [*result.names]
    row = table.loc["decoder.1.head.2"]
    assert (row["part"], row["layer"], row["head"]) == ("head", 1, 2)
    assert row["effect"] == pytest.approx(float(result["decoder.1.head.2"].mean()))
    assert table.loc["decoder.0.mlp", "part"] == "mlp"
    assert table["head"].isna().sum() == len(result.names) - 6
    assert table["effect"].sum() == pytest.approx(float(result.total.mean()))


def test_a_lens_lists_its_tokens_and_compares_two_answers(model):
    ids = tiny.token_ids(3, 5)
    lens = logit_lens(model, ids, position=[1, -1])
    table = lens.table(k=2)
    assert len(table) == 3 * 3 * 2 * 2
    last = table.set_index(["layer", "prompt", "position", "rank"]).loc[(2, 1, 4, 1)]
    logits = run(model, ids).logits[1, 4].detach()
    assert last["id"] == int(logits.argmax())
    assert last["probability"] == pytest.approx(float(logits.softmax(-1).max()))
    effects = lens.table(3, 4)
    expected = lens.difference(3, 4).mean(1)
    np.testing.assert_allclose(effects["effect"], expected.flatten())
    assert "both answers" in refusal(lens.table, 3)


def test_a_run_says_how_well_each_token_was_foretold(model):
    batch = tiny.rows((4, 2))
    out = run(model, batch)
    table = out.table()
    assert [*table["prompt"]] == [0, 0, 0, 0, 1, 1]
    assert table["log_probability"].isna().tolist() == [True, False, False, False, True, False]
    logs = out.logits.log_softmax(-1)
    assert table["log_probability"].iloc[5] == pytest.approx(float(logs[1, 0, batch.ids[1, 1]]))
    assert table["predicted_id"].iloc[3] == int(logs[0, 3].argmax())
    short = run(model, batch, until="decoder.0.attn.z")
    assert [*short.table().columns] == ["prompt", "position", "id", "token"]
    assert "ended with" in repr(short)
    more = run(model, batch, edit={"decoder.0.attn.z": lambda z: torch.stack([z, 0 * z])})
    assert "no table: an edit added axes" in refusal(more.table)


def test_sites_are_a_dict_and_a_table(model):
    table = sites(model).table().set_index("site")
    assert table.loc["decoder.1.attn.z", ["layer", "axes", "sizes"]].tolist() == [1, "position head d_head", "any 3 5"]
    assert "2 layers" in repr(sites(model))


# Figures: what this package requests.


def test_the_only_arrow_out_of_the_package_is_the_one_that_draws():
    files = {path.name: path.read_text() for path in Path(interp.__file__).parent.rglob("*.py")}
    assert {name for name, text in files.items() if "import_module(" in text} == {"display.py"}


def test_a_notebook_shows_attention_of_single_prompts(model):
    out = run(model, tiny.token_ids(2, 5), capture="*.pattern")
    assert "iframe" in tags(out)
    assert "iframe" not in run(model, tiny.token_ids(2, 5), capture="*.1.attn.pattern")._repr_html_()


def test_what_is_not_there_cannot_be_drawn(cells, model):
    out = run(model, tiny.token_ids(2, 4), capture="decoder.0.attn.*")
    assert "no metric 'rank'" in refusal(cells.figure, "rank")
    assert "no prompt 2" in refusal(out.figure, prompt=2)
    assert "not an attention pattern" in refusal(out.figure, "decoder.0.attn.z")

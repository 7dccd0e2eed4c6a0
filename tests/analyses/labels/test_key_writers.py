"""Who wrote what a head finds? Planted truth, plain runs, and sentences."""

import numpy as np
import pandas as pd
import pytest
import tiny
import torch
from repeats import PREVIOUS, repeating_texts, two_layers

from analyses.behaviours import OURS, vocabulary
from analyses.headlines.sentences import writers_clause
from analyses.labels import key_writers
from analyses.labels.key_writers import families, others
from interp import InputError, TokenBatch, run
from interp.attribution import attribution_sites, key_contributions, remove_from_key
from models import planted

TEXTS = repeating_texts(24)


def labels(*rows: tuple[int, int, str]) -> pd.DataFrame:
    place = {"stack": "decoder", "attention": "self", "behaviour": "position", "gain": 0.5, "task_effect": 0.5}
    return pd.DataFrame(
        [{**place, "layer": layer, "head": head, "label": name, "measure": name} for layer, head, name in rows]
    )


def family_of(table: pd.DataFrame, layer: int, measure: str) -> dict:
    rows = table.loc[(table["kind"] == "family") & (table["layer"] == layer) & (table["measure"] == measure)]
    (row,) = rows.to_dict("records")
    return row


def words(row: dict) -> str:
    return writers_clause(row, vocabulary(OURS))


def test_an_induction_head_finds_its_key_by_what_the_previous_token_head_wrote():
    model = two_layers(planted.offset(-2), PREVIOUS, planted.uniform)
    claims = labels((0, 0, "offset:-2"), (0, 1, "previous-token"), (1, 0, "induction"))
    table = key_writers.measure(model, claims, {"position": TEXTS}, ["position"])
    row = family_of(table, 1, "induction")
    assert (row["writer"], row["members"], row["explains"]) == ("previous-token", "decoder.0.head.1", True)
    assert row["before"] == pytest.approx(1, abs=1e-3)
    assert row["without"] < 0.02  # one of more than fifty tokens
    assert (row["others"], row["others_size"], row["rank"]) == (2, 1, 0)
    assert row["others_without"] == pytest.approx(row["before"], abs=1e-6)
    writers = table.loc[(table["measure"] == "induction") & (table["kind"] == "writer")].set_index("writer")
    assert writers["share"].to_dict() == pytest.approx(
        {name: float(name == "decoder.0.head.1") for name in writers.index}, abs=1e-6
    )
    assert writers.loc["decoder.0.head.1", "advantage"] == pytest.approx(planted.GAIN, rel=1e-3)
    assert words(row) == (
        "It finds these keys by what L0.H1, which looks at the token before, wrote into them: without that part, its "
        "attention there falls from 100% to 2%; without an equal part from another head, to 100%"
    )
    assert words(family_of(table, 0, "previous-token")) == (
        "It finds these keys by what the position embedding wrote into them: without that part, its attention there "
        "falls from 100% to 9%; without an equal part from other writers, to 100%"
    )


def test_a_head_that_finds_keys_by_their_token_has_the_token_embedding():
    model = two_layers(PREVIOUS, planted.uniform, then=planted.same_token)
    claims = labels((0, 0, "previous-token"), (1, 0, "duplicate-token"))
    table = key_writers.measure(model, claims, {"position": TEXTS}, ["position"])
    row = family_of(table, 1, "duplicate-token")
    assert (row["writer"], row["members"], row["explains"]) == ("embed.token", "embed.token", True)
    assert words(row).startswith("It finds these keys by what the token embedding wrote into them: without that part")


@pytest.mark.parametrize("labelled", [True, False])
def test_heads_that_stand_in_for_each_other_explain_it_together_alone(labelled):
    model = two_layers(PREVIOUS, planted.uniform, PREVIOUS, planted.uniform)
    claims = labels((0, 0, "previous-token"), *[(0, 2, "previous-token")] * labelled, (1, 0, "induction"))
    row = family_of(key_writers.measure(model, claims, {"position": TEXTS}, ["position"]), 1, "induction")
    assert row["explains"] is labelled
    if labelled:
        assert words(row).startswith("It finds these keys by what the 2 heads that look at the token before wrote into")
        assert words(row).endswith("without an equal part from 2 other heads, to 100%")
    else:
        assert words(row).startswith("No family of writers explains where it looks: without the strongest, L0.H")


@pytest.mark.parametrize("name", ["gpt2", "llama", "post-norm decoder", "rotary encoder"])
def test_sums_are_those_of_plain_runs_without_the_writers(name):
    model = tiny.model(name)
    ids = [tuple(row) for row in tiny.token_ids(3, 11, seed=1).tolist()]
    ids = [ids[0], ids[1][:7], ids[2]]
    claims = {"one": [(0, 9, (4,)), (1, 5, (0, 2)), (2, 10, (3, 10))], "two": [(2, 4, (1,))]}
    groups, (layer, head) = [5, 2, 5], (1, 2)
    out = run(model, TokenBatch.from_rows(ids), attribution_sites(model, layer))
    writers = key_contributions(out, layer, head, torch.tensor([[0, 0]])).writers
    sets, sizes = [(), (writers[0],), (writers[-1], writers[2]), (writers[1],)], [0, 1, 2, 2]
    members = torch.tensor([[writer in each for writer in writers] for each in sets])
    requests = [(layer, head, measure, members, sizes) for measure in claims]
    added = key_writers._sums(model, ids, groups, claims, requests)
    for rows, sums in zip(claims.values(), added, strict=True):
        plain = torch.zeros(2, 1 + len(writers) + len(sets), dtype=torch.float64)
        for prompt, row, claimed in rows:
            index = int(groups[prompt] == 5)
            plain[index, 0] += 1
            keys = key_contributions(out, layer, head, torch.tensor([[prompt, row]]))
            weights = keys.pattern()[0]
            mine = torch.zeros_like(weights, dtype=torch.bool)
            mine[[*claimed]] = True
            ahead = (
                torch.where(mine, weights, 0) / weights[mine].sum()
                - torch.where(mine, 0, weights) / weights[~mine].sum()
            )
            plain[index, 1 : 1 + len(writers)] += keys.values[:, 0] @ ahead
            visible = ~keys.scores[0].isneginf()
            spreads = [keys.values[[writers.index(name) for name in each], 0][:, visible].sum(0).std() for each in sets]
            for place, family in enumerate(sets):
                edit = remove_from_key(out, layer, head, family)
                site = f"{next(iter(model.config.stacks))}.{layer}.attn.scores"
                removed = run(model, out.tokens, site, edit)[site][prompt, head, row] - keys.scores[0]
                times = spreads[sizes[place]] / spreads[place] if family else 1
                pattern = (keys.scores[0] + times * removed).nan_to_num(-torch.inf).softmax(-1)
                plain[index, 1 + len(writers) + place] += pattern[[*claimed]].sum()
        torch.testing.assert_close(sums, plain, rtol=1e-9, atol=1e-10)


def test_families_have_the_simplest_label_of_the_same_heads():
    writers = ("embed.token", *(f"decoder.0.head.{head}" for head in range(3)), "decoder.0.mlp", "distance")
    rows = labels((0, 0, "tag:NOUN->VERB"), (0, 0, "previous-token"), (0, 2, "induction"), (0, 0, "induction"))
    rows = pd.concat([rows, labels((1, 1, "self"), (0, 1, "set:self"), (0, 1, "antecedent@antecedent a name"))])
    heads = [f"decoder.0.head.{head}" for head in range(3)]
    assert families(rows, writers) == {
        "previous-token": (heads[0],),
        "induction": (heads[0], heads[2]),
        **{name: (name,) for name in ("embed.token", heads[1], heads[2], "decoder.0.mlp")},
    }


def test_rivals_are_as_many_other_heads_or_any_sets_of_writers():
    writers = ("embed.token", *(f"decoder.0.head.{head}" for head in range(9)), "decoder.0.mlp", "distance")
    family = ("decoder.0.head.1", "decoder.0.head.4")
    rivals = others(family, writers, 12, 0)
    assert len({*rivals}) == len(rivals) == 12
    assert all(len({*each}) == 2 and not {*each} & {*family, "embed.token", "decoder.0.mlp"} for each in rivals)
    assert len(others(family, writers, 21, 0)) == 21  # all pairs of seven
    assert others(writers[1:8], writers, 9, 0) == [writers[8:10]]
    rest = ("embed.token", "decoder.0.head.0")
    assert others(("decoder.0.mlp",), (*rest, "decoder.0.mlp"), 9, 0) == [rest[:1], rest[1:], rest]
    sizes = {len(each) for each in others(("decoder.0.mlp",), writers, 100, 0)}
    assert sizes == {*range(1, 11)}
    assert others(("embed.token",), ("embed.token", "distance"), 9, 0) == []


def test_what_has_no_keys_or_no_sum_is_refused():
    with pytest.raises(InputError, match="of one stack that interp itself runs"):
        key_writers.measure(tiny.Whole(tiny.model("gpt2")), labels((0, 0, "self")), {"position": TEXTS})
    assert key_writers.measure(tiny.model("gpt2"), labels((0, 0, "rule:offset -1")), {}).empty


@pytest.mark.parametrize(("low", "shares"), [(-1.0, [9 / 8, -1 / 8, 9 / 8]), (-3.0, [np.nan] * 3)])
def test_shares_are_given_where_parts_are_of_one_sign_and_others_are_ranked(low, shares):
    families = {"family": ("a",)}
    question = key_writers.Question(1, 0, "measure", ("a", "b"), families, [[("b",), ("c",), ("d",)]])
    sums = np.zeros((128, 8))  # rows, two writers, and the attention left: with all, without a, without others
    sums[:10] = [2, 2 * 9, 2 * low, 2 * 0.8, 2 * 0.3, 2 * 0.7, 2 * 0.2, 2 * 0.6]
    table = key_writers._table(question, sums, seed=0)
    assert table["share"].tolist() == pytest.approx(shares, nan_ok=True)
    assert table["advantage"].tolist() == pytest.approx([9, low, 9])
    row = table.iloc[-1]
    numbers = row[["before", "without", "others", "others_without", "rank"]].tolist()
    assert numbers == pytest.approx([0.8, 0.3, 3, 0.5, 1 / 3])
    assert (row["n"], row["documents"]) == (20, 10)


def test_the_family_is_chosen_that_leaves_less_than_as_many_other_heads():
    """Without two heads, as little is left as without two others; without the token, much less than without a head."""
    heads = tuple(f"decoder.0.head.{head}" for head in range(4))
    families = {"two": heads[:2], "embed.token": ("embed.token",)}
    question = key_writers.Question(1, 0, "measure", ("embed.token", *heads), families, [[heads[2:]], [heads[:1]]])
    sums = np.array([[1.0, *[0.0] * 5, 0.9, 0.1, 0.4, 0.15, 0.8]])  # after all: two, the token; two others, one other
    chosen = question.chosen(sums, seed=0)
    assert chosen.families == {"embed.token": ("embed.token",)}
    assert [each for each in chosen.others[0] if len(each) == 1] == [(head,) for head in heads]
    assert len(chosen.others[0]) == 15  # all sets of four
    assert question._replace(others=[[], []]).chosen(sums, seed=0).families == {"two": heads[:2]}


def test_what_writes_nearly_all_of_the_keys_explains_only_what_as_much_from_others_would_not_take():
    """Two writers move the scores alike, one a tenth as much: without either, once scaled, as little is left."""
    scores = torch.tensor([[4.0, 0.0, 0.0, 0.0]])
    claimed = torch.tensor([[True, False, False, False]])
    values = torch.stack([0.9 * scores, 0.1 * scores, torch.tensor([[0.0, 0.1, 0.0, 0.0]])])
    sets = torch.eye(4, dtype=torch.bool)[:, 1:]
    columns = key_writers._columns(values, scores, claimed, sets, [0, 1, 1, 1])[0, 4:]
    whole, family, like, unlike = columns.tolist()
    assert family == pytest.approx(like)
    assert family < 0.4 < whole <= unlike
    row = {"others_size": 0, "members": "embed.token", "writer": "embed.token", "others": 0}
    assert words(row) == "Nothing but the token embedding writes these keys"

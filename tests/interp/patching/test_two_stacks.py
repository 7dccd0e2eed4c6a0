"""Encoders, decoders and their cross-attention are patched exactly: every cell against one plain forward pass."""

from itertools import product

import pytest
import torch
from covering import pairwise
from tiny import TWO_STACKS, pairs_of_two, ragged_pairs, rows, two_stacks, variant

from interp import InputError, TokenBatch, put, run, zero
from interp.attention import Attention
from interp.patching import (
    Pairs,
    Receiver,
    atp_star,
    attribution_patching,
    kl_divergence,
    logit_difference,
    memory,
    path_patch,
    path_patch_by_forward,
    sweep,
    sweep_by_forward,
    top_cells,
    unpatched,
)
from interp.patching.ablation import ablate, ablate_cells
from interp.patching.knockout import Claim, Read, knock_out, knock_out_by_forward, log_probabilities
from interp.patching.replacements import mean_activation

PLAIN = logit_difference()
CLOSE = {"rtol": 1e-10, "atol": 1e-10, "equal_nan": True}
PLACES, HEADS = ("layer", "position"), ("layer", "head")
STREAMS = ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out")
BESIDE = ("mlp.pre", "mlp.post", "embed", "resid_final", "logits")
AXES = {
    **{site: [PLACES] for site in (*STREAMS, "embed", "resid_final", "logits", "resid_cross")},
    **{site: [PLACES, ("layer", "neuron")] for site in ("mlp.pre", "mlp.post")},
    **{site: [PLACES, HEADS] for site in ("z", "q", "k", "v")},
    "cross_attn_out": [PLACES, ("layer",)],
    "pattern": [("layer", "query"), ("layer", "query", "key")],
    "scores": [("layer", "key")],
}
PLACED = [("encoder", "self"), ("decoder", "self"), ("decoder", "cross")]
DIFFERING = ("source", "target")


def possible(name: str, place: tuple[str, str], differing: str, site: str, by: tuple[str, ...], _: str) -> bool:
    """Whether the model has the site there, and it is made of what differs."""
    (stack, attention), crossing = place, site in {"resid_cross", "cross_attn_out"}
    lacking = {("mixed", "encoder"): "resid_mid", ("buckets", "decoder"): "mlp"}.get((name, stack), "nothing")
    return (
        by in AXES[site]
        and differs(place, differing)
        and not site.startswith(lacking)
        and (attention == "cross" if crossing else attention == "self" or site not in (*STREAMS, *BESIDE))
        and (site != "logits" or stack == "decoder")
        and ((attention, differing) != ("cross", "target") or site not in {"k", "v"})
    )


def differs(place: tuple[str, str], differing: str, *_: object) -> bool:
    return (place[0], differing) != ("encoder", "target")


ALL_AXES = dict.fromkeys(by for axes in AXES.values() for by in axes)
CASES = pairwise(TWO_STACKS, PLACED, DIFFERING, AXES, ALL_AXES, ("denoise", "noise"), possible=possible)


@pytest.mark.parametrize("place", PLACED, ids=str)
@pytest.mark.parametrize("name", TWO_STACKS)
def test_every_cell_of_every_site_equals_one_plain_forward_pass(name, place):
    model, where = two_stacks(name), dict(zip(("stack", "attention"), place, strict=True))
    moved = []
    for differing, site, by, direction in (case[2:] for case in CASES if case[:2] == (name, place)):
        arguments = (model, pairs_of_two(differing), [logit_difference(), kl_divergence()], site, by, direction)
        fast, plain = sweep(*arguments, **where), sweep_by_forward(*arguments, **where)
        torch.testing.assert_close(fast.values, plain.values, **CLOSE)
        torch.testing.assert_close((fast.clean, fast.corrupt), (plain.clean, plain.corrupt), **CLOSE)
        assert (fast.stack, fast.attention) == (plain.stack, plain.attention)
        moved.append(bool(fast.effect().nan_to_num().abs().max() > 1e-5))
        if site in BESIDE:  # a decoder's own text is the same where sources differ
            assert moved[-1] == ((site, place[0], differing) != ("embed", "decoder", "source"))
    assert sum(moved) > len(moved) // 2


def test_what_is_made_of_the_source_is_refused_where_pairs_share_it():
    with pytest.raises(InputError, match=r"encoder\.0\.attn\.z is made of the source, which these pairs share"):
        sweep(two_stacks("original"), pairs_of_two("target"), logit_difference(), stack="encoder")


ENDS = {
    "q": [Receiver("q", 1, 1)],
    "k": [Receiver("k", 1, 0), Receiver("k", 1, position=-1)],
    "v": [Receiver("v", 1)],
    "mlp": [Receiver("mlp", 0), Receiver("mlp", 1)],
    "logits": [Receiver("logits")],
    "several": [Receiver("mlp", 0), Receiver("v", 1, 1), Receiver("mlp", 1, position=-1), Receiver("logits")],
}
SENDERS = [("z", HEADS), ("mlp_out", ("layer",)), ("z", (*HEADS, "position")), ("z", ("layer",))]


def receivers(name: str, place: tuple[str, str], ends: str) -> list[Receiver]:
    """The receivers that a stack has."""
    stack, norm = place[0], TWO_STACKS[name][place[0] == "decoder"].qk_norm
    lacking = {"mlp": (name, stack) == ("buckets", "decoder"), "logits": stack == "encoder"}
    lacking |= dict.fromkeys("qk", norm == "all")
    return [end for end in ENDS[ends] if not lacking.get(end.part)]


PATHS = pairwise(
    TWO_STACKS,
    PLACED,
    DIFFERING,
    ENDS,
    SENDERS,
    ("nothing", "mlps", "everything"),
    ("denoise", "noise"),
    possible=lambda name, place, differing, ends, sender, *_: (
        differs(place, differing)
        and receivers(name, place, ends)
        and (sender[0] == "z" or (place[1] == "self" and (name, place[0]) != ("buckets", "decoder")))
    ),
)


@pytest.mark.parametrize("name", TWO_STACKS)
def test_paths_equal_two_plain_forward_passes(name):
    model, moved = two_stacks(name), 0
    for place, differing, ends, sender, through, direction in (case[1:] for case in PATHS if case[0] == name):
        where, metrics = dict(zip(("stack", "attention"), place, strict=True)), [logit_difference(), kl_divergence()]
        arguments = (model, pairs_of_two(differing), metrics, receivers(name, place, ends), *sender, through, direction)
        fast, plain = (each(*arguments, **where) for each in (path_patch, path_patch_by_forward))
        torch.testing.assert_close(fast.values, plain.values, **CLOSE)
        torch.testing.assert_close((fast.clean, fast.corrupt), (plain.clean, plain.corrupt), **CLOSE)
        assert (fast.stack, fast.attention) == (plain.stack, plain.attention) == place
        moved += bool(fast.effect().nan_to_num().abs().max() > 1e-6)
    assert moved >= 3  # before the second layer a decoder knows no source


@pytest.mark.parametrize(("stack", "attention"), [("decoder", "self"), ("decoder", "cross")])
def test_all_paths_to_the_logits_are_the_sender_itself(stack, attention):
    model, pairs, where = two_stacks("original"), pairs_of_two("source"), {"stack": stack, "attention": attention}
    paths = path_patch(model, pairs, logit_difference(), [Receiver("logits")], through="everything", **where)
    torch.testing.assert_close(paths.values, sweep(model, pairs, logit_difference(), **where).values, **CLOSE)
    assert paths.effect().abs().max() > 1e-3


def test_paths_end_in_the_stack_in_which_they_begin():
    model, pairs = two_stacks("original"), pairs_of_two("source")
    with pytest.raises(InputError, match="no receiver 'logits' in the encoder: expected one of q, k, v, mlp"):
        path_patch(model, pairs, logit_difference(), [Receiver("logits")], stack="encoder")
    with pytest.raises(InputError, match="made of the source, which these pairs share"):
        path_patch(model, pairs_of_two("target"), logit_difference(), [Receiver("q", 1)], stack="encoder")


def test_positions_count_the_text_that_they_lie_in():
    model, pairs = two_stacks("original"), pairs_of_two("source")  # sources of 4, 4, 3 tokens, targets of 3, 2, 3
    asked = {"stack": "decoder", "attention": "cross"}
    queries = sweep(model, pairs, logit_difference(), "q", PLACES, **asked).effect()
    assert queries[0].isnan().sum(0).tolist() == [0, 1, 0]
    assert sweep(model, pairs, logit_difference(), "k", PLACES, **asked).effect()[0].isnan().sum(0).tolist() == [
        0,
        0,
        1,
    ]
    entries = sweep(model, pairs, logit_difference(), "pattern", ("layer", "query", "key"), **asked).effect()
    assert entries.shape == (2, 3, 4, 3)


def test_a_target_changes_nothing_before_its_first_change_and_a_source_everything():
    model = two_stacks("original")
    targets = sweep(model, pairs_of_two("target"), logit_difference(), "resid_pre", PLACES).effect()
    for prompt, first in enumerate((1, 2, 1)):
        assert (targets[:, :first, prompt] == 0).all()
    sources = sweep(model, pairs_of_two("source"), logit_difference(), "resid_post", PLACES, stack="decoder").effect()
    assert (sources[0].nan_to_num().abs() > 1e-9).sum() == 8  # every position of every target


@pytest.mark.parametrize(("stack", "site"), [("encoder", "resid_pre"), ("encoder", "resid_post"), ("decoder", "v")])
def test_all_that_the_source_tells_carries_the_whole_effect(stack, site):
    model, pairs = two_stacks("original"), pairs_of_two("source")
    where = {"stack": stack, "attention": "cross" if site == "v" else "self"}
    found = sweep(model, pairs, logit_difference(), site, ("layer",), **where)
    if stack == "encoder":
        torch.testing.assert_close(found.effect(), found.difference().expand(2, -1), rtol=1e-9, atol=1e-9)
    assert found.effect().abs().max() > 1e-4


def test_a_decoders_cells_make_no_keys_of_the_source_anew(monkeypatch):
    model, pairs = two_stacks("original"), pairs_of_two("target")
    seen: list[int] = []
    plain = Attention.project_keys_values
    monkeypatch.setattr(Attention, "project_keys_values", lambda self, x: seen.append(x.numel()) or plain(self, x))
    crossing = [block.cross_attn for block in model.last.blocks]
    made: list[object] = []
    for attn in crossing:
        own = attn.project_keys_values
        monkeypatch.setattr(attn, "project_keys_values", lambda x, own=own, attn=attn: made.append(attn) or own(x))
    sweep(model, pairs, logit_difference(), "resid_pre", PLACES)
    assert made == crossing  # once a layer, for both prompts of all pairs


@pytest.mark.parametrize("budget", [80_000, 1 << 30])
def test_the_budget_changes_no_number(budget):
    model, pairs = two_stacks("modern"), pairs_of_two("source")
    asked = {"site": "z", "by": (*HEADS, "position"), "stack": "encoder"}
    whole, part = (sweep(model, pairs, logit_difference(), **asked, budget=each) for each in (2 << 30, budget))
    torch.testing.assert_close(part.values, whole.values, rtol=1e-10, atol=1e-10, equal_nan=True)


@pytest.mark.parametrize(
    ("place", "differing", "name"),
    pairwise(PLACED, DIFFERING, ("original", "mixed"), possible=differs),
    ids=str,
)
def test_estimates_have_the_slope_of_small_patches(name, place, differing):
    stack, attention = place
    model, pairs, step = two_stacks(name), pairs_of_two(differing), 1e-4
    where, inside = {"stack": stack, "attention": attention}, "attn" if attention == "self" else "cross_attn"
    sites = {"z": (*HEADS, "position"), "pattern": (*HEADS, "query"), "q": (*HEADS, "position")}
    found = attribution_patching(model, pairs, logit_difference(), sites, **where)
    readout, ((source, target), other) = logit_difference().prepare(model, pairs), pairs.inputs[::-1]
    for site in sites:
        at = f"{stack}.1.{inside}.{site}"
        own, theirs = (run(model, a, target=b, capture=at)[at] for a, b in ((source, target), other))
        change = theirs - own
        up, down = (
            readout.of_logits(
                run(model, source, target=target, edit={at: lambda x, by=by, change=change: x + by * change}).logits
            )
            for by in (step, -step)
        )
        cells = found[site].effect()[1].nan_to_num().flatten(0, -2).sum(0)
        torch.testing.assert_close(cells, (up - down) / (2 * step), rtol=1e-5, atol=1e-7)


def test_other_estimates_and_the_search_reach_every_attention():
    model, pairs = two_stacks("modern"), pairs_of_two("source")
    for stack, attention in PLACED:
        where = {"stack": stack, "attention": attention}
        fixed = attribution_patching(model, pairs, logit_difference(), {"k": HEADS}, qk_fix=True, **where)["k"]
        assert fixed.effect().isfinite().all()
        assert (atp_star(model, pairs, logit_difference(), {"z": HEADS}, **where)["z"].mean() >= 0).all()
        exact = sweep(model, pairs, logit_difference(), **where).effect().mean(-1)
        best = top_cells(model, pairs, logit_difference(), "z", 1, **where)
        assert best.cells[0] == tuple(int(at) for at in torch.unravel_index(exact.abs().argmax(), exact.shape))


@pytest.mark.parametrize(("place", "name", "kind"), pairwise(PLACED, ("original", "mixed"), ("zero", "mean")), ids=str)
def test_ablations_equal_plain_edited_forwards(name, place, kind):
    stack, attention = place
    model, pairs = two_stacks(name), pairs_of_two("source")
    source, target = pairs.inputs[0]
    where, inside = {"stack": stack, "attention": attention}, "attn" if attention == "self" else "cross_attn"
    mean = mean_activation(model, [(source, target)], **where)
    given = mean if kind == "mean" else None
    found = ablate(model, pairs, logit_difference(), kind=kind, mean=given, **where)
    readout = logit_difference().prepare(model, pairs)
    for layer, head in product(*map(range, found.drop().shape[:2])):
        edit = zero(head=head) if kind == "zero" else put(mean[layer, head], head=head)
        plain = run(model, source, target=target, edit={f"{stack}.{layer}.{inside}.z": edit})
        torch.testing.assert_close(
            found.values["logit_difference"][layer, head], readout.of_logits(plain.logits), **CLOSE
        )
    cells = [(1, 0), (0, 1)]
    listed = ablate_cells(
        model, source, logit_difference(pairs.right, pairs.wrong), cells, kind=kind, target=target, mean=given, **where
    )
    torch.testing.assert_close(listed.drop(), torch.stack([found.drop()[cell] for cell in cells]), **CLOSE)


@pytest.mark.parametrize(("stack", "attention", "site"), [("encoder", "self", "mlp.post"), ("decoder", "cross", "k")])
def test_what_no_engine_ablates_equals_plain_edited_forwards(stack, attention, site):
    model, pairs = two_stacks("original"), pairs_of_two("source")
    source, target = pairs.inputs[0]
    where = {"stack": stack, "attention": attention}
    mean = mean_activation(model, [(source, target)], site, **where)
    unit, axis = ("neuron", "d_mlp") if site == "mlp.post" else ("head", "head")
    readout = logit_difference().prepare(model, pairs)
    found = ablate(model, pairs, logit_difference(), site, ("layer", unit), "mean", **where).values["logit_difference"]
    for layer, at in product(*map(range, found.shape[:2])):
        name = f"{stack}.{layer}.{'cross_attn.' if attention == 'cross' else ''}{site}"
        plain = run(model, source, target=target, edit={name: put(mean[layer, at], **{axis: at})})
        torch.testing.assert_close(found[layer, at], readout.of_logits(plain.logits), **CLOSE)
    donors = rows((5,), d_vocab=19, seed=3), rows((4,), seed=4)
    asked = {"site": site, "by": ("layer", unit), "kind": "resample", "donors": donors}
    found = ablate(model, pairs, logit_difference(), **asked, **where).values["logit_difference"]
    name = f"{stack}.1.{'cross_attn.' if attention == 'cross' else ''}{site}"
    theirs = run(model, donors[0], target=donors[1], capture=name)[name][:, :4, 1]
    plain = run(model, source, target=target, edit={name: put(theirs, **{axis: 1})})
    torch.testing.assert_close(found[1, 1], readout.of_logits(plain.logits), **CLOSE)


def test_other_prompts_resampled_are_those_of_the_same_stack():
    model, source, target = two_stacks("original"), rows((4,), d_vocab=19), rows((3,))
    donors = rows((5,), d_vocab=19, seed=3), rows((4,), seed=4)
    metric = logit_difference(torch.tensor([1]), torch.tensor([2]))
    for stack, length in (("encoder", 4), ("decoder", 3)):
        found = ablate(model, source, metric, kind="resample", donors=donors, target=target, stack=stack)
        at = f"{stack}.1.attn.z"
        theirs = run(model, donors[0], target=donors[1], capture=at)[at][:, :length, 1]
        logits = run(model, source, target=target, edit={at: put(theirs, head=1)}).logits[0, -1]
        torch.testing.assert_close(found.values["logit_difference"][1, 1, 0], logits[1] - logits[2], **CLOSE)


def test_a_single_pair_is_ablated_with_its_corrupted_texts():
    model, pair = two_stacks("original"), pairs_of_two("source").take(torch.tensor([0]))
    for stack, attention in PLACED:
        where = {"stack": stack, "attention": attention}
        noised = sweep(model, pair, logit_difference(), direction="noise", **where).values["logit_difference"]
        found = ablate(model, pair, logit_difference(), **where).values["logit_difference"]
        torch.testing.assert_close(found, noised, **CLOSE)


@pytest.mark.parametrize(("place", "name", "entries"), pairwise(PLACED, ("modern", "mixed"), (1 << 21, 3000)), ids=str)
def test_keys_hidden_in_any_attention_equal_one_plain_forward_pass(name, place, entries, monkeypatch):
    stack, attention = place
    monkeypatch.setattr(memory, "MOST", entries)
    model, sources, targets = two_stacks(name), rows((5, 4, 5), d_vocab=19), rows((4, 5, 3))
    own = sources if stack == "encoder" else targets
    seen = targets if (stack, attention) == ("decoder", "self") else sources
    claims = []
    for number, prompt in enumerate((0, 1, 2, 0, 1)):
        length, n_keys = (int(texts.lengths[prompt]) for texts in (own, seen))
        queries = torch.tensor([length - 1, 1][: 1 + number % 2])
        keys = torch.zeros(len(queries), seen.ids.shape[1], dtype=torch.bool)
        keys[:, number % 2] = True
        keys[0, n_keys - 2] = True
        positions = torch.arange(int(targets.lengths[prompt]))[-1 - number % 2 :]
        claims.append(Claim(prompt, queries, keys, Read(positions, log_probabilities(positions + 3))))
    where = {"target": targets, "stack": stack, "attention": attention}
    fast, plain = (way(model, sources, claims, **where) for way in (knock_out, knock_out_by_forward))
    assert (plain.flatten(1).abs().amax(1) > 1e-6).all()
    torch.testing.assert_close(fast, plain, **CLOSE)


class TestBadInput:
    """One clear error each."""

    @pytest.mark.parametrize(
        ("asked", "message"),
        [
            ({"stack": "encoder", "attention": "cross"}, "no attention 'cross' in this model's encoder: expected self"),
            (
                {"site": "resid_pre", "by": ("layer",), "attention": "cross"},
                "no patchable site 'resid_pre' in cross-at",
            ),
            ({"site": "resid_cross", "by": ("layer",), "stack": "encoder"}, "'resid_cross' in the encoder"),
            ({"budget": 1_000}, "too small for one cell"),
        ],
        ids=str,
    )
    def test_places(self, asked, message):
        with pytest.raises(InputError, match=message):
            sweep(two_stacks("original"), pairs_of_two("source"), logit_difference(), **asked)

    def test_pairs(self):
        model, one = two_stacks("original"), variant("alibi")
        ids = torch.arange(8).reshape(2, 4)
        with pytest.raises(InputError, match="give target=, what the decoder reads for both prompts, or source="):
            Pairs.from_ids(model, ids, ids + 1)
        with pytest.raises(InputError, match="reads one text: expected neither target nor source"):
            Pairs.from_ids(one, ids, ids + 1, target=ids)
        with pytest.raises(InputError, match="give target=, what the decoder reads for both prompts"):
            sweep(model, ragged_pairs(d_vocab=19), logit_difference())
        with pytest.raises(InputError, match="reads one text: expected neither target nor source"):
            sweep(one, pairs_of_two("source"), logit_difference())
        with pytest.raises(InputError, match="expected a target or a source, got both"):
            ragged_pairs(target=rows((2, 2, 2)), source=rows((2, 2, 2)))
        with pytest.raises(InputError, match="expected one target for each of 3 pairs, got 2"):
            ragged_pairs(target=rows((2, 2)))

    def test_one_target_may_serve_all_pairs(self):
        model, ids = two_stacks("original"), torch.arange(8).reshape(2, 4)
        answers = torch.tensor([1, 2]), torch.tensor([3, 4])
        pairs = Pairs.from_ids(model, ids, ids + 1, *answers, target=torch.tensor([2, 5]))
        assert isinstance(pairs.target, TokenBatch)
        assert pairs.last.tolist() == [1, 1]
        assert sweep(model, pairs, logit_difference(), stack="encoder").effect().abs().max() > 1e-4


def test_without_a_target_every_way_in_says_what_is_missing():
    model, source = two_stacks("original"), rows((4, 4, 3), d_vocab=11)
    alone = Pairs(source, rows((4, 4, 3), d_vocab=11, seed=1), torch.tensor([1, 2, 3]), torch.tensor([4, 5, 6]))
    one = variant("after")
    ways = [lambda: model(source), lambda: kl_divergence().prepare(model, alone)]
    for work in (sweep, sweep_by_forward, unpatched, top_cells, ablate):
        ways += [lambda work=work: work(model, alone, kl_divergence()), lambda work=work: work(model, alone, PLAIN)]
    for way in ways:
        with pytest.raises(InputError, match="has an encoder and a decoder: give target="):
            way()
    with pytest.raises(InputError, match="reads one text: expected"):
        sweep(one, pairs_of_two("source"), PLAIN)
    with pytest.raises(InputError, match="reads one text: expected no target"):
        one(source, target=source)

"""Path patching against two plain forwards a cell, and paths whose effect follows on paper."""

from itertools import product

import pytest
import torch
from covering import pairwise

from interp import InputError, Transformer, run
from interp.patching import Pairs, function, kl_divergence, logit_difference, shared_keys, sweep
from interp.patching.path_patching import path_patch
from interp.patching.plain_paths import Receiver, path_patch_by_forward
from interp.patching.results import Direction
from models import planted
from models.planted import Planted
from tests.interp.patching import test_sweeps
from tests.interp.patching.test_sweeps import build

LENGTHS, FIRSTS = (5, 5, 4), (1, 2, 1)
CLOSE = {"rtol": 1e-10, "atol": 1e-10, "equal_nan": True}
KINDS = ("pre", "post", "grouped queries", "post-norm encoder", "attention only")
Q, K, V = (Receiver(part, 1, 1) for part in "qkv")
ENDS = {
    "q": [Q],
    "k": [Receiver("k", 2, 0)],
    "v": [V],
    "all heads": [Receiver("q", 2), Receiver("v", 2)],
    "mlp": [Receiver("mlp", 1)],
    "last mlp": [Receiver("mlp", 2)],
    "logits": [Receiver("logits")],
    "several": [Receiver("q", 2, 3), Receiver("k", 1, 1), Receiver("q", 1, 0), Receiver("v", 2, 1)],
    "several kinds": [Receiver("mlp", 0), Q, Receiver("k", 2, 1), Receiver("mlp", 2, position=-1), Receiver("logits")],
    "positions": [Receiver("q", 1, 2, position=-1), Receiver("q", 1, 3, position=3), Receiver("k", 2, 0, position=2)],
    "overlapping": [Receiver("k", 2, 0), Receiver("k", 2, position=-2), Receiver("logits", position=-1)],
}
HEADS, PLACES = ("layer", "head"), ("layer", "head", "position")
SENDERS = [("z", HEADS), ("z", PLACES), ("z", ("layer",)), ("mlp_out", ("layer",)), ("mlp_out", ("layer", "position"))]
THROUGH = ("nothing", "mlps", "everything")


def ragged_pairs() -> Pairs:
    return test_sweeps.ragged_pairs(LENGTHS, FIRSTS)


def ends(model: Transformer, name: str) -> list[Receiver]:
    """The receivers as far as the model has them."""
    has_mlp = model.last.blocks[0].mlp is not None
    return [receiver for receiver in ENDS[name] if has_mlp or receiver.part != "mlp"]


def possible(kind: str, name: str, sender: str) -> bool:
    """Whether the model has the sender and all receivers that the name promises."""
    return kind != "attention only" or (sender == "z" and not name.endswith("mlp"))


CASES = pairwise(
    KINDS,
    ENDS,
    SENDERS,
    THROUGH,
    ("denoise", "noise"),
    possible=lambda kind, name, sender, *_: possible(kind, name, sender[0]),
)


def check(kind, name, sender, through, direction):
    model, pairs = build(kind), ragged_pairs()
    metrics = [logit_difference(), kl_divergence()]
    arguments = (model, pairs, metrics, ends(model, name), *sender, through, direction)
    fast, plain = path_patch(*arguments), path_patch_by_forward(*arguments)
    assert (fast.site, fast.direction, fast.axes) == (plain.site, plain.direction, plain.axes)
    for table in ("values", "clean", "corrupt"):
        torch.testing.assert_close(getattr(fast, table), getattr(plain, table), **CLOSE)
    assert fast.effect().nan_to_num().abs().max() > 1e-6  # paths that carry nothing would prove nothing


@pytest.mark.parametrize(("kind", "name", "sender", "through", "direction"), CASES, ids=str)
def test_every_cell_equals_two_plain_forward_passes(kind, name, sender, through, direction):
    check(kind, name, sender, through, direction)


@pytest.mark.parametrize(
    ("kind", "through"), [*zip(("pre", "grouped queries", "post-norm encoder"), THROUGH, strict=True)]
)
def test_in_float32_cells_agree_to_rounding(kind, through):
    model, pairs = build(kind, torch.float32), ragged_pairs()
    arguments = (model, pairs, logit_difference(), ENDS["several kinds"], "z", HEADS, through)
    torch.testing.assert_close(
        path_patch(*arguments).values, path_patch_by_forward(*arguments).values, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(
    ("kind", "name"),
    [("pre", "several kinds"), ("grouped queries", "positions"), ("post-norm encoder", "several kinds")],
)
def test_the_fused_kernel_for_long_prompts_gives_the_same_cells(kind, name, monkeypatch):
    monkeypatch.setattr(shared_keys, "_SMALL_ROWS", 0)  # every prompt counts as long
    check(kind, name, ("z", HEADS), "everything", "denoise")


@pytest.mark.parametrize("kind", ["pre", "post-norm encoder"])
def test_metrics_that_read_several_positions(kind):
    model, pairs = build(kind), ragged_pairs()
    early = torch.stack([pairs.last, torch.tensor([1, 2, 0]), pairs.last - 1], 1)
    several = function(lambda logits: logits[..., 0, 3] + logits[..., 1, 4] * logits[..., 2, 5], "several", early)
    for through, name in [("nothing", "several"), ("everything", "several kinds")]:
        arguments = (model, pairs, [several, logit_difference()], ENDS[name], "z", HEADS, through)
        fast, plain = path_patch(*arguments), path_patch_by_forward(*arguments)
        torch.testing.assert_close(fast.values, plain.values, **CLOSE)


def test_the_order_of_the_axes_is_that_of_the_table():
    model, pairs = build("pre"), ragged_pairs()
    one, other = (
        path_patch(model, pairs, logit_difference(), [Receiver("k", 2, 0)], by=by).effect()
        for by in (PLACES, ("layer", "position", "head"))
    )
    torch.testing.assert_close(one.transpose(1, 2), other, equal_nan=True)
    assert one.shape == (3, 4, 5, 3)


@pytest.mark.parametrize("through", THROUGH)
def test_the_budget_changes_no_number(through):
    model, pairs = build("pre"), ragged_pairs()
    arguments = (model, pairs, logit_difference(), ENDS["several kinds"], "z", HEADS, through)
    whole = path_patch(*arguments)
    for budget in (60_000, 200_000):
        tight = path_patch(*arguments, budget=budget)
        torch.testing.assert_close(tight.values, whole.values, rtol=1e-12, atol=1e-12)


class TestIdentities:
    """What holds for any model."""

    @pytest.mark.parametrize(
        ("kind", "sender", "by"),
        [(kind, *sender) for kind, sender in zip(KINDS, (*SENDERS[1:], SENDERS[0]), strict=True)],
        ids=str,
    )
    def test_all_paths_to_the_logits_are_the_sender_itself(self, kind, sender, by):
        model, pairs = build(kind), ragged_pairs()
        paths = path_patch(model, pairs, logit_difference(), [Receiver("logits")], sender, by, "everything")
        torch.testing.assert_close(paths.values, sweep(model, pairs, logit_difference(), sender, by).values, **CLOSE)
        assert paths.effect().nan_to_num().abs().max() > 1e-3

    def test_without_norms_the_direct_effect_on_the_logits_is_what_the_head_writes_for_them(self):
        model, pairs = build("plain sums"), ragged_pairs()
        found = path_patch(model, pairs, logit_difference(), [Receiver("logits")]).effect()
        assert model.output is not None
        assert pairs.right is not None
        assert pairs.wrong is not None
        direction = model.output.weight[pairs.right] - model.output.weight[pairs.wrong]  # prompt d_model
        prompt = torch.arange(len(pairs))
        for layer, head in product(range(3), range(4)):
            site = f"decoder.{layer}.attn.z"
            clean, corrupt = (run(model, each, capture=site)[site] for each in (pairs.clean, pairs.corrupt))
            dz = (clean - corrupt)[prompt, pairs.last, head]
            expected = (dz @ model.last.blocks[layer].attn.W_O[head] * direction).sum(-1)
            torch.testing.assert_close(found[layer, head], expected, **CLOSE)
        assert found.abs().max() > 1e-3

    def test_paths_to_a_head_whose_keys_nobody_asks_for_carry_nothing(self):
        model, pairs = build("pre"), ragged_pairs()
        heard = path_patch(model, pairs, logit_difference(), [Receiver("k", 2, 3)], through="everything").effect()
        with torch.no_grad():
            model.last.blocks[2].attn.W_O[3] = 0
        unheard = path_patch(model, pairs, logit_difference(), [Receiver("k", 2, 3)], through="everything").effect()
        assert heard.abs().max() > 1e-4
        assert unheard.abs().max() < 1e-12

    @pytest.mark.parametrize(
        ("receiver", "sender", "reached"),
        [
            (Receiver("q", 1, 2), "z", [True, False, False]),
            (Receiver("q", 1, 2), "mlp_out", [True, False, False]),
            (Receiver("mlp", 1), "z", [True, True, False]),
            (Receiver("mlp", 1), "mlp_out", [True, False, False]),
            (Receiver("logits"), "mlp_out", [True, True, True]),
        ],
        ids=str,
    )
    @pytest.mark.parametrize("kind", ["pre", "post"])
    def test_only_senders_before_the_receiver_reach_it(self, kind, receiver, sender, reached):
        model, pairs = build(kind), ragged_pairs()
        found = path_patch(model, pairs, logit_difference(), [receiver], sender, ("layer",)).effect()
        assert [bool(layer.abs().max() > 1e-6) for layer in found] == reached
        assert (found[~torch.tensor(reached)] == 0).all()

    def test_direct_paths_stay_at_their_position_and_attention_moves_them_on(self):
        model, pairs = build("pre"), test_sweeps.ragged_pairs((9, 9), (3, 3))
        here = [Receiver("q", 2, position=6)]
        reading = function(lambda logits: logits[..., 0, 3], "reading", torch.tensor([[6], [6]]))
        for through, at in zip(THROUGH, [[6], [6], [3, 4, 5, 6]], strict=True):
            found = path_patch(model, pairs, reading, here, "z", ("layer", "position"), through).effect()[0, :, 0]
            assert found.nonzero()[:, 0].tolist() == at

    def test_paths_through_more_differ_from_paths_through_less(self):
        model, pairs = build("pre"), ragged_pairs()
        found = [
            path_patch(model, pairs, logit_difference(), [Receiver("q", 2, 1)], through=t).effect() for t in THROUGH
        ]
        for one, other in ((0, 1), (1, 2), (0, 2)):
            assert (found[one][0] - found[other][0]).abs().max() > 1e-5
        # one layer below, no attention lies between
        torch.testing.assert_close(found[1][1], found[2][1], **CLOSE)

    @pytest.mark.parametrize("through", THROUGH)
    def test_swapping_clean_and_corrupt_exchanges_the_directions(self, through):
        model, pairs = build("grouped queries"), ragged_pairs()
        paths = [Receiver("v", 2, 1), Receiver("mlp", 1)]
        denoise = path_patch(model, pairs, logit_difference(), paths, through=through)
        noise = path_patch(model, pairs.swapped(), logit_difference(), paths, through=through, direction="noise")
        torch.testing.assert_close(denoise.effect(), noise.effect(), rtol=1e-9, atol=1e-9)

    def test_a_prompt_alone_gives_what_it_gives_among_others(self):
        model, pairs = build("post-norm encoder"), ragged_pairs()
        together = path_patch(model, pairs, logit_difference(), ENDS["positions"], by=PLACES).effect()
        for prompt, (length, first) in enumerate(zip(LENGTHS, FIRSTS, strict=True)):
            rows = (each.ids[prompt : prompt + 1, :length] for each in (pairs.clean, pairs.corrupt))
            assert pairs.right is not None
            assert pairs.wrong is not None
            alone = Pairs.from_ids(model, *rows, pairs.right[[prompt]], pairs.wrong[[prompt]])
            assert int(alone.first_changed[0]) == first
            found = path_patch(model, alone, logit_difference(), ENDS["positions"], by=PLACES).effect()[..., 0]
            torch.testing.assert_close(together[:, :, :length, prompt], found, **CLOSE)
            assert together[:, :, length:, prompt].isnan().all()


class TestPlanted:
    """Truth 3: a previous-token head feeds the keys of an induction head, and nothing else does anything."""

    # a b a ?: the induction head looks from the second a to what stands behind an a, and predicts it
    LAYERS = (
        (planted.offset(-1, remember=True), planted.offset(-2), planted.uniform),
        (planted.same_token, planted.induction(10.0), planted.uniform),
    )

    def pairs(self) -> tuple[Transformer, Pairs]:
        model = Planted(["a", "b", "c", "d", "x"], self.LAYERS, n_ctx=8).build()
        # clean: what followed `a` is b; corrupted: its first copy is another word, so that b follows x
        return model, Pairs.from_texts(model, ["c a b d a"], ["c x b d a"], ["b"], ["c"])

    def shares(self, receiver: Receiver, direction: Direction, **more) -> torch.Tensor:
        model, pairs = self.pairs()
        found = path_patch(model, pairs, logit_difference(), [receiver], direction=direction, **more)
        torch.testing.assert_close(found.difference(), torch.tensor([10.0]), rtol=0, atol=1e-4)
        return found.recovered()

    @pytest.mark.parametrize("direction", ["denoise", "noise"])
    @pytest.mark.parametrize("through", THROUGH)
    def test_the_path_to_the_keys_carries_all(self, through, direction):
        expected = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
        for receiver in (Receiver("k", 1, 1), Receiver("k", 1), Receiver("k", 1, 1, position=2)):
            found = self.shares(receiver, direction, through=through)
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)

    @pytest.mark.parametrize("direction", ["denoise", "noise"])
    @pytest.mark.parametrize(
        "receiver",
        [
            *(Receiver("q", 1, head) for head in range(3)),
            *(Receiver("v", 1, head) for head in range(3)),
            Receiver("k", 1, 0),
            Receiver("k", 1, 2),
            Receiver("k", 1, 1, position=1),
        ],
        ids=str,
    )
    def test_no_other_path_carries_anything(self, receiver, direction):
        found = self.shares(receiver, direction, through="everything")
        torch.testing.assert_close(found, torch.zeros(2, 3), rtol=0, atol=1e-5)

    def test_on_the_logits_the_induction_head_acts_itself_and_the_other_through_it(self):
        one, other = torch.zeros(2, 3), torch.zeros(2, 3)
        one[1, 1] = other[1, 1] = other[0, 0] = 1
        direct = self.shares(Receiver("logits"), "denoise")
        total = self.shares(Receiver("logits"), "denoise", through="everything")
        torch.testing.assert_close(direct, one, rtol=0, atol=1e-4)
        torch.testing.assert_close(total, other, rtol=0, atol=1e-4)

    def test_only_the_position_behind_the_first_copy_sends(self):
        found = self.shares(Receiver("k", 1, 1), "denoise", by=("layer", "head", "position"))
        expected = torch.zeros(2, 3, 5)
        expected[0, 0, 2] = 1
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


class TestBadInput:
    """One clear error each."""

    @pytest.mark.parametrize(
        ("receivers", "message"),
        [
            ([], "at least one receiver"),
            ([Receiver("q", 3, 0)], "no layer 3 to receive q: expected 0-2"),
            ([Receiver("mlp")], "no layer None to receive mlp"),
            ([Receiver("q", 1, 4)], "no head 4 of receiver q: expected 0-3"),
            ([Receiver("k", 1, 2)], "no head 2 of receiver k: expected 0-1"),
            ([Receiver("mlp", 1, 0)], "no head 0 of receiver mlp: it is not read by heads"),
            ([Receiver("logits", 2)], "expected no layer, got layer 2"),
            ([Receiver("logits", head=0)], "no head 0 of receiver logits"),
            ([Receiver("q", 1, position=4)], r"receiver 1.q@4: no position 4 in prompt \d: it has position 0-3"),
            ([Receiver("q", 0, 1)], "no z is written before 0.1.q read"),
        ],
        ids=str,
    )
    def test_receivers(self, receivers, message):
        for patching in (path_patch, path_patch_by_forward):
            with pytest.raises(InputError, match=message):
                patching(build("grouped queries"), ragged_pairs(), logit_difference(), receivers)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"by": ("head",)}, "layer first"),
            ({"sender": "mlp_out"}, "mlp_out can be swept by layer first, then any of position"),
            ({"budget": 1_000}, "too small for one cell"),
        ],
        ids=str,
    )
    def test_arguments(self, arguments, message):
        with pytest.raises(InputError, match=message):
            path_patch(build("pre"), ragged_pairs(), logit_difference(), [Q], **arguments)

    def test_a_feed_forward_that_is_not_there(self):
        model, pairs = build("attention only"), ragged_pairs()
        with pytest.raises(InputError, match="no receiver 'mlp' in this model: expected one of q, k, v, logits"):
            path_patch(model, pairs, logit_difference(), [Receiver("mlp", 1)])
        with pytest.raises(InputError, match="no patchable site 'mlp_out'"):
            path_patch(model, pairs, logit_difference(), [Q], "mlp_out", ("layer",))
        with pytest.raises(InputError, match=r"no mlp_out is written before 0\.mlp read"):
            path_patch(build("pre"), pairs, logit_difference(), [Receiver("mlp", 0)], "mlp_out", ("layer",))

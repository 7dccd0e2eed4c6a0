"""What holds of paths in any model, paths whose effect follows on paper, and what is refused."""

from itertools import product

import pytest
import torch
from tiny import ragged_pairs

from interp import Transformer, run
from interp.patching import Pairs, Receiver, function, logit_difference, path_patch
from interp.patching.results import Direction
from models import planted
from models.planted import Planted
from tests.interp.patching.settings import CLOSE, build
from tests.interp.patching.test_against_plain import THROUGH

LENGTHS, FIRSTS = (4, 4, 3), (1, 2, 1)
KINDS = ("pre", "post", "gated", "post encoder", "attention only")
Q = Receiver("q", 1, 1)


class TestIdentities:
    """What holds for any model."""

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
        heard = path_patch(model, pairs, logit_difference(), [Receiver("k", 2, 1)], through="everything").effect()
        with torch.no_grad():
            model.last.blocks[2].attn.W_O[2:] = 0  # that share the key
        unheard = path_patch(model, pairs, logit_difference(), [Receiver("k", 2, 1)], through="everything").effect()
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
        model, pairs = build("pre"), ragged_pairs((9, 9), (3, 3))
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

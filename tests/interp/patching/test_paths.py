"""Where do paths lead? Also paths whose effect follows on paper."""

import pytest
import torch
from tiny import ragged_pairs

from interp.patching import Pairs, Receiver, function, logit_difference, path_patch
from models import planted
from models.planted import Planted
from tests.interp.patching.settings import CLOSE, build
from tests.interp.patching.test_against_plain import THROUGH


def test_direct_paths_stay_at_their_position_and_attention_moves_them_on():
    model, pairs = build("pre"), ragged_pairs((9, 9), (3, 3))
    ends, cells = [Receiver("q", 2, position=6)], []
    reading = function(lambda logits: logits[..., 0, 3], "reading", torch.tensor([[6], [6]]))
    for through, places in zip(THROUGH, [[6], [6], [3, 4, 5, 6]], strict=True):
        cells.append(path_patch(model, pairs, reading, ends, "z", ("layer", "position"), through).effects())
        assert (cells[-1][0, :, 0].abs() > 1e-9).nonzero()[:, 0].tolist() == places
    for first, second in ((0, 1), (1, 2), (0, 2)):
        assert (cells[first][0] - cells[second][0]).abs().max() > 1e-5
    torch.testing.assert_close(cells[1][1], cells[2][1], **CLOSE)  # one layer below, with no attention between


# truth 3: a previous-token head feeds the keys of an induction head, which predicts b after a b a; nothing else acts
LAYERS = (
    (planted.offset(-1, remember=True), planted.offset(-2), planted.uniform),
    (planted.same_token, planted.induction(10.0), planted.uniform),
)
FEEDING, INDUCTION = (0, 0), (1, 1)
KEYS = Receiver("k", 1, 1)


@pytest.mark.parametrize("direction", ["denoise", "noise"])
@pytest.mark.parametrize(
    ("receiver", "through", "carrying"),
    [
        *((KEYS, through, [FEEDING]) for through in THROUGH),
        *((end, "everything", [FEEDING]) for end in (Receiver("k", 1), Receiver("k", 1, 1, position=2))),
        *((end, "everything", []) for end in (Receiver("q", 1), Receiver("v", 1), Receiver("k", 1, 0))),
        (Receiver("k", 1, 1, position=1), "everything", []),
        (Receiver("logits"), "nothing", [INDUCTION]),
        (Receiver("logits"), "everything", [FEEDING, INDUCTION]),
    ],
    ids=str,
)
def test_planted_paths_carry_all_and_no_others_anything(receiver, through, carrying, direction):
    model = Planted(["a", "b", "c", "d", "x"], LAYERS, n_ctx=8).build()
    # clean: what followed `a` is b; corrupted: its first copy is another word, so that b follows x
    pairs = Pairs.from_texts(model, ["c a b d a"], ["c x b d a"], ["b"], ["c"])
    cells = path_patch(model, pairs, logit_difference(), [receiver], through=through, direction=direction)
    expected = torch.tensor([[float((layer, head) in carrying) for head in range(3)] for layer in range(2)])
    torch.testing.assert_close(cells.difference(), torch.tensor([10.0]), rtol=0, atol=1e-4)
    torch.testing.assert_close(cells.share(), expected, rtol=0, atol=1e-4)

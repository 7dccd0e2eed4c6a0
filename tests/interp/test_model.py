"""Whatever keeps `interp.Model` is read, changed, swept and continued as a `Transformer`; what needs parts says so."""

import pytest
import torch
from tiny import Whole, ragged_pairs, token_ids, two_stacks
from tiny import model as tiny_model
from torch import nn

from interp import (
    InputError,
    Model,
    Site,
    StackConfig,
    TransformerConfig,
    generate,
    logit_difference,
    run,
    sites,
    sweep,
    zero,
)
from interp import patch as patched
from interp.attribution import composition_scores, direct_logit_attribution, head_results, logit_lens
from interp.initialisation import untrained
from interp.patching import (
    Receiver,
    atp_star,
    attribution_patching,
    edge_attribution,
    path_patch,
    path_patch_by_forward,
    sweep_by_forward,
    top_cells,
)
from interp.patching.ablation import ablate
from interp.patching.knockout import Claim, knock_out, knock_out_by_forward
from interp.patterns.captured import read_patterns
from interp.tap import UNTAPPED
from models import save


class MeanOfTheEarlier:
    """A model by hand, no module of ours: a token's stream plus, for each of two "heads", the mean of what it reads.

    It has sites of its own (`decoder.0.mixed`), and of ours only those that it computes.
    """

    tokenizer = target_tokenizer = None
    device, dtype = torch.device("cpu"), torch.float64

    def __init__(self) -> None:
        self.config = TransformerConfig(decoder=StackConfig(1, 6, 2, 3, 5, 11, 29, causal=True))
        generator = torch.Generator().manual_seed(0)
        self.embedding = torch.randn(29, 6, generator=generator, dtype=torch.float64)
        self.reads = torch.randn(6, 6, generator=generator, dtype=torch.float64)
        named = {
            "decoder.0.resid_pre": (("position", "d_model"), (None, 6)),
            "decoder.0.attn.pattern": (("head", "query", "key"), (2, None, None)),
            "decoder.0.attn.z": (("position", "head", "d_head"), (None, 2, 3)),
            "decoder.0.mixed": (("position", "d_model"), (None, 6)),
            "logits": (("position", "d_vocab"), (None, 29)),
        }
        self.sites = {name: Site(name, axes, sizes, "by hand") for name, (axes, sizes) in named.items()}
        self.passed: list[str] = []

    def __call__(self, batch, tap=UNTAPPED, target=None):
        del target

        def at(name: str, value: torch.Tensor) -> torch.Tensor:
            self.passed.append(name)
            return tap(name, value)

        stream = at("decoder.0.resid_pre", self.embedding[batch.ids])
        length = batch.ids.shape[1]
        row = torch.tril(torch.ones(length, length, dtype=torch.float64))
        row = row / row.sum(-1, keepdim=True)
        pattern = at("decoder.0.attn.pattern", row.expand(len(batch.ids), 2, -1, -1))
        v = (stream @ self.reads).unflatten(-1, (2, 3))
        z = at("decoder.0.attn.z", torch.einsum("...hqk,...khd->...qhd", pattern, v))
        mixed = at("decoder.0.mixed", stream + z.flatten(-2))
        return at("logits", mixed @ self.embedding.T)


@pytest.fixture
def by_hand() -> MeanOfTheEarlier:
    return MeanOfTheEarlier()


def test_both_keep_the_protocol(by_hand):
    assert isinstance(by_hand, Model)
    assert isinstance(tiny_model("gpt2"), Model)
    assert not isinstance(nn.Linear(2, 3), Model)


def test_logits_captures_edits_and_sites_of_its_own(by_hand):
    ids = token_ids(2, 5)
    assert [*sites(by_hand)] == [*by_hand.sites]
    out = run(by_hand, ids, capture="decoder.0.*")
    stream = by_hand.embedding[ids]
    torch.testing.assert_close(out["decoder.0.attn.z"][:, 0].flatten(-2), stream[:, 0] @ by_hand.reads)
    torch.testing.assert_close(out.logits, out["decoder.0.mixed"] @ by_hand.embedding.T)
    silent = run(by_hand, ids, edit={"decoder.0.attn.z": zero()})
    torch.testing.assert_close(silent.logits, stream @ by_hand.embedding.T)
    one = run(by_hand, ids, "decoder.0.mixed", {"decoder.0.attn.z": zero(head=1, position=2)})
    torch.testing.assert_close(one["decoder.0.mixed"][:, 2, 3:], stream[:, 2, 3:])
    same = run(by_hand, ids, edit={"decoder.0.mixed": patched(out["decoder.0.mixed"])})
    assert torch.equal(same.logits, out.logits)
    with pytest.raises(InputError, match=r"no site 'decoder.0.mlp_out'"):
        run(by_hand, ids, capture="decoder.0.mlp_out")
    with pytest.raises(InputError, match=r"has no head 2|no head 2 at decoder.0.attn.z"):
        run(by_hand, ids, edit={"decoder.0.attn.z": zero(head=2)})
    with pytest.raises(InputError, match="no tokenizer"):
        run(by_hand, "text")


@pytest.mark.parametrize("direction", ["denoise", "noise"])
@pytest.mark.parametrize("by", [("layer", "head"), ("layer", "head", "position")])
def test_a_sweep_goes_one_forward_a_cell(by_hand, direction, by):
    pairs = ragged_pairs()
    found = sweep(by_hand, pairs, logit_difference(), "z", by, direction)
    plain = sweep_by_forward(by_hand, pairs, logit_difference(), "z", by, direction)
    torch.testing.assert_close(found.effect(), plain.effect(), rtol=0, atol=0, equal_nan=True)
    base, source = (pairs.corrupt, pairs.clean) if direction == "denoise" else (pairs.clean, pairs.corrupt)
    other = run(by_hand, source, "decoder.0.attn.z")["decoder.0.attn.z"]
    where = {"head": 1} | ({"position": 2} if "position" in by else {})
    logits = run(by_hand, base, edit={"decoder.0.attn.z": patched(other, **where)}).logits
    at = torch.arange(3), pairs.last
    expected = logits[(*at, pairs.right)] - logits[(*at, pairs.wrong)]
    cell = found.values["logit_difference"][(0, *where.values())]
    torch.testing.assert_close(cell, expected)


def test_it_writes_on_and_its_patterns_are_read(by_hand):
    ids = token_ids(2, 4)
    found = generate(by_hand, ids, 3).ids
    for _ in range(3):
        ids = torch.cat([ids, run(by_hand, ids).logits[:, -1].argmax(-1, keepdim=True)], 1)
    assert torch.equal(found, ids)
    assert generate(by_hand, token_ids(1, 10), 4, temperature=1.0).ids.shape == (1, 14)  # its context is of 11
    by_hand.passed.clear()
    pattern = read_patterns(by_hand, token_ids(2, 5), "decoder.*.attn.pattern")
    assert pattern.shape == (2, 2, 5, 5)
    assert by_hand.passed == ["decoder.0.resid_pre", "decoder.0.attn.pattern"]  # and no further


def test_the_untrained_model_of_its_shape(by_hand):
    assert untrained(by_hand, 1).dtype == torch.float64


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_writing_by_whole_passes_is_writing_on_the_cache(temperature):
    one = tiny_model("llama")
    for given in ({"prompt": token_ids(3, 4)}, {"prompt": token_ids(1, 12)}):
        found = [generate(each, **given, max_new_tokens=7, temperature=temperature).ids for each in (one, Whole(one))]
        assert torch.equal(*found)
    two = two_stacks("modern")
    given = {"prompt": token_ids(2, 5, d_vocab=19), "max_new_tokens": 6, "temperature": temperature}
    assert torch.equal(generate(two, **given).ids, generate(Whole(two), **given).ids)


@pytest.mark.parametrize("output", [None, nn.Linear(19, 3).double().requires_grad_(False)])
def test_knock_outs_go_one_forward_a_claim(output):
    from interp.patching.knockout import Read

    read = Read(torch.tensor([3]), lambda logits: logits[..., 0].sum(-1))
    claims = [Claim(0, torch.tensor([3]), torch.arange(5) == torch.tensor([[1]]), read)]
    inner, ids = tiny_model("gpt2"), token_ids(1, 5)
    found = knock_out(Whole(inner), ids, claims, output)
    assert torch.equal(found, knock_out_by_forward(inner, ids, claims, output))
    torch.testing.assert_close(found, knock_out(inner, ids, claims, output))


def test_what_needs_parts_says_so_in_one_line(by_hand, tmp_path):
    pairs, metric = ragged_pairs(), logit_difference()
    for refused in (
        lambda: ablate(by_hand, pairs, metric),
        lambda: atp_star(by_hand, pairs, metric, {"z": ("layer", "head")}),
        lambda: attribution_patching(by_hand, pairs, metric, {"z": ("layer", "head")}),
        lambda: composition_scores(by_hand),
        lambda: direct_logit_attribution(by_hand, token_ids(1, 5), 3),
        lambda: edge_attribution(by_hand, pairs, metric),
        lambda: head_results(by_hand, token_ids(1, 5), 0),
        lambda: logit_lens(by_hand, token_ids(1, 5)),
        lambda: path_patch(by_hand, pairs, metric, [Receiver("logits")]),
        lambda: path_patch_by_forward(by_hand, pairs, metric, [Receiver("logits")]),
        lambda: top_cells(by_hand, pairs, metric),
    ):
        with pytest.raises(InputError, match=r"another library runs this model as a whole.*sweep_by_forward") as error:
            refused()
        assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="another library runs this model"):
        save(by_hand, tmp_path / "there")

"""Selectors mean the same alone and in a batch, at every site and for every ready-made edit."""

from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
import torch
from refusals import refusal
from tiny import TWO_STACKS, model, ragged_pairs, randomise, rows
from torch import Tensor
from torch.testing import assert_close

from interp import TokenBatch, Transformer, TransformerConfig, change, generate, run, set_to, sites, zero
from interp.attribution import direct_logit_attribution, logit_lens
from interp.config import Experts, Gated
from interp.patching import function

pytestmark = pytest.mark.usefixtures("unchecked")
TEXTUAL = {"position", "query", "key"}
SOURCES, TARGETS = (5, 7, 6), (6, 5, 8)
LAYOUTS = {
    "equal": ((6, 6, 6), (5, 5, 5), "right"),
    "right": (SOURCES, TARGETS, "right"),
    "left": (SOURCES, TARGETS, "left"),
}
# along positions of texts of at least 5 tokens (arrays have one per text), and along axes of at least 2 entries
SELECTORS = {
    "int": (1, 1),
    "negative": (-2, -1),
    "NumPy int": (np.int64(-1), np.int64(1)),
    "open slice": (slice(1, None), slice(1, None)),
    "negative slice": (slice(-3, -1), slice(-1, None)),
    "steps": (slice(0, None, 2), slice(None, None, 2)),
    "reversed": (slice(None, None, -1), slice(None, None, -1)),
    "list": ([0, -1], [1, 0]),
    "range": (range(1, 4), range(2)),
    "array": (np.array([1, -1, 0]), np.array([1, 0])),
    "tensor": (torch.tensor([3, 0, -2]), torch.tensor([0, -1])),
}


@cache
def built() -> Transformer:
    """An encoder and a decoder of one layer, which together have every kind of site."""
    encoder, decoder = TWO_STACKS["modern"]
    decoder = replace(decoder, n_layers=1, qk_norm="head", mlp=Experts(3, 2, Gated("silu")))
    whole = Transformer(TransformerConfig(decoder, replace(encoder, n_layers=1), target_start=2)).double()
    randomise(whole)
    return whole


def batches(layout: str) -> tuple[TokenBatch, TokenBatch]:
    *lengths, side = LAYOUTS[layout]
    texts = (rows(each, d_vocab=size, seed=3) for each, size in zip(lengths, (19, 29), strict=True))
    return tuple(TokenBatch.from_rows(batch.id_lists(), side=side) for batch in texts)


def reads(axis: str, site: str) -> int:
    """The index of the text (of two) that an axis refers to."""
    keys = axis == "key" or (axis == "position" and site.endswith((".k", ".v", ".rot_k")))
    return 0 if site.startswith("encoder") or (".cross_attn." in site and keys) else 1


# counting from a text's end works with padding on either side
ENDS = {"negative", "open slice", "negative slice", "array"}
CASES = [case for i, case in enumerate(product(SELECTORS, LAYOUTS)) if case[0] in ENDS or i % 3 == i // 3 % 3]


@pytest.mark.parametrize(("kind", "layout"), CASES)
def test_what_is_selected_is_what_python_selects_of_each_text(kind, layout):
    """At every site, exactly the crossed entries of each text's own positions, whatever the padding."""
    texts, (textual, across) = batches(layout), SELECTORS[kind]
    plain = run(built(), texts[0], "*", target=texts[1])
    for name, site in sites(built()).items():
        rest = next(axis for axis in site.axes if axis not in TEXTUAL)
        where = {axis: textual for axis in site.axes if axis in TEXTUAL} | {rest: across}
        result = run(built(), texts[0], name, {name: set_to(77.0, **where)}, target=texts[1])[name]
        for text in range(3):
            real, picked = [], []
            for axis, size in zip(site.axes, plain[name].shape[1:], strict=True):
                mask = texts[reads(axis, name)].mask[text] if axis in TEXTUAL else torch.ones(size)
                index = where.get(axis, slice(None))
                if isinstance(index, np.ndarray | Tensor):  # an array has one position per text
                    index = index.tolist()[text] if axis in TEXTUAL else index.tolist()
                real.append(mask.nonzero()[:, 0].numpy())
                picked.append(np.atleast_1d(real[-1][index if isinstance(index, slice) else np.array(index)]))
            expected = np.zeros(plain[name].shape[1:], dtype=bool)
            expected[np.ix_(*picked)] = True
            before, after = (value[text][np.ix_(*real)] for value in (plain[name], result))
            chosen = torch.from_numpy(expected[np.ix_(*real)])
            hidden = before.isneginf() if name.endswith("scores") else before == 0
            visible = ~hidden if name.endswith(("scores", "pattern")) else True
            assert torch.equal(after == 77, chosen & visible), (name, text)
            assert torch.allclose(after[~chosen], before[~chosen], rtol=1e-9, atol=1e-9), (name, text)


def test_an_edit_gets_what_it_selects_with_its_axes_in_order():
    built, shapes = model("gpt2"), {}
    batch = TokenBatch.from_rows([[1, 2, 3, 4], [5, 6, 7], [8, 9, 10, 11]], side="left")

    def look(site: str, **where) -> list[tuple[int, ...]]:
        shapes[site] = []
        run(built, batch, edit={site: change(lambda part: shapes[site].append((*part.shape,)), **where)})
        return sorted(shapes[site])

    z, pattern = "decoder.0.attn.z", "decoder.0.attn.pattern"
    assert look(z, position=[0, -1], d_head=[0, 1, 2, 3]) == [(3, 2, 3, 4)]
    assert look(z, position=slice(1, None), head=0) == [(1, 2, 5), (2, 3, 5)]  # texts with equal counts together
    assert look(pattern, key=slice(None, -1), query=-1) == [(1, 3, 2), (2, 3, 3)]
    assert look(pattern, key=torch.tensor([0, 1, 2]), head=[0, 2]) == [(3, 2, 4)]
    assert look(z, position=slice(3, None)) == [(2, 1, 3, 5)]  # none in the second text
    assert look(z, position=torch.tensor([[0, 1], [2, 0], [-1, 1]])) == [(3, 2, 3, 5)]


SENSELESS = [None, True, "S2", 1.0, [True], [0, 1.5], [], (), {1}, 99, [0, 99], slice(0, 3, 0), slice("a", None)]
SENSELESS += [torch.tensor([True, False, True]), torch.tensor([1.0, 0.0, 1.0]), np.zeros((1, 1, 1), dtype=int)]


@pytest.mark.parametrize("index", SENSELESS, ids=str)
def test_what_selects_nothing_that_there_is_is_one_line(index):
    built, batch = model("gpt2"), rows((4, 7, 5))
    for axis in ("head", "position"):
        refusal(run, built, batch, edit={"decoder.0.attn.z": zero(**{axis: index})})
    refusal(generate, built, batch, 2, edit={"decoder.0.attn.z": zero(step=index)})
    if index is not None:  # by default the last
        refusal(logit_lens, built, batch, index)
        refusal(direct_logit_attribution, built, batch, 3, position=index)


def test_an_array_gives_each_text_its_own_and_is_refused_where_it_does_not():
    built, batch, site = model("gpt2"), rows((4, 7, 5)), "decoder.0.resid_pre"
    for index in (torch.tensor([1, 2]), np.array([0, 1, 2, 3]), torch.zeros(1, 3, dtype=torch.long)):
        message = refusal(run, built, batch, edit={site: zero(position=index)})
        assert "a list, or one position for each of 3 prompts; got shape" in message
    single = run(built, torch.tensor([[1, 2, 3]]), site, {site: zero(position=np.array([1]))})[site]
    assert (single == 0).all(-1).tolist() == [[False, True, False]]


def test_lenses_and_metrics_read_each_texts_own_positions():
    built, batch, pairs = model("gpt2"), rows((4, 7, 5)), ragged_pairs((4, 7, 5), (1, 1, 1))
    logits, array = run(built, batch).logits, torch.tensor([3, 0, -2])
    for index, columns in ((-1, [[3], [6], [4]]), ([0, -1], [[0, 3], [0, 6], [0, 4]]), (array, [[3], [0], [3]])):
        lens = logit_lens(built, batch, index)
        assert lens.columns.tolist() == columns
        assert_close(lens.logits[-1], logits[torch.arange(3)[:, None], lens.columns])
        read = function(lambda logits: logits.sum((-1, -2)), positions=index).prepare(built, pairs)
        assert read.positions.tolist() == columns
    assert "expected as many positions of each prompt" in refusal(logit_lens, built, batch, slice(1, None))

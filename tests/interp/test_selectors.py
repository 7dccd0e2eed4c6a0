"""Every kind of selector means the same alone and in a batch, at every site and for every ready-made edit."""

from dataclasses import replace
from functools import cache, lru_cache
from itertools import product

import numpy as np
import pytest
import torch
from tiny import TWO_STACKS, model, ragged_pairs, randomise, rows
from torch import Tensor
from torch.testing import assert_close

from interp import (
    InputError,
    Run,
    TokenBatch,
    Transformer,
    TransformerConfig,
    add,
    change,
    generate,
    patch,
    put,
    run,
    scale,
    sites,
    zero,
)
from interp.attribution import direct_logit_attribution, logit_lens
from interp.config import Experts, Gated
from interp.patching import Receiver, ablate_cells, function, logit_difference, path_patch

pytestmark = pytest.mark.usefixtures("unchecked")
TEXTUAL = {"position", "query", "key"}
SOURCES, TARGETS = (5, 7, 6), (6, 5, 8)
LAYOUTS = {
    "equal": ((6, 6, 6), (5, 5, 5), "right"),
    "right": (SOURCES, TARGETS, "right"),
    "left": (SOURCES, TARGETS, "left"),
}
# along positions of texts of at least 5 tokens (an array has one a text), and along axes of at least 2 entries
SELECTORS = {
    "int": (1, 1),
    "negative": (-2, -1),
    "NumPy int": (np.int64(-1), np.int64(1)),
    "slice": (slice(1, 4), slice(None, 2)),
    "open slice": (slice(1, None), slice(1, None)),
    "negative slice": (slice(-3, -1), slice(-1, None)),
    "steps": (slice(0, None, 2), slice(None, None, 2)),
    "reversed": (slice(None, None, -1), slice(None, None, -1)),
    "list": ([0, -1], [1, 0]),
    "tuple": ((0, -1), (1, 0)),
    "range": (range(1, 4), range(2)),
    "array": (np.array([1, -1, 0]), np.array([1, 0])),
    "tensor": (torch.tensor([3, 0, -2]), torch.tensor([0, -1])),
}


def mixed(part: Tensor) -> Tensor:
    """What shows which entries a function gets, and in which order; texts are not mixed."""
    part, rest = part.nan_to_num(neginf=-3.0), tuple(range(1, part.ndim))
    return part.flip(rest) * 0.5 - part.mean(rest, keepdim=True) if rest else part * 0.5


EDITS = {
    "zero": lambda other, where: zero(**where),
    "put": lambda other, where: put(0.4, **where),
    "scale": lambda other, where: scale(-0.5, **where),
    "add": lambda other, where: add(0.3, **where),
    "change": lambda other, where: change(mixed, **where),
    "patch": lambda other, where: patch(other, **where),
}


@cache
def built() -> Transformer:
    """An encoder and a decoder of one layer, which have every kind of site between them."""
    encoder, decoder = TWO_STACKS["modern"]
    decoder = replace(decoder, n_layers=1, qk_norm="head", mlp=Experts(3, 2, Gated("silu")))
    whole = Transformer(
        TransformerConfig(encoder=replace(encoder, n_layers=1), decoder=decoder, target_start=2)
    ).double()
    randomise(whole)
    return whole


def batches(layout: str) -> tuple[TokenBatch, TokenBatch]:
    *lengths, side = LAYOUTS[layout]
    drawn = (rows(each, d_vocab=size, seed=3) for each, size in zip(lengths, (19, 29), strict=True))
    return tuple(
        TokenBatch.from_rows([ids[real].tolist() for ids, real in zip(batch.ids, batch.mask, strict=True)], side=side)
        for batch in drawn
    )


def own(batch: TokenBatch, text: int) -> TokenBatch:
    return TokenBatch.from_ids(batch.ids[text][batch.mask[text]])


def reads(axis: str, site: str) -> int:
    """Which of the two texts an axis counts."""
    keys = axis == "key" or (axis == "position" and site.endswith((".k", ".v")))
    return 0 if site.startswith("encoder") or (".cross_attn." in site and keys) else 1


def selected(site: str, kind: str, text: int | None = None) -> dict:
    """The selector along a site's positions and along its first other axis; of an array the entry of one text."""
    along, across = SELECTORS[kind]
    if text is not None and isinstance(along, np.ndarray | Tensor):
        along = along[text : text + 1]
    axes = sites(built())[site].axes
    other = next(axis for axis in axes if axis not in TEXTUAL)
    return {other: across} | {axis: along for axis in axes if axis in TEXTUAL}


@cache
def other_run(layout: str, text: int | None) -> Run:
    source, target = texts_of(layout, text)
    return run(built(), source.reading((source.ids + 1) % 19), "*", target=target.reading((target.ids + 1) % 29))


def texts_of(layout: str, text: int | None) -> tuple[TokenBatch, ...]:
    return tuple(batch if text is None else own(batch, text) for batch in batches(layout))


@lru_cache(maxsize=9)
def edited_run(layout: str, edit: str, kind: str, text: int | None = None) -> Run:
    """All sites edited at once, and captured; of the whole batch, or of one text alone."""
    other = other_run(layout, text) if edit == "patch" else {}
    edits = {site: EDITS[edit](other[site] if other else None, selected(site, kind, text)) for site in sites(built())}
    source, target = texts_of(layout, text)
    return run(built(), source, "*", edits, target=target)


@cache
def places(layout: str, site: str, text: int) -> tuple:
    """Where a text's own entries of a site lie in the batch."""
    masks = [batches(layout)[reads(axis, site)].mask[text] for axis in sites(built())[site].axes if axis in TEXTUAL]
    return text, *(mask.nonzero()[:, 0] for mask in masks)


def entries_of(site: str, value: Tensor, at: tuple) -> Tensor:
    text, *columns = at
    found = value[text]
    for axis, own_columns in zip([axis for axis in sites(built())[site].axes if axis in TEXTUAL], columns, strict=True):
        found = found.index_select(sites(built())[site].axes.index(axis), own_columns)
    return found


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("kind", SELECTORS)
def test_a_text_in_a_batch_is_edited_as_alone(kind, edit):
    for text, lengths in product(range(3), ("equal", "ragged")):
        layouts = ["equal"] if lengths == "equal" else ["right", "left"]
        alone = edited_run(layouts[0], edit, kind, text)
        for layout in layouts:
            together = edited_run(layout, edit, kind)
            for site in sites(built()):
                found = entries_of(site, together[site], places(layout, site, text))
                assert torch.allclose(found, alone[site][0], rtol=1e-9, atol=1e-9), (site, text, layout)


@pytest.mark.parametrize("kind", SELECTORS)
def test_what_is_selected_is_what_python_selects(kind):
    """In one text alone, at every site: the crossed entries, and no others."""
    source, target = texts_of("equal", 1)
    plain = run(built(), source, "*", target=target)
    for name, site in sites(built()).items():
        picked = []
        for axis, size in zip(site.axes, plain[name].shape[1:], strict=True):
            index = selected(name, kind, 1).get(axis, slice(None))
            index = index.tolist() if isinstance(index, np.ndarray | Tensor) else index
            picked.append(np.array(np.arange(size)[index if isinstance(index, slice) else np.array(index)], ndmin=1))
        expected = torch.zeros(plain[name].shape[1:], dtype=torch.bool)
        expected[np.ix_(*picked)] = True
        found = run(built(), source, name, {name: put(77.0, **selected(name, kind, 1))}, target=target)[name][0]
        seen = ~plain[name][0].isneginf() if name.endswith("scores") else True
        seen = plain[name][0] > 0 if name.endswith("pattern") else seen
        assert torch.equal(found == 77, expected & seen), name
        assert torch.allclose(found[~expected], plain[name][0][~expected], rtol=1e-12, atol=1e-12), name


def test_an_edit_gets_what_it_selects_with_its_axes_in_order():
    built, shapes = model("gpt2"), {}
    batch = TokenBatch.from_rows([[1, 2, 3, 4], [5, 6, 7], [8, 9, 10, 11]], side="left")

    def look(site: str, **where) -> list[tuple[int, ...]]:
        shapes[site] = []
        run(built, batch, edit={site: change(lambda part: shapes[site].append((*part.shape,)), **where)})
        return sorted(shapes[site])

    z, pattern = "decoder.0.attn.z", "decoder.0.attn.pattern"
    assert look(z, position=[0, -1], d_head=[0, 1, 2, 3]) == [(3, 2, 3, 4)]
    assert look(z, position=slice(1, None), head=0) == [(1, 2, 5), (2, 3, 5)]  # texts of equal counts together
    assert look(pattern, key=slice(None, -1), query=-1) == [(1, 3, 2), (2, 3, 3)]
    assert look(pattern, key=torch.tensor([0, 1, 2]), head=[0, 2]) == [(3, 2, 4)]
    assert look(z, position=slice(3, None)) == [(2, 1, 3, 5)]  # none of the second text
    assert look(z, position=torch.tensor([[0, 1], [2, 0], [-1, 1]])) == [(3, 2, 3, 5)]


SENSELESS = [None, True, "S2", 1.0, [True], [0, 1.5], [], (), {1}, 99, [0, 99], slice(0, 3, 0), slice("a", None)]
SENSELESS += [torch.tensor([True, False, True]), torch.tensor([1.0, 0.0, 1.0]), np.zeros((1, 1, 1), dtype=int)]


@pytest.mark.parametrize("index", SENSELESS, ids=str)
def test_what_selects_nothing_that_there_is_is_one_line(index):
    built, batch = model("gpt2"), rows((4, 7, 5))
    calls = [
        lambda: run(built, batch, edit={"decoder.0.attn.z": zero(head=index)}),
        lambda: run(built, batch, edit={"decoder.0.attn.z": zero(position=index)}),
        lambda: generate(built, batch, 2, edit={"decoder.0.attn.z": zero(step=index)}),
    ]
    if index is not None:  # the last, by default
        calls.append(lambda: logit_lens(built, batch, index))
        calls.append(lambda: direct_logit_attribution(built, batch, 3, position=index))
    for call in calls:
        with pytest.raises(InputError) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_an_array_gives_each_text_its_own_and_is_refused_where_it_does_not():
    built, batch, site = model("gpt2"), rows((4, 7, 5)), "decoder.0.resid_pre"
    for index in (torch.tensor([1, 2]), np.array([0, 1, 2, 3]), torch.zeros(1, 3, dtype=torch.long)):
        with pytest.raises(InputError, match=r"one position for each of 3 prompts, .* every prompt are a list"):
            run(built, batch, edit={site: zero(position=index)})
    one = run(built, torch.tensor([[1, 2, 3]]), site, {site: zero(position=np.array([1]))})[site]
    assert (one == 0).all(-1).tolist() == [[False, True, False]]


@pytest.mark.parametrize("kind", SELECTORS)
def test_lenses_and_metrics_read_at_every_kind_of_selector(kind):
    built, batch = model("gpt2"), rows((4, 7, 5))
    index = SELECTORS[kind][0]
    listed = index.tolist() if isinstance(index, np.ndarray | Tensor) else [index] * 3
    picked = [np.atleast_1d(np.arange(n)[each if isinstance(each, slice) else np.array(each)])
              for n, each in zip((4, 7, 5), listed, strict=True)]  # fmt: skip
    if len({*map(len, picked)}) > 1:
        with pytest.raises(InputError, match="expected as many positions of each prompt"):
            logit_lens(built, batch, index)
        return
    expected = torch.tensor(np.stack(picked))
    lens = logit_lens(built, batch, index)
    assert torch.equal(lens.columns, expected)
    logits = run(built, batch).logits
    assert_close(lens.logits[-1], logits[torch.arange(3)[:, None], expected])
    pairs = ragged_pairs((4, 7, 5), (1, 1, 1))
    read = function(lambda logits: logits.sum((-1, -2)), positions=index).prepare(built, pairs)
    assert torch.equal(read.positions, expected)


def test_receivers_read_at_every_kind_of_number_and_refuse_others():
    built, pairs = model("gpt2"), ragged_pairs((4, 4, 4), (1, 2, 1))

    def effect(**receiver) -> Tensor:
        receiver = {"part": "q", "layer": 1, "head": 1} | receiver
        return path_patch(built, pairs, logit_difference(), [Receiver(**receiver)]).effect()

    for index in (-1, np.int64(3), torch.tensor(3), np.array([3, 3, -1])):
        assert torch.equal(effect(position=index, layer=np.int64(1), head=np.int64(1)), effect(position=3))
    assert not torch.equal(effect(position=np.array([3, 3, 2])), effect(position=3))
    for wrong in ({"head": True}, {"head": 1.0}, {"layer": True}, {"position": True}, {"position": np.int64(9)},
                  {"position": 1.5}, {"position": [1, 2]}, {"position": np.array([1, 2])}):  # fmt: skip
        with pytest.raises(InputError):
            effect(**wrong)
    for cells in ([(0, True)], [(0, 1.5)], [0], [slice(1)], torch.tensor([0, 1])):
        with pytest.raises(InputError, match=r"no cell .* expected"):
            ablate_cells(built, pairs, logit_difference(), cells, kind="zero")
    listed = ablate_cells(built, pairs, logit_difference(), np.array([[0, 1], [1, -1]]), kind="zero")
    assert listed.cells == ((0, 1), (1, 2))

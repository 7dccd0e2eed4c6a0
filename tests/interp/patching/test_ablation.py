"""Ablation against one plain edited forward a cell, and planted circuits whose answers follow on paper."""

from itertools import product

import pytest
import tiny
import torch
from covering import pairwise
from worded import worded

from analyses import position
from interp import InputError, StackConfig, TokenBatch, Transformer, TransformerConfig, put, run, zero
from interp.config import Gated, NoMLP, NoNorm, NoPositions, Plain, Rotary
from interp.errors import InputWarning
from interp.patching import Pairs, function, kl_divergence, logit_difference, next_token_loss, sweep
from interp.patching.ablation import ablate, ablate_cells, ablate_in_order
from interp.patching.replacements import mean_activation
from models import planted
from models.planted import Planted

LENGTHS = (7, 5, 7, 6, 5)
RIGHT, WRONG = torch.tensor([1, 2, 3, 4, 5]), torch.tensor([6, 7, 8, 9, 10])
METRICS = [logit_difference(RIGHT, WRONG), kl_divergence()]
CLOSE = {"rtol": 1e-10, "atol": 1e-10, "equal_nan": True}


def build(kind: str, dtype: torch.dtype = torch.float64) -> Transformer:
    sizes = {"n_layers": 3, "d_model": 20, "n_heads": 4, "d_head": 6, "d_mlp": 23, "n_ctx": 11, "d_vocab": 29}
    match kind:
        case "post-norm encoder":
            config = TransformerConfig(encoder=StackConfig(**sizes, causal=False, wiring="post", embedding_norm=True))
        case "grouped queries":
            # not RMSNorm, which rounds to float32 at every precision
            more = {"n_kv_heads": 2, "positions": Rotary(), "mlp": Gated("silu")}
            config = TransformerConfig(decoder=StackConfig(**sizes, causal=True, **more), output="tied")
        case _:
            mlp = NoMLP() if kind == "attention only" else Plain("gelu")
            config = TransformerConfig(decoder=StackConfig(**sizes, causal=True, mlp=mlp))
    torch.manual_seed(0)
    model = Transformer(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
    return model.to(dtype)


def rows(lengths, seed=1) -> TokenBatch:
    generator = torch.Generator().manual_seed(seed)
    return TokenBatch.from_rows([torch.randint(29, (length,), generator=generator).tolist() for length in lengths])


def stack_of(model: Transformer) -> str:
    return next(iter(model.config.stacks))


def full(model: Transformer, layer: int, site: str) -> str:
    return f"{stack_of(model)}.{layer}.{'attn.z' if site == 'z' else site}"


def difference(logits: torch.Tensor, batch: TokenBatch) -> torch.Tensor:
    prompt = torch.arange(len(logits))
    last = logits[prompt, batch.lengths - 1]
    return last[prompt, RIGHT] - last[prompt, WRONG]


def where_there(model: Transformer, batch: TokenBatch, edit: dict, position: int) -> torch.Tensor:
    """The difference under an edit of the prompts that have a position; NaN of the others, which cannot be edited."""
    found = torch.full((len(batch.ids),), torch.nan, dtype=torch.float64)
    prompts = (batch.lengths > position).nonzero()[:, 0]
    if len(prompts):
        logits = run(model, batch.rows(prompts), edit=edit).logits[
            torch.arange(len(prompts)), batch.lengths[prompts] - 1
        ]
        found[prompts] = logits.gather(1, RIGHT[prompts, None])[:, 0] - logits.gather(1, WRONG[prompts, None])[:, 0]
    return found


def corpus_mean(model: Transformer, batch: TokenBatch, layer: int, site: str) -> torch.Tensor:
    seen = run(model, batch, capture=full(model, layer, site))[full(model, layer, site)]
    every = [seen[prompt, at] for prompt, length in enumerate(batch.lengths.tolist()) for at in range(length)]
    return torch.stack(every).mean(0)


BUILDS = ("pre", "grouped queries", "post-norm encoder")
CELLS = [
    ("z", ("layer", "head")),
    ("z", ("layer", "head", "position")),
    ("z", ("layer",)),
    *((site, ("layer",)) for site in ("attn_out", "mlp_out", "resid_pre", "resid_mid", "resid_post")),
    ("mlp_out", ("layer", "position")),
]


@pytest.mark.parametrize(("build_kind", "cells", "kind"), pairwise(BUILDS, CELLS, ("zero", "mean")), ids=str)
def test_every_cell_equals_one_plain_edited_forward(build_kind, cells, kind):
    site, by = cells
    model, batch = build(build_kind), rows(LENGTHS)
    corpus = rows((4, 6, 3), seed=5)
    mean = mean_activation(model, [corpus], site) if kind == "mean" else None
    found = ablate(model, batch, METRICS, site, by, kind, mean=mean)
    torch.testing.assert_close(found.plain["logit_difference"], difference(run(model, batch).logits, batch), **CLOSE)
    values = found.values["logit_difference"]
    assert values.shape == (*(({"layer": 3, "head": 4, "position": 7})[axis] for axis in by), 5)
    for cell in product(*map(range, values.shape[:-1])):
        where = dict(zip(by[1:], cell[1:], strict=True))
        if mean is None:
            edit = zero(**where)
        else:
            value = mean[cell[0]]
            edit = put(value[where["head"]] if "head" in where else value, **where)
        expected = where_there(model, batch, {full(model, cell[0], site): edit}, where.get("position", 0))
        torch.testing.assert_close(values[cell], expected, **CLOSE)
    assert found.drop().nan_to_num().abs().max() > 1e-3
    assert (found.values["kl_divergence"].nan_to_num() > -1e-12).all()


EVERYWHERE = [
    *((site, ("layer", "head", "position")) for site in ("q", "k", "v")),
    *((site, ("layer", "head", "query")) for site in ("scores", "pattern")),
    *((site, ("layer", "position")) for site in ("mlp.pre", "mlp.post", "embed", "resid_final", "logits")),
    ("mlp.pre", ("layer", "neuron")),
    ("mlp.post", ("layer", "neuron")),
]


@pytest.mark.parametrize(
    ("build_kind", "cells", "kind"),
    pairwise(
        BUILDS,
        EVERYWHERE,
        ("mean", "zero"),  # the mean of attention is refused: below
        possible=lambda _, cells, kind: kind == "zero" or cells[0] not in {"scores", "pattern"},
    ),
    ids=str,
)
def test_every_site_that_run_can_edit_is_ablated_alike(build_kind, cells, kind):
    (site, by), model, batch = cells, build(build_kind), rows(LENGTHS)
    found = ablate(model, batch, METRICS, site, by, kind).values["logit_difference"]
    inside = {"q", "k", "v", "scores", "pattern"}
    outside = {"embed": f"{stack_of(model)}.embed", "resid_final": f"{stack_of(model)}.resid_final", "logits": "logits"}
    mean = mean_activation(model, batch, site) if kind == "mean" else None
    for cell in product(*map(range, found.shape[:-1])):
        where = {"d_mlp" if axis == "neuron" else axis: at for axis, at in zip(by[1:], cell[1:], strict=True)}
        name = outside.get(site, f"{stack_of(model)}.{cell[0]}.{'attn.' * (site in inside)}{site}")
        edit = zero(**where)
        if site == "scores":  # what is not seen stays unseen

            def edit(value, where=where):
                part = value.clone()
                own = part[:, where["head"], where["query"]]
                own[own > -torch.inf] = 0
                return part

        elif mean is not None:
            unit = [where[axis] for axis in ("head", "d_mlp") if axis in where]
            edit = put(mean[(cell[0], *unit)], **where)
        expected = where_there(model, batch, {name: edit}, where.get("position", where.get("query", 0)))
        torch.testing.assert_close(found[cell], expected, **CLOSE)
    assert (found - found[:, :1]).nan_to_num().abs().max() > 1e-6


def test_an_ablated_site_may_be_anothers_and_listed_cells_equal_the_grid_everywhere():
    model, batch = build("pre"), rows(LENGTHS)
    for site, by in [("mlp.pre", ("layer", "neuron")), ("k", ("layer", "head")), ("resid_mid", ("layer",))]:
        grid = ablate(model, batch, METRICS, site, by, "resample", seed=3)
        cells = [(2, 1), (0, 3), (1, 0)] if len(by) > 1 else [(2,), (0,)]
        listed = ablate_cells(model, batch, METRICS, cells, site, "resample", seed=3)
        torch.testing.assert_close(listed.drop(), torch.stack([grid.drop()[cell] for cell in cells]), **CLOSE)


@pytest.mark.parametrize(("site", "widths"), [("z", (4, 6)), ("mlp.post", (23,)), ("resid_post", (20,))])
def test_the_mean_counts_every_real_position_of_every_batch_once(site, widths):
    model = build("pre")
    batches = [rows((4, 6, 3), seed=5), rows((7,), seed=6)]
    together = rows((4, 6, 3), seed=5)
    found = mean_activation(model, iter(batches), site)
    assert found.shape == (3, *widths)
    for layer in range(3):
        parts = [corpus_mean(model, batch, layer, site) * batch.lengths.sum() for batch in batches]
        torch.testing.assert_close(found[layer], (parts[0] + parts[1]) / 20)
        alone = mean_activation(model, together, site)[layer]
        torch.testing.assert_close(alone, corpus_mean(model, together, layer, site))


class TestResample:
    """Another prompt's activation at the same position."""

    def test_each_cell_equals_a_forward_with_the_donors_activation(self):
        model, batch, donors = build("pre"), rows(LENGTHS), rows((9,), seed=3)  # one donor: no draw to guess
        found = ablate(model, batch, METRICS[0], kind="resample", donors=donors)
        for layer, head in product(range(3), range(4)):
            name = full(model, layer, "z")
            theirs = run(model, donors, capture=name)[name][:, :7, head]
            out = run(model, batch, edit={name: put(theirs, head=head)})
            torch.testing.assert_close(found.values["logit_difference"][layer, head], difference(out.logits, batch))

    def test_a_prompt_is_never_its_own_donor_and_two_prompts_exchange(self):
        model, batch = build("pre"), rows((6, 6))
        exchanged = TokenBatch(batch.ids.flip(0), batch.mask.flip(0), batch.positions.flip(0))
        metric = logit_difference(RIGHT[:2], WRONG[:2])
        pairs = Pairs(batch, exchanged, RIGHT[:2], WRONG[:2])
        noised = sweep(model, pairs, metric, direction="noise").values["logit_difference"]
        for seed in range(8):  # a draw that may return the prompt itself cannot exchange every time
            found = ablate(model, batch, metric, kind="resample", seed=seed).values["logit_difference"]
            torch.testing.assert_close(found, noised)

    def test_the_seed_decides_the_draw(self):
        model, batch = build("pre"), rows((6,) * 5)
        draws = [ablate(model, batch, METRICS[0], kind="resample", seed=seed).drop() for seed in (0, 0, 1)]
        assert torch.equal(draws[0], draws[1])
        assert not torch.equal(draws[0], draws[2])

    def test_every_real_position_comes_from_a_real_position(self):
        # the two longest prompts can only exchange; shorter ones never meet a donor's padding
        model, batch = build("pre"), rows((7, 3, 7))
        filled = TokenBatch(batch.ids.masked_fill(~batch.mask, 17), batch.mask, batch.positions)
        metric = logit_difference(RIGHT[:3], WRONG[:3])
        for seed in range(8):
            drops = [ablate(model, each, metric, kind="resample", seed=seed).drop() for each in (batch, filled)]
            torch.testing.assert_close(drops[0], drops[1])


class TestDonors:
    """Who gives the activation: a prompt of the same answer has nothing else to give."""

    CLEAN, CORRUPT = (TokenBatch.from_rows([[first, 2]] * 3) for first in (1, 0))  # the cue, and a blank
    ANSWERS = torch.zeros(3, dtype=torch.long), torch.ones(3, dtype=torch.long)

    def test_pairs_of_one_answer_lose_it_to_their_corrupted_prompts(self):
        pairs = Pairs(self.CLEAN, self.CORRUPT, *self.ANSWERS)
        for call, asked in ((ablate, ()), (ablate_cells, ([(0, 0), (0, 1)],))):
            drop = call(saturating(1.0, 2.0), pairs, logit_difference(), *asked).drop()
            assert drop.flatten().tolist() == [1.0] * 6

    def test_prompts_without_pairs_that_have_one_answer_are_warned_of(self):
        model, metric = saturating(1.0, 2.0), logit_difference(*self.ANSWERS)
        with pytest.warns(InputWarning, match=r"all prompts the same answer.*give pairs.* or .* as donors="):
            assert ablate(model, self.CLEAN, metric).drop().flatten().tolist() == [0.0] * 6
        for told in ({"donors": self.CORRUPT}, {"kind": "zero"}):
            assert ablate(model, self.CLEAN, metric, **told).drop().flatten().tolist() == [1.0] * 6

    def test_a_single_pair_has_its_corrupted_prompt_which_is_to_noise(self):
        model, (clean, corrupt) = build("pre"), (rows((6,), seed=seed) for seed in (1, 2))
        pairs = Pairs(clean, corrupt, RIGHT[:1], WRONG[:1])
        noised = sweep(model, pairs, logit_difference(), direction="noise").values
        torch.testing.assert_close(ablate(model, pairs, logit_difference()).values, noised)


def test_another_prompts_activation_takes_the_place_by_default():
    model, batch, cells = build("pre"), rows(LENGTHS), [(0, 0), (1, 1)]
    for call, asked in ((ablate, ()), (ablate_cells, (cells,)), (ablate_in_order, (cells,))):
        found, drawn = call(model, batch, METRICS[0], *asked), call(model, batch, METRICS[0], *asked, kind="resample")
        assert found.kind == "resample"
        torch.testing.assert_close(found.values, drawn.values, rtol=0, atol=0)


def test_a_single_prompt_is_told_what_to_do_without_another():
    with pytest.raises(InputError, match="donors=, or ablate by kind='mean'"):
        ablate(build("pre"), rows(LENGTHS[:1]), logit_difference(RIGHT[:1], WRONG[:1]))


class TestLists:
    """Chosen cells alone, and one after the other."""

    ORDER = ((2, 1), (0, 3), (0, 0), (1, 2))

    @pytest.mark.parametrize("kind", ["zero", "mean", "resample"])
    @pytest.mark.parametrize("build_kind", ["pre", "grouped queries", "post-norm encoder", "attention only"])
    def test_listed_heads_equal_the_grid(self, build_kind, kind):
        model, batch = build(build_kind), rows(LENGTHS)
        listed = ablate_cells(model, batch, METRICS, self.ORDER, kind=kind)
        grid = ablate(model, batch, METRICS, kind=kind)
        for name in ("logit_difference", "kl_divergence"):
            expected = torch.stack([grid.values[name][cell] for cell in self.ORDER])
            torch.testing.assert_close(listed.values[name], expected, **CLOSE)
            torch.testing.assert_close(listed.plain[name], grid.plain[name], **CLOSE)

    @pytest.mark.parametrize("site", ["attn_out", "mlp_out"])
    def test_listed_layers_equal_the_grid(self, site):
        model, batch = build("pre"), rows(LENGTHS)
        listed = ablate_cells(model, batch, METRICS[0], [(2,), (-3,)], site)
        grid = ablate(model, batch, METRICS[0], site, ("layer",))
        torch.testing.assert_close(listed.drop(), grid.drop()[[2, 0]], **CLOSE)

    @pytest.mark.parametrize("kind", ["zero", "mean"])
    @pytest.mark.parametrize("build_kind", ["pre", "grouped queries", "post-norm encoder"])
    def test_neurons_equal_a_forward_each(self, build_kind, kind):
        model, batch = build(build_kind), rows(LENGTHS)
        neurons = [(0, 3), (2, 22), (1, 0), (0, 7)]
        found = ablate_cells(model, batch, METRICS[0], neurons, "mlp.post", kind)
        mean = mean_activation(model, batch, "mlp.post")
        for at, (layer, neuron) in enumerate(neurons):
            value = 0.0 if kind == "zero" else mean[layer, neuron]

            def knock(post, neuron=neuron, value=value):
                return post.index_fill(-1, torch.tensor([neuron]), float(value))

            out = run(model, batch, edit={full(model, layer, "mlp.post"): knock})
            torch.testing.assert_close(found.values["logit_difference"][at], difference(out.logits, batch), **CLOSE)

    def test_each_step_ablates_all_before_it(self):
        model, batch = build("pre"), rows(LENGTHS)
        found = ablate_in_order(model, batch, METRICS[0], self.ORDER, kind="zero").values["logit_difference"]
        assert found.shape == (4, 5)
        for step in range(4):
            gone = self.ORDER[: step + 1]
            edits = {
                full(model, layer, "z"): zero(head=[head for at, head in gone if at == layer])
                for layer in {layer for layer, _ in gone}
            }
            torch.testing.assert_close(found[step], difference(run(model, batch, edit=edits).logits, batch), **CLOSE)

    def test_many_long_prompts_in_several_passes_change_no_number(self, monkeypatch):
        model, batch = build("pre"), rows(LENGTHS)
        whole = ablate_in_order(model, batch, METRICS, self.ORDER, kind="resample")
        monkeypatch.setattr("interp.patching.resumption.most_rows", lambda *_: 15)  # two prompts, one step
        split = ablate_in_order(model, batch, METRICS, self.ORDER, kind="resample")
        torch.testing.assert_close(split.values, whole.values, **CLOSE)


CUE, BLANK, END = 1, 0, 2


def saturating(threshold: float, ceiling: float) -> Transformer:
    """Two heads see the cue and write 1 each into a sum; the feed-forward adds relu(sum - threshold), at most 1."""
    stack = StackConfig(
        **{"n_layers": 1, "d_model": 3, "n_heads": 2, "d_head": 1, "d_mlp": 2, "n_ctx": 2, "d_vocab": 3},
        causal=True,
        norm=NoNorm(),
        positions=NoPositions(),
        mlp=Plain("relu"),
    )
    model = Transformer(TransformerConfig(decoder=stack))
    cue, total, answer = 0, 1, 2
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
        block = model.last.blocks[0]
        assert block.mlp is not None
        assert model.output is not None
        model.last.embed.token.weight[CUE, cue] = 1
        block.attn.W_V[:, cue, 0] = 2  # at the end uniform attention sees half of the cue
        block.attn.W_O[:, 0, total] = 1
        block.mlp.up.weight[:, total] = 1
        block.mlp.up.bias.copy_(torch.tensor([-threshold, -ceiling]))
        block.mlp.down.weight[answer] = torch.tensor([1.0, -1.0])
        model.output.weight[0, answer] = 1
    return model


class TestCircuits:
    """Truth 5: either head is enough, or both are needed; and truth 3's copying."""

    PAIRS = Pairs(
        TokenBatch.from_rows([[CUE, END]]), TokenBatch.from_rows([[BLANK, END]]), torch.tensor([0]), torch.tensor([1])
    )
    OR, AND = (0.0, 1.0), (1.0, 2.0)

    @pytest.mark.parametrize(
        ("circuit", "direction", "expected"),
        [(OR, "noise", 0), (OR, "denoise", 1), (AND, "noise", 1), (AND, "denoise", 0)],
    )
    def test_or_hides_from_noising_and_and_from_denoising(self, circuit, direction, expected):
        found = sweep(saturating(*circuit), self.PAIRS, logit_difference(), direction=direction)
        assert found.difference().tolist() == [1.0]
        torch.testing.assert_close(found.recovered(), torch.full((1, 2), float(expected)))

    @pytest.mark.parametrize(("circuit", "first"), [(OR, 0.0), (AND, 1.0)])
    def test_or_needs_both_ablated_and_and_one(self, circuit, first):
        model = saturating(*circuit)
        alone = ablate(model, self.PAIRS, logit_difference(), kind="zero")
        assert alone.drop().tolist() == [[[first], [first]]]
        steps = ablate_in_order(model, self.PAIRS, logit_difference(), [(0, 1), (0, 0)], kind="zero")
        assert steps.drop().tolist() == [[first], [1.0]]

    def test_without_either_head_of_the_composition_copying_is_chance(self):
        words = [f"w{number}" for number in range(40)]
        layers = [
            [planted.offset(-1, remember=True), planted.offset(-3), planted.uniform],
            [planted.same_token, planted.induction(10.0), planted.uniform],
        ]
        model = Planted(words, layers, n_ctx=64, start="<s>").build()
        ids = position.repeated(model, 20, 20, seed=1)
        tokens, right = ids[:, :-1], ids[:, 22:]
        reads = torch.arange(21, 40).expand(20, -1)  # the second copy, each token asked for the next
        copying = function(lambda logits, right: (logits.argmax(-1) == right).float().mean(-1), "copying", reads, right)
        found = ablate(model, tokens, copying)
        assert (found.plain["copying"] == 1).all()
        share = found.values["copying"].mean(-1)
        carrying = torch.tensor([[True, False, False], [False, True, False]])
        assert (share[carrying] <= 1 / 20).all()
        assert (share[~carrying] == 1).all()


class TestBadInput:
    """One clear error each."""

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"site": "zz"}, "no patchable site"),
            ({"site": "pattern", "kind": "mean"}, "cannot ablate 'pattern' by kind='mean'.* expected 'zero'"),
            ({"site": "scores", "kind": "resample"}, "cannot ablate 'scores' by kind='resample'"),
            ({"site": "mlp.post", "by": ("layer", "head")}, "mlp.post can be swept by layer first, then any of pos"),
            ({"kind": "mean", "mean": torch.zeros(3, 24)}, r"shape \(3, 4, 6\), got \(3, 24\)"),
            ({"kind": "zero", "mean": torch.zeros(3, 4, 6)}, "not used by kind='zero'"),
            ({"kind": "resample", "donors": torch.tensor([[1, 2]])}, "give longer ones"),
        ],
    )
    def test_grids(self, arguments, message):
        with pytest.raises(InputError, match=message):
            ablate(build("pre"), rows(LENGTHS), METRICS[0], **arguments)

    @pytest.mark.parametrize(
        ("cells", "site", "message"),
        [
            ([(3, 0)], "z", r"no cell \(3, 0\) of z: expected \(layer 0-2, head 0-3\)"),
            ([(0,)], "z", "no cell"),
            ([(0, 23)], "mlp.post", "neuron 0-22"),
            ([], "z", "at least one cell"),
            ([(0, 1), (0, -3)], "z", "names each cell once"),
            ([(0, 0)], "resid_pre", r"no cell \(0, 0\) of resid_pre: expected \(layer 0-2\)"),
        ],
    )
    def test_lists(self, cells, site, message):
        with pytest.raises(InputError, match=message):
            ablate_in_order(build("pre"), rows(LENGTHS), METRICS[0], cells, site)

    def test_left_padding_no_texts_no_neurons(self):
        model = build("attention only")
        left = TokenBatch.from_rows([[1, 2, 3], [4]], side="left")
        with pytest.raises(InputError, match="padded on the right"):
            ablate(model, left, logit_difference(RIGHT[:2], WRONG[:2]))
        with pytest.raises(InputError, match="at least one text: got none"):
            mean_activation(model, [])
        with pytest.raises(InputError, match=r"no patchable site 'mlp.post' in this model"):
            ablate_cells(model, rows(LENGTHS), METRICS[0], [(0, 0)], "mlp.post")


def test_a_mean_is_over_texts_as_they_are_typed_each_token_once():
    model, texts = worded(), ["Tim saw Sue", "the dog saw Tim"]
    every = [run(model, text, capture="decoder.*.attn.z") for text in texts]
    for layer, found in enumerate(mean_activation(model, texts)):
        tokens = torch.cat([out[f"decoder.{layer}.attn.z"][0] for out in every])
        torch.testing.assert_close(found, tokens.mean(0))
    torch.testing.assert_close(mean_activation(model, texts[0]), mean_activation(model, run(model, texts[0]).tokens))
    torch.testing.assert_close(mean_activation(model, (text for text in texts)), mean_activation(model, texts))
    given = ablate(model, texts, next_token_loss(), kind="mean", mean=mean_activation(model, texts))
    own = ablate(model, texts, next_token_loss(), kind="mean")  # by default the mean over these prompts
    torch.testing.assert_close(given.values["loss"], own.values["loss"])
    with pytest.raises(InputError, match=r"two texts: expected \(sources, targets\)"):
        mean_activation(tiny.two_stacks("original"), tiny.token_ids(2, 4))

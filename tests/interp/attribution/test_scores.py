"""Attribution to writers: terms add up to the model's scores, and each is what a pass loses without its writer."""

from copy import deepcopy
from dataclasses import replace
from itertools import product

import pytest
import torch
from tiny import GPT2, STACKS, TWO_STACKS, VARIANTS, randomise, rows, token_ids
from torch import nn
from torch.testing import assert_close

from interp import Run, TokenBatch, Transformer, TransformerConfig, run, set_to, zero
from interp import config as parts
from interp.attribution import (
    attribution_sites,
    key_contributions,
    remove_from_key,
    score_attribution,
    value_attribution,
)
from interp.attribution.writers import Reader, all_parts
from interp.errors import InputError
from interp.parts import RootMeanSquare
from models import planted
from models.planted import Planted

# no other tiny model has a narrow, scaled embedding under a norm, and norms of queries and keys with biases
ODD = {
    "narrow embedding": replace(GPT2, d_embedding=11, embedding_norm=True, n_token_types=2, embedding_scale=3.0),
    "norm of each head": replace(GPT2, qk_norm="head", n_heads=4, n_kv_heads=2),
    "one norm of all heads": replace(GPT2, qk_norm="all", n_heads=4, n_kv_heads=2, positions=parts.Rotary(), d_head=6),
    "rms norm of all heads": replace(STACKS["llama"], qk_norm="all"),
}
ONE_STACK = {**STACKS, **{name: replace(stack, score_cap=None) for name, stack in VARIANTS.items()}, **ODD}
TWO = {name: (encoder, replace(decoder, score_cap=None)) for name, (encoder, decoder) in TWO_STACKS.items()}
CASES = [
    *((name, "self") for name in ONE_STACK),
    *(("two " + name, kind) for name in TWO for kind in ("self", "cross")),
]
SOURCE, TARGET = rows((6, 4, 5), d_vocab=19), rows((5, 7, 3), seed=1)


def build(name: str, dtype: torch.dtype = torch.float64) -> Transformer:
    if name.startswith("two "):
        encoder, decoder = TWO[name.removeprefix("two ")]
        config = TransformerConfig(encoder=encoder, decoder=decoder, target_start=2)
    else:
        stack = ONE_STACK[name]
        config = TransformerConfig(**{"decoder" if stack.causal else "encoder": stack}, output="none")
    built = Transformer(config).to(dtype)
    randomise(built)
    return built


def ragged(side: str = "right") -> TokenBatch:
    ids = token_ids(3, 9).tolist()
    return TokenBatch.from_rows([ids[0], ids[1][:7], ids[2][:8]], side=side)


def observe(built: Transformer, side: str = "right", **options) -> Run:
    if len(built.config.stacks) > 1:
        return run(built, SOURCE, target=TARGET, **options)
    return run(built, ragged(side), **options)


def texts(out: Run, kind: str = "self") -> tuple[TokenBatch, TokenBatch]:
    """The queries' text and the keys' text."""
    queries = out.target or out.tokens
    return queries, out.tokens if kind == "cross" else queries


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make RMSNorm keep its input's precision, so that float64 tells errors from rounding."""

    def forward(norm: RootMeanSquare, x: torch.Tensor) -> torch.Tensor:
        normed = x * (x.square().mean(-1, keepdim=True) + norm.config.eps).rsqrt()
        return normed * (norm.weight + norm.config.offset)

    monkeypatch.setattr(RootMeanSquare, "forward", forward)


@pytest.mark.parametrize(("name", "kind"), CASES)
@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_terms_add_up_to_the_models_score(request, name, kind, dtype, close):
    if dtype == torch.float64:
        request.getfixturevalue("exact")
    built = build(name, dtype)
    stack, prompts = [*built.config.stacks][-1], torch.arange(3)
    sites = [f"{stack}.{layer}.{'cross_' * (kind == 'cross')}attn.scores" for layer in range(built.config.n_layers)]
    for side in ("left", "right")[: 1 + (name == "gpt2")]:
        out = observe(built, side, capture=sites)
        columns = [text.columns(place)[:, 0] for text, place in zip(texts(out, kind), (-1, -2), strict=True)]
        for (layer, site), head in product(enumerate(sites), (0, built.config.n_heads - 1)):
            result = score_attribution(out, layer, head, -1, -2, attention=kind)
            expected = out[site][prompts, head, columns[0], columns[1]]
            size = result.values.abs().sum((0, 1))
            assert float(size.min()) > 0.01
            distance = 0 if result.distance is None else result.distance
            assert_close(result.total, expected, rtol=close, atol=close)
            assert bool(((result.values.sum((0, 1)) + distance - expected).abs() <= close * size).all())
            assert_close(result.by_query().sum(0), result.by_key().sum(0))
            has_bias = isinstance(built.last.config.positions, parts.Alibi | parts.Buckets) and kind == "self"
            assert (result.distance is not None) == has_bias


def every(text: TokenBatch) -> torch.Tensor:
    return torch.arange(text.ids.shape[1]).expand_as(text.ids)


class Frozen(nn.Module):
    """A norm whose scale is fixed to the one for `x`."""

    def __init__(self, norm: nn.Module, x: torch.Tensor):
        super().__init__()
        self.norm, self.x = norm, x

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        if isinstance(self.norm, RootMeanSquare):
            return y * (self.norm(self.x.square() ** 0.5) / self.x.abs()).nan_to_num()
        deviation = (self.x.var(-1, correction=0, keepdim=True) + self.norm.eps).sqrt()
        return (y - y.mean(-1, keepdim=True)) / deviation * self.norm.weight + self.norm.bias


def frozen(built: Transformer, out: Run) -> Transformer:
    """The same model, with every norm of the stream fixed to its scale in this run."""
    built, read = deepcopy(built), {}
    names = [name for name, each in built.named_modules() if isinstance(each, nn.LayerNorm | RootMeanSquare)]
    names = [name for name in names if "norm_q" not in name and "norm_k" not in name]
    for name in names:
        built.get_submodule(name).register_forward_pre_hook(lambda _, args, name=name: read.update({name: args[0]}))
    with torch.no_grad():
        built(out.tokens, target=out.target) if out.target is not None else built(out.tokens)
    for name in names:
        parent, _, child = name.rpartition(".")
        norm = built.get_submodule(name)
        norm._forward_pre_hooks.clear()
        setattr(built.get_submodule(parent), child, Frozen(norm, read[name]))
    return built


def silence(built: Transformer, source: str, writer: str, writes: dict[str, torch.Tensor]) -> tuple[Transformer, dict]:
    """A model and edits in which one writer of a stack writes nothing, and all others write as before."""
    built, edits = deepcopy(built), {site: set_to(write) for site, write in writes.items()}
    if writer.startswith("embed"):
        nn.init.zeros_(getattr(built.stack(source).embed, writer.split(".")[1]).weight)
        return built, edits
    place, part = writer.rsplit(".", 1) if "head" in writer else (writer, "")
    if part:
        place = place.replace("cross_head", "cross_attn").replace(".head", ".attn")
        edits[f"{place}.z"] = zero(head=int(part))
        del edits[f"{place}_out"]
    else:
        edits[f"{place}_out"] = zero()
    return built, edits


ORACLES = ["gpt2", "bert", "post-norm decoder", "after", "sandwich", "parallel, one norm", "narrow embedding"]


@pytest.mark.parametrize("name", [*ORACLES, "two original"])
def test_a_part_is_what_is_lost_where_its_writer_alone_is_silent(exact, name):
    """By forward passes: norms keep their scales, and other layers' writes are fixed."""
    built = build(name)
    kind = "cross" if name.startswith("two ") else "self"
    stack, layer = [*built.config.stacks][-1], built.config.n_layers - 1
    out = observe(built, capture=attribution_sites(built, layer, attention=kind))
    observed, still = observe(built, capture="*_out"), frozen(built, out)
    key = f"{stack}.{layer}.{'cross_' * (kind == 'cross')}attn."
    for reader in Reader.from_arguments(built, layer, 2, None, kind, "qk"):
        names, vectors = all_parts(reader, out, every(reader.text(out)), entered=False)
        writers = [each for each in names if not each.endswith("bias")]
        source = "encoder" if kind == "cross" and reader.part == "k" else stack
        assert {"embed.token", f"{source}.0.mlp", f"{source}.0.head.1"} <= {*writers}
        for writer in writers:
            if writer == "embed.position" and name == "two original":
                continue  # sinusoids have no table
            writes = {each: value for each, value in observed.activations.items() if each.startswith(f"{source}.")}
            writes = {each: value for each, value in writes.items() if not each.startswith(key)}
            changed, edits = silence(still, source, writer, writes)
            lost = out[reader.site] - observe(changed, capture=reader.site, edit=edits)[reader.site]
            assert_close(vectors[names.index(writer)], lost[..., reader.row, :], rtol=0, atol=1e-10, msg=writer)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_value_adds_up_along_any_direction(exact, name, kind):
    built = build(name)
    stack, d_model = [*built.config.stacks][-1], built.config.d_model
    site = f"{stack}.1.{'cross_' * (kind == 'cross')}attn.v"
    out = observe(built, capture=site)
    attn = built.last.blocks[1].attn if kind == "self" else built.last.blocks[1].cross_attn
    columns = texts(out, kind)[1].columns(1)[:, 0]
    for head in (0, built.config.n_heads - 1):
        v = out[site][torch.arange(3), columns, head * attn.config.kv_heads // attn.config.n_heads]
        direction = torch.randn(3, d_model, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
        writes = v @ attn.W_O[head]
        result = value_attribution(out, 1, head, 1, direction=direction, attention=kind)
        assert result.query_writers == ("direction",)
        assert_close(result.total, (writes * direction).sum(-1), rtol=0, atol=1e-10)
        assert_close(result.values.sum((0, 1)), result.total, rtol=0, atol=1e-10)
        for_all = value_attribution(out, 1, head, 1, direction=direction[1], attention=kind)
        assert_close(for_all.values[..., 1], result.values[..., 1])
        whole = value_attribution(out, 1, head, 1, attention=kind)
        assert_close(whole.values.sum((0, 1)), writes.norm(dim=-1), rtol=0, atol=1e-10)


def every_row(out: Run) -> torch.Tensor:
    """Every query of every prompt, shuffled."""
    pairs = texts(out)[0].mask.nonzero()
    return pairs[torch.randperm(len(pairs), generator=torch.Generator().manual_seed(0))]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_contributions_of_keys_are_the_sums_over_the_writers_of_the_query(exact, name, kind):
    built = build(name)
    out = observe(built, capture=attribution_sites(built, 1, attention=kind))
    rows = every_row(out)
    result = key_contributions(out, 1, 1, rows, attention=kind)
    visible = ~result.scores.isneginf()
    stack = [*built.config.stacks][-1]
    site = f"{stack}.1.{'cross_' * (kind == 'cross')}attn.pattern"
    plain = observe(built, capture=site)[site][rows[:, 0], 1, rows[:, 1]]
    assert_close(result.pattern(), plain)
    assert_close(result.values.sum(0)[visible], result.scores[visible], rtol=0, atol=1e-10)
    assert not result.values[:, ~visible].any()
    for row in range(0, len(rows), 5):
        prompt, query, key = *rows[row].tolist(), int(visible[row].nonzero()[-1])
        places = torch.zeros(2, 3, dtype=torch.long)
        places[:, prompt] = torch.tensor([query, key])
        pair = score_attribution(out, 1, 1, *places, attention=kind)
        assert result.writers == pair.key_writers + (() if pair.distance is None else ("distance",))
        assert_close(result.values[: len(pair.key_writers), row, key], pair.by_key()[:, prompt])
        if pair.distance is not None:
            assert_close(result.values[-1, row, key], pair.distance[prompt])


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_edits_of_a_key_leave_the_attention_that_contributions_say(exact, name, kind):
    built = build(name)
    out = observe(built, capture=attribution_sites(built, 1, attention=kind))
    rows, normed = every_row(out), built.last.config.qk_norm
    if normed and (kind == "cross" or not isinstance(built.last.config.positions_in(1), parts.Rotary)):
        with pytest.raises(InputError, match="normalises keys, and no site"):
            remove_from_key(out, 1, 1, ["k.bias"], attention=kind)
        return
    result = key_contributions(out, 1, 1, rows, attention=kind)
    stack = [*built.config.stacks][-1]
    prefix = f"{stack}.1.{'cross_' * (kind == 'cross')}attn."
    plain = observe(built, capture=f"{prefix}*")
    writers = [each for each in result.writers if each != "distance"]
    for family in ([], writers[:1], writers[1:5], writers):
        edits = remove_from_key(out, 1, 1, family, attention=kind)
        assert [*edits] == [f"{prefix}{'rot_k' if normed else 'k'}"]
        edited = observe(built, capture=f"{prefix}*", edit=edits)
        pattern = edited[f"{prefix}pattern"][rows[:, 0], 1, rows[:, 1]]
        assert_close(pattern, result.pattern(family), rtol=0, atol=1e-10)
        assert_close(edited[f"{prefix}q"], plain[f"{prefix}q"])
        shared, n_heads = built.last.config.kv_heads, built.last.config.n_heads
        others = [head for head in range(n_heads) if head * shared // n_heads != shared // n_heads]
        assert_close(edited[f"{prefix}pattern"][:, others], plain[f"{prefix}pattern"][:, others])
        assert (len(family) > 0) == (not torch.allclose(pattern, plain[f"{prefix}pattern"][rows[:, 0], 1, rows[:, 1]]))


def test_named_positions_have_an_axis_each():
    built = build("alibi")
    out = observe(built)
    queries, keys = {"END": -1, "FIRST": 0}, {"S": torch.tensor([2, 0, 3]), "FIRST": [0], "END": -1}
    result = score_attribution(out, 2, 3, queries, keys)
    assert result.values.shape == (15, 15, 2, 3, 3)
    assert result.names == {"query": ("END", "FIRST"), "key": ("S", "FIRST", "END")}
    for (i, query), (j, key) in product(enumerate(queries.values()), enumerate(keys.values())):
        if (i, j) == (1, 2):
            assert bool(result.values[:, :, i, j].isnan().all() and result.total[i, j].isnan().all())
            continue
        pair = score_attribution(out, 2, 3, query, key)
        for part in ("total", "distance", "values"):
            assert_close(getattr(result, part)[..., i, j, :], getattr(pair, part), equal_nan=True)
    assert result.total[1, 0].isnan().tolist() == [True, False, True]
    row = score_attribution(out, 2, 3, -1, keys)
    assert_close(row.values, result.values[:, :, 0])
    assert_close(value_attribution(out, 2, 3, keys).values[:, :, 1], value_attribution(out, 2, 3, 0).values)
    table = result.table("key")
    assert len(table) == 16 * 5  # the last pair has no prompt
    assert set(table["key_writer"]) == {*result.key_writers, "distance"}
    place = table.set_index(["query", "key", "key_writer"])["effect"]
    assert place["FIRST", "S", "decoder.0.mlp"] == pytest.approx(
        float(result.by_key()[result.key_writers.index("decoder.0.mlp"), 1, 0, 1])
    )
    sums = table.loc[table["query"] == "END"].groupby("key")["effect"].sum()
    assert sums.to_dict() == pytest.approx(dict(zip(keys, result.total[0].mean(-1).tolist(), strict=True)))


def test_tables_have_a_row_a_pair_of_writers():
    result = score_attribution(observe(build("alibi")), 1, 2, -1, 0)
    table = result.table()
    assert len(table) == 9 * 9 + 1
    assert [*table.columns[:6]] == ["stack", "attention", "layer", "head", "query_writer", "key_writer"]
    assert table["effect"].sum() == pytest.approx(float(result.total.mean()))
    effect = table.set_index(["query_writer", "key_writer"])["effect"]
    assert effect["decoder.0.mlp", "k.bias"] == pytest.approx(float(result.values[6, 8].mean()))
    assert [*result.table("query")["query_writer"]] == [*result.query_writers, "distance"]
    assert "distance" in repr(result)
    for by in ("pair", "key"):
        assert "L1.H2" in result.figure(by, top=3).get_suptitle()


INDUCTION = {"plain": {}, "normed": {"norm": parts.LayerNorm()}, "shared keys": {"n_kv_heads": 1}}


@pytest.mark.parametrize("options", INDUCTION.values(), ids=INDUCTION)
def test_the_previous_token_head_writes_the_induction_heads_key(options):
    words = [f"w{index}" for index in range(17)]
    layers = [[planted.uniform, planted.offset(-1, remember=True)], [planted.induction(), planted.uniform]]
    built = Planted(words, layers, n_ctx=13, **options).build()
    text = " ".join([*words[:6], words[2]])  # looks at what followed the first w2: position 3
    out = run(built, [text])
    result = score_attribution(out, 1, 0, -1, 3)
    writers = result.by_key()[:, 0] / result.total[0]
    assert float(writers[result.key_writers.index("decoder.0.head.1")]) == pytest.approx(1, abs=1e-3)
    queries = result.by_query()[:, 0] / result.total[0]
    assert float(queries[result.query_writers.index("embed.token")]) == pytest.approx(1, abs=1e-3)

    def attention(writers: list[str]) -> float:
        edit = remove_from_key(out, 1, 0, writers)
        return float(run(built, [text], capture="*.1.attn.pattern", edit=edit)["decoder.1.attn.pattern"][0, 0, -1, 3])

    assert attention([]) > 0.999
    assert attention(["decoder.0.head.1"]) == pytest.approx(1 / 7, abs=1e-3)
    assert attention(["decoder.0.head.0", "embed.token", "embed.position"]) > 0.999
    value = value_attribution(out, 1, 0, 3)
    share = value.values[0, value.key_writers.index("embed.token"), 0] / value.total[0]
    assert float(share) == pytest.approx(1, abs=1e-3)


def fail(call, name: str = "gpt2", *arguments, **options):
    out = observe(build(name))
    return call(out, *arguments, **options)


CAPPED = Transformer(TransformerConfig(decoder=VARIANTS["local, capped"])).double()
MISUSE = [
    (lambda: fail(score_attribution, "gpt2", 2, 0, -1, 0), "no layer 2 in the decoder: it has layer 0-1"),
    (lambda: fail(score_attribution, "gpt2", 0, 3, -1, 0), "no head 3 in a layer of the decoder: it has head 0-2"),
    (lambda: fail(score_attribution, "gpt2", [0], 0, -1, 0), "expected one layer in the decoder"),
    (lambda: fail(score_attribution, "gpt2", 0, 0, 9, 0), "no position 9 in prompt 0"),
    (lambda: fail(score_attribution, "gpt2", 0, 0, [1, 2], 0), "one position per prompt, .*; got 2"),
    (lambda: fail(score_attribution, "gpt2", 0, 0, {}, 0), "one position per prompt, .*; got none"),
    (lambda: fail(score_attribution, "gpt2", 0, 0, 0, 2), "no query sees its key"),
    (lambda: fail(score_attribution, "gpt2", 0, 0, 0, 0, stack="encoder"), "no stack 'encoder'"),
    (lambda: fail(score_attribution, "gpt2", 0, 0, 0, 0, attention="cross"), "no attention 'cross'"),
    (lambda: fail(value_attribution, "gpt2", 0, 0, 0, direction=torch.ones(5)), r"shape \(19,\) or \(3, 19\)"),
    (lambda: fail(remove_from_key, "gpt2", 1, 0, ["decoder.1.mlp"]), "no writer 'decoder.1.mlp' of these keys"),
    (lambda: fail(remove_from_key, "gpt2", 1, 0, "k.bias"), "expected a list of writers"),
    (lambda: score_attribution(run(CAPPED, token_ids(2, 5)), 0, 0, -1, 0), "caps its scores"),
    (lambda: key_contributions(run(CAPPED, token_ids(2, 5)), 0, 0, torch.tensor([[0, 1]])), "caps its scores"),
    *(
        (lambda row=row: fail(key_contributions, "gpt2", 1, 0, torch.tensor([row])), r"got \[\[")
        for row in ([0, -1], [3, 0], [1, 7])
    ),
    (lambda: score_attribution(replace(observe(build("gpt2")), model=None), 0, 0, -1, 0), "does not know its model"),
]


@pytest.mark.parametrize(("ask", "message"), MISUSE)
def test_what_has_no_writers_is_refused(ask, message):
    with pytest.raises(InputError, match=message):
        ask()


def test_the_encoders_own_heads_are_read_too(exact):
    built = build("two mixed")
    result = score_attribution(observe(built), 1, 2, -1, 0, stack="encoder")
    out = observe(built, capture="encoder.1.attn.scores")
    expected = out["encoder.1.attn.scores"][torch.arange(3), 2, SOURCE.lengths - 1, 0]
    assert_close(result.values.sum((0, 1)), expected, rtol=0, atol=1e-10)


def test_capped_scores_leave_values_and_edits_of_keys():
    out = run(CAPPED, token_ids(2, 5))
    assert_close(value_attribution(out, 1, 2, 0).values.sum((0, 1)), value_attribution(out, 1, 2, 0).total)
    assert [*remove_from_key(out, 1, 2, ["embed.token"])] == ["decoder.1.attn.rot_k"]

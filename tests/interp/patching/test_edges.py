"""Edge scores: against small direct-path patches, against node estimates by the chain rule, and integrated."""

import pytest
import torch
from covering import pairwise
from tiny import ragged_pairs

from interp import Run, Transformer, run, sites
from interp.patching import Cells, Pairs, attribution_patching, edge_attribution, log_probability, logit_difference
from interp.tap import UNTAPPED
from tests.interp.patching.settings import build

KINDS = ["pre", "gated", "attention only", "pre encoder"]
VARIANTS = ["parallel", "parallel, one norm", "alibi", "local, capped", "experts"]


def writes(model: Transformer, batch) -> dict[str, torch.Tensor]:
    """What each sender adds to the stream (`prompt position d_model`), in the order of the pass."""
    (stack,) = model.config.stacks
    out = run(model, batch, capture=[name for name in sites(model) if name != "logits"])
    result = {"embed": out[f"{stack}.embed"]}
    for layer, block in enumerate(model.last.blocks):
        z = out[f"{stack}.{layer}.attn.z"]
        for head in range(model.config.n_heads):
            result[f"{layer}.{head}"] = z[:, :, head] @ block.attn.W_O[head].detach()
        if block.mlp is not None:
            result[f"mlp.{layer}"] = out[f"{stack}.{layer}.mlp_out"]
    return result


def direct_slopes(model: Transformer, pairs: Pairs, metric, out: Run, receiver: str, change: torch.Tensor, step=1e-4):
    """The metric's slopes (sender x prompt) as one receiver reads a little of each sender's changed write."""
    (stack,) = model.config.stacks
    readout = metric.prepare(model, pairs)

    def put(stream: torch.Tensor) -> tuple[str, torch.Tensor]:
        if receiver == "logits":
            return f"{stack}.resid_final", model.last.norm(stream("resid_post", model.config.n_layers - 1))
        if receiver.startswith("mlp"):
            layer = int(receiver.split(".")[1])
            block = model.last.blocks[layer]
            return f"{stack}.{layer}.mlp_out", block.mlp(block.norm_mlp(stream("resid_mid", layer)), UNTAPPED)
        layer, head, part = receiver.split(".")
        block = model.last.blocks[int(layer)]
        parts = dict(zip("qkv", block.attn.project(block.norm_attn(stream("resid_pre", int(layer)))), strict=True))
        site = f"{stack}.{layer}.attn.{part}"
        value = out[site].expand(len(change), *out[site].shape).clone()
        value[..., int(head), :] = parts[part][..., int(head), :]
        return site, value

    values = []
    for by in (step, -step):
        site, value = put(lambda name, layer, by=by: out[f"{stack}.{layer}.{name}"] + by * change)
        logits = run(model, pairs.corrupt, edit={site: lambda _, value=value: value}).logits
        values.append(torch.stack([readout.from_logits(each) for each in logits]))
    return (values[0] - values[1]) / (2 * step)


@pytest.mark.usefixtures("exact_norms")
@pytest.mark.parametrize("kind", KINDS)
def test_every_edge_is_the_slope_of_a_small_direct_patch(kind):
    model, pairs, metric = build(kind), ragged_pairs(), log_probability()
    result = edge_attribution(model, pairs, metric, steps=1)
    if kind == "gated":  # `k` and `v` are shared by heads
        queries = [f"0.{head}.q" for head in range(4)]
        assert result.labels["receiver"][:9] == (*queries, "0.0.k", "0.1.k", "0.0.v", "0.1.v", "mlp.0")
    clean, corrupt = writes(model, pairs.clean), writes(model, pairs.corrupt)
    assert result.labels["sender"] == tuple(clean)
    change = torch.stack([clean[sender] - corrupt[sender] for sender in result.labels["sender"]])
    out = run(model, pairs.corrupt, capture=[name for name in sites(model) if name != "logits"])
    for place, receiver in enumerate(result.labels["receiver"]):
        scores = result.effects()[:, place]
        exists = ~scores.isnan().any(-1)
        assert int(exists.sum()) == before(model, receiver)
        assert exists[: int(exists.sum())].all()  # senders are in the order of the pass
        with torch.no_grad():
            expected = direct_slopes(model, pairs, metric, out, receiver, change[exists])
        torch.testing.assert_close(scores[exists], expected, rtol=1e-5, atol=1e-6)
    assert result.effects().nan_to_num().abs().max() > 0.1


def before(model: Transformer, receiver: str) -> int:
    """How many senders write before `receiver` reads."""
    a_layer = model.config.n_heads + (model.last.blocks[0].mlp is not None)
    first, second = (receiver if receiver != "logits" else f"{model.config.n_layers}.").split(".")[:2]
    return 1 + int(second) * a_layer + model.config.n_heads if first == "mlp" else 1 + int(first) * a_layer


@pytest.mark.usefixtures("exact_norms")
@pytest.mark.parametrize(("kind", "direction"), pairwise([*KINDS, *VARIANTS], ["denoise", "noise"]))
def test_the_edges_out_of_a_component_add_up_to_its_own_estimate(kind, direction):
    model, pairs = build(kind), ragged_pairs()
    result = edge_attribution(model, pairs, log_probability(), direction, steps=1)
    senders, has_mlp = result.labels["sender"], model.last.blocks[0].mlp is not None
    axes = {"z": ("layer", "head"), "resid_pre": ("layer",)} | ({"mlp_out": ("layer",)} if has_mlp else {})
    nodes = attribution_patching(model, pairs, log_probability(), axes, direction)
    sign = 1 if direction == "denoise" else -1  # effects count towards the other prompt, scores by the metric's change
    layers = [nodes["z"].effects(), *([nodes["mlp_out"].effects()[:, None]] if has_mlp else [])]
    expected = torch.cat([nodes["resid_pre"].effects()[:1], torch.cat(layers, 1).flatten(0, 1)])
    torch.testing.assert_close(result.effects().nansum(1), sign * expected, rtol=1e-10, atol=1e-10)
    if has_mlp:  # with a parallel feed-forward, heads read the same stream
        edge = result.effects()[senders.index("1.0"), result.labels["receiver"].index("mlp.1")]
        assert bool(edge.isnan().all()) == kind.startswith("parallel")


@pytest.mark.parametrize("direction", ["denoise", "noise"])
@pytest.mark.parametrize("space", ["inputs", "activations", "layers"])
@pytest.mark.parametrize("kind", ["pre", "attention only"])
def test_gradients_are_averaged_along_the_line_from_the_own_prompt_on_and_without_the_other(kind, space, direction):
    model, pairs, steps = build(kind), ragged_pairs(), 3
    result = edge_attribution(model, pairs, logit_difference(), direction, steps=steps, along=space)
    readout, last = logit_difference().prepare(model, pairs), f"decoder.{model.config.n_layers - 1}.resid_post"
    start, end = (pairs.corrupt, pairs.clean) if direction == "denoise" else (pairs.clean, pairs.corrupt)
    names = [name for name in sites(model) if name.endswith(("embed", "attn.z", "mlp_out"))]
    base, source = (run(model, batch, capture=names) for batch in (start, end))
    change = {name: value - writes(model, start)[name] for name, value in writes(model, end).items()}

    def gradient(site: str, heads, share: float) -> torch.Tensor:
        value = base[site].clone()
        value[heads] += share * (source[site] - base[site])[heads]
        out = run(model, start, last, {site: lambda _: value}, grad=True)
        return torch.autograd.grad(readout.from_logits(out.logits).sum(), out[last])[0]

    moves = {"embed": ("decoder.embed", ...)}
    for layer in range(model.config.n_layers if space != "inputs" else 0):
        heads = {f"{layer}.{head}": (..., head, slice(None)) for head in range(model.config.n_heads)}
        heads = heads if space == "activations" else {f"{layer}": ...}
        moves |= {name: (f"decoder.{layer}.attn.z", index) for name, index in heads.items()}
        moves |= {f"mlp.{layer}": (f"decoder.{layer}.mlp_out", ...)} if kind == "pre" else {}
    means = {name: sum(gradient(*move, step / steps) for step in range(steps)) / steps for name, move in moves.items()}
    for sender, score in zip(result.labels["sender"], result.effects()[:, -1], strict=True):
        slope = means[sender] if space == "activations" else sum(means.values()) / len(means)
        torch.testing.assert_close(score, (change[sender] * slope).sum((-1, -2)), rtol=1e-9, atol=1e-10)
    inputs = edge_attribution(model, pairs, logit_difference(), direction, steps=steps)
    assert ((result.effects() - inputs.effects()).nan_to_num().abs().max() > 1e-3) == (space != "inputs")
    assert result.effects().isnan().equal(inputs.effects().isnan())


def test_top_lists_the_largest_mean_scores_with_their_sign_and_no_edge_that_is_not_there():
    nan = torch.nan
    scores = torch.tensor([[[1.0, 3.0], [-5.0, -3.0]], [[nan, nan], [0.5, -0.5]]])
    names = {"sender": ("embed", "0.0"), "receiver": ("0.0.q", "logits")}
    edges = Cells("", "denoise", ("sender", "receiver"), {"logit_difference": scores}, labels=names, kind="edges")
    assert edges.top(2) == [("embed", "logits", -4.0), ("embed", "0.0.q", 2.0)]
    assert edges.top(9) == [*edges.top(2), ("0.0", "logits", 0.0)]

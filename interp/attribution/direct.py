"""What does each term of the stream add to an answer, and which later heads read what a head writes? Direct paths."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor, nn

from interp.attention import Attention
from interp.devices import move, pick
from interp.display import DataFrame, Figure, Result, draw_figure, signed, so_many
from interp.errors import InputError, one_of
from interp.indices import is_number
from interp.model import Model
from interp.parts import RootMeanSquare
from interp.patching.pairs import Answer, Inputs, answer_ids
from interp.patching.patch_sites import Attending, last_stack, only_stack
from interp.patching.results import Drawing, cell_rows, dust, long_table, unreliable
from interp.running import Run, Tokens, as_batches, run
from interp.tokens import Positions
from interp.transformer import Block, Transformer, with_parts

_PREFIX: dict[Attending, str] = {"self": "", "cross": "cross_"}


def head_results(
    model: Model, out: Run | Tokens, layer: int, *, attention: Attending = "self", target: Tokens | None = None
) -> Float[Tensor, "prompt position head d_model"]:
    """What each head of a layer writes: its `z` times its `W_O`; the sum is attention's output, less its bias.

    `out` is a run that captured the layer's `attn.z` (or `cross_attn.z`), or tokens to run. In an encoder-decoder the
    heads are the decoder's; with attention `cross` those that read the encoder.
    """
    model, n_layers = with_parts(model, "what each head writes"), model.config.n_layers
    if not is_number(layer) or not -n_layers <= layer < n_layers:
        raise InputError(f"no layer {layer}: this model has layers 0-{n_layers - 1}")
    weight = attention_layer(model.last.blocks[layer], attention).W_O
    site = f"{last_stack(model)}.{layer % n_layers}.{_PREFIX[attention]}attn.z"
    z = (out if isinstance(out, Run) else run(model, out, target=target, until=site))[site]
    return einsum(z, weight, "... position head d_head, head d_head d_model -> ... position head d_model")


@dataclass(frozen=True, repr=False)
class DirectAttribution(Result):
    """What each term of the stream adds to a logit difference (or to any direction) at one position a prompt.

    `names` are `embed` (token and position), `decoder.0.head.3`, `decoder.0.attn.bias` (with the shift of a norm after
    attention), `decoder.0.cross_head.3` and `decoder.0.cross_attn.bias` beside an encoder, `decoder.0.mlp`, `norm.bias`
    and `output.bias`; the values add up to `total`, the model's own number. Units are logits, before any cap.
    """

    names: tuple[str, ...]
    values: Float[Tensor, "term prompt"]
    total: Float[Tensor, " prompt"]
    model: Transformer = field(repr=False)
    inputs: Inputs = field(repr=False)
    columns: Int[Tensor, " prompt"] = field(repr=False)  # where each prompt is read
    directions: Mapping[Attending, Float[Tensor, "layer prompt head d_head"]] = field(repr=False)  # what z is worth

    def __getitem__(self, name: str) -> Float[Tensor, " prompt"]:
        """One term by its name."""
        if name not in self.names:
            raise InputError(f"no term {name!r}: expected one of {', '.join(self.names)}")
        return self.values[self.names.index(name)]

    def by_head(self, attention: Attending = "self") -> Float[Tensor, "layer head prompt"]:
        """The heads alone; of cross-attention, those that read the encoder."""
        attention_layer(self.model.last.blocks[0], attention)  # which says where there is none
        heads = [index for index, name in enumerate(self.names) if f".{_PREFIX[attention]}head." in name]
        return self.values[heads].unflatten(0, (self.model.config.n_layers, -1))

    def by_layer(self) -> Float[Tensor, "layer prompt"]:
        """All that a layer's attention (biases included) and feed-forward write."""
        prefixes = [f"{last_stack(self.model)}.{layer}." for layer in range(self.model.config.n_layers)]
        terms = [[index for index, name in enumerate(self.names) if name.startswith(prefix)] for prefix in prefixes]
        return torch.stack([self.values[rows].sum(0) for rows in terms])

    def table(self, *, seed: int = 0) -> DataFrame:
        """One row a term: `effect`, what it adds on average, with interval, p and q, and its `share` of the total.

        Columns are `stack, term` (its name here), `part` (`head`, `cross_head`, `mlp`, `embed`, a bias), `layer, head`
        (missing where the term has none), and those of `results.cell_rows`; shares are missing where the total may
        as well be nothing. `seed` is of the intervals' resampling.
        """
        whole = None if unreliable(self.total) else self.total
        rows = cell_rows(("term",), self.values, dust(self.total), whole, seed=seed)
        rows["term"] = [self.names[column] for column in rows["term"].tolist()]
        place = rows["term"].str.extract(r"^\w+\.(?P<layer>\d+)\.(?P<part>.*?)(?:\.(?P<head>\d+))?$")
        rows["part"] = place["part"].fillna(rows["term"])
        rows[["layer", "head"]] = place[["layer", "head"]].astype("Int64")
        return long_table({"stack": last_stack(self.model)}, [rows], ("term", "part", "layer", "head"))

    def figure(self, kind: Drawing = "map", attention: Attending = "self", **options: Any) -> Figure:
        """A `map` of the heads, or the terms that add most either way (`top`), with their intervals.

        `options` are those of `analyses.figures.cell_map` or `top_cells`: `title`, `width`, `font_size`, `ax`, ...
        """
        table = self.table().assign(metric="logit_difference", direction="on the direct path", site="z")
        draw, title = "top_cells", "Which terms write the answer?"
        if one_of("kind", kind, Drawing) == "map":
            self.by_head(attention)  # which says where there is none
            table = table.loc[table["part"] == f"{_PREFIX[attention]}head"]
            draw, title = "cell_map", "Which heads write the answer, on the direct path?"
        return draw_figure(draw, table, "logit_difference", heading=title, **options)

    def facts(self) -> tuple[str, Mapping[str, str]]:
        """The whole, and the terms that add most."""
        means = self.values.mean(-1)
        order = means.abs().argsort(descending=True, stable=True)[:5].tolist()
        facts = {"whole": signed(float(self.total.mean()))}
        facts |= {self.names[index]: signed(float(means[index])) for index in order}
        count = so_many(self.total.shape[-1], "prompt")
        return f"Direct attribution: {so_many(len(self.names), 'term')}, over {count}", facts


@torch.no_grad()
def direct_logit_attribution(
    model: Model,
    tokens: Tokens,
    right: Answer | None = None,
    wrong: Answer | None = None,
    *,
    direction: Float[Tensor, "*prompt d_model"] | None = None,
    position: Positions = None,
    target: Tokens | None = None,
) -> DirectAttribution:
    """Each term's contribution to the logit of `right` less that of `wrong`, the final norm's scale held fixed.

    The norm is affine once its scale (standard deviation, root mean square) is held at this run's value, so every term
    passes it alone (Elhage 2021, "A Mathematical Framework for Transformer Circuits"), as does a norm between a layer
    and the stream. The terms add up to the difference up to rounding; RMSNorm rounds to float32 at any precision.

    In an encoder-decoder the stream is the decoder's, to which its heads of both kinds write; the encoder has no direct
    path.

    Args:
        model: a transformer whose last stream is a sum: no norm follows the sums.
        tokens: the prompts.
        right: the answer whose logit counts up: one for all prompts, or one a prompt; texts or ids.
        wrong: the answer whose logit counts down; left out, the logit of `right` alone.
        direction: instead of answers, a direction of the stream after the final norm; it needs no output layer.
        position: where it is read, in each prompt's own tokens (negative: from its end), one for all or one a prompt;
            by default its last. Of a decoder that has an encoder, the target's tokens.
        target: what the decoder reads where there is an encoder, which reads `tokens`.

    Raises:
        InputError: a stack with norms after its sums, answers that are read through a masked-word model's transform;
            neither or both of answers and direction.
    """
    model = with_parts(model, "direct attribution")
    inputs = as_batches(model, tokens, target)
    direction, shift = _direction(model, len(inputs[0].ids), right, wrong, direction)
    columns = (inputs[1] or inputs[0]).columns(position)
    if columns.shape[1] != 1:
        raise InputError(f"attribution is read at one position of each prompt, got {columns.shape[1]}")
    name, stack = last_stack(model), model.last
    attentions: list[Attending] = ["self", "cross"] if stack.config.cross_attention else ["self"]
    sites = [f"{name}.*.{_PREFIX[attention]}attn.z" for attention in attentions]
    sites += [f"{name}.{layer}.mlp_out" for layer, block in enumerate(stack.blocks) if block.mlp is not None]
    embed, last, final = f"{name}.embed", f"{name}.{len(stack.blocks) - 1}.resid_post", f"{name}.resid_final"
    out = run(model, inputs[0], capture=[*sites, embed, last, final], target=inputs[1])

    index = torch.arange(len(columns), device=columns.device), columns[:, 0]

    def values(site: str) -> Float[Tensor, "prompt ..."]:
        return wide(pick(out[site], index))

    e = _direction_before(stack.norm, values(last), direction)
    terms = {"embed": (values(embed) * e).sum(-1)}
    directions: dict[Attending, list[Tensor]] = {attention: [] for attention in attentions}
    for layer, block in enumerate(stack.blocks):
        prefix = f"{name}.{layer}."
        for attention in attentions:
            kind = _PREFIX[attention]
            z = values(f"{prefix}{kind}attn.z")
            toward, bias = move(_toward(block, attention, *move((z, e), block.device)), e.device)
            directions[attention].append(toward)
            heads = einsum(z, toward, "prompt head d_head, prompt head d_head -> head prompt")
            terms |= {f"{prefix}{kind}head.{head}": value for head, value in enumerate(heads)}
            terms |= {} if bias is None else {f"{prefix}{kind}attn.bias": bias}
        if block.mlp is not None:
            terms[f"{prefix}mlp"] = (values(f"{prefix}mlp_out") * e).sum(-1)
    if (norm_bias := _shift(stack.norm, direction)) is not None:
        terms["norm.bias"] = norm_bias
    total = (values(final) * direction).sum(-1)
    if shift is not None:
        terms["output.bias"] = shift
        total = total + shift
    stacked: dict[Attending, Tensor] = {kind: torch.stack(of_layers) for kind, of_layers in directions.items()}
    return DirectAttribution(tuple(terms), torch.stack([*terms.values()]), total, model, inputs, columns[:, 0], stacked)


@torch.no_grad()
def attribution_by_source(
    attribution: DirectAttribution, attention: Attending = "self"
) -> Float[Tensor, "layer head key prompt"]:
    """Each head's direct contribution by the position that it was read from: pattern[query, key] * v[key] W_O.

    Over keys it adds up to the head's contribution. Keys are columns of what the heads read (of the source, in
    cross-attention); padding is NaN.

    Raises:
        InputError: no such attention.
    """
    model, (batch, target), columns = attribution.model, attribution.inputs, attribution.columns
    attention_layer(model.last.blocks[0], attention)  # which says where there is none
    site = f"{last_stack(model)}.{{}}.{_PREFIX[attention]}attn."
    out = run(model, batch, f"{site.format('*')}v", target=target, until=f"{site.format('*')}pattern")
    shared, of_layers = model.last.config.n_heads // model.last.config.kv_heads, []
    index = torch.arange(len(columns), device=columns.device), columns
    for layer, toward in enumerate(attribution.directions[attention]):
        pattern = pick(out[f"{site.format(layer)}pattern"].transpose(1, 2), index)
        v = out[f"{site.format(layer)}v"].repeat_interleave(shared, -2)
        worth = einsum(v.to(toward), toward, "prompt key head d_head, prompt head d_head -> head key prompt")
        of_layers.append(pattern.permute(1, 2, 0) * worth)
    keys = batch if attention == "cross" else target or batch
    return torch.stack(of_layers).masked_fill(~keys.mask.T, torch.nan)


def _direction(
    model: Transformer, n_prompts: int, right: Answer | None, wrong: Answer | None, direction: Tensor | None
) -> tuple[Float[Tensor, "prompt d_model"], Float[Tensor, " prompt"] | None]:
    """The direction that is read after the final norm, and what the output layer adds."""
    config, bias = model.last.config, None
    if config.norms_sums:
        raise InputError(
            "this model's norms come after its sums: each rescales all that was written before, so its stream is "
            "no sum of what its layers write and there is no direct attribution; patch or ablate instead"
        )
    if (right is None) == (direction is None) or (wrong is not None and right is None):
        raise InputError("expected either answers (right, and wrong to compare with) or a direction")
    if right is None:
        assert direction is not None
        weight = wide(direction.to(model.device))
        if weight.shape not in {(config.d_model,), (n_prompts, config.d_model)}:
            shapes = f"({config.d_model},) or ({n_prompts}, {config.d_model})"
            raise InputError(f"a direction has shape {shapes}, got {tuple(weight.shape)}")
        weight = weight.expand(n_prompts, -1)
    else:
        output = model.output
        if output is None:
            raise InputError("this model has no output layer, so answers have no logits: give a direction")
        if model.config.transform is not None:
            raise InputError(
                "this model transforms its final stream before the output layer, so that no logit is a sum of what "
                "its layers write: give a direction of that stream, or patch or ablate instead"
            )
        ids = [answer_ids(model, answer, n_prompts) for answer in (right, wrong) if answer is not None]
        weight, *rest = (wide(output.weight)[answers] * output.scale for answers in ids)
        weight = weight - rest[0] if rest else weight
        if output.bias is not None:
            bias, *rest = (wide(output.bias)[answers] for answers in ids)
            bias = bias - rest[0] if rest else bias
    return weight, bias


def _direction_before(
    norm: nn.Module, x: Float[Tensor, "prompt d_model"], e: Float[Tensor, "prompt d_model"]
) -> Float[Tensor, "prompt d_model"]:
    """The direction `e` as it stands before a norm whose scale is that of `x`: what each term of `x` meets."""
    return folded(norm, e[..., None])[..., 0] * fixed_scale(norm, x)[..., None]


def fixed_scale(norm: nn.Module, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch"]:
    """What a norm that reads `x` multiplies by at each position: 1 over its deviation or length; 1 without a norm."""
    if isinstance(norm, nn.LayerNorm):
        return (x.var(-1, correction=0) + norm.eps).rsqrt()
    if isinstance(norm, RootMeanSquare):
        assert norm.eps is not None
        return (x.square().mean(-1) + norm.eps).rsqrt()
    return torch.ones_like(x[..., 0])


def _shift(norm: nn.Module, e: Float[Tensor, "prompt d_model"]) -> Float[Tensor, " prompt"] | None:
    """What a norm adds along `e` whatever it reads."""
    return e @ norm.bias.to(e.dtype) if isinstance(norm, nn.LayerNorm) and norm.bias is not None else None


def attention_layer(block: Block, attention: Attending) -> Attention:
    """A block's own attention, or that which reads the encoder."""
    layer = block.attn if one_of("attention", attention, Attending) == "self" else block.cross_attn
    if layer is None:
        raise InputError(f"no attention {attention!r} in this model: expected self")
    return layer


def _toward(
    block: Block, attention: Attending, z: Float[Tensor, "prompt head d_head"], e: Float[Tensor, "prompt d_model"]
) -> tuple[Float[Tensor, "prompt head d_head"], Float[Tensor, " prompt"] | None]:
    """What a unit of each dimension of each head's z adds along `e`, and what attention adds whatever z is."""
    sublayer = block.attention if attention == "self" else block.cross
    attn, norm = attention_layer(block, attention), sublayer.norm_after
    shifts = [shift for shift in [_shift(norm, e)] if shift is not None]
    if not isinstance(norm, nn.Identity):
        e = _direction_before(norm, wide(attn.out(z.flatten(-2).to(attn.out.weight.dtype))), e)
    if attn.out.bias is not None:
        shifts.append(e @ attn.out.bias.to(e.dtype))
    toward = einsum(attn.W_O.to(e.dtype), e, "head d_head d_model, prompt d_model -> prompt head d_head")
    return toward, sum(shifts[1:], shifts[0]) if shifts else None


@torch.no_grad()
def composition_scores(model: Model) -> Float[Tensor, "kind layer head later_layer later_head"]:
    """How much of what a head writes is read by a later head: Q-, K- and V-composition (Elhage 2021).

    With W_OV = W_V W_O and W_QK = W_Q W_K^T, rows being stream vectors, the scores are |W_OV W_QK|, |W_OV W_QK^T| and
    |W_OV W_OV'| (Frobenius), each over the product of its factors' norms: between 0 and 1. `kind` is Q, K, V in
    that order; pairs whose second head is in no later layer are NaN. A norm before a layer is folded into what the
    layer reads, one after it into what it writes: its weight and, in LayerNorm, the removal of the mean. Norms after
    sums, biases, and norms and rotation of queries and keys are left aside.
    """
    model = with_parts(model, "composition of heads")
    only_stack(model, "composition of heads")
    n_layers, n_heads = model.config.n_layers, model.config.n_heads
    factors = [move(_factors(model, layer), model.device) for layer in range(n_layers)]
    shape = (3, n_layers, n_heads, n_layers, n_heads)
    scores = torch.full(shape, torch.nan, dtype=factors[0][0].dtype, device=model.device)
    for layer, (writes, *_) in enumerate(factors):
        for later in range(layer + 1, n_layers):
            for kind, reads in enumerate(factors[later][1:]):
                product = writes.flatten(0, 1) @ reads.transpose(0, 1).flatten(1)  # all pairs of heads at once
                product = product.view(n_heads, -1, n_heads, reads.shape[-1])
                norms = writes.norm(dim=(1, 2))[:, None] * reads.norm(dim=(1, 2))
                scores[kind, layer, :, later] = product.norm(dim=(1, 3)) / norms
    return scores


def _factors(model: Transformer, layer: int) -> tuple[Float[Tensor, "head _ _"], ...]:
    """A layer's W_OV (rank x d_model), W_QK, W_QK^T and W_OV (d_model x rank): |A B| = |R B| where A = Q R."""
    block, config = model.last.blocks[layer], model.last.config
    attn, norm, norm_after = block.attn, block.attention.norm_before, block.attention.norm_after
    shared = config.n_heads // config.kv_heads
    w_q, w_k, w_v = (folded(norm, wide(weight)) for weight in (attn.W_Q, attn.W_K, attn.W_V))
    w_k, w_v = w_k.repeat_interleave(shared, 0), w_v.repeat_interleave(shared, 0)
    w_o = folded(norm_after, wide(attn.W_O).mT, writes=True).mT
    r_q, r_k, r_v, r_o = (torch.linalg.qr(side, "r").R for side in (w_q, w_k, w_v, w_o.mT))
    return r_v @ w_o, w_q @ r_k.mT, w_k @ r_q.mT, w_v @ r_o.mT


def folded(
    norm: nn.Module, weight: Float[Tensor, "head d_model d_head"], *, writes: bool = False
) -> Float[Tensor, "head d_model d_head"]:
    """A matrix with the norm before (or after) it: its weight, and LayerNorm's removal of the mean, in their order."""
    if not isinstance(norm, nn.LayerNorm | RootMeanSquare):
        return weight
    centred = isinstance(norm, nn.LayerNorm)
    if writes and centred:
        weight = weight - weight.mean(1, keepdim=True)
    weight = (gain(norm) if isinstance(norm, RootMeanSquare) else norm.weight).to(weight)[:, None] * weight
    return weight - weight.mean(1, keepdim=True) if centred and not writes else weight


def gain(norm: RootMeanSquare) -> Float[Tensor, " d_model"]:
    """What it multiplies by."""
    return norm.weight + norm.config.offset


def wide(x: Tensor) -> Tensor:
    """At least float32: sums of many small terms."""
    return x.to(torch.promote_types(x.dtype, torch.float32))

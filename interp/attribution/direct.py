"""What does each term of the stream add to an answer, on the direct path to the output layer?"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor, nn

from interp.attention import Attention
from interp.attribution.composition import gain, wide
from interp.display import DataFrame, Figure, Shown, drawn, signed, so_many
from interp.errors import InputError, one_of
from interp.indices import is_number
from interp.model import Model
from interp.parts import RootMeanSquare
from interp.patching.pairs import Answer, Inputs, answer_ids
from interp.patching.patch_sites import Attending, last_stack
from interp.patching.results import Drawing, cell_rows, dust, long_table, unreliable
from interp.running import Run, Tokens, as_batches, run
from interp.tokens import Positions
from interp.transformer import Block, Transformer, with_parts

Toward = Float[Tensor, "prompt head d_head"]  # what a unit of each dimension of each head's z adds along a direction
_PREFIX: dict[Attending, str] = {"self": "", "cross": "cross_"}


def head_results(
    model: Model,
    out: Run | Tokens,
    layer: int,
    *,
    attention: Attending = "self",
    target: Tokens | None = None,
) -> Float[Tensor, "prompt position head d_model"]:
    """What each head of a layer writes: its `z` times its `W_O`.

    They add up to attention's output before any post-norm, less its bias.

    Args:
        model: a transformer; of an encoder-decoder the heads are the decoder's.
        out: a run that captured the layer's `attn.z`, or tokens to run.
        layer: from 0; negative ones count from the last.
        attention: `cross` for the heads that read the encoder, whose `cross_attn.z` is captured.
        target: of tokens, what the decoder reads where there is an encoder.

    Raises:
        InputError: no such layer or attention, or a run without its `z`.
    """
    model, n_layers = with_parts(model, "what each head writes"), model.config.n_layers
    if not is_number(layer) or not -n_layers <= layer < n_layers:
        raise InputError(f"no layer {layer}: this model has layers 0-{n_layers - 1}")
    weight = _attention(model.last.blocks[layer], attention).W_O
    site = f"{last_stack(model)}.{layer % n_layers}.{_PREFIX[attention]}attn.z"
    z = (out if isinstance(out, Run) else run(model, out, target=target, until=site))[site]
    return einsum(z, weight, "... position head d_head, head d_head d_model -> ... position head d_model")


@dataclass(frozen=True)
class Reading:
    """Where a direction is read: prompts, one column of each, and the direction after the final norm."""

    inputs: Inputs
    columns: Int[Tensor, " prompt"]
    direction: Float[Tensor, "prompt d_model"]
    bias: Float[Tensor, " prompt"] | None  # what the output layer adds

    def take(self, site: Float[Tensor, "prompt position ..."]) -> Float[Tensor, "prompt ..."]:
        """What a site holds where the direction is read."""
        return wide(site[torch.arange(len(self.columns), device=self.columns.device), self.columns])


@dataclass(frozen=True, repr=False)
class DirectAttribution(Shown):
    """What each term of the stream adds to a logit difference (or to any direction) at one position a prompt.

    `names` are `embed` (token and position), `decoder.0.head.3`, `decoder.0.attn.bias` (with the shift of a norm after
    attention), where there is an encoder `decoder.0.cross_head.3` and `decoder.0.cross_attn.bias`, `decoder.0.mlp`,
    `norm.bias` and `output.bias`; the values add up to `total`, the model's own number. Units are logits, before their
    cap where the model has one.
    """

    names: tuple[str, ...]
    values: Float[Tensor, "term prompt"]
    total: Float[Tensor, " prompt"]
    model: Transformer = field(repr=False)
    reading: Reading = field(repr=False)
    toward: Mapping[Attending, list[Toward]] = field(repr=False)  # of each attention, by layer

    def __getitem__(self, name: str) -> Float[Tensor, " prompt"]:
        """One term by its name."""
        if name not in self.names:
            raise InputError(f"no term {name!r}: expected one of {', '.join(self.names)}")
        return self.values[self.names.index(name)]

    def by_head(self, attention: Attending = "self") -> Float[Tensor, "layer head prompt"]:
        """The heads alone; of cross-attention, those that read the encoder."""
        _attention(self.model.last.blocks[0], attention)  # which says where there is none
        heads = [at for at, name in enumerate(self.names) if f".{_PREFIX[attention]}head." in name]
        return self.values[heads].unflatten(0, (self.model.config.n_layers, -1))

    def by_layer(self) -> Float[Tensor, "layer prompt"]:
        """All that a layer's attention (biases included) and feed-forward write."""
        prefixes = [f"{last_stack(self.model)}.{layer}." for layer in range(self.model.config.n_layers)]
        members = [[at for at, name in enumerate(self.names) if name.startswith(prefix)] for prefix in prefixes]
        return torch.stack([self.values[at].sum(0) for at in members])

    def table(self, *, seed: int = 0) -> DataFrame:
        """One row a term: `effect`, what it adds on average, with interval, p and q, and its `share` of the total.

        Columns are `stack, term` (its name here), `part` (`head`, `cross_head`, `mlp`, `embed`, a bias), `layer, head`
        (missing where the term has none), and those of `results.cell_rows`; shares are missing where the total may
        as well be nothing.

        Args:
            seed: of the intervals' resampling.
        """
        whole = None if unreliable(self.total) else self.total
        rows = cell_rows(("term",), self.values, dust(self.total), whole, seed=seed)
        rows["term"] = [self.names[column] for column in rows["term"].tolist()]
        place = rows["term"].str.extract(r"^\w+\.(?P<layer>\d+)\.(?P<part>.*?)(?:\.(?P<head>\d+))?$")
        rows["part"] = place["part"].fillna(rows["term"])
        rows[["layer", "head"]] = place[["layer", "head"]].astype("Int64")
        return long_table({"stack": last_stack(self.model)}, [rows], ("term", "part", "layer", "head"))

    def figure(self, kind: Drawing = "map", attention: Attending = "self", **how: Any) -> Figure:
        """A map of the heads, or the terms that add most either way, with their intervals.

        Args:
            kind: `map` or `top`.
            attention: of the map.
            how: of `analyses.figures.cell_map` or `top_cells`: `title`, `width`, `font_size`, `ax`, ...

        Raises:
            InputError: no such kind or attention.
        """
        table = self.table().assign(metric="logit_difference", direction="on the direct path", site="z")
        draw, title = "top_cells", "Which terms write the answer?"
        if one_of("kind", kind, Drawing) == "map":
            self.by_head(attention)  # which says where there is none
            table = table.loc[table["part"] == f"{_PREFIX[attention]}head"]
            draw, title = "cell_map", "Which heads write the answer, on the direct path?"
        return drawn(draw, table, "logit_difference", asks=title, **how)

    def facts(self) -> tuple[str, Mapping[str, str]]:
        """The whole, and the terms that add most."""
        means = self.values.mean(-1)
        order = means.abs().argsort(descending=True, stable=True)[:5].tolist()
        facts = {"whole": signed(float(self.total.mean()))}
        facts |= {self.names[at]: signed(float(means[at])) for at in order}
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
    passes it alone (Elhage 2021, "A Mathematical Framework for Transformer Circuits").
    A norm between a layer and the stream is taken alike. The terms add up to the difference up to rounding; RMSNorm
    rounds to float32 in a model of any precision.

    In an encoder-decoder the stream is the decoder's, to which its heads of both kinds write. The encoder has no direct
    path: what it makes of the source reaches a logit through the cross-attention's heads alone.

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
            neither or both of answers and direction; no such position.
    """
    model = with_parts(model, "direct attribution")
    reading = _reading(model, as_batches(model, tokens, target), right, wrong, direction, position)
    name, stack, layers = last_stack(model), model.last, range(model.config.n_layers)
    attentions: list[Attending] = ["self", "cross"] if stack.config.cross_attention else ["self"]
    sites = {f"{name}.{layer}.{_PREFIX[attention]}attn.z" for layer in layers for attention in attentions}
    sites |= {f"{name}.{layer}.mlp_out" for layer in layers if stack.blocks[layer].mlp is not None}
    ends = f"{name}.embed", f"{name}.{layers[-1]}.resid_post", f"{name}.resid_final"
    out = run(model, reading.inputs[0], capture=[*sites, *ends], target=reading.inputs[1])
    e = _before(stack.norm, reading.take(out[ends[1]]), reading.direction)
    terms = {"embed": (reading.take(out[ends[0]]) * e).sum(-1)}
    toward: dict[Attending, list[Toward]] = {attention: [] for attention in attentions}
    for layer, block in enumerate(stack.blocks):
        for attention in attentions:
            within, kind = f"{name}.{layer}.", _PREFIX[attention]
            z = reading.take(out[f"{within}{kind}attn.z"])
            directions, bias = _toward(block, attention, z, e)
            toward[attention].append(directions)
            heads = einsum(z, directions, "prompt head d_head, prompt head d_head -> head prompt")
            terms |= {f"{within}{kind}head.{head}": value for head, value in enumerate(heads)}
            terms |= {} if bias is None else {f"{within}{kind}attn.bias": bias}
        if block.mlp is not None:
            terms[f"{name}.{layer}.mlp"] = (reading.take(out[f"{name}.{layer}.mlp_out"]) * e).sum(-1)
    if (shift := _shift(stack.norm, reading.direction)) is not None:
        terms["norm.bias"] = shift
    total = (reading.take(out[ends[2]]) * reading.direction).sum(-1)
    if reading.bias is not None:
        terms["output.bias"] = reading.bias
        total = total + reading.bias
    return DirectAttribution(tuple(terms), torch.stack([*terms.values()]), total, model, reading, toward)


def _reading(
    model: Transformer,
    inputs: Inputs,
    right: Answer | None,
    wrong: Answer | None,
    direction: Tensor | None,
    position: Positions,
) -> Reading:
    """The arguments of `direct_logit_attribution`, checked."""
    config, n_prompts, bias = model.last.config, len(inputs[0].ids), None
    if config.norms_sums:
        raise InputError(
            "this model's norms come after its sums: each rescales all that was written before, so its stream is "
            "no sum of what its layers write and there is no direct attribution; patch or ablate instead"
        )
    if (right is None) == (direction is None) or (wrong is not None and right is None):
        raise InputError("expected either answers (right, and wrong to compare with) or a direction")
    if right is None:
        assert direction is not None
        read = wide(direction.to(model.device))
        if read.shape not in {(config.d_model,), (n_prompts, config.d_model)}:
            shapes = f"({config.d_model},) or ({n_prompts}, {config.d_model})"
            raise InputError(f"a direction has shape {shapes}, got {tuple(read.shape)}")
        read = read.expand(n_prompts, -1)
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
        read, *less = (wide(output.weight)[answers] * output.scale for answers in ids)
        read = read - less[0] if less else read
        if output.bias is not None:
            bias, *less = (wide(output.bias)[answers] for answers in ids)
            bias = bias - less[0] if less else bias
    columns = (inputs[1] or inputs[0]).columns(position)
    if columns.shape[1] != 1:
        raise InputError(f"attribution is read at one position of each prompt, got {columns.shape[1]}")
    return Reading(inputs, columns[:, 0], read, bias)


@torch.no_grad()
def attribution_by_source(
    found: DirectAttribution, attention: Attending = "self"
) -> Float[Tensor, "layer head key prompt"]:
    """Each head's direct contribution by the position that it was read from: pattern[query, key] * v[key] W_O.

    Over keys it adds up to the head's contribution in `found`; keys are columns of what the heads read (of the source,
    in cross-attention), and those that are padding are NaN.

    Raises:
        InputError: no such attention.
    """
    _attention(found.model.last.blocks[0], attention)  # which says where there is none
    reading, config = found.reading, found.model.last.config
    place = f"{last_stack(found.model)}.{{}}.{_PREFIX[attention]}attn."
    batch, decoded = reading.inputs
    out = run(found.model, batch, f"{place.format('*')}v", target=decoded, until=f"{place.format('*')}pattern")
    keys, shared, by_layer = batch if attention == "cross" else decoded or batch, config.n_heads // config.kv_heads, []
    for layer, toward in enumerate(found.toward[attention]):
        pattern = reading.take(out[f"{place.format(layer)}pattern"].transpose(1, 2)).to(toward.dtype)  # prompt head key
        v = out[f"{place.format(layer)}v"].repeat_interleave(shared, -2).to(toward.dtype)
        effects = einsum(v, toward, "prompt key head d_head, prompt head d_head -> prompt head key")
        by_layer.append((pattern * effects).permute(1, 2, 0))
    return torch.stack(by_layer).masked_fill(~keys.mask.T, torch.nan)


def _before(
    norm: nn.Module, x: Float[Tensor, "prompt d_model"], e: Float[Tensor, "prompt d_model"]
) -> Float[Tensor, "prompt d_model"]:
    """The direction `e` as it stands before a norm whose scale is that of `x`: what each term of `x` meets."""
    if isinstance(norm, nn.LayerNorm):
        e = e * norm.weight.to(x.dtype)
        return (e - e.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + norm.eps).sqrt()
    if isinstance(norm, RootMeanSquare):
        assert norm.eps is not None
        return e * gain(norm).to(x.dtype) / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt()
    return e


def _shift(norm: nn.Module, e: Float[Tensor, "prompt d_model"]) -> Float[Tensor, " prompt"] | None:
    """What a norm adds along `e` whatever it reads."""
    return e @ norm.bias.to(e.dtype) if isinstance(norm, nn.LayerNorm) and norm.bias is not None else None


def _attention(block: Block, attention: Attending) -> Attention:
    """A block's own attention, or that which reads the encoder."""
    layer = block.attn if one_of("attention", attention, Attending) == "self" else block.cross_attn
    if layer is None:
        raise InputError(f"no attention {attention!r} in this model: expected self")
    return layer


def _toward(
    block: Block, attention: Attending, z: Float[Tensor, "prompt head d_head"], e: Float[Tensor, "prompt d_model"]
) -> tuple[Toward, Float[Tensor, " prompt"] | None]:
    """What a unit of each dimension of each head's z adds along `e`, and what attention adds whatever z is."""
    sublayer = block.attention if attention == "self" else block.cross
    attn, norm = _attention(block, attention), sublayer.norm_after
    shifts = [shift for shift in [_shift(norm, e)] if shift is not None]
    if not isinstance(norm, nn.Identity):
        e = _before(norm, wide(attn.out(z.flatten(-2).to(attn.out.weight.dtype))), e)
    if attn.out.bias is not None:
        shifts.append(e @ attn.out.bias.to(e.dtype))
    toward = einsum(attn.W_O.to(e.dtype), e, "head d_head d_model, prompt d_model -> prompt head d_head")
    return toward, sum(shifts[1:], shifts[0]) if shifts else None

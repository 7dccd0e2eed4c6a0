"""What does each term of the stream add to an answer, on the direct path to the output layer?"""

from dataclasses import dataclass

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor, nn

from interp.attribution.answers import Answer, Positions, Reading
from interp.composition import gain, norm_after, wide
from interp.errors import InputError
from interp.parts import RootMeanSquare
from interp.patching.patch_sites import one_stack
from interp.running import Run, Tokens, run
from interp.transformer import Block, Transformer


def head_results(model: Transformer, out: Run | Tokens, layer: int) -> Float[Tensor, "prompt position head d_model"]:
    """What each head of a layer writes: its `z` times its `W_O`.

    They add up to attention's output before any post-norm, less its bias.

    Args:
        model: a transformer of one stack.
        out: a run that captured the layer's `attn.z`, or tokens to run.
        layer: from 0; negative ones count from the last.

    Raises:
        InputError: no such layer, or a run without its `z`.
    """
    (name, _), n_layers = one_stack(model, "what each head writes"), model.config.n_layers
    if not -n_layers <= layer < n_layers:
        raise InputError(f"no layer {layer}: this model has layers 0-{n_layers - 1}")
    site = f"{name}.{layer % n_layers}.attn.z"
    z = (out if isinstance(out, Run) else run(model, out, capture=site))[site]
    return einsum(
        z,
        model.last.blocks[layer].attn.W_O,
        "... position head d_head, head d_head d_model -> ... position head d_model",
    )


@dataclass(frozen=True)
class DirectAttribution:
    """What each term of the stream adds to a logit difference (or to any direction) at one position a prompt.

    `names` are `embed` (token and position), `decoder.0.head.3`, `decoder.0.attn.bias` (with the shift of a norm after
    attention), `decoder.0.mlp`, `norm.bias` and `output.bias`; the values add up to `total`, the model's own number.
    Units are logits, before their cap where the model has one.
    """

    names: tuple[str, ...]
    values: Float[Tensor, "term prompt"]
    total: Float[Tensor, " prompt"]
    stack: str
    n_layers: int
    n_heads: int

    def __getitem__(self, name: str) -> Float[Tensor, " prompt"]:
        """One term by its name."""
        if name not in self.names:
            raise InputError(f"no term {name!r}: expected one of {', '.join(self.names)}")
        return self.values[self.names.index(name)]

    def by_head(self) -> Float[Tensor, "layer head prompt"]:
        """The heads alone."""
        heads = [self[f"{self.stack}.{layer}.head.{head}"] for layer, head in self._cells()]
        return torch.stack(heads).unflatten(0, (self.n_layers, self.n_heads))

    def by_layer(self) -> Float[Tensor, "layer prompt"]:
        """All that a layer's attention (bias included) and feed-forward write."""
        prefixes = [f"{self.stack}.{layer}." for layer in range(self.n_layers)]
        members = [[at for at, name in enumerate(self.names) if name.startswith(prefix)] for prefix in prefixes]
        return torch.stack([self.values[at].sum(0) for at in members])

    def _cells(self) -> list[tuple[int, int]]:
        return [(layer, head) for layer in range(self.n_layers) for head in range(self.n_heads)]


@torch.no_grad()
def direct_logit_attribution(
    model: Transformer,
    tokens: Tokens,
    right: Answer | None = None,
    wrong: Answer | None = None,
    *,
    direction: Float[Tensor, "*prompt d_model"] | None = None,
    position: Positions = None,
) -> DirectAttribution:
    """Each term's contribution to the logit of `right` less that of `wrong`, the final norm's scale held fixed.

    The norm is affine once its scale (standard deviation, root mean square) is held at this run's value, so every term
    passes it alone (Elhage 2021, "A Mathematical Framework for Transformer Circuits").
    A norm between a layer and the stream is taken alike. The terms add up to the difference up to rounding; RMSNorm
    rounds to float32 in a model of any precision.

    Args:
        model: a transformer of one stack whose stream is a sum: no norm follows the sums.
        tokens: the prompts.
        right: the answer whose logit counts up: one for all prompts, or one a prompt; texts or ids.
        wrong: the answer whose logit counts down; left out, the logit of `right` alone.
        direction: instead of answers, a direction of the stream after the final norm; it needs no output layer.
        position: where it is read, in each prompt's own tokens (negative: from its end), one for all or one a prompt;
            by default its last.

    Raises:
        InputError: a stack with norms after its sums, answers that are read through a masked-word model's transform;
            neither or both of answers and direction; no such position.
    """
    reading = Reading.of(model, tokens, right, wrong, direction, position)
    name, stack, layers = reading.stack, model.last, range(model.config.n_layers)
    sites = {f"{name}.{layer}.attn.z" for layer in layers} | {f"{name}.embed", f"{name}.resid_final"}
    sites |= {f"{name}.{layer}.mlp_out" for layer in layers if stack.blocks[layer].mlp is not None}
    out = run(model, reading.batch, capture=[*sites, f"{name}.{layers[-1]}.resid_post"])
    e = _before(stack.norm, reading.take(out[f"{name}.{layers[-1]}.resid_post"]), reading.direction)
    terms = {"embed": reading.dot(out[f"{name}.embed"], e)}
    for layer, block in enumerate(stack.blocks):
        z = reading.take(out[f"{name}.{layer}.attn.z"])
        toward, bias = _toward(block, z, e)
        heads = einsum(z, toward, "prompt head d_head, prompt head d_head -> head prompt")
        terms |= {f"{name}.{layer}.head.{head}": value for head, value in enumerate(heads)}
        if bias is not None:
            terms[f"{name}.{layer}.attn.bias"] = bias
        if block.mlp is not None:
            terms[f"{name}.{layer}.mlp"] = reading.dot(out[f"{name}.{layer}.mlp_out"], e)
    if (shift := _shift(stack.norm, reading.direction)) is not None:
        terms["norm.bias"] = shift
    total = reading.dot(out[f"{name}.resid_final"], reading.direction)
    if reading.bias is not None:
        terms["output.bias"] = reading.bias
        total = total + reading.bias
    values = torch.stack(list(terms.values()))
    return DirectAttribution(tuple(terms), values, total, name, len(layers), model.config.n_heads)


@torch.no_grad()
def attribution_by_source(
    model: Transformer,
    tokens: Tokens,
    right: Answer | None = None,
    wrong: Answer | None = None,
    *,
    direction: Float[Tensor, "*prompt d_model"] | None = None,
    position: Positions = None,
) -> Float[Tensor, "layer head key prompt"]:
    """Each head's direct contribution by the position that it was read from: pattern[query, key] * v[key] W_O.

    Arguments are those of `direct_logit_attribution`. Over keys it adds up to the head's contribution there; keys are
    columns of the batch, and those that are padding are NaN.
    """
    reading = Reading.of(model, tokens, right, wrong, direction, position)
    name, stack, found = reading.stack, model.last, []
    last = f"{name}.{model.config.n_layers - 1}.resid_post"
    out = run(model, reading.batch, capture=[*(f"{name}.*.attn.{part}" for part in ("pattern", "v", "z")), last])
    e = _before(stack.norm, reading.take(out[last]), reading.direction)
    shared = stack.config.n_heads // stack.config.kv_heads
    for layer, block in enumerate(stack.blocks):
        pattern = reading.take(out[f"{name}.{layer}.attn.pattern"].transpose(1, 2)).to(e.dtype)  # prompt head key
        v = out[f"{name}.{layer}.attn.v"].repeat_interleave(shared, -2).to(e.dtype)
        toward, _ = _toward(block, reading.take(out[f"{name}.{layer}.attn.z"]), e)
        told = einsum(v, toward, "prompt key head d_head, prompt head d_head -> prompt head key")
        found.append((pattern * told).permute(1, 2, 0))
    return torch.stack(found).masked_fill(~reading.batch.mask.T, torch.nan)


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


def _toward(
    block: Block, z: Float[Tensor, "prompt head d_head"], e: Float[Tensor, "prompt d_model"]
) -> tuple[Float[Tensor, "prompt head d_head"], Float[Tensor, " prompt"] | None]:
    """What a unit of each dimension of each head's z adds along `e`, and what attention adds whatever z is."""
    attn, norm = block.attn, norm_after(block)
    shifts = [shift for shift in [_shift(norm, e)] if shift is not None]
    if not isinstance(norm, nn.Identity):
        e = _before(norm, wide(attn.out(z.flatten(-2).to(attn.out.weight.dtype))), e)
    if attn.out.bias is not None:
        shifts.append(e @ attn.out.bias.to(e.dtype))
    toward = einsum(attn.W_O.to(e.dtype), e, "head d_head d_model, prompt d_model -> prompt head d_head")
    return toward, sum(shifts[1:], shifts[0]) if shifts else None

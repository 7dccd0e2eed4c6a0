"""Which part of a model writes an answer? Read from the residual stream and from the weights, with nothing changed.

The stream is a sum, so a logit is one too once the final norm's scale is held at its value: `direct_logit_attribution`
gives each term's share, `attribution_by_source` a head's share by the position it was read from, `logit_lens` what the
sum says after each layer. All are of the direct path only: what a head does through later layers is the business of
`interp.patching`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor, nn

from interp.composition import gain, norm_after, wide
from interp.config import NoNorm, StackConfig
from interp.errors import InputError
from interp.parts import Output, RootMeanSquare
from interp.patching.spots import one_stack
from interp.running import Run, Tokens, as_batch, run
from interp.tokens import TokenBatch
from interp.transformer import Block, Transformer

Answer = str | Sequence[str] | int | Int[Tensor, "*prompt"]
Positions = int | Sequence[int] | Int[Tensor, " prompt"] | None


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
    reading = _Reading.of(model, tokens, right, wrong, direction, position)
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
    reading = _Reading.of(model, tokens, right, wrong, direction, position)
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


@dataclass(frozen=True)
class LogitLens:
    """What the output layer would say after each layer; row 0 is the embedding, the last row the model's own logits.

    `columns` are the columns of the batch that were read, for each prompt.
    """

    logits: Float[Tensor, "layer prompt position d_vocab"]
    columns: Int[Tensor, "prompt position"]
    model: Transformer

    def difference(self, right: Answer, wrong: Answer) -> Float[Tensor, "layer prompt position"]:
        """Logit of `right` less that of `wrong`: one answer for all prompts, or one a prompt; texts or ids."""
        sides = [_answer_ids(self.model, answer, len(self.columns)) for answer in (right, wrong)]
        index = torch.stack(sides, -1)[None, :, None].expand(*self.logits.shape[:3], 2)
        found = self.logits.gather(-1, index)
        return found[..., 0] - found[..., 1]

    def top(self, k: int) -> tuple[Float[Tensor, "layer prompt position k"], Int[Tensor, "layer prompt position k"]]:
        """The `k` largest logits and their tokens, largest first."""
        if not 1 <= k <= self.logits.shape[-1]:
            raise InputError(f"expected k from 1 to {self.logits.shape[-1]}, the model's vocabulary; got {k}")
        values, tokens = self.logits.topk(k)
        return values, tokens


@torch.no_grad()
def logit_lens(model: Transformer, tokens: Tokens, position: Positions = None) -> LogitLens:
    """The final norm and output layer applied to the stream after each layer (nostalgebraist 2020).

    Args:
        model: a transformer with an output layer.
        tokens: the prompts.
        position: where, in each prompt's own tokens (negative: from its end): one or several for all prompts, or a
            tensor with one a prompt; by default its last.

    Returns:
        LogitLens: logits `layer prompt position d_vocab`, one layer more than the model has.

    Raises:
        InputError: no output layer, or no such position.
    """
    if model.output is None:
        raise InputError("a logit lens needs an output layer: this model has none")
    (name, _), n_layers = one_stack(model, "the logit lens"), model.config.n_layers
    batch = as_batch(model, tokens)
    columns = _columns(batch, position)
    rows = torch.arange(len(columns), device=columns.device)[:, None]
    sites = [f"{name}.{layer}.resid_pre" for layer in range(n_layers)]
    out = run(model, batch, capture=sites)
    early = torch.stack([out[site][rows, columns] for site in sites])
    logits = model.read(model.last.norm(early))
    assert logits is not None
    return LogitLens(torch.cat([logits, out.logits[None, rows, columns]]), columns, model)


@dataclass(frozen=True)
class _Reading:
    """Where a direction is read: prompts, one column of each, and the direction after the final norm."""

    batch: TokenBatch
    columns: Int[Tensor, " prompt"]
    direction: Float[Tensor, "prompt d_model"]
    stack: str
    bias: Float[Tensor, " prompt"] | None  # what the output layer adds

    @staticmethod
    def of(
        model: Transformer,
        tokens: Tokens,
        right: Answer | None,
        wrong: Answer | None,
        direction: Tensor | None,
        position: Positions,
    ) -> "_Reading":
        """The arguments of `direct_logit_attribution`, checked."""
        name, _ = one_stack(model, "direct attribution")
        config: StackConfig = model.last.config
        if config.wiring == "post" and not isinstance(config.norm, NoNorm):
            raise InputError(
                "this model's norms come after its sums: each rescales all that was written before, so its stream is "
                "no sum of what its layers write and there is no direct attribution; patch or ablate instead"
            )
        if (right is None) == (direction is None) or (wrong is not None and right is None):
            raise InputError("expected either answers (right, and wrong to compare with) or a direction")
        batch = as_batch(model, tokens)
        n_prompts, bias = len(batch.ids), None
        if direction is None:
            if model.output is None:
                raise InputError("this model has no output layer, so answers have no logits: give a direction")
            if model.config.transform is not None:
                raise InputError(
                    "this model transforms its final stream before the output layer, so that no logit is a sum of what "
                    "its layers write: give a direction of that stream, or patch or ablate instead"
                )
            assert right is not None
            read, bias = _answer_direction(model.output, _answer_ids(model, right, n_prompts))
            if wrong is not None:
                less, less_bias = _answer_direction(model.output, _answer_ids(model, wrong, n_prompts))
                read, bias = read - less, None if bias is None or less_bias is None else bias - less_bias
        else:
            read = wide(direction.to(model.device))
            if read.shape not in {(config.d_model,), (n_prompts, config.d_model)}:
                raise InputError(
                    f"a direction has shape ({config.d_model},) or ({n_prompts}, {config.d_model}), "
                    f"got {tuple(read.shape)}"
                )
            read = read.expand(n_prompts, -1)
        columns = _columns(batch, position)
        if columns.shape[1] != 1:
            raise InputError(f"attribution is read at one position of each prompt, got {columns.shape[1]}")
        return _Reading(batch, columns[:, 0], read, name, bias)

    def take(self, site: Float[Tensor, "prompt position ..."]) -> Float[Tensor, "prompt ..."]:
        """What a site holds where the direction is read."""
        return wide(site[torch.arange(len(self.columns), device=self.columns.device), self.columns])

    def dot(
        self, site: Float[Tensor, "prompt position d_model"], e: Float[Tensor, "prompt d_model"]
    ) -> Float[Tensor, " prompt"]:
        """How far a site lies along `e`."""
        return (self.take(site) * e).sum(-1)


def _answer_direction(
    output: Output, answers: Int[Tensor, " prompt"]
) -> tuple[Float[Tensor, "prompt d_model"], Float[Tensor, " prompt"] | None]:
    """How the output layer reads one token a prompt, before any cap: a direction, and what it adds."""
    return wide(output.weight)[answers] * output.scale, None if output.bias is None else wide(output.bias)[answers]


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


def _answer_ids(model: Transformer, answer: Answer, n_prompts: int) -> Int[Tensor, " prompt"]:
    """One token a prompt."""
    if isinstance(answer, int | Tensor):
        ids = torch.as_tensor(answer)
    elif model.tokenizer is None:
        raise InputError("this model has no tokenizer: give answers as ids")
    elif isinstance(answer, str):
        ids = torch.tensor(model.tokenizer.id(answer))
    else:
        ids = torch.tensor([model.tokenizer.id(each) for each in answer])
    if ids.shape not in {(), (n_prompts,)}:
        raise InputError(f"expected one answer, or one for each of the {n_prompts} prompts; got {tuple(ids.shape)}")
    if int(ids.min()) < 0 or int(ids.max()) >= model.config.d_vocab:
        raise InputError(
            f"answers must lie in 0-{model.config.d_vocab - 1}, the model's vocabulary; got {ids.tolist()}"
        )
    return ids.long().expand(n_prompts).to(model.device)


def _columns(batch: TokenBatch, position: Positions) -> Int[Tensor, "prompt position"]:
    """Columns of the batch at which each prompt's own positions stand, whichever side it is padded on."""
    if isinstance(position, Tensor):
        wanted = position.to(batch.ids.device).reshape(-1, 1)
        if len(wanted) != len(batch.ids):
            raise InputError(f"expected one position for each of {len(batch.ids)} prompts, got {len(wanted)}")
    else:
        several = [-1 if position is None else position] if position is None or isinstance(position, int) else position
        wanted = torch.tensor(several, dtype=torch.long, device=batch.ids.device).expand(len(batch.ids), -1)
    lengths = batch.lengths[:, None]
    outside = (wanted < -lengths) | (wanted >= lengths)
    if bool(outside.any()) or not wanted.numel():
        prompt = int(outside.any(1).int().argmax())
        raise InputError(
            f"no position {wanted[prompt].tolist()} in prompt {prompt}, which has {int(lengths[prompt])} tokens"
        )
    first = batch.mask.int().argmax(1, keepdim=True)
    return first + torch.where(wanted < 0, wanted + lengths, wanted)

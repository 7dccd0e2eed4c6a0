"""What does each term of the stream add to an answer directly, and which later heads read what a head writes?"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor

from interp.attention import Attention
from interp.attribution.writers import (
    Reading,
    attention_layer,
    checked_direction,
    contributions,
    folded,
    grid,
    head_readings,
    named,
    sublayers,
    wide,
)
from interp.devices import move, pick
from interp.display import DataFrame, Figure, Result, draw_figure, signed, so_many
from interp.errors import InputError, one_of
from interp.indices import is_number
from interp.model import Model
from interp.patching.pairs import Answer, Inputs, answer_ids
from interp.patching.patch_sites import Attending, last_stack, only_stack
from interp.patching.results import Drawing, cell_rows, dust, long_table, unreliable
from interp.running import Run, Tokens, as_batches, run
from interp.tokens import Positions
from interp.transformer import Transformer, with_parts

_PREFIX: dict[Attending, str] = {"self": "", "cross": "cross_"}


def head_results(
    model: Model, out: Run | Tokens, layer: int, *, attention: Attending = "self", target: Tokens | None = None
) -> Float[Tensor, "prompt position head d_model"]:
    """What each head of a layer writes: its `z` times its `W_O`; the sum is attention's output without its bias.

    `out` is a run that captured the layer's `attn.z` (or `cross_attn.z`), or tokens to run. In an encoder-decoder the
    heads are the decoder's; with attention `cross`, those that read the encoder.
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
    """What each term of the stream adds to a logit difference (or to any direction) at one position per prompt.

    `names` are `embed` (token and position), `decoder.0.head.3`, `decoder.0.attn.bias` (with the shift of a norm after
    attention), in an encoder-decoder `decoder.0.cross_head.3` and `decoder.0.cross_attn.bias`, `decoder.0.mlp`,
    `norm.bias` and `output.bias`. The values sum to `total`, the model's own number, in logits before any cap.
    """

    names: tuple[str, ...]
    values: Float[Tensor, "term prompt"]
    total: Float[Tensor, " prompt"]
    model: Transformer = field(repr=False)
    inputs: Inputs = field(repr=False)
    columns: Int[Tensor, "prompt 1"] = field(repr=False)  # each prompt's read position
    reading: Reading = field(repr=False)  # maps each prompt's stream before the last norm to the number

    def __getitem__(self, name: str) -> Float[Tensor, " prompt"]:
        """The term with this name."""
        if name not in self.names:
            raise InputError(f"no term {name!r}: expected one of {', '.join(self.names)}")
        return self.values[self.names.index(name)]

    def by_head(self, attention: Attending = "self") -> Float[Tensor, "layer head prompt"]:
        """Only the heads; with attention `cross`, those that read the encoder."""
        attention_layer(self.model.last.blocks[0], attention)  # raises if there is none
        heads = [index for index, name in enumerate(self.names) if f".{_PREFIX[attention]}head." in name]
        return self.values[heads].unflatten(0, (self.model.config.n_layers, -1))

    def by_layer(self) -> Float[Tensor, "layer prompt"]:
        """Everything that each layer's attention (biases included) and feed-forward write."""
        prefixes = [f"{last_stack(self.model)}.{layer}." for layer in range(self.model.config.n_layers)]
        terms = [[index for index, name in enumerate(self.names) if name.startswith(prefix)] for prefix in prefixes]
        return torch.stack([self.values[rows].sum(0) for rows in terms])

    def table(self, *, seed: int = 0) -> DataFrame:
        """One row per term: `effect`, its mean contribution, with interval, p and q, and its `share` of the total.

        Columns are `stack, term` (its name here), `part` (`head`, `cross_head`, `mlp`, `embed`, a bias), `layer, head`
        (missing if the term has none), and those of `results.cell_rows`. Shares are missing if the total cannot be told
        from 0. `seed` seeds the intervals' resampling.
        """
        whole = None if unreliable(self.total) else self.total
        rows = cell_rows(("term",), self.values, dust(self.total), whole, seed=seed)
        rows["term"] = [self.names[column] for column in rows["term"].tolist()]
        place = rows["term"].str.extract(r"^\w+\.(?P<layer>\d+)\.(?P<part>.*?)(?:\.(?P<head>\d+))?$")
        rows["part"] = place["part"].fillna(rows["term"])
        rows[["layer", "head"]] = place[["layer", "head"]].astype("Int64")
        return long_table({"stack": last_stack(self.model)}, [rows], ("term", "part", "layer", "head"))

    def figure(self, kind: Drawing = "map", attention: Attending = "self", **options: Any) -> Figure:
        """A `map` of the heads, or the largest terms in either direction (`top`), with their intervals.

        For `options` see `analyses.figures.cell_map` or `top_cells`: `title`, `width`, `font_size`, `ax`, ...
        """
        table = self.table().assign(metric="logit_difference", direction="on the direct path", site="z")
        draw, title = "top_cells", "Which terms write the answer?"
        if one_of("kind", kind, Drawing) == "map":
            self.by_head(attention)  # raises if there is none
            table = table.loc[table["part"] == f"{_PREFIX[attention]}head"]
            draw, title = "cell_map", "Which heads write the answer, on the direct path?"
        return draw_figure(draw, table, "logit_difference", heading=title, **options)

    def facts(self) -> tuple[str, Mapping[str, str]]:
        """The total, and the largest terms."""
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
    """Each term's contribution to the logit of `right` minus that of `wrong`, with the final norm's scale held fixed.

    The norm is affine once its scale (standard deviation, root mean square) is held at this run's value, so every term
    passes through it alone (Elhage 2021, "A Mathematical Framework for Transformer Circuits"). The same holds for a
    norm between a layer and the stream. The terms sum to the difference up to rounding; RMSNorm rounds to float32.

    In an encoder-decoder the stream is the decoder's, to which heads of both attentions write; the encoder has no
    direct path.

    Args:
        model: a transformer whose last stream is a sum: no norm follows the sums.
        tokens: the prompts.
        right: the answer whose logit counts positively: one for all prompts, or one per prompt; texts or ids.
        wrong: the answer whose logit is subtracted; by default nothing is.
        direction: instead of answers, a direction of the stream after the final norm; it needs no output layer.
        position: where to read, in each prompt's own tokens (negative: from its end), one for all or one per prompt;
            by default the last. In an encoder-decoder, the target's tokens.
        target: what the decoder of an encoder-decoder reads; the encoder reads `tokens`.

    Raises:
        InputError: a stack with norms after its sums; answers read through a masked-word model's transform; neither or
            both of answers and direction.
    """
    model = with_parts(model, "direct attribution")
    inputs = as_batches(model, tokens, target)
    direction, shift = _direction(model, len(inputs[0].ids), right, wrong, direction)
    columns = (inputs[1] or inputs[0]).columns(position)
    if columns.shape[1] != 1:
        raise InputError(f"expected one position per prompt, got {columns.shape[1]}")
    name, stack = last_stack(model), model.last
    before = sublayers(model, name)
    sites = [f"{site}.z" if isinstance(sublayer.layer, Attention) else f"{site}_out" for site, sublayer, _ in before]
    embed, last, final = f"{name}.embed", f"{name}.{len(stack.blocks) - 1}.resid_post", f"{name}.resid_final"
    out = run(model, inputs[0], capture=[*sites, embed, last, final], target=inputs[1])

    def at(site: str) -> Float[Tensor, "prompt place *axes"]:
        return wide(pick(out[site], grid(columns)))

    reading = Reading(direction[..., None], torch.ones_like(direction[:, :1]))
    reading, shifts = reading.before(stack.norm, lambda: at(last))
    blocks = [*contributions(reading, before, at)][::-1]
    terms = {"embed": reading(at(embed))[:, 0, 0]}
    terms |= {name: value[:, 0, 0] for names, values in blocks for name, value in zip(names, values, strict=True)}
    terms |= {name: value[0, :, 0, 0] for (name,), value in named("norm.bias", shifts)}
    total = (at(final)[:, 0] * direction).sum(-1)
    if shift is not None:
        terms["output.bias"] = shift
        total = total + shift
    return DirectAttribution(tuple(terms), torch.stack([*terms.values()]), total, model, inputs, columns, reading)


@torch.no_grad()
def attribution_by_source(
    attribution: DirectAttribution, attention: Attending = "self"
) -> Float[Tensor, "layer head key prompt"]:
    """Each head's direct contribution by the key position that it comes from: pattern[query, key] * v[key] W_O.

    The sum over keys is the head's contribution. Keys are columns of the text that the heads read (the source, in
    cross-attention); padding is NaN.

    Raises:
        InputError: no such attention.
    """
    model, (batch, target), columns = attribution.model, attribution.inputs, attribution.columns
    attention_layer(model.last.blocks[0], attention)  # raises if there is none
    name, index, of_layers = f"{_PREFIX[attention]}attn", grid(columns), []
    sites = [each for each in sublayers(model, last_stack(model)) if each[1].name == name]
    captured = [f"{site}.{part}" for site, *_ in sites for part in ("v", "pattern", "z")]
    out = run(model, batch, captured, target=target, until=captured[-1])
    for site, sublayer, _ in sites:
        z = wide(pick(out[f"{site}.z"], index))
        toward, _ = head_readings(attribution.reading, sublayer, z)
        v = out[f"{site}.v"].repeat_interleave(model.last.config.n_heads // model.last.config.kv_heads, -2)
        toward = toward.weight[..., 0] * toward.factor[..., None]
        worth = einsum(v.to(z), toward, "prompt key head d_head, prompt head d_head -> head key prompt")
        of_layers.append(pick(out[f"{site}.pattern"].transpose(1, 2), index)[:, 0].permute(1, 2, 0) * worth)
    keys = batch if attention == "cross" else target or batch
    return torch.stack(of_layers).masked_fill(~keys.mask.T, torch.nan)


def _direction(
    model: Transformer, n_prompts: int, right: Answer | None, wrong: Answer | None, direction: Tensor | None
) -> tuple[Float[Tensor, "prompt d_model"], Float[Tensor, " prompt"] | None]:
    """The direction to read after the final norm, and the output layer's bias along it."""
    config = model.last.config
    if config.norms_sums:
        raise InputError(
            "this model's norms follow its sums and rescale earlier writes, so its stream is not the sum of its "
            "layers' writes: patch or ablate instead"
        )
    if (right is None) == (direction is None) or (wrong is not None and right is None):
        raise InputError("expected either answers (right, and wrong to compare with) or a direction")
    if right is None:
        assert direction is not None
        return checked_direction(wide(direction.to(model.device)), n_prompts, config.d_model), None
    output = model.output
    if output is None:
        raise InputError("this model has no output layer, so answers have no logits: give a direction")
    if model.config.transform is not None:
        raise InputError(
            "this model transforms its final stream before the output layer, so logits are not sums of its layers' "
            "writes: give a direction of that stream, or patch or ablate instead"
        )
    ids = [answer_ids(model, answer, n_prompts) for answer in (right, wrong) if answer is not None]

    def difference(rows: Tensor) -> Tensor:
        first, *rest = (wide(rows)[answers] for answers in ids)
        return first - rest[0] if rest else first

    return difference(output.weight) * output.scale, None if output.bias is None else difference(output.bias)


@torch.no_grad()
def composition_scores(model: Model) -> Float[Tensor, "kind layer head later_layer later_head"]:
    """How much of a head's write a later head reads: Q-, K- and V-composition (Elhage 2021).

    With W_OV = W_V W_O and W_QK = W_Q W_K^T acting on row vectors of the stream, the scores are |W_OV W_QK|,
    |W_OV W_QK^T| and |W_OV W_OV'| (Frobenius), each divided by the product of its factors' norms: between 0 and 1.
    `kind` is Q, K, V in that order; pairs whose second head is not in a later layer are NaN. A norm before a layer is
    folded into what the layer reads, a norm after it into what it writes: its weight and, in LayerNorm, the removal of
    the mean. Norms after sums, biases, and norms and rotation of queries and keys are ignored.
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

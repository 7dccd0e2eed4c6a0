"""What would heads with random queries and keys attend to, as sharply as the trained ones? The null for attention.

Fresh weights of N(0, 0.02²) give scores that hardly spread, so any head with a preference beats them.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.attention import Attention
from interp.patterns.one_attention import OneAttention, sublayers
from interp.products import linear
from interp.running import run
from interp.tap import UNTAPPED, Tap
from interp.tokens import TokenBatch
from interp.transformer import Transformer
from interp.visibility import Source, Visibility

CAPACITY = 256 << 20  # bytes of cached streams
_QK = tuple[Tensor, Tensor | None, Tensor, Tensor | None]  # W_Q, b_Q, W_K, b_K


class Shuffled(OneAttention):
    """Shuffled copies of one kind of a model's attention.

    Every copy of a layer is a separate layer, next to the layer's other copies. We shuffle the entries of every head's
    W_Q, of every key/value head's W_K, and of their biases, each within its matrix. All copies read the streams of one
    pass of the model. A head's content scores (scaled q·k) are rescaled to the trained head's standard deviation within
    a row, over the rows of the call and without the keys at the first position. Cap, position bias and mask follow as
    in the model.
    """

    def __init__(
        self,
        model: Transformer,
        copies: int,
        seed: int,
        stack: str | None = None,
        attention: str = "self",
        *,
        streams: "Streams | None" = None,
    ):
        """Copy the attention of `stack` (the last by default); several objects with the same `streams` share passes."""
        super().__init__(model, stack, attention)
        self.copies, self.seed = copies, seed
        self.streams = streams or Streams(model, self.stack, attention, capacity=0)
        config = model.config.stacks[self.stack]
        # one layer per copy of a layer
        copied = replace(config, n_layers=config.n_layers * copies, local=None)
        self.config = replace(model.config, **{self.stack: copied})

    @torch.no_grad()
    def __call__(self, batch: TokenBatch, tap: Tap = UNTAPPED, target: TokenBatch | None = None) -> None:
        """Pass every copy's pattern through `tap`."""
        attentions = sublayers(self.model, self.stack, self.attention)
        layers = zip(attentions, self.weights, self.streams.layers(batch, target), strict=True)
        for layer, ((_, attn), weights, site) in enumerate(layers):
            visibility = site.visibility
            scores = _content(attn, weights, site.x, site.keys, visibility)
            by = site.spread / _spread(scores, _counted(attn, visibility)[:, None]).clamp(min=1e-12)
            scores = scores * by[None, ..., None, None]
            bias = None if attn.bias is None else attn.bias(visibility)
            patterns = attn.pattern(attn.entering(scores, bias, visibility.near(attn.reach).mask()[:, None]))
            for number, pattern in enumerate(patterns.unbind(1), layer * self.copies):
                tap.at(self.stack).at(str(number)).at(self.name)("pattern", pattern)

    @cached_property
    def weights(self) -> list[_QK]:
        """The shuffled heads' weights and biases, by layer (`copy head ...`)."""
        generator, layers = torch.Generator().manual_seed(self.seed), []
        for _, attn in sublayers(self.model, self.stack, self.attention):
            parts = [None if part is None else _shuffled(part[0], self.copies, generator) for part in _weights(attn)]
            layers.append(tuple(parts))
        return layers


def shuffled_copy(model: Transformer, seed: int) -> Transformer:
    """A model whose heads attend elsewhere: the entries of each head's W_Q, W_K and their biases are shuffled.

    It shares all other weights with the model. What it can still do needs no particular attention.
    """
    generator = torch.Generator().manual_seed(seed)
    layers = [part for part in model.modules() if isinstance(part, Attention)]
    shuffled = {id(weight): weight for layer in layers for weight in layer.qkv.parameters()}
    shared = {id(weight): weight for weight in (*model.parameters(), *model.buffers()) if id(weight) not in shuffled}
    shuffled_model = copy.deepcopy(model, shared)
    with torch.no_grad():
        for layer in (part for part in shuffled_model.modules() if isinstance(part, Attention)):
            for weight in _weights(layer):
                if weight is not None:
                    weight.copy_(_shuffled(weight[0], 1, generator))
    return shuffled_model


@dataclass(frozen=True)
class _Inputs:
    """What one layer's heads read, and the spread of the trained heads' scores."""

    x: Float[Tensor, "prompt query d_model"]
    keys: Float[Tensor, "prompt key d_model"]
    visibility: Visibility
    spread: Float[Tensor, "1 head"]


class Streams:
    """What one kind of a model's attention reads, layer by layer, with a cache for repeated texts."""

    def __init__(self, model: Transformer, stack: str, attention: str = "self", *, capacity: int = CAPACITY):
        """Read for the attention of `stack`; cache at most `capacity` bytes."""
        self.model, self.stack, self.attention = model, stack, attention
        self.room, self._known = capacity, dict[bytes, list[_Inputs]]()

    @torch.no_grad()
    def layers(self, batch: TokenBatch, target: TokenBatch | None = None) -> list[_Inputs]:
        """What the layers read from some texts, and from their targets if there are any."""
        texts = [each for each in (batch, target) if each is not None]
        key = b"".join(part.cpu().numpy().tobytes() for each in texts for part in (each.ids, each.mask))
        if (layers_kept := self._known.get(key)) is not None:
            return layers_kept
        layers = [*self._read_layers(batch, target)]
        size = sum(each.x.nbytes + (0 if each.keys is each.x else each.keys.nbytes) for each in layers)
        if size <= self.room:
            self.room -= size
            self._known[key] = layers
        return layers

    def _read_layers(self, batch: TokenBatch, target: TokenBatch | None) -> Iterator[_Inputs]:
        prefix, stream = f"{self.stack}.*.resid_", "pre" if self.attention == "self" else "mid"
        site, final = prefix + stream, [] if self.attention == "self" else ["encoder.resid_final"]
        out = run(self.model, batch, target=target, capture=final, until=site)
        queries = batch if target is None or self.stack == "encoder" else target
        visibility = Visibility.from_batch(queries, causal=self.model.config.stacks[self.stack].causal)
        for layer, (sublayer, attn) in enumerate(sublayers(self.model, self.stack, self.attention)):
            x = keys = sublayer.read(out[f"{self.stack}.{layer}.resid_{stream}"])
            if final:
                keys = out[final[0]]
                visibility = Source.from_stream(keys, batch).seen_by(visibility)
            trained = _content(attn, _weights(attn), x, keys, visibility)
            yield _Inputs(x, keys, visibility, _spread(trained, _counted(attn, visibility)[:, None]))


def _content(
    attn: Attention, weights: _QK, x: Tensor, keys: Tensor, visibility: Visibility
) -> Float[Tensor, "prompt copy head query key"]:
    """Scaled q·k of heads with these weights."""
    projected = []
    for stream, weight, bias in ((x, *weights[:2]), (keys, *weights[2:])):
        flat = weight.to(stream).transpose(-1, -2).flatten(0, 2)
        heads = linear(stream, flat).unflatten(-1, (*weight.shape[:2], -1)).permute(2, 0, 1, 3, 4)
        projected.append(heads if bias is None else heads + bias[:, None, None].to(stream))
    copies, prompts = projected[0].shape[:2]
    positions = visibility.positions.expand(prompts, -1).repeat(copies, 1)
    q, k = (each.flatten(0, 1) for each in projected)
    q = attn.queries(q, positions)
    k = attn.keys(k, positions if not visibility.across else positions.new_zeros(len(k), k.shape[1]))
    scores = q.transpose(1, 2) @ attn.shared(k.transpose(1, 2)).transpose(-1, -2) * attn.config.score_scale
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    return scores.unflatten(0, (copies, prompts)).transpose(0, 1)


def _shuffled(weight: Float[Tensor, "kv_head ..."], copies: int, generator: torch.Generator) -> Tensor:
    """Copies of each head's weight with its entries shuffled."""
    flat = weight.flatten(1)
    orders = [
        torch.stack([torch.randperm(flat.shape[1], generator=generator) for _ in flat]).to(flat.device)
        for _ in range(copies)
    ]
    return torch.stack([flat.gather(1, order).view_as(weight) for order in orders])


def _weights(attn: Attention) -> _QK:
    """The trained weights, as one copy."""
    n_q, n_kv, b_q, b_k = attn.config.n_heads, attn.config.kv_heads, None, None
    if attn.qkv.bias is not None:
        b_q, b_k, _ = attn.qkv.bias.detach().unflatten(0, (-1, attn.config.d_head))[None].split([n_q, n_kv, n_kv], 1)
    return attn.W_Q.detach()[None], b_q, attn.W_K.detach()[None], b_k


def _counted(attn: Attention, visibility: Visibility) -> Bool[Tensor, "prompt 1 query key"]:
    """The keys that count for a row's spread: those it sees, except the first."""
    visible = visibility.near(attn.reach).mask().clone()
    visible[..., 0] = False
    return visible


def _spread(
    scores: Float[Tensor, "prompt *copy head query key"], counted: Bool[Tensor, "*prompt query key"]
) -> Float[Tensor, "*copy head"]:
    """The standard deviation of a head's scores within rows, over rows with two or more keys."""
    counted = counted.expand(len(scores), *counted.shape[1:])
    n = counted.sum(-1)
    mean = (scores * counted).sum(-1) / n.clamp(min=1)
    variance = ((scores - mean[..., None]) ** 2 * counted).sum(-1) / n.clamp(min=1)
    has_choice = (n > 1).expand_as(variance)
    return ((variance * has_choice).sum((0, -1)) / has_choice.sum((0, -1)).clamp(min=1)).sqrt()

"""What would heads attend to that ask at random, as sharply as the trained ones do?

Freshly drawn weights of N(0, 0.02²) give scores that hardly spread, so their heads attend to all keys alike, and any
head that prefers anything beats them. Here each head's own W_Q and W_K lose their order and keep their numbers; what
they read is the trained model's stream, and their scores spread over a row as far as the trained head's do.
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
from interp.sight import Sight, Source
from interp.tap import UNTAPPED, Tap
from interp.tokens import TokenBatch
from interp.transformer import Transformer

KEPT = 256 << 20  # bytes of streams that are kept
_QK = tuple[Tensor, Tensor | None, Tensor, Tensor | None]  # W_Q, b_Q, W_K, b_K


class Shuffled(OneAttention):
    """Copies of one kind of attention of a model.

    Every copy of a layer is a layer of its own, the copies of one layer next to each other. In each, the entries of
    every head's W_Q, of every key/value head's W_K, and of their biases have changed places within the matrix. Heads
    read the streams of the model itself, so one pass of it serves all copies. A head's content scores (scaled q·k) are
    multiplied by what makes their standard deviation within a row that of the trained head's, over the rows of the
    call; keys at the first position, where heads rest, do not count for it. A cap, what positions add and masks follow
    as in the model.
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
        """Copies of the attention of `stack` (by default the last), within it or to its source (`cross`).

        Several that read the same texts share `streams`, and so the model's passes.
        """
        super().__init__(model, stack, attention)
        self.copies, self.seed = copies, seed
        self.streams = streams or Streams(model, self.stack, attention, kept=0)
        of = model.config.stacks[self.stack]
        own = replace(of, n_layers=of.n_layers * copies, local=None)  # as many layers as there are copies of layers
        self.config = replace(model.config, **{self.stack: own})

    @torch.no_grad()
    def __call__(self, batch: TokenBatch, tap: Tap = UNTAPPED, target: TokenBatch | None = None) -> None:
        """Pass every copy's pattern through `tap`."""
        layers = zip(self.sublayers(), self.weights, self.streams.of(batch, target), strict=True)
        for layer, (sublayer, weights, read) in enumerate(layers):
            attn, sight = sublayer.layer, read.sight
            assert isinstance(attn, Attention)
            scores = _content(attn, weights, read.x, read.keys, sight)
            by = read.spread / _spread(scores, _counted(attn, sight)[:, None]).clamp(min=1e-12)
            scores = scores * by[None, ..., None, None]
            bias = None if attn.bias is None else attn.bias(sight)
            patterns = attn.entering(scores, bias, sight.near(attn.reach).mask()[:, None]).softmax(-1)
            for number in range(self.copies):
                tap.at(self.stack).at(str(layer * self.copies + number)).at(self.name)("pattern", patterns[:, number])

    @cached_property
    def weights(self) -> list[_QK]:
        """Of each layer, the shuffled heads' weights and biases (`copy head ...`)."""
        generator, found = torch.Generator().manual_seed(self.seed), []
        for sublayer in self.sublayers():
            assert isinstance(sublayer.layer, Attention)
            own = _weights(sublayer.layer)
            found.append(tuple(None if each is None else _shuffled(each[0], self.copies, generator) for each in own))
        return found


def shuffled_copy(model: Transformer, seed: int) -> Transformer:
    """A model all of whose heads look elsewhere: the entries of each head's W_Q and W_K, and of their biases, have
    changed places within the matrix. All other weights are the model's own, shared with it.

    What such a copy can do, the model need not look anywhere in particular for.
    """
    generator = torch.Generator().manual_seed(seed)
    layers = [part for part in model.modules() if isinstance(part, Attention)]
    shuffled = {id(own): own for layer in layers for own in layer.qkv.parameters()}
    shared = {id(own): own for own in (*model.parameters(), *model.buffers()) if id(own) not in shuffled}
    made = copy.deepcopy(model, shared)
    with torch.no_grad():
        for layer in (part for part in made.modules() if isinstance(part, Attention)):
            for own in _weights(layer):
                if own is not None:
                    own.copy_(_shuffled(own[0], 1, generator))
    return made


@dataclass(frozen=True)
class _Read:
    """What the heads of one layer read, and how far the trained ones' scores of it spread."""

    x: Float[Tensor, "prompt query d_model"]
    keys: Float[Tensor, "prompt key d_model"]
    sight: Sight
    spread: Float[Tensor, "1 head"]


class Streams:
    """What one kind of attention of a model reads, layer by layer; that of texts which come again is kept."""

    def __init__(self, model: Transformer, stack: str, attention: str = "self", *, kept: int = KEPT):
        """Of the attention of `stack`, within it or to its source (`cross`); `kept` bytes at most."""
        self.model, self.stack, self.attention = model, stack, attention
        self.room, self._known = kept, dict[bytes, list[_Read]]()

    @torch.no_grad()
    def of(self, batch: TokenBatch, target: TokenBatch | None = None) -> list[_Read]:
        """What is read of some texts, and of their targets where there are any."""
        texts = [each for each in (batch, target) if each is not None]
        about = b"".join(part.cpu().numpy().tobytes() for each in texts for part in (each.ids, each.mask))
        if (known := self._known.get(about)) is not None:
            return known
        found = [*self._read(batch, target)]
        size = sum(each.x.nbytes + (0 if each.keys is each.x else each.keys.nbytes) for each in found)
        if size <= self.room:
            self.room -= size
            self._known[about] = found
        return found

    def _read(self, batch: TokenBatch, target: TokenBatch | None) -> Iterator[_Read]:
        within, stream = f"{self.stack}.*.resid_", "pre" if self.attention == "self" else "mid"
        read, final = within + stream, [] if self.attention == "self" else ["encoder.resid_final"]
        seen = run(self.model, batch, target=target, capture=final, until=read)
        own = batch if target is None or self.stack == "encoder" else target
        sight = Sight.of(own, causal=self.model.config.stacks[self.stack].causal)
        for layer, sublayer in enumerate(sublayers(self.model, self.stack, self.attention)):
            x = keys = sublayer.read(seen[f"{self.stack}.{layer}.resid_{stream}"])
            if final:
                keys = seen[final[0]]
                sight = Source.of(keys, batch).seen_by(sight)
            attn = sublayer.layer
            assert isinstance(attn, Attention)
            trained = _content(attn, _weights(attn), x, keys, sight)
            yield _Read(x, keys, sight, _spread(trained, _counted(attn, sight)[:, None]))


def _content(
    attn: Attention, weights: _QK, x: Tensor, keys: Tensor, sight: Sight
) -> Float[Tensor, "prompt copy head query key"]:
    """Scaled q·k of heads with such weights."""
    made = []
    for stream, weight, bias in ((x, *weights[:2]), (keys, *weights[2:])):
        flat = weight.to(stream).transpose(-1, -2).flatten(0, 2)
        heads = linear(stream, flat).unflatten(-1, (*weight.shape[:2], -1)).permute(2, 0, 1, 3, 4)
        made.append(heads if bias is None else heads + bias[:, None, None].to(stream))
    copies, prompts = made[0].shape[:2]
    positions = sight.positions.expand(prompts, -1).repeat(copies, 1)
    q, k = (each.flatten(0, 1) for each in made)
    q = attn.queries(q, positions)
    k = attn.keys(k, positions if not sight.across else positions.new_zeros(len(k), k.shape[1]))
    scores = q.transpose(1, 2) @ attn.shared(k.transpose(1, 2)).transpose(-1, -2) * attn.config.score_scale
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    return scores.unflatten(0, (copies, prompts)).transpose(0, 1)


def _shuffled(weight: Float[Tensor, "kv_head ..."], copies: int, generator: torch.Generator) -> Tensor:
    """The entries of each head's weight in another order, a copy at a time."""
    flat = weight.flatten(1)
    orders = [
        torch.stack([torch.randperm(flat.shape[1], generator=generator) for _ in flat]).to(flat.device)
        for _ in range(copies)
    ]
    return torch.stack([flat.gather(1, order).view_as(weight) for order in orders])


def _weights(attn: Attention) -> _QK:
    """The trained ones, as one copy."""
    n_q, n_kv, d_head = attn.config.n_heads, attn.config.kv_heads, attn.config.d_head
    bias = None if attn.qkv.bias is None else attn.qkv.bias.unflatten(0, (-1, d_head))
    own = attn.W_Q, None if bias is None else bias[:n_q], attn.W_K, None if bias is None else bias[n_q : n_q + n_kv]
    found = [None if each is None else each.detach()[None] for each in own]
    assert found[0] is not None
    assert found[2] is not None
    return found[0], found[1], found[2], found[3]


def _counted(attn: Attention, sight: Sight) -> Bool[Tensor, "prompt 1 query key"]:
    """The keys over which a row's scores spread: those it sees, but the first."""
    seen = sight.near(attn.reach).mask().clone()
    seen[..., 0] = False
    return seen


def _spread(
    scores: Float[Tensor, "prompt *copy head query key"], counted: Bool[Tensor, "*prompt query key"]
) -> Float[Tensor, "*copy head"]:
    """The standard deviation of a head's scores within its rows, over rows of two keys and more."""
    counted = counted.expand(len(scores), *counted.shape[1:])
    n = counted.sum(-1)
    mean = (scores * counted).sum(-1) / n.clamp(min=1)
    variance = ((scores - mean[..., None]) ** 2 * counted).sum(-1) / n.clamp(min=1)
    several = (n > 1).expand_as(variance)
    return ((variance * several).sum((0, -1)) / several.sum((0, -1)).clamp(min=1)).sqrt()

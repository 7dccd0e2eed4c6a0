"""One hookable transformer: sublayer, block, stack. Read it from top to bottom beside Vaswani 2017.

Axes, in the order in which they appear; leading axes are free ("..."), so that a sweep can put `cells` before `prompt`:

    residual stream   ... position d_model
    q z               ... query head d_head
    k v               ... key kv_head d_head      (kv_head = head unless key/value heads are shared)
    scores, pattern   ... head query key
    logits            ... position d_vocab

Sites (`tap(name, value)`) mean the same in every architecture; `interp.sites(model)` lists them.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from interp.attention import Attention, CrossAttention, KVCache
from interp.config import StackConfig, TransformerConfig, Wiring
from interp.devices import move
from interp.errors import InputError
from interp.model import Model, Site, Tokens, as_batches, matching, sites_of, split_name
from interp.parts import Around, Embedding, Output, Stream, build_mlp, build_norm
from interp.positions import build_bias
from interp.shortcuts import Shortcuts, Weights
from interp.tap import UNTAPPED, Tap
from interp.tokens import TokenBatch, Tokenizer
from interp.visibility import Source, Visibility


class Sublayer:
    """A layer, and how it meets the stream: norm_sum(x + norm_after(layer(norm_before(x)))).

    `pre` has the norm before the layer (Radford 2019), `post` after the sum (Vaswani 2017), `after` after the layer
    (Walsh 2025), `sandwich` one before it and one after it (Ding 2021).
    """

    def __init__(self, name: str, norm: nn.Module, layer: nn.Module | None, site: str = "", wiring: Wiring = "pre"):
        self.name, self.layer, self.site = name, layer, site
        self.norm_before = self.norm_after = self.norm_sum = _NO_NORM
        match wiring:
            case "post":
                self.norm_sum = norm
            case "after":
                self.norm_after = norm
            case "sandwich":
                self.norm_before, self.norm_after = cast(Around, norm).before, cast(Around, norm).after
            case _:
                self.norm_before = norm

    def __call__(self, residual: Stream, tap: Tap = UNTAPPED, *inputs: Any) -> Stream:
        """The stream after it; `inputs` are what the layer reads besides the stream."""
        return self.add(residual, self.out(residual, tap, *inputs), tap)

    def out(self, residual: Stream, tap: Tap = UNTAPPED, *inputs: Any) -> Stream:
        """What it adds to the stream when it reads `residual`."""
        assert self.layer is not None
        inner = tap.at(self.name)
        out = self.layer(inner("normalized", self.read(residual)), inner, *inputs)
        return tap(f"{self.name}_out", self.write(out))

    def read(self, residual: Stream) -> Stream:
        """The stream as the layer reads it."""
        return self.norm_before(residual)

    def write(self, out: Stream) -> Stream:
        """The layer's output as it is added to the stream."""
        return self.norm_after(out)

    def add(self, residual: Stream, out: Stream, tap: Tap = UNTAPPED) -> Stream:
        """The stream with the output added."""
        return tap(self.site, self.norm_sum(residual + out))


class Parallel(Sublayer):
    """Attention and a feed-forward that read the same stream and add to it at once (Wang & Komatsuzaki 2021)."""

    def __init__(self, name: str, norm: nn.Module, layer: nn.Module, feed_forward: Sublayer):
        super().__init__(name, norm, layer)
        self.feed_forward = feed_forward

    def add(self, residual: Stream, out: Stream, tap: Tap = UNTAPPED) -> Stream:
        """The stream with both outputs added."""
        if self.feed_forward.layer is None:
            return residual + out
        return residual + out + self.feed_forward.out(residual, tap)


class Unchanged(Sublayer):
    """A feed-forward that leaves the stream as it is: there is none, or `Parallel` has added its output."""

    def __call__(self, residual: Stream, tap: Tap = UNTAPPED, *inputs: Any) -> Stream:
        """The stream as it is."""
        return tap(self.site, residual)


_NO_NORM = nn.Identity()


class Block(nn.Module):
    """Attention, cross-attention if there is an encoder, and a feed-forward, each added to the stream."""

    def __init__(self, config: StackConfig, layer: int = 0, bias: nn.Module | None = None):
        super().__init__()
        self.config = config
        self.attn = Attention(config, layer, bias)
        self.norm_attn = self._norm() if layer or config.first_norm else nn.Identity()
        self.cross_attn = CrossAttention(config) if config.cross_attention else None
        self.norm_cross = self._norm() if config.cross_attention else nn.Identity()
        self.mlp = build_mlp(config)
        self.norm_mlp = nn.Identity() if self.mlp is None else self._norm()
        if config.wiring == "parallel_one_norm":
            self.norm_mlp = self.norm_attn

    def _norm(self) -> nn.Module:
        shape = Around if self.config.wiring == "sandwich" else build_norm
        return shape(self.config.norm, self.config.d_model)

    @property
    def device(self) -> torch.device:
        """The device of its weights and of all that it computes."""
        return next(self.attn.qkv.parameters()).device

    @property
    def attention(self) -> Sublayer:
        """The first sublayer; in parallel blocks it adds the feed-forward as well."""
        if self.config.parallel:
            return Parallel("attn", self.norm_attn, self.attn, self.feed_forward)
        return Sublayer("attn", self.norm_attn, self.attn, "resid_mid", self.config.wiring)

    @property
    def cross(self) -> Sublayer:
        """The sublayer that reads the encoder."""
        if self.cross_attn is None:
            raise InputError("this decoder has no cross-attention: expected no source")
        return Sublayer("cross_attn", self.norm_cross, self.cross_attn, "resid_cross", self.config.wiring)

    @property
    def feed_forward(self) -> Sublayer:
        """The last sublayer."""
        if self.mlp is None or self.config.parallel:
            return Unchanged("mlp", self.norm_mlp, self.mlp, "resid_post")
        return Sublayer("mlp", self.norm_mlp, self.mlp, "resid_post", self.config.wiring)

    def forward(
        self,
        residual: Stream,
        visibility: Visibility,
        tap: Tap = UNTAPPED,
        past: KVCache | None = None,
        source: Source | None = None,
    ) -> Stream:
        """The stream after this block, on its device."""
        if residual.device != (device := self.device) or visibility.columns.device != device:
            residual, visibility, source = move((residual, visibility, source), device)
        x = self.attention(tap("resid_pre", residual), tap, visibility, past)
        if source is not None:
            x = self.cross(x, tap, visibility, past, source)
        return self.feed_forward(x, tap)


class Stack(Weights, nn.Module):
    """Blocks that carry one residual stream, from token embeddings to the final norm."""

    def __init__(self, config: StackConfig):
        super().__init__()
        self.config = config
        self.embed = Embedding(config)
        bias = build_bias(config)
        blocks = nn.ModuleList(Block(config, layer, bias) for layer in range(config.n_layers))
        self.blocks = cast(list[Block], blocks)
        # with norms after the sums, the last block has normalised the stream already
        self.norm = nn.Identity() if config.wiring == "post" else build_norm(config.norm, config.d_model)

    @property
    def device(self) -> torch.device:
        """The device of the embedding and the final norm, and so of the stream at both ends."""
        return self.embed.token.weight.device

    def weighted(self) -> tuple[Embedding, list[Attention]]:
        """The modules that hold the weights of its shortcuts."""
        return self.embed, [block.attn for block in self.blocks]

    def forward(self, batch: TokenBatch, tap: Tap = UNTAPPED, source: Source | None = None) -> Stream:
        """Residual stream after the final norm, for whole texts."""
        residual = tap("embed", self.embed(batch.ids, batch.positions))
        return self.resume(residual, Visibility.from_batch(batch, causal=self.config.causal), tap=tap, source=source)

    def resume(
        self,
        residual: Stream,
        visibility: Visibility,
        *,
        tap: Tap = UNTAPPED,
        start: int = 0,
        past: Sequence[KVCache] | None = None,
        source: Source | None = None,
    ) -> Stream:
        """Continue from the stream that enters block `start`, with the keys and values of earlier positions, if given.

        The stream moves to each block's device, and in the end to the embedding's.
        """
        for layer in range(start, len(self.blocks)):
            earlier = past[layer] if past else None
            residual = self.blocks[layer](residual, visibility, tap.at(str(layer)), earlier, source)
        return tap("resid_final", self.norm(residual.to(self.device)))


class Transformer(Shortcuts, nn.Module):
    """Stacks and the output layer; `W_Q[layer, head]` and the like are the last stack's, `stack("encoder")` has its."""

    def __init__(
        self, config: TransformerConfig, tokenizer: Tokenizer | None = None, target_tokenizer: Tokenizer | None = None
    ):
        super().__init__()
        self.config, self.tokenizer = config, tokenizer
        shares_vocabulary = len({stack.d_vocab for stack in config.stacks.values()}) == 1
        self.target_tokenizer = target_tokenizer or (tokenizer if shares_vocabulary else None)  # of the last stack
        self.source: Path | None = None  # the directory that the weights were read from
        self.files: tuple[Any, ...] = ()  # its weight files, and their status when they were read
        self.family: str | None = None  # what the format of that directory is called
        self.stacks = nn.ModuleDict({name: Stack(stack) for name, stack in config.stacks.items()})
        self.output = None if config.output == "none" else Output(config)
        self.tie()
        self.eval()

    def tie(self) -> None:
        """Share parameters where the configuration says so."""
        if self.config.shared_embedding:
            self.last.embed.token.weight = self.stack("encoder").embed.token.weight
        if self.output is not None and self.config.output == "tied":
            self.output.weight = self.last.embed.token.weight

    def stack(self, name: str) -> Stack:
        """The stack called `name`: `encoder` or `decoder`."""
        return cast(Stack, self.stacks[name])

    @property
    def last(self) -> Stack:
        """The stack that the output layer reads: the decoder, or the encoder of an encoder-only model."""
        return self.stack(next(reversed(self.config.stacks)))

    @property
    def device(self) -> torch.device:
        """The device of texts and logits, and of all weights except blocks that were placed elsewhere."""
        return self.last.device

    def device_of(self, site: str) -> torch.device:
        """The device of a site's activations: its block's, or outside blocks the model's."""
        if len(names := matching(self, site)) > 1:
            raise InputError(f"expected one site, got {site!r}, which matches {len(names)}")
        stack, layer, _ = split_name(names[0])
        return self.device if stack is None or layer is None else self.stack(stack).blocks[layer].device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of weights and activations."""
        return self.last.embed.token.weight.dtype

    @property
    def sites(self) -> Mapping[str, Site]:
        """All sites, by name."""
        return sites_of(self.config)

    def weighted(self) -> tuple[Embedding, list[Attention]]:
        """The modules that hold the weights of its shortcuts: the last stack's."""
        return self.last.weighted()

    def forward(
        self, batch: Tokens, tap: Tap = UNTAPPED, target: Tokens | None = None
    ) -> Float[Tensor, "*batch position d_vocab"] | None:
        """Logits of every position (of `target` if there are two stacks); None without an output layer.

        Text and ids are read as in `run`; gradients are kept as torch's mode says.
        """
        two, has_target = len(self.stacks) > 1, target is not None
        if not isinstance(batch, TokenBatch) or not isinstance(target, TokenBatch | None) or two != has_target:
            batch, target = as_batches(self, batch, target)
        (name, stack), *decoders = self.stacks.items()
        final = stack(batch, tap.at(name))
        for name, decoder in decoders:
            assert target is not None
            final = decoder(target, tap.at(name), Source.from_stream(final, batch))
        return self.read(final, tap)

    def read(self, final: Stream, tap: Tap = UNTAPPED) -> Float[Tensor, "*batch position d_vocab"] | None:
        """Logits from the last stack's final residual stream, at all positions or some."""
        return None if self.output is None else tap("logits", self.output(final))


def with_parts(model: Model, task: str) -> Transformer:
    """`model`, if a task can call its blocks, norms and weights one at a time; else an `InputError`."""
    if isinstance(model, Transformer):
        return model
    edits = hasattr(model, "edits")
    reason = "would bypass the edits bound to this one" if edits else "another library runs this model as a whole"
    raise InputError(f"{task} calls a model's parts one by one, and {reason}: use a plain way (sweep_by_forward, ...)")

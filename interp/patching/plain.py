"""The unpatched run that cells start from: everything that a cell may leave as it was."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from interp.attention import Attention
from interp.config import NoMLP
from interp.model import matching
from interp.patching.pairs import Inputs
from interp.patching.patch_sites import Attending
from interp.tap import Tap
from interp.tokens import TokenBatch
from interp.transformer import Block, Transformer
from interp.visibility import Source, Visibility

_PARTS = ("q", "k", "v", "z")


@dataclass(frozen=True)
class PlainRun:
    """A stack's run over whole prompts with everything kept that a cell may leave as it was, layer by layer.

    `resid` has one entry more than there are layers: the stream into each block, and out of the last. The other sites
    are at `run[name]`, by their name inside a block (`attn.z`); queries and keys there are as they enter the scores
    (normalised, rotated), keys and values have one head a key/value head. `final` is the stream after the last norm,
    `source` the encoder's run where the stack has cross-attention.
    """

    stack: str
    batch: TokenBatch
    resid: list[Float[Tensor, "... position d_model"]]
    seen: dict[str, list[Tensor]]
    final: Float[Tensor, "... position d_model"]
    source: "PlainRun | None" = None

    def __getitem__(self, site: str) -> list[Tensor]:
        """What each layer had at a site."""
        if site == "resid_pre":
            return self.resid[:-1]
        return self.resid[1:] if site == "resid_post" else self.seen[site]

    def putting(self, site: str, layers: Sequence[Tensor]) -> "PlainRun":
        """The same with something else at a site; what follows from it is left as it was."""
        if site == "resid_pre":
            return replace(self, resid=[*layers, self.resid[-1]])
        if site == "resid_post":
            return replace(self, resid=[self.resid[0], *layers])
        return replace(self, seen=self.seen | {site: [*layers]})

    def of_stack(self, stack: str) -> "PlainRun":
        """This run, or that of the encoder that it reads."""
        if self.stack == stack:
            return self
        assert self.source is not None
        return self.source

    @staticmethod
    def of(model: Transformer, batch: TokenBatch, target: TokenBatch | None = None) -> "PlainRun":
        """Run the model and keep its activations; the run is that of the stack which the output layer reads."""
        return PlainRun._run(model, [(batch, target)])

    @staticmethod
    def of_both(model: Transformer, one: Inputs, other: Inputs) -> "tuple[PlainRun, PlainRun]":
        """Two inputs of one shape, run as one; a text that is the same in both is read once."""
        both = PlainRun._run(model, [one, other])
        return both._one(0, one), both._one(1, other)

    @staticmethod
    @torch.no_grad()
    def _run(model: Transformer, inputs: Sequence[Inputs]) -> "PlainRun":
        """All inputs at once, on a new first axis wherever they differ by now."""
        run, read = None, None
        for at, name in enumerate(model.config.stacks):
            batch, *others = [texts[at] for texts in inputs]
            assert batch is not None
            same = all(other is None or torch.equal(batch.ids, other.ids) for other in others)
            ids = batch.ids if same else torch.stack([batch.ids, *(other.ids for other in others if other)])
            stack = model.stack(name)
            sites = [f"{name}.*.{site}" for site in _kept(model, name)]
            sites.append(f"{name}.{len(stack.blocks) - 1}.resid_post")  # what leaves another block enters the next
            tap = Tap(capture=frozenset(matching(model, sites)))
            residual = stack.embed(ids, batch.positions.expand_as(ids))
            visibility = Visibility.of(batch, causal=stack.config.causal)
            final = stack.resume(residual, visibility, tap=tap.at(name), source=read)
            layers, seen = range(len(stack.blocks)), tap.seen
            found = {site: [seen[f"{name}.{layer}.{site}"] for layer in layers] for site in _kept(model, name)}
            resid = [*found.pop("resid_pre"), seen[f"{name}.{layers[-1]}.resid_post"]]
            for kind, part in product(("attn", "cross_attn"), ("q", "k")):
                attns = [block.attn if kind == "attn" else block.cross_attn for block in stack.blocks]
                enter = Attention.queries if part == "q" else Attention.keys
                made = zip(attns, found.get(f"{kind}.{part}", ()), strict=False)
                if entered := [enter(attn, x, _positions(batch, x)) for attn, x in made if attn is not None]:
                    found[f"{kind}.{part}"] = entered
            run = PlainRun(name, batch, resid, found, final, run)
            read = Source.of(final, batch)
        assert run is not None  # the metrics say which logits they need; the rest is never computed
        return run

    def take(self, prompts: Int[Tensor, " prompt"], lengths: Mapping[str, int]) -> "PlainRun":
        """Some of the prompts, and of each stack's text the first positions."""
        source = None if self.source is None else self.source.take(prompts, lengths)
        whole = lengths[self.stack] == self.batch.ids.shape[1] and source is self.source
        if whole and prompts.tolist() == [*range(len(self.batch.ids))]:
            return self

        def some(site: str, x: Tensor) -> Tensor:
            keys = site in {"cross_attn.k", "cross_attn.v"}
            return x[prompts, : lengths["encoder" if keys else self.stack]]

        batch = TokenBatch(*(some("batch", x) for x in (self.batch.ids, self.batch.mask, self.batch.positions)))
        return self._each(some, batch, source)

    def _one(self, at: int, inputs: Inputs) -> "PlainRun":
        """One of several inputs that were run together."""
        *below, batch = [texts for texts in inputs if texts is not None]
        source = None if self.source is None else self.source._one(at, (below[0], None))

        def own(site: str, x: Tensor) -> Tensor:
            by_head = site.startswith(("attn.", "cross_attn."))
            return x if x.ndim == (4 if by_head else 3) else x[at]

        return self._each(own, batch, source)

    def _each(self, part: Callable[[str, Tensor], Tensor], batch: TokenBatch, source: "PlainRun | None") -> "PlainRun":
        resid = [part("resid_pre", x) for x in self.resid]
        seen = {site: [part(site, x) for x in layers] for site, layers in self.seen.items()}
        return PlainRun(self.stack, batch, resid, seen, part("resid_final", self.final), source)


def _kept(model: Transformer, stack: str) -> list[str]:
    """The sites of every block that are kept."""
    config, attentions = model.config.stacks[stack], ["attn"]
    found = ["resid_pre", "attn_out", *([] if config.parallel else ["resid_mid"])]
    if config.cross_attention:
        found += ["resid_cross", "cross_attn_out"]
        attentions.append("cross_attn")
    found += [] if isinstance(config.mlp, NoMLP) else ["mlp_out"]
    return [*found, *(f"{attention}.{part}" for attention in attentions for part in _PARTS)]


def _positions(batch: TokenBatch, x: Float[Tensor, "*batch position head d_head"]) -> Int[Tensor, "prompt position"]:
    """Where they stand; for keys of another text anything, as nothing turns them."""
    if x.shape[-3] == batch.ids.shape[1]:
        return batch.positions
    return batch.positions.new_zeros(len(batch.ids), x.shape[-3])


At = tuple[slice | Tensor, slice | Tensor] | tuple[int, Tensor]  # which prompts, and which of their positions


def after_attention(
    block: Block,
    plain: PlainRun,
    layer: int,
    rows: At,
    written: Float[Tensor, "*cells row d_model"],
    attention: Attending = "self",
) -> Float[Tensor, "*cells row d_model"]:
    """The stream that attention leaves at some rows where its heads write so much more than in the plain run.

    It is what `block.attention` or `block.cross` would give: in parallel blocks it has passed the feed-forward too.
    """
    if block.attn.config.parallel:
        return plain.resid[layer + 1][rows] + written
    sublayer = block.attention if attention == "self" else block.cross
    read, more = ("resid_pre" if attention == "self" else "resid_mid"), written
    wrote = plain[f"{sublayer.name}_out"][layer][rows]
    if not isinstance(sublayer.norm_after, nn.Identity):  # how much more it adds behind its norm
        assert isinstance(sublayer.layer, Attention)
        raw = sublayer.layer.out(plain[f"{sublayer.name}.z"][layer][rows].flatten(-2))
        more = sublayer.write(raw + written) - wrote
    return sublayer.add(plain[read][layer][rows], wrote + more)


def visibility_of(
    model: Transformer, base: PlainRun, attention: str = "self", rows: slice | Int[Tensor, " row"] | None = None
) -> Visibility:
    """What `rows` (None: all) of a stack's texts see of their own text, or of the source.

    Pairs have their padding on the right: no causal query sees it, so it needs no mask.
    """
    visibility = Visibility.of(base.batch, causal=model.config.stacks[base.stack].causal)
    visibility = replace(visibility, padding=None) if visibility.causal else visibility
    if rows is not None:
        visibility = visibility.at(visibility.columns[:, rows].expand(len(base.batch.ids), -1))
    if attention == "self":
        return visibility
    assert base.source is not None
    return Source.of(base.source.final, base.source.batch).seen_by(visibility)

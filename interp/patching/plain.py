"""The unpatched run that cells start from: everything that a cell may leave unchanged."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from interp.attention import Attention
from interp.config import NoMLP
from interp.devices import move
from interp.patching.pairs import Inputs
from interp.patching.patch_sites import Attending
from interp.tap import Tap
from interp.tokens import TokenBatch
from interp.transformer import Block, Transformer
from interp.visibility import Source, Visibility

Moment = tuple[int, int]  # in a pass: a layer, and a stage of it
Change = Float[Tensor, "*cells row d_model"]
Rows = tuple[slice | Tensor, slice | Tensor] | tuple[int, Tensor]  # which prompts, and which of their positions


@dataclass(frozen=True)
class PlainRun:
    """A stack's run over whole prompts, with everything that a cell may leave unchanged, layer by layer.

    `resid` is the stream into each block, and out of the last. `run[name]` has the other sites by their name inside a
    block (`attn.z`). Queries and keys are as they enter the scores (normalised, rotated); keys and values have only
    key/value heads. `final` is the stream after the last norm; `source` is the encoder's run under cross-attention.
    """

    stack: str
    batch: TokenBatch
    resid: list[Float[Tensor, "... position d_model"]]
    activations: dict[str, list[Tensor]]
    final: Float[Tensor, "... position d_model"]
    source: "PlainRun | None" = None

    def __getitem__(self, site: str) -> list[Tensor]:
        """Each layer's activation at a site."""
        if site in self.activations:
            return self.activations[site]
        return {"resid_pre": self.resid[:-1], "resid_post": self.resid[1:]}[site]

    def in_stack(self, stack: str) -> "PlainRun":
        """This run, or its encoder's."""
        run = self if self.stack == stack else self.source
        assert run is not None
        return run

    @staticmethod
    def from_both(model: Transformer, first: Inputs, second: Inputs) -> "tuple[PlainRun, PlainRun]":
        """Runs of two inputs of one shape, in one pass; a text that both share is run once."""
        joint = plain_run(model, first, second)
        return joint._single(0, first), joint._single(1, second)

    def take(self, prompts: Int[Tensor, " prompt"], lengths: Mapping[str, int]) -> "PlainRun":
        """Some prompts, cut to the first `lengths[stack]` positions of each stack's text."""
        source = None if self.source is None else self.source.take(prompts, lengths)
        whole = lengths[self.stack] == self.batch.ids.shape[1] and source is self.source
        if whole and prompts.tolist() == [*range(len(self.batch.ids))]:
            return self
        rows = slice(int(prompts), int(prompts) + 1) if len(prompts) == 1 else prompts  # a slice does not copy

        def cut(site: str, x: Tensor) -> Tensor:
            keys = site in {"cross_attn.k", "cross_attn.v"}
            return x[move(rows, x.device), : lengths["encoder" if keys else self.stack]]

        batch = TokenBatch(*(cut("batch", x) for x in (self.batch.ids, self.batch.mask, self.batch.positions)))
        return self._changed(cut, batch, source)

    def _single(self, index: int, inputs: Inputs) -> "PlainRun":
        """One of several inputs that were run together."""
        *below, batch = [texts for texts in inputs if texts is not None]
        source = None if self.source is None else self.source._single(index, (below[0], None))

        def pick(site: str, x: Tensor) -> Tensor:
            by_head = site.startswith(("attn.", "cross_attn."))
            return x if x.ndim == (4 if by_head else 3) else x[index]

        return self._changed(pick, batch, source)

    def _changed(
        self, change: Callable[[str, Tensor], Tensor], batch: TokenBatch, source: "PlainRun | None"
    ) -> "PlainRun":
        resid = [change("resid_pre", x) for x in self.resid]
        activations = {site: [change(site, x) for x in layers] for site, layers in self.activations.items()}
        return PlainRun(self.stack, batch, resid, activations, change("resid_final", self.final), source)


@torch.no_grad()
def plain_run(model: Transformer, *inputs: Inputs) -> PlainRun:
    """The run of the stack that the output layer reads; where several inputs differ, they lie on a new first axis."""
    run, source = None, None
    for index, name in enumerate(model.config.stacks):
        batch, *rest = [texts[index] for texts in inputs]
        assert batch is not None
        equal = all(texts is None or torch.equal(batch.ids, texts.ids) for texts in rest)
        ids = batch.ids if equal else torch.stack([batch.ids, *(texts.ids for texts in rest if texts)])
        stack, sites = model.stack(name), _recorded(model, name)
        layers = range(len(stack.blocks))
        names = {f"{name}.{layer}.{site}" for layer in layers for site in sites.values()}
        last = f"{name}.{layers[-1]}.resid_post"  # the other blocks' outputs are the next block's resid_pre
        tap = Tap(capture=names | {last})
        residual = stack.embed(ids, batch.positions.expand_as(ids))
        visibility = Visibility.from_batch(batch, causal=stack.config.causal)
        final = stack.resume(residual, visibility, tap=tap.at(name), source=source)
        values = tap.activations
        activations = {site: [values[f"{name}.{layer}.{at}"] for layer in layers] for site, at in sites.items()}
        resid = [*activations.pop("resid_pre"), values[last]]
        for part, enter in (("q", Attention.queries), ("k", Attention.keys)) if stack.config.cross_attention else ():
            attns = zip((block.cross_attn for block in stack.blocks), activations[f"cross_attn.{part}"], strict=True)
            activations[f"cross_attn.{part}"] = [enter(attn, x, origins(x)) for attn, x in attns if attn is not None]
        run = PlainRun(name, batch, resid, activations, final, run)
        source = Source.from_stream(final, batch)
    assert run is not None  # no logits: metrics compute those that they need
    return run


def _recorded(model: Transformer, stack: str) -> dict[str, str]:
    """The sites that a run records in every block, and where each is tapped."""
    config = model.config.stacks[stack]
    sites = ["resid_pre", "attn_out", "attn.v", "attn.z"]
    sites += [] if config.parallel else ["resid_mid"]
    sites += [] if isinstance(config.mlp, NoMLP) else ["mlp_out"]
    crossed = ["resid_cross", "cross_attn_out", *(f"cross_attn.{part}" for part in "qkvz")]
    sites += crossed if config.cross_attention else []
    return {site: site for site in sites} | {f"attn.{part}": f"attn.rot_{part}" for part in "qk"}


def origins(x: Float[Tensor, "... position head d_head"]) -> Int[Tensor, "1 position"]:
    """Positions for queries and keys of cross-attention: all 0, since nothing rotates them."""
    return torch.zeros(1, x.shape[-3], dtype=torch.long, device=x.device)


def attention_parts(block: Block, run: PlainRun, layer: int, attention: str) -> tuple[Attention, dict[str, Tensor]]:
    """A layer's attention, and its queries, keys, values and z in a run."""
    sublayer = block.attention if attention == "self" else block.cross
    assert isinstance(sublayer.layer, Attention)
    return sublayer.layer, {part: run[f"{sublayer.name}.{part}"][layer] for part in "qkvz"}


def after_attention(
    block: Block, plain: PlainRun, layer: int, rows: Rows, change: Change, attention: Attending = "self"
) -> Change:
    """The stream after attention (in parallel blocks, after the block) at some rows, with `change` added by heads."""
    if block.attn.config.parallel:
        return plain.resid[layer + 1].to(change.device)[rows] + change
    sublayer = block.attention if attention == "self" else block.cross
    plain_out = plain[f"{sublayer.name}_out"][layer][rows]
    if not isinstance(sublayer.norm_after, nn.Identity):  # the change after the norm
        assert isinstance(sublayer.layer, Attention)
        raw = sublayer.layer.out(plain[f"{sublayer.name}.z"][layer][rows].flatten(-2))
        change = sublayer.write(raw + change) - plain_out
    stream = plain["resid_pre" if attention == "self" else "resid_mid"][layer][rows]
    return sublayer.add(stream, plain_out + change)


def visibility_of(model: Transformer, base: PlainRun, attention: str, rows: slice | Int[Tensor, " row"]) -> Visibility:
    """What the rows of a stack's texts see of their own text, or of the source."""
    visibility = Visibility.from_batch(base.batch, causal=model.config.stacks[base.stack].causal)
    # padding is on the right: no causal query sees it
    visibility = replace(visibility, padding=None) if visibility.causal else visibility
    columns = visibility.columns[:, move(rows, base.batch.ids.device)]
    visibility = visibility.at(columns.expand(len(base.batch.ids), -1))
    if attention == "self":
        return visibility
    assert base.source is not None
    return Source.from_stream(base.source.final, base.source.batch).seen_by(visibility)

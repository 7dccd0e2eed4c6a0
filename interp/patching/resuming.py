"""From a changed residual stream to the metric, computing only what the change can reach.

A pass carries a batch of cells, `cell prompt position d_model`, over the positions from `first` on. Below the change,
and in a causal stack before it, everything is as the plain run left it: earlier keys and values are that run's, shared
by all cells. In the last block only keys and values are needed at every position, and the rest where the metric reads.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.patching.metrics import Readout
from interp.places import matching
from interp.sight import Sight
from interp.tap import Tap
from interp.tokens import TokenBatch
from interp.transformer import Attention, Block, Stack, Transformer, fused_attention

Cells = Float[Tensor, "cell prompt position d_model"]
_SMALL_ROWS = 4096  # query x key entries of one head up to which explicit scores beat the fused kernel


@dataclass(frozen=True)
class PlainRun:
    """A run of whole prompts with everything kept that a cell may leave as it was, layer by layer.

    `resid` has one entry more than there are layers: the stream into each block, and out of the last. Queries and keys
    are rotated; keys and values have one head a key/value head.
    """

    batch: TokenBatch
    resid: list[Float[Tensor, "prompt position d_model"]]
    mid: list[Float[Tensor, "prompt position d_model"]]
    attn_out: list[Float[Tensor, "prompt position d_model"]]
    mlp_out: list[Float[Tensor, "prompt position d_model"]]
    q: list[Float[Tensor, "prompt position head d_head"]]
    k: list[Float[Tensor, "prompt position kv_head d_head"]]
    v: list[Float[Tensor, "prompt position kv_head d_head"]]
    z: list[Float[Tensor, "prompt position head d_head"]]

    @staticmethod
    def of(model: Transformer, batch: TokenBatch) -> "PlainRun":
        """Run the model's one stack and keep its activations."""
        ((name, _),) = model.config.stacks.items()
        stack = model.last
        kept = ("resid_pre", "resid_post", "resid_mid", "attn_out", "mlp_out", "attn.q", "attn.k", "attn.v", "attn.z")
        known = {site for site in kept if site != "mlp_out" or stack.blocks[0].mlp is not None}
        tap = Tap(capture=frozenset(matching(model, [f"{name}.*.{site}" for site in known])))
        with torch.no_grad():
            stack(batch, tap.at(name))  # the metrics say which logits they need; the rest is never computed
        seen = tap.seen
        n_layers = range(model.config.n_layers)

        def layers(site: str) -> list[Tensor]:
            return [seen[f"{name}.{layer}.{site}"] for layer in n_layers] if site in known else []

        def rotated(site: str) -> list[Tensor]:
            return [block.attn.rotate(x, batch.positions) for block, x in zip(stack.blocks, layers(site), strict=True)]

        return PlainRun(
            batch=batch,
            resid=[*layers("resid_pre"), seen[f"{name}.{n_layers[-1]}.resid_post"]],
            mid=layers("resid_mid"),
            attn_out=layers("attn_out"),
            mlp_out=layers("mlp_out"),
            q=rotated("attn.q"),
            k=rotated("attn.k"),
            v=layers("attn.v"),
            z=layers("attn.z"),
        )

    def take(self, prompts: Int[Tensor, " prompt"], n_positions: int) -> "PlainRun":
        """Some of the prompts, and of them the first positions."""

        def some(parts: list[Tensor]) -> list[Tensor]:
            return [part[prompts, :n_positions] for part in parts]

        batch = TokenBatch(
            *(part[prompts, :n_positions] for part in (self.batch.ids, self.batch.mask, self.batch.positions))
        )
        fields = (self.resid, self.mid, self.attn_out, self.mlp_out, self.q, self.k, self.v, self.z)
        return PlainRun(batch, *map(some, fields))


def sight_of(model: Transformer, batch: TokenBatch, first: int = 0) -> Sight:
    """Who sees whom among pairs, whose padding is all on the right: no causal query sees it, so it needs no mask."""
    sight = Sight.of(batch, causal=model.last.config.causal, first=first)
    return replace(sight, padding=None) if sight.causal else sight


@dataclass(frozen=True)
class Boarding:
    """Cells that join a pass where their change enters: the stream into block `layer`, from the pass's `first` on."""

    layer: int
    stream: Cells


class Pass:
    """One journey from the first boarding to the metrics, for some prompts and the positions from `first` on."""

    def __init__(self, model: Transformer, plain: PlainRun, first: int, readouts: Sequence[Readout]):
        self.model, self.plain, self.readouts = model, plain, readouts
        self.stack: Stack = model.last
        causal = self.stack.config.causal
        self.first = first if causal else 0
        self.sight = sight_of(model, plain.batch, self.first)
        reads = torch.cat([readout.positions for readout in readouts], 1)
        self.unreached = reads < self.first  # read before the first change: as the plain run left it
        self.plain_reads = plain.resid[-1].gather(1, reads[..., None].expand(-1, -1, plain.resid[-1].shape[-1]))
        self.reads = reads.clamp(min=self.first)

    def run(self, boardings: Iterator[Boarding] | Sequence[Boarding]) -> list[Float[Tensor, "cell prompt"]]:
        """Metrics of all cells, in the order in which they board; boardings come in the order of their layers."""
        waiting = list(boardings)
        n_layers = len(self.stack.blocks)
        riding: Cells | None = None
        for layer in range(min(boarding.layer for boarding in waiting), n_layers):
            joining = [boarding.stream for boarding in waiting if boarding.layer == layer]
            riding = torch.cat(joining if riding is None else [riding, *joining])
            if layer == n_layers - 1:
                riding = self._last_block(self.stack.blocks[layer], riding)
            else:
                riding = self._block(self.stack.blocks[layer], layer, riding)
        late = [self._gather(boarding.stream) for boarding in waiting if boarding.layer == n_layers]
        arrived = torch.cat(late if riding is None else [riding, *late])
        final = self.stack.norm(torch.where(self.unreached[..., None], self.plain_reads, arrived))
        found, at = [], 0
        for readout in self.readouts:
            found.append(readout.of(self.model, final[..., at : at + readout.positions.shape[1], :]))
            at += readout.positions.shape[1]
        return found

    def _block(self, block: Block, layer: int, x: Cells) -> Cells:
        attn = block.attn
        q, k, v = attn.project(block.wiring.read(block.norm_attn, x))
        q, k = attn.rotate(q, self.sight.positions), attn.rotate(k, self.sight.positions)
        z = self._attend(attn, layer, q, k, v, self.sight)
        return block.feed_forward(block.wiring.add(block.norm_attn, x, attn.out(z.flatten(-2))))

    def _last_block(self, block: Block, x: Cells) -> Float[Tensor, "cell prompt read d_model"]:
        """Keys and values everywhere; queries and what follows only where the metrics read."""
        attn, layer = block.attn, len(self.stack.blocks) - 1
        normed = block.wiring.read(block.norm_attn, x)
        sight = self.sight.at(self.reads)
        q = attn.rotate(attn.project_queries(self._gather(normed)), sight.positions)
        k, v = attn.project_keys_values(normed)
        z = self._attend(attn, layer, q, attn.rotate(k, self.sight.positions), v, sight)
        return block.feed_forward(block.wiring.add(block.norm_attn, self._gather(x), attn.out(z.flatten(-2))))

    def _gather(self, x: Cells) -> Float[Tensor, "cell prompt read d_model"]:
        """The read positions of each prompt; `x` begins at `first`."""
        index = (self.reads - self.first)[None, :, :, None]
        return x.gather(2, index.expand(x.shape[0], -1, -1, x.shape[-1]))

    def _attend(self, attn: Attention, layer: int, q: Tensor, k: Tensor, v: Tensor, sight: Sight) -> Tensor:
        """The mix of values for the cells' queries, from the plain run's earlier positions and their own."""
        past_k, past_v = self.plain.k[layer][:, : self.first], self.plain.v[layer][:, : self.first]
        shared = attn.config.n_heads // attn.config.kv_heads
        if q.shape[2] * sight.n_keys > _SMALL_ROWS:
            k = torch.cat([past_k.expand(k.shape[0], *past_k.shape), k], 2)
            v = torch.cat([past_v.expand(v.shape[0], *past_v.shape), v], 2)
            q, k, v = (part.transpose(-2, -3) for part in (q, k, v))
            return fused_attention(q, k, v, sight, attn.config.score_scale).transpose(-2, -3)
        if shared > 1:
            k, v, past_k, past_v = (part.repeat_interleave(shared, -2) for part in (k, v, past_k, past_v))
        return attend_sharing(q, k, v, past_k, past_v, sight, attn.config.score_scale)


def attend_sharing(
    q: Float[Tensor, "cell prompt query head d_head"],
    k: Float[Tensor, "cell prompt key head d_head"],
    v: Float[Tensor, "cell prompt key head d_head"],
    past_k: Float[Tensor, "prompt past head d_head"],
    past_v: Float[Tensor, "prompt past head d_head"],
    sight: Sight,
    scale: float,
) -> Float[Tensor, "cell prompt query head d_head"]:
    """Attention to the cells' own keys and to earlier ones that all cells share, which are never copied."""
    cells, prompts, queries, heads, d_head = q.shape
    past = past_k.shape[1]
    # prompt head cell query d_head: the queries of all cells are rows of one product with the shared keys
    q, k, v = (part.permute(1, 3, 0, 2, 4) for part in (q * scale, k, v))
    own = q @ k.transpose(-1, -2)
    mask = sight.mask()[..., past:]  # what lies before is seen by all
    if not bool(mask.all()):
        own = own.masked_fill(~mask[:, :, None], -torch.inf)
    if not past:
        return (own.softmax(-1) @ v).permute(2, 0, 3, 1, 4)
    rows = q.reshape(prompts, heads, cells * queries, d_head)
    earlier = (rows @ past_k.permute(0, 2, 3, 1)).view(prompts, heads, cells, queries, past)
    pattern = torch.cat([earlier, own], -1).softmax(-1)
    z = pattern[..., past:] @ v
    z = z + (pattern[..., :past].reshape(prompts, heads, cells * queries, past) @ past_v.transpose(1, 2)).view_as(z)
    return z.permute(2, 0, 3, 1, 4)

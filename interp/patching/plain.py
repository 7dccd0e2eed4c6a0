"""The unpatched run that cells start from: everything that a cell may leave as it was."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.places import matching
from interp.sight import Sight
from interp.tap import Tap
from interp.tokens import TokenBatch
from interp.transformer import Transformer


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

        attns = [block.attn for block in stack.blocks]

        return PlainRun(
            batch=batch,
            resid=[*layers("resid_pre"), seen[f"{name}.{n_layers[-1]}.resid_post"]],
            mid=layers("resid_mid"),
            attn_out=layers("attn_out"),
            mlp_out=layers("mlp_out"),
            q=[attn.queries(q, batch.positions) for attn, q in zip(attns, layers("attn.q"), strict=True)],
            k=[attn.keys(k, batch.positions) for attn, k in zip(attns, layers("attn.k"), strict=True)],
            v=layers("attn.v"),
            z=layers("attn.z"),
        )

    @staticmethod
    def of_both(model: Transformer, one: TokenBatch, other: TokenBatch) -> "tuple[PlainRun, PlainRun]":
        """Two batches of one shape, run as one."""
        parts = zip((one.ids, one.mask, one.positions), (other.ids, other.mask, other.positions), strict=True)
        both = PlainRun.of(model, TokenBatch(*(torch.cat(pair) for pair in parts)))
        return both._part(slice(None, len(one.ids)), None), both._part(slice(len(one.ids), None), None)

    def take(self, prompts: Int[Tensor, " prompt"], n_positions: int) -> "PlainRun":
        """Some of the prompts, each once and in order, and of them the first positions."""
        if (len(prompts), n_positions) == self.batch.ids.shape:
            return self
        return self._part(prompts, n_positions)

    def _part(self, prompts: Int[Tensor, " prompt"] | slice, n_positions: int | None) -> "PlainRun":
        def some(parts: list[Tensor]) -> list[Tensor]:
            return [part[prompts, :n_positions] for part in parts]

        batch = TokenBatch(*some([self.batch.ids, self.batch.mask, self.batch.positions]))
        fields = (self.resid, self.mid, self.attn_out, self.mlp_out, self.q, self.k, self.v, self.z)
        return PlainRun(batch, *map(some, fields))


def sight_of(model: Transformer, batch: TokenBatch, first: int = 0) -> Sight:
    """Who sees whom among pairs, whose padding is all on the right: no causal query sees it, so it needs no mask."""
    sight = Sight.of(batch, causal=model.last.config.causal, first=first)
    return replace(sight, padding=None) if sight.causal else sight

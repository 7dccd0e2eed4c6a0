"""Single rows of the patterns of a text, such as those of pronouns, which are one word in thirty.

A pass keeps queries and keys without a pattern in memory, and rows are computed from them on demand.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.attention import Attention
from interp.patterns.norm_weighted import weighed, written
from interp.running import Tokens, run
from interp.tokens import TokenBatch
from interp.transformer import Transformer
from interp.visibility import Visibility


class _Layer(NamedTuple):
    attn: Attention
    queries: Float[Tensor, "prompt query head d_head"]
    keys: Float[Tensor, "prompt head key d_head"]
    norms: Float[Tensor, "prompt head key"] | None


@dataclass(frozen=True)
class FewRows:
    """Queries and keys of one stack's self-attention in some texts, and the norms that it writes from each key."""

    layers: list[_Layer]
    visibility: Visibility

    @staticmethod
    @torch.no_grad()
    def of(
        model: Transformer, tokens: TokenBatch, stack: str, target: Tokens | None = None, *, norms: bool = False
    ) -> "FewRows":
        """One pass over `tokens` for the self-attention of `stack`; with `norms`, rows can be taken `by_norm`."""
        within = f"{stack}.*.attn."
        out = run(model, tokens, target=target, capture=[within + "q", within + "k"], until=within + "v")
        read = out.tokens if out.target is None or stack == "encoder" else out.target
        visibility = Visibility.of(read, causal=model.config.stacks[stack].causal)
        layers = []
        for number, block in enumerate(model.stack(stack).blocks):
            attn, (q, k, v) = block.attn, (out[f"{stack}.{number}.attn.{part}"] for part in "qkv")
            queries, keys = attn.queries(q, visibility.positions), attn.keys(k, visibility.positions)
            norm = written(attn, v) if norms else None
            layers.append(_Layer(attn, queries, attn.shared(keys.transpose(1, 2)), norm))
        return FewRows(layers, visibility)

    @torch.no_grad()
    def rows(
        self, prompt: Int[Tensor, " row"], query: Int[Tensor, " row"], *, by_norm: bool = False
    ) -> Float[Tensor, "row head key"]:
        """What every head attends to, layer by layer, in the rows at `query` of each `prompt`, in float32.

        The prompts ascend. `by_norm` weights it as `interp.patterns.norm_weighted.NormWeighted` does.
        """
        place, columns = _by_prompt(prompt, query, len(self.layers[0].queries))
        visibility = self.visibility.at(columns)
        return torch.cat([each[prompt, :, place] for each in self._patterns(columns, visibility, by_norm)], 1).float()

    def _patterns(
        self, columns: Int[Tensor, "prompt asked"], visibility: Visibility, by_norm: bool
    ) -> Iterator[Float[Tensor, "prompt head asked key"]]:
        for attn, queries, keys, norms in self.layers:
            chosen = queries.gather(1, columns[..., None, None].expand(-1, -1, *queries.shape[2:]))
            pattern = attn.pattern(attn.scores(chosen.transpose(1, 2), keys, visibility))
            if by_norm:
                assert norms is not None
                pattern = weighed(pattern, norms)
            yield pattern


def _by_prompt(
    prompt: Int[Tensor, " row"], query: Int[Tensor, " row"], n_prompts: int
) -> tuple[Int[Tensor, " row"], Int[Tensor, "prompt asked"]]:
    """The queries of each prompt side by side (0 where it has fewer), and the place of each row among them."""
    count = torch.bincount(prompt, minlength=n_prompts)
    place = torch.arange(len(prompt), device=prompt.device) - (count.cumsum(0) - count)[prompt]
    columns = query.new_zeros(n_prompts, max(1, int(count.max())))
    columns[prompt, place] = query
    return place, columns

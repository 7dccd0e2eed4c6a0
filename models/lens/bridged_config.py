"""What is a bridged model made of?

If its directory belongs to a family that we load, the configuration is exact. Otherwise a short run tells the sizes,
and TransformerLens names the parts. They change nothing that the bridge computes, but an untrained model of this shape
(`models.initialisation`) is made of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from interp import InputError, StackConfig, TransformerConfig
from interp import config as parts
from models.lens.hooks import Hooks

Shapes = Mapping[str, tuple[int, ...]]


def describe(
    cfg: Any, inner: Any, by_stack: Sequence[Hooks], shapes: Shapes, exact: TransformerConfig | None
) -> TransformerConfig:
    """The configuration of a bridge around `inner`; `exact` is that of its directory, if we can read it."""
    stacks: dict[str, Any] = {hooks.stack: _stack(cfg, inner, hooks, shapes) for hooks in by_stack}
    if "decoder" in stacks and len(stacks) > 1:
        stacks["decoder"] = replace(stacks["decoder"], cross_attention=True)
    output = "untied" if "logits" in shapes else "none"
    start = getattr(inner.config, "decoder_start_token_id", None)
    ours = TransformerConfig(**stacks, output=output, target_start=start if len(stacks) > 1 else None)
    if exact is not None and _sizes(exact) == _sizes(ours):
        return exact if (exact.output == "none") == (output == "none") else replace(exact, output=output)
    return ours


def _sizes(config: TransformerConfig) -> dict[str, tuple[int, ...]]:
    return {
        name: (stack.n_layers, stack.d_model, stack.n_heads, stack.d_head, stack.kv_heads, stack.d_vocab, stack.causal)
        for name, stack in config.stacks.items()
    }


def _stack(cfg: Any, inner: Any, hooks: Hooks, shapes: Shapes) -> StackConfig:
    def shape(site: str) -> tuple[int, ...] | None:
        """The axes of a site in the first layer that has it."""
        return next((shapes[layer.hooks[site]] for layer in hooks.layers if site in layer.hooks), None)

    stream = shape("resid_pre")
    if stream is None:
        raise InputError("this bridge shows no residual stream: expected hooks into and out of its blocks")
    width = stream[-1]
    heads = shape("attn.q") or shape("attn.z") or (1, 1, 1, width)
    shared, d_mlp = shape("attn.k") or heads, shape("mlp.post")
    gated = any("mlp.gate" in layer.hooks.get("mlp.pre", "") for layer in hooks.layers)
    wiring: parts.Wiring | None = next((layer.wiring for layer in hooks.layers if layer.wiring is not None), None)
    norm = parts.RMSNorm(cfg.eps) if "RMS" in str(cfg.normalization_type) else parts.LayerNorm(cfg.eps)
    return StackConfig(
        n_layers=len(hooks.layers),
        d_model=width,
        n_heads=heads[2],
        d_head=heads[3],
        n_kv_heads=shared[2] if heads[2] % shared[2] == 0 else None,
        d_mlp=d_mlp[-1] if d_mlp else int(cfg.d_mlp or width),
        n_ctx=int(cfg.n_ctx),
        d_vocab=inner.get_input_embeddings().weight.shape[0],
        causal=hooks.stack == "decoder",
        norm=norm,
        wiring=wiring or "pre",
        positions=_positions(str(cfg.positional_embedding_type), heads[3]),
        mlp=parts.Gated("silu") if gated else parts.Plain("gelu"),
    )


def _positions(kind: str, d_head: int) -> parts.Positions:
    """Our positions for TransformerLens's name of them."""
    if kind == "rotary" and d_head % 2 == 0:
        return parts.Rotary()
    named = {"standard": parts.Learned, "alibi": parts.Alibi, "relative_positional_bias": parts.Buckets}
    return named.get(kind, parts.NoPositions)()

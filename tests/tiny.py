"""Tiny transformers with random weights, and prime sizes where possible, so no axis passes for another."""

from dataclasses import replace
from operator import attrgetter

import torch

from interp import StackConfig, TokenBatch, Transformer, TransformerConfig
from interp import config as parts
from interp.patching import Pairs

GPT2 = StackConfig(
    n_layers=2,
    d_model=19,
    n_heads=3,
    d_head=5,
    d_mlp=23,
    n_ctx=13,
    d_vocab=29,
    causal=True,
    mlp=parts.Plain("gelu_tanh"),
)
LLAMA = replace(
    GPT2,
    n_heads=6,
    n_kv_heads=2,
    d_head=14,
    norm=parts.RMSNorm(1e-5),
    positions=parts.Rotary(),
    mlp=parts.Gated("silu"),
    attention_bias=False,
)
BERT = replace(GPT2, causal=False, wiring="post", mlp=parts.Plain("gelu"), embedding_norm=True, n_token_types=2)

STACKS: dict[str, StackConfig] = {
    "gpt2": GPT2,
    "llama": LLAMA,
    "bert": BERT,
    "sinusoidal": replace(GPT2, positions=parts.Sinusoidal(), mlp=parts.Plain("relu", bias=False), scale=0.3),
    "no positions": replace(LLAMA, positions=parts.NoPositions(), n_kv_heads=1, norm=parts.LayerNorm()),
    "attention only": replace(GPT2, mlp=parts.NoMLP(), norm=parts.NoNorm(), positions=parts.Learned()),
    "post-norm decoder": replace(LLAMA, wiring="post", attention_bias=True),
    "rotary encoder": replace(LLAMA, causal=False, n_kv_heads=None),
}


def randomise(module: torch.nn.Module, seed: int = 0) -> None:
    """Perturb every weight (matrices, biases, norms, embeddings), so that leaving one out shows."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in (each for each in module.parameters() if each.requires_grad):  # fixed ones stay
            noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            base = weight.round() if weight.ndim == 1 else 0.0  # keep norms at 1; biases were drawn
            weight.copy_(base + 0.3 * noise)


def model(name: str, output: str = "untied", dtype: torch.dtype = torch.float64) -> Transformer:
    stack = STACKS[name]
    if stack.causal:
        return _built(TransformerConfig(decoder=stack, output=output), dtype)
    return _built(TransformerConfig(encoder=stack, output="none"), dtype)


class Whole:
    """A transformer of ours that exposes only the protocol."""

    # properties, because from Python 3.12 on protocol checks ignore `__getattr__`
    _NAMES = ("config", "tokenizer", "target_tokenizer", "sites", "device", "dtype")
    config, tokenizer, target_tokenizer, sites, device, dtype = (
        property(attrgetter(f"inner.{each}")) for each in _NAMES
    )

    def __init__(self, inner):
        self.inner = inner

    def __call__(self, *inputs, **options):
        return self.inner(*inputs, **options)


def token_ids(*shape: int, d_vocab: int = 29, seed: int = 0) -> torch.Tensor:
    return torch.randint(d_vocab, shape, generator=torch.Generator().manual_seed(seed))


# Stacks other than pre- and post-norm, for comparison with one plain forward pass per cell. Nearly all have LayerNorm,
# because RMSNorm rounds to float32 at every precision.
_PLAIN = StackConfig(
    n_layers=3, d_model=22, n_heads=4, n_kv_heads=2, d_head=6, d_mlp=13, n_ctx=11, d_vocab=29, causal=True
)
VARIANTS: dict[str, StackConfig] = {
    "after": replace(_PLAIN, wiring="after"),
    "sandwich": replace(_PLAIN, wiring="sandwich", positions=parts.Rotary()),
    "parallel": replace(_PLAIN, wiring="parallel"),
    "parallel, one norm": replace(_PLAIN, wiring="parallel_one_norm", positions=parts.Rotary(), n_kv_heads=None),
    "parallel, attention alone": replace(_PLAIN, wiring="parallel", mlp=parts.NoMLP()),
    "alibi": replace(_PLAIN, positions=parts.Alibi()),
    "buckets": replace(_PLAIN, positions=parts.Buckets(5, 7), scale=1.0),
    "local, capped": replace(
        _PLAIN,
        positions=parts.Rotary(),
        local=parts.Local((0, 2), 1, parts.Rotary(base=50.0)),
        score_cap=0.7,
        qk_norm="head",
    ),
    "local, biased": replace(_PLAIN, positions=parts.Alibi(), local=parts.Local((1,), 2), n_kv_heads=None),
    "norm over all heads": replace(_PLAIN, positions=parts.Rotary(), wiring="after", qk_norm="all"),
    "experts": replace(_PLAIN, mlp=parts.Experts(3, 2, parts.Gated("silu"))),
}


def variant(name: str, *, causal: bool = True) -> Transformer:
    """A random decoder of one of `VARIANTS`, its logits capped; or an encoder, with a masked-word output layer."""
    stack = replace(VARIANTS[name], causal=causal)
    if causal:
        return _built(TransformerConfig(decoder=stack, logit_cap=2.0, output_scale=0.5))
    transform = parts.Transform("gelu", parts.LayerNorm())
    return _built(TransformerConfig(encoder=stack, output_bias=True, transform=transform))


# Encoder and decoder differ in every size that can differ.
_ENCODER = replace(
    _PLAIN, n_layers=2, causal=False, n_heads=3, n_kv_heads=None, d_head=5, d_mlp=17, d_vocab=19, n_ctx=7
)
_DECODER = replace(_PLAIN, n_layers=2, cross_attention=True)
_ORIGINAL = {"wiring": "post", "positions": parts.Sinusoidal(), "mlp": parts.Plain("relu")}
TWO_STACKS: dict[str, tuple[StackConfig, StackConfig]] = {
    "original": (replace(_ENCODER, **_ORIGINAL), replace(_DECODER, **_ORIGINAL)),
    "buckets": (
        replace(_ENCODER, positions=parts.Buckets(5, 7), scale=1.0),
        replace(_DECODER, positions=parts.Buckets(5, 7), scale=1.0, mlp=parts.NoMLP()),
    ),
    "modern": (
        replace(_ENCODER, positions=parts.Rotary(), wiring="sandwich", d_head=6),
        replace(_DECODER, positions=parts.Rotary(), wiring="sandwich", qk_norm="all", score_cap=0.8),
    ),
    "mixed": (replace(_ENCODER, wiring="parallel"), replace(_DECODER, wiring="after", qk_norm="head")),
}


def two_stacks(name: str) -> Transformer:
    encoder, decoder = TWO_STACKS[name]
    return _built(TransformerConfig(encoder=encoder, decoder=decoder, target_start=2))


def _built(config: TransformerConfig, dtype: torch.dtype = torch.float64) -> Transformer:
    built = Transformer(config).to(dtype)
    randomise(built)
    return built


def ragged_pairs(lengths=(4, 4, 3), firsts=(1, 2, 1), *, d_vocab: int = 29, **more: TokenBatch) -> Pairs:
    """Pairs that differ in two tokens each, starting at `firsts`."""
    clean = rows(lengths, d_vocab=d_vocab, seed=1)
    corrupt = clean.ids.clone()
    for row, (first, length) in enumerate(zip(firsts, lengths, strict=True)):
        corrupt[row, first : min(first + 2, length)] += 1
    changed = TokenBatch(corrupt % d_vocab, clean.mask, clean.positions)
    answers = torch.arange(1, 2 * len(lengths) + 1)
    return Pairs(clean, changed, answers[: len(lengths)], answers[len(lengths) :], **more)


def rows(lengths, *, d_vocab: int = 29, seed: int = 0) -> TokenBatch:
    ids = token_ids(len(lengths), max(lengths), d_vocab=d_vocab, seed=seed)
    return TokenBatch.from_rows([row[:length].tolist() for row, length in zip(ids, lengths, strict=True)])


def pairs_of_two(differing: str) -> Pairs:
    """Pairs for `two_stacks` that differ in what the encoder reads (`source`) or in what the decoder reads."""
    if differing == "source":
        return ragged_pairs(d_vocab=19, target=rows((3, 2, 3)))
    return ragged_pairs(source=rows((4, 3, 2), d_vocab=19))

"""Programs that Tracr compiled to transformers whose parts are known (Lindner et al. 2023, arXiv:2301.05062)."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from safetensors.torch import load_file
from torch import Tensor

from interp import InputError, StackConfig, Transformer, TransformerConfig
from interp import config as parts
from interp.errors import inside


@dataclass(frozen=True)
class Compiled:
    """A compiled program; its `model` has no norms, and its logits are the last stream, a logit a direction."""

    model: Transformer
    tokens: dict[str, int]  # ids by token
    directions: tuple[str, ...]  # of the stream
    outputs: tuple[int, ...]  # directions of its output: one per value, or one that holds the number
    example: dict[str, Any]

    @staticmethod
    def from_directory(directory: str | Path, dtype: torch.dtype = torch.float32) -> "Compiled":
        """Read `program.json` and `weights.safetensors`; an `InputError` says what is missing."""
        folder = Path(directory)
        for name in ("program.json", "weights.safetensors"):
            if not (folder / name).is_file():
                raise InputError(f"no compiled program in {folder}: expected program.json and weights.safetensors")
        with inside(str(folder)):
            facts = json.loads((folder / "program.json").read_text("utf-8"))
            weights = load_file(folder / "weights.safetensors")
            if facts["norms"] != "none" or facts["activation"] != "relu":
                raise InputError(f"expected no norms and relu, got {facts['norms']} and {facts['activation']}")
            model, names = _model(facts, weights).to(dtype), (*facts["residual_directions"],)
            starts = facts["output_directions"]
            outputs = tuple(place for place, name in enumerate(names) if name.startswith(starts))
            return Compiled(model, facts["token_ids"], names, outputs, facts["example"])

    def ids(self, texts: list[list[str]]) -> Int[Tensor, "text position"]:
        """Ids of texts of tokens, all of one length; the first token of each is BOS."""
        return torch.tensor([[self.tokens[token] for token in text] for text in texts])


def _model(facts: dict[str, Any], weights: dict[str, Tensor]) -> Transformer:
    """The transformer; its output layer copies the stream, and the embedding has rows of zeros beyond the tokens."""
    positions, d_model = weights["pos_embed/embeddings"].shape
    sizes = {name: facts[name] for name in ("n_layers", "n_heads", "d_head", "d_mlp")}
    read = {"norm": parts.NoNorm(), "mlp": parts.Plain("relu"), "positions": parts.Learned(), "causal": False}
    d_vocab = max(d_model, len(weights["token_embed/embeddings"]))
    stack = StackConfig(**sizes, **read, d_model=d_model, n_ctx=positions, d_vocab=d_vocab)
    model = Transformer(TransformerConfig(encoder=stack))
    assert model.output is not None
    assert model.last.embed.position is not None
    with torch.no_grad():
        model.last.embed.token.weight.zero_()[: len(weights["token_embed/embeddings"])] = weights[
            "token_embed/embeddings"
        ]
        model.last.embed.position.weight.copy_(weights["pos_embed/embeddings"])
        model.output.weight.copy_(torch.eye(d_vocab, d_model))
        for layer, block in enumerate(model.last.blocks):
            place = f"transformer/layer_{layer}"
            qkv = [f"{place}/attn/{part}" for part in ("query", "key", "value")]
            linears = {block.attn.out: [f"{place}/attn/linear"], block.attn.qkv: qkv}
            linears |= {getattr(block.mlp, name): [f"{place}/mlp/linear_{i}"] for i, name in ((1, "up"), (2, "down"))}
            for linear, names in linears.items():
                linear.weight.copy_(torch.cat([weights[f"{name}/w"] for name in names], 1).T)
                linear.bias.copy_(torch.cat([weights[f"{name}/b"] for name in names]))
    return model

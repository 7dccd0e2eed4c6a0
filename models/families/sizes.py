"""Which field of a config.json holds what every stack has: said once by a family, for reading and for writing."""

from dataclasses import dataclass
from typing import Any

from interp.config import LayerNorm, Plain, StackConfig, TransformerConfig
from models.families import names
from models.families.family import ACTIVATIONS, Fields, parts_of


@dataclass(frozen=True)
class Sizes:
    """Their names of what every stack has, by ours; empty where they have no such field."""

    n_layers: str = "num_hidden_layers"
    d_model: str = "hidden_size"
    n_heads: str = "num_attention_heads"
    d_mlp: str = "intermediate_size"
    n_ctx: str = "max_position_embeddings"
    d_vocab: str = "vocab_size"
    activation: str = "hidden_act"
    eps: str = "layer_norm_eps"  # of every norm

    @classmethod
    def named(cls, family: str, stack: str = "") -> "Sizes":
        """Those of a family in `names.toml`; of one `stack`, where two have fields of their own."""
        sizes: dict[str, str] = names.table(family).get("sizes", {})
        return cls(**{ours: theirs.replace("{stack}", stack) for ours, theirs in sizes.items()})

    def read(
        self, fields: Fields, *, d_head: int | None = None, d_mlp: int | None = None, n_ctx: int | None = None
    ) -> dict[str, Any]:
        """The sizes, as arguments of StackConfig.

        Args:
            fields: of the file.
            d_head: how wide a head is; without it heads share `d_model` evenly.
            d_mlp: of a file that does not say it.
            n_ctx: of a file that does not say it.

        Raises:
            InputError: a size that is lacking, or that is none; heads that do not share `d_model` evenly.
        """
        return {
            "n_layers": fields.size(self.n_layers),
            "d_model": fields.size(self.d_model),
            "n_heads": fields.size(self.n_heads),
            "d_head": fields.head_width(self.d_model, self.n_heads) if d_head is None else d_head,
            "d_mlp": fields.size(self.d_mlp, d_mlp) if self.d_mlp else d_mlp,
            "n_ctx": fields.size(self.n_ctx, n_ctx),
            "d_vocab": fields.size(self.d_vocab),
        }

    def stack(
        self, fields: Fields, sizes: dict[str, Any] | None = None, *, activation: str, eps: float, **parts: Any
    ) -> StackConfig:
        """A stack of layer norms and plain feed-forwards, but for `parts`.

        `activation` and `eps` are those of a file that does not say them.
        """
        mlp = Plain(fields.activation(self.activation, activation) if self.activation else ACTIVATIONS[activation])
        norm = LayerNorm(fields.number(self.eps, eps) if self.eps else eps)
        usual = {"causal": True, "norm": norm, "mlp": mlp}
        return StackConfig(**usual | (sizes or self.read(fields)) | parts)

    def written(self, stack: StackConfig) -> dict[str, Any]:
        """Their fields for a stack."""
        activation, eps = parts_of(stack)
        fields = {
            self.d_vocab: stack.d_vocab,
            self.n_ctx: stack.n_ctx,
            self.d_model: stack.d_model,
            self.n_layers: stack.n_layers,
            self.n_heads: stack.n_heads,
            self.d_mlp: stack.d_mlp,
            self.activation: activation,
            self.eps: eps,
        }
        return {name: value for name, value in fields.items() if name}

    def decoder(self, config: TransformerConfig, **fields: Any) -> dict[str, Any]:
        """Their config.json for a decoder alone: its stack, these fields, and which output layer it has."""
        return {**self.written(config.last), **fields, "tie_word_embeddings": config.output == "tied"}

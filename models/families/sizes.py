"""Which field of a config.json holds what every stack has: said once by a family, for reading and for writing."""

from dataclasses import dataclass
from typing import Any

from interp.config import StackConfig, TransformerConfig
from models.families.family import Fields, parts_of


@dataclass(frozen=True)
class Sizes:
    """Their names of what every stack has, by ours; None where they have no such field."""

    n_layers: str = "num_hidden_layers"
    d_model: str = "hidden_size"
    n_heads: str = "num_attention_heads"
    d_mlp: str | None = "intermediate_size"
    n_ctx: str = "max_position_embeddings"
    d_vocab: str = "vocab_size"
    activation: str | None = "hidden_act"  # which is written alone: families read it in their own ways
    eps: str | None = "layer_norm_eps"  # likewise, of every norm

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
            "d_mlp": d_mlp if self.d_mlp is None else fields.size(self.d_mlp, d_mlp),
            "n_ctx": fields.size(self.n_ctx, n_ctx),
            "d_vocab": fields.size(self.d_vocab),
        }

    def written(self, stack: StackConfig) -> dict[str, Any]:
        """Their fields for a stack."""
        activation, eps = parts_of(stack)
        found = {
            self.d_vocab: stack.d_vocab,
            self.n_ctx: stack.n_ctx,
            self.d_model: stack.d_model,
            self.n_layers: stack.n_layers,
            self.n_heads: stack.n_heads,
            self.d_mlp: stack.d_mlp,
            self.activation: activation,
            self.eps: eps,
        }
        return {name: value for name, value in found.items() if name is not None}

    def decoder(self, config: TransformerConfig, **own: Any) -> dict[str, Any]:
        """Their config.json for a decoder alone: its stack, the fields in `own`, and which output layer it has."""
        return {**self.written(config.last), **own, "tie_word_embeddings": config.output == "tied"}

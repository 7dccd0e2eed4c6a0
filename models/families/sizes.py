"""Which field of a config.json holds which size of a stack: said once by a family, for reading and for writing."""

from dataclasses import dataclass
from typing import Any

from interp.config import StackConfig, TransformerConfig
from models.families.family import Fields


@dataclass(frozen=True)
class Sizes:
    """Their names of the sizes that every stack has, by ours."""

    n_layers: str = "num_hidden_layers"
    d_model: str = "hidden_size"
    n_heads: str = "num_attention_heads"
    d_mlp: str | None = "intermediate_size"  # None where they have no such field
    n_ctx: str = "max_position_embeddings"
    d_vocab: str = "vocab_size"

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
        """Their fields for the sizes of a stack."""
        found = {
            self.d_vocab: stack.d_vocab,
            self.n_ctx: stack.n_ctx,
            self.d_model: stack.d_model,
            self.n_layers: stack.n_layers,
            self.n_heads: stack.n_heads,
        }
        return found if self.d_mlp is None else found | {self.d_mlp: stack.d_mlp}

    def decoder(self, config: TransformerConfig, model_type: str, architecture: str, **own: Any) -> dict[str, Any]:
        """Their config.json for a decoder alone: its sizes, the fields in `own`, and which output layer it has."""
        named = {"model_type": model_type, "architectures": [architecture], **self.written(config.last)}
        return named | own | {"tie_word_embeddings": config.output == "tied"}

"""A model's weights by the field's names (`W_Q[layer, head]`), and its tokens."""

from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.attention import Attention, existing_bias
from interp.config import Learned
from interp.devices import move
from interp.errors import InputError
from interp.model import Model, Tokens, as_batch
from interp.parts import Embedding, Output
from interp.tokens import Tokenizer


class LayerWeights:
    """One kind of weight in every layer: `W_Q[layer]`, `W_Q[layer, head]`, ..., indexed as a tensor.

    One layer is a live view: writing to it changes the model. Several layers are a copy, which refuses writing.
    """

    def __init__(self, name: str, axes: str, layers: Sequence[Attention]):
        self.name, self.axes, self._layers = name, axes, layers

    def __len__(self) -> int:
        return len(self._layers)

    def __iter__(self) -> Iterator[Tensor]:
        return (getattr(layer, self.name) for layer in self._layers)

    @property
    def shape(self) -> torch.Size:
        """The shape of all layers together."""
        return torch.Size([len(self), *self[0].shape])

    def __repr__(self) -> str:
        return f"{self.name}: {self.axes}, {' x '.join(map(str, self.shape))}"

    def __getitem__(self, index: Any) -> Tensor:
        layer, *rest = index if isinstance(index, tuple) else (index,)
        try:
            if isinstance(layer, int):
                return getattr(self._layers[layer], self.name)[(*rest,)]
            # a copy that torch protects from writing: a leaf with gradients, or an inference tensor
            if torch.is_grad_enabled():
                return torch.stack(move([weight.detach() for weight in self], self[0].device)).requires_grad_()[index]
            with torch.inference_mode():
                return torch.stack(move([*self], self[0].device))[index]
        except IndexError as error:
            typed = ", ".join(map(str, index)) if isinstance(index, tuple) else index
            raise InputError(f"no {self.name}[{typed}]; {self!r}, each counted from 0") from error

    def __setitem__(self, index: Any, value: Tensor | float) -> None:
        layer, *rest = index if isinstance(index, tuple) else (index,)
        if not isinstance(layer, int):
            raise InputError(f"several layers of {self.name} are a copy: write to one at a time, {self.name}[layer]")
        _ = self[index]  # raises if there is no such part
        with torch.no_grad():
            self[layer][(*rest,)] = value


def _of_layers(name: str, axes: str, meaning: str) -> Any:
    def weights(stack: "Weights") -> LayerWeights:
        layers = stack.weighted()[1]
        getattr(layers[0], name)  # raises if there is no such weight
        return LayerWeights(name, axes, layers)

    return property(weights, doc=meaning)


class Weights:
    """The weights of a stack, or of a model's last stack, by name; an absent weight is an `InputError`."""

    def weighted(self) -> tuple[Embedding, Sequence[Attention]]:
        """The embedding and each layer's self-attention."""
        raise NotImplementedError

    @property
    def W_E(self) -> Float[Tensor, "d_vocab width"]:
        """The tokens' embeddings, as stored; `width` is d_model, or smaller if a matrix projects it to d_model."""
        return self.weighted()[0].token.weight

    @property
    def W_pos(self) -> Float[Tensor, "position width"]:
        """The positions' embeddings, from position 0 on."""
        embed, positions = self.weighted()[0], self.weighted()[0].config.positions
        if embed.position is None or not isinstance(positions, Learned):
            kind = type(positions).__name__
            raise InputError(f"this stack has no W_pos: its positions come from {kind}, not from trained embeddings")
        return embed.position.weight[positions.first :]

    W_Q = _of_layers("W_Q", "layer head d_model d_head", "Each head's queries.")
    W_K = _of_layers("W_K", "layer kv_head d_model d_head", "Each key/value head's keys.")
    W_V = _of_layers("W_V", "layer kv_head d_model d_head", "Each key/value head's values.")
    W_O = _of_layers("W_O", "layer head d_head d_model", "What each head writes to the stream.")
    b_Q = _of_layers("b_Q", "layer head d_head", "The bias of each head's queries.")  # noqa: N815
    b_K = _of_layers("b_K", "layer kv_head d_head", "The bias of each key/value head's keys.")  # noqa: N815
    b_V = _of_layers("b_V", "layer kv_head d_head", "The bias of each key/value head's values.")  # noqa: N815
    b_O = _of_layers("b_O", "layer d_model", "The bias of each layer's attention.")  # noqa: N815


class Shortcuts(Weights):
    """A model's output weights by name, and its texts as tokens."""

    output: Output | None
    tokenizer: Tokenizer | None

    @property
    def W_U(self) -> Float[Tensor, "width d_vocab"]:
        """The output layer's weight; if it is tied to the embedding, writing to it changes both."""
        return self._unembedding().weight.T

    @property
    def b_U(self) -> Float[Tensor, " d_vocab"]:
        """The bias of the logits."""
        return existing_bias(self._unembedding().bias, "its logits")

    def _unembedding(self) -> Output:
        if self.output is None:
            raise InputError("this model has no output layer, so no W_U and b_U")
        return self.output

    def to_tokens(self, text: Tokens) -> Int[Tensor, "prompt position"]:
        """Token ids of a text, or of texts with the same number of tokens, special tokens included."""
        batch = as_batch(cast(Model, self), text)
        if batch.padded:
            raise InputError(f"texts of {batch.lengths.tolist()} tokens make no tensor: give run() the list itself")
        return batch.ids

    def to_str_tokens(self, text: Tokens) -> list[str] | list[list[str]]:
        """Each token of a text as a person reads it, special ones included; a list for each text or row, if several."""
        if self.tokenizer is None:
            raise InputError("this model has no tokenizer: its tokens have no text")
        batch = as_batch(cast(Model, self), text)
        rows = [self.tokenizer.labels(ids) for ids in batch.id_lists()]
        is_single = isinstance(text, str) or (isinstance(text, Tensor) and text.ndim == 1)
        return rows[0] if is_single else rows

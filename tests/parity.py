"""Does our model compute what `transformers` computes?

We make a tiny model with `transformers`, draw every weight, and write it with `save_pretrained`; ours is loaded from
there.
"""

import copy
import inspect
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from tiny import randomise, token_ids
from torch import Tensor
from torch.testing import assert_close

from interp import Run, TokenBatch, run
from models import load

transformers = pytest.importorskip("transformers", reason="parity is with transformers, which is not installed")

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


@dataclass(frozen=True, eq=False)
class Variant:
    """One configuration of one family.

    `ways` selects implementations of theirs that return patterns and support float64. `length` is that of the longest
    text, which should exceed windows and near distances. No text contains `reserved` ids, which have a special meaning
    for some models (padding). `first_position` is their position of a text's first token, for models that take
    positions.
    """

    config: str  # transformers' class
    model: str  # transformers' class
    fields: Mapping[str, Any]
    ways: Mapping[str, str] = field(default_factory=lambda: {"attn_implementation": "eager"})
    length: int = 11
    target_length: int = 7  # for a decoder with an encoder
    reserved: tuple[int, ...] = ()
    first_position: int = 0
    absent: str = "pooler"  # part of the names of weights that we neither have nor write
    new_tokens: int = 6
    # dotted names of their functions that round to float32 in a float64 model: replacements that do not
    unrounded: Mapping[str, Any] = field(default_factory=dict)
    counts_padding: bool = False  # positions count padding: texts padded left differ from the same texts alone

    def build(self, dtype: torch.dtype, **changed: Any) -> Any:
        config = getattr(transformers, self.config)(**copy.deepcopy({**self.fields, **changed}))  # it adds to them
        theirs = getattr(transformers, self.model)._from_config(config, **self.ways).to(dtype).eval()
        randomise(theirs)
        generator, weights = torch.Generator().manual_seed(1), dict(theirs.named_parameters())
        for name, value in theirs.state_dict().items():
            if name not in weights and value.is_floating_point() and "weight" not in name:  # biases nobody trains
                value.copy_(0.3 * torch.randn(value.shape, generator=generator))
        return theirs


@dataclass
class Pair:
    """Their model, and ours loaded from what theirs wrote."""

    variant: Variant
    theirs: Any
    directory: Path

    @cached_property
    def ours(self) -> Any:
        return load(self.directory, dtype=self.theirs.dtype)

    @property
    def family(self) -> str:
        return self.theirs.config.model_type

    @property
    def has_two_stacks(self) -> bool:
        return len(self.ours.config.stacks) == 2

    def texts(self, *lengths: int, stack: str | None = None, seed: int = 0) -> list[list[int]]:
        d_vocab = self.ours.config.stacks[stack or next(iter(self.ours.config.stacks))].d_vocab
        allowed = torch.tensor([id for id in range(d_vocab) if id not in self.variant.reserved])
        return [
            allowed[token_ids(length, d_vocab=len(allowed), seed=seed + i)].tolist() for i, length in enumerate(lengths)
        ]

    def batches(self, lengths: tuple[int, ...], side: str = "right") -> tuple[TokenBatch, TokenBatch | None]:
        """What the first stack reads, and the decoder if there are two; targets are padded right."""
        source = TokenBatch.from_rows(self.texts(*lengths), side=side, pad_id=max(self.variant.reserved, default=0))
        if not self.has_two_stacks:
            return source, None
        targets = [min(length, self.variant.target_length) for length in reversed(lengths)]
        return source, TokenBatch.from_rows(self.texts(*targets, stack="decoder", seed=50))

    @cached_property
    def whole(self) -> tuple[TokenBatch, TokenBatch | None]:
        """A batch without padding, of the variant's length."""
        return self.batches((self.variant.length,) * 3)

    def ask_ours(self, source: TokenBatch, target: TokenBatch | None, **settings: Any) -> Run:
        return run(self.ours, source, capture="*", target=target, **settings)

    def ask_theirs(self, source: TokenBatch, target: TokenBatch | None) -> Any:
        accepted = inspect.signature(self.theirs.forward).parameters
        inputs = {"output_hidden_states": True, "output_attentions": True, "attention_mask": source.mask.long()}
        inputs |= {"use_cache": False, "position_ids": source.positions + self.variant.first_position}
        if target is not None:
            inputs |= {"decoder_input_ids": target.ids, "decoder_attention_mask": target.mask.long()}
        inputs = {
            name: value for name, value in inputs.items() if name in accepted or not name.endswith(("_ids", "ache"))
        }
        with softmax_of_the_same_precision(), ExitStack() as stack:
            for name, value in self.variant.unrounded.items() if self.theirs.dtype == torch.float64 else ():
                stack.enter_context(mock.patch(name, value))
            return self.theirs(input_ids=source.ids, **inputs)

    def output(self, out: Run) -> Tensor:
        """Our logits, or the last stream if there are none."""
        last = next(reversed(self.ours.config.stacks))
        return out[f"{last}.resid_final"] if self.ours.output is None else out.logits

    def their_output(self, out: Any) -> Tensor:
        return out.last_hidden_state if self.ours.output is None else out.logits

    def deviation(self) -> float:
        """The largest distance of any output from theirs, relative to the largest output if that is above 1."""
        with torch.no_grad():
            expected = self.their_output(self.ask_theirs(*self.whole))
        got = self.output(self.ask_ours(*self.whole))
        return float((got - expected).abs().max() / expected.abs().max().clamp(min=1))


def make_pair(variant: Variant, dtype: torch.dtype, directory: Path) -> Pair:
    """Write their model to `directory` and read both back: some constants are rounded only by writing."""
    variant.build(dtype).save_pretrained(directory)
    return read_pair(variant, dtype, directory)


def read_pair(variant: Variant, dtype: torch.dtype, directory: Path) -> Pair:
    theirs = getattr(transformers, variant.model).from_pretrained(directory, dtype=dtype, **variant.ways)
    return Pair(variant, theirs.eval(), directory)


@contextmanager
def softmax_of_the_same_precision() -> Iterator[None]:
    """Make their eager attention compute its softmax in float64 too, instead of float32."""
    softmax = torch.nn.functional.softmax

    def exact_softmax(x: Tensor, dim: int = -1, dtype: torch.dtype | None = None, **rest: Any) -> Tensor:
        return softmax(x, dim=dim, dtype=None if x.dtype == torch.float64 else dtype, **rest)

    torch.nn.functional.softmax = exact_softmax
    try:
        yield
    finally:
        torch.nn.functional.softmax = softmax


def close(ours: Tensor, theirs: Tensor, tolerance: float, what: str = "output") -> None:
    """Assert equality to `tolerance`: absolute below 1, relative above; in float32 relative to the largest entry."""
    scale = max(1.0, float(theirs.abs().max())) if theirs.dtype == torch.float32 else 1.0
    assert_close(ours, theirs, atol=tolerance * scale, rtol=tolerance, msg=lambda message: f"{what}: {message}")


def activations(pair: Pair, out: Any) -> Iterator[tuple[str, Tensor]]:
    """Our sites and their expected values, from the outputs of theirs: every layer's stream and pattern."""
    for stack, config in pair.ours.config.stacks.items():
        prefix = f"{stack}_" if pair.has_two_stacks else ""
        *entering, final = out[f"{prefix}hidden_states"]
        names = {"attn": f"{prefix}attentions"} | ({"cross_attn": "cross_attentions"} if config.cross_attention else {})
        assert {len(entering), *(len(out[name]) for name in names.values())} == {config.n_layers}
        yield from ((f"{stack}.{layer}.resid_pre", stream) for layer, stream in enumerate(entering))
        yield f"{stack}.resid_final", final
        for attention, name in names.items():
            yield from ((f"{stack}.{layer}.{attention}.pattern", each) for layer, each in enumerate(out[name]))

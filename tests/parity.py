"""Whether a model of ours computes what `transformers` computes: one set of checks for every family.

A family joins with an entry in `tests/models/families/variants.json`, and so gets every test below, once a variant: a
tiny random model is made with `transformers`, every weight drawn, and written with `save_pretrained`; ours is loaded
from there. Of a model's later variants `make test` asks only parity and saving. `python tests/families.py` then writes
the family into the table of docs/families.md.
"""

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import pytest
import torch
from tiny import randomise, token_ids
from torch import Tensor
from torch.testing import assert_close

from interp import InputError, Run, TokenBatch, generate, run
from models import load, save, wrap
from models.families import FAMILIES
from models.families.family import Fields
from models.huggingface.saver import settled

transformers = pytest.importorskip("transformers", reason="parity is with transformers, which is not installed")

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
# they change what a call gives back, or what the configuration says of itself, not what is computed
STRUCTURAL = {"is_encoder_decoder", "model_type", "output_attentions", "output_hidden_states", "return_dict", "dtype"}


@dataclass(frozen=True, eq=False)
class Variant:
    """One configuration of one family.

    `ways` are those of their implementations that give patterns and know float64. `length` is that of the longest text,
    which should be longer than windows and near distances; `reserved` ids are in no text, for models that give them a
    meaning of their own (padding); `first_position` is what they call the place of a text's first token where positions
    are given.
    """

    config: str  # transformers' class
    model: str  # transformers' class
    fields: Mapping[str, Any]
    ways: Mapping[str, str] = field(default_factory=lambda: {"attn_implementation": "eager"})
    length: int = 11
    target_length: int = 7  # of what a decoder with an encoder reads
    reserved: tuple[int, ...] = ()
    first_position: int = 0
    absent: str = "pooler"  # weights that we do not have, and so do not write: a part of their names
    new_tokens: int = 6
    # what of theirs rounds to float32 in a float64 model, by its dotted name, and what does the same without
    unrounded: Mapping[str, Any] = field(default_factory=dict)
    counts_padding: bool = False  # positions are those of the padded row: texts padded left are not what they are alone

    def build(self, dtype: torch.dtype, **changed: Any) -> Any:
        """Their model, every weight random."""
        config = getattr(transformers, self.config)(**copy.deepcopy({**self.fields, **changed}))  # it adds to them
        theirs = getattr(transformers, self.model)._from_config(config, **self.ways).to(dtype).eval()
        randomise(theirs)
        generator, known = torch.Generator().manual_seed(1), dict(theirs.named_parameters())
        for name, value in theirs.state_dict().items():
            if name not in known and value.is_floating_point() and "weight" not in name:  # biases that nobody trains
                value.copy_(0.3 * torch.randn(value.shape, generator=generator))
        return theirs


@dataclass
class Pair:
    """Their model and ours, loaded from what theirs wrote."""

    variant: Variant
    theirs: Any
    directory: Path

    @cached_property
    def ours(self) -> Any:
        """Our model."""
        return load(self.directory, dtype=self.theirs.dtype)

    @property
    def family(self) -> str:
        """What config.json calls the family."""
        return self.theirs.config.model_type

    @property
    def both(self) -> bool:
        """Whether there is an encoder and a decoder."""
        return len(self.ours.config.stacks) == 2

    def texts(self, *lengths: int, stack: str | None = None, seed: int = 0) -> list[list[int]]:
        """Texts of random tokens."""
        d_vocab = self.ours.config.stacks[stack or next(iter(self.ours.config.stacks))].d_vocab
        allowed = torch.tensor([id for id in range(d_vocab) if id not in self.variant.reserved])
        return [
            allowed[token_ids(length, d_vocab=len(allowed), seed=seed + i)].tolist() for i, length in enumerate(lengths)
        ]

    def batches(self, lengths: tuple[int, ...], side: str = "right") -> tuple[TokenBatch, TokenBatch | None]:
        """What the first stack reads and what the decoder reads where there are two; targets are padded right."""
        source = TokenBatch.from_rows(self.texts(*lengths), side=side, pad_id=max(self.variant.reserved, default=0))
        if not self.both:
            return source, None
        targets = [min(length, self.variant.target_length) for length in reversed(lengths)]
        return source, TokenBatch.from_rows(self.texts(*targets, stack="decoder", seed=50))

    @cached_property
    def whole(self) -> tuple[TokenBatch, TokenBatch | None]:
        """A batch without padding, as long as the variant says."""
        return self.batches((self.variant.length,) * 3)

    def ask_ours(self, source: TokenBatch, target: TokenBatch | None, **settings: Any) -> Run:
        """A run of ours that captures everything."""
        return run(self.ours, source, capture="*", target=target, **settings)

    def ask_theirs(self, source: TokenBatch, target: TokenBatch | None) -> Any:
        """Their outputs, with streams and patterns."""
        accepted = inspect.signature(self.theirs.forward).parameters
        given = {"output_hidden_states": True, "output_attentions": True, "attention_mask": source.mask.long()}
        given |= {"use_cache": False, "position_ids": source.positions + self.variant.first_position}
        if target is not None:
            given |= {"decoder_input_ids": target.ids, "decoder_attention_mask": target.mask.long()}
        given = {
            name: value for name, value in given.items() if name in accepted or not name.endswith(("_ids", "ache"))
        }
        with softmax_of_the_same_precision(), ExitStack() as stack:
            for name, value in self.variant.unrounded.items() if self.theirs.dtype == torch.float64 else ():
                stack.enter_context(mock.patch(name, value))
            return self.theirs(input_ids=source.ids, **given)

    def output(self, out: Run) -> Tensor:
        """Our logits, or the last stream where there are none."""
        last = next(reversed(self.ours.config.stacks))
        return out[f"{last}.resid_final"] if self.ours.output is None else out.logits

    def their_output(self, out: Any) -> Tensor:
        """Theirs."""
        return out.last_hidden_state if self.ours.output is None else out.logits

    def deviation(self) -> float:
        """The largest distance of any output from theirs, relative to the largest output where that is above 1."""
        with torch.no_grad():
            expected = self.their_output(self.ask_theirs(*self.whole))
        got = self.output(self.ask_ours(*self.whole))
        return float((got - expected).abs().max() / expected.abs().max().clamp(min=1))


def make_pair(variant: Variant, dtype: torch.dtype, directory: Path) -> Pair:
    """Both models, read from `directory`, where theirs has been written."""
    return read_pair(variant, variant.build(dtype), directory)


def read_pair(variant: Variant, theirs: Any, directory: Path) -> Pair:
    """Theirs as they read it again (some constants are rounded only then), and ours."""
    theirs.save_pretrained(directory)
    again = type(theirs).from_pretrained(directory, dtype=theirs.dtype, **variant.ways)
    return Pair(variant, again.eval(), directory)


@contextmanager
def softmax_of_the_same_precision() -> Iterator[None]:
    """Let their eager attention take its softmax in float64 where everything else is, instead of in float32."""
    softmax = torch.nn.functional.softmax

    def same(x: Tensor, dim: int = -1, dtype: torch.dtype | None = None, **rest: Any) -> Tensor:
        return softmax(x, dim=dim, dtype=None if x.dtype == torch.float64 else dtype, **rest)

    torch.nn.functional.softmax = same
    try:
        yield
    finally:
        torch.nn.functional.softmax = softmax


def close(ours: Tensor, theirs: Tensor, tolerance: float, what: str = "output") -> None:
    """Equal to `tolerance`, absolute below 1 and relative above.

    In float32 relative to the tensor's largest entry, as `deviation` is: entries are sums of others as large, which
    each processor rounds in its own order.
    """
    scale = max(1.0, float(theirs.abs().max())) if theirs.dtype == torch.float32 else 1.0
    assert_close(ours, theirs, atol=tolerance * scale, rtol=tolerance, msg=lambda message: f"{what}: {message}")


def streams(pair: Pair, out: Any) -> Iterator[tuple[str, Tensor]]:
    """Our sites and what they must hold: every layer's stream, from their outputs."""
    kinds = {"encoder": "encoder_hidden_states", "decoder": "decoder_hidden_states"} if pair.both else {}
    for stack, config in pair.ours.config.stacks.items():
        *entering, final = out[kinds.get(stack, "hidden_states")]
        assert len(entering) == config.n_layers
        yield from ((f"{stack}.{layer}.resid_pre", stream) for layer, stream in enumerate(entering))
        yield f"{stack}.resid_final", final


def patterns(pair: Pair, out: Any) -> Iterator[tuple[str, Tensor]]:
    """Our sites and what they must hold: every layer's pattern, from their outputs."""
    if not pair.both:
        named = {(next(iter(pair.ours.config.stacks)), "attn"): "attentions"}
    else:
        named = {("encoder", "attn"): "encoder_attentions", ("decoder", "attn"): "decoder_attentions"}
        named[("decoder", "cross_attn")] = "cross_attentions"
    for (stack, attention), name in named.items():
        assert len(out[name]) == pair.ours.config.stacks[stack].n_layers
        yield from ((f"{stack}.{layer}.{attention}.pattern", each) for layer, each in enumerate(out[name]))


class Parity:
    """Every test that a family has to pass, for each of `VARIANTS`."""

    VARIANTS: ClassVar[Mapping[str, Variant]] = {}
    ON_ALL: ClassVar[set[str]] = {
        "test_outputs_streams_and_patterns_are_theirs",
        "test_configurations_survive_being_written",
        "test_saved_models_are_read_by_transformers",
    }

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """One test a variant, all of a variant together: of later ones of a model those not `ON_ALL` are slow."""
        if "variant" in metafunc.fixturenames:
            variants, first = metafunc.cls.VARIANTS, {}
            for name, variant in variants.items():
                first.setdefault(variant.model, name)
            later = {*variants} - {*first.values()} if metafunc.function.__name__ not in self.ON_ALL else set()
            cases = [
                pytest.param(variant, marks=[pytest.mark.slow] * (name in later), id=name)
                for name, variant in variants.items()
            ]
            metafunc.parametrize("variant", cases, scope="class")

    @pytest.fixture(scope="class")
    @classmethod
    def made(cls, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Variant, torch.dtype], Pair]:
        """Pairs, each made once."""
        kept: dict[tuple[Variant, torch.dtype], Pair] = {}

        def make(variant: Variant, dtype: torch.dtype = torch.float64) -> Pair:
            if (variant, dtype) not in kept:
                kept[variant, dtype] = make_pair(variant, dtype, tmp_path_factory.mktemp("theirs"))
            return kept[variant, dtype]

        return make

    def test_outputs_streams_and_patterns_are_theirs(self, made, variant, dtype=torch.float64):
        pair = made(variant, dtype)
        with torch.no_grad():
            expected = pair.ask_theirs(*pair.whole)
        out = pair.ask_ours(*pair.whole)
        close(pair.output(out), pair.their_output(expected), TOLERANCE[dtype])
        for kind in (streams, patterns):
            for site, value in kind(pair, expected):
                close(out[site], value, TOLERANCE[dtype], site)

    def test_outputs_streams_and_patterns_are_theirs_in_float32(self, made, variant):
        self.test_outputs_streams_and_patterns_are_theirs(made, variant, torch.float32)

    def test_attention_without_patterns_is_the_same(self, made, variant):
        pair = made(variant)
        source, target = pair.whole
        plain, seen = run(pair.ours, source, "*.resid_final", target=target), pair.ask_ours(source, target)
        close(pair.output(plain) if pair.ours.output else plain[list(plain.activations)[-1]], pair.output(seen), 1e-10)

    def test_gradients_are_theirs(self, made, variant, tmp_path):
        pair = made(variant)
        pair.theirs.zero_grad()
        pair.ours.zero_grad()
        expected = pair.their_output(pair.ask_theirs(*pair.whole))
        direction = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2), dtype=expected.dtype)
        (expected * direction).sum().backward()
        (pair.output(pair.ask_ours(*pair.whole, grad=True)) * direction).sum().backward()
        theirs = gradients_as_ours(pair, tmp_path)
        largest = max(float(gradient.norm()) for gradient in theirs.values())
        for name, weight in pair.ours.named_parameters():
            if name not in theirs:
                continue
            got = torch.zeros_like(weight) if weight.grad is None else weight.grad
            error, size = float((got - theirs[name]).norm()), float(theirs[name].norm())
            # keys' biases move no pattern: their gradients are rounding errors around 0
            assert error <= 1e-6 * size + 1e-9 * largest, f"{name}: {error:.1e} of {size:.1e}"

    @pytest.mark.parametrize("side", ["left", "right"])
    def test_padded_texts_are_theirs_and_those_of_each_alone(self, made, variant, side):
        pair, lengths = made(variant), (5, variant.length, 2)
        source, target = pair.batches(lengths, side)
        read = source if target is None else target
        with torch.no_grad():
            expected = pair.their_output(pair.ask_theirs(source, target))
        together = pair.output(pair.ask_ours(source, target))
        if not (variant.counts_padding and side == "left"):
            close(together[read.mask], expected[read.mask], 1e-10)
        for row in range(len(lengths)):
            alone = [each and TokenBatch.from_ids(each.ids[row][each.mask[row]]) for each in (source, target)]
            close(together[row][read.mask[row]], pair.output(pair.ask_ours(*alone))[0], 1e-10, f"text {row}")

    def test_generated_text_is_theirs(self, made, variant):
        pair = made(variant)
        if pair.ours.output is None or pair.ours.config.decoder is None:
            pytest.skip("no decoder with an output layer")
        n_ctx = pair.ours.config.n_ctx
        length = variant.length if pair.both else min(variant.length, n_ctx - variant.new_tokens)
        ids = torch.tensor(pair.texts(length, length))
        # no id ends or pads: all texts are as long as they may be
        start = {"decoder_start_token_id": pair.ours.config.target_start} if pair.both else {}
        settings = transformers.GenerationConfig(max_new_tokens=variant.new_tokens, do_sample=False, **start)
        pair.theirs.generation_config = settings
        with softmax_of_the_same_precision(), torch.no_grad():
            expected = pair.theirs.generate(ids, attention_mask=torch.ones_like(ids))
        assert torch.equal(generate(pair.ours, ids, variant.new_tokens).ids, expected)

    def test_wrapped_in_memory_it_is_what_it_is_loaded_from_files(self, made, variant):
        pair = made(variant)
        copied, shared = wrap(pair.theirs, copy=True), wrap(pair.theirs)
        assert copied.config == shared.config == pair.ours.config
        assert copied.shares.copied == 1
        for name, weight in pair.ours.named_parameters():
            for other in (copied, shared):
                assert torch.equal(other.get_parameter(name), weight), name
            assert copied.get_parameter(name).stride() == weight.stride(), name
        theirs = {each.untyped_storage().data_ptr() for each in pair.theirs.state_dict().values()}
        for share in shared.shares.parameters:  # what is said to be shared is, and nothing else
            here = shared.get_parameter(share.parameter).untyped_storage().data_ptr()
            assert (here in theirs) is share.shared, share
        assert {share.parameter for share in shared.shares.parameters} == {*dict(shared.named_parameters())}

    def test_configurations_survive_being_written(self, made, variant):
        pair = made(variant)
        family, config = FAMILIES[pair.family], pair.ours.config
        again = family.config(family.raw(config))
        assert family.config(family.raw(again)) == again
        assert settled(again) == settled(config)

    def test_saved_models_are_read_by_transformers(self, made, variant, tmp_path):
        pair = made(variant)
        save(pair.ours, tmp_path / "ours")  # in the family that it came from
        theirs, report = type(pair.theirs).from_pretrained(
            tmp_path / "ours", output_loading_info=True, dtype=torch.float64, **variant.ways
        )
        assert theirs.config.architectures == [variant.model]  # what AutoModel... would build
        assert not report["unexpected_keys"]
        assert not {key for key in report["missing_keys"] if variant.absent not in key}
        with torch.no_grad():
            expected = pair.their_output(Pair(variant, theirs.eval(), tmp_path).ask_theirs(*pair.whole))
        again = Pair(variant, theirs, tmp_path / "ours")
        close(again.output(again.ask_ours(*pair.whole)), expected, 1e-10)
        close(pair.output(pair.ask_ours(*pair.whole)), expected, 1e-10)

    def test_fields_that_nothing_reads_are_refused_or_change_nothing(self, made, variant, tmp_path):
        pair = made(variant)
        family, raw = FAMILIES[pair.family], pair.theirs.config.to_dict()
        with pytest.raises(InputError, match=r"nothing here reads mystery_factor 2\.0"):
            family.config(raw | {"mystery_factor": 2.0})
        family.config(raw | {"mystery_factor": None})
        fields = Fields(raw)
        family.reads(fields)
        unread = {key: value for key, value in raw.items() if key not in fields.seen | STRUCTURAL}
        changed = {key: other(value) for key, value in unread.items() if isinstance(value, int | float)}
        assert changed
        different = variant.build(torch.float64, **changed)
        different.load_state_dict(pair.theirs.state_dict())
        different = read_pair(variant, different, tmp_path)
        with torch.no_grad():
            expected, got = (pair.their_output(each.ask_theirs(*pair.whole)) for each in (pair, different))
        close(got, expected, 1e-12, f"with {changed}")  # not 0: texts read in chunks round otherwise


def checked(variants: Mapping[str, Variant]) -> type[Parity]:
    """The tests for these variants, to be given a name that begins with Test."""
    return type("Checked", (Parity,), {"VARIANTS": variants})


_NO_GRADIENT = float(2**60)  # in place of what is not trained


def gradients_as_ours(pair: Pair, directory: Path) -> dict[str, Tensor]:
    """Their gradients by the names of our parameters: written and loaded as if they were weights.

    What they do not train (a bias of logits) has none.
    """
    shell = copy.deepcopy(pair.theirs)
    with torch.no_grad():
        for constant in shell.buffers():
            if constant.is_floating_point():
                constant.fill_(_NO_GRADIENT)
        for weight, trained in zip(shell.parameters(), pair.theirs.parameters(), strict=True):
            weight.copy_(torch.zeros_like(weight) if trained.grad is None else trained.grad)
    shell.save_pretrained(directory)
    found = load(directory, dtype=pair.theirs.dtype).named_parameters()
    return {name: value.detach() for name, value in found if not (value == _NO_GRADIENT).any()}


def other(value: bool | float) -> bool | float:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else value / 2 + 0.1

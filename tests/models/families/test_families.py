"""Every family computes what it computes in `transformers`, as closely as docs/families.md says.

A family joins with an entry in `variants.json`: the first variant of a model gets every test below, later ones parity
and saving. `python tests/families.py` then writes the family into the table of docs/families.md.
"""

import copy
from pathlib import Path

import pytest
import torch
from families import PAGE, by_family, page, stated
from parity import (
    TOLERANCE,
    Pair,
    activations,
    close,
    make_pair,
    read_pair,
    softmax_of_the_same_precision,
    transformers,
)
from torch import Tensor

from interp import InputError, TokenBatch, generate
from models import load, save, wrap
from models.families import FAMILIES
from models.families.fields import Fields

VARIANTS = {name: variant for variants in by_family().values() for name, variant in variants.items()}
ON_ALL = {
    "test_outputs_streams_and_patterns_are_theirs",
    "test_saved_models_are_read_by_transformers",
}
# fields that change what a call returns, or what the configuration says, but not the computation
STRUCTURAL = {"is_encoder_decoder", "model_type", "output_attentions", "output_hidden_states", "return_dict", "dtype"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "pair" in metafunc.fixturenames:
        first = {variant.model: name for name, variant in reversed(VARIANTS.items())}
        names = [*VARIANTS] if metafunc.function.__name__ in ON_ALL else [*first.values()][::-1]
        metafunc.parametrize("pair", [VARIANTS[name] for name in names], ids=names, indirect=True, scope="module")


@pytest.fixture(scope="module")
def pair(request, tmp_path_factory) -> Pair:
    return make_pair(request.param, torch.float64, tmp_path_factory.mktemp("theirs"))


def test_every_family_is_checked_and_the_page_is_as_it_would_be_written():
    import repository  # noqa: F401

    text = PAGE.read_text(encoding="utf-8")
    deviations = stated(text)
    assert deviations.keys() == by_family().keys() == FAMILIES.keys() - {"interp"}
    assert page(deviations) == text, "python tests/families.py writes it again"
    for name, stated_pair in deviations.items():
        for deviation, allowed in zip(stated_pair, TOLERANCE.values(), strict=True):
            assert float(deviation) <= allowed, name


def same_activations(pair: Pair, tolerance: float) -> None:
    with torch.no_grad():
        expected = pair.ask_theirs(*pair.whole)
    out = pair.ask_ours(*pair.whole)
    close(pair.output(out), pair.their_output(expected), tolerance)
    for site, value in activations(pair, expected):
        close(out[site], value, tolerance, site)


def test_outputs_streams_and_patterns_are_theirs(pair):
    same_activations(pair, TOLERANCE[torch.float64])


def test_outputs_streams_and_patterns_are_theirs_in_float32(pair, tmp_path):
    same_activations(make_pair(pair.variant, torch.float32, tmp_path), TOLERANCE[torch.float32])


def test_gradients_are_theirs(pair, tmp_path):
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
        # keys' biases do not change patterns: their gradients are rounding errors around 0
        assert error <= 1e-6 * size + 1e-9 * largest, f"{name}: {error:.1e} of {size:.1e}"


@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_texts_are_theirs_and_those_of_each_alone(pair, side):
    variant, lengths = pair.variant, (5, pair.variant.length, 2)
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


def test_generated_text_is_theirs(pair):
    if pair.ours.output is None or pair.ours.config.decoder is None:
        pytest.skip("no decoder with an output layer")
    variant, n_ctx = pair.variant, pair.ours.config.n_ctx
    length = variant.length if pair.has_two_stacks else min(variant.length, n_ctx - variant.new_tokens)
    ids = torch.tensor(pair.texts(length, length))
    # no id ends or pads, so all texts have full length
    start = {"decoder_start_token_id": pair.ours.config.target_start} if pair.has_two_stacks else {}
    settings = transformers.GenerationConfig(max_new_tokens=variant.new_tokens, do_sample=False, **start)
    pair.theirs.generation_config = settings
    with softmax_of_the_same_precision(), torch.no_grad():
        expected = pair.theirs.generate(ids, attention_mask=torch.ones_like(ids))
    assert torch.equal(generate(pair.ours, ids, variant.new_tokens).ids, expected)


def test_wrapped_in_memory_it_is_what_it_is_loaded_from_files(pair):
    copied, shared = wrap(pair.theirs, copy=True), wrap(pair.theirs)
    assert copied.config == shared.config == pair.ours.config
    assert copied.shares.copied == 1
    for name, weight in pair.ours.named_parameters():
        for wrapped in (copied, shared):
            assert torch.equal(wrapped.get_parameter(name), weight), name
        assert copied.get_parameter(name).stride() == weight.stride(), name
    theirs = {each.untyped_storage().data_ptr() for each in pair.theirs.state_dict().values()}
    for share in shared.shares.parameters:  # exactly what should be shared is
        address = shared.get_parameter(share.parameter).untyped_storage().data_ptr()
        assert (address in theirs) is share.shared, share
    assert {share.parameter for share in shared.shares.parameters} == {*dict(shared.named_parameters())}


def test_saved_models_are_read_by_transformers(pair, tmp_path):
    variant = pair.variant
    save(pair.ours, tmp_path / "ours")  # in its own family; refused if its configuration would change
    theirs, report = type(pair.theirs).from_pretrained(
        tmp_path / "ours", output_loading_info=True, dtype=torch.float64, **variant.ways
    )
    assert theirs.config.architectures == [variant.model]  # the class that AutoModel would build
    assert not report["unexpected_keys"]
    assert not {key for key in report["missing_keys"] if variant.absent not in key}
    with torch.no_grad():
        expected = pair.their_output(Pair(variant, theirs.eval(), tmp_path).ask_theirs(*pair.whole))
    again = Pair(variant, theirs, tmp_path / "ours")
    close(again.output(again.ask_ours(*pair.whole)), expected, 1e-10)
    close(pair.output(pair.ask_ours(*pair.whole)), expected, 1e-10)


def test_fields_that_nothing_reads_are_refused_or_change_nothing(pair, tmp_path):
    family, raw = FAMILIES[pair.family], pair.theirs.config.to_dict()
    with pytest.raises(InputError, match=r"nothing here reads mystery_factor 2\.0"):
        family.config(raw | {"mystery_factor": 2.0})
    family.config(raw | {"mystery_factor": None})
    fields = Fields(raw)
    family.reads(fields)
    read = fields.names_read | family.only.keys() | STRUCTURAL
    unread = {key: value for key, value in raw.items() if key not in read}
    changed = {key: other_value(value) for key, value in unread.items() if isinstance(value, int | float)}
    assert changed
    different = pair.variant.build(torch.float64, **changed)
    different.load_state_dict(pair.theirs.state_dict())
    different.save_pretrained(tmp_path)
    different = read_pair(pair.variant, torch.float64, tmp_path)
    with torch.no_grad():
        expected, got = (pair.their_output(each.ask_theirs(*pair.whole)) for each in (pair, different))
    close(got, expected, 1e-12, f"with {changed}")  # not 0: texts read in chunks round differently


_NO_GRADIENT = float(2**60)  # marks untrained weights


def gradients_as_ours(pair: Pair, directory: Path) -> dict[str, Tensor]:
    """Their gradients by our names, written and loaded as if they were weights; untrained weights have none."""
    shell = copy.deepcopy(pair.theirs)
    with torch.no_grad():
        for constant in shell.buffers():
            if constant.is_floating_point():
                constant.fill_(_NO_GRADIENT)
        for weight, trained in zip(shell.parameters(), pair.theirs.parameters(), strict=True):
            weight.copy_(torch.zeros_like(weight) if trained.grad is None else trained.grad)
    shell.save_pretrained(directory)
    weights = load(directory, dtype=pair.theirs.dtype).named_parameters()
    return {name: value.detach() for name, value in weights if not (value == _NO_GRADIENT).any()}


def other_value(value: bool | float) -> bool | float:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else value / 2 + 0.1

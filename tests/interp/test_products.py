"""The faster kernel gives torch's numbers, forwards and backwards, and is skipped where it cannot be used."""

import pytest
import torch
from covering import pairwise
from torch.nn.functional import linear as plain

from interp import products
from interp.products import linear


@pytest.fixture
def used(monkeypatch):
    """Counts uses of the faster kernel, if this machine has it."""
    calls: list[torch.Size] = []
    kernel = products._onednn
    monkeypatch.setattr(products, "_onednn", lambda x, *rest: calls.append(x.shape) or kernel(x, *rest))
    return calls


def parts(*batch: int, bias: bool = True):
    generator = torch.Generator().manual_seed(0)
    x, weight, b = (torch.randn(size, generator=generator) for size in ((*batch, 13), (7, 13), (7,)))
    return x, weight, b if bias else None


BATCHES = [(3, 5, 2), (40,), (16,), (3,), (0,), ()]
LAYOUTS = ["output first", "input first", "a part"]


@pytest.mark.parametrize(("batch", "bias", "layout"), pairwise(BATCHES, (True, False), LAYOUTS))
def test_a_product_is_torchs(batch, bias, layout, used):
    x, weight, b = parts(*batch, bias=bias)
    if layout != "output first":
        weight = weight.t().contiguous().t()
    if layout == "a part":
        weight = torch.cat([weight, weight])[3:10]
    with torch.no_grad():
        result = linear(x, weight, b)
    torch.testing.assert_close(result, plain(x.double(), weight.double(), None if b is None else b.double()).float())
    assert len(used) == (x.numel() >= 16 * 13 and products._exists())


@pytest.mark.parametrize("flags", [(True, True, True), (True, False, False), (False, True, False)])
@pytest.mark.parametrize("bias", [True, False])
def test_gradients_are_torchs_and_can_be_differentiated_again(flags, bias, used):
    def gradients(product, dtype: torch.dtype) -> list[torch.Tensor]:
        inputs = [None if part is None else part.to(dtype) for part in parts(4, 9, bias=bias)]
        choices = zip(inputs, flags, strict=True)
        leaves = [part.requires_grad_() for part, is_asked in choices if is_asked and part is not None]
        first = torch.autograd.grad(product(*inputs).pow(3).sum(), leaves, create_graph=True)
        squares = torch.stack([each.square().sum() for each in first])
        again = torch.autograd.grad(squares.sum(), leaves)
        return [each.detach().double() for each in (*first, *again)]

    for ours, torchs in zip(gradients(linear, torch.float32), gradients(plain, torch.float64), strict=True):
        torch.testing.assert_close(ours, torchs, rtol=1e-4, atol=1e-4 * float(torchs.abs().max()))
    assert bool(used) == products._exists()


def test_other_numbers_weights_and_modes_are_torchs_own(used):
    with torch.no_grad():
        x, weight, b = parts(40)
        double = x.double(), weight.double(), b.double()
        assert torch.equal(linear(*double), plain(*double))
        rounded = weight.as_subclass(type("Rounded", (torch.Tensor,), {}))
        assert torch.equal(linear(x, rounded, b), plain(x, weight, b))
        with torch.autocast("cpu"):
            assert linear(x, weight, b).dtype == torch.bfloat16
    assert not used


def test_no_gradient_of_a_weight_is_made_that_nobody_asks_for(used):
    x, weight, _ = parts(4, 9)
    x.requires_grad_(), weight.requires_grad_()
    total = linear(x, weight).sum()
    forwards = len(used)
    (alone,) = torch.autograd.grad(total, [x], retain_graph=True)
    assert len(used) - forwards <= 1
    gradients = torch.autograd.grad(total, [x, weight])
    torch.testing.assert_close(gradients[0], alone)
    torch.testing.assert_close(gradients[1], torch.autograd.grad(plain(x, weight).sum(), [weight])[0])


@pytest.mark.parametrize(("then", "grad"), [*zip(products.ACTIVATIONS, (True, False) * 2, strict=True)])
def test_an_activation_behind_a_product_is_the_same_within_its_kernel(then, grad, used):
    x, weight, b = parts(40)
    with torch.set_grad_enabled(grad):
        result = linear(x, weight.requires_grad_(grad), b, then)
    expected = products.ACTIVATIONS[then](plain(x.double(), weight.double(), b.double()))
    torch.testing.assert_close(result.detach(), expected.detach().float())
    torch.testing.assert_close(linear(x[:2], weight, b, then), products.ACTIVATIONS[then](plain(x[:2], weight, b)))
    assert result.requires_grad == grad
    assert len(used) == products._exists()

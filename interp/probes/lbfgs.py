"""How are many smooth problems minimised side by side? Preconditioned L-BFGS, each problem with its own step."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

_SLACK = 1e-6  # fraction of the loss that rounding may add in a step
_STEPS, _MEMORY = 300, 12  # most steps, and how many of them estimate the curvature
Objective = Callable[
    [Float[Tensor, "problem size"], Bool[Tensor, " problem"]],
    tuple[Float[Tensor, " problem"], Float[Tensor, "problem size"]],
]  # each active problem's value and gradient
Linear = Callable[[Float[Tensor, "problem size"]], Float[Tensor, "problem size"]]


def minimise(
    objective: Objective,
    start: Float[Tensor, "problem size"],
    precondition: Linear,
    *,
    tolerance: float = 3e-5,
) -> Float[Tensor, "problem size"]:
    """The minimum of each problem (Nocedal & Wright 2006, algorithm 7.4).

    `precondition` applies a positive definite guess of the inverse curvature. A problem is done once a step promises to
    lower its value by less than `tolerance`.
    """
    point, (value, gradient) = start, objective(start, start.new_ones(len(start), dtype=torch.bool))
    past: list[tuple[Tensor, Tensor]] = []
    active = torch.ones_like(value, dtype=torch.bool)
    for _ in range(_STEPS):
        direction = -_inverse_times(gradient, past, precondition)
        slope = (direction * gradient).sum(-1)
        active = active & (-slope > tolerance)  # for good: finished problems are not evaluated again
        if not active.any():
            break
        length, pending, new_value, new_gradient = active.to(value), active, value, gradient
        while True:
            trial = point + length[:, None] * direction
            trial_value, trial_gradient = objective(trial, pending)
            new_value = torch.where(pending, trial_value, new_value)
            new_gradient = torch.where(pending[:, None], trial_gradient, new_gradient)
            pending = new_value > value + 1e-4 * length * slope + _SLACK * value.abs()
            if bool((~pending | (length < 1e-4)).all()):
                break
            length = torch.where(pending, length / 3, length)
        past = [*past, (trial - point, new_gradient - gradient)][-_MEMORY:]
        point, value, gradient = trial, new_value, new_gradient
    return point


def _inverse_times(gradient: Tensor, past: list[tuple[Tensor, Tensor]], precondition: Linear) -> Tensor:
    """L-BFGS's inverse curvature times the gradient, per problem; skips steps without positive curvature."""
    products = [(moved * turned).sum(-1, keepdim=True) for moved, turned in past]
    curvatures = [torch.where(product > 1e-12, product, torch.inf) for product in products]
    result, shares = gradient, []
    for (moved, turned), curvature in zip(reversed(past), reversed(curvatures), strict=True):
        shares.append((moved * result).sum(-1, keepdim=True) / curvature)
        result = result - shares[-1] * turned
    result = precondition(result)
    if past:
        turned, curvature = past[-1][1], curvatures[-1]
        against = (turned * precondition(turned)).sum(-1, keepdim=True)
        usable = curvature.isfinite() & (against > 0)
        result = torch.where(usable, curvature / against.clamp(min=1e-30), 1.0) * result
    for (moved, turned), curvature, share in zip(past, curvatures, reversed(shares), strict=True):
        result = result + (share - (turned * result).sum(-1, keepdim=True) / curvature) * moved
    return result

"""What can a linear classifier read from a vector, and how much of that is the classifier's own doing?

Many probes at once: one a site (each layer's residual stream, each head's output) and task. A probe is a softmax
classifier, the exact minimum of a convex loss, so that it depends on nothing but vectors, labels and one penalty.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy, pad

from interp.errors import InputError

_LOGITS = 20_000_000  # numbers in the logits of the probes that are fitted together: 80 MB
PENALTY = 2e-3  # best of 7e-5 to 2e-2 for tags from MiniLM, judged on a part of the training words of EWT
_SLACK = 1e-6  # of the loss: what rounding may add to it in a step
Objective = Callable[[Float[Tensor, "problem size"]], Float[Tensor, " problem"]]
Linear = Callable[[Float[Tensor, "problem size"]], Float[Tensor, "problem size"]]


@dataclass(frozen=True)
class Scaling:
    """Takes a site's mean off and divides by one number, so that all coordinates together have mean square 1.

    One number a site, not one a coordinate: a rotation of the vectors then changes no probe.
    """

    centre: Float[Tensor, "site 1 feature"]
    size: Float[Tensor, "site 1 1"]

    @staticmethod
    def of(vectors: Float[Tensor, "site item feature"]) -> "Scaling":
        """The scaling that training vectors ask for."""
        centre = vectors.mean(1, keepdim=True)
        size = (vectors - centre).square().mean((1, 2), keepdim=True).sqrt()
        return Scaling(centre, torch.where(size > 0, size, torch.ones_like(size)))

    def __call__(self, vectors: Float[Tensor, "site item feature"]) -> Float[Tensor, "site item feature"]:
        """The vectors, scaled."""
        return (vectors - self.centre) / self.size


@dataclass(frozen=True)
class Probes:
    """One softmax classifier a site and task. `loss` is the mean cross-entropy on the training items, in nats."""

    scaling: Scaling
    weight: Float[Tensor, "site task feature_and_bias cls"]
    loss: Float[Tensor, "site task"]

    def predict(self, vectors: Float[Tensor, "site item feature"]) -> Int[Tensor, "site task item"]:
        """The most probable class of each item."""
        found = [
            _logits(self.weight[[site]], Scaling(self.scaling.centre[[site]], self.scaling.size[[site]])(rows[None]))
            for site, rows in enumerate(vectors)
        ]
        return torch.cat(found).argmax(-1).transpose(1, 2)


def fit(
    vectors: Float[Tensor, "site item feature"],
    labels: Int[Tensor, "task item"],
    n_classes: int,
    *,
    penalty: float = PENALTY,
) -> Probes:
    """Fit one multinomial logistic regression a site and task.

    The minimum of mean cross-entropy + penalty / 2 x sum of squared weights (the bias is free), on vectors scaled by
    `Scaling`: scikit-learn's `LogisticRegression(C=1 / (penalty * items))` on the same vectors. Tasks share the
    vectors, so a control task costs little.

    Raises:
        InputError: fewer than two classes.
    """
    if n_classes < 2:
        raise InputError(f"a probe tells classes apart: expected at least two, got {n_classes}")
    scaling = Scaling.of(vectors)
    n_tasks, n_items = labels.shape
    together = max(1, _LOGITS // (n_tasks * n_items * n_classes))
    weights, losses = [], []
    for at in range(0, len(vectors), together):
        some = slice(at, at + together)
        weight, loss = _fit(
            Scaling(scaling.centre[some], scaling.size[some])(vectors[some]), labels, n_classes, penalty
        )
        weights.append(weight)
        losses.append(loss)
    return Probes(scaling, torch.cat(weights), torch.cat(losses))


def _fit(scaled: Tensor, labels: Tensor, n_classes: int, penalty: float) -> tuple[Tensor, Tensor]:
    n_sites, n_items, n_features = scaled.shape
    shape = (n_sites, len(labels), n_features + 1, n_classes)
    wanted = labels.T.expand(n_sites, *labels.T.shape).flatten()

    def loss(weight: Tensor) -> Tensor:
        each = cross_entropy(_logits(weight, scaled).view(-1, n_classes), wanted, reduction="none")
        return each.view(n_sites, n_items, -1).mean(1)

    def objective(point: Tensor) -> Tensor:
        weight = point.view(shape)
        return (loss(weight) + penalty / 2 * weight[:, :, :-1].square().sum((2, 3))).flatten()

    inverse = _curvature_inverse(scaled, penalty)

    def precondition(gradient: Tensor) -> Tensor:
        return (inverse[:, None] @ gradient.view(shape)).reshape_as(gradient)

    start = scaled.new_zeros(shape[0] * shape[1], shape[2] * shape[3])
    weight = minimise(objective, start, precondition).view(shape)
    with torch.no_grad():
        return weight, loss(weight)


def _logits(weight: Tensor, scaled: Tensor) -> Tensor:
    """Site item task cls."""
    n_sites, n_tasks, size, n_classes = weight.shape
    side_by_side = weight.transpose(1, 2).reshape(n_sites, size, n_tasks * n_classes)  # one product for all tasks
    found = torch.baddbmm(side_by_side[:, -1:], scaled, side_by_side[:, :-1])
    return found.view(n_sites, -1, n_tasks, n_classes)


def _curvature_inverse(scaled: Tensor, penalty: float) -> Float[Tensor, "site size size"]:
    """Inverse of the bound on a softmax regression's curvature, half the vectors' second moments (Böhning 1992)."""
    n_features = scaled.shape[-1]
    moments = scaled.transpose(1, 2) @ scaled / (2 * scaled.shape[1])
    moments = moments + max(penalty, 1e-6) * torch.eye(n_features).to(moments)
    inverse = pad(torch.linalg.inv(moments.double()).to(scaled), (0, 1, 0, 1))
    inverse[:, -1, -1] = 2.0  # centred vectors: the bias stands alone
    return inverse


def minimise(
    objective: Objective,
    start: Float[Tensor, "problem size"],
    precondition: Linear,
    *,
    tolerance: float = 3e-5,
    steps: int = 300,
    memory: int = 12,
) -> Float[Tensor, "problem size"]:
    """Minimise independent smooth problems side by side by L-BFGS, each with its own step.

    Args:
        objective: the value of each problem.
        start: where to begin.
        precondition: applies a guess of the inverse curvature; it must be positive definite.
        tolerance: a problem rests once a step promises to lower its value by less.
        steps: at most.
        memory: past steps kept (Nocedal & Wright 2006, algorithm 7.4).
    """
    at, (value, gradient) = start, _with_gradient(objective, start)
    past: list[tuple[Tensor, Tensor]] = []
    for _ in range(steps):
        direction = -_inverse_times(gradient, past, precondition)
        slope = (direction * gradient).sum(-1)
        active = -slope > tolerance
        if not active.any():
            break
        length = active.to(value)
        while True:
            trial = at + length[:, None] * direction
            new_value, new_gradient = _with_gradient(objective, trial)
            lowered = new_value <= value + 1e-4 * length * slope + _SLACK * value.abs()
            if bool((lowered | (length < 1e-4)).all()):
                break
            length = torch.where(lowered, length, length / 3)
        past = [*past, (trial - at, new_gradient - gradient)][-memory:]
        at, value, gradient = trial, new_value, new_gradient
    return at


def _with_gradient(objective: Objective, point: Tensor) -> tuple[Tensor, Tensor]:
    point = point.detach().requires_grad_()
    with torch.enable_grad():
        value = objective(point)
        (gradient,) = torch.autograd.grad(value.sum(), point)  # problems are independent
    return value.detach(), gradient


def _inverse_times(gradient: Tensor, past: list[tuple[Tensor, Tensor]], precondition: Linear) -> Tensor:
    """L-BFGS's inverse curvature times the gradient, problem by problem; a step that says nothing is passed over."""
    result, shares = gradient, []
    for moved, turned in reversed(past):
        curvature = (moved * turned).sum(-1, keepdim=True)
        told = curvature > 1e-12
        share = torch.where(told, (moved * result).sum(-1, keepdim=True) / torch.where(told, curvature, 1.0), 0.0)
        result = result - share * turned
        shares.append((share, curvature, told))
    result = precondition(result)
    if past:
        moved, turned = past[-1]
        curvature = (moved * turned).sum(-1, keepdim=True)
        against = (turned * precondition(turned)).sum(-1, keepdim=True)
        result = torch.where((curvature > 1e-12) & (against > 0), curvature / against.clamp(min=1e-30), 1.0) * result
    for (moved, turned), (share, curvature, told) in zip(past, reversed(shares), strict=True):
        back = torch.where(told, (turned * result).sum(-1, keepdim=True) / torch.where(told, curvature, 1.0), 0.0)
        result = result + (share - back) * moved
    return result


# Which layers does a probe draw on, when it may draw on several?


@dataclass(frozen=True)
class Mix:
    """A probe of a weighted sum of layers. `shares` are the layers' weights: they add up to 1."""

    shares: Float[Tensor, " layer"]
    weight: Float[Tensor, "feature_and_bias cls"]
    point: Float[Tensor, " size"]  # where another fit may start

    def predict(self, scaled: Float[Tensor, "layer item feature"]) -> Int[Tensor, " item"]:
        """The most probable class of each item."""
        mixed = _mixed(self.shares, scaled)
        return (mixed @ self.weight[:-1] + self.weight[-1]).argmax(-1)


def fit_mix(
    scaled: Float[Tensor, "layer item feature"],
    labels: Int[Tensor, " item"],
    n_classes: int,
    *,
    penalty: float = PENALTY,
    start: Mix | None = None,
    kept: Bool[Tensor, " item"] | None = None,
) -> Mix:
    """Fit a probe of the layers' mix, sum over layers of softmax(a) x vector, with `a` fitted too.

    The scalar mix of Tenney et al. 2019 (BERT Rediscovers the Classical NLP Pipeline, section 3.1), whose overall
    factor the classifier's weights take up. The layers must come scaled to one size (`Scaling`): a layer of larger
    vectors would ask for a smaller weight (Fayyaz et al. 2021). Not convex in both parts together: every fit starts
    from equal shares and no weights, or from `start`. Fitted to the end, shares gather on one or two layers; where
    training stops early, as in the paper, they stay nearer to equal.

    Args:
        scaled: vectors of the same items in each layer.
        labels: class of each item.
        n_classes: number of classes.
        penalty: as in `fit`.
        start: a fit of the same layers, on other items, to start from.
        kept: items that count; all by default.
    """
    n_layers, n_items, n_features = scaled.shape
    counted = torch.ones(n_items).to(scaled) if kept is None else kept.to(scaled)
    total = float(counted.sum())
    inverse = _curvature_inverse(scaled.mean(0, keepdim=True), penalty)[0]

    def parts(point: Tensor) -> tuple[Tensor, Tensor]:
        weight, sought = point[0, :-n_layers].view(n_features + 1, n_classes), point[0, -n_layers:]
        return weight, sought.softmax(0)

    def objective(point: Tensor) -> Tensor:
        weight, shares = parts(point)
        logits = _mixed(shares, scaled) @ weight[:-1] + weight[-1]
        loss = (cross_entropy(logits, labels, reduction="none") * counted).sum() / total
        return (loss + penalty / 2 * weight[:-1].square().sum())[None]

    def precondition(gradient: Tensor) -> Tensor:
        weight = inverse @ gradient[0, :-n_layers].view(n_features + 1, n_classes)
        return torch.cat([weight.flatten(), gradient[0, -n_layers:]])[None]

    zero = scaled.new_zeros((n_features + 1) * n_classes + n_layers)
    point = minimise(objective, (zero if start is None else start.point)[None], precondition)
    weight, shares = parts(point)
    return Mix(shares, weight, point[0])


def _mixed(shares: Tensor, scaled: Tensor) -> Tensor:
    return (shares @ scaled.flatten(1)).view(scaled.shape[1:])


def centre_of_gravity(shares: Float[Tensor, "*more layer"]) -> Float[Tensor, "*more"]:
    """Sum over layers of layer x share of the mix (Tenney et al. 2019, section 3.1); layer 0 is the embedding."""
    return shares @ torch.arange(shares.shape[-1]).to(shares)


def expected_layer_terms(
    right: Float[Tensor, "layer item"],
) -> tuple[Float[Tensor, " item"], Float[Tensor, " item"]]:
    """What each item adds to numerator and denominator of the expected layer.

    The probe of layers 0..l scores S(l), a mean over items, and gains D(l) = S(l) - S(l - 1); the expected layer is
    sum over l >= 1 of l x D(l), divided by the sum of D(l) (Tenney et al. 2019, section 3.2). Both are sums over items.

    Args:
        right: 1 where the cumulative probe that may use layers 0..l is right.
    """
    gained = right.diff(dim=0)
    depths = torch.arange(1, len(right)).to(right)
    return depths @ gained, gained.sum(0)


# What does a probe have to beat?


def control_labels(types: Sequence[str], labels: Sequence[int], *, seed: int = 0) -> dict[str, int]:
    """The control task: for each type one random class, fixed (Hewitt & Liang 2019, section 2).

    A class is drawn with its share of `labels`, so that task and control have classes of about the same sizes. A probe
    can do well on it only by knowing types by heart; accuracy less control accuracy is its *selectivity*.

    Args:
        types: the types that want a class; their order does not matter.
        labels: the classes of the training items.
        seed: of the draw.
    """
    rng = random.Random(seed)
    counts = sorted(Counter(labels).items())
    classes, weights = [cls for cls, _ in counts], [count for _, count in counts]
    return dict(zip(names := sorted(set(types)), rng.choices(classes, weights, k=len(names)), strict=True))


def commonest_labels(types: Sequence[str], labels: Sequence[int]) -> tuple[dict[str, int], int]:
    """Each type's most frequent class, and that of all items for types not seen; a tie goes to the lower class."""
    seen: dict[str, Counter[int]] = {}
    for name, label in zip(types, labels, strict=True):
        seen.setdefault(name, Counter())[label] += 1
    return {name: _commonest(count) for name, count in seen.items()}, _commonest(Counter(labels))


def _commonest(count: Counter[int]) -> int:
    return max(sorted(count), key=count.__getitem__)


# Two words and the edge between them.


@dataclass(frozen=True)
class Axes:
    """A site's principal axes, each scaled to unit variance: coordinates that no rotation of the vectors changes."""

    centre: Float[Tensor, "site 1 feature"]
    axes: Float[Tensor, "site feature axis"]

    @staticmethod
    def of(vectors: Float[Tensor, "site item feature"], count: int) -> "Axes":
        """The `count` axes along which the vectors vary most; those that hardly vary at all stay 0."""
        centre = vectors.mean(1, keepdim=True)
        away = vectors - centre
        variance, axes = torch.linalg.eigh((away.transpose(1, 2) @ away / vectors.shape[1]).double())
        variance, axes = variance[:, -count:].clamp(min=0), axes[:, :, -count:]
        real = variance > 1e-6 * variance[:, -1:]
        factor = torch.where(real, variance, 1.0).rsqrt() * real
        return Axes(centre, (axes * factor[:, None]).to(vectors))

    def __call__(self, vectors: Float[Tensor, "site item feature"]) -> Float[Tensor, "site item axis"]:
        """Coordinates along the axes."""
        return (vectors - self.centre) @ self.axes


def edge_vectors(
    one: Float[Tensor, "site item axis"], other: Float[Tensor, "site item axis"]
) -> Float[Tensor, "site item three_axis"]:
    """What an edge probe reads: both words and their product, axis by axis.

    A linear probe of the two alone could only add up what each says by itself, never that they agree.
    """
    return torch.cat([one, other, one * other], -1)

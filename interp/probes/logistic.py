"""What can a linear probe read from each layer, and what must it beat? Logistic regressions, fitted side by side."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from interp.errors import InputError, whole_number
from interp.probes.lbfgs import minimise

PENALTY = 2e-3  # best of 7e-5 to 2e-2 for tags from MiniLM, on held-out training words of EWT
_LOGITS = 2_000_000  # logits of the probes fitted together: they fit in caches


@dataclass(frozen=True)
class Scaling:
    """Subtracts a site's mean and divides by one number (mean square 1), so that rotations do not change a probe."""

    centre: Float[Tensor, "site 1 feature"]
    size: Float[Tensor, "site 1 1"]

    @staticmethod
    def of(vectors: Float[Tensor, "site item feature"]) -> "Scaling":
        """The scaling for training vectors."""
        centre = vectors.mean(1, keepdim=True)
        size = (vectors - centre).square().mean((1, 2), keepdim=True).sqrt()
        return Scaling(centre, torch.where(size > 0, size, torch.ones_like(size)))

    def part(self, sites: slice) -> "Scaling":
        """The scaling of some of the sites."""
        return Scaling(self.centre[sites], self.size[sites])

    def __call__(self, vectors: Float[Tensor, "site item feature"]) -> Float[Tensor, "site item feature"]:
        """The vectors, scaled."""
        return (vectors - self.centre) / self.size


@dataclass(frozen=True)
class Axes:
    """A site's principal axes, each scaled to unit variance: coordinates that do not change under rotation."""

    centre: Float[Tensor, "site 1 feature"]
    axes: Float[Tensor, "site feature axis"]

    @staticmethod
    def of(vectors: Float[Tensor, "site item feature"], count: int) -> "Axes":
        """The `count` axes along which the vectors vary most; axes with almost no variance stay 0."""
        centre = vectors.mean(1, keepdim=True)
        shifts = vectors - centre
        variance, axes = torch.linalg.eigh((shifts.transpose(1, 2) @ shifts / vectors.shape[1]).double())
        variance, axes = variance[:, -count:].clamp(min=0), axes[:, :, -count:]
        real = variance > 1e-6 * variance[:, -1:]
        return Axes(centre, (axes * (torch.where(real, variance, 1.0).rsqrt() * real)[:, None]).to(vectors))

    def __call__(self, vectors: Float[Tensor, "site item feature"]) -> Float[Tensor, "site item axis"]:
        """Coordinates along the axes."""
        return (vectors - self.centre) @ self.axes


def edge_vectors(
    first: Float[Tensor, "site item axis"], second: Float[Tensor, "site item axis"]
) -> Float[Tensor, "site item three_axis"]:
    """An edge probe's input: both words and, axis by axis, their product, which shows whether they agree.

    The edge probes of Tenney et al. 2019 instead pool spans by attention and have a hidden layer.
    """
    return torch.cat([first, second, first * second], -1)


@dataclass(frozen=True)
class Probes:
    """One softmax classifier per site and task. `loss` is the mean cross-entropy on the training items, in nats."""

    scaling: Scaling
    weight: Float[Tensor, "site task feature_and_bias cls"]
    loss: Float[Tensor, "site task"]

    def predict(self, vectors: Float[Tensor, "site item feature"]) -> Int[Tensor, "site task item"]:
        """The most probable class of each item."""
        sites = [slice(site, site + 1) for site in range(len(vectors))]
        logits = [_logits(self.weight[part], self.scaling.part(part)(vectors[part])) for part in sites]
        return torch.cat(logits).argmax(2)


def fit(
    vectors: Float[Tensor, "site item feature"],
    labels: Int[Tensor, "task item"],
    n_classes: int,
    *,
    penalty: float = PENALTY,
) -> Probes:
    """Fit one multinomial logistic regression per site and task.

    It minimises mean cross-entropy + penalty / 2 x sum of squared weights (the bias is free) on vectors scaled by
    `Scaling`, like scikit-learn's `LogisticRegression(C=1 / (penalty * items))` on the same vectors. Tasks share the
    vectors, so a control task costs little.
    """
    if n_classes < 2:
        raise InputError(f"a probe tells classes apart: expected at least two, got {n_classes}")
    scaling = Scaling.of(vectors)
    n_tasks, n_items = labels.shape
    size = max(1, _LOGITS // (n_tasks * n_items * n_classes))
    chunks = (slice(begin, begin + size) for begin in range(0, len(vectors), size))
    fits = [_fit(scaling.part(chunk)(vectors[chunk]), labels, n_classes, penalty) for chunk in chunks]
    weights, losses = zip(*fits, strict=True)
    return Probes(scaling, torch.cat(weights), torch.cat(losses))


def _fit(scaled: Tensor, labels: Tensor, n_classes: int, penalty: float) -> tuple[Tensor, Tensor]:
    n_sites, n_items, n_features = scaled.shape
    shape = (n_sites, len(labels), n_features + 1, n_classes)
    targets = labels.expand(n_sites, -1, -1)

    def objective(point: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
        weight = point.view(shape)
        loss, push = cross_entropy(_logits(weight, scaled), targets)
        back = torch.bmm(push.flatten(1, 2), scaled).view(n_sites, -1, n_classes, n_features)
        gradient = torch.cat([back, push.sum(-1, keepdim=True)], -1).transpose(2, 3) / n_items
        gradient[:, :, :-1] += penalty * weight[:, :, :-1]
        value = loss.mean(-1) + penalty / 2 * weight[:, :, :-1].square().sum((2, 3))
        return value.flatten(), gradient.reshape_as(point)

    inverse = curvature_inverse(scaled, penalty)

    def precondition(gradient: Tensor) -> Tensor:
        return (inverse[:, None] @ gradient.view(shape)).reshape_as(gradient)

    start = scaled.new_zeros(shape[0] * shape[1], shape[2] * shape[3])
    weight = minimise(objective, start, precondition).view(shape)
    return weight, cross_entropy(_logits(weight, scaled), targets)[0].mean(-1)


def _logits(weight: Tensor, scaled: Tensor) -> Float[Tensor, "site task cls item"]:
    """Items are the last axis: operations over an item's classes then run along memory, twice as fast."""
    n_sites, n_tasks, size, n_classes = weight.shape
    stacked = weight.transpose(2, 3).reshape(n_sites, n_tasks * n_classes, size)  # one product for all tasks
    logits = torch.baddbmm(stacked[..., -1:], stacked[..., :-1], scaled.transpose(1, 2))
    return logits.view(n_sites, n_tasks, n_classes, -1)


def cross_entropy(
    logits: Float[Tensor, "*more cls item"], labels: Int[Tensor, "*more item"]
) -> tuple[Float[Tensor, "*more item"], Float[Tensor, "*more cls item"]]:
    """Each item's cross-entropy in nats, and its gradient at the logits: probability, minus 1 at the label."""
    index = labels.unsqueeze(-2)
    logs = logits.log_softmax(-2)
    loss = -logs.gather(-2, index).squeeze(-2)
    push = logs.exp_()
    return loss, push.scatter_add_(-2, index, -torch.ones_like(loss).unsqueeze(-2))


def curvature_inverse(
    scaled: Float[Tensor, "site item feature"], penalty: float
) -> Float[Tensor, "site feature_and_bias feature_and_bias"]:
    """Inverse of the bound on a softmax regression's curvature, half the vectors' second moments (Böhning 1992)."""
    n_features = scaled.shape[-1]
    moments = scaled.transpose(1, 2) @ scaled / (2 * scaled.shape[1])
    moments = moments + max(penalty, 1e-6) * torch.eye(n_features).to(moments)
    # by Cholesky: MKL's batched LU fails after threads were set to one and back to more
    inverse = pad(torch.cholesky_inverse(torch.linalg.cholesky(moments.double())).to(scaled), (0, 1, 0, 1))
    inverse[:, -1, -1] = 2.0  # vectors are centred, so the bias decouples
    return inverse


def control_labels(types: Sequence[str], labels: Sequence[int], *, seed: int = 0) -> dict[str, int]:
    """The control task: one fixed random class per type (Hewitt & Liang 2019, section 2).

    A class's probability is its share of `labels`, the training items' classes; the order of `types` is irrelevant. A
    probe can do well on it only by memorising types; accuracy minus control accuracy is its *selectivity*. A pair of
    forms is a type here; the paper draws an attachment for each word.
    """
    rng = random.Random(whole_number("seed", seed))
    counts = sorted(Counter(labels).items())
    classes, weights = [cls for cls, _ in counts], [count for _, count in counts]
    return dict(zip(names := sorted(set(types)), rng.choices(classes, weights, k=len(names)), strict=True))


def commonest_labels(types: Sequence[str], labels: Sequence[int]) -> tuple[dict[str, int], int]:
    """Each type's most frequent class, and that of all items for unseen types; a tie goes to the lower class."""
    counts: dict[str, Counter[int]] = {}
    for name, label in zip(types, labels, strict=True):
        counts.setdefault(name, Counter())[label] += 1
    *by_type, overall = (max(sorted(count), key=count.__getitem__) for count in (*counts.values(), Counter(labels)))
    return dict(zip(counts, by_type, strict=True)), overall


@dataclass(frozen=True)
class Mix:
    """A probe of a weighted sum of layers. `shares` are the layers' weights, which sum to 1."""

    shares: Float[Tensor, " layer"]
    weight: Float[Tensor, "feature_and_bias cls"]

    def predict(self, scaled: Float[Tensor, "layer item feature"]) -> Int[Tensor, " item"]:
        """The most probable class of each item."""
        return (_mixed(self.shares, scaled) @ self.weight[:-1] + self.weight[-1]).argmax(-1)


def fit_mix(
    scaled: Float[Tensor, "layer item feature"],
    labels: Int[Tensor, " item"],
    n_classes: int,
    *,
    penalty: float = PENALTY,
) -> Mix:
    """Fit a probe of the layers' mix, sum over layers of softmax(a) x vector, with `a` fitted too.

    The scalar mix of Tenney et al. 2019 (section 3.1) without its overall factor. Here the classifier is linear, and
    layers have one size (`Scaling`), because larger vectors would need a smaller weight (Fayyaz et al. 2021). The loss
    is not jointly convex, so every fit starts from equal shares and zero weights. Shares concentrate on one or two
    layers; training that stops early leaves them more equal.
    """
    n_layers, n_items, n_features = scaled.shape
    inverse = curvature_inverse(scaled.mean(0, keepdim=True), penalty)[0]

    def parts(point: Tensor) -> tuple[Tensor, Tensor]:
        return point[0, :-n_layers].view(n_features + 1, n_classes), point[0, -n_layers:].softmax(0)

    def objective(point: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
        weight, shares = parts(point)
        mixed = _mixed(shares, scaled)
        loss, push = cross_entropy(torch.addmm(weight[-1:].T, weight[:-1].T, mixed.T), labels)
        by_weight = torch.cat([push @ mixed, push.sum(1, keepdim=True)], 1).T / n_items
        by_weight[:-1] += penalty * weight[:-1]
        by_share = scaled.flatten(1) @ (push.T @ weight[:-1].T).flatten() / n_items
        by_logit = shares * (by_share - shares @ by_share)
        value = loss.mean() + penalty / 2 * weight[:-1].square().sum()
        return value[None], torch.cat([by_weight.flatten(), by_logit])[None]

    def precondition(gradient: Tensor) -> Tensor:
        weight = inverse @ gradient[0, :-n_layers].view(n_features + 1, n_classes)
        return torch.cat([weight.flatten(), gradient[0, -n_layers:]])[None]

    start = scaled.new_zeros(1, (n_features + 1) * n_classes + n_layers)
    weight, shares = parts(minimise(objective, start, precondition))
    return Mix(shares, weight)


def _mixed(shares: Tensor, scaled: Tensor) -> Tensor:
    return (shares @ scaled.flatten(1)).view(scaled.shape[1:])


def centre_of_gravity(shares: Float[Tensor, "*more layer"]) -> Float[Tensor, "*more"]:
    """Sum over layers of layer x share of the mix (Tenney et al. 2019, section 3.1); layer 0 is the embedding."""
    return shares @ torch.arange(shares.shape[-1]).to(shares)


def expected_layer_terms(right: Float[Tensor, "layer item"]) -> tuple[Float[Tensor, " item"], Float[Tensor, " item"]]:
    """What each item adds to the numerator and denominator of the expected layer.

    The probe of layers 0..l scores S(l) and gains D(l) = S(l) - S(l - 1). The expected layer is the sum over l >= 1 of
    l x D(l), divided by the sum of D(l) (Tenney et al. 2019, section 3.2; layer 0 is the embedding). The paper uses F1
    pooled over labels; S here is accuracy. `right` is 1 if the probe of layers 0..l is right.
    """
    gained = right.diff(dim=0)
    return torch.arange(1, len(right)).to(right) @ gained, gained.sum(0)

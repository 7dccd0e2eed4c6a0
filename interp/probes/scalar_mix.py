"""Which layers does a probe draw on, when it may draw on several? Expected layer and centre of gravity."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.probes.lbfgs import minimise
from interp.probes.logistic import PENALTY, cross_entropy, curvature_inverse


@dataclass(frozen=True)
class Mix:
    """A probe of a weighted sum of layers. `shares` are the layers' weights: they add up to 1."""

    shares: Float[Tensor, " layer"]
    weight: Float[Tensor, "feature_and_bias cls"]

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
) -> Mix:
    """Fit a probe of the layers' mix, sum over layers of softmax(a) x vector, with `a` fitted too.

    The scalar mix of Tenney et al. 2019 (BERT Rediscovers the Classical NLP Pipeline, section 3.1), whose overall
    factor the classifier's weights take up. Ours: the classifier is linear where theirs has a hidden layer, and the
    layers come scaled to one size (`Scaling`), because a layer of larger vectors would need a smaller weight (Fayyaz et
    al. 2021). The loss is not convex in both parts together: every fit starts from equal shares and no weights. Fitted
    to the end, shares gather on one or two layers; training that stops early, as in the paper, leaves them more equal.
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


def expected_layer_terms(
    right: Float[Tensor, "layer item"],
) -> tuple[Float[Tensor, " item"], Float[Tensor, " item"]]:
    """What each item adds to numerator and denominator of the expected layer.

    The probe of layers 0..l scores S(l) and gains D(l) = S(l) - S(l - 1); the expected layer is the sum over l >= 1 of
    l x D(l), divided by the sum of D(l) (Tenney et al. 2019, section 3.2; layer 0 is the embedding, there as here).
    The paper scores F1 pooled over labels; S here is accuracy, so that both terms are sums over items. `right` is 1
    where the cumulative probe that may use layers 0..l is right.
    """
    gained = right.diff(dim=0)
    depths = torch.arange(1, len(right)).to(right)
    return depths @ gained, gained.sum(0)

"""What does a probe of two words read, so that it can tell whether they belong together?"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


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

    A linear probe of the two alone could only add up what each says by itself, never that they agree. The edge probes
    of Tenney et al. 2019 pool spans by attention and have a hidden layer instead; these stay linear.
    """
    return torch.cat([one, other, one * other], -1)

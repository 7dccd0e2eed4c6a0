"""Linear probes: what can a classifier read from a vector, and how much of that is its own doing?

There is one probe a site (each layer's residual stream, each head's output) and task. A probe is a softmax classifier,
the exact minimum of a convex loss, so it depends on vectors, labels and one penalty alone.
"""

from interp.probes.logistic import (
    PENALTY,
    Axes,
    Probes,
    Scaling,
    commonest_labels,
    control_labels,
    edge_vectors,
    fit,
)
from interp.probes.scalar_mix import Mix, centre_of_gravity, expected_layer_terms, fit_mix

__all__ = [
    "PENALTY",
    "Axes",
    "Mix",
    "Probes",
    "Scaling",
    "centre_of_gravity",
    "commonest_labels",
    "control_labels",
    "edge_vectors",
    "expected_layer_terms",
    "fit",
    "fit_mix",
]

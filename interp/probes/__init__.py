"""What can a linear classifier read from a vector? One probe per site and task, the exact minimum of a convex loss."""

from interp.probes.logistic import (
    PENALTY,
    Axes,
    Mix,
    Probes,
    Scaling,
    centre_of_gravity,
    commonest_labels,
    control_labels,
    edge_vectors,
    expected_layer_terms,
    fit,
    fit_mix,
)

__all__ = ["PENALTY", "Axes", "Mix", "Probes", "Scaling", "centre_of_gravity", "commonest_labels", "control_labels"]
__all__ += ["edge_vectors", "expected_layer_terms", "fit", "fit_mix"]
__dir__ = __all__.copy  # `dir()` gives what a user may call

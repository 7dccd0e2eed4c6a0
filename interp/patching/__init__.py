"""Activation patching: which part of a model carries the difference between two prompts."""

from interp.patching.ablation import ablate, ablate_cells, ablate_in_order, mean_activation
from interp.patching.by_forward import Receiver, path_patch_by_forward, sweep_by_forward
from interp.patching.claimed_texts import Claim, Read, log_probabilities
from interp.patching.gradients.claimed_keys import Estimated, estimated_knock_out
from interp.patching.gradients.edges import edge_attribution
from interp.patching.gradients.estimates import SiteEstimates, atp_star, attribution_patching
from interp.patching.knockout import knock_out, knock_out_by_forward, knock_out_together
from interp.patching.metrics import (
    Metric,
    function,
    kl_divergence,
    log_probability,
    logit_difference,
    next_token_loss,
    probability,
    rank,
)
from interp.patching.pairs import Pairs
from interp.patching.patches import patch_together
from interp.patching.path_patching import path_patch
from interp.patching.results import Cells, unreliable
from interp.patching.search import TopCells, top_cells
from interp.patching.sweeps import sweep, unpatched

Sweep = Ablation = Edges = Magnitudes = Cells  # what each call gives

__all__ = ["Ablation", "Cells", "Edges", "Magnitudes", "Metric", "Pairs", "SiteEstimates", "Sweep", "TopCells"]
__all__ += ["function", "kl_divergence", "log_probability", "logit_difference", "next_token_loss", "rank"]
__all__ += ["Receiver", "path_patch", "path_patch_by_forward", "sweep", "sweep_by_forward", "top_cells", "unpatched"]
__all__ += ["ablate", "ablate_cells", "ablate_in_order", "mean_activation", "probability", "unreliable"]
__all__ += ["Claim", "Read", "knock_out", "knock_out_by_forward", "knock_out_together", "log_probabilities"]
__all__ += ["Estimated", "atp_star", "attribution_patching", "edge_attribution", "estimated_knock_out"]
__all__ += ["patch_together"]
__dir__ = __all__.copy  # `dir()` gives what a user may call

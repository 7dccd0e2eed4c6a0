"""Activation patching: which part of a model carries the difference between two prompts."""

from interp.patching.metrics import (
    Metric,
    function,
    kl_divergence,
    log_probability,
    logit_difference,
    probability,
    rank,
)
from interp.patching.oracle import sweep_by_forward
from interp.patching.pairs import Pairs
from interp.patching.results import Sweep, unreliable
from interp.patching.sweeping import sweep

__all__ = [
    "Metric",
    "Pairs",
    "Sweep",
    "function",
    "kl_divergence",
    "log_probability",
    "logit_difference",
    "probability",
    "rank",
    "sweep",
    "sweep_by_forward",
    "unreliable",
]

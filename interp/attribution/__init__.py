"""Which part of a model writes an answer? Read from the residual stream and from the weights, with nothing changed.

The stream is a sum, so a logit is one too once the final norm's scale is held at its value: `direct_logit_attribution`
gives each term's share, `logit_lens` what the sum says after each layer; `composition_scores` says which heads read
what earlier heads write. All are of the direct path only: `interp.patching` measures what a head does through later
layers.
"""

from interp.attribution.direct import DirectAttribution, composition_scores, direct_logit_attribution, head_results
from interp.attribution.lens import LogitLens, logit_lens
from interp.patching.pairs import Answer
from interp.tokens import Positions

__all__ = [
    "Answer",
    "DirectAttribution",
    "LogitLens",
    "Positions",
    "composition_scores",
    "direct_logit_attribution",
    "head_results",
    "logit_lens",
]

"""Which part of a model writes an answer? We read the residual stream and the weights, on direct paths only.

The stream is a sum, so with the final norm's scale held fixed a logit is a sum too. `interp.patching` measures what a
head does through later layers.
"""

from interp.attribution.direct import (
    DirectAttribution,
    attribution_by_source,
    composition_scores,
    direct_logit_attribution,
    head_results,
)
from interp.attribution.keys import KeyContributions, attribution_sites, key_contributions, remove_from_key
from interp.attribution.lens import LogitLens, logit_lens
from interp.attribution.scores import ScoreAttribution, score_attribution, value_attribution
from interp.patching.pairs import Answer
from interp.tokens import Positions

__all__ = ["Answer", "DirectAttribution", "KeyContributions", "LogitLens", "Positions", "ScoreAttribution"]
__all__ += ["attribution_by_source", "attribution_sites", "composition_scores", "direct_logit_attribution"]
__all__ += ["head_results", "key_contributions", "logit_lens", "remove_from_key", "score_attribution"]
__all__ += ["value_attribution"]
__dir__ = __all__.copy  # `dir()` gives what a user may call

"""What does each attention head of a transformer do, and how sure are we?

>>> from interp import run, sites
>>> from models import load
>>> model = load("default")
>>> out = run(model, "The old lady shook her head.", capture="decoder.*.attn.pattern")
>>> out["decoder.0.attn.pattern"]  # prompt head query key
"""

from interp.annotation import AnnotatedText, Attributes, Mention
from interp.config import StackConfig, TransformerConfig
from interp.edits import add, change, patch, scale, set_to, zero
from interp.errors import InputError
from interp.generation.generate import generate, generate_pieces
from interp.generation.written import Written
from interp.losses import loss, token_losses
from interp.model import Model, Site, sites
from interp.patching import Pairs, Sweep, logit_difference, sweep
from interp.running import Edited, Run, edited, run
from interp.tokens import TokenBatch, Tokenizer
from interp.training import Phase, Plan, train
from interp.transformer import Transformer

__all__ = [
    "AnnotatedText",
    "Attributes",
    "Edited",
    "InputError",
    "Mention",
    "Model",
    "Pairs",
    "Phase",
    "Plan",
    "Run",
    "Site",
    "StackConfig",
    "Sweep",
    "TokenBatch",
    "Tokenizer",
    "Transformer",
    "TransformerConfig",
    "Written",
    "add",
    "change",
    "edited",
    "generate",
    "generate_pieces",
    "logit_difference",
    "loss",
    "patch",
    "run",
    "scale",
    "set_to",
    "sites",
    "sweep",
    "token_losses",
    "train",
    "zero",
]
_ROOMS = "attribution circuits generation patching patterns probes statistics training"


def __dir__() -> list[str]:
    """What a user may call, and the packages that are loaded."""
    return [*__all__, *(name for name in _ROOMS.split() if name in globals())]

"""Does the model do the task that is patched? How often it answers right, and the sign of the whole difference."""

from dataclasses import dataclass

import torch

from analyses.causal_tests import guessed
from interp import Model
from interp.patching import Pairs, Sweep, unreliable
from interp.patching.metrics import last_logits

_WRONG_SIGN = "the sign is wrong"
_ENOUGH = 5  # prompts from which on a coin can be told from a model


@dataclass(frozen=True)
class Answers:
    """Does the model do the task? Its logit difference of right and wrong answers, unpatched.

    `right` of `n` clean prompts and `wrong` of the corrupted ones get their own answer first; `difference` is the mean
    of clean less corrupted, which the right sign has above 0. `refused` says why nothing is a share of it.
    """

    n: int
    right: int
    wrong: int
    difference: float
    refused: str | None

    @staticmethod
    def of(model: Model, pairs: Pairs) -> "Answers | None":
        """The answers to some pairs; None where these bring none."""
        if pairs.right is None or pairs.wrong is None:
            return None
        at, ids = torch.arange(len(pairs), device=pairs.last.device), (pairs.right, pairs.wrong)
        each = [last_logits(model, *inputs) for inputs in pairs.inputs]
        clean, corrupt = (logits[at, ids[0]] - logits[at, ids[1]] for logits in each)
        whole = float((clean - corrupt).mean())
        refused = unreliable(clean - corrupt) or (guessed(clean) if len(clean) >= _ENOUGH else None)
        if not refused and whole < 0:
            refused = f"{_WRONG_SIGN}: clean less corrupted, the logit difference is {_signed(whole)}"
        return Answers(len(clean), int((clean > 0).sum()), int((corrupt < 0).sum()), whole, refused)

    @property
    def share(self) -> float:
        """Share of clean prompts whose right answer is first."""
        return self.right / self.n

    @property
    def unsaid(self) -> str | None:
        """Why nothing is a share, where `said` does not tell it already: it tells of a wrong sign."""
        return None if self.refused is None or self.refused.startswith(_WRONG_SIGN) else self.refused

    @property
    def said(self) -> str:
        """In a sentence."""
        sign = "right" if self.difference > 0 else "wrong"
        prefers = (
            f"The model prefers the right answer on {self.right} of {self.n} clean prompts ({self.share:.0%}) and the "
            f"wrong one on {self.wrong} of the corrupted"
        )
        if self.n == 1:
            clean, corrupted = ("right", "wrong")[1 - self.right], ("right", "wrong")[self.wrong]
            prefers = (
                f"The model prefers the {clean} answer to the clean prompt and the {corrupted} one to the corrupted"
            )
        return (
            f"{prefers}; clean less corrupted, the logit difference is {_signed(self.difference)}, of the {sign} sign."
        )


def _signed(value: float) -> str:
    return f"{value:+.3g}".replace("-", "−")


def refusal(found: Sweep, metric: str, answers: Answers | None) -> str | None:
    """Why nothing is a share of a metric's whole difference; None where shares mean something."""
    if answers is not None and answers.refused:
        return answers.refused
    return found.no_share(metric)

"""Does the model do the task that is patched? How often it answers right, and the sign of the whole difference."""

from dataclasses import dataclass

from interp.patching import Sweep
from interp.patching.results import ANSWERS, refusal

_WRONG_SIGN = "the sign is wrong"


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
    def of(found: Sweep) -> "Answers | None":
        """The answers to the pairs of a sweep; None where these bring none."""
        if ANSWERS not in found.clean:
            return None
        clean, corrupt = found.clean[ANSWERS], found.corrupt[ANSWERS]
        refused, right, wrong = refusal(ANSWERS, found.clean, found.corrupt), clean > 0, corrupt < 0
        return Answers(len(clean), int(right.sum()), int(wrong.sum()), float((clean - corrupt).mean()), refused)

    @property
    def share(self) -> float:
        """Share of clean prompts whose right answer is first."""
        return self.right / self.n

    @property
    def sign(self) -> str:
        """Whether the difference has the `right` sign or the `wrong` one."""
        return "right" if self.difference > 0 else "wrong"

    @property
    def unsaid(self) -> str | None:
        """Why nothing is a share, where `said` does not tell it already: it tells of a wrong sign."""
        return None if self.refused is None or self.refused.startswith(_WRONG_SIGN) else self.refused

    @property
    def said(self) -> str:
        """In a sentence."""
        if self.n == 1:
            clean, corrupt = ("right", "wrong")[1 - self.right], ("right", "wrong")[self.wrong]
            prefers = f"the {clean} answer to the clean prompt and the {corrupt} one to the corrupted"
        else:
            prefers = (
                f"the right answer on {self.right} of {self.n} clean prompts ({self.share:.0%}) and the wrong one "
            )
            prefers += f"on {self.wrong} of the corrupted"
        difference = f"{self.difference:+.3g}".replace("-", "−")
        return (
            f"The model prefers {prefers}; clean less corrupted, the logit difference is {difference}, of the "
            f"{self.sign} sign."
        )

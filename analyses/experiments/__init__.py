"""The small experiments that the source articles name, for any causal model; for encoders where no text stops midway.

Each is a value, an `Experiment`, in its file. Prompts are the articles' own, and beside them ones in the words of the
generated stories, which small models can read too. What a model cannot use is counted in what is measured.
"""

from typing import Any

from analyses.experiments.adjectives import ADJECTIVES
from analyses.experiments.companions import COMPANIONS
from analyses.experiments.cost import COST
from analyses.experiments.distance import DISTANCE
from analyses.experiments.experiment import Experiment, Outcome
from analyses.experiments.knight import KNIGHT
from analyses.experiments.profession import PROFESSION
from analyses.experiments.shares import SHARES
from analyses.experiments.word_sense import WORD_SENSE

EXPERIMENTS: dict[str, Experiment[Any]] = {
    each.name: each for each in (PROFESSION, KNIGHT, ADJECTIVES, WORD_SENSE, COMPANIONS, DISTANCE, COST, SHARES)
}

__all__ = ["EXPERIMENTS", "Experiment", "Outcome"]

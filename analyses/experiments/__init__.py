"""The small experiments that the source articles name, for any causal model; for encoders where no text stops midway.

Texts, plots and prompts are data (`prompts.toml`). Prompts are the articles' own, and beside them ones in the words of
the generated stories, which small models can read too. What a model cannot use is counted in what is measured.
"""

from collections.abc import Callable
from typing import Any

from analyses.experiments import adjectives, distance, model_parts, swaps, words
from analyses.experiments.experiment import Experiment, Outcome
from analyses.experiments.prompts import experiment_data
from analyses.figures.kinds import plot_from

_TEXTS = "title", "question", "command", "caption"
_MEASURES: dict[str, tuple[Callable[..., Any], Callable[[Any], str]]] = {
    "profession": (swaps.measure_profession, swaps.profession_sentence),
    "knight": (swaps.measure_knight, swaps.knight_sentence),
    "adjectives": (adjectives.measure, adjectives.sentence),
    "word-sense": (words.measure_word_sense, words.word_sense_sentence),
    "companions": (words.measure_companions, words.companions_sentence),
    "distance": (distance.measure, distance.sentence),
    "cost": (model_parts.measure_cost, model_parts.cost_sentence),
    "shares": (model_parts.measure_shares, model_parts.shares_sentence),
}


def _experiment(name: str) -> Experiment[Any]:
    data, (measure, sentence) = experiment_data(name), _MEASURES[name]
    texts = {field: data[field] for field in _TEXTS}
    return Experiment(name=name, **texts, measure=measure, sentence=sentence, plot=plot_from(**data["plot"]))


EXPERIMENTS: dict[str, Experiment[Any]] = {name: _experiment(name) for name in _MEASURES}

__all__ = ["EXPERIMENTS", "Experiment", "Outcome"]

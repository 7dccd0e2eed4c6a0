"""The small experiments that the source articles name, for any causal model; for encoders where no text stops midway.

Texts, plots and prompts are data (`prompts.toml`). Prompts are the articles' own, and beside them ones in the words of
the generated stories, which small models can read too. What a model cannot use is counted in what is measured.
"""

from collections.abc import Callable
from typing import Any

from analyses.experiments import adjectives, distance, model_parts, swaps, words
from analyses.experiments.experiment import Experiment, Outcome, sentence_from
from analyses.experiments.prompts import experiment_data
from analyses.figures.kinds import plot_from

_TEXTS = "title", "question", "command", "caption", "columns"
_MEASURES: dict[str, Callable[..., Any]] = {
    "profession": swaps.measure_profession,
    "knight": swaps.measure_knight,
    "adjectives": adjectives.measure,
    "word-sense": words.measure_word_sense,
    "companions": words.measure_companions,
    "distance": distance.measure,
    "cost": model_parts.measure_cost,
    "shares": model_parts.measure_shares,
}
_SENTENCES: dict[str, Callable[[Any], str]] = {"distance": distance.sentence, "cost": model_parts.cost_sentence}


def _experiment(name: str) -> Experiment:
    data = experiment_data(name)
    sentence = _SENTENCES.get(name) or sentence_from(**data["sentence"])
    texts = {field: data[field] for field in _TEXTS}
    return Experiment(name=name, **texts, measure=_MEASURES[name], sentence=sentence, plot=plot_from(**data["plot"]))


EXPERIMENTS: dict[str, Experiment] = {name: _experiment(name) for name in _MEASURES}

__all__ = ["EXPERIMENTS", "Experiment", "Outcome"]

"""The source articles' small experiments, for any causal model; some also for encoders.

Texts, plots and prompts are data (`prompts.toml`). Some prompts are the articles' own; others use the words of the
generated stories, which small models can read. We count prompts that a model cannot use.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from analyses.execution import lots
from analyses.execution.progress import Say, Stages
from analyses.experiments import model_parts, swaps
from analyses.experiments.experiment import Experiment, Outcome, experiment_data, sentence_from
from analyses.figures.kinds import plot_from
from analyses.page.sections import Part, Section, caveat, drawing, link, soft
from interp import InputError, Model
from interp.errors import whole_number


def _experiment(
    name: str, measure: Callable[..., Any], sentence: Callable[[Any], str] | None = None
) -> tuple[str, Experiment]:
    data = experiment_data(name)
    texts = {field: data[field] for field in ("title", "question", "command", "caption", "columns")}
    sentence = sentence or sentence_from(**data["sentence"])
    return name, Experiment(name, **texts, measure=measure, sentence=sentence, plot=plot_from(**data["plot"]))


EXPERIMENTS = dict(
    [
        _experiment("profession", swaps.measure_profession),
        _experiment("knight", swaps.measure_knight),
        _experiment("adjectives", swaps.measure_adjectives),
        _experiment("word-sense", swaps.measure_word_sense),
        _experiment("companions", swaps.measure_companions),
        _experiment("distance", model_parts.measure_distance, model_parts.distance_sentence),
        _experiment("cost", model_parts.measure_cost, model_parts.cost_sentence),
        _experiment("shares", model_parts.measure_shares),
    ]
)


STAGE = "experiments"
_TIMED = "cost"


def section(
    model: Model,
    names: Iterable[str] | None = None,
    *,
    seed: int = 0,
    progress: Say | None = None,
) -> Part:
    """Run experiments, and return what a page shows: a table, a figure and a line for each.

    If none can run on this model there are no sections, and `counted` says why.
    """
    seed = whole_number("seed", seed)
    sections, short, tables, records, not_asked = [], [], {}, {}, {}
    refused: dict[str, list[str]] = {}  # titles by reason
    names = [*(EXPERIMENTS if names is None else names)]
    say = partial(Stages.to(progress), STAGE)
    outcomes = lots.do(partial(_outcome, model, seed), [(name,) for name in names if name != _TIMED], say)
    if _TIMED in names:  # timed while nothing else runs
        outcomes.insert(names.index(_TIMED), _outcome(model, seed, _TIMED))
    for name, outcome in zip(names, outcomes, strict=True):
        study = EXPERIMENTS[name]
        if isinstance(outcome, str):
            refused.setdefault(outcome, []).append(study.title)
            not_asked[name] = outcome
            continue
        records[name] = {"used": outcome.used, "left_out": outcome.left_out, "refused": outcome.refused}
        table = tables[name] = outcome.table
        sentence, anchor = study.sentence(outcome), f"experiment-{name}"
        text = [sentence, " ", soft(outcome.remark)] if outcome.remark else sentence
        figure = replace(drawing(name, study.plot.draw(table, study.question)), caption=study.caption)
        sections.append(Section(study.title, [text, figure], anchor))
        short.append((link(study.title, anchor), sentence))
    caveats = [f"Not run on this model: {'; '.join(titles)}: {reason}." for reason, titles in refused.items()]
    none = f"None of the articles’ experiments can run on this model: {'; '.join(refused)}."
    return Part(
        sections=sections,
        short=short,
        counted=[caveat(text) for text in (caveats if sections else [none])],
        tables=tables,
        facts={"experiments": records, "not_asked": not_asked},
    )


def _outcome(model: Model, seed: int, name: str) -> Outcome | str:
    """What an experiment measured, or why it cannot run on this model."""
    try:
        return EXPERIMENTS[name].measure(model, seed=seed)
    except InputError as error:
        return str(error)


__all__ = ["EXPERIMENTS", "Experiment", "Outcome", "section"]
__dir__ = __all__.copy  # `dir()` lists the public names

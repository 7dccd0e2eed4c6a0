"""The small experiments that the source articles name, for any causal model; for encoders where no text stops midway.

Texts, plots and prompts are data (`prompts.toml`). Prompts are the articles' own, and others in the words of the
generated stories, which small models can read too. What a model cannot use is counted in what is measured.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from analyses.execution.progress import Say, Stages
from analyses.experiments import model_parts, swaps
from analyses.experiments.experiment import Experiment, Outcome, briefly, experiment_data, sentence_from
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


def section(
    model: Model,
    names: Iterable[str] | None = None,
    *,
    seed: int = 0,
    progress: Say | None = None,
) -> Part:
    """Run experiments, and return what a page shows: a table, a figure and a line of each.

    Where none can be asked of this model there are no sections, and `counted` says why.
    """
    seed = whole_number("seed", seed)
    sections, short, tables, records, not_asked = [], [], {}, {}, {}
    refused: dict[str, list[str]] = {}  # by reason, the titles of those that could not be asked of this model
    say, names = Stages.to(progress), [*(EXPERIMENTS if names is None else names)]
    say.plan(f"experiments: {name}" for name in names)
    for name in names:
        study = EXPERIMENTS[name]
        say(f"experiments: {name}", 0)
        try:
            outcome = study.measure(model, seed=seed)
        except InputError as error:
            refused.setdefault(str(error), []).append(study.title)
            not_asked[name] = str(error)
            continue
        records[name] = {"used": outcome.used, "left_out": outcome.left_out, "refused": outcome.refused}
        table = tables[name] = outcome.table
        sentence, anchor = study.sentence(outcome), f"experiment-{name}"
        text = [sentence, " ", soft(outcome.remark)] if outcome.remark else sentence
        figure = replace(drawing(name, study.plot.draw(table, study.question)), caption=study.caption)
        sections.append(Section(study.title, [text, figure], anchor))
        short.append((link(study.title, anchor), briefly(sentence)))
    caveats = [f"Not asked of this model: {'; '.join(titles)}: {reason}." for reason, titles in refused.items()]
    none = f"None of the articles’ experiments can be asked of this model: {'; '.join(refused)}."
    return Part(
        sections=sections,
        short=short,
        counted=[caveat(text) for text in (caveats if sections else [none])],
        tables=tables,
        facts={"experiments": records, "not_asked": not_asked},
    )


__all__ = ["EXPERIMENTS", "Experiment", "Outcome", "section"]

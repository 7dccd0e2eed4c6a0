"""The experiments as part of a page: each is run, its table and figure written, and a line made of what it found."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analyses.experiments import EXPERIMENTS
from analyses.experiments.prompts import remark
from analyses.figures.experiment_plots import DRAW
from analyses.report import output
from analyses.report.renderer import image
from interp import InputError, Transformer

_RECORDED = ("used", "left_out", "refused")  # of a table's attributes, those that run.json keeps


@dataclass(frozen=True)
class Shown:
    """One experiment as a page shows it."""

    name: str
    title: str
    sentence: str
    remark: str  # what it had to leave out; empty where nothing
    figure: Mapping[str, str]


@dataclass(frozen=True)
class Section:
    """What a page shows of the experiments. `facts` is for `run.json`; the template macros show the rest."""

    shown: Sequence[Shown]
    refused: Mapping[str, Sequence[str]]  # by reason, the titles of those that could not be asked of this model
    facts: Mapping[str, Any]


def section(
    model: Transformer,
    new: output.Output,
    names: Iterable[str] | None = None,
    *,
    seed: int = 0,
    progress: Callable[[str, int], object] | None = None,
) -> Section:
    """Run experiments, write the table and the figure of each, and return what a page shows.

    Args:
        model: a transformer of one stack.
        new: the output directory in the making.
        names: some of `EXPERIMENTS`; all by default.
        seed: of everything random.
        progress: called with what is being done.
    """
    shown: list[Shown] = []
    refused: dict[str, list[str]] = {}
    facts: dict[str, Any] = {"experiments": {}, "not_asked": {}}
    for name in EXPERIMENTS if names is None else names:
        module = EXPERIMENTS[name]
        if progress is not None:
            progress(f"experiments: {name}", 0)
        try:
            table = module.measure(model, seed=seed)
        except InputError as error:
            refused.setdefault(str(error), []).append(module.TITLE)
            facts["not_asked"][name] = str(error)
            continue
        facts["experiments"][name] = {what: table.attrs[what] for what in _RECORDED if what in table.attrs}
        new.table(name, table)
        figure = DRAW[name](table, title=module.QUESTION)
        svg = new.figure(name, figure).read_bytes()
        sentence = module.sentence(table)
        drawn = image(figure, svg, module.CAPTION, f"{module.QUESTION} {sentence}")
        shown.append(Shown(name, module.TITLE, sentence, remark(table), drawn))
    return Section(shown, refused, facts)

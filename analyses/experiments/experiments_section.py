"""The experiments as part of a page: each is run, and a table, a figure and a line made of what it found."""

from collections.abc import Callable, Iterable

from analyses.experiments import EXPERIMENTS
from analyses.experiments.experiment import briefly
from analyses.page.sections import Figure, Part, Section, caveat, link, soft
from interp import InputError, Model


def section(
    model: Model,
    names: Iterable[str] | None = None,
    *,
    seed: int = 0,
    progress: Callable[[str, int], object] | None = None,
) -> Part:
    """Run experiments, and return what a page shows of them.

    Where none can be asked of this model there are no sections, and `counted` says why.

    Args:
        model: a transformer of one stack.
        names: some of `EXPERIMENTS`; all by default.
        seed: of everything random.
        progress: called with what is being done.
    """
    sections, short, tables = [], [], {}
    refused: dict[str, list[str]] = {}  # by reason, the titles of those that could not be asked of this model
    made, not_asked = {}, {}
    for name in EXPERIMENTS if names is None else names:
        each = EXPERIMENTS[name]
        if progress is not None:
            progress(f"experiments: {name}", 0)
        try:
            found = each.measure(model, seed=seed)
        except InputError as error:
            refused.setdefault(str(error), []).append(each.title)
            not_asked[name] = str(error)
            continue
        made[name] = {"used": found.used, "left_out": found.left_out, "refused": found.refused}
        tables[name] = found.table
        sentence, anchor = each.sentence(found), f"experiment-{name}"
        said = [sentence, " ", soft(found.remark)] if found.remark else sentence
        figure = Figure(name, each.plot.draw(found.table, each.question), each.caption, each.plot.describe(found.table))
        sections.append(Section(each.title, [said, figure], anchor))
        short.append((link(each.title, anchor), briefly(sentence)))
    none = "None of the articles’ experiments can be asked of this model: "
    said = [f"Not asked of this model: {'; '.join(titles)}: {reason}." for reason, titles in refused.items()]
    return Part(
        sections=sections,
        short=short,
        counted=[caveat(text) for text in (said if sections else [f"{none}{'; '.join(refused)}."])],
        tables=tables,
        facts={"experiments": made, "not_asked": not_asked},
    )

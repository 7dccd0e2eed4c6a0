"""The small experiments that the source articles name, for any causal model; for encoders where no text stops midway.

Every module has `NAME`, `TITLE`, `QUESTION`, `COMMAND` (the command that runs it), `measure(model, *, seed) ->
DataFrame`, `sentence(table) -> str` (what was found) and `CAPTION` (how to read its figure, which
`analyses.figures.experiment_plots.DRAW[NAME]` draws from the table). Prompts are the articles' own, and
beside them ones in the words of the generated stories, which small models can read too. What a model cannot use is
counted in `table.attrs["left_out"]`.
"""

from types import ModuleType

from analyses.experiments import adjectives, companions, cost, distance, knight, profession, shares, word_sense

EXPERIMENTS: dict[str, ModuleType] = {
    module.NAME: module for module in (profession, knight, adjectives, word_sense, companions, distance, cost, shares)
}

__all__ = ["EXPERIMENTS"]

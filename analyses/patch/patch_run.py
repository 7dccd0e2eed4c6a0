"""What does one run of `interp patch` measure? Its pairs, every cell, and estimates beside them where asked for."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from analyses.execution.provenance import digest
from analyses.patch.cell_estimates import Estimates, check_metrics, correlations, estimates_of
from analyses.patch.cells import NO_OUTPUT, Cells, cells_of, sweeps
from analyses.patch.prompt_pairs import PromptTokens, make_pairs, pairs_table, prompt_tokens
from interp import InputError, Model

Progress = Callable[[str, int], object]  # what is being done, and how often it was


@dataclass(frozen=True)
class Patched:
    """What was patched and what came of it; `prompts` and `how` are for the record."""

    site: str
    how: Mapping[str, Any]
    prompts: Mapping[str, Any]
    pairs: pd.DataFrame
    tokens: Sequence[PromptTokens]
    cells: Cells
    positions: Mapping[str, Sequence[int]]  # of each pair, by name
    estimates: Estimates | None = None
    correlations: pd.DataFrame | None = None


def find(
    model: Model,
    prompts: pd.DataFrame,
    site: str = "z",
    *,
    estimates: bool = False,
    drop: bool = False,
    as_typed: bool = False,
    positions: Mapping[str, int | str] | None = None,
    by_position: bool | None = None,
    source: Path | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    **how: Any,
) -> Patched:
    """Sweep one site over all pairs.

    Args:
        model: a transformer with a tokenizer.
        prompts: columns clean, corrupt, answer, wrong, and target or source where the model reads two texts.
        site: what is patched.
        estimates: set gradient estimates beside the exact effects.
        drop: leave out and count pairs that cannot be used.
        as_typed: take texts as they are: put no space before answers, and read no braces.
        positions: names for tokens of all prompts, as in `Pairs.from_texts`.
        by_position: whether positions are patched one by one; by default where some have names.
        source: the file that the prompts come from.
        seed: of everything random.
        progress: called with what is being done.
        how: `directions`, `metrics`, `stack` and `attention` of `analyses.patch.cells.sweeps`.

    Raises:
        InputError: as `make_pairs` and `measure`, or a metric without a gradient where estimates are asked for.
    """
    say = progress or (lambda stage, count: None)
    if model.config.output == "none":
        raise InputError(NO_OUTPUT)
    if estimates:
        check_metrics(how.get("metrics", ()))
    named = None if source is None else source.name
    pairs = make_pairs(model, prompts, drop=drop, as_typed=as_typed, positions=positions, source=named)
    by_position = bool(pairs.positions) if by_position is None else by_position
    say("patching", 0)
    exact = sweeps(model, pairs, site, by_position=by_position, **how)
    config = {"by_position": by_position, "directions": [each.direction for each in exact]}
    config |= {"metrics": [*exact[0].values], "stack": exact[0].stack, "attention": how.get("attention", "self")}
    cells = cells_of(model, exact, seed=seed)
    read = {
        "file": named,
        "sha256": None if source is None else digest([source.read_bytes()]),
        "pairs": len(pairs),
        "left_out": pairs.left_out,
    }
    used = pairs_table(model, prompts, pairs, cells.prompts), prompt_tokens(model, pairs)
    places = {name: at.tolist() for name, at in pairs.positions.items()}
    if not estimates:
        return Patched(site, config, read, *used, cells, places)
    say("estimating", 0)
    beside = estimates_of(model, pairs, exact, seed=seed, progress=say)
    return Patched(site, config, read, *used, cells, places, beside, correlations(beside.table))

"""What does `interp patch` leave behind? Runs the sweeps, and writes tables, figures and one HTML page that says it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from analyses import figures
from analyses.patch.cell_estimates import check_metrics, correlations, estimates_table
from analyses.patch.cells import DIRECTIONS, NO_OUTPUT, cells_table, sweeps
from analyses.patch.patch_page import Found, cells_alt, estimates_alt, page
from analyses.patch.prompt_pairs import make_pairs, pairs_table, prompt_tokens
from analyses.report import full_report as report
from analyses.report import output
from analyses.report.renderer import image
from interp import InputError, Transformer
from interp.patching import Pairs, Sweep
from interp.patching.results import Direction
from interp.patching.spots import last_stack

_WHOLE = "1 is the whole difference between clean and corrupted prompts, 0 none of it."
_CAPTIONS = {
    "cells": "Each cell patched alone; both directions have one colour scale. {scale} What is grey does not exist.",
    "top": "The largest effects either way, with 95% intervals where there are several pairs. {scale}",
}
_ESTIMATES = (
    "Each point is a cell or an edge: what gradients estimate, and what patching measures. ρ is the rank correlation, "
    "r the linear one. The farthest from the line have their names."
)
Progress = Callable[[str, int], object]  # what is being done, and how often it was


@dataclass(frozen=True)
class Written:
    """Where everything lies, and how estimates agreed with exact effects, where they were asked for."""

    folder: Path
    correlations: pd.DataFrame | None = None


def build(
    model: Transformer,
    prompts: pd.DataFrame,
    out: Path,
    site: str = "z",
    *,
    by_position: bool = False,
    directions: Sequence[Direction] = DIRECTIONS,
    metrics: Sequence[str] = ("logit_difference",),
    stack: str | None = None,
    attention: str = "self",
    estimates: bool = False,
    drop: bool = False,
    as_typed: bool = False,
    source: Path | None = None,
    seed: int = 0,
    command: str = "",
    name: str = "",
    progress: Progress | None = None,
) -> Written:
    """Sweep, draw and write everything into `out`. Arguments as in `make_pairs` and `measure`, and:

    Args:
        model: a transformer with a tokenizer.
        prompts: columns clean, corrupt, answer, wrong, and target or source where the model reads two texts.
        out: the output directory; left as it was when anything fails.
        site: what is patched.
        by_position: whether positions are patched one by one.
        directions: `denoise`, `noise` or both.
        metrics: names of `METRICS`.
        stack: of a model with an encoder and a decoder which is patched, by default the decoder.
        attention: `self` or `cross`.
        estimates: set gradient estimates beside the exact effects.
        drop: leave out and count pairs that cannot be used.
        as_typed: put no space before answers.
        source: the file that the prompts come from.
        seed: of everything random.
        command: what the user typed, for the record.
        name: the model's name, for the record.
        progress: called with what is being done.

    Raises:
        InputError: as `make_pairs` and `measure`, a metric without a gradient where estimates are asked for, or an
            output directory that cannot be used.
    """
    started = time.perf_counter()
    say = progress or (lambda stage, count: None)
    metrics = list(dict.fromkeys(metrics))
    with output.writing(out) as new:
        if model.config.output == "none":
            raise InputError(NO_OUTPUT)
        if estimates:
            check_metrics(metrics)
        pairs = make_pairs(model, prompts, drop=drop, as_typed=as_typed, source=None if source is None else source.name)
        say("patching", 0)
        how: dict[str, Any] = {"by_position": by_position, "directions": list(directions), "metrics": metrics}
        how |= {"stack": stack or last_stack(model), "attention": attention}
        exact = sweeps(model, pairs, site, **how)
        found = _found(model, prompts, pairs, exact, estimates=estimates, seed=seed, say=say)
        say("writing figures", 0)
        found = _write(new, found)
        facts = {
            "model": report.model_facts(model),
            "name": name or "a model",
            "prompts": {
                "file": None if source is None else source.name,
                "sha256": None if source is None else output.digest([source.read_bytes()]),
                "pairs": len(pairs),
                "left_out": pairs.left_out,
            },
            "site": site,
            "place": found.cells.attrs.get("place"),
            **how,
            "seed": seed,
            "share_refused": found.cells.attrs["share_refused"],
            "estimates": None if found.estimates is None else found.estimates.attrs,
            "command": command,
            "versions": output.versions(),
            "seconds": round(time.perf_counter() - started, 1),
        }
        new.text("report.html", page(facts, found))
        new.run(facts)
    return Written(Path(out), found.correlations)


def _found(
    model: Transformer,
    prompts: pd.DataFrame,
    pairs: Pairs,
    exact: Sequence[Sweep],
    *,
    estimates: bool,
    seed: int,
    say: Progress,
) -> Found:
    """All tables."""
    cells = cells_table(model, pairs, exact, seed=seed)
    used = pairs_table(model, prompts, pairs, cells.attrs["prompts"])
    found = Found(cells, used, prompt_tokens(model, pairs))
    if not estimates:
        return found
    say("estimating", 0)
    beside = estimates_table(model, pairs, exact, seed=seed, progress=say)
    return Found(cells, used, found.tokens, beside, correlations(beside))


def _write(new: output.Output, found: Found) -> Found:
    """Write tables and figures; returns what was found with its figures as the page shows them."""
    cells, beside, agreement = found.cells, found.estimates, found.correlations
    new.table("cells", cells)
    new.table("pairs", found.pairs)
    images: dict[str, list[dict[str, str]]] = {}
    estimate_images: dict[str, dict[str, str]] = {}
    for metric in cells["metric"].unique():
        shares = bool(cells.loc[cells["metric"] == metric, "share"].notna().any())
        for kind, figure in figures.sweep_figures(cells, metric).items():
            svg = new.figure(f"{kind}-{metric}", figure).read_bytes()
            caption = _CAPTIONS[kind].format(scale=_WHOLE if shares else "").strip()
            alt = f"{figure.get_suptitle().replace(chr(10), ' ')} {cells_alt(cells, metric)}"
            images.setdefault(metric, []).append(image(figure, svg, caption, alt))
    if beside is not None and agreement is not None:
        new.table("estimates", beside)
        new.table("correlations", agreement)
        for metric in agreement["metric"].unique():
            figure = figures.estimate_panels(beside, agreement, metric)
            svg = new.figure(f"estimates-{metric}", figure).read_bytes()
            estimate_images[metric] = image(figure, svg, _ESTIMATES, estimates_alt(agreement, metric))
    return Found(cells, found.pairs, found.tokens, beside, agreement, images, estimate_images)

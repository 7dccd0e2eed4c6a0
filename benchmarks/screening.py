"""Does screening miss heads that matter, and are its estimates as good as their intervals say?

    python -m benchmarks.screening                             # default and MiniLM on 100 tales
    python -m benchmarks.screening --model minilm --corpus EWT --corpus LITBANK/coref --cells 200
    python -m benchmarks.screening --figure docs/figures/screening.png

One half of each text is screened, as `interp report` screens the half that chooses. Of all heads and measures with
anything claimed, whether measured or screened out, some are drawn at random and measured on the documents of the other
half: one whole `run(edit=)` a row of the text and cell, its prompt alone. Prints one JSON line a model:

    cells, drawn        heads and measures with something claimed; how many of them were drawn
    screened_out        of the drawn, how many the screen left as estimates
    missed              of these, how many cost at least 0.01 nats a row on the other documents, interval above 0
    most_missed         upper 95% bound of their share (Clopper & Pearson 1934)
    covered             share of the drawn whose two effects differ by less than their two intervals together, and
    covered_out         the same of those that were screened out: an estimate's interval on one side, a measurement's on
                        the other. Two independent 95% intervals together are right 95% of the time
    no_interval         of the drawn, how many have too few documents on either side for one; they are not in `covered`
    on_same             the drawn measured on the same documents as were estimated: 95% of the absolute errors of
                        estimates below 0.01 nats a row are below this
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from scipy.stats import beta
from torch import Tensor, nn

from analyses import corpora
from analyses.behaviours import select
from analyses.corpora.corpus import serving
from analyses.figures.style import GREY, INK, PALE, SOFT, legend, panels, styled
from analyses.labels import knockouts
from analyses.labels.evidence import NOTABLE_EFFECT, affordable
from analyses.labels.screen import Screen
from analyses.reading.inputs import Sample
from benchmarks.console import arguments, show
from interp import TokenBatch, Transformer
from interp.patching.claimed_texts import Claim
from interp.patching.knockout import knock_out_by_forward
from models import load

MODELS, CORPUS = ("default", "minilm"), "tales:100"
CELL = ["layer", "head", "measure"]


def plainly(
    model: Transformer,
    batch: TokenBatch,
    claims: Sequence[Claim],
    output: nn.Linear | None = None,
    *,
    cells: Tensor,
) -> Tensor:
    """`knock_out` the plain way: each claim's text alone, and one whole forward per cell."""
    rows = [batch.ids[index, : batch.lengths[index]].tolist() for index in range(len(batch.ids))]
    drops = []
    for index, claim in enumerate(claims):
        alone = TokenBatch.from_rows([rows[claim.prompt]])
        moved = replace(claim, prompt=0)
        drops.append(knock_out_by_forward(model, alone, [moved], output, cells=cells[index : index + 1]))
    return torch.cat(drops)


def measured_twice(model: Transformer, names: Sequence[str], cells: int, seed: int) -> tuple[int, pd.DataFrame]:
    """How many heads and measures have something claimed, and those that were drawn.

    `effect`, `low`, `high`, `measured` are the screen's; `there` with `low_there`, `high_there` those of plain forwards
    on other documents; `same` the measured effect on the screen's own documents, `estimate` the estimate there.
    """
    behaviours = select(None)
    read = serving({name: each.needs for name, each in behaviours.items()}, [corpora.read(name) for name in names])
    first: list[pd.DataFrame] = []
    settings: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
    for used in read:
        for name in used.questions:
            documents, words = affordable(model, behaviours[name])
            size = {"documents": documents, "words": words}
            halves = [Sample(used.corpus, half, **size) for half in (0, 1)]
            probes = [Sample(used.corpus, half, documents, 10 * words) for half in (1, 0)]
            options = {"behaviours": [behaviours[name]], "texts": documents * words}
            same_docs, other_docs = (
                {**options, "corpus": rows, "training": probe} for rows, probe in zip(halves, probes, strict=True)
            )
            settings[name] = same_docs, other_docs
            screen = Screen((), NOTABLE_EFFECT, choosing=True)
            first.append(knockouts.measure(model, **same_docs, screen=screen, armed=(), seed=seed).table)
    table = pd.concat(first, ignore_index=True)
    sample = table.loc[sorted(random.Random(seed).sample(range(len(table)), min(cells, len(table))))]
    tables = []
    for name, (same_docs, other_docs) in settings.items():
        rows = sample.loc[sample["behaviour"] == name]
        options = Screen({*rows[CELL].itertuples(index=False, name=None)}, NOTABLE_EFFECT, choosing=False)
        again = [knockouts.measure(model, **same_docs, screen=options, armed=(), seed=seed).table]
        with mock.patch("analyses.labels.hiding.knock_out", plainly):
            again.append(knockouts.measure(model, **other_docs, screen=options, armed=(), seed=seed + 1).table)
        exact, plain = (each.loc[each["measured"]].set_index(CELL) for each in again)
        result = rows.set_index(CELL)[["behaviour", "effect", "ci_low", "ci_high", "measured", "estimate"]]
        result = result.join(exact["effect"].rename("same"))
        elsewhere = plain[["effect", "ci_low", "ci_high"]].set_axis(["there", "low_there", "high_there"], axis=1)
        tables.append(result.join(elsewhere).reset_index())
    return len(table), pd.concat(tables, ignore_index=True)


def summary(cells: int, sample: pd.DataFrame) -> dict[str, object]:
    """The line printed for one model."""
    rows = sample.dropna(subset=["there", "same"])  # something is claimed in the other documents too
    out = rows.loc[~rows["measured"].astype(bool)]
    missed = int(((out["there"] >= NOTABLE_EFFECT) & (out["low_there"] > 0)).sum())
    far = (rows["effect"] - rows["there"]).abs()
    up, down = rows["ci_high"] - rows["effect"], rows["effect"] - rows["ci_low"]
    up_there, down_there = rows["high_there"] - rows["there"], rows["there"] - rows["low_there"]
    above = rows["effect"] >= rows["there"]
    wide = np.hypot(down.where(above, up), up_there.where(above, down_there))
    covered = (far <= wide).astype(float).where(wide.notna())
    small = rows.loc[rows["estimate"] < NOTABLE_EFFECT]
    return {
        "cells": cells,
        "drawn": len(rows),
        "screened_out": len(out),
        "missed": missed,
        "most_missed": float(beta.ppf(0.95, missed + 1, len(out) - missed)) if missed < len(out) else 1.0,
        "covered": float(covered.mean()),
        "covered_out": float(covered.loc[out.index].mean()),
        "no_interval": int(covered.isna().sum()),
        "on_same": float((small["same"] - small["estimate"]).abs().quantile(0.95)),
    }


@styled
def figure(tables: dict[str, pd.DataFrame], path: str) -> Figure:
    """Estimates against measurements on the same documents, one panel per model, with logarithmic scales."""
    plot, axes = panels("How near are estimates to what is measured?", len(tables), height=4, columns=2, square=True)
    for axis, (name, sample) in zip(axes, tables.items(), strict=True):
        for out, how, says in ((True, {"mfc": PALE, "mec": SOFT}, "screened out"), (False, {"color": INK}, "measured")):
            rows = sample.loc[sample["measured"].astype(bool) != out]
            axis.plot(rows["estimate"], rows["same"], "o", ms=4, mew=0.5, label=says, **how)
        for line in (axis.axhline, axis.axvline):
            line(NOTABLE_EFFECT, color=GREY, lw=0.8, ls=":")
        for scale, limit in ((axis.set_xscale, axis.set_xlim), (axis.set_yscale, axis.set_ylim)):
            scale("symlog", linthresh=NOTABLE_EFFECT)
            limit(-0.3, 1.0)
        axis.plot([-0.3, 1], [-0.3, 1], color=GREY, lw=0.8)
        axis.set(title=name, xlabel="estimated effect (nats a row)", ylabel="measured on the same documents")
    legend(plot, axes)
    plot.savefig(path, dpi=150)
    return plot


def main() -> None:
    """Print one JSON line per model."""
    parser = arguments(__doc__)
    parser.add_argument("--model", action="append", help=f"default {' and '.join(MODELS)}")
    parser.add_argument("--corpus", action="append", help=f"default {CORPUS}")
    parser.add_argument("--cells", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--figure", help="where to draw estimates beside measurements")
    options = parser.parse_args()
    tables: dict[str, pd.DataFrame] = {}
    for name in options.model or MODELS:
        cells, tables[name] = measured_twice(load(name), options.corpus or [CORPUS], options.cells, options.seed)
        show(model=name, corpora=options.corpus or [CORPUS], **summary(cells, tables[name]))
    if options.figure:
        figure(tables, options.figure)


if __name__ == "__main__":
    main()

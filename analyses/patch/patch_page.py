"""What did patching find? Turns the tables of one run of `interp patch` into the sentences and rows of its page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from analyses import figures
from analyses.patch.cell_estimates import ATP_STAR
from analyses.patch.edge_estimates import EAP, EAP_IG
from analyses.patch.prompt_pairs import PromptTokens
from analyses.report.renderer import false_discovery_rate, interval, number, render

_TOP, _NAMED, _EDGES = 10, 3, 6  # cells in a table, cells in a sentence, edges in a table
FEW = 20  # pairs below which intervals are rough
_PAIRS = 12  # shown; the rest is in the table
_MEANS = {
    "denoise": ("restores", "Clean into corrupted: is it enough?"),
    "noise": ("removes", "Corrupted into clean: is it needed?"),
}
_SITES = {
    "z": "what each head mixes from the values, before it is written (z)",
    "q": "each head’s queries (q)",
    "k": "the keys of each key/value head (k)",
    "v": "the values of each key/value head (v)",
    "pattern": "each head’s attention pattern",
    "scores": "each head’s attention scores, before the softmax",
    "resid_pre": "the residual stream into each layer (resid_pre)",
    "resid_mid": "the residual stream between attention and feed-forward (resid_mid)",
    "resid_post": "the residual stream out of each layer (resid_post)",
    "attn_out": "what each layer’s attention writes (attn_out)",
    "mlp_out": "what each layer’s feed-forward writes (mlp_out)",
    "cross_attn_out": "what each layer’s cross-attention writes (cross_attn_out)",
    "resid_cross": "the residual stream after cross-attention (resid_cross)",
}


@dataclass(frozen=True)
class Found:
    """What one run measured, and its figures by metric."""

    cells: pd.DataFrame
    pairs: pd.DataFrame
    tokens: Sequence[PromptTokens]
    estimates: pd.DataFrame | None = None
    correlations: pd.DataFrame | None = None
    images: Mapping[str, Sequence[dict[str, str]]] = field(default_factory=dict)
    estimate_images: Mapping[str, dict[str, str]] = field(default_factory=dict)


def page(facts: Mapping[str, Any], found: Found) -> str:
    """The page as one HTML file; every value is escaped."""
    return render(
        "patch.html.jinja",
        facts=facts,
        site=_site(facts),
        unit=_unit(found.cells),
        pairs=_pairs(found),
        metrics=[_metric(facts, found, metric) for metric in facts["metrics"]],
        estimates=None if found.estimates is None else _estimates(facts, found),
    )


def _site(facts: Mapping[str, Any]) -> str:
    """What was patched, and in which of two stacks."""
    site = _SITES.get(facts["site"], str(facts["site"]))
    if len(facts["model"]["stacks"]) == 1:
        return site
    if facts["attention"] == "cross":
        return f"{site}, in the {facts['stack']}’s cross-attention"
    return f"{site}, in the {facts['stack']}"


def cells_alt(cells: pd.DataFrame, metric: str) -> str:
    """What the map or the dots of a metric show, for one who cannot see them."""
    tops = [f"{direction}: {_listed(rows)}" for direction, rows in _tops(cells, metric, _NAMED)]
    return f"The largest effects of {figures.place_name(cells)} on the {_named(metric)}. {'; '.join(tops)}."


def estimates_alt(correlations: pd.DataFrame, metric: str) -> str:
    """What the panels of estimates show, for one who cannot see them."""
    rows = correlations.loc[correlations["metric"] == metric].to_dict("records")
    each = [f"{row['method']}, {row['direction']}: rank correlation {number(row['spearman'])}" for row in rows]
    return f"Estimated against exact effects, one panel a method and direction. {'; '.join(each)}."


def _named(metric: str) -> str:
    return figures.metric_unit(metric)[0]


def _unit(cells: pd.DataFrame) -> str:
    """What one patch changes."""
    known = [axis for axis in ("layer", "head", "position", "query", "key") if axis in cells]
    axes = [axis for axis in known if not all(pd.isna(place) for place in cells[axis].tolist())]
    return axes[0] if len(axes) == 1 else f"{', '.join(axes[:-1])} and {axes[-1]}"


def _tops(cells: pd.DataFrame, metric: str, count: int) -> list[tuple[str, list[dict[str, Any]]]]:
    """The cells with the largest effects either way, direction by direction."""
    rows = cells.loc[cells["metric"] == metric]
    rows = rows.assign(size=rows["effect"].abs()).sort_values("size", ascending=False, kind="stable")
    return [
        (direction, rows.loc[rows["direction"] == direction].head(count).to_dict("records"))
        for direction in cells["direction"].unique()
    ]


def _listed(rows: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{_cell(row)} {number(row[_quantity(row)])}" for row in rows)


def _quantity(row: Mapping[str, Any]) -> str:
    """What says how large a cell's effect is: its share, where shares mean anything."""
    return "share" if np.isfinite(row["share"]) else "effect"


def _cell(row: Mapping[str, Any]) -> str:
    return figures.cell_name(dict(row))


def _metric(facts: Mapping[str, Any], found: Found, metric: str) -> dict[str, Any]:
    """One metric's findings as text."""
    name, unit = figures.metric_unit(metric)
    clean, corrupt = (found.pairs[f"{which}_{metric}"].to_numpy(dtype=float) for which in ("clean", "corrupt"))
    return {
        "id": metric,
        "name": name,
        "unit": unit,
        "counts": unit.removeprefix("in ") if unit.startswith("in ") else "",
        "clean": number(float(clean.mean())),
        "corrupt": number(float(corrupt.mean())),
        "difference": number(float((clean - corrupt).mean())),
        "answered": (int((clean > 0).sum()), int((corrupt < 0).sum())) if metric == "logit_difference" else None,
        "refused": facts["share_refused"].get(metric),
        "directions": [
            {
                "direction": direction,
                "verb": _MEANS[direction][0],
                "asks": _MEANS[direction][1],
                "rows": [_shown(row) for row in rows],
            }
            for direction, rows in _tops(found.cells, metric, _TOP)
        ],
        "named": _NAMED,
        "images": found.images.get(metric, ()),
    }


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    """One cell's row as text."""
    return {
        "cell": _cell(row),
        "effect": number(row["effect"]),
        "interval": interval(row["ci_low"], row["ci_high"]),
        "share": number(row["share"]),
        "share_interval": interval(row["share_low"], row["share_high"]),
        "q": false_discovery_rate(row["q"]),
        "n": number(row["n"]),
    }


def _pairs(found: Found) -> dict[str, Any]:
    """The prompts token by token, changed ones marked, with their answers."""
    rows = found.pairs.to_dict("records")
    shown = [
        {
            "row": row["row"],
            "clean": list(zip(tokens.clean, tokens.changed, strict=True)),
            "corrupt": list(zip(tokens.corrupt, tokens.changed, strict=True)),
            "beside": [(token, False) for token in tokens.beside],
            "answer": row["answer_token"],
            "wrong": row["wrong_token"],
        }
        for row, tokens in zip(rows[:_PAIRS], found.tokens, strict=False)
    ]
    beside = "target" if "target" in found.pairs else "source" if "source" in found.pairs else None
    if beside is None and shown and shown[0]["beside"]:
        beside = "target"  # the decoder's start alone
    return {"count": len(rows), "shown": shown, "few": 1 < len(rows) < FEW, "beside": beside}


def _estimates(facts: Mapping[str, Any], found: Found) -> dict[str, Any]:
    """Each method's agreement with the exact effects, and the strongest edges."""
    assert found.estimates is not None
    assert found.correlations is not None
    layers = [stack["layers"] for stack in facts["model"]["stacks"].values()]
    return {
        "metrics": [
            {
                "name": _named(metric),
                "rows": [_agreement(row) for row in found.correlations.to_dict("records") if row["metric"] == metric],
                "edges": _edges(found.estimates, metric),
                "image": found.estimate_images[metric],
            }
            for metric in facts["metrics"]
        ],
        "left_out": found.estimates.attrs["left_out"],
        "edges": found.estimates.attrs["edges"],
        "two_layers": ATP_STAR in set(found.correlations["method"]) and max(layers) == 2,
    }


def _agreement(row: Mapping[str, Any]) -> dict[str, str]:
    numbers = {name: number(row[name]) for name in ("spearman", "pearson", "n", "idle", "unmeasured")}
    return {**{name: str(row[name]) for name in ("method", "direction", "of")}, **numbers}


def _edges(estimates: pd.DataFrame, metric: str) -> list[dict[str, str]]:
    """The edges with the largest exact effects, a few a direction, with both estimates."""
    rows = estimates.loc[(estimates["metric"] == metric) & estimates["sender"].notna() & estimates["exact"].notna()]
    if rows.empty:
        return []
    keys = ["direction", "sender", "receiver", "exact"]
    table = rows.pivot_table(index=keys, columns="method", values="estimate", sort=False).reset_index()
    table = table.assign(size=table["exact"].abs()).sort_values("size", ascending=False, kind="stable")
    return [
        {
            "direction": row["direction"],
            "edge": figures.point_name(row),
            **{name: number(row[key]) for name, key in (("exact", "exact"), ("eap", EAP), ("eap_ig", EAP_IG))},
        }
        for direction in rows["direction"].unique()
        for row in table.loc[table["direction"] == direction].head(_EDGES).to_dict("records")
    ]

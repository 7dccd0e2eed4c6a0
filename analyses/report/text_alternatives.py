"""What is to be seen in a figure, for one who cannot see it? A sentence or two by rule, from what was drawn."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from analyses.figures import measure_name
from analyses.figures.attention_lines import FAINTEST
from analyses.tables.findings import shows
from analyses.wording.formats import counted, number
from analyses.wording.head_names import Place, head_name, kinds

_NAMED = 3  # heads, words or groups that are named of each thing
_PANELS = 12  # of which each is described
_STRIPE = 0.05  # the least share of attention that a fixed offset is named for


def grid(heads: pd.DataFrame, measures: Sequence[str], quantity: str) -> str:
    """Of a grid of heads: by measure those with most of what gives the colour, and how many are marked.

    Args:
        heads: rows of `tables/heads`.
        measures: those that are drawn.
        quantity: `gain`, `value` or `lift`, as of `figures.head_grid`; a value alone is never marked.
    """
    rows = (heads if quantity == "value" else heads.assign(shows=shows(heads))).loc[heads["sink"] == "kept"]
    column = "gain" if quantity == "gain" else "value"
    said = _panels({name: _most(rows.loc[rows["measure"] == name], column) for name in measures})
    return f"Gains over the baseline. {said}" if quantity == "gain" else said


def effects(rows: pd.DataFrame) -> str:
    """Of a task's grids: by intervention the heads with the largest effects."""
    ways = {"denoise": "restored by one head alone", "noise": "removed by one head alone"}
    parts = rows.groupby("intervention", sort=False)
    return _panels({ways.get(str(way), str(way)): _most(part, "effect") for way, part in parts})


def gains(heads: pd.DataFrame, measure: str, top: int = 12) -> str:
    """Of bars of gains: the largest and the smallest that is drawn, and how many lie above the baseline."""
    rows = heads.loc[(heads["measure"] == measure) & (heads["sink"] == "kept")].dropna(subset=["gain"])
    rows = rows.nlargest(top, "gain")
    if rows.empty:
        return f"No head has a gain in {measure_name(measure)}."
    named = _heads(rows, "gain")
    ends = " down to ".join(dict.fromkeys([named[0], named[-1]]))
    above = number(int((rows["ci_low"] > 0).sum()))
    return (
        f"Gains in {measure_name(measure)} from {ends}; {above} of {counted(len(rows), 'interval')} above the baseline."
    )


def distance(heads: pd.DataFrame) -> str:
    """Of distances by layer: the mean of each layer, and uniform attention's."""
    rows = heads.loc[(heads["measure"] == "distance") & (heads["sink"] == "kept")].dropna(subset=["value"])
    layers = [f"layer {layer} {value:.1f}" for layer, value in rows.groupby("layer")["value"].mean().items()]
    uniform = rows["baseline"].mean()
    beside = f"; uniform attention {uniform:.1f}" if np.isfinite(uniform) else ""
    return f"Mean distance in tokens: {', '.join(layers)}{beside}."


def stripes(patterns: Mapping[str, np.ndarray]) -> str:
    """Of mean patterns: at which distance each head has most of its attention.

    Args:
        patterns: by the head's name in the figure, query x key, both over the same tokens.
    """
    return _panels({name: _stripe(pattern) for name, pattern in patterns.items()})


def _stripe(pattern: np.ndarray) -> str:
    """The offset, or first position, with most attention; the fewer rows can look there, the more it must be."""
    length = len(pattern)
    cells: dict[int | str, np.ndarray] = {by: np.diagonal(pattern, by) for by in range(1 - length, length)}
    cells |= {"first": pattern[1:, 0]} if length > 1 else {}
    shares = {at: float(np.nan_to_num(values).mean()) for at, values in cells.items()}
    at = max(shares, key=lambda each: shares[each] * len(cells[each]) ** 0.5)  # one large cell is no stripe
    if shares[at] < _STRIPE:
        return "no stripe"
    if isinstance(at, str):
        return f"{number(shares[at])} of its attention on the first token"
    where = "on the token itself" if at == 0 else f"{abs(at)} {'back' if at < 0 else 'ahead'}"
    return f"a stripe {where}, {number(shares[at])} of its attention"


def cells(patterns: Mapping[str, np.ndarray], queries: Sequence[str], keys: Sequence[str]) -> str:
    """Of patterns between tokens or tags: from what to what each head's attention is largest."""
    return _panels({name: _largest(pattern, queries, keys) for name, pattern in patterns.items()})


def lines(patterns: Mapping[str, np.ndarray], words: Sequence[str], query: int | None = None) -> str:
    """Of lines between words: from what to what each head's are widest, or only from one word."""
    rows = slice(None) if query is None else slice(query, query + 1)
    shown = {name: np.where(each[rows] >= FAINTEST, each[rows], 0) for name, each in patterns.items()}
    return cells(shown, words if query is None else [f"from {words[query]}"], words)


def _largest(pattern: np.ndarray, queries: Sequence[str], keys: Sequence[str]) -> str:
    known = np.nan_to_num(np.asarray(pattern, dtype=float))
    places = [np.unravel_index(at, known.shape) for at in np.argsort(-known, axis=None, kind="stable")[:_NAMED]]
    named = [f"{queries[at[0]]} to {keys[at[1]]} {number(float(known[at]))}" for at in places if known[at] > 0]
    return ", ".join(named) or "nothing"


def label_map(labels: pd.DataFrame, n_heads: int) -> str:
    """Of a map of what heads may be called: how many have a label or carry an answer, and by label which."""
    heads = labels.drop_duplicates(["layer", "head"])
    what = "a label" if "gain" in labels else "a label or carry an answer to minimal pairs"
    counts = labels["label"].value_counts()
    said = _panels({str(name): _which(labels.loc[labels["label"] == name]) for name in counts.index[:_PANELS]})
    rest = f" And {counted(len(counts) - _PANELS, 'rarer label')}." if len(counts) > _PANELS else ""
    return f"{number(len(heads))} of {counted(n_heads, 'head')} have {what}. {said}{rest}"


def _which(rows: pd.DataFrame) -> str:
    named = [head_name(row["layer"], row["head"]) for row in rows.head(2 * _NAMED).to_dict("records")]
    return ", ".join(named) + (f" and {number(len(rows) - len(named))} more" if len(rows) > len(named) else "")


def agreement(evidence: pd.DataFrame, labels: pd.DataFrame) -> str:
    """Of gains against effects: of each label the heads that have it with the largest effects."""
    rows = labels.dropna(subset=["effect"])
    largest = {
        str(name): _most(rows.loc[rows["label"] == name], "effect") for name in rows["label"].value_counts().index[:9]
    }
    known = evidence.dropna(subset=["gain", "effect"]).drop_duplicates(["stack", "attention", "layer", "head"])
    said = f"Gain across, effect in nats up, of {counted(len(known), 'head')}."
    return f"{said} {f'Largest effects of heads with a label: {_panels(largest)}' if largest else 'None has a label.'}"


def shares(parts: Mapping[str, pd.DataFrame]) -> str:
    """Of bars made of groups of rules: what each group has on average, and the head that it has most of.

    Args:
        parts: by group, layer x head.
    """
    said = {}
    for group, part in parts.items():
        values = part.to_numpy(dtype=float)
        if np.isfinite(values).any():
            row, column = np.unravel_index(np.nanargmax(values), values.shape)
            where = head_name(int(part.index.to_numpy()[row]), int(part.columns.to_numpy()[column]))
            said[group] = f"{number(float(np.nanmean(values)))} on average, most in {where}"
    return _panels(said) if said else "No head's attention is told apart from uniform."


# Heads and panels in words.


def _most(rows: pd.DataFrame, column: str) -> str:
    """The heads with the largest numbers, and how many dots there are where the rows tell."""
    known = rows.dropna(subset=[column])
    if known.empty:
        return "undefined"
    said = f"most in {', '.join(_heads(known.nlargest(_NAMED, column), column, several=kinds(rows) > 1))}"
    if "shows" in rows:
        marked = int(rows["shows"].to_numpy().sum())
        said += f" ({number(marked) if marked else 'none'} of {counted(len(rows), 'head')} marked)"
    return said


def _heads(rows: pd.DataFrame, column: str, *, several: bool = False) -> list[str]:
    return [f"{Place.of(row).named(several=several)} {number(row[column])}" for row in rows.to_dict("records")]


def _panels(said: Mapping[str, str]) -> str:
    """What each panel shows, one after the other."""
    return "; ".join(f"{' '.join(measure_name(name).split())}: {text}" for name, text in said.items()) + "."

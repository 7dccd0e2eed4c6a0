"""What is to be seen in a figure, for one who cannot see it? A sentence or two by rule, from what was drawn."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from analyses.figures import measure_name
from analyses.figures.attention_lines import FAINTEST
from analyses.measures.findings import shows
from analyses.wording.formats import counted, number
from analyses.wording.head_names import HEAD, Place, head_name, kinds
from analyses.wording.plain_words import offset

_NAMED = 3  # heads, words or groups that are named of each thing
_PANELS = 12  # of which each is described
_STRIPE = 0.05  # the least share of attention that a fixed offset is named for
_WAYS = {"denoise": "restored by one head alone", "noise": "removed by one head alone"}


def grid(heads: pd.DataFrame, measures: Sequence[str], quantity: str = "gain") -> str:
    """Of a grid of heads, or of bars: by measure those with most of what is drawn, and how many are marked.

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
    parts = rows.groupby("intervention", sort=False)
    return _panels({_WAYS.get(str(way), str(way)): _most(part, "effect") for way, part in parts})


def distance(heads: pd.DataFrame) -> str:
    """Of distances by layer: the mean of each layer, and uniform attention's."""
    rows = heads.loc[(heads["measure"] == "distance") & (heads["sink"] == "kept")].dropna(subset=["value"])
    layers = [f"layer {layer} {value:.1f}" for layer, value in rows.groupby("layer")["value"].mean().items()]
    uniform = [f"; uniform attention {value:.1f}" for value in [rows["baseline"].mean()] if np.isfinite(value)]
    return f"Mean distance in tokens: {', '.join(layers)}{''.join(uniform)}."


def stripes(patterns: Mapping[str, np.ndarray]) -> str:
    """Of mean patterns over one text: the offset, or the first token, at which each head has most of its attention.

    The fewer rows can look there, the more it must be: one large cell is no stripe.
    """
    said = {}
    for name, pattern in patterns.items():
        length = len(pattern)
        cells = {
            f"{offset(by)}" if by else "on the token itself": np.diagonal(pattern, by)
            for by in range(1 - length, length)
        }
        cells |= {"on the first token": pattern[1:, 0]} if length > 1 else {}
        shares = {where: float(np.nan_to_num(values).mean()) for where, values in cells.items()}
        most = max(shares, key=lambda where: shares[where] * len(cells[where]) ** 0.5)
        said[name] = f"{number(shares[most])} of its attention {most}" if shares[most] >= _STRIPE else "no stripe"
    return _panels(said)


def cells(patterns: Mapping[str, np.ndarray], queries: Sequence[str], keys: Sequence[str]) -> str:
    """Of patterns between tokens or tags: from what to what each head's attention is largest."""
    said = {}
    for name, pattern in patterns.items():
        known = np.nan_to_num(np.asarray(pattern, dtype=float))
        places = [np.unravel_index(at, known.shape) for at in np.argsort(-known, axis=None, kind="stable")[:_NAMED]]
        named = [f"{queries[at[0]]} to {keys[at[1]]} {number(float(known[at]))}" for at in places if known[at] > 0]
        said[name] = ", ".join(named) or "nothing"
    return _panels(said)


def lines(patterns: Mapping[str, np.ndarray], words: Sequence[str], query: int | None = None) -> str:
    """Of lines between words: from what to what each head's are widest, or only from one word."""
    rows = slice(None) if query is None else slice(query, query + 1)
    shown = {name: np.where(each[rows] >= FAINTEST, each[rows], 0) for name, each in patterns.items()}
    return cells(shown, words if query is None else [f"from {words[query]}"], words)


def label_map(labels: pd.DataFrame, n_heads: int) -> str:
    """Of a map of what heads may be called: how many have a label or carry an answer, and by label which."""
    what = "a label" if "gain" in labels else "a label or carry an answer to minimal pairs"
    counts, said = labels["label"].value_counts(), {}
    for name in counts.index[:_PANELS]:
        rows = labels.loc[labels["label"] == name].to_dict("records")
        named = [head_name(row["layer"], row["head"]) for row in rows[: 2 * _NAMED]]
        more = f" and {number(len(rows) - len(named))} more" if len(rows) > len(named) else ""
        said[str(name)] = ", ".join(named) + more
    rest = f" And {counted(len(counts) - _PANELS, 'rarer label')}." if len(counts) > _PANELS else ""
    heads = labels.drop_duplicates(["layer", "head"])
    return f"{number(len(heads))} of {counted(n_heads, 'head')} have {what}. {_panels(said)}{rest}"


def agreement(evidence: pd.DataFrame, labels: pd.DataFrame) -> str:
    """Of gains against effects: of each label the heads that have it with the largest effects."""
    rows = labels.dropna(subset=["effect"])
    names = map(str, rows["label"].value_counts().index[:9])
    largest = _panels({name: _most(rows.loc[rows["label"] == name], "effect") for name in names})
    known = evidence.dropna(subset=["gain", "effect"]).drop_duplicates(HEAD)
    said = f"Gain across, effect in nats up, of {counted(len(known), 'head')}."
    return f"{said} {f'Largest effects of heads with a label: {largest}' if len(rows) else 'None has a label.'}"


def shares(parts: Mapping[str, pd.DataFrame]) -> str:
    """Of bars made of groups of rules, layer x head: what each has on average, and the head that it has most of."""
    said = {}
    for group, part in parts.items():
        values = part.to_numpy(dtype=float)
        if np.isfinite(values).any():
            row, column = np.unravel_index(np.nanargmax(values), values.shape)
            where = head_name(int(part.index.to_numpy()[row]), int(part.columns.to_numpy()[column]))
            said[group] = f"{number(float(np.nanmean(values)))} on average, most in {where}"
    return _panels(said) if said else "No head's attention is told apart from uniform."


def _most(rows: pd.DataFrame, column: str) -> str:
    """The heads with the largest numbers, and how many dots there are where the rows tell."""
    known, several = rows.dropna(subset=[column]).nlargest(_NAMED, column).to_dict("records"), kinds(rows) > 1
    if not known:
        return "undefined"
    said = f"most in {', '.join(f'{Place.of(row).named(several=several)} {number(row[column])}' for row in known)}"
    if "shows" in rows:
        marked = int(rows["shows"].to_numpy().sum())
        said += f" ({number(marked) if marked else 'none'} of {counted(len(rows), 'head')} marked)"
    return said


def _panels(said: Mapping[str, str]) -> str:
    return "; ".join(f"{' '.join(measure_name(name).split())}: {text}" for name, text in said.items()) + "."

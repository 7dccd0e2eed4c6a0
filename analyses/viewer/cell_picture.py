"""How much does each cell of a sweep carry? A map as a plain SVG picture, each cell's number told where one points."""

from html import escape

import numpy as np

from interp import InputError, Sweep
from interp.showing import signed

_CELL, _LEFT, _TOP = 34, 40, 24  # pixels
_LITTLE = 0.05  # of the largest effect: what is less has no edge
_SIGNS = 6  # of a token over its column


def cell_picture(sweep: Sweep) -> str:
    """Layers upwards and heads or positions to the right: the darker a cell, the larger its mean effect over prompts.

    What moves the metric the other way, and not by little, has a dashed edge. It is of the sweep's first metric.

    Raises:
        InputError: its cells do not lie on a layer and one other axis.
    """
    if len(sweep.axes) != 2 or sweep.axes[0] != "layer":
        raise InputError(
            f"a map has a layer and a head or position; this sweep lies on {', '.join(sweep.axes)}: .figure()"
        )
    metric = next(iter(sweep.values))
    effect = sweep.effect(metric).double().nanmean(-1).cpu().numpy()
    largest = float(np.nanmax(np.abs(effect), initial=0.0)) or 1.0
    n_layers, n_columns = effect.shape
    cells = [
        _cell(sweep, metric, layer, column, float(effect[layer, column]), largest, n_layers)
        for layer in range(n_layers)
        for column in range(n_columns)
    ]
    rows = [
        f'<text x="{_LEFT - 6}" y="{_y(layer, n_layers) + 21}" text-anchor="end">L{layer}</text>'
        for layer in range(n_layers)
    ]
    below = _TOP + n_layers * _CELL + 16
    middles = [_LEFT + at * _CELL + _CELL // 2 for at in range(n_columns)]
    columns = [
        f'<text x="{middle}" y="{below}" text-anchor="middle">{escape(_column(sweep, at))}</text>'
        for at, middle in enumerate(middles)
    ]
    said = f"{metric}, {sweep.direction}: the darkest cell has {signed(largest)} either way"
    width, height = max(_LEFT + n_columns * _CELL + 8, 420), below + 10
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(said)}" font-family="sans-serif" font-size="12" fill="currentColor">'
        f'<text x="{_LEFT}" y="14">{escape(said)}</text>{"".join(cells)}{"".join(rows)}{"".join(columns)}</svg>'
    )


def _cell(sweep: Sweep, metric: str, layer: int, column: int, effect: float, largest: float, n_layers: int) -> str:
    place = f"L{layer}.{_column(sweep, column)}"
    if np.isnan(effect):
        return ""
    dashed = ' stroke-dasharray="3 2"' if effect < -_LITTLE * largest else ""
    shade, side = abs(effect) / largest * 0.75, _CELL - 2
    return (
        f'<rect x="{_LEFT + column * _CELL + 1}" y="{_y(layer, n_layers) + 1}" width="{side}" height="{side}" '
        f'fill-opacity="{shade:.2f}" stroke="currentColor" stroke-opacity="{0.9 if dashed else 0.25}"{dashed}>'
        f"<title>{escape(place)}: {signed(effect)} {escape(metric)}</title></rect>"
    )


def _y(layer: int, n_layers: int) -> int:
    return _TOP + (n_layers - 1 - layer) * _CELL


def _column(sweep: Sweep, at: int) -> str:
    """A head's number, or a position's name or token."""
    axis = sweep.axes[1]
    if axis == "head":
        return f"H{at}"
    tokens = sweep.labels.get("token", ())
    name = sweep.positions[at] if at < len(sweep.positions) else tokens[at] if at < len(tokens) else None
    return str(at) if name is None else name.strip()[:_SIGNS]

"""What do figures of several experiments share? Maps of cells, lines by layer, values with their intervals."""

from collections.abc import Collection, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analyses.figures.style import heat_map, legend, signed_scale

_SOURCES = {"articles": "the articles’ prompts", "stories": "prompts in the stories’ words"}
Columns = tuple[str, str, str]  # of a value and of its interval's bounds


def under(title: str, source: str, sources: Collection[str]) -> str:
    """A panel's title, with where its prompts come from if the figure shows several sources."""
    return f"{title}\n{_SOURCES[source]}" if len(sources) > 1 else title


def reaching(values: np.ndarray, *, at_least: float = 0.1) -> Normalize:
    """Colours centred on 0 that reach as far as the values."""
    return signed_scale(float(np.nanmax(np.abs(values), initial=0.0)), at_least=at_least)


def layer_map(ax: Axes, grid: pd.DataFrame, scale: Normalize, labels: Sequence[str]) -> None:
    """A heat map with layer 0 at the bottom."""
    heat_map(ax, grid, scale, xticklabels=labels, yticklabels=-(-len(grid) // 12))
    ax.invert_yaxis()
    ax.tick_params("y", rotation=0)


def ranges(ax: Axes, rows: pd.DataFrame, columns: Columns, y: np.ndarray, colour: str, marker: str, label: str) -> None:
    """A mark a row, and its interval."""
    value, low, high = columns
    ax.hlines(y, rows[low], rows[high], colors=colour, lw=1.5)
    ax.scatter(rows[value], y, color=colour, marker=marker, s=24, label=label)


def layer_line(ax: Axes, rows: pd.DataFrame, columns: Columns, colour: str, label: str) -> None:
    """A value by layer, with the band of its interval."""
    value, low, high = columns
    rows = rows.sort_values("layer")
    ax.plot(rows["layer"], rows[value], color=colour, marker="o", ms=4, label=label)
    ax.fill_between(rows["layer"], rows[low], rows[high], color=colour, alpha=0.2, lw=0)


def label_layers(figure: Figure, axes: Sequence[Axes], label: str, columns: int) -> None:
    """What the axes of lines by layer are, and their legend."""
    for ax in axes:
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set(xlabel="after layer (0: as embedded)")
    for ax in axes[::columns]:
        ax.set_ylabel(label)
    legend(figure, axes)

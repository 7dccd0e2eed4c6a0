"""How does a head's attention look in a square as small as a thumbnail?"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Real
from numpy.typing import NDArray

SIDE = 24  # cells of a picture each way, at most
SHADES = [(0.03, 0.1), (0.1, 0.2), (0.25, 0.4), (0.5, 0.65), (0.75, 1.0)]  # the least share, and its opacity


class Picture(NamedTuple):
    """Cells of a pattern as SVG paths of unit squares, one path for each opacity."""

    width: int
    height: int
    paths: list[tuple[float, str]]  # opacity, and the filled cells


def averaged(pattern: Real[NDArray[Any], "*head query key"]) -> Float[NDArray[Any], "*head row column"]:
    """Average a pattern over at most `SIDE` groups of neighbouring queries, and sum it over as many groups of keys, so
    that rows still add up to one."""
    rows, columns = (np.unique(np.linspace(0, n, SIDE, endpoint=False).astype(int)) for n in pattern.shape[-2:])
    sums = np.add.reduceat(np.add.reduceat(pattern, columns, -1, float), rows, -2)
    return sums / np.diff(rows, append=pattern.shape[-2])[:, None]


def picture(pattern: Float[NDArray[np.floating], "query key"]) -> Picture:
    """One head's pattern; cells of less than 3% stay empty."""
    shades = np.digitize(averaged(pattern), [least for least, _ in SHADES])
    paths = []
    for shade, opacity in enumerate((opaque for _, opaque in SHADES), 1):
        ends = np.argwhere(np.diff(shades == shade, prepend=False, append=False)).reshape(-1, 2, 2).tolist()
        if ends:  # start and end (row, column) of each run of cells
            paths.append((opacity, "".join(f"M{x} {y}h{over - x}v1H{x}z" for (y, x), (_, over) in ends)))
    return Picture(shades.shape[1], shades.shape[0], paths)

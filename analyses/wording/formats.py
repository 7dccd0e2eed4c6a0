"""How do numbers stand in a sentence or a table? As text, with a dash for undefined ones."""

import math
from typing import Any

import numpy as np


def number(value: Any, *, sign: bool = False) -> str:
    """Whole numbers with thousands apart, others to three decimals."""
    if value is None or not math.isfinite(value):
        return "–"
    if isinstance(value, (int, np.integer)):
        return f"{int(value):,}".replace(",", "\u202f").replace("-", "−")
    if round(float(value), 3) == 0:
        return "0.000"  # zero has no sign
    return f"{float(value):{'+' if sign else ''}.3f}".replace("-", "−")


def whole(value: Any) -> str:
    """A count, even from a column that holds fractions because some are missing."""
    return number(value if value is None or not math.isfinite(value) else int(value))


def interval(low: Any, high: Any, *, sign: bool = False) -> str:
    """Two bounds: `0.1 to 0.3`."""
    bounds = [number(each, sign=sign) for each in (low, high)]
    return "–" if "–" in bounds else " to ".join(bounds)


def counted(count: int, noun: str) -> str:
    """`1 pair`, `2 pairs`."""
    return f"{number(count)} {noun}{'s' if count != 1 else ''}"


def false_discovery_rate(q: float | None) -> str:
    """A q to three decimals, or `< 0.001`."""
    return "< 0.001" if q is not None and q < 0.001 else number(q)


def percent(share: float | None) -> str:
    """A share in whole percent; shares that would round to 0% or 100% become "under 1%" or "over 99%"."""
    if share is None or not math.isfinite(share):
        return "–"
    if 0 < share < 0.005:
        return "under 1%"
    if 0.995 <= share < 1:
        return "over 99%"
    return f"{100 * share:.0f}%".replace("-0%", "0%").replace("-", "−")

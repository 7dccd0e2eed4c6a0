"""How do numbers stand in a sentence or a table? As text, what is undefined as a dash."""

import math
from typing import Any

import numpy as np


def number(value: Any, *, sign: bool = False) -> str:
    """Whole numbers with their thousands apart, others to three digits."""
    if value is None or not math.isfinite(value):
        return "–"
    if isinstance(value, (int, np.integer)):
        return f"{int(value):,}".replace(",", "\u202f").replace("-", "−")
    if round(float(value), 3) == 0:
        return "0.000"  # what rounds to nothing has no sign
    return f"{float(value):{'+' if sign else ''}.3f}".replace("-", "−")


def whole(value: Any) -> str:
    """A count, also one that a column with missing ones holds as a fraction."""
    return number(value if value is None or not math.isfinite(value) else int(value))


def interval(low: Any, high: Any, *, sign: bool = False) -> str:
    """Two bounds."""
    bounds = [number(each, sign=sign) for each in (low, high)]
    return "–" if "–" in bounds else " to ".join(bounds)


def counted(count: int, noun: str) -> str:
    """`1 pair`, `2 pairs`."""
    return f"{number(count)} {noun}{'s' if count != 1 else ''}"


def false_discovery_rate(q: float | None) -> str:
    """A q."""
    return "< 0.001" if q is not None and q < 0.001 else number(q)


def percent(share: float | None) -> str:
    """A share with two digits; of what rounds to nothing or all and is neither, that it is more or less."""
    if share is None or not math.isfinite(share):
        return "–"
    if 0 < share < 0.005:
        return "under 1%"
    if 0.995 <= share < 1:
        return "over 99%"
    return f"{100 * share:.0f}%".replace("-0%", "0%").replace("-", "−")

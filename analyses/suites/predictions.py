"""What does a SyntaxGym prediction say? It is a formula over regions' surprisals (Gauthier et al. 2020).

    (5;%match%) < (5;%mismatch%)                      region 5 is less surprising in condition `match`
    [(6;%a%) - (6;%b%)] > (7;%a%) + 0.5               sums, differences and numbers, in bits
    [(2;%a%) > (2;%b%)] & [(6;%c%) = (6;%d%)]         and; `|` is or and binds less tightly; `=` is nearly equal

`(*;%a%)` is the whole sentence. Nearly equal: within a thousandth of a bit plus a hundred-thousandth of the value.
"""

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np

from interp.errors import InputError

LONGEST = 2_000  # characters
ALL_REGIONS = "*"
_REGION = re.compile(r"\(\s*(\d{1,6}|\*)\s*;\s*%([^%]+)%\s*\)")
_PYTHON = {"[": "(", "]": ")", "&": " and ", "|": " or ", "=": "=="}
_EXPECTED = "expected a formula as (5;%match%) < (5;%mismatch%)"


class Region(NamedTuple):
    """A region (its number, or `*`) in a condition."""

    number: str
    condition: str

    def __str__(self) -> str:
        return f"({self.number};%{self.condition}%)"


@dataclass(frozen=True)
class Prediction:
    """A formula, the regions that it reads, and its syntax tree, in which they are called R0, R1, ..."""

    formula: str
    regions: tuple[Region, ...]
    tree: ast.expr

    @staticmethod
    def parse(formula: str) -> "Prediction":
        """Parse a formula; one that cannot be parsed is an `InputError`."""
        regions = tuple(dict.fromkeys(Region(number, name.strip()) for number, name in _REGION.findall(formula)))
        plain = _REGION.sub(lambda match: f" R{regions.index(Region(match[1], match[2].strip()))} ", formula)
        wrong = InputError(f"{_EXPECTED}, in at most {LONGEST:,} characters; got {formula!r:.120}")
        other = re.search(r"[^-\s\d.<>=&|()\[\]+]|\d{10}|==", _REGION.sub("", formula))
        if len(formula) > LONGEST or not regions or other:
            raise wrong
        try:
            tree = ast.parse("".join(_PYTHON.get(sign, sign) for sign in plain).strip(), mode="eval").body
            is_claim = _value(tree, [np.zeros(1)] * len(regions)).dtype == bool
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise wrong from None
        if not is_claim:
            raise wrong
        return Prediction(formula, regions, tree)

    @property
    def claims(self) -> "tuple[Prediction, ...]":
        """The parts that `&` joins at the top."""
        if not isinstance(self.tree, ast.BoolOp) or isinstance(self.tree.op, ast.Or):
            return (self,)
        return tuple(
            claim for part in self.tree.values for claim in Prediction(self._written(part), self.regions, part).claims
        )

    def holds(self, surprisals: Mapping[Region, np.ndarray]) -> np.ndarray:
        """For each item 1 if the formula is true, 0 if not, NaN if a region's surprisal (in bits) is NaN."""
        values = [surprisals[region] for region in self.regions]
        return np.where(np.isnan(values).any(0), np.nan, _value(self.tree, values))

    def _written(self, part: ast.expr) -> str:
        text = ast.unparse(part).replace(" and ", " & ").replace(" or ", " | ").replace("==", "=")
        return re.sub(r"R(\d+)", lambda match: str(self.regions[int(match[1])]), text)


_DO: dict[type, Callable[..., Any]] = {
    **{ast.And: np.logical_and, ast.Or: np.logical_or, ast.Lt: np.less, ast.Gt: np.greater},
    **{ast.Eq: partial(np.isclose, rtol=1e-5, atol=1e-3), ast.Add: np.add, ast.Sub: np.subtract, ast.USub: np.negative},
}


def _value(node: ast.AST, values: Sequence[np.ndarray]) -> Any:
    """Evaluate a tree; raise `ValueError` unless it is a claim about numbers, or several joined."""
    match node:
        case ast.Name(name):
            return values[int(name[1:])]
        case ast.Constant(int() | float() as number):
            return np.float64(number)
        case ast.Compare(left, [op], [right]) | ast.BinOp(left, op, right):
            parts = [left, right]
        case ast.UnaryOp(op, operand):
            parts = [operand]
        case ast.BoolOp(op, parts):
            pass
        case _:
            raise ValueError(node)
    parts, do = [_value(part, values) for part in parts], _DO.get(type(op))
    if do is None or any((part.dtype == bool) != isinstance(node, ast.BoolOp) for part in parts):
        raise ValueError(node)
    return reduce(do, parts) if len(parts) > 1 else do(*parts)

"""What does a SyntaxGym prediction say? Formulas over regions' surprisals (Gauthier et al. 2020), read as written.

    (5;%match%) < (5;%mismatch%)                      region 5 is less surprising in condition `match`
    [(6;%a%) - (6;%b%)] > (7;%a%) + 0.5               sums, differences and numbers, in bits
    [(2;%a%) > (2;%b%)] & [(6;%c%) = (6;%d%)]         and; `|` is or, and joins less closely; `=` is nearly equal

`(*;%a%)` is the whole sentence. Nearly equal is within a thousandth of a bit and a hundred-thousandth of the value.
"""

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from interp.errors import InputError

LONGEST = 2_000  # characters
ALL_REGIONS = "*"
_REGION = re.compile(r"\(\s*(\d{1,6}|\*)\s*;\s*%([^%]+)%\s*\)")
_PYTHON = {"[": "(", "]": ")", "&": " and ", "|": " or ", "=": "=="}
_EXPECTED = "expected a formula as (5;%match%) < (5;%mismatch%)"


class Region(NamedTuple):
    """A region, by its number or `*`, in a condition."""

    number: str
    condition: str

    def __str__(self) -> str:
        return f"({self.number};%{self.condition}%)"


@dataclass(frozen=True)
class Prediction:
    """A formula as written, every region that it reads, and its tree, in which these are called R0, R1, ..."""

    formula: str
    regions: tuple[Region, ...]
    tree: ast.expr

    @staticmethod
    def parse(formula: str) -> "Prediction":
        """The formula, or an `InputError` that says what was expected."""
        regions = tuple(dict.fromkeys(Region(number, name.strip()) for number, name in _REGION.findall(formula)))
        plain = _REGION.sub(lambda match: f" R{regions.index(Region(match[1], match[2].strip()))} ", formula)
        wrong = InputError(f"{_EXPECTED}, in at most {LONGEST:,} characters; got {formula!r:.120}")
        rest = _REGION.sub("", formula)
        if len(formula) > LONGEST or not regions or re.search(r"[^-\s\d.<>=&|()\[\]+]|\d{10}|==", rest):
            raise wrong
        try:
            tree = ast.parse("".join(_PYTHON.get(sign, sign) for sign in plain).strip(), mode="eval").body
            is_claim = _is_claim(tree)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise wrong from None
        if not is_claim:
            raise wrong
        return Prediction(formula, regions, tree)

    @property
    def claims(self) -> "tuple[Prediction, ...]":
        """What it says, apart: the parts that `&` joins at its top."""
        if not isinstance(self.tree, ast.BoolOp) or isinstance(self.tree.op, ast.Or):
            return (self,)
        return tuple(
            claim for part in self.tree.values for claim in Prediction(self._written(part), self.regions, part).claims
        )

    def holds(self, surprisals: Mapping[Region, np.ndarray]) -> np.ndarray:
        """1 where it is true of an item, 0 where not, NaN where a region that it reads is; surprisals are in bits."""
        values = [surprisals[region] for region in self.regions]
        return np.where(np.isnan(values).any(0), np.nan, _value(self.tree, values))

    def _written(self, part: ast.expr) -> str:
        text = ast.unparse(part).replace(" and ", " & ").replace(" or ", " | ").replace("==", "=")
        return re.sub(r"R(\d+)", lambda match: str(self.regions[int(match[1])]), text)


def _is_claim(node: ast.expr) -> bool:
    """Whether a tree is claims, joined or not, about numbers; nothing else may be in it."""
    if isinstance(node, ast.BoolOp):
        return all(map(_is_claim, node.values))
    if not isinstance(node, ast.Compare) or len(node.ops) > 1 or not isinstance(node.ops[0], ast.Lt | ast.Gt | ast.Eq):
        return False
    return _is_number(node.left) and _is_number(node.comparators[0])


def _is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Add | ast.Sub) and _is_number(node.left) and _is_number(node.right)
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.USub) and _is_number(node.operand)
    return isinstance(node, ast.Name) or (isinstance(node, ast.Constant) and isinstance(node.value, int | float))


def _nearly_equal(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return np.isclose(left, right, rtol=1e-5, atol=1e-3)


_DO: dict[type, Callable[..., Any]] = {
    **{ast.And: np.logical_and, ast.Or: np.logical_or, ast.Lt: np.less, ast.Gt: np.greater, ast.Eq: _nearly_equal},
    **{ast.Add: np.add, ast.Sub: np.subtract, ast.USub: np.negative},
}


def _value(node: ast.expr, values: list[np.ndarray]) -> Any:
    match node:
        case ast.BoolOp(op, parts):
            return reduce(_DO[type(op)], [_value(part, values) for part in parts])
        case ast.Compare(left, [op], [right]) | ast.BinOp(left, op, right):
            return _DO[type(op)](_value(left, values), _value(right, values))
        case ast.UnaryOp(op, operand):
            return _DO[type(op)](_value(operand, values))
        case ast.Name(name):
            return values[int(name[1:])]
    return ast.literal_eval(node)

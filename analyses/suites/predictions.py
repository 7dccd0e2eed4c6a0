"""What does a SyntaxGym prediction say? Formulas over regions' surprisals (Gauthier et al. 2020), read as written.

(5;%match%) < (5;%mismatch%)                      region 5 is less surprising in condition `match`
[(6;%a%) - (6;%b%)] > (7;%a%) + 0.5               sums, differences and numbers
[(2;%a%) > (2;%b%)] & [(6;%c%) < (6;%d%)]         and; `|` is or; `=` is equal; `*` all regions
"""

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from interp.errors import InputError

LONGEST, DEEPEST = 2_000, 20  # characters, and brackets in brackets
ALL_REGIONS = "*"
_TOKEN = re.compile(
    r"[(\[]\s*(?P<region>\d{1,6}|\*)\s*;\s*%(?P<condition>[^%]+)%\s*[)\]]|(?P<number>\d+(?:\.\d+)?)|(?P<sign>[-+<>=&|()\[\]])"
)
_LEVELS = "&|", "<>=", "+-"  # of the loosest first
_DO: Mapping[str, Callable[..., np.ndarray]] = {
    **{"&": operator.and_, "|": operator.or_, "<": operator.lt, ">": operator.gt, "=": operator.eq},
    **{"+": operator.add, "-": operator.sub},
}
_EXPECTED = "expected a formula as (5;%match%) < (5;%mismatch%)"


class Region(NamedTuple):
    """A region, by its number or `*`, in a condition."""

    number: str
    condition: str


class Operation(NamedTuple):
    """Two parts of a formula, and what is between them."""

    sign: str
    left: "Node"
    right: "Node"


Node = Region | Operation | float


@dataclass(frozen=True)
class Prediction:
    """A formula as written, and as a tree."""

    formula: str
    tree: Node

    @staticmethod
    def parse(formula: str) -> "Prediction":
        """The formula, or an `InputError` that says what is wrong with it."""
        if len(formula) > LONGEST:
            raise InputError(f"{_EXPECTED}, of at most {LONGEST:,} characters; got {len(formula):,}")
        parser = _Parser(formula)
        tree = parser.level(0, 0)
        if parser.token is not None:
            raise parser.error()
        if not _is_claim(tree):
            raise InputError(f"{_EXPECTED}, got {formula!r:.80}, which compares nothing")
        return Prediction(formula, tree)

    @property
    def regions(self) -> tuple[Region, ...]:
        """Every region it reads, in order."""
        return tuple(dict.fromkeys(node for node in _walk(self.tree) if isinstance(node, Region)))

    @property
    def claims(self) -> tuple["Prediction", ...]:
        """What it says, apart: the parts that `&` joins at its top."""
        nodes = [self.tree]
        while any(joined := [isinstance(node, Operation) and node.sign == "&" for node in nodes]):
            at = joined.index(True)
            nodes[at : at + 1] = nodes[at][1:]
        return tuple(Prediction(_written(node), node) for node in nodes)

    def holds(self, surprisals: Mapping[Region, np.ndarray]) -> np.ndarray:
        """Whether it is true of each item; NaN where a region it reads is."""
        values = _value(self.tree, surprisals)
        missing = np.any([np.isnan(surprisals[region]) for region in self.regions], axis=0)
        return np.where(missing, np.nan, values)


class _Parser:
    """Reads a formula from left to right; operators of one level join from the left, as in SyntaxGym's own parser."""

    def __init__(self, formula: str):
        self._formula, self._end = formula, 0
        self.token: re.Match[str] | None = None
        self.advance()

    def error(self) -> InputError:
        rest = self._formula[self.token.start() if self.token else self._end :].strip()
        return InputError(f"{_EXPECTED}, got {rest[:40] or 'its end'!r} in {self._formula!r:.80}")

    def advance(self) -> None:
        while self._formula[self._end : self._end + 1].isspace():
            self._end += 1
        self.token = _TOKEN.match(self._formula, self._end)
        if self.token is None and self._end < len(self._formula):
            raise self.error()
        self._end = self.token.end() if self.token else self._end

    def level(self, level: int, depth: int) -> Node:
        if level == len(_LEVELS):
            return self.atom(depth)
        left = self.level(level + 1, depth)
        while self.token is not None and (sign := self.token["sign"]) and sign in _LEVELS[level]:
            wrong = self.error()
            self.advance()
            right = self.level(level + 1, depth)
            if {_is_claim(left), _is_claim(right)} != {level == 0}:
                raise wrong  # a sum of claims, or `&` between numbers
            left = Operation(sign, left, right)
        return left

    def atom(self, depth: int) -> Node:
        token, wrong = self.token, self.error()
        if token is None:
            raise wrong
        self.advance()
        if token["region"]:
            return Region(token["region"], token["condition"].strip())
        if token["number"]:
            return float(token["number"])
        if token["sign"] not in "([" or depth == DEEPEST:
            raise wrong
        inner, closing = self.level(0, depth + 1), self.token
        if closing is None or closing["sign"] != {"(": ")", "[": "]"}[token["sign"]]:
            raise self.error()
        self.advance()
        return inner


def _is_claim(node: Node) -> bool:
    return isinstance(node, Operation) and node.sign not in _LEVELS[-1]


def _walk(node: Node) -> Iterator[Node]:
    yield node
    if isinstance(node, Operation):
        yield from _walk(node.left)
        yield from _walk(node.right)


def _value(node: Node, surprisals: Mapping[Region, np.ndarray]) -> np.ndarray | float:
    if isinstance(node, Operation):
        return _DO[node.sign](_value(node.left, surprisals), _value(node.right, surprisals))
    return surprisals[node] if isinstance(node, Region) else node


def _written(node: Node) -> str:
    if isinstance(node, Region):
        return f"({node.number};%{node.condition}%)"
    if isinstance(node, Operation):
        parts = (f"[{_written(each)}]" if _is_claim(each) else _written(each) for each in (node.left, node.right))
        return f" {node.sign} ".join(parts)
    return f"{node:g}"

"""What does a function of the user's do? Its source, from which a changed corpus has its name and its hash."""

import ast
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from interp.errors import InputError

_LAMBDA = "<lambda>"


class Described(NamedTuple):
    """A function, told from others."""

    short: str  # for a reader: its name, or a lambda's own text
    whole: str  # for a hash: its qualified name and source, without comments and layout


def described(function: Callable[..., Any], name: str | None = None) -> Described:
    """What a function does, as far as its own source says; `name` says it instead, where it is given.

    Raises:
        InputError: without a name: it is no plain function, its source is nowhere to be read or shares its line with
            another lambda's, or it reads values of the function around it, which its source does not show.
    """
    if name is not None:
        return Described(name, name)
    code = getattr(function, "__code__", None)
    if code is None or hasattr(function, "__self__"):
        raise InputError(f"{function!r} is no plain function, whose source tells it from others: give name=...")
    if code.co_freevars:
        outside = ", ".join(code.co_freevars)
        raise InputError(f"{function.__qualname__} reads {outside} of the function around it: give name=...")
    try:
        lines, _ = inspect.findsource(code)
        tree = ast.parse("".join(lines))
    except (OSError, SyntaxError) as error:
        raise InputError(f"{function.__qualname__} has no source to be read ({error}): give name=...") from error
    found = [node for node in ast.walk(tree) if _is(node, code.co_name, code.co_firstlineno)]
    if len(found) != 1:
        raise InputError(f"{len(found)} functions {code.co_name} begin in line {code.co_firstlineno}: give name=...")
    source = ast.unparse(found[0])
    return Described(source if code.co_name == _LAMBDA else code.co_name, f"{function.__qualname__}\n{source}")


def _is(node: ast.AST, name: str, line: int) -> bool:
    if isinstance(node, ast.Lambda):
        return name == _LAMBDA and node.lineno == line
    if isinstance(node, ast.FunctionDef):
        return node.name == name and min(each.lineno for each in (node, *node.decorator_list)) == line
    return False

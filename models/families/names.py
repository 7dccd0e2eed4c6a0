"""What does each family call its weights and settings? Reads `names.toml`, whose head explains the entries."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_TABLES = tomllib.loads(Path(__file__).with_name("names.toml").read_text("utf-8"))
BOOKKEEPING = frozenset(_TABLES["bookkeeping"].split())
Names = tuple[tuple[str, ...], str]  # the matrices that are stacked, and their form


def table(family: str) -> dict[str, Any]:
    """The entries of a family and of its parent; `weights` has `Names` by our parameter or module."""
    entries = _TABLES[family]
    parent = table(entries["like"]) if "like" in entries else {"weights": {}}
    weights = parent["weights"] | dict(_weights(entries.get("weights", {})))
    return {
        **parent,
        **entries,
        "weights": {ours: names for ours, names in weights.items() if names[0] != ("",)},
        "only": entries.get("only", {}),
        "harmless": frozenset(entries.get("harmless", "").split()),
        "zero": frozenset(entries.get("zero", parent.get("zero", ()))),
    }


def _weights(entries: Mapping[str, Any]) -> Iterator[tuple[str, Names]]:
    for ours, entry in entries.items():
        form, theirs = next(iter(entry.items())) if isinstance(entry, Mapping) else ("rows", entry)
        for stack in ("encoder", "decoder") if ours.startswith("stack.") else ("stack",):
            names = _stacked(theirs.replace("{stack}", stack))
            yield _parameter(ours.replace("stack", stack, 1)), (names, form)


def _parameter(short: str) -> str:
    return short if short.startswith("output") else f"stacks.{short.replace('.*.', '.blocks.*.', 1)}"


def _stacked(theirs: str) -> tuple[str, ...]:
    """The names that `a.{b,c}` stands for."""
    start, parts, end = re.fullmatch(r"([^{]*)\{?([^}]*)\}?(.*)", theirs).groups()  # pyright: ignore
    return tuple(f"{start}{part}{end}" for part in parts.split(","))

"""How does somebody go on from a run? With commands about what it was run on and what it shows first."""

import re
import shlex
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from analyses.cli import command_lines
from analyses.runs import RunFolder
from analyses.wording.head_names import Place

_TEXTS = "clean", "source", "target"  # columns of a pair
_HEAD = re.compile(r"\b(\w+\.)?L\d+\.H\d+\b")


def next_commands(name: str, model: str | None, run: RunFolder, sentences: Iterable[str]) -> list[str]:
    """Up to two commands to follow the command `name`, whose --model was `model` (None: it has none)."""
    folder, with_model = str(run.folder), ["--model", str(model)] if model not in {None, "default"} else []
    width = ["--width", "6.9"] if name == "compare" else []
    commands = [["figures", folder, *width]] if any(file.startswith("figures/") for file in run.facts["files"]) else []
    head = _HEAD.search(" ".join([run.facts.get("first_head") or "", *sentences]))
    if head and "heads" in run.tables:
        commands = [["inspect", folder, head[0]], *([["card", folder, head[0]]] if run.facts.get("first_head") else [])]
    elif name in {"patch", "circuit"}:
        pair, strongest = run.table("pairs").to_dict("records")[0], _strongest(run)
        view = _view(pair)
        if view:
            view = [*view, *with_model, *(["--head", strongest] if strongest else [])]
        if name == "circuit":
            again = _patch(pair, with_model)
        elif not run.facts["by_position"]:
            again = [*_without_out(shlex.split(run.facts["command"])[1:]), "--by-position"]
        else:
            again = ["inspect", folder, strongest] if strongest else []
        commands = [command for command in (view, again) if command] or commands
    elif model:
        commands.append(["view", "A sentence of your own.", *with_model])
    lines = [command_lines(["interp", *command], 6) for command in commands]
    return [f"{'      ' if number else 'next: '}{line}" for number, line in enumerate(lines)]


def _strongest(run: RunFolder) -> str | None:
    """The head with the largest effect in a patching run; None if no heads were patched."""
    cells: Any = run.table("cells") if "cells" in run.tables else pd.DataFrame()
    cells = cells.dropna(subset=["head"]) if "head" in cells else cells[:0]
    if cells.empty:
        return None
    first = cells.loc[cells["metric"] == cells["metric"].iloc[0]]
    place = Place.from_row(first.loc[first["effect"].abs().idxmax()].to_dict())
    return place.named(prefix=len(run.facts["model"]["stacks"]) > 1)


def _view(pair: dict[Any, Any]) -> list[str]:
    """A command to view the clean prompt, and an encoder-decoder's other text; empty if prompts are token ids."""
    clean, source, target = (text if isinstance(text := pair.get(name), str) else "" for name in _TEXTS)
    if not clean:
        return []
    return ["view", source, "--target", clean] if source else ["view", clean, *(["--target", target] if target else [])]


def _patch(pair: dict[Any, Any], with_model: Sequence[str]) -> list[str]:
    """A command to patch a circuit's first pair."""
    texts = {name: str(pair.get(name, "")) for name in ("clean", "corrupt", "answer", "wrong")}
    if not isinstance(pair.get("clean"), str) or not all(texts.values()):
        return []
    are_words = texts["answer"].startswith(" ") and texts["wrong"].startswith(" ")
    options = [word for name, text in texts.items() for word in (f"--{name}", text.strip() if are_words else text)]
    return ["patch", *options, *([] if are_words else ["--as-typed"]), *with_model, "--by-position"]


def _without_out(words: Sequence[str]) -> list[str]:
    """A command's words without its output directory and --whole-prompts."""
    kept = [word for word in words if not word.startswith("--out=") and word != "--whole-prompts"]
    place = kept.index("--out") if "--out" in kept else len(kept)
    return [*kept[:place], *kept[place + 2 :]]

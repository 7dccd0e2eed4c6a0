"""Directories with a `transformers` model, and changes to their files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

Change = Callable[[Path], object]  # of a directory
Tensors = dict[str, torch.Tensor]


def change_config(directory: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    file = directory / "config.json"
    raw = json.loads(file.read_text())
    change(raw)
    file.write_text(json.dumps(raw))
    return directory


def change_tensors(directory: Path, change: Callable[[Tensors], Tensors]) -> Path:
    file = directory / "model.safetensors"
    save_file(change(load_file(file)), file, {"format": "pt"})
    return directory


def fields(**changed: object) -> Change:
    """Change fields of config.json; remove those that are None."""
    gone = {name for name in changed if changed[name] is None}
    return lambda directory: change_config(
        directory, lambda raw: [raw.update(changed), *(raw.pop(name) for name in gone)]
    )

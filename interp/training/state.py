"""What a run needs to go on as if it had never stopped, in one file that is whole or not there.

The file is written beside and renamed, so a run that is killed at any moment leaves the last good state behind it.
Everything random is drawn from the seed and the step, so weights, moments and the step are the whole of it.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from interp.errors import InputError

FILE = "state.safetensors"


@dataclass(frozen=True)
class State:
    """Tensors by name (`weights/NAME`, `moments/NAME/KEY`), and facts that fit into JSON."""

    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]


def write(path: Path, state: State) -> None:
    """Put `state` at `path` in place of the one before.

    Raises:
        InputError: the disk is full or cannot be written; the state before stays.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.tensors.items()}
        save_file(tensors, beside, {"facts": json.dumps(dict(state.facts))})
        with beside.open("rb") as file:
            os.fsync(file.fileno())  # what is renamed is on the disk
        os.replace(beside, path)
    except (OSError, SafetensorError) as error:
        kept = f"the last good state is {path}" if path.exists() else "there is no earlier state"
        raise InputError(f"cannot write {path} ({error}); {kept}") from error
    finally:
        beside.unlink(missing_ok=True)


def read(path: Path) -> State:
    """The state at `path`.

    Raises:
        InputError: there is none, or it is damaged.
    """
    if not path.is_file():
        raise InputError(f"nothing to resume: there is no {path}; start without --resume")
    try:
        with safe_open(path, framework="pt") as file:
            facts = json.loads((file.metadata() or {})["facts"])
            return State({name: file.get_tensor(name) for name in file.keys()}, facts)  # noqa: SIM118 (no mapping)
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise InputError(f"{path} is damaged ({error}): it cannot be resumed from") from error


def gather(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Weights and the optimizer's moments by parameter name."""
    names = {id(weight): name for name, weight in model.named_parameters()}
    tensors = {f"weights/{name}": weight for name, weight in model.named_parameters()}
    for group in optimizer.param_groups:
        for weight in group["params"]:
            for key, moment in optimizer.state[weight].items():
                tensors[f"moments/{names[id(weight)]}/{key}"] = moment
    return tensors


def restore(model: torch.nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put back what `gather` took.

    Raises:
        InputError: the state is of another model.
    """
    parameters = dict(model.named_parameters())
    stored = {name.removeprefix("weights/"): value for name, value in tensors.items() if name.startswith("weights/")}
    if differing := [name for name in parameters if name not in stored or stored[name].shape != parameters[name].shape]:
        was = tuple(stored[differing[0]].shape) if differing[0] in stored else "absent"
        raise InputError(
            f"the state is of another architecture: {differing[0]} is {tuple(parameters[differing[0]].shape)} here and "
            f"{was} there; resume with the configuration that it was begun with"
        )
    with torch.no_grad():
        for name, weight in parameters.items():
            weight.copy_(stored[name])
    for name, weight in parameters.items():
        start = f"moments/{name}/"
        if found := {key.removeprefix(start): value for key, value in tensors.items() if key.startswith(start)}:
            optimizer.state[weight] = {
                key: value.clone() if value.ndim == 0 else torch.empty_like(weight).copy_(value)
                for key, value in found.items()
            }

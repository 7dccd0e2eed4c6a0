"""What a run needs to go on as if it had never stopped, in one file that is whole or not there.

The file is written beside and renamed, so a run that is killed at any moment leaves the last good state behind it.
Everything random is drawn from the seed and the step, so weights, moments and the step are the whole of it.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from interp.errors import InputError
from interp.training.whole_files import beside, replacing

FILE = "state.safetensors"


@dataclass(frozen=True)
class State:
    """Tensors by name (`weights/NAME`, `moments/NAME/KEY`), and facts that fit into JSON."""

    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]


def write(path: Path, state: State) -> None:
    """Put `state` at `path` in place of the one before.

    Raises:
        OSError, SafetensorError: the disk is full or cannot be written; the state before stays.
    """
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.tensors.items()}
    # safetensors writes to a file beside, of a name of its own: in a directory that is swept, a kill leaves none behind
    with replacing(path) as part, beside(path, "tensors") as folder:
        folder.mkdir(exist_ok=True)
        save_file(tensors, folder / path.name, {"facts": json.dumps(dict(state.facts))})
        os.replace(folder / path.name, part)


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


def gather(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    whole: Callable[[Tensor], Tensor] = lambda tensor: tensor,
) -> dict[str, Tensor]:
    """Weights and the optimizer's moments by parameter name; `whole` puts together what lies in several processes."""
    names = {id(weight): name for name, weight in model.named_parameters()}
    tensors = {f"weights/{name}": whole(weight.detach()) for name, weight in model.named_parameters()}
    for group in optimizer.param_groups:
        for weight in group["params"]:
            for key, moment in optimizer.state[weight].items():
                tensors[f"moments/{names[id(weight)]}/{key}"] = whole(moment)
    return tensors


def restore(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    tensors: Mapping[str, Tensor],
    shared_as: Callable[[Tensor, Tensor], Tensor] = lambda value, weight: value,
) -> None:
    """Put back what `gather` took; `shared_as` shares a whole tensor out among processes as a weight is.

    Raises:
        InputError: the state is of another model.
    """
    parameters = dict(model.named_parameters())
    stored = {name.removeprefix("weights/"): value for name, value in tensors.items() if name.startswith("weights/")}
    _check_shapes(stored, parameters)
    with torch.no_grad():
        for name, weight in parameters.items():
            weight.copy_(shared_as(stored[name], weight))
    for name, weight in parameters.items():
        start = f"moments/{name}/"
        if found := {key.removeprefix(start): value for key, value in tensors.items() if key.startswith(start)}:
            optimizer.state[weight] = {
                # a count of steps lies where the optimizer would have made it
                key: value.to(weight.device, copy=True)
                if value.ndim == 0
                else torch.empty_like(weight, requires_grad=False).copy_(shared_as(value, weight))
                for key, value in found.items()
            }


def _check_shapes(stored: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> None:
    shapes = {name: tuple(value.shape) for name, value in stored.items()}
    here = {name: tuple(weight.shape) for name, weight in parameters.items()}
    if differing := [name for name in [*here, *shapes] if here.get(name) != shapes.get(name)]:
        name = differing[0]
        raise InputError(
            f"the state is of another architecture: {name} is {here.get(name, 'absent')} here and "
            f"{shapes.get(name, 'absent')} there; resume with the configuration that it was begun with"
        )

"""What a run needs to go on as if it had never stopped, in one file that is whole or not there.

The file is written beside and renamed, so a run that is killed at any moment leaves the last good state behind it.
Everything random is drawn from the seed and the step, so weights, moments and the step are the whole of it.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from interp.errors import InputError
from interp.training.whole_files import replacing

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
    with replacing(path) as part:  # in a draft, where safetensors' own file beside is swept too
        facts = json.dumps(dict(state.facts))
        save_file(tensors, part, {"facts": facts, "sums": json.dumps({**_sums(tensors), "": _sum(facts.encode())})})


def read(path: Path) -> State:
    """The state at `path`.

    Raises:
        InputError: there is none, or it is damaged: what is not as it was written is named, and what is good still.
    """
    if not path.is_file():
        raise InputError(f"nothing to resume: there is no {path}; start without --resume")
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        if "sums" not in about:
            raise ValueError("it has no checksums")
        sums, now = json.loads(about["sums"]), {**_sums(tensors), "": _sum(about["facts"].encode())}
        if differing := [name for name in {**sums, **now} if sums.get(name) != now.get(name)]:
            name = differing[0]
            how = "is missing" if name not in now else "is not as it was written"
            raise ValueError(f"{name or 'its record'} {how}")
        return State(tensors, json.loads(about["facts"]))
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{path} is damaged ({error}): it cannot be resumed from; {_good(path.parent)}") from error


def _sums(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """A hash of each tensor: its numbers, shape and type."""
    return {
        name: _sum(f"{tuple(each.shape)} {each.dtype} ".encode(), each.reshape(-1).view(torch.uint8).numpy())
        for name, each in tensors.items()
    }


def _sum(*parts: Any) -> str:
    found = blake2b(digest_size=16)
    for part in parts:
        found.update(part)
    return found.hexdigest()


def _good(out: Path) -> str:
    """What is good still of a run whose state is not."""
    models = sorted(each.parent for each in (out / "steps").glob("[0-9]*/config.json"))
    if not models:
        return "no model of an earlier step was kept (snapshot_at): start again in another directory"
    return f"the model of an earlier step is {models[-1]}: go on with it in another directory (start in [model])"


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
            if wrong := [key for key, value in found.items() if value.ndim and not _alike(value, weight)]:
                moment = found[wrong[0]]
                raise InputError(
                    f"the state is of another model: {start}{wrong[0]} is {tuple(moment.shape)} of {moment.dtype}, "
                    f"expected {tuple(weight.shape)} of {weight.dtype}: start again in another directory"
                )
            optimizer.state[weight] = {
                # a count of steps lies where the optimizer would have made it
                key: value.to(weight.device, copy=True)
                if value.ndim == 0
                else torch.empty_like(weight, requires_grad=False).copy_(shared_as(value, weight))
                for key, value in found.items()
            }


def _alike(value: Tensor, weight: Tensor) -> bool:
    return value.shape == weight.shape and value.dtype == weight.dtype


def _check_shapes(stored: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> None:
    shapes = {name: tuple(value.shape) for name, value in stored.items()}
    here = {name: tuple(weight.shape) for name, weight in parameters.items()}
    if differing := [name for name in [*here, *shapes] if here.get(name) != shapes.get(name)]:
        name = differing[0]
        raise InputError(
            f"the state is of another architecture: {name} is {here.get(name, 'absent')} here and "
            f"{shapes.get(name, 'absent')} there; resume with the configuration that it was begun with"
        )

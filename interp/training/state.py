"""What a run needs to go on as if it had never stopped, in one file that is whole or not there.

The file is written beside and renamed, so a run that is killed at any moment leaves the last good state behind it.
Everything random is drawn from the seed and the step, so weights, moments and the step are the whole of it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from interp.errors import InputError
from interp.training.parallel import shared_as, whole
from interp.training.whole_files import replacing

FILE = "state.safetensors"


@dataclass(frozen=True)
class State:
    """Tensors by name (`weights/NAME`, `moments/NAME/KEY`), and facts that fit into JSON."""

    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]


def write(path: Path, state: State) -> None:
    """Put `state` at `path` in place of the one before."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.tensors.items()}
    facts = json.dumps(dict(state.facts))
    with replacing(path) as part:  # in a draft, where safetensors' own file beside is swept too
        save_file(tensors, part, {"facts": facts, "sums": json.dumps(_sums(tensors, facts))})


def read(path: Path) -> State:
    """The state at `path`."""
    if not path.is_file():
        raise InputError(f"nothing to resume: there is no {path}; start without --resume")
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        if "sums" not in about:
            raise ValueError("it has no checksums")
        sums, now = json.loads(about["sums"]), _sums(tensors, about["facts"])
        if differing := [name for name in {**sums, **now} if sums.get(name) != now.get(name)]:
            name = differing[0]
            how = "is missing" if name not in now else "is not as it was written"
            raise ValueError(f"{name or 'its record'} {how}")
        return State(tensors, json.loads(about["facts"]))
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{path} is damaged ({error}): it cannot be resumed from; {_good(path.parent)}") from error


def _sums(tensors: Mapping[str, Tensor], facts: str) -> dict[str, str]:
    """A hash of each tensor (its shape, type and numbers), and of the facts by the name ""."""
    sums: dict[str, Any] = {"": blake2b(facts.encode(), digest_size=16)}
    for name, tensor in tensors.items():
        sums[name] = blake2b(f"{tuple(tensor.shape)} {tensor.dtype} ".encode(), digest_size=16)
        sums[name].update(tensor.reshape(-1).view(torch.uint8).numpy())
    return {name: each.hexdigest() for name, each in sums.items()}


def _good(out: Path) -> str:
    """What is still good of a run whose state is damaged."""
    models = sorted(each.parent for each in (out / "steps").glob("[0-9]*/config.json"))
    if not models:
        return "no model of an earlier step was kept (snapshot_at): start again in another directory"
    return f"the model of an earlier step is {models[-1]}: go on with it in another directory (start in [model])"


def gather(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Weights and the optimizer's moments by parameter name, put together from all processes."""
    tensors = {f"weights/{name}": whole(weight.detach()) for name, weight in model.named_parameters()}
    for name, weight in model.named_parameters():
        moments = optimizer.state.get(weight, {})
        tensors |= {f"moments/{name}/{key}": whole(moment) for key, moment in moments.items()}
    return tensors


def restore(model: torch.nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put back what `gather` took, shared out among processes as the weights are."""
    weights = {f"weights/{name}": weight for name, weight in model.named_parameters()}
    expected = {name: tuple(weight.shape) for name, weight in weights.items()}
    there = {name: tuple(value.shape) for name, value in tensors.items() if name.startswith("weights/")}
    for name in {**expected, **there}:
        if expected.get(name) != there.get(name):
            raise InputError(
                f"the state is of another architecture: {name.removeprefix('weights/')} is "
                f"{expected.get(name, 'absent')} here and {there.get(name, 'absent')} there; resume with the "
                "configuration that it was begun with"
            )
    for name, weight in model.named_parameters():
        with torch.no_grad():
            weight.copy_(shared_as(tensors[f"weights/{name}"], weight))
        start = f"moments/{name}/"
        for key, value in tensors.items():
            if key.startswith(start):
                optimizer.state[weight][key.removeprefix(start)] = (
                    torch.empty_like(weight, requires_grad=False).copy_(shared_as(value, weight))
                    if value.ndim
                    else value.to(weight.device, copy=True)  # a count of steps, where the optimizer would have made it
                )

"""What does a run keep? Weights, moments and the step, to go on as if it had never stopped; and its numbers by step."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from interp.errors import InputError
from interp.training.parallel import shared_as, whole
from interp.training.whole_files import check_kind, check_owner, drafting, replacing, sweep
from interp.transformer import Transformer

FILE = "state.safetensors"
METRICS = "metrics.jsonl"  # numbers by step, a line of JSON each
MODEL = "model"  # what its draft is called
OURS = {FILE, METRICS, MODEL, "recipe.toml", "run.json"}  # what is written to `out` by way of a draft
Save = Callable[[Transformer, Path], None]


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
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        if "sums" not in metadata:
            raise ValueError("it has no checksums")
        sums, now = json.loads(metadata["sums"]), _sums(tensors, metadata["facts"])
        if differing := [name for name in {**sums, **now} if sums.get(name) != now.get(name)]:
            raise ValueError(f"{differing[0] or 'its record'} is not as it was written")
        return State(tensors, json.loads(metadata["facts"]))
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{path} is damaged ({error}): go on from a model in steps/ (start in [model])") from error


def _sums(tensors: Mapping[str, Tensor], facts: str) -> dict[str, str]:
    """A hash of each tensor (its shape, type and numbers), and of the facts by the name ""."""
    sums: dict[str, Any] = {"": blake2b(facts.encode(), digest_size=16)}
    for name, tensor in tensors.items():
        sums[name] = blake2b(f"{tuple(tensor.shape)} {tensor.dtype} ".encode(), digest_size=16)
        sums[name].update(tensor.reshape(-1).view(torch.uint8).numpy())
    return {name: each.hexdigest() for name, each in sums.items()}


def gather(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Weights and the optimizer's moments by parameter name, put together from all processes."""
    tensors = {}
    for name, weight in model.named_parameters():
        tensors[f"weights/{name}"] = whole(weight.detach())
        moments = optimizer.state.get(weight, {})
        tensors |= {f"moments/{name}/{key}": whole(moment) for key, moment in moments.items()}
    return tensors


def restore(model: torch.nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put back what `gather` took, shared out among processes as the weights are."""
    expected = {f"weights/{name}": tuple(weight.shape) for name, weight in model.named_parameters()}
    stored = {name: tuple(value.shape) for name, value in tensors.items() if name.startswith("weights/")}
    for name in {**expected, **stored}:
        if (shape := stored.get(name, "absent")) != (needs := expected.get(name, "absent")):
            raise InputError(f"the state is of another architecture: {name} is {shape}, not {needs}")
    for name, weight in model.named_parameters():
        with torch.no_grad():
            weight.copy_(shared_as(tensors[f"weights/{name}"], weight))
        prefix = f"moments/{name}/"
        for key, value in tensors.items():
            if key.startswith(prefix):
                moment = value.to(weight.device, copy=True)  # a count of steps, where the optimizer has it
                if value.ndim:
                    moment = torch.empty_like(weight, requires_grad=False).copy_(shared_as(value, weight))
                optimizer.state[weight][key.removeprefix(prefix)] = moment


class Directory:
    """What is in `out` of a run that is `made_of` these facts; `save` writes a model to a directory."""

    def __init__(self, out: Path, save: Save, made_of: Mapping[str, Any]):
        self.out, self._save, self._made_of = out, save, made_of
        self._state, self._steps = out / FILE, out / "steps"
        check_owner(self._steps)
        self._saved: int | None = None  # the step after which the last good state was written

    def check_new(self) -> None:
        """No run has begun here."""
        if self._state.exists() or (self.out / "config.json").exists():
            raise InputError(f"{self.out} holds a run or a model already: resume it, or choose another directory")

    def read(self) -> State:
        """Where the run stopped."""
        last = read(self._state)
        stored, now = last.facts["made_of"], json.loads(json.dumps(self._made_of))
        for part in [part for part in {**now, **stored} if now.get(part) != stored.get(part)]:
            new, old, changes = now.get(part), stored.get(part), ""
            if isinstance(new, dict) and isinstance(old, dict):
                keys = [key for key in {**new, **old} if new.get(key) != old.get(key)]
                changes = f" ({', '.join(f'{key} was {old.get(key)}, is {new.get(key)}' for key in keys)})"
            raise InputError(f"the run was begun with another {part}{changes}: resume with the same, or start anew")
        self._saved = int(last.facts["step"])
        return last

    def sweep(self) -> None:
        """Remove what a run that was killed had not finished writing."""
        sweep(self.out, lambda name: name in OURS)
        sweep(self._steps, str.isdecimal)

    def write(self, tensors: Mapping[str, Any], step: int, facts: Mapping[str, Any]) -> None:
        """Keep where the run stands after `step` steps, to go on from there."""
        with self.writing(self._state):
            write(self._state, State(tensors, {"step": step, "made_of": self._made_of, **facts}))
        self._saved = step

    def snapshot(self, model: Transformer, step: int) -> None:
        """Keep the model as it is after `step` steps."""
        place = self._steps / f"{step:06d}"
        with self.writing(place), replacing(place) as part:
            part.mkdir(exist_ok=True)
            self._save(model, part)

    def finish(self, model: Transformer) -> None:
        """Put the trained model into the directory itself."""
        with self.writing(self.out), drafting(self.out / MODEL) as part:
            part.mkdir(exist_ok=True)
            self._save(model, part)
            for file in sorted(part.iterdir()):
                check_kind(self.out / file.name)
                os.replace(file, self.out / file.name)

    @contextmanager
    def writing(self, place: Path) -> Iterator[None]:
        """Say, where `place` cannot be written, from where the run can go on."""
        try:
            yield
        except InputError as error:
            raise InputError(f"{error}; {self.last_good}") from error
        except (OSError, SafetensorError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"cannot write {place}: {reason}; {self.last_good}") from error

    @property
    def last_good(self) -> str:
        """From where the run can go on."""
        if self._saved is None:
            return "no state was saved yet"
        return f"the last good state is {self._state}, after step {self._saved}"


class Record:
    """Numbers by step, in `metrics.jsonl`; a run that is resumed at `step` takes back what was recorded after it."""

    def __init__(self, out: Path, step: int = 0):
        self.path = out / METRICS
        lines = [line for line in read_metrics(out) if line["step"] <= step] if step else []
        with replacing(self.path) as part:
            part.write_bytes(b"".join(map(_line, lines)))

    def __call__(self, step: int, numbers: Mapping[str, float], text: str | None = None) -> None:
        """Record what was measured after `step` steps; a number that is not finite is `null` in the line."""
        line = {"step": step} | {name: value if isfinite(value) else None for name, value in numbers.items()}
        end = self.path.stat().st_size
        try:
            with self.path.open("ab") as file:
                file.write(_line(line if text is None else {**line, "sample": text}))
        except OSError:
            os.truncate(self.path, end)  # no half line
            raise


def read_metrics(out: Path) -> list[dict[str, Any]]:
    """The lines of a run so far, up to the first that is damaged."""
    lines = []
    with suppress(FileNotFoundError, ValueError, RecursionError):
        for text in (out / METRICS).read_bytes().splitlines():
            line = json.loads(text)
            if not isinstance(line, dict) or not isinstance(line.get("step"), int):
                break
            lines.append(line)
    return lines


def _line(values: Mapping[str, Any]) -> bytes:
    return (json.dumps(values, ensure_ascii=False) + "\n").encode()

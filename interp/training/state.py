"""The files of a run: its state (weights, moments, step), from which it resumes exactly, and its numbers by step."""

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
MODEL = "model"  # the name of its draft
OURS = {FILE, METRICS, MODEL, "recipe.toml", "run.json"}  # names in `out` that are written as drafts first
Save = Callable[[Transformer, Path], None]


@dataclass(frozen=True)
class State:
    """Tensors by name (`weights/NAME`, `moments/NAME/KEY`), and facts for JSON."""

    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]


def write(path: Path, state: State) -> None:
    """Write `state` to `path`, in place of the last one."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.tensors.items()}
    facts = json.dumps(dict(state.facts))
    with replacing(path) as part:  # a draft, so that safetensors' own temporary file is swept too
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
            raise ValueError(f"{differing[0] or 'its record'} has changed since it was written")
        return State(tensors, json.loads(metadata["facts"]))
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{path} is damaged ({error}): go on from a model in steps/ (start in [model])") from error


def _sums(tensors: Mapping[str, Tensor], facts: str) -> dict[str, str]:
    """A hash of each tensor (shape, dtype and numbers), and under "" of the facts."""
    sums: dict[str, Any] = {"": blake2b(facts.encode(), digest_size=16)}
    for name, tensor in tensors.items():
        sums[name] = blake2b(f"{tuple(tensor.shape)} {tensor.dtype} ".encode(), digest_size=16)
        sums[name].update(tensor.reshape(-1).view(torch.uint8).numpy())
    return {name: each.hexdigest() for name, each in sums.items()}


def gather(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Weights and the optimizer's moments by parameter name, whole in every process."""
    tensors = {}
    for name, weight in model.named_parameters():
        tensors[f"weights/{name}"] = whole(weight.detach())
        moments = optimizer.state.get(weight, {})
        tensors |= {f"moments/{name}/{key}": whole(moment) for key, moment in moments.items()}
    return tensors


def restore(model: torch.nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put back the tensors from `gather`, sharded like the weights."""
    expected = {f"weights/{name}": tuple(weight.shape) for name, weight in model.named_parameters()}
    stored = {name: tuple(value.shape) for name, value in tensors.items() if name.startswith("weights/")}
    for name in {**expected, **stored}:
        if (shape := stored.get(name, "absent")) != (needs := expected.get(name, "absent")):
            raise InputError(f"the state belongs to another architecture: {name} is {shape}, not {needs}")
    for name, weight in model.named_parameters():
        with torch.no_grad():
            weight.copy_(shared_as(tensors[f"weights/{name}"], weight))
        prefix = f"moments/{name}/"
        for key, value in tensors.items():
            if key.startswith(prefix):
                moment = value.to(weight.device, copy=True)  # the optimizer's count of steps
                if value.ndim:
                    moment = torch.empty_like(weight, requires_grad=False).copy_(shared_as(value, weight))
                optimizer.state[weight][key.removeprefix(prefix)] = moment


class Directory:
    """The directory `out` of a run that is `made_of` these facts; `save` writes a model to a directory."""

    def __init__(self, out: Path, save: Save, made_of: Mapping[str, Any]):
        self.out, self._save, self._made_of = out, save, made_of
        self._state, self._steps = out / FILE, out / "steps"
        check_owner(self._steps)
        self._saved: int | None = None  # the step after which the last good state was written

    def check_new(self) -> None:
        """Refuse a directory that has a run or a model."""
        if self._state.exists() or (self.out / "config.json").exists():
            raise InputError(f"{self.out} holds a run or a model already: resume it, or choose another directory")

    def read(self) -> State:
        """The last state, if it belongs to the same run."""
        last = read(self._state)
        stored, now = last.facts["made_of"], json.loads(json.dumps(self._made_of))
        for part in [part for part in {**now, **stored} if now.get(part) != stored.get(part)]:
            new, old, changes = now.get(part), stored.get(part), ""
            if isinstance(new, dict) and isinstance(old, dict):
                keys = [key for key in {**new, **old} if new.get(key) != old.get(key)]
                changes = f" ({', '.join(f'{key} was {old.get(key)}, is {new.get(key)}' for key in keys)})"
            raise InputError(f"the run was started with another {part}{changes}: resume with the same, or start anew")
        self._saved = int(last.facts["step"])
        return last

    def sweep(self) -> None:
        """Remove the unfinished files of a killed run."""
        sweep(self.out, lambda name: name in OURS)
        sweep(self._steps, str.isdecimal)

    def write(self, tensors: Mapping[str, Any], step: int, facts: Mapping[str, Any]) -> None:
        """Save the state after `step` steps."""
        with self.writing(self._state):
            write(self._state, State(tensors, {"step": step, "made_of": self._made_of, **facts}))
        self._saved = step

    def snapshot(self, model: Transformer, step: int) -> None:
        """Save the model after `step` steps."""
        place = self._steps / f"{step:06d}"
        with self.writing(place), replacing(place) as part:
            part.mkdir(exist_ok=True)
            self._save(model, part)

    def finish(self, model: Transformer) -> None:
        """Write the trained model to the directory itself."""
        with self.writing(self.out), drafting(self.out / MODEL) as part:
            part.mkdir(exist_ok=True)
            self._save(model, part)
            for file in sorted(part.iterdir()):
                check_kind(self.out / file.name)
                os.replace(file, self.out / file.name)

    @contextmanager
    def writing(self, place: Path) -> Iterator[None]:
        """If `place` cannot be written, name the state from which the run can resume."""
        try:
            yield
        except InputError as error:
            raise InputError(f"{error}; {self.last_good}") from error
        except (OSError, SafetensorError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"cannot write {place}: {reason}; {self.last_good}") from error

    @property
    def last_good(self) -> str:
        """The state from which the run can resume, in words."""
        if self._saved is None:
            return "no state was saved yet"
        return f"the last good state is {self._state}, after step {self._saved}"


class Record:
    """Numbers by step, in `metrics.jsonl`; a run that resumes at `step` removes later lines."""

    def __init__(self, out: Path, step: int = 0):
        self.path = out / METRICS
        lines = [line for line in read_metrics(out) if line["step"] <= step] if step else []
        with replacing(self.path) as part:
            part.write_bytes(b"".join(map(_line, lines)))

    def __call__(self, step: int, numbers: Mapping[str, float], text: str | None = None) -> None:
        """Record the numbers after `step` steps; a number that is not finite becomes `null`."""
        line = {"step": step} | {name: value if isfinite(value) else None for name, value in numbers.items()}
        end = self.path.stat().st_size
        try:
            with self.path.open("ab") as file:
                file.write(_line(line if text is None else {**line, "sample": text}))
        except OSError:
            os.truncate(self.path, end)  # drop a partial line
            raise


def read_metrics(out: Path) -> list[dict[str, Any]]:
    """The lines of a run, up to the first damaged one."""
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

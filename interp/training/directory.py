"""The directory of a run: where it stands, what it keeps of that, and what is told when it cannot."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from interp.errors import InputError
from interp.training import state
from interp.training.record import METRICS
from interp.training.whole_files import beside, check_kind, check_owner, replacing, sweep
from interp.transformer import Transformer

MODEL = "model"  # what its draft is called
OURS = {state.FILE, METRICS, MODEL, "recipe.toml", "run.json"}  # what is written to `out` by way of a draft
Save = Callable[[Transformer, Path], None]


class Directory:
    """What is in `out` of a run that is `made_of` these facts; `save` writes a model to a directory."""

    def __init__(self, out: Path, save: Save, made_of: Mapping[str, Any]):
        for folder in ("steps", "tensorboard"):
            check_owner(out / folder)
        self.out, self._save, self._made_of = out, save, made_of
        self._state = out / state.FILE
        self._saved: int | None = None  # the step after which the last good state was written

    def check_new(self) -> None:
        """No run has begun here."""
        if self._state.exists() or (self.out / "config.json").exists():
            raise InputError(f"{self.out} holds a run or a model already: resume it, or choose another directory")

    def read(self) -> state.State:
        """Where the run stopped."""
        kept_state = state.read(self._state)
        _check_same(kept_state.facts["made_of"], self._made_of)
        self._saved = int(kept_state.facts["step"])
        return kept_state

    def sweep(self) -> None:
        """Remove what a run that was killed had not finished writing."""
        sweep(self.out, lambda name: name in OURS)
        sweep(self._steps, str.isdecimal)

    def write(self, tensors: Mapping[str, Any], step: int, facts: Mapping[str, Any]) -> None:
        """Keep where the run stands after `step` steps, to go on from there."""
        with self.writing(self._state):
            state.write(self._state, state.State(tensors, {"step": step, "made_of": self._made_of, **facts}))
        self._saved = step

    def snapshot(self, model: Transformer, step: int) -> None:
        """Keep the model as it is after `step` steps."""
        place = self._steps / f"{step:06d}"
        with self.writing(place), replacing(place) as part:
            part.mkdir(exist_ok=True)
            self._save(model, part)

    def finish(self, model: Transformer) -> None:
        """Put the trained model into the directory itself."""
        with self.writing(self.out), beside(self.out / MODEL) as part:
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

    @property
    def _steps(self) -> Path:
        return self.out / "steps"


def _check_same(stored: Mapping[str, Any], made_of: Mapping[str, Any]) -> None:
    now = json.loads(json.dumps(made_of))
    for part in {**now, **stored}:
        here, there = now.get(part), stored.get(part)
        if here == there:
            continue
        changed = ""
        if isinstance(here, dict) and isinstance(there, dict):
            keys = [key for key in {**here, **there} if here.get(key) != there.get(key)]
            changed = f" ({', '.join(f'{key} was {there.get(key)}, is {here.get(key)}' for key in keys)})"
        raise InputError(
            f"the run was begun with another {part}{changed}: resume with the configuration that it was begun with, "
            "or start anew in another directory"
        )

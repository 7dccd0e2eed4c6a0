"""A recipe: everything that determines a model, from its parts to the last step of its training."""

import hashlib
import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tomli_w

from interp import InputError, Transformer
from interp.errors import one_of
from interp.training import Plan, Progress, state, train
from interp.training.parallel import Parallel
from interp.training.whole_files import holding, is_draft, replacing
from models.block_devices import device_of
from models.huggingface import save
from models.recipes import toml_tables as files
from models.recipes.data import KINDS, Kind, Preparation, Ready, Say, digests
from models.recipes.origins import Origin

RECIPE = "recipe.toml"  # in the directory of a run: the recipe as it was followed
_FOLLOWED = "# The recipe as it was followed by a training in this directory, which may write here."  # its first line
_BEFORE_A_STATE = {RECIPE, "data", "metrics.jsonl", "tensorboard", "steps"}


@dataclass(frozen=True)
class Trained:
    """A trained model, and facts about its data and tokenizer."""

    model: Transformer
    data: Mapping[str, Mapping[str, Any]]  # by source: digest, documents, tokens, what was held out
    tokenizer: str  # a digest
    begun: int  # the step from which the run resumed
    seconds: float  # of training, from there


@dataclass(frozen=True)
class Recipe:
    """What a TOML file says, checked; `read` makes one."""

    name: str  # its name in messages
    origin: Origin  # of the model that is trained
    data: Mapping[str, Kind]
    plan: Plan
    hidden_share: float  # the share of hidden tokens, for a masked-word model
    fitted: tuple[str, ...] = ()  # settings adjusted because the number of steps differs from the file's

    def train(
        self,
        out: Path,
        *,
        device: str = "cpu",
        cache: Path | None = None,
        resume: bool = False,
        measures: Callable[[Transformer], Mapping[str, float]] | None = None,
        parallel: Parallel | None = None,
        tell: Callable[[Progress], None] = lambda progress: None,
        say: Say = lambda stage, count: None,
    ) -> Trained:
        """Follow the recipe, and leave model, tokenizer, state, metrics and `recipe.toml` in the directory `out`.

        Args:
            out: a new directory; with `resume`, the directory of an earlier run.
            device: where the model is trained.
            cache: keeps tokenizers, token arrays and generated texts under a hash of their sources, so that runs
                share them; by default `data` in `out`.
            resume: go on from the last state in `out`.
            measures: called with the model at every evaluation.
            parallel: how processes that torchrun started share the work; each prepares the data for itself.
            tell: called during training.
            say: called while data is prepared, with the stage and the number of documents read.

        Raises:
            InputError: no text, too little of it, `out` holds another run; and as `interp.train`.
        """
        place = device_of(device)
        if parallel is not None:
            one_of("parallel", parallel, Parallel)
        if out.exists() and not out.is_dir():
            raise InputError(f"{out} is a file: --out must name a directory")
        first = os.environ.get("RANK", "0") == "0"  # the first process that torchrun started, or the only one
        with ExitStack() as stack:
            if first:
                try:
                    stack.enter_context(holding(out, "trains in"))
                except OSError as error:
                    raise InputError(f"cannot write {out}: {error.strerror or error}; choose another --out") from error
            begun = self._begun(out, resume=resume)
            data_digests = digests(self.data)
            self._write(out)  # marks the directory as ours
            cache = cache or out / "data"
            say("making the tokenizer", 0)
            model = self.origin.model(self.data, data_digests, cache, self.plan.seed)
            assert model.tokenizer is not None
            preparation = Preparation(
                self.plan,
                cache,
                data_digests,
                model.tokenizer,
                target=model.target_tokenizer if len(model.config.stacks) > 1 else None,
                start=model.config.target_start,
                hidden=self.hidden_share if self.origin.kind == "encoder" else None,
                say=say,
            )
            ready = preparation.ready(self.data)
            model.to(place)
            say("training", 0)
            since = time.perf_counter()
            made_of = self._made_of(model, ready)
            train(
                model,
                ready.sources,
                self.plan,
                out,
                save=save,
                held_out=ready.held_out,
                measures=measures,
                made_of=made_of,
                resume=resume,
                parallel=parallel,
                tell=tell,
            )
            return Trained(model, ready.facts, made_of["tokenizer"], begun, time.perf_counter() - since)

    def resolved(self) -> dict[str, Any]:
        """The recipe as tables with all defaults, from which the same run can be repeated."""
        names = {kind: name for name, kind in KINDS.items()}
        plan = asdict(self.plan)
        phases = plan.pop("phases")
        whole = {
            **self.origin.tables(),
            "data": {name: {"kind": names[type(kind)], **asdict(kind)} for name, kind in self.data.items()},
            "training": plan | ({"hidden": self.hidden_share} if self.origin.kind == "encoder" else {}),
            "phases": phases,
        }
        return _plain(whole)

    def _begun(self, out: Path, *, resume: bool) -> int:
        """The step to go on from; refuses what it can before the long work begins."""
        if not resume:
            if (out / state.FILE).exists():
                raise InputError(f"{out} holds a run already: --resume continues it, or choose another --out")
            _check_free(out)
            return 0
        last = state.read(out / state.FILE)
        _check_unchanged(out / RECIPE, self.resolved())
        return int(last.facts["step"])

    def _made_of(self, model: Transformer, ready: Ready) -> dict[str, Any]:
        """Facts that a resumed run must share."""
        whole = asdict(model.config)
        stacks = {name: whole[name] for name in model.config.stacks}
        texts = [each.backend.to_str() for each in (model.tokenizer, model.target_tokenizer) if each is not None]
        return {
            **stacks,
            "model": {name: value for name, value in whole.items() if name not in stacks},
            "hidden": self.hidden_share,
            "tokenizer": hashlib.sha256("".join(texts).encode()).hexdigest(),
            "data": {name: facts["digest"] for name, facts in ready.facts.items()},
            "order of sources": list(ready.sources),  # the order for drawing rows
            **self.origin.facts(),
        }

    def _write(self, out: Path) -> None:
        try:
            with replacing(out / RECIPE) as part:
                part.write_text(f"{_FOLLOWED}\n\n{tomli_w.dumps(self.resolved())}", "utf-8")
        except OSError as error:
            raise InputError(f"cannot write {out / RECIPE}: {error.strerror or error}; choose another --out") from error


def _check_free(out: Path) -> None:
    """Refuse a directory that holds anything, except what our own run left before its first state."""
    names = {each.name for each in out.iterdir() if not is_draft(each)} if out.is_dir() else set()
    if (out / RECIPE).is_file():  # reading a pipe would never end
        with suppress(OSError), (out / RECIPE).open("rb") as opened:
            if opened.read(len(_FOLLOWED)) == _FOLLOWED.encode():
                names -= _BEFORE_A_STATE
    if foreign := sorted(names):
        raise InputError(
            f"{out} holds {', '.join(foreign[:3])}, which no unfinished training of interp left: choose another --out, "
            "new or empty"
        )


def _plain(value: Any) -> Any:
    """Values for TOML: without None, sequences as lists."""
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items() if each is not None}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _check_unchanged(file: Path, now: Mapping[str, Any]) -> None:
    """Refuse to resume a run of another recipe; data is compared later, by its bytes."""
    if not file.is_file():
        return
    was, now_flat = files.flat(files.load(file)), files.flat(now)
    if changed := [key for key in {**was, **now_flat} if was.get(key) != now_flat.get(key)]:
        key, rest = changed[0], f", and {len(changed) - 1} more" if changed[1:] else ""
        raise InputError(
            f"{file.parent} was started with another recipe: {key} was {was.get(key, 'absent')} and is now "
            f"{now_flat.get(key, 'absent')}{rest}; resume with {file}, or choose another --out"
        )

"""What were these numbers made from? Hashes of models and texts, versions, processor: what every `run.json` has."""

import hashlib
import platform
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from torch import nn

from analyses.corpora import Corpus
from analyses.execution.fingerprints import fingerprint, tokenizer_hash
from interp import InputError, Model
from interp.running import Edited
from models.huggingface.model_files import digest_as_read
from models.quantization import Int8

SCHEMA = 1  # of run.json: raised where a key changes its meaning or goes
PACKAGES = (
    *("interp", "torch", "numpy", "scipy", "pandas", "pyarrow"),
    *("matplotlib", "seaborn", "tokenizers", "safetensors"),
)
RUNNERS = ("torchao", "transformers", "transformer-lens")  # which run some models


def recorded(*, command: str, seed: int, seconds: float, stages: Mapping[str, float]) -> dict[str, Any]:
    """What every run says of itself: how it was called, on what it ran, and how long it took.

    Args:
        command: what the user typed.
        seed: of everything random.
        seconds: of the whole, by the clock.
        stages: of each stage; stages that ran at once each count in full, so they may add up to more than the whole.
    """
    return {
        "schema": SCHEMA,
        "command": command,
        "seed": seed,
        "versions": versions(),
        "processor": platform.processor() or platform.machine(),
        "seconds": round(seconds, 1),
        "stages": {stage: round(seconds, 1) for stage, seconds in stages.items()},
    }


def versions(packages: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Versions of Python, the platform and the packages that a number may depend on."""
    installed = {"python": platform.python_version(), "platform": f"{sys.platform} {platform.machine()}"}
    for package in packages:
        try:
            installed[package] = version(package)
        except PackageNotFoundError:
            installed[package] = "not installed"
    return installed


def model_facts(model: Model) -> dict[str, Any]:
    """A model's shape, size and precision, and the hashes that tell it from others.

    Models with the same `fingerprint` compute the same; one that has none says why in `no_fingerprint`. `sha256` is
    that of the weight files as they were read, which their publisher may name; None where they have changed or gone
    since, or there were none. Models with the same hash of a tokenizer read the same tokens.
    """
    identity: dict[str, str | None]
    try:
        identity = {"fingerprint": fingerprint(model)}
    except InputError as error:
        identity = {"fingerprint": None, "no_fingerprint": str(error)}
    edited: list[str] = []
    plain = model
    while isinstance(plain, Edited):
        plain, edited = plain.model, [*plain.edits, *edited]
    modules = [*plain.modules()] if isinstance(plain, nn.Module) else []
    weights = plain.parameters() if isinstance(plain, nn.Module) else ()
    return {
        **identity,
        "sha256": digest_as_read(getattr(plain, "files", ())),
        **({"edited": edited} if edited else {}),
        **({"quantize": "int8"} if any(isinstance(module, Int8) for module in modules) else {}),
        "stacks": {
            stack_name: {"layers": stack.n_layers, "heads": stack.n_heads, "d_model": stack.d_model}
            for stack_name, stack in model.config.stacks.items()
        },
        "context": model.config.n_ctx,
        "vocabulary": model.config.d_vocab,
        "parameters": sum(weight.numel() for weight in weights),
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": str(model.device),
        "causal": model.config.last.causal,
        "special_tokens": None if model.tokenizer is None else model.tokenizer.policy,
        "tokenizer": tokenizer_hash(model.tokenizer),
    }


def corpus_facts(corpus: Corpus) -> dict[str, Any]:
    """A corpus's name, kind and hash, and what it annotates."""
    return {"name": corpus.name, "kind": corpus.kind, "sha256": corpus.digest, "annotates": sorted(corpus.annotates)}


def digest(chunks: Iterable[bytes]) -> str:
    """SHA-256 of bytes that come in pieces."""
    sha = hashlib.sha256()
    for chunk in chunks:
        sha.update(chunk)
    return sha.hexdigest()

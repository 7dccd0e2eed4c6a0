"""Tiny models that learn within a second, and what they learn from."""

import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from tiny import LLAMA
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, processors

from interp import Tokenizer, Transformer, TransformerConfig
from interp.training import Phase, Plan, Repeats, Windows, state
from models.initialisation import initialise

N_WORDS = 29


def tokenizer() -> Tokenizer:
    """Words w0, w1, ...; every text starts with <s>."""
    vocabulary = {word: id for id, word in enumerate(["<s>", "[MASK]", *(f"w{number}" for number in range(N_WORDS))])}
    backend = Backend(models.WordLevel(vocabulary, unk_token="<s>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens(["<s>", "[MASK]"])
    backend.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])
    return Tokenizer(backend)


STACK = replace(LLAMA, d_model=12, n_heads=3, n_kv_heads=None, d_head=4, d_mlp=17, n_ctx=16, d_vocab=N_WORDS + 2)
DECODER = TransformerConfig(decoder=STACK, output="tied")
ENCODER = TransformerConfig(encoder=replace(STACK, causal=False), output="tied")
BOTH = TransformerConfig(
    encoder=replace(STACK, causal=False), decoder=replace(STACK, cross_attention=True), target_start=0
)


def model(config: TransformerConfig = DECODER, seed: int = 0) -> Transformer:
    """An untrained model of the tokenizer's words."""
    built = Transformer(config, tokenizer())
    initialise(built, seed)
    return built


def text(n_tokens: int = 700) -> torch.Tensor:
    return torch.randint(2, N_WORDS + 2, (n_tokens,), generator=torch.Generator().manual_seed(7))


def sources() -> dict:
    return {"text": Windows(text(), [0]), "repeats": Repeats(tokenizer(), 2, 5)}


MIXED = {"text": 0.5, "repeats": 0.5}


def plan(steps: int = 30, **changes) -> Plan:
    """A plan with two phases, and a state after every fifth step."""
    phases = (Phase(steps // 2, 4, 9, MIXED), Phase(steps - steps // 2, 8, 13, MIXED))
    usual = {"learning_rate": 3e-3, "warmup": 3, "evaluate_every": 10, "save_every": 5, "snapshot_at": (steps // 3,)}
    return Plan(phases, **{**usual, **changes})


def weights(model: Transformer) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def weights_in(out: Path) -> dict[str, torch.Tensor]:
    """The weights in a run's last state."""
    tensors = state.read(out / state.FILE).tensors
    return {name.removeprefix("weights/"): value for name, value in tensors.items() if name.startswith("weights/")}


def leftovers(out: Path) -> list[str]:
    return sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.name.startswith("."))


def process(work: Callable[[], object]) -> int:
    """Start a process that does `work`; it is forked, because torch takes seconds to start."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about forking while threads may run
        child = os.fork()
    if child:
        return child
    try:
        work()
        os._exit(0)
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
        os._exit(1)


def ended(child: int) -> int:
    """How a process ended: minus the signal that killed it, or its exit status."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

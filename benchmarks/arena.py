"""What do exercises on induction heads and indirect objects cost, here and in TransformerLens?

    python -m benchmarks.arena [--repeats 5]      # some five minutes on two cores

The questions come from ARENA's chapters on induction heads and indirect objects; text and code are our own. Each is
answered twice: by a function `ours_...` with `interp`, and by a function `theirs_...` with TransformerLens and its
built-in functions. Both run on one random GPT-2 (ours through `models.wrap`, theirs through its bridge) and on the
default model, which both load. If their numbers differ, the run stops. Prints a line about the machine, then JSON
lines, one per model and exercise and one per model for all:

    model                       `random` or `default`
    ours_lines, theirs_lines    lines of the two functions without docstring and blank lines, as ruff formats them
    ratio_lines                 the first over the second
    ours_s, theirs_s            CPU seconds, medians over alternating repeats
    off                         the largest difference of a number, as a fraction of the largest number

We compare the way to the numbers. The default model's heads show these behaviours; random ones do not.

All eight, on one thread: 0.093 against 0.667 s for the random GPT-2 (4 layers of 4 heads, d_model 64), 5.63 against
8.33 s for the default (4.68 and 4.62 of it for the matrix product of one OV circuit).
"""

import inspect
import statistics
import time
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.console import arguments, machine, show
from benchmarks.floor import Shape
from benchmarks.peers import bridged, gpt2, numbers
from interp import Transformer, run
from interp.attribution import direct_logit_attribution, logit_lens
from interp.patching import Pairs, Receiver, ablate, logit_difference, next_token_loss, path_patch, sweep
from models import load, wrap

RANDOM = Shape(4, 4, 64, 211)
LENGTH, TOLERANCE = 12, 1e-4
NAMES = ("Mary", "John", "Tom", "Jane")
SENTENCE = "When {} and {} went to the house, {} gave a letter to"


class Case(NamedTuple):
    """The two models, repeated tokens, prompts with two answers, and the models' sizes."""

    ours: Transformer
    theirs: Any
    twice: Tensor
    clean: Tensor
    corrupt: Tensor
    right: Tensor
    wrong: Tensor
    layers: int
    heads: int  # per layer
    vocabulary: int


def ours_heads(case: Case) -> Tensor:
    """Attention to the previous token, and to the token after the earlier copy: kind layer head."""
    out = run(case.ours, case.twice, capture="decoder.*.attn.pattern")
    pattern = torch.stack([out[f"decoder.{layer}.attn.pattern"] for layer in range(case.layers)]).mean(1)
    return torch.stack([pattern.diagonal(offset, -2, -1).mean(-1) for offset in (-1, 1 - LENGTH)])


def theirs_heads(case: Case) -> Tensor:
    _, cache = case.theirs.run_with_cache(case.twice)
    pattern = torch.stack([cache["pattern", layer] for layer in range(case.layers)]).mean(1)
    return torch.stack([pattern.diagonal(offset, -2, -1).mean(-1) for offset in (-1, 1 - LENGTH)])


def ours_ablation(case: Case) -> Tensor:
    """The loss without each head: layer head."""
    return ablate(case.ours, case.twice, next_token_loss(), kind="zero").values["loss"].mean(-1)


def theirs_ablation(case: Case) -> Tensor:
    losses = torch.zeros(case.layers, case.heads)
    for layer in range(case.layers):
        for head in range(case.heads):

            def remove(z, hook, head=head):
                z[:, :, head] = 0.0
                return z

            hooks = [(f"blocks.{layer}.attn.hook_z", remove)]
            losses[layer, head] = case.theirs.run_with_hooks(case.twice, return_type="loss", fwd_hooks=hooks)
    return losses


def ours_copying(case: Case) -> Tensor:
    """The share of tokens whose own logit each head's weights raise most: layer head."""
    model = case.ours
    circuits = model.W_E @ model.W_V[:] @ model.W_O[:] @ model.W_U
    return (circuits.argmax(-1) == torch.arange(case.vocabulary)).float().mean(-1)


def theirs_copying(case: Case) -> Tensor:
    model = case.theirs
    circuits = model.W_E @ model.W_V @ model.W_O @ model.W_U
    return (circuits.argmax(-1) == torch.arange(case.vocabulary)).float().mean(-1)


def ours_difference(case: Case) -> Tensor:
    """The right answer's logit minus the wrong one's, at the last position: prompt."""
    logits, row = case.ours(case.clean)[:, -1], torch.arange(len(case.clean))
    return logits[row, case.right] - logits[row, case.wrong]


def theirs_difference(case: Case) -> Tensor:
    logits, row = case.theirs(case.clean)[:, -1], torch.arange(len(case.clean))
    return logits[row, case.right] - logits[row, case.wrong]


def ours_attribution(case: Case) -> Tensor:
    """What each head adds directly to the difference: layer head prompt."""
    return direct_logit_attribution(case.ours, case.clean, case.right, case.wrong).by_head()


def theirs_attribution(case: Case) -> Tensor:
    _, cache = case.theirs.run_with_cache(case.clean)
    heads = cache.stack_head_results(layer=-1, pos_slice=-1) * case.theirs.ln_final.weight
    terms = cache.logit_attrs(heads, case.right, incorrect_tokens=case.wrong, pos_slice=-1)
    return terms.view(case.layers, case.heads, -1)


def ours_lens(case: Case) -> Tensor:
    """The difference after each layer: layer prompt."""
    return logit_lens(case.ours, case.clean).difference(case.right, case.wrong)[..., 0]


def theirs_lens(case: Case) -> Tensor:
    model, row = case.theirs, torch.arange(len(case.clean))
    _, cache = model.run_with_cache(case.clean)
    logits = model.unembed(model.ln_final(cache.accumulated_resid(layer=-1, incl_mid=False, pos_slice=-1)))
    return logits[:, row, case.right] - logits[:, row, case.wrong]


def ours_patching(case: Case) -> Tensor:
    """The mean difference with each stream of the clean prompt in the corrupted one, then with each head's z."""
    pairs = Pairs.from_ids(case.ours, case.clean, case.corrupt, case.right, case.wrong)
    streams = sweep(case.ours, pairs, logit_difference(), "resid_pre", by=("layer", "position"))
    heads = sweep(case.ours, pairs, logit_difference())
    return torch.cat([each.values["logit_difference"].mean(-1).flatten() for each in (streams, heads)])


def theirs_patching(case: Case) -> Tensor:
    from transformer_lens import patching

    def metric(logits):
        row = torch.arange(len(logits))
        return (logits[row, -1, case.right] - logits[row, -1, case.wrong]).mean()

    _, cache = case.theirs.run_with_cache(case.clean)
    streams = patching.get_act_patch_resid_pre(case.theirs, case.corrupt, cache, metric)
    heads = patching.get_act_patch_attn_head_out_all_pos(case.theirs, case.corrupt, cache, metric)
    return torch.cat([streams.flatten(), heads.flatten()])


def ours_paths(case: Case) -> Tensor:
    """The mean difference with each head's direct path to the logits from the clean prompt: layer head."""
    pairs = Pairs.from_ids(case.ours, case.clean, case.corrupt, case.right, case.wrong)
    paths = path_patch(case.ours, pairs, logit_difference(), [Receiver("logits")])
    return paths.values["logit_difference"].mean(-1)


def theirs_paths(case: Case) -> Tensor:
    model, row = case.theirs, torch.arange(len(case.clean))
    names = [f"blocks.{layer}.attn.hook_z" for layer in range(case.layers)]
    _, clean = model.run_with_cache(case.clean, names_filter=lambda name: name in names)
    _, corrupt = model.run_with_cache(case.corrupt)
    final = corrupt["resid_post", case.layers - 1][:, -1]
    differences = torch.zeros(case.layers, case.heads)
    for layer, name in enumerate(names):
        for head in range(case.heads):
            change = (clean[name] - corrupt[name])[:, -1, head] @ model.W_O[layer, head]
            logits = model.unembed(model.ln_final((final + change)[:, None]))[:, 0]
            differences[layer, head] = (logits[row, case.right] - logits[row, case.wrong]).mean()
    return differences


EXERCISES: dict[str, tuple[Callable[[Case], Tensor], Callable[[Case], Tensor]]] = {
    "previous-token and induction heads": (ours_heads, theirs_heads),
    "loss without each head": (ours_ablation, theirs_ablation),
    "copying by the OV circuit": (ours_copying, theirs_copying),
    "logit difference": (ours_difference, theirs_difference),
    "direct attribution by head": (ours_attribution, theirs_attribution),
    "logit lens": (ours_lens, theirs_lens),
    "streams by position and heads, patched": (ours_patching, theirs_patching),
    "paths from heads to the logits": (ours_paths, theirs_paths),
}


def default() -> Case:
    """The default model in both libraries, repeated random tokens, and sentences with an indirect object."""
    ours = load("default")
    bridge = bridged(Path(__file__).resolve().parents[1] / "models" / "checkpoints" / "default")
    torch.manual_seed(0)
    start = torch.zeros(8, 1, dtype=torch.long)
    once = torch.randint(3, ours.config.d_vocab, (8, LENGTH))
    people = [*permutations(NAMES, 2)][:8]
    clean, corrupt = (
        ours.to_tokens([SENTENCE.format(*pair, pair[1 - swapped]) for pair in people]) for swapped in (0, 1)
    )
    assert ours.tokenizer is not None
    ids = {name: ours.tokenizer.id(f" {name}") for name in NAMES}
    right, wrong = (torch.tensor([ids[pair[place]] for pair in people]) for place in (0, 1))
    stack, twice = ours.config.decoder, torch.cat([start, once, once], 1)
    sizes = stack.n_layers, stack.n_heads, ours.config.d_vocab
    return Case(ours, bridge, twice, clean, corrupt, right, wrong, *sizes)


def untrained() -> Case:
    """A random GPT-2 in both libraries, and tokens from one seed."""
    theirs = gpt2(RANDOM, n_positions=64, bos_token_id=0, eos_token_id=0)
    bridge = bridged(theirs, numbers(RANDOM.vocabulary))
    once = torch.randint(1, RANDOM.vocabulary, (8, LENGTH))
    clean = torch.randint(1, RANDOM.vocabulary, (8, 14))
    corrupt = clean.clone()
    corrupt[:, 9] = clean[:, 9] % (RANDOM.vocabulary - 1) + 1
    right, wrong = torch.randint(1, RANDOM.vocabulary, (2, 8))
    sizes = RANDOM.layers, RANDOM.heads, RANDOM.vocabulary
    return Case(wrap(theirs), bridge, torch.cat([once, once], 1), clean, corrupt, right, wrong, *sizes)


MODELS: dict[str, Callable[[], Case]] = {"random": untrained, "default": default}


def lines(function: Callable[..., Any]) -> int:
    """The number of source lines, without blank lines and the docstring (at most one line)."""
    return sum(1 for line in inspect.getsource(function).splitlines() if line.strip()) - bool(function.__doc__)


def measured(function: Callable[[Case], Tensor], case: Case) -> tuple[float, Tensor]:
    """CPU seconds, and the numbers."""
    began = time.process_time()
    with torch.no_grad():
        values = function(case)
    return time.process_time() - began, values


def row(name: str, case: Case, repeats: int) -> dict[str, Any]:
    """One exercise, both ways.

    Raises:
        AssertionError: the two ways give different numbers.
    """
    ours, theirs = EXERCISES[name]
    runs, off = [], 0.0
    for _ in range(repeats):
        (ours_s, values), (theirs_s, expected) = measured(ours, case), measured(theirs, case)
        torch.testing.assert_close(values, expected, atol=TOLERANCE * float(expected.abs().max()), rtol=0.0)
        off = max(off, float((values - expected).abs().max() / expected.abs().max().clamp(min=1e-9)))
        runs.append((ours_s, theirs_s))
    ours_s, theirs_s = (round(statistics.median(seconds), 4) for seconds in zip(*runs, strict=True))
    return {
        **{"name": name, "ours_lines": lines(ours), "theirs_lines": lines(theirs)},
        **{"ratio_lines": round(lines(ours) / lines(theirs), 2), "ours_s": ours_s, "theirs_s": theirs_s, "off": off},
    }


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    machine("transformers", "transformer-lens")
    for model, build in MODELS.items():
        case, rows = build(), []
        for name in EXERCISES:
            rows.append(row(name, case, options.repeats))
            show(model=model, **rows[-1])
        whole = {key: sum(each[key] for each in rows) for key in ("ours_lines", "theirs_lines", "ours_s", "theirs_s")}
        ratio, off = round(whole["ours_lines"] / whole["theirs_lines"], 2), max(each["off"] for each in rows)
        show(model=model, name="all", **whole, ratio_lines=ratio, off=off)


if __name__ == "__main__":
    main()

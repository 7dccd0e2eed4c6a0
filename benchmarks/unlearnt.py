"""Do models whose heads lost what they learnt still get writers of keys, or circuits?

    python -m benchmarks.unlearnt [textbook] [--copies 4]

We shuffle the entries of each head's W_Q and W_K, then scale them until its scores spread within a row as before.
Prints one JSON line per model, the trained one first:

    explained     rows of `tables/writers` in which a family explains where the head attends, out of how many, for the
                  model's own labels; `asked` is the same for the trained model's labels
    circuits      each task's circuit size and its effect on prompts that did not choose it, or why there is none
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from analyses import circuit
from analyses.corpora import read
from analyses.labels import key_writers, label
from analyses.tasks.causal_tests import no_effects
from benchmarks.console import arguments, show
from interp import AnnotatedText, InputError, Transformer, run
from interp.patterns.shuffled import shuffled_copy
from models import load

PAIRS = 200  # per task: with fewer, the trained model's rarer answer may look like chance
TASKS = "agreement", "reference", "name-gender", "repeat"
BEHAVIOURS = "position", "part-of-speech", "coreference"


def sharpened_copy(model: Transformer, prompts: Sequence[str], seed: int) -> Transformer:
    """A shuffled copy whose heads' scores spread like the trained ones', layer by layer."""
    shuffled = shuffled_copy(model, seed)
    for layer, block in enumerate(shuffled.last.blocks):
        site = f"decoder.{layer}.attn.scores"
        trained, spread = (_spread(run(each, prompts, until=site)[site]) for each in (model, shuffled))
        with torch.no_grad():
            block.attn.W_Q.mul_((trained / spread)[:, None, None])
    return shuffled


def _spread(scores: Tensor) -> Tensor:
    """The standard deviation of each head's scores in rows of three or more keys, without the first key."""
    scores = scores[..., 3:, 1:].masked_fill(scores[..., 3:, 1:].isneginf(), torch.nan)
    return (scores - scores.nanmean(-1, keepdim=True)).square().nanmean(dim=(0, 2, 3)).sqrt()


def _explained(model: Transformer, labels: pd.DataFrame, corpora: Mapping[str, Sequence[AnnotatedText]]) -> list[Any]:
    table = key_writers.measure(model, labels, corpora)
    rows = table.loc[table["kind"] == "family"]
    return [int(rows["explains"].sum()), len(rows)]


def _circuit(model: Transformer, task: str, settings: circuit.Settings) -> Any:
    try:
        result = circuit.find(model, circuit.task_prompts(model, task, count=PAIRS), settings=settings)
    except InputError as error:
        return str(error)
    return result.circuit.size, round(result.facts["alone"][0], 3)


def main() -> None:
    """Print one line per model."""
    parser = arguments(__doc__)
    parser.add_argument("model", nargs="?", default="textbook")
    parser.add_argument("--copies", type=int, default=4)
    parser.add_argument("--corpus", default="new-sentences:200")
    options = parser.parse_args()
    trained, texts = load(options.model), [*read(options.corpus)]
    assert isinstance(trained, Transformer)
    corpora: dict[str, Sequence[AnnotatedText]] = {name: texts for name in BEHAVIOURS}
    prompts = [" ".join(text.words) for text in texts[:20]]
    settings = circuit.Settings(n_random=3, n_sizes=12, shares=(1.0,), tests=False)
    size, base = {"documents": 16, "words": 24, "effects": no_effects("any").table}, None
    for seed in range(-1, options.copies):
        model = trained if seed < 0 else sharpened_copy(trained, prompts, seed)
        labels = label(model, corpora, **size).labels
        base = labels if base is None else base
        writers = {"explained": _explained(model, labels, corpora), "asked": _explained(model, base, corpora)}
        show(seed=seed, **writers, circuits={task: _circuit(model, task, settings) for task in TASKS})


if __name__ == "__main__":
    main()

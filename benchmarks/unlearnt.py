"""Do models whose heads lost what they learnt get writers of keys, or circuits?

    python -m benchmarks.unlearnt [textbook] [--copies 5]

The entries of each head's W_Q and W_K are shuffled, then scaled until its scores spread within a row as they did. One
JSON line a copy, for the trained model first:

    rows          of `tables/writers` that are of families: heads with a label, and its measure
    explained     of them those with a family that explains where the head looks, by head and measure
    asked         the same, with the trained model's labels in place of the copy's own; `asked_explained` of these
    circuits      tasks of which a circuit is found, with its size and what it does; all others are refused
"""

from collections.abc import Sequence

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

TASKS = "agreement", "reference", "name-gender", "repeat"
BEHAVIOURS = "position", "part-of-speech", "coreference"


def sharpened_copy(model: Transformer, texts: Sequence[AnnotatedText], seed: int) -> Transformer:
    """A shuffled copy whose heads' scores spread as the trained ones do, layer by layer, without those of the first."""
    copied, prompts = shuffled_copy(model, seed), [" ".join(text.words) for text in texts]
    for layer, block in enumerate(copied.last.blocks):
        site = f"decoder.{layer}.attn.scores"
        trained, shuffled = (_spread(run(each, prompts, until=site)[site]) for each in (model, copied))
        with torch.no_grad():
            block.attn.W_Q.mul_((trained / shuffled)[:, None, None])
    return copied


def _spread(scores: Tensor) -> Tensor:
    """The standard deviation of each head within rows of three keys and more."""
    scores = scores[..., 3:, 1:].masked_fill(scores[..., 3:, 1:].isneginf(), torch.nan)
    return (scores - scores.nanmean(-1, keepdim=True)).square().nanmean(dim=(0, 2, 3)).sqrt()


def main() -> None:
    """Print a line a model."""
    parser = arguments(__doc__)
    parser.add_argument("model", nargs="?", default="textbook")
    parser.add_argument("--copies", type=int, default=5)
    parser.add_argument("--corpus", default="new-sentences:200")
    options = parser.parse_args()
    trained, corpora = load(options.model), dict.fromkeys(BEHAVIOURS, read(options.corpus))
    assert isinstance(trained, Transformer)
    known = pd.DataFrame()
    for seed in range(-1, options.copies):
        model = trained if seed < 0 else sharpened_copy(trained, [*corpora["position"]][:20], seed)
        sizes = {"documents": 16, "words": 24, "effects": no_effects("any").table, "seed": max(seed, 0)}
        labels = label(model, corpora, **sizes).labels
        known = labels if seed < 0 else known
        line = {}
        for name, each in {"rows": labels, "asked": known}.items():
            table = key_writers.measure(model, each, corpora, seed=max(seed, 0))
            line |= _counts(table.loc[table["kind"] == "family"], name)
        show(seed=seed, **line, circuits=_circuits(model))


def _counts(rows, name):
    named = rows.loc[rows["explains"]]
    return {
        name: len(rows),
        f"{name}_explained": [
            f"L{r.layer}.H{r.head} {r.measure} <- {r.writer} {r.before:.3f} {r.without:.3f} {r.others_without:.3f} {r.rank:.2f}"
            for r in named.itertuples()
        ],
    }


def _circuits(model):
    out = {}
    for task in TASKS:
        try:
            f = circuit.find(
                model,
                circuit.task_prompts(model, task, count=60),
                settings=circuit.ALL._replace(tests=False, n_random=3, n_sizes=12, shares=(0.01, 1.0)),
            )
            out[task] = f.facts["size"], f.facts["of"], round(f.facts["alone"][0], 2)
        except InputError as e:
            out[task] = str(e)[:60]
    return out


if __name__ == "__main__":
    main()

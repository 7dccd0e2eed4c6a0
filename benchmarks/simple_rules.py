"""On which relations can a corpus tell a syntactic head from a simple rule?

    python -m benchmarks.simple_rules [--corpus stories:300] [--corpus tales:300]

Prints the rule that is right most often for each relation and direction: a fixed offset in words, or the nearest word
with certain tags on one side. A head that is right no more often need not know the relation. A rule is right if it
chooses any correct word; a noun with two adjectives has two. The model only decides which words are read together, so
its weights do not matter.
"""

from collections.abc import Iterable

import numpy as np
import pandas as pd
import torch

from analyses import corpora
from analyses.reading.windows import Reading
from analyses.scoring.choices import Items
from analyses.scoring.rules import NEAREST, OFFSETS, RELATIONS, WAYS, edges
from benchmarks.console import arguments
from interp import StackConfig, Transformer, TransformerConfig
from interp.annotation import AnnotatedText
from models import load

RULES = (*OFFSETS, *NEAREST)
CORPORA = ("stories:300", "tales:300")


def reader() -> Transformer:
    """The smallest model that reads texts of up to 512 tokens, with the default's tokenizer."""
    stack = StackConfig(n_layers=1, d_model=4, n_heads=1, d_head=4, d_mlp=4, n_ctx=512, d_vocab=4096, causal=False)
    return Transformer(TransformerConfig(encoder=stack, output="none"), load("default").tokenizer)


def strictest(texts: Iterable[AnnotatedText]) -> pd.DataFrame:
    """One row per relation, direction and kind of model: the number of items, the best rule, and how often it is right.

    For a decoder only words before the query count. `right` accepts any correct word, `exact` only the item's own. Each
    is the best rule's value.
    """
    kinds = ("decoder", "encoder")
    totals = torch.zeros(len(kinds), 2 * len(RELATIONS), 2, len(RULES))
    n = torch.zeros(len(kinds), 2 * len(RELATIONS), dtype=torch.long)
    for batch in Reading(reader(), texts):
        items = Items.from_batch(batch, edges(RELATIONS), np.zeros(2 * len(RELATIONS), dtype=int), causal=False)
        words, target = torch.stack([rule(items) for rule in RULES], 1), items.right.int().argmax(1)
        right = torch.stack([items.sought(words), words == target[:, None]], 1).float()
        for kind, mask in enumerate((target < items.query, torch.ones_like(target, dtype=torch.bool))):
            totals[kind].index_add_(0, items.column[mask], right[mask])
            n[kind].index_add_(0, items.column[mask], torch.ones_like(items.column[mask]))
    rows = []
    for kind, column in n.nonzero().tolist():
        shares = totals[kind, column] / n[kind, column]
        (best, exact), index = shares.max(-1)
        name, way = RELATIONS[column // 2], WAYS[column % 2]
        facts = {"relation": name, "way": way, "model": kinds[kind], "n": int(n[kind, column])}
        rows.append({**facts, "rule": RULES[index[0]].name, "right": float(best), "exact": float(exact)})
    return pd.DataFrame(rows)


def main() -> None:
    """Print one table per corpus."""
    parser = arguments(__doc__)
    parser.add_argument("--corpus", action="append", help=f"default {' and '.join(CORPORA)}")
    for name in parser.parse_args().corpus or CORPORA:
        print(f"{name}\n{strictest(corpora.read(name)).round(3).to_string(index=False)}\n")


if __name__ == "__main__":
    main()

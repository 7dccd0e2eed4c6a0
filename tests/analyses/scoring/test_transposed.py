"""Who attends most to a word (Clark's head->dependent): against attention between words, one column at a time."""

import random
from collections import defaultdict

import numpy as np
import pytest

from analyses import part_of_speech
from analyses.reading.examples import Head, word_patterns
from interp import AnnotatedText
from models import planted
from models.planted import Planted

WORDS = ("a", "b-c", "d", "e-f-g", "h", "i")


def parsed(number: int) -> AnnotatedText:
    """Words of one, three and five pieces, each depending on another by lot."""
    rng = random.Random(number)
    words = tuple(rng.choice(WORDS) for _ in range(9))
    heads = tuple(-1 if at == 0 else rng.choice([other for other in range(9) if other != at]) for at in range(9))
    relations = ("root", *(rng.choice(("obj", "amod")) for _ in range(8)))
    return AnnotatedText(words, (True,) * 9, f"document {number}", ("NOUN",) * 9, heads, relations)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("start", ["<s>", None])
def test_every_share_is_that_of_the_columns(causal, start):
    layers = [[planted.noise(2.0, seed) for seed in (1, 2, 3)]]
    model = Planted([*"abcdefghi", "-"], layers, n_ctx=64, start=start, causal=causal).build()
    texts = [parsed(number) for number in range(12)]
    table = part_of_speech.measure(model, texts, relations=["obj", "amod"])
    rows = table.loc[table["measure"].str.endswith(":transposed")]
    found = {
        (row["measure"], row["head"]): (row["value"], row["n"], row["baseline"]) for row in rows.to_dict("records")
    }
    stack = "decoder" if causal else "encoder"
    right, offsets = defaultdict(list), defaultdict(list)
    for text in texts:
        patterns = word_patterns(model, text, [Head(stack, 0, head) for head in range(3)])
        for dependent, (head_word, relation) in enumerate(zip(text.heads, text.relations, strict=True)):
            if relation == "root" or (causal and head_word < dependent):
                continue
            name = f"relation:{relation}:head->dependent:transposed"
            for by in (-5, -4, -3, -2, -1, 1, 2, 3, 4, 5):
                offsets[name, by].append(dependent + by == head_word)
            for head, pattern in enumerate(patterns):
                received = np.delete(pattern[:, dependent], dependent)
                best = received == received.max()
                right[name, head].append((pattern[head_word, dependent] == received.max()) / best.sum())
    assert {*found} == {*right}
    for key, shares in right.items():
        value, n, baseline = found[key]
        assert n == len(shares) > 10
        assert value == pytest.approx(np.mean(shares), abs=1e-5)
        assert baseline == pytest.approx(max(np.mean(own) for (name, _), own in offsets.items() if name == key[0]))

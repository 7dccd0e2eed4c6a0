"""What does a probe have to beat? A task that only knowing types by heart solves, and the types' commonest labels."""

import random
from collections import Counter
from collections.abc import Sequence

from interp.errors import whole_number


def control_labels(types: Sequence[str], labels: Sequence[int], *, seed: int = 0) -> dict[str, int]:
    """The control task: for each type one random class, fixed (Hewitt & Liang 2019, section 2).

    A class is drawn with its share of `labels`, as in the paper's control task for tags, so that task and control have
    classes of about the same sizes. A probe can do well on it only by knowing types by heart; accuracy less control
    accuracy is its *selectivity*. For pairs of words the paper draws an attachment for each word; that a pair of forms
    is a type, with one random class, is ours.

    Args:
        types: the types that want a class; their order does not matter.
        labels: the classes of the training items.
        seed: of the draw.
    """
    rng = random.Random(whole_number("seed", seed))
    counts = sorted(Counter(labels).items())
    classes, weights = [cls for cls, _ in counts], [count for _, count in counts]
    return dict(zip(names := sorted(set(types)), rng.choices(classes, weights, k=len(names)), strict=True))


def commonest_labels(types: Sequence[str], labels: Sequence[int]) -> tuple[dict[str, int], int]:
    """Each type's most frequent class, and that of all items for types not seen; a tie goes to the lower class."""
    counts: dict[str, Counter[int]] = {}
    for name, label in zip(types, labels, strict=True):
        counts.setdefault(name, Counter())[label] += 1
    *by_type, overall = (max(sorted(count), key=count.__getitem__) for count in (*counts.values(), Counter(labels)))
    return dict(zip(counts, by_type, strict=True)), overall
